//! Rules 2, 3, 4, 5 and 9 for parked leases of which the driver takes the contexts, too.
//!
//! By this checker's own rule the driver may take a lease's processes when the shim alone parked it, long enough ago;
//! when it does not wait; when every process of it on its GPUs can keep still and the driver can take each; when no
//! process on these GPUs could take the room that a restore needs; and when what the shim has and what is left fit into
//! the booked host memory, or the rest can be booked, and is. The driver is told when all shims keep still. From then
//! on it may have what it was told to take, until it reports that it has not; without a report it may. A lease of which
//! it may have something is resumed by it before the shims copy anything.

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::{EventCause, LeaseCallKind};
use super::park::{FALSE_REPORT_BACKOFFS, MoveBook, MoveStage};
use super::{Checker, Verdict, must};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::units::{Bytes, Time};

/// What the driver does about the contexts of a parked lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextChecks {
    /// The processes that the driver shall take, too.
    pub processes: Vec<ProcKey>,
    /// True if the driver may have been told so.
    pub may_be_told: bool,
}

impl CheckerBooks {
    /// The processes of a parked lease that the driver shall have by now, and the host memory to be booked for them
    /// beyond what is; or why none.
    fn due_contexts(&self, now: Time, lease: LeaseId) -> Result<(Vec<ProcKey>, Bytes), &'static str> {
        let after = self.policy.parking.context_after.ok_or("contexts stay in this policy")?;
        let LeaseStage::Park(_, park) = &self.leases.get(&lease).ok_or("it is not there")?.stage else {
            return Err("it is not parked");
        };
        if park.queued_since.is_some() && !park.with_context {
            return Err("it waits for its GPUs");
        }
        if now < park.since + after && !park.with_context {
            return Err("it was not parked for long enough");
        }
        self.movable_contexts(now, lease)
    }

    /// The same whether the lease waits or not, and however long it was parked.
    pub(super) fn movable_contexts(&self, now: Time, lease: LeaseId) -> Result<(Vec<ProcKey>, Bytes), &'static str> {
        let book = self.leases.get(&lease).ok_or("it is not there")?;
        let LeaseStage::Park(held, park) = &book.stage else { return Err("it is not parked") };
        if self.policy.parking.context_after.is_none() {
            return Err("contexts stay in this policy");
        }
        if park.stage != MoveStage::Parked || park.method != Method::Shim || park.contexts.is_some() {
            return Err("it is not parked by the shim alone");
        }
        if self.is_stopped() {
            return Err("the disk is full");
        }
        if book.backoff.until(Method::Driver) > now {
            return Err("the driver failed a moment ago");
        }
        let mut processes = Vec::new();
        for number in &held.gpus {
            let gpu = &self.gpus[*number];
            let stale = now.since(gpu.reading_began).0 > 2 * self.policy.period.0;
            if stale || !matches!(gpu.reading, SeenReading::Free(_)) {
                return Err("its bytes cannot be seen");
            }
            processes.extend(self.processes_on(lease, *number).copied());
        }
        processes.sort();
        processes.dedup();
        let can_keep_still = |process: &ProcKey| {
            let mover = self.movers_of(lease, Method::Shim).get(process);
            mover.is_some_and(|mover| mover.parked.is_some() && mover.keeps_still.is_some())
        };
        if processes.is_empty() || !processes.iter().all(can_keep_still) {
            return Err("not all of its programs can keep still");
        }
        let able = |process: &ProcKey| self.movers_of(lease, Method::Driver).get(process).is_some_and(|it| !it.cannot);
        if !processes.iter().all(able) {
            return Err("the driver cannot, or was not asked");
        }
        let left: Bytes = held.gpus.iter().map(|number| self.seen_of(lease, *number)).sum();
        let more = (self.reported_bytes(lease, Method::Shim) + left).less(held.booked);
        if more > Bytes::ZERO {
            self.has_memory(more, self.host_memory.ok_or("the host's free memory is not known")?)?;
            let cap = self.policy.caps_for(&self.tenants[book.tenant].name, &[]).parked;
            if cap.is_some_and(|cap| self.booked_host_memory_of(Some(book.tenant)) + more > cap) {
                return Err("its tenant has all that it may");
            }
        }
        self.has_safe_restore_room(lease, held)?;
        self.stays_on_its_gpus(now, lease, held)?;
        Ok((processes, more))
    }

    /// True if a process of a lease has exited: no lease has it.
    fn has_exited(&self, lease: LeaseId, process: &ProcKey) -> bool {
        let counted = self.leases.get(&lease).is_some_and(|book| book.members_known);
        counted && !self.owners.contains_key(process)
    }

    /// True if the driver moves a process for a lease.
    pub(super) fn is_moved_by_driver(&self, book: &LeaseBook, process: &ProcKey) -> bool {
        let LeaseStage::Park(_, park) = &book.stage else { return false };
        park.contexts.as_ref().map_or(&park.driver_processes, |contexts| &contexts.processes).contains(process)
    }

    /// A lease lost a process to another: unless the driver moves it already, the driver does not for this lease.
    pub(super) fn lose_process(&mut self, from: LeaseId, process: ProcKey) {
        let moved = self.leases.get(&from).is_some_and(|book| self.is_moved_by_driver(book, &process));
        if let Some(movers) = self.movers.get_mut(&(from, Method::Driver)).filter(|_| !moved) {
            movers.remove(&process);
        }
    }

    /// True if the driver reports for a lease that it could move a process which it moves for another, or which is
    /// another's.
    pub(super) fn belongs_to_other_lease(
        &self,
        lease: LeaseId,
        method: Method,
        process: &ProcKey,
        said: &MoverReport,
    ) -> bool {
        if method != Method::Driver
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
        let known = self.movers_of(lease, Method::Driver).contains_key(process);
        let moving = self.moving.iter().filter_map(|lease| self.leases.get(lease));
        let mut movers = moving.filter(|book| self.is_moved_by_driver(book, process)).map(|book| book.id);
        let of = movers.next().or_else(|| self.owners.get(process).copied());
        !known && of.is_some_and(|of| of != lease)
    }

    /// True if no process of a lease calls the driver any more.
    fn all_keep_still(&self, lease: LeaseId, contexts: &ContextChecks) -> bool {
        let movers = self.movers_of(lease, Method::Shim);
        contexts.processes.iter().all(|process| match movers.get(process) {
            Some(mover) => mover.keeps_still == Some(true),
            None => self.has_exited(lease, process),
        })
    }

    /// True if the driver may have something of a lease.
    pub(super) fn driver_may_have(&self, lease: LeaseId, park: &MoveBook) -> bool {
        let movers = self.movers_of(lease, Method::Driver);
        let has = |process: &ProcKey| movers.get(process).is_none_or(|mover| mover.parked.is_some() || mover.unknown);
        let moved = park.contexts.as_ref().map_or(&park.driver_processes, |contexts| &contexts.processes);
        moved.iter().any(|process| !self.has_exited(lease, process) && has(process))
    }

    /// After a report: notes if the driver may have been told by now.
    pub(super) fn note_driver_told(&mut self, lease: LeaseId) {
        let park = match self.leases.get(&lease).map(|book| &book.stage) {
            Some(LeaseStage::Park(_, park)) => park,
            _ => return,
        };
        let told = park.contexts.as_ref().is_some_and(|contexts| self.all_keep_still(lease, contexts));
        if let (true, Some(LeaseBook { stage: LeaseStage::Park(_, park), .. })) = (told, self.leases.get_mut(&lease))
            && let Some(contexts) = &mut park.contexts
        {
            contexts.may_be_told = true;
        }
    }

    pub(super) fn has_contexts_moved(&self, lease: LeaseId) -> bool {
        matches!(self.leases.get(&lease).map(|book| &book.stage), Some(LeaseStage::Park(_, park)) if park.contexts.is_some())
    }

    /// Takes the driver's failure to take what the shim left.
    pub(super) fn driver_refused(&mut self, now: Time, lease: LeaseId) -> LeaseCallKind {
        match self.leases.get(&lease).map(|book| &book.stage) {
            Some(LeaseStage::Park(_, park)) if park.stage == MoveStage::Parked => {
                self.back_off(now, lease, Method::Driver, FALSE_REPORT_BACKOFFS);
                LeaseCallKind::Refused
            }
            Some(LeaseStage::Park(_, park)) if park.stage == MoveStage::Returning => LeaseCallKind::Refused,
            _ => LeaseCallKind::Status,
        }
    }

    /// Takes the order that the driver shall have what the shim left of a lease.
    pub(super) fn move_contexts(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        at: Time,
        of: &[ProcKey],
        booked: Option<Bytes>,
    ) -> Verdict {
        must(14, at == now, || format!("the contexts of {lease} are to be moved at {at}, and it is {now}"))?;
        let has = |process: &ProcKey| {
            self.movers_of(lease, Method::Driver).get(process).is_some_and(|mover| mover.parked.is_some())
        };
        // After its own report a lease may also be moved for a waiter, like any other.
        if matches!(cause, EventCause::Reported(said, _) if *said == lease) && of.iter().any(has) {
            must(3, booked.is_none(), || format!("{booked:?} booked for {lease}, which has left already"))?;
            return self.note_driver_has(lease, of);
        }
        let (_, held, park) = self.move_of(lease, MoveStage::Parked)?;
        must(5, park.contexts.is_none(), || format!("the contexts of {lease} are to be moved twice: {park:?}"))?;
        let in_time = matches!(cause, EventCause::Observed(Some(_), _)) && self.due_contexts(now, lease).is_ok();
        must(17, in_time || self.is_context_sought(now, lease, held), || {
            format!("the contexts of {lease} are to be moved after {cause:?}, and no waiter needs that: {park:?}")
        })?;
        let can = self.movable_contexts(now, lease);
        must(2, matches!(&can, Ok((processes, _)) if processes == of), || {
            format!("the contexts of {lease} are to be moved with {of:?}, and by the books {can:?}: {park:?}")
        })?;
        let more = can.map_or(Bytes::ZERO, |(_, more)| more);
        let all = held.booked + more;
        must(3, booked == (more > Bytes::ZERO).then_some(all), || {
            format!("the contexts of {lease} are to be moved with {booked:?} booked, and by the books {all}: {held:?}")
        })?;
        self.booked_since_reading = self.booked_since_reading + more;
        if let Some(LeaseBook { stage: LeaseStage::Park(held, park), .. }) = self.leases.get_mut(&lease) {
            held.booked = all;
            park.contexts = Some(ContextChecks { processes: of.to_vec(), may_be_told: false });
        }
        self.note_driver_told(lease);
        Ok(())
    }

    /// True if waiters (ahead of this lease if it waits, too) could be granted one of its GPUs and do not all fit there
    /// now: one that does not fit, or several.
    fn is_context_sought(&self, now: Time, lease: LeaseId, held: &HeldBook) -> bool {
        // A waiter that a quota holds back, or that is behind one of its tenant's that is, is passed over, so none is
        // behind it.
        let tenant = self.leases.get(&lease).map(|book| book.tenant);
        let mut is_passed_over = false;
        let ahead = self.in_order().filter_map(|waiter| self.leases.get(&waiter));
        let ahead = ahead.take_while(|book| {
            is_passed_over |= Some(book.tenant) == tenant && self.may_be_held_back(book);
            is_passed_over || book.id != lease
        });
        let ahead: Vec<&LeaseBook> = ahead.take(64).filter(|book| book.id != lease).collect();
        let is_sought = |number: &usize| {
            let gpu = &self.gpus[*number];
            let mut seek = ahead.iter().filter(|book| !self.is_held_back(book) && self.could_host(book, gpu));
            seek.clone().nth(1).is_some() || seek.any(|book| !self.fits(book, gpu, now))
        };
        self.policy.parking.preempt && held.gpus.iter().any(is_sought)
    }

    /// The bytes of parked leases on a GPU that would leave it if a waiter needed the room: the driver was told to take
    /// them, or could be.
    pub(super) fn removable(&self, waiter: LeaseId, gpu: &GpuBook) -> Bytes {
        let now = self.last_event_at.unwrap_or(Time::ZERO);
        let leaves = |lease: &LeaseId| {
            self.has_contexts_moved(*lease) || (*lease != waiter && self.movable_contexts(now, *lease).is_ok())
        };
        let parked = |lease: &LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_parked);
        let residues = gpu.seen_bytes.iter().filter(|(lease, _)| gpu.claims.contains_key(lease) && parked(lease));
        residues.filter(|(lease, _)| leaves(lease)).map(|(_, bytes)| *bytes).sum()
    }

    /// Takes the driver's unasked report that it has a process of a lease which was parked by the shim.
    fn note_driver_has(&mut self, lease: LeaseId, of: &[ProcKey]) -> Verdict {
        let at = self.leases.get(&lease).map(|book| &book.stage);
        let known: &[ProcKey] = match at {
            Some(LeaseStage::Park(_, park)) => park.contexts.as_ref().map_or(&[], |contexts| &contexts.processes),
            _ => &[],
        };
        let has = |process: &&ProcKey| {
            let mover = self.movers_of(lease, Method::Driver).get(process);
            !known.contains(process) && mover.is_some_and(|mover| mover.parked.is_some())
        };
        let new = of.iter().filter(has).count();
        let left = matches!(at, Some(LeaseStage::Park(_, park)) if park.method == Method::Shim);
        must(2, left && new == 1 && of.len() == known.len() + 1 && known.iter().all(|it| of.contains(it)), || {
            format!("the driver shall have {of:?} of {lease}, and {known:?} before: {at:?}")
        })?;
        if let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get_mut(&lease) {
            park.contexts = Some(ContextChecks { processes: of.to_vec(), may_be_told: true });
        }
        self.note_driver_told(lease);
        Ok(())
    }

    /// Takes the order that a lease keeps its contexts.
    pub(super) fn keep_contexts(&mut self, now: Time, cause: &EventCause, lease: LeaseId, at: Time) -> Verdict {
        let (_, held, park) = self.move_of(lease, MoveStage::Parked)?;
        must(14, at == now, || format!("{lease} keeps its contexts at {at}, and it is {now}"))?;
        let told = park.contexts.as_ref().is_some_and(|contexts| contexts.may_be_told);
        let refused = matches!(cause, EventCause::Reported(of, LeaseCallKind::Refused) if *of == lease);
        let unsure = matches!(cause, EventCause::Observed(..)) && self.has_safe_restore_room(lease, held).is_err();
        // What the driver refused it did not know of, and reports now that it has nothing.
        let backoff = self.leases.get(&lease).is_some_and(|book| book.backoff.until(Method::Driver) > now);
        let found = backoff && matches!(cause, EventCause::Reported(of, LeaseCallKind::Status) if *of == lease);
        must(17, refused || unsure || found, || format!("{lease} keeps its contexts after {cause:?}: {park:?}"))?;
        // The driver does not have what it was never told to take; after a refusal it must report that.
        let has_not = if refused || found { !self.driver_may_have(lease, park) } else { !told };
        must(2, park.contexts.is_some() && has_not, || {
            format!("the driver may have something of {lease} that it would not be told to bring back: {park:?}")
        })?;
        if let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get_mut(&lease) {
            park.contexts = None;
        }
        Ok(())
    }

    /// Checks after a reading of a GPU that every lease parked there long enough has left with its contexts, if it can.
    pub(super) fn check_contexts_due(&self, now: Time, cause: &EventCause) -> Verdict {
        let EventCause::Observed(Some(number), _) = cause else { return Ok(()) };
        let gpu = &self.gpus[*number];
        if self.policy.parking.context_after.is_none() || !matches!(gpu.reading, SeenReading::Free(_)) {
            return Ok(());
        }
        for lease in gpu.claims.keys() {
            let stays = self.due_contexts(now, *lease);
            must(9, stays.is_err(), || format!("the contexts of {lease} could have been moved: {stays:?}"))?;
        }
        Ok(())
    }
}

