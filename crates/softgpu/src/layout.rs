//! What is in the file: plain numbers, each of which may be read and written at any time.
//!
//! Everything is an atomic number, so that any bytes make a valid file and nobody who writes
//! nonsense into it can make a reader do more than report nonsense. Sizes never change within a
//! version.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The first bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"softcard");
/// Of this layout.
pub const VERSION: u32 = 1;
/// Cards in one file: more than one host has.
pub const CARDS_MAX: usize = 16;
/// Processes on the cards at a time.
pub const PROCESSES_MAX: usize = 512;

/// The file.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
    /// [`MAGIC`], written last when the file is made.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// How many of `cards` there are.
    pub cards_len: AtomicU32,
    /// The cards.
    pub cards: [Card; CARDS_MAX],
    /// Who is on them.
    pub processes: [Row; PROCESSES_MAX],
    /// So many of the rows were ever taken: the others need not be looked at.
    pub rows_len: AtomicU32,
}

/// A card.
#[derive(Debug)]
#[repr(C)]
pub struct Card {
    /// All of its memory.
    pub total: AtomicU64,
    /// Its name, UTF-8, filled up with zeros.
    pub name: [AtomicU8; 64],
    /// Its UUID.
    pub uuid: [AtomicU8; 16],
    /// See [`crate::fault::NvmlFault`].
    pub nvml_fault: AtomicU32,
    /// See [`crate::fault::CheckpointFault`].
    pub checkpoint_fault: AtomicU32,
    /// So many of the next allocations fail.
    pub failing_allocations: AtomicU32,
    /// Kernels take so many hundredths longer.
    pub slow_percent: AtomicU32,
    /// Copies take as long as so many bytes a second would; zero: as long as they take.
    pub copy_bytes_per_s: AtomicU64,
}

impl Card {
    /// Its name, as far as it is text.
    pub fn name_text(&self) -> String {
        let bytes: Vec<u8> = self.name.iter().map(|byte| byte.load(SeqCst)).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its UUID the way NVML writes it.
    pub fn uuid_text(&self) -> String {
        let mut text = String::from("GPU");
        for (at, byte) in self.uuid.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{:02x}", byte.load(SeqCst)));
        }
        text
    }
}

/// A process on the cards.
#[derive(Debug)]
#[repr(C)]
pub struct Row {
    /// Its id; zero: the row is free.
    pub pid: AtomicU32,
    /// Its user.
    pub uid: AtomicU32,
    /// When it started, in clock ticks after boot.
    pub start: AtomicU64,
    /// The pid namespace in which `pid` is its id.
    pub namespace: AtomicU64,
    /// See [`crate::state::Checkpoint`]. Waited for with a futex.
    pub checkpoint: AtomicU32,
    /// Calls and kernels under way that a lock must wait for.
    pub inside: AtomicU32,
    /// It has memory that a checkpoint cannot take.
    pub managed: AtomicU32,
    /// What it has of each card.
    pub cards: [Share; CARDS_MAX],
}

/// What a process has of one card.
#[derive(Debug)]
#[repr(C)]
pub struct Share {
    /// Bytes, its context's included.
    pub used: AtomicU64,
    /// Bytes that a checkpoint took away, for when it comes back.
    pub parked: AtomicU64,
    /// Nanoseconds during which at least one kernel ran, up to `busy_since`.
    pub busy_ns: AtomicU64,
    /// When the kernels began that run now, on the monotonic clock; zero: none runs.
    pub busy_since: AtomicU64,
    /// Kernels that run now.
    pub running: AtomicU32,
    /// Contexts there.
    pub contexts: AtomicU32,
}
