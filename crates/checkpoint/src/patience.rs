//! Waiting for threads that may hang, for as long as they make progress.
//!
//! Absent on purpose: any decision on what is committed. A limit that is over only ends a wait.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The next message; `None` after `limit` without one and without progress, or if none can come any more.
pub fn receive<T>(messages: &Receiver<T>, limit: Duration, progress: impl Fn() -> u64) -> Option<T> {
    let mut seen = progress();
    let mut since = Instant::now();
    loop {
        match messages.recv_timeout(limit.saturating_sub(since.elapsed()).min(LOOK_EVERY)) {
            Ok(message) => return Some(message),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                let now = progress();
                if now != seen {
                    (seen, since) = (now, Instant::now());
                } else if since.elapsed() >= limit {
                    return None;
                }
            }
        }
    }
}
