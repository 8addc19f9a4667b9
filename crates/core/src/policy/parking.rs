//! Whether a lease can be parked now by a method, and how much host memory that takes.
//!
//! A lease is parked whole or not at all, and only while each of its programs that the driver shows on a GPU has a mover
//! ([`crate::model::movers`]). Host memory is booked before anything moves.

use crate::model::ids::{GpuId, LeaseId, ProcKey, TenantId};
use crate::model::method::Method;
use crate::model::movers::{Backoff, GpuSnapshot, NotParkable, UNVERIFIED_MAX};
use crate::model::mutant::Mutant;
use crate::model::reading::Reading;
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::{Bytes, Time};
use crate::policy::lease_processes::residents;
use crate::policy::restore_room::{check_only_own_gpus, check_restore_room};
use crate::state::State;
use crate::state::lease_readings::LeaseReadings;
use crate::state::room::Room;
use std::collections::BTreeMap;

/// Host memory that can be booked now.
pub fn free_parking_space(state: &State) -> Option<Bytes> {
    let parking = &state.policy().parking;
    if state.planted(Mutant::ForgetLedger) {
        return Some(Bytes(u64::MAX));
    }
    // A lease that is being parked has booked memory that it does not use yet.
    let coming = state.moving().filter_map(|lease| state.lease(lease));
    let coming = coming.filter(|row| matches!(row.phase, Phase::Parking(..)));
    let coming: Bytes = coming.filter_map(Lease::hold).map(Hold::booked_host_memory).sum();
    let available = state.host_memory()?.less(parking.keep_available + coming);
    Some(parking.space.less(state.booked_host_memory()).min(available))
}

/// Host memory that is booked for a tenant's parked bytes.
pub(crate) fn booked_by_tenant(state: &State, tenant: TenantId) -> Bytes {
    let own = state.rows().leases.values().filter(|row| row.tenant == tenant);
    own.filter_map(Lease::hold).map(Hold::booked_host_memory).sum()
}

/// Whether a lease has its GPUs for longer than its term: it is being parked, or could not be.
pub(crate) fn is_past_term(state: &State, hold: &Hold, now: Time) -> bool {
    state.rows().meta.due(hold.renewed, hold.until) <= now
}

/// How much host memory a park by this method takes, if it is possible now.
pub fn parkable(state: &State, lease: &Lease, method: Method, now: Time) -> Result<Bytes, NotParkable> {
    let need = parkable_with_unlimited_space(state, lease, method, now)?;
    if need > Bytes::ZERO {
        can_book(state, lease.tenant, need)?;
    }
    Ok(need)
}

/// The same if parking space were unlimited.
pub(crate) fn parkable_with_unlimited_space(
    state: &State,
    lease: &Lease,
    method: Method,
    now: Time,
) -> Result<Bytes, NotParkable> {
    let Phase::Active(hold) = &lease.phase else { return Err(NotParkable::NotActive) };
    // A hook takes no memory of the parking space.
    if state.policy().parking.space == Bytes::ZERO && method != Method::Hook {
        return Err(NotParkable::SwitchedOff);
    }
    check_movers(state, lease, hold, method, now)?;
    // A lease whose term is over tries each method once, or it would never leave.
    let is_over = is_past_term(state, hold, now);
    let backoffs = |backoff: &&Backoff| backoff.until > now || (is_over && backoff.since >= hold.renewed);
    if let Some(backoff) = state.readings(lease.id).and_then(|readings| readings.backoffs.get(&method)).filter(backoffs)
    {
        return Err(NotParkable::BackingOff(backoff.why.clone()));
    }
    if method == Method::Hook {
        return Ok(Bytes::ZERO);
    }
    Ok(bytes_on_gpus(state, lease.id, hold) + UNVERIFIED_MAX)
}

/// Checks that this much more host memory can be booked for a tenant.
pub(crate) fn can_book(state: &State, tenant: TenantId, more: Bytes) -> Result<(), NotParkable> {
    let room = free_parking_space(state).ok_or(NotParkable::HostMemoryUnknown)?;
    if more > room {
        return Err(NotParkable::NoSpace { need: more, room });
    }
    match state.ledger().caps(tenant).parked {
        Some(cap) if booked_by_tenant(state, tenant) + more > cap => Err(NotParkable::Quota { cap }),
        _ => Ok(()),
    }
}

/// The bytes that a lease was last seen to have on its GPUs; where that cannot be seen, its whole reservation.
pub(crate) fn bytes_on_gpus(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    let on = |room: &Room| if room.is_coarse() { hold.vram } else { room.seen_of(lease) };
    hold.gpus.iter().map(|gpu| on(state.room(*gpu))).sum()
}

