//! Rules 1, 9, 14 and 20 for leases that are exceeded.
//!
//! By this checker's own rule a lease is exceeded when two readings of one of its GPUs, one after the other, tell the
//! bytes of single processes and show more than 128 MiB beyond it; it is not exceeded any more when two readings of each of its
//! GPUs show that. It is told with the second reading, and again when it has an eighth more. It may be preempted, and
//! on GPUs in mode `enforce` ended, a grace after it was told, and never without a reading that shows it.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::ends::may_be_ended;
use super::{Verdict, must};
use std::collections::BTreeMap;
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::Mode;

/// Bytes beyond a lease that do not count.
const LITTLE: u64 = 128 << 20;
/// Readings that must agree.
const READINGS: u32 = 2;

/// Whether each lease was exceeded, and in how many readings in a row.
pub type OveruseBook = BTreeMap<LeaseId, (bool, u32)>;

impl CheckerBooks {
    /// Counts a reading of a GPU.
    pub fn update_overuse(&mut self, number: usize) {
        let before = std::mem::take(&mut self.gpus[number].overuse);
        let gpu = &self.gpus[number];
        let mut found = OveruseBook::new();
        for lease in gpu.claims.keys().filter(|_| matches!(gpu.reading, SeenReading::Free(_))) {
            let Some(book) = self.leases.get(lease) else { continue };
            let LeaseStage::Held(held) = &book.stage else { continue };
            // A lease of measured size grows with its program by any amount.
            let little = if book.request.is_measured { 0 } else { LITTLE };
            let has = self.has_more(*lease, held, number, little);
            // Without a report of its processes it is not known that a lease has little.
            if has || (held.overuse.is_some() && book.members_known) {
                let readings = match before.get(lease) {
                    Some((had, readings)) if *had == has => readings + 1,
                    _ => 1,
                };
                found.insert(*lease, (has, readings));
            }
        }
        self.gpus[number].overuse = found;
    }

    /// Forgets what was seen of a lease.
    pub fn forget_overuse(&mut self, lease: LeaseId) {
        for gpu in &mut self.gpus {
            gpu.overuse.remove(&lease);
        }
    }

    fn has_more(&self, lease: LeaseId, held: &HeldBook, number: usize, little: u64) -> bool {
        self.seen_of(lease, number).0 > held.vram.0 + little
    }

    fn most_on_one_gpu(&self, lease: LeaseId, held: &HeldBook) -> Bytes {
        held.gpus.iter().map(|number| self.seen_of(lease, *number)).max().unwrap_or_default()
    }

    /// True if it is so much more than it was told that it is told again.
    fn is_much_more(&self, lease: LeaseId, held: &HeldBook) -> bool {
        held.overuse.is_none_or(|(_, told)| self.most_on_one_gpu(lease, held).0 >= told.0 + LITTLE.max(told.0 / 8))
    }

    fn is_within(&self, lease: LeaseId, held: &HeldBook) -> bool {
        let inside = |number: &usize| matches!(self.gpus[*number].overuse.get(&lease), Some((false, readings)) if *readings >= READINGS);
        held.overuse.is_some() && held.gpus.iter().all(inside)
    }

    /// Takes the notice that a lease is exceeded.
    pub fn take_overuse(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time, seen: Bytes) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else {
            return must(20, false, || format!("{lease} is told that it is exceeded after {cause:?}"));
        };
        must(11, !self.is_stopped(), || format!("{lease} is told that it is exceeded while nothing may be granted"))?;
        let Some(LeaseBook { stage: LeaseStage::Held(held), .. }) = self.leases.get(&lease) else {
            return must(20, false, || format!("{lease} is told that it is exceeded, and holds nothing"));
        };
        let overuse = self.gpus[*number].overuse.get(&lease);
        must(20, matches!(overuse, Some((true, readings)) if *readings >= READINGS), || {
            format!("{lease} is told that it is exceeded, and the readings are {overuse:?}: {held:?}")
        })?;
        must(20, self.is_much_more(lease, held), || format!("{lease} is told twice that it has {seen}: {held:?}"))?;
        let most = self.most_on_one_gpu(lease, held);
        must(20, most.0 > held.vram.0 + LITTLE, || format!("{lease} is told that it has {most}: {held:?}"))?;
        must(20, at == now && seen == most, || format!("{lease} is told that it has {seen}, and it has {most}"))?;
        if let Some(LeaseBook { stage: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.overuse = Some((held.overuse.map_or(now, |(since, _)| since), seen));
        }
        Ok(())
    }

