//! Waiting for a condition instead of sleeping for a guess.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything that should happen soon, on a slow machine under load.
pub const LONG: Duration = Duration::from_secs(200);

/// Short enough not to delay a test, long enough not to load the machine.
const POLL: Duration = Duration::from_millis(20);

/// Calls `poll` until it gives a value; panics with its last answer when `within` is over.
pub fn until<T, W: Debug>(what: &str, within: Duration, mut poll: impl FnMut() -> Result<T, W>) -> T {
    let deadline = Instant::now() + within;
    loop {
        match poll() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => panic!("{what}: not within {within:?}; last seen: {last:?}"),
            Err(_) => thread::sleep(POLL),
        }
    }
}

/// Calls `poll` again and again for as long as `during`; for what must *not* happen.
pub fn throughout(during: Duration, mut poll: impl FnMut()) {
    let end = Instant::now() + during;
    while Instant::now() < end {
        poll();
        thread::sleep(10 * POLL);
    }
    poll();
}
