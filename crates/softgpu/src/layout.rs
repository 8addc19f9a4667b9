//! The layout of the file: plain numbers, each of which may be read and written at any time.
//!
//! Everything is an atomic number, so any bytes make a valid file: a process that writes nonsense into it can only make
//! a reader report nonsense. Sizes never change within a version.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The first bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"softcard");
/// The version of this layout.
pub const VERSION: u32 = 1;
/// The largest number of GPUs in one file: more than one host has.
pub const GPUS_MAX: usize = 16;
/// The largest number of processes on the GPUs at a time.
pub const PROCESSES_MAX: usize = 512;

/// The file.
#[derive(Debug)]
#[repr(C)]
pub struct StateFile {
    /// [`MAGIC`], written last when the file is made.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// How many of `gpus` there are.
    pub gpus_len: AtomicU32,
    /// The GPUs.
    pub gpus: [SoftGpu; GPUS_MAX],
    /// The processes on the GPUs.
    pub processes: [ProcessRow; PROCESSES_MAX],
    /// How many of the rows were ever taken: the others need not be read.
    pub rows_len: AtomicU32,
}

/// A GPU.
#[derive(Debug)]
#[repr(C)]
pub struct SoftGpu {
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
    /// This many of the next allocations fail.
    pub failing_allocations: AtomicU32,
    /// Kernels take this many percent longer.
    pub slow_percent: AtomicU32,
    /// Copies take at least as long as at this many bytes a second; zero: no limit.
    pub copy_bytes_per_s: AtomicU64,
}

impl SoftGpu {
    /// Its name, as far as it is valid text.
    pub fn name_text(&self) -> String {
        let bytes: Vec<u8> = self.name.iter().map(|byte| byte.load(SeqCst)).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its UUID in NVML's form.
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

/// A process on the GPUs.
#[derive(Debug)]
#[repr(C)]
pub struct ProcessRow {
    /// Its id; zero: the row is free.
    pub pid: AtomicU32,
    /// Its user.
    pub uid: AtomicU32,
    /// When it started, in clock ticks after boot.
    pub start: AtomicU64,
    /// The pid namespace in which `pid` is its id.
    pub namespace: AtomicU64,
    /// See [`crate::state::CheckpointState`]. Waited for with a futex.
    pub checkpoint: AtomicU32,
    /// Calls and kernels under way that a lock must wait for.
    pub inside: AtomicU32,
    /// Not zero if it has memory that a checkpoint cannot take.
    pub managed: AtomicU32,
    /// What it has of each GPU.
    pub gpus: [ProcessGpuUse; GPUS_MAX],
}

/// What a process has of one GPU.
#[derive(Debug)]
#[repr(C)]
pub struct ProcessGpuUse {
    /// Bytes, including its context's.
    pub used: AtomicU64,
    /// Bytes that a checkpoint took away and a restore takes again.
    pub parked: AtomicU64,
    /// Nanoseconds during which at least one kernel ran, up to `busy_since`.
    pub busy_ns: AtomicU64,
    /// When the kernels that run now began, on the monotonic clock; zero: none runs.
    pub busy_since: AtomicU64,
    /// Kernels that run now.
    pub running: AtomicU32,
    /// Its contexts on the GPU.
    pub contexts: AtomicU32,
}