    /// Takes the notice that a lease is not exceeded any more.
    pub fn take_within_lease(&mut self, cause: &EventCause, lease: LeaseId) -> Verdict {
        let held = self.leases.get(&lease).and_then(|book| match &book.stage {
            LeaseStage::Held(held) => Some(held),
            _ => None,
        });
        let fits = held.is_some_and(|held| self.is_within(lease, held));
        must(20, fits && matches!(cause, EventCause::Observed(..)), || {
            format!("{lease} is told that it is not exceeded after {cause:?}: {held:?}")
        })?;
        if let Some(LeaseBook { stage: LeaseStage::Held(held), .. }) = self.leases.get_mut(&lease) {
            held.overuse = None;
        }
        self.forget_overuse(lease);
        Ok(())
    }

    /// Checks after a reading that every exceeded lease was told, and every other one was told that it is not.
    pub fn check_overuse(&self, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        if self.is_stopped() || !self.unleased.is_reading_compared {
            return Ok(());
        }
        for (lease, (has, readings)) in
            self.gpus[*number].overuse.iter().filter(|(_, (_, readings))| *readings >= READINGS)
        {
            let Some(LeaseBook { stage: LeaseStage::Held(held), .. }) = self.leases.get(lease) else { continue };
            let much = self.most_on_one_gpu(*lease, held).0 > held.vram.0 + LITTLE;
            let undone = if *has { much && self.is_much_more(*lease, held) } else { self.is_within(*lease, held) };
            must(20, !undone, || {
                format!("{lease} was seen {readings} times (exceeded: {has}), and was not told: {held:?}")
            })?;
        }
        Ok(())
    }

    // ---- a larger lease --------------------------------------------------------

