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
mod offer;
mod overuse;
mod park;
mod park_unleased;
mod preempt;
mod readings;
mod renewal;
mod serve;
mod tokens;

use crate::action::Action;
use crate::event::{Caller, Event, EventAnswer, Refusal};
use crate::ids::{Fence, LeaseId};
use crate::lateness::ExpectedWait;
use crate::mutant::Mutant;
use crate::rows::{EndReason, EndedLease, Lease, Phase};
use crate::state::State;
use crate::units::{Bytes, Span, Time};
use crate::unleased::UnleasedEnd;

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
    let started = matches!(event, Event::Started { .. });
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
    fn emit(&mut self, action: Action) {
        self.past.extend(self.state.apply(&action));
        self.actions.push(action);
    }

    fn take(&mut self, event: Event) -> EventAnswer {
        match event {
            Event::Started { boot, clock_offset_us, epoch_floor, lease_floor } => {
                self.start(boot, clock_offset_us, (epoch_floor, lease_floor));
            }
            Event::Awoke => self.grace(),
            Event::Asked { by, ask, wait, root } => {
                let answer = self.admit(&by, ask, wait, root);
                if let EventAnswer::Lease(lease) = answer {
                    self.state.remember_expected(lease, self.now);
                }
                return answer;
            }
            Event::Renewed { by, lease, epoch } => return self.renew(&by, lease, epoch),
            Event::Bound { by, lease, epoch, process } => return self.bind(&by, lease, epoch, process),
            Event::Released { by, lease, epoch } => return self.release(&by, lease, epoch),
            Event::Drained { by, card } => return self.drain(&by, &card),
            Event::Cleared { by, card } => return self.clear(&by, &card),
            Event::AsideAsked { by, card, ask } => return self.aside_asked(&by, &card, ask),
            Event::AsideEndAsked { by, card, key } => return self.aside_end_asked(&by, &card, key.as_deref()),
            Event::ParkAsked { by, lease } => return self.park_asked(&by, lease),
            Event::ResumeAsked { by, lease } => return self.resume_asked(&by, lease),
            Event::Said { lease, rung, process, said } => {
                self.take_report(lease, rung, process, said);
                self.note_keeping_still(lease);
            }
            Event::Hinted { lease, hint } => self.take_hint(lease, hint),
            Event::Hooked { by, lease, epoch, said } => return self.hook_reported(&by, lease, epoch, said),
            Event::Runs { lease, program } => self.state.set_program(lease, program),
            Event::Ram { available } => self.state.host_memory = available,
            Event::TokenAsked { by, ask, wall_us } => return self.issue(&by, *ask, wall_us),
            Event::TokenRevoked { by, token, wall_us } => return self.revoke(&by, token, wall_us),
            Event::Audited { audit, tree } => self.audited(*audit, tree),
            Event::Left { process } => self.unleased_exited(process),
            Event::Signalled { lease, signal } => self.signalled(lease, signal),
            Event::Struck { stranger, signal, of, outcome } => self.note_signal_outcome(stranger, signal, of, outcome),
            Event::SelfTested { can } => {
                self.state.unleased_readings_mut().self_test = Some(can);
                self.state.unleased_readings_mut().self_tests += 1;
                self.reconcile();
            }
            Event::AdoptAsked { by, process, vram, tier } => return self.adopt_asked(&by, process, vram, tier),
            Event::ModeAsked { by, card, mode } => return self.mode_asked(&by, &card, mode),
            Event::RuleAsked { by, who, treat } => return self.rule_asked(&by, who, treat),
            Event::RuleDropped { by, rule } => return self.rule_dropped(&by, rule),
            Event::Listed(cards) => self.list_gpus(cards),
            Event::Observed { card, observation } => self.take_reading(&card, observation),
            Event::Members { lease, processes, restricted } => {
                // Of who waits another lease may have the wrapper.
                let held = self.state.lease(lease).filter(|row| row.hold().is_some());
                let wrapper = held.and_then(|row| row.roots.first());
                let is_there = wrapper.is_none_or(|wrapper| processes.contains(wrapper));
                self.state.set_members(lease, processes, restricted);
                self.note_keeping_still(lease);
                if !is_there {
                    self.lose_hook(lease);
                }
            }
            Event::Worked { lease } => self.note_busy(lease),
            Event::Rested { lease, idle } => self.state.set_idle(lease, idle, self.now),
            Event::Gone { lease } => self.holder_exited(lease),
            Event::Accepted { by, lease, vram, gpus } => return self.accept(&by, lease, vram, gpus),
            Event::Day { number } => self.begin_day(number),
            Event::Configured(policy) => {
                self.state.configure(*policy);
                self.serve();
            }
            Event::DiskFilled => self.state.disk_full = true,
            Event::DiskFreed => {
                self.state.disk_full = false;
                self.serve();
            }
            Event::LossFound(loss) => self.state.journal_loss = Some(loss),
            Event::LossAccepted { by } => return self.accept_loss(&by),
            Event::Ticked => {
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
        if away && !matches!(event, Event::Started { .. }) {
            self.grace();
        }
    }

    fn grace(&mut self) {
        let rows = self.state.rows();
        let is_aside = rows.gpus.iter().any(|card| !card.aside.now.is_empty());
        let is_anybody_there = is_aside || !rows.leases.is_empty() || !rows.unleased.is_empty();
        if !self.state.planted(Mutant::NoGrace) && is_anybody_there {
            let until = self.now + self.state.policy().grace;
            self.emit(Action::Grace { from: self.now, until });
        }
    }

    fn start(&mut self, boot: String, clock_offset_us: i64, (epoch_floor, lease_floor): (Fence, u64)) {
        let rebooted = !self.state.rows().meta.boot.is_empty() && self.state.rows().meta.boot != boot;
        self.emit(Action::Start { boot, clock_offset_us, epoch_floor, lease_floor });
        self.grace();
        if self.state.planted(Mutant::RestartParks) {
            let active = |row: &&Lease| matches!(row.phase, Phase::Active(_));
            let active: Vec<LeaseId> = self.state.rows().leases.values().filter(active).map(|l| l.id).collect();
            for lease in active {
                self.emit(Action::bare_park(lease, self.now, Bytes::ZERO));
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
                self.emit(Action::Close { stranger, at: self.now, how: UnleasedEnd::HostRebooted });
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
            self.emit(Action::Day { number });
            self.serve();
        }
    }

    /// No byte on any card outlives a boot.
    fn forget_last_boot(&mut self) {
        let ending = |lease: &&Lease| matches!(lease.phase, Phase::Ending(..));
        let ending: Vec<LeaseId> = self.state.rows().leases.values().filter(ending).map(|l| l.id).collect();
        for lease in ending {
            self.emit(Action::Retire { lease, ran: None });
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
            (unused > Span::ZERO).then(|| self.state.rows().tenants[row.tenant.0 as usize].debt_clock - unused)
        });
        let turn = self.state.lease(lease).is_some_and(|row| self.state.is_first(row)).then_some(self.now);
        let told = self.noted_expectation(lease);
        let granted = self.state.lease(lease).and_then(Lease::hold).is_some();
        let ran = granted.then(|| self.state.readings(lease).map(|live| live.program.clone()).unwrap_or_default());
        self.emit(Action::End { lease, reason, at, peak, mark, turn, why, ran, told });
        if self.state.planted(Mutant::BelieveRelease) && self.state.lease(lease).is_some() {
            self.emit(Action::Retire { lease, ran: None });
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