impl Checker {
    /// Checks an order to the driver to take a lease's processes.
    pub fn check_taken(&self, lease: LeaseId) -> Verdict {
        let at = self.books.leases.get(&lease).map(|book| &book.stage);
        let Some(LeaseStage::Park(_, park)) = at else { return Ok(()) };
        let loud = park.contexts.as_ref().is_some_and(|contexts| !self.books.all_keep_still(lease, contexts));
        must(5, !loud, || {
            format!("the driver is told to take {lease}, and one of its shims does not keep still: {park:?}")
        })
    }

    /// Checks an order to the driver to bring back a lease: no other process there may be able to take its room. (What
    /// the driver has though it was never told to take it is not known.) `anew`: on the disk, which orders follow, its
    /// GPUs were given to it anew.
    pub fn check_kept_free(&self, lease: LeaseId, anew: bool) -> Verdict {
        let Some(book) = self.books.leases.get(&lease) else { return Ok(()) };
        let LeaseStage::Park(held, park) = &book.stage else { return Ok(()) };
        // A lease with new GPUs is parked again by the next reading, and the driver hears of that when it is on the
        // disk.
        let asked = park.was_resumed || anew || book.request.may_lose_state || park.stage != MoveStage::Returning;
        let sure = if asked { Ok(()) } else { self.books.others_keep_off(lease, held) };
        must(2, sure.is_ok(), || format!("the driver shall restore {lease}, but {sure:?}: {park:?}"))
    }

    /// Checks an order to the shim in a program of a lease that the driver parks or has parked: only programs that the
    /// driver takes go on. Any other would take room that was given to other leases.
    pub fn check_shim_may_continue(&self, lease: LeaseId, process: ProcKey) -> Verdict {
        let at = self.books.leases.get(&lease).map(|book| &book.stage);
        let Some(LeaseStage::Park(_, park)) = at else { return Ok(()) };
        let off = park.method == Method::Driver && park.stage != MoveStage::Returning;
        must(2, !off || park.driver_processes.contains(&process), || {
            format!(
                "{process:?} of {lease} began after the driver took the lease, and nothing keeps it off the GPUs: {park:?}"
            )
        })
    }

    /// Checks an order to the shim in a program to bring its bytes back.
    pub fn check_restored_first(&self, lease: LeaseId) -> Verdict {
        let at = self.books.leases.get(&lease).map(|book| &book.stage);
        let Some(LeaseStage::Park(_, park)) = at else { return Ok(()) };
        must(2, !self.books.driver_may_have(lease, park), || {
            format!("the shim shall bring {lease} back, of which the driver may have something: {park:?}")
        })
    }
}
