//! What NVML reports to a holder about the memory of its GPUs: the lease, not the whole GPU.
//!
//! Programs that ask NVML for their memory get the same numbers as from `cuMemGetInfo`. GPUs that are not on the
//! lease's page are reported unchanged, and so is everything else. Not covered: the list of a GPU's processes, and the
//! private tables through which NVIDIA's own tools use NVML.

use crate::activation;
use crate::control_thread;
use crate::lease_page;
use crate::loader_symbols;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

const SUCCESS: u32 = 0;
const FUNCTION_NOT_FOUND: u32 = 13;
const LIBRARY: &CStr = c"libnvidia-ml.so.1";
/// Bytes for the text of a UUID, as NVML requires.
const UUID_ROOM: usize = 96;

/// `nvmlMemory_t`.
#[repr(C)]
pub struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct NvmlMemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);
static UUID: AtomicUsize = AtomicUsize::new(0);

/// What a program gets that looked a name up and would have got `real`.
pub fn resolve(name: &CStr, real: *mut c_void) -> *mut c_void {
    let (own, known) = match name.to_bytes() {
        b"nvmlDeviceGetMemoryInfo" => (nvmlDeviceGetMemoryInfo as *mut c_void, &FIRST),
        b"nvmlDeviceGetMemoryInfo_v2" => (nvmlDeviceGetMemoryInfo_v2 as *mut c_void, &SECOND),
        _ => return real,
    };
    if real != own {
        known.store(real as usize, Release);
        return if activation::is_active() { own } else { real };
    }
    // The program found the shim's function, and gets NVML's only if NVML is loaded.
    match library(libc::RTLD_NOLOAD) {
        0 => std::ptr::null_mut(),
        _ => own,
    }
}

fn library(how: i32) -> usize {
    // SAFETY: the name ends with a zero. The library stays loaded, because the program may call its functions.
    unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | how) as usize }
}

/// The address of a function of NVML; zero if there is none.
fn find(known: &AtomicUsize, name: &CStr) -> usize {
    let at = known.load(Acquire);
    if at != 0 {
        return at;
    }
    let library = library(0);
    let at = match library {
        0 => 0,
        // SAFETY: `dlopen` returned the handle, and the library stays loaded.
        library => unsafe { loader_symbols::real_dlsym(library as *mut c_void, name) as usize },
    };
    known.store(at, Release);
    at
}

/// The lease's cap on a GPU, and how much of it is used.
///
/// # Safety
/// The device is one that NVML gave, or NVML refuses it.
unsafe fn lease_of_device(device: *mut c_void) -> Option<(u64, u64)> {
    let at = find(&UUID, c"nvmlDeviceGetUUID");
    if at == 0 || !activation::is_active() {
        return None;
    }
    let mut text = [0 as c_char; UUID_ROOM];
    // SAFETY: it is NVML's function of that name, and the buffer is as long as stated.
    let result = unsafe {
        let ask: unsafe extern "C" fn(*mut c_void, *mut c_char, u32) -> u32 = std::mem::transmute(at);
        ask(device, text.as_mut_ptr(), UUID_ROOM as u32)
    };
    if result != SUCCESS {
        return None;
    }
    control_thread::map_page_once();
    // SAFETY: NVML's texts end with a zero, and this one was all zeros before.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    lease_page::lease_of(&parse_uuid(text.to_str().ok()?)?)
}

/// A GPU's UUID as bytes.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text
        .strip_prefix("GPU-")?
        .chars()
        .filter(|own| *own != '-')
        .map(|own| own.to_digit(16))
        .collect::<Option<_>>()?;
    (digits.len() == 32).then(|| std::array::from_fn(|place| (digits[2 * place] << 4 | digits[2 * place + 1]) as u8))
}

/// `nvmlDeviceGetMemoryInfo`.
///
/// # Safety
/// As NVML requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, place: *mut NvmlMemory) -> u32 {
    let at = find(&FIRST, c"nvmlDeviceGetMemoryInfo");
    if at == 0 {
        return FUNCTION_NOT_FOUND;
    }
    // SAFETY: it is NVML's function of that name, and the arguments are the program's; what it has written
    // can be written again.
    unsafe {
        let result =
            std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, *mut NvmlMemory) -> u32>(at)(device, place);
        if let (SUCCESS, Some((cap, used))) = (result, lease_of_device(device)) {
            place.write_unaligned(NvmlMemory { total: cap, free: cap.saturating_sub(used), used: used.min(cap) });
        }
        result
    }
}

/// `nvmlDeviceGetMemoryInfo_v2`.
///
/// # Safety
/// As NVML requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, place: *mut NvmlMemoryV2) -> u32 {
    let at = find(&SECOND, c"nvmlDeviceGetMemoryInfo_v2");
    if at == 0 {
        return FUNCTION_NOT_FOUND;
    }
    // SAFETY: it is NVML's function of that name, and the arguments are the program's; what it has written can be read,
    // and written again.
    unsafe {
        let result = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, *mut NvmlMemoryV2) -> u32>(at)(
            device, place,
        );
        if let (SUCCESS, Some((cap, used))) = (result, lease_of_device(device)) {
            let version = (&raw const (*place).version).read_unaligned();
            // Memory that the driver reserves for itself is no part of a lease.
            let (free, used) = (cap.saturating_sub(used), used.min(cap));
            place.write_unaligned(NvmlMemoryV2 { version, total: cap, reserved: 0, free, used });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::parse_uuid;

    #[test]
    fn uuids_are_parsed_in_nvmls_form() {
        let read = parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff").expect("a UUID");
        assert_eq!(read, [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        for other in
            ["MIG-00112233-4455-6677-8899-aabbccddeeff", "GPU-0011", "GPU-zz112233-4455-6677-8899-aabbccddeeff"]
        {
            assert_eq!(parse_uuid(other), None, "{other}");
        }
    }
}
