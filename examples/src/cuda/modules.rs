//! Modules and libraries of kernels, and launches.

use super::memory::DeviceSpan;
use super::streams::CudaStream;
use super::{Address, Device, DriverHandle, Result, call};
use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;

fn c_text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Kernels and variables, loaded into a context.
#[derive(Debug)]
pub struct CudaModule {
    handle: DriverHandle,
}

impl CudaModule {
    /// Loads PTX into the context this thread works in.
    pub fn load(ptx: &str) -> Result<CudaModule> {
        let text = c_text(ptx);
        let mut handle = 0;
        // SAFETY: the text and the place live until the call returns.
        unsafe { call!(cuModuleLoadData(&raw mut handle, text.as_ptr().cast())) }?;
        Ok(CudaModule { handle })
    }

    /// One of its kernels.
    pub fn function(&self, name: &str) -> Result<CudaFunction<'_>> {
        let (text, mut handle) = (c_text(name), 0);
        // SAFETY: the text and the place live until the call returns.
        unsafe { call!(cuModuleGetFunction(&raw mut handle, self.handle, text.as_ptr())) }?;
        Ok(CudaFunction { handle, owner: PhantomData })
    }

    /// One of its variables.
    pub fn variable(&self, name: &str) -> Result<DeviceSpan<'_>> {
        let (text, mut at, mut bytes) = (c_text(name), 0, 0);
        // SAFETY: the text and the places live until the call returns.
        unsafe { call!(cuModuleGetGlobal(&raw mut at, &raw mut bytes, self.handle, text.as_ptr())) }?;
        Ok(DeviceSpan::of(self, at, bytes))
    }

    /// The driver's name of it.
    pub fn handle(&self) -> DriverHandle {
        self.handle
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        // SAFETY: it was loaded here, and is unloaded once.
        let _ = unsafe { call!(cuModuleUnload(self.handle)) };
    }
}

/// Kernels and variables that belong to no context.
#[derive(Debug)]
pub struct CudaLibrary {
    handle: DriverHandle,
}

impl CudaLibrary {
    /// Loads PTX.
    pub fn load(ptx: &str) -> Result<CudaLibrary> {
        let (text, mut handle, none) = (c_text(ptx), 0, std::ptr::null_mut());
        let values = std::ptr::null_mut();
        // SAFETY: the text and the place live until the call returns; no options are given.
        unsafe { call!(cuLibraryLoadData(&raw mut handle, text.as_ptr().cast(), none, values, 0, none, values, 0)) }?;
        Ok(CudaLibrary { handle })
    }

    /// One of its kernels.
    pub fn kernel(&self, name: &str) -> Result<KernelHandle<'_>> {
        let (text, mut handle) = (c_text(name), 0);
        // SAFETY: the text and the place live until the call returns.
        unsafe { call!(cuLibraryGetKernel(&raw mut handle, self.handle, text.as_ptr())) }?;
        Ok(KernelHandle { handle, owner: PhantomData })
    }

    /// One of its variables, in the context this thread works in.
    pub fn variable(&self, name: &str) -> Result<DeviceSpan<'_>> {
        let (text, mut at, mut bytes) = (c_text(name), 0, 0);
        // SAFETY: the text and the places live until the call returns.
        unsafe { call!(cuLibraryGetGlobal(&raw mut at, &raw mut bytes, self.handle, text.as_ptr())) }?;
        Ok(DeviceSpan::of(self, at, bytes))
    }
}

impl Drop for CudaLibrary {
    fn drop(&mut self) {
        // SAFETY: it was loaded here, and is unloaded once.
        let _ = unsafe { call!(cuLibraryUnload(self.handle)) };
    }
}

/// A kernel of a library, in whatever context it is launched.
#[derive(Clone, Copy, Debug)]
pub struct KernelHandle<'a> {
    handle: DriverHandle,
    owner: PhantomData<&'a CudaLibrary>,
}

