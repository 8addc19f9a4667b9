//! Rule 9: what a tenant owes, and the order that follows, by the rule as it is written.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage, TenantBook};
use super::park::MoveWay;
use super::preempt::keeps;
use super::{Verdict, must};
use sublet_core::ids::LeaseId;
use sublet_core::request::{Exclusivity, Preempt, Vram};
use sublet_core::rows::EndNotice;
use sublet_core::units::{Bytes, Span, Time};

impl CheckerBooks {
    /// Every waiter in the order of service: again and again, of each tenant's first waiter the one
    /// that comes first.
    pub fn in_order(&self) -> impl Iterator<Item = LeaseId> + '_ {
        // Whoever stands behind another counts from when the tenant was last served, too.
        let line = |t: &'_ TenantBook| ((t.mark, t.turn, t.served), true);
        let mut lines: Vec<_> = self.tenants.iter().map(|t| (line(t), t.line.iter().peekable())).collect();
        std::iter::from_fn(move || {
            type DebtState = ((Time, Time, Time), bool);
            let key = |((mark, turn, served), is_first): &DebtState, (rank, lease, asked): &(i64, LeaseId, Time)| {
                let turn = if *is_first { *turn } else { *turn.max(served) };
                let first = *asked.max(&turn);
                let debt = (mark.0 as i64 - first.0 as i64).clamp(0, self.policy.debt_max.0 as i64);
                (rank + first.since(*asked).0 as i64 + debt, *lease)
            };
            let firsts = lines
                .iter_mut()
                .enumerate()
                .filter_map(|(n, (mark, line))| line.peek().map(|first| (key(mark, first), n)));
            let (_, first) = firsts.min()?;
            lines[first].0.1 = false;
            lines[first].1.next().map(|(_, lease, _)| *lease)
        })
    }

    /// A tenant's mark once it was charged: its use, in relation to an equal share of everything among
    /// those who hold or wait.
    pub fn charged(&self, now: Time, tenant: usize, vram: Bytes, cards: usize, span: Span) -> Time {
        let all: Bytes = self.cards.iter().map(|card| card.facts.total).sum();
        let active = self.tenants.iter().filter(|tenant| tenant.leases > 0 || tenant.waiting > 0).count().max(1);
        let share = u128::from(all.0) * 100 / (100 * active as u128);
        let moved = u128::from(span.0) * u128::from(vram.0) * cards as u128 / share.max(1);
        self.tenants[tenant].mark.max(now) + Span(moved.min(365 * 86_400 * 1_000_000) as u64)
    }

    /// The mark an action carries is the one that follows from it. Says how far it moved.
    pub fn charge(
        &mut self,
        now: Time,
        lease: LeaseId,
        mark: Option<Time>,
        due: Time,
    ) -> Result<Span, super::Violation> {
        must(9, mark == Some(due), || format!("{lease} moves its tenant's mark to {mark:?}, and it should be {due}"))?;
        let tenant = self.leases.get(&lease).map_or(0, |book| book.tenant);
        let before = self.tenants[tenant].mark.max(now);
        self.tenants[tenant].mark = due;
        Ok(due.since(before))
    }

    /// When the first of a tenant's waiters leaves, the next one's turn begins.
    pub fn take_turn(&mut self, now: Time, lease: LeaseId, turn: Option<Time>) -> Verdict {
        let Some(book) = self.leases.get(&lease) else { return Ok(()) };
        let tenant = &mut self.tenants[book.tenant];
        let first = tenant.line.first().is_some_and(|(_, first, _)| *first == lease);
        must(9, turn == first.then_some(now), || format!("{lease} leaves the queue, and the turn is {turn:?}"))?;
        tenant.turn = turn.unwrap_or(tenant.turn);
        Ok(())
    }

    /// What was paid ahead and not used is given back.
    pub fn give_back(&mut self, now: Time, lease: LeaseId, mark: Option<Time>) -> Verdict {
        let Some(book) = self.leases.get(&lease) else { return Ok(()) };
        let unused = match &book.at {
            LeaseStage::Held(held) | LeaseStage::Away(held, _) => held.unused(now),
            LeaseStage::Waiting(_) | LeaseStage::Ending(..) => Span::ZERO,
        };
        let tenant = book.tenant;
        let due = (unused > Span::ZERO).then(|| self.tenants[tenant].mark - unused);
        must(9, mark == due, || format!("{lease} ends with mark {mark:?}, and it should be {due:?}"))?;
        if let Some(due) = due {
            self.tenants[tenant].mark = due;
        }
        Ok(())
    }

    /// When a waiter could start, as far as the ends of leases are known; `with` is a lease that may
    /// be granted first.
    pub fn starts_at(&self, now: Time, book: &LeaseBook, with: Option<(&HeldBook, &LeaseBook)>) -> Option<Time> {
        let able = self.cards.iter().enumerate().filter(|(_, card)| self.could_hold(book, card));
        let mut starts: Vec<Time> = able.map(|(number, _)| self.starts_on(now, book, number, with)).collect();
        starts.sort();
        starts.get(usize::from(book.ask.gpus).checked_sub(1)?).copied()
    }

    fn starts_on(&self, now: Time, book: &LeaseBook, number: usize, with: Option<(&HeldBook, &LeaseBook)>) -> Time {
        let card = &self.cards[number];
        let (mut ends, mut opens) = (Vec::new(), now);
        let mut add = |end: Time, bytes: Bytes, other: &LeaseBook| {
            ends.push((end, bytes));
            if in_the_way(book, other) {
                opens = opens.max(end);
            }
        };
        for (lease, reserved) in &card.claims {
            let Some(other) = self.leases.get(lease).filter(|other| !other.is_parked()) else { continue };
            let seen = card.seen.iter().find(|(of, _)| of == lease).map_or(Bytes::ZERO, |(_, seen)| *seen);
            add(self.ends_by(now, other), seen.max(*reserved).less(keeps(other, card)), other);
        }
        let mut room = self.promisable(card, now);
        if let Some((held, other)) = with.filter(|(held, _)| held.cards.contains(&number)) {
            room = room.less(held.vram);
            add(self.holds_until(now, held, other), held.vram, other);
        }
        ends.sort();
        let last = ends.last().map_or(now, |(at, _)| *at);
        if book.ask.vram == Vram::Whole {
            return last;
        }
        let need = self.need(book, card);
        let mut at = (room >= need).then_some(now);
        for (end, bytes) in ends {
            room = room + bytes;
            if at.is_none() && room >= need {
                at = Some(end);
            }
        }
        at.unwrap_or(last).max(opens)
    }

    fn ends_by(&self, now: Time, book: &LeaseBook) -> Time {
        match &book.at {
            LeaseStage::Waiting(_) | LeaseStage::Ending(..) => now,
            LeaseStage::Away(_, trip) if trip.way == MoveWay::Out => now,
            LeaseStage::Held(held) | LeaseStage::Away(held, _) => self.holds_until(now, held, book),
        }
    }

    fn holds_until(&self, now: Time, held: &HeldBook, book: &LeaseBook) -> Time {
        let cap = held.began + self.policy.hold_max;
        let end = match () {
            () if book.fixed() => held.until,
            () if book.ask.preempt == Preempt::Never => {
                held.before.map_or(Time::NEVER, |before| held.until.max(before))
            }
            () if held.idle => held.until,
            () => held.until.max(held.before.map_or(cap, |before| before.min(cap))),
        };
        end.min(held.notice.map_or(Time::NEVER, EndNotice::at)).max(now).max(self.grace_until)
    }
}

/// Whether two leases cannot be on one card, by the exclusivity of one of them.
fn in_the_way(book: &LeaseBook, other: &LeaseBook) -> bool {
    match (book.ask.exclusivity, other.ask.exclusivity) {
        (Exclusivity::Device, _) | (_, Exclusivity::Device) => true,
        (Exclusivity::Session, _) | (_, Exclusivity::Session) => book.tenant != other.tenant,
        (Exclusivity::Shared, Exclusivity::Shared) => false,
    }
}

impl HeldBook {
    /// What of its payment is for the time after `now`.
    pub fn unused(&self, now: Time) -> Span {
        let (left, term) = (self.until.since(now).0, self.until.since(self.renewed).0);
        match term {
            0 => Span::ZERO,
            term => Span((u128::from(self.paid.0) * u128::from(left.min(term)) / u128::from(term)) as u64),
        }
    }
}
