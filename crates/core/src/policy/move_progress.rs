//! How far a park or a resume is: what movers reported, and what readings show.
//!
//! A report moves nothing by itself. A lease is parked when readings of its GPUs agree with the reports.

use crate::model::ids::{GpuId, ProcKey};
use crate::model::method::Method;
use crate::model::movers::{RESIDUE, UNVERIFIED_MAX};
use crate::model::mutant::Mutant;
use crate::model::reading::Reading;
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::Bytes;
use crate::policy::lease_processes::residents;
use crate::state::State;
use crate::state::lease_readings::LeaseReadings;

/// Whether none of the programs that the driver shall take calls it any more. A program that has ended does not.
pub fn all_keep_still(state: &State, lease: &Lease) -> bool {
    let (Some(park), Some(readings)) = (lease.park_state(), state.readings(lease.id)) else { return false };
    let is_still = |process: &ProcKey| match readings.shims.get(process) {
        Some(mover) => mover.keeps_still == Some(true) || state.planted(Mutant::TakeLoud),
        None => is_gone(state, readings, process),
    };
    park.processes.iter().all(is_still)
}

/// Whether a process that was the lease's has ended, as far as the host says. Another lease may have it by now.
fn is_gone(state: &State, readings: &LeaseReadings, process: &ProcKey) -> bool {
    let has_owner = state.owner(process).is_some() && !state.planted(Mutant::OthersAreGone);
    readings.members_known && !has_owner && !readings.members.contains(process)
}

/// Whether the driver has a process that it moves of a lease, or may have: after a start it was not heard of yet, or
/// the driver says that it does not know.
pub fn driver_may_have(state: &State, lease: &Lease) -> bool {
    let (Some(park), Some(readings)) = (lease.park_state(), state.readings(lease.id)) else { return false };
    let gone = |process: &ProcKey| is_gone(state, readings, process);
    let doubts = !state.planted(Mutant::DoubtNothing);
    let has = |process: &ProcKey| match readings.driver.get(process) {
        Some(mover) => mover.parked_bytes.is_some() || mover.is_unknown && doubts,
        None => !state.planted(Mutant::BelieveFirst),
    };
    let library_first = park.with_driver && state.planted(Mutant::LibraryFirst);
    park.needs_driver() && !library_first && park.processes.iter().any(|process| !gone(process) && has(process))
}

/// Whether a lease's programs must stay off its GPUs because the driver takes it off them, or has it. Programs that the
/// driver moves itself are excepted: the library must not be in their calls. A program that began since would take room
/// that other leases were given, or that the rest of its own lease needs to come back.
pub fn must_stay_off_gpus(state: &State, lease: &Lease) -> bool {
    let off = match &lease.phase {
        Phase::Parking(..) | Phase::Parked(..) => true,
        Phase::Resuming(..) => driver_may_have(state, lease),
        _ => false,
    };
    off && lease.park_state().is_some_and(|park| park.method == Method::Driver) && !state.planted(Mutant::PassNewcomers)
}

/// Whether all movers of a lease report its bytes to be off its GPUs.
pub(crate) fn all_parked(state: &State, lease: &Lease, hold: &Hold, method: Method) -> bool {
    let Some(readings) = state.readings(lease.id) else { return false };
    // A lease whose processes have all ended, so that none reports, has nothing on its GPUs.
    let movers = readings.movers(method);
    let heard = method == Method::Shim || !movers.is_empty();
    heard
        && movers.values().all(|mover| mover.parked_bytes.is_some())
        && all_have_movers(state, lease, hold, readings, method)
}

/// Whether all movers of a lease report its bytes to be on its GPUs. False if none reported yet, as after a start.
pub(crate) fn all_resumed(state: &State, lease: &Lease, hold: &Hold, method: Method) -> bool {
    let Some(readings) = state.readings(lease.id) else { return false };
    let heard = !readings.movers(method).is_empty() || lease.roots.is_empty();
    heard && none_parked(readings, method) && all_have_movers(state, lease, hold, readings, method)
}

/// Whether no mover of a lease reports its bytes to be off its GPUs.
pub(crate) fn none_parked(readings: &LeaseReadings, method: Method) -> bool {
    readings.movers(method).values().all(|mover| mover.parked_bytes.is_none())
}

/// Whether every program of a lease that is on its GPUs has a mover. A hook counts for all.
fn all_have_movers(state: &State, lease: &Lease, hold: &Hold, readings: &LeaseReadings, method: Method) -> bool {
    let movers = readings.movers(method);
    let known = |gpu: &GpuId| residents(state, lease.id, *gpu).all(|process| movers.contains_key(&process));
    method == Method::Hook || hold.gpus.iter().all(known)
}

/// Whether the reading of a GPU shows that a lease's bytes are gone: no more than contexts are left, and at least half
/// of what its movers reported is gone. By a hook, an eighth may stay. Where the driver tells only the bytes of the
/// whole GPU, the GPU must have lost nearly all that was reported, and no other process may have left.
pub(crate) fn is_seen_gone(state: &State, lease: &Lease, hold: &Hold, gpu: GpuId) -> bool {
    let room = state.room(gpu);
    let Some(park) = lease.park_state() else { return false };
    match &room.reading().reading {
        Reading::Used(used) if used.coarse => return gpus_lost_bytes(state, lease, hold),
        Reading::Used(_) => {}
        Reading::Unreadable(_) => return false,
    }
    let context = state.room(gpu).context();
    let programs = residents(state, lease.id, gpu).count() as u64;
    let after: Bytes = hold.gpus.iter().map(|gpu| state.room(*gpu).seen_of(lease.id)).sum();
    let few = Bytes((context + RESIDUE).0.saturating_mul(programs));
    if park.method == Method::Hook {
        return room.seen_of(lease.id) <= few || after.0 <= park.had_bytes.0 / 8;
    }
    if room.seen_of(lease.id) > few {
        return false;
    }
    let Some(readings) = state.readings(lease.id) else { return false };
    let said: Bytes = readings.movers(park.method).values().filter_map(|mover| mover.parked_bytes).sum();
    // What was booked is what was seen when the park began, and a little more.
    said <= UNVERIFIED_MAX || after <= hold.booked_host_memory().less(Bytes(said.0 / 2))
}

/// Whether a lease's GPUs have lost what its movers reported, all but an eighth, and no other process left them since
/// the park began. False after a start, which forgets what was there before.
fn gpus_lost_bytes(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let Some(readings) = state.readings(lease.id) else { return false };
    let said: Bytes = readings.shims.values().filter_map(|mover| mover.parked_bytes).sum();
    let mut lost = Bytes::ZERO;
    for gpu in &hold.gpus {
        let room = state.room(*gpu);
        let (Some(before), Reading::Used(used)) = (readings.gpus_before.get(gpu), &room.reading().reading) else {
            return false;
        };
        let there = |process: &ProcKey| used.processes.iter().any(|resident| resident.process == *process);
        let stayed = before.leases.iter().all(|other| room.leases().contains_key(other));
        if room.is_coarse() && !(stayed && before.processes.iter().all(there)) {
            return false;
        }
        lost = lost + before.used.less(room.total().less(used.free));
    }
    said <= UNVERIFIED_MAX || lost.0 >= said.0 / 8 * 7
}
