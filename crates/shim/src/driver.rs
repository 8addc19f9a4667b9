//! The driver's own functions, and the structures they speak in.

use crate::loader_symbols;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

/// `CUresult`, as far as it matters here.
pub const SUCCESS: u32 = 0;
pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
/// The device cannot be used now.
pub const DEVICE_UNAVAILABLE: u32 = 46;
pub const INVALID_CONTEXT: u32 = 201;
pub const OPERATING_SYSTEM: u32 = 304;
pub const NOT_READY: u32 = 600;
pub const NOT_SUPPORTED: u32 = 801;

/// `CU_STREAM_NON_BLOCKING`, `CU_EVENT_DISABLE_TIMING`, `CU_MEMHOSTREGISTER_PORTABLE`.
pub const NON_BLOCKING: u32 = 1;
pub const NO_TIMING: u32 = 2;
pub const PORTABLE: u32 = 1;

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemLocation {
    pub kind: c_int,
    pub id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const ON_GPU: c_int = 1;

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationProperties {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: MemLocation,
    pub windows: usize,
    pub compression: u8,
    pub rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LocationAccess {
    pub location: MemLocation,
    pub flags: c_int,
}

/// Read and write.
pub const READ_WRITE: c_int = 3;

static LIBRARY: AtomicUsize = AtomicUsize::new(0);

/// The driver's library; zero if it cannot be loaded.
fn library() -> usize {
    let known = LIBRARY.load(Acquire);
    if known != 0 {
        return known;
    }
    // SAFETY: the name ends with a zero. The program called a function of the driver before.
    let found = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) } as usize;
    LIBRARY.store(found, Release);
    found
}

/// The address of a function of the driver; zero if it has none of that name.
pub fn find_function(name: &CStr) -> usize {
    match library() {
        0 => 0,
        // SAFETY: `dlopen` returned the handle, and the library stays loaded.
        library => unsafe { loader_symbols::real_dlsym(library as *mut c_void, name) as usize },
    }
}

/// True if the driver's library is loaded by now, by the program or the shim.
pub fn is_loaded() -> bool {
    // SAFETY: the name ends with a zero, and nothing is loaded by it.
    let found = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if !found.is_null() {
        // SAFETY: the handle was just taken.
        unsafe { libc::dlclose(found) };
    }
    !found.is_null()
}

/// True if an address is in the driver's library.
pub fn contains_address(address: usize) -> bool {
    // SAFETY: the structure is plain pointers, filled by the call.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return false;
        }
        CStr::from_ptr(info.dli_fname).to_bytes().windows(10).any(|part| part == b"libcuda.so")
    }
}

