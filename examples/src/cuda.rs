//! CUDA's driver API, as much of it as the examples need.
//!
//! ```text
//!   cuda             the library, its functions, errors, devices, contexts
//!   memory           memory of GPUs and for copies; copies and fills
//!   streams          streams, events, functions of the host
//!   modules          modules, libraries, kernels and their launches
//!   memory_pool      memory in the order of a stream
//!   virtual_memory   addresses and memory apart
//!   graph            work that is written down and replayed
//! ```
//! `libcuda.so.1` is loaded when it is needed, and its functions are taken by name in the form that
//! CUDA 12.0 gave them, so that a program runs with any driver since. Everything that was made is
//! given back when it is dropped. What can be done safely is safe; what lets a GPU write to the
//! host's memory later, or runs a kernel, is `unsafe`.

pub mod graph;
pub mod memory;
pub mod memory_pool;
pub mod modules;
pub mod streams;
pub mod virtual_memory;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// An address on a GPU, or on the host where a GPU can reach it.
pub type Address = u64;
/// Whatever the driver names by a pointer that only it reads: contexts, streams, modules and so on.
pub type DriverHandle = usize;

/// The version of the API that the functions below are declared for.
const API_VERSION: c_int = 12_000;

/// Why a call did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// Which call.
    pub call: &'static str,
    /// What it answered; zero where there was no driver to ask.
    pub code: c_int,
    /// The name of that answer.
    pub name: String,
}

impl DriverError {
    /// Whether the GPU has not so much memory left.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == 2
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => write!(f, "{}: {}", self.call, self.name),
            code => write!(f, "{} answered {} ({code})", self.call, self.name),
        }
    }
}

impl std::error::Error for DriverError {}

/// What calls give.
pub type Result<T> = std::result::Result<T, DriverError>;

/// Declares the driver's functions: a field for each, filled by name.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The driver's functions, by their own names.
        #[expect(non_snake_case, reason = "they are called what NVIDIA calls them")]
        pub(crate) struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn find(mut address: impl FnMut(&'static str) -> Result<*mut c_void>) -> Result<Functions> {
                Ok(Functions {
                    $(
                        // SAFETY: the driver's function of that name, in the form that was asked for, has
                        // the parameters that are declared below.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                                address(stringify!($name))?,
                            )
                        },
                    )*
                })
            }
        }
    };
}

