//! CUDA's driver library: loading it, its functions, its errors.
//!
//! ```text
//!   libcuda.so.1 ── real, or that of soft GPUs ──► plain: for leases that are not bound to this process
//!        └── behind Sublet's library (the shim) ──► gated: capped, counted, can be parked
//! ```
//! `sublet run` preloads the shim; then both are the gated functions. Otherwise the shim is loaded here, without taking
//! the place of symbols for the rest of the program: only calls of `GpuSession` go through it.
//!
//! The libraries stay loaded as long as the process runs, and there is one driver in a process.

use super::libraries;
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::lease::local::LocalLease;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What the driver names by a pointer or a number: contexts, modules, functions, streams.
pub(super) type DriverHandle = usize;
/// An address on a GPU.
pub(super) type DeviceAddress = u64;

/// The version of the API that the functions are declared for.
const API_VERSION: c_int = 12_000;
/// The library that is asked for without a path: NVIDIA's, or what the environment puts before it.
const CUDA: &str = "libcuda.so.1";
/// `CUDA_SUCCESS`.
pub(super) const SUCCESS: c_int = 0;
/// What to do without a driver.
const HINT: &str = "is NVIDIA's driver installed? `sublet doctor` says what is missing";

/// Declares the functions: a field for each, found by name.
macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?);)*) => {
        /// Functions of the driver, by NVIDIA's names.
        #[expect(non_snake_case, reason = "they are called what NVIDIA calls them")]
        pub(super) struct DriverFunctions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Since CUDA 12.4; zero in older drivers.
            pub param_info: usize,
        }

        impl DriverFunctions {
            /// # Safety
            /// `find` returns the driver's function of each name, in the form of [`API_VERSION`].
            unsafe fn collect(find: impl Fn(&str, c_int) -> Option<usize>) -> Result<DriverFunctions, FabricError> {
                let needed = |name: &str| {
                    let missing = || failed(format!("the driver has no function `{name}`"), "update the driver");
                    find(name, API_VERSION).ok_or_else(missing)
                };
                Ok(DriverFunctions {
                    // SAFETY: the caller's promise; the parameters are those of that form.
                    $($name: unsafe {
                        std::mem::transmute::<usize, unsafe extern "C" fn($($argument),*) -> c_int>(
                            needed(stringify!($name))?,
                        )
                    },)*
                    param_info: find("cuFuncGetParamInfo", 12_040).unwrap_or(0),
                })
            }
        }
    };
}

functions! {
    cuInit(u32);
    cuGetErrorName(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetUuid(*mut [u8; 16], c_int);
    cuCtxCreate(*mut DriverHandle, *mut c_void, c_int, u32, c_int);
    cuCtxDestroy(DriverHandle);
    cuCtxPushCurrent(DriverHandle);
    cuCtxPopCurrent(*mut DriverHandle);
    cuCtxSynchronize();
    cuMemGetInfo(*mut usize, *mut usize);
    cuMemAlloc(*mut DeviceAddress, usize);
    cuMemFree(DeviceAddress);
    cuMemcpyHtoD(DeviceAddress, *const c_void, usize);
    cuMemcpyDtoH(*mut c_void, DeviceAddress, usize);
    cuModuleLoadData(*mut DriverHandle, *const c_void);
    cuModuleUnload(DriverHandle);
    cuModuleGetFunction(*mut DriverHandle, DriverHandle, *const c_char);
    cuLaunchKernel(DriverHandle, u32, u32, u32, u32, u32, u32, u32, DriverHandle, *mut *mut c_void, *mut *mut c_void);
    cuStreamCreate(*mut DriverHandle, u32);
    cuStreamDestroy(DriverHandle);
    cuStreamSynchronize(DriverHandle);
}

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
type ParamInfo = unsafe extern "C" fn(DriverHandle, usize, *mut usize, *mut usize) -> c_int;
type UseLease = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
type UseState = unsafe extern "C" fn(*const c_char) -> c_int;

/// The driver of this process.
pub(super) struct CudaDriver {
    plain: DriverFunctions,
    /// Behind the shim; `None` without one.
    gated: Option<GatedDriver>,
}

/// The driver behind the shim.
struct GatedDriver {
    /// `None`: the shim is preloaded, and the plain functions go through it.
    functions: Option<DriverFunctions>,
    use_lease: UseLease,
}

static DRIVER: Mutex<Option<&'static CudaDriver>> = Mutex::new(None);

fn failed(reason: impl Into<String>, hint: &'static str) -> FabricError {
    FabricError::NoDriver { reason: reason.into(), hint }
}

/// The functions for work on a lease. The driver is loaded if it is not, and the shim told which lease this is.
pub(super) fn functions_for(lease: &LocalLease) -> Result<&'static DriverFunctions, FabricError> {
    let driver = load(lease)?;
    let Some(gated) = driver.gated.as_ref().filter(|_| lease.is_bound()) else { return Ok(&driver.plain) };
    // What `sublet run` preloaded knows the lease that it was started for, and where its daemon is.
    let is_known = gated.functions.is_none() && std::env::var("SUBLET_LEASE").is_ok_and(|own| own == lease.id());
    if let Some(socket) = lease.client().socket().filter(|_| !is_known) {
        let texts = (CString::new(socket.as_os_str().as_bytes()), CString::new(lease.id()));
        if let (Ok(socket), Ok(id)) = texts {
            // SAFETY: both texts end with a zero and live until the call returns.
            unsafe { (gated.use_lease)(socket.as_ptr(), id.as_ptr()) };
        }
    }
    Ok(gated.functions.as_ref().unwrap_or(&driver.plain))
}

