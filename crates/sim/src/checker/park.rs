//! Rules 2, 3 and 4 for holders that leave their cards and come back.
//!
//! What counts as seen, by this checker's own rule: a look at a card shows that a holder has left it
//! if every program of the holder that is known had said so before the look began, all of its
//! processes on the card are such programs, no more is left than a context and half a gibibyte for
//! each of them, and all its cards together have lost at least half of what they say. Two such looks
//! at each of its cards, one after the other, and it is parked. A look shows that it is back if all of
//! its programs had said so before, and no other process of its is on the card; one such look at each
//! card is enough, for its room is its own anyway. A word that comes later makes all looks begin anew.

mod back;

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::{CallWord, EventCause, ExpectedAnswer};
use super::coarse::OtherLeases;
use super::contexts::ContextChecks;
use super::{Verdict, Violation, must};
use std::collections::BTreeMap;
use sublet_core::facts::{LeaseAction, UnparkReason};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::parking::MoverReport;
use sublet_core::policy::Parking;
use sublet_core::request::{GpuSelector, LeaseRequest, Term, Vram};
use sublet_core::rows::ParkState;
use sublet_core::units::{Bytes, Span, Time};

/// Looks that must agree.
pub(super) const LOOKS: u32 = 2;
/// A context that nobody measured, what a program may have beside it, and what is too little to show.
pub const CONTEXT: Bytes = Bytes::mib(1024);
/// What a program may have beside its context.
pub const BESIDE: Bytes = Bytes::mib(512);
pub(super) const LITTLE: Bytes = Bytes::mib(64);
/// Whoever said what was not so is left alone for so many rests.
pub(super) const DISTRUST: u64 = 60;
/// A hook may take so long, however little time others have.
const HOOK_TIME: Span = Span::secs(120);

/// Which way a holder's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWay {
    /// They leave its cards.
    Out,
    /// They are in host memory.
    Gone,
    /// They come back.
    Back,
}

/// A holder off its cards, or on its way.
#[derive(Clone, Debug)]
pub struct MoveBook {
    /// Which way.
    pub way: MoveWay,
    /// Since when.
    pub since: Time,
    /// Once it is gone it asks for its cards again, and as of then.
    pub again: Option<Time>,
    /// While it comes back: its cards were given to it anew.
    pub back: bool,
    /// While it is gone: since when it waits for its cards.
    pub wants: Option<Time>,
    /// It was idle when it left, and its next use cannot be noticed: it comes back into unclaimed room only.
    pub passive: bool,
    /// Its contexts leave too, as soon as it is gone.
    pub(super) with_context: bool,
    /// What it asked for at first, while its ask is for the cards it had.
    pub first: Option<LeaseRequest>,
    /// What was left of a fixed term.
    pub(super) left: Option<Span>,
    /// It was asked for while its bytes were leaving.
    pub(super) asked_for: bool,
    /// A program that died while its bytes were leaving.
    pub(super) died: Option<ProcKey>,
    /// Looks in a row at each card that agree.
    pub(super) looks: BTreeMap<usize, u32>,
    /// When they showed that it has arrived, and those of them that began after that.
    pub(super) arrived: Option<Time>,
    pub(super) since_then: BTreeMap<usize, u32>,
    /// How long it may take, by the rules when it began or any since.
    pub(super) span: Span,
    /// How long it may take to see what was said, likewise.
    pub(super) sight: Span,
    /// In which way it leaves and comes back.
    pub rung: Method,
    /// What it had on its cards when it began to leave.
    pub had: Bytes,
    /// What each card had then in all, and whose beside its own, if one of them did not tell whose it is.
    pub(super) before: BTreeMap<usize, OtherLeases>,
    /// The driver shall have what the library left, too.
    pub(super) deep: Option<ContextChecks>,
    /// The processes that leave by the driver alone.
    pub(super) driven: Vec<ProcKey>,
}

/// Somebody who speaks for a holder on a rung: the library in a program, the driver for a process, or
/// the wrapper for all of them.
#[derive(Clone, Copy, Debug)]
pub struct MoverBook {
    /// So many of its bytes are in host memory.
    pub parked: Option<Bytes>,
    /// When it said so.
    pub word: Time,
    /// It cannot be parked now.
    pub cannot: bool,
    /// Whether it calls the driver for nothing; `None` if it never said that it could do so.
    pub deep: Option<bool>,
    /// It is not known any more where its bytes are.
    pub unknown: bool,
}

/// All who speak for a holder on one rung.
pub type MoverBooks = BTreeMap<ProcKey, MoverBook>;

/// The wrapper of a holder with a hook.
pub const HOOK: ProcKey = ProcKey { pid: 0, start: 0 };

