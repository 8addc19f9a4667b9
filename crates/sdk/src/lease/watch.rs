//! The thread that keeps what is known of a lease up to date: one long poll after the other.
//!
//! It also asks for the memory of a lease that the driver parked under a call. It ends with the lease. A daemon that does not answer is asked again, with a pause that grows to 5 s.

use super::local::LocalLease;
use crate::client::{CallError, PollUntil};
use crate::error::FabricError;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use sublet_wire::{Code, LeaseState};

/// The longest poll.
const POLL_MAX: Duration = Duration::from_secs(30);
/// The shortest poll: the API takes whole seconds.
const POLL_MIN: Duration = Duration::from_secs(1);
/// The pause after the first poll that failed; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Starts the thread, unless the lease has one.
pub(super) fn start(lease: &Arc<LocalLease>) -> Result<(), FabricError> {
    if !lease.begin_watch() {
        return Ok(());
    }
    let watched = Arc::downgrade(lease);
    let thread = thread::Builder::new().name(format!("sublet-{}", lease.id()));
    thread.spawn(move || watch(&watched)).map(drop).map_err(FabricError::NoThread)
}

fn watch(lease: &Weak<LocalLease>) {
    let mut pause = FIRST_PAUSE;
    while let Some(lease) = lease.upgrade() {
        if lease.known().is_over() {
            return;
        }
        match poll(&lease) {
            Ok(()) => {
                pause = FIRST_PAUSE;
                // A failure is repeated with the next poll.
                let _ = lease.wake_calls();
            }
            Err(error) => {
                let is_final = matches!(&error, CallError::Refused(problem)
                    if matches!(problem.code, Code::NoSuchLease | Code::LeaseEnded | Code::Fenced));
                lease.note(error);
                if is_final || lease.rest(pause) {
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

fn poll(lease: &LocalLease) -> Result<(), CallError> {
    let known = lease.latest();
    let until = PollUntil::Changed {
        known: match known.state {
            // The state before the grant is of no interest any more.
            LeaseState::Waiting => LeaseState::Active,
            state => state,
        },
        told: known.ends_soon.is_some(),
        over: known.overuse.is_some(),
    };
    let left = lease.remaining().unwrap_or(POLL_MAX);
    let wait = (left / 2).clamp(POLL_MIN, POLL_MAX);
    lease.store(lease.client().poll(lease.id(), wait, until)?);
    Ok(())
}
