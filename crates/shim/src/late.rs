//! Calls that give something back, and came while the driver had the context: answered at once, done when it is back.
//!
//! A program ends without waiting for a card that way, and one that goes on leaves nothing behind. Host memory that
//! the program registered is not among them: it may be gone before the driver lets go of it.

use crate::class;
use crate::contexts;
use crate::driver::{self, done, within};
use crate::gate;
use crate::hook;
use std::sync::{Mutex, PoisonError};

/// A call: its slot, and what it was given.
type Call = (usize, [usize; 2]);

static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

/// In the place of the driver's function.
pub extern "C" fn put_off(first: usize, second: usize) -> u32 {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).push((gate::current_number(), [first, second]));
    driver::SUCCESS
}

/// Does what was put off: the driver has given the context back, and nobody else is inside.
pub fn catch_up() {
    let calls = std::mem::take(&mut *CALLS.lock().unwrap_or_else(PoisonError::into_inner));
    for (number, given) in calls {
        gate::as_call(number, || again(number, given));
    }
}

fn again(number: usize, [first, second]: [usize; 2]) {
    let slot = hook::slot(number);
    // SAFETY: what is put off has no more than two arguments, which were the program's.
    let call =
        || unsafe { std::mem::transmute::<usize, extern "C" fn(usize, usize) -> u32>(slot.target())(first, second) };
    let base = class::base(slot.name());
    if base.starts_with("cuCtx") || base.starts_with("cuDevice") {
        call();
        return;
    }
    // In which context the program's thread was, only the driver knew: it is the one in which this works.
    let contexts = contexts::all();
    let is_done = contexts.iter().any(|context| within(*context, || done(call())).is_ok());
    if contexts.is_empty() && !is_done {
        call();
    }
}
