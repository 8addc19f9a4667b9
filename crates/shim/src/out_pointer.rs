//! Pointers of the program, as they arrive in calls: null, or what the driver's declaration promises.
//!
//! They have the layout of plain pointers, so functions of C take them as arguments. Only a C caller makes them, or the
//! unsafe constructor: that is the one place that states the promise, and what follows needs only the check for null.

use crate::driver;

/// Where the program wants a value: null, or room for one.
#[derive(Debug)]
#[repr(transparent)]
pub struct OutPtr<T>(*mut T);

impl<T> Clone for OutPtr<T> {
    fn clone(&self) -> OutPtr<T> {
        *self
    }
}

impl<T> Copy for OutPtr<T> {}

impl<T> OutPtr<T> {
    /// A pointer to somewhere else than a C caller's argument.
    ///
    /// # Safety
    /// `place` is null, or a `T` can be written there as long as this or a copy of it is used.
    pub unsafe fn new(place: *mut T) -> OutPtr<T> {
        OutPtr(place)
    }

    /// True if the program wants no value.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself, for the driver.
    pub fn as_raw(self) -> *mut T {
        self.0
    }

    /// The same place, for another type of value.
    ///
    /// # Safety
    /// If it is not null, a `U` can be written there.
    pub unsafe fn cast<U>(self) -> OutPtr<U> {
        OutPtr(self.0.cast())
    }

    /// Writes a value; an error if the pointer is null.
    pub fn write(self, value: T) -> Result<(), u32> {
        if self.0.is_null() {
            return Err(driver::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so there is room for a value.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes a value if the program wants it.
    pub fn write_if_wanted(self, value: T) -> Result<(), u32> {
        if self.0.is_null() { Ok(()) } else { self.write(value) }
    }
}

impl<T: Copy> OutPtr<T> {
    /// What the driver, or the program, has written there; `None` if the pointer is null.
    ///
    /// # Safety
    /// If it is not null, a valid `T` was written there.
    pub unsafe fn read(self) -> Option<T> {
        // SAFETY: the pointer is not null, and the caller promises the value.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// A value, or a list of values, that the program passes: null, or at least one.
#[derive(Debug)]
#[repr(transparent)]
pub struct InPtr<T>(*const T);

impl<T> Clone for InPtr<T> {
    fn clone(&self) -> InPtr<T> {
        *self
    }
}

impl<T> Copy for InPtr<T> {}

impl<T: Copy> InPtr<T> {
    /// True if the program passes nothing.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A list that the driver is given instead of the program's.
    pub fn to_list(list: &[T]) -> InPtr<T> {
        InPtr(list.as_ptr())
    }

    /// The pointer itself, for the driver.
    pub fn as_raw(self) -> *const T {
        self.0
    }

    /// The value; `None` if the pointer is null.
    pub fn read(self) -> Option<T> {
        // SAFETY: the pointer is not null, so there is a value.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// The first `count` values; none if the pointer is null.
    ///
    /// # Safety
    /// If it is not null, there are that many.
    pub unsafe fn read_list(self, count: usize) -> Vec<T> {
        let count = if self.0.is_null() { 0 } else { count };
        // SAFETY: the caller promises that there are that many.
        (0..count).map(|number| unsafe { self.0.add(number).read_unaligned() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{InPtr, OutPtr};
    use crate::driver;

    #[test]
    fn values_are_written_and_read_unless_the_pointer_is_null() {
        let mut value = 0_u64;
        // SAFETY: the value lives until the end of this test, and null has no value.
        let (place, null) = unsafe { (OutPtr::new(&raw mut value), OutPtr::<u64>::new(std::ptr::null_mut())) };
        assert_eq!((place.write(7), null.write(7)), (Ok(()), Err(driver::INVALID_VALUE)));
        assert_eq!((place.write_if_wanted(8), null.write_if_wanted(8)), (Ok(()), Ok(())));
        // SAFETY: both places were written, or are null.
        assert_eq!(unsafe { (place.read(), null.read()) }, (Some(8), None));
        assert_eq!(value, 8);
    }

    #[test]
    fn a_list_is_read_to_its_length_and_a_null_pointer_has_none() {
        let list = InPtr::to_list(&[1_u32, 2, 3]);
        let null = InPtr::<u32>(std::ptr::null());
        assert_eq!((list.read(), null.read()), (Some(1), None));
        // SAFETY: there are three.
        assert_eq!(unsafe { (list.read_list(3), null.read_list(3)) }, (vec![1, 2, 3], Vec::new()));
    }
}