static NOBODY: MoverBooks = BTreeMap::new();
/// Who has said nothing of where its bytes are.
pub(super) const SILENT: MoverBook =
    MoverBook { parked: None, word: Time::ZERO, cannot: false, deep: None, unknown: false };

/// Until when a holder is left alone, rung by rung, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackoffBook([Time; 4], [Time; 4]);

impl BackoffBook {
    /// On one rung.
    pub fn on(&self, rung: Method) -> Time {
        self.0[rung as usize]
    }

    fn set(&mut self, rung: Method, since: Time, until: Time) {
        self.0[rung as usize] = until;
        self.1[rung as usize] = since;
    }

    /// Whether a holder that was given its time then has failed to leave in this way since.
    fn failed(&self, rung: Method, renewed: Time) -> bool {
        self.0[rung as usize] != Time::ZERO && self.1[rung as usize] >= renewed
    }

    /// As the disk has it: only who said what was not so is remembered.
    pub fn read(lied: Option<(Method, Time)>, parking: &Parking) -> BackoffBook {
        let mut rests = BackoffBook::default();
        if let Some((rung, at)) = lied {
            rests.set(rung, at, at + Span(parking.retry_after.0 * DISTRUST));
        }
        rests
    }
}

impl MoveBook {
    fn new(way: MoveWay, since: Time, span: Span) -> MoveBook {
        MoveBook {
            way,
            since,
            again: None,
            back: false,
            wants: None,
            passive: false,
            with_context: false,
            first: None,
            left: None,
            asked_for: false,
            died: None,
            looks: BTreeMap::new(),
            arrived: None,
            since_then: BTreeMap::new(),
            span,
            sight: Span::ZERO,
            rung: Method::Shim,
            had: Bytes::ZERO,
            before: BTreeMap::new(),
            deep: None,
            driven: Vec::new(),
        }
    }

    /// As the disk has it.
    pub fn read(way: MoveWay, away: &ParkState, parking: &Parking) -> MoveBook {
        let (again, back, wants) = (away.requests_again_at, away.was_resumed, away.queued_since);
        let (first, left, rung, had) = (away.first_request.clone(), away.term_left, away.method, away.had_bytes);
        // An earlier daemon may have told the driver.
        let deep = away.with_driver.then(|| ContextChecks { processes: away.processes.clone(), told: true });
        let driven = if rung == Method::Driver { away.processes.clone() } else { Vec::new() };
        let (passive, with_context) = (away.is_passive, away.with_context);
        let trip = MoveBook::new(way, away.since, Span::ZERO);
        let trip = MoveBook { again, back, wants, passive, with_context, first, left, rung, had, deep, driven, ..trip };
        MoveBook { span: trip.allowed(parking), sight: parking.move_timeout, ..trip }
    }

    /// Whether a row says the same.
    pub fn is(&self, away: &ParkState) -> bool {
        let moving = self.way == MoveWay::Gone || (away.requests_again_at, away.was_resumed) == (self.again, self.back);
        let same = (away.since, away.queued_since, away.term_left) == (self.since, self.wants, self.left);
        let deep = match &self.deep {
            Some(deep) => away.with_driver && away.processes == deep.processes,
            None => !away.with_driver && away.processes == self.driven,
        };
        moving && same && deep && (away.method, away.had_bytes, away.is_passive) == (self.rung, self.had, self.passive)
    }

    /// How long this part of it may take, by these rules: the driver has a second more for each half GiB,
    /// and a hook has two minutes.
    pub(super) fn allowed(&self, parking: &Parking) -> Span {
        match (self.way, self.rung) {
            (MoveWay::Gone, _) => parking.term,
            (_, Method::Driver) => Span(parking.move_timeout.0 + self.had.0 / (512 << 20) * 1_000_000),
            (_, Method::Hook) if parking.move_timeout < HOOK_TIME => HOOK_TIME,
            // First the driver has its time, then the library.
            (_, Method::Shim) if self.deep.is_some() => parking.move_timeout + parking.move_timeout,
            _ => parking.move_timeout,
        }
    }

    /// The driver brings it back: nothing else may come to its cards.
    pub fn restores(&self) -> bool {
        self.way == MoveWay::Back && self.needs_driver() && self.back
    }

    /// It does not come back without the driver.
    pub fn needs_driver(&self) -> bool {
        self.rung == Method::Driver || self.deep.is_some()
    }

    /// It goes another way from now on.
    fn turned(&self, way: MoveWay, since: Time, parking: &Parking) -> MoveBook {
        let (looks, since_then) = (BTreeMap::new(), BTreeMap::new());
        let trip = MoveBook { way, since, looks, arrived: None, since_then, ..self.clone() };
        MoveBook { span: trip.allowed(parking), sight: parking.move_timeout, ..trip }
    }

    fn seen_on(&self, held: &HeldBook, looks: u32) -> bool {
        held.cards.iter().all(|card| self.looks.get(card).is_some_and(|count| *count >= looks))
    }

