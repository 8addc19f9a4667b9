//! The reports of this crate.
//!
//! Facts only: decisions are made elsewhere.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use sublet_core::audit::Audit;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::movers::MoverReport;
use sublet_core::reading::{GpuFacts, GpuReading};
use sublet_core::restrictions::Restrictions;
use sublet_core::units::{Bytes, Time};
use sublet_core::unleased::{SignalOutcome, UnleasedId};
use thiserror::Error;

/// One report. All come from one thread, in the order of the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostReport {
    /// All GPUs: at the start, and whenever the list or a fact changed, or became known again after
    /// [`HostReport::ListFailed`].
    Gpus(Vec<GpuFacts>),
    /// The GPUs cannot be listed. Those listed earlier are unreadable until [`HostReport::Gpus`].
    ListFailed(GpuListError),
    /// One reading of one GPU. Processes on it that belong to a holder were reported before, in
    /// [`HostReport::Members`].
    Observed {
        /// The UUID of the GPU.
        uuid: String,
        /// The reading.
        observation: GpuReading,
    },
    /// All living processes of a holder, in order: when a watch begins, and whenever they change.
    Members {
        /// The lease of the holder.
        lease: LeaseId,
        /// Never empty.
        processes: Vec<ProcKey>,
        /// Those of them that run as another user than the lease's, or are stopped.
        restricted: Restrictions,
    },
    /// The holder worked since the last report; at most once a period.
    Worked {
        /// The lease of the holder.
        lease: LeaseId,
    },
    /// A program of the holder read input from its terminal since the last report; at most once a period.
    TerminalInput {
        /// The lease.
        lease: LeaseId,
    },
    /// A thread of a holder that the driver parked waits inside the driver's library; at most once a second.
    BlockedCall {
        /// The lease.
        lease: LeaseId,
    },
    /// How long a holder has not worked, as the library in its programs reports; sent while a waiter needs its GPUs.
    Idle {
        /// The lease of the holder.
        lease: LeaseId,
        /// The time without work.
        idle: Duration,
    },
    /// What the programs of a holder did, as the library in them reports: whenever that has changed.
    Counted {
        /// The lease of the holder.
        lease: LeaseId,
        /// The counts.
        counts: ActivityCounts,
    },
    /// A program of a holder sent a report through Sublet's library.
    ShimReported {
        /// The lease of the holder.
        lease: LeaseId,
        /// The reporting process.
        process: ProcKey,
        /// The report.
        said: MoverReport,
        /// The name of its executable, with [`MoverReport::Present`].
        program: Option<String>,
    },
    /// The outcome for a holder's process that the driver itself moves, or could move.
    DriverReported {
        /// The lease of the holder.
        lease: LeaseId,
        /// The process.
        process: ProcKey,
        /// The outcome, in the same terms as for a program that moves itself.
        said: MoverReport,
        /// The name of its executable, with [`MoverReport::Present`].
        program: Option<String>,
    },
    /// Host memory available for parked bytes; sent while there is a program to park.
    HostMemory {
        /// `None`: it cannot be read.
        available: Option<Bytes>,
    },
    /// A process on a GPU that belongs to no holder was audited.
    Audited {
        /// The audit.
        audit: Box<Audit>,
        /// The process, and its descendants in the same control group.
        tree: Vec<ProcKey>,
    },
    /// A process that was audited has ended.
    ProcessEnded {
        /// The process.
        process: ProcKey,
    },
    /// A signal to an unleased process was sent, or was refused.
    SignalsSent {
        /// The unleased process.
        stranger: UnleasedId,
        /// The number of the signal.
        signal: u8,
        /// The value that the caller passed as `of`.
        of: Time,
        /// The outcome for each of its processes.
        outcome: Vec<SignalOutcome>,
    },
    /// It was tested whether the pids that the driver reports are those of this host.
    SelfTested {
        /// The reason if they are not.
        can: Result<(), String>,
    },
    /// No process of the holder lives. The lease is no longer watched.
    HolderEnded {
        /// The lease of the holder.
        lease: LeaseId,
        /// Its roots, as far as this crate was told. A root that is not among them may live.
        roots: BTreeSet<ProcKey>,
    },
}

/// What the programs of a holder did since it was granted, those that have ended included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    /// Kernels and graphs launched.
    pub launches: u64,
    /// Copies and fills, however large.
    pub copies: u64,
    /// Bytes that copies moved; `None` if one of the programs has an older library, which does not count them.
    pub copied: Option<u64>,
    /// Calls that failed, by the driver's error number.
    pub errors: BTreeMap<u32, u64>,
}

impl ActivityCounts {
    /// All zero.
    pub(crate) fn none() -> ActivityCounts {
        ActivityCounts { copied: Some(0), ..ActivityCounts::default() }
    }

    /// Adds other counts. They are the holder's own claims, and may be anything.
    pub(crate) fn add(&mut self, other: &ActivityCounts) {
        self.launches = self.launches.saturating_add(other.launches);
        self.copies = self.copies.saturating_add(other.copies);
        self.copied = self.copied.zip(other.copied).map(|(own, other)| own.saturating_add(other));
        for (code, count) in &other.errors {
            let own = self.errors.entry(*code).or_default();
            *own = own.saturating_add(*count);
        }
        // A holder that invents error numbers must not fill the daemon's memory with them.
        while self.errors.len() > ERRORS_MAX {
            self.errors.pop_last();
        }
    }
}

/// Error numbers counted apart.
const ERRORS_MAX: usize = 32;

/// Why the GPUs cannot be listed, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{what}: {remedy}")]
pub struct GpuListError {
    /// The stable part; the wording below is not.
    pub kind: GpuListErrorKind,
    /// What happened (`kernel module 580.82, library 580.95`).
    pub what: String,
    /// What to do (`reboot, or load the matching module`).
    pub remedy: String,
}

/// The reasons why GPUs cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuListErrorKind {
    /// There is no NVML library here.
    NoLibrary,
    /// The kernel module is not loaded.
    NoDriver,
    /// Kernel module and library are of different versions.
    VersionMismatch,
    /// This user may not open the devices.
    NoPermission,
    /// The worker cannot be started, hung or died.
    NoAnswer,
    /// Any other error of the driver.
    Failed,
}
