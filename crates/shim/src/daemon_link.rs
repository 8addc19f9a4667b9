//! What the gate and the control thread tell each other: which call waits for the memory, and whether the daemon is
//! connected.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};

/// The name of a call that waits for the memory to come back.
static WAITING_CALL: Mutex<Option<String>> = Mutex::new(None);
static IS_CONNECTED: AtomicBool = AtomicBool::new(false);

/// Notes that a thread waits at the gate for the memory to come back.
pub fn note_waiting_call(call: &str) {
    *WAITING_CALL.lock().unwrap_or_else(PoisonError::into_inner) = Some(call.to_owned());
}

/// The call that waits for the memory; `None` if none does.
pub fn waiting_call() -> Option<String> {
    WAITING_CALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Forgets the waiting call: the memory is not away.
pub fn forget_waiting_call() {
    *WAITING_CALL.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// True if there is a connection to the daemon.
pub fn is_connected() -> bool {
    IS_CONNECTED.load(SeqCst)
}

/// Notes that there is a connection to the daemon.
pub fn note_connected() {
    IS_CONNECTED.store(true, SeqCst);
}

/// Notes that the connection to the daemon has ended.
pub fn note_disconnected() {
    IS_CONNECTED.store(false, SeqCst);
}
