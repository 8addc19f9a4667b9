//! What is derived from the rows of leases, and kept in step with them: taken out before an action changes the rows, and
//! put in after.

use super::LeaseAction;
use crate::rows::EndedLease;
use crate::state::State;
use crate::units::Bytes;

impl LeaseAction {
    /// Takes out what is derived from the rows before it.
    pub(crate) fn unindex(&self, state: &mut State) {
        let lease = self.lease();
        match self {
            LeaseAction::Grant { .. } | LeaseAction::Resume { .. } => state.dequeue(lease),
            LeaseAction::End { .. } => {
                state.unindex_token(lease);
                state.dequeue(lease);
            }
            LeaseAction::Retire { .. } => state.vacate(lease),
            // A lease that ends while it is parked counts until its GPUs were read again, like any.
            LeaseAction::FinishPark { .. } | LeaseAction::Enlarge { .. } => state.subtract_load(lease),
            _ => {}
        }
    }

    /// Adds what is derived from the rows after it. `booked` is the host memory that it added to the lease's.
    pub(crate) fn index(&self, state: &mut State, ended: Option<&EndedLease>, booked: Bytes) {
        let lease = self.lease();
        match self {
            LeaseAction::Queue { root, .. } => state.index_request(lease, *root),
            LeaseAction::Grant { .. } => state.index_grant(lease),
            LeaseAction::Renew { .. } => {
                state.clear_busy(lease);
                state.update_ends_and_due(lease);
            }
            LeaseAction::Bind { process, .. } => state.add_member(lease, *process),
            LeaseAction::FlagOveruse { .. } | LeaseAction::RecordDeath { .. } => {}
            LeaseAction::ClearOveruse { .. } => state.forget_overuse(lease),
            LeaseAction::Enlarge { .. } => {
                state.add_load(lease);
                state.update_reserved(lease);
                state.update_ends(lease);
                state.forget_overuse(lease);
            }
            // The last reading of the host's memory is from before the driver takes what is left.
            LeaseAction::RemoveContexts { .. } => state.take_host_memory(booked),
            LeaseAction::KeepContexts { .. } => {}
            LeaseAction::Park { .. } | LeaseAction::Unpark { .. } | LeaseAction::ParkAgain { .. } => {
                state.begin_move(lease);
                state.forget_overuse(lease);
                if matches!(self, LeaseAction::Park { .. }) {
                    state.plant_leaving_is_gone(lease);
                }
            }
            LeaseAction::FinishPark { .. } => state.index_parked(lease),
            LeaseAction::QueueParked { .. } => state.enqueue(lease),
            LeaseAction::Resume { at, .. } => state.index_resume(lease, *at),
            LeaseAction::FinishResume { .. } => state.finish_move(lease),
            LeaseAction::End { .. } => state.index_end(lease, ended),
            LeaseAction::Retire { .. } => state.drop_readings(lease),
            LeaseAction::GiveNotice { .. } | LeaseAction::CancelNotice { .. } => state.update_ends_and_due(lease),
            LeaseAction::Signal { .. } => state.note_signal_decided(lease),
        }
        state.set_movable(lease);
    }
}
