//! The first waiters in the order in which they are served, and whether they need what a lease has.

use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::quota::QuotaBlock;
use crate::model::rows::{GpuService, Lease};
use crate::policy::placement::{could_host, could_start_if_all_ended};
use crate::policy::quota;
use crate::state::State;
use crate::state::queue::QueueCursor;
use std::collections::BTreeMap;

/// Waiters that are examined for one event; more would cost time and help few.
pub(crate) const LOOK_AHEAD: usize = 64;

/// Waiters of one tenant that are examined: a hundred requests for a GPU that is taken do not keep waiters behind them
/// from another GPU. A waiter that could not start whatever ended is not counted, since no other waits behind it.
pub(crate) const LOOK_AHEAD_OF_TENANT: usize = 16;

/// Waiters examined in all, if the order changes on the way, or quotas hold waiters back.
pub(crate) const LOOKS: usize = 8 * LOOK_AHEAD;

/// Once a tenant has as many waiters in `kept` as are examined, drops those that could not start whatever ended, and
/// returns how many that were. Below that number no waiter is checked.
pub(crate) fn count_hopeful(state: &State, kept: &mut Vec<LeaseId>) -> usize {
    let before = kept.len();
    if before >= LOOK_AHEAD_OF_TENANT {
        kept.retain(|lease| state.lease(*lease).is_some_and(|row| could_start_if_all_ended(state, row)));
    }
    before - kept.len()
}

/// The first waiters in the order of service, with the quota that holds each back. Behind a waiter that waits for its
/// tenant's own leases, the tenant's other waiters are passed over; waiters that a quota holds back do not count.
pub(crate) fn waiters_in_order(state: &State) -> impl Iterator<Item = (&Lease, Option<QuotaBlock>)> {
    let mut cursor = QueueCursor::default();
    let mut seen: BTreeMap<TenantId, Vec<LeaseId>> = BTreeMap::new();
    let mut looked = 0;
    let walk = std::iter::from_fn(move || {
        let (place, tenant) = cursor.next(state.queue()).filter(|_| looked < LOOK_AHEAD)?;
        let lease = state.lease(place.lease)?;
        let held = quota::block(state, lease);
        let of_tenant = seen.entry(tenant).or_default();
        if held.is_none() {
            of_tenant.push(place.lease);
            looked += 1;
        }
        looked -= count_hopeful(state, of_tenant);
        if held.as_ref().is_none_or(|held| held.is_permanent) && of_tenant.len() < LOOK_AHEAD_OF_TENANT {
            cursor.advance(state.queue(), place, tenant);
        }
        Some((lease, held))
    });
    walk.take(LOOKS)
}

/// The first waiters that no quota holds back.
pub(crate) fn waiters_within_quota(state: &State) -> impl Iterator<Item = &Lease> {
    waiters_in_order(state).filter_map(|(lease, held)| held.is_none().then_some(lease))
}

/// Whether a waiter near the head of the queue could use what this lease has.
pub(crate) fn is_wanted(state: &State, holder: &Lease, gpus: &[GpuId]) -> bool {
    // A waiter that a quota holds back needs no room but that of its own tenant and its groups.
    let shares_quota = |tenant: TenantId| state.ledger().share_quota(tenant, holder.tenant);
    // A draining GPU is wanted by its operator.
    let drains = |gpu: &GpuId| state.rows().gpus[*gpu].service == GpuService::Draining;
    gpus.iter().any(drains)
        || state.queue().skipped_tenants().any(shares_quota)
        || waiters_in_order(state).any(|(waiter, held)| match held {
            // A waiter that could not start there whatever ended does not need it.
            None => gpus.iter().any(|gpu| could_host(state, waiter, *gpu)),
            Some(held) => !held.is_permanent && shares_quota(waiter.tenant),
        })
}

/// The place of a waiter is counted up to this.
pub const PLACE_MAX: usize = 256;
