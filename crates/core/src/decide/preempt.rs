//! Room is made for whoever waits: who leaves, in which way, at what price, and when waiting is better.
//!
//! A holder leaves for somebody more urgent, when it is idle, or when it had its turn and somebody who
//! stands no lower waits. Each has a price: the time it takes to leave, what it loses meanwhile, and the
//! time to come back, from what was measured of it ([`crate::cost`]). The cheapest set that makes the
//! room is asked ([`crate::plan`]), unless the room comes sooner by itself.

use super::board::{blocking_leases, could_host};
use super::overuse;
use super::park::{ParkOrder, is_backing_off, move_duration, with_present_need};
use super::serve::{is_wanted, needed_bytes, waiters_within_quota};
use super::stretch;
use super::{Decider, KILL, TERM};
use crate::contexts;
use crate::cost::Direction;
use crate::facts::LeaseAction;
use crate::ids::{GpuId, LeaseId, ProcKey, TenantId};
use crate::lease_readings::SignalState;
use crate::method::Method;
use crate::mutant::Mutant;
use crate::parking::{self, NotParkable};
use crate::plan::{self, GpuNeed, Victim};
use crate::reading::Reading;
use crate::request::{Exclusivity, Preempt, Tier, Vram};
use crate::room::Room;
use crate::rows::{EndReason, GpuService, Hold, Lease, LeaseEnd, Phase};
use crate::state::State;
use crate::units::{Bytes, Span, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Waiters for whom room is made at a time.
const AT_A_TIME: usize = 4;
/// Plans that are tried for a waiter when the first takes more host memory than there is.
const OTHER_PLANS: usize = 8;
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

/// What could be done for a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomPlan {
    /// Enough is on its way already, on these cards.
    Coming(Vec<GpuId>),
    /// These should leave.
    Plan {
        /// The cards it would have.
        cards: Vec<GpuId>,
        /// Who leaves, and how.
        victims: Vec<(LeaseId, PreemptionOption)>,
        /// What all of it costs.
        price: Span,
    },
    /// Its room comes by itself then, sooner than it could be made.
    Wait {
        /// When.
        until: Time,
        /// What making it would cost.
        price: Span,
    },
    /// The parking space is not enough for all who would have to leave.
    Ram {
        /// It takes so much.
        need: Bytes,
        /// So much can be booked now; `None` if the host's memory cannot be read.
        room: Option<Bytes>,
    },
    /// A tenant whose holders would have to leave may not have so much parked.
    Cap {
        /// It may have so much.
        cap: Bytes,
    },
    /// Nobody leaves for it now: it left a moment ago, or comes back only when there is room.
    Pauses,
    /// Nobody can be made to leave who would help.
    Nothing,
}

/// Whether parking space limits which leases can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParkingSpace {
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

fn preemption_option_in(
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
    let other_user = parking::other_user_on_gpus(state, holder.id, hold);
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

/// Whether a holder stays for its turn, whatever it does and could: [`prospect`] would refuse it in the end.
fn is_within_slice(state: &State, waiter: &Lease, holder: &Lease, now: Time) -> bool {
    let Phase::Active(hold) = &holder.phase else { return true };
    let decided = || hold.has_moved() || waiter.queued_since().is_some_and(|since| since <= hold.slice_began());
    hold.slice_began() + state.policy().parking.slice_min > now && decided() && !state.planted(Mutant::NoTurn)
}

/// Since when a holder is not known to have worked.
pub(super) fn idle_since(state: &State, holder: &Lease, hold: &Hold) -> Time {
    let worked = state.readings(holder.id).and_then(|live| live.last_busy).unwrap_or(Time::ZERO);
    // A daemon that was away has seen nothing.
    worked.max(hold.slice_began()).max(state.rows().meta.grace_from)
}

/// Whether the contexts of programs that the library parks stay on their GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contexts {
    Stay,
    /// They leave too, where they can.
    Leave,
}

