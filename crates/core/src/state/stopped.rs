//! Whether grants are stopped: the disk is full, or lines of the journal are missing.

use crate::model::event::Refusal;
use crate::model::mutant::Mutant;
use crate::state::State;

impl State {
    /// Why nothing is granted, if that is so: the disk is full, or a loss was not accepted yet.
    pub fn stopped(&self) -> Option<Refusal> {
        if self.disk_full {
            return Some(Refusal::DiskFull);
        }
        let is_ignored = self.planted(Mutant::GrantAfterLoss);
        self.journal_loss.filter(|_| !is_ignored).map(Refusal::LossNotAccepted)
    }

    /// Whether nothing is granted.
    pub fn is_stopped(&self) -> bool {
        self.stopped().is_some()
    }
}
