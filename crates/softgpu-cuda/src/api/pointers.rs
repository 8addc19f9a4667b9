//! Pointers that a caller passes: null, or what the driver API promises for the function.
//!
//! They have the layout of plain pointers, and are arguments of exported functions. Nothing but a C caller makes one
//! that is not null, except [`CallerIn::new`], which is unsafe: so what follows has only to check for null. Absent:
//! addresses that a call only names, such as the end of a copy; they are checked against the space of addresses.

use crate::result::{CuResult, Outcome};
use std::ffi::{CStr, c_char};

/// A place for a value of the caller, which may also have one: null, or valid.
#[derive(Debug)]
#[repr(transparent)]
pub struct CallerOut<T>(*mut T);

impl<T> Clone for CallerOut<T> {
    fn clone(&self) -> CallerOut<T> {
        *self
    }
}

impl<T> Copy for CallerOut<T> {}

impl<T> CallerOut<T> {
    /// No place.
    pub const NULL: CallerOut<T> = CallerOut(std::ptr::null_mut());

    /// True if the caller wants no value.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a value; an error if the pointer is null.
    pub fn write(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so the caller has room for a value there.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The place of an item of a list.
    ///
    /// # Safety
    /// The list has room for more than `number` items, or is null.
    pub unsafe fn at(self, number: usize) -> CallerOut<T> {
        if self.0.is_null() {
            return self;
        }
        // SAFETY: the item is in the list.
        CallerOut(unsafe { self.0.add(number) })
    }

    /// The same place for another type of value.
    ///
    /// # Safety
    /// The place is null, or valid for a `U`.
    pub unsafe fn cast<U>(self) -> CallerOut<U> {
        CallerOut(self.0.cast())
    }
}

impl<T: Copy> CallerOut<T> {
    /// The value that the caller has put there.
    pub fn read(self) -> Outcome<T> {
        CallerIn(self.0.cast_const()).read()
    }
}

/// A value of the caller: null, or valid.
#[derive(Debug)]
#[repr(transparent)]
pub struct CallerIn<T>(*const T);

impl<T> Clone for CallerIn<T> {
    fn clone(&self) -> CallerIn<T> {
        *self
    }
}

impl<T> Copy for CallerIn<T> {}

impl<T> CallerIn<T> {
    /// A part of what a caller points to.
    ///
    /// # Safety
    /// The pointer is null, or there is a `T`.
    pub unsafe fn new(place: *const T) -> CallerIn<T> {
        CallerIn(place)
    }

    /// The pointer itself.
    pub fn as_raw(self) -> *const T {
        self.0
    }

    /// True if the caller passes nothing.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T: Copy> CallerIn<T> {
    /// The value; an error if the pointer is null.
    pub fn read(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so the caller has a value there.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// A list of `count` values; an error if it should have some and is null.
    ///
    /// # Safety
    /// If it is not null, there are that many.
    pub unsafe fn read_list(self, count: usize) -> Outcome<Vec<T>> {
        if self.0.is_null() && count > 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the caller of this function promises that there are that many.
        Ok((0..count).map(|number| unsafe { self.0.add(number).read_unaligned() }).collect())
    }
}

/// A text of the caller: null, or ended by a zero.
#[derive(Debug)]
#[repr(transparent)]
pub struct CallerText(*const c_char);

impl CallerText {
    /// The text; an error if there is none or if it is not UTF-8.
    pub fn read(&self) -> Outcome<&str> {
        if self.0.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so the caller has a text there that ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| CuResult::INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::{CallerIn, CallerOut, CallerText};
    use crate::result::CuResult;

    #[test]
    fn null_pointers_are_refused_and_others_are_read_and_written() {
        let mut values = [1_u32, 2];
        let place = CallerOut(values.as_mut_ptr());
        assert_eq!((place.read(), place.write(7)), (Ok(1), Ok(())));
        // SAFETY: there are two.
        assert_eq!(unsafe { place.at(1).write(8) }, Ok(()));
        let nothing = CallerOut::<u32>::NULL;
        assert_eq!((nothing.read(), nothing.write(7)), (Err(CuResult::INVALID_VALUE), Err(CuResult::INVALID_VALUE)));
        assert_eq!(values, [7, 8]);
    }

    #[test]
    fn a_list_of_no_items_may_be_null() {
        let (values, null) = ([1_u32, 2], CallerIn::<u32>(std::ptr::null()));
        // SAFETY: there are two.
        assert_eq!(unsafe { CallerIn(values.as_ptr()).read_list(2) }, Ok(vec![1, 2]));
        // SAFETY: null has no items.
        assert_eq!(unsafe { (null.read_list(0), null.read_list(1)) }, (Ok(Vec::new()), Err(CuResult::INVALID_VALUE)));
    }

    #[test]
    fn a_text_ends_at_its_zero() {
        assert_eq!(CallerText(c"cuInit".as_ptr()).read(), Ok("cuInit"));
        assert_eq!(CallerText(std::ptr::null()).read(), Err(CuResult::INVALID_VALUE));
    }
}
