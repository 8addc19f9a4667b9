//! Renewal of leases by what is done on them: no activity, no renewal.
//!
//! ```text
//!   tick(now) ── look ──► activity, expiry, end ──► decide (tracked) ──► renew? ──► events
//! ```
//! A lease that is bound to this process is renewed by the daemon, which sees what the process does; for it `tick`
//! reports renewals, warns, and says once that it ended. Other leases are renewed here. Time is passed in, so a program
//! may tick from its own loop; [`RenewalManager::run_in_background`] ticks from a thread.
//!
//! Absent on purpose: decisions about other leases. Whether a lease may go on is the daemon's answer.

mod api;
mod background;
mod policy;
mod tracked;

pub use background::BackgroundRenewal;
pub use policy::{RenewWhen, RenewalPolicy};

use crate::error::FabricError;
use std::collections::BTreeMap;
use tracked::{LeaseOutlook, RenewalStep, TrackedLease};

/// What happened to a lease.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RenewalEvent {
    /// It was renewed, here or by the daemon.
    Renewed {
        /// The lease.
        lease: String,
        /// When it expires now, in Unix seconds.
        expires_unix_s: f64,
    },
    /// It ends soon: once in each term.
    NearExpiry {
        /// The lease.
        lease: String,
        /// Seconds until then.
        in_s: f64,
        /// Why it is not renewed.
        cause: NearExpiryCause,
    },
    /// A renewal got no answer and is repeated.
    Retrying {
        /// The lease.
        lease: String,
        /// What happened.
        detail: String,
        /// Seconds until the next try.
        in_s: f64,
    },
    /// It is lost: stop the work, save what can be saved, tell the user. It is reported once.
    Preempted {
        /// The lease.
        lease: String,
        /// What happened, for people.
        reason: String,
    },
}

/// Why a lease that ends soon is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearExpiryCause {
    /// The program did not use it in this term.
    NoActivity,
    /// It was held for as long as the policy allows.
    HoldCap,
    /// The daemon does not answer.
    NoAnswer,
    /// It is the daemon's turn: it renews the lease if the process uses the GPU.
    Daemon,
}

/// How leases are looked at and renewed: through the API, or by a script in tests.
trait LeaseRenewer: Send {
    /// What is known of a lease, without a call unless its time is over.
    fn outlook(&self, lease: &str) -> LeaseOutlook;

    /// Renews a lease and returns when it expires now.
    fn renew(&self, lease: &str) -> Result<f64, FabricError>;
}

/// Renews the leases that are registered with it.
pub struct RenewalManager {
    leases: BTreeMap<String, TrackedLease>,
    renewer: Box<dyn LeaseRenewer>,
}

impl Default for RenewalManager {
    fn default() -> RenewalManager {
        RenewalManager::new()
    }
}

impl std::fmt::Debug for RenewalManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RenewalManager").field("leases", &self.leases).finish_non_exhaustive()
    }
}

impl RenewalManager {
    /// Without leases.
    pub fn new() -> RenewalManager {
        RenewalManager::with_renewer(Box::new(api::ApiRenewer))
    }

    fn with_renewer(renewer: Box<dyn LeaseRenewer>) -> RenewalManager {
        RenewalManager { leases: BTreeMap::new(), renewer }
    }

    /// Renews a lease of this process from now on, while `GpuSession` or `GpuLease::note_activity` shows activity.
    pub fn register(&mut self, lease_id: impl Into<String>, expires_at_unix_secs: u64, policy: RenewalPolicy) {
        self.track(lease_id.into(), TrackedLease::new(expires_at_unix_secs as f64, policy, None));
    }

    /// The same with another source of activity: a counter that grows with each use.
    pub fn register_with_activity(
        &mut self,
        lease_id: impl Into<String>,
        expires_at_unix_secs: u64,
        policy: RenewalPolicy,
        activity: impl Fn() -> u64 + Send + 'static,
    ) {
        let tracked = TrackedLease::new(expires_at_unix_secs as f64, policy, Some(Box::new(activity)));
        self.track(lease_id.into(), tracked);
    }

    fn track(&mut self, lease: String, mut tracked: TrackedLease) {
        // What was done before counts for the term that was paid with it.
        tracked.begin(&self.renewer.outlook(&lease));
        self.leases.insert(lease, tracked);
    }

    /// Stops renewing a lease.
    pub fn unregister(&mut self, lease_id: &str) {
        self.leases.remove(lease_id);
    }

    /// How many leases are renewed.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no lease is renewed.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Does what is due at `now`, in Unix seconds, and returns what happened. A lease that is over is reported once and
    /// then forgotten.
    pub fn tick(&mut self, now: f64) -> Vec<RenewalEvent> {
        let mut events = Vec::new();
        let renewer = &self.renewer;
        self.leases.retain(|id, lease| {
            match lease.decide(id, now, &renewer.outlook(id), &mut events) {
                RenewalStep::Wait => {}
                RenewalStep::Forget => return false,
                RenewalStep::Renew => {
                    let answer = renewer.renew(id);
                    if !lease.apply(id, now, answer, &mut events) {
                        return false;
                    }
                }
            }
            lease.warn(id, now, &mut events);
            true
        });
        events
    }
}

#[cfg(test)]
mod tests;
