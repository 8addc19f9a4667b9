//! Why a lease waits: which waiters are ahead, what it lacks, and by when it starts at the latest.
//!
//! Costs are bounded: places are counted to [`PLACE_MAX`]. Absent: when it should start ([`super::estimates`],
//! [`super::expected_starts`]).

use crate::model::event::Refusal;
use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::method::Method;
use crate::model::mutant::Mutant;
use crate::model::quota::QuotaBlock;
use crate::model::request::{LeaseRequest, Preempt, Term, Vram};
use crate::model::rows::{GpuService, Lease, ParkState, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::policy::eligibility::{is_eligible, needed_bytes};
use crate::policy::placement::{could_host, fits_on};
use crate::policy::restore_room::has_unsafe_restore;
use crate::policy::waiters::{LOOK_AHEAD, PLACE_MAX};
use crate::policy::{parking, quota, stretch};
use crate::state::State;
use crate::state::room::ReadingFault;
use std::collections::BTreeMap;

/// What keeps a waiter off a GPU now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It asked for other GPUs, or for more than this one has.
    NotEligible,
    /// An operator lets it run empty.
    Draining,
    /// It steps aside for this tenant, until then.
    Aside {
        /// The tenant.
        by: String,
        /// When it is over at the latest.
        until: Time,
    },
    /// Out of service.
    Out(String),
    /// It cannot be leased as it is set up.
    Unusable(String),
    /// The driver does not list it now.
    Missing,
    /// It cannot be read.
    Closed(ReadingFault),
    /// A lease there is exclusive, or the waiter is.
    Exclusive,
    /// Other leases are there, and it asked for a whole GPU.
    NotEmpty,
    /// Too little room.
    TooFull {
        /// Needed.
        need: Bytes,
        /// There.
        room: Bytes,
    },
    /// It would fit: others are first.
    Claimed,
}

/// Waiters served before this one, first first.
pub fn ahead(state: &State, lease: LeaseId) -> Vec<&Lease> {
    let before = state.queue().iter().take_while(|(id, _)| *id != lease).take(LOOK_AHEAD);
    before.filter_map(|(id, _)| state.lease(id)).collect()
}

/// What keeps this waiter off this GPU.
pub fn obstacle(state: &State, lease: &Lease, gpu: GpuId, now: Time) -> WaitReason {
    let row = &state.rows().gpus[gpu];
    match &row.service {
        GpuService::Draining => return WaitReason::Draining,
        GpuService::Out { why } => return WaitReason::Out(why.clone()),
        GpuService::In => {}
    }
    if let Some((aside, until)) = state.longest_aside(gpu) {
        return WaitReason::Aside { by: aside.by.clone(), until };
    }
    if let Some(why) = &row.facts.unusable {
        return WaitReason::Unusable(why.clone());
    }
    if !state.is_listed(gpu) {
        return WaitReason::Missing;
    }
    if !is_eligible(state, &lease.request, gpu) {
        return WaitReason::NotEligible;
    }
    if let Err(closed) = state.room(gpu).check_readable(now, state.policy().period) {
        return WaitReason::Closed(closed);
    }
    if state.excludes(gpu, lease.tenant, lease.request.exclusivity) {
        return WaitReason::Exclusive;
    }
    if fits_on(state, lease, gpu, now).is_some() {
        return WaitReason::Claimed;
    }
    if lease.request.vram == Vram::Whole && !state.room(gpu).is_empty() {
        return WaitReason::NotEmpty;
    }
    WaitReason::TooFull { need: needed_bytes(state, &lease.request, gpu), room: state.promisable(gpu, now) }
}

/// When a waiter is served at the latest, whatever the others do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Then, unless a more urgent waiter comes before `settled`.
    By {
        /// At the latest.
        at: Time,
        /// From when on no waiter that comes passes it any more.
        settled: Time,
    },
    /// This cannot be known, and why.
    None(NoBound),
}

