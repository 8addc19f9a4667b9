//! Whether a restore by the driver is sure to have room: one that lacks it destroys the process.
//!
//! The room is sure if the lease has no more than its reservation, and every other program on its GPUs has Sublet's library,
//! which limits the program to its own lease (docs/decisions/0009).

use crate::model::ids::{GpuId, LeaseId};
use crate::model::movers::{NotParkable, RestoreObstacle};
use crate::model::mutant::Mutant;
use crate::model::reading::{Reading, Unreadable};
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::Time;
use crate::policy::lease_processes::residents;
use crate::policy::move_progress;
use crate::policy::move_progress::driver_may_have;
use crate::state::State;
use crate::state::room::ReadingFault;

/// Checks that a restore of this lease is sure to have room: it has no more than its reservation, and every program of
/// all other leases on its GPUs has Sublet's library.
pub(crate) fn check_restore_room(state: &State, lease: &Lease, hold: &Hold) -> Result<(), NotParkable> {
    let has_more = |gpu: &GpuId| state.room(*gpu).seen_of(lease.id) > hold.vram;
    if hold.gpus.iter().any(has_more) && !state.planted(Mutant::RestoreUnsure) {
        return Err(NotParkable::RestoreUnsure("it has more there than its lease".to_owned()));
    }
    check_others_are_capped(state, lease, hold)?;
    // A lease whose restore is under way was given its room beside all of that.
    for gpu in &hold.gpus {
        let mut others = state.room(*gpu).leases().keys().filter(|other| **other != lease.id);
        if let Some(other) = others.find(|other| exceeds_lease_when_moved(state, **other)) {
            return Err(RestoreObstacle::Uncapped(*gpu, *other).into());
        }
    }
    Ok(())
}

/// Checks that a lease has nothing on GPUs that are not its own: the driver would take that off too, and its room would
/// not be kept.
pub(crate) fn check_only_own_gpus(state: &State, lease: LeaseId, hold: &Hold, now: Time) -> Result<(), NotParkable> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    for gpu in state.gpus().filter(|gpu| !hold.gpus.contains(gpu) && state.is_listed(*gpu)) {
        let room = state.room(gpu);
        match room.check_readable(now, state.policy().period) {
            Ok(()) if residents(state, lease, gpu).next().is_none() => {}
            Ok(()) => {
                return Err(NotParkable::RestoreUnsure(format!("it uses GPU {} too, which is not its own", gpu.0)));
            }
            // What was on it is gone.
            Err(ReadingFault::Unreadable(Unreadable::Lost)) => {}
            Err(_) => {
                let why = format!("it may be on GPU {} too, which cannot be read", gpu.0);
                return Err(NotParkable::RestoreUnsure(why));
            }
        }
    }
    Ok(())
}

/// Checks that no other process could take the room that a restore needs.
pub(crate) fn check_others_are_capped(state: &State, lease: &Lease, hold: &Hold) -> Result<(), RestoreObstacle> {
    hold.gpus
        .iter()
        .try_for_each(|gpu| check_gpu_is_capped(state, *gpu, Some(lease.id), state.unleased_processes_on(*gpu)))
}

/// Whether only other leases keep the driver from restoring a parked lease: the restore is safe once they have left,
/// and they can be preempted. False where it is safe already, and where an unleased process or an unreadable GPU is in
/// the way.
pub(crate) fn is_blocked_by_leases_only(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let blocks = |gpu: &GpuId| uncapped_holders(state, lease.id, *gpu).next().is_some();
    let is_open = |gpu: &GpuId| {
        let readable = matches!(state.room(*gpu).reading().reading, Reading::Used(_));
        readable && state.unleased_processes_on(*gpu) == 0 && state.room(*gpu).seen_of(lease.id) <= hold.vram
    };
    hold.gpus.iter().any(blocks) && hold.gpus.iter().all(is_open)
}

/// Leases on a GPU that could take the room a restore of `lease` needs: no library limits their programs. Leases that
/// are parked are not among them.
pub(crate) fn uncapped_holders(state: &State, lease: LeaseId, gpu: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
    let others = state.room(gpu).leases().iter().filter(move |(id, occupancy)| **id != lease && !occupancy.is_parked);
    others.map(|(id, _)| *id).filter(move |id| !is_capped(state, *id, gpu) || exceeds_lease_when_moved(state, *id))
}

