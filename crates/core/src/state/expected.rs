//! Some waiters are remembered with what was expected of them, so that it is learned how late they start.

use super::State;
use crate::model::ids::LeaseId;
use crate::model::lateness::ExpectedWait;
use crate::model::rows::Phase;
use crate::model::units::{Span, Time};
use crate::policy::expected_starts;

/// At most once in so long: what is expected takes up to a few milliseconds to find.
const EVERY: Span = Span::secs(2);

impl State {
    /// A request was admitted. If it has to wait, and none was remembered lately, it is.
    pub(crate) fn remember_expected(&mut self, lease: LeaseId, now: Time) {
        let waits = self.lease(lease).is_some_and(|row| matches!(row.phase, Phase::Waiting { .. }));
        if !waits || now < self.expectations_noted + EVERY {
            return;
        }
        self.expectations_noted = now;
        let Some(expected) = expected_starts::uncorrected(self, now).get(&lease).copied() else { return };
        if let Some(live) = self.readings.get_mut(&lease) {
            live.expected = Some(ExpectedWait { p50: expected.p50.since(now), p90: expected.p90.since(now) });
        }
    }
}
