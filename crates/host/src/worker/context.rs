//! Measures what a CUDA context alone takes on a card: makes one, and asks NVML for
//! our own bytes.
//!
//! This is the only place that loads libcuda, in a process that ends right after.
//! Nothing is launched and nothing allocated.

use super::{nvml, say};
use libloading::Library;
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_uint, c_void};
use std::process::ExitCode;
use sublet_core::units::Bytes;
use thiserror::Error;

/// Names another libcuda, for soft cards and odd installations.
pub(crate) const CUDA_VARIABLE: &str = "SUBLET_CUDA_LIB";
const LIBRARY: &str = "libcuda.so.1";

/// What this worker says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) context: Bytes,
}

#[derive(Debug, Error)]
enum ContextError {
    #[error("libcuda cannot be used: {0}")]
    Library(#[from] libloading::Error),
    #[error("`{call}` failed with {code}")]
    Call { call: &'static str, code: c_int },
    #[error("CUDA does not see card {0}")]
    NoSuchCard(String),
    #[error("the driver does not say how many bytes this process has")]
    NotTold,
}

pub(super) fn run(uuid: &str) -> ExitCode {
    match measure(uuid) {
        Ok(context) if say(&mut std::io::stdout().lock(), &Measured { context }).is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the context of card {uuid} was not measured: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(uuid: &str) -> Result<Bytes, ContextError> {
    let cuda = Cuda::open()?;
    cuda.retain_context(cuda.device(uuid)?)?;
    nvml::bytes_of(uuid, std::process::id()).ok_or(ContextError::NotTold)
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceGetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type DevicePrimaryCtxRetain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// The few calls we need.
struct Cuda {
    device_get_count: DeviceGetCount,
    device_get: DeviceGet,
    device_get_uuid: DeviceGetUuid,
    device_primary_ctx_retain: DevicePrimaryCtxRetain,
    _library: Library,
}

impl Cuda {
    fn open() -> Result<Cuda, ContextError> {
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
                _library: library,
            };
            (init, cuda)
        };
        // SAFETY: `cuInit` takes a flag word that must be 0.
        check("cuInit", unsafe { init(0) })?;
        Ok(cuda)
    }

    fn device(&self, uuid: &str) -> Result<c_int, ContextError> {
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
            if spell(bytes) == uuid {
                return Ok(device);
            }
        }
        Err(ContextError::NoSuchCard(uuid.to_owned()))
    }

    /// Kept until the process ends, on purpose.
    fn retain_context(&self, device: c_int) -> Result<(), ContextError> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is written once, during the call; `device` came from `cuDeviceGet`.
        check("cuDevicePrimaryCtxRetain", unsafe { (self.device_primary_ctx_retain)(&mut context, device) })
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), ContextError> {
    if code == 0 { Ok(()) } else { Err(ContextError::Call { call, code }) }
}

/// The way NVML writes a uuid.
fn spell(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_spelt_as_nvml_does() {
        let bytes = [0x5c, 0x21, 0x97, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0x0b];
        assert_eq!(spell(bytes), "GPU-5c219700-0000-4000-8000-00000000000b");
    }
}
