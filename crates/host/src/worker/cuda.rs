//! libcuda, loaded at run time: shared by all workers that need it.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use thiserror::Error;

/// Names another libcuda, for soft GPUs and unusual installations.
pub(crate) const CUDA_VARIABLE: &str = "SUBLET_CUDA_LIB";
const LIBRARY: &str = "libcuda.so.1";

/// Why a call of libcuda failed.
#[derive(Debug, Error)]
pub(super) enum CudaError {
    #[error("libcuda cannot be used: {0}")]
    Library(#[from] libloading::Error),
    #[error("`{call}` failed with {code}")]
    Call { call: &'static str, code: c_int },
    #[error("CUDA does not see GPU {0}")]
    NoSuchGpu(String),
}

impl CudaError {
    /// The driver's error code, if the driver was called.
    pub(super) const fn code(&self) -> Option<c_int> {
        match self {
            CudaError::Call { code, .. } => Some(*code),
            CudaError::Library(_) | CudaError::NoSuchGpu(_) => None,
        }
    }
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceGetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type DevicePrimaryCtxRetain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The driver, initialised.
pub(super) struct Cuda {
    device_get_count: DeviceGetCount,
    device_get: DeviceGet,
    device_get_uuid: DeviceGetUuid,
    device_primary_ctx_retain: DevicePrimaryCtxRetain,
    get_error_name: GetErrorName,
    library: Library,
}

impl Cuda {
    pub(super) fn open() -> Result<Cuda, CudaError> {
        let path = std::env::var_os(CUDA_VARIABLE).unwrap_or_else(|| LIBRARY.into());
        // SAFETY: loading runs the initialisers of the driver's own library, in a process made for it.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: the types are those of cuda.h, and the library is kept as long as the pointers.
        let (init, cuda) = unsafe {
            let init = *library.get::<Init>(b"cuInit\0")?;
            let cuda = Cuda {
                device_get_count: *library.get(b"cuDeviceGetCount\0")?,
                device_get: *library.get(b"cuDeviceGet\0")?,
                device_get_uuid: *library.get(b"cuDeviceGetUuid\0")?,
                device_primary_ctx_retain: *library.get(b"cuDevicePrimaryCtxRetain\0")?,
                get_error_name: *library.get(b"cuGetErrorName\0")?,
                library,
            };
            (init, cuda)
        };
        // SAFETY: `cuInit` takes a flag word that must be 0.
        check("cuInit", unsafe { init(0) })?;
        Ok(cuda)
    }

    /// The library, to find further calls in. They are valid as long as this value lives.
    pub(super) const fn library(&self) -> &Library {
        &self.library
    }

    pub(super) fn device(&self, uuid: &str) -> Result<c_int, CudaError> {
        let mut count = 0;
        // SAFETY: `count` is written once, during the call.
        check("cuDeviceGetCount", unsafe { (self.device_get_count)(&mut count) })?;
        for ordinal in 0..count {
            let mut device = 0;
            // SAFETY: `device` is written once, during the call.
            check("cuDeviceGet", unsafe { (self.device_get)(&mut device, ordinal) })?;
            let mut bytes = [0u8; 16];
            // SAFETY: a CUuuid is 16 bytes, written once, during the call.
            check("cuDeviceGetUuid", unsafe { (self.device_get_uuid)(&mut bytes, device) })?;
            if uuid_text(bytes) == uuid {
                return Ok(device);
            }
        }
        Err(CudaError::NoSuchGpu(uuid.to_owned()))
    }

    /// Makes the primary context of a GPU, or counts one more user of it.
    pub(super) fn retain_context(&self, device: c_int) -> Result<*mut c_void, CudaError> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is written once, during the call; `device` came from `cuDeviceGet`.
        check("cuDevicePrimaryCtxRetain", unsafe { (self.device_primary_ctx_retain)(&mut context, device) })?;
        Ok(context)
    }

    /// The driver's name of an error.
    pub(super) fn error_name(&self, code: c_int) -> String {
        let mut name = std::ptr::null();
        // SAFETY: `name` is written once, during the call.
        let known = unsafe { (self.get_error_name)(code, &mut name) } == 0 && !name.is_null();
        if !known {
            return "unknown error".to_owned();
        }
        // SAFETY: a constant text of the library, which is loaded.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

pub(super) fn check(call: &'static str, code: c_int) -> Result<(), CudaError> {
    if code == 0 { Ok(()) } else { Err(CudaError::Call { call, code }) }
}

/// Formats a UUID as NVML does.
fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_spelt_as_nvml_does() {
        let bytes = [0x5c, 0x21, 0x97, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0x0b];
        assert_eq!(uuid_text(bytes), "GPU-5c219700-0000-4000-8000-00000000000b");
    }
}