/// Why it cannot be known when a waiter is served at the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoBound {
    /// A quota holds it.
    Quota(QuotaBlock),
    /// Too few suitable GPUs can be read and are in service, or unleased processes are on them, or might be.
    Cards,
    /// This lease holds its GPUs longer than others must wait: by a fixed term, or because it is never preempted.
    Holder(LeaseId),
    /// The same of a waiter ahead.
    Ahead(LeaseId),
    /// Others of the same tenant are ahead of it; there is one when it is the first of them.
    OwnAhead,
    /// Too many are ahead to count.
    Far,
    /// It has a daily budget of GPU time, which may be used up before.
    Budget,
    /// The disk is full.
    Disk,
    /// Lines are missing from the journal, and no operator has accepted that.
    Loss,
}

/// When a waiter is served at the latest: one waiter of every other tenant is served before it, and
/// each holds its GPUs as long as may be, one after the other.
pub fn bound(state: &State, lease: &Lease, now: Time) -> Bound {
    let cap = state.policy().hold_max;
    let long = |waiter: &Lease| match waiter.request.term {
        Term::Fixed(term) => term > cap,
        Term::Renewed(term) => term > cap || waiter.request.preempt == Preempt::Never,
    };
    match state.stopped() {
        Some(Refusal::LossNotAccepted(_)) => return Bound::None(NoBound::Loss),
        Some(_) => return Bound::None(NoBound::Disk),
        None => {}
    }
    if let Some(held) = quota::block(state, lease) {
        return Bound::None(NoBound::Quota(held));
    }
    // A process that could take its room may stay for as long as it likes.
    if has_unsafe_restore(state, lease) {
        return Bound::None(NoBound::Cards);
    }
    let able = |gpu: &GpuId| {
        let room = state.room(*gpu);
        // The size of a whole GPU differs: for some the tenant has no quota left.
        let whole = || LeaseRequest { vram: Vram::Bytes(room.largest_ever()), ..lease.request.clone() };
        let allowed =
            || lease.request.vram != Vram::Whole || quota::block_of_request(state, lease.tenant, &whole()).is_none();
        let readable = room.check_readable(now, state.policy().period).is_ok() && !room.hides_unowned_bytes();
        could_host(state, lease, *gpu) && readable && allowed()
    };
    let able: Vec<GpuId> = state.gpus().filter(able).collect();
    if able.len() < usize::from(lease.request.gpus) {
        return Bound::None(NoBound::Cards);
    }
    let ends = able.iter().flat_map(|gpu| state.room(*gpu).ends());
    // A lease that is being parked may stay after all.
    let stays_to = |holder: &LeaseId| match state.lease(*holder).map(|row| (row, &row.phase)) {
        Some((row, Phase::Parking(hold, _))) => state.leaves_by_itself_at(row, hold),
        _ => Time::ZERO,
    };
    let long_held = |(at, holder, _): &&(Time, LeaseId, Bytes)| (*at).max(stays_to(holder)).since(now) > cap;
    if let Some((_, holder, _)) = ends.into_iter().find(long_held) {
        return Bound::None(NoBound::Holder(*holder));
    }
    let place = state.place_of(lease);
    // A resuming lease that finds no room comes back to the queue, as of when it first asked.
    let returning: Vec<&Lease> = state.moving().filter_map(|id| state.lease(id)).filter(|row| returns(row)).collect();
    let own_returns = returning.iter().any(|row| row.tenant == lease.tenant && row.id != lease.id);
    if state.queue().before(lease.tenant, place) > 0 || own_returns {
        return Bound::None(NoBound::OwnAhead);
    }
    if quota::has_budget(state, lease.tenant) {
        return Bound::None(NoBound::Budget);
    }
    let others: Vec<(LeaseId, TenantId)> =
        state.queue().all_waiters().filter(|(_, tenant)| *tenant != lease.tenant).take(PLACE_MAX + 1).collect();
    if others.len() > PLACE_MAX {
        return Bound::None(NoBound::Far);
    }
    if let Some((other, _)) = others.iter().find(|(id, _)| state.lease(*id).is_some_and(long)) {
        return Bound::None(NoBound::Ahead(*other));
    }
    // Of each other tenant its first waiter can be served before it, and one more where that one cannot
    // start yet: the tenant's next one counts from when the tenant was served, too late to pass.
    let mut of_tenant: BTreeMap<TenantId, usize> = BTreeMap::new();
    others.iter().for_each(|(_, tenant)| *of_tenant.entry(*tenant).or_default() += 1);
    let ahead: usize = of_tenant.values().map(|count| (*count).min(2)).sum::<usize>() + returning.len();
    let policy = state.policy();
    let head = policy.head_start.largest() - (place.arrival.0 as i64 - place.rank);
    let since = place.arrival.max(state.rows().tenants[lease.tenant].first_since);
    let settled = since + policy.debt_max + Span(head.max(0) as u64);
    // A lease that ended counts until its GPUs were read again.
    // A park may fail, once by every method.
    let ways = 2 * Method::REVERSIBLE.len() as u64;
    let turn = cap.max(parking_takes(state, 1)) + parking_takes(state, ways) + Span(3 * policy.next_reading().0);
    let backoffs =
        state.readings(lease.id).and_then(|readings| readings.backoffs.values().map(|backoff| backoff.until).max());
    let backoffs = backoffs.unwrap_or(now);
    let from = now.max(settled).max(state.rows().meta.grace_until).max(backoffs);
    if state.planted(Mutant::HastyBound) {
        return Bound::By { at: now, settled };
    }
    // Time slices are stretched within the hold cap. But each job of its own tenant that is parked may take its
    // place, and then all begins anew.
    let round = Span(turn.0.saturating_mul(ahead as u64 + 1));
    let again = policy.debt_max + Span(head.max(0) as u64) + round;
    let own = stretch::may_take_place(state, lease) as u64;
    Bound::By { at: from + round + Span(again.0.saturating_mul(own)), settled }
}

