//! Rule 9: the debt of a tenant and the order that follows, by the rule as it is written.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage, TenantBook};
use super::park::MoveStage;
use super::preempt::residue;
use super::{Verdict, must};
use sublet_core::ids::LeaseId;
use sublet_core::request::{Exclusivity, Preempt, Vram};
use sublet_core::rows::EndNotice;
use sublet_core::units::{Bytes, Span, Time};

impl CheckerBooks {
    /// All waiters in the order of service: repeatedly the best of the first waiters of all tenants.
    pub fn in_order(&self) -> impl Iterator<Item = LeaseId> + '_ {
        // A waiter behind another of its tenant counts from when the tenant was last served, too.
        let line = |t: &'_ TenantBook| ((t.debt_clock, t.first_since, t.last_served), true);
        let mut lines: Vec<_> = self.tenants.iter().map(|t| (line(t), t.waiters.iter().peekable())).collect();
        std::iter::from_fn(move || {
            type DebtState = ((Time, Time, Time), bool);
            let key = |((debt_clock, turn, served), is_first): &DebtState,
                       (rank, lease, asked): &(i64, LeaseId, Time)| {
                let turn = if *is_first { *turn } else { *turn.max(served) };
                let first = *asked.max(&turn);
                let debt = (debt_clock.0 as i64 - first.0 as i64).clamp(0, self.policy.debt_max.0 as i64);
                (rank + first.since(*asked).0 as i64 + debt, *lease)
            };
            let firsts = lines
                .iter_mut()
                .enumerate()
                .filter_map(|(n, (debt_clock, line))| line.peek().map(|first| (key(debt_clock, first), n)));
            let (_, first) = firsts.min()?;
            lines[first].0.1 = false;
            lines[first].1.next().map(|(_, lease, _)| *lease)
        })
    }

    /// A tenant's debt clock after a charge: its use, relative to an equal share of everything among the tenants that
    /// hold or wait.
    pub fn debt_clock_after(&self, now: Time, tenant: usize, vram: Bytes, gpus: usize, span: Span) -> Time {
        let all: Bytes = self.gpus.iter().map(|gpu| gpu.facts.total).sum();
        let active = self.tenants.iter().filter(|tenant| tenant.leases > 0 || tenant.waiting > 0).count().max(1);
        let share = u128::from(all.0) * 100 / (100 * active as u128);
        let moved = u128::from(span.0) * u128::from(vram.0) * gpus as u128 / share.max(1);
        self.tenants[tenant].debt_clock.max(now) + Span(moved.min(365 * 86_400 * 1_000_000) as u64)
    }

    /// Checks the debt clock that an action carries; returns how far it moved.
    pub fn check_charge(
        &mut self,
        now: Time,
        lease: LeaseId,
        debt_clock: Option<Time>,
        due: Time,
    ) -> Result<Span, super::Violation> {
        must(9, debt_clock == Some(due), || {
            format!("{lease} moves its tenant's debt clock to {debt_clock:?}, and it should be {due}")
        })?;
        let tenant = self.leases.get(&lease).map_or(0, |book| book.tenant);
        let before = self.tenants[tenant].debt_clock.max(now);
        self.tenants[tenant].debt_clock = due;
        Ok(due.since(before))
    }

    /// When the first of a tenant's waiters leaves the queue, the next one is the first from then on.
    pub fn check_first_since(&mut self, now: Time, lease: LeaseId, turn: Option<Time>) -> Verdict {
        let Some(book) = self.leases.get(&lease) else { return Ok(()) };
        let tenant = &mut self.tenants[book.tenant];
        let first = tenant.waiters.first().is_some_and(|(_, first, _)| *first == lease);
        must(9, turn == first.then_some(now), || {
            format!("{lease} leaves the queue, and the next waiter is first since {turn:?}")
        })?;
        tenant.first_since = turn.unwrap_or(tenant.first_since);
        Ok(())
    }

    /// Checks the refund of what was prepaid and not used.
    pub fn check_refund(&mut self, now: Time, lease: LeaseId, debt_clock: Option<Time>) -> Verdict {
        let Some(book) = self.leases.get(&lease) else { return Ok(()) };
        let unused = match &book.stage {
            LeaseStage::Held(held) | LeaseStage::Park(held, _) => held.unused_payment(now),
            LeaseStage::Waiting(_) | LeaseStage::Ending(..) => Span::ZERO,
        };
        let tenant = book.tenant;
        let due = (unused > Span::ZERO).then(|| self.tenants[tenant].debt_clock - unused);
        must(9, debt_clock == due, || {
            format!("{lease} ends with debt clock {debt_clock:?}, and it should be {due:?}")
        })?;
        if let Some(due) = due {
            self.tenants[tenant].debt_clock = due;
        }
        Ok(())
    }

    /// When a waiter could start, as far as the ends of leases are known; `with` is a lease that may be granted first.
    pub fn starts_at(&self, now: Time, book: &LeaseBook, with: Option<(&HeldBook, &LeaseBook)>) -> Option<Time> {
        let able = self.gpus.iter().enumerate().filter(|(_, gpu)| self.could_host(book, gpu));
        let mut starts: Vec<Time> = able.map(|(number, _)| self.starts_on(now, book, number, with)).collect();
        starts.sort();
        starts.get(usize::from(book.request.gpus).checked_sub(1)?).copied()
    }

    fn starts_on(&self, now: Time, book: &LeaseBook, number: usize, with: Option<(&HeldBook, &LeaseBook)>) -> Time {
        let gpu = &self.gpus[number];
        let (mut ends, mut opens) = (Vec::new(), now);
        let mut add = |end: Time, bytes: Bytes, other: &LeaseBook| {
            ends.push((end, bytes));
            if are_exclusive(book, other) {
                opens = opens.max(end);
            }
        };
        for (lease, reserved) in &gpu.claims {
            let Some(other) = self.leases.get(lease).filter(|other| !other.is_parked()) else { continue };
            let seen = gpu.seen_bytes.iter().find(|(of, _)| of == lease).map_or(Bytes::ZERO, |(_, seen)| *seen);
            add(self.latest_end(now, other), seen.max(*reserved).less(residue(other, gpu)), other);
        }
        let mut room = self.promisable(gpu, now);
        if let Some((held, other)) = with.filter(|(held, _)| held.gpus.contains(&number)) {
            room = room.less(held.vram);
            add(self.holds_until(now, held, other), held.vram, other);
        }
        ends.sort();
        let last = ends.last().map_or(now, |(at, _)| *at);
        if book.request.vram == Vram::Whole {
            return last;
        }
        let need = self.needed_bytes(book, gpu);
        let mut at = (room >= need).then_some(now);
        for (end, bytes) in ends {
            room = room + bytes;
            if at.is_none() && room >= need {
                at = Some(end);
            }
        }
        at.unwrap_or(last).max(opens)
    }

    fn latest_end(&self, now: Time, book: &LeaseBook) -> Time {
        match &book.stage {
            LeaseStage::Waiting(_) | LeaseStage::Ending(..) => now,
            LeaseStage::Park(_, park) if park.stage == MoveStage::Leaving => now,
            LeaseStage::Held(held) | LeaseStage::Park(held, _) => self.holds_until(now, held, book),
        }
    }

    fn holds_until(&self, now: Time, held: &HeldBook, book: &LeaseBook) -> Time {
        let cap = held.slice_began + self.policy.hold_max;
        let end = match () {
            () if book.has_fixed_term() => held.until,
            () if book.request.preempt == Preempt::Never => {
                held.not_beyond.map_or(Time::NEVER, |before| held.until.max(before))
            }
            () if held.idle => held.until,
            () => held.until.max(held.not_beyond.map_or(cap, |before| before.min(cap))),
        };
        end.min(held.notice.map_or(Time::NEVER, EndNotice::at)).max(now).max(self.grace_until)
    }
}

/// True if two leases exclude each other on one GPU.
fn are_exclusive(book: &LeaseBook, other: &LeaseBook) -> bool {
    match (book.request.exclusivity, other.request.exclusivity) {
        (Exclusivity::Device, _) | (_, Exclusivity::Device) => true,
        (Exclusivity::Session, _) | (_, Exclusivity::Session) => book.tenant != other.tenant,
        (Exclusivity::Shared, Exclusivity::Shared) => false,
    }
}

impl HeldBook {
    /// The part of its payment that is for the time after `now`.
    pub fn unused_payment(&self, now: Time) -> Span {
        let (left, term) = (self.until.since(now).0, self.until.since(self.renewed).0);
        match term {
            0 => Span::ZERO,
            term => Span((u128::from(self.prepaid.0) * u128::from(left.min(term)) / u128::from(term)) as u64),
        }
    }
}
