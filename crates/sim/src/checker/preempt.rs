//! Room that is made for who waits: who may be made to leave, for whom, and when.
//!
//! What a plan costs, and whether another would be cheaper, is core's to reckon. Here is only what no
//! plan may do: touch who has the right to stay, who stands higher and works, or whose turn is not
//! over; ask for a waiter that does not wait, or cannot use the room, or has it coming already.

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::park::{CONTEXT, MoveWay};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::{DaemonAction, LeaseAction};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::request::{Exclusivity, Preempt, Tier, Vram};
use sublet_core::units::{Bytes, Span, Time};

/// Waiters that are looked at for a place in the queue.
const PLACES: usize = 256;

/// Whether nothing was done but to make room, which may come with any event.
pub fn nothing_but_room(actions: &[Action]) -> bool {
    let makes_room = |action: &&Action| match action {
        Action::Lease(LeaseAction::Park { room_for, aside, .. }) => room_for.is_some() || aside.is_some(),
        Action::Lease(LeaseAction::GiveNotice { lease, room_for, .. }) => lease != room_for,
        // Contexts leave for waiters only, but with a reading of their GPU.
        Action::Lease(LeaseAction::RemoveContexts { .. }) => true,
        _ => false,
    };
    let before = actions.iter().take_while(|action| !makes_room(action));
    before.into_iter().all(|action| matches!(action, Action::Daemon(DaemonAction::GrantGrace { .. })))
}

impl CheckerBooks {
    /// Somebody has to leave: what is done for one waiter may bring another to the front, so whoever is first
    /// before anything is done stays the first.
    pub fn makes_room_for(&mut self, waiter: Option<LeaseId>) {
        if waiter.is_some() && self.made_first.is_none() {
            let first = self.in_order().next();
            self.made_first = first;
        }
    }

    /// A holder is parked for somebody.
    pub fn check_room_for(
        &self,
        now: Time,
        cause: &EventCause,
        book: &LeaseBook,
        again: Option<Time>,
        waiter: Option<LeaseId>,
    ) -> Verdict {
        let idle = again.is_none();
        let due = self.place_taken(book, waiter).unwrap_or(now + Span(1));
        must(9, again.is_none() || again == Some(due), || {
            format!("{} asks again as of {again:?} at {now}, and it should as of {due}: {book:?}", book.id)
        })?;
        self.check_preempted(now, cause, book, waiter, idle)
    }

    /// When the job asked whose place one takes that has to leave for the first time: the next of its tenant, of
    /// its tier and priority, that asked later and has not started, behind the one it leaves for.
    fn place_taken(&self, book: &LeaseBook, waiter: Option<LeaseId>) -> Option<Time> {
        let moved = book.held().is_none_or(|held| held.moved);
        if !self.policy.parking.stretches_slices || book.ask.tier == Tier::Interactive || moved {
            return None;
        }
        let order: Vec<LeaseId> = self.in_order().take(PLACES).collect();
        let from = order.iter().position(|lease| Some(*lease) == waiter)?;
        let others = order[from + 1..].iter().filter_map(|lease| self.leases.get(lease));
        let class = |book: &LeaseBook| (book.tenant, book.ask.tier, book.ask.priority);
        let mut same = others.filter(|other| class(other) == class(book) && other.id > book.id);
        same.find(|other| matches!(other.at, LeaseStage::Waiting(_))).map(|other| other.asked)
    }

    /// A holder has to leave for a waiter, because it is idle or though it is not.
    pub fn check_preempted(
        &self,
        now: Time,
        cause: &EventCause,
        book: &LeaseBook,
        waiter: Option<LeaseId>,
        idle: bool,
    ) -> Verdict {
        let lease = book.id;
        let restart = matches!(cause, EventCause::Started(..));
        must(17, !restart, || format!("{lease} has to leave at a start"))?;
        must(9, self.policy.parking.preempt, || format!("{lease} has to leave, and nobody has to in this house"))?;
        let LeaseStage::Held(held) = &book.at else {
            return must(5, false, || format!("{lease} has to leave, and it is {:?}", book.at));
        };
        let over = self.has_had_its_time(now, book, held, self.policy.overuse_grace);
        must(20, over || book.ask.preempt != Preempt::Never, || {
            format!("{lease} has to leave, and may stay: {:?}", book.ask)
        })?;
        let other = waiter.and_then(|waiter| self.leases.get(&waiter)).filter(|other| other.queued().is_some());
        let Some(other) = other else {
            return must(9, false, || format!("{lease} has to leave for {waiter:?}, which does not wait"));
        };
        self.check_its_turn(now, book, held, other, idle)?;
        self.check_asker(now, held, other)
    }

