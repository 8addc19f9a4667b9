//! By which method a lease is parked, how long its moves take, and whether a failed one keeps it from being tried again.

use crate::model::cost::Direction;
use crate::model::ids::LeaseId;
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::policy::parking;
use crate::policy::restore_room::{has_unsafe_restore, needs_others_gone};
use crate::state::State;

/// Whether a program that is parked by this method reports its next use of a GPU: only the library does, and not while
/// the
/// driver has the process.
pub(crate) fn use_is_noticed(state: &State, lease: LeaseId, method: Method) -> bool {
    match method {
        Method::Shim => true,
        Method::Hook => state.readings(lease).is_some_and(|readings| !readings.shims.is_empty()),
        Method::Driver | Method::End => false,
    }
}

/// Whether a waiter is not tried now, and claims nothing: its resume failed a moment ago, another lease moves on a GPU
/// that does not tell the bytes of each process, or a restore by the driver is not safe there and preempting other
/// leases would not change that.
pub(crate) fn is_backing_off(state: &State, lease: &Lease, now: Time) -> bool {
    let Phase::Parked(hold, park) = &lease.phase else { return false };
    let backoff = state.readings(lease.id).and_then(|readings| readings.backoffs.get(&park.method));
    let waits = parking::gpu_with_other_move(state, lease.id, hold).is_some();
    let is_stuck = || has_unsafe_restore(state, lease) && !needs_others_gone(state, lease);
    backoff.is_some_and(|backoff| backoff.until > now) || waits || is_stuck()
}

/// The cheapest method by which a lease can be parked now. The driver's comes last: what it
/// parked shows no sign of its next use.
pub fn cheapest_method(state: &State, lease: &Lease, now: Time) -> Result<Method, NotParkable> {
    let possible = Method::REVERSIBLE.map(|method| (method, parking::parkable(state, lease, method, now)));
    let able = possible.iter().filter(|(_, can)| can.is_ok()).map(|(method, _)| *method);
    let best = able.min_by_key(|method| (*method == Method::Driver, price_of_leaving(state, lease, *method), *method));
    match (best, possible) {
        (Some(method), _) => Ok(method),
        // Without the library, the driver's reason says more, if it was asked.
        (None, [_, (_, Err(NotParkable::NoShim)), (_, Err(why))]) if why != NotParkable::NotInspected => Err(why),
        (None, [_, (_, Err(why)), _]) => Err(why),
        (None, _) => Err(NotParkable::NotActive),
    }
}

/// How long a park and a resume of a lease by this method take.
pub(crate) fn price_of_leaving(state: &State, lease: &Lease, method: Method) -> Span {
    move_duration(state, lease, method, Direction::OffGpu) + move_duration(state, lease, method, Direction::OntoGpu)
}

/// How long a park or a resume of a lease by this method takes.
pub(crate) fn move_duration(state: &State, lease: &Lease, method: Method, way: Direction) -> Span {
    let had = lease.hold().map_or(Bytes::ZERO, |hold| match lease.park_state() {
        Some(park) => park.had_bytes,
        None => parking::bytes_on_gpus(state, lease.id, hold),
    });
    let program = state.readings(lease.id).map_or("", |readings| readings.program.as_str());
    state.rows().tenants[lease.tenant].costs.estimate(program, method, way, had)
}
