//! Whether a lease has more on its GPUs than it is for, for how long, and how large a lease would cover it.

use crate::model::ids::{GpuId, LeaseId};
use crate::model::mutant::Mutant;
use crate::model::rows::{Hold, Lease, Overuse, Phase, gpu_time};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{Mode, UnleasedProcess, UnleasedStep};
use crate::policy::quota;
use crate::policy::tokens::token_allows;
use crate::policy::waiters::is_wanted;
use crate::state::{SLACK, State};

/// An offer is rounded up to this, while no waiter needs the rest.
const ROUND: u64 = 64 << 20;

/// The most that a lease was seen to have on one of its GPUs.
pub fn most_on_one_gpu(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    hold.gpus.iter().map(|gpu| state.room(*gpu).seen_of(lease)).max().unwrap_or_default()
}

/// Whether a lease that was told so still has more than it is for, by a reading that counts, and has had it for `span`.
pub(crate) fn is_overdue(state: &State, lease: &Lease, hold: &Hold, span: Span, now: Time) -> bool {
    let span = if state.planted(Mutant::OverAtOnce) { Span::ZERO } else { span };
    let is_over = |over: &Overuse| state.rows().meta.due(over.since, over.since + span) <= now;
    let still_has = |gpu: &GpuId| {
        let room = state.room(*gpu);
        let tells = room.check_readable(now, state.policy().period).is_ok() && !room.is_coarse();
        tells && room.seen_of(lease.id) > hold.vram + SLACK
    };
    // A lease that an unleased process has only to be parked by is not preempted for this meanwhile.
    let moves =
        |unleased: &UnleasedProcess| matches!(unleased.step, UnleasedStep::Parking { lease: by, .. } if by == lease.id);
    hold.overuse().is_some_and(is_over) && hold.gpus.iter().any(still_has) && !state.rows().unleased.values().any(moves)
}

/// Whether a lease that cannot be parked is ended for a waiter: it was told long ago, and an operator set all of its
/// GPUs to `enforce`.
pub(crate) fn is_to_end(state: &State, lease: &Lease, hold: &Hold, now: Time) -> bool {
    let enforced = |gpu: &GpuId| state.mode(*gpu) == Mode::Enforce;
    let enforced = hold.gpus.iter().all(enforced) && matches!(state.unleased_readings().self_test, Some(Ok(())));
    let span = state.policy().enforcement.after_warning.max(state.policy().overuse_grace);
    (enforced || state.planted(Mutant::EndObserved)) && is_overdue(state, lease, hold, span, now)
}

/// The larger lease that a lease with more than it is for could have: bytes of each of its GPUs.
pub fn larger_lease(state: &State, lease: &Lease, now: Time) -> Option<Bytes> {
    let Phase::Active(hold) = &lease.phase else { return None };
    hold.overuse()?;
    larger_vram(state, lease, hold, now)
}

/// The same, whether or not its user was told.
pub(crate) fn larger_vram(state: &State, lease: &Lease, hold: &Hold, now: Time) -> Option<Bytes> {
    let seen = most_on_one_gpu(state, lease.id, hold);
    if seen <= hold.vram || state.is_stopped() {
        return None;
    }
    // Free bytes that a waiter needs are not taken.
    let free = if is_wanted(state, lease, &hold.gpus) { FreeBytes::KeptForWaiters } else { FreeBytes::Usable };
    let vram = match free {
        FreeBytes::KeptForWaiters => seen,
        FreeBytes::Usable => Bytes(seen.0.next_multiple_of(ROUND)),
    };
    let (is_room, vram) = match has_room(state, lease.id, hold, vram, free, now) {
        false if free == FreeBytes::Usable => (has_room(state, lease.id, hold, seen, free, now), seen),
        is_room => (is_room, vram),
    };
    ((is_room || state.planted(Mutant::GrowBlind)) && is_allowed(state, lease, hold, vram, now)).then_some(vram)
}

/// Whether a lease that grows may take bytes that are free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FreeBytes {
    Usable,
    KeptForWaiters,
}

/// Whether a lease's GPUs have room for this size: what it has there counts already.
fn has_room(state: &State, lease: LeaseId, hold: &Hold, vram: Bytes, free: FreeBytes, now: Time) -> bool {
    hold.gpus.iter().all(|gpu| {
        let room = state.room(*gpu);
        let counted = room.leases().get(&lease).map_or(Bytes::ZERO, |occupancy| occupancy.counted());
        let lacks = vram.less(counted);
        let is_open = state.in_service(*gpu) && !state.is_restoring_on(*gpu) && !room.is_coarse();
        // Where more was promised than there is, nothing more is.
        let is_covered = room.committed().is_some_and(|committed| committed <= room.total());
        let is_open = is_open && is_covered && room.check_readable(now, state.policy().period).is_ok();
        let free = match free {
            FreeBytes::KeptForWaiters => Bytes::ZERO,
            FreeBytes::Usable => state.promisable(*gpu, now),
        };
        is_open && lacks <= free
    })
}

/// Whether quotas and budgets allow a lease this size.
fn is_allowed(state: &State, lease: &Lease, hold: &Hold, vram: Bytes, now: Time) -> bool {
    let (gpus, day) = (&state.rows().gpus, state.rows().meta.day);
    let more = Bytes(vram.less(hold.vram).0.saturating_mul(hold.gpus.len() as u64));
    let costs = |vram: Bytes| gpu_time(gpus, &hold.gpus, vram, hold.until.since(now)).0;
    let before = if hold.day == day { costs(hold.vram) } else { 0 };
    let time = Span(costs(vram).saturating_sub(before));
    quota::allows_more(state, lease, more, time) && token_allows(state, lease, more)
}
