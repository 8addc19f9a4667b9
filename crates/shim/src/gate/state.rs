//! The state of the gate, and the only ways in which it changes.
//!
//! ```text
//!            await_captures                 close_after_captures
//!       OPEN ──────────────► AWAITING_CAPTURES ──────────────► MOVING ──┐ finish_move
//!        ▲  ◄────────────────        │  ▲                      ▲  │     ├─► OPEN
//!        │       stop_awaiting ◄─────┘  └── await_captures ────│──┘     ├─► PARKED
//!        │                                                     │        └─► LOST
//!        └── open_in_child (from any)      PARKED, LOST ───────┘ begin_move
//! ```
//! Only the control thread changes the state, with two exceptions: the thread that ends the last capture closes the gate,
//! and a forked child opens its own.

use crate::log;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// What the gate does with calls, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GateState {
    /// All calls pass.
    Open,
    /// The memory is being moved: calls wait, and they do not ask for a resume.
    Moving,
    /// The memory is not on the GPU; a call that needs it asks for a resume.
    Parked,
    /// The memory was parked when its lease ended and no longer exists: a call that needs it fails.
    Lost,
    /// The gate closes when the open captures have ended. Until then all calls pass, but a thread that would begin
    /// another capture waits for a moment first.
    AwaitingCaptures,
}

/// The state of the gate, with the changes that are legal. An illegal change fails in debug builds; in others it is
/// logged, because the shim does not end a user's program.
pub struct AtomicGateState(AtomicU32);

impl AtomicGateState {
    /// An open gate.
    pub const fn new() -> AtomicGateState {
        AtomicGateState(AtomicU32::new(GateState::Open as u32))
    }

    /// The state now.
    #[inline]
    pub fn load(&self) -> GateState {
        // Calls of a running program find the gate open, and pay for this comparison alone.
        match self.0.load(SeqCst) {
            0 => GateState::Open,
            other => closed_state(other),
        }
    }

    /// Open, or moving and not yet closed → awaiting captures.
    pub fn await_captures(&self) {
        self.change(&[GateState::Open, GateState::Moving], GateState::AwaitingCaptures);
    }

    /// Awaiting captures → moving, if the gate awaits captures. Returns whether it did.
    pub fn close_after_captures(&self) -> bool {
        self.change_if(GateState::AwaitingCaptures, GateState::Moving)
    }

    /// Awaiting captures → open, if the gate still awaits them. Returns whether it did.
    pub fn stop_awaiting(&self) -> bool {
        self.change_if(GateState::AwaitingCaptures, GateState::Open)
    }

    /// Parked or lost → moving: no call that may pass a parked gate comes in from now on.
    pub fn begin_move(&self) {
        self.change(&[GateState::Parked, GateState::Lost], GateState::Moving);
    }

    /// Moving → open, parked or lost.
    pub fn finish_move(&self, to: GateState) {
        debug_assert!(
            matches!(to, GateState::Open | GateState::Parked | GateState::Lost),
            "a move ends with an open, parked or lost gate, not with {to:?}"
        );
        self.change(&[GateState::Moving], to);
    }

    /// Any → open, in a forked child: the thread that would open the gate does not exist there.
    pub fn open_in_child(&self) {
        self.0.store(GateState::Open as u32, SeqCst);
    }

    fn change(&self, expected: &[GateState], to: GateState) {
        let before = self.0.swap(to as u32, SeqCst);
        self.wake();
        if !expected.iter().any(|state| *state as u32 == before) {
            illegal_change(before, to);
        }
    }

    fn change_if(&self, expected: GateState, to: GateState) -> bool {
        let is_changed = self.0.compare_exchange(expected as u32, to as u32, SeqCst, SeqCst).is_ok();
        if is_changed {
            self.wake();
        }
        is_changed
    }

    /// Waits until the state is no longer `state`, until [`wake`](Self::wake), or until the time is over. It may return
    /// early.
    pub fn wait(&self, state: GateState, within: Duration) {
        let time = libc::timespec { tv_sec: within.as_secs() as libc::time_t, tv_nsec: within.subsec_nanos().into() };
        // SAFETY: the word and the time live until the call returns.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                state as u32,
                &raw const time,
            )
        };
    }

    /// Wakes all threads that wait. A signal handler may call this.
    pub fn wake(&self) {
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives until the call returns.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, i32::MAX) };
    }
}

/// The state with this number, which is not that of an open gate.
fn closed_state(number: u32) -> GateState {
    const STATES: [GateState; 4] = [GateState::Moving, GateState::Parked, GateState::Lost, GateState::AwaitingCaptures];
    let found = STATES.into_iter().find(|state| *state as u32 == number);
    debug_assert!(found.is_some(), "the gate has the state {number}, and there is none");
    // Waiting is safe: the word is read again.
    found.unwrap_or(GateState::Moving)
}

#[cold]
fn illegal_change(before: u32, to: GateState) {
    debug_assert!(false, "the gate went from state {before} to {to:?}");
    log::once(&format!("the gate went from state {before} to {to:?}: please report this"));
}

#[cfg(test)]
mod tests {
    use super::{AtomicGateState, GateState};

    #[test]
    fn the_gate_closes_when_the_last_capture_ends_or_gives_up() {
        let gate = AtomicGateState::new();
        assert_eq!(gate.load(), GateState::Open);
        assert!(!gate.close_after_captures() && !gate.stop_awaiting(), "it does not await captures");
        gate.await_captures();
        assert!(gate.stop_awaiting());
        assert_eq!(gate.load(), GateState::Open);
        gate.await_captures();
        assert!(gate.close_after_captures());
        assert_eq!(gate.load(), GateState::Moving);
        gate.await_captures();
        assert_eq!(gate.load(), GateState::AwaitingCaptures, "a capture began while the gate closed");
    }

    #[test]
    fn a_move_begins_with_a_parked_gate_and_ends_open_parked_or_lost() {
        let gate = AtomicGateState::new();
        for end in [GateState::Parked, GateState::Lost, GateState::Open] {
            gate.await_captures();
            gate.close_after_captures();
            gate.finish_move(end);
            assert_eq!(gate.load(), end);
            if end != GateState::Open {
                gate.begin_move();
                gate.finish_move(GateState::Open);
            }
        }
    }

    #[test]
    #[should_panic(expected = "from state 0 to Moving")]
    fn an_open_gate_does_not_move_without_asking_for_captures() {
        AtomicGateState::new().begin_move();
    }

    #[test]
    #[should_panic(expected = "from state 0 to Parked")]
    fn an_open_gate_is_not_parked_at_once() {
        AtomicGateState::new().finish_move(GateState::Parked);
    }
}