    /// Takes a larger lease.
    pub fn take_growth(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        at: Time,
        (vram, debt_clock): (Bytes, Option<Time>),
    ) -> Verdict {
        must(11, !self.is_stopped(), || format!("{lease} grows while nothing may be granted"))?;
        let Some(book) = self.leases.get(&lease) else { return must(1, false, || format!("no {lease} to grow")) };
        let LeaseStage::Held(held) = &book.stage else {
            return must(1, false, || format!("{lease} grows, and is {:?}", book.stage));
        };
        let cards = held.gpus.len();
        let fits = match cause {
            EventCause::Accepted(of, asked, gpus, None) => {
                held.overuse.is_some() && (*of, *asked, usize::from(*gpus)) == (lease, vram, cards)
            }
            // The size of an adopted process's lease was measured, and the process has more by now.
            EventCause::Observed(Some(number), _) => {
                let overuse = self.gpus[*number].overuse.get(&lease);
                book.request.is_measured && matches!(overuse, Some((true, readings)) if *readings >= READINGS)
            }
            _ => false,
        };
        must(1, fits && at == now, || format!("{lease} grows to {vram} after {cause:?}: {held:?}"))?;
        must(1, vram > held.vram && self.most_on_one_gpu(lease, held).0 <= vram.0 + LITTLE, || {
            format!("{lease} grows from {} to {vram}, and has {}", held.vram, self.most_on_one_gpu(lease, held))
        })?;
        let waited_for = self.wanted(book.tenant, &held.gpus).freely;
        for number in &held.gpus {
            let had = self.seen_of(lease, *number).max(held.vram);
            must(9, !waited_for || vram <= had, || {
                format!("{lease} grows to {vram} of GPU {number}, has {had}, and a waiter needs the rest")
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
        let due = self.debt_clock_after(now, book.tenant, vram.less(held.vram), cards, left);
        let moved = self.check_charge(now, lease, debt_clock, due)?;
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Held(mut held) = book.stage else { return Ok(()) };
        // What it had so far was charged at its old size.
        held.spent.1 += u128::from((now.0 - held.resized_at.0) * cards as u64) * u128::from(held.vram.0);
        // Of the payment, the part for the rest of its term is left.
        let paid = u128::from(moved.0) * u128::from(term.0) / u128::from(left.0.max(1));
        held.prepaid = held.prepaid + Span(paid as u64);
        (held.vram, held.resized_at, held.overuse) = (vram, now, None);
        self.insert(lease, LeaseBook { stage: LeaseStage::Held(held), ..book });
        self.forget_overuse(lease);
        Ok(())
    }

    /// Checks that a GPU has room for what a lease there becomes: everything on it counts.
    fn check_growth(&self, now: Time, lease: LeaseId, number: usize, vram: Bytes) -> Verdict {
        let gpu = &self.gpus[number];
        let stale = now.since(gpu.reading_began).0 > 2 * self.policy.period.0;
        must(2, !self.restores_on(gpu), || {
            format!("{lease} grows on GPU {number} while another lease is brought back to it")
        })?;
        let SeenReading::Free(free) = gpu.reading else {
            return must(1, false, || {
                format!("{lease} grows on GPU {number}, which cannot be read: {:?}", gpu.reading)
            });
        };
        must(1, !stale && self.is_open(gpu), || {
            format!("{lease} grows on GPU {number}, where nothing may be granted")
        })?;
        let seen: Bytes = gpu.claims.keys().map(|of| self.seen_of(*of, number)).sum();
        let loose = gpu.facts.total.less(free).less(seen);
        let counts = |(of, reserved): (&LeaseId, &Bytes)| {
            let reserved = if *of == lease { vram } else { *reserved };
            self.seen_of(*of, number).max(reserved)
        };
        let counted: Bytes = gpu.claims.iter().map(counts).sum();
        let sum = loose + counted + self.margin(gpu);
        must(1, sum <= gpu.facts.total, || {
            format!(
                "{lease} grows to {vram} of GPU {number}: {loose} unowned and {counted} counted are too much for it"
            )
        })
    }

    // ---- it is preempted or ended -----------------------------------------------

    /// True if a lease was told `span` ago that it is exceeded, and is seen to be exceeded now.
    pub fn is_overuse_overdue(&self, now: Time, book: &LeaseBook, held: &HeldBook, span: Span) -> bool {
        let over = held.overuse.is_some_and(|(since, _)| now >= since + span && !self.in_grace(now, since));
        let shows = |number: &usize| {
            let gpu = &self.gpus[*number];
            let fresh = now.since(gpu.reading_began).0 <= 2 * self.policy.period.0;
            fresh && matches!(gpu.reading, SeenReading::Free(_)) && self.has_more(book.id, held, *number, LITTLE)
        };
        over && held.gpus.iter().any(shows) && !self.unleased.is_parking_lease(book.id)
    }

    /// True if an exceeded lease is to be ended, because an operator set its GPUs to `enforce`.
    pub fn is_end_due(&self, now: Time, book: &LeaseBook) -> bool {
        let LeaseStage::Held(held) = &book.stage else { return false };
        let enforced = held.gpus.iter().all(|number| self.unleased.mode(*number) == Mode::Enforce);
        let span = self.policy.enforcement.after_warning.max(self.policy.overuse_grace);
        enforced && self.unleased.has_passed_self_test() && self.is_overuse_overdue(now, book, held, span)
    }

    /// Checks the end of an exceeded lease.
    pub fn check_overuse_end(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let LeaseStage::Held(held) = &book.stage else {
            return must(20, false, || format!("{lease} ends for overuse, and it is {:?}", book.stage));
        };
        must(20, self.is_end_due(now, book) && !may_be_ended(&book.request), || {
            let modes: Vec<Mode> = held.gpus.iter().map(|number| self.unleased.mode(*number)).collect();
            format!("{lease} ends at {now} for overuse, on GPUs {modes:?}: {held:?}")
        })?;
        let at_once = held.for_others() == Some(now) && book.request.notice.is_none();
        let told = held.for_others().is_some_and(|notice| notice <= now && !self.in_grace(now, notice));
        must(20, at_once || told, || format!("{lease} ends at {now}, and was told {:?}", held.notice))?;
        must(17, at_once || matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends for overuse after {cause:?}")
        })?;
        let wanted = self.wanted(book.tenant, &held.gpus);
        must(20, wanted.at_all, || format!("{lease} ends for overuse, and no waiter needs its GPUs"))?;
        // A lease that was told in time that it would end does, though it could be parked by now.
        for method in Method::REVERSIBLE.into_iter().filter(|_| at_once) {
            let can = self.parkable(now, lease, book, method);
            let spared = matches!(can, Ok(_) | Err(NO_MEMORY | NO_PARKING_RAM));
            must(20, !spared, || format!("{lease} ends for overuse, and could be parked by {method}: {can:?}"))?;
        }
        Ok(())
    }
}

/// What [`CheckerBooks::parkable`] returns if only host memory is missing.
const NO_MEMORY: &str = "the host has too little memory";
const NO_PARKING_RAM: &str = "there is too little host memory for parked bytes";
