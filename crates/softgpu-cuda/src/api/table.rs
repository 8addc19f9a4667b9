//! `cuGetProcAddress`: functions by name and version.

use super::{checkpoint, context, device, exports, memory, module, put, stream, text, unsupported};
use crate::result::{CuResult, Outcome};
use std::ffi::{c_char, c_int, c_void};

/// A function: its name without a version, the CUDA version that brought it, and where it is.
struct Entry(&'static str, c_int, *const c_void);

// SAFETY: an address of code, which any thread may have.
unsafe impl Sync for Entry {}

static FUNCTIONS: &[Entry] = &[
    Entry("cuCheckpointProcessCheckpoint", 12080, checkpoint::cuCheckpointProcessCheckpoint as *const c_void),
    Entry("cuCheckpointProcessGetState", 12080, checkpoint::cuCheckpointProcessGetState as *const c_void),
    Entry("cuCheckpointProcessLock", 12080, checkpoint::cuCheckpointProcessLock as *const c_void),
    Entry("cuCheckpointProcessRestore", 12080, checkpoint::cuCheckpointProcessRestore as *const c_void),
    Entry("cuCheckpointProcessUnlock", 12080, checkpoint::cuCheckpointProcessUnlock as *const c_void),
    Entry("cuCtxCreate", 3020, context::cuCtxCreate_v2 as *const c_void),
    Entry("cuCtxCreate", 12050, context::cuCtxCreate_v4 as *const c_void),
    Entry("cuCtxDestroy", 4000, context::cuCtxDestroy_v2 as *const c_void),
    Entry("cuCtxGetApiVersion", 3020, context::cuCtxGetApiVersion as *const c_void),
    Entry("cuCtxGetCurrent", 4000, context::cuCtxGetCurrent as *const c_void),
    Entry("cuCtxGetDevice", 2000, context::cuCtxGetDevice as *const c_void),
    Entry("cuCtxGetFlags", 7000, context::cuCtxGetFlags as *const c_void),
    Entry("cuCtxGetStreamPriorityRange", 5050, context::cuCtxGetStreamPriorityRange as *const c_void),
    Entry("cuCtxPopCurrent", 4000, context::cuCtxPopCurrent_v2 as *const c_void),
    Entry("cuCtxPushCurrent", 4000, context::cuCtxPushCurrent_v2 as *const c_void),
    Entry("cuCtxSetCurrent", 4000, context::cuCtxSetCurrent as *const c_void),
    Entry("cuCtxSynchronize", 2000, context::cuCtxSynchronize as *const c_void),
    Entry("cuDeviceComputeCapability", 2000, device::cuDeviceComputeCapability as *const c_void),
    Entry("cuDeviceGet", 2000, device::cuDeviceGet as *const c_void),
    Entry("cuDeviceGetAttribute", 2000, device::cuDeviceGetAttribute as *const c_void),
    Entry("cuDeviceGetCount", 2000, device::cuDeviceGetCount as *const c_void),
    Entry("cuDeviceGetName", 2000, device::cuDeviceGetName as *const c_void),
    Entry("cuDeviceGetUuid", 9020, device::cuDeviceGetUuid as *const c_void),
    Entry("cuDeviceGetUuid", 11040, device::cuDeviceGetUuid_v2 as *const c_void),
    Entry("cuDevicePrimaryCtxGetState", 7000, context::cuDevicePrimaryCtxGetState as *const c_void),
    Entry("cuDevicePrimaryCtxRelease", 11000, context::cuDevicePrimaryCtxRelease_v2 as *const c_void),
    Entry("cuDevicePrimaryCtxReset", 11000, context::cuDevicePrimaryCtxReset_v2 as *const c_void),
    Entry("cuDevicePrimaryCtxRetain", 7000, context::cuDevicePrimaryCtxRetain as *const c_void),
    Entry("cuDevicePrimaryCtxSetFlags", 11000, context::cuDevicePrimaryCtxSetFlags_v2 as *const c_void),
    Entry("cuDeviceTotalMem", 3020, device::cuDeviceTotalMem_v2 as *const c_void),
    Entry("cuDriverGetVersion", 2020, device::cuDriverGetVersion as *const c_void),
    Entry("cuEventCreate", 2000, stream::cuEventCreate as *const c_void),
    Entry("cuEventDestroy", 4000, stream::cuEventDestroy_v2 as *const c_void),
    Entry("cuEventElapsedTime", 2000, stream::cuEventElapsedTime as *const c_void),
    Entry("cuEventElapsedTime", 12080, stream::cuEventElapsedTime_v2 as *const c_void),
    Entry("cuEventQuery", 2000, stream::cuEventQuery as *const c_void),
    Entry("cuEventRecord", 2000, stream::cuEventRecord as *const c_void),
    Entry("cuEventSynchronize", 2000, stream::cuEventSynchronize as *const c_void),
    Entry("cuFuncGetAttribute", 2020, module::cuFuncGetAttribute as *const c_void),
    Entry("cuFuncSetAttribute", 9000, module::cuFuncSetAttribute as *const c_void),
    Entry("cuFuncSetCacheConfig", 3000, module::cuFuncSetCacheConfig as *const c_void),
    Entry("cuGetErrorName", 6000, device::cuGetErrorName as *const c_void),
    Entry("cuGetErrorString", 6000, device::cuGetErrorString as *const c_void),
    Entry("cuInit", 2000, device::cuInit as *const c_void),
    Entry("cuLaunchHostFunc", 10000, stream::cuLaunchHostFunc as *const c_void),
    Entry("cuLaunchKernel", 4000, module::cuLaunchKernel as *const c_void),
    Entry("cuMemAlloc", 3020, memory::cuMemAlloc_v2 as *const c_void),
    Entry("cuMemAllocHost", 3020, memory::cuMemAllocHost_v2 as *const c_void),
    Entry("cuMemFree", 3020, memory::cuMemFree_v2 as *const c_void),
    Entry("cuMemFreeHost", 2000, memory::cuMemFreeHost as *const c_void),
    Entry("cuMemGetAddressRange", 3020, memory::cuMemGetAddressRange_v2 as *const c_void),
    Entry("cuMemGetInfo", 3020, memory::cuMemGetInfo_v2 as *const c_void),
    Entry("cuMemHostAlloc", 2020, memory::cuMemHostAlloc as *const c_void),
    Entry("cuMemHostGetDevicePointer", 3020, memory::cuMemHostGetDevicePointer_v2 as *const c_void),
    Entry("cuMemcpy", 4000, memory::cuMemcpy as *const c_void),
    Entry("cuMemcpyAsync", 4000, memory::cuMemcpyAsync as *const c_void),
    Entry("cuMemcpyDtoD", 3020, memory::cuMemcpyDtoD_v2 as *const c_void),
    Entry("cuMemcpyDtoDAsync", 3020, memory::cuMemcpyDtoDAsync_v2 as *const c_void),
    Entry("cuMemcpyDtoH", 3020, memory::cuMemcpyDtoH_v2 as *const c_void),
    Entry("cuMemcpyDtoHAsync", 3020, memory::cuMemcpyDtoHAsync_v2 as *const c_void),
    Entry("cuMemcpyHtoD", 3020, memory::cuMemcpyHtoD_v2 as *const c_void),
    Entry("cuMemcpyHtoDAsync", 3020, memory::cuMemcpyHtoDAsync_v2 as *const c_void),
    Entry("cuMemsetD16", 3020, memory::cuMemsetD16_v2 as *const c_void),
    Entry("cuMemsetD16Async", 3020, memory::cuMemsetD16Async as *const c_void),
    Entry("cuMemsetD32", 3020, memory::cuMemsetD32_v2 as *const c_void),
    Entry("cuMemsetD32Async", 3020, memory::cuMemsetD32Async as *const c_void),
    Entry("cuMemsetD8", 3020, memory::cuMemsetD8_v2 as *const c_void),
    Entry("cuMemsetD8Async", 3020, memory::cuMemsetD8Async as *const c_void),
    Entry("cuModuleGetFunction", 2000, module::cuModuleGetFunction as *const c_void),
    Entry("cuModuleGetGlobal", 3020, module::cuModuleGetGlobal_v2 as *const c_void),
    Entry("cuModuleLoad", 2000, module::cuModuleLoad as *const c_void),
    Entry("cuModuleLoadData", 2000, module::cuModuleLoadData as *const c_void),
    Entry("cuModuleLoadDataEx", 2010, module::cuModuleLoadDataEx as *const c_void),
    Entry("cuModuleUnload", 2000, module::cuModuleUnload as *const c_void),
    Entry("cuStreamCreate", 2000, stream::cuStreamCreate as *const c_void),
    Entry("cuStreamCreateWithPriority", 5050, stream::cuStreamCreateWithPriority as *const c_void),
    Entry("cuStreamDestroy", 4000, stream::cuStreamDestroy_v2 as *const c_void),
    Entry("cuStreamGetCtx", 9020, stream::cuStreamGetCtx as *const c_void),
    Entry("cuStreamGetFlags", 5050, stream::cuStreamGetFlags as *const c_void),
    Entry("cuStreamGetPriority", 5050, stream::cuStreamGetPriority as *const c_void),
    Entry("cuStreamIsCapturing", 10000, stream::cuStreamIsCapturing as *const c_void),
    Entry("cuStreamQuery", 2000, stream::cuStreamQuery as *const c_void),
    Entry("cuStreamSynchronize", 2000, stream::cuStreamSynchronize as *const c_void),
    Entry("cuStreamWaitEvent", 3020, stream::cuStreamWaitEvent as *const c_void),
    Entry("cuGetProcAddress", 11030, cuGetProcAddress as *const c_void),
    Entry("cuGetProcAddress", 12000, cuGetProcAddress_v2 as *const c_void),
];

/// `CU_GET_PROC_ADDRESS_…`: found; no such name; not in that version.
const FOUND: c_int = 0;
const NO_SUCH: c_int = 1;
const TOO_NEW: c_int = 2;

/// The newest function of a name that a version has.
fn find(name: &str, version: c_int) -> Result<*const c_void, c_int> {
    let named = || FUNCTIONS.iter().filter(|entry| entry.0 == name);
    let found = named().filter(|entry| entry.1 <= version).max_by_key(|entry| entry.1);
    match found {
        Some(entry) => Ok(entry.2),
        None if named().next().is_some() => Err(TOO_NEW),
        None => unsupported::find(name).ok_or(NO_SUCH),
    }
}

fn answer(symbol: *const c_char, place: *mut *const c_void, version: c_int, status: *mut c_int) -> Outcome {
    let found = find(text(symbol)?, version);
    if !status.is_null() {
        put(status, found.err().unwrap_or(FOUND))?;
    }
    put(place, found.unwrap_or(std::ptr::null()))?;
    // The newer call tells by its status, and the older one by its answer.
    match found {
        Err(_) if status.is_null() => Err(CuResult::NOT_FOUND),
        _ => Ok(()),
    }
}

exports! {
    fn cuGetProcAddress(symbol: *const c_char, place: *mut *const c_void, version: c_int, _flags: u64) {
        answer(symbol, place, version, std::ptr::null_mut())
    }
    fn cuGetProcAddress_v2(
        symbol: *const c_char,
        place: *mut *const c_void,
        version: c_int,
        _flags: u64,
        status: *mut c_int,
    ) {
        answer(symbol, place, version, status)
    }
}
