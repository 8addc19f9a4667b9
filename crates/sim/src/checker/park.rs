//! Rules 2, 3 and 4 for leases that are parked and resumed.
//!
//! By this checker's own rule a reading of a GPU shows that a lease has left it if every known program of the lease had
//! reported so before the reading began, all of its processes on the GPU are such programs, no more is left than a
//! context and half a gibibyte for each of them, and all its GPUs together have lost at least half of what they report.
//! After two such readings of each of its GPUs, one after the other, it is parked. A reading shows that it is back if
//! all of its programs had reported so before, and no other process of it is on the GPU; one such reading of each GPU
//! is enough, for its room is its own anyway. After a later report the readings count from the beginning.

mod back;

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::{EventCause, ExpectedAnswer, LeaseCallKind};
use super::coarse::OtherLeases;
use super::contexts::ContextChecks;
use super::{Verdict, Violation, must};
use std::collections::BTreeMap;
use sublet_core::facts::{LeaseAction, UnparkReason};
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::request::{GpuSelector, LeaseRequest, Term, Vram};
use sublet_core::rows::ParkState;
use sublet_core::settings::Parking;
use sublet_core::units::{Bytes, Span, Time};

/// Readings that must agree.
pub(super) const READINGS: u32 = 2;
/// The size of a context that was not measured.
pub const CONTEXT: Bytes = Bytes::mib(1024);
/// What a program may have beside its context.
pub const BESIDE: Bytes = Bytes::mib(512);
pub(super) const LITTLE: Bytes = Bytes::mib(64);
/// After a false report a lease is left alone for this many times `retry_after`.
pub(super) const FALSE_REPORT_BACKOFFS: u64 = 60;
/// A hook may take at least this long.
const HOOK_TIME: Span = Span::secs(120);

/// The stage of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStage {
    /// Its bytes leave its GPUs.
    Leaving,
    /// Its bytes are in host memory.
    Parked,
    /// Its bytes come back.
    Returning,
}

/// A lease that is parking, parked or resuming.
#[derive(Clone, Debug)]
pub struct MoveBook {
    /// The stage.
    pub stage: MoveStage,
    /// Since when.
    pub since: Time,
    /// As of when it requests its GPUs again once it is parked.
    pub requests_again: Option<Time>,
    /// While it returns: true if its GPUs were granted to it anew.
    pub was_resumed: bool,
    /// While it is parked: since when it waits for its GPUs.
    pub queued_since: Option<Time>,
    /// True if it was idle when it was parked and its next use cannot be noticed: it is resumed into unclaimed room
    /// only.
    pub passive: bool,
    /// True if its contexts leave too, as soon as it is parked.
    pub(super) with_context: bool,
    /// Its request before it was replaced by one for the GPUs it had.
    pub first_request: Option<LeaseRequest>,
    /// The rest of a fixed term.
    pub(super) term_left: Option<Span>,
    /// True if its GPUs were needed while its bytes were leaving.
    pub(super) is_wanted: bool,
    /// A program that died while its bytes were leaving.
    pub(super) died: Option<ProcKey>,
    /// How many readings of each GPU in a row agree.
    pub(super) agreeing_readings: BTreeMap<usize, u32>,
    /// When they showed that it has arrived, and how many of each GPU began after that.
    pub(super) arrived: Option<Time>,
    pub(super) readings_after: BTreeMap<usize, u32>,
    /// How long this stage may take, by the policy when it began or any since.
    pub(super) time_limit: Span,
    /// How long it may take until a report is seen, likewise.
    pub(super) sight_limit: Span,
    /// The method by which it is parked and resumed.
    pub method: Method,
    /// What it had on its GPUs when it began to leave.
    pub had_bytes: Bytes,
    /// The other users of each GPU at that time, if one of its GPUs did not tell the bytes of single processes.
    pub(super) others_before: BTreeMap<usize, OtherLeases>,
    /// The driver shall have what the shim left, too.
    pub(super) contexts: Option<ContextChecks>,
    /// The processes that leave by the driver alone.
    pub(super) driver_processes: Vec<ProcKey>,
}

/// A mover of a lease, by one method: the shim in a program, the driver for a process, or the wrapper for all of them.
#[derive(Clone, Copy, Debug)]
pub struct MoverBook {
    /// The bytes that it has in host memory.
    pub parked: Option<Bytes>,
    /// When it reported that.
    pub reported_at: Time,
    /// It cannot be parked now.
    pub cannot: bool,
    /// Whether it keeps still, so that nothing calls the driver; `None` if it never reported that it can.
    pub keeps_still: Option<bool>,
    /// True if it is not known any more where its bytes are.
    pub unknown: bool,
}

/// All movers of a lease by one method.
pub type MoverBooks = BTreeMap<ProcKey, MoverBook>;

/// The wrapper of a holder with a hook.
pub const HOOK: ProcKey = ProcKey { pid: 0, start: 0 };