    /// It was idle for long, stands lower, or had its turn.
    fn check_its_turn(&self, now: Time, book: &LeaseBook, held: &HeldBook, other: &LeaseBook, idle: bool) -> Verdict {
        let (lease, parking) = (book.id, &self.policy.parking);
        let turn = held.began + parking.slice_min;
        must(9, !held.moved || turn <= now, || {
            format!("{lease} has to leave again at {now}, and came at {}", held.began)
        })?;
        let (own, theirs) = (book.ask.tier, other.ask.tier);
        if idle {
            let since = book.worked_at.max(held.began).max(self.grace_from);
            let least = Span(2 * self.policy.period.0) + if theirs <= own { Span::ZERO } else { parking.idle_after };
            return must(9, now.since(since) >= least, || {
                format!(
                    "{lease} has to leave at {now} as if it were idle, and worked at {since}; {least:?} is the least"
                )
            });
        }
        // Who was told, and still has more than its lease, stands lower than anybody.
        if self.has_had_its_time(now, book, held, self.policy.overuse_grace) {
            return Ok(());
        }
        let equal = own == theirs && other.ask.priority >= book.ask.priority && turn <= now;
        // Between those who waited when it came the queue has decided.
        let urgent = own > theirs && (turn <= now || other.queued().is_some_and(|since| since > held.began));
        must(9, urgent || equal, || {
            format!("{lease} ({own:?}) has to leave at {now} for {} ({theirs:?}): {held:?}", other.id)
        })
    }

    /// A waiter may ask for room, could use it, and has not enough of it coming.
    fn check_asker(&self, now: Time, held: &HeldBook, other: &LeaseBook) -> Verdict {
        let waiter = other.id;
        must(9, !self.is_held_back(other), || format!("room is made for {waiter}, which its quota holds back"))?;
        if let LeaseStage::Away(_, trip) = &other.at {
            let from = (trip.since + self.policy.parking.pause_after_park).max(other.rests.on(trip.rung));
            must(9, from <= now, || format!("room is made for {waiter} at {now}, which rests until {from}"))?;
        }
        let useful = held.cards.iter().any(|card| self.could_hold(other, &self.cards[*card]));
        must(9, useful, || format!("room is made for {waiter} on cards {:?}, where it cannot be", held.cards))?;
        let first = self.made_first == Some(waiter);
        let coming = self.cards.iter().filter(|card| self.comes_to(now, other, card)).count();
        must(5, !first || coming < usize::from(other.ask.gpus), || {
            format!("room is made for {waiter}, the first, and it has {coming} cards coming: {other:?}")
        })
    }

    /// Whether a waiter fits on a card once all who are leaving it have left.
    fn comes_to(&self, now: Time, waiter: &LeaseBook, card: &GpuBook) -> bool {
        let fresh = now.since(card.begun).0 <= 2 * self.policy.period.0;
        if !self.could_hold(waiter, card) || !fresh || matches!(card.look, SeenReading::Blind | SeenReading::Lost) {
            return false;
        }
        let mut room = self.promisable(card, now);
        for (lease, reserved) in &card.claims {
            let Some(other) = self.leases.get(lease).filter(|other| !other.is_parked()) else { continue };
            let seen = card.seen.iter().find(|(of, _)| of == lease).map_or(Bytes::ZERO, |(_, seen)| *seen);
            match &other.at {
                LeaseStage::Ending(..) => {}
                LeaseStage::Away(_, trip) if trip.way == MoveWay::Out => {}
                _ if stays_in_the_way(waiter, other) || self.is_unsafe_beside(waiter, *lease) => return false,
                _ => continue,
            }
            room = room + seen.max(*reserved).less(keeps(other, card));
        }
        !self.restores_on(card) && room >= self.need(waiter, card)
    }

    /// Whether the driver must not restore a waiter on its cards while another lease is there.
    fn is_unsafe_beside(&self, waiter: &LeaseBook, other: LeaseId) -> bool {
        let LeaseStage::Away(held, trip) = &waiter.at else { return false };
        let on = |number: &&usize| self.cards[**number].claims.contains_key(&other);
        let mut shared = held.cards.iter().filter(on);
        let is_restored = trip.needs_driver() && !waiter.ask.may_lose_state;
        is_restored && shared.any(|number| self.is_uncapped(other, *number) || self.had_more(other))
    }

    // ---- rule 2 on the driver's rung ------------------------------------------

    /// Whether the driver brings somebody back to a card.
    pub fn restores_on(&self, card: &GpuBook) -> bool {
        let restores = |lease: &LeaseId| match self.leases.get(lease).map(|book| &book.at) {
            Some(LeaseStage::Away(_, trip)) => trip.restores(),
            _ => false,
        };
        self.trips.iter().filter(|lease| card.claims.contains_key(lease)).any(restores)
    }

