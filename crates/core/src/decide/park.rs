//! Holders leave their cards and come back.
//!
//! ```text
//! Active ──Park──► Parking ──Parked──► Parked ──Want──► Parked, in the queue
//!    ▲                │  ▲                                       │
//!    │             Unpark Retreat                             Resume
//!    │                ▼  │                                       │
//!    └────Resumed── Resuming ◄───────────────────────────────────┘
//! ```
//! Here it is decided where a holder's bytes shall be; the daemon tells its programs, whenever one of
//! them is where it should not be, and says what they answer. What they answer moves nothing by
//! itself: a holder is parked when its cards were seen without its bytes, twice.

use super::Decider;
use crate::model::cost::Direction;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::{Hint, LeaseAction, UnparkReason, Wake};
use crate::model::ids::{Fence, GpuId, LeaseId, ProcKey};
use crate::model::method::Method;
use crate::model::movers;
use crate::model::movers::{Backoff, HOOK, MoveProgress, MoverReport, NotParkable};
use crate::model::mutant::Mutant;
use crate::model::rows::{EndReason, Hold, Lease, ParkState, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::policy::board::{Board, Fit};
use crate::policy::charges::debt_clock_after;
use crate::policy::move_progress::{all_parked, all_resumed, is_seen_gone, none_parked};
use crate::policy::moves::{cheapest_method, is_backing_off, use_is_noticed};
use crate::policy::restore_room::no_longer_sure;
use crate::policy::resume::{has_room_again, left_on_gpus, needed_to_resume};
use crate::policy::{contexts, move_progress, parking, quota, restore_room, stretch};

/// Looks in a row that must show a card without a holder's bytes.
const LOOKS: u32 = 2;

/// What a lease does when it is to be parked, which decides whether it waits for its GPUs afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParkCause {
    /// A user asked for the park: it stays parked until its next use.
    Request,
    /// It was busy: once parked it waits for its GPUs again.
    Busy,
    /// It was idle: it stays parked until its next use, and is passive if that cannot be noticed.
    Idle,
}

/// How a lease is parked, and what for.
pub(super) struct ParkOrder {
    pub method: Method,
    pub cause: ParkCause,
    pub room_for: Option<LeaseId>,
    /// The GPU that steps aside.
    pub aside: Option<GpuId>,
    /// The waiter needs the room of its contexts too.
    pub with_context: bool,
}

