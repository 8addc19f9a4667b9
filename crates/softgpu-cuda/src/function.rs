//! Kernels as programs have them, and their launches.

use crate::api::pointers::CallerIn;
use crate::log;
use crate::module::LoadedModule;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime};
use std::ffi::{CString, c_int, c_void};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use sublet_ptx::{FaultKind, Kernel, KernelFault, Launch, run};
use sublet_softgpu::state::now_ns;

/// The largest number of threads of a block.
pub const BLOCK_MAX: u32 = 1024;
/// Shared bytes of a block: usually, and if the program asks for more.
pub const SHARED_USUAL: u32 = 48 << 10;
pub const SHARED_MAX: u32 = 64 << 10;
/// Of a processor: threads, blocks, registers, shared bytes.
const THREADS_OF_PROCESSOR: u32 = 1024;
const BLOCKS_OF_PROCESSOR: u32 = 16;
const REGISTERS_OF_PROCESSOR: u32 = 65_536;

/// A kernel in a context.
pub struct ContextKernel {
    /// Its module.
    pub loaded: Arc<LoadedModule>,
    /// The module's handle.
    pub module: usize,
    /// Its name.
    pub name: CString,
    /// Dynamic shared bytes it may be launched with.
    max_dynamic_shared: AtomicI32,
    carveout: AtomicI32,
}

/// The shape of a launch as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchGeometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared bytes.
    pub shared: u32,
}

/// A kernel with its shape and parameters.
pub struct KernelCall {
    /// The kernel.
    pub function: Arc<ContextKernel>,
    /// The handle by which the program named it.
    pub handle: usize,
    /// Grid and block.
    pub shape: LaunchGeometry,
    /// The parameters, packed.
    pub params: Vec<u8>,
    /// The address of each parameter, as programs read it back.
    pub places: Vec<*mut c_void>,
}

// SAFETY: the places point into the parameters, which do not change.
unsafe impl Send for KernelCall {}
// SAFETY: nothing is written by way of a reference, also not to the parameters.
unsafe impl Sync for KernelCall {}

impl ContextKernel {
    /// A kernel of a module; an error if there is none of that name.
    pub fn new(loaded: Arc<LoadedModule>, module: usize, name: &str) -> Outcome<ContextKernel> {
        loaded.module.kernel(name).ok_or(CuResult::NOT_FOUND)?;
        let name = CString::new(name).map_err(|_| CuResult::NOT_FOUND)?;
        let (max_dynamic_shared, carveout) = (AtomicI32::new(SHARED_USUAL as i32), AtomicI32::new(-1));
        Ok(ContextKernel { loaded, module, name, max_dynamic_shared, carveout })
    }

    /// The kernel.
    pub fn kernel(&self) -> Outcome<&Kernel> {
        let name = self.name.to_str().map_err(|_| CuResult::NOT_FOUND)?;
        self.loaded.module.kernel(name).ok_or(CuResult::NOT_FOUND)
    }

