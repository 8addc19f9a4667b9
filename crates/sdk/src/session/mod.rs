//! GPU work on a lease: memory, modules, launches.
//!
//! ```text
//!   GpuSession ── every call ──► lease: may it work? ──► CUDA's driver, real or soft, behind Sublet's shim
//!      └── GpuBuffer, GpuModule, GpuStream: freed when they are dropped, or with the session
//! ```
//! A session has a CUDA context of its own, made at its first call. If the lease is parked meanwhile, calls wait and
//! everything goes on as before: addresses stay. If the lease is over, calls fail and say how it ended.
//!
//! Absent on purpose: graphs, events, textures, copies between GPUs. Programs that need them use the driver themselves,
//! under `sublet run`.

mod args;
mod core;
mod driver;
mod handles;
mod libraries;

pub use args::KernelArgs;
pub use handles::{GpuBuffer, GpuModule, GpuStream};

use self::core::SessionCore;
use self::driver::DriverFunctions;
use crate::error::FabricError;
use crate::lease::{GpuLease, LeaseStatus};
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const PARAM_END: usize = 0;
const PARAM_POINTER: usize = 1;
const PARAM_SIZE: usize = 2;

/// GPU work on one GPU of a lease.
pub struct GpuSession {
    core: Arc<SessionCore>,
}

impl fmt::Debug for GpuSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuSession").field("lease", &self.core.lease().id()).finish_non_exhaustive()
    }
}

fn invalid(what: impl Into<String>) -> FabricError {
    FabricError::InvalidArgument(what.into())
}

fn size(bytes: u64) -> Result<usize, FabricError> {
    usize::try_from(bytes).map_err(|_| invalid(format!("{bytes} bytes are more than this host can address")))
}

impl GpuSession {
    /// A session on the first GPU of a lease. The GPU is not used before the first call.
    pub fn new(lease: &GpuLease) -> GpuSession {
        GpuSession::on_gpu(lease, 0)
    }

    /// A session on another GPU of a lease, by its place in [`GpuLease::gpu_uuids`].
    pub fn on_gpu(lease: &GpuLease, gpu: usize) -> GpuSession {
        GpuSession { core: Arc::new(SessionCore::new(Arc::clone(lease.local()), gpu)) }
    }

    /// Allocates memory of the GPU. Its content is not defined.
    pub fn mem_alloc(&self, bytes: u64) -> Result<GpuBuffer, FabricError> {
        if bytes == 0 {
            return Err(invalid("a buffer has at least 1 byte"));
        }
        let length = size(bytes)?;
        let address = self.core.call(|driver| {
            let mut address = 0;
            // SAFETY: the place lives until the call returns.
            driver.check("cuMemAlloc", unsafe { (driver.cuMemAlloc)(&raw mut address, length) })?;
            Ok(address)
        })?;
        Ok(GpuBuffer::new(Arc::clone(&self.core), address, bytes))
    }

    /// Copies bytes into a buffer, from `offset` on.
    pub fn mem_write(&self, buffer: &GpuBuffer, offset: u64, bytes: &[u8]) -> Result<(), FabricError> {
        let at = self.place(buffer, offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return self.core.lease().check();
        }
        self.core.call(|driver| {
            // SAFETY: the bytes live until the call returns, and the range lies in the buffer.
            driver.check("cuMemcpyHtoD", unsafe { (driver.cuMemcpyHtoD)(at, bytes.as_ptr().cast(), bytes.len()) })
        })?;
        self.core.lease().work.bytes_written.fetch_add(bytes.len() as u64, Relaxed);
        self.core.lease().count_activity();
        Ok(())
    }

    /// Copies `length` bytes out of a buffer, from `offset` on. Waits for launches before it.
    pub fn mem_read(&self, buffer: &GpuBuffer, offset: u64, length: impl Into<u64>) -> Result<Vec<u8>, FabricError> {
        let length = length.into();
        let at = self.place(buffer, offset, length)?;
        let mut bytes = vec![0; size(length)?];
        if bytes.is_empty() {
            return self.core.lease().check().map(|()| bytes);
        }
        self.core.call(|driver| {
            // SAFETY: the vector has that many bytes, and the range lies in the buffer.
            driver.check("cuMemcpyDtoH", unsafe { (driver.cuMemcpyDtoH)(bytes.as_mut_ptr().cast(), at, bytes.len()) })
        })?;
        self.core.lease().work.bytes_read.fetch_add(length, Relaxed);
        self.core.lease().count_activity();
        Ok(bytes)
    }

    /// Frees a buffer, and says whether that succeeded.
    pub fn mem_free(&self, buffer: GpuBuffer) -> Result<(), FabricError> {
        self.own(buffer.session())?;
        let address = buffer.disarm();
        // SAFETY: the address was allocated by this session, and is freed once.
        self.core.call(|driver| driver.check("cuMemFree", unsafe { (driver.cuMemFree)(address) }))
    }

