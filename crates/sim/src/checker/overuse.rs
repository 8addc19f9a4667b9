//! Rules 1, 9, 14 and 20 for holders that have more than their leases.
//!
//! By this checker's own rule a holder has more than its lease when two looks at one of its cards, one after the
//! other, tell whose bytes are whose and show more than 128 MiB beyond it; it has not any more when two looks at
//! each of its cards show that. It is told in the very look in which that is so, and again when it is an eighth
//! more. It may be made to leave, and on enforced cards be ended, a while after it was told, and never for what
//! nobody sees.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::ends::chose_it;
use super::{Verdict, must};
use std::collections::BTreeMap;
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::Mode;

/// So much more is not counted.
const LITTLE: u64 = 128 << 20;
/// Looks that must agree.
const LOOKS: u32 = 2;

/// Whether a holder had more than its lease, and in how many looks in a row.
pub type OveruseBook = BTreeMap<LeaseId, (bool, u32)>;

impl CheckerBooks {
    /// A look at a card was delivered.
    pub fn weigh_excess(&mut self, number: usize) {
        let before = std::mem::take(&mut self.cards[number].excess);
        let card = &self.cards[number];
        let mut found = OveruseBook::new();
        for lease in card.claims.keys().filter(|_| matches!(card.look, SeenReading::Free(_))) {
            let Some(book) = self.leases.get(lease) else { continue };
            let LeaseStage::Held(held) = &book.at else { continue };
            // A lease whose size was measured grows with its program, by any amount.
            let little = if book.ask.is_measured { 0 } else { LITTLE };
            let has = self.exceeds(*lease, held, number, little);
            // Of whose processes nothing was heard nobody knows that they have little.
            if has || (held.over.is_some() && book.counted) {
                let looks = match before.get(lease) {
                    Some((had, looks)) if *had == has => looks + 1,
                    _ => 1,
                };
                found.insert(*lease, (has, looks));
            }
        }
        self.cards[number].excess = found;
    }

    /// Nothing that was seen of a lease counts any more.
    pub fn forget_excess(&mut self, lease: LeaseId) {
        for card in &mut self.cards {
            card.excess.remove(&lease);
        }
    }

    fn exceeds(&self, lease: LeaseId, held: &HeldBook, number: usize, little: u64) -> bool {
        self.seen_of(lease, number).0 > held.vram.0 + little
    }

    fn most(&self, lease: LeaseId, held: &HeldBook) -> Bytes {
        held.cards.iter().map(|number| self.seen_of(lease, *number)).max().unwrap_or_default()
    }

    /// Whether it is so much more than it was told that it is told again.
    fn is_news(&self, lease: LeaseId, held: &HeldBook) -> bool {
        held.over.is_none_or(|(_, told)| self.most(lease, held).0 >= told.0 + LITTLE.max(told.0 / 8))
    }

    fn is_within(&self, lease: LeaseId, held: &HeldBook) -> bool {
        let inside =
            |number: &usize| matches!(self.cards[*number].excess.get(&lease), Some((false, looks)) if *looks >= LOOKS);
        held.over.is_some() && held.cards.iter().all(inside)
    }

    /// A holder is told that it has more than its lease.
    pub fn over(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time, seen: Bytes) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else {
            return must(20, false, || format!("{lease} is told that it has more after {cause:?}"));
        };
        must(11, !self.is_stopped(), || format!("{lease} is told that it has more while nothing may be granted"))?;
        let Some(LeaseBook { at: LeaseStage::Held(held), .. }) = self.leases.get(&lease) else {
            return must(20, false, || format!("{lease} is told that it has more, and holds nothing"));
        };
        let excess = self.cards[*number].excess.get(&lease);
        must(20, matches!(excess, Some((true, looks)) if *looks >= LOOKS), || {
            format!("{lease} is told that it has more, and the looks are {excess:?}: {held:?}")
        })?;
        must(20, self.is_news(lease, held), || format!("{lease} is told twice that it has {seen}: {held:?}"))?;
        let most = self.most(lease, held);
        must(20, most.0 > held.vram.0 + LITTLE, || format!("{lease} is told that it has {most}: {held:?}"))?;
        must(20, at == now && seen == most, || format!("{lease} is told that it has {seen}, and it has {most}"))?;
        if let Some(LeaseBook { at: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.over = Some((held.over.map_or(now, |(since, _)| since), seen));
        }
        Ok(())
    }

