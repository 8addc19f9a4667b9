//! The C side of a call: pointers that may be null, and error numbers.
//!
//! A pointer reaches Rust as an [`Out`] or [`CText`], which only a C caller makes: the caller promises that it is null
//! or what the function's declaration says. Nothing else is trusted.

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed. The numbers are NVML's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NvmlError {
    /// `nvmlInit` was not called.
    Uninitialized = 1,
    /// A null pointer, a handle that is none, a number out of range.
    InvalidArgument = 2,
    /// A soft GPU does not have it.
    NotSupported = 3,
    /// No user may do this.
    NoPermission = 4,
    /// There is no such thing.
    NotFound = 6,
    /// The caller's memory is too small.
    InsufficientSize = 7,
    /// There are no soft GPUs.
    DriverNotLoaded = 9,
    /// The GPU fell off the bus.
    GpuIsLost = 15,
    /// The caller's structure has another version.
    VersionMismatch = 25,
    /// Something else.
    Unknown = 999,
}

/// The result of a call.
pub type NvmlResult = Result<(), NvmlError>;

/// Runs a call; a panic does not reach C, and becomes an unknown error.
pub fn run_call(call: impl FnOnce() -> NvmlResult) -> c_uint {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code as c_uint,
        Err(_) => NvmlError::Unknown as c_uint,
    }
}

/// Exports functions; `one | other` gives one function several names.
macro_rules! export {
    ($($(#[$doc:meta])* fn $($name:ident)|+ ($($argument:tt)*) $body:block)*) => {
        $($crate::abi::export_as! { ($($argument)*) $body $($name)+ })*
    };
}

/// One function of [`export!`], under each of its names.
macro_rules! export_as {
    (($($argument:ident: $type:ty),* $(,)?) $body:block $name:ident) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> std::ffi::c_uint {
            $crate::abi::run_call(move || -> $crate::abi::NvmlResult { $body })
        }
    };
    ($arguments:tt $body:block $($name:ident)+) => {
        $($crate::abi::export_as! { $arguments $body $name })+
    };
}

pub(crate) use {export, export_as};

/// A pointer to a value for or from the caller: null, or valid.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Stands for the pointer of a C caller.
    #[cfg(test)]
    pub fn to(value: &mut T) -> Out<T> {
        Out(value)
    }

    /// The null pointer of a caller that wants no value.
    #[cfg(test)]
    pub fn null() -> Out<T> {
        Out(std::ptr::null_mut())
    }

    fn place(self) -> Result<*mut T, NvmlError> {
        if self.0.is_null() { Err(NvmlError::InvalidArgument) } else { Ok(self.0) }
    }

    /// Writes a value for the caller.
    pub fn write(self, value: T) -> NvmlResult {
        let place = self.place()?;
        // SAFETY: it is not null, so the caller has room for one value there.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// Reads the value of the caller.
    pub fn read(self) -> Result<T, NvmlError> {
        let place = self.place()?;
        // SAFETY: it is not null, so the caller has one value there, and any bytes are valid for these types.
        Ok(unsafe { place.read_unaligned() })
    }

    /// Writes several values for the caller.
    ///
    /// # Safety
    /// The caller stated that it has room for that many.
    unsafe fn write_all(self, values: &[T]) -> NvmlResult {
        let place = self.place()?;
        // SAFETY: it is not null, so the caller has room for the number of values that it stated.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), place, values.len()) };
        Ok(())
    }
}

/// Writes a list for the caller: the number of items, and all of them or an error.
pub fn write_list<T: Copy>(count: Out<c_uint>, items: Out<T>, found: &[T]) -> NvmlResult {
    let room = count.read()?;
    count.write(found.len() as c_uint)?;
    if (room as usize) < found.len() {
        return Err(NvmlError::InsufficientSize);
    }
    if found.is_empty() {
        return Ok(());
    }
    // SAFETY: the number was compared with the room that the caller stated.
    unsafe { items.write_all(found) }
}

/// Writes a text with its final zero, or returns an error if it is longer than the buffer.
pub fn write_text(place: Out<c_char>, room: c_uint, text: &str) -> NvmlResult {
    let bytes: Vec<c_char> = text.bytes().chain([0]).map(|byte| byte as c_char).collect();
    place.place()?;
    if bytes.len() > room as usize {
        return Err(NvmlError::InsufficientSize);
    }
    // SAFETY: the number was compared with the room that the caller stated.
    unsafe { place.write_all(&bytes) }
}

/// Writes as much of a text as the buffer holds.
pub fn write_text_cut(place: Out<c_char>, room: c_uint, whole: &str) -> NvmlResult {
    let most = (room as usize).checked_sub(1).ok_or(NvmlError::InvalidArgument)?;
    write_text(place, room, &whole[..whole.floor_char_boundary(most)])
}

/// A text of the caller, or a buffer for one: null, or ended by a zero.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct CText(*const c_char);

impl From<&'static CStr> for CText {
    fn from(text: &'static CStr) -> CText {
        CText(text.as_ptr())
    }
}

