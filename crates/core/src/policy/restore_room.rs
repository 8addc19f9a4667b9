//! Whether a restore by the driver is sure to have room: one that lacks it destroys the process.
//!
//! The room is sure if the lease has no more than its reservation, and every other program on its GPUs has Sublet's library,
//! which limits the program to its own lease (docs/decisions/0009).

use crate::model::ids::{GpuId, LeaseId};
use crate::model::movers::{NotParkable, RestoreObstacle};
use crate::model::reading::{Reading, Unreadable};
use crate::model::units::Time;
use crate::mutant::Mutant;
use crate::policy::lease_processes::residents;
use crate::policy::move_progress;
use crate::policy::move_progress::driver_may_have;
use crate::rows::{Hold, Lease, Phase};
use crate::state::State;
use crate::state::room::ReadingFault;

/// Whether nobody could take the room that a restore needs: it has no more than its lease, and everybody
/// else on its cards is a holder whose every program has Sublet's library in it, which keeps it to its own.
pub(crate) fn check_restore_room(state: &State, lease: &Lease, hold: &Hold) -> Result<(), NotParkable> {
    let has_more = |card: &GpuId| state.room(*card).seen_of(lease.id) > hold.vram;
    if hold.gpus.iter().any(has_more) && !state.planted(Mutant::RestoreUnsure) {
        return Err(NotParkable::RestoreUnsure("it has more there than its lease".to_owned()));
    }
    check_others_are_capped(state, lease, hold)?;
    // Whose restore is under way already was given its room beside all of that.
    for card in &hold.gpus {
        let mut others = state.room(*card).leases().keys().filter(|other| **other != lease.id);
        if let Some(other) = others.find(|other| exceeds_lease_when_moved(state, **other)) {
            return Err(RestoreObstacle::Uncapped(*card, *other).into());
        }
    }
    Ok(())
}

/// Whether a holder has nothing on cards that are not its own: the driver would take it off there too, and nobody
/// would keep its room.
pub(crate) fn check_only_own_gpus(state: &State, lease: LeaseId, hold: &Hold, now: Time) -> Result<(), NotParkable> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    for card in state.gpus().filter(|card| !hold.gpus.contains(card) && state.is_listed(*card)) {
        let room = state.room(card);
        match room.check_readable(now, state.policy().period) {
            Ok(()) if residents(state, lease, card).next().is_none() => {}
            Ok(()) => {
                return Err(NotParkable::RestoreUnsure(format!("it uses GPU {} too, which is not its own", card.0)));
            }
            // What was on it is gone for good.
            Err(ReadingFault::Unreadable(Unreadable::Lost)) => {}
            Err(_) => {
                let why = format!("it may be on GPU {} too, which cannot be read", card.0);
                return Err(NotParkable::RestoreUnsure(why));
            }
        }
    }
    Ok(())
}

/// Whether nobody else could take the room that a restore needs.
pub(crate) fn check_others_are_capped(state: &State, lease: &Lease, hold: &Hold) -> Result<(), RestoreObstacle> {
    hold.gpus
        .iter()
        .try_for_each(|card| check_gpu_is_capped(state, *card, Some(lease.id), state.unleased_processes_on(*card)))
}

/// Whether only other holders keep the driver from restoring a parked lease: it is safe once they have left, and they
/// can be made to leave. False where it is safe already, and where an unleased process or an unreadable GPU is in the way.
pub(crate) fn is_blocked_by_leases_only(state: &State, lease: &Lease, hold: &Hold) -> bool {
    let blocks = |card: &GpuId| uncapped_holders(state, lease.id, *card).next().is_some();
    let is_open = |card: &GpuId| {
        let readable = matches!(state.room(*card).reading().reading, Reading::Used(_));
        readable && state.unleased_processes_on(*card) == 0 && state.room(*card).seen_of(lease.id) <= hold.vram
    };
    hold.gpus.iter().any(blocks) && hold.gpus.iter().all(is_open)
}

/// Leases on a GPU that could take the room a restore of `lease` needs: no library limits their programs. Leases that
/// are parked are not among them.
pub(crate) fn uncapped_holders(state: &State, lease: LeaseId, card: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
    let others = state.room(card).leases().iter().filter(move |(id, claim)| **id != lease && !claim.is_parked);
    others.map(|(id, _)| *id).filter(move |id| !is_capped(state, *id, card) || exceeds_lease_when_moved(state, *id))
}