static NO_MOVERS: MoverBooks = BTreeMap::new();
/// A mover without a report of where its bytes are.
pub(super) const UNHEARD: MoverBook =
    MoverBook { parked: None, reported_at: Time::ZERO, cannot: false, keeps_still: None, unknown: false };

/// Until when a lease is left alone by each method, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackoffBook([Time; 4], [Time; 4]);

impl BackoffBook {
    /// Until when it is left alone by one method.
    pub fn until(&self, method: Method) -> Time {
        self.0[method as usize]
    }

    fn set(&mut self, method: Method, since: Time, until: Time) {
        self.0[method as usize] = until;
        self.1[method as usize] = since;
    }

    /// True if parking by this method failed since the lease was renewed.
    fn failed_since(&self, method: Method, renewed: Time) -> bool {
        self.0[method as usize] != Time::ZERO && self.1[method as usize] >= renewed
    }

    /// Returns what the disk has: only false reports are kept.
    pub fn read(lied: Option<(Method, Time)>, parking: &Parking) -> BackoffBook {
        let mut backoff = BackoffBook::default();
        if let Some((method, at)) = lied {
            backoff.set(method, at, at + Span(parking.retry_after.0 * FALSE_REPORT_BACKOFFS));
        }
        backoff
    }
}

impl MoveBook {
    fn new(stage: MoveStage, since: Time, time_limit: Span) -> MoveBook {
        MoveBook {
            stage,
            since,
            requests_again: None,
            was_resumed: false,
            queued_since: None,
            passive: false,
            with_context: false,
            first_request: None,
            term_left: None,
            is_wanted: false,
            died: None,
            agreeing_readings: BTreeMap::new(),
            arrived: None,
            readings_after: BTreeMap::new(),
            time_limit,
            sight_limit: Span::ZERO,
            method: Method::Shim,
            had_bytes: Bytes::ZERO,
            others_before: BTreeMap::new(),
            contexts: None,
            driver_processes: Vec::new(),
        }
    }

    /// Returns what the disk has.
    pub fn read(stage: MoveStage, away: &ParkState, parking: &Parking) -> MoveBook {
        let (again, back, wants) = (away.requests_again_at, away.was_resumed, away.queued_since);
        let (first, left, rung, had) = (away.first_request.clone(), away.term_left, away.method, away.had_bytes);
        // An earlier daemon may have told the driver.
        let deep = away.with_driver.then(|| ContextChecks { processes: away.processes.clone(), may_be_told: true });
        let driven = if rung == Method::Driver { away.processes.clone() } else { Vec::new() };
        let (passive, with_context) = (away.is_passive, away.with_context);
        let park = MoveBook::new(stage, away.since, Span::ZERO);
        let park = MoveBook {
            requests_again: again,
            was_resumed: back,
            queued_since: wants,
            passive,
            with_context,
            first_request: first,
            term_left: left,
            method: rung,
            had_bytes: had,
            contexts: deep,
            driver_processes: driven,
            ..park
        };
        MoveBook { time_limit: park.time_allowed(parking), sight_limit: parking.move_timeout, ..park }
    }

    /// True if a row has the same.
    pub fn matches_row(&self, away: &ParkState) -> bool {
        let moving = self.stage == MoveStage::Parked
            || (away.requests_again_at, away.was_resumed) == (self.requests_again, self.was_resumed);
        let same = (away.since, away.queued_since, away.term_left) == (self.since, self.queued_since, self.term_left);
        let contexts = match &self.contexts {
            Some(contexts) => away.with_driver && away.processes == contexts.processes,
            None => !away.with_driver && away.processes == self.driver_processes,
        };
        moving
            && same
            && contexts
            && (away.method, away.had_bytes, away.is_passive) == (self.method, self.had_bytes, self.passive)
    }

    /// How long this stage may take by this policy: the driver has 1 s more for each 512 MiB, and a hook has 2 min.
    pub(super) fn time_allowed(&self, parking: &Parking) -> Span {
        match (self.stage, self.method) {
            (MoveStage::Parked, _) => parking.term,
            (_, Method::Driver) => Span(parking.move_timeout.0 + self.had_bytes.0 / (512 << 20) * 1_000_000),
            (_, Method::Hook) if parking.move_timeout < HOOK_TIME => HOOK_TIME,
            // The driver has its time first, then the shim.
            (_, Method::Shim) if self.contexts.is_some() => parking.move_timeout + parking.move_timeout,
            _ => parking.move_timeout,
        }
    }

    /// True if the driver brings it back: nothing else may be granted on its GPUs.
    pub fn is_driver_restore(&self) -> bool {
        self.stage == MoveStage::Returning && self.needs_driver() && self.was_resumed
    }

    /// True if it is not resumed without the driver.
    pub fn needs_driver(&self) -> bool {
        self.method == Method::Driver || self.contexts.is_some()
    }

    /// Returns the move at its next stage.
    fn with_way(&self, stage: MoveStage, since: Time, parking: &Parking) -> MoveBook {
        let (readings, since_then) = (BTreeMap::new(), BTreeMap::new());
        let park = MoveBook {
            stage,
            since,
            agreeing_readings: readings,
            arrived: None,
            readings_after: since_then,
            ..self.clone()
        };
        MoveBook { time_limit: park.time_allowed(parking), sight_limit: parking.move_timeout, ..park }
    }