functions! {
    cuInit(u32);
    cuGetErrorName(c_int, *mut *const c_char);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid(*mut [u8; 16], c_int);
    cuDeviceTotalMem(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    cuDeviceGetByPCIBusId(*mut c_int, *const c_char);
    cuDevicePrimaryCtxRetain(*mut DriverHandle, c_int);
    cuDevicePrimaryCtxRelease(c_int);
    cuDevicePrimaryCtxGetState(c_int, *mut u32, *mut c_int);
    cuCtxCreate(*mut DriverHandle, *mut c_void, c_int, u32, c_int);
    cuCtxDestroy(DriverHandle);
    cuCtxSetCurrent(DriverHandle);
    cuCtxGetCurrent(*mut DriverHandle);
    cuCtxPushCurrent(DriverHandle);
    cuCtxPopCurrent(*mut DriverHandle);
    cuCtxGetDevice(*mut c_int);
    cuCtxGetLimit(*mut usize, c_int);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuCtxSynchronize();
    cuMemGetInfo(*mut usize, *mut usize);
    cuMemAlloc(*mut Address, usize);
    cuMemAllocPitch(*mut Address, *mut usize, usize, usize, u32);
    cuMemFree(Address);
    cuMemGetAddressRange(*mut Address, *mut usize, Address);
    cuMemHostAlloc(*mut *mut c_void, usize, u32);
    cuMemFreeHost(*mut c_void);
    cuMemHostGetDevicePointer(*mut Address, *mut c_void, u32);
    cuMemHostGetFlags(*mut u32, *mut c_void);
    cuMemHostRegister(*mut c_void, usize, u32);
    cuMemHostUnregister(*mut c_void);
    cuPointerGetAttribute(*mut c_void, c_int, Address);
    cuMemcpyHtoD(Address, *const c_void, usize);
    cuMemcpyDtoH(*mut c_void, Address, usize);
    cuMemcpyDtoD(Address, Address, usize);
    cuMemcpy(Address, Address, usize);
    cuMemcpyHtoDAsync(Address, *const c_void, usize, DriverHandle);
    cuMemcpyDtoHAsync(*mut c_void, Address, usize, DriverHandle);
    cuMemcpyDtoDAsync(Address, Address, usize, DriverHandle);
    cuMemcpyAsync(Address, Address, usize, DriverHandle);
    cuMemcpy2D(*const memory::RawCopy2D);
    cuMemcpy2DUnaligned(*const memory::RawCopy2D);
    cuMemcpy2DAsync(*const memory::RawCopy2D, DriverHandle);
    cuMemcpy3D(*const memory::RawCopy3D);
    cuMemcpy3DAsync(*const memory::RawCopy3D, DriverHandle);
    cuMemsetD8(Address, u8, usize);
    cuMemsetD16(Address, u16, usize);
    cuMemsetD32(Address, u32, usize);
    cuMemsetD8Async(Address, u8, usize, DriverHandle);
    cuMemsetD16Async(Address, u16, usize, DriverHandle);
    cuMemsetD32Async(Address, u32, usize, DriverHandle);
    cuMemsetD2D8(Address, usize, u8, usize, usize);
    cuMemsetD2D16(Address, usize, u16, usize, usize);
    cuMemsetD2D32(Address, usize, u32, usize, usize);
    cuMemsetD2D8Async(Address, usize, u8, usize, usize, DriverHandle);
    cuMemsetD2D16Async(Address, usize, u16, usize, usize, DriverHandle);
    cuMemsetD2D32Async(Address, usize, u32, usize, usize, DriverHandle);
    cuStreamCreate(*mut DriverHandle, u32);
    cuStreamCreateWithPriority(*mut DriverHandle, u32, c_int);
    cuStreamDestroy(DriverHandle);
    cuStreamSynchronize(DriverHandle);
    cuStreamQuery(DriverHandle);
    cuStreamGetPriority(DriverHandle, *mut c_int);
    cuStreamGetFlags(DriverHandle, *mut u32);
    cuStreamGetCtx(DriverHandle, *mut DriverHandle);
    cuStreamWaitEvent(DriverHandle, DriverHandle, u32);
    cuStreamWriteValue32(DriverHandle, Address, u32, u32);
    cuStreamWaitValue32(DriverHandle, Address, u32, u32);
    cuLaunchHostFunc(DriverHandle, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void);
    cuStreamBeginCapture(DriverHandle, c_int);
    cuStreamEndCapture(DriverHandle, *mut DriverHandle);
    cuStreamIsCapturing(DriverHandle, *mut c_int);
    cuEventCreate(*mut DriverHandle, u32);
    cuEventDestroy(DriverHandle);
    cuEventRecord(DriverHandle, DriverHandle);
    cuEventQuery(DriverHandle);
    cuEventSynchronize(DriverHandle);
    cuEventElapsedTime(*mut f32, DriverHandle, DriverHandle);
    cuModuleLoadData(*mut DriverHandle, *const c_void);
    cuModuleUnload(DriverHandle);
    cuModuleGetFunction(*mut DriverHandle, DriverHandle, *const c_char);
    cuModuleGetGlobal(*mut Address, *mut usize, DriverHandle, *const c_char);
    cuLibraryLoadData(
        *mut DriverHandle, *const c_void, *mut c_int, *mut *mut c_void, u32, *mut c_int, *mut *mut c_void, u32
    );
    cuLibraryUnload(DriverHandle);
    cuLibraryGetKernel(*mut DriverHandle, DriverHandle, *const c_char);
    cuLibraryGetGlobal(*mut Address, *mut usize, DriverHandle, *const c_char);
    cuKernelGetFunction(*mut DriverHandle, DriverHandle);
    cuKernelGetAttribute(*mut c_int, c_int, DriverHandle, c_int);
    cuFuncGetAttribute(*mut c_int, c_int, DriverHandle);
    cuFuncSetAttribute(DriverHandle, c_int, c_int);
    cuFuncGetModule(*mut DriverHandle, DriverHandle);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, DriverHandle, c_int, usize);
    cuOccupancyMaxPotentialBlockSize(*mut c_int, *mut c_int, DriverHandle, *mut c_void, usize, c_int);
    cuLaunchKernel(DriverHandle, u32, u32, u32, u32, u32, u32, u32, DriverHandle, *mut *mut c_void, *mut *mut c_void);
    cuLaunchKernelEx(*const modules::RawLaunchConfig, DriverHandle, *mut *mut c_void, *mut *mut c_void);
    cuDeviceGetDefaultMemPool(*mut DriverHandle, c_int);
    cuMemPoolCreate(*mut DriverHandle, *const memory_pool::RawPoolProperties);
    cuMemPoolDestroy(DriverHandle);
    cuMemPoolTrimTo(DriverHandle, usize);
    cuMemPoolGetAttribute(DriverHandle, c_int, *mut c_void);
    cuMemPoolSetAttribute(DriverHandle, c_int, *mut c_void);
    cuMemAllocAsync(*mut Address, usize, DriverHandle);
    cuMemAllocFromPoolAsync(*mut Address, usize, DriverHandle, DriverHandle);
    cuMemFreeAsync(Address, DriverHandle);
    cuMemAddressReserve(*mut Address, usize, usize, Address, u64);
    cuMemAddressFree(Address, usize);
    cuMemCreate(*mut u64, usize, *const virtual_memory::RawAllocationProperties, u64);
    cuMemRelease(u64);
    cuMemMap(Address, usize, usize, u64, u64);
    cuMemUnmap(Address, usize);
    cuMemSetAccess(Address, usize, *const virtual_memory::RawAccess, usize);
    cuMemGetAccess(*mut u64, *const virtual_memory::RawLocation, Address);
    cuMemGetAllocationGranularity(*mut usize, *const virtual_memory::RawAllocationProperties, c_int);
    cuMemRetainAllocationHandle(*mut u64, *mut c_void);
    cuGraphCreate(*mut DriverHandle, u32);
    cuGraphDestroy(DriverHandle);
    cuGraphClone(*mut DriverHandle, DriverHandle);
    cuGraphGetNodes(DriverHandle, *mut DriverHandle, *mut usize);
    cuGraphGetEdges(DriverHandle, *mut DriverHandle, *mut DriverHandle, *mut usize);
    cuGraphAddKernelNode(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const graph::RawKernelNode);
    cuGraphAddMemcpyNode(
        *mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const memory::RawCopy3D, DriverHandle
    );
    cuGraphAddMemsetNode(
        *mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const graph::RawFillNode, DriverHandle
    );
    cuGraphAddHostNode(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const graph::RawHostNode);
    cuGraphAddChildGraphNode(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, DriverHandle);
    cuGraphAddEmptyNode(*mut DriverHandle, DriverHandle, *const DriverHandle, usize);
    cuGraphInstantiateWithFlags(*mut DriverHandle, DriverHandle, u64);
    cuGraphExecKernelNodeSetParams(DriverHandle, DriverHandle, *const graph::RawKernelNode);
    cuGraphExecUpdate(DriverHandle, DriverHandle, *mut graph::RawUpdateResult);
    cuGraphNodeSetEnabled(DriverHandle, DriverHandle, u32);
    cuGraphExecDestroy(DriverHandle);
    cuGraphLaunch(DriverHandle, DriverHandle);
}

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// Calls a function of the driver; to be used within `unsafe`.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::check(stringify!($name), ($crate::cuda::functions().$name)($($argument),*))
    };
}
pub(crate) use call;

