//! The cards while the queue is served: what each can promise, and who claims it.
//!
//! A waiter that does not fit claims the cards it would get soonest, a gang all of its cards, for
//! the moment when the leases there will have given back enough. Those behind it may use a claimed
//! card only as far as that does not move the moment: for bytes that will be left over then, or for
//! a term that is over by then and is not renewed beyond it. So a large ask is not starved by small
//! ones, and no card is idle for it that could do something useful meanwhile.

use super::admit::would_do;
use super::serve::{eligible, free_to_start, need, whole_is_allowed, whole_least};
use crate::ask::{Exclusivity, Vram};
use crate::ids::{CardId, LeaseId};
use crate::mutant::Mutant;
use crate::quota;
use crate::rows::Lease;
use crate::state::State;
use crate::units::{Bytes, Time};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Waiters that may claim cards at a time. Each takes some reckoning; who comes later claims when
/// one of them was served.
const CLAIMANTS: usize = 4;
/// Beyond the cards it needs, so many of the roomiest are looked at for when they will do.
const CANDIDATES: usize = 8;

/// All cards, for one round.
pub(crate) struct Board {
    now: Time,
    slots: Vec<Slot>,
    claimants: usize,
}

/// One card.
struct Slot {
    card: CardId,
    /// What it can promise now.
    room: Bytes,
    /// Nobody has a lease there.
    empty: bool,
    claim: Option<Claim>,
}

/// Somebody will have this card.
#[derive(Clone, Copy)]
struct Claim {
    /// Then.
    at: Time,
    /// And so much will be left over.
    spare: Bytes,
}

/// Where a waiter could start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// On these cards, in order.
    pub cards: Vec<CardId>,
    /// With so much of each.
    pub vram: Bytes,
    /// If it is over by then.
    pub before: Option<Time>,
}

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// It has its cards, or as many as others had left; or enough others claim already.
    Yes,
    /// Whatever ends, it would not fit: cards are not kept for what strangers, a drain or a fault
    /// prevent.
    Hopeless,
}

/// A card as one waiter sees it.
struct Seen {
    card: CardId,
    room: Bytes,
    /// What it may have of it, and when it must be over then.
    most: Bytes,
    before: Option<Time>,
}

impl Board {
    /// The cards as they are.
    pub fn new(state: &State, now: Time) -> Board {
        let slot = |card| Slot {
            card,
            room: state.promisable(card, now),
            empty: state.room(card).claims().is_empty(),
            claim: None,
        };
        Board { now, slots: state.cards().map(slot).collect(), claimants: 0 }
    }

    /// The cards as they are for a waiter, after all those ahead of it.
    pub fn behind(state: &State, now: Time, lease: LeaseId) -> Board {
        let mut board = Board::new(state, now);
        for ahead in free_to_start(state).take_while(|ahead| ahead.id != lease) {
            match board.fit(state, ahead) {
                Some(fit) => board.take(&fit),
                None => drop(board.claim(state, ahead)),
            }
        }
        board
    }

    /// Whether there is a card on which any waiter might start; on a full house there is none, and
    /// nobody need be looked at.
    pub fn has_room(&self, (whole, least): (bool, Option<Bytes>)) -> bool {
        let enough = |slot: &Slot| least.is_some_and(|least| slot.room >= least) || (whole && slot.empty);
        self.slots.iter().any(|slot| slot.room > Bytes::ZERO && enough(slot))
    }

    /// Where a waiter could start now, on the tightest cards that fit, so that large rooms stay whole.
    pub fn fit(&self, state: &State, lease: &Lease) -> Option<Fit> {
        let wanted = usize::from(lease.ask.gpus);
        let mut seen: Vec<Seen> = self.slots.iter().filter_map(|slot| self.see(state, lease, slot)).collect();
        if let Vram::Bytes(vram) = lease.ask.vram {
            seen.retain(|seen| seen.most >= vram);
        }
        if state.planted(Mutant::PartialGang) && !seen.is_empty() {
            return self.place(state, lease, lease.ask.vram, 1, seen);
        }
        if seen.len() < wanted {
            return None;
        }
        self.place(state, lease, lease.ask.vram, wanted, seen)
    }

    /// The most that could start now on so many cards, if it is less than what was asked for.
    pub fn less(&self, state: &State, lease: &Lease, gpus: u16, least: Bytes) -> Option<Fit> {
        let mut seen: Vec<Seen> = self.slots.iter().filter_map(|slot| self.see(state, lease, slot)).collect();
        seen.sort_by_key(|seen| (Reverse(seen.most), seen.card));
        let most = seen.get(usize::from(gpus).checked_sub(1)?)?.most;
        let most = match lease.ask.vram {
            Vram::Bytes(full) => most.min(full),
            Vram::Whole => most,
        };
        let each = quota::most_each(state, lease, gpus, most);
        seen.retain(|seen| seen.most >= each);
        let context = seen.iter().map(|seen| context(state, seen.card)).max()?;
        if each < least.max(context).max(Bytes(1)) {
            return None;
        }
        self.place(state, lease, Vram::Bytes(each), usize::from(gpus), seen)
    }

