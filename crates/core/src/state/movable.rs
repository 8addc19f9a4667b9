//! Leases that could be made to leave their GPUs, those that come back, and when room is planned next.

use super::State;
use crate::model::ids::LeaseId;
use crate::model::method::Method;
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Span, Time};
use crate::state::lease_readings::LeaseReadings;

/// How often it is reckoned whether room could be made, while nothing else happens…
const AGAIN: Span = Span::millis(200);
/// … and at most, whatever does.
const SOON: Span = Span::millis(20);

impl State {
    /// Keeps in step who could leave its cards, and whom the driver brings back.
    pub(crate) fn set_movable(&mut self, lease: LeaseId) {
        let row = self.rows.leases.get(&lease);
        let spoken_for = |live: &LeaseReadings| Method::REVERSIBLE.iter().any(|rung| !live.movers(*rung).is_empty());
        let over = row.is_some_and(|row| matches!(&row.phase, Phase::Active(hold) if hold.overuse().is_some()));
        let could =
            |row: &&Lease| over || row.request.may_be_ended() || self.readings.get(&lease).is_some_and(spoken_for);
        let movable = row.filter(|row| matches!(row.phase, Phase::Active(_))).filter(could).is_some();
        let restored = |row: &Lease| matches!(&row.phase, Phase::Resuming(_, away) if away.needs_restore());
        let restoring = row.is_some_and(restored);
        let passive = row.is_some_and(Lease::is_passive);
        for (is, set) in [
            (movable, &mut self.movable),
            (restoring, &mut self.restoring),
            (over, &mut self.overusing),
            (passive, &mut self.passive),
        ] {
            if is {
                set.insert(lease);
            } else if !set.is_empty() {
                set.remove(&lease);
            }
        }
    }

    pub(crate) fn set_program(&mut self, lease: LeaseId, program: String) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.program = program;
        }
    }

    /// Whether it is reckoned again whether room could be made: something happened since it last was, or
    /// some time passed. A flood of asks does not make it more often than now and then.
    pub(crate) fn is_plan_due(&self, now: Time) -> bool {
        let (happened, planned) = self.plan_state;
        now >= planned + if happened { SOON } else { AGAIN }
    }

    pub(crate) fn set_planned(&mut self, now: Time) {
        self.plan_state = (false, now);
    }

    /// Passive leases ([`Lease::is_passive`]), the one that was parked first first.
    pub(crate) fn passive(&self) -> Vec<LeaseId> {
        let since = |lease: &LeaseId| self.rows.leases.get(lease).and_then(Lease::park_state).map(|away| away.since);
        let mut all: Vec<LeaseId> = self.passive.iter().copied().collect();
        all.sort_by_key(|lease| (since(lease), *lease));
        all
    }

    /// Holders that could be made to leave their cards, as far as somebody speaks for them.
    pub fn movable(&self) -> impl Iterator<Item = &Lease> {
        self.movable.iter().filter_map(|lease| self.rows.leases.get(lease))
    }
}
