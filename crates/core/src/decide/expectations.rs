//! Some waiters are remembered with what was expected of them, so that it is learned how late they start.

use super::Decider;
use crate::model::ids::LeaseId;
use crate::model::lateness::ExpectedWait;
use crate::model::rows::Phase;
use crate::model::units::Span;
use crate::policy::expected_starts;

/// At most once in this time: to find what is expected takes up to a few milliseconds.
const EVERY: Span = Span::secs(2);

impl Decider<'_> {
    /// A request was admitted. If it has to wait, and none was remembered lately, it is.
    pub(super) fn remember_expected(&mut self, lease: LeaseId) {
        let now = self.now;
        let waits = self.state.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Waiting { .. }));
        if !waits || now < self.state.expectations_noted + EVERY {
            return;
        }
        self.state.expectations_noted = now;
        let Some(expected) = expected_starts::uncorrected(self.state, now).get(&lease).copied() else { return };
        if let Some(readings) = self.state.readings_mut(lease) {
            readings.expected = Some(ExpectedWait { p50: expected.p50.since(now), p90: expected.p90.since(now) });
        }
    }
}
