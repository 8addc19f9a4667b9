//! The first waiters in the order in which they are served, and whether they need what a lease has.

use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::quota::QuotaBlock;
use crate::policy::placement::{could_host, could_start_if_all_ended};
use crate::policy::quota;
use crate::rows::{GpuService, Lease};
use crate::state::State;
use crate::state::queue::QueueCursor;
use std::collections::BTreeMap;

/// So many waiters are looked at for one event; more would cost time and help few.
pub(crate) const LOOK_AHEAD: usize = 64;

/// Of one tenant so many: whoever asks a hundred times for a card that is taken does not keep those
/// behind it from another. Who could not start whatever ended is not counted: nobody waits behind it.
pub(crate) const LOOK_AHEAD_OF_TENANT: usize = 16;

/// And so many times in all, should the order change on the way, or quotas hold back whoever is met.
pub(crate) const LOOKS: usize = 8 * LOOK_AHEAD;

/// Once so many of a tenant were looked at that no more would be, leaves out those who could not start whatever ended,
/// and says how many those are. Nobody is looked into before.
pub(crate) fn count_hopeful(state: &State, kept: &mut Vec<LeaseId>) -> usize {
    let before = kept.len();
    if before >= LOOK_AHEAD_OF_TENANT {
        kept.retain(|lease| state.lease(*lease).is_some_and(|row| could_start_if_all_ended(state, row)));
    }
    before - kept.len()
}

/// The first waiters in the order of service, as the queue is served, with what holds
/// each back. Behind one that waits for its tenant's own leases the tenant's others are passed over,
/// and those whom quotas hold back do not count.
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

/// Those of them whom no quota holds back.
pub(crate) fn waiters_within_quota(state: &State) -> impl Iterator<Item = &Lease> {
    waiters_in_order(state).filter_map(|(lease, held)| held.is_none().then_some(lease))
}

/// Whether somebody near the head of the queue could use what this holder has.
pub(crate) fn is_wanted(state: &State, holder: &Lease, cards: &[GpuId]) -> bool {
    // Who is held back by a quota has no use for anybody's room, but for its own tenant's and its
    // groups'.
    let shares_quota = |tenant: TenantId| state.ledger().share_quota(tenant, holder.tenant);
    // A card that is to run empty is wanted by its operator.
    let drains = |card: &GpuId| state.rows().gpus[card.0 as usize].service == GpuService::Draining;
    cards.iter().any(drains)
        || state.queue().skipped_tenants().any(shares_quota)
        || waiters_in_order(state).any(|(waiter, held)| match held {
            // Who could not start there whatever ended has no use for it.
            None => cards.iter().any(|card| could_host(state, waiter, *card)),
            Some(held) => !held.is_permanent && shares_quota(waiter.tenant),
        })
}

/// Counting a waiter's place stops here.
pub const PLACE_MAX: usize = 256;