/// What [`start`] found.
static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The driver's functions. Everything that can be called is made by what [`start`] gave.
pub(crate) fn functions() -> &'static Functions {
    FUNCTIONS.get().expect("the driver is started before anything else of it is used")
}

fn load() -> Result<Functions> {
    let broken = |call, name: String| DriverError { call, code: 0, name };
    // SAFETY: NVIDIA's driver, or what stands in for it, may do when it is loaded what it needs to.
    let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| broken("libcuda.so.1 cannot be loaded", error.to_string()))?;
    // SAFETY: the function of that name has these parameters since CUDA 12.0.
    let found: std::result::Result<Symbol<GetProcAddress>, _> = unsafe { library.get(b"cuGetProcAddress_v2\0") };
    let find = *found.map_err(|error| broken("a driver of CUDA 12.0 or newer is needed", error.to_string()))?;
    // It stays loaded as long as the program runs, and so do its functions.
    std::mem::forget(library);
    Functions::find(|name| {
        let text = CString::new(name).expect("names have no zeros in them");
        let (mut address, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: the name and both places live until the call returns.
        let code = unsafe { find(text.as_ptr(), &raw mut address, API_VERSION, 0, &raw mut status) };
        if code == 0 && !address.is_null() { Ok(address) } else { Err(broken(name, "the driver lacks it".into())) }
    })
}

