//! A request that may not wait and cannot start now leaves nothing behind: no row, no history, no number.

use super::State;
use crate::action::Action;
use crate::ids::{LeaseId, ProcKey};
use crate::rows::EndReason;
use crate::units::Time;

impl State {
    /// Takes back the last [`Action::Queue`], of a request that still waits: the rows are as if it had never been made,
    /// and its process belongs to the lease again that it was `bound` to before.
    pub(crate) fn withdraw(&mut self, lease: LeaseId, now: Time, bound: Option<(ProcKey, LeaseId)>) {
        let (reason, at, peak, mark, turn) = (EndReason::WaitOver, now, None, None, None);
        self.apply(&Action::End { lease, reason, at, peak, mark, turn, why: None, ran: None, told: None });
        self.rows.meta.next_lease = lease.0;
        if let Some((process, before)) = bound.filter(|(process, _)| self.owner(process).is_none()) {
            self.restore_member(before, process);
        }
    }
}