/// Whom a waiter could be let in for, on which cards.
struct Candidates<'a> {
    /// Cards that would do.
    cards: Vec<GpuId>,
    found: Vec<(&'a Lease, PreemptionOption)>,
    victims: Vec<Victim>,
    sites: Vec<GpuNeed>,
}

/// What cards will have, of what is free and what is leaving, while room is made for one after another.
pub struct RoomForecast {
    rooms: Vec<Bytes>,
    /// Somebody ahead waits for this card, and nothing can be done for it.
    closed: Vec<bool>,
    ram: Option<Bytes>,
    /// Host memory that tenants' holders take who are to leave for somebody ahead.
    taken: BTreeMap<TenantId, Bytes>,
    /// Those who are to leave for somebody ahead.
    asked: BTreeSet<LeaseId>,
}

impl RoomForecast {
    /// As it is now.
    pub fn new(state: &State, now: Time) -> RoomForecast {
        let coming = |card: GpuId| -> Bytes {
            if state.planted(Mutant::TwiceForOne) {
                return Bytes::ZERO;
            }
            let leaving = state.room(card).ends().iter().take_while(|(at, ..)| *at == Time::ZERO);
            leaving.map(|(.., gives)| *gives).sum::<Bytes>() + contexts::bytes_leaving(state, card, now)
        };
        let room = |card: GpuId| match state.room(card).check_readable(now, state.policy().period) {
            Ok(()) if state.in_service(card) => state.promisable(card, now) + coming(card),
            _ => Bytes::ZERO,
        };
        let rooms: Vec<Bytes> = state.gpus().map(room).collect();
        RoomForecast {
            closed: vec![false; rooms.len()],
            rooms,
            ram: parking::free_parking_space(state),
            taken: BTreeMap::new(),
            asked: BTreeSet::new(),
        }
    }

