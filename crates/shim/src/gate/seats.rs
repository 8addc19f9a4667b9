//! A seat for each thread: whether a call of the thread is past the gate, and what its calls did.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

static SEATS: Mutex<Vec<&'static ThreadSeat>> = Mutex::new(Vec::new());

/// Whether a call of a thread is past the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SeatState {
    /// No call is.
    Outside,
    /// A call is.
    Inside,
    /// A call is that may wait for earlier work of the GPU: a copy to memory of the program.
    Copying,
}

/// A [`SeatState`] that its thread writes and the control thread reads.
pub struct AtomicSeatState(AtomicU32);

impl Default for AtomicSeatState {
    fn default() -> AtomicSeatState {
        AtomicSeatState(AtomicU32::new(SeatState::Outside as u32))
    }
}

impl AtomicSeatState {
    /// Goes inside, before the state of the gate is read: the processor must not read that first.
    pub fn go_in(&self, state: SeatState) {
        self.0.swap(state as u32, SeqCst);
    }

    /// Goes outside without having called the driver: the gate was closed.
    pub fn step_back(&self) {
        self.0.store(SeatState::Outside as u32, SeqCst);
    }

    /// Goes outside after a call.
    pub fn leave(&self) {
        self.0.store(SeatState::Outside as u32, Release);
    }

    /// True if the seat has this state.
    pub fn is(&self, state: SeatState) -> bool {
        self.0.load(SeqCst) == state as u32
    }
}

/// A thread's own counters. They outlive the thread, and the next thread gets the seat.
#[derive(Default)]
#[repr(align(128))]
pub struct ThreadSeat {
    /// Whether a call is past the gate.
    pub state: AtomicSeatState,
    is_taken: AtomicBool,
    /// Kernels and graphs launched.
    pub launches: AtomicU64,
    /// Copies and fills.
    pub copies: AtomicU64,
    /// Bytes that copies were to move.
    pub copied: AtomicU64,
    /// Calls that failed.
    pub errors: AtomicU64,
}

impl ThreadSeat {
    /// A seat that no other thread has.
    pub fn take() -> &'static ThreadSeat {
        let mut seats = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = seats.iter().find(|seat| seat.is_taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok());
        if let Some(seat) = free {
            return seat;
        }
        let seat: &'static ThreadSeat = Box::leak(Box::default());
        seat.is_taken.store(true, Release);
        seats.push(seat);
        seat
    }

    /// Frees the seat for the next thread.
    pub fn free(&self) {
        self.state.leave();
        self.is_taken.store(false, Release);
    }

    /// Adds bytes that a copy is to move.
    pub fn add_copied(&self, bytes: u64) {
        self.copied.store(self.copied.load(Relaxed).wrapping_add(bytes), Relaxed);
    }
}

/// Adds one to a counter that other threads only read.
pub fn increment(number: &AtomicU64) {
    number.store(number.load(Relaxed) + 1, Relaxed);
}

/// All seats, for counting.
pub fn thread_seats() -> Vec<&'static ThreadSeat> {
    SEATS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