/// Whether a lease asks for its GPUs again once it was parked.
fn returns(lease: &Lease) -> bool {
    lease.park_state().is_some_and(|park| park.requests_again_at.is_some())
}

/// The longest time for `times` parks or resumes of any lease, while its programs answer.
fn parking_takes(state: &State, times: u64) -> Span {
    let parking = &state.policy().parking;
    // A lease that was ended for others has its bytes until its processes are gone.
    let ends = |lease: &LeaseId| match state.lease(*lease).map(|row| &row.phase) {
        Some(Phase::Ending(_, finish)) => finish.reason.ends_processes(),
        _ => false,
    };
    let ends = state.gpus().any(|gpu| state.ending_leases_on(gpu).any(|lease| ends(&lease)));
    let moves = state.movable().next().is_some() || state.moving().next().is_some();
    if parking.space == Bytes::ZERO && !moves && !ends {
        return Span::ZERO;
    }
    let two_signals = Span(2 * parking.grace.0);
    // A hook and the driver may take longer, and a lease that is ended has its notice and two signals.
    let longest = state.movable().map(|row| {
        let readings = state.readings(row.id);
        let spoken_for = |method: Method| readings.is_some_and(|readings| !readings.movers(method).is_empty());
        let had = row.hold().map_or(Bytes::ZERO, |hold| parking::bytes_on_gpus(state, row.id, hold));
        let by =
            |method: Method| parking.timeout_of(&ParkState { method, had_bytes: had, ..ParkState::new(Time::ZERO) });
        let moves = [Method::Hook, Method::Driver].into_iter().filter(|method| spoken_for(*method)).map(by).max();
        let notice = row.request.notice.map_or(Span::ZERO, |notice| notice.before);
        let may_end = row.request.may_be_ended() || row.hold().is_some_and(|hold| hold.overuse().is_some());
        let ends = may_end.then(|| notice + two_signals);
        moves.max(ends).unwrap_or_default()
    });
    let under_way =
        state.moving().filter_map(|lease| state.lease(lease)?.park_state()).map(|park| parking.timeout_of(park));
    let under_way = under_way.chain(ends.then_some(two_signals));
    let limit = longest.chain(under_way).max().unwrap_or_default().max(parking.move_timeout);
    Span((limit.0 + 2 * state.policy().next_reading().0).saturating_mul(times))
}

/// Where each of the first waiters stands: 1 is next.
pub fn places(state: &State) -> BTreeMap<LeaseId, usize> {
    state.queue().all_waiters().take(PLACE_MAX).zip(1..).map(|((id, _), place)| (id, place)).collect()
}