    /// An attribute by `CUfunction_attribute`.
    pub fn attribute(&self, attribute: c_int) -> Outcome<c_int> {
        let kernel = self.kernel()?;
        Ok(match attribute {
            0 => kernel.max_block().map_or(BLOCK_MAX, |block| block.iter().product::<u32>()) as c_int,
            1 => kernel.shared_bytes() as c_int,
            3 => kernel.local_bytes() as c_int,
            4 => kernel.registers().clamp(16, 255) as c_int,
            5 | 6 => 75,
            8 => self.max_dynamic_shared.load(SeqCst),
            9 => self.carveout.load(SeqCst),
            2 | 7 | 10..=15 => 0,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }

    /// Changes an attribute, if it can be changed.
    pub fn set_attribute(&self, attribute: c_int, value: c_int) -> Outcome {
        match attribute {
            8 => {
                let room = SHARED_MAX.saturating_sub(self.kernel()?.shared_bytes()) as c_int;
                if !(0..=room).contains(&value) {
                    return Err(CuResult::INVALID_VALUE);
                }
                self.max_dynamic_shared.store(value, SeqCst);
            }
            9 if (-1..=100).contains(&value) => self.carveout.store(value, SeqCst),
            // Clusters do not exist here: any preference is accepted.
            11..=15 => {}
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }

    /// How many blocks fit on a processor at a time.
    pub fn blocks_at_a_time(&self, threads: u32, dynamic_shared: u64) -> Outcome<u32> {
        if threads == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let max = self.attribute(0)? as u32;
        let shared = u64::from(self.kernel()?.shared_bytes()) + dynamic_shared;
        if threads > max || shared > SHARED_MAX.into() {
            return Ok(0);
        }
        let warps = threads.div_ceil(32);
        let registers = (self.attribute(4)? as u32).next_multiple_of(8) * 32 * warps;
        let by_shared = u64::from(SHARED_MAX).checked_div(shared).unwrap_or(u64::MAX);
        let by_shared = u32::try_from(by_shared).unwrap_or(u32::MAX);
        let by_threads = THREADS_OF_PROCESSOR / (warps * 32);
        Ok(BLOCKS_OF_PROCESSOR.min(by_threads).min(REGISTERS_OF_PROCESSOR / registers).min(by_shared))
    }

    /// Checks that it can be launched with this shape.
    fn check(&self, shape: &LaunchGeometry) -> Outcome {
        let threads = shape.block.iter().try_fold(1u32, |all, own| all.checked_mul(*own)).unwrap_or(u32::MAX);
        let is_odd = shape.grid.contains(&0)
            || shape.block.contains(&0)
            || shape.grid[0] > i32::MAX as u32
            || shape.grid[1..].iter().any(|count| *count > 65_535)
            || shape.block[2] > 64
            || threads > self.attribute(0)? as u32;
        if is_odd || shape.shared > self.max_dynamic_shared.load(SeqCst) as u32 {
            return Err(CuResult::INVALID_VALUE);
        }
        if self.kernel()?.shared_bytes().saturating_add(shape.shared) > SHARED_MAX {
            return Err(CuResult::LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }

    /// A launch, with the parameters as the program gave them.
    pub fn call(
        self: Arc<ContextKernel>,
        handle: usize,
        shape: LaunchGeometry,
        given: RawKernelParams,
    ) -> Outcome<Arc<KernelCall>> {
        self.check(&shape)?;
        let mut params = given.packed(self.kernel()?)?;
        let base = params.as_mut_ptr();
        let places = self.kernel()?.params().iter().map(|param| base.wrapping_add(param.offset as usize).cast());
        Ok(Arc::new(KernelCall { places: places.collect(), function: self, handle, shape, params }))
    }
}

/// Parameters as a program passes them: one pointer each, or one buffer.
#[derive(Clone, Copy)]
pub struct RawKernelParams {
    /// One pointer each.
    each: *mut *mut c_void,
    /// A list that names the buffer and its size.
    extra: *mut *mut c_void,
}

impl RawKernelParams {
    /// The parameters of a launch.
    ///
    /// # Safety
    /// `each` is null, or has a pointer for each parameter of the kernel that is launched, to as many bytes as the
    /// parameter has. `extra` is null, or has pairs of a number and a pointer that end with a zero.
    pub unsafe fn new(each: *mut *mut c_void, extra: *mut *mut c_void) -> RawKernelParams {
        RawKernelParams { each, extra }
    }

    fn packed(self, kernel: &Kernel) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; kernel.param_bytes() as usize];
        if kernel.params().is_empty() {
            return Ok(bytes);
        }
        if !self.extra.is_null() && self.each.is_null() {
            self.unpack(&mut bytes)?;
            return Ok(bytes);
        }
        if self.each.is_null() || !self.extra.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        for (number, param) in kernel.params().iter().enumerate() {
            // SAFETY: the caller of the C function promises a pointer for each parameter of the kernel.
            let place = unsafe { self.each.add(number).read() }.cast::<u8>();
            if place.is_null() {
                return Err(CuResult::INVALID_VALUE);
            }
            let own = &mut bytes[param.offset as usize..][..param.bytes as usize];
            // SAFETY: the caller of the C function promises as many bytes as the parameter has.
            unsafe { std::ptr::copy_nonoverlapping(place, own.as_mut_ptr(), own.len()) };
        }
        Ok(bytes)
    }

    fn unpack(self, bytes: &mut [u8]) -> Outcome {
        const POINTER: usize = 1;
        const SIZE: usize = 2;
        let (mut piece, mut size) = (std::ptr::null::<u8>(), 0);
        let mut next = self.extra;
        // SAFETY: the caller of the C function promises pairs of a number and a pointer that end with a zero.
        unsafe {
            while next.read() as usize != 0 {
                match next.read() as usize {
                    POINTER => piece = next.add(1).read().cast(),
                    SIZE => size = CallerIn::new(next.add(1).read().cast::<usize>().cast_const()).read()?,
                    _ => return Err(CuResult::INVALID_VALUE),
                }
                next = next.add(2);
            }
            if piece.is_null() || size < bytes.len() {
                return Err(CuResult::INVALID_VALUE);
            }
            std::ptr::copy_nonoverlapping(piece, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }
}

impl KernelCall {
    /// Runs the kernel to its end.
    pub fn run(&self, runtime: &Runtime, context: &DriverContext) -> Outcome {
        let kernel = self.function.kernel()?;
        let begun = Instant::now();
        let running = runtime.client.start_kernel(context.gpu);
        let memory = runtime.space.snapshot_for(runtime.kernel_reach(context));
        let done = run(&Launch {
            module: &self.function.loaded.module,
            kernel,
            grid: self.shape.grid,
            block: self.shape.block,
            dynamic_shared: self.shape.shared,
            params: &self.params,
            variables: &self.function.loaded.variables,
            memory: &memory,
            stop: &context.stop,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            clock: &now_ns,
            print: Some(&print),
        });
        drop(memory);
        let percent = runtime.client.state().gpus()[context.gpu].slow_percent.load(SeqCst);
        std::thread::sleep(extra_time(begun.elapsed(), percent));
        drop(running);
        done.map(drop).map_err(|fault| result_of_fault(&fault))
    }
}

/// Prints the text of a kernel; a closed output is no reason to stop.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn extra_time(took: Duration, percent: u32) -> Duration {
    took.saturating_mul(percent) / 100
}

fn result_of_fault(fault: &KernelFault) -> CuResult {
    log::once(&fault.to_string());
    match fault.kind {
        FaultKind::OutOfRange { .. } => CuResult::ILLEGAL_ADDRESS,
        FaultKind::Misaligned { .. } => CuResult::MISALIGNED_ADDRESS,
        FaultKind::Assert { .. } => CuResult::ASSERT,
        FaultKind::Trap => CuResult::ILLEGAL_INSTRUCTION,
        FaultKind::Stopped => CuResult::LAUNCH_TIMEOUT,
        _ => CuResult::LAUNCH_FAILED,
    }
}