    /// Whom a waiter could be let in for, on which cards, but for those who shall stay.
    fn candidates<'a>(
        &self,
        state: &'a State,
        waiter: &Lease,
        stay: &BTreeSet<LeaseId>,
        (contexts, space): (Contexts, ParkingSpace),
        now: Time,
    ) -> Candidates<'a> {
        let cards: Vec<GpuId> = state.gpus().filter(|card| could_host(state, waiter, *card)).collect();
        let open = |card: &GpuId| !self.closed[card.0 as usize] && !state.is_restoring_on(*card);
        let readable = |card: &GpuId| state.room(*card).check_readable(now, state.policy().period).is_ok();
        let able: Vec<GpuId> = cards.iter().copied().filter(open).filter(readable).collect();
        let is_free = |row: &Lease| row.id != waiter.id && !self.asked.contains(&row.id) && !stay.contains(&row.id);
        let holders = state.movable().filter(|row| is_free(row));
        let on_able = |row: &&Lease| row.hold().is_some_and(|hold| hold.gpus.iter().any(|card| able.contains(card)));
        let holders = holders.filter(on_able).filter(|row| !is_within_slice(state, waiter, row, now));
        let found = holders.filter_map(|row| Some((row, preemption_option_in(space, state, waiter, row, now).ok()?)));
        let mut found: Vec<(&Lease, PreemptionOption)> = found.collect();
        if contexts == Contexts::Leave {
            for (row, prospect) in &mut found {
                let can_leave =
                    row.hold().is_some_and(|hold| contexts::removable_after_park(state, row, hold, now).is_ok());
                prospect.with_context = prospect.rung == Method::Shim && can_leave;
            }
            found.extend(self.parked_contexts(state, waiter, &able, now));
        }
        let victims: Vec<Victim> = found.iter().map(|(row, prospect)| victim(state, row, prospect)).collect();
        let sites: Vec<GpuNeed> =
            able.iter().filter_map(|card| self.gpu_need(state, waiter, *card, &victims)).collect();
        Candidates { cards, found, victims, sites }
    }

    /// Parked leases whose contexts could leave these GPUs for a waiter. Those that wait ahead of it keep theirs.
    fn parked_contexts<'a>(
        &self,
        state: &'a State,
        waiter: &Lease,
        cards: &[GpuId],
        now: Time,
    ) -> Vec<(&'a Lease, PreemptionOption)> {
        let ahead: BTreeSet<LeaseId> =
            waiters_within_quota(state).map(|ahead| ahead.id).take_while(|id| *id != waiter.id).collect();
        let mut ids: Vec<LeaseId> =
            cards.iter().flat_map(|card| contexts::removable_on(state, *card, now)).map(|(lease, _)| lease).collect();
        ids.sort();
        ids.dedup();
        let is_free = |id: &LeaseId| !ahead.contains(id) && !self.asked.contains(id) && *id != waiter.id;
        // The contexts of some leave anyway.
        let stays = |row: &&Lease| row.park_state().is_some_and(|away| !away.with_context);
        let free = ids.into_iter().filter(is_free);
        let prospect = |row: &Lease| {
            let left: Bytes = row
                .hold()
                .map_or(Bytes::ZERO, |hold| hold.gpus.iter().map(|card| state.room(*card).seen_of(row.id)).sum());
            let (out, back) = contexts::costs(state, row, left);
            PreemptionOption {
                rank: 0,
                rung: Method::Driver,
                out,
                loss: Span::ZERO,
                back,
                idle: true,
                with_context: true,
            }
        };
        free.filter_map(|id| state.lease(id)).filter(stays).map(|row| (row, prospect(row))).collect()
    }

    /// What it would cost to make a waiter's room on each card by itself, where it can be.
    fn prices(&self, state: &State, waiter: &Lease, now: Time) -> Vec<(GpuId, Span)> {
        let Candidates { victims, sites, .. } = self.candidates(
            state,
            &with_present_need(state, waiter),
            &BTreeSet::new(),
            (Contexts::Stay, ParkingSpace::Limited),
            now,
        );
        let price = |site: &GpuNeed| Some((site.card, plan::cheapest(std::slice::from_ref(site), 1, &victims)?.price));
        sites.iter().filter_map(price).collect()
    }

    /// What could be done for a waiter, after all those who were looked at before it.
    pub fn plan_room(&mut self, state: &State, waiter: &Lease, now: Time) -> RoomPlan {
        let waiter = &*with_present_need(state, waiter);
        let wanted = usize::from(waiter.request.gpus);
        let mut stay = BTreeSet::new();
        let mut lacking = RoomPlan::Nothing;
        let mut contexts = Contexts::Stay;
        let (question, choice, takes) = loop {
            let question = self.candidates(state, waiter, &stay, (contexts, ParkingSpace::Limited), now);
            let Some(choice) = plan::cheapest(&question.sites, wanted, &question.victims) else {
                // Without the contexts of parked programs there may be room.
                if contexts == Contexts::Stay && state.policy().parking.context_after.is_some() {
                    contexts = Contexts::Leave;
                    continue;
                }
                if lacking == RoomPlan::Nothing {
                    lacking = self.lacking_space(state, waiter, now);
                }
                question.cards.iter().for_each(|card| self.closed[card.0 as usize] = true);
                return lacking;
            };
            let takes = host_memory(state, &question, &choice.victims, now);
            // Together they take more host memory than there is: the same without the one that takes most of it.
            let Some((too_much, what)) = self.beyond_memory(state, &takes) else { break (question, choice, takes) };
            lacking = what;
            if stay.len() >= OTHER_PLANS {
                question.cards.iter().for_each(|card| self.closed[card.0 as usize] = true);
                return lacking;
            }
            stay.insert(too_much);
        };
        let Candidates { found, victims, sites, .. } = question;
        if choice.victims.is_empty() {
            self.reserve(state, waiter, &choice.cards);
            return RoomPlan::Coming(choice.cards);
        }
        let chosen: Vec<(LeaseId, PreemptionOption)> =
            choice.victims.iter().map(|at| (found[*at].0.id, found[*at].1.clone())).collect();
        let price = choice.price;
        if let Some(until) = self.comes_by_itself(state, waiter, &sites, wanted, now)
            && until.since(now) <= price
        {
            self.reserve(state, waiter, &choice.cards);
            return RoomPlan::Wait { until, price };
        }
        for (_, tenant, bytes) in takes {
            self.ram = self.ram.map(|ram| ram.less(bytes));
            let taken = self.taken.entry(tenant).or_default();
            *taken = *taken + bytes;
        }
        self.asked.extend(chosen.iter().map(|(lease, _)| *lease));
        for at in &choice.victims {
            for (card, bytes) in &victims[*at].gains {
                let room = &mut self.rooms[card.0 as usize];
                *room = *room + *bytes;
            }
        }
        self.reserve(state, waiter, &choice.cards);
        RoomPlan::Plan { cards: choice.cards, victims: chosen, price }
    }

    /// [`Making::Ram`] if unlimited parking space would make the room, else [`Making::Nothing`].
    fn lacking_space(&self, state: &State, waiter: &Lease, now: Time) -> RoomPlan {
        let question = self.candidates(state, waiter, &BTreeSet::new(), (Contexts::Stay, ParkingSpace::Unlimited), now);
        let choice = plan::cheapest(&question.sites, usize::from(waiter.request.gpus), &question.victims);
        let takes = |at: &usize| {
            let (row, prospect) = &question.found[*at];
            parking::parkable_with_unlimited_space(state, row, prospect.rung, now).ok()
        };
        let need: Bytes = choice.into_iter().flat_map(|choice| choice.victims).filter_map(|at| takes(&at)).sum();
        // If there is enough of it, a user's own cap on parked bytes is what is in the way.
        match need > Bytes::ZERO && self.ram.is_none_or(|room| room < need) {
            true => RoomPlan::Ram { need, room: self.ram },
            false => RoomPlan::Nothing,
        }
    }

    /// Who of those that would leave takes most of a host memory that is too small for all of them, and what is
    /// too small.
    fn beyond_memory(&self, state: &State, takes: &[(LeaseId, TenantId, Bytes)]) -> Option<(LeaseId, RoomPlan)> {
        let all: Bytes = takes.iter().map(|(.., bytes)| *bytes).sum();
        let lacks_ram = all > Bytes::ZERO && self.ram.is_none_or(|ram| ram < all);
        let over = |tenant: TenantId| {
            let own: Bytes = takes.iter().filter(|(_, of, _)| *of == tenant).map(|(.., bytes)| *bytes).sum();
            let before =
                parking::booked_by_tenant(state, tenant) + self.taken.get(&tenant).copied().unwrap_or_default();
            state.ledger().caps(tenant).parked.filter(|cap| own > Bytes::ZERO && before + own > *cap)
        };
        let what = |tenant: TenantId| match over(tenant) {
            _ if lacks_ram => Some(RoomPlan::Ram { need: all, room: self.ram }),
            cap => cap.map(|cap| RoomPlan::Cap { cap }),
        };
        let too_many = takes.iter().filter_map(|(lease, tenant, bytes)| Some((*bytes, *lease, what(*tenant)?)));
        too_many.max_by_key(|(bytes, lease, _)| (*bytes, *lease)).map(|(_, lease, what)| (lease, what))
    }

    fn reserve(&mut self, state: &State, waiter: &Lease, cards: &[GpuId]) {
        for card in cards {
            let room = &mut self.rooms[card.0 as usize];
            *room = room.less(needed_bytes(state, &waiter.request, *card));
        }
    }

    /// What a waiter lacks on a card, and who is in its way there whatever the bytes; `None` if somebody
    /// is who cannot be made to leave.
    fn gpu_need(&self, state: &State, waiter: &Lease, card: GpuId, victims: &[Victim]) -> Option<GpuNeed> {
        let mut must = Vec::new();
        for id in blocking_leases(state, waiter, card) {
            let leaves = state.room(card).leases().get(&id).is_some_and(|claim| claim.ends_by == Time::ZERO);
            if !leaves {
                must.push(victims.iter().position(|victim| victim.lease == id)?);
            }
        }
        let lack = needed_bytes(state, &waiter.request, card).less(self.rooms[card.0 as usize]);
        Some(GpuNeed { card, lack, must })
    }

    /// When enough leases end by themselves.
    fn comes_by_itself(
        &self,
        state: &State,
        waiter: &Lease,
        sites: &[GpuNeed],
        wanted: usize,
        now: Time,
    ) -> Option<Time> {
        let exclusive = waiter.request.vram == Vram::Whole || waiter.request.exclusivity != Exclusivity::Shared;
        let of = |site: &GpuNeed| {
            let alone = exclusive || !site.must.is_empty();
            let ends = state.room(site.card).ends().iter().filter(|(at, _, _)| *at != Time::ZERO);
            let mut lack = site.lack;
            let mut last = now;
            for (at, _, bytes) in ends {
                if lack == Bytes::ZERO && !alone {
                    break;
                }
                (lack, last) = (lack.less(*bytes), state.ends_after_grace(*at, now));
            }
            (lack == Bytes::ZERO).then_some(last)
        };
        let mut times: Vec<Time> = sites.iter().filter_map(of).collect();
        times.sort();
        times.get(wanted.checked_sub(1)?).copied().filter(|at| *at != Time::NEVER)
    }
}

