//! How far a park or a resume is: what movers reported, and what readings show.
//!
//! A report moves nothing by itself. A lease is parked when readings of its GPUs agree with the reports.

use crate::model::ids::{GpuId, ProcKey};
use crate::model::method::Method;
use crate::model::movers::{RESIDUE, UNVERIFIED_MAX};
use crate::model::reading::Reading;
use crate::model::units::Bytes;
use crate::mutant::Mutant;
use crate::policy::lease_processes::residents;
use crate::rows::{Hold, Lease, Phase};
use crate::state::State;
use crate::state::lease_readings::LeaseReadings;

/// Whether none of the programs that the driver shall have calls it any more. One that is gone does not.
pub fn all_keep_still(state: &State, lease: &Lease) -> bool {
    let (Some(away), Some(live)) = (lease.park_state(), state.readings(lease.id)) else { return false };
    let is_still = |process: &ProcKey| match live.shims.get(process) {
        Some(voice) => voice.keeps_still == Some(true) || state.planted(Mutant::TakeLoud),
        None => is_gone(state, live, process),
    };
    away.processes.iter().all(is_still)
}

/// Whether a process that was a holder's has ended, as far as the host says. Another lease may have it by now.
fn is_gone(state: &State, live: &LeaseReadings, process: &ProcKey) -> bool {
    let is_anybodys = state.owner(process).is_some() && !state.planted(Mutant::OthersAreGone);
    live.members_known && !is_anybodys && !live.members.contains(process)
}

/// Whether the driver has a process that it moves of a holder, or it is not known that it has not: of whom nothing was
/// heard, as after a start, and of whom it says that it does not know.
pub fn driver_may_have(state: &State, lease: &Lease) -> bool {
    let (Some(away), Some(live)) = (lease.park_state(), state.readings(lease.id)) else { return false };
    let gone = |process: &ProcKey| is_gone(state, live, process);
    let doubts = !state.planted(Mutant::DoubtNothing);
    let has = |process: &ProcKey| match live.driver.get(process) {
        Some(voice) => voice.parked_bytes.is_some() || voice.is_unknown && doubts,
        None => !state.planted(Mutant::BelieveFirst),
    };
    let library_first = away.with_driver && state.planted(Mutant::LibraryFirst);
    away.needs_driver() && !library_first && away.processes.iter().any(|process| !gone(process) && has(process))
}

/// Whether a holder's programs shall be kept off its cards because the driver takes it off them, or has it: all but
/// those that it moves itself, in whose calls the library must not be. Who began since then would take the room that
/// others were given, or that the rest of its holder comes back to.
pub fn must_stay_off_gpus(state: &State, lease: &Lease) -> bool {
    let off = match &lease.phase {
        Phase::Parking(..) | Phase::Parked(..) => true,
        Phase::Resuming(..) => driver_may_have(state, lease),
        _ => false,
    };
    off && lease.park_state().is_some_and(|away| away.method == Method::Driver) && !state.planted(Mutant::PassNewcomers)
}

/// Whether all who speak for a holder say that its bytes are off its cards.
pub(crate) fn all_parked(state: &State, lease: &Lease, hold: &Hold, rung: Method) -> bool {
    let Some(live) = state.readings(lease.id) else { return false };
    // Whose processes all went away, with nobody left to speak, has nothing on its cards.
    let voices = live.movers(rung);
    let heard = rung == Method::Shim || !voices.is_empty();
    heard
        && voices.values().all(|voice| voice.parked_bytes.is_some())
        && all_have_movers(state, lease, hold, live, rung)
}

/// Whether all of them say that they are on its cards. Of whom nothing was heard, as after a start,
/// nothing is known.
pub(crate) fn all_resumed(state: &State, lease: &Lease, hold: &Hold, rung: Method) -> bool {
    let Some(live) = state.readings(lease.id) else { return false };
    let heard = !live.movers(rung).is_empty() || lease.roots.is_empty();
    heard && none_parked(live, rung) && all_have_movers(state, lease, hold, live, rung)
}

/// Whether nobody who speaks for a holder says that its bytes are off its cards.
pub(crate) fn none_parked(live: &LeaseReadings, rung: Method) -> bool {
    live.movers(rung).values().all(|voice| voice.parked_bytes.is_none())
}

/// Whether somebody speaks for every program of a holder that is on its cards. A hook speaks for all.
fn all_have_movers(state: &State, lease: &Lease, hold: &Hold, live: &LeaseReadings, rung: Method) -> bool {
    let voices = live.movers(rung);
    let known = |card: &GpuId| residents(state, lease.id, *card).all(|process| voices.contains_key(&process));
    rung == Method::Hook || hold.gpus.iter().all(known)
}

/// Whether a look at a card shows that a holder's bytes are gone: no more than contexts are left, and
/// at least half of what its programs say they took off its cards. Who yields may keep an eighth. Where the
/// driver tells only what the whole card has, the card must have lost nearly all that they say, and nobody else.
pub(crate) fn is_seen_gone(state: &State, lease: &Lease, hold: &Hold, card: GpuId) -> bool {
    let room = state.room(card);
    let Some(away) = lease.park_state() else { return false };
    match &room.reading().reading {
        Reading::Used(used) if used.coarse => return gpus_lost_bytes(state, lease, hold),
        Reading::Used(_) => {}
        Reading::Unreadable(_) => return false,
    }
    let context = state.room(card).context();
    let programs = residents(state, lease.id, card).count() as u64;
    let after: Bytes = hold.gpus.iter().map(|card| state.room(*card).seen_of(lease.id)).sum();
    let few = Bytes((context + RESIDUE).0.saturating_mul(programs));
    if away.method == Method::Hook {
        return room.seen_of(lease.id) <= few || after.0 <= away.had_bytes.0 / 8;
    }
    if room.seen_of(lease.id) > few {
        return false;
    }
    let Some(live) = state.readings(lease.id) else { return false };
    let said: Bytes = live.movers(away.method).values().filter_map(|voice| voice.parked_bytes).sum();
    // What was booked is what was seen when it began, and a little.
    said <= UNVERIFIED_MAX || after <= hold.booked_host_memory().less(Bytes(said.0 / 2))
}

/// Whether a holder's cards have lost what its programs say they took off them, all but an eighth, and nobody
/// else was there who went since it began to leave. Of what was before a start nothing is known.
fn gpus_lost_bytes(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let Some(live) = state.readings(lease.id) else { return false };
    let said: Bytes = live.shims.values().filter_map(|voice| voice.parked_bytes).sum();
    let mut lost = Bytes::ZERO;
    for card in &hold.gpus {
        let room = state.room(*card);
        let (Some(before), Reading::Used(used)) = (live.gpus_before.get(card), &room.reading().reading) else {
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