    /// Free and total memory of the GPU, in bytes, as the driver shows it to this program.
    pub fn mem_info(&self) -> Result<(u64, u64), FabricError> {
        self.core.call(|driver| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: both places live until the call returns.
            driver.check("cuMemGetInfo", unsafe { (driver.cuMemGetInfo)(&raw mut free, &raw mut total) })?;
            Ok((free as u64, total as u64))
        })
    }

    /// Loads kernels: PTX as text, or a cubin or fatbin.
    pub fn module_load(&self, image: impl AsRef<[u8]>) -> Result<GpuModule, FabricError> {
        // PTX is a text that ends with a zero; one more byte after a cubin does no harm.
        let mut image = image.as_ref().to_vec();
        image.push(0);
        let handle = self.core.call(|driver| {
            let mut handle = 0;
            // SAFETY: the image ends with a zero, and it and the place live until the call returns.
            let code = unsafe { (driver.cuModuleLoadData)(&raw mut handle, image.as_ptr().cast()) };
            driver.check("cuModuleLoadData", code)?;
            Ok(handle)
        })?;
        Ok(GpuModule::new(Arc::clone(&self.core), handle))
    }

    /// Unloads kernels, and says whether that succeeded.
    pub fn module_unload(&self, module: GpuModule) -> Result<(), FabricError> {
        self.own(module.session())?;
        let handle = module.disarm();
        // SAFETY: the module was loaded by this session, and is unloaded once.
        self.core.call(|driver| driver.check("cuModuleUnload", unsafe { (driver.cuModuleUnload)(handle) }))
    }

    /// Launches a kernel with `grid` blocks of `block` threads, in the order of the session's calls.
    ///
    /// The number and sizes of the arguments are compared with the kernel's parameters, where the driver knows them
    /// (CUDA 12.4). What the kernel does with them is the caller's matter.
    pub fn launch_with_args(
        &self,
        module: &GpuModule,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: KernelArgs<'_>,
    ) -> Result<(), FabricError> {
        self.launch(module, kernel, grid, block, args, 0)
    }

    /// The same, in the order of a stream.
    pub fn launch_on_stream(
        &self,
        stream: &GpuStream,
        module: &GpuModule,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: KernelArgs<'_>,
    ) -> Result<(), FabricError> {
        self.own(stream.session())?;
        self.launch(module, kernel, grid, block, args, stream.handle())
    }

    fn launch(
        &self,
        module: &GpuModule,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        mut args: KernelArgs<'_>,
        stream: usize,
    ) -> Result<(), FabricError> {
        self.own(module.session())?;
        let name = CString::new(kernel).map_err(|_| invalid("the name of a kernel has no zero in it"))?;
        self.core.call(|driver| {
            let mut function = 0;
            // SAFETY: the module is this session's; the name and the place live until the call returns.
            let found = unsafe { (driver.cuModuleGetFunction)(&raw mut function, module.handle(), name.as_ptr()) };
            driver.check("cuModuleGetFunction", found)?;
            args.check(self.core.id(), kernel, driver.parameters(function).as_deref())?;
            submit(driver, function, grid, block, args.bytes(), stream)
        })?;
        self.core.lease().work.launches.fetch_add(1, Relaxed);
        self.core.lease().count_activity();
        Ok(())
    }

    /// A new stream: work on it does not wait for work on others.
    pub fn stream_create(&self) -> Result<GpuStream, FabricError> {
        let handle = self.core.call(|driver| {
            let mut handle = 0;
            // SAFETY: the place lives until the call returns. 1: it does not wait for the default stream.
            driver.check("cuStreamCreate", unsafe { (driver.cuStreamCreate)(&raw mut handle, 1) })?;
            Ok(handle)
        })?;
        Ok(GpuStream::new(Arc::clone(&self.core), handle))
    }

    /// Waits until the work on a stream is done.
    pub fn stream_sync(&self, stream: &GpuStream) -> Result<(), FabricError> {
        self.own(stream.session())?;
        let handle = stream.handle();
        // SAFETY: the stream is this session's and exists.
        self.core.call(|driver| driver.check("cuStreamSynchronize", unsafe { (driver.cuStreamSynchronize)(handle) }))
    }

    /// Waits until all work of the session is done.
    pub fn sync(&self) -> Result<(), FabricError> {
        // SAFETY: it takes nothing.
        self.core.call(|driver| driver.check("cuCtxSynchronize", unsafe { (driver.cuCtxSynchronize)() }))
    }

    /// The status of the lease.
    pub fn status(&self) -> LeaseStatus {
        self.core.lease().status()
    }

    fn own(&self, session: u64) -> Result<(), FabricError> {
        if session == self.core.id() { Ok(()) } else { Err(invalid("a handle of another session cannot be used here")) }
    }

    /// The address of a range of a buffer.
    fn place(&self, buffer: &GpuBuffer, offset: u64, length: u64) -> Result<u64, FabricError> {
        self.own(buffer.session())?;
        match offset.checked_add(length) {
            Some(end) if end <= buffer.len() => Ok(buffer.address() + offset),
            _ => Err(invalid(format!(
                "{length} bytes from byte {offset} on are not in a buffer of {} bytes",
                buffer.len()
            ))),
        }
    }
}

impl Drop for GpuSession {
    fn drop(&mut self) {
        self.core.close();
    }
}

fn submit(
    driver: &DriverFunctions,
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    bytes: &mut Vec<u8>,
    stream: usize,
) -> Result<(), FabricError> {
    let mut length = bytes.len();
    let pointer = |number: usize| number as *mut c_void;
    let mut extra = [
        pointer(PARAM_POINTER),
        bytes.as_mut_ptr().cast(),
        pointer(PARAM_SIZE),
        (&raw mut length).cast(),
        pointer(PARAM_END),
    ];
    let extra = if bytes.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() };
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    // SAFETY: the function is of a module that is loaded; the driver copies the arguments before it returns.
    let code =
        unsafe { (driver.cuLaunchKernel)(function, gx, gy, gz, bx, by, bz, 0, stream, std::ptr::null_mut(), extra) };
    driver.check("cuLaunchKernel", code)
}
