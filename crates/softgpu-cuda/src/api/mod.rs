//! The C functions. Each checks its arguments, passes the gate where it must, and never unwinds into
//! its caller.
//!
//! A function is declared with its name as `cuGetProcAddress` has it and the CUDA version that brought
//! this form of it. Those that name a stream, or use the default one, come twice: in the second form
//! (`_ptsz`, `_ptds`) the default stream is the calling thread's own.

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
mod pool;
mod stream;
mod table;
mod unsupported;
mod vmm;

use crate::result::{CuResult, Outcome};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A function: its name without a version, the CUDA version that brought it, and where it and its
/// second form are.
pub struct Entry {
    name: &'static str,
    since: c_int,
    plain: *const c_void,
    own: *const c_void,
}

// SAFETY: addresses of code, which any thread may have.
unsafe impl Sync for Entry {}

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

        /// What is defined here.
        pub static PLAIN: &[$crate::api::Entry] = &[$($crate::api::Entry {
            name: $public,
            since: $since,
            plain: $name as *const std::ffi::c_void,
            own: $name as *const std::ffi::c_void,
        }),*];
    };
}

/// Defines functions that come twice; the name at the top is true in the second form.
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

        /// What is defined here in two forms.
        pub static STREAMED: &[$crate::api::Entry] = &[$($crate::api::Entry {
            name: $public,
            since: $since,
            plain: $name as *const std::ffi::c_void,
            own: $second as *const std::ffi::c_void,
        }),*];
    };
}
pub(crate) use {exports, streamed};

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

/// Whether there is a place for an answer: asked before anything is made that only the answer names.
pub fn place_for<T>(place: *mut T) -> Outcome<*mut T> {
    if place.is_null() { Err(CuResult::INVALID_VALUE) } else { Ok(place) }
}

/// Writes an answer if the caller wants it.
pub fn put_if<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() { Ok(()) } else { put(place, value) }
}

/// Reads what the caller points to.
pub fn take<T: Copy>(place: *const T) -> Outcome<T> {
    if place.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller of the C function promises that a pointer that is not null can be read.
    Ok(unsafe { place.read_unaligned() })
}

/// Reads a list of the caller's.
pub fn list<T: Copy>(place: *const T, count: usize) -> Outcome<Vec<T>> {
    (0..count)
        .map(|number| if place.is_null() { Err(CuResult::INVALID_VALUE) } else { take(place.wrapping_add(number)) })
        .collect()
}

/// Answers a question for a list: how many there are, and as many as the caller has room for.
pub fn put_list<T: Copy + Default>(place: *mut T, count: *mut usize, all: &[T]) -> Outcome {
    if place.is_null() {
        return put(count, all.len());
    }
    let room = take(count)?;
    for number in 0..room {
        put(place.wrapping_add(number), all.get(number).copied().unwrap_or_default())?;
    }
    put(count, room.min(all.len()))
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
