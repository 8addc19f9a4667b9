//! By which method a lease is parked, how long its moves take, and whether a failed one keeps it from being tried again.

use crate::model::cost::Direction;
use crate::model::ids::LeaseId;
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::units::{Bytes, Span, Time};
use crate::policy::parking;
use crate::policy::restore_room::{has_unsafe_restore, needs_others_gone};
use crate::rows::{Lease, Phase};
use crate::state::State;

/// Whether a program that is parked in this way reports its next use of a GPU: only the library does, and not while the
/// driver has the process.
pub(crate) fn use_is_noticed(state: &State, lease: LeaseId, rung: Method) -> bool {
    match rung {
        Method::Shim => true,
        Method::Hook => state.readings(lease).is_some_and(|live| !live.shims.is_empty()),
        Method::Driver | Method::End => false,
    }
}

/// Whether a waiter is not tried now, and claims nothing: it could not come back a moment ago, another lease moves on a
/// GPU that does not tell whose bytes are whose, or a restore by the driver is not safe there and making other leases
/// leave would not change that.
pub(crate) fn is_backing_off(state: &State, lease: &Lease, now: Time) -> bool {
    let Phase::Parked(hold, away) = &lease.phase else { return false };
    let rest = state.readings(lease.id).and_then(|live| live.backoffs.get(&away.method));
    let waits = parking::gpu_with_other_move(state, lease.id, hold).is_some();
    let is_stuck = || has_unsafe_restore(state, lease) && !needs_others_gone(state, lease);
    rest.is_some_and(|rest| rest.until > now) || waits || is_stuck()
}

/// The cheapest way in which a holder can leave its cards now, without being ended. The driver's comes last: what it
/// parked shows no sign of its next use.
pub fn cheapest_method(state: &State, lease: &Lease, now: Time) -> Result<Method, NotParkable> {
    let possible = Method::REVERSIBLE.map(|rung| (rung, parking::parkable(state, lease, rung, now)));
    let able = possible.iter().filter(|(_, can)| can.is_ok()).map(|(rung, _)| *rung);
    let best = able.min_by_key(|rung| (*rung == Method::Driver, price_of_leaving(state, lease, *rung), *rung));
    match (best, possible) {
        (Some(rung), _) => Ok(rung),
        // Where there is no library, the driver's reason says more, if it was asked.
        (None, [_, (_, Err(NotParkable::NoShim)), (_, Err(why))]) if why != NotParkable::NotInspected => Err(why),
        (None, [_, (_, Err(why)), _]) => Err(why),
        (None, _) => Err(NotParkable::NotActive),
    }
}

/// How long it takes a holder to leave in this way and to come back.
pub(crate) fn price_of_leaving(state: &State, lease: &Lease, rung: Method) -> Span {
    move_duration(state, lease, rung, Direction::OffGpu) + move_duration(state, lease, rung, Direction::OntoGpu)
}

/// How long it takes a holder to leave in this way, or to come back.
pub(crate) fn move_duration(state: &State, lease: &Lease, rung: Method, way: Direction) -> Span {
    let had = lease.hold().map_or(Bytes::ZERO, |hold| match lease.park_state() {
        Some(away) => away.had_bytes,
        None => parking::bytes_on_gpus(state, lease.id, hold),
    });
    let program = state.readings(lease.id).map_or("", |live| live.program.as_str());
    state.rows().tenants[lease.tenant.0 as usize].costs.estimate(program, rung, way, had)
}