    /// Whether nobody on its cards could take what a restore needs: all of them are holders with the
    /// library in every program.
    pub fn sure_of_room(&self, lease: LeaseId, held: &HeldBook) -> Result<(), &'static str> {
        let has_more = |number: &usize| self.seen_of(lease, *number) > held.vram;
        if held.cards.iter().any(has_more) {
            return Err("it has more there than its lease");
        }
        self.others_keep_off(lease, held)?;
        let mut others = held.cards.iter().flat_map(|number| self.cards[*number].claims.keys());
        match others.any(|other| *other != lease && self.had_more(*other)) {
            true => Err("somebody may be back there with more than its lease"),
            false => Ok(()),
        }
    }

    /// Whether nothing of a holder is on cards that are not its own, from which the driver would take it too.
    pub fn keeps_to_its_cards(&self, now: Time, lease: LeaseId, held: &HeldBook) -> Result<(), &'static str> {
        let outside = (0..self.cards.len()).filter(|number| !held.cards.contains(number) && self.cards[*number].listed);
        for number in outside {
            let card = &self.cards[number];
            let stale = now.since(card.begun).0 > 2 * self.policy.period.0;
            match card.look {
                SeenReading::Lost => {}
                SeenReading::Blind => return Err("it may be on a card that cannot be read"),
                _ if stale => return Err("it may be on a card that was not read lately"),
                _ if self.own_on(lease, number).next().is_some() => return Err("it is on a card that is not its own"),
                _ => {}
            }
        }
        Ok(())
    }

    /// The same of everybody else there.
    pub fn others_keep_off(&self, lease: LeaseId, held: &HeldBook) -> Result<(), &'static str> {
        for number in &held.cards {
            let card = &self.cards[*number];
            if matches!(card.look, SeenReading::Blind | SeenReading::Lost) {
                return Err("nobody can see who is there");
            }
            let ours = |process: &&ProcKey| self.owners.get(process).is_some_and(|of| card.claims.contains_key(of));
            if !card.all.iter().all(|process| ours(&process)) {
                return Err("strangers are there");
            }
            if card.claims.keys().any(|other| *other != lease && self.is_uncapped(*other, *number)) {
                return Err("nothing keeps somebody there to its lease");
            }
        }
        Ok(())
    }

    /// Whether only other leases keep the driver from bringing a parked one back: once they have left it can.
    pub fn waits_for_holders(&self, now: Time, book: &LeaseBook) -> bool {
        let LeaseStage::Away(held, trip) = &book.at else { return false };
        let is_restored = trip.way == MoveWay::Gone && trip.needs_driver() && !book.ask.may_lose_state;
        if !is_restored || book.rests.on(trip.rung) > now || self.is_taken_up(book.id, held) {
            return false;
        }
        let is_open = |number: &usize| {
            let card = &self.cards[*number];
            let ours = |process: &ProcKey| self.owners.get(process).is_some_and(|of| card.claims.contains_key(of));
            let is_seen = !matches!(card.look, SeenReading::Blind | SeenReading::Lost) && card.all.iter().all(ours);
            is_seen && self.seen_of(book.id, *number) <= held.vram
        };
        let is_blocked = |number: &usize| {
            let is_there = |other: &LeaseId| self.leases.get(other).is_some_and(|book| !book.is_parked());
            let mut others = self.cards[*number].claims.keys().filter(|other| **other != book.id && is_there(other));
            others.any(|other| self.is_uncapped(*other, *number) || self.had_more(*other))
        };
        held.cards.iter().all(is_open) && held.cards.iter().any(is_blocked)
    }

    /// Whether a parked holder cannot come back now, room or not: it could not a moment ago, or the
    /// driver might lose it.
    pub fn cannot_try(&self, now: Time, book: &LeaseBook) -> bool {
        let LeaseStage::Away(held, trip) = &book.at else { return false };
        let unsure = trip.needs_driver() && !book.ask.may_lose_state && self.sure_of_room(book.id, held).is_err();
        let taken_up = || self.is_taken_up(book.id, held);
        trip.way == MoveWay::Gone && (book.rests.on(trip.rung) > now || unsure || taken_up())
    }
}

/// What stays on a card of a holder that leaves it: its context, while its processes live.
pub fn keeps(book: &LeaseBook, card: &GpuBook) -> Bytes {
    match &book.at {
        LeaseStage::Away(_, trip) if trip.way == MoveWay::Out && trip.rung != Method::Driver => {
            match card.is_coarse() {
                true => card.left(),
                false => card.facts.context.unwrap_or(CONTEXT),
            }
        }
        _ => Bytes::ZERO,
    }
}

/// Whether a waiter cannot be on a card with another that stays there.
fn stays_in_the_way(waiter: &LeaseBook, other: &LeaseBook) -> bool {
    match (waiter.ask.exclusivity, other.ask.exclusivity) {
        _ if waiter.ask.vram == Vram::Whole => true,
        (Exclusivity::Device, _) | (_, Exclusivity::Device) => true,
        (Exclusivity::Session, _) | (_, Exclusivity::Session) => waiter.tenant != other.tenant,
        (Exclusivity::Shared, Exclusivity::Shared) => false,
    }
}
