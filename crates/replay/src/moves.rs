//! Holders that are parked and resumed in a replay: what is on each GPU, and how long moves take.
//!
//! ```text
//! running ──Park──► leaving ──takes()──► says so, two readings ──Parked──► waits
//!    ▲                                                                      │
//!    └──Resumed── one reading, says so ◄──takes()── coming back ◄──Resume───┘
//! ```
//! Each job is one program with Sublet's library. It works until it is told to park, loses only the
//! time of the moves, and leaves nothing on its GPUs.

use crate::host_gpus::HostGpus;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::reading::{GpuUsage, Reading, Resident};
use sublet_core::units::{Bytes, Span, Time};

/// The time a move takes, as the scheduler itself assumes before it has measured one.
const FIXED: Span = Span::millis(150);
const PER_GIB: Span = Span::millis(21);

/// Where a job's bytes are going.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveDirection {
    /// To host memory.
    Out,
    /// To its GPUs.
    Back,
}

/// What is on the GPUs, and which moves are under way.
#[derive(Clone, Debug)]
pub struct ReplayMoves {
    residents: Vec<BTreeMap<LeaseId, Bytes>>,
    totals: Vec<Bytes>,
    /// When a move is done. A move that a later order replaced has an older number.
    due: BinaryHeap<Reverse<(Time, LeaseId, u32)>>,
    orders: BTreeMap<LeaseId, (MoveDirection, u32)>,
    /// How many orders were given.
    count: u32,
}

/// The one process of a lease.
pub fn process_of(lease: LeaseId) -> ProcKey {
    ProcKey { pid: lease.0 as u32, start: 1 + (lease.0 >> 32) }
}

/// How long a move of `bytes` takes.
pub fn move_duration(bytes: Bytes) -> Span {
    Span(FIXED.0 + (u128::from(PER_GIB.0) * u128::from(bytes.0) / u128::from(Bytes::gib(1).0)) as u64)
}

impl ReplayMoves {
    /// Empty GPUs.
    pub fn new(host_gpus: &HostGpus) -> ReplayMoves {
        ReplayMoves {
            residents: vec![BTreeMap::new(); host_gpus.gpus.len()],
            totals: host_gpus.gpus.clone(),
            due: BinaryHeap::new(),
            orders: BTreeMap::new(),
            count: 0,
        }
    }

    /// Sets what a job has on each of these GPUs from now on; may be 0.
    pub fn set_resident(&mut self, lease: LeaseId, gpus: &[GpuId], bytes: Bytes) {
        for gpu in gpus {
            let on = &mut self.residents[usize::from(gpu.0)];
            if bytes == Bytes::ZERO {
                on.remove(&lease);
            } else {
                on.insert(lease, bytes);
            }
        }
    }

    /// A job is told where its bytes shall be.
    pub fn start(&mut self, lease: LeaseId, direction: MoveDirection, done: Time) {
        self.count += 1;
        self.orders.insert(lease, (direction, self.count));
        self.due.push(Reverse((done, lease, self.count)));
    }

    /// A lease is over: its orders are void.
    pub fn cancel(&mut self, lease: LeaseId) {
        self.orders.remove(&lease);
    }

    /// When the next move is done.
    pub fn next_due(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }

    /// The move that is done first; `None` if a later order or the end of the lease cancelled it.
    pub fn pop_finished(&mut self) -> Option<(LeaseId, MoveDirection)> {
        let Reverse((_, lease, number)) = self.due.pop()?;
        let (direction, last) = *self.orders.get(&lease)?;
        if last != number {
            return None;
        }
        self.orders.remove(&lease);
        Some((lease, direction))
    }

    /// What a reading of a GPU shows.
    pub fn reading(&self, gpu: GpuId) -> Reading {
        let on = &self.residents[usize::from(gpu.0)];
        let used: Bytes = on.values().copied().sum();
        let resident = |(lease, bytes): (&LeaseId, &Bytes)| Resident {
            process: process_of(*lease),
            bytes: Some(*bytes),
            only_draws: false,
        };
        let processes = on.iter().map(resident).collect();
        Reading::Used(GpuUsage { free: self.totals[usize::from(gpu.0)].less(used), processes, coarse: false })
    }
}