impl Decider<'_> {
    /// Somebody wants a holder off its cards.
    pub(super) fn park_asked(&mut self, by: &Caller, lease: LeaseId) -> EventAnswer {
        let row = match self.find(by, lease) {
            Ok(row) => row,
            Err(refusal) => return EventAnswer::Refused(refusal),
        };
        match &row.phase {
            Phase::Waiting { .. } => return EventAnswer::Refused(Refusal::StillWaiting),
            Phase::Ending(..) => return EventAnswer::Refused(Refusal::Ended),
            Phase::Parking(hold, _) if self.state.planted(Mutant::ParkTwice) => {
                let booked = hold.booked_host_memory();
                self.emit(LeaseAction::bare_park(lease, self.now, booked));
                return EventAnswer::Lease(lease);
            }
            Phase::Parking(..) | Phase::Parked(..) => return EventAnswer::Lease(lease),
            Phase::Resuming(..) => return EventAnswer::Refused(Refusal::NotParkable(NotParkable::NotActive)),
            Phase::Active(_) => {}
        }
        self.clear_backoffs(lease);
        match self.park(lease, ParkCause::Request) {
            Ok(()) => EventAnswer::Lease(lease),
            Err(why) => EventAnswer::Refused(Refusal::NotParkable(why)),
        }
    }

    /// The wrapper of a holder says how its hook went.
    pub(super) fn hook_reported(
        &mut self,
        by: &Caller,
        lease: LeaseId,
        epoch: Fence,
        said: MoverReport,
    ) -> EventAnswer {
        let row = match self.held_by(by, lease, epoch) {
            Ok((row, _)) => row,
            Err(refusal) => return EventAnswer::Refused(refusal),
        };
        // Whoever speaks for a wrapper that is gone runs no hook.
        let has_hook = self.state.readings(lease).is_some_and(|live| !live.hooks.is_empty());
        let due = match (&row.phase, &said) {
            (Phase::Parking(_, away), MoverReport::Parked(_) | MoverReport::Refused(_)) => {
                has_hook && away.method == Method::Hook
            }
            (Phase::Resuming(_, away), MoverReport::Resumed | MoverReport::Refused(_)) => {
                has_hook && away.method == Method::Hook
            }
            (Phase::Parked(..), MoverReport::Used) => true,
            _ => false,
        };
        // Said too late, or twice.
        if due {
            self.take_report(lease, Method::Hook, HOOK, said);
        }
        EventAnswer::Lease(lease)
    }

    /// Somebody wants a parked holder to have its cards again.
    pub(super) fn resume_asked(&mut self, by: &Caller, lease: LeaseId) -> EventAnswer {
        let row = match self.find(by, lease) {
            Ok(row) => row,
            Err(refusal) => return EventAnswer::Refused(refusal),
        };
        match &row.phase {
            Phase::Waiting { .. } => return EventAnswer::Refused(Refusal::StillWaiting),
            Phase::Ending(..) => return EventAnswer::Refused(Refusal::Ended),
            Phase::Active(_) | Phase::Resuming(..) => {}
            Phase::Parking(..) | Phase::Parked(..) => {
                self.clear_backoffs(lease);
                self.wake(lease, Wake::Resume);
            }
        }
        EventAnswer::Lease(lease)
    }

    /// Something seen from outside suggests that a parked lease is used.
    pub(super) fn take_hint(&mut self, lease: LeaseId, hint: Hint) {
        let Some(row) = self.state.lease(lease) else { return };
        let (Phase::Parking(_, away) | Phase::Parked(_, away)) = &row.phase else { return };
        let waits = row.queued_since().is_some() || (!away.is_passive && away.requests_again_at.is_some());
        if waits || use_is_noticed(self.state, lease, away.method) {
            return;
        }
        let (now, always) = (self.now, self.state.planted(Mutant::HintsForEver));
        if always || self.state.readings_mut(lease).is_some_and(|live| live.hint_backoff.accepts(now)) {
            self.wake(lease, Wake::Hint(hint));
        }
    }

    /// A hand that asks may try again at once; but nobody gains time on its cards by that.
    fn clear_backoffs(&mut self, lease: LeaseId) {
        let may = match self.state.lease(lease).map(|row| &row.phase) {
            Some(Phase::Active(hold)) => !parking::is_past_term(self.state, hold, self.now),
            Some(Phase::Parked(..)) => true,
            _ => false,
        };
        if let Some(live) = self.state.readings_mut(lease).filter(|_| may) {
            live.backoffs.clear();
        }
    }

    /// Puts a holder on its way off its cards, in the cheapest way that it can be.
    pub(super) fn park(&mut self, lease: LeaseId, cause: ParkCause) -> Result<(), NotParkable> {
        let row = self.state.lease(lease).ok_or(NotParkable::NotActive)?;
        let method = cheapest_method(self.state, row, self.now)?;
        self.park_by(lease, ParkOrder { method, cause, room_for: None, aside: None, with_context: false })
    }

    /// Puts a holder on its way off its cards in this way.
    pub(super) fn park_by(&mut self, lease: LeaseId, order: ParkOrder) -> Result<(), NotParkable> {
        let ParkOrder { method: rung, cause, room_for, aside, with_context } = order;
        let row = self.state.lease(lease).ok_or(NotParkable::NotActive)?;
        match self.state.stopped() {
            Some(Refusal::DiskFull) => return Err(NotParkable::BackingOff("the disk is full".to_owned())),
            Some(_) => return Err(NotParkable::BackingOff("lines of the journal are missing".to_owned())),
            None => {}
        }
        let booked = parking::parkable(self.state, row, rung, self.now)?;
        let had = row.hold().map_or(Bytes::ZERO, |hold| parking::bytes_on_gpus(self.state, lease, hold));
        let before = row.hold().map(|hold| parking::gpus_before(self.state, lease, hold)).unwrap_or_default();
        let live = self.state.readings(lease);
        let program = live.map(|live| live.program.clone()).unwrap_or_default();
        let moved = live.filter(|_| rung == Method::Driver).map(|live| live.driver.keys().copied().collect());
        let processes = moved.unwrap_or_default();
        // A lease that leaves for an aside comes back without any action of its user.
        let is_silent = aside.is_some() || !use_is_noticed(self.state, lease, rung);
        let quiet = cause == ParkCause::Idle && is_silent;
        let again = cause == ParkCause::Busy;
        // Behind whoever it leaves for, who may have asked at this very moment.
        let as_of = room_for.filter(|_| again).and_then(|waiter| stretch::asks_as_of(self.state, row, waiter));
        let again = again.then_some(as_of.unwrap_or(self.now + Span(1)));
        let at = self.now;
        self.emit(LeaseAction::Park {
            lease,
            at,
            booked,
            requests_again_at: again,
            method: rung,
            had_bytes: had,
            program,
            room_for,
            aside,
            processes,
            is_passive: quiet,
            with_context,
        });
        if let Some(live) = self.state.readings_mut(lease) {
            // What it needed at an earlier try it has had.
            (live.wake, live.death) = (None, None);
            live.gpus_before = before;
        }
        self.advance_move(lease);
        Ok(())
    }

    /// Something is said of a program of a holder, on a rung.
    pub(super) fn take_report(&mut self, lease: LeaseId, rung: Method, process: ProcKey, said: MoverReport) {
        if rung == Method::Driver && said.is_about_gpus() && self.belongs_to_other_lease(lease, &process) {
            return;
        }
        let Some(voices) = self.state.readings_mut(lease).and_then(|live| live.movers_mut(rung)) else { return };
        match said {
            MoverReport::Present { parked } => {
                voices.entry(process).or_default().set_parked_bytes(parked);
                self.note_alive(lease, process);
            }
            MoverReport::Gone => drop(voices.remove(&process)),
            MoverReport::Died(why) => {
                voices.remove(&process);
                self.note_death(lease, rung, process, why);
            }
            MoverReport::Cannot(why) => voices.entry(process).or_default().refusal = why,
            MoverReport::Parked(bytes) => voices.entry(process).or_default().set_parked_bytes(Some(bytes)),
            MoverReport::Unknown => voices.entry(process).or_default().is_unknown = true,
            MoverReport::Resumed => {
                // It calls the driver again, whatever it said before.
                let voice = voices.entry(process).or_default();
                voice.set_parked_bytes(None);
                voice.keeps_still = voice.keeps_still.map(|_| false);
            }
            MoverReport::KeepsStill(is) => {
                voices.entry(process).or_default().keeps_still = Some(is);
                return;
            }
            MoverReport::Refused(why) => return self.refused(lease, rung, process, &why),
            MoverReport::Outgrown(why) => return self.note_outgrown(lease, rung, process, &why),
            MoverReport::Lost(why) if self.state.lease(lease).is_some_and(Lease::is_held) => {
                return self.end_because(lease, EndReason::RestoreFailed, Some(why));
            }
            MoverReport::Lost(_) => return,
            MoverReport::Used => return self.wake(lease, Wake::Use),
        }
        self.state.set_movable(lease);
        let voices = self.state.readings(lease).map(|live| live.movers(rung));
        if rung == Method::Driver && voices.and_then(|it| it.get(&process)).is_some_and(|it| it.parked_bytes.is_some())
        {
            self.note_driver_has(lease, process);
        }
        if rung == Method::Driver {
            self.note_driver_has_nothing(lease);
        }
        if self.state.lease(lease).and_then(Lease::park_state).is_some_and(|away| away.method != rung) {
            return;
        }
        // What was seen before its last word proves nothing.
        if let Some(live) = self.state.readings_mut(lease) {
            live.progress = MoveProgress::default();
        }
        self.advance_move(lease);
    }

    /// A program ended while its bytes were leaving.
    fn note_death(&mut self, lease: LeaseId, rung: Method, process: ProcKey, why: String) {
        let Some((row, live)) = self.state.lease(lease).zip(self.state.readings(lease)) else { return };
        match &row.phase {
            Phase::Parking(_, away) if away.method == rung => {
                if let Some(live) = self.state.readings_mut(lease) {
                    live.death = Some((process, why));
                }
            }
            // Its wrapper, or its exit, was heard first.
            Phase::Ending(_, finish) if finish.reason.is_exit() && live.shims.is_empty() => {
                self.emit(LeaseAction::RecordDeath { lease, at: self.now, why });
            }
            _ => {}
        }
    }

    /// A program that was taken for dead is there.
    fn note_alive(&mut self, lease: LeaseId, process: ProcKey) {
        if let Some(live) = self.state.readings_mut(lease) {
            live.death.take_if(|(died, _)| *died == process);
        }
    }

    /// Whether a process of which the driver was asked for a lease is another's by now: it must not move it for this one.
    fn belongs_to_other_lease(&self, lease: LeaseId, process: &ProcKey) -> bool {
        let is_known = self.state.readings(lease).is_some_and(|live| live.driver.contains_key(process));
        !is_known && self.state.lease_that_driver_moves(process).is_some_and(|of| of != lease)
    }

    /// Whose wrapper is gone has nobody who could run its hook: it stays where it is.
    pub(super) fn lose_hook(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease).filter(|row| row.request.has_hook) else { return };
        let leaves = matches!(&row.phase, Phase::Parking(_, away) if away.method == Method::Hook);
        if let Some(live) = self.state.readings_mut(lease) {
            live.hooks.clear();
        }
        self.state.set_movable(lease);
        if leaves {
            self.unpark(lease, "its wrapper is gone");
        }
        let Some(row) = self.state.lease(lease) else { return };
        if matches!(&row.phase, Phase::Resuming(_, away) if away.method == Method::Hook) {
            self.resumed(&row.clone());
        }
    }

    /// A program could not do what it was told.
    fn refused(&mut self, lease: LeaseId, rung: Method, process: ProcKey, why: &str) {
        let Some(row) = self.state.lease(lease) else { return };
        let deep = row.park_state().is_some_and(|away| away.with_driver && rung == Method::Driver);
        if !deep && row.park_state().is_none_or(|away| away.method != rung) {
            return;
        }
        let its = self.state.readings(lease).and_then(|live| live.movers(rung).get(&process));
        let is_away = its.is_some_and(|voice| voice.parked_bytes.is_some());
        let has_left = |hold: &Hold| {
            let has_left = is_away || all_parked(self.state, row, hold, rung);
            has_left && !self.state.planted(Mutant::StayGone)
        };
        match &row.phase {
            Phase::Parked(..) if deep => self.keep_contexts(lease, why),
            Phase::Parking(..) if deep => {}
            // It has left, or all of them: that was said of the way back, before they were sent away.
            Phase::Parking(hold, _) if has_left(hold) => {}
            Phase::Parking(..) => self.unpark(lease, why),
            Phase::Resuming(_, ParkState { was_resumed: true, .. }) => {
                self.retreat(lease, why);
            }
            // It was not to leave at all: it is told again until it has its room.
            _ => {}
        }
    }

    /// A program has more bytes than were booked: a park after the next reading books enough. Without a backoff no
    /// dearer method is tried meanwhile.
    fn note_outgrown(&mut self, lease: LeaseId, rung: Method, process: ProcKey, why: &str) {
        let was_parking = self.state.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Parking(..)));
        self.refused(lease, rung, process, why);
        if was_parking && let Some(live) = self.state.readings_mut(lease) {
            live.backoffs.retain(|of, rest| *of != rung || rest.since < self.now);
        }
    }

    /// Who was parked for a while leaves its cards altogether, where it is sure to come back.
    pub(super) fn remove_old_contexts(&mut self, card: GpuId) {
        let Some(mut after) = self.state.policy().parking.context_after else { return };
        if self.state.planted(Mutant::DeepAtOnce) {
            after = Span::ZERO;
        }
        let parked = self.state.room(card).leases().iter().filter(|(_, claim)| claim.is_parked);
        for lease in parked.map(|(lease, _)| *lease).collect::<Vec<_>>() {
            let Some(row) = self.state.lease(lease) else { continue };
            let Phase::Parked(hold, away) = &row.phase else { continue };
            if away.with_driver {
                // While the driver was not told yet, who comes is no harm. What an earlier daemon told it nobody knows.
                let untold = self.state.readings(lease).is_some_and(|live| live.driver_not_told);
                let untold = untold && !move_progress::all_keep_still(self.state, row);
                if (untold || self.state.planted(Mutant::ShallowBlind))
                    && let Err(NotParkable::RestoreUnsure(why)) =
                        restore_room::check_restore_room(self.state, row, hold)
                {
                    self.emit(LeaseAction::KeepContexts { lease, at: self.now, why });
                }
                continue;
            }
            let is_long = away.since + after <= self.now;
            if away.with_context || (is_long && contexts::removable_if_not_waiting(self.state, row, self.now).is_ok()) {
                self.take_contexts(lease);
            }
        }
    }

    /// The driver shall take the contexts of a parked lease, if it can.
    pub(super) fn take_contexts(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease).filter(|_| !self.state.is_stopped()) else { return };
        let Ok((processes, booked)) = contexts::removable(self.state, row, self.now) else { return };
        self.emit(LeaseAction::RemoveContexts { lease, at: self.now, processes, booked });
        if let Some(live) = self.state.readings_mut(lease) {
            live.driver_not_told = true;
        }
        self.note_keeping_still(lease);
    }

    /// Something was heard of a holder: if none of its programs calls the driver, that may be told by now.
    pub(super) fn note_keeping_still(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease) else { return };
        let told =
            row.park_state().is_some_and(|away| away.with_driver) && move_progress::all_keep_still(self.state, row);
        if told && let Some(live) = self.state.readings_mut(lease) {
            live.driver_not_told = false;
        }
    }

    /// The driver has a process whose bytes the library took, whether it was to or not: it comes back by the driver.
    fn note_driver_has(&mut self, lease: LeaseId, process: ProcKey) {
        let Some(away) = self.state.lease(lease).and_then(Lease::park_state).filter(|away| away.method == Method::Shim)
        else {
            return;
        };
        let mut processes = if away.with_driver { away.processes.clone() } else { Vec::new() };
        if !processes.contains(&process) {
            processes.push(process);
            processes.sort();
            // It is done: nothing is left to be booked.
            self.emit(LeaseAction::RemoveContexts { lease, at: self.now, processes, booked: None });
            if let Some(live) = self.state.readings_mut(lease) {
                live.driver_not_told = false;
            }
        }
    }

    /// The driver could not take what is left of a parked holder. If it has some of it, it keeps that.
    fn keep_contexts(&mut self, lease: LeaseId, why: &str) {
        let (since, until) = (self.now, self.now + self.state.policy().parking.retry_after_false_report());
        let Some(live) = self.state.readings_mut(lease) else { return };
        live.backoffs.insert(Method::Driver, Backoff { since, until, why: why.to_owned() });
        let Some(row) = self.state.lease(lease) else { return };
        if !move_progress::driver_may_have(self.state, row) {
            self.emit(LeaseAction::KeepContexts { lease, at: self.now, why: why.to_owned() });
        }
    }

    /// The driver could not take what is left of a parked holder, and did not know what it has of it: it has nothing, as
    /// it turns out.
    fn note_driver_has_nothing(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease) else { return };
        let is_deep = matches!(&row.phase, Phase::Parked(_, away) if away.with_driver);
        let rest = self.state.readings(lease).and_then(|live| live.backoffs.get(&Method::Driver));
        let Some(rest) = rest.filter(|rest| is_deep && rest.until > self.now) else { return };
        if !move_progress::driver_may_have(self.state, row) {
            let why = rest.why.clone();
            self.emit(LeaseAction::KeepContexts { lease, at: self.now, why });
        }
    }

    /// Who was coming back stays away for now.
    fn retreat(&mut self, lease: LeaseId, why: &str) {
        self.back_off(lease, why, self.state.policy().parking.retry_after);
        self.emit(LeaseAction::ParkAgain { lease, at: self.now });
        self.advance_move(lease);
    }

    /// Whatever of a holder has left comes back.
    fn unpark(&mut self, lease: LeaseId, why: &str) {
        self.back_off(lease, why, self.state.policy().parking.retry_after);
        self.emit(LeaseAction::Unpark { lease, at: self.now, why: UnparkReason::Refused(why.to_owned()) });
        self.advance_move(lease);
    }

    fn back_off(&mut self, lease: LeaseId, why: &str, rest: Span) {
        let (since, until) = (self.now, self.now + rest);
        let Some(rung) = self.state.lease(lease).and_then(Lease::park_state).map(|away| away.method) else { return };
        if let Some(live) = self.state.readings_mut(lease) {
            live.backoffs.insert(rung, Backoff { since, until, why: why.to_owned() });
        }
    }

    /// Makes a parked lease an ordinary waiter that arrives now; one that is being parked becomes one when it is.
    pub(super) fn wake(&mut self, lease: LeaseId, wake: Wake) {
        let Some(row) = self.state.lease(lease) else { return };
        match &row.phase {
            Phase::Parking(..) => {
                if let Some(live) = self.state.readings_mut(lease) {
                    live.wake = Some(wake);
                }
            }
            Phase::Parked(..) if row.queued_since().is_none() && !self.state.planted(Mutant::ForgetWant) => {
                self.queue_parked(lease, self.now, Some(wake));
                self.serve();
            }
            _ => {}
        }
    }

    fn queue_parked(&mut self, lease: LeaseId, at: Time, wake: Option<Wake>) {
        let Some(row) = self.state.lease(lease) else { return };
        let Phase::Parked(hold, _) = &row.phase else { return };
        let (vram, at_least) = needed_to_resume(self.state, row, hold);
        if let Some(live) = self.state.readings_mut(lease) {
            live.wake = None;
        }
        self.emit(LeaseAction::QueueParked { lease, at, vram, at_least, wake });
    }

    /// Brings passive leases back into room that no waiter claims.
    pub(super) fn resume_passive(&mut self) {
        // While their GPUs are taken, no waiter need be looked at.
        let mut passive = self.state.passive();
        passive.retain(|lease| has_room_again(self.state, *lease, self.now));
        if passive.is_empty() {
            return;
        }
        let board = match self.state.planted(Mutant::PassiveFirst) {
            true => Some(Board::new(self.state, self.now)),
            false => Board::after_all(self.state, self.now),
        };
        let Some(mut board) = board else { return };
        for lease in passive {
            let Some(row) = self.state.lease(lease) else { continue };
            let Phase::Parked(hold, away) = &row.phase else { continue };
            let pauses = away.since + self.state.policy().parking.pause_after_park > self.now;
            if pauses || is_backing_off(self.state, row, self.now) {
                continue;
            }
            let (vram, at_least) = needed_to_resume(self.state, row, hold);
            let row = Lease { request: row.resume_request(vram, at_least), ..row.clone() };
            if quota::block(self.state, &row).is_some() {
                continue;
            }
            if let Some(fit) = board.fit_unclaimed(self.state, &row) {
                self.resume(&row, &fit);
                board.note_granted(self.state, &fit);
            }
        }
    }

    /// A parked holder's turn has come.
    pub(super) fn resume(&mut self, row: &Lease, fit: &Fit) {
        let lease = row.id;
        let Phase::Parked(hold, _) = &row.phase else { return };
        let vram = self.resumed_vram(row, hold, fit);
        let span = row.request.term.span();
        let mark = debt_clock_after(self.state, row.tenant, vram, hold.gpus.len(), span, self.now);
        let turn = self.state.is_first(row).then_some(self.now);
        let at = match row.park_state() {
            Some(away) if self.state.planted(Mutant::ChargeParked) => away.since,
            _ => self.now,
        };
        let (until, before) = (self.now + span, fit.before);
        self.emit(LeaseAction::Resume {
            lease,
            at,
            vram,
            until,
            debt_clock: Some(mark),
            not_beyond: before,
            first_since: turn,
        });
        if let Some(live) = self.state.readings_mut(lease) {
            // It outlived the program that died: whatever ends it from now on is another cause.
            live.death = None;
        }
        self.advance_move(lease);
    }

    /// A card was looked at: who was to leave it may be seen to have left.
    pub(super) fn check_moves(&mut self, card: GpuId, begun: Time) {
        for lease in self.state.moving().collect::<Vec<_>>() {
            let Some(row) = self.state.lease(lease) else { continue };
            let Some(hold) = row.hold().filter(|hold| hold.gpus.contains(&card)) else { continue };
            let said = self.state.readings(lease).and_then(|live| live.progress.reported_at);
            if let Some(why) = no_longer_sure(self.state, row, hold) {
                self.retreat(lease, &why);
                continue;
            }
            let after = said.is_some_and(|said| said < begun);
            let agrees =
                after && (!matches!(row.phase, Phase::Parking(..)) || is_seen_gone(self.state, row, hold, card));
            if let Some(live) = self.state.readings_mut(lease) {
                let looks = live.progress.agreeing_readings.entry(card).or_default();
                *looks = if agrees { *looks + 1 } else { 0 };
            }
            self.advance_move(lease);
        }
    }

    /// Takes the next step of a park or a resume, if it can be taken.
    fn advance_move(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease).cloned() else { return };
        let (direction, hold, rung) = match &row.phase {
            Phase::Parking(hold, away) => (Direction::OffGpu, hold, away.method),
            Phase::Resuming(hold, away) => (Direction::OntoGpu, hold, away.method),
            _ => return,
        };
        let state = &*self.state;
        let done = match direction {
            Direction::OffGpu => all_parked(state, &row, hold, rung),
            // What a program says whose context is not there counts for nothing, and nobody speaks for another.
            Direction::OntoGpu => all_resumed(state, &row, hold, rung) && !move_progress::driver_may_have(state, &row),
        };
        let hook = rung == Method::Hook && self.state.planted(Mutant::BelieveHook);
        let is_park = direction == Direction::OffGpu;
        let believed = is_park && (hook || self.state.planted(Mutant::BelieveParked));
        let one_look = self.state.planted(Mutant::OneLook);
        let half = is_park && self.state.planted(Mutant::ParkHalf);
        let half = half
            && self
                .state
                .readings(lease)
                .is_some_and(|live| live.movers(rung).values().any(|s| s.parked_bytes.is_some()));
        let Some(live) = self.state.readings_mut(lease) else { return };
        if !done && !half {
            live.progress.reported_at = None;
            live.progress.agreeing_readings.clear();
            return;
        }
        if live.progress.reported_at.is_none() {
            live.progress.reported_at = Some(self.now);
            live.progress.agreeing_readings.clear();
            let parking = &self.state.policy().parking;
            let most = row.park_state().map_or(Time::NEVER, |away| away.since + parking.timeout_of(away));
            self.set_move_due(&row, most.min(self.now + parking.move_timeout));
        }
        let Some(live) = self.state.readings(lease) else { return };
        let said: Bytes = live.movers(rung).values().filter_map(|voice| voice.parked_bytes).sum();
        if is_park && rung != Method::Hook && said > hold.booked_host_memory() {
            return self.unpark(lease, "its programs have more than was booked for them");
        }
        let looks = if is_park && !one_look { LOOKS } else { 1 };
        let seen =
            hold.gpus.iter().all(|card| live.progress.agreeing_readings.get(card).is_some_and(|count| *count >= looks));
        match direction {
            // A fixed term that is over ends with the next tick.
            Direction::OffGpu if row.has_fixed_term() && self.later_due_time(hold.renewed, hold.until).is_none() => {}
            Direction::OffGpu if seen || believed => self.parked(&row, hold),
            Direction::OntoGpu if seen => {
                self.resumed(&row);
                self.serve();
            }
            _ => {}
        }
    }

    /// A holder has its cards and its bytes on them.
    fn resumed(&mut self, row: &Lease) {
        let until = self.now + self.state.policy().parking.retry_after;
        if let Some(ParkState { was_resumed: false, method: rung, .. }) = row.park_state()
            && let Some(rest) = self.state.readings_mut(row.id).and_then(|live| live.backoffs.get_mut(rung))
        {
            // It could not be parked, however long it took to see that: it is not tried at once again.
            rest.until = rest.until.max(until);
        }
        self.emit(LeaseAction::FinishResume { lease: row.id, at: self.now });
    }

    fn parked(&mut self, row: &Lease, hold: &Hold) {
        let lease = row.id;
        let unused = hold.unused_payment(self.now);
        let tenant = &self.state.rows().tenants[row.tenant];
        let mark = (unused > Span::ZERO).then(|| tenant.debt_clock - unused);
        self.emit(LeaseAction::FinishPark { lease, at: self.now, debt_clock: mark });
        if hold.gpus.iter().any(|card| self.state.room(*card).is_coarse()) {
            // Who leaves for the same waiter goes next there, before this one could come back.
            self.plan_now();
        }
        let wake = self.state.readings(lease).and_then(|live| live.wake);
        // A passive lease of an earlier version has a time here too.
        let again = row.park_state().filter(|away| !away.is_passive).and_then(|away| away.requests_again_at);
        let again = if self.state.planted(Mutant::LosePlace) { again.map(|_| self.now) } else { again };
        match (again, wake) {
            (Some(at), wake) => self.queue_parked(lease, at, wake),
            (None, Some(wake)) => self.queue_parked(lease, self.now, Some(wake)),
            (None, None) => {}
        }
        self.serve();
    }

    /// A park or a resume was not seen to be done in time.
    pub(super) fn move_timed_out(&mut self, row: &Lease, since: Time) {
        let (lease, at) = (row.id, self.now);
        let Some((rung, limit)) =
            row.park_state().map(|away| (away.method, self.state.policy().parking.timeout_of(away)))
        else {
            return;
        };
        let said = self.state.readings(lease).and_then(|live| live.progress.reported_at);
        // What was said to be done must be seen soon, however long it could have taken.
        let seen_by = said.map_or(Time::NEVER, |said| said + self.state.policy().parking.move_timeout);
        if let Some(later) = self.later_due_time(since, (since + limit).min(seen_by)) {
            return self.set_move_due(row, later);
        }
        let said = said.is_some();
        match &row.phase {
            Phase::Parking(..) => {
                let parking = &self.state.policy().parking;
                let is_coarse = |hold: &Hold| hold.gpus.iter().any(|card| self.state.room(*card).is_coarse());
                let (why, text, rest) = match said {
                    false => (UnparkReason::Silent, "one of its programs did not answer", parking.retry_after),
                    true if row.hold().is_some_and(is_coarse) => {
                        (UnparkReason::Unclear, "its GPUs were not seen to lose its bytes", parking.retry_after)
                    }
                    true => (UnparkReason::NotSeen, movers::FALSE_REPORT, parking.retry_after_false_report()),
                };
                if rung == Method::Driver && !said {
                    self.distrust_driver(lease);
                }
                self.back_off(lease, text, rest);
                self.emit(LeaseAction::Unpark { lease, at, why });
                self.advance_move(lease);
            }
            // None of its programs is there that could bring anything back.
            Phase::Resuming(..)
                if !said
                    && self.state.readings(lease).is_none_or(|live| none_parked(live, rung))
                    && !move_progress::driver_may_have(self.state, row) =>
            {
                self.resumed(row);
            }
            Phase::Resuming(_, ParkState { was_resumed: true, .. }) if !said => {
                self.retreat(lease, "one of its programs did not answer");
            }
            // It has its room; its cards need only be seen.
            _ => self.set_move_due(row, at + limit),
        }
    }

    /// The driver did not say in time that it has a holder's processes: it may be about to. What it said before it was
    /// told proves nothing, and it says where they are when it is told otherwise.
    fn distrust_driver(&mut self, lease: LeaseId) {
        let voices = self.state.readings_mut(lease).map(|live| live.driver.values_mut());
        let silent = voices.into_iter().flatten().filter(|voice| voice.parked_bytes.is_none());
        silent.for_each(|voice| voice.is_unknown = true);
    }

    /// It comes due again then, or when its fixed term is over.
    fn set_move_due(&mut self, row: &Lease, at: Time) {
        let over = row
            .hold()
            .filter(|_| row.has_fixed_term())
            .map(|hold| self.state.rows().meta.due(hold.renewed, hold.until));
        self.state.set_due(row.id, Some(over.map_or(at, |over| over.min(at))));
    }

    /// A holder was parked as long as anything may be.
    pub(super) fn park_expired(&mut self, lease: &Lease, since: Time) {
        let term = match self.state.planted(Mutant::ExpireParked) {
            true => lease.request.term.span(),
            false => self.state.policy().parking.term,
        };
        let cards = lease.hold().map(|hold| hold.gpus.as_slice()).unwrap_or_default();
        let counted_from = self.state.parked_since(cards, since);
        if let Some(later) = self.later_due_time(since, counted_from + term) {
            return self.state.set_due(lease.id, Some(later));
        }
        self.end(lease.id, EndReason::ParkExpired);
    }

    /// What a parked holder has of each card when it comes back: what it had, or of a whole card what is
    /// left of it.
    fn resumed_vram(&self, lease: &Lease, hold: &Hold, fit: &Fit) -> Bytes {
        if lease.request.at_least.is_none() {
            return hold.vram;
        }
        (fit.vram + left_on_gpus(self.state, lease.id, hold)).min(hold.vram)
    }
}
