//! A waiter takes a smaller lease that could start now ([`crate::policy::offers`]).

use super::Decider;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::ids::LeaseId;
use crate::model::mutant::Mutant;
use crate::model::request::Vram;
use crate::model::rows::{Lease, Phase};
use crate::model::units::Bytes;
use crate::policy::board::{Board, Fit};
use crate::policy::offers::offers;
use crate::policy::offers::smaller;
use crate::policy::quota;

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
