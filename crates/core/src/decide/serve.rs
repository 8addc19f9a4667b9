//! The queue is served: whoever is first gets its cards, or claims them.
//!
//! A waiter that does not fit claims the cards it would get soonest, and nobody
//! behind it may take those; so a large ask is not starved by small ones, and
//! cards it does not need are not kept idle for it.

use super::Turn;
use super::admit::would_do;
use crate::action::Action;
use crate::ask::{Ask, Vram};
use crate::ids::{CardId, Epoch, LeaseId, TenantId};
use crate::mutant::Mutant;
use crate::queue::Cursor;
use crate::rows::Lease;
use crate::state::State;
use crate::units::{Bytes, Time};
use std::collections::BTreeSet;

/// So many waiters are looked at for one event; more would cost time and help few.
pub(crate) const LOOK_AHEAD: usize = 64;

/// A whole card is one of which at least so many hundredths are really there for
/// the asker: a desktop's few hundred MiB do not matter, a stranger's model does.
const WHOLE_PERCENT: u64 = 75;

impl Turn<'_> {
    pub(super) fn serve(&mut self) {
        if self.state.queue().is_empty() || self.state.disk_full {
            return;
        }
        let mut cursor = Cursor::default();
        let mut claimed = BTreeSet::new();
        let all = self.state.cards().filter(|card| self.state.in_service(*card)).count();
        let mut looked = 0;
        while looked < LOOK_AHEAD && claimed.len() < all {
            let Some((place, tenant)) = cursor.next(self.state.queue()) else { break };
            let Some(lease) = self.state.lease(place.1) else { break };
            if held_by_own_caps(self.state, lease) {
                continue;
            }
            looked += 1;
            match fit(self.state, lease, &claimed, self.now) {
                Some((cards, vram)) => self.grant(place.1, cards, vram),
                None => claimed.extend(soonest(self.state, lease, &claimed, self.now)),
            }
            cursor.go_on(self.state.queue(), place, tenant);
        }
    }

    fn grant(&mut self, lease: LeaseId, cards: Vec<CardId>, vram: Bytes) {
        let Some(row) = self.state.lease(lease) else { return };
        let until = self.now + row.ask.term.span();
        let epoch = match self.state.rows().meta.next_epoch {
            _ if self.state.planted(Mutant::ReuseEpoch) => Epoch(1),
            next => next,
        };
        self.emit(Action::Grant { lease, cards, vram, epoch, at: self.now, until });
    }
}

/// Whether a waiter's own tenant has all it may have.
pub(crate) fn held_by_own_caps(state: &State, lease: &Lease) -> bool {
    let caps = state.policy().caps_for(state.tenant_name(lease.tenant));
    let load = state.load(lease.tenant);
    let wish = match lease.ask.vram {
        Vram::Bytes(vram) => Bytes(vram.0.saturating_mul(u64::from(lease.ask.gpus))),
        // Known only once a card is found; at the least a share of the smallest.
        Vram::Whole => smallest_whole(state, &lease.ask),
    };
    caps.leases.is_some_and(|cap| load.leases >= cap) || caps.vram.is_some_and(|cap| load.vram + wish > cap)
}

fn smallest_whole(state: &State, ask: &Ask) -> Bytes {
    let sizes = state.cards().filter(|c| would_do(state, ask, *c)).map(|c| state.room(c).largest_ever());
    Bytes(sizes.min().unwrap_or_default().0.saturating_mul(u64::from(ask.gpus)))
}

/// Cards on which the waiter could start now, and what it would get of each:
/// the tightest that fit, so that large rooms stay whole.
fn fit(state: &State, lease: &Lease, taken: &BTreeSet<CardId>, now: Time) -> Option<(Vec<CardId>, Bytes)> {
    let mut fitting: Vec<(Bytes, CardId)> = state
        .cards()
        .filter(|card| !taken.contains(card))
        .filter_map(|card| fits_on(state, lease, card, now).map(|room| (room, card)))
        .collect();
    let wanted = usize::from(lease.ask.gpus);
    if fitting.len() < wanted {
        return None;
    }
    fitting.sort();
    fitting.truncate(wanted);
    let vram = match lease.ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => fitting.iter().map(|(room, _)| *room).min()?,
    };
    let mut cards: Vec<CardId> = fitting.into_iter().map(|(_, card)| card).collect();
    cards.sort();
    Some((cards, vram))
}

/// How much the card could promise this waiter, if that is enough.
pub(crate) fn fits_on(state: &State, lease: &Lease, card: CardId, now: Time) -> Option<Bytes> {
    if !eligible(state, &lease.ask, card) || state.excludes(card, lease.tenant, lease.ask.exclusivity) {
        return None;
    }
    let room = state.promisable(card, now);
    let enough = match lease.ask.vram {
        Vram::Bytes(vram) => vram <= room,
        Vram::Whole => state.room(card).claims().is_empty() && room >= whole_least(state, card),
    };
    enough.then_some(room)
}

/// The least that passes for a whole card.
pub(crate) fn whole_least(state: &State, card: CardId) -> Bytes {
    Bytes(state.room(card).largest_ever().0 / 100 * WHOLE_PERCENT)
}

/// Whether the waiter could ever start on this card.
pub(crate) fn eligible(state: &State, ask: &Ask, card: CardId) -> bool {
    let facts = &state.rows().cards[card.0 as usize].facts;
    let sized = match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(card).largest_ever() && vram >= facts.context.unwrap_or_default(),
        Vram::Whole => true,
    };
    sized && state.in_service(card) && would_do(state, ask, card)
}

/// The cards a waiter that does not fit waits for: the emptiest that would do.
fn soonest(state: &State, lease: &Lease, taken: &BTreeSet<CardId>, now: Time) -> Vec<CardId> {
    let mut open: Vec<(std::cmp::Reverse<Bytes>, CardId)> = state
        .cards()
        .filter(|card| !taken.contains(card) && eligible(state, &lease.ask, *card))
        .map(|card| (std::cmp::Reverse(state.promisable(card, now)), card))
        .collect();
    open.sort();
    open.into_iter().take(usize::from(lease.ask.gpus)).map(|(_, card)| card).collect()
}

/// Whether somebody near the head of the queue could use one of these cards.
pub(crate) fn wanted(state: &State, cards: &[CardId]) -> bool {
    let waiter = |(lease, _): (LeaseId, TenantId)| {
        state.lease(lease).is_some_and(|row| cards.iter().any(|card| eligible(state, &row.ask, *card)))
    };
    state.queue().iter().take(LOOK_AHEAD).any(waiter)
}
