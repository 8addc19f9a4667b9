//! Rule 9: the order of service, by sorting all waiters.

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, SeenReading};
use super::{Verdict, must};
use sublet_core::ids::LeaseId;
use sublet_core::request::{Exclusivity, LeaseRequest, Vram};
use sublet_core::units::{Bytes, Time};

/// Waiters ahead of a grant that are looked at; a queue is rarely passed by so many.
const AHEAD_MAX: usize = 256;

/// Waiters near the head that count as waiting for a card.
const NEAR_HEAD: usize = 64;

/// Of each tenant so many.
const OF_TENANT: usize = 16;

/// The whole queue is not walked for this, however many are passed over.
const RAW_MAX: usize = 5_000;

/// How caps hold a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapState {
    /// They do not.
    Not,
    /// Until another lease of its tenant ends; those behind it are held with it.
    Now,
    /// It depends on the card.
    Perhaps,
    /// For ever; those behind it are not.
    Always,
}

/// Who waits for certain cards.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedRoom {
    /// Somebody does.
    pub at_all: bool,
    /// Somebody does whom its own caps do not hold back.
    pub freely: bool,
}

impl CheckerBooks {
    /// How its own tenant's caps hold a waiter. Of a whole card it depends on the card.
    fn capped(&self, book: &LeaseBook) -> CapState {
        let tenant = &self.tenants[book.tenant];
        let caps = self.policy.caps_for(&tenant.name, &[]);
        if !self.within_caps(book.tenant, &book.ask) {
            return CapState::Always;
        }
        if caps.leases.is_some_and(|cap| tenant.leases >= cap) {
            return CapState::Now;
        }
        match (book.counts_for(), caps.vram) {
            (_, None) => CapState::Not,
            (Vram::Whole, Some(_)) => CapState::Perhaps,
            (Vram::Bytes(vram), Some(cap)) => {
                let sum = tenant.vram + Bytes(vram.0.saturating_mul(u64::from(book.ask.gpus)));
                if sum > cap { CapState::Now } else { CapState::Not }
            }
        }
    }

    /// Whether its tenant's caps surely keep a waiter from starting now.
    pub fn is_held_back(&self, book: &LeaseBook) -> bool {
        matches!(self.capped(book), CapState::Now | CapState::Always)
    }

    /// Whether its tenant's caps may keep a waiter from starting now.
    pub fn may_be_held_back(&self, book: &LeaseBook) -> bool {
        !matches!(self.capped(book), CapState::Not)
    }

    /// Nobody ahead of this waiter could have used one of the cards it gets, and the first who cannot
    /// start yet does not start later for it.
    pub fn check_order(&self, now: Time, lease: LeaseId, held: &HeldBook, granted: &LeaseBook) -> Verdict {
        // Whoever stands behind a capped waiter of the same tenant is passed over with it.
        let mut capped: u64 = 0;
        for ahead in self.in_order().take_while(|ahead| *ahead != lease).take(AHEAD_MAX) {
            let Some(book) = self.leases.get(&ahead).filter(|book| capped & (1 << book.tenant) == 0) else { continue };
            match self.capped(book) {
                CapState::Now => capped |= 1 << book.tenant,
                // Who may be held or not may claim or not.
                CapState::Perhaps => return Ok(()),
                CapState::Always => {}
                // It claims its cards until other leases have left them, and when that is cannot be told.
                CapState::Not if self.waits_for_holders(now, book) => return Ok(()),
                // It could not come back a moment ago, and meanwhile nobody waits for it.
                CapState::Not if self.cannot_try(now, book) => {}
                CapState::Not => {
                    self.check_passed(now, lease, ahead, book, &held.cards)?;
                    if self.hopeless(book) {
                        continue;
                    }
                    return self.check_delay(now, lease, held, granted, ahead, book);
                }
            }
        }
        Ok(())
    }

    /// A waiter that could start now, on these cards, is not passed by one behind it.
    fn check_passed(&self, now: Time, lease: LeaseId, ahead: LeaseId, book: &LeaseBook, cards: &[usize]) -> Verdict {
        if !cards.iter().any(|card| self.fits(book, &self.cards[*card], now)) {
            return Ok(());
        }
        let could = self.cards.iter().filter(|card| self.fits(book, card, now)).count() >= usize::from(book.ask.gpus);
        must(9, !could, || format!("{lease} gets cards {cards:?}, where {ahead} is first and would fit: {book:?}"))
    }

    /// Whether it would not fit whatever ended.
    fn hopeless(&self, book: &LeaseBook) -> bool {
        self.cards.iter().filter(|card| self.could_hold(book, card)).count() < usize::from(book.ask.gpus)
    }

    /// The first waiter that does not fit has a claim: what is let past it does not move it.
    fn check_delay(
        &self,
        now: Time,
        lease: LeaseId,
        held: &HeldBook,
        granted: &LeaseBook,
        ahead: LeaseId,
        book: &LeaseBook,
    ) -> Verdict {
        if self.cards.iter().any(|card| matches!(card.look, SeenReading::Coarse(_))) {
            // There each grant changes what seems to be loose.
            return Ok(());
        }
        let before = self.starts_at(now, book, None);
        let after = self.starts_at(now, book, Some((held, granted)));
        must(9, after <= before, || {
            format!(
                "{lease} gets {held:?}, and so {ahead}, the first, starts at {after:?} and not at {before:?}: {book:?}"
            )
        })
    }

