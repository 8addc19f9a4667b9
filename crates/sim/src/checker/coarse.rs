//! Cards of which a look tells what they have and not whose it is: one holder at a time moves there, in the library's
//! way; its cards must have lost seven eighths of what its programs say, and nobody who was beside it may have gone.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::park::{LITTLE, MoveBook, MoveWay};
use std::collections::BTreeMap;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::units::Bytes;

/// A card when somebody began to leave it.
#[derive(Clone, Debug)]
pub struct OtherLeases {
    taken: Bytes,
    leases: Vec<LeaseId>,
    processes: Vec<ProcKey>,
}

impl CheckerBooks {
    /// Whether a holder's cards have lost what its programs say, while nobody else went from them.
    pub(super) fn shows_less(&self, held: &HeldBook, trip: &MoveBook, said: Bytes) -> bool {
        let mut lost = Bytes::ZERO;
        for number in &held.cards {
            let (card, before) = (&self.cards[*number], trip.before.get(number));
            let (Some(before), Some(taken)) = (before, card.taken()) else { return false };
            let stayed = before.leases.iter().all(|other| card.claims.contains_key(other))
                && before.processes.iter().all(|process| card.all.contains(process));
            if card.is_coarse() && !stayed {
                return false;
            }
            lost = lost + before.taken.less(taken);
        }
        said <= LITTLE || lost.0 >= said.0 / 8 * 7
    }

    /// What a holder's cards have beside its own, if one of them does not tell whose is what.
    pub(super) fn beside(&self, lease: LeaseId, held: &HeldBook) -> BTreeMap<usize, OtherLeases> {
        let of = |number: &usize| {
            let card = &self.cards[*number];
            let others = card.all.iter().filter(|process| self.owners.get(process) != Some(&lease));
            let leases = card.claims.keys().filter(|other| **other != lease).copied().collect();
            Some((*number, OtherLeases { taken: card.taken()?, leases, processes: others.copied().collect() }))
        };
        let hidden = held.cards.iter().any(|number| self.cards[*number].is_coarse());
        held.cards.iter().filter(|_| hidden).filter_map(of).collect()
    }

    /// What a holder has on its cards: what was seen of it, or what its lease allows where nobody can see it.
    pub(super) fn has_in_all(&self, lease: LeaseId, held: &HeldBook) -> Bytes {
        let on = |number: &usize| match self.cards[*number].is_coarse() {
            true => held.vram,
            false => self.seen_of(lease, *number),
        };
        held.cards.iter().map(on).sum()
    }

    /// What a parked lease counts with on a card.
    pub fn left_of(&self, lease: LeaseId, number: usize) -> Bytes {
        let card = &self.cards[number];
        let parked = self.leases.get(&lease).is_some_and(LeaseBook::is_parked) && card.claims.contains_key(&lease);
        if card.is_coarse() && parked { card.left() } else { self.seen_of(lease, number) }
    }

    /// Whether somebody else's bytes go from a card or come to it that does not tell whose they are.
    pub fn is_taken_up(&self, lease: LeaseId, held: &HeldBook) -> bool {
        let goes = |other: &LeaseId| match self.leases.get(other).map(|book| &book.at) {
            Some(LeaseStage::Away(_, trip)) => trip.way != MoveWay::Gone,
            Some(LeaseStage::Ending(..)) => true,
            _ => false,
        };
        let coarse = held.cards.iter().map(|number| &self.cards[*number]).filter(|card| card.is_coarse());
        coarse.flat_map(|card| card.claims.keys()).any(|other| *other != lease && goes(other))
    }
}
