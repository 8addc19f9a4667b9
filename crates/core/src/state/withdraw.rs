//! A request that may not wait and cannot start now leaves nothing behind: no row, no history, no number.

use super::State;
use crate::model::facts::LeaseAction;
use crate::model::ids::{LeaseId, ProcKey};
use crate::model::rows::EndReason;
use crate::model::units::Time;

impl State {
    /// Takes back the last [`LeaseAction::Queue`], of a request that still waits: the rows are as if it had never been made,
    /// and its process belongs to the lease again that it was `bound` to before.
    pub(crate) fn withdraw(&mut self, lease: LeaseId, now: Time, bound: Option<(ProcKey, LeaseId)>) {
        let end = LeaseAction::End {
            lease,
            reason: EndReason::WaitOver,
            at: now,
            peak: None,
            debt_clock: None,
            first_since: None,
            why: None,
            program: None,
            expected: None,
        };
        if let Err(broken) = self.apply(&end.into()) {
            self.note_broken_invariant(broken);
        }
        self.rows.meta.next_lease = lease.0;
        if let Some((process, before)) = bound.filter(|(process, _)| self.owner(process).is_none()) {
            self.restore_member(before, process);
        }
    }
}