/// Host memory that each of these takes when it leaves.
fn host_memory(
    state: &State,
    question: &Candidates<'_>,
    chosen: &[usize],
    now: Time,
) -> Vec<(LeaseId, TenantId, Bytes)> {
    let of = |at: &usize| {
        let (row, prospect) = &question.found[*at];
        let bytes = match prospect.rung {
            // Contexts are booked when the driver is told to take them.
            Method::Driver if prospect.with_context => return None,
            Method::Shim | Method::Driver => parking::parkable(state, row, prospect.rung, now).ok()?,
            Method::Hook | Method::End => return None,
        };
        Some((row.id, row.tenant, bytes))
    };
    chosen.iter().filter_map(of).collect()
}

fn victim(state: &State, row: &Lease, prospect: &PreemptionOption) -> Victim {
    let keeps_context = prospect.rung.keeps_context() && !prospect.with_context;
    let keeps = |room: &Room| if keeps_context { room.context_after_park() } else { Bytes::ZERO };
    let gain = |card: GpuId| {
        let room = state.room(card);
        let counted = room.leases().get(&row.id).map_or(Bytes::ZERO, |claim| claim.counted());
        (card, counted.less(keeps(room)))
    };
    let cards = row.hold().map(|hold| hold.gpus.clone()).unwrap_or_default();
    let gains = cards.into_iter().map(gain).collect();
    Victim { lease: row.id, rank: prospect.rank, price: prospect.price(), gains }
}