    /// A look at a card agrees with it, or does not.
    fn look(&mut self, cards: &[usize], number: usize, agrees: bool, begun: Time, now: Time) {
        let looks = self.looks.entry(number).or_default();
        *looks = if agrees { *looks + 1 } else { 0 };
        if self.arrived.is_some_and(|arrived| arrived < begun) {
            *self.since_then.entry(number).or_default() += 1;
        }
        if !cards.iter().all(|card| self.looks.get(card).is_some_and(|count| *count >= LOOKS)) {
            (self.arrived, self.since_then) = (None, BTreeMap::new());
        } else if self.arrived.is_none() {
            self.arrived = Some(now);
        }
    }
}

impl CheckerBooks {
    // ---- what is heard -----------------------------------------------------

    /// Who speaks for a lease on a rung.
    pub fn voices(&self, lease: LeaseId, rung: Method) -> &MoverBooks {
        self.voices.get(&(lease, rung)).unwrap_or(&NOBODY)
    }

    /// Somebody who speaks for a lease said something.
    pub fn heard(&mut self, now: Time, lease: LeaseId, rung: Method, process: ProcKey, said: &MoverReport) -> CallWord {
        let Some(book) = self.leases.get(&lease) else { return CallWord::Tell };
        let concerned = !matches!(&book.at, LeaseStage::Away(_, trip) if trip.rung != rung);
        if let (Method::Driver, MoverReport::Refused(_), true) = (rung, said, self.is_deep(lease)) {
            return self.driver_refused(now, lease);
        }
        if self.is_others(lease, rung, &process, said) || self.is_outdated(lease, rung, &process, said) {
            return CallWord::Tell;
        }
        let shims = self.voices.entry((lease, rung)).or_default();
        let before = shims.get(&process).copied();
        let cannot = before.is_some_and(|shim| shim.cannot);
        let deep = before.and_then(|shim| shim.deep);
        match said {
            MoverReport::Present { parked } => {
                let word = before.filter(|before| before.parked.is_some() == parked.is_some()).map_or(now, |b| b.word);
                shims.insert(process, MoverBook { parked: *parked, word, cannot, deep, unknown: false });
            }
            MoverReport::Parked(bytes) => {
                shims.insert(process, MoverBook { parked: Some(*bytes), word: now, cannot, deep, unknown: false });
            }
            MoverReport::Resumed => {
                // It calls the driver again, whatever it said before.
                let deep = deep.map(|_| false);
                shims.insert(process, MoverBook { parked: None, word: now, cannot, deep, unknown: false });
            }
            MoverReport::Unknown => {
                let shim = before.unwrap_or(MoverBook { word: now, ..SILENT });
                shims.insert(process, MoverBook { unknown: true, ..shim });
            }
            MoverReport::Cannot(why) => {
                let shim = before.unwrap_or(MoverBook { word: now, ..SILENT });
                shims.insert(process, MoverBook { cannot: why.is_some(), ..shim });
            }
            MoverReport::Gone | MoverReport::Died(_) => drop(shims.remove(&process)),
            MoverReport::Refused(_) | MoverReport::Outgrown(_) if !concerned => return CallWord::Tell,
            MoverReport::Refused(_) => return CallWord::Refuse,
            MoverReport::Outgrown(_) => return CallWord::Outgrow,
            MoverReport::Lost(_) => return CallWord::Lose,
            MoverReport::KeepsStill(deep) => {
                let shim = before.unwrap_or(MoverBook { word: now, ..SILENT });
                shims.insert(process, MoverBook { deep: Some(*deep), ..shim });
                self.note_quiet(lease);
                return CallWord::Tell;
            }
            MoverReport::Used => {
                self.ask_for(lease);
                return CallWord::Resume;
            }
        }
        match shims.get(&process).and_then(|shim| shim.parked) {
            Some(bytes) if bytes > Bytes::ZERO && rung != Method::Hook => self.stowed.insert((process, rung), lease),
            _ => self.stowed.remove(&(process, rung)),
        };
        self.note_quiet(lease);
        let word = if matches!(said, MoverReport::Died(_)) { CallWord::Die } else { CallWord::Tell };
        if !concerned {
            return word;
        }
        // What was seen before its last word proves nothing.
        if let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get_mut(&lease) {
            match said {
                MoverReport::Died(_) if trip.way == MoveWay::Out => trip.died = Some(process),
                MoverReport::Present { .. } => drop(trip.died.take_if(|died| *died == process)),
                _ => {}
            }
            trip.looks.clear();
            (trip.arrived, trip.since_then) = (None, BTreeMap::new());
        }
        word
    }

