//! Objects of the program that graphs keep: each is destroyed when its last reference is released.

use crate::result::{CuResult, Outcome};
use crate::work::HostCall;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An object, how it is destroyed, and its reference count.
pub struct UserObject {
    destroy: HostCall,
    count: AtomicUsize,
}

impl UserObject {
    /// An object with `count` references.
    pub fn new(destroy: HostCall, count: usize) -> UserObject {
        UserObject { destroy, count: AtomicUsize::new(count) }
    }

    /// Adds references.
    pub fn retain(&self, count: usize) {
        self.count.fetch_add(count, SeqCst);
    }

    /// Releases references; the last one destroys the object. Returns whether this was the last.
    pub fn release(&self, count: usize) -> Outcome<bool> {
        let less = |held: usize| held.checked_sub(count);
        let before = self.count.fetch_update(SeqCst, SeqCst, less).map_err(|_| CuResult::INVALID_VALUE)?;
        if before == count && count > 0 {
            // SAFETY: the program promises a function that takes this, and no reference is left.
            unsafe { (self.destroy.function)(self.destroy.data) };
            return Ok(true);
        }
        Ok(false)
    }
}

/// The objects of a graph, and how many references it has to each.
#[derive(Default)]
pub struct RetainedObjects(Mutex<BTreeMap<usize, (Arc<UserObject>, usize)>>);

impl RetainedObjects {
    fn references(&self) -> MutexGuard<'_, BTreeMap<usize, (Arc<UserObject>, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over references to an object, which are counted already.
    pub fn add(&self, handle: usize, object: Arc<UserObject>, count: usize) {
        self.references().entry(handle).or_insert((object, 0)).1 += count;
    }

    /// Releases references to an object.
    pub fn remove(&self, handle: usize, count: usize) -> Outcome {
        let mut references = self.references();
        let (object, held) = references.get_mut(&handle).ok_or(CuResult::INVALID_VALUE)?;
        *held = held.checked_sub(count).ok_or(CuResult::INVALID_VALUE)?;
        let object = Arc::clone(object);
        if *held == 0 {
            references.remove(&handle);
        }
        drop(references);
        object.release(count).map(drop)
    }

    /// Releases all references.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.references());
        for (object, count) in all.into_values() {
            // This holds at least that many references.
            let _ = object.release(count);
        }
    }

    /// The same objects, with one more reference to each.
    pub fn duplicate(&self) -> RetainedObjects {
        let copy = RetainedObjects::default();
        for (handle, (object, _)) in self.references().iter() {
            object.retain(1);
            copy.add(*handle, Arc::clone(object), 1);
        }
        copy
    }
}

impl Drop for RetainedObjects {
    fn drop(&mut self) {
        self.clear();
    }
}
