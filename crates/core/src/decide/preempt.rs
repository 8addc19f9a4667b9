//! Makes room for waiters: leases are parked or ended for them as [`crate::policy::room_plan`] says.
//!
//! Absent: which leases leave, and whether that is worth its price.

use super::Decider;
use super::park::{ParkCause, ParkOrder};
use crate::model::facts::LeaseAction;
use crate::model::ids::LeaseId;
use crate::model::method::Method;
use crate::model::mutant::Mutant;
use crate::model::rows::{EndReason, GpuService, Hold, Lease, LeaseEnd, Phase};
use crate::model::signals::{KILL, TERM};
use crate::model::units::{Span, Time};
use crate::policy::lease_processes::{processes_of_other_users, signal_targets};
use crate::policy::preemption::PreemptionOption;
use crate::policy::room_plan::{RoomPlan, room_plans};
use crate::policy::waiters::is_wanted;
use crate::policy::{overuse, parking};
use crate::state::lease_readings::SignalState;

impl Decider<'_> {
    /// Makes room for whoever waits, as far as it can be made and is worth it.
    pub(super) fn make_room(&mut self) {
        let off = !self.state.policy().parking.preempt;
        if off || self.state.queue().is_empty() || self.state.is_stopped() || self.state.movable().next().is_none() {
            return;
        }
        if self.state.is_plan_due(self.now) {
            self.plan_now();
        }
    }

    /// The same whenever it was last reckoned.
    pub(super) fn plan_now(&mut self) {
        if !self.state.policy().parking.preempt || self.state.is_stopped() {
            return;
        }
        self.state.set_planned(self.now);
        for (waiter, making) in room_plans(self.state, self.now) {
            if let RoomPlan::Plan { victims, .. } = making {
                victims.into_iter().for_each(|(lease, prospect)| self.preempt(lease, &prospect, waiter));
            }
        }
    }

    fn preempt(&mut self, lease: LeaseId, prospect: &PreemptionOption, waiter: LeaseId) {
        if self.state.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Parked(..))) {
            return self.take_contexts(lease);
        }
        if prospect.method == Method::End {
            let hold = self.state.lease(lease).and_then(Lease::hold);
            if hold.is_some_and(|hold| parking::gpu_with_other_move(self.state, lease, hold).is_some()) {
                // Whose bytes went nobody could tell: it is asked once the others have left.
                return;
            }
            let before = self.state.lease(lease).and_then(|row| row.request.notice).map(|notice| notice.before);
            let until = self.now + before.unwrap_or(Span::ZERO);
            self.emit(LeaseAction::GiveNotice { lease, at: self.now, until, room_for: waiter });
            if before.is_none() {
                self.end_for_others(lease);
            }
            return;
        }
        // What stood in the way meanwhile is seen with the next plan.
        let cause = if prospect.idle { ParkCause::Idle } else { ParkCause::Busy };
        let (method, room_for, with_context) = (prospect.method, Some(waiter), prospect.with_context);
        let order = ParkOrder { method, cause, room_for, aside: None, with_context };
        let _ = self.park_by(lease, order);
    }

    /// The notice of a holder is over: it ends, unless nobody needs its cards any more.
    pub(super) fn notice_over(&mut self, row: &Lease, hold: &Hold) {
        let wanted = is_wanted(self.state, row, &hold.gpus);
        let may_stay = !row.request.may_be_ended() && !overuse::is_to_end(self.state, row, hold, self.now);
        if (!wanted || may_stay) && !self.state.planted(Mutant::SpareNobody) {
            return self.emit(LeaseAction::CancelNotice { lease: row.id });
        }
        self.end_for_others(row.id);
    }

    fn end_for_others(&mut self, lease: LeaseId) {
        let chose = self.state.lease(lease).is_some_and(|row| row.request.may_be_ended());
        let unchosen = self.state.planted(Mutant::EndUnchosen);
        self.end(lease, if chose || unchosen { EndReason::Preempted } else { EndReason::OverUse });
        self.signal_ended(lease);
    }

    pub(super) fn has_signal_targets(&self, lease: LeaseId) -> bool {
        let Some(row) = self.state.lease(lease) else { return false };
        let unknown = !row.roots.is_empty() && self.state.readings(lease).is_some_and(|live| !live.members_known);
        unknown || !signal_targets(self.state, row).is_empty()
    }

    /// The processes of a lease that was ended for others get their next signal.
    pub(super) fn signal_ended(&mut self, lease: LeaseId) {
        let Some(row) = self.state.lease(lease) else { return };
        let Phase::Ending(hold, LeaseEnd { signal, .. }) = &row.phase else { return };
        let (processes, cards) = (signal_targets(self.state, row), hold.gpus.clone());
        if processes.is_empty() {
            // After a start it must be heard first who is there; and a wrapper counts once it was seen on a card.
            return self.state.set_due(lease, Some(self.now + Span::secs(1)));
        }
        let sent = self.state.readings(lease).and_then(|live| live.last_signal);
        let sent = sent
            .map(|sent| if self.state.planted(Mutant::GraceFromRecord) { SignalState::Sent(Time::ZERO) } else { sent });
        let grace = self.state.policy().parking.grace;
        let signal = match (signal, sent) {
            (None, _) if self.state.planted(Mutant::KillAtOnce) => KILL,
            (None, _) => TERM,
            // A daemon that is gone may not have come to send it.
            (Some((last, _)), None) => *last,
            // A slow disk still has it, and the grace begins when it is gone.
            (Some(_), Some(SignalState::Pending)) => return self.state.set_due(lease, Some(self.now + Span::secs(1))),
            (Some(_), Some(SignalState::Sent(at))) if at + grace > self.now => {
                return self.state.set_due(lease, Some(at + grace));
            }
            (Some((TERM, _)), Some(SignalState::Sent(_))) => KILL,
            // It survived: what it has may stay there for ever.
            (Some(_), Some(SignalState::Sent(_))) => {
                let why = format!("a process of {lease} survived SIGKILL and still has memory there");
                cards.into_iter().for_each(|card| self.set_gpu_service(card, GpuService::Out { why: why.clone() }));
                return self.state.set_due(lease, None);
            }
        };
        let left_out = processes_of_other_users(self.state, lease).map(|(process, _)| process).collect();
        self.emit(LeaseAction::Signal { lease, signal, at: self.now, processes, left_out });
    }

    /// A signal to the processes of a lease has left: from now on they have their time.
    pub(super) fn signalled(&mut self, lease: LeaseId, signal: u8) {
        let Some(Phase::Ending(_, LeaseEnd { signal: Some((last, _)), .. })) =
            self.state.lease(lease).map(|row| &row.phase)
        else {
            return;
        };
        if *last == signal {
            self.state.note_signal_sent(lease, self.now);
        }
    }
}
