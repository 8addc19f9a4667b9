//! Strangers, as the state has them beside their rows.

use super::State;
use crate::model::ids::LeaseId;
use crate::model::mutant::Mutant;
use crate::model::rows::{Lease, Phase};
use crate::model::unleased::{Rule, RuleAction, RuleSubject, UnleasedProcess, UnleasedStep};
use crate::state::unleased_readings::UnleasedReadings;

impl State {
    /// What this daemon has seen of strangers.
    pub(crate) fn unleased_readings(&self) -> &UnleasedReadings {
        &self.unleased
    }

    pub(crate) fn unleased_readings_mut(&mut self) -> &mut UnleasedReadings {
        &mut self.unleased
    }

    /// Why nobody can be ended here; `None`: that was not tried yet.
    pub fn self_test(&self) -> Option<&Result<(), String>> {
        self.unleased.self_test.as_ref()
    }

    /// How often it was tried whether anybody could be.
    pub fn self_tests(&self) -> u64 {
        self.unleased.self_tests
    }

    pub(super) fn index_unleased(&mut self) {
        self.unleased.by_process =
            self.rows.unleased.values().map(|stranger| (stranger.audit.process, stranger.id)).collect();
    }

    /// Whom rules leave alone or attach: what a process is at the last moment is asked again by whoever sends it a signal.
    pub fn allowed_subjects(&self) -> Vec<RuleSubject> {
        let spares = |rule: &&Rule| match rule.action {
            RuleAction::Allow => !self.planted(Mutant::StrikeAllowed),
            RuleAction::Adopt { .. } => true,
            RuleAction::Deny => false,
        };
        self.rows.rules.values().filter(spares).map(|rule| rule.subject.clone()).collect()
    }

    /// Whether a stranger that could not be moved belongs to the lease still by which it should have been; after
    /// a start nothing was heard of its processes yet.
    pub(crate) fn lease_is_ending(&self, stranger: &UnleasedProcess) -> bool {
        let process = &stranger.audit.process;
        let is_over = |row: &Lease| matches!(row.phase, Phase::Ending(..));
        let owner = self.owner(process).and_then(|lease| self.lease(lease));
        let mut ending = self.ending.iter().flatten().filter_map(|lease| self.lease(*lease));
        let is_its = owner.is_some_and(is_over) || ending.any(|row| row.roots.first() == Some(process));
        is_its && !self.planted(Mutant::StrikeMoving)
    }

    /// Whether whose a stranger's process is says only that it is parked, or could not be: it got that lease for it.
    fn is_by_its_move(&self, stranger: &UnleasedProcess) -> bool {
        match stranger.step {
            UnleasedStep::Parking { .. } => true,
            UnleasedStep::NotParked { .. } => self.lease_is_ending(stranger) || self.planted(Mutant::StrikeMoving),
            UnleasedStep::Found
            | UnleasedStep::Warned { .. }
            | UnleasedStep::Signalled { .. }
            | UnleasedStep::Survived => false,
        }
    }

    /// The lease that a stranger is a process of all the same: it is for other cards than those it is a stranger on.
    pub fn lease_of(&self, stranger: &UnleasedProcess) -> Option<LeaseId> {
        self.holder(&stranger.audit.process).filter(|_| !self.is_by_its_move(stranger))
    }
}
