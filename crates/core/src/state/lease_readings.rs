//! What was seen of a lease. It is lost when the daemon stops, and never journaled.

use crate::model::facts::Wake;
use crate::model::ids::{GpuId, ProcKey};
use crate::model::lateness::ExpectedWait;
use crate::model::method::Method;
use crate::model::movers::{Backoff, GpuSnapshot, HOOK, MoveProgress, Mover};
use crate::model::restrictions::Restrictions;
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Bytes, Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A signal that is on the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalState {
    /// It leaves once the record is durable.
    Pending,
    /// It left then.
    Sent(Time),
}

/// Keeps a wrong hint from bringing a parked lease back again and again.
///
/// Each hint that counts doubles the time until the next one may, from 1 min to 1 h, unless the lease worked on its GPUs in
/// between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HintBackoff {
    not_before: Time,
    /// Hints that counted since the lease last worked.
    in_a_row: u32,
}

impl HintBackoff {
    const SHORTEST: Span = Span::secs(60);
    const LONGEST: Span = Span::secs(3600);

    /// Returns true if a hint counts now, and from then on waits longer for the next one.
    pub(crate) fn accepts(&mut self, now: Time) -> bool {
        if now < self.not_before {
            return false;
        }
        let wait = Self::SHORTEST.0.checked_shl(self.in_a_row).map_or(Self::LONGEST, Span);
        self.not_before = now + wait.min(Self::LONGEST);
        self.in_a_row = (self.in_a_row + 1).min(16);
        true
    }
}

/// What was seen of one lease.
#[derive(Clone, Debug, Default)]
pub struct LeaseReadings {
    /// The state of the last signal that its processes were to get; `None` if an earlier daemon decided it, which may
    /// have stopped before it was sent.
    pub(crate) last_signal: Option<SignalState>,
    /// Its live processes were heard of since the start.
    pub(crate) members_known: bool,
    /// Its live processes.
    pub members: Vec<ProcKey>,
    /// Those of them that are restricted.
    pub restricted: Restrictions,
    /// It was busy since its last renewal.
    pub was_busy: bool,
    /// The most bytes its processes were seen to have on one GPU.
    pub peak_bytes: Option<Bytes>,
    /// GPUs of an ended lease that were not read since.
    pub(crate) unread_gpus: BTreeSet<GpuId>,
    /// Its programs with Sublet's library.
    pub shims: BTreeMap<ProcKey, Mover>,
    /// Its processes that the driver inspected.
    pub driver: BTreeMap<ProcKey, Mover>,
    /// Its wrapper, which has a hook.
    pub hooks: BTreeMap<ProcKey, Mover>,
    /// The program that it runs, as far as was seen.
    pub program: String,
    /// When it was last seen to be busy.
    pub last_busy: Option<Time>,
    /// When it was last checked closely whether it is busy.
    pub last_checked: Option<Time>,
    /// How far a park or a resume is.
    pub(crate) progress: MoveProgress,
    /// Its GPUs as they were when its park began, if one of them does not tell the bytes of each process.
    pub(crate) gpus_before: BTreeMap<GpuId, GpuSnapshot>,
    /// What woke it during its park: it becomes a waiter as soon as it is parked.
    pub(crate) wake: Option<Wake>,
    /// A program that ended during its park, and what is known of the cause.
    pub(crate) death: Option<(ProcKey, String)>,
    /// Hints that it is used count again from this time on.
    pub(crate) hint_backoff: HintBackoff,
    /// Methods that failed lately: each is not tried again before its time.
    pub(crate) backoffs: BTreeMap<Method, Backoff>,
    /// The driver cannot have been told to take its contexts: not all of its programs kept still since that was
    /// decided.
    pub(crate) driver_not_told: bool,
    /// What was expected when it was requested, if it waits and that was remembered.
    pub(crate) expected: Option<ExpectedWait>,
    pub(crate) due: Option<Time>,
}

impl LeaseReadings {
    /// Its movers of a method.
    pub fn movers(&self, method: Method) -> &BTreeMap<ProcKey, Mover> {
        static NOBODY: BTreeMap<ProcKey, Mover> = BTreeMap::new();
        match method {
            Method::Hook => &self.hooks,
            Method::Shim => &self.shims,
            Method::Driver => &self.driver,
            Method::End => &NOBODY,
        }
    }

    pub(crate) fn movers_mut(&mut self, method: Method) -> Option<&mut BTreeMap<ProcKey, Mover>> {
        match method {
            Method::Hook => Some(&mut self.hooks),
            Method::Shim => Some(&mut self.shims),
            Method::Driver => Some(&mut self.driver),
            Method::End => None,
        }
    }
}

/// The mover of a wrapper's hook after a start: of a resuming lease the bytes count as parked.
pub(crate) fn hook_mover(lease: &Lease) -> BTreeMap<ProcKey, Mover> {
    let parked = matches!(lease.phase, Phase::Parked(..) | Phase::Resuming(..)).then_some(Bytes::ZERO);
    BTreeMap::from([(HOOK, Mover { parked_bytes: parked, ..Mover::default() })])
}
