//! Preemption: which leases may be preempted, for which waiter, and when.
//!
//! What a plan costs, and whether another would be cheaper, is core's decision. Here is only what no plan may do:
//! preempt a lease that may stay, a busy lease of a more urgent tier, or one whose time slice is not over; make room
//! for a waiter that does not wait, cannot use the room, or gets it already.

use super::books::{CheckerBooks, GpuBook, HeldBook, LeaseBook, LeaseStage, SeenReading};
use super::calls::EventCause;
use super::park::{CONTEXT, MoveStage};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::{DaemonAction, LeaseAction};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::request::{Exclusivity, Preempt, Tier, Vram};
use sublet_core::units::{Bytes, Span, Time};

/// Waiters that are searched for a place in the queue.
const PLACES: usize = 256;

/// True if the actions only make room, which may come with any event.
pub fn nothing_but_room(actions: &[Action]) -> bool {
    let makes_room = |action: &&Action| match action {
        Action::Lease(LeaseAction::Park { room_for, aside, .. }) => room_for.is_some() || aside.is_some(),
        Action::Lease(LeaseAction::GiveNotice { lease, room_for, .. }) => lease != room_for,
        // Contexts leave for waiters only, but with a reading of their GPU.
        Action::Lease(LeaseAction::RemoveContexts { .. }) => true,
        _ => false,
    };
    let before = actions.iter().take_while(|action| !makes_room(action));
    before.into_iter().all(|action| matches!(action, Action::Daemon(DaemonAction::GrantGrace { .. })))
}

impl CheckerBooks {
    /// Room for one waiter may bring another to the front, so the waiter that was first before any action stays the
    /// first.
    pub fn note_first_waiter(&mut self, waiter: Option<LeaseId>) {
        if waiter.is_some() && self.first_before_room.is_none() {
            let first = self.in_order().next();
            self.first_before_room = first;
        }
    }

    /// Checks that a lease may be parked for a waiter.
    pub fn check_parked_for(
        &self,
        now: Time,
        cause: &EventCause,
        book: &LeaseBook,
        requests_again: Option<Time>,
        waiter: Option<LeaseId>,
    ) -> Verdict {
        let idle = requests_again.is_none();
        let due = self.queue_place_taken(book, waiter).unwrap_or(now + Span(1));
        must(9, requests_again.is_none() || requests_again == Some(due), || {
            format!(
                "{} requests its GPUs again as of {requests_again:?} at {now}, and it should as of {due}: {book:?}",
                book.id
            )
        })?;
        self.check_preempted(now, cause, book, waiter, idle)
    }

    /// When the waiter was requested whose place a lease takes that is preempted for the first time: the next of its
    /// tenant, tier and priority that was requested later and has not started, behind the waiter it leaves for.
    fn queue_place_taken(&self, book: &LeaseBook, waiter: Option<LeaseId>) -> Option<Time> {
        let moved = book.held().is_none_or(|held| held.was_moved);
        if !self.policy.parking.stretches_slices || book.request.tier == Tier::Interactive || moved {
            return None;
        }
        let order: Vec<LeaseId> = self.in_order().take(PLACES).collect();
        let from = order.iter().position(|lease| Some(*lease) == waiter)?;
        let others = order[from + 1..].iter().filter_map(|lease| self.leases.get(lease));
        let class = |book: &LeaseBook| (book.tenant, book.request.tier, book.request.priority);
        let mut same = others.filter(|other| class(other) == class(book) && other.id > book.id);
        same.find(|other| matches!(other.stage, LeaseStage::Waiting(_))).map(|other| other.requested_at)
    }

    /// Checks that a lease may be preempted for a waiter, because it is idle or although it is busy.
    pub fn check_preempted(
        &self,
        now: Time,
        cause: &EventCause,
        book: &LeaseBook,
        waiter: Option<LeaseId>,
        idle: bool,
    ) -> Verdict {
        let lease = book.id;
        let restart = matches!(cause, EventCause::Started(..));
        must(17, !restart, || format!("{lease} is preempted at a start"))?;
        must(9, self.policy.parking.preempt, || format!("{lease} is preempted, and this policy does not preempt"))?;
        let LeaseStage::Held(held) = &book.stage else {
            return must(5, false, || format!("{lease} is preempted, and it is {:?}", book.stage));
        };
        let over = self.is_overuse_overdue(now, book, held, self.policy.overuse_grace);
        must(20, over || book.request.preempt != Preempt::Never, || {
            format!("{lease} is preempted, and may stay: {:?}", book.request)
        })?;
        let other = waiter.and_then(|waiter| self.leases.get(&waiter)).filter(|other| other.queued_since().is_some());
        let Some(other) = other else {
            return must(9, false, || format!("{lease} is preempted for {waiter:?}, which does not wait"));
        };
        self.check_slice_over(now, book, held, other, idle)?;
        self.check_waiter(now, held, other)
    }

