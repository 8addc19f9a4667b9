//! Whether, how and at what price one lease can be made to leave its GPUs for a waiter.
//!
//! A holder leaves for a waiter that is more urgent, when it is idle, or when its time slice is over and an equal waits.
//! Each has a price: the time it takes to leave, what it loses meanwhile, and the time to come back, from what was measured
//! of it ([`crate::model::cost`]). Absent: which set of leases makes the room for a waiter ([`super::room_plan`]).

use crate::model::cost::Direction;
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::mutant::Mutant;
use crate::model::request::{Preempt, Tier};
use crate::model::rows::{Hold, Lease, Phase};
use crate::model::units::{Span, Time};
use crate::policy::moves::move_duration;
use crate::policy::{lease_processes, overuse, parking, stretch};
use crate::state::State;
use std::cmp::Reverse;
use std::fmt;

/// A busy program may pause for this long, however cheap its move would be: a batch is read, a file written.
const BREATH: Span = Span::millis(500);

/// No lease is ended this soon after its grant.
const SETTLE: Span = Span::secs(2);

/// How a lease could be made to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionOption {
    /// The lowest rank is preempted first, whatever the price: idle and spot, then less urgent, then equals.
    pub rank: u8,
    /// The preemption method.
    pub method: Method,
    /// The time until its GPUs are free.
    pub out: Span,
    /// What it loses: what it would have done meanwhile, or what it did since it began.
    pub loss: Span,
    /// What it takes to bring it back.
    pub back: Span,
    /// It was idle.
    pub idle: bool,
    /// Its contexts leave too; of a lease that is parked already, only they do.
    pub with_context: bool,
}

impl PreemptionOption {
    /// The whole price.
    pub fn price(&self) -> Span {
        self.out + self.loss + self.back
    }
}

/// Why a lease is not preempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPreemptable {
    /// It is on its way already, or about to end.
    Leaving,
    /// Its user has the right not to be preempted.
    Never,
    /// It is busy, and more urgent than the waiter.
    Higher,
    /// It is busy, and its time slice is not over.
    Turn {
        /// When it is over.
        until: Time,
    },
    /// It could only be ended, and its user did not opt for that; why, by method.
    Stays(Vec<(Method, NotParkable)>),
}

impl fmt::Display for NotPreemptable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPreemptable::Leaving => f.write_str("it is being parked or ended already"),
            NotPreemptable::Never => f.write_str("it may not be preempted"),
            NotPreemptable::Higher => f.write_str("it is busy, and at a higher tier"),
            NotPreemptable::Turn { .. } => f.write_str("it is busy, and its time slice is not over"),
            NotPreemptable::Stays(whys) => {
                // What the library says concerns most users; the rest is in `--json`.
                let why = whys.iter().find(|(method, _)| *method == Method::Shim).or(whys.first());
                match why {
                    Some((_, why)) => write!(f, "{why}"),
                    None => f.write_str("it cannot be parked, only ended"),
                }
            }
        }
    }
}

/// Whether parking space limits which leases can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParkingSpace {
    Limited,
    Unlimited,
}

/// Whether, how and at what price a lease could be made to leave for a waiter.
pub fn preemption_option(
    state: &State,
    waiter: &Lease,
    holder: &Lease,
    now: Time,
) -> Result<PreemptionOption, NotPreemptable> {
    preemption_option_in(ParkingSpace::Limited, state, waiter, holder, now)
}

