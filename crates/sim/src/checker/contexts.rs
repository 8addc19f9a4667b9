//! Rules 2, 3, 4, 5 and 9 for parked holders of which the driver takes the contexts, too.
//!
//! By this checker's own rule the driver is let at a holder's processes when all that was seen of it is from the
//! library's park, that was long enough ago, nobody asked for it since, every process of it on its cards can be quiet
//! and the driver can take each, nobody on these cards could take the room that a restore needs, and what the library
//! has and what is left fit into what was booked, or the rest can be booked, and is. It is told when every library has said that it is quiet. From then
//! on it may have what it was told to take, until it says that it has not; of whom nothing was heard it may. A holder
//! of which it may have something comes back by it, before the library copies anything.

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::{CallWord, EventCause};
use super::park::{DISTRUST, MoveBook, MoveWay};
use super::{Checker, Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::units::{Bytes, Time};

/// What the driver does about a parked holder's contexts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextChecks {
    /// The driver shall have these processes, too.
    pub processes: Vec<ProcKey>,
    /// It may have been told so.
    pub told: bool,
}

impl CheckerBooks {
    /// Which processes of a parked holder the driver shall have by now, and how much host memory must be booked for that
    /// beyond what is; or why none.
    fn deepens(&self, now: Time, lease: LeaseId) -> Result<(Vec<ProcKey>, Bytes), &'static str> {
        let after = self.policy.parking.context_after.ok_or("contexts stay in this house")?;
        let LeaseStage::Away(_, trip) = &self.leases.get(&lease).ok_or("it is not there")?.at else {
            return Err("it is not parked");
        };
        if trip.wants.is_some() && !trip.with_context {
            return Err("it waits for its cards");
        }
        if now < trip.since + after && !trip.with_context {
            return Err("it was not parked for long");
        }
        self.could_deepen(now, lease)
    }

    /// The same whether it waits or not, and however long it was parked.
    pub(super) fn could_deepen(&self, now: Time, lease: LeaseId) -> Result<(Vec<ProcKey>, Bytes), &'static str> {
        let book = self.leases.get(&lease).ok_or("it is not there")?;
        let LeaseStage::Away(held, trip) = &book.at else { return Err("it is not parked") };
        if self.policy.parking.context_after.is_none() {
            return Err("contexts stay in this house");
        }
        if trip.way != MoveWay::Gone || trip.rung != Method::Shim || trip.deep.is_some() {
            return Err("it is not in host memory by the library alone");
        }
        if self.is_stopped() {
            return Err("the disk is full");
        }
        if book.rests.on(Method::Driver) > now {
            return Err("the driver could not a moment ago");
        }
        let mut processes = Vec::new();
        for number in &held.cards {
            let card = &self.cards[*number];
            let stale = now.since(card.begun).0 > 2 * self.policy.period.0;
            if stale || !matches!(card.look, SeenReading::Free(_)) {
                return Err("nobody can see what it has");
            }
            processes.extend(self.own_on(lease, *number).copied());
        }
        processes.sort();
        processes.dedup();
        let quiet = |process: &ProcKey| {
            let voice = self.voices(lease, Method::Shim).get(process);
            voice.is_some_and(|voice| voice.parked.is_some() && voice.deep.is_some())
        };
        if processes.is_empty() || !processes.iter().all(quiet) {
            return Err("not all of its programs could be quiet");
        }
        let able = |process: &ProcKey| self.voices(lease, Method::Driver).get(process).is_some_and(|it| !it.cannot);
        if !processes.iter().all(able) {
            return Err("the driver cannot, or was not asked");
        }
        let left: Bytes = held.cards.iter().map(|number| self.seen_of(lease, *number)).sum();
        let more = (self.said(lease, Method::Shim) + left).less(held.booked);
        if more > Bytes::ZERO {
            self.has_memory(more, self.ram.ok_or("nobody knows how much host memory there is")?)?;
            let cap = self.policy.caps_for(&self.tenants[book.tenant].name, &[]).parked;
            if cap.is_some_and(|cap| self.booked_by(Some(book.tenant)) + more > cap) {
                return Err("its tenant has as much as it may");
            }
        }
        self.sure_of_room(lease, held)?;
        self.keeps_to_its_cards(now, lease, held)?;
        Ok((processes, more))
    }

    /// Whether a process that was a holder's has ended: nobody has it.
    fn is_gone(&self, lease: LeaseId, process: &ProcKey) -> bool {
        let counted = self.leases.get(&lease).is_some_and(|book| book.counted);
        counted && !self.owners.contains_key(process)
    }

    /// Whether the driver moves a process for a lease.
    pub(super) fn moves(&self, book: &LeaseBook, process: &ProcKey) -> bool {
        let LeaseStage::Away(_, trip) = &book.at else { return false };
        trip.deep.as_ref().map_or(&trip.driven, |deep| &deep.processes).contains(process)
    }

    /// A lease lost a process to another: unless the driver moves it already, it does not for this one.
    pub(super) fn lose(&mut self, from: LeaseId, process: ProcKey) {
        let moved = self.leases.get(&from).is_some_and(|book| self.moves(book, &process));
        if let Some(voices) = self.voices.get_mut(&(from, Method::Driver)).filter(|_| !moved) {
            voices.remove(&process);
        }
    }

    /// Whether the driver says for a lease that it could move a process which it moves for another, or is another's.
    pub(super) fn is_others(&self, lease: LeaseId, rung: Method, process: &ProcKey, said: &MoverReport) -> bool {
        if rung != Method::Driver
            || !matches!(
                said,
                MoverReport::Present { parked: None }
                    | MoverReport::Cannot(_)
                    | MoverReport::Resumed
                    | MoverReport::Unknown
            )
        {
            return false;
        }
        let known = self.voices(lease, Method::Driver).contains_key(process);
        let trips = self.trips.iter().filter_map(|trip| self.leases.get(trip));
        let mut movers = trips.filter(|book| self.moves(book, process)).map(|book| book.id);
        let of = movers.next().or_else(|| self.owners.get(process).copied());
        !known && of.is_some_and(|of| of != lease)
    }

    /// Whether nothing of a holder calls the driver any more.
    fn is_quiet(&self, lease: LeaseId, deep: &ContextChecks) -> bool {
        let voices = self.voices(lease, Method::Shim);
        deep.processes.iter().all(|process| match voices.get(process) {
            Some(voice) => voice.deep == Some(true),
            None => self.is_gone(lease, process),
        })
    }

    /// Whether the driver may have something of a holder.
    pub(super) fn may_have(&self, lease: LeaseId, trip: &MoveBook) -> bool {
        let voices = self.voices(lease, Method::Driver);
        let has = |process: &ProcKey| voices.get(process).is_none_or(|voice| voice.parked.is_some() || voice.unknown);
        let moved = trip.deep.as_ref().map_or(&trip.driven, |deep| &deep.processes);
        moved.iter().any(|process| !self.is_gone(lease, process) && has(process))
    }

    /// Something was heard of a holder: the driver may be told by now.
    pub(super) fn note_quiet(&mut self, lease: LeaseId) {
        let trip = match self.leases.get(&lease).map(|book| &book.at) {
            Some(LeaseStage::Away(_, trip)) => trip,
            _ => return,
        };
        let told = trip.deep.as_ref().is_some_and(|deep| self.is_quiet(lease, deep));
        if let (true, Some(LeaseBook { at: LeaseStage::Away(_, trip), .. })) = (told, self.leases.get_mut(&lease))
            && let Some(deep) = &mut trip.deep
        {
            deep.told = true;
        }
    }

    pub(super) fn is_deep(&self, lease: LeaseId) -> bool {
        matches!(self.leases.get(&lease).map(|book| &book.at), Some(LeaseStage::Away(_, trip)) if trip.deep.is_some())
    }

    /// The driver could not do what it was told about what the library left.
    pub(super) fn driver_refused(&mut self, now: Time, lease: LeaseId) -> CallWord {
        match self.leases.get(&lease).map(|book| &book.at) {
            Some(LeaseStage::Away(_, trip)) if trip.way == MoveWay::Gone => {
                self.rest(now, lease, Method::Driver, DISTRUST);
                CallWord::Refuse
            }
            Some(LeaseStage::Away(_, trip)) if trip.way == MoveWay::Back => CallWord::Refuse,
            _ => CallWord::Tell,
        }
    }

    /// The driver shall have what the library left of a holder.
    pub(super) fn deepen(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        at: Time,
        of: &[ProcKey],
        booked: Option<Bytes>,
    ) -> Verdict {
        must(14, at == now, || format!("{lease} leaves altogether at {at}, and it is {now}"))?;
        let has = |process: &ProcKey| {
            self.voices(lease, Method::Driver).get(process).is_some_and(|voice| voice.parked.is_some())
        };
        // After a word of its own it may also leave altogether for a waiter, like any other.
        if matches!(cause, EventCause::Said(said, _) if *said == lease) && of.iter().any(has) {
            must(3, booked.is_none(), || format!("{booked:?} booked for {lease}, which has left"))?;
            return self.driver_has(lease, of);
        }
        let (_, held, trip) = self.trip(lease, MoveWay::Gone)?;
        must(5, trip.deep.is_none(), || format!("{lease} is told twice to leave altogether: {trip:?}"))?;
        let in_time = matches!(cause, EventCause::Observed(Some(_), _)) && self.deepens(now, lease).is_ok();
        must(17, in_time || self.is_context_sought(now, lease, held), || {
            format!("{lease} leaves altogether after {cause:?}, and no waiter needs that: {trip:?}")
        })?;
        let can = self.could_deepen(now, lease);
        must(2, matches!(&can, Ok((processes, _)) if processes == of), || {
            format!("{lease} leaves altogether with {of:?}, and by the books {can:?}: {trip:?}")
        })?;
        let more = can.map_or(Bytes::ZERO, |(_, more)| more);
        let all = held.booked + more;
        must(3, booked == (more > Bytes::ZERO).then_some(all), || {
            format!("{lease} leaves altogether with {booked:?} booked, and by the books {all}: {held:?}")
        })?;
        self.unread = self.unread + more;
        if let Some(LeaseBook { at: LeaseStage::Away(held, trip), .. }) = self.leases.get_mut(&lease) {
            held.booked = all;
            trip.deep = Some(ContextChecks { processes: of.to_vec(), told: false });
        }
        self.note_quiet(lease);
        Ok(())
    }

    /// Whether waiters, ahead of this lease if that waits too, could be on one of its cards and do not all fit there now:
    /// one that does not, or several.
    fn is_context_sought(&self, now: Time, lease: LeaseId, held: &HeldBook) -> bool {
        // A waiter that a quota holds back, or that is behind such a one of its tenant, is passed over, so none is behind it.
        let tenant = self.leases.get(&lease).map(|book| book.tenant);
        let mut is_passed_over = false;
        let ahead = self.in_order().filter_map(|waiter| self.leases.get(&waiter));
        let ahead = ahead.take_while(|book| {
            is_passed_over |= Some(book.tenant) == tenant && self.may_be_held_back(book);
            is_passed_over || book.id != lease
        });
        let ahead: Vec<&LeaseBook> = ahead.take(64).filter(|book| book.id != lease).collect();
        let is_sought = |number: &usize| {
            let card = &self.cards[*number];
            let mut seek = ahead.iter().filter(|book| !self.is_held_back(book) && self.could_hold(book, card));
            seek.clone().nth(1).is_some() || seek.any(|book| !self.fits(book, card, now))
        };
        self.policy.parking.preempt && held.cards.iter().any(is_sought)
    }

    /// What parked leases have on a card that leaves it should a waiter need the room: the driver has been told to take it,
    /// or could be.
    pub(super) fn removable(&self, waiter: LeaseId, card: &GpuBook) -> Bytes {
        let now = self.heard.unwrap_or(Time::ZERO);
        let leaves =
            |lease: &LeaseId| self.is_deep(*lease) || (*lease != waiter && self.could_deepen(now, *lease).is_ok());
        let parked = |lease: &LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_parked);
        let residues = card.seen.iter().filter(|(lease, _)| card.claims.contains_key(lease) && parked(lease));
        residues.filter(|(lease, _)| leaves(lease)).map(|(_, bytes)| *bytes).sum()
    }

    /// The driver said that it has a process of a holder's that left by the library, unasked.
    fn driver_has(&mut self, lease: LeaseId, of: &[ProcKey]) -> Verdict {
        let at = self.leases.get(&lease).map(|book| &book.at);
        let known: &[ProcKey] = match at {
            Some(LeaseStage::Away(_, trip)) => trip.deep.as_ref().map_or(&[], |deep| &deep.processes),
            _ => &[],
        };
        let has = |process: &&ProcKey| {
            let voice = self.voices(lease, Method::Driver).get(process);
            !known.contains(process) && voice.is_some_and(|voice| voice.parked.is_some())
        };
        let new = of.iter().filter(has).count();
        let left = matches!(at, Some(LeaseStage::Away(_, trip)) if trip.rung == Method::Shim);
        must(2, left && new == 1 && of.len() == known.len() + 1 && known.iter().all(|it| of.contains(it)), || {
            format!("the driver shall have {of:?} of {lease}, and {known:?} before: {at:?}")
        })?;
        if let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get_mut(&lease) {
            trip.deep = Some(ContextChecks { processes: of.to_vec(), told: true });
        }
        self.note_quiet(lease);
        Ok(())
    }

    /// Its contexts stay where they are after all.
    pub(super) fn shallow(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, held, trip) = self.trip(lease, MoveWay::Gone)?;
        must(14, at == now, || format!("{lease} keeps its contexts at {at}, and it is {now}"))?;
        let told = trip.deep.as_ref().is_some_and(|deep| deep.told);
        let refused = matches!(cause, EventCause::Said(of, CallWord::Refuse) if *of == lease);
        let unsure = matches!(cause, EventCause::Observed(..)) && self.sure_of_room(lease, held).is_err();
        // What it refused it did not know of, and says now that it has nothing.
        let rests = self.leases.get(&lease).is_some_and(|book| book.rests.on(Method::Driver) > now);
        let found = rests && matches!(cause, EventCause::Said(of, CallWord::Tell) if *of == lease);
        must(17, refused || unsure || found, || format!("{lease} keeps its contexts after {cause:?}: {trip:?}"))?;
        // What it was never told to take it has not; what it refused to take it has not if it says so.
        let has_not = if refused || found { !self.may_have(lease, trip) } else { !told };
        must(2, trip.deep.is_some() && has_not, || {
            format!("nobody would bring back what the driver may have of {lease}: {trip:?}")
        })?;
        if let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get_mut(&lease) {
            trip.deep = None;
        }
        Ok(())
    }

    /// A card was seen and nothing came of it: whoever was parked there long enough has left altogether, if it can.
    pub(super) fn check_deep(&self, now: Time, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        let card = &self.cards[*number];
        if self.policy.parking.context_after.is_none() || !matches!(card.look, SeenReading::Free(_)) {
            return Ok(());
        }
        for lease in card.claims.keys() {
            let stays = self.deepens(now, *lease);
            must(9, stays.is_err(), || format!("{lease} could have left altogether: {stays:?}"))?;
        }
        Ok(())
    }
}