    /// What a waiter may have of a card now.
    fn see(&self, state: &State, lease: &Lease, slot: &Slot) -> Option<Seen> {
        // The cheapest look first: on a busy host most cards are full.
        let least = match (lease.ask.vram, lease.ask.at_least) {
            (Vram::Bytes(vram), None) => vram,
            (_, least) => least.unwrap_or(Bytes(1)),
        };
        if slot.room < least {
            return None;
        }
        let whole = lease.ask.vram == Vram::Whole && lease.ask.at_least.is_none();
        if whole && !(slot.empty && slot.room >= whole_least(state, slot.card)) {
            return None;
        }
        if !would_do(state, &lease.ask, slot.card) || !state.in_service(slot.card) {
            return None;
        }
        if state.excludes(slot.card, lease.tenant, lease.ask.exclusivity) {
            return None;
        }
        let over = self.now + lease.ask.term.span();
        let (most, before) = match slot.claim {
            None => (slot.room, None),
            Some(claim) if over <= claim.at => (slot.room, Some(claim.at)),
            // Who wants to be alone would be in the way, however few bytes it takes.
            Some(_) if lease.ask.exclusivity != Exclusivity::Shared => return None,
            Some(claim) => (slot.room.min(claim.spare), None),
        };
        (most >= least).then_some(Seen { card: slot.card, room: slot.room, most, before })
    }

    /// Chooses among cards that all would do: those nobody claims, near one another, the tightest.
    fn place(&self, state: &State, lease: &Lease, vram: Vram, wanted: usize, mut seen: Vec<Seen>) -> Option<Fit> {
        if let Vram::Bytes(vram) = vram {
            seen.retain(|seen| context(state, seen.card) <= vram);
            // Bytes that will be left over need no end.
            let shared = lease.ask.exclusivity == Exclusivity::Shared;
            for seen in &mut seen {
                let claim = self.slots[seen.card.0 as usize].claim;
                seen.before = seen.before.filter(|_| claim.is_some_and(|claim| !shared || vram > claim.spare));
            }
        } else {
            seen.retain(|seen| {
                let empty = self.slots[seen.card.0 as usize].empty;
                let all = empty && seen.most == seen.room && seen.room >= whole_least(state, seen.card);
                all && whole_is_allowed(state, lease, seen.card)
            });
        }
        seen.sort_by_key(|seen| (seen.before.is_some(), seen.room, seen.card));
        let chosen = if wanted > 1 { near_one_another(state, wanted, seen) } else { seen };
        let chosen = chosen.get(..wanted)?;
        let vram = match vram {
            Vram::Bytes(vram) => vram,
            Vram::Whole => chosen.iter().map(|seen| seen.room).min()?,
        };
        if !quota::may_hold(state, lease.tenant, Bytes(vram.0.saturating_mul(wanted as u64))) {
            return None;
        }
        let before = chosen.iter().filter_map(|seen| seen.before).min();
        let mut cards: Vec<CardId> = chosen.iter().map(|seen| seen.card).collect();
        cards.sort();
        Some(Fit { cards, vram, before })
    }

    /// A waiter gets its cards.
    fn take(&mut self, fit: &Fit) {
        for card in &fit.cards {
            let slot = &mut self.slots[card.0 as usize];
            slot.room = slot.room.less(fit.vram);
            slot.empty = false;
            // A gang may be let past one card's claim by its end, and past another's by its size.
            if let Some(claim) = &mut slot.claim
                && fit.before.is_none_or(|before| before > claim.at)
            {
                claim.spare = claim.spare.less(fit.vram);
            }
        }
    }

    /// A waiter got its cards, and the state knows: where a card is coarse, it knows better.
    pub fn taken(&mut self, state: &State, fit: &Fit) {
        self.take(fit);
        for card in &fit.cards {
            self.slots[card.0 as usize].room = state.promisable(*card, self.now);
        }
    }

    /// A waiter that does not fit claims the cards that leases give back first.
    pub fn claim(&mut self, state: &State, lease: &Lease) -> Claimed {
        if self.claimants == CLAIMANTS {
            return Claimed::Yes;
        }
        let wanted = usize::from(lease.ask.gpus);
        let able: Vec<&Slot> = self.slots.iter().filter(|slot| could_hold(state, lease, slot.card)).collect();
        if able.len() < wanted {
            return Claimed::Hopeless;
        }
        self.claimants += 1;
        let open = able.into_iter().filter(|slot| slot.claim.is_none());
        let mut open: Vec<(Reverse<Bytes>, CardId)> = open.map(|slot| (Reverse(slot.room), slot.card)).collect();
        open.sort();
        open.truncate(wanted + CANDIDATES);
        let mut open: Vec<(Time, Reverse<Bytes>, CardId)> =
            open.into_iter().map(|(room, card)| (self.frees_at(state, lease, card), room, card)).collect();
        open.sort();
        open.truncate(wanted);
        let at = open.last().map_or(self.now, |(at, _, _)| *at);
        for (_, _, card) in open {
            let spare = self.spare(state, lease, card, at);
            self.slots[card.0 as usize].claim = Some(Claim { at, spare });
        }
        Claimed::Yes
    }