/// Whether a waiter may make others leave: who was just parked rests for a moment.
fn may_preempt(state: &State, waiter: &Lease, now: Time) -> bool {
    match &waiter.phase {
        Phase::Parked(_, away) => {
            let pauses = away.since + state.policy().parking.pause_after_park > now;
            !pauses && !is_backing_off(state, waiter, now)
        }
        _ => true,
    }
}

/// What can be done for each of the first waiters, in their order.
pub fn room_plans(state: &State, now: Time) -> Vec<(LeaseId, RoomPlan)> {
    let mut outlook = RoomForecast::new(state, now);
    let waiters = waiters_within_quota(state).filter(|waiter| may_preempt(state, waiter, now)).take(AT_A_TIME);
    waiters.map(|waiter| (waiter.id, outlook.plan_room(state, waiter, now))).collect()
}

/// What can be done for one waiter, and what it would cost on each card; nothing for one that is not among the
/// first.
pub fn room_plan(state: &State, waiter: &Lease, now: Time) -> Option<(RoomPlan, Vec<(GpuId, Span)>)> {
    if !state.policy().parking.preempt {
        return None;
    }
    if !may_preempt(state, waiter, now) {
        return Some((RoomPlan::Pauses, Vec::new()));
    }
    let mut outlook = RoomForecast::new(state, now);
    for ahead in waiters_within_quota(state).filter(|ahead| may_preempt(state, ahead, now)).take(AT_A_TIME) {
        if ahead.id == waiter.id {
            let prices = outlook.prices(state, ahead, now);
            return Some((outlook.plan_room(state, ahead, now), prices));
        }
        outlook.plan_room(state, ahead, now);
    }
    None
}