impl Checker {
    /// The driver is told to take a holder's processes.
    pub fn check_taken(&self, lease: LeaseId) -> Verdict {
        let at = self.books.leases.get(&lease).map(|book| &book.at);
        let Some(LeaseStage::Away(_, trip)) = at else { return Ok(()) };
        let loud = trip.deep.as_ref().is_some_and(|deep| !self.books.is_quiet(lease, deep));
        must(5, !loud, || format!("the driver is told to take {lease}, of which something may call it: {trip:?}"))
    }

    /// The driver is told to bring back what it has of a holder that comes back: nobody may be there who could take
    /// its room. (Of what it has though it was never told to take it nobody knows.) `anew`: on the disk, which orders
    /// follow from, its cards were given to it anew.
    pub fn check_kept_free(&self, lease: LeaseId, anew: bool) -> Verdict {
        let Some(book) = self.books.leases.get(&lease) else { return Ok(()) };
        let LeaseStage::Away(held, trip) = &book.at else { return Ok(()) };
        // Who has its cards anew is sent away with the next look, and the driver hears of that when it is on the disk.
        let asked = trip.back || anew || book.ask.may_lose_state || trip.way != MoveWay::Back;
        let sure = if asked { Ok(()) } else { self.books.others_keep_off(lease, held) };
        must(2, sure.is_ok(), || format!("the driver shall restore {lease}, and {sure:?}: {trip:?}"))
    }

    /// The library in a program of a holder that leaves by the driver, or has left, is told nothing: that is for those
    /// which the driver takes. Any other would have the room that was given to others.
    pub fn check_let_on(&self, lease: LeaseId, process: ProcKey) -> Verdict {
        let at = self.books.leases.get(&lease).map(|book| &book.at);
        let Some(LeaseStage::Away(_, trip)) = at else { return Ok(()) };
        let off = trip.rung == Method::Driver && trip.way != MoveWay::Back;
        must(2, !off || trip.driven.contains(&process), || {
            format!("nothing keeps {process:?} of {lease} off its cards, which began since the driver has it: {trip:?}")
        })
    }

    /// The library in a program is told to bring its bytes back.
    pub fn check_restored_first(&self, lease: LeaseId) -> Verdict {
        let at = self.books.leases.get(&lease).map(|book| &book.at);
        let Some(LeaseStage::Away(_, trip)) = at else { return Ok(()) };
        must(2, !self.books.may_have(lease, trip), || {
            format!("the library shall bring {lease} back, of which the driver may have something: {trip:?}")
        })
    }
}
