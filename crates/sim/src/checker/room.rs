//! Rule 1: what may be promised, recomputed from the readings delivered and the
//! leases on the books.

use super::books::{CheckerBooks, GpuBook, LeaseBook, LeaseStage, SeenReading};
use super::{Verdict, must};
use std::borrow::Cow;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{Exclusivity, LeaseRequest, Vram};
use sublet_core::units::{Bytes, Time};

impl CheckerBooks {
    /// Bytes that may be promised on a card.
    pub fn promisable(&self, card: &GpuBook, now: Time) -> Bytes {
        self.promisable_but(card, now, None)
    }

    /// The same to a parked lease that has some bytes there already.
    pub fn promisable_but(&self, card: &GpuBook, now: Time, own: Option<LeaseId>) -> Bytes {
        let stale = now.since(card.begun).0 > 2 * self.policy.period.0;
        if !self.open(card) || stale || self.restores_on(card) {
            return Bytes::ZERO;
        }
        let total = card.facts.total;
        let committed = match card.look {
            SeenReading::Blind | SeenReading::Lost => return Bytes::ZERO,
            SeenReading::Coarse(free) => {
                let parked = |lease: &&LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_parked);
                let left = card.left().0 * card.claims.keys().filter(parked).count() as u64;
                let own = own.filter(|own| card.claims.contains_key(own)).map_or(Bytes::ZERO, |_| card.left());
                total.less(free).max(card.reserved + Bytes(left)).less(own)
            }
            SeenReading::Free(free) => {
                let claimed = |(lease, seen): &(LeaseId, Bytes)| card.claims.get(lease).map(|held| (*seen, *held));
                let seen: Bytes = card.seen.iter().filter_map(claimed).map(|(seen, _)| seen).sum();
                let beyond: Bytes = card.seen.iter().filter_map(claimed).map(|(seen, held)| seen.less(held)).sum();
                let own = card.seen.iter().find(|(lease, _)| Some(*lease) == own).map_or(Bytes::ZERO, |(_, own)| *own);
                (total.less(free).less(seen) + card.reserved + beyond).less(own)
            }
        };
        total.less(committed + self.margin(card))
    }

    /// Compute processes there that belong to no lease on the card, as far as anybody can see.
    pub fn strangers(&self, card: &GpuBook) -> usize {
        if matches!(card.look, SeenReading::Blind | SeenReading::Lost) {
            return 0;
        }
        let ours = |process: &ProcKey| self.owners.get(process).is_some_and(|lease| card.claims.contains_key(lease));
        card.residents.iter().filter(|process| !ours(process)).count()
    }

    /// Whether somebody's exclusivity, or the asker's own wish for it, is in the way.
    pub fn excluded(&self, book: &LeaseBook, card: &GpuBook) -> bool {
        let on_card = || self.at_work(card);
        let others = || on_card().any(|other| other.tenant != book.tenant);
        if on_card().any(|other| other.ask.exclusivity == Exclusivity::Device) {
            return true;
        }
        match book.ask.exclusivity {
            Exclusivity::Shared => on_card().any(|other| other.ask.exclusivity == Exclusivity::Session) && others(),
            Exclusivity::Session => others() || self.strangers(card) > 0,
            Exclusivity::Device => on_card().next().is_some() || self.strangers(card) > 0,
        }
    }

    /// Leases whose work is on a card: what parked ones left there is in nobody's way.
    pub(super) fn at_work<'a>(&'a self, card: &'a GpuBook) -> impl Iterator<Item = &'a LeaseBook> {
        card.claims.keys().filter_map(|lease| self.leases.get(lease)).filter(|book| !book.is_parked())
    }

    /// What an ask must find on a card.
    pub fn need(&self, book: &LeaseBook, card: &GpuBook) -> Bytes {
        match self.ask_now(book).vram {
            Vram::Bytes(vram) => vram,
            Vram::Whole => Bytes(self.largest(card).0 / 100 * 75),
        }
    }

    /// Whether a waiter could start on a card now.
    pub fn fits(&self, book: &LeaseBook, card: &GpuBook, now: Time) -> bool {
        let empty = book.ask.vram != Vram::Whole || self.at_work(card).next().is_none();
        empty
            && self.eligible(&self.ask_now(book), card)
            && self.need(book, card) <= self.promisable(card, now)
            && !self.excluded(book, card)
    }

    /// What a waiter asks for; a parked one for what it lacks now of what it had, whatever was left of it
    /// on its cards when it asked. Of a whole card enough will do.
    pub fn ask_now<'a>(&self, book: &'a LeaseBook) -> Cow<'a, LeaseRequest> {
        let Some(held) = book.held().filter(|_| book.is_parked() && book.ask.at_least.is_none()) else {
            return Cow::Borrowed(&book.ask);
        };
        let left = match &book.at {
            LeaseStage::Away(_, trip) => self.has_still(book.id, held, trip),
            _ => Bytes::ZERO,
        };
        Cow::Owned(LeaseRequest { vram: Vram::Bytes(held.vram.less(left).max(Bytes(1))), ..book.ask.clone() })
    }

    /// A waiter is about to get these cards.
    pub fn check_room(&self, now: Time, lease: LeaseId, book: &LeaseBook, cards: &[usize], vram: Bytes) -> Verdict {
        let gpus = usize::from(book.ask.gpus);
        let apart = cards.windows(2).all(|pair| pair[0] < pair[1]);
        must(1, cards.len() == gpus && apart, || format!("{lease} asked for {gpus} cards and gets {cards:?}"))?;
        let smaller = |asked: Bytes| book.ask.at_least.is_some_and(|least| least <= vram && vram < asked);
        let asked = match book.ask.vram {
            Vram::Bytes(asked) => asked == vram || smaller(asked),
            Vram::Whole => true,
        };
        must(1, asked, || format!("{lease} asked for {:?} and gets {vram}", book.ask.vram))?;
        for number in cards {
            let card = &self.cards[*number];
            must(21, card.asides.is_empty(), || format!("{lease} gets GPU {number}, which steps aside"))?;
            must(2, !self.restores_on(card), || {
                format!("{lease} gets card {number}, to which somebody is brought back")
            })?;
            let room = self.promisable(card, now);
            must(1, vram <= room && vram > Bytes::ZERO, || {
                format!(
                    "{lease} gets {vram} of card {number}, which can promise {room} (look of {}: {:?}, {} reserved, seen {:?})",
                    card.begun, card.look, card.reserved, card.seen
                )
            })?;
            must(1, !self.excluded(book, card), || {
                format!(
                    "{lease} ({:?}) gets card {number} in spite of exclusivity: {} strangers, leases {:?}",
                    book.ask.exclusivity,
                    self.strangers(card),
                    card.claims.keys().collect::<Vec<_>>()
                )
            })?;
            let whole = book.ask.vram == Vram::Whole && book.ask.at_least.is_none();
            let asked = book.ask.vram == Vram::Bytes(vram);
            must(1, !(whole || asked) || self.fits(book, card, now), || {
                format!("{lease} cannot be on card {number}: {:?}", book.ask)
            })?;
        }
        self.check_caps(lease, book, cards.len(), vram)
    }

    /// What a lease would put on its tenant's account is within its caps.
    pub fn check_caps(&self, lease: LeaseId, book: &LeaseBook, cards: usize, vram: Bytes) -> Verdict {
        let tenant = &self.tenants[book.tenant];
        let caps = self.policy.caps_for(&tenant.name, &[]);
        let leases = caps.leases.is_none_or(|cap| tenant.leases < cap);
        must(1, leases, || format!("{lease} is lease {} of {}, above its cap", tenant.leases + 1, tenant.name))?;
        let sum = tenant.vram + Bytes(vram.0 * cards as u64);
        let within = caps.vram.is_none_or(|cap| sum <= cap);
        must(1, within, || format!("{lease} gives {} a sum of {sum}, above its cap {:?}", tenant.name, caps.vram))
    }
}
