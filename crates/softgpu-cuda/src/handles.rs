//! Handles: numbers that stand for objects, each used once in a process ([`fresh`]). A number that is not in the table of
//! its kind is refused, so that no call follows an invented pointer.

use crate::result::{CuResult, Outcome};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};

/// Handles look like addresses, and are none.
static NEXT: AtomicU64 = AtomicU64::new(0x5000_0000);

/// A number that was never used before.
pub fn fresh() -> usize {
    NEXT.fetch_add(16, Relaxed) as usize
}

/// Objects by handle.
pub struct HandleTable<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for HandleTable<T> {
    fn default() -> HandleTable<T> {
        HandleTable(RwLock::default())
    }
}

impl<T> HandleTable<T> {
    /// Adds an object, and returns its handle.
    pub fn insert(&self, thing: Arc<T>) -> usize {
        let handle = fresh();
        self.insert_as(handle, thing);
        handle
    }

    /// Adds an object under a handle from [`fresh`].
    pub fn insert_as(&self, handle: usize, thing: Arc<T>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, thing);
    }

    /// The object with this handle.
    pub fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        let things = self.0.read().unwrap_or_else(PoisonError::into_inner);
        things.get(&handle).cloned().ok_or(CuResult::INVALID_HANDLE)
    }

    /// Forgets a handle.
    pub fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        let mut things = self.0.write().unwrap_or_else(PoisonError::into_inner);
        things.remove(&handle).ok_or(CuResult::INVALID_HANDLE)
    }

    /// An object for which `is` is true, with its handle.
    pub fn find(&self, is: impl Fn(&T) -> bool) -> Option<(usize, Arc<T>)> {
        let things = self.0.read().unwrap_or_else(PoisonError::into_inner);
        things.iter().find(|(_, thing)| is(thing)).map(|(handle, thing)| (*handle, Arc::clone(thing)))
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Forgets all objects for which `is` is true.
    pub fn drop_where(&self, mut is: impl FnMut(&T) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, thing| !is(thing));
    }
}