/// Defines functions of the driver; one that is missing returns that it is not supported.
macro_rules! driver {
    ($($kind:ident $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(driver_function! { $kind $name($($argument: $type),*) })*
    };
}

macro_rules! driver_function {
    (safe $name:ident($($argument:ident: $type:ty),*)) => {
        #[doc = concat!("The driver's `", stringify!($name), "`.")]
        #[expect(non_snake_case, reason = "it is called what the driver calls it")]
        pub fn $name($($argument: $type),*) -> u32 {
            driver_call!($name($($argument: $type),*))
        }
    };
    (raw $name:ident($($argument:ident: $type:ty),*)) => {
        #[doc = concat!("The driver's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// Pointers are as the driver's declaration asks for them.
        #[expect(non_snake_case, reason = "it is called what the driver calls it")]
        pub unsafe fn $name($($argument: $type),*) -> u32 {
            driver_call!($name($($argument: $type),*))
        }
    };
}

macro_rules! driver_call {
    ($name:ident($($argument:ident: $type:ty),*)) => {{
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        let mut at = FOUND.load(Acquire);
        if at == 0 {
            let name = concat!(stringify!($name), "\0");
            // SAFETY: the text ends with its only zero.
            at = find_function(unsafe { CStr::from_bytes_with_nul_unchecked(name.as_bytes()) });
            FOUND.store(at, Release);
        }
        if at == 0 {
            return NOT_SUPPORTED;
        }
        // SAFETY: it is the driver's function of that name, which has these arguments: a reference is a pointer to it.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(at)($($argument),*) }
    }};
}

driver! {
    safe cuCtxDisablePeerAccess(context: usize);
    safe cuCtxGetCurrent(place: &mut usize);
    safe cuCtxGetDevice(place: &mut c_int);
    safe cuCtxPopCurrent_v2(place: &mut usize);
    safe cuCtxPushCurrent_v2(context: usize);
    safe cuCtxRecordEvent(context: usize, event: usize);
    safe cuCtxSynchronize();
    safe cuDeviceGetCount(place: &mut c_int);
    safe cuDeviceGetDefaultMemPool(place: &mut usize, device: c_int);
    safe cuDeviceGetMemPool(place: &mut usize, device: c_int);
    safe cuDeviceGetAttribute(place: &mut c_int, attribute: c_int, device: c_int);
    raw cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, place: *mut c_void);
    safe cuDeviceGraphMemTrim(device: c_int);
    safe cuDeviceGetUuid_v2(place: &mut [u8; 16], device: c_int);
    safe cuDevicePrimaryCtxGetState(device: c_int, flags: &mut u32, active: &mut c_int);
    safe cuDevicePrimaryCtxRelease_v2(device: c_int);
    safe cuDevicePrimaryCtxRetain(place: &mut usize, device: c_int);
    safe cuEventCreate(place: &mut usize, flags: u32);
    safe cuEventDestroy_v2(event: usize);
    safe cuEventQuery(event: usize);
    safe cuEventRecord(event: usize, stream: usize);
    safe cuEventSynchronize(event: usize);
    safe cuMemAddressFree(at: u64, bytes: usize);
    safe cuMemAddressReserve(place: &mut u64, bytes: usize, alignment: usize, wish: u64, flags: u64);
    safe cuMemCreate(place: &mut u64, bytes: usize, properties: &AllocationProperties, flags: u64);
    raw cuMemExportToShareableHandle(place: *mut c_void, handle: u64, kind: c_int, flags: u64);
    safe cuMemFree_v2(at: u64);
    raw cuMemGetAllocationPropertiesFromHandle(place: *mut AllocationProperties, handle: u64);
    safe cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    raw cuMemHostUnregister(at: *mut c_void);
    raw cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: u32);
    raw cuMemImportFromShareableHandle(place: *mut u64, descriptor: *mut c_void, kind: c_int);
    safe cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    safe cuMemRelease(handle: u64);
    raw cuMemSetAccess(at: u64, bytes: usize, access: *const LocationAccess, count: usize);
    safe cuMemUnmap(at: u64, bytes: usize);
    raw cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize);
    raw cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize);
    raw cuPointerGetAttribute(place: *mut c_void, attribute: c_int, at: u64);
    safe cuStreamCreate(place: &mut usize, flags: u32);
    safe cuStreamGetCtx(stream: usize, place: &mut usize);
    safe cuStreamIsCapturing(stream: usize, status: &mut c_int);
    safe cuStreamSynchronize(stream: usize);
    safe cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    safe cuThreadExchangeStreamCaptureMode(mode: &mut c_int);
}

/// Sets what GPUs may do with the memory that is mapped at an address.
pub fn set_access(at: u64, bytes: usize, access: &[LocationAccess]) -> Result<(), u32> {
    // SAFETY: the list has the length that is passed with it.
    as_result(unsafe { cuMemSetAccess(at, bytes, access.as_ptr(), access.len()) })
}

/// The name of an error, for messages.
pub fn name_of(error: u32) -> String {
    let at = find_function(c"cuGetErrorName");
    let mut text: *const c_char = std::ptr::null();
    if at != 0 {
        // SAFETY: it is the driver's function of that name; it writes a pointer to a text that stays.
        unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(u32, *mut *const c_char) -> u32>(at)(error, &raw mut text)
        };
    }
    if text.is_null() {
        return format!("error {error}");
    }
    // SAFETY: the driver's texts end with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A result code as a `Result`.
pub fn as_result(result: u32) -> Result<(), u32> {
    if result == SUCCESS { Ok(()) } else { Err(result) }
}

/// A `Result` as a result code.
pub fn result_code(outcome: Result<(), u32>) -> u32 {
    outcome.err().unwrap_or(SUCCESS)
}

/// The context that is current in this thread, and its GPU.
pub fn current_context() -> Result<(usize, c_int), u32> {
    let (mut context, mut device) = (0, 0);
    as_result(cuCtxGetDevice(&mut device))?;
    as_result(cuCtxGetCurrent(&mut context))?;
    Ok((context, device))
}

/// Runs `body` with a context current in this thread.
pub fn with_context<T>(context: usize, body: impl FnOnce() -> Result<T, u32>) -> Result<T, u32> {
    as_result(cuCtxPushCurrent_v2(context))?;
    let result = body();
    let mut gone = 0;
    cuCtxPopCurrent_v2(&mut gone);
    result
}
