//! What a parked lease needs on its GPUs to come back.

use crate::model::ids::LeaseId;
use crate::model::mutant::Mutant;
use crate::model::request::{LeaseRequest, Vram};
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::{Bytes, Time};
use crate::state::State;
use std::borrow::Cow;

/// Whether each GPU of a parked lease has the bytes that it needs to come back, whatever waiters claim.
pub(crate) fn has_room_again(state: &State, lease: LeaseId, now: Time) -> bool {
    let Some(row) = state.lease(lease) else { return false };
    let Phase::Parked(hold, _) = &row.phase else { return false };
    let (vram, at_least) = needed_to_resume(state, row, hold);
    hold.gpus.iter().all(|gpu| state.promisable(*gpu, now) >= at_least.unwrap_or(vram))
}

/// What a parked lease needs on each of its GPUs to come back, and the least that would do, if less would.
pub(crate) fn needed_to_resume(state: &State, lease: &Lease, hold: &Hold) -> (Bytes, Option<Bytes>) {
    // What it still has on a GPU it need not be given again.
    let vram = hold.vram.less(left_on_gpus(state, lease.id, hold)).max(Bytes(1));
    // A whole GPU is what is left of it; the bytes of the lease must fit.
    let is_whole = lease.first_request().vram == Vram::Whole;
    let at_least = is_whole.then(|| hold.booked_host_memory().min(vram.less(Bytes(1))));
    (vram, at_least.filter(|least| *least > Bytes::ZERO))
}

/// What a parked lease still has on each of its GPUs at least.
pub(crate) fn left_on_gpus(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    // What the driver has, or takes at any moment, is not there.
    let is_deep = state.lease(lease).and_then(Lease::park_state).is_some_and(|park| park.with_driver);
    if is_deep && !state.planted(Mutant::CountContexts) {
        return Bytes::ZERO;
    }
    hold.gpus.iter().map(|gpu| state.room(*gpu).left_of_lease(lease)).min().unwrap_or_default()
}

/// A waiter with what it needs now: what a parked lease has left on its GPUs may have changed since it was queued.
pub(crate) fn with_present_need<'a>(state: &State, lease: &'a Lease) -> Cow<'a, Lease> {
    match &lease.phase {
        Phase::Parked(hold, _) if lease.request.at_least.is_none() => {
            let vram = Vram::Bytes(hold.vram.less(left_on_gpus(state, lease.id, hold)).max(Bytes(1)));
            Cow::Owned(Lease { request: LeaseRequest { vram, ..lease.request.clone() }, ..lease.clone() })
        }
        _ => Cow::Borrowed(lease),
    }
}
