//! The product in one function: what happened goes in, what is decided comes out.
//!
//! An action is applied the moment it is emitted, so the next step of the same
//! event already sees it. Volatile sightings are noted in the state directly.
//! Nothing here can fail: a request that cannot be met is answered with a
//! [`Refusal`], and the world's own events are always taken in.

mod admit;
mod aside;
mod calls;
mod enforce;
mod expectations;
mod offer;
mod overuse;
mod park;
mod park_unleased;
mod preempt;
mod readings;
mod renewal;
mod serve;
mod tokens;

use crate::model::action::Action;
use crate::model::event::{Caller, Event, EventAnswer, Refusal};
use crate::model::facts::{DaemonAction, DaemonEvent, LeaseAction, UnleasedAction};
use crate::model::ids::{Fence, LeaseId};
use crate::model::lateness::ExpectedWait;
use crate::model::mutant::Mutant;
use crate::model::rows::{EndReason, EndedLease, Lease, Phase};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::UnleasedEnd;
use crate::state::State;

use crate::model::settings::STALL;

/// At most so many leases come due in one event; the rest in the next one.
const DUE_AT_ONCE: usize = 1_024;

/// What came of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// For whoever caused it.
    pub answer: EventAnswer,
    /// What was decided, already applied, in order.
    pub actions: Vec<Action>,
    /// Leases that became history by it.
    pub past: Vec<EndedLease>,
}

/// So long after a day began it is another one, whatever the clock on the wall says: less than the
/// shortest day there is.
const ANOTHER_DAY: Span = Span::secs(20 * 3600);

/// Takes in one event.
pub fn decide(state: &mut State, now: Time, event: Event) -> Outcome {
    let mut turn = Decider { state, now, actions: Vec::new(), past: Vec::new() };
    turn.grant_grace_after_gap(&event);
    let started = matches!(event, Event::Daemon(DaemonEvent::Started { .. }));
    let answer = turn.take(event);
    if !started {
        turn.clear_asides();
    }
    turn.make_room();
    Outcome { answer, actions: turn.actions, past: turn.past }
}

/// One event being dealt with.
struct Decider<'a> {
    state: &'a mut State,
    now: Time,
    actions: Vec<Action>,
    past: Vec<EndedLease>,
}