    /// Whether a waiter could start on a card if every lease there ended.
    pub fn could_hold(&self, book: &LeaseBook, card: &GpuBook) -> bool {
        let loose = match card.look {
            SeenReading::Free(free) => {
                let claimed = card.seen.iter().filter(|(lease, _)| card.claims.contains_key(lease));
                card.facts.total.less(free).less(claimed.map(|(_, bytes)| *bytes).sum())
            }
            SeenReading::Coarse(free) => card.facts.total.less(free).less(card.reserved),
            SeenReading::Blind | SeenReading::Lost => Bytes::ZERO,
        };
        let alone = book.ask.exclusivity == Exclusivity::Shared || self.strangers(card) == 0;
        let allowed = book.ask.vram != Vram::Whole || self.allowed(book.tenant, &book.ask, self.largest(card));
        let parked = |lease: &LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_parked);
        let residue = card.seen.iter().filter(|(lease, _)| card.claims.contains_key(lease) && parked(lease));
        let residue: Bytes = residue.map(|(_, bytes)| *bytes).sum();
        // Where nobody tells whose bytes are whose, those of who is parked are among the loose ones.
        let away = card.claims.keys().filter(|lease| parked(lease)).count() as u64;
        let stays = if card.is_coarse() { loose.max(Bytes(card.left().0 * away)) } else { loose + residue };
        let (need, most) = (self.need(book, card), self.largest(card).less(stays));
        let roomy = need <= most || need <= most + self.removable(book.id, card);
        self.eligible(&self.ask_now(book), card) && alone && allowed && roomy
    }

    /// Whether an ask could be served if all known cards were empty and in service.
    pub fn satisfiable(&self, tenant: usize, ask: &LeaseRequest) -> bool {
        let would_do = |card: &&GpuBook| {
            let largest = self.largest(card);
            let sized = match ask.vram {
                Vram::Bytes(vram) => vram <= largest && self.context(ask, card) <= vram,
                Vram::Whole => self.allowed(tenant, ask, largest),
            };
            sized && self.named(ask, card)
        };
        self.within_caps(tenant, ask) && self.cards.iter().filter(would_do).count() >= usize::from(ask.gpus)
    }

    /// Whether a tenant may ever hold so much of each card it asks for.
    fn allowed(&self, tenant: usize, ask: &LeaseRequest, each: Bytes) -> bool {
        let cap = self.policy.caps_for(&self.tenants[tenant].name, &[]).vram;
        cap.is_none_or(|cap| each.0.saturating_mul(u64::from(ask.gpus)) <= cap.0)
    }

    fn within_caps(&self, tenant: usize, ask: &LeaseRequest) -> bool {
        match ask.vram {
            Vram::Bytes(vram) => self.allowed(tenant, ask, vram),
            Vram::Whole => {
                let allowed = |card: &&GpuBook| self.named(ask, card) && self.allowed(tenant, ask, self.largest(card));
                self.cards.iter().filter(allowed).count() >= usize::from(ask.gpus)
            }
        }
    }

    /// Waiters that must be served once the world is calm, first first: those who wait for
    /// something that there is. A card may have changed while they waited, or the rules of the
    /// house; and the driver keeps some bytes of each card to itself.
    pub fn hopeful(&self) -> impl Iterator<Item = LeaseId> + '_ {
        let hope = |book: &&LeaseBook| {
            let able = self.cards.iter().filter(|card| self.could_hold(book, card)).count();
            self.satisfiable(book.tenant, &book.ask) && able >= usize::from(book.ask.gpus)
        };
        self.queue
            .iter()
            .filter(move |(_, lease)| self.leases.get(lease).filter(hope).is_some())
            .map(|(_, lease)| *lease)
    }

    /// Who near the head of the queue could use these cards of a tenant's.
    pub fn wanted(&self, tenant: usize, cards: &[usize]) -> WantedRoom {
        let mut wanted = WantedRoom::default();
        if cards.iter().any(|card| self.cards[*card].draining) {
            return WantedRoom { at_all: true, freely: true };
        }
        let (mut capped, mut looked): (u64, usize) = (0, 0);
        let mut of_tenant = [0; 64];
        for (lease, raw) in self.in_order().zip(0..RAW_MAX) {
            let Some(book) = self.leases.get(&lease) else { continue };
            let passed = capped & (1 << book.tenant) != 0;
            let held = self.capped(book);
            if matches!(held, CapState::Now | CapState::Perhaps) {
                capped |= 1 << book.tenant;
                // Its own tenant's end makes room under the cap.
                wanted.at_all |= book.tenant == tenant;
            }
            if cards.iter().any(|card| self.could_hold(book, &self.cards[*card])) {
                wanted.at_all = true;
                if held == CapState::Not && !passed && raw < NEAR_HEAD && of_tenant[book.tenant] < OF_TENANT {
                    wanted.freely = true;
                }
                if wanted.freely || raw >= NEAR_HEAD {
                    break;
                }
            }
            // Who could not start whatever ended keeps nobody from being looked at.
            if held == CapState::Not && !passed && !self.hopeless(book) {
                looked += usize::from(of_tenant[book.tenant] < OF_TENANT);
                of_tenant[book.tenant] += 1;
            }
            if looked > NEAR_HEAD {
                break;
            }
        }
        wanted
    }
}
