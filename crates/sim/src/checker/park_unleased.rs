//! Unleased processes that are parked instead of ended: rules 4, 16 and 20.
//!
//! After its warning a process is tried once to be parked: it gets a lease of its size, and that lease is parked like
//! any other. When it was seen to have left its GPUs, its record is closed. If it cannot be parked, or the driver does
//! not report in time that it can, it stays unleased; that lease ends, and no signal comes before its GPUs were read
//! again.

use super::books::{CheckerBooks, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::enforce::{DueStep, FoundProcess, SignalledStep, WatchedStep};
use super::park::MoveStage;
use super::{Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{Mode, RuleAction, UnleasedEnd, UnleasedId};

/// This long after its lease was granted it is known whether the driver can park a process.
const KNOWN: Span = Span::secs(30);
/// Booked beside what was seen.
const BESIDE: Bytes = Bytes::mib(64);

impl CheckerBooks {
    /// The step after a warning.
    pub(super) fn after_warning(&self, found: &FoundProcess) -> DueStep {
        let untried = !found.cannot_park && self.other_lease(found).is_none();
        if self.is_parking_on() && untried { DueStep::Park } else { DueStep::Signal(15) }
    }

    fn is_parking_on(&self) -> bool {
        self.policy.enforcement.parks_first && self.policy.parking.space > Bytes::ZERO
    }

    /// True if an unleased process is due to be parked, and nothing known prevents it.
    pub(super) fn is_parking_due(&self, now: Time, found: &FoundProcess) -> bool {
        self.due_step(now, found) == Ok(DueStep::Park) && self.check_may_park(now, found).is_ok()
    }

    /// The same before its owner is a tenant, which is added first.
    pub(super) fn is_parking_due_for_new_user(&self, now: Time, found: &FoundProcess) -> bool {
        self.due_step(now, found) == Ok(DueStep::Park)
    }

    fn check_may_park(&self, now: Time, found: &FoundProcess) -> Result<(), &'static str> {
        let (on, _) = self.adoption_room(now, found, None)?;
        let tree = found.audited.as_ref().map(|(_, tree)| tree.as_slice()).unwrap_or_default();
        let own = |process: &ProcKey| *process == found.audit.process || tree.contains(process);
        let mut has = Bytes::ZERO;
        for number in on {
            let gpu = &self.gpus[number];
            let ours = |process: &ProcKey| self.owners.get(process).is_some_and(|of| gpu.claims.contains_key(of));
            if gpu.processes.iter().any(|process| !ours(process) && !own(process)) {
                return Err("other processes without a lease are there");
            }
            if gpu.claims.keys().any(|other| self.is_uncapped(*other, number)) {
                return Err("a process there has no shim that limits it");
            }
            let size = gpu.sizes.iter().find(|(of, _)| *of == found.audit.process).and_then(|(_, size)| *size);
            has = has + size.unwrap_or_default();
        }
        match self.host_memory {
            Some(available) => self.has_memory(has + BESIDE, available),
            None => Ok(()),
        }
    }

    /// True if a lease could take more of a GPU than it has: one of its programs there has no shim.
    pub(super) fn is_uncapped(&self, lease: LeaseId, number: usize) -> bool {
        let capped = self.movers_of(lease, Method::Shim);
        self.leases.contains_key(&lease)
            && !self.processes_on(lease, number).all(|process| capped.contains_key(process))
    }

    /// True if a lease is parking or resuming that had more than its size, and may return with that.
    pub(super) fn had_more_than_lease(&self, lease: LeaseId) -> bool {
        match self.leases.get(&lease).map(|book| &book.stage) {
            Some(LeaseStage::Park(held, park)) if park.stage != MoveStage::Parked => {
                park.had_bytes.0 > held.gpus.iter().map(|_| held.vram.0).sum::<u64>()
            }
            _ => false,
        }
    }

    // ---- actions -------------------------------------------------------------------

    /// Takes that an unleased process got a lease and is to be parked by it.
    pub(super) fn take_parking(&mut self, now: Time, unleased: UnleasedId, lease: LeaseId, at: Time) -> Verdict {
        let begun = self.unleased.adopting.take();
        let holds = self.leases.get(&lease).is_some_and(|book| matches!(book.stage, LeaseStage::Held(_)));
        // That this was due was checked with its request; since then its lease has its GPUs.
        must(20, begun == Some((lease, unleased)) && holds && at == now, || {
            format!("{unleased} is parked by {lease} at {at}, and has {begun:?}")
        })?;
        let Some(found) = self.unleased.get(unleased) else {
            return must(15, false, || format!("{unleased} is to be parked, and is not recorded"));
        };
        let warned = matches!(found.step, SignalledStep::Warned { .. });
        // It has no lease except for the new one.
        let alone = self.holder(&found.audit.process).is_none_or(|of| of == lease);
        must(20, warned && alone && self.is_parking_on() && !found.cannot_park, || {
            format!("{unleased} is to be parked, and that is not due: {found:?}")
        })?;
        self.unleased.set_step(unleased, SignalledStep::Parking { lease, since: at });
        Ok(())
    }

    /// Takes that an unleased process could not be parked.
    pub(super) fn take_not_parked(&mut self, now: Time, unleased: UnleasedId, at: Time) -> Verdict {
        let Some(found) = self.unleased.get(unleased) else {
            return must(15, false, || format!("{unleased} could not be parked, and is not recorded"));
        };
        let fits = match found.step {
            SignalledStep::Parking { lease, since } => match self.leases.get(&lease) {
                Some(book) if matches!(book.stage, LeaseStage::Held(_)) => self.is_known_immovable(now, lease, since),
                Some(book) => matches!(book.stage, LeaseStage::Ending(..)),
                None => true,
            },
            _ => self.due_step(now, found) == Ok(DueStep::Park) && self.check_may_park(now, found).is_err(),
        };
        must(20, fits && at == now, || format!("{unleased} could have been parked at {at}, it is {now}: {found:?}"))?;
        if let SignalledStep::Parking { lease, .. } = found.step {
            self.unleased.leases_to_end.push(lease);
        }
        if let Some(found) = self.unleased.get_mut(unleased) {
            found.cannot_park = true;
        }
        self.unleased.set_step(unleased, SignalledStep::NotParked { since: at });
        Ok(())
    }

    /// True if it is known by now that a lease cannot be parked.
    fn is_known_immovable(&self, now: Time, lease: LeaseId, since: Time) -> bool {
        let Some(book) = self.leases.get(&lease) else { return true };
        let Some(held) = book.held() else { return true };
        let measured = self.has_seen_bytes(lease, book);
        if measured && self.could_leave(now, lease, book).is_some() {
            return false;
        }
        let period = self.policy.period;
        let blind = |number: &usize| {
            let gpu = &self.gpus[*number];
            now.since(gpu.reading_began).0 > 2 * period.0
                || matches!(gpu.reading, SeenReading::Unreadable | SeenReading::Lost)
        };
        // Nothing is done on a GPU that cannot be read.
        if held.gpus.iter().any(blind) {
            return false;
        }
        let late = now >= since + KNOWN && !self.in_grace(now, since);
        late || (measured && !self.may_become_movable(now, lease, book))
    }

    /// True if the bytes of a lease were seen.
    fn has_seen_bytes(&self, lease: LeaseId, book: &LeaseBook) -> bool {
        book.held().is_some_and(|held| held.gpus.iter().any(|number| self.seen_of(lease, *number) > Bytes::ZERO))
    }

    /// True if the obstacle to parking by the driver may pass: it has not reported on a process yet, a process is there
    /// that could take the room, or the host's free memory is not known.
    fn may_become_movable(&self, now: Time, lease: LeaseId, book: &LeaseBook) -> bool {
        let (movers, parking) = (self.movers_of(lease, Method::Driver), &self.policy.parking);
        let LeaseStage::Held(held) = &book.stage else { return false };
        let coarse = |number: &usize| matches!(self.gpus[*number].reading, SeenReading::Coarse(_));
        if parking.space == Bytes::ZERO || held.gpus.iter().any(coarse) {
            return false;
        }
        let unheard = |number: &usize| self.processes_on(lease, *number).any(|process| !movers.contains_key(process));
        if movers.is_empty() || held.gpus.iter().any(unheard) {
            return true;
        }
        if movers.values().any(|mover| mover.cannot) {
            return false;
        }
        if self.stays_on_its_gpus(now, lease, held).is_err() {
            return true;
        }
        if !book.request.may_lose_state && self.has_safe_restore_room(lease, held).is_err() {
            return true;
        }
        book.backoff.until(Method::Driver) <= now && self.host_memory.is_none()
    }

    // ---- when it is over -----------------------------------------------------------

    /// True if an unleased process still belongs to the lease by which it is, or was to be, parked.
    pub(super) fn belongs_to_parking_lease(&self, found: &FoundProcess) -> bool {
        let owner = self.owners.get(&found.audit.process).and_then(|lease| self.leases.get(lease));
        let over = |book: &LeaseBook| matches!(book.stage, LeaseStage::Ending(..));
        match found.step {
            SignalledStep::Parking { .. } => true,
            SignalledStep::NotParked { .. } => owner.is_some_and(over) || self.is_root_of_ending(found),
            _ => false,
        }
    }

    /// True if a process is the root of a lease that has ended and was not read since: after a start nothing else tells
    /// that.
    fn is_root_of_ending(&self, found: &FoundProcess) -> bool {
        let over = |book: &LeaseBook| matches!(book.stage, LeaseStage::Ending(..));
        self.leases.values().any(|book| over(book) && book.root() == Some(found.audit.process))
    }

    /// True if an operator or a rule withdrew the parking.
    fn is_parking_withdrawn(&self, found: &FoundProcess) -> bool {
        let enforced = found.gpus.iter().any(|number| self.unleased.mode(*number) == Mode::Enforce);
        let told = |treat| self.unleased.has_rule(treat, &found.audit);
        !enforced || told(RuleAction::Allow) || (found.audit.container.is_some() && !told(RuleAction::Deny))
    }

    /// True if its bytes were seen to have left its GPUs, whether it is resuming or not.
    fn has_left(&self, lease: LeaseId) -> bool {
        match self.leases.get(&lease).map(|book| &book.stage) {
            Some(LeaseStage::Park(_, park)) => {
                park.stage == MoveStage::Parked || (park.stage == MoveStage::Returning && park.was_resumed)
            }
            _ => false,
        }
    }

    /// The lease that a parked process keeps if its record may be closed so, and whether it shall be resumed.
    pub(super) fn parked_away(
        &self,
        now: Time,
        cause: &EventCause,
        unleased: UnleasedId,
        found: &FoundProcess,
        how: &UnleasedEnd,
    ) -> Option<(LeaseId, bool)> {
        let (UnleasedEnd::Adopted(lease) | UnleasedEnd::Parked(lease)) = how else { return None };
        let own = matches!(found.step, SignalledStep::Parking { lease: own, .. } if own == *lease);
        let held = self.leases.get(lease).is_some_and(LeaseBook::is_held_or_parked);
        let asked = matches!(cause, EventCause::Unleased(it) if matches!(**it, WatchedStep::Adopt(Some(of), true) if of == unleased));
        let asked = asked && self.gpus_of_unleased(now, found).is_ok();
        let wants = asked || self.is_parking_withdrawn(found);
        // A process whose parking was withdrawn was not parked, wherever it is.
        let fits = if matches!(how, UnleasedEnd::Parked(_)) { !wants && self.has_left(*lease) } else { wants };
        (own && held && fits).then_some((*lease, wants))
    }

    /// True if a call may adopt an unleased process: one that is being parked gets that lease.
    pub(super) fn may_be_adopted(&self, now: Time, found: &FoundProcess, vram_wanted: Option<Bytes>) -> bool {
        let owned = self.holder(&found.audit.process).is_some();
        let held = |lease: LeaseId| self.leases.get(&lease).is_some_and(LeaseBook::is_held_or_parked);
        match found.step {
            SignalledStep::Parking { lease, .. } if held(lease) => self.gpus_of_unleased(now, found).is_ok(),
            SignalledStep::Parking { .. } | SignalledStep::NotParked { .. } if owned => false,
            _ => self.adoption_room(now, found, vram_wanted).is_ok(),
        }
    }

    /// Checks after the record was compared with the GPUs that no step is left undone for a process that is being
    /// parked.
    pub(super) fn check_parking(
        &self,
        now: Time,
        id: UnleasedId,
        found: &FoundProcess,
        lease: LeaseId,
        since: Time,
    ) -> Verdict {
        let Some(book) = self.leases.get(&lease) else {
            return must(20, false, || format!("{id} is parked by {lease}, which is retired"));
        };
        must(20, book.is_held_or_parked(), || format!("{id} is parked by {lease}, which is over: {book:?}"))?;
        must(20, !self.is_parking_withdrawn(found), || {
            format!("{id} is being parked, which was withdrawn: {found:?}")
        })?;
        must(19, !self.has_left(lease), || format!("{id} has left its GPUs, and is recorded: {book:?}"))?;
        if !matches!(book.stage, LeaseStage::Held(_)) {
            return Ok(());
        }
        let could = self.could_leave(now, lease, book).filter(|_| self.has_seen_bytes(lease, book));
        must(20, could.is_none(), || format!("{id} could be parked ({could:?}), and is not told to: {book:?}"))?;
        must(20, !self.is_known_immovable(now, lease, since), || {
            format!("{id} cannot be parked, and still is to be: {book:?}")
        })
    }
}
