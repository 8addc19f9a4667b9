//! Less than was asked for, at once: what could start now, and taking it.

use super::Decider;
use super::board::{Board, Fit};
use crate::event::{Caller, EventAnswer, Refusal};
use crate::ids::LeaseId;
use crate::mutant::Mutant;
use crate::quota;
use crate::request::{LeaseRequest, Vram};
use crate::rows::{Lease, Phase};
use crate::state::State;
use crate::units::{Bytes, Time};

/// A smaller lease that could start now. Nothing is kept for it: whoever takes it first has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// So much of each card.
    pub vram: Bytes,
    /// On so many cards.
    pub gpus: u16,
    /// If it is over by then: somebody ahead needs the cards.
    pub before: Option<Time>,
}

impl Decider<'_> {
    /// A waiter takes less, and is a waiter no more.
    pub(super) fn accept(&mut self, by: &Caller, lease: LeaseId, vram: Bytes, gpus: u16) -> EventAnswer {
        if self.is_overusing(by, lease) {
            return self.accept_larger(by, lease, vram, gpus);
        }
        // A wish that makes no sense is refused even of who could have all that it asked for.
        let sense = |row: &Lease| smaller(row, vram, gpus).request.check().map_err(Refusal::BadAsk);
        if let Err(refusal) = self.waiting(by, lease).and_then(sense) {
            return EventAnswer::Refused(refusal);
        }
        // Whoever can start now does so first; it may be this one, with all that it asked for.
        self.serve();
        if self.waiting(by, lease).is_err() {
            return EventAnswer::Lease(lease);
        }
        match self.acceptable(by, lease, vram, gpus) {
            Ok(fit) => {
                self.grant(lease, &fit);
                // What it claimed is there for those behind it.
                self.serve();
                EventAnswer::Lease(lease)
            }
            Err(refusal) => EventAnswer::Refused(refusal),
        }
    }

    fn waiting(&self, by: &Caller, lease: LeaseId) -> Result<&Lease, Refusal> {
        let row = self.find(by, lease)?;
        match row.phase {
            Phase::Waiting { .. } => self.state.stopped().map_or(Ok(row), Err),
            Phase::Ending(..) => Err(Refusal::Ended),
            _ => Err(Refusal::NotWaiting),
        }
    }

    fn acceptable(&self, by: &Caller, lease: LeaseId, vram: Bytes, gpus: u16) -> Result<Fit, Refusal> {
        let row = self.waiting(by, lease)?;
        // Less in both ways, or as much: who wants more asks anew.
        let less = gpus <= row.request.gpus && !matches!(row.request.vram, Vram::Bytes(asked) if vram > asked);
        let smaller = smaller(row, vram, gpus);
        if let Some(held) = quota::block(self.state, &smaller) {
            return Err(Refusal::OverQuota(held));
        }
        let board = if self.state.planted(Mutant::GreedyOffer) {
            Some(Board::new(self.state, self.now))
        } else {
            Board::behind_waiter(self.state, self.now, lease)
        };
        let fit = board.and_then(|board| board.fit(self.state, &smaller));
        fit.filter(|_| less).ok_or_else(|| {
            let instead = offers(self.state, row, self.now).into_iter().next();
            Refusal::NoSuchOffer { instead: instead.map(|offer| (offer.vram, offer.gpus)) }
        })
    }
}

/// The same waiter with a smaller wish.
fn smaller(lease: &Lease, vram: Bytes, gpus: u16) -> Lease {
    let ask = LeaseRequest { vram: Vram::Bytes(vram), gpus, at_least: None, ..lease.request.clone() };
    Lease { request: ask, ..lease.clone() }
}

/// What a waiter could have now instead of waiting: less of as many cards, or fewer cards.
pub fn offers(state: &State, lease: &Lease, now: Time) -> Vec<Offer> {
    if state.is_stopped() || !matches!(lease.phase, Phase::Waiting { .. }) {
        return Vec::new();
    }
    // Nothing is offered to who is further back than anybody looks: who is ahead might need it.
    let Some(board) = Board::behind_waiter(state, now, lease.id) else { return Vec::new() };
    let mut found: Vec<Offer> = Vec::new();
    // Any size will do for an offer; its taker decides.
    let open = Lease { request: LeaseRequest { at_least: Some(Bytes(1)), ..lease.request.clone() }, ..lease.clone() };
    let mut gpus = lease.request.gpus;
    while gpus > 0 {
        if let Some(Fit { vram, before, .. }) = board.fit_smaller(state, &open, gpus, Bytes(1)) {
            let better = found.last().is_none_or(|last| vram > last.vram);
            let allowed = quota::block(state, &smaller(lease, vram, gpus)).is_none();
            if better && allowed {
                found.push(Offer { vram, gpus, before });
            }
        }
        // Half a gang is of use, one card less seldom.
        gpus /= 2;
    }
    found
}