/// When a waiter should have its room, if it is being made or will be.
pub fn room_comes_at(state: &State, waiter: &Lease, now: Time) -> Option<Time> {
    match room_plan(state, waiter, now)?.0 {
        RoomPlan::Plan { victims, .. } => victims.iter().map(|(_, prospect)| now + prospect.out).max(),
        RoomPlan::Wait { until, .. } => Some(until),
        RoomPlan::Coming(cards) => {
            let leaving = state.moving().filter_map(|lease| state.lease(lease));
            let on = |row: &&Lease| row.hold().is_some_and(|hold| hold.gpus.iter().any(|card| cards.contains(card)));
            let gone = |row: &Lease| {
                let away = row.park_state()?;
                Some(
                    (away.since + move_duration(state, row, away.method, Direction::OffGpu))
                        .max(now + state.policy().next_reading()),
                )
            };
            leaving.filter(on).filter_map(gone).max()
        }
        RoomPlan::Nothing => slices_end_at(state, &with_present_need(state, waiter), now),
        RoomPlan::Ram { .. } | RoomPlan::Cap { .. } | RoomPlan::Pauses => None,
    }
}

/// When room may be made for one of the first waiters though nothing happens until then: a time slice is
/// over, or a pause. `None` if time alone changes nothing. A replay moves its clock by it.
pub fn changes_at(state: &State, now: Time) -> Option<Time> {
    if !state.policy().parking.preempt || state.queue().is_empty() {
        return None;
    }
    let later = |at: Time| (at > now).then_some(at);
    let waiters: Vec<&Lease> = waiters_within_quota(state).take(AT_A_TIME).collect();
    let slices = waiters.iter().flat_map(|waiter| {
        let spared = state.movable().filter_map(|row| preemption_option(state, waiter, row, now).err());
        spared.filter_map(|spared| match spared {
            NotPreemptable::Turn { until } => later(until),
            _ => None,
        })
    });
    let pauses = waiters.iter().filter_map(|waiter| match &waiter.phase {
        Phase::Parked(_, away) => later(away.since + state.policy().parking.pause_after_park),
        _ => None,
    });
    slices.chain(pauses).min()
}

/// When enough holders on one card will have had their turns, for the first who waits.
fn slices_end_at(state: &State, waiter: &Lease, now: Time) -> Option<Time> {
    let is_first = waiters_within_quota(state).next().is_some_and(|first| first.id == waiter.id);
    if waiter.request.gpus != 1 || !is_first {
        return None;
    }
    let on = |card: GpuId| {
        let room = state.room(card);
        let mut leave: Vec<(Time, Bytes)> = Vec::new();
        let mut must = now;
        let all_in_the_way: BTreeSet<LeaseId> = blocking_leases(state, waiter, card).collect();
        for (id, claim) in room.leases().iter().filter(|(_, claim)| !claim.is_parked && claim.ends_by != Time::ZERO) {
            let in_the_way = all_in_the_way.contains(id);
            let at = match state.lease(*id).map(|row| preemption_option(state, waiter, row, now)) {
                Some(Ok(prospect)) => now + prospect.out,
                Some(Err(NotPreemptable::Turn { until })) => until + state.policy().next_reading(),
                _ if in_the_way => return None,
                _ => continue,
            };
            must = if in_the_way { must.max(at) } else { must };
            leave.push((at, claim.counted().less(room.context())));
        }
        leave.sort();
        let (mut have, need) = (state.promisable(card, now), needed_bytes(state, &waiter.request, card));
        let enough = leave.into_iter().find(|(_, bytes)| {
            have = have + *bytes;
            have >= need
        });
        enough.map(|(at, _)| at.max(must))
    };
    state.gpus().filter(|card| could_host(state, waiter, *card)).filter_map(on).min()
}

