//! The queue is served: whoever is first gets its cards, or claims them.
//!
//! A waiter that does not fit claims the cards it would get soonest, and nobody
//! behind it may take those; so a large ask is not starved by small ones, and
//! cards it does not need are not kept idle for it.

use super::Turn;
use super::admit::would_do;
use crate::action::Action;
use crate::ask::{Ask, Exclusivity, Vram};
use crate::explain::blockers;
use crate::ids::{CardId, Epoch, LeaseId};
use crate::mutant::Mutant;
use crate::queue::Cursor;
use crate::rows::Lease;
use crate::state::State;
use crate::units::{Bytes, Time};
use std::cmp::Reverse;
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
        let mut hopeless = false;
        while looked < LOOK_AHEAD && claimed.len() < all {
            let Some((place, tenant)) = cursor.next(self.state.queue()) else { break };
            let Some(lease) = self.state.lease(place.1) else { break };
            match held_by(self.state, lease) {
                Some(Caps::Now) => continue,
                // A cap was lowered under it: it waits, but those behind it need not.
                Some(Caps::Always) => looked += 1,
                None => {
                    looked += 1;
                    match fit(self.state, lease, &claimed, self.now) {
                        Some((cards, vram)) => {
                            self.grant(place.1, cards, vram);
                            if std::mem::take(&mut hopeless) {
                                // A process on a card may have become somebody's: who had no hope may have now.
                                (cursor, claimed) = (Cursor::default(), BTreeSet::new());
                                continue;
                            }
                        }
                        None => {
                            let cards = soonest(self.state, lease, &claimed, self.now);
                            hopeless |= cards.is_empty();
                            claimed.extend(cards);
                        }
                    }
                }
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

/// How its own tenant's caps hold a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caps {
    /// Until another lease of the tenant ends.
    Now,
    /// Whatever ends: it asks for more than the tenant may have.
    Always,
}

/// Whether a waiter's own tenant has all it may have.
pub(crate) fn held_by(state: &State, lease: &Lease) -> Option<Caps> {
    let caps = state.policy().caps_for(state.tenant_name(lease.tenant));
    let load = state.load(lease.tenant);
    let wish = least_wish(state, &lease.ask);
    if caps.leases == Some(0) || caps.vram.is_some_and(|cap| wish > cap) {
        return Some(Caps::Always);
    }
    let full = caps.leases.is_some_and(|cap| load.leases >= cap) || caps.vram.is_some_and(|cap| load.vram + wish > cap);
    full.then_some(Caps::Now)
}

/// The least an ask would put on the books. How much a whole card is shows only once one is found;
/// all of the smallest that would be enough of them is what must be allowed for.
pub(crate) fn least_wish(state: &State, ask: &Ask) -> Bytes {
    let each = match ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => {
            let cards = state.cards().filter(|card| would_do(state, ask, *card));
            let mut sizes: Vec<Bytes> = cards.map(|card| state.room(card).largest_ever()).collect();
            sizes.sort();
            sizes.get(usize::from(ask.gpus).max(1) - 1).copied().unwrap_or_default()
        }
    };
    Bytes(each.0.saturating_mul(u64::from(ask.gpus)))
}

/// Whether its tenant may ever hold so much of a whole card.
fn whole_is_allowed(state: &State, lease: &Lease, card: CardId) -> bool {
    let caps = state.policy().caps_for(state.tenant_name(lease.tenant));
    let all = state.room(card).largest_ever().0.saturating_mul(u64::from(lease.ask.gpus));
    caps.vram.is_none_or(|cap| all <= cap.0)
}

fn within_caps(state: &State, lease: &Lease, vram: Bytes) -> bool {
    let caps = state.policy().caps_for(state.tenant_name(lease.tenant));
    let wish = Bytes(vram.0.saturating_mul(u64::from(lease.ask.gpus)));
    caps.vram.is_none_or(|cap| state.load(lease.tenant).vram + wish <= cap)
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
    if !within_caps(state, lease, vram) {
        return None;
    }
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
        Vram::Whole => {
            let empty = state.room(card).claims().is_empty();
            empty && room >= whole_least(state, card) && whole_is_allowed(state, lease, card)
        }
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

/// The cards a waiter that does not fit waits for: those that leases give back first.
/// None, if the end of every lease would not be enough: cards are not kept idle for what
/// strangers, a drain or a fault prevent.
fn soonest(state: &State, lease: &Lease, taken: &BTreeSet<CardId>, now: Time) -> Vec<CardId> {
    let wanted = usize::from(lease.ask.gpus);
    let able: Vec<CardId> = state.cards().filter(|card| could_hold(state, lease, *card)).collect();
    if able.len() < wanted {
        return Vec::new();
    }
    let mut open: Vec<CardId> = able.into_iter().filter(|card| !taken.contains(card)).collect();
    if open.len() > wanted {
        open.sort_by_cached_key(|card| {
            (frees_at(state, lease, *card, now), Reverse(state.promisable(*card, now)), *card)
        });
        open.truncate(wanted);
    }
    open
}

/// Whether the waiter could start on this card if every lease there ended.
fn could_hold(state: &State, lease: &Lease, card: CardId) -> bool {
    let room = state.room(card);
    let need = match lease.ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => whole_least(state, card),
    };
    let allowed = lease.ask.vram != Vram::Whole || whole_is_allowed(state, lease, card);
    let alone = lease.ask.exclusivity == Exclusivity::Shared || state.strangers(card) == 0;
    eligible(state, &lease.ask, card)
        && allowed
        && alone
        && need <= room.largest_ever().less(room.loose().unwrap_or_default())
}

/// When leases will have given back enough of a card for this waiter.
fn frees_at(state: &State, lease: &Lease, card: CardId, now: Time) -> Time {
    let ends = blockers(state, card, now);
    let last = ends.last().map_or(now, |(at, _, _)| *at);
    match lease.ask.vram {
        Vram::Bytes(need) if !state.excludes(card, lease.tenant, lease.ask.exclusivity) => {
            let mut room = state.promisable(card, now);
            let enough = ends.iter().find(|(_, _, counted)| {
                room = room + *counted;
                room >= need
            });
            enough.map_or(last, |(at, _, _)| *at)
        }
        _ => last,
    }
}

/// Whether somebody near the head of the queue could use what this holder has.
pub(crate) fn wanted(state: &State, holder: &Lease, cards: &[CardId]) -> bool {
    let mut cursor = Cursor::default();
    for _ in 0..LOOK_AHEAD {
        let Some((place, tenant)) = cursor.next(state.queue()) else { return false };
        let Some(lease) = state.lease(place.1) else { return false };
        // Who is held by its own caps has no use for anybody's room, but for its own tenant's.
        match held_by(state, lease) {
            Some(Caps::Now) if lease.tenant == holder.tenant => return true,
            Some(Caps::Now) => continue,
            None if cards.iter().any(|card| eligible(state, &lease.ask, *card)) => return true,
            _ => cursor.go_on(state.queue(), place, tenant),
        }
    }
    false
}
