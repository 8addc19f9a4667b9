//! Messages of one line to the user's terminal.
//!
//! A message that cannot be written is dropped: the program does not fail because of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static WRITTEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Writes a message, unless it was written before.
pub fn once(text: &str) {
    if WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        say(text);
    }
}

/// Writes a message.
pub fn say(text: &str) {
    let line = format!("sublet: {text}\n");
    without_broken_pipes(|| {
        // SAFETY: the bytes live until the call returns.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) }
    });
}

/// Runs `write` without SIGPIPE ending the program, in case nothing reads the output.
fn without_broken_pipes(write: impl FnOnce() -> isize) {
    // SAFETY: sets of signals are plain numbers, filled by the calls before they are read.
    unsafe {
        let (mut pipe, mut pending, mut old): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut old);
        let is_broken = write() < 0 && *libc::__errno_location() == libc::EPIPE;
        if is_broken && !was_pending {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}
