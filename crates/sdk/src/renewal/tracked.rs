//! One registered lease: what is due, decided from numbers that are passed in.

use super::policy::RenewalPolicy;
use super::{NearExpiryCause, RenewalEvent};
use crate::error::FabricError;
use std::fmt;

/// What is known of a lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LeaseOutlook {
    /// The daemon renews it.
    pub is_bound: bool,
    /// When it expires, in Unix seconds; `None` if it has no deadline (parked), or is unknown.
    pub expires_unix_s: Option<f64>,
    /// Its memory is in host memory, and its time stands still.
    pub is_parked: bool,
    /// The uses of the GPU so far.
    pub activity: u64,
    /// The lease is over.
    pub end: Option<OutlookEnd>,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OutlookEnd {
    /// This program gave it back.
    GivenBack,
    /// It was taken, for this reason.
    Taken(String),
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalStep {
    Wait,
    Renew,
    Forget,
}

/// A counter that grows with each use of the GPU.
type ActivitySource = Box<dyn Fn() -> u64 + Send>;

/// A registered lease.
pub(super) struct TrackedLease {
    policy: RenewalPolicy,
    source: Option<ActivitySource>,
    /// When the first tick saw it.
    held_since: Option<f64>,
    term_start: f64,
    expires: f64,
    /// The activity when the term began.
    activity_paid: u64,
    activity: u64,
    is_bound: bool,
    is_parked: bool,
    failures: u32,
    retry_at: f64,
    is_warned: bool,
}

impl fmt::Debug for TrackedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedLease").field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl TrackedLease {
    pub fn new(expires: f64, policy: RenewalPolicy, source: Option<ActivitySource>) -> TrackedLease {
        TrackedLease {
            policy,
            source,
            held_since: None,
            term_start: 0.0,
            expires,
            activity_paid: 0,
            activity: 0,
            is_bound: false,
            is_parked: false,
            failures: 0,
            retry_at: 0.0,
            is_warned: false,
        }
    }

    /// The lease is registered: activity counts from here.
    pub fn begin(&mut self, outlook: &LeaseOutlook) {
        self.note_activity(outlook);
        self.activity_paid = self.activity;
    }

    fn note_activity(&mut self, outlook: &LeaseOutlook) {
        self.activity = self.source.as_ref().map_or(outlook.activity, |source| source());
    }

    fn is_active(&self) -> bool {
        self.activity != self.activity_paid
    }

    fn is_capped(&self, now: f64) -> bool {
        let held = self.held_since.map_or(0.0, |since| now - since);
        self.policy.hold_cap.is_some_and(|cap| held >= cap.as_secs_f64())
    }

    fn begin_term(&mut self, now: f64, expires: f64) {
        (self.term_start, self.expires) = (now, expires);
        self.activity_paid = self.activity;
        (self.failures, self.retry_at, self.is_warned) = (0, 0.0, false);
    }

    /// What is due at `now`.
    pub fn decide(
        &mut self,
        id: &str,
        now: f64,
        outlook: &LeaseOutlook,
        events: &mut Vec<RenewalEvent>,
    ) -> RenewalStep {
        match &outlook.end {
            Some(OutlookEnd::GivenBack) => return RenewalStep::Forget,
            Some(OutlookEnd::Taken(reason)) => {
                events.push(RenewalEvent::Preempted { lease: id.to_owned(), reason: reason.clone() });
                return RenewalStep::Forget;
            }
            None => {}
        }
        self.note_activity(outlook);
        (self.is_bound, self.is_parked) = (outlook.is_bound, outlook.is_parked);
        if self.held_since.is_none() {
            (self.held_since, self.term_start) = (Some(now), now);
        }
        // The daemon also extends leases that no waiter needs.
        if let Some(expires) = outlook.expires_unix_s.filter(|expires| *expires >= self.expires + 1.0) {
            self.begin_term(now, expires);
            events.push(RenewalEvent::Renewed { lease: id.to_owned(), expires_unix_s: expires });
        }
        if self.is_parked || self.is_bound {
            return RenewalStep::Wait;
        }
        if now >= self.expires {
            return self.decide_past_end(id, events);
        }
        let is_due = now >= self.policy.renew_at(id, self.term_start, self.expires) && now >= self.retry_at;
        if is_due && self.is_active() && !self.is_capped(now) { RenewalStep::Renew } else { RenewalStep::Wait }
    }

    /// The term is over, and the daemon did not say that it goes on.
    fn decide_past_end(&self, id: &str, events: &mut Vec<RenewalEvent>) -> RenewalStep {
        let why = if self.failures > 0 { "the daemon did not answer in time" } else { "it was not renewed" };
        let reason = format!("the time of lease {id} is over: {why}");
        events.push(RenewalEvent::Preempted { lease: id.to_owned(), reason });
        RenewalStep::Forget
    }

    /// Takes over the answer to a renewal. Returns whether the lease goes on.
    pub fn apply(
        &mut self,
        id: &str,
        now: f64,
        answer: Result<f64, FabricError>,
        events: &mut Vec<RenewalEvent>,
    ) -> bool {
        let lease = id.to_owned();
        match answer {
            Ok(expires) => {
                self.begin_term(now, expires);
                events.push(RenewalEvent::Renewed { lease, expires_unix_s: expires });
                true
            }
            Err(error) if error.is_transient() => {
                self.failures += 1;
                let in_s = self.policy.pause_s(self.failures);
                self.retry_at = now + in_s;
                events.push(RenewalEvent::Retrying { lease, detail: error.to_string(), in_s });
                true
            }
            Err(error) => {
                events.push(RenewalEvent::Preempted { lease, reason: error.to_string() });
                false
            }
        }
    }

    /// Reports once in a term that it ends soon.
    pub fn warn(&mut self, id: &str, now: f64, events: &mut Vec<RenewalEvent>) {
        let in_s = self.expires - now;
        if self.is_warned || self.is_parked || in_s > self.policy.warn_before.as_secs_f64() || in_s <= 0.0 {
            return;
        }
        let cause = if self.is_bound {
            NearExpiryCause::Daemon
        } else if self.failures > 0 {
            NearExpiryCause::NoAnswer
        } else if self.is_capped(now) {
            NearExpiryCause::HoldCap
        } else if !self.is_active() {
            NearExpiryCause::NoActivity
        } else {
            // It is renewed before the end.
            return;
        };
        self.is_warned = true;
        events.push(RenewalEvent::NearExpiry { lease: id.to_owned(), in_s, cause });
    }
}
