//! Whether, how and at what price one lease can be made to leave its GPUs for a waiter.
//!
//! A holder leaves for a waiter that is more urgent, when it is idle, or when its time slice is over and an equal waits.
//! Each has a price: the time it takes to leave, what it loses meanwhile, and the time to come back, from what was measured
//! of it ([`crate::model::cost`]). Absent: which set of leases makes the room for a waiter ([`super::room_plan`]).

use crate::model::cost::Direction;
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::request::{Preempt, Tier};
use crate::model::units::{Span, Time};
use crate::mutant::Mutant;
use crate::policy::moves::move_duration;
use crate::policy::{lease_processes, overuse, parking, stretch};
use crate::rows::{Hold, Lease, Phase};
use crate::state::State;
use std::cmp::Reverse;
use std::fmt;

/// Whoever works may pause for so long, however cheap it would be to move: a batch is read, a file written.
const BREATH: Span = Span::millis(500);

/// Nobody is ended so soon after its grant.
const SETTLE: Span = Span::secs(2);

/// How a holder could be made to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionOption {
    /// Who is asked first, whatever the price: idle and spot, then less urgent, then equals.
    pub rank: u8,
    /// In which way.
    pub rung: Method,
    /// Its cards are free after so long.
    pub out: Span,
    /// What it loses: what it would have done meanwhile, or what it did since it began.
    pub loss: Span,
    /// What it takes to bring it back.
    pub back: Span,
    /// It was not at work.
    pub idle: bool,
    /// Its contexts leave too; of a lease that is parked already, only they do.
    pub with_context: bool,
}

impl PreemptionOption {
    /// Everything it costs.
    pub fn price(&self) -> Span {
        self.out + self.loss + self.back
    }
}

/// Why a holder is not made to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPreemptable {
    /// It is on its way already, or about to end.
    Leaving,
    /// Its owner has the right not to be preempted.
    Never,
    /// It is at work, and stands higher than who waits.
    Higher,
    /// It is at work, and its turn is not over before then.
    Turn {
        /// When it is.
        until: Time,
    },
    /// It cannot leave without being ended, and its owner did not choose that; why, rung by rung.
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
                // What the library says concerns most people; the rest is in `--json`.
                let why = whys.iter().find(|(rung, _)| *rung == Method::Shim).or(whys.first());
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

/// Whether, how and at what price a holder could be made to leave for a waiter.
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
    // Who was told and still has more than its lease has no right to it, and no turn.
    let over = overuse::is_overdue(state, holder, hold, state.policy().overuse_grace, now);
    if holder.request.preempt == Preempt::Never && !over && !state.planted(Mutant::PreemptNever) {
        return Err(NotPreemptable::Never);
    }
    let parking = &state.policy().parking;
    let since = idle_since(state, holder, hold);
    let mut ways = Vec::new();
    let mut stays = Vec::new();
    for rung in Method::REVERSIBLE {
        // What the driver parked shows no sign of its next use, so it is a poor bargain at any price.
        if rung == Method::Driver && !ways.is_empty() {
            continue;
        }
        let parkable = match space {
            ParkingSpace::Limited => parking::parkable(state, holder, rung, now),
            ParkingSpace::Unlimited => parking::parkable_with_unlimited_space(state, holder, rung, now),
        };
        match parkable {
            Ok(_) => {
                let (out, back) = (
                    move_duration(state, holder, rung, Direction::OffGpu),
                    move_duration(state, holder, rung, Direction::OntoGpu),
                );
                ways.push((out + back, rung, out, Span(0), back));
            }
            Err(why) => stays.push((rung, why)),
        }
    }
    // The end of a lease frees nothing that a process of another user holds: that one gets no signal.
    let other_user = lease_processes::other_user_on_gpus(state, holder.id, hold);
    let can_end = other_user.is_none();
    stays.extend(other_user.map(|why| (Method::End, why)));
    // Between the grant and the start of its command there is nobody who could be told.
    let chose = holder.request.may_be_ended() || state.planted(Mutant::EndUnchosen);
    // Equals take turns by moves that lose nothing: two who end each other would both come to nothing.
    let first = waiter.first_request();
    let is_equal = first.tier == holder.request.tier && first.priority <= holder.request.priority;
    // Its choice is for those who stand higher, however much it has.
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
    let Some((_, rung, out, lost, back)) = ways.into_iter().min() else { return Err(NotPreemptable::Stays(stays)) };
    let moves = out + back;
    let (own, other) = (holder.request.tier, waiter.first_request().tier);
    // Work is told once a period, unless it is looked at closely.
    let period = state.policy().period;
    let looked = state.readings(holder.id).and_then(|live| live.last_checked).is_some_and(|at| now.since(at) <= period);
    let unseen = if looked { Span::ZERO } else { Span(2 * period.0) };
    // Its card stands idle meanwhile: waiting as long as a move takes would be as dear as the move.
    let patience = unseen + if other <= own { Span(moves.0 / 2).max(BREATH) } else { parking.idle_after.max(moves) };
    let idle = rung != Method::End && now.since(since) >= patience;
    let came_back = hold.has_moved();
    let least = hold.slice_began() + parking.slice_min;
    let turn = match () {
        () if idle => least,
        // Whoever is more urgent stays a while after its last work, so that moves are rare enough anyway.
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
        // Between this one and who waited already when it came the queue has decided, for a turn.
        () if least > now && waiter.queued_since().is_some_and(|since| since <= hold.slice_began()) => {
            return Err(NotPreemptable::Turn { until: least });
        }
        () if idle => 0,
        // Others lose nothing for it, unless it would lose all that it did.
        () if over => u8::from(rung == Method::End),
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
    let loss = match rung {
        Method::End => lost,
        _ if idle => Span::ZERO,
        _ => out + back,
    };
    Ok(PreemptionOption { rank, rung, out, loss, back, idle, with_context: false })
}

/// Whether a holder stays for its turn, whatever it does and could: [`preemption_option`] would refuse it in the end.
pub(crate) fn is_within_slice(state: &State, waiter: &Lease, holder: &Lease, now: Time) -> bool {
    let Phase::Active(hold) = &holder.phase else { return true };
    let decided = || hold.has_moved() || waiter.queued_since().is_some_and(|since| since <= hold.slice_began());
    hold.slice_began() + state.policy().parking.slice_min > now && decided() && !state.planted(Mutant::NoTurn)
}

/// Since when a holder is not known to have worked.
pub(crate) fn idle_since(state: &State, holder: &Lease, hold: &Hold) -> Time {
    let worked = state.readings(holder.id).and_then(|live| live.last_busy).unwrap_or(Time::ZERO);
    // A daemon that was away has seen nothing.
    worked.max(hold.slice_began()).max(state.rows().meta.grace_from)
}