fn load(lease: &LocalLease) -> Result<&'static CudaDriver, FabricError> {
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = *driver {
        return Ok(driver);
    }
    let loaded: &'static CudaDriver = Box::leak(Box::new(open(lease)?));
    *driver = Some(loaded);
    Ok(loaded)
}

fn open(lease: &LocalLease) -> Result<CudaDriver, FabricError> {
    if let Some(use_lease) = preloaded_shim() {
        let plain = collect(open_library(Path::new(CUDA))?)?;
        return Ok(CudaDriver { plain, gated: Some(GatedDriver { functions: None, use_lease }) });
    }
    let folders = libraries::folders(lease.client());
    let soft_state = soft_state(lease)?;
    let library = match &soft_state {
        Some(state) => open_soft(&libraries::soft_cuda(&folders).ok_or_else(no_soft_library)?, state)?,
        None => open_library(Path::new(CUDA))?,
    };
    let plain = collect(library)?;
    // Without the shim, programs run, but are neither capped nor parked by it.
    let gated = libraries::shim(&folders).and_then(|shim| open_gated(&shim));
    Ok(CudaDriver { plain, gated })
}

fn no_soft_library() -> FabricError {
    failed(
        "the lease is of soft GPUs, and their libcuda.so.1 was not found",
        "set SUBLET_LIBRARIES to the directory with libsublet-shim.so and soft/libcuda.so.1",
    )
}

/// The file of the daemon's soft GPUs; `None` if they are real, or if the environment names the file already.
fn soft_state(lease: &LocalLease) -> Result<Option<PathBuf>, FabricError> {
    if std::env::var_os("SUBLET_SOFT_STATE").is_some() {
        return Ok(None);
    }
    let Some(socket) = lease.client().socket() else { return Ok(None) };
    Ok(Fabric::at(socket).gpus()?.soft_state.map(PathBuf::from))
}

fn open_library(path: &Path) -> Result<&'static Library, FabricError> {
    // SAFETY: the driver, and the libraries of Sublet, may do when they are loaded what they need to.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| failed(format!("{} cannot be loaded: {error}", path.display()), HINT))?;
    Ok(Box::leak(Box::new(library)))
}

fn open_soft(path: &Path, state: &Path) -> Result<&'static Library, FabricError> {
    let library = open_library(path)?;
    // SAFETY: the soft GPUs' library has a function of that name with this type.
    let found = unsafe { library.get::<UseState>(b"sublet_soft_use_state\0") };
    let use_state = found.map_err(|_| failed(format!("{} is of an older release", path.display()), HINT))?;
    let text = CString::new(state.as_os_str().as_bytes());
    let text = text.map_err(|_| failed("the path of the soft GPUs has a zero in it", HINT))?;
    // SAFETY: the text ends with a zero and lives until the call returns.
    match unsafe { use_state(text.as_ptr()) } {
        0 => Ok(library),
        _ => Err(failed("this process uses other soft GPUs already", "use one daemon in one process")),
    }
}

/// The shim's function to name a lease, if the shim is preloaded.
fn preloaded_shim() -> Option<UseLease> {
    // SAFETY: only the shim exports that name, with this type.
    unsafe { Library::this().get::<UseLease>(b"sublet_shim_use_lease\0") }.ok().map(|found| *found)
}

/// The driver behind a shim that is loaded here; `None` if that library does not serve.
fn open_gated(shim: &Path) -> Option<GatedDriver> {
    let library = open_library(shim).ok()?;
    // SAFETY: only the shim exports that name, with this type.
    let use_lease = *unsafe { library.get::<UseLease>(b"sublet_shim_use_lease\0") }.ok()?;
    Some(GatedDriver { functions: Some(collect(library).ok()?), use_lease })
}

/// The driver's functions, as this library hands them out.
fn collect(library: &Library) -> Result<DriverFunctions, FabricError> {
    // SAFETY: the function of that name has this type since CUDA 12.0.
    let found = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2\0") };
    let find = *found.map_err(|_| failed("the driver is older than CUDA 12.0", "update the driver"))?;
    let address = |name: &str, version: c_int| {
        let text = CString::new(name).ok()?;
        let (mut address, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: the name and both places live until the call returns.
        let code = unsafe { find(text.as_ptr(), &raw mut address, version, 0, &raw mut status) };
        (code == SUCCESS && !address.is_null()).then_some(address as usize)
    };
    // SAFETY: that is what the driver's function promises.
    unsafe { DriverFunctions::collect(address) }
}

impl DriverFunctions {
    /// The result of a call that this code is the answer to.
    pub fn check(&self, call: &'static str, code: c_int) -> Result<(), FabricError> {
        if code == SUCCESS { Ok(()) } else { Err(FabricError::Driver { call, code, name: self.error_name(code) }) }
    }

    fn error_name(&self, code: c_int) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the place lives until the call returns.
        let known = unsafe { (self.cuGetErrorName)(code, &raw mut text) };
        if known != SUCCESS || text.is_null() {
            return "an error without a name".to_owned();
        }
        // SAFETY: the driver's names end with a zero, and stay.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Offset and size of each parameter of a kernel; `None` if the driver is too old to say.
    pub fn parameters(&self, function: DriverHandle) -> Option<Vec<(usize, usize)>> {
        if self.param_info == 0 {
            return None;
        }
        // SAFETY: the driver's function of that name has this type.
        let ask: ParamInfo = unsafe { std::mem::transmute(self.param_info) };
        let mut found = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: both places live until the call returns. Past the last parameter it returns an error.
            if unsafe { ask(function, found.len(), &raw mut offset, &raw mut size) } != SUCCESS {
                return Some(found);
            }
            found.push((offset, size));
        }
    }
}
