//! Images that programs load: PTX as text, in a file, or in a fat binary.

use crate::fatbin::{self, FatbinError};
use crate::log;
use crate::result::{CuResult, Outcome};
use std::ffi::{CStr, c_void};

/// The first bytes of machine code.
const ELF: u32 = u32::from_le_bytes([0x7f, b'E', b'L', b'F']);
/// PTX for any GPU will do: it is interpreted.
const ANY_GPU: u32 = u32::MAX;

/// Reads so many bytes that a program points to.
///
/// # Safety
/// There are as many.
unsafe fn first_bytes<const BYTES: usize>(image: *const c_void) -> [u8; BYTES] {
    // SAFETY: the caller promises that many bytes.
    unsafe { image.cast::<[u8; BYTES]>().read_unaligned() }
}

/// The PTX that a program points to.
///
/// # Safety
/// It is null or an image: machine code, a fat binary, its wrapper, or text that ends with a zero.
pub unsafe fn text_at(image: *const c_void) -> Outcome<String> {
    if image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller promises an image, and each begins with a number that says what it is: a wrapper and a
    // container have their headers then, and what is neither is text that ends with a zero.
    unsafe {
        match u32::from_le_bytes(first_bytes(image)) {
            fatbin::WRAPPER_MAGIC => {
                let container = fatbin::container_address(first_bytes(image)).map_err(|error| refused(&error))?;
                in_container(container as *const c_void)
            }
            fatbin::MAGIC => in_container(image),
            ELF => {
                log::once("machine code cannot be loaded on soft GPUs: give PTX");
                Err(CuResult::NO_BINARY_FOR_GPU)
            }
            _ => CStr::from_ptr(image.cast()).to_str().map(str::to_owned).map_err(|_| CuResult::INVALID_PTX),
        }
    }
}

/// # Safety
/// It points to a container, or to nothing.
unsafe fn in_container(container: *const c_void) -> Outcome<String> {
    if container.is_null() {
        return Err(CuResult::INVALID_IMAGE);
    }
    // SAFETY: the container has its header, which says how long it is.
    let bytes = unsafe {
        let length = fatbin::total_bytes(first_bytes(container)).map_err(|error| refused(&error))?;
        std::slice::from_raw_parts(container.cast::<u8>(), length)
    };
    let found = fatbin::find_ptx(bytes, ANY_GPU).map_err(|error| refused(&error))?;
    Ok(found.text.to_owned())
}

fn refused(error: &FatbinError) -> CuResult {
    log::once(&error.to_string());
    match error {
        FatbinError::Compressed(_) | FatbinError::NoPtx => CuResult::NO_BINARY_FOR_GPU,
        _ => CuResult::INVALID_IMAGE,
    }
}

/// A file's bytes, with a zero at the end for those that are text.
pub fn file(name: &str) -> Outcome<Vec<u8>> {
    let mut image = std::fs::read(name).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    image.push(0);
    // A fat binary that is cut off must not be read beyond its end.
    let is_fat = image.len() > fatbin::HEADER_BYTES && image[..4] == fatbin::MAGIC.to_le_bytes();
    if is_fat {
        let header = std::array::from_fn(|place| image[place]);
        if fatbin::total_bytes(header).map_err(|error| refused(&error))? >= image.len() {
            return Err(CuResult::INVALID_IMAGE);
        }
    }
    Ok(image)
}