    /// When leases will have given back enough of a card for this waiter.
    fn frees_at(&self, state: &State, lease: &Lease, card: CardId) -> Time {
        let ends = state.room(card).ends();
        let last = ends.last().map_or(self.now, |(at, _, _)| state.over_by(*at, self.now));
        let Vram::Bytes(need) = lease.ask.vram else { return last };
        let mut room = self.slots[card.0 as usize].room;
        let enough = if room >= need {
            self.now
        } else {
            let enough = ends.iter().find(|(_, _, bytes)| {
                room = room + *bytes;
                room >= need
            });
            enough.map_or(last, |(at, _, _)| state.over_by(*at, self.now))
        };
        enough.max(self.opens_at(state, lease, card))
    }

    /// When nobody's exclusivity keeps the waiter off a card any more, nor its own wish for it.
    fn opens_at(&self, state: &State, lease: &Lease, card: CardId) -> Time {
        if !state.excludes(card, lease.tenant, lease.ask.exclusivity) {
            return self.now;
        }
        let in_the_way = state.room(card).claims().values().filter(|claim| {
            let other = claim.tenant != lease.tenant;
            match (lease.ask.exclusivity, claim.exclusivity) {
                (Exclusivity::Device, _) | (_, Exclusivity::Device) => true,
                (Exclusivity::Session, _) | (_, Exclusivity::Session) => other,
                (Exclusivity::Shared, Exclusivity::Shared) => false,
            }
        });
        in_the_way.map(|claim| state.over_by(claim.ends, self.now)).max().unwrap_or(self.now)
    }

    /// What will be left over of a card when the waiter has what it needs.
    fn spare(&self, state: &State, lease: &Lease, card: CardId, at: Time) -> Bytes {
        let (Vram::Bytes(need), Exclusivity::Shared) = (lease.ask.vram, lease.ask.exclusivity) else {
            return Bytes::ZERO;
        };
        let ends = state.room(card).ends().iter();
        let back: Bytes =
            ends.take_while(|(ends, _, _)| state.over_by(*ends, self.now) <= at).map(|(_, _, bytes)| *bytes).sum();
        (self.slots[card.0 as usize].room + back).less(need)
    }
}

/// What a CUDA context alone takes.
fn context(state: &State, card: CardId) -> Bytes {
    state.rows().cards[card.0 as usize].facts.context.unwrap_or_default()
}

/// Of cards in order of preference, those of one board first, if one has enough of them, or else
/// those of one memory node: where the fewest others are, so that large gangs find theirs.
fn near_one_another(state: &State, wanted: usize, seen: Vec<Seen>) -> Vec<Seen> {
    let facts = |seen: &Seen| &state.rows().cards[seen.card.0 as usize].facts;
    let board = |seen: &Seen| facts(seen).board;
    let node = |seen: &Seen| facts(seen).node;
    let free = |seen: &&Seen| seen.before.is_none();
    let best = |place: &dyn Fn(&Seen) -> Option<u32>| {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for number in seen.iter().filter(free).filter_map(place) {
            *counts.entry(number).or_default() += 1;
        }
        let enough = counts.into_iter().filter(|(_, count)| *count >= wanted);
        enough.min_by_key(|(number, count)| (*count, *number)).map(|(number, _)| number)
    };
    let (best_board, best_node) = (best(&board), best(&node));
    let is_near = |seen: &Seen| match (best_board, best_node) {
        (None, None) => false,
        (None, best) => node(seen) == best,
        (best, _) => board(seen) == best,
    };
    let (mut near, far): (Vec<Seen>, Vec<Seen>) = seen.into_iter().partition(|seen| free(&seen) && is_near(seen));
    near.extend(far);
    near
}

/// Whether the waiter could start on this card if every lease there ended.
pub(crate) fn could_hold(state: &State, lease: &Lease, card: CardId) -> bool {
    let room = state.room(card);
    let allowed = lease.ask.vram != Vram::Whole || whole_is_allowed(state, lease, card);
    let alone = lease.ask.exclusivity == Exclusivity::Shared || state.strangers(card) == 0;
    eligible(state, &lease.ask, card)
        && allowed
        && alone
        && need(state, &lease.ask, card) <= room.largest_ever().less(room.loose().unwrap_or_default())
}