impl Decider<'_> {
    /// Makes room for whoever waits, as far as it can be made and is worth it.
    pub(super) fn make_room(&mut self) {
        let off = !self.state.policy().parking.preempt;
        if off || self.state.queue().is_empty() || self.state.is_stopped() || self.state.movable().next().is_none() {
            return;
        }
        if self.state.is_plan_due(self.now) {
            self.plan_now();
        }
    }

    /// The same whenever it was last reckoned.
    pub(super) fn plan_now(&mut self) {
        if !self.state.policy().parking.preempt || self.state.is_stopped() {
            return;
        }
        self.state.set_planned(self.now);
        for (waiter, making) in room_plans(self.state, self.now) {
            if let RoomPlan::Plan { victims, .. } = making {
                victims.into_iter().for_each(|(lease, prospect)| self.preempt(lease, &prospect, waiter));
            }
        }
    }

    fn preempt(&mut self, lease: LeaseId, prospect: &PreemptionOption, waiter: LeaseId) {
        if self.state.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Parked(..))) {
            return self.take_contexts(lease);
        }
        if prospect.rung == Method::End {
            let hold = self.state.lease(lease).and_then(Lease::hold);
            if hold.is_some_and(|hold| parking::gpu_with_other_move(self.state, lease, hold).is_some()) {
                // Whose bytes went nobody could tell: it is asked once the others have left.
                return;
            }
            let before = self.state.lease(lease).and_then(|row| row.request.notice).map(|notice| notice.before);
            let until = self.now + before.unwrap_or(Span::ZERO);
            self.emit(LeaseAction::GiveNotice { lease, at: self.now, until, room_for: waiter });
            if before.is_none() {
                self.end_for_others(lease);
            }
            return;
        }
        // What stood in the way meanwhile is seen with the next plan.
        let (again, with_context) = (!prospect.idle, prospect.with_context);
        let (rung, room_for) = (prospect.rung, Some(waiter));
        let order = ParkOrder { rung, again, by_hand: false, room_for, aside: None, with_context };
        let _ = self.park_by(lease, order);
    }

    /// The notice of a holder is over: it ends, unless nobody needs its cards any more.
    pub(super) fn notice_over(&mut self, row: &Lease, hold: &Hold) {
        let wanted = is_wanted(self.state, row, &hold.gpus);
        let may_stay = !row.request.may_be_ended() && !overuse::is_to_end(self.state, row, hold, self.now);
        if (!wanted || may_stay) && !self.state.planted(Mutant::SpareNobody) {
            return self.emit(LeaseAction::CancelNotice { lease: row.id });
        }
        self.end_for_others(row.id);
    }

    fn end_for_others(&mut self, lease: LeaseId) {
        let chose = self.state.lease(lease).is_some_and(|row| row.request.may_be_ended());
        let unchosen = self.state.planted(Mutant::EndUnchosen);
        self.end(lease, if chose || unchosen { EndReason::Preempted } else { EndReason::OverUse });
        self.signal_ended(lease);
    }

    pub(super) fn has_signal_targets(&self, lease: LeaseId) -> bool {
        let Some(row) = self.state.lease(lease) else { return false };
        let unknown = !row.roots.is_empty() && self.state.readings(lease).is_some_and(|live| !live.members_known);
        unknown || !signal_targets(self.state, row).is_empty()
    }

    /// The processes of a lease that was ended for others get their next signal.
    pub(super) fn signal_ended(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease) else { return };
        let Phase::Ending(hold, LeaseEnd { signal, .. }) = &row.phase else { return };
        let (processes, cards) = (signal_targets(self.state, row), hold.gpus.clone());
        if processes.is_empty() {
            // After a start it must be heard first who is there; and a wrapper counts once it was seen on a card.
            return self.state.set_due(lease, Some(self.now + Span::secs(1)));
        }
        let sent = self.state.readings(lease).and_then(|live| live.last_signal);
        let sent = sent
            .map(|sent| if self.state.planted(Mutant::GraceFromRecord) { SignalState::Sent(Time::ZERO) } else { sent });
        let grace = self.state.policy().parking.grace;
        let signal = match (signal, sent) {
            (None, _) if self.state.planted(Mutant::KillAtOnce) => KILL,
            (None, _) => TERM,
            // A daemon that is gone may not have come to send it.
            (Some((last, _)), None) => *last,
            // A slow disk still has it, and the grace begins when it is gone.
            (Some(_), Some(SignalState::Pending)) => return self.state.set_due(lease, Some(self.now + Span::secs(1))),
            (Some(_), Some(SignalState::Sent(at))) if at + grace > self.now => {
                return self.state.set_due(lease, Some(at + grace));
            }
            (Some((TERM, _)), Some(SignalState::Sent(_))) => KILL,
            // It survived: what it has may stay there for ever.
            (Some(_), Some(SignalState::Sent(_))) => {
                let why = format!("a process of {lease} survived SIGKILL and still has memory there");
                cards.into_iter().for_each(|card| self.set_gpu_service(card, GpuService::Out { why: why.clone() }));
                return self.state.set_due(lease, None);
            }
        };
        let left_out = processes_of_other_users(self.state, lease).map(|(process, _)| process).collect();
        self.emit(LeaseAction::Signal { lease, signal, at: self.now, processes, left_out });
    }

    /// A signal to the processes of a lease has left: from now on they have their time.
    pub(super) fn signalled(&mut self, lease: LeaseId, signal: u8) {
        let Some(Phase::Ending(_, LeaseEnd { signal: Some((last, _)), .. })) =
            self.state.lease(lease).map(|row| &row.phase)
        else {
            return;
        };
        if *last == signal {
            self.state.note_signal_sent(lease, self.now);
        }
    }
}

