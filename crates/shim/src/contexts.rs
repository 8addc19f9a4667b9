//! The contexts of the program: which there are, and which are gone.
//!
//! The shim's threads work in them, too. While the gate is closed none of them ends; at other times whoever needs
//! them says so, and a program that ends one waits.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

static KNOWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
static GONE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static STAY: Mutex<()> = Mutex::new(());

fn known() -> MutexGuard<'static, BTreeSet<usize>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// There is a context.
pub fn add(context: usize) {
    known().insert(context);
}

/// All there are.
pub fn all() -> Vec<usize> {
    known().iter().copied().collect()
}

/// A context may go now: the next one can have its handle.
pub fn end(context: usize) {
    known().remove(&context);
    GONE.lock().unwrap_or_else(PoisonError::into_inner).push(context);
}

/// Those that have gone since somebody asked.
pub fn gone() -> Vec<usize> {
    std::mem::take(&mut GONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// While this is held no context ends.
pub fn stay() -> MutexGuard<'static, ()> {
    STAY.lock().unwrap_or_else(PoisonError::into_inner)
}
