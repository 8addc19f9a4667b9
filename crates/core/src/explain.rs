//! Why a lease waits: who is ahead, what stands in the way, when it should start.
//!
//! Read-only. Costs are bounded: places are counted to [`PLACE_MAX`], estimates
//! made for the first few waiters only.

use crate::ask::{Term, Vram};
use crate::decide::serve::{LOOK_AHEAD, eligible, fits_on, held_by, whole_least};
use crate::ids::{CardId, LeaseId};
use crate::room::Closed;
use crate::rows::{Hold, Lease, Phase, Service};
use crate::state::State;
use crate::units::{Bytes, Time};
use std::collections::BTreeMap;

/// Counting a waiter's place stops here.
pub const PLACE_MAX: usize = 256;

/// What keeps a waiter off a card now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It asked for other cards, or for more than this one has.
    NotEligible,
    /// An operator lets it run empty.
    Draining,
    /// Out of service.
    Out(String),
    /// It cannot be leased as it is set up.
    Unusable(String),
    /// The driver does not list it now.
    Missing,
    /// It cannot be read.
    Closed(Closed),
    /// Somebody's exclusivity, or the waiter's own wish for it.
    Exclusive,
    /// Others have leases there, and it wants a whole card.
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

/// Whether only its own tenant's caps hold it.
pub fn own_caps(state: &State, lease: &Lease) -> bool {
    held_by(state, lease).is_some()
}

/// What keeps this waiter off this card.
pub fn obstacle(state: &State, lease: &Lease, card: CardId, now: Time) -> Obstacle {
    let row = &state.rows().cards[card.0 as usize];
    match &row.service {
        Service::Draining => return Obstacle::Draining,
        Service::Out { why } => return Obstacle::Out(why.clone()),
        Service::In => {}
    }
    if let Some(why) = &row.facts.unusable {
        return Obstacle::Unusable(why.clone());
    }
    if !state.is_listed(card) {
        return Obstacle::Missing;
    }
    if !eligible(state, &lease.ask, card) {
        return Obstacle::NotEligible;
    }
    if let Err(closed) = state.room(card).open(now, state.policy().period) {
        return Obstacle::Closed(closed);
    }
    if state.excludes(card, lease.tenant, lease.ask.exclusivity) {
        return Obstacle::Exclusive;
    }
    if fits_on(state, lease, card, now).is_some() {
        return Obstacle::Claimed;
    }
    let room = state.promisable(card, now);
    match lease.ask.vram {
        Vram::Bytes(need) => Obstacle::TooFull { need, room },
        Vram::Whole if !state.room(card).claims().is_empty() => Obstacle::NotEmpty,
        Vram::Whole => Obstacle::TooFull { need: whole_least(state, card), room },
    }
}

/// Leases on a card with the latest moment each ends while somebody waits, first first.
pub fn blockers(state: &State, card: CardId, now: Time) -> Vec<(Time, &Lease, Bytes)> {
    let mut found: Vec<(Time, &Lease, Bytes)> = state
        .room(card)
        .claims()
        .iter()
        .filter_map(|(id, claim)| state.lease(*id).map(|lease| (lease, claim.counted())))
        .filter_map(|(lease, counted)| lease.hold().map(|hold| (ends_by(state, lease, hold, now), lease, counted)))
        .collect();
    found.sort_by_key(|(at, lease, _)| (*at, lease.id));
    found
}

/// The latest moment a holder keeps its lease while somebody waits for its card.
fn ends_by(state: &State, lease: &Lease, hold: &Hold, now: Time) -> Time {
    let until = state.rows().meta.due(hold.renewed, hold.until);
    match (&lease.phase, lease.ask.term) {
        (Phase::Ending(..), _) => now,
        (_, Term::Fixed(_)) => until,
        (_, Term::Renewed(_)) if hold.idle => until,
        (_, Term::Renewed(_)) => until.max(hold.granted + state.policy().hold_cap),
    }
}

/// When each of the first few waiters should start at the latest, if they are
/// served in turn and everybody ahead holds as long as it may. Who is not in it
/// is too far back, or nothing that is known to end makes its room.
pub fn estimates(state: &State, now: Time) -> BTreeMap<LeaseId, Time> {
    let mut plan = Plan::new(state, now);
    let mut starts = BTreeMap::new();
    for (id, _) in state.queue().iter().take(LOOK_AHEAD) {
        let Some(waiter) = state.lease(id).filter(|waiter| held_by(state, waiter).is_none()) else { continue };
        match plan.place(state, waiter) {
            Some(at) => drop(starts.insert(id, at)),
            // Nobody can say when this one starts, nor what is left for those behind it.
            None => break,
        }
    }
    starts
}

/// Where each of the first waiters stands: 1 is next.
pub fn places(state: &State) -> BTreeMap<LeaseId, usize> {
    state.queue().iter().take(PLACE_MAX).zip(1..).map(|((id, _), place)| (id, place)).collect()
}

/// Cards as they empty over time.
struct Plan {
    now: Time,
    cards: Vec<Emptying>,
}

/// What a card gives back, and when.
struct Emptying {
    card: CardId,
    free: Bytes,
    ends: Vec<(Time, Bytes)>,
}

impl Plan {
    fn new(state: &State, now: Time) -> Plan {
        let cards = state
            .cards()
            .filter(|card| state.in_service(*card) && state.room(*card).open(now, state.policy().period).is_ok())
            .map(|card| Emptying {
                card,
                free: state.promisable(card, now),
                ends: blockers(state, card, now).into_iter().map(|(at, _, counted)| (at, counted)).collect(),
            })
            .collect();
        Plan { now, cards }
    }

    /// Finds the first moment for a waiter, and books it from then on.
    fn place(&mut self, state: &State, waiter: &Lease) -> Option<Time> {
        let term = match waiter.ask.term {
            Term::Fixed(term) => term,
            Term::Renewed(_) => state.policy().hold_cap,
        };
        let mut starts: Vec<(Time, usize, Bytes)> = self
            .cards
            .iter()
            .enumerate()
            .filter(|(_, c)| eligible(state, &waiter.ask, c.card))
            .filter_map(|(n, c)| {
                let need = match waiter.ask.vram {
                    Vram::Bytes(vram) => vram,
                    Vram::Whole => whole_least(state, c.card),
                };
                c.first_with(need, self.now).map(|at| (at, n, need))
            })
            .collect();
        starts.sort();
        starts.truncate(usize::from(waiter.ask.gpus));
        let at = starts.last().filter(|_| starts.len() == usize::from(waiter.ask.gpus))?.0;
        for (_, n, need) in starts {
            self.cards[n].book(at, need, at + term);
        }
        Some(at)
    }
}

impl Emptying {
    fn first_with(&self, need: Bytes, now: Time) -> Option<Time> {
        let mut free = self.free;
        if free >= need {
            return Some(now);
        }
        for (at, bytes) in &self.ends {
            free = free + *bytes;
            if free >= need {
                return Some((*at).max(now));
            }
        }
        None
    }

    /// From `at` until `end` these bytes are taken: what ended before is used up first.
    fn book(&mut self, at: Time, need: Bytes, end: Time) {
        let over = self.ends.partition_point(|(ends, _)| *ends <= at);
        let freed: Bytes = self.ends.drain(..over).map(|(_, bytes)| bytes).sum();
        self.free = (self.free + freed).less(need);
        let position = self.ends.partition_point(|(ends, _)| *ends <= end);
        self.ends.insert(position, (end, need));
    }
}