    /// Somebody needs the cards of a holder that is leaving them.
    pub(super) fn ask_for(&mut self, lease: LeaseId) {
        if let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get_mut(&lease) {
            trip.asked_for |= trip.way == MoveWay::Out;
        }
    }

    /// The same of a holder that has left them already.
    pub(super) fn ask_at_once(&mut self, lease: LeaseId) {
        if let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get_mut(&lease) {
            trip.asked_for |= trip.way != MoveWay::Back && trip.wants.is_none();
        }
    }

    /// What those who speak for a lease on a rung say it has in host memory.
    pub(super) fn said(&self, lease: LeaseId, rung: Method) -> Bytes {
        self.voices(lease, rung).values().filter_map(|voice| voice.parked).sum()
    }

    pub(super) fn none_parked(&self, lease: LeaseId, rung: Method) -> bool {
        self.voices(lease, rung).values().all(|voice| voice.parked.is_none())
    }

    /// The rules are others now: what is on its way may take as long as any of them allowed.
    pub fn allow_trips(&mut self) {
        let parking = &self.policy.parking;
        for lease in &self.trips {
            if let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get_mut(lease) {
                trip.span = trip.span.max(trip.allowed(parking));
                trip.sight = trip.sight.max(parking.move_timeout);
            }
        }
    }

    /// Nothing is known of a lease's programs any more.
    pub fn forget_programs(&mut self, lease: LeaseId) {
        Method::REVERSIBLE.iter().for_each(|rung| drop(self.voices.remove(&(lease, *rung))));
        self.stowed.retain(|_, of| *of != lease);
    }

    /// The host's memory was looked at: whatever had left its cards is in it.
    pub fn read_ram(&mut self, available: Option<Bytes>) {
        (self.ram, self.unread) = (available, Bytes::ZERO);
    }

    /// A card answered: who is on its way may be seen to have arrived.
    pub fn look_at_trips(&mut self, number: usize, begun: Time) {
        for lease in self.trips.iter().copied().collect::<Vec<_>>() {
            let Some(book) = self.leases.get(&lease) else { continue };
            let LeaseStage::Away(held, trip) = &book.at else { continue };
            if !held.cards.contains(&number) || trip.way == MoveWay::Gone {
                continue;
            }
            let agrees = match trip.way {
                MoveWay::Out => self.shows_gone(lease, held, trip, number, begun),
                _ => self.shows_back(book, trip, number, begun),
            };
            let now = self.heard.unwrap_or_default();
            if let Some(LeaseBook { at: LeaseStage::Away(held, trip), .. }) = self.leases.get_mut(&lease) {
                trip.look(&held.cards, number, agrees, begun, now);
            }
        }
    }

    /// A lease's processes on a card, as of the last look that was answered.
    pub fn own_on(&self, lease: LeaseId, number: usize) -> impl Iterator<Item = &ProcKey> {
        self.cards[number].all.iter().filter(move |process| self.owners.get(process) == Some(&lease))
    }

    /// What was seen of a lease on a card.
    pub fn seen_of(&self, lease: LeaseId, number: usize) -> Bytes {
        let seen = self.cards[number].seen.iter().find(|(of, _)| *of == lease);
        seen.map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    }

    fn seen_in_all(&self, lease: LeaseId, held: &HeldBook) -> Bytes {
        held.cards.iter().map(|card| self.seen_of(lease, *card)).sum()
    }

    fn shows_gone(&self, lease: LeaseId, held: &HeldBook, trip: &MoveBook, number: usize, begun: Time) -> bool {
        let card = &self.cards[number];
        let voices = self.voices(lease, trip.rung);
        let each = card.facts.context.unwrap_or(CONTEXT) + BESIDE;
        let programs = self.own_on(lease, number).count() as u64;
        let said = self.said(lease, trip.rung);
        let told = |voice: &MoverBook| voice.parked.is_some() && voice.word < begun;
        // Whose programs all went away has nothing there; a hook and the driver have a voice or none.
        let heard = trip.rung == Method::Shim || !voices.is_empty();
        let heard = heard && trip.since < begun && voices.values().all(told);
        if card.is_coarse() {
            let known = self.own_on(lease, number).all(|process| voices.contains_key(process));
            return heard && known && trip.rung == Method::Shim && self.shows_less(held, trip, said);
        }
        let heard = heard && matches!(card.look, SeenReading::Free(_));
        let few = self.seen_of(lease, number).0 <= each.0 * programs;
        let all = self.seen_in_all(lease, held);
        if trip.rung == Method::Hook {
            return heard && (few || all.0 <= trip.had.0 / 8);
        }
        heard
            && few
            && self.own_on(lease, number).all(|process| voices.contains_key(process))
            && (said <= LITTLE || all <= held.booked.less(Bytes(said.0 / 2)))
    }