/// Whether the driver may restore a resuming lease now. For a lease whose GPUs were granted anew this was checked
/// before, and is checked with every reading; a lease whose park was given up has its room promised, and waits while
/// another process could take it.
pub fn may_restore(state: &State, lease: &Lease) -> bool {
    let Phase::Resuming(hold, park) = &lease.phase else { return false };
    let asked = park.was_resumed || lease.request.may_lose_state || state.planted(Mutant::NeverRetreat);
    asked || check_others_are_capped(state, lease, hold).is_ok()
}

/// What keeps the driver from restoring what it has, or may have, of a resuming lease.
pub fn restore_obstacle(state: &State, lease: &Lease) -> Option<RestoreObstacle> {
    let Phase::Resuming(hold, _) = &lease.phase else { return None };
    let waits = driver_may_have(state, lease) && !may_restore(state, lease);
    check_others_are_capped(state, lease, hold).err().filter(|_| waits)
}

/// Checks that no other process could take the room that a restore of a lease needs on a GPU with this many unleased
/// processes.
pub(crate) fn check_gpu_is_capped(
    state: &State,
    gpu: GpuId,
    lease: Option<LeaseId>,
    unleased: usize,
) -> Result<(), RestoreObstacle> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    if matches!(state.room(gpu).reading().reading, Reading::Unreadable(_)) {
        return Err(RestoreObstacle::Unreadable(gpu));
    }
    // A process that draws takes room like any other.
    if unleased > 0 {
        return Err(RestoreObstacle::Unleased(gpu, unleased));
    }
    let mut others = state.room(gpu).leases().iter().filter(|(id, _)| Some(**id) != lease);
    match others.find(|(id, _)| !is_capped(state, **id, gpu)) {
        Some((other, _)) => Err(RestoreObstacle::Uncapped(gpu, *other)),
        None => Ok(()),
    }
}

/// Whether every program of a lease on a GPU has Sublet's library in it. A lease without a program there could take no
/// more than an unleased process that begins now: if it counted, a user could keep the driver from parking any other
/// lease by a lease that is not used.
fn is_capped(state: &State, lease: LeaseId, gpu: GpuId) -> bool {
    let Some(readings) = state.readings(lease) else { return false };
    residents(state, lease, gpu).all(|process| readings.shims.contains_key(&process))
}

/// Whether a parking or resuming lease exceeded its reservation when it was parked: its restore may exceed it again.
fn exceeds_lease_when_moved(state: &State, lease: LeaseId) -> bool {
    match state.lease(lease).map(|row| &row.phase) {
        Some(Phase::Parking(hold, park) | Phase::Resuming(hold, park)) => {
            park.had_bytes.0 > hold.vram.0.saturating_mul(hold.gpus.len() as u64)
        }
        _ => false,
    }
}

/// Whether the driver would have to restore a parked lease to GPUs on which another process could take its room.
pub(crate) fn has_unsafe_restore(state: &State, lease: &Lease) -> bool {
    let Phase::Parked(hold, park) = &lease.phase else { return false };
    let is_safe = !park.needs_driver() || lease.first_request().may_lose_state;
    !is_safe && check_restore_room(state, lease, hold).is_err()
}

/// Whether the driver restores a parked lease, and other leases must leave its GPUs first, however much room there is:
/// no library limits their programs.
pub(crate) fn needs_others_gone(state: &State, lease: &Lease) -> bool {
    let Phase::Parked(hold, _) = &lease.phase else { return false };
    has_unsafe_restore(state, lease) && is_blocked_by_leases_only(state, lease, hold)
}

/// Why the driver must not restore a lease after all, though it was told to: since then a process came that could take
/// its room.
pub(crate) fn no_longer_sure(state: &State, lease: &Lease, hold: &Hold) -> Option<String> {
    let Phase::Resuming(_, park) = &lease.phase else { return None };
    let is_back = !move_progress::driver_may_have(state, lease);
    if !park.needs_restore() || is_back || lease.request.may_lose_state || state.planted(Mutant::NeverRetreat) {
        return None;
    }
    check_others_are_capped(state, lease, hold).err().map(|obstacle| NotParkable::from(obstacle).to_string())
}