impl Decider<'_> {
    /// Applies an action, and adds it to those decided. One that does not fit the rows is a mistake of core: it is
    /// counted, and dropped.
    fn emit(&mut self, action: impl Into<Action>) {
        let action = action.into();
        match self.state.apply(&action) {
            Ok(ended) => {
                self.past.extend(ended);
                self.actions.push(action);
            }
            Err(broken) => self.state.note_broken_invariant(broken),
        }
    }

    fn take(&mut self, event: Event) -> EventAnswer {
        match event {
            Event::Daemon(event) => self.on_daemon(event),
            Event::Gpu(event) => self.on_gpu(event),
            Event::Lease(event) => self.on_lease(event),
            Event::Token(event) => self.on_token(event),
            Event::Unleased(event) => self.on_unleased(event),
        }
    }

    fn on_daemon(&mut self, event: DaemonEvent) -> EventAnswer {
        match event {
            DaemonEvent::Started { boot, clock_offset_us, fence_floor, lease_floor } => {
                self.start(boot, clock_offset_us, (fence_floor, lease_floor));
            }
            DaemonEvent::Awoke => self.grace(),
            DaemonEvent::HostMemoryRead { available } => self.state.host_memory = available,
            DaemonEvent::DayRead { number } => self.begin_day(number),
            DaemonEvent::Configured(policy) => {
                self.state.configure(*policy);
                self.serve();
            }
            DaemonEvent::DiskFilled => self.state.disk_full = true,
            DaemonEvent::DiskFreed => {
                self.state.disk_full = false;
                self.serve();
            }
            DaemonEvent::LossFound(loss) => self.state.journal_loss = Some(loss),
            DaemonEvent::LossAccepted { by } => return self.accept_loss(&by),
            DaemonEvent::Ticked => {
                self.end_asides();
                self.handle_due_leases();
                self.serve();
            }
        }
        EventAnswer::Done
    }

    /// A daemon that was away must not blame its holders for it.
    fn grant_grace_after_gap(&mut self, event: &Event) {
        // A state that was just read from the disk has heard nothing: it was away.
        let away = self.state.last_event.is_none_or(|heard| self.now.since(heard) > STALL);
        self.state.last_event = Some(self.now);
        if away && !matches!(event, Event::Daemon(DaemonEvent::Started { .. })) {
            self.grace();
        }
    }

    fn grace(&mut self) {
        let rows = self.state.rows();
        let is_aside = rows.gpus.iter().any(|card| !card.aside.now.is_empty());
        let is_anybody_there = is_aside || !rows.leases.is_empty() || !rows.unleased.is_empty();
        if !self.state.planted(Mutant::NoGrace) && is_anybody_there {
            let until = self.now + self.state.policy().grace;
            self.emit(DaemonAction::GrantGrace { from: self.now, until });
        }
    }

    fn start(&mut self, boot: String, clock_offset_us: i64, (epoch_floor, lease_floor): (Fence, u64)) {
        let rebooted = !self.state.rows().meta.boot.is_empty() && self.state.rows().meta.boot != boot;
        self.emit(DaemonAction::Start { boot, clock_offset_us, fence_floor: epoch_floor, lease_floor });
        self.grace();
        if self.state.planted(Mutant::RestartParks) {
            let active = |row: &&Lease| matches!(row.phase, Phase::Active(_));
            let active: Vec<LeaseId> = self.state.rows().leases.values().filter(active).map(|l| l.id).collect();
            for lease in active {
                self.emit(LeaseAction::bare_park(lease, self.now, Bytes::ZERO));
            }
        }
        if rebooted || self.state.planted(Mutant::RestartEnds) {
            let held: Vec<LeaseId> =
                self.state.rows().leases.values().filter(|row| row.is_held()).map(|l| l.id).collect();
            for lease in held {
                self.end(lease, EndReason::HostRebooted);
            }
            self.forget_last_boot();
        }
        if rebooted {
            self.end_asides_of_last_boot();
            let strangers: Vec<_> = self.state.rows().unleased.keys().copied().collect();
            for stranger in strangers {
                self.emit(UnleasedAction::Close { id: stranger, at: self.now, how: UnleasedEnd::HostRebooted });
            }
        }
    }

    /// Days go on: a clock set back gives nobody its budget twice. One that was ahead and was set right
    /// does not take it away for ever either: after a day's length, it is another day.
    fn begin_day(&mut self, number: u32) {
        let day = self.state.rows().meta.day;
        let seen = *self.state.day_seen.get_or_insert(self.now);
        if number > day || (number < day && self.now.since(seen) >= ANOTHER_DAY) {
            self.state.day_seen = Some(self.now);
            self.emit(DaemonAction::BeginDay { number });
            self.serve();
        }
    }

    /// No byte on any card outlives a boot.
    fn forget_last_boot(&mut self) {
        let ending = |lease: &&Lease| matches!(lease.phase, Phase::Ending(..));
        let ending: Vec<LeaseId> = self.state.rows().leases.values().filter(ending).map(|l| l.id).collect();
        for lease in ending {
            self.emit(LeaseAction::Retire { lease, ran: None });
        }
    }

    fn end(&mut self, lease: LeaseId, reason: EndReason) {
        self.end_because(lease, reason, None);
    }

    /// The same with what is known of the cause.
    fn end_because(&mut self, lease: LeaseId, reason: EndReason, why: Option<String>) {
        let (reason, why) = match self.death_while_parking(lease, reason) {
            Some(death) => (EndReason::DiedParking, Some(death)),
            None => (reason, why),
        };
        let peak = self.state.readings(lease).and_then(|live| live.peak_bytes);
        let at = match self.state.lease(lease) {
            Some(row) if self.state.planted(Mutant::ChargeWait) => self.now + self.now.since(row.requested),
            _ => self.now,
        };
        let mark = self.state.lease(lease).and_then(|row| {
            let unused = row.hold()?.unused_payment(at);
            (unused > Span::ZERO).then(|| self.state.rows().tenants[row.tenant].debt_clock - unused)
        });
        let turn = self.state.lease(lease).is_some_and(|row| self.state.is_first(row)).then_some(self.now);
        let told = self.noted_expectation(lease);
        let granted = self.state.lease(lease).and_then(Lease::hold).is_some();
        let ran = granted.then(|| self.state.readings(lease).map(|live| live.program.clone()).unwrap_or_default());
        self.emit(LeaseAction::End {
            lease,
            reason,
            at,
            peak,
            debt_clock: mark,
            first_since: turn,
            why,
            program: ran,
            expected: told,
        });
        if self.state.planted(Mutant::BelieveRelease) && self.state.lease(lease).is_some() {
            self.emit(LeaseAction::Retire { lease, ran: None });
        }
    }

    /// What is known of the death of the last program of a lease, if it died while it was being parked: a wrapper gives
    /// the lease back after that, but nothing of it was done.
    fn death_while_parking(&self, lease: LeaseId, reason: EndReason) -> Option<String> {
        let is_away = self.state.lease(lease).is_some_and(|row| row.park_state().is_some());
        let live = self.state.readings(lease).filter(|live| is_away && live.shims.is_empty())?;
        let died = (reason.is_exit() && !self.state.planted(Mutant::ForgetDeath)).then_some(live.death.as_ref());
        died.flatten().map(|(_, why)| why.clone())
    }

    /// What was expected of a waiter when it asked, if that was remembered.
    fn noted_expectation(&self, lease: LeaseId) -> Option<ExpectedWait> {
        let waits = matches!(self.state.lease(lease)?.phase, Phase::Waiting { .. });
        self.state.readings(lease)?.expected.filter(|_| waits)
    }

    /// The lease, if the caller may know of it.
    fn find(&self, by: &Caller, lease: LeaseId) -> Result<&Lease, Refusal> {
        find(self.state, by, lease)
    }
}

/// The lease, if the caller may know of it: another tenant's is answered like none.
pub fn find<'a>(state: &'a State, by: &Caller, lease: LeaseId) -> Result<&'a Lease, Refusal> {
    let visible =
        |row: &&Lease| by.operator || state.tenant_name(row.tenant) == by.tenant || state.planted(Mutant::ShowOthers);
    state.lease(lease).filter(visible).ok_or(Refusal::NoSuchLease)
}

#[cfg(test)]
mod tests;
