//! Whether a waiter could be on a GPU: now, or if the leases there ended.

use crate::model::ids::{GpuId, LeaseId};
use crate::model::request::{Exclusivity, Vram};
use crate::model::rows::Lease;
use crate::model::units::{Bytes, Time};
use crate::policy::eligibility::{is_eligible, needed_bytes, whole_gpu_least};
use crate::policy::restore_room::needs_others_gone;
use crate::policy::resume::with_present_need;
use crate::policy::{contexts, quota, restore_room};
use crate::state::{State, room};

/// Whether its tenant may ever hold this whole GPU.
pub(crate) fn may_hold_whole_gpu(state: &State, lease: &Lease, gpu: GpuId) -> bool {
    let all = Bytes(state.room(gpu).largest_ever().0.saturating_mul(u64::from(lease.request.gpus)));
    quota::may_ever_hold(state, lease.tenant, all)
}

/// How much the GPU could promise this waiter, if that is enough.
pub(crate) fn fits_on(state: &State, lease: &Lease, gpu: GpuId, now: Time) -> Option<Bytes> {
    if !is_eligible(state, &lease.request, gpu) || state.excludes(gpu, lease.tenant, lease.request.exclusivity) {
        return None;
    }
    let room = state.promisable(gpu, now);
    let enough = match lease.request.vram {
        Vram::Bytes(vram) => vram <= room,
        Vram::Whole => {
            let empty = state.room(gpu).is_empty();
            empty && room >= whole_gpu_least(state, gpu) && may_hold_whole_gpu(state, lease, gpu)
        }
    };
    enough.then_some(room)
}

/// Whether a waiter could start if every lease ended; not while its GPUs step aside, drain or are out of service.
pub(crate) fn could_start_if_all_ended(state: &State, waiter: &Lease) -> bool {
    let able = state.gpus().filter(|gpu| could_host(state, waiter, *gpu));
    able.take(usize::from(waiter.request.gpus)).count() == usize::from(waiter.request.gpus)
}

/// Leases that must leave a GPU before a waiter can have it, however much room there is.
pub(crate) fn blocking_leases<'a>(
    state: &'a State,
    waiter: &'a Lease,
    gpu: GpuId,
) -> impl Iterator<Item = LeaseId> + 'a {
    let whole = waiter.request.vram == Vram::Whole;
    let unsafe_beside: Vec<LeaseId> = match needs_others_gone(state, waiter) {
        true => restore_room::uncapped_holders(state, waiter.id, gpu).collect(),
        false => Vec::new(),
    };
    let occupancies = state.room(gpu).leases().iter().filter(|(_, occupancy)| !occupancy.is_parked);
    let in_the_way = move |(id, occupancy): &(&LeaseId, &room::Occupancy)| {
        whole || excludes(waiter, occupancy) || unsafe_beside.contains(id)
    };
    occupancies.filter(in_the_way).map(|(id, _)| *id)
}

/// Whether the exclusivity of one of them keeps a waiter from sharing a GPU with a lease.
fn excludes(waiter: &Lease, holder: &room::Occupancy) -> bool {
    match (waiter.request.exclusivity, holder.exclusivity) {
        (Exclusivity::Device, _) | (_, Exclusivity::Device) => true,
        (Exclusivity::Session, _) | (_, Exclusivity::Session) => holder.tenant != waiter.tenant,
        (Exclusivity::Shared, Exclusivity::Shared) => false,
    }
}

/// Whether the waiter could start on this GPU if every lease there ended.
pub(crate) fn could_host(state: &State, lease: &Lease, gpu: GpuId) -> bool {
    let lease = &*with_present_need(state, lease);
    let allowed = lease.request.vram != Vram::Whole || may_hold_whole_gpu(state, lease, gpu);
    let alone = lease.request.exclusivity == Exclusivity::Shared || state.unleased_compute_processes(gpu) == 0;
    is_eligible(state, &lease.request, gpu) && allowed && alone && could_fit(state, lease, gpu)
}

/// Whether a waiter would fit on a GPU if every lease there ended, and every context left that can.
fn could_fit(state: &State, lease: &Lease, gpu: GpuId) -> bool {
    let (need, room) = (needed_bytes(state, &lease.request, gpu), state.room(gpu));
    let most = room.largest_ever().less(room.bytes_that_stay());
    need <= most || need <= most + removable_contexts(state, lease.id, gpu)
}

/// What the contexts of parked leases other than this one would give back on a GPU.
pub(crate) fn removable_contexts(state: &State, waiter: LeaseId, gpu: GpuId) -> Bytes {
    let now = state.last_event.unwrap_or(Time::ZERO);
    let others = contexts::removable_on(state, gpu, now).into_iter().filter(|(lease, _)| *lease != waiter);
    others.map(|(_, bytes)| bytes).sum::<Bytes>() + contexts::being_removed(state, gpu)
}
