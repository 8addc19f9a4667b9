//! What the eyes report.
//!
//! Facts only: what to make of them is decided elsewhere.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use sublet_core::audit::Audit;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::member::Restrictions;
use sublet_core::parking::Said;
use sublet_core::reading::{CardFacts, Observation};
use sublet_core::stranger::{StrangerId, Struck};
use sublet_core::units::{Bytes, Time};
use thiserror::Error;

/// Something that was seen. All sights come from one thread, in the order they were seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// All cards there are: at the start, and whenever the list or a fact changed, or
    /// became known again after [`Sight::Unlisted`].
    Cards(Vec<CardFacts>),
    /// The cards cannot be listed. Those listed earlier are unreadable until [`Sight::Cards`].
    Unlisted(Unlisted),
    /// One look at one card. Processes on it that belong to a holder were told before, in
    /// [`Sight::Members`].
    Observed {
        /// Which card.
        uuid: String,
        /// What was seen there.
        observation: Observation,
    },
    /// All living processes of a holder, in order: when a watch begins, and whenever they change.
    Members {
        /// Whose.
        lease: LeaseId,
        /// Never empty.
        processes: Vec<ProcKey>,
        /// Those of them that run as another user than the lease's, or are stopped.
        restricted: Restrictions,
    },
    /// The holder worked since the last report; at most once a period.
    Worked {
        /// Whose.
        lease: LeaseId,
    },
    /// A program of the holder read input from its terminal since the last report; at most once a period.
    Input {
        /// The lease.
        lease: LeaseId,
    },
    /// For so long a holder has not worked, by the word of the library in its programs; told while
    /// somebody waits.
    Idle {
        /// Whose.
        lease: LeaseId,
        /// How long.
        idle: Duration,
    },
    /// What the programs of a holder did, by the word of the library in them: whenever that has changed.
    Counted {
        /// Whose.
        lease: LeaseId,
        /// What.
        counts: Counts,
    },
    /// A program of a holder said something through Sublet's library.
    Said {
        /// Whose.
        lease: LeaseId,
        /// Which.
        process: ProcKey,
        /// What.
        said: Said,
    },
    /// What became of a holder's process that the driver itself moves, or could move.
    Driven {
        /// Whose.
        lease: LeaseId,
        /// Which.
        process: ProcKey,
        /// What, in the words of a program that would move itself.
        said: Said,
    },
    /// Host memory that could be had for parked bytes; told while there is somebody to park.
    Ram {
        /// `None`: it cannot be read.
        available: Option<Bytes>,
    },
    /// A process on a card that is no holder's was looked into.
    Audited {
        /// Who it is.
        audit: Box<Audit>,
        /// It, and what descends from it in the same control group.
        tree: Vec<ProcKey>,
    },
    /// A process that was looked into ended.
    Left {
        /// Which.
        process: ProcKey,
    },
    /// A signal to a stranger has gone out, or was refused.
    Struck {
        /// Which stranger.
        stranger: StrangerId,
        /// Which signal.
        signal: u8,
        /// As whoever wanted it called it.
        of: Time,
        /// To each of its processes.
        outcome: Vec<Struck>,
    },
    /// It was tried whether the driver's processes can be told apart.
    SelfTested {
        /// Why not, if so.
        can: Result<(), String>,
    },
    /// No process of the holder lives. The lease is no longer watched.
    Gone {
        /// Whose.
        lease: LeaseId,
    },
}

/// What the programs of a holder did since it was granted, those that have ended included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels and graphs launched.
    pub launches: u64,
    /// Copies and fills, however large.
    pub copies: u64,
    /// Bytes that copies moved; `None`: a library of before, which does not count them, is in one of the programs.
    pub copied: Option<u64>,
    /// Calls that failed, by the driver's number for why.
    pub errors: BTreeMap<u32, u64>,
}

impl Counts {
    /// Nothing was done.
    pub(crate) fn none() -> Counts {
        Counts { copied: Some(0), ..Counts::default() }
    }

    /// Adds another's. They are the holder's word, and may be anything.
    pub(crate) fn add(&mut self, other: &Counts) {
        self.launches = self.launches.saturating_add(other.launches);
        self.copies = self.copies.saturating_add(other.copies);
        self.copied = self.copied.zip(other.copied).map(|(own, other)| own.saturating_add(other));
        for (code, count) in &other.errors {
            let own = self.errors.entry(*code).or_default();
            *own = own.saturating_add(*count);
        }
        // A holder that makes numbers up does not fill the memory of the daemon with them.
        while self.errors.len() > ERRORS_MAX {
            self.errors.pop_last();
        }
    }
}

/// So many kinds of errors are told apart.
const ERRORS_MAX: usize = 32;

/// Why the cards cannot be listed, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{what}: {remedy}")]
pub struct Unlisted {
    /// The stable part; the wording below is not.
    pub kind: UnlistedKind,
    /// What happened (`kernel module 580.82, library 580.95`).
    pub what: String,
    /// What to do (`reboot, or load the matching module`).
    pub remedy: String,
}

/// The ways in which a list of cards cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnlistedKind {
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
    /// Anything else that the driver said.
    Failed,
}
