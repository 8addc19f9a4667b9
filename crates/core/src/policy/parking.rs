//! Whether a lease can be parked now by a method, and how much host memory that takes.
//!
//! A lease is parked whole or not at all, and only while each of its programs that the driver shows on a GPU has a mover
//! ([`crate::model::movers`]). Host memory is booked before anything moves.

use crate::model::ids::{GpuId, LeaseId, ProcKey, TenantId};
use crate::model::method::Method;
use crate::model::movers::{Backoff, GpuSnapshot, NotParkable, UNVERIFIED_MAX};
use crate::model::reading::Reading;
use crate::model::units::{Bytes, Time};
use crate::mutant::Mutant;
use crate::policy::lease_processes::residents;
use crate::policy::restore_room::{check_only_own_gpus, check_restore_room};
use crate::rows::{Hold, Lease, Phase};
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
    // Who is on the way there has booked what it has not all taken yet.
    let coming = state.moving().filter_map(|lease| state.lease(lease));
    let coming = coming.filter(|row| matches!(row.phase, Phase::Parking(..)));
    let coming: Bytes = coming.filter_map(Lease::hold).map(Hold::booked_host_memory).sum();
    let available = state.host_memory()?.less(parking.keep_available + coming);
    Some(parking.space.less(state.booked_host_memory()).min(available))
}

/// Host memory that a tenant's parked bytes take.
pub(crate) fn booked_by_tenant(state: &State, tenant: TenantId) -> Bytes {
    let own = state.rows().leases.values().filter(|row| row.tenant == tenant);
    own.filter_map(Lease::hold).map(Hold::booked_host_memory).sum()
}

/// Whether a holder has its cards for longer than its lease says: it is on its way off them, or could not leave.
pub(crate) fn is_past_term(state: &State, hold: &Hold, now: Time) -> bool {
    state.rows().meta.due(hold.renewed, hold.until) <= now
}

/// How much host memory leaving in this way takes, if the holder can leave so now.
pub fn parkable(state: &State, lease: &Lease, rung: Method, now: Time) -> Result<Bytes, NotParkable> {
    let need = parkable_with_unlimited_space(state, lease, rung, now)?;
    if need > Bytes::ZERO {
        can_book(state, lease.tenant, need)?;
    }
    Ok(need)
}

/// The same if parking space were unlimited.
pub(crate) fn parkable_with_unlimited_space(
    state: &State,
    lease: &Lease,
    rung: Method,
    now: Time,
) -> Result<Bytes, NotParkable> {
    let Phase::Active(hold) = &lease.phase else { return Err(NotParkable::NotActive) };
    // A hook takes no memory of ours.
    if state.policy().parking.space == Bytes::ZERO && rung != Method::Hook {
        return Err(NotParkable::SwitchedOff);
    }
    check_movers(state, lease, hold, rung, now)?;
    // Whose time is over tries each way once, or it would never leave.
    let is_over = is_past_term(state, hold, now);
    let rests = |rest: &&Backoff| rest.until > now || (is_over && rest.since >= hold.renewed);
    if let Some(rest) = state.readings(lease.id).and_then(|live| live.backoffs.get(&rung)).filter(rests) {
        return Err(NotParkable::BackingOff(rest.why.clone()));
    }
    if rung == Method::Hook {
        return Ok(Bytes::ZERO);
    }
    Ok(bytes_on_gpus(state, lease.id, hold) + UNVERIFIED_MAX)
}

/// Whether so much more host memory can be booked for a tenant.
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

/// What a holder was last seen to have on its cards; where nobody can see it, as much as its lease allows.
pub(crate) fn bytes_on_gpus(state: &State, lease: LeaseId, hold: &Hold) -> Bytes {
    let on = |room: &Room| if room.is_coarse() { hold.vram } else { room.seen_of(lease) };
    hold.gpus.iter().map(|card| on(state.room(*card))).sum()
}

