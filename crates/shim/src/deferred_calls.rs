//! Calls that only free something and come while the driver has the context: answered at once, and done when it is
//! back.
//!
//! So a program can end without waiting for a GPU, and one that goes on leaves nothing behind. Unregistering host
//! memory is not among these calls: the program may free that memory before the driver has unregistered it.

use crate::class;
use crate::contexts;
use crate::driver::{self, done, within};
use crate::gate;
use crate::hook;
use crate::wrap::{self, away};
use std::sync::{Mutex, PoisonError};

/// A call: its slot, and its arguments.
type Call = (usize, [usize; 2]);

static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

/// Called in place of the driver's function.
pub extern "C" fn put_off(first: usize, second: usize) -> u32 {
    let number = gate::current_number();
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |number: usize| class::is_free(class::base(hook::slot(number).name()));
    if is_free(number) {
        let is_again = calls.iter().any(|(other, [at, _])| *at == first && is_free(*other));
        if first == 0 || is_again || !away::is_freed_later(first as u64) {
            return if first == 0 { driver::SUCCESS } else { driver::INVALID_VALUE };
        }
    }
    calls.push((number, [first, second]));
    driver::SUCCESS
}

/// Does the calls that were put off: the driver has given the context back, and no other call is inside.
pub fn catch_up() {
    let calls = std::mem::take(&mut *CALLS.lock().unwrap_or_else(PoisonError::into_inner));
    for (number, given) in calls {
        gate::as_call(number, || again(number, given));
    }
}

fn again(number: usize, [first, second]: [usize; 2]) {
    let slot = hook::slot(number);
    // SAFETY: calls that are put off have at most two arguments, which are the program's.
    let call =
        || unsafe { std::mem::transmute::<usize, extern "C" fn(usize, usize) -> u32>(slot.target())(first, second) };
    let base = class::base(slot.name());
    if class::is_free(base) {
        // The stream it was to wait for has finished all its work.
        wrap::free_away(first as u64);
        return;
    }
    if base.starts_with("cuCtx") || base.starts_with("cuDevice") {
        call();
        return;
    }
    // Only the driver knew the context of the program's thread: it is the one in which the call succeeds.
    let contexts = contexts::all();
    let is_done = contexts.iter().any(|context| within(*context, || done(call())).is_ok());
    if contexts.is_empty() && !is_done {
        call();
    }
}
