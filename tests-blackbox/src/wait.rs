//! Waiting for a condition instead of sleeping for a guess.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything that should happen soon, on a slow machine under load.
pub const LONG: Duration = Duration::from_secs(200);

/// Short enough not to delay a test, long enough not to load the machine.
const POLL: Duration = Duration::from_millis(20);

/// Calls `look` until it gives a value; panics with its last answer when `within` is over.
pub fn until<T, W: Debug>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T, W>) -> T {
    let deadline = Instant::now() + within;
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => panic!("{what}: not within {within:?}; last seen: {last:?}"),
            Err(_) => thread::sleep(POLL),
        }
    }
}

/// Calls `look` again and again for as long as `during`; for what must *not* happen.
pub fn throughout(during: Duration, mut look: impl FnMut()) {
    let end = Instant::now() + during;
    while Instant::now() < end {
        look();
        thread::sleep(10 * POLL);
    }
    look();
}
