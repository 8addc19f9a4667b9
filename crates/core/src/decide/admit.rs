//! An ask arrives: refused with a reason, or put in its place in the queue.

use super::Turn;
use super::serve::least_wish;
use crate::action::Action;
use crate::ask::{Ask, On, Term, Vram};
use crate::event::{Answer, Caller, Refusal};
use crate::ids::{CardId, LeaseId, ProcKey, TenantId};
use crate::mutant::Mutant;
use crate::rows::{Phase, Reason};
use crate::state::State;
use crate::units::{Bytes, Span};

impl Turn<'_> {
    pub(super) fn admit(&mut self, by: &Caller, ask: Ask, wait: Option<Span>, root: Option<ProcKey>) -> Answer {
        if let Err(refusal) = self.admissible(by, &ask) {
            return Answer::Refused(refusal);
        }
        let tenant = self.enrol(&by.tenant);
        let lease = LeaseId(self.state.rows().meta.next_lease);
        let give_up = self.now + wait.unwrap_or(self.state.policy().wait);
        self.emit(Action::Queue { lease, tenant, ask, at: self.now, give_up, root, token: by.token });
        self.serve();
        let waits = self.state.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Waiting { .. }));
        if waits && wait == Some(Span::ZERO) {
            self.end(lease, Reason::WaitOver);
            return Answer::Refused(Refusal::NoRoom { largest: self.largest_now() });
        }
        Answer::Lease(lease)
    }

    fn admissible(&self, by: &Caller, ask: &Ask) -> Result<(), Refusal> {
        ask.check().map_err(Refusal::BadAsk)?;
        could_ever_fit(self.state, ask)?;
        self.within_token(by, ask)?;
        let caps = self.state.policy().caps_for(&by.tenant);
        if let Some(cap) = caps.vram
            && least_wish(self.state, ask) > cap
        {
            return Err(Refusal::OverCap { cap });
        }
        let policy = self.state.policy();
        let longest = policy.hold_cap.max(policy.ttl);
        if matches!(ask.term, Term::Renewed(ttl) if ttl > longest) {
            return Err(Refusal::TtlTooLong { longest });
        }
        if self.state.disk_full {
            return Err(Refusal::DiskFull);
        }
        if self.state.planted(Mutant::EndlessQueue) {
            return Ok(());
        }
        let own = self.state.tenant(&by.tenant).map_or(0, |t| self.state.queue().len_of(t));
        if own >= caps.places as usize {
            return Err(Refusal::QueueFull { own: true });
        }
        if self.state.queue().len() >= self.state.policy().queue_max {
            return Err(Refusal::QueueFull { own: false });
        }
        Ok(())
    }

    pub(super) fn enrol(&mut self, name: &str) -> TenantId {
        if let Some(tenant) = self.state.tenant(name) {
            return tenant;
        }
        let tenant = TenantId(self.state.rows().tenants.len() as u32);
        self.emit(Action::Enrol { tenant, name: name.to_owned() });
        tenant
    }

    fn largest_now(&self) -> Bytes {
        self.state.cards().map(|card| self.state.promisable(card, self.now)).max().unwrap_or_default()
    }
}

/// Whether the cards that would do could hold the ask if they were empty.
fn could_ever_fit(state: &State, ask: &Ask) -> Result<(), Refusal> {
    if state.rows().cards.is_empty() {
        return Err(Refusal::NoCards);
    }
    let named: Vec<CardId> = state.cards().filter(|card| would_do(state, ask, *card)).collect();
    let never = |largest| Err(Refusal::NeverFits { largest, cards: named.len() as u32 });
    let Some(largest) = named.iter().map(|card| state.room(*card).largest_ever()).max() else {
        return never(None);
    };
    let large_enough = |card: &&CardId| match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(**card).largest_ever(),
        Vram::Whole => true,
    };
    let large: Vec<CardId> = named.iter().filter(large_enough).copied().collect();
    if large.len() < usize::from(ask.gpus) {
        return never(Some(largest));
    }
    let Vram::Bytes(vram) = ask.vram else { return Ok(()) };
    let context = |card: &CardId| state.rows().cards[card.0 as usize].facts.context.unwrap_or_default();
    let mut contexts: Vec<Bytes> = large.iter().map(context).collect();
    contexts.sort();
    match contexts.get(usize::from(ask.gpus) - 1) {
        Some(context) if *context > vram => Err(Refusal::BelowContext { context: *context }),
        _ => Ok(()),
    }
}

/// Whether a card is one of those the ask names.
pub(crate) fn would_do(state: &State, ask: &Ask, card: CardId) -> bool {
    let facts = &state.rows().cards[card.0 as usize].facts;
    match &ask.on {
        None => true,
        Some(On::Index(index)) => facts.index == *index,
        Some(On::Uuid(uuid)) => facts.uuid == *uuid,
        Some(On::Model(part)) => facts.name.to_lowercase().contains(&part.to_lowercase()),
    }
}