/// The GPUs of a lease as they are before it leaves, if one of them does not tell the bytes of each process.
pub(crate) fn gpus_before(state: &State, lease: LeaseId, hold: &Hold) -> BTreeMap<GpuId, GpuSnapshot> {
    if !hold.gpus.iter().any(|gpu| state.room(*gpu).is_coarse()) {
        return BTreeMap::new();
    }
    let of = |gpu: &GpuId| {
        let room = state.room(*gpu);
        let Reading::Used(used) = &room.reading().reading else { return None };
        let processes = used.processes.iter().map(|resident| resident.process);
        let processes = processes.filter(|process| state.owner(process) != Some(lease)).collect();
        let leases = room.leases().keys().copied().filter(|other| *other != lease).collect();
        Some((*gpu, GpuSnapshot { used: room.total().less(used.free), leases, processes }))
    };
    hold.gpus.iter().filter_map(of).collect()
}

/// Whether another lease leaves this GPU or comes back to it, or has just ended there, so that it could not be told
/// whose bytes went.
fn another_lease_moves(state: &State, lease: LeaseId, gpu: GpuId) -> bool {
    let room = state.room(gpu);
    if !room.is_coarse() || state.planted(Mutant::MoveTogether) {
        return false;
    }
    let mut moving = state.moving().filter(|other| *other != lease);
    moving.any(|other| room.leases().contains_key(&other)) || state.ending_leases_on(gpu).any(|other| other != lease)
}

/// A GPU of a lease on which it must wait until another lease has moved.
pub(crate) fn gpu_with_other_move(state: &State, lease: LeaseId, hold: &Hold) -> Option<GpuId> {
    hold.gpus.iter().copied().find(|gpu| another_lease_moves(state, lease, *gpu))
}

/// A stopped process that would have to act for its lease to be parked by this method: its wrapper for a hook, its
/// program on a GPU for the library. The driver is asked about each process separately.
fn stopped_mover(
    state: &State,
    lease: &Lease,
    hold: &Hold,
    readings: &LeaseReadings,
    method: Method,
) -> Option<ProcKey> {
    let is_stopped = |process: &ProcKey| readings.restricted.get(process).is_some_and(|it| it.is_stopped);
    match method {
        Method::Hook => lease.roots.first().copied().filter(is_stopped).filter(|_| !readings.hooks.is_empty()),
        Method::Shim if !readings.restricted.is_empty() => {
            hold.gpus.iter().flat_map(|gpu| residents(state, lease.id, *gpu)).find(is_stopped)
        }
        Method::Shim | Method::Driver | Method::End => None,
    }
}

/// Checks that its programs and its GPUs allow a park by this method, whatever the host memory.
pub fn check_movers(state: &State, lease: &Lease, hold: &Hold, method: Method, now: Time) -> Result<(), NotParkable> {
    let no_mover = match method {
        Method::Hook | Method::End => NotParkable::NoHook,
        Method::Shim => NotParkable::NoShim,
        Method::Driver => NotParkable::NotInspected,
    };
    let Some(readings) = state.readings(lease.id) else { return Err(no_mover) };
    let movers = readings.movers(method);
    if let Some(stopped) = stopped_mover(state, lease, hold, readings, method) {
        return Err(NotParkable::Stopped(stopped));
    }
    let mut others = 0;
    for gpu in &hold.gpus {
        let room = state.room(*gpu);
        room.check_readable(now, state.policy().period).map_err(|_| NotParkable::Unreadable)?;
        let Reading::Used(used) = &room.reading().reading else { return Err(NotParkable::Unreadable) };
        if used.coarse && method != Method::Shim {
            return Err(NotParkable::Coarse);
        }
        others += residents(state, lease.id, *gpu).filter(|process| !movers.contains_key(process)).count();
    }
    match movers.values().find_map(|mover| mover.refusal.as_ref()) {
        _ if movers.is_empty() => Err(no_mover),
        _ if others > 0 && method == Method::Shim => Err(NotParkable::ProcessesWithoutShim(others)),
        _ if others > 0 && method == Method::Driver => Err(NotParkable::NotInspected),
        Some(why) => Err(NotParkable::Refused(why.clone())),
        None if method == Method::Shim => match gpu_with_other_move(state, lease.id, hold) {
            Some(gpu) => Err(NotParkable::OneAtATime(gpu)),
            None => Ok(()),
        },
        None if method == Method::Driver && !lease.request.may_lose_state => {
            // This examines every process of every GPU, so it comes last.
            check_restore_room(state, lease, hold)?;
            check_only_own_gpus(state, lease.id, hold, now)
        }
        None => Ok(()),
    }
}
