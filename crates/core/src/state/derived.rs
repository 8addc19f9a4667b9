//! What is derived from the rows, and kept in step with them: taken out before an action changes the rows, and put in
//! after. The parts themselves are in `state/leases.rs` and beside it.

use super::State;
use crate::model::facts::{DaemonAction, GpuAction, LeaseAction, TenantAction, UnleasedAction};
use crate::model::rows::EndedLease;
use crate::model::units::Bytes;

impl State {
    pub(super) fn index_daemon_action(&mut self, action: &DaemonAction) {
        match action {
            DaemonAction::BeginDay { .. } => self.unskip_all(),
            DaemonAction::Start { .. } | DaemonAction::GrantGrace { .. } | DaemonAction::AcceptLoss { .. } => {}
        }
    }

    pub(super) fn index_gpu_action(&mut self, action: &GpuAction) {
        match action {
            GpuAction::SetFacts { gpu, facts } => self.index_gpu(*gpu, facts),
            GpuAction::EndAside { gpu, .. } => self.look_at_parked_on(*gpu),
            GpuAction::SetService { .. } | GpuAction::SetAside { .. } | GpuAction::SetMode { .. } => {}
        }
    }

    pub(super) fn index_tenant_action(&mut self, action: &TenantAction) {
        match action {
            TenantAction::Add { tenant, .. } => self.index_tenant(*tenant),
            TenantAction::SetGroups { .. } => self.recount(),
        }
    }

    pub(super) fn index_unleased_action(&mut self, action: &UnleasedAction) {
        match action {
            UnleasedAction::Add { process } => {
                self.unleased.by_process.insert(process.audit.process, process.id);
            }
            UnleasedAction::Close { id, .. } => {
                self.unleased.by_process.retain(|_, other| other != id);
                self.unleased.audits.remove(id);
            }
            UnleasedAction::SetAudit { .. }
            | UnleasedAction::Warn { .. }
            | UnleasedAction::Signal { .. }
            | UnleasedAction::RecordSignal { .. }
            | UnleasedAction::Park { .. }
            | UnleasedAction::RecordParkFailure { .. }
            | UnleasedAction::Spare { .. }
            | UnleasedAction::RecordSurvival { .. }
            | UnleasedAction::SetRule { .. }
            | UnleasedAction::RemoveRule { .. } => {}
        }
    }

    /// Takes out what is derived from the rows before the action.
    pub(super) fn unindex_lease_action(&mut self, action: &LeaseAction) {
        let lease = action.lease();
        match action {
            LeaseAction::Grant { .. } | LeaseAction::Resume { .. } => self.dequeue(lease),
            LeaseAction::End { .. } => {
                self.unindex_token(lease);
                self.dequeue(lease);
            }
            LeaseAction::Retire { .. } => self.vacate(lease),
            // A lease that ends while it is parked counts until its GPUs were read again, like any.
            LeaseAction::FinishPark { .. } | LeaseAction::Enlarge { .. } => self.subtract_load(lease),
            _ => {}
        }
    }

    /// Adds what is derived from the rows after the action. `booked` is the host memory that it added to the lease's.
    pub(super) fn index_lease_action(&mut self, action: &LeaseAction, ended: Option<&EndedLease>, booked: Bytes) {
        let lease = action.lease();
        match action {
            LeaseAction::Queue { root, .. } => self.index_request(lease, *root),
            LeaseAction::Grant { .. } => self.index_grant(lease),
            LeaseAction::Renew { .. } => {
                self.clear_busy(lease);
                self.update_ends_and_due(lease);
            }
            LeaseAction::Bind { process, .. } => self.add_member(lease, *process),
            LeaseAction::FlagOveruse { .. } | LeaseAction::RecordDeath { .. } | LeaseAction::KeepContexts { .. } => {}
            LeaseAction::ClearOveruse { .. } => self.forget_overuse(lease),
            LeaseAction::Enlarge { .. } => {
                self.add_load(lease);
                self.update_reserved(lease);
                self.update_ends(lease);
                self.forget_overuse(lease);
            }
            // The last reading of the host's memory is from before the driver takes what is left.
            LeaseAction::RemoveContexts { .. } => self.take_host_memory(booked),
            LeaseAction::Park { .. } | LeaseAction::Unpark { .. } | LeaseAction::ParkAgain { .. } => {
                self.begin_move(lease);
                self.forget_overuse(lease);
                if matches!(action, LeaseAction::Park { .. }) {
                    self.plant_leaving_is_gone(lease);
                }
            }
            LeaseAction::FinishPark { .. } => self.index_parked(lease),
            LeaseAction::QueueParked { .. } => self.enqueue(lease),
            LeaseAction::Resume { at, .. } => self.index_resume(lease, *at),
            LeaseAction::FinishResume { .. } => self.finish_move(lease),
            LeaseAction::End { .. } => self.index_end(lease, ended),
            LeaseAction::Retire { .. } => self.drop_readings(lease),
            LeaseAction::GiveNotice { .. } | LeaseAction::CancelNotice { .. } => self.update_ends_and_due(lease),
            LeaseAction::Signal { .. } => self.note_signal_decided(lease),
        }
        self.set_movable(lease);
    }
}
