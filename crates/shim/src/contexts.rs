//! The contexts of the program: those that exist, and those that are gone.
//!
//! The shim's threads use them, too. While the gate is closed no context ends. At other times a thread that needs them
//! holds [`keep_all`], and a program that ends a context waits for it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

static KNOWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
static GONE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static ENDING: Mutex<()> = Mutex::new(());

fn known() -> MutexGuard<'static, BTreeSet<usize>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a context.
pub fn add(context: usize) {
    known().insert(context);
}

/// All contexts that exist.
pub fn all() -> Vec<usize> {
    known().iter().copied().collect()
}

/// Removes a context before it ends, because a new context can get its handle.
pub fn forget(context: usize) {
    known().remove(&context);
    GONE.lock().unwrap_or_else(PoisonError::into_inner).push(context);
}

/// Contexts that have gone since the last call.
pub fn take_gone() -> Vec<usize> {
    std::mem::take(&mut GONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// While this is held no context ends.
pub fn keep_all() -> MutexGuard<'static, ()> {
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}