/// Processes of a lease that run as another user, and get none of the signals that its user chose; with that user.
pub fn processes_of_other_users(state: &State, lease: LeaseId) -> impl Iterator<Item = (ProcKey, u32)> {
    let restricted = state.readings(lease).into_iter().flat_map(|live| &live.restricted);
    restricted.filter_map(|(process, restriction)| Some((*process, restriction.runs_as?)))
}

/// Processes of a lease that get the signals its user chose: all but its wrapper, unless that uses a card itself, and but
/// those of other users.
pub fn signal_targets(state: &State, row: &Lease) -> Vec<ProcKey> {
    let Some(live) = state.readings(row.id) else { return Vec::new() };
    let wrapper = row.roots.first();
    let on_card = |process: &ProcKey| {
        let cards = row.hold().into_iter().flat_map(|hold| &hold.gpus);
        cards.into_iter().any(|card| match &state.room(*card).reading().reading {
            Reading::Used(used) => used.processes.iter().any(|resident| resident.process == *process),
            Reading::Unreadable(_) => false,
        })
    };
    let is_own = |process: &ProcKey| live.restricted.get(process).is_none_or(|it| it.runs_as.is_none());
    let members = live.members.iter().copied().filter(is_own);
    members.filter(|process| Some(process) != wrapper || on_card(process)).collect()
}