/// What an answer means.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the place lives until the call returns.
    let known = unsafe { (functions().cuGetErrorName)(code, &raw mut text) } == 0 && !text.is_null();
    let name = if known {
        // SAFETY: the driver's names are texts that end with a zero and stay.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "an error without a name".to_owned()
    };
    Err(DriverError { call, code, name })
}

/// Loads the driver if it is not loaded, and starts it.
pub fn start() -> Result<()> {
    if FUNCTIONS.get().is_none() {
        // If another thread was first, its functions stay.
        let _ = FUNCTIONS.set(load()?);
    }
    // SAFETY: it takes a number.
    unsafe { call!(cuInit(0)) }
}

/// The version of CUDA that the driver is made for, such as 13000.
pub fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the place lives until the call returns.
    unsafe { call!(cuDriverGetVersion(&raw mut version)) }?;
    Ok(version)
}

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    number: c_int,
}

impl Device {
    /// How many there are; starts the driver.
    pub fn count() -> Result<u32> {
        start()?;
        let mut count = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDeviceGetCount(&raw mut count)) }?;
        Ok(count as u32)
    }

    /// One of them; starts the driver.
    pub fn get(ordinal: u32) -> Result<Device> {
        start()?;
        let mut number = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDeviceGet(&raw mut number, ordinal as c_int)) }?;
        Ok(Device { number })
    }

    /// The one at a place on the bus.
    pub fn by_bus_id(id: &str) -> Result<Device> {
        let text = CString::new(id).unwrap_or_default();
        let mut number = 0;
        // SAFETY: the text and the place live until the call returns.
        unsafe { call!(cuDeviceGetByPCIBusId(&raw mut number, text.as_ptr())) }?;
        Ok(Device { number })
    }

    /// The driver's number of it.
    pub fn number(self) -> i32 {
        self.number
    }

    fn device_text(ask: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
        let mut text = [0 as c_char; 256];
        ask(text.as_mut_ptr(), text.len() as c_int)?;
        let bytes = text.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect::<Vec<_>>();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its name.
    pub fn name(self) -> Result<String> {
        // SAFETY: there is room for as many bytes as the call is told.
        Device::device_text(|place, room| unsafe { call!(cuDeviceGetName(place, room, self.number)) })
    }

    /// Its place on the bus.
    pub fn bus_id(self) -> Result<String> {
        // SAFETY: there is room for as many bytes as the call is told.
        Device::device_text(|place, room| unsafe { call!(cuDeviceGetPCIBusId(place, room, self.number)) })
    }

    /// The number that no other GPU has.
    pub fn uuid(self) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDeviceGetUuid(&raw mut uuid, self.number)) }?;
        Ok(uuid)
    }

    /// All of its memory, in bytes.
    pub fn total_bytes(self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDeviceTotalMem(&raw mut bytes, self.number)) }?;
        Ok(bytes as u64)
    }

    /// A number about it, by `CUdevice_attribute`.
    pub fn attribute(self, attribute: i32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDeviceGetAttribute(&raw mut value, attribute, self.number)) }?;
        Ok(value)
    }

    /// Whether its primary context is there.
    pub fn has_primary(self) -> Result<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both places live until the call returns.
        unsafe { call!(cuDevicePrimaryCtxGetState(self.number, &raw mut flags, &raw mut active)) }?;
        Ok(active != 0)
    }
}