/// Whether the driver may bring back now what it has of a holder that comes back. Of one that was given its cards anew
/// that was asked, and is with every look; who should have stayed has its room promised, and waits where somebody
/// could take it all the same.
pub fn may_restore(state: &State, lease: &Lease) -> bool {
    let Phase::Resuming(hold, away) = &lease.phase else { return false };
    let asked = away.was_resumed || lease.request.may_lose_state || state.planted(Mutant::NeverRetreat);
    asked || check_others_are_capped(state, lease, hold).is_ok()
}

/// Who keeps the driver from bringing back what it has, or may have, of a holder that comes back.
pub fn restore_obstacle(state: &State, lease: &Lease) -> Option<RestoreObstacle> {
    let Phase::Resuming(hold, _) = &lease.phase else { return None };
    let waits = driver_may_have(state, lease) && !may_restore(state, lease);
    check_others_are_capped(state, lease, hold).err().filter(|_| waits)
}

/// Whether nobody else could take the room that a restore of one lease needs on a card, where so many processes
/// have none.
pub(crate) fn check_gpu_is_capped(
    state: &State,
    card: GpuId,
    lease: Option<LeaseId>,
    strangers: usize,
) -> Result<(), RestoreObstacle> {
    if state.planted(Mutant::RestoreUnsure) {
        return Ok(());
    }
    if matches!(state.room(card).reading().reading, Reading::Unreadable(_)) {
        return Err(RestoreObstacle::Unreadable(card));
    }
    // What draws on a screen takes room like anybody.
    if strangers > 0 {
        return Err(RestoreObstacle::Unleased(card, strangers));
    }
    let mut others = state.room(card).leases().iter().filter(|(id, _)| Some(**id) != lease);
    match others.find(|(id, _)| !is_capped(state, **id, card)) {
        Some((other, _)) => Err(RestoreObstacle::Uncapped(card, *other)),
        None => Ok(()),
    }
}

/// Whether every program of a lease that is on a card has Sublet's library in it. A lease without a program there could
/// take no more than an unleased process that begins now: were it in the way, a user could keep the driver from parking
/// any other by a lease that it does not use.
fn is_capped(state: &State, lease: LeaseId, card: GpuId) -> bool {
    let Some(live) = state.readings(lease) else { return false };
    residents(state, lease, card).all(|process| live.shims.contains_key(&process))
}

/// Whether a holder that is on its way had more than its lease is for (it was another's that had more): it may come back
/// with all of that.
fn exceeds_lease_when_moved(state: &State, lease: LeaseId) -> bool {
    match state.lease(lease).map(|row| &row.phase) {
        Some(Phase::Parking(hold, away) | Phase::Resuming(hold, away)) => {
            away.had_bytes.0 > hold.vram.0.saturating_mul(hold.gpus.len() as u64)
        }
        _ => false,
    }
}

/// Whether the driver would have to bring a parked holder back to cards on which somebody could take its room.
pub(crate) fn has_unsafe_restore(state: &State, lease: &Lease) -> bool {
    let Phase::Parked(hold, away) = &lease.phase else { return false };
    let is_safe = !away.needs_driver() || lease.first_request().may_lose_state;
    !is_safe && check_restore_room(state, lease, hold).is_err()
}

/// Whether a parked lease comes back by the driver, and first other leases must leave its GPUs, however much room there
/// is: no library limits their programs.
pub(crate) fn needs_others_gone(state: &State, lease: &Lease) -> bool {
    let Phase::Parked(hold, _) = &lease.phase else { return false };
    has_unsafe_restore(state, lease) && is_blocked_by_leases_only(state, lease, hold)
}

/// Why the driver must not bring a holder back after all, though it was told to: since then somebody came who could
/// take its room.
pub(crate) fn no_longer_sure(state: &State, lease: &Lease, hold: &Hold) -> Option<String> {
    let Phase::Resuming(_, away) = &lease.phase else { return None };
    let is_back = !move_progress::driver_may_have(state, lease);
    if !away.needs_restore() || is_back || lease.request.may_lose_state || state.planted(Mutant::NeverRetreat) {
        return None;
    }
    check_others_are_capped(state, lease, hold).err().map(|who| NotParkable::from(who).to_string())
}