impl CText {
    /// The text; one that is not UTF-8 matches no name.
    pub fn read(self) -> Result<String, NvmlError> {
        if self.0.is_null() {
            return Err(NvmlError::InvalidArgument);
        }
        // SAFETY: it is not null, so the caller has a text there that ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| NvmlError::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reports_its_length_and_is_written_only_if_it_fits() {
        let mut room = [0_u32; 3];
        let mut count = 0;
        assert_eq!(write_list(Out::to(&mut count), Out::<u32>::null(), &[7, 8]), Err(NvmlError::InsufficientSize));
        assert_eq!(count, 2);
        count = 1;
        assert_eq!(write_list(Out::to(&mut count), Out::to(&mut room[0]), &[7, 8]), Err(NvmlError::InsufficientSize));
        assert_eq!((count, room), (2, [0; 3]));
        count = 3;
        assert_eq!(write_list(Out::to(&mut count), Out(room.as_mut_ptr()), &[7, 8]), Ok(()));
        assert_eq!((count, room), (2, [7, 8, 0]));
        assert_eq!(write_list(Out::to(&mut count), Out::<u32>::null(), &[]), Ok(()), "nothing needs no room");
        assert_eq!(count, 0);
        assert_eq!(write_list(Out::null(), Out::<u32>::null(), &[]), Err(NvmlError::InvalidArgument));
        count = 2;
        assert_eq!(write_list(Out::to(&mut count), Out::<u32>::null(), &[7]), Err(NvmlError::InvalidArgument));
    }

    #[test]
    fn a_text_is_written_with_its_zero_or_not_at_all() {
        let mut room = [1 as c_char; 4];
        let place = Out(room.as_mut_ptr());
        assert_eq!(write_text(place, 3, "abc"), Err(NvmlError::InsufficientSize));
        assert_eq!(room, [1; 4]);
        assert_eq!(write_text(place, 4, "abc"), Ok(()));
        assert_eq!(room, [b'a' as c_char, b'b' as c_char, b'c' as c_char, 0]);
        assert_eq!(write_text_cut(place, 3, "xyz"), Ok(()));
        assert_eq!(room, [b'x' as c_char, b'y' as c_char, 0, 0]);
        assert_eq!(write_text(Out::null(), 4, "abc"), Err(NvmlError::InvalidArgument));
        assert_eq!(write_text_cut(place, 0, "abc"), Err(NvmlError::InvalidArgument));
    }

    #[test]
    fn a_panic_is_an_unknown_error() {
        assert_eq!(run_call(|| panic!("on purpose")), 999);
        assert_eq!(run_call(|| Err(NvmlError::GpuIsLost)), 15);
        assert_eq!(run_call(|| Ok(())), 0);
    }
}
