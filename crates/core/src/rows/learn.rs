//! What the end of a lease teaches.

use super::{EndReason, Rows};
use crate::durations::{DurationOutcome, LeaseKind};
use crate::ids::LeaseId;
use crate::units::Time;

impl Rows {
    /// A lease that was granted ends: its time on its GPUs counts for those of its kind.
    pub(super) fn learn_duration(&mut self, lease: LeaseId, program: &str, reason: EndReason, at: Time) {
        let Some(row) = self.leases.get(&lease) else { return };
        let Some(hold) = row.hold().filter(|_| row.is_held()) else { return };
        let kind = LeaseKind::new(row.first_request().tier, hold.vram, hold.gpus.len());
        let outcome = if reason.is_completed() { DurationOutcome::Done } else { DurationOutcome::Cut };
        self.tenants[row.tenant.0 as usize].durations.learn(program, kind, hold.time_on_gpus(at), outcome, at);
    }
}
