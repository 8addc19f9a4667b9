//! What holders and operators say: renew, bind, release, drain, clear.

use super::Decider;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::{DaemonAction, GpuAction, LeaseAction, LeaseEvent};
use crate::model::ids::{Fence, GpuId, LeaseId, ProcKey};
use crate::model::mutant::Mutant;
use crate::model::restrictions::Restrictions;
use crate::model::rows::{EndReason, GpuService, Hold, Lease, Phase};

/// Processes one lease may be bound to by name; their descendants need no binding.
const ROOTS_MAX: usize = 1_024;

impl Decider<'_> {
    pub(super) fn on_lease(&mut self, event: LeaseEvent) -> EventAnswer {
        match event {
            LeaseEvent::Requested { by, request, wait, root } => {
                let answer = self.admit(&by, request, wait, root);
                if let EventAnswer::Lease(lease) = answer {
                    self.remember_expected(lease);
                }
                answer
            }
            LeaseEvent::RenewalRequested { by, lease, fence } => self.renew(&by, lease, fence),
            LeaseEvent::BindRequested { by, lease, fence, process } => self.bind(&by, lease, fence, process),
            LeaseEvent::ReleaseRequested { by, lease, fence } => self.release(&by, lease, fence),
            LeaseEvent::OfferAccepted { by, lease, vram, gpus } => self.accept(&by, lease, vram, gpus),
            LeaseEvent::ParkRequested { by, lease } => self.park_asked(&by, lease),
            LeaseEvent::ResumeRequested { by, lease } => self.resume_asked(&by, lease),
            LeaseEvent::HookReported { by, lease, fence, report } => self.hook_reported(&by, lease, fence, report),
            seen => {
                self.on_lease_seen(seen);
                EventAnswer::Done
            }
        }
    }

    /// What was seen of a lease: no caller waits for an answer.
    fn on_lease_seen(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::MoverReported { lease, method, process, report } => {
                self.take_report(lease, method, process, report);
                self.note_keeping_still(lease);
            }
            LeaseEvent::MembersRead { lease, processes, restricted } => {
                self.take_members(lease, processes, restricted);
            }
            LeaseEvent::Hinted { lease, hint } => self.take_hint(lease, hint),
            LeaseEvent::ProgramRead { lease, program } => self.state.set_program(lease, program),
            LeaseEvent::UseSeen { lease } => self.note_busy(lease),
            LeaseEvent::IdleSeen { lease, idle } => self.state.set_idle(lease, idle, self.now),
            LeaseEvent::HolderExited { lease } => self.holder_exited(lease),
            LeaseEvent::SignalSent { lease, signal } => self.signalled(lease, signal),
            LeaseEvent::Requested { .. }
            | LeaseEvent::RenewalRequested { .. }
            | LeaseEvent::BindRequested { .. }
            | LeaseEvent::ReleaseRequested { .. }
            | LeaseEvent::OfferAccepted { .. }
            | LeaseEvent::ParkRequested { .. }
            | LeaseEvent::ResumeRequested { .. }
            | LeaseEvent::HookReported { .. } => {}
        }
    }

    fn take_members(&mut self, lease: LeaseId, processes: Vec<ProcKey>, restricted: Restrictions) {
        // Another lease may have the wrapper of a waiter.
        let held = self.state.lease(lease).filter(|row| row.hold().is_some());
        let wrapper = held.and_then(|row| row.roots.first());
        let is_there = wrapper.is_none_or(|wrapper| processes.contains(wrapper));
        self.state.set_members(lease, processes, restricted);
        self.note_keeping_still(lease);
        if !is_there {
            self.lose_hook(lease);
        }
    }

    /// A holder's word renews only a lease that no process is bound to: of the
    /// others it is seen whether they work.
    pub(super) fn renew(&mut self, by: &Caller, lease: LeaseId, epoch: Fence) -> EventAnswer {
        let (row, hold) = match self.held_by(by, lease, epoch) {
            Ok(held) => held,
            Err(refusal) => return EventAnswer::Refused(refusal),
        };
        if row.roots.is_empty() && !row.has_fixed_term() && matches!(row.phase, Phase::Active(_)) {
            self.renew_lease(&row, &hold);
        }
        EventAnswer::Lease(lease)
    }

    pub(super) fn bind(&mut self, by: &Caller, lease: LeaseId, epoch: Fence, process: ProcKey) -> EventAnswer {
        let (row, _) = match self.held_by(by, lease, epoch) {
            Ok(held) => held,
            Err(refusal) => return EventAnswer::Refused(refusal),
        };
        if row.roots.contains(&process) {
            return EventAnswer::Lease(lease);
        }
        if row.roots.len() >= ROOTS_MAX {
            return EventAnswer::Refused(Refusal::TooManyProcesses);
        }
        if let Some(owner) = self.moving_owner(lease, &process) {
            let known = self.find(by, owner).is_ok().then_some(owner);
            return EventAnswer::Refused(Refusal::ProcessAway(known));
        }
        self.emit(LeaseAction::Bind { lease, process });
        EventAnswer::Lease(lease)
    }

    /// Another lease that has a process, and is off its cards or on its way. Whoever took it off them brings it back for
    /// that lease: no other would ask for it.
    fn moving_owner(&self, lease: LeaseId, process: &ProcKey) -> Option<LeaseId> {
        let owner = self.state.owner(process);
        // After a start nobody has said yet whose it is.
        let has = |row: &Lease| owner.map_or_else(|| row.roots.contains(process), |owner| owner == row.id);
        let is_away = |row: &&Lease| row.park_state().is_some_and(|away| has(row) || away.is_moved_by_driver(process));
        let mut others = self.state.rows().leases.values().filter(|row| row.id != lease);
        others.find(is_away).filter(|_| !self.state.planted(Mutant::BindAway)).map(|row| row.id)
    }

    pub(super) fn release(&mut self, by: &Caller, lease: LeaseId, epoch: Option<Fence>) -> EventAnswer {
        let row = match self.find(by, lease) {
            Ok(row) => row,
            Err(refusal) => return EventAnswer::Refused(refusal),
        };
        let own = self.state.tenant_name(row.tenant) == by.tenant;
        let reason = if own { EndReason::Released } else { EndReason::Revoked };
        match &row.phase {
            Phase::Active(hold) | Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _) => {
                if let Some(refusal) = epoch.and_then(|epoch| self.check_fence(hold, epoch)) {
                    return EventAnswer::Refused(refusal);
                }
                let queued = row.queued_since().is_some();
                self.end(lease, reason);
                if queued {
                    self.serve();
                }
            }
            Phase::Waiting { .. } => {
                self.end(lease, reason);
                self.serve();
            }
            // Said twice: the first time counted.
            Phase::Ending(..) => {}
        }
        EventAnswer::Lease(lease)
    }

    pub(super) fn held_by(&self, by: &Caller, lease: LeaseId, epoch: Fence) -> Result<(Lease, Hold), Refusal> {
        let row = self.find(by, lease)?;
        match &row.phase {
            Phase::Waiting { .. } => Err(Refusal::StillWaiting),
            Phase::Ending(..) => Err(Refusal::Ended),
            Phase::Active(hold) | Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _) => {
                match self.check_fence(hold, epoch) {
                    Some(refusal) => Err(refusal),
                    None => Ok((row.clone(), hold.clone())),
                }
            }
        }
    }

    fn check_fence(&self, hold: &Hold, given: Fence) -> Option<Refusal> {
        let old = given != hold.fence && !self.state.planted(Mutant::AcceptOldEpoch);
        old.then_some(Refusal::Fenced { given, current: hold.fence })
    }

    pub(super) fn holder_exited(&mut self, lease: LeaseId) {
        self.state.set_members(lease, Vec::new(), Restrictions::new());
        let Some(row) = self.state.lease(lease).filter(|row| !matches!(row.phase, Phase::Ending(..))) else { return };
        let queued = row.queued_since().is_some();
        self.end(lease, EndReason::HolderExited);
        if queued {
            self.serve();
        }
    }

    /// An operator accepts that lines are missing: leases are granted again.
    pub(super) fn accept_loss(&mut self, by: &Caller) -> EventAnswer {
        if !by.operator {
            return EventAnswer::Refused(Refusal::NotOperator);
        }
        let Some(loss) = self.state.journal_loss else { return EventAnswer::Refused(Refusal::NoLoss) };
        self.emit(DaemonAction::AcceptLoss { loss });
        self.state.journal_loss = None;
        self.serve();
        EventAnswer::LossAccepted(loss)
    }

    pub(super) fn drain(&mut self, by: &Caller, uuid: &str) -> EventAnswer {
        self.set_service(by, uuid, GpuService::Draining)
    }

    pub(super) fn clear(&mut self, by: &Caller, uuid: &str) -> EventAnswer {
        let answer = self.set_service(by, uuid, GpuService::In);
        if answer != EventAnswer::Done {
            return answer;
        }
        // A card that is gone cannot be seen again: the operator's word is all there is.
        if let Some(card) = self.state.gpu(uuid).filter(|card| !self.state.is_listed(*card)) {
            self.retire_ended(card, self.now);
        }
        self.serve();
        answer
    }

    fn set_service(&mut self, by: &Caller, uuid: &str, service: GpuService) -> EventAnswer {
        if !by.operator {
            return EventAnswer::Refused(Refusal::NotOperator);
        }
        let Some(card) = self.state.gpu(uuid) else {
            return EventAnswer::Refused(Refusal::NoSuchCard);
        };
        self.set_gpu_service(card, service);
        EventAnswer::Done
    }

    pub(super) fn set_gpu_service(&mut self, card: GpuId, service: GpuService) {
        if self.state.rows().gpus[card].service != service {
            self.emit(GpuAction::SetService { gpu: card, service });
        }
    }
}