    fn has_readings(&self, held: &HeldBook, readings: u32) -> bool {
        held.gpus.iter().all(|gpu| self.agreeing_readings.get(gpu).is_some_and(|count| *count >= readings))
    }

    /// Counts a reading that agrees with the stage, or does not.
    fn count_reading(&mut self, gpus: &[usize], number: usize, agrees: bool, begun: Time, now: Time) {
        let readings = self.agreeing_readings.entry(number).or_default();
        *readings = if agrees { *readings + 1 } else { 0 };
        if self.arrived.is_some_and(|arrived| arrived < begun) {
            *self.readings_after.entry(number).or_default() += 1;
        }
        if !gpus.iter().all(|gpu| self.agreeing_readings.get(gpu).is_some_and(|count| *count >= READINGS)) {
            (self.arrived, self.readings_after) = (None, BTreeMap::new());
        } else if self.arrived.is_none() {
            self.arrived = Some(now);
        }
    }
}

impl CheckerBooks {
    // ---- reports -----------------------------------------------------------

    /// The movers of a lease by one method.
    pub fn movers_of(&self, lease: LeaseId, method: Method) -> &MoverBooks {
        self.movers.get(&(lease, method)).unwrap_or(&NO_MOVERS)
    }

    /// Takes a mover's report.
    pub fn take_report(
        &mut self,
        now: Time,
        lease: LeaseId,
        method: Method,
        process: ProcKey,
        said: &MoverReport,
    ) -> LeaseCallKind {
        let Some(book) = self.leases.get(&lease) else { return LeaseCallKind::Status };
        let concerned = !matches!(&book.stage, LeaseStage::Park(_, park) if park.method != method);
        if let (Method::Driver, MoverReport::Refused(_), true) = (method, said, self.has_contexts_moved(lease)) {
            return self.driver_refused(now, lease);
        }
        if self.belongs_to_other_lease(lease, method, &process, said)
            || self.is_outdated_refusal(lease, method, &process, said)
        {
            return LeaseCallKind::Status;
        }
        let movers = self.movers.entry((lease, method)).or_default();
        let before = movers.get(&process).copied();
        let cannot = before.is_some_and(|mover| mover.cannot);
        let keeps_still = before.and_then(|mover| mover.keeps_still);
        match said {
            MoverReport::Present { parked } => {
                let reported_at =
                    before.filter(|before| before.parked.is_some() == parked.is_some()).map_or(now, |b| b.reported_at);
                movers.insert(process, MoverBook { parked: *parked, reported_at, cannot, keeps_still, unknown: false });
            }
            MoverReport::Parked(bytes) => {
                movers.insert(
                    process,
                    MoverBook { parked: Some(*bytes), reported_at: now, cannot, keeps_still, unknown: false },
                );
            }
            MoverReport::Resumed => {
                // It calls the driver again, whatever it reported before.
                let keeps_still = keeps_still.map(|_| false);
                movers
                    .insert(process, MoverBook { parked: None, reported_at: now, cannot, keeps_still, unknown: false });
            }
            MoverReport::Unknown => {
                let mover = before.unwrap_or(MoverBook { reported_at: now, ..UNHEARD });
                movers.insert(process, MoverBook { unknown: true, ..mover });
            }
            MoverReport::Cannot(why) => {
                let mover = before.unwrap_or(MoverBook { reported_at: now, ..UNHEARD });
                movers.insert(process, MoverBook { cannot: why.is_some(), ..mover });
            }
            MoverReport::Gone | MoverReport::Died(_) => drop(movers.remove(&process)),
            MoverReport::Refused(_) | MoverReport::Outgrown(_) if !concerned => return LeaseCallKind::Status,
            MoverReport::Refused(_) => return LeaseCallKind::Refused,
            MoverReport::Outgrown(_) => return LeaseCallKind::Outgrown,
            MoverReport::Lost(_) => return LeaseCallKind::StateLost,
            MoverReport::KeepsStill(keeps_still) => {
                let mover = before.unwrap_or(MoverBook { reported_at: now, ..UNHEARD });
                movers.insert(process, MoverBook { keeps_still: Some(*keeps_still), ..mover });
                self.note_driver_told(lease);
                return LeaseCallKind::Status;
            }
            MoverReport::Used => {
                self.note_wanted(lease);
                return LeaseCallKind::Resume;
            }
        }
        match movers.get(&process).and_then(|mover| mover.parked) {
            Some(bytes) if bytes > Bytes::ZERO && method != Method::Hook => {
                self.in_host_memory.insert((process, method), lease)
            }
            _ => self.in_host_memory.remove(&(process, method)),
        };
        self.note_driver_told(lease);
        let word =
            if matches!(said, MoverReport::Died(_)) { LeaseCallKind::DiedParking } else { LeaseCallKind::Status };
        if !concerned {
            return word;
        }
        // A reading before its last report proves nothing.
        if let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get_mut(&lease) {
            match said {
                MoverReport::Died(_) if park.stage == MoveStage::Leaving => park.died = Some(process),
                MoverReport::Present { .. } => drop(park.died.take_if(|died| *died == process)),
                _ => {}
            }
            park.agreeing_readings.clear();
            (park.arrived, park.readings_after) = (None, BTreeMap::new());
        }
        word
    }

