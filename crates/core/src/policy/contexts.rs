//! Contexts of parked programs: what stays on a GPU when the library has moved a program's bytes, and whether that can
//! leave too.
//!
//! A context takes about half a GiB. It stays at first, because a program that is used again soon is back sooner with it.
//! The driver takes it when the program was parked for long, or when a waiter has no other way to get its room:
//!
//! ```text
//!   Parked ── for 10 min, or a waiter needs the room ──► Deepen ──► the library keeps still ──► the driver has it
//! ```
//! A restore by the driver needs its room proven (docs/decisions/0009), so a context leaves only where it is.

use crate::model::cost::Direction;
use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::mutant::Mutant;
use crate::model::reading::Reading;
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::policy::lease_processes::residents;
use crate::policy::parking::can_book;
use crate::policy::restore_room::{check_only_own_gpus, check_restore_room};
use crate::state::State;
use crate::state::room::Occupancy;

/// The processes of a lease whose contexts the driver could take once the library has parked them.
pub fn removable_after_park(state: &State, lease: &Lease, hold: &Hold, now: Time) -> Result<Vec<ProcKey>, NotParkable> {
    if state.policy().parking.context_after.is_none() {
        return Err(NotParkable::SwitchedOff);
    }
    let Some(readings) = state.readings(lease.id) else { return Err(NotParkable::NoShim) };
    if let Some(backoff) = readings.backoffs.get(&Method::Driver).filter(|backoff| backoff.until > now) {
        return Err(NotParkable::BackingOff(backoff.why.clone()));
    }
    let mut processes = Vec::new();
    for gpu in &hold.gpus {
        match &state.room(*gpu).reading().reading {
            Reading::Used(used) if used.coarse => return Err(NotParkable::Coarse),
            Reading::Used(_) => processes.extend(residents(state, lease.id, *gpu)),
            Reading::Unreadable(_) => return Err(NotParkable::Unreadable),
        }
    }
    processes.sort();
    processes.dedup();
    let keeps_still = |process: &ProcKey| readings.shims.get(process).is_some_and(|mover| mover.keeps_still.is_some());
    if processes.is_empty() || !processes.iter().all(keeps_still) {
        return Err(NotParkable::NoShim);
    }
    for process in &processes {
        let mover = readings.driver.get(process).ok_or(NotParkable::NotInspected)?;
        if let Some(why) = &mover.refusal {
            return Err(NotParkable::Refused(why.clone()));
        }
    }
    check_restore_room(state, lease, hold)?;
    check_only_own_gpus(state, lease.id, hold, now)?;
    Ok(processes)
}

/// The processes of a parked lease whose contexts the driver shall take now, and how much host memory must be booked for
/// the lease then, if more than is. A lease that waits for its GPUs keeps its contexts, unless a waiter ahead needs them.
pub fn removable_if_not_waiting(
    state: &State,
    lease: &Lease,
    now: Time,
) -> Result<(Vec<ProcKey>, Option<Bytes>), NotParkable> {
    let waits =
        lease.park_state().is_some_and(|park| park.queued_since.is_some()) && !state.planted(Mutant::DeepenWanted);
    if waits { Err(NotParkable::NotActive) } else { removable(state, lease, now) }
}

/// The same whether the lease waits or not.
pub fn removable(state: &State, lease: &Lease, now: Time) -> Result<(Vec<ProcKey>, Option<Bytes>), NotParkable> {
    let Phase::Parked(hold, park) = &lease.phase else { return Err(NotParkable::NotActive) };
    if park.method != Method::Shim || park.with_driver {
        return Err(NotParkable::NotActive);
    }
    let is_open = |gpu: &GpuId| state.room(*gpu).check_readable(now, state.policy().period).is_ok();
    if !hold.gpus.iter().all(is_open) {
        return Err(NotParkable::Unreadable);
    }
    let processes = removable_after_park(state, lease, hold, now)?;
    let Some(readings) = state.readings(lease.id) else { return Err(NotParkable::NoShim) };
    let is_parked = |process: &ProcKey| readings.shims.get(process).is_some_and(|mover| mover.parked_bytes.is_some());
    if !processes.iter().all(is_parked) {
        return Err(NotParkable::NoShim);
    }
    // What was booked is what it had; a program that took more until it left, or was started since then, has more.
    let left: Bytes = hold.gpus.iter().map(|gpu| state.room(*gpu).seen_of(lease.id)).sum();
    let need = readings.shims.values().filter_map(|mover| mover.parked_bytes).sum::<Bytes>() + left;
    let more = need.less(hold.booked_host_memory());
    if more > Bytes::ZERO {
        can_book(state, lease.tenant, more)?;
    }
    let is_booked = more == Bytes::ZERO || state.planted(Mutant::DeepUnbooked);
    Ok((processes, (!is_booked).then_some(need)))
}

/// What parked leases have left on a GPU that the driver could still take, lease by lease. Empty without the policy.
pub(crate) fn removable_on(state: &State, gpu: GpuId, now: Time) -> Vec<(LeaseId, Bytes)> {
    if state.policy().parking.context_after.is_none() {
        return Vec::new();
    }
    let room = state.room(gpu);
    let parked = room.leases().iter().filter(|(_, occupancy)| occupancy.is_parked && occupancy.seen > Bytes::ZERO);
    let rows = parked.filter_map(|(id, occupancy)| Some((state.lease(*id)?, occupancy.seen)));
    rows.filter(|(row, _)| removable(state, row, now).is_ok()).map(|(row, seen)| (row.id, seen)).collect()
}

/// What the driver was told to take of parked leases on a GPU and has not taken yet.
pub(crate) fn being_removed(state: &State, gpu: GpuId) -> Bytes {
    let is_deep = |id: &LeaseId| state.lease(*id).and_then(Lease::park_state).is_some_and(|park| park.with_driver);
    let parked = state.room(gpu).leases().iter().filter(|(id, occupancy)| occupancy.is_parked && is_deep(id));
    parked.map(|(_, occupancy)| occupancy.seen).sum()
}

/// What will leave a GPU beside the bytes that are on their way: contexts that the driver was told to take, and those of
/// leases that are parked together with them.
pub(crate) fn bytes_leaving(state: &State, gpu: GpuId, now: Time) -> Bytes {
    if state.policy().parking.context_after.is_none() {
        return Bytes::ZERO;
    }
    let room = state.room(gpu);
    let soon = |(id, occupancy): (&LeaseId, &Occupancy)| {
        let row = state.lease(*id).filter(|row| row.park_state().is_some_and(|park| park.with_context))?;
        match &row.phase {
            Phase::Parking(hold, _) if removable_after_park(state, row, hold, now).is_ok() => {
                Some(room.context().min(occupancy.counted()))
            }
            Phase::Parked(..) if removable(state, row, now).is_ok() => Some(occupancy.seen),
            _ => None,
        }
    };
    being_removed(state, gpu) + room.leases().iter().filter_map(soon).sum()
}

/// How long the driver takes to take the contexts of a lease, and to bring them back, as far as was measured.
pub(crate) fn costs(state: &State, lease: &Lease, left: Bytes) -> (Span, Span) {
    let costs = &state.rows().tenants[lease.tenant].costs;
    let program = state.readings(lease.id).map_or("", |readings| readings.program.as_str());
    let takes = |way: Direction| costs.estimate(program, Method::Driver, way, left);
    (takes(Direction::OffGpu), takes(Direction::OntoGpu))
}