impl<'a> KernelHandle<'a> {
    /// It, in the context this thread works in.
    pub fn function(self) -> Result<CudaFunction<'a>> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuKernelGetFunction(&raw mut handle, self.handle)) }?;
        Ok(CudaFunction { handle, owner: PhantomData })
    }

    /// It itself, where the driver takes either: it finds the context by the stream.
    pub fn as_function(self) -> CudaFunction<'a> {
        CudaFunction { handle: self.handle, owner: PhantomData }
    }

    /// A number about it on a GPU, by `CUfunction_attribute`.
    pub fn attribute(self, attribute: i32, device: Device) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuKernelGetAttribute(&raw mut value, attribute, self.handle, device.number())) }?;
        Ok(value)
    }
}

/// A kernel, to be launched.
#[derive(Clone, Copy, Debug)]
pub struct CudaFunction<'a> {
    handle: DriverHandle,
    owner: PhantomData<&'a ()>,
}

/// How many threads, and how many bytes for each block to share beyond those it declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes.
    pub shared: u32,
}

impl LaunchShape {
    /// As many threads as there are elements, in blocks of so many.
    pub fn line(elements: usize, block: u32) -> LaunchShape {
        let blocks = u32::try_from(elements.div_ceil(block as usize)).unwrap_or(u32::MAX).max(1);
        LaunchShape { grid: [blocks, 1, 1], block: [block, 1, 1], shared: 0 }
    }

    /// As many threads as there are elements, in blocks of 16 by 16.
    pub fn plane(width: usize, height: usize) -> LaunchShape {
        let blocks = |size: usize| u32::try_from(size.div_ceil(16)).unwrap_or(u32::MAX).max(1);
        LaunchShape { grid: [blocks(width), blocks(height), 1], block: [16, 16, 1], shared: 0 }
    }
}

/// What a kernel is given.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    values: Vec<(u64, usize)>,
}

impl Arguments {
    /// Nothing yet.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// A number.
    pub fn u32(mut self, value: u32) -> Arguments {
        self.values.push((value.into(), 4));
        self
    }

    /// A number with a fraction.
    pub fn f32(self, value: f32) -> Arguments {
        self.u32(value.to_bits())
    }

    /// Memory of a GPU.
    pub fn span(self, span: DeviceSpan<'_>) -> Arguments {
        self.address(span.at())
    }

    /// An address.
    pub fn address(mut self, at: Address) -> Arguments {
        self.values.push((at, 8));
        self
    }

    /// A pointer to each; numbers lie with their lowest byte first.
    pub(crate) fn pointers(&mut self) -> Vec<*mut c_void> {
        self.values.iter_mut().map(|(value, _)| std::ptr::from_mut(value).cast()).collect()
    }

    /// All of them side by side, each at a multiple of its size.
    fn packed(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        for (value, bytes) in &self.values {
            packed.resize(packed.len().next_multiple_of(*bytes), 0);
            packed.extend(&value.to_le_bytes()[..*bytes]);
        }
        packed
    }
}

/// `CUlaunchConfig`.
#[derive(Debug)]
#[repr(C)]
pub struct RawLaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: DriverHandle,
    attributes: *const RawLaunchAttribute,
    count: u32,
}

/// `CUlaunchAttribute`: which, and 64 bytes that depend on it.
#[derive(Debug)]
#[repr(C)]
pub struct RawLaunchAttribute {
    which: c_int,
    pad: c_int,
    value: [c_int; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: c_int = 8;
/// `CU_LAUNCH_PARAM_…`: the end, a piece of memory, its size.
const EXTRA_END: usize = 0;
const EXTRA_POINTER: usize = 1;
const EXTRA_SIZE: usize = 2;

/// Which of the driver's ways a launch takes. All do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchCall {
    /// `cuLaunchKernel`, with a pointer to each argument.
    Plain,
    /// `cuLaunchKernel`, with all arguments in one piece of memory.
    Packed,
    /// `cuLaunchKernelEx`.
    Ex,
    /// `cuLaunchKernelEx`, with a priority of its own.
    ExWithPriority(i32),
}

impl CudaFunction<'_> {
    /// The driver's name of it.
    pub fn handle(self) -> DriverHandle {
        self.handle
    }

