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
    /// What became of the last signal that its processes were to get; `None` if an earlier daemon decided
    /// it, which may not have come to send it.
    pub(crate) last_signal: Option<SignalState>,
    /// It was heard which those are.
    pub(crate) members_known: bool,
    /// Its live processes.
    pub members: Vec<ProcKey>,
    /// Those of them that are restricted.
    pub restricted: Restrictions,
    /// It worked since its last renewal.
    pub was_busy: bool,
    /// The most bytes its processes were seen to have on one card.
    pub peak_bytes: Option<Bytes>,
    /// Cards of an ended lease that were not seen again yet.
    pub(crate) unread_gpus: BTreeSet<GpuId>,
    /// Its programs that have Sublet's library and speak to the daemon through it.
    pub shims: BTreeMap<ProcKey, Mover>,
    /// Its processes, as the driver has them.
    pub driver: BTreeMap<ProcKey, Mover>,
    /// Its wrapper, which has a hook.
    pub hooks: BTreeMap<ProcKey, Mover>,
    /// What it runs, as far as was seen.
    pub program: String,
    /// When it was last seen to work.
    pub last_busy: Option<Time>,
    /// When it was last looked at closely whether it does.
    pub last_checked: Option<Time>,
    /// How a park or a resume goes.
    pub(crate) progress: MoveProgress,
    /// Its cards as they were when it began to leave, if one of them does not tell whose bytes are whose.
    pub(crate) gpus_before: BTreeMap<GpuId, GpuSnapshot>,
    /// What called for it while its bytes were leaving: it waits as soon as it is parked.
    pub(crate) wake: Option<Wake>,
    /// A program that ended while its bytes were leaving, and what is known of the cause.
    pub(crate) death: Option<(ProcKey, String)>,
    /// Hints that it is used count again from this time on.
    pub(crate) hint_backoff: HintBackoff,
    /// What went wrong lately: it is not parked, or not resumed, in that way before then.
    pub(crate) backoffs: BTreeMap<Method, Backoff>,
    /// The driver cannot have been told to take its contexts: not all of its programs were still since that was decided.
    pub(crate) driver_not_told: bool,
    /// What was expected when it asked, if it waits and that was remembered.
    pub(crate) expected: Option<ExpectedWait>,
    pub(crate) due: Option<Time>,
}

impl LeaseReadings {
    /// Who speaks for it on a rung.
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

/// The voice of a wrapper, after a start: who was on its way back has not come.
pub(crate) fn hook_mover(lease: &Lease) -> BTreeMap<ProcKey, Mover> {
    let parked = matches!(lease.phase, Phase::Parked(..) | Phase::Resuming(..)).then_some(Bytes::ZERO);
    BTreeMap::from([(HOOK, Mover { parked_bytes: parked, ..Mover::default() })])
}
