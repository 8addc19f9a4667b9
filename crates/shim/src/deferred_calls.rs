//! Calls that only free something and come while the driver has the context: answered at once, and done when it is
//! back.
//!
//! So a program can end without waiting for a GPU, and one that goes on leaves nothing behind. Unregistering host
//! memory is not among these calls: the program may free that memory before the driver has unregistered it.

use crate::allocations;
use crate::contexts;
use crate::driver::{self, as_result, with_context};
use crate::function_class;
use crate::gate;
use crate::memory_table;
use crate::slots;
use std::sync::{Mutex, PoisonError};

/// A call: its slot, and its arguments.
type Call = (usize, [usize; 2]);

static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

/// Called in place of the driver's function.
pub extern "C" fn defer(first: usize, second: usize) -> u32 {
    let number = gate::current_slot_number();
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |number: usize| function_class::frees_memory(function_class::base_name(slots::slot(number).name()));
    if is_free(number) {
        let is_again = calls.iter().any(|(other, [at, _])| *at == first && is_free(*other));
        if first == 0 || is_again || !can_free_later(first as u64) {
            return if first == 0 { driver::SUCCESS } else { driver::INVALID_VALUE };
        }
    }
    calls.push((number, [first, second]));
    driver::SUCCESS
}

/// True if this memory, freed now, can be freed later: the shim owns it, or counts it.
fn can_free_later(at: u64) -> bool {
    let table = memory_table::lock();
    let is_own = table.blocks.get(&at).is_some_and(|block| !block.is_import);
    is_own || table.driver_pool_blocks.contains_key(&at)
}

/// Does the calls that were put off: the driver has given the context back, and no other call is inside.
pub fn run_deferred() {
    let calls = std::mem::take(&mut *CALLS.lock().unwrap_or_else(PoisonError::into_inner));
    for (number, arguments) in calls {
        gate::as_call(number, || run_call(number, arguments));
    }
}

fn run_call(number: usize, [first, second]: [usize; 2]) {
    let slot = slots::slot(number);
    // SAFETY: calls that are put off have at most two arguments, which are the program's as they came.
    let call =
        || unsafe { std::mem::transmute::<usize, extern "C" fn(usize, usize) -> u32>(slot.target())(first, second) };
    let base = function_class::base_name(slot.name());
    if function_class::frees_memory(base) {
        // The stream it was to wait for has finished all its work.
        allocations::free_parked(first as u64);
        return;
    }
    if base.starts_with("cuCtx") || base.starts_with("cuDevice") {
        call();
        return;
    }
    // Only the driver knew the context of the program's thread: it is the one in which the call succeeds.
    let contexts = contexts::all();
    let is_done = contexts.iter().any(|context| with_context(*context, || as_result(call())).is_ok());
    if contexts.is_empty() && !is_done {
        call();
    }
}
