//! What the end of a lease teaches.

use super::{Reason, Rows};
use crate::durations::{Kind, Outcome};
use crate::ids::LeaseId;
use crate::units::Time;

impl Rows {
    /// A lease that was granted ends: its time on its GPUs counts for those of its kind.
    pub(super) fn learn_duration(&mut self, lease: LeaseId, program: &str, reason: Reason, at: Time) {
        let Some(row) = self.leases.get(&lease) else { return };
        let Some(hold) = row.hold().filter(|_| row.is_held()) else { return };
        let kind = Kind::new(row.first_ask().tier, hold.vram, hold.cards.len());
        let outcome = if reason.is_done() { Outcome::Done } else { Outcome::Cut };
        self.tenants[row.tenant.0 as usize].durations.learn(program, kind, hold.lasted(at), outcome, at);
    }
}
