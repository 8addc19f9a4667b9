//! What programs give to be loaded: PTX as text, in a file, or in a fat binary.

use crate::log;
use crate::result::{CuResult, Outcome};
use std::ffi::{CStr, c_void};

/// The first bytes of machine code and of fat binaries.
const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];
const FAT: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
const FAT_WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();

/// The PTX that a program points to.
pub fn text_at(image: *const c_void) -> Outcome<String> {
    if image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller of the C function promises an image, which has at least so many bytes.
    let first = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    match first {
        ELF | FAT | FAT_WRAPPER => {
            log::once("machine code and fat binaries cannot be loaded: give PTX");
            Err(CuResult::NO_BINARY_FOR_GPU)
        }
        _ => {
            // SAFETY: what is neither is text that ends with a zero, as the driver API has it.
            let text = unsafe { CStr::from_ptr(image.cast()) };
            text.to_str().map(str::to_owned).map_err(|_| CuResult::INVALID_PTX)
        }
    }
}

/// A file's bytes, with a zero at the end for those that are text.
pub fn file(name: &str) -> Outcome<Vec<u8>> {
    let mut image = std::fs::read(name).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    image.push(0);
    Ok(image)
}
