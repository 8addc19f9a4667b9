//! Strangers, as the state has them beside their rows.

use super::State;
use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::reading::Reading;
use crate::model::rows::{Lease, Phase};
use crate::model::units::Time;
use crate::model::unleased::{
    Mode, NextStep, PendingSignal, Rule, RuleAction, RuleSubject, UnleasedProcess, UnleasedStep,
};
use crate::mutant::Mutant;
use crate::policy::enforcement as enforce;
use crate::unleased_readings::{FormerProcess, UnleasedReadings};

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

    /// Whether a signal that was decided then is still to be sent to this process. Whoever sends it asks when that is
    /// on the disk, and takes it back when it is not wanted any more, until it has left: meanwhile an operator may have
    /// thought better of it, the stranger be gone, its card not be readable, or the process have a lease.
    pub fn is_signal_due(&self, blow: &PendingSignal, now: Time) -> bool {
        let Some(row) = self.rows.unleased.get(&blow.stranger) else { return false };
        let is_decided = row.step == UnleasedStep::Signalled { signal: blow.signal, since: blow.of, sent: false };
        let is_due = is_decided && matches!(enforce::next_step(self, row, None, now), NextStep::Signal(..));
        let own = row.audit.process;
        // Where it was found when it was last looked into, and not only where it went since.
        let is_enforced = |card: &GpuId| self.mode(*card) == Mode::Enforce;
        let is_strange = row.gpus.iter().any(|card| is_enforced(card) && !self.has_lease_there(&own, *card));
        let is_its = is_strange && (blow.process == own || enforce::may_be_signalled(self, blow.process));
        is_due && is_its || self.planted(Mutant::StrikeLate)
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

    /// Processes that left their cards when they were warned or told, and are there again.
    fn returned(&self) -> impl Iterator<Item = ProcKey> {
        let is_there = |process: &ProcKey| {
            self.gpus().any(|card| match &self.room(card).reading().reading {
                Reading::Used(used) => used.processes.iter().any(|resident| {
                    resident.process == *process && resident.is_of_interest() && !self.has_lease_there(process, card)
                }),
                Reading::Unreadable(_) => false,
            })
        };
        let left = self.unleased.former.iter().map(FormerProcess::process);
        left.filter(|process| !self.unleased.by_process.contains_key(process)).filter(is_there)
    }

    /// Strangers that must be audited before their next step is taken, which is due, and those that are back.
    pub fn audits_due(&self, now: Time) -> Vec<ProcKey> {
        let is_due = |stranger: &&UnleasedProcess| {
            let audited = self.unleased.audits.get(&stranger.id).map(|seen| seen.audited_at);
            let due = match (enforce::next_step(self, stranger, None, now), stranger.step) {
                (NextStep::Signal(..) | NextStep::Park(_), UnleasedStep::Found) => return false,
                // What is a lease's is no stranger, until its cards were seen again.
                (NextStep::Signal(..), UnleasedStep::NotParked { .. }) if self.lease_is_ending(stranger) => {
                    return false;
                }
                // What an earlier daemon decided, and perhaps never did.
                (NextStep::Signal(..), UnleasedStep::Signalled { since, sent: false, .. }) => since,
                (NextStep::Signal(_, due) | NextStep::Park(due), _) => due,
                _ => return false,
            };
            let is_struck = self.unleased.audits.get(&stranger.id).is_some_and(|seen| seen.signal_sent);
            !is_struck && due <= now && audited.is_none_or(|at| !enforce::is_fresh(at, due, now))
        };
        let due = self.rows.unleased.values().filter(is_due).map(|stranger| stranger.audit.process);
        due.chain(self.returned()).collect()
    }
}
