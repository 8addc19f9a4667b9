//! A request that may not wait and cannot start now leaves nothing behind: no row, no history, no number.

use super::State;
use crate::action::Action;
use crate::ids::LeaseId;
use crate::rows::Reason;
use crate::units::Time;

impl State {
    /// Takes back the last [`Action::Queue`], of a request that still waits: the rows are as if it had never been made.
    pub(crate) fn withdraw(&mut self, lease: LeaseId, now: Time) {
        let (reason, at, peak, mark, turn) = (Reason::WaitOver, now, None, None, None);
        self.apply(&Action::End { lease, reason, at, peak, mark, turn, why: None, ran: None, told: None });
        self.rows.meta.next_lease = lease.0;
    }
}
