//! Leases that could be made to leave their GPUs, those that come back, and when room is planned next.

use super::State;
use crate::model::ids::LeaseId;
use crate::model::method::Method;
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Span, Time};
use crate::state::lease_readings::LeaseReadings;

/// Room is planned this often while no event comes …
const AGAIN: Span = Span::millis(200);
/// … and at most this often, however many come.
const SOON: Span = Span::millis(20);

impl State {
    /// Updates the sets of leases that follow from this lease's row and movers.
    pub(crate) fn set_movable(&mut self, lease: LeaseId) {
        let row = self.rows.leases.get(&lease);
        let has_mover =
            |readings: &LeaseReadings| Method::REVERSIBLE.iter().any(|method| !readings.movers(*method).is_empty());
        let over = row.is_some_and(|row| matches!(&row.phase, Phase::Active(hold) if hold.overuse().is_some()));
        let could_leave =
            |row: &&Lease| over || row.request.may_be_ended() || self.readings.get(&lease).is_some_and(has_mover);
        let movable = row.filter(|row| matches!(row.phase, Phase::Active(_))).filter(could_leave).is_some();
        let is_restored = |row: &Lease| matches!(&row.phase, Phase::Resuming(_, park) if park.needs_restore());
        let restoring = row.is_some_and(is_restored);
        let passive = row.is_some_and(Lease::is_passive);
        for (is_member, set) in [
            (movable, &mut self.movable),
            (restoring, &mut self.restoring),
            (over, &mut self.overusing),
            (passive, &mut self.passive),
        ] {
            if is_member {
                set.insert(lease);
            } else if !set.is_empty() {
                set.remove(&lease);
            }
        }
    }

    pub(crate) fn set_program(&mut self, lease: LeaseId, program: String) {
        if let Some(readings) = self.readings.get_mut(&lease) {
            readings.program = program;
        }
    }

    /// True if room is planned again: 20 ms after the last plan if an event came since, else after 200 ms. So a flood of
    /// requests does not cost a plan each.
    pub(crate) fn is_plan_due(&self, now: Time) -> bool {
        let (has_news, planned) = self.plan_state;
        now >= planned + if has_news { SOON } else { AGAIN }
    }

    pub(crate) fn set_planned(&mut self, now: Time) {
        self.plan_state = (false, now);
    }

    /// Passive leases ([`Lease::is_passive`]), in the order in which they were parked.
    pub(crate) fn passive(&self) -> Vec<LeaseId> {
        let since = |lease: &LeaseId| self.rows.leases.get(lease).and_then(Lease::park_state).map(|park| park.since);
        let mut all: Vec<LeaseId> = self.passive.iter().copied().collect();
        all.sort_by_key(|lease| (since(lease), *lease));
        all
    }

    /// Leases that could leave their GPUs.
    pub fn movable(&self) -> impl Iterator<Item = &Lease> {
        self.movable.iter().filter_map(|lease| self.rows.leases.get(lease))
    }
}
