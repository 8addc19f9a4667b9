//! Batch jobs finish rather than alternate by time slices.
//!
//! ```text
//! time slices alone   J1 ▒▒▒▒ J2 ▒▒▒▒ J3 ▒▒▒▒ … J1 ▒ J2 ▒ J3 ▒      each ends late
//! with this           J1 ▒▒▒▒▒ J2 ▒▒▒▒▒ J3 ▒▒▒▒▒ …                  the first end early
//! ```
//! A job that is expected to be done soon keeps its GPUs beyond its time slice, for one more slice at
//! most. A job that had to leave for the first time takes the place of its own tenant's next job that
//! has not started: the tenant's places among the others stay what they are, so no tenant gains.

use crate::model::durations::{LeaseKind, ONE};
use crate::model::ids::LeaseId;
use crate::model::mutant::Mutant;
use crate::model::request::Tier;
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::{Span, Time};
use crate::policy::waiters::PLACE_MAX;
use crate::state::State;

/// Whether a lease is a job that should rather finish.
fn is_job(state: &State, lease: &Lease) -> bool {
    state.policy().parking.stretches_slices && lease.first_request().tier != Tier::Interactive
}

/// How much longer than its time slice a job keeps its GPUs: as long as it is expected to take, by what its
/// tenant's leases of this program and size really took. Nothing if that is more than another slice.
pub(crate) fn stretch(state: &State, holder: &Lease, hold: &Hold, slice: Span) -> Span {
    if !is_job(state, holder) {
        return Span::ZERO;
    }
    let program = state.readings(holder.id).map_or("", |readings| readings.program.as_str());
    let kind = LeaseKind::new(holder.first_request().tier, hold.vram, hold.gpus.len());
    let durations = &state.rows().tenants[holder.tenant].durations;
    let Some(life) = durations.lifetime(program, kind) else { return Span::ZERO };
    let lasted = hold.time_on_gpus(hold.slice_began() + slice);
    let left = life.remaining(lasted, ONE / 2);
    if state.planted(Mutant::StretchForEver) {
        return left;
    }
    if left >= slice { Span::ZERO } else { life.remaining(lasted, ONE / 4 * 3).min(slice) }
}

/// As of when a job that leaves for a waiter asks for its GPUs again: in the place of its tenant's next job of
/// the same tier and priority that asked later, has not started, and stands behind that waiter. `None` if it left
/// before, or there is none.
pub(crate) fn asks_as_of(state: &State, holder: &Lease, waiter: LeaseId) -> Option<Time> {
    let moved = holder.hold()?.has_moved() && !state.planted(Mutant::KeepPlace);
    if !is_job(state, holder) || moved {
        return None;
    }
    let behind = state.queue().all_waiters().take(PLACE_MAX).skip_while(|(id, _)| *id != waiter).skip(1);
    let own = behind.filter(|(_, tenant)| *tenant == holder.tenant).filter_map(|(id, _)| state.lease(id));
    own.into_iter().find(|row| takes_place_of(holder, row)).map(|row| row.requested)
}

/// Whether a job that had to leave goes before another of its tenant.
fn takes_place_of(job: &Lease, other: &Lease) -> bool {
    let same = (job.request.tier, job.request.priority) == (other.request.tier, other.request.priority);
    same && matches!(other.phase, Phase::Waiting { .. }) && job.id < other.id
}

/// How many of a waiter's own tenant may still take its place: those that have their GPUs and never left them.
pub(crate) fn may_take_place(state: &State, waiter: &Lease) -> usize {
    if !state.policy().parking.preempt || !is_job(state, waiter) {
        return 0;
    }
    let own = state.rows().leases.values().filter(|row| row.tenant == waiter.tenant && row.is_held());
    own.filter(|row| row.hold().is_some_and(|hold| !hold.has_moved()) && takes_place_of(row, waiter)).count()
}