    /// Checks that it was idle for long, is less urgent, or has had its time slice.
    fn check_slice_over(&self, now: Time, book: &LeaseBook, held: &HeldBook, other: &LeaseBook, idle: bool) -> Verdict {
        let (lease, parking) = (book.id, &self.policy.parking);
        let turn = held.slice_began + parking.slice_min;
        must(9, !held.was_moved || turn <= now, || {
            format!("{lease} is preempted again at {now}, and its slice began at {}", held.slice_began)
        })?;
        let (own, theirs) = (book.request.tier, other.request.tier);
        if idle {
            let since = book.worked_at.max(held.slice_began).max(self.grace_from);
            let least = Span(2 * self.policy.period.0) + if theirs <= own { Span::ZERO } else { parking.idle_after };
            return must(9, now.since(since) >= least, || {
                format!("{lease} is preempted at {now} as idle, and worked at {since}; {least:?} is the least")
            });
        }
        // A lease that was told that it is exceeded, and still is, is less urgent than any other.
        if self.is_overuse_overdue(now, book, held, self.policy.overuse_grace) {
            return Ok(());
        }
        let equal = own == theirs && other.request.priority >= book.request.priority && turn <= now;
        // Between leases that waited when it was granted the queue has decided.
        let urgent =
            own > theirs && (turn <= now || other.queued_since().is_some_and(|since| since > held.slice_began));
        must(9, urgent || equal, || {
            format!("{lease} ({own:?}) is preempted at {now} for {} ({theirs:?}): {held:?}", other.id)
        })
    }

    /// Checks that a waiter may be given room, could use it, and does not get enough of it already.
    fn check_waiter(&self, now: Time, held: &HeldBook, other: &LeaseBook) -> Verdict {
        let waiter = other.id;
        must(9, !self.is_held_back(other), || format!("room is made for {waiter}, which its quota holds back"))?;
        if let LeaseStage::Park(_, park) = &other.stage {
            let from = (park.since + self.policy.parking.pause_after_park).max(other.backoff.until(park.method));
            must(9, from <= now, || {
                format!("room is made for {waiter} at {now}, which is not tried again until {from}")
            })?;
        }
        let useful = held.gpus.iter().any(|gpu| self.could_host(other, &self.gpus[*gpu]));
        must(9, useful, || format!("room is made for {waiter} on GPUs {:?}, where it cannot be granted", held.gpus))?;
        let first = self.first_before_room == Some(waiter);
        let coming = self.gpus.iter().filter(|gpu| self.gets_room_on(now, other, gpu)).count();
        must(5, !first || coming < usize::from(other.request.gpus), || {
            format!("room is made for {waiter}, the first, and it gets {coming} GPUs already: {other:?}")
        })
    }

    /// True if a waiter fits on a GPU once all leases that are leaving it have left.
    fn gets_room_on(&self, now: Time, waiter: &LeaseBook, gpu: &GpuBook) -> bool {
        let fresh = now.since(gpu.reading_began).0 <= 2 * self.policy.period.0;
        if !self.could_host(waiter, gpu) || !fresh || matches!(gpu.reading, SeenReading::Unreadable | SeenReading::Lost)
        {
            return false;
        }
        let mut room = self.promisable(gpu, now);
        for (lease, reserved) in &gpu.claims {
            let Some(other) = self.leases.get(lease).filter(|other| !other.is_parked()) else { continue };
            let seen = gpu.seen_bytes.iter().find(|(of, _)| of == lease).map_or(Bytes::ZERO, |(_, seen)| *seen);
            match &other.stage {
                LeaseStage::Ending(..) => {}
                LeaseStage::Park(_, park) if park.stage == MoveStage::Leaving => {}
                _ if excludes(waiter, other) || self.is_restore_unsafe_beside(waiter, *lease) => return false,
                _ => continue,
            }
            room = room + seen.max(*reserved).less(residue(other, gpu));
        }
        !self.restores_on(gpu) && room >= self.needed_bytes(waiter, gpu)
    }

    /// True if the driver must not restore a waiter on its GPUs while another lease is there.
    fn is_restore_unsafe_beside(&self, waiter: &LeaseBook, other: LeaseId) -> bool {
        let LeaseStage::Park(held, park) = &waiter.stage else { return false };
        let on = |number: &&usize| self.gpus[**number].claims.contains_key(&other);
        let mut shared = held.gpus.iter().filter(on);
        let is_restored = park.needs_driver() && !waiter.request.may_lose_state;
        is_restored && shared.any(|number| self.is_uncapped(other, *number) || self.had_more_than_lease(other))
    }

    // ---- rule 2 for the driver ----------------------------------------------------

    /// True if the driver brings a lease back to a GPU.
    pub fn restores_on(&self, gpu: &GpuBook) -> bool {
        let restores = |lease: &LeaseId| match self.leases.get(lease).map(|book| &book.stage) {
            Some(LeaseStage::Park(_, park)) => park.is_driver_restore(),
            _ => false,
        };
        self.moving.iter().filter(|lease| gpu.claims.contains_key(lease)).any(restores)
    }

