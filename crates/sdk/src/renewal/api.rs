//! Looks at leases in this process's memory and renews them through the daemon's API.

use super::LeaseRenewer;
use super::tracked::{LeaseOutlook, OutlookEnd};
use crate::client::{CallError, decode};
use crate::error::FabricError;
use crate::lease::local::LocalLease;
use crate::lease::{LeaseStatus, registry};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use sublet_wire::{Code, Lease, RenewRequest};

/// How long one renewal is tried; the policy repeats it.
const RENEW_WITHIN: Duration = Duration::from_secs(5);

/// The daemon's API, for leases of this process.
pub(super) struct ApiRenewer;

impl LeaseRenewer for ApiRenewer {
    fn outlook(&self, lease: &str) -> LeaseOutlook {
        let Some(lease) = registry::find(lease) else {
            // Its guard was dropped.
            return LeaseOutlook { end: Some(OutlookEnd::GivenBack), ..LeaseOutlook::default() };
        };
        // Past the deadline this asks the daemon, which may have extended the lease.
        let status = lease.status();
        LeaseOutlook {
            is_bound: lease.is_bound(),
            expires_unix_s: lease.latest().expires_unix_s,
            is_parked: matches!(status, LeaseStatus::Parking | LeaseStatus::Parked | LeaseStatus::Resuming),
            activity: lease.work.activity.load(Relaxed),
            end: end_of(&lease, status),
        }
    }

    fn renew(&self, lease: &str) -> Result<f64, FabricError> {
        let Some(lease) = registry::find(lease) else {
            return Err(FabricError::LeaseNotActive(LeaseStatus::Released));
        };
        let target = format!("/v1/leases/{}/renew", lease.id());
        let request = RenewRequest { fence: lease.fence() };
        let answer = lease.client().post(&target, Some(&request), RENEW_WITHIN).and_then(decode::<Lease>);
        let renewed = match answer {
            Ok(renewed) => renewed,
            Err(error) => {
                // How it ended is in the lease, not in the refusal.
                if matches!(&error, CallError::Refused(problem) if problem.code == Code::LeaseEnded)
                    && let Ok(ended) = lease.client().lease(lease.id(), RENEW_WITHIN)
                {
                    lease.store(ended);
                }
                return Err(match lease.known() {
                    status if status.is_over() => lease.ended(status),
                    _ => FabricError::of_call(lease.client(), Some(lease.id()), error),
                });
            }
        };
        let expires = renewed.expires_unix_s;
        lease.store(renewed);
        match lease.known() {
            status if status.is_over() => Err(lease.ended(status)),
            _ => expires.ok_or(FabricError::LeaseNotActive(lease.known())),
        }
    }
}

fn end_of(lease: &LocalLease, status: LeaseStatus) -> Option<OutlookEnd> {
    match status {
        LeaseStatus::Released => Some(OutlookEnd::GivenBack),
        status if status.is_over() => Some(OutlookEnd::Taken(lease.ended(status).to_string())),
        _ => None,
    }
}