    /// Notes that a lease that is parking needs its GPUs.
    pub(super) fn note_wanted(&mut self, lease: LeaseId) {
        if let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get_mut(&lease) {
            park.is_wanted |= park.stage == MoveStage::Leaving;
        }
    }

    /// The same for a lease that may be parked already.
    pub(super) fn note_wanted_now(&mut self, lease: LeaseId) {
        if let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get_mut(&lease) {
            park.is_wanted |= park.stage != MoveStage::Returning && park.queued_since.is_none();
        }
    }

    /// The bytes that the movers of a lease report in host memory.
    pub(super) fn reported_bytes(&self, lease: LeaseId, method: Method) -> Bytes {
        self.movers_of(lease, method).values().filter_map(|mover| mover.parked).sum()
    }

    pub(super) fn none_parked(&self, lease: LeaseId, method: Method) -> bool {
        self.movers_of(lease, method).values().all(|mover| mover.parked.is_none())
    }

    /// After a change of the policy: a move may take as long as the old or the new one allows.
    pub fn extend_time_limits(&mut self) {
        let parking = &self.policy.parking;
        for lease in &self.moving {
            if let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get_mut(lease) {
                park.time_limit = park.time_limit.max(park.time_allowed(parking));
                park.sight_limit = park.sight_limit.max(parking.move_timeout);
            }
        }
    }

    /// Forgets the programs of a lease.
    pub fn remove_movers(&mut self, lease: LeaseId) {
        Method::REVERSIBLE.iter().for_each(|method| drop(self.movers.remove(&(lease, *method))));
        self.in_host_memory.retain(|_, of| *of != lease);
    }

    /// Takes a reading of the host's memory: it includes all that was parked before.
    pub fn set_host_memory(&mut self, available: Option<Bytes>) {
        (self.host_memory, self.booked_since_reading) = (available, Bytes::ZERO);
    }

    /// Counts a reading of a GPU for the leases that are parking or resuming there.
    pub fn count_readings(&mut self, number: usize, begun: Time) {
        for lease in self.moving.iter().copied().collect::<Vec<_>>() {
            let Some(book) = self.leases.get(&lease) else { continue };
            let LeaseStage::Park(held, park) = &book.stage else { continue };
            if !held.gpus.contains(&number) || park.stage == MoveStage::Parked {
                continue;
            }
            let agrees = match park.stage {
                MoveStage::Leaving => self.shows_gone(lease, held, park, number, begun),
                _ => self.shows_back(book, park, number, begun),
            };
            let now = self.last_event_at.unwrap_or_default();
            if let Some(LeaseBook { stage: LeaseStage::Park(held, park), .. }) = self.leases.get_mut(&lease) {
                park.count_reading(&held.gpus, number, agrees, begun, now);
            }
        }
    }

    /// A lease's processes on a GPU, by the last reading that succeeded.
    pub fn processes_on(&self, lease: LeaseId, number: usize) -> impl Iterator<Item = &ProcKey> {
        self.gpus[number].processes.iter().filter(move |process| self.owners.get(process) == Some(&lease))
    }

    /// What was seen of a lease on a GPU.
    pub fn seen_of(&self, lease: LeaseId, number: usize) -> Bytes {
        let seen = self.gpus[number].seen_bytes.iter().find(|(of, _)| *of == lease);
        seen.map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    }

    fn seen_on_all_gpus(&self, lease: LeaseId, held: &HeldBook) -> Bytes {
        held.gpus.iter().map(|gpu| self.seen_of(lease, *gpu)).sum()
    }

    fn shows_gone(&self, lease: LeaseId, held: &HeldBook, park: &MoveBook, number: usize, begun: Time) -> bool {
        let gpu = &self.gpus[number];
        let movers = self.movers_of(lease, park.method);
        let each = gpu.facts.context.unwrap_or(CONTEXT) + BESIDE;
        let programs = self.processes_on(lease, number).count() as u64;
        let said = self.reported_bytes(lease, park.method);
        let told = |mover: &MoverBook| mover.parked.is_some() && mover.reported_at < begun;
        // Without programs a lease has nothing there; a hook and the driver must have reported.
        let heard = park.method == Method::Shim || !movers.is_empty();
        let heard = heard && park.since < begun && movers.values().all(told);
        if gpu.is_coarse() {
            let known = self.processes_on(lease, number).all(|process| movers.contains_key(process));
            return heard && known && park.method == Method::Shim && self.has_lost_enough(held, park, said);
        }
        let heard = heard && matches!(gpu.reading, SeenReading::Free(_));
        let few = self.seen_of(lease, number).0 <= each.0 * programs;
        let all = self.seen_on_all_gpus(lease, held);
        if park.method == Method::Hook {
            return heard && (few || all.0 <= park.had_bytes.0 / 8);
        }
        heard
            && few
            && self.processes_on(lease, number).all(|process| movers.contains_key(process))
            && (said <= LITTLE || all <= held.booked.less(Bytes(said.0 / 2)))
    }