    fn shows_back(&self, book: &LeaseBook, trip: &MoveBook, number: usize, begun: Time) -> bool {
        let shims = self.voices(book.id, trip.rung);
        // Of whom nothing was heard nothing is known.
        let heard = !shims.is_empty() || !book.bound;
        let told = |shim: &MoverBook| shim.parked.is_none() && shim.word < begun;
        let known = self.own_on(book.id, number).all(|process| shims.contains_key(process));
        let known = known || trip.rung == Method::Hook;
        heard && known && trip.since < begun && shims.values().all(told) && !self.may_have(book.id, trip)
    }

    // ---- rule 3 ------------------------------------------------------------

    /// A way in which a holder could leave its cards now.
    pub fn could_leave(&self, now: Time, lease: LeaseId, book: &LeaseBook) -> Option<Method> {
        Method::REVERSIBLE.into_iter().find(|rung| self.parkable(now, lease, book, *rung).is_ok())
    }

    /// Whether a holder's time is over.
    pub fn is_over(&self, now: Time, held: &HeldBook) -> bool {
        now >= held.until && !self.in_grace(now, held.renewed)
    }

    /// How much host memory parking a holder in this way takes, or why it cannot be parked.
    pub fn parkable(&self, now: Time, lease: LeaseId, book: &LeaseBook, rung: Method) -> Result<Bytes, &'static str> {
        let LeaseStage::Held(held) = &book.at else { return Err("it is not on its cards") };
        let parking = &self.policy.parking;
        let shims = self.voices(lease, rung);
        if shims.is_empty() {
            return Err("nobody is there to be told");
        }
        if (parking.space == Bytes::ZERO && rung != Method::Hook) || self.is_stopped() {
            return Err("nobody is parked now");
        }
        if book.rests.on(rung) > now {
            return Err("it was tried a moment ago");
        }
        if self.is_over(now, held) && book.rests.failed(rung, held.renewed) {
            return Err("it was tried, and its time is over");
        }
        if shims.values().any(|shim| shim.cannot) {
            return Err("one of its programs cannot be");
        }
        for number in &held.cards {
            let card = &self.cards[*number];
            let stale = now.since(card.begun).0 > 2 * self.policy.period.0;
            let tells = matches!(card.look, SeenReading::Free(_)) || (card.is_coarse() && rung == Method::Shim);
            if stale || !tells {
                return Err("nobody would see its bytes go");
            }
            if rung != Method::Hook && self.own_on(lease, *number).any(|process| !shims.contains_key(process)) {
                return Err("one of its programs does not listen");
            }
        }
        if rung == Method::Shim && self.is_taken_up(lease, held) {
            return Err("somebody else moves where nobody tells whose bytes are whose");
        }
        if rung == Method::Driver && !book.ask.may_lose_state {
            self.keeps_to_its_cards(now, lease, held)?;
            self.sure_of_room(lease, held)?;
        }
        if rung == Method::Hook {
            return Ok(Bytes::ZERO);
        }
        let need = self.has_in_all(lease, held) + LITTLE;
        let available = self.ram.ok_or("nobody knows how much host memory there is")?;
        self.has_memory(need, available)?;
        let cap = self.policy.caps_for(&self.tenants[book.tenant].name, &[]).parked;
        match cap {
            Some(cap) if self.booked_by(Some(book.tenant)) + need > cap => Err("its tenant has as much as it may"),
            _ => Ok(need),
        }
    }

    pub(super) fn booked_by(&self, whose: Option<usize>) -> Bytes {
        let all = self.leases.values().filter(|book| whose.is_none_or(|tenant| book.tenant == tenant));
        all.filter_map(LeaseBook::held).map(|held| held.booked).sum()
    }

    /// Whether so much more host memory can be booked.
    pub(super) fn has_memory(&self, need: Bytes, available: Bytes) -> Result<(), &'static str> {
        let parking = &self.policy.parking;
        let out = self
            .leases
            .values()
            .filter(|book| matches!(&book.at, LeaseStage::Away(_, trip) if trip.way == MoveWay::Out));
        let leaving: Bytes = out.filter_map(LeaseBook::held).map(|held| held.booked).sum();
        if need + parking.keep_available + leaving + self.unread > available {
            return Err("the host has too little memory");
        }
        if self.booked_by(None) + need > parking.space {
            return Err("there is too little host memory for parked bytes");
        }
        Ok(())
    }

    /// A holder's bytes shall leave its cards.
    pub fn park(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::Park {
            at,
            booked,
            requests_again_at: again,
            method: rung,
            had_bytes: had,
            room_for,
            aside,
            is_passive: quiet,
            with_context,
            processes,
            ..
        } = action
        else {
            return Ok(());
        };
        let (at, booked, again, rung, quiet) = (*at, *booked, *again, *rung, *quiet);
        let Some(book) = self.leases.get(&lease) else { return must(0, false, || format!("no {lease} to park")) };
        let LeaseStage::Held(held) = &book.at else {
            return must(5, false, || format!("{lease} is told to leave its cards, and it is {:?}", book.at));
        };
        must(14, at == now, || format!("{lease} is parked at {at}, and it is {now}"))?;
        // Only the library reports the next use: a lease that leaves in another way while idle is passive.
        let moved = matches!(cause, EventCause::Observed(..) | EventCause::Watched(_)) && self.watch.is_by(lease);
        let by_hand = moved || matches!(cause, EventCause::Park(of, _) if *of == lease);
        let by_hand = by_hand && room_for.is_none() && aside.is_none();
        let is_heard = rung == Method::Shim || (rung == Method::Hook && !self.voices(lease, Method::Shim).is_empty());
        let passive = (!is_heard || aside.is_some()) && again.is_none() && !by_hand;
        must(9, quiet == passive, || {
            format!("{lease} leaves ({rung}), asks again as of {again:?}, and is passive: {quiet}")
        })?;
        let takes_contexts = rung == Method::Shim && room_for.is_some() && self.policy.parking.context_after.is_some();
        must(9, !with_context || takes_contexts, || format!("{lease} is parked ({rung}) with its contexts"))?;
        let had_then = self.has_in_all(lease, held);
        must(0, *had == had_then, || format!("{lease} is parked with {had}, and has {had_then}"))?;
        match cause {
            _ if room_for.is_some() => self.check_room_for(now, cause, book, again, *room_for)?,
            _ if aside.is_some() => {
                let number = aside.map(|card| usize::from(card.0)).unwrap_or_default();
                self.check_parked_aside(now, cause, book, held, number, again)?;
            }
            _ if moved => must(17, again.is_none() && !quiet, || {
                format!("{lease} is parked as a stranger, and asks again as of {again:?}")
            })?,
            EventCause::Park(of, ExpectedAnswer::Yes(true)) => {
                must(17, *of == lease && again.is_none() && !quiet, || {
                    format!("{lease} is parked after {cause:?}, and asks again as of {again:?}")
                })?
            }
            EventCause::Ticked => {
                let over = held.until <= now && !self.in_grace(now, book.since()) && !book.fixed();
                must(8, over, || format!("{lease} is parked at {now}, and it has until {}", held.until))?;
                let wanted = self.wanted(book.tenant, &held.cards).at_all;
                must(8, wanted, || format!("{lease} is parked, and nobody wants its cards"))?;
                let silent = !book.worked && !is_heard;
                must(9, again == book.worked.then_some(now + Span(1)) && quiet == silent, || {
                    format!("{lease} (at work: {}) is parked and asks again as of {again:?}", book.worked)
                })?;
            }
            _ => return must(17, false, || format!("{lease} is parked after {cause:?}")),
        }
        let sure = self.sure_of_room(lease, held);
        must(2, rung != Method::Driver || book.ask.may_lose_state || sure.is_ok(), || {
            format!("the driver parks {lease}, and a restore may lack room: {sure:?}")
        })?;
        let can = self.parkable(now, lease, book, rung);
        must(3, can == Ok(booked), || {
            format!("{lease} is parked ({rung}), {booked} booked, and by the books {can:?}")
        })?;
        let driven = self.voices(lease, rung).keys().filter(|_| rung == Method::Driver);
        let driven: Vec<ProcKey> = driven.copied().collect();
        must(2, *processes == driven, || format!("{lease} is parked ({rung}) with {processes:?}, not {driven:?}"))?;
        let before = self.beside(lease, held);
        let with_context = *with_context;
        let trip = MoveBook {
            again,
            passive,
            with_context,
            rung,
            had: *had,
            before,
            driven,
            ..MoveBook::new(MoveWay::Out, now, Span::ZERO)
        };
        let trip = trip.turned(MoveWay::Out, now, &self.policy.parking);
        self.set_trip(lease, trip, |held| {
            (held.booked, held.moved, held.notice, held.over) = (booked, true, None, None);
        });
        self.noticed.remove(&lease);
        Ok(())
    }

    /// Moves a lease to another part of its trip.
    fn set_trip(&mut self, lease: LeaseId, trip: MoveBook, change: impl FnOnce(&mut HeldBook)) {
        let Some(book) = self.remove(lease) else { return };
        let Some(mut held) = book.held().cloned() else { return };
        change(&mut held);
        self.insert(lease, LeaseBook { at: LeaseStage::Away(held, Box::new(trip)), ..book });
    }

    pub(super) fn trip(&self, lease: LeaseId, way: MoveWay) -> Result<(&LeaseBook, &HeldBook, &MoveBook), Violation> {
        let book = self.leases.get(&lease);
        if let Some(book) = book
            && let LeaseStage::Away(held, trip) = &book.at
            && trip.way == way
        {
            return Ok((book, held, trip));
        }
        Err(Violation { rule: 0, what: format!("{lease} should be {way:?}, and is {book:?}") })
    }

    // ---- rule 4 ------------------------------------------------------------

    /// Whether a trip has taken longer than it may.
    pub(super) fn is_overdue(&self, now: Time, trip: &MoveBook) -> bool {
        let span = trip.allowed(&self.policy.parking);
        now >= trip.since + span && !self.in_grace(now, trip.since)
    }

    /// When all who speak for a holder that leaves had said that its bytes are gone.
    pub(super) fn all_said(&self, lease: LeaseId, trip: &MoveBook) -> Option<Time> {
        let voices = self.voices(lease, trip.rung);
        let said = voices.values().all(|voice| voice.parked.is_some());
        let words = voices.values().map(|voice| voice.word).chain([trip.since]);
        words.max().filter(|_| said)
    }

    /// Whether what was said to be gone should have been seen by now, whatever time is left to go.
    pub(super) fn is_unseen(&self, now: Time, lease: LeaseId, trip: &MoveBook) -> bool {
        let by = self.all_said(lease, trip).map(|said| said + self.policy.parking.move_timeout);
        let by = by.map(|by| by.min(trip.since + trip.allowed(&self.policy.parking)));
        by.is_some_and(|by| now >= by) && !self.in_grace(now, trip.since)
    }

    /// Whether all of a holder has left, by its programs' word: none is there that could refuse to.
    fn has_all_left(&self, held: &HeldBook, lease: LeaseId, trip: &MoveBook) -> bool {
        let voices = self.voices(lease, trip.rung);
        let known = |number: &usize| self.own_on(lease, *number).all(|process| voices.contains_key(process));
        let heard = trip.rung == Method::Shim || !voices.is_empty();
        let known = trip.rung == Method::Hook || held.cards.iter().all(known);
        heard && known && self.all_said(lease, trip).is_some()
    }

    /// A holder's bytes stay after all.
    pub fn unpark(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time, why: &UnparkReason) -> Verdict {
        let (_, held, trip) = self.trip(lease, MoveWay::Out)?;
        let coarse = held.cards.iter().any(|number| self.cards[*number].is_coarse());
        let fits = match why {
            // Whoever has more than was booked does not fit, whatever it says.
            UnparkReason::Refused(_) if trip.rung != Method::Hook && self.said(lease, trip.rung) > held.booked => true,
            UnparkReason::Refused(_) if matches!(cause, EventCause::Unwrapped(of) if *of == lease) => {
                trip.rung == Method::Hook
            }
            UnparkReason::Refused(_) => {
                let said = |of: &LeaseId| *of == lease && !self.has_all_left(held, lease, trip);
                let refusal = |word: &CallWord| matches!(word, CallWord::Refuse | CallWord::Outgrow);
                matches!(cause, EventCause::Said(of, word) | EventCause::Hooked(of, word) if said(of) && refusal(word))
            }
            UnparkReason::Silent => matches!(cause, EventCause::Ticked) && self.is_overdue(now, trip),
            UnparkReason::NotSeen => matches!(cause, EventCause::Ticked) && self.is_unseen(now, lease, trip) && !coarse,
            UnparkReason::Unclear => matches!(cause, EventCause::Ticked) && self.is_unseen(now, lease, trip) && coarse,
        };
        must(8, fits && at == now, || format!("{lease} shall stay ({why:?}) after {cause:?}: {trip:?}"))?;
        let rests = if *why == UnparkReason::NotSeen { DISTRUST } else { 1 };
        let rung = trip.rung;
        // Whoever was told to leave and said nothing may leave yet.
        let silent = *why == UnparkReason::Silent && rung == Method::Driver;
        let trip = MoveBook { back: false, ..trip.turned(MoveWay::Back, now, &self.policy.parking) };
        self.set_trip(lease, trip, |_| {});
        let voices = self.voices.get_mut(&(lease, rung)).filter(|_| silent);
        let here = voices.into_iter().flat_map(|voices| voices.values_mut()).filter(|voice| voice.parked.is_none());
        here.for_each(|voice| voice.unknown = true);
        match cause {
            // It may be tried again at once; that it failed once before does not count any more.
            EventCause::Said(_, CallWord::Outgrow) => {
                if let Some(book) = self.leases.get_mut(&lease) {
                    book.rests.set(rung, Time::ZERO, Time::ZERO);
                }
            }
            _ => self.rest(now, lease, rung, rests),
        }
        Ok(())
    }

    pub(super) fn rest(&mut self, now: Time, lease: LeaseId, rung: Method, times: u64) {
        let rest = Span(self.policy.parking.retry_after.0 * times);
        if let Some(book) = self.leases.get_mut(&lease) {
            book.rests.set(rung, now, now + rest);
        }
    }

    /// A holder's bytes were seen to be gone.
    pub fn parked(&mut self, now: Time, lease: LeaseId, at: Time, mark: Option<Time>) -> Verdict {
        let (book, held, trip) = self.trip(lease, MoveWay::Out)?;
        must(14, at == now, || format!("{lease} is parked at {at}, and it is {now}"))?;
        let shims = self.voices(lease, trip.rung);
        must(4, shims.values().all(|shim| shim.parked.is_some()), || {
            format!("{lease} is parked, and one of its programs has not said so: {shims:?}")
        })?;
        let said = self.said(lease, trip.rung);
        must(3, trip.rung == Method::Hook || said <= held.booked, || {
            format!("{lease} is parked with {said}, and {} are booked", held.booked)
        })?;
        must(4, trip.seen_on(held, LOOKS), || {
            format!(
                "{lease} is parked on its word, and the looks after it are {:?} of cards {:?}",
                trip.looks, held.cards
            )
        })?;
        let readable = |number: &&usize| !matches!(self.cards[**number].look, SeenReading::Blind | SeenReading::Lost);
        let unheard =
            |number: &usize| self.own_on(lease, *number).find(|process| !shims.contains_key(process)).copied();
        let other = held.cards.iter().filter(readable).find_map(unheard);
        must(4, other.is_none() || trip.rung == Method::Hook, || {
            format!("{lease} is parked, and {other:?} of its is not")
        })?;
        let graced = if held.renewed <= self.grace_from { self.grace_until } else { Time::ZERO };
        let left = book.fixed().then(|| held.until.max(graced).since(now));
        must(8, left != Some(Span::ZERO), || format!("{lease} is parked, and its term is over: {held:?}"))?;
        let booked = held.booked;
        let trip = MoveBook { left, ..trip.turned(MoveWay::Gone, now, &self.policy.parking) };
        self.give_back(now, lease, mark)?;
        self.unread = self.unread + booked;
        self.set_trip(lease, trip, |held| {
            (held.paid, held.idle, held.before) = (Span::ZERO, false, None);
            held.spent = held.charge(now);
            (held.began, held.sized, held.stopped, held.less) = (now, now, Some(now), 0);
        });
        Ok(())
    }

    /// A parked holder waits for its cards, as of when it asked for them.
    pub fn want(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::QueueParked { at, vram, at_least, wake, .. } = action else { return Ok(()) };
        let (at, vram, at_least) = (*at, *vram, *at_least);
        let (book, held, trip) = self.trip(lease, MoveWay::Gone)?;
        must(9, !trip.passive || wake.is_some(), || format!("{lease} is passive, and nothing woke it"))?;
        must(9, trip.wants.is_none(), || format!("{lease} waits for its cards twice"))?;
        let asked = match cause {
            EventCause::Said(of, CallWord::Resume)
            | EventCause::Hooked(of, CallWord::Resume)
            | EventCause::Resume(of, ExpectedAnswer::Yes(_)) => *of == lease,
            EventCause::Hinted(of, counts) => *of == lease && *counts,
            _ => false,
        };
        let fits = asked || trip.again.is_some() || trip.asked_for;
        must(9, fits, || format!("{lease} waits for its cards, and nobody asked: {cause:?}, {trip:?}"))?;
        let since = trip.again.unwrap_or(now);
        must(9, at == since, || format!("{lease} waits for its cards as of {at}, and asked for them at {since}"))?;
        let has = self.has_still(lease, held, trip);
        let need = held.vram.less(has).max(Bytes(1));
        must(2, vram == need, || format!("{lease} waits for {vram}, and it lacks {need}"))?;
        let whole = book.ask.vram == Vram::Whole;
        let least = whole.then(|| held.booked.min(vram.less(Bytes(1)))).filter(|least| *least > Bytes::ZERO);
        must(2, at_least == least, || format!("{lease} would do with {at_least:?}, and needs {least:?}"))?;
        let term = trip.left.map_or(book.ask.term, Term::Fixed);
        let cards: Vec<GpuId> = held.cards.iter().map(|card| GpuId(*card as u16)).collect();
        let ask = LeaseRequest {
            vram: Vram::Bytes(vram),
            at_least,
            gpus: cards.len() as u16,
            gpus_allowed: Some(GpuSelector::These(cards)),
            term,
            ..book.ask.clone()
        };
        let first = Some(book.ask.clone());
        let trip = MoveBook { wants: Some(at), again: None, asked_for: false, passive: false, first, ..trip.clone() };
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Away(held, _) = book.at else { return Ok(()) };
        self.insert(lease, LeaseBook { ask, at: LeaseStage::Away(held, Box::new(trip)), ..book });
        Ok(())
    }
}
