//! Signals while a thread waits at the gate: SIGINT and SIGTERM end the wait, and then have the effect that the program
//! set for them.

use super::GATE;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Mutex, PoisonError};

/// How many times SIGINT or SIGTERM came while a thread waited.
static SIGNALS_CAME: AtomicU32 = AtomicU32::new(0);

/// While a thread waits, SIGINT and SIGTERM end the wait and then have the effect that the program set for them.
pub struct SignalWait {
    /// How many signals had come when the wait began.
    signals: u32,
}

/// How many threads wait, and the program's own signal actions meanwhile. Both are under one lock, so that the shim's
/// action is never taken for the program's.
struct SavedSignalActions {
    waiting: u32,
    old: [Option<libc::sigaction>; 2],
}

static SAVED_ACTIONS: Mutex<SavedSignalActions> = Mutex::new(SavedSignalActions { waiting: 0, old: [None; 2] });
const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// The program's handlers, for the shim's handler to call: addresses, or values that are no handler.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static HANDLER_FLAGS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

impl SignalWait {
    /// Replaces the handlers of the program, unless another thread that waits has done so.
    pub fn begin() -> SignalWait {
        let signals = SIGNALS_CAME.load(SeqCst);
        let mut saved = SAVED_ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        saved.waiting += 1;
        if saved.waiting == 1 {
            for (place, signal) in SIGNALS.iter().enumerate() {
                saved.old[place] = replace_handler(place, *signal);
            }
        }
        SignalWait { signals }
    }

    /// True if a signal came since the wait began.
    pub fn was_interrupted(&self) -> bool {
        SIGNALS_CAME.load(SeqCst) != self.signals
    }
}

impl Drop for SignalWait {
    fn drop(&mut self) {
        let mut saved = SAVED_ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        saved.waiting -= 1;
        if saved.waiting > 0 {
            return;
        }
        for (place, signal) in SIGNALS.iter().enumerate() {
            let Some(action) = saved.old[place].take() else { continue };
            // SAFETY: actions are plain numbers, and the old one was the program's.
            unsafe {
                let mut now: libc::sigaction = std::mem::zeroed();
                libc::sigaction(*signal, std::ptr::null(), &raw mut now);
                // An action that the program has set meanwhile stays.
                if now.sa_sigaction == handle_signal as *const () as usize {
                    libc::sigaction(*signal, &raw const action, std::ptr::null_mut());
                }
            }
        }
    }
}

/// Replaces the program's handler by the shim's; a signal without a handler keeps its effect.
fn replace_handler(place: usize, signal: i32) -> Option<libc::sigaction> {
    // SAFETY: actions are plain numbers; our handler does only what a handler may.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old);
        // A program that saved the shim's handler during a wait may have restored it; that handler calls the program's
        // already.
        let is_ours = old.sa_sigaction == handle_signal as *const () as usize;
        if is_ours || old.sa_sigaction == libc::SIG_DFL || old.sa_sigaction == libc::SIG_IGN {
            return None;
        }
        HANDLERS[place].store(old.sa_sigaction, SeqCst);
        HANDLER_FLAGS[place].store(old.sa_flags as u32, SeqCst);
        let mut own = old;
        own.sa_sigaction = handle_signal as *const () as usize;
        own.sa_flags = (old.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
        (libc::sigaction(signal, &raw const own, std::ptr::null_mut()) == 0).then_some(old)
    }
}

/// Wakes the threads that wait, and calls the program's handler.
///
/// # Safety
/// It is called by the kernel, for one of [`SIGNALS`].
unsafe extern "C" fn handle_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNALS_CAME.fetch_add(1, SeqCst);
    GATE.wake();
    let place = usize::from(signal == SIGNALS[1]);
    let (handler, flags) = (HANDLERS[place].load(SeqCst), HANDLER_FLAGS[place].load(SeqCst));
    // SAFETY: it is the program's handler, called as it asked to be.
    unsafe {
        if flags & libc::SA_SIGINFO as u32 != 0 {
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(i32) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HANDLERS, SignalWait};
    use crate::gate::lock_gate_for_test;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::SeqCst;

    extern "C" fn counting_handler(_: i32) {
        HANDLER_RUNS.fetch_add(1, SeqCst);
    }

    static HANDLER_RUNS: AtomicU32 = AtomicU32::new(0);

    fn current_handler() -> usize {
        // SAFETY: the structure is plain numbers, filled by the call.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut now);
            now.sa_sigaction
        }
    }

    #[test]
    fn a_signal_runs_the_programs_handler_once_however_many_threads_wait() {
        let _alone = lock_gate_for_test();
        let own = counting_handler as *const () as usize;
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGINT, own) };
        let waiting: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| (0..5_000).for_each(|_| drop(SignalWait::begin())))).collect();
        waiting.into_iter().for_each(|thread| thread.join().expect("a thread"));
        assert_eq!((current_handler(), HANDLERS[0].load(SeqCst)), (own, own));
        let (first, second) = (SignalWait::begin(), SignalWait::begin());
        assert_ne!(current_handler(), own, "ours stands in for it");
        // SAFETY: there is a handler for it.
        unsafe { libc::raise(libc::SIGINT) };
        assert!(first.was_interrupted() && second.was_interrupted());
        assert!(!SignalWait::begin().was_interrupted(), "a later wait does not see earlier signals");
        drop((first, second));
        assert_eq!((current_handler(), HANDLER_RUNS.load(SeqCst)), (own, 1));
    }
}