    fn shows_back(&self, book: &LeaseBook, park: &MoveBook, number: usize, begun: Time) -> bool {
        let movers = self.movers_of(book.id, park.method);
        // Without a report nothing is known.
        let heard = !movers.is_empty() || !book.bound;
        let told = |mover: &MoverBook| mover.parked.is_none() && mover.reported_at < begun;
        let known = self.processes_on(book.id, number).all(|process| movers.contains_key(process));
        let known = known || park.method == Method::Hook;
        heard && known && park.since < begun && movers.values().all(told) && !self.driver_may_have(book.id, park)
    }

    // ---- rule 3 ------------------------------------------------------------

    /// The cheapest method by which a lease could be parked now.
    pub fn could_leave(&self, now: Time, lease: LeaseId, book: &LeaseBook) -> Option<Method> {
        Method::REVERSIBLE.into_iter().find(|method| self.parkable(now, lease, book, *method).is_ok())
    }

    /// True if the term of a lease is over.
    pub fn is_term_over(&self, now: Time, held: &HeldBook) -> bool {
        now >= held.until && !self.in_grace(now, held.renewed)
    }

    /// The host memory that parking a lease by this method takes, or why it cannot be parked.
    pub fn parkable(&self, now: Time, lease: LeaseId, book: &LeaseBook, method: Method) -> Result<Bytes, &'static str> {
        let LeaseStage::Held(held) = &book.stage else { return Err("it is not on its GPUs") };
        let parking = &self.policy.parking;
        let movers = self.movers_of(lease, method);
        if movers.is_empty() {
            return Err("no mover listens");
        }
        if (parking.space == Bytes::ZERO && method != Method::Hook) || self.is_stopped() {
            return Err("parking is off now");
        }
        if book.backoff.until(method) > now {
            return Err("it was tried a moment ago");
        }
        if self.is_term_over(now, held) && book.backoff.failed_since(method, held.renewed) {
            return Err("it was tried, and its term is over");
        }
        if movers.values().any(|mover| mover.cannot) {
            return Err("one of its programs cannot be parked");
        }
        for number in &held.gpus {
            let gpu = &self.gpus[*number];
            let stale = now.since(gpu.reading_began).0 > 2 * self.policy.period.0;
            let tells = matches!(gpu.reading, SeenReading::Free(_)) || (gpu.is_coarse() && method == Method::Shim);
            if stale || !tells {
                return Err("its GPUs cannot be read");
            }
            if method != Method::Hook && self.processes_on(lease, *number).any(|process| !movers.contains_key(process))
            {
                return Err("one of its programs does not listen");
            }
        }
        if method == Method::Shim && self.is_other_move_under_way(lease, held) {
            return Err("another lease moves on a GPU that does not tell the bytes of single processes");
        }
        if method == Method::Driver && !book.request.may_lose_state {
            self.stays_on_its_gpus(now, lease, held)?;
            self.has_safe_restore_room(lease, held)?;
        }
        if method == Method::Hook {
            return Ok(Bytes::ZERO);
        }
        let need = self.bytes_held(lease, held) + LITTLE;
        let available = self.host_memory.ok_or("the host's free memory is not known")?;
        self.has_memory(need, available)?;
        let cap = self.policy.caps_for(&self.tenants[book.tenant].name, &[]).parked;
        match cap {
            Some(cap) if self.booked_host_memory_of(Some(book.tenant)) + need > cap => {
                Err("its tenant has all that it may")
            }
            _ => Ok(need),
        }
    }

    pub(super) fn booked_host_memory_of(&self, whose: Option<usize>) -> Bytes {
        let all = self.leases.values().filter(|book| whose.is_none_or(|tenant| book.tenant == tenant));
        all.filter_map(LeaseBook::held).map(|held| held.booked).sum()
    }

    /// Why so much more host memory cannot be booked.
    pub(super) fn has_memory(&self, need: Bytes, available: Bytes) -> Result<(), &'static str> {
        let parking = &self.policy.parking;
        let out = self
            .leases
            .values()
            .filter(|book| matches!(&book.stage, LeaseStage::Park(_, park) if park.stage == MoveStage::Leaving));
        let leaving: Bytes = out.filter_map(LeaseBook::held).map(|held| held.booked).sum();
        if need + parking.keep_available + leaving + self.booked_since_reading > available {
            return Err("the host has too little memory");
        }
        if self.booked_host_memory_of(None) + need > parking.space {
            return Err("there is too little host memory for parked bytes");
        }
        Ok(())
    }

    /// Takes a park.
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
        let LeaseStage::Held(held) = &book.stage else {
            return must(5, false, || format!("{lease} is told to park, and it is {:?}", book.stage));
        };
        must(14, at == now, || format!("{lease} is parked at {at}, and it is {now}"))?;
        // Only the shim reports the next use: a lease that is parked by another method while idle is passive.
        let moved = matches!(cause, EventCause::Observed(..) | EventCause::Unleased(_))
            && self.unleased.is_parking_lease(lease);
        let by_hand = moved || matches!(cause, EventCause::Park(of, _) if *of == lease);
        let by_hand = by_hand && room_for.is_none() && aside.is_none();
        let is_heard =
            rung == Method::Shim || (rung == Method::Hook && !self.movers_of(lease, Method::Shim).is_empty());
        let passive = (!is_heard || aside.is_some()) && again.is_none() && !by_hand;
        must(9, quiet == passive, || {
            format!("{lease} is parked ({rung}), requests its GPUs again as of {again:?}, and is passive: {quiet}")
        })?;
        let takes_contexts = rung == Method::Shim && room_for.is_some() && self.policy.parking.context_after.is_some();
        must(9, !with_context || takes_contexts, || format!("{lease} is parked ({rung}) with its contexts"))?;
        let had_then = self.bytes_held(lease, held);
        must(0, *had == had_then, || format!("{lease} is parked with {had}, and has {had_then}"))?;
        match cause {
            _ if room_for.is_some() => self.check_parked_for(now, cause, book, again, *room_for)?,
            _ if aside.is_some() => {
                let number = aside.map(|gpu| usize::from(gpu.0)).unwrap_or_default();
                self.check_parked_aside(now, cause, book, held, number, again)?;
            }
            _ if moved => must(17, again.is_none() && !quiet, || {
                format!("{lease} is parked as an unleased process, and requests its GPUs again as of {again:?}")
            })?,
            EventCause::Park(of, ExpectedAnswer::Yes(true)) => {
                must(17, *of == lease && again.is_none() && !quiet, || {
                    format!("{lease} is parked after {cause:?}, and requests its GPUs again as of {again:?}")
                })?
            }
            EventCause::Ticked => {
                let over = held.until <= now && !self.in_grace(now, book.stage_began()) && !book.has_fixed_term();
                must(8, over, || format!("{lease} is parked at {now}, and it has until {}", held.until))?;
                let wanted = self.wanted(book.tenant, &held.gpus).at_all;
                must(8, wanted, || format!("{lease} is parked, and no waiter needs its GPUs"))?;
                let silent = !book.worked && !is_heard;
                must(9, again == book.worked.then_some(now + Span(1)) && quiet == silent, || {
                    format!("{lease} (busy: {}) is parked and requests its GPUs again as of {again:?}", book.worked)
                })?;
            }
            _ => return must(17, false, || format!("{lease} is parked after {cause:?}")),
        }
        let sure = self.has_safe_restore_room(lease, held);
        must(2, rung != Method::Driver || book.request.may_lose_state || sure.is_ok(), || {
            format!("the driver parks {lease}, and a restore may lack room: {sure:?}")
        })?;
        let can = self.parkable(now, lease, book, rung);
        must(3, can == Ok(booked), || {
            format!("{lease} is parked ({rung}), {booked} booked, and by the books {can:?}")
        })?;
        let driver_processes = self.movers_of(lease, rung).keys().filter(|_| rung == Method::Driver);
        let driver_processes: Vec<ProcKey> = driver_processes.copied().collect();
        must(2, *processes == driver_processes, || {
            format!("{lease} is parked ({rung}) with {processes:?}, not {driver_processes:?}")
        })?;
        let others_before = self.other_users_of(lease, held);
        let with_context = *with_context;
        let park = MoveBook {
            requests_again: again,
            passive,
            with_context,
            method: rung,
            had_bytes: *had,
            others_before,
            driver_processes,
            ..MoveBook::new(MoveStage::Leaving, now, Span::ZERO)
        };
        let park = park.with_way(MoveStage::Leaving, now, &self.policy.parking);
        self.set_move(lease, park, |held| {
            (held.booked, held.was_moved, held.notice, held.overuse) = (booked, true, None, None);
        });
        self.told_to_end.remove(&lease);
        Ok(())
    }

    /// Moves a lease to another stage.
    fn set_move(&mut self, lease: LeaseId, park: MoveBook, change: impl FnOnce(&mut HeldBook)) {
        let Some(book) = self.remove(lease) else { return };
        let Some(mut held) = book.held().cloned() else { return };
        change(&mut held);
        self.insert(lease, LeaseBook { stage: LeaseStage::Park(held, Box::new(park)), ..book });
    }

    pub(super) fn move_of(
        &self,
        lease: LeaseId,
        stage: MoveStage,
    ) -> Result<(&LeaseBook, &HeldBook, &MoveBook), Violation> {
        let book = self.leases.get(&lease);
        if let Some(book) = book
            && let LeaseStage::Park(held, park) = &book.stage
            && park.stage == stage
        {
            return Ok((book, held, park));
        }
        Err(Violation { rule: 0, what: format!("{lease} should be {stage:?}, and is {book:?}") })
    }

    // ---- rule 4 ------------------------------------------------------------

    /// True if a move has taken longer than it may.
    pub(super) fn is_overdue(&self, now: Time, park: &MoveBook) -> bool {
        let span = park.time_allowed(&self.policy.parking);
        now >= park.since + span && !self.in_grace(now, park.since)
    }

    /// When the last mover of a lease reported that its bytes are gone; `None` if one has not.
    pub(super) fn all_reported_at(&self, lease: LeaseId, park: &MoveBook) -> Option<Time> {
        let movers = self.movers_of(lease, park.method);
        let said = movers.values().all(|mover| mover.parked.is_some());
        let words = movers.values().map(|mover| mover.reported_at).chain([park.since]);
        words.max().filter(|_| said)
    }

    /// True if readings should have shown by now what was reported to be gone.
    pub(super) fn is_sight_overdue(&self, now: Time, lease: LeaseId, park: &MoveBook) -> bool {
        let by = self.all_reported_at(lease, park).map(|said| said + self.policy.parking.move_timeout);
        let by = by.map(|by| by.min(park.since + park.time_allowed(&self.policy.parking)));
        by.is_some_and(|by| now >= by) && !self.in_grace(now, park.since)
    }

    /// True if all of a lease has left, by its programs' reports: none is there that could refuse to.
    fn has_all_left(&self, held: &HeldBook, lease: LeaseId, park: &MoveBook) -> bool {
        let movers = self.movers_of(lease, park.method);
        let known = |number: &usize| self.processes_on(lease, *number).all(|process| movers.contains_key(process));
        let heard = park.method == Method::Shim || !movers.is_empty();
        let known = park.method == Method::Hook || held.gpus.iter().all(known);
        heard && known && self.all_reported_at(lease, park).is_some()
    }

    /// Takes the order that a lease stays on its GPUs.
    pub fn unpark(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time, why: &UnparkReason) -> Verdict {
        let (_, held, park) = self.move_of(lease, MoveStage::Leaving)?;
        let coarse = held.gpus.iter().any(|number| self.gpus[*number].is_coarse());
        let fits = match why {
            // A lease with more than was booked is refused, whatever it reports.
            UnparkReason::Refused(_)
                if park.method != Method::Hook && self.reported_bytes(lease, park.method) > held.booked =>
            {
                true
            }
            UnparkReason::Refused(_) if matches!(cause, EventCause::Unwrapped(of) if *of == lease) => {
                park.method == Method::Hook
            }
            UnparkReason::Refused(_) => {
                let said = |of: &LeaseId| *of == lease && !self.has_all_left(held, lease, park);
                let refusal = |word: &LeaseCallKind| matches!(word, LeaseCallKind::Refused | LeaseCallKind::Outgrown);
                matches!(cause, EventCause::Reported(of, word) | EventCause::Hooked(of, word) if said(of) && refusal(word))
            }
            UnparkReason::Silent => matches!(cause, EventCause::Ticked) && self.is_overdue(now, park),
            UnparkReason::NotSeen => {
                matches!(cause, EventCause::Ticked) && self.is_sight_overdue(now, lease, park) && !coarse
            }
            UnparkReason::Unclear => {
                matches!(cause, EventCause::Ticked) && self.is_sight_overdue(now, lease, park) && coarse
            }
        };
        must(8, fits && at == now, || format!("{lease} shall stay ({why:?}) after {cause:?}: {park:?}"))?;
        let backoff = if *why == UnparkReason::NotSeen { FALSE_REPORT_BACKOFFS } else { 1 };
        let method = park.method;
        // A mover that was told to park and reported nothing may park yet.
        let silent = *why == UnparkReason::Silent && method == Method::Driver;
        let park = MoveBook { was_resumed: false, ..park.with_way(MoveStage::Returning, now, &self.policy.parking) };
        self.set_move(lease, park, |_| {});
        let movers = self.movers.get_mut(&(lease, method)).filter(|_| silent);
        let here = movers.into_iter().flat_map(|movers| movers.values_mut()).filter(|mover| mover.parked.is_none());
        here.for_each(|mover| mover.unknown = true);
        match cause {
            // It may be tried again at once; an earlier failure does not count any more.
            EventCause::Reported(_, LeaseCallKind::Outgrown) => {
                if let Some(book) = self.leases.get_mut(&lease) {
                    book.backoff.set(method, Time::ZERO, Time::ZERO);
                }
            }
            _ => self.back_off(now, lease, method, backoff),
        }
        Ok(())
    }

    pub(super) fn back_off(&mut self, now: Time, lease: LeaseId, method: Method, times: u64) {
        let rest = Span(self.policy.parking.retry_after.0 * times);
        if let Some(book) = self.leases.get_mut(&lease) {
            book.backoff.set(method, now, now + rest);
        }
    }

    /// Takes that a lease's bytes were seen to be gone.
    pub fn parked(&mut self, now: Time, lease: LeaseId, at: Time, debt_clock: Option<Time>) -> Verdict {
        let (book, held, park) = self.move_of(lease, MoveStage::Leaving)?;
        must(14, at == now, || format!("{lease} is parked at {at}, and it is {now}"))?;
        let movers = self.movers_of(lease, park.method);
        must(4, movers.values().all(|mover| mover.parked.is_some()), || {
            format!("{lease} is parked, and one of its programs has not reported so: {movers:?}")
        })?;
        let said = self.reported_bytes(lease, park.method);
        must(3, park.method == Method::Hook || said <= held.booked, || {
            format!("{lease} is parked with {said}, and {} are booked", held.booked)
        })?;
        must(4, park.has_readings(held, READINGS), || {
            format!(
                "{lease} is parked by its report alone, and the readings after it are {:?} of GPUs {:?}",
                park.agreeing_readings, held.gpus
            )
        })?;
        let readable =
            |number: &&usize| !matches!(self.gpus[**number].reading, SeenReading::Unreadable | SeenReading::Lost);
        let unheard =
            |number: &usize| self.processes_on(lease, *number).find(|process| !movers.contains_key(process)).copied();
        let other = held.gpus.iter().filter(readable).find_map(unheard);
        must(4, other.is_none() || park.method == Method::Hook, || {
            format!("{lease} is parked, and its process {other:?} is not")
        })?;
        let graced = if held.renewed <= self.grace_from { self.grace_until } else { Time::ZERO };
        let left = book.has_fixed_term().then(|| held.until.max(graced).since(now));
        must(8, left != Some(Span::ZERO), || format!("{lease} is parked, and its term is over: {held:?}"))?;
        let booked = held.booked;
        let park = MoveBook { term_left: left, ..park.with_way(MoveStage::Parked, now, &self.policy.parking) };
        self.check_refund(now, lease, debt_clock)?;
        self.booked_since_reading = self.booked_since_reading + booked;
        self.set_move(lease, park, |held| {
            (held.prepaid, held.idle, held.not_beyond) = (Span::ZERO, false, None);
            held.spent = held.charge(now);
            (held.slice_began, held.resized_at, held.stopped, held.uncharged) = (now, now, Some(now), 0);
        });
        Ok(())
    }

    /// Takes that a parked lease waits for its GPUs, as of when it requested them.
    pub fn queue_parked(&mut self, now: Time, cause: &EventCause, lease: LeaseId, action: &LeaseAction) -> Verdict {
        let LeaseAction::QueueParked { at, vram, at_least, wake, .. } = action else { return Ok(()) };
        let (at, vram, at_least) = (*at, *vram, *at_least);
        let (book, held, park) = self.move_of(lease, MoveStage::Parked)?;
        must(9, !park.passive || wake.is_some(), || {
            format!("{lease} is passive, and waits for its GPUs without a call")
        })?;
        must(9, park.queued_since.is_none(), || format!("{lease} waits for its GPUs twice"))?;
        let asked = match cause {
            EventCause::Reported(of, LeaseCallKind::Resume)
            | EventCause::Hooked(of, LeaseCallKind::Resume)
            | EventCause::Resume(of, ExpectedAnswer::Yes(_)) => *of == lease,
            EventCause::Hinted(of, counts) => *of == lease && *counts,
            _ => false,
        };
        let fits = asked || park.requests_again.is_some() || park.is_wanted;
        must(9, fits, || format!("{lease} waits for its GPUs, and does not need them: {cause:?}, {park:?}"))?;
        let since = park.requests_again.unwrap_or(now);
        must(9, at == since, || format!("{lease} waits for its GPUs as of {at}, and requested them at {since}"))?;
        let has = self.keeps_of_each(lease, held, park);
        let need = held.vram.less(has).max(Bytes(1));
        must(2, vram == need, || format!("{lease} waits for {vram}, and it lacks {need}"))?;
        let whole = book.request.vram == Vram::Whole;
        let least = whole.then(|| held.booked.min(vram.less(Bytes(1)))).filter(|least| *least > Bytes::ZERO);
        must(2, at_least == least, || format!("{lease} accepts {at_least:?}, and needs {least:?}"))?;
        let term = park.term_left.map_or(book.request.term, Term::Fixed);
        let cards: Vec<GpuId> = held.gpus.iter().map(|gpu| GpuId(*gpu as u16)).collect();
        let request = LeaseRequest {
            vram: Vram::Bytes(vram),
            at_least,
            gpus: cards.len() as u16,
            gpus_allowed: Some(GpuSelector::These(cards)),
            term,
            ..book.request.clone()
        };
        let first_request = Some(book.request.clone());
        let park = MoveBook {
            queued_since: Some(at),
            requests_again: None,
            is_wanted: false,
            passive: false,
            first_request,
            ..park.clone()
        };
        let Some(book) = self.remove(lease) else { return Ok(()) };
        let LeaseStage::Park(held, _) = book.stage else { return Ok(()) };
        self.insert(lease, LeaseBook { request, stage: LeaseStage::Park(held, Box::new(park)), ..book });
        Ok(())
    }
}