/// A holder's cards as they are before it leaves, if one of them does not tell whose bytes are whose.
pub(crate) fn gpus_before(state: &State, lease: LeaseId, hold: &Hold) -> BTreeMap<GpuId, GpuSnapshot> {
    if !hold.gpus.iter().any(|card| state.room(*card).is_coarse()) {
        return BTreeMap::new();
    }
    let of = |card: &GpuId| {
        let room = state.room(*card);
        let Reading::Used(used) = &room.reading().reading else { return None };
        let processes = used.processes.iter().map(|resident| resident.process);
        let processes = processes.filter(|process| state.owner(process) != Some(lease)).collect();
        let leases = room.leases().keys().copied().filter(|other| *other != lease).collect();
        Some((*card, GpuSnapshot { used: room.total().less(used.free), leases, processes }))
    };
    hold.gpus.iter().filter_map(of).collect()
}

/// Whether somebody else than this lease leaves a card or comes back to it, or has just ended there, and nobody
/// could tell whose bytes went.
fn another_lease_moves(state: &State, lease: LeaseId, card: GpuId) -> bool {
    let room = state.room(card);
    if !room.is_coarse() || state.planted(Mutant::MoveTogether) {
        return false;
    }
    let mut moving = state.moving().filter(|other| *other != lease);
    moving.any(|other| room.leases().contains_key(&other)) || state.ending_leases_on(card).any(|other| other != lease)
}

/// A card of a holder's on which it must wait for somebody else to have left or come back.
pub(crate) fn gpu_with_other_move(state: &State, lease: LeaseId, hold: &Hold) -> Option<GpuId> {
    hold.gpus.iter().copied().find(|card| another_lease_moves(state, lease, *card))
}

/// A stopped process that would have to act for its lease to leave in this way: its wrapper for a hook, its program on a
/// card for the library. The driver is asked about each process by itself.
fn stopped_mover(state: &State, lease: &Lease, hold: &Hold, live: &LeaseReadings, rung: Method) -> Option<ProcKey> {
    let is_stopped = |process: &ProcKey| live.restricted.get(process).is_some_and(|it| it.is_stopped);
    match rung {
        Method::Hook => lease.roots.first().copied().filter(is_stopped).filter(|_| !live.hooks.is_empty()),
        Method::Shim if !live.restricted.is_empty() => {
            hold.gpus.iter().flat_map(|card| residents(state, lease.id, *card)).find(is_stopped)
        }
        Method::Shim | Method::Driver | Method::End => None,
    }
}

/// Whether its programs and its cards would let it leave in this way, whatever the host memory.
pub fn check_movers(state: &State, lease: &Lease, hold: &Hold, rung: Method, now: Time) -> Result<(), NotParkable> {
    let nobody = match rung {
        Method::Hook | Method::End => NotParkable::NoHook,
        Method::Shim => NotParkable::NoShim,
        Method::Driver => NotParkable::NotInspected,
    };
    let Some(live) = state.readings(lease.id) else { return Err(nobody) };
    let voices = live.movers(rung);
    if let Some(stopped) = stopped_mover(state, lease, hold, live, rung) {
        return Err(NotParkable::Stopped(stopped));
    }
    let mut others = 0;
    for card in &hold.gpus {
        let room = state.room(*card);
        room.check_readable(now, state.policy().period).map_err(|_| NotParkable::Unreadable)?;
        let Reading::Used(used) = &room.reading().reading else { return Err(NotParkable::Unreadable) };
        if used.coarse && rung != Method::Shim {
            return Err(NotParkable::Coarse);
        }
        others += residents(state, lease.id, *card).filter(|process| !voices.contains_key(process)).count();
    }
    match voices.values().find_map(|voice| voice.refusal.as_ref()) {
        _ if voices.is_empty() => Err(nobody),
        _ if others > 0 && rung == Method::Shim => Err(NotParkable::ProcessesWithoutShim(others)),
        _ if others > 0 && rung == Method::Driver => Err(NotParkable::NotInspected),
        Some(why) => Err(NotParkable::Refused(why.clone())),
        None if rung == Method::Shim => match gpu_with_other_move(state, lease.id, hold) {
            Some(card) => Err(NotParkable::OneAtATime(card)),
            None => Ok(()),
        },
        None if rung == Method::Driver && !lease.request.may_lose_state => {
            // This looks at every process of every card, so it comes last.
            check_restore_room(state, lease, hold)?;
            check_only_own_gpus(state, lease.id, hold, now)
        }
        None => Ok(()),
    }
}
