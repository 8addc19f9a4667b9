//! The C functions. Each checks its arguments, passes the gate where it must, and never unwinds into
//! its caller.

mod checkpoint;
mod context;
mod device;
mod memory;
mod module;
mod stream;
mod table;
mod unsupported;

use crate::result::{CuResult, Outcome};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Defines exported functions of the driver API.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the driver API.")]
            ///
            /// # Safety
            /// Pointers are as the driver API asks for them, or null.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::result::CuResult {
                $crate::api::guarded(|| $body)
            }
        )*
    };
}
pub(crate) use exports;

/// What a call answers, whatever happens in it.
pub fn guarded(body: impl FnOnce() -> Outcome) -> CuResult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CuResult::SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => CuResult::UNKNOWN,
    }
}

/// Writes an answer where the caller wants it.
pub fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller of the C function promises that a pointer that is not null can be written.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// The text a caller gave.
pub fn text<'a>(place: *const std::ffi::c_char) -> Outcome<&'a str> {
    if place.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller of the C function promises a text that ends with a zero.
    let text = unsafe { std::ffi::CStr::from_ptr(place) };
    text.to_str().map_err(|_| CuResult::INVALID_VALUE)
}