    /// Why a process on its GPUs could take what a restore needs; `Ok` if all processes there belong to leases and have
    /// the shim.
    pub fn has_safe_restore_room(&self, lease: LeaseId, held: &HeldBook) -> Result<(), &'static str> {
        let has_more = |number: &usize| self.seen_of(lease, *number) > held.vram;
        if held.gpus.iter().any(has_more) {
            return Err("it has more there than its lease");
        }
        self.others_keep_off(lease, held)?;
        let mut others = held.gpus.iter().flat_map(|number| self.gpus[*number].claims.keys());
        match others.any(|other| *other != lease && self.had_more_than_lease(*other)) {
            true => Err("a lease may return there with more than its size"),
            false => Ok(()),
        }
    }

    /// Why a lease may have bytes on GPUs that are not its own, which the driver would take, too.
    pub fn stays_on_its_gpus(&self, now: Time, lease: LeaseId, held: &HeldBook) -> Result<(), &'static str> {
        let outside = (0..self.gpus.len()).filter(|number| !held.gpus.contains(number) && self.gpus[*number].listed);
        for number in outside {
            let gpu = &self.gpus[number];
            let stale = now.since(gpu.reading_began).0 > 2 * self.policy.period.0;
            match gpu.reading {
                SeenReading::Lost => {}
                SeenReading::Unreadable => return Err("it may be on a GPU that cannot be read"),
                _ if stale => return Err("it may be on a GPU that was not read lately"),
                _ if self.processes_on(lease, number).next().is_some() => {
                    return Err("it is on a GPU that is not its own");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The same for all other leases there.
    pub fn others_keep_off(&self, lease: LeaseId, held: &HeldBook) -> Result<(), &'static str> {
        for number in &held.gpus {
            let gpu = &self.gpus[*number];
            if matches!(gpu.reading, SeenReading::Unreadable | SeenReading::Lost) {
                return Err("the processes there cannot be seen");
            }
            let ours = |process: &&ProcKey| self.owners.get(process).is_some_and(|of| gpu.claims.contains_key(of));
            if !gpu.processes.iter().all(|process| ours(&process)) {
                return Err("unleased processes are there");
            }
            if gpu.claims.keys().any(|other| *other != lease && self.is_uncapped(*other, *number)) {
                return Err("a process there has no shim that limits it");
            }
        }
        Ok(())
    }

    /// True if only other leases keep the driver from bringing a parked one back: once they have left it can.
    pub fn waits_for_holders(&self, now: Time, book: &LeaseBook) -> bool {
        let LeaseStage::Park(held, park) = &book.stage else { return false };
        let is_restored = park.stage == MoveStage::Parked && park.needs_driver() && !book.request.may_lose_state;
        if !is_restored || book.backoff.until(park.method) > now || self.is_other_move_under_way(book.id, held) {
            return false;
        }
        let is_open = |number: &usize| {
            let gpu = &self.gpus[*number];
            let ours = |process: &ProcKey| self.owners.get(process).is_some_and(|of| gpu.claims.contains_key(of));
            let is_seen =
                !matches!(gpu.reading, SeenReading::Unreadable | SeenReading::Lost) && gpu.processes.iter().all(ours);
            is_seen && self.seen_of(book.id, *number) <= held.vram
        };
        let is_blocked = |number: &usize| {
            let is_there = |other: &LeaseId| self.leases.get(other).is_some_and(|book| !book.is_parked());
            let mut others = self.gpus[*number].claims.keys().filter(|other| **other != book.id && is_there(other));
            others.any(|other| self.is_uncapped(*other, *number) || self.had_more_than_lease(*other))
        };
        held.gpus.iter().all(is_open) && held.gpus.iter().any(is_blocked)
    }

    /// True if a parked lease cannot be resumed now, room or not: it failed a moment ago, or the driver might lose it.
    pub fn cannot_try(&self, now: Time, book: &LeaseBook) -> bool {
        let LeaseStage::Park(held, park) = &book.stage else { return false };
        let unsure =
            park.needs_driver() && !book.request.may_lose_state && self.has_safe_restore_room(book.id, held).is_err();
        let taken_up = || self.is_other_move_under_way(book.id, held);
        park.stage == MoveStage::Parked && (book.backoff.until(park.method) > now || unsure || taken_up())
    }
}

/// What a parking lease leaves on a GPU: its context, while its processes live.
pub fn residue(book: &LeaseBook, gpu: &GpuBook) -> Bytes {
    match &book.stage {
        LeaseStage::Park(_, park) if park.stage == MoveStage::Leaving && park.method != Method::Driver => {
            match gpu.is_coarse() {
                true => gpu.residue_max(),
                false => gpu.facts.context.unwrap_or(CONTEXT),
            }
        }
        _ => Bytes::ZERO,
    }
}

/// True if a waiter cannot be on a GPU with another lease that stays there.
fn excludes(waiter: &LeaseBook, other: &LeaseBook) -> bool {
    match (waiter.request.exclusivity, other.request.exclusivity) {
        _ if waiter.request.vram == Vram::Whole => true,
        (Exclusivity::Device, _) | (_, Exclusivity::Device) => true,
        (Exclusivity::Session, _) | (_, Exclusivity::Session) => waiter.tenant != other.tenant,
        (Exclusivity::Shared, Exclusivity::Shared) => false,
    }
}