    /// Launches it; no stream: in the default one.
    ///
    /// # Safety
    /// The arguments are those that the kernel expects, and it accesses only memory that no other code uses meanwhile.
    pub unsafe fn launch(self, shape: LaunchShape, stream: Option<&CudaStream>, arguments: Arguments) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launch_with(LaunchCall::Plain, shape, stream, arguments) }
    }

    /// Launches it in one of the ways there are.
    ///
    /// # Safety
    /// As for [`CudaFunction::launch`].
    pub unsafe fn launch_with(
        self,
        way: LaunchCall,
        shape: LaunchShape,
        stream: Option<&CudaStream>,
        mut arguments: Arguments,
    ) -> Result<()> {
        let LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared } = shape;
        let stream = stream.map_or(0, CudaStream::handle);
        let none = std::ptr::null_mut();
        let mut pointers = arguments.pointers();
        match way {
            LaunchCall::Plain => {
                let each = pointers.as_mut_ptr();
                // SAFETY: the pointers and what they point to live until the call returns, which copies it.
                unsafe { call!(cuLaunchKernel(self.handle, gx, gy, gz, bx, by, bz, shared, stream, each, none)) }
            }
            LaunchCall::Packed => {
                let mut packed = arguments.packed();
                let mut size = packed.len();
                let mut extra: [*mut c_void; 5] = [
                    EXTRA_POINTER as *mut c_void,
                    packed.as_mut_ptr().cast(),
                    EXTRA_SIZE as *mut c_void,
                    (&raw mut size).cast(),
                    EXTRA_END as *mut c_void,
                ];
                let extra = extra.as_mut_ptr();
                // SAFETY: the list and what it points to live until the call returns, which copies it.
                unsafe { call!(cuLaunchKernel(self.handle, gx, gy, gz, bx, by, bz, shared, stream, none, extra)) }
            }
            LaunchCall::Ex | LaunchCall::ExWithPriority(_) => {
                let priority = if let LaunchCall::ExWithPriority(priority) = way { priority } else { 0 };
                let mut value = [0; 16];
                value[0] = priority;
                let attribute = RawLaunchAttribute { which: PRIORITY, pad: 0, value };
                let config = RawLaunchConfig {
                    grid: shape.grid,
                    block: shape.block,
                    shared,
                    stream,
                    attributes: &raw const attribute,
                    count: u32::from(way != LaunchCall::Ex),
                };
                // SAFETY: everything that is pointed to lives until the call returns, which copies it.
                unsafe { call!(cuLaunchKernelEx(&raw const config, self.handle, pointers.as_mut_ptr(), none)) }
            }
        }
    }

    /// A number about it, by `CUfunction_attribute`.
    pub fn attribute(self, attribute: i32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuFuncGetAttribute(&raw mut value, attribute, self.handle)) }?;
        Ok(value)
    }

    /// Changes one of those that can be.
    pub fn set_attribute(self, attribute: i32, value: i32) -> Result<()> {
        // SAFETY: it takes numbers.
        unsafe { call!(cuFuncSetAttribute(self.handle, attribute, value)) }
    }

    /// The driver's name of its module.
    pub fn module(self) -> Result<DriverHandle> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuFuncGetModule(&raw mut handle, self.handle)) }?;
        Ok(handle)
    }

    /// Blocks of so many threads that a multiprocessor has room for at a time.
    pub fn blocks_at_a_time(self, threads: u32, shared: usize) -> Result<u32> {
        let mut blocks = 0;
        // SAFETY: the place lives until the call returns.
        unsafe {
            call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.handle, threads as c_int, shared))
        }?;
        Ok(blocks as u32)
    }

    /// The number of blocks, and of threads in each, with which a GPU is full.
    pub fn best_shape(self) -> Result<(u32, u32)> {
        let (mut blocks, mut threads, none) = (0, 0, std::ptr::null_mut());
        // SAFETY: both places live until the call returns; there is no function to call.
        unsafe { call!(cuOccupancyMaxPotentialBlockSize(&raw mut blocks, &raw mut threads, self.handle, none, 0, 0)) }?;
        Ok((blocks as u32, threads as u32))
    }
}
