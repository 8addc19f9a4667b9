//! The C functions. Each checks its arguments, passes the gate where it must, and never unwinds into
//! its caller.
//!
//! A function is declared with its name as `cuGetProcAddress` has it and the CUDA version that introduced this form of
//! it. Functions that name a stream, or use the default one, have two forms: in the second (`_ptsz`, `_ptds`) the
//! default stream is the calling thread's own.

mod checkpoint;
mod context;
mod copy;
mod device;
mod event;
mod function;
mod graph;
mod library;
pub mod memory;
mod module;
mod node;
mod pointer;
pub mod pointers;
mod pool;
mod stream;
mod table;
mod unsupported;
mod vmm;

use crate::result::{CuResult, Outcome};
use pointers::{CallerIn, CallerOut, CallerText};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A function: its name without version suffix, the CUDA version that introduced it, and the addresses of its two
/// forms.
pub struct ApiFunction {
    name: &'static str,
    since: c_int,
    plain: *const c_void,
    own: *const c_void,
}

// SAFETY: addresses of code, which any thread may use.
unsafe impl Sync for ApiFunction {}

/// Defines exported functions of the driver API.
macro_rules! exports {
    ($($public:literal $since:literal fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
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

        /// The functions that are defined here.
        pub static PLAIN: &[$crate::api::ApiFunction] = &[$($crate::api::ApiFunction {
            name: $public,
            since: $since,
            plain: $name as *const std::ffi::c_void,
            own: $name as *const std::ffi::c_void,
        }),*];
    };
}

/// Defines functions with two forms; the name at the top is true in the second form.
macro_rules! streamed {
    ($own:ident; $($public:literal $since:literal fn $name:ident, $second:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the driver API.")]
            ///
            /// # Safety
            /// Pointers are as the driver API asks for them, or null.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::result::CuResult {
                let $own = false;
                $crate::api::guarded(|| $body)
            }

            #[doc = concat!("`", stringify!($second), "` of the driver API.")]
            ///
            /// # Safety
            /// Pointers are as the driver API asks for them, or null.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $second($($argument: $type),*) -> $crate::result::CuResult {
                let $own = true;
                $crate::api::guarded(|| $body)
            }
        )*

        /// The functions with two forms that are defined here.
        pub static STREAMED: &[$crate::api::ApiFunction] = &[$($crate::api::ApiFunction {
            name: $public,
            since: $since,
            plain: $name as *const std::ffi::c_void,
            own: $second as *const std::ffi::c_void,
        }),*];
    };
}
pub(crate) use {exports, streamed};

/// Runs a call and returns its result; a panic does not reach the caller.
pub fn guarded(body: impl FnOnce() -> Outcome) -> CuResult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CuResult::SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => CuResult::UNKNOWN,
    }
}

/// Writes a result for the caller.
pub fn write_out<T>(place: CallerOut<T>, value: T) -> Outcome {
    place.write(value)
}

/// Checks that there is a place for a result, before an object is made that only the result names.
pub fn checked_place<T>(place: CallerOut<T>) -> Outcome<CallerOut<T>> {
    if place.is_null() { Err(CuResult::INVALID_VALUE) } else { Ok(place) }
}

/// Writes a result if the caller wants it.
pub fn write_out_if_wanted<T>(place: CallerOut<T>, value: T) -> Outcome {
    if place.is_null() { Ok(()) } else { place.write(value) }
}

/// Reads what the caller points to.
pub fn read_in<T: Copy>(place: CallerIn<T>) -> Outcome<T> {
    place.read()
}

/// Writes a list for the caller: the number of items, and as many as the caller has room for.
///
/// # Safety
/// If `place` is not null, it has room for as many items as `count` states.
pub unsafe fn write_list<T: Copy + Default>(place: CallerOut<T>, count: CallerOut<usize>, all: &[T]) -> Outcome {
    if place.is_null() {
        return count.write(all.len());
    }
    let room = count.read()?;
    for number in 0..room {
        // SAFETY: there is room for that many.
        unsafe { place.at(number) }.write(all.get(number).copied().unwrap_or_default())?;
    }
    count.write(room.min(all.len()))
}

/// The text that a caller passed.
pub fn text(place: &CallerText) -> Outcome<&str> {
    place.read()
}