/// A context: a program's place on a GPU.
#[derive(Debug)]
pub struct CudaContext {
    device: Device,
    handle: DriverHandle,
    is_primary: bool,
}

impl CudaContext {
    /// The one that all parts of a program share.
    pub fn primary(device: Device) -> Result<CudaContext> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuDevicePrimaryCtxRetain(&raw mut handle, device.number)) }?;
        Ok(CudaContext { device, handle, is_primary: true })
    }

    /// A new one, which is current for this thread afterwards as if it had been pushed.
    pub fn create(device: Device) -> Result<CudaContext> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns; no affinities are given.
        unsafe { call!(cuCtxCreate(&raw mut handle, std::ptr::null_mut(), 0, 0, device.number)) }?;
        Ok(CudaContext { device, handle, is_primary: false })
    }

    /// The driver's name of it.
    pub fn handle(&self) -> DriverHandle {
        self.handle
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// This thread works in it from now on.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is there as long as `self` is.
        unsafe { call!(cuCtxSetCurrent(self.handle)) }
    }

    /// This thread works in it until what this returns is dropped.
    pub fn push(&self) -> Result<PushedContext<'_>> {
        // SAFETY: the context is there as long as `self` is.
        unsafe { call!(cuCtxPushCurrent(self.handle)) }?;
        Ok(PushedContext { handle: self.handle, context: PhantomData })
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once.
        let _ = unsafe {
            if self.is_primary {
                call!(cuDevicePrimaryCtxRelease(self.device.number))
            } else {
                call!(cuCtxDestroy(self.handle))
            }
        };
    }
}

/// A context that a thread works in for a while. It stays with its thread.
#[derive(Debug)]
pub struct PushedContext<'a> {
    handle: DriverHandle,
    context: PhantomData<(&'a CudaContext, *const ())>,
}

impl Drop for PushedContext<'_> {
    fn drop(&mut self) {
        let mut top = 0;
        // SAFETY: the place lives until the call returns.
        let done = unsafe { call!(cuCtxPopCurrent(&raw mut top)) };
        debug_assert!(done.is_err() || top == self.handle, "contexts are popped in the order they were pushed");
    }
}

/// The context this thread works in; zero: none.
pub fn current_context() -> Result<DriverHandle> {
    let mut handle = 0;
    // SAFETY: the place lives until the call returns.
    unsafe { call!(cuCtxGetCurrent(&raw mut handle)) }?;
    Ok(handle)
}

/// The GPU this thread works on.
pub fn current_device() -> Result<Device> {
    let mut number = 0;
    // SAFETY: the place lives until the call returns.
    unsafe { call!(cuCtxGetDevice(&raw mut number)) }?;
    Ok(Device { number })
}

/// A limit of the context this thread works in, by `CUlimit`.
pub fn limit(limit: i32) -> Result<usize> {
    let mut value = 0;
    // SAFETY: the place lives until the call returns.
    unsafe { call!(cuCtxGetLimit(&raw mut value, limit)) }?;
    Ok(value)
}

/// Waits for everything that the context of this thread has under way.
pub fn synchronise() -> Result<()> {
    // SAFETY: it takes nothing.
    unsafe { call!(cuCtxSynchronize()) }
}

/// Bytes of the GPU that are free, and all of them.
pub fn memory_info() -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both places live until the call returns.
    unsafe { call!(cuMemGetInfo(&raw mut free, &raw mut total)) }?;
    Ok((free as u64, total as u64))
}
