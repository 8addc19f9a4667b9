//! Rule 1 for leases that strangers get: each covers what its process was seen to have, and more only
//! where there is room for that. Nobody is passed by it: what it has it has already.

use super::books::{CheckerBooks, HeldBook, LeaseBook, SeenReading};
use super::calls::EventCause;
use super::enforce::{FoundProcess, WatchedStep};
use super::{Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{Exclusivity, LeaseRequest, Term, Tier, Vram};
use sublet_core::units::{Bytes, Span, Time};

/// So long after it was found a stranger has most of what it takes.
pub const SETTLES: Span = Span::secs(5);

/// Sizes that are measured are rounded up to whole ones of these.
const UNIT: u64 = 1024 * 1024;

fn rounded(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.max(1).next_multiple_of(UNIT))
}

impl CheckerBooks {
    /// On which cards a stranger could have a lease now, and for how much of each; or why not.
    pub(super) fn adoptable(
        &self,
        now: Time,
        found: &FoundProcess,
        wish: Option<Bytes>,
    ) -> Result<(Vec<usize>, Bytes), &'static str> {
        if self.other_lease(found).is_some() {
            return Err("it has a lease, for other cards");
        }
        let on = self.whereabouts(now, found)?;
        if on.iter().any(|number| !self.cards[*number].asides.is_empty()) {
            return Err("its GPU steps aside");
        }
        let process = found.audit.process;
        let sizes = on.iter().map(|number| self.size_of(*number, process)).collect::<Option<Vec<Bytes>>>();
        let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else { return Err("nobody knows its size") };
        let most = rounded(sizes.iter().copied().max().unwrap_or_default());
        let vram = wish.filter(|wish| *wish > most).unwrap_or(most);
        for (number, size) in on.iter().zip(&sizes) {
            if vram.less(rounded(*size)) > self.promisable(&self.cards[*number], now) {
                return Err("there is no room for what it wants beyond what it has");
            }
        }
        if process.pid < 2 {
            return Err("it is of the system");
        }
        let name = format!("uid:{}", found.audit.uid);
        let tenant = self.tenants.iter().position(|tenant| tenant.name == name);
        if !self.may_hold(&name, tenant, on.len(), vram) {
            return Err("its owner's caps do not let it");
        }
        if on.iter().any(|number| self.is_alone(tenant, *number)) {
            return Err("another lease has its card alone");
        }
        if self.is_stopped() { Err("the disk is full") } else { Ok((on, vram)) }
    }

    fn size_of(&self, number: usize, process: ProcKey) -> Option<Bytes> {
        let card = &self.cards[number];
        let size = card.sizes.iter().find(|(of, _)| *of == process).map(|(_, bytes)| *bytes);
        size.filter(|_| matches!(card.look, SeenReading::Free(_))).flatten()
    }

    fn may_hold(&self, name: &str, tenant: Option<usize>, cards: usize, vram: Bytes) -> bool {
        let (leases, has) = tenant.map_or((0, Bytes::ZERO), |n| (self.tenants[n].leases, self.tenants[n].vram));
        let caps = self.policy.caps_for(name, &[]);
        let sum = has + Bytes(vram.0 * cards as u64);
        caps.leases.is_none_or(|cap| leases < cap) && caps.vram.is_none_or(|cap| sum <= cap)
    }

    fn is_alone(&self, tenant: Option<usize>, number: usize) -> bool {
        let there = || self.at_work(&self.cards[number]);
        let others = || there().any(|other| Some(other.tenant) != tenant);
        let any = |wish| there().any(|other| other.ask.exclusivity == wish);
        any(Exclusivity::Device) || (any(Exclusivity::Session) && others())
    }

    /// Whether an ask is that of a stranger, which gets its lease in the same event.
    pub fn is_adoption(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        ask: &LeaseRequest,
        root: Option<ProcKey>,
    ) -> bool {
        let Some(stranger) = root.and_then(|root| self.watch.of(root)) else { return false };
        let Some(found) = self.watch.get(stranger) else { return false };
        let asked = match cause {
            EventCause::Asked { .. } => false,
            EventCause::Watched(it) if matches!(**it, WatchedStep::Adopt(..)) => {
                matches!(**it, WatchedStep::Adopt(Some(of), true) if of == stranger)
            }
            _ => (self.is_to_be_adopted(now, found) || self.is_to_be_moved(now, found)) && ask.tier == Tier::Batch,
        };
        let plain = ask.exclusivity == Exclusivity::Shared && ask.term == Term::Renewed(self.policy.ttl);
        let adopts = asked && plain && self.watch.adopting.is_none();
        if adopts {
            self.watch.adopting = Some((lease, stranger));
        }
        adopts
    }

    /// Whether a tenant may be enrolled because a process of its gets a lease.
    pub fn is_enrolled_by_adoption(&self, now: Time, cause: &EventCause, name: &str) -> bool {
        let is_due =
            |found: &FoundProcess| name == format!("uid:{}", found.audit.uid) && self.is_due_to_move(now, found);
        if self.watch.all().any(is_due) {
            return true;
        }
        let EventCause::Watched(it) = cause else { return false };
        let WatchedStep::Adopt(Some(stranger), _) = **it else { return false };
        self.watch.get(stranger).is_some_and(|found| name == format!("uid:{}", found.audit.uid))
    }

    /// A stranger gets a lease: whose it is, for just what it has, or for what there is room for beyond.
    pub fn check_adoption(&self, now: Time, lease: LeaseId, book: &LeaseBook, held: &HeldBook) -> Verdict {
        let found = self.watch.adopting.filter(|(of, _)| *of == lease).and_then(|(_, id)| self.watch.get(id));
        let Some(found) = found else { return must(1, false, || format!("{lease} is adopted, and it is nobody")) };
        let owner = &self.tenants[book.tenant].name;
        must(18, *owner == format!("uid:{}", found.audit.uid), || format!("{lease} is {owner}'s, and was not"))?;
        let wish = match book.ask.vram {
            Vram::Bytes(wish) => Some(wish),
            Vram::Whole => None,
        };
        let can = self.adoptable(now, found, wish);
        must(1, can == Ok((held.cards.clone(), held.vram)), || {
            format!("{lease} gets {} of {:?} for what it has, and could have {can:?}: {found:?}", held.vram, held.cards)
        })?;
        self.check_caps(lease, book, held.cards.len(), held.vram)
    }
}
