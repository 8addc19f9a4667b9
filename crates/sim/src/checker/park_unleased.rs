//! Strangers that are parked in place of being ended: rules 4, 16 and 20.
//!
//! Who did not heed its warning is tried once to be parked: it gets a lease of its size, and leaves its cards
//! by that as any holder does. It is no stranger any more when it was seen to have left. Who cannot leave, or
//! of whom nobody says in time that it can, stays a stranger; that lease ends, and no signal comes before
//! its cards were seen again.

use super::books::{CheckerBooks, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::enforce::{DueStep, FoundProcess, SignalledStep, WatchedStep};
use super::park::MoveWay;
use super::{Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{Mode, RuleAction, UnleasedEnd, UnleasedId};

/// So long after its lease was granted it is known whether the driver can move somebody.
const KNOWN: Span = Span::secs(30);
/// What is booked beside what is seen.
const BESIDE: Bytes = Bytes::mib(64);

impl CheckerBooks {
    /// What follows a warning.
    pub(super) fn after_warning(&self, found: &FoundProcess) -> DueStep {
        let untried = !found.stays && self.other_lease(found).is_none();
        if self.parks() && untried { DueStep::Move } else { DueStep::Signal(15) }
    }

    fn parks(&self) -> bool {
        self.policy.enforcement.parks_first && self.policy.parking.space > Bytes::ZERO
    }

    /// Whether a stranger is due to be taken off its cards, and nothing that is known before speaks against it.
    pub(super) fn is_to_be_moved(&self, now: Time, found: &FoundProcess) -> bool {
        self.ripe(now, found) == Ok(DueStep::Move) && self.may_move(now, found).is_ok()
    }

    /// The same before its owner is known, which is found out first.
    pub(super) fn is_due_to_move(&self, now: Time, found: &FoundProcess) -> bool {
        self.ripe(now, found) == Ok(DueStep::Move)
    }

    fn may_move(&self, now: Time, found: &FoundProcess) -> Result<(), &'static str> {
        let (on, _) = self.adoptable(now, found, None)?;
        let tree = found.seen.as_ref().map(|(_, tree)| tree.as_slice()).unwrap_or_default();
        let own = |process: &ProcKey| *process == found.audit.process || tree.contains(process);
        let mut has = Bytes::ZERO;
        for number in on {
            let card = &self.cards[number];
            let ours = |process: &ProcKey| self.owners.get(process).is_some_and(|of| card.claims.contains_key(of));
            if card.all.iter().any(|process| !ours(process) && !own(process)) {
                return Err("others without a lease are there");
            }
            if card.claims.keys().any(|other| self.is_uncapped(*other, number)) {
                return Err("nothing keeps somebody there to its lease");
            }
            let size = card.sizes.iter().find(|(of, _)| *of == found.audit.process).and_then(|(_, size)| *size);
            has = has + size.unwrap_or_default();
        }
        match self.ram {
            Some(available) => self.has_memory(has + BESIDE, available),
            None => Ok(()),
        }
    }

    /// Whether a lease could take more of a card than it is for: one of its programs there has no library.
    pub(super) fn is_uncapped(&self, lease: LeaseId, number: usize) -> bool {
        let capped = self.voices(lease, Method::Shim);
        self.leases.contains_key(&lease) && !self.own_on(lease, number).all(|process| capped.contains_key(process))
    }

    /// Whether somebody is on its way that had more than its lease when it began to leave, and may be back with that.
    pub(super) fn had_more(&self, lease: LeaseId) -> bool {
        match self.leases.get(&lease).map(|book| &book.at) {
            Some(LeaseStage::Away(held, trip)) if trip.way != MoveWay::Gone => {
                trip.had.0 > held.cards.iter().map(|_| held.vram.0).sum::<u64>()
            }
            _ => false,
        }
    }

    // ---- actions -------------------------------------------------------------------

    /// A stranger has a lease, by which it is taken off its cards.
    pub(super) fn take_off(&mut self, now: Time, stranger: UnleasedId, lease: LeaseId, at: Time) -> Verdict {
        let begun = self.watch.adopting.take();
        let holds = self.leases.get(&lease).is_some_and(|book| matches!(book.at, LeaseStage::Held(_)));
        // That it was due was tested when it asked; since then its lease is on its cards.
        must(20, begun == Some((lease, stranger)) && holds && at == now, || {
            format!("{stranger} is taken off its cards by {lease} at {at}, and has {begun:?}")
        })?;
        let Some(found) = self.watch.get(stranger) else {
            return must(15, false, || format!("{stranger} is taken off its cards, and is not on the record"));
        };
        let warned = matches!(found.step, SignalledStep::Warned { .. });
        // It has no lease but the one that it just got.
        let alone = self.holder(&found.audit.process).is_none_or(|of| of == lease);
        must(20, warned && alone && self.parks() && !found.stays, || {
            format!("{stranger} is taken off its cards, and that is not due: {found:?}")
        })?;
        self.watch.set_step(stranger, SignalledStep::Moving { lease, since: at });
        Ok(())
    }

    /// A stranger stays on its cards.
    pub(super) fn not_moved(&mut self, now: Time, stranger: UnleasedId, at: Time) -> Verdict {
        let Some(found) = self.watch.get(stranger) else {
            return must(15, false, || format!("{stranger} stays on its cards, and is not on the record"));
        };
        let fits = match found.step {
            SignalledStep::Moving { lease, since } => match self.leases.get(&lease) {
                Some(book) if matches!(book.at, LeaseStage::Held(_)) => self.stays(now, lease, since),
                Some(book) => matches!(book.at, LeaseStage::Ending(..)),
                None => true,
            },
            _ => self.ripe(now, found) == Ok(DueStep::Move) && self.may_move(now, found).is_err(),
        };
        must(20, fits && at == now, || format!("{stranger} could have been parked at {at}, it is {now}: {found:?}"))?;
        if let SignalledStep::Moving { lease, .. } = found.step {
            self.watch.unmoving.push(lease);
        }
        if let Some(found) = self.watch.get_mut(stranger) {
            found.stays = true;
        }
        self.watch.set_step(stranger, SignalledStep::Unmoved { since: at });
        Ok(())
    }

    /// Whether it is known by now that a holder cannot leave its cards.
    fn stays(&self, now: Time, lease: LeaseId, since: Time) -> bool {
        let Some(book) = self.leases.get(&lease) else { return true };
        let Some(held) = book.held() else { return true };
        let measured = self.is_measured(lease, book);
        if measured && self.could_leave(now, lease, book).is_some() {
            return false;
        }
        let period = self.policy.period;
        let blind = |number: &usize| {
            let card = &self.cards[*number];
            now.since(card.begun).0 > 2 * period.0 || matches!(card.look, SeenReading::Blind | SeenReading::Lost)
        };
        // Nothing happens to who is on a card that cannot be read.
        if held.cards.iter().any(blind) {
            return false;
        }
        let late = now >= since + KNOWN && !self.in_grace(now, since);
        late || (measured && !self.may_be_otherwise_soon(now, lease, book))
    }

    /// Whether it was seen how much of its cards is its.
    fn is_measured(&self, lease: LeaseId, book: &LeaseBook) -> bool {
        book.held().is_some_and(|held| held.cards.iter().any(|number| self.seen_of(lease, *number) > Bytes::ZERO))
    }

    /// Whether what keeps the driver from moving a holder may pass: it has not said anything of some process
    /// yet, somebody is there who could take the room, or nobody knows how much host memory there is.
    fn may_be_otherwise_soon(&self, now: Time, lease: LeaseId, book: &LeaseBook) -> bool {
        let (voices, parking) = (self.voices(lease, Method::Driver), &self.policy.parking);
        let LeaseStage::Held(held) = &book.at else { return false };
        let coarse = |number: &usize| matches!(self.cards[*number].look, SeenReading::Coarse(_));
        if parking.space == Bytes::ZERO || held.cards.iter().any(coarse) {
            return false;
        }
        let unheard = |number: &usize| self.own_on(lease, *number).any(|process| !voices.contains_key(process));
        if voices.is_empty() || held.cards.iter().any(unheard) {
            return true;
        }
        if voices.values().any(|voice| voice.cannot) {
            return false;
        }
        if self.keeps_to_its_cards(now, lease, held).is_err() {
            return true;
        }
        if !book.ask.may_lose_state && self.sure_of_room(lease, held).is_err() {
            return true;
        }
        book.rests.on(Method::Driver) <= now && self.ram.is_none()
    }

    // ---- when it is over -----------------------------------------------------------

    /// Whether a stranger is a lease's still: it is taken off its cards by it, or could not be.
    pub(super) fn is_still_moved(&self, found: &FoundProcess) -> bool {
        let owner = self.owners.get(&found.audit.process).and_then(|lease| self.leases.get(lease));
        let over = |book: &LeaseBook| matches!(book.at, LeaseStage::Ending(..));
        match found.step {
            SignalledStep::Moving { .. } => true,
            SignalledStep::Unmoved { .. } => owner.is_some_and(over) || self.is_root_of_ending(found),
            _ => false,
        }
    }

    /// Whether a lease that is over and was not seen to be began with it: after a start nobody else says so.
    fn is_root_of_ending(&self, found: &FoundProcess) -> bool {
        let over = |book: &LeaseBook| matches!(book.at, LeaseStage::Ending(..));
        self.leases.values().any(|book| over(book) && book.root() == Some(found.audit.process))
    }

    /// Whether somebody thought better of moving it.
    fn is_spared(&self, found: &FoundProcess) -> bool {
        let enforced = found.cards.iter().any(|number| self.watch.mode(*number) == Mode::Enforce);
        let told = |treat| self.watch.is_told(treat, &found.audit);
        !enforced || told(RuleAction::Allow) || (found.audit.container.is_some() && !told(RuleAction::Deny))
    }

    /// Its bytes were seen to have left its cards by this lease, whether it is on its way back or not.
    fn has_left(&self, lease: LeaseId) -> bool {
        match self.leases.get(&lease).map(|book| &book.at) {
            Some(LeaseStage::Away(_, trip)) => trip.way == MoveWay::Gone || (trip.way == MoveWay::Back && trip.back),
            _ => false,
        }
    }

    /// The lease that a stranger keeps which was taken off its cards by it, if it may be closed so, and whether it
    /// shall have its cards again.
    pub(super) fn is_moved_away(
        &self,
        now: Time,
        cause: &EventCause,
        stranger: UnleasedId,
        found: &FoundProcess,
        how: &UnleasedEnd,
    ) -> Option<(LeaseId, bool)> {
        let (UnleasedEnd::Adopted(lease) | UnleasedEnd::Parked(lease)) = how else { return None };
        let own = matches!(found.step, SignalledStep::Moving { lease: own, .. } if own == *lease);
        let held = self.leases.get(lease).is_some_and(LeaseBook::goes_on);
        let asked = matches!(cause, EventCause::Watched(it) if matches!(**it, WatchedStep::Adopt(Some(of), true) if of == stranger));
        let asked = asked && self.whereabouts(now, found).is_ok();
        let wants = asked || self.is_spared(found);
        // Who was spared was not moved, wherever it is.
        let fits = if matches!(how, UnleasedEnd::Parked(_)) { !wants && self.has_left(*lease) } else { wants };
        (own && held && fits).then_some((*lease, wants))
    }

    /// Whether a stranger can have a lease by somebody's word: who is moved by one gets that one.
    pub(super) fn may_be_adopted(&self, now: Time, found: &FoundProcess, wish: Option<Bytes>) -> bool {
        let owned = self.holder(&found.audit.process).is_some();
        let held = |lease: LeaseId| self.leases.get(&lease).is_some_and(LeaseBook::goes_on);
        match found.step {
            SignalledStep::Moving { lease, .. } if held(lease) => self.whereabouts(now, found).is_ok(),
            SignalledStep::Moving { .. } | SignalledStep::Unmoved { .. } if owned => false,
            _ => self.adoptable(now, found, wish).is_ok(),
        }
    }

    /// The record was compared with the cards: is anything left undone about somebody that is moved?
    pub(super) fn check_moving(
        &self,
        now: Time,
        id: UnleasedId,
        found: &FoundProcess,
        lease: LeaseId,
        since: Time,
    ) -> Verdict {
        let Some(book) = self.leases.get(&lease) else {
            return must(20, false, || format!("{id} is moved by {lease}, which is history"));
        };
        must(20, book.goes_on(), || format!("{id} is moved by {lease}, which is over: {book:?}"))?;
        must(20, !self.is_spared(found), || format!("{id} is moved, and somebody thought better of it: {found:?}"))?;
        must(19, !self.has_left(lease), || format!("{id} has left its cards, and is on the record: {book:?}"))?;
        if !matches!(book.at, LeaseStage::Held(_)) {
            return Ok(());
        }
        let could = self.could_leave(now, lease, book).filter(|_| self.is_measured(lease, book));
        must(20, could.is_none(), || format!("{id} could leave its cards ({could:?}), and is not told to: {book:?}"))?;
        must(20, !self.stays(now, lease, since), || format!("{id} cannot be moved, and still is to be: {book:?}"))
    }
}