pub(crate) fn preemption_option_in(
    space: ParkingSpace,
    state: &State,
    waiter: &Lease,
    holder: &Lease,
    now: Time,
) -> Result<PreemptionOption, NotPreemptable> {
    let Phase::Active(hold) = &holder.phase else { return Err(NotPreemptable::Leaving) };
    if hold.notice.is_some() {
        return Err(NotPreemptable::Leaving);
    }
    // A lease that was told and still has more than it is for has no right to that, and no time slice.
    let over = overuse::is_overdue(state, holder, hold, state.policy().overuse_grace, now);
    if holder.request.preempt == Preempt::Never && !over && !state.planted(Mutant::PreemptNever) {
        return Err(NotPreemptable::Never);
    }
    let parking = &state.policy().parking;
    let since = idle_since(state, holder, hold);
    let mut ways = Vec::new();
    let mut stays = Vec::new();
    for method in Method::REVERSIBLE {
        // A program that the driver parked shows no sign of its next use, so this method is used only without another.
        if method == Method::Driver && !ways.is_empty() {
            continue;
        }
        let parkable = match space {
            ParkingSpace::Limited => parking::parkable(state, holder, method, now),
            ParkingSpace::Unlimited => parking::parkable_with_unlimited_space(state, holder, method, now),
        };
        match parkable {
            Ok(_) => {
                let (out, back) = (
                    move_duration(state, holder, method, Direction::OffGpu),
                    move_duration(state, holder, method, Direction::OntoGpu),
                );
                ways.push((out + back, method, out, Span(0), back));
            }
            Err(why) => stays.push((method, why)),
        }
    }
    // The end of a lease frees nothing that a process of another user holds: that process gets no signal.
    let other_user = lease_processes::other_user_on_gpus(state, holder.id, hold);
    let can_end = other_user.is_none();
    stays.extend(other_user.map(|why| (Method::End, why)));
    // Between the grant and the start of its command there is no process that could be told.
    let chose = holder.request.may_be_ended() || state.planted(Mutant::EndUnchosen);
    // Equals take turns by moves that lose nothing: two leases that end each other would both come to nothing.
    let first = waiter.first_request();
    let is_equal = first.tier == holder.request.tier && first.priority <= holder.request.priority;
    // It opted to be ended for more urgent leases only, however much it has.
    let is_higher = (first.tier, Reverse(first.priority)) < (holder.request.tier, Reverse(holder.request.priority));
    let ends_for = !is_equal && (!over || is_higher);
    if chose && can_end && (ends_for || state.planted(Mutant::EndEqual)) && hold.slice_began() + SETTLE <= now {
        let notice = holder.request.notice.map_or(Span::ZERO, |notice| notice.before);
        let out = move_duration(state, holder, Method::End, Direction::OffGpu) + notice;
        let lost = now.since(hold.slice_began());
        ways.push((out + lost, Method::End, out, lost, Span::ZERO));
    }
    if !chose
        && can_end
        && ways.is_empty()
        && stays.iter().all(|(_, why)| why.is_lasting())
        && overuse::is_to_end(state, holder, hold, now)
    {
        let (out, lost) = (move_duration(state, holder, Method::End, Direction::OffGpu), now.since(hold.slice_began()));
        ways.push((out + lost, Method::End, out, lost, Span::ZERO));
    }
    let Some((_, method, out, lost, back)) = ways.into_iter().min() else { return Err(NotPreemptable::Stays(stays)) };
    let moves = out + back;
    let (own, other) = (holder.request.tier, waiter.first_request().tier);
    // Activity is reported once a period, unless the lease was checked closely.
    let period = state.policy().period;
    let looked =
        state.readings(holder.id).and_then(|readings| readings.last_checked).is_some_and(|at| now.since(at) <= period);
    let unseen = if looked { Span::ZERO } else { Span(2 * period.0) };
    // Its GPU is idle meanwhile: waiting as long as a move takes would be as dear as the move.
    let patience = unseen + if other <= own { Span(moves.0 / 2).max(BREATH) } else { parking.idle_after.max(moves) };
    let idle = method != Method::End && now.since(since) >= patience;
    let came_back = hold.has_moved();
    let least = hold.slice_began() + parking.slice_min;
    let turn = match () {
        () if idle => least,
        // A more urgent lease stays a while after its last work, so moves are rare anyway.
        () if other < own => hold.slice_began() + parking.slice_min.max(moves),
        () => {
            let slice = parking.slice_min.max(Span(moves.0.saturating_mul(parking.slice_per_move.into())));
            let stretch = if own == other { stretch::stretch(state, holder, hold, slice) } else { Span::ZERO };
            hold.slice_began() + slice + stretch
        }
    };
    let (turn, least) = if state.planted(Mutant::NoTurn) { (now, now) } else { (turn, least) };
    let rank = match () {
        () if came_back && turn > now => return Err(NotPreemptable::Turn { until: turn }),
        // Between this lease and a waiter that waited already when it came the queue has decided, for a time slice.
        () if least > now && waiter.queued_since().is_some_and(|since| since <= hold.slice_began()) => {
            return Err(NotPreemptable::Turn { until: least });
        }
        () if idle => 0,
        // Other leases lose nothing for it, unless it would lose all its work.
        () if over => u8::from(method == Method::End),
        () if own > other && own == Tier::Spot => 0,
        () if own > other => 1,
        () if own == other && waiter.first_request().priority >= holder.request.priority => {
            if turn > now {
                return Err(NotPreemptable::Turn { until: turn });
            }
            2
        }
        () => return Err(NotPreemptable::Higher),
    };
    let loss = match method {
        Method::End => lost,
        _ if idle => Span::ZERO,
        _ => out + back,
    };
    Ok(PreemptionOption { rank, method, out, loss, back, idle, with_context: false })
}

/// Whether a lease stays for its time slice, whatever else is true: [`preemption_option`] would refuse it in the end.
pub(crate) fn is_within_slice(state: &State, waiter: &Lease, holder: &Lease, now: Time) -> bool {
    let Phase::Active(hold) = &holder.phase else { return true };
    let decided = || hold.has_moved() || waiter.queued_since().is_some_and(|since| since <= hold.slice_began());
    hold.slice_began() + state.policy().parking.slice_min > now && decided() && !state.planted(Mutant::NoTurn)
}

/// Since when a lease is not known to have been busy.
pub(crate) fn idle_since(state: &State, holder: &Lease, hold: &Hold) -> Time {
    let worked = state.readings(holder.id).and_then(|readings| readings.last_busy).unwrap_or(Time::ZERO);
    // A daemon that was away has seen nothing.
    worked.max(hold.slice_began()).max(state.rows().meta.grace_from)
}