    /// A holder has no more than its lease again.
    pub fn within(&mut self, cause: &EventCause, lease: LeaseId) -> Verdict {
        let held = self.leases.get(&lease).and_then(|book| match &book.at {
            LeaseStage::Held(held) => Some(held),
            _ => None,
        });
        let fits = held.is_some_and(|held| self.is_within(lease, held));
        must(20, fits && matches!(cause, EventCause::Observed(..)), || {
            format!("{lease} has no more than its lease, it is said after {cause:?}: {held:?}")
        })?;
        if let Some(LeaseBook { at: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.over = None;
        }
        self.forget_excess(lease);
        Ok(())
    }

    /// A card was seen: whoever has more there than its lease was told, and whoever has not was let be.
    pub fn check_over(&self, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        if self.is_stopped() || !self.watch.is_compared {
            return Ok(());
        }
        for (lease, (has, looks)) in self.cards[*number].excess.iter().filter(|(_, (_, looks))| *looks >= LOOKS) {
            let Some(LeaseBook { at: LeaseStage::Held(held), .. }) = self.leases.get(lease) else { continue };
            let much = self.most(*lease, held).0 > held.vram.0 + LITTLE;
            let undone = if *has { much && self.is_news(*lease, held) } else { self.is_within(*lease, held) };
            must(20, !undone, || {
                format!("{lease} was seen {looks} times (more than its lease: {has}), and was not told: {held:?}")
            })?;
        }
        Ok(())
    }

    // ---- a larger lease --------------------------------------------------------

    /// A holder takes a larger lease.
    pub fn grow(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        at: Time,
        (vram, mark): (Bytes, Option<Time>),
    ) -> Verdict {
        must(11, !self.is_stopped(), || format!("{lease} takes a larger lease while nothing may be granted"))?;
        let Some(book) = self.leases.get(&lease) else { return must(1, false, || format!("no {lease} to grow")) };
        let LeaseStage::Held(held) = &book.at else {
            return must(1, false, || format!("{lease} takes a larger lease, and is {:?}", book.at));
        };
        let cards = held.cards.len();
        let fits = match cause {
            EventCause::Accepted(of, asked, gpus, None) => {
                held.over.is_some() && (*of, *asked, usize::from(*gpus)) == (lease, vram, cards)
            }
            // The size of an adopted program's lease was measured, and it has more by now.
            EventCause::Observed(Some(number), _) => {
                let excess = self.cards[*number].excess.get(&lease);
                book.ask.is_measured && matches!(excess, Some((true, looks)) if *looks >= LOOKS)
            }
            _ => false,
        };
        must(1, fits && at == now, || format!("{lease} grows to {vram} after {cause:?}: {held:?}"))?;
        must(1, vram > held.vram && self.most(lease, held).0 <= vram.0 + LITTLE, || {
            format!("{lease} grows from {} to {vram}, and has {}", held.vram, self.most(lease, held))
        })?;
        let waited_for = self.wanted(book.tenant, &held.cards).freely;
        for number in &held.cards {
            let had = self.seen_of(lease, *number).max(held.vram);
            must(9, !waited_for || vram <= had, || {
                format!("{lease} grows to {vram} of card {number}, has {had}, and somebody waits for the rest")
            })?;
            self.check_growth(now, lease, *number, vram)?;
        }
        let more = Bytes(vram.less(held.vram).0 * cards as u64);
        let tenant = &self.tenants[book.tenant];
        let cap = self.policy.caps_for(&tenant.name, &[]).vram;
        must(1, cap.is_none_or(|cap| tenant.vram + more <= cap), || {
            format!("{lease} gives {} {more} more than {}, above its cap {cap:?}", tenant.name, tenant.vram)
        })?;
        let (left, term) = (held.until.since(now), held.until.since(held.renewed));
        let due = self.charged(now, book.tenant, vram.less(held.vram), cards, left);
        let moved = self.charge(now, lease, mark, due)?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Held(mut held) = book.at else { return Ok(()) };
        // What it had so far was charged as it was.
        held.spent.1 += u128::from((now.0 - held.sized.0) * cards as u64) * u128::from(held.vram.0);
        // Of what is left of its term, what was paid for it is left.
        let paid = u128::from(moved.0) * u128::from(term.0) / u128::from(left.0.max(1));
        held.paid = held.paid + Span(paid as u64);
        (held.vram, held.sized, held.over) = (vram, now, None);
        self.insert(lease, LeaseBook { at: LeaseStage::Held(held), ..book });
        self.forget_excess(lease);
        Ok(())
    }

    /// A card bears what a lease there becomes: everything on it counts, and it is enough.
    fn check_growth(&self, now: Time, lease: LeaseId, number: usize, vram: Bytes) -> Verdict {
        let card = &self.cards[number];
        let stale = now.since(card.begun).0 > 2 * self.policy.period.0;
        must(2, !self.restores_on(card), || format!("{lease} grows on card {number}, to which somebody comes back"))?;
        let SeenReading::Free(free) = card.look else {
            return must(1, false, || format!("{lease} grows on card {number}, which tells nothing: {:?}", card.look));
        };
        must(1, !stale && self.open(card), || format!("{lease} grows on card {number}, which promises nothing"))?;
        let seen: Bytes = card.claims.keys().map(|of| self.seen_of(*of, number)).sum();
        let loose = card.facts.total.less(free).less(seen);
        let counts = |(of, reserved): (&LeaseId, &Bytes)| {
            let reserved = if *of == lease { vram } else { *reserved };
            self.seen_of(*of, number).max(reserved)
        };
        let counted: Bytes = card.claims.iter().map(counts).sum();
        let sum = loose + counted + self.margin(card);
        must(1, sum <= card.facts.total, || {
            format!("{lease} grows to {vram} of card {number}: {loose} loose and {counted} counted are too much for it")
        })
    }

    // ---- it leaves, or ends ----------------------------------------------------

    /// Whether a holder that was told has had so long since then, and is seen to have more than its lease now.
    pub fn has_had_its_time(&self, now: Time, book: &LeaseBook, held: &HeldBook, span: Span) -> bool {
        let over = held.over.is_some_and(|(since, _)| now >= since + span && !self.in_grace(now, since));
        let shows = |number: &usize| {
            let card = &self.cards[*number];
            let fresh = now.since(card.begun).0 <= 2 * self.policy.period.0;
            fresh && matches!(card.look, SeenReading::Free(_)) && self.exceeds(book.id, held, *number, LITTLE)
        };
        over && held.cards.iter().any(shows) && !self.watch.is_by(book.id)
    }

    /// Whether an operator wants a holder ended that has more than its lease.
    pub fn is_to_end(&self, now: Time, book: &LeaseBook) -> bool {
        let LeaseStage::Held(held) = &book.at else { return false };
        let enforced = held.cards.iter().all(|number| self.watch.mode(*number) == Mode::Enforce);
        let span = self.policy.enforcement.after_warning.max(self.policy.overuse_grace);
        enforced && self.watch.is_able() && self.has_had_its_time(now, book, held, span)
    }

    /// A lease ends because it has more than it is for.
    pub fn check_over_end(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let LeaseStage::Held(held) = &book.at else {
            return must(20, false, || format!("{lease} ends for having more, and it is {:?}", book.at));
        };
        must(20, self.is_to_end(now, book) && !chose_it(&book.ask), || {
            let modes: Vec<Mode> = held.cards.iter().map(|number| self.watch.mode(*number)).collect();
            format!("{lease} ends at {now} for having more, on cards {modes:?}: {held:?}")
        })?;
        let at_once = held.for_others() == Some(now) && book.ask.notice.is_none();
        let told = held.for_others().is_some_and(|notice| notice <= now && !self.in_grace(now, notice));
        must(20, at_once || told, || format!("{lease} ends for others at {now}, and was told {:?}", held.notice))?;
        must(17, at_once || matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends for others after {cause:?}")
        })?;
        let wanted = self.wanted(book.tenant, &held.cards);
        must(20, wanted.at_all, || format!("{lease} ends for having more, and nobody wants its cards"))?;
        // Who was told in time that it would end does, though it could leave by now.
        for rung in Method::REVERSIBLE.into_iter().filter(|_| at_once) {
            let can = self.parkable(now, lease, book, rung);
            let spared = matches!(can, Ok(_) | Err(NO_MEMORY | NO_PARKING_RAM));
            must(20, !spared, || format!("{lease} ends for having more, and could leave by {rung}: {can:?}"))?;
        }
        Ok(())
    }
}

/// What [`Books::parkable`] says of who could leave but for the host's memory.
const NO_MEMORY: &str = "the host has too little memory";
const NO_PARKING_RAM: &str = "there is too little host memory for parked bytes";
