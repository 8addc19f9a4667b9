//! What this daemon has seen of unleased processes. It is lost when the daemon stops, and never journaled.

use crate::model::audit::Audit;
use crate::model::ids::ProcKey;
use crate::model::units::{Span, Time};
use crate::model::unleased::{UnleasedId, UnleasedProcess, UnleasedStep};
use std::collections::{BTreeMap, VecDeque};

/// What was seen of strangers.
#[derive(Clone, Debug, Default)]
pub struct UnleasedReadings {
    /// Strangers on the record, by process.
    pub(crate) by_process: BTreeMap<ProcKey, UnleasedId>,
    /// What this daemon found out about each.
    pub(crate) audits: BTreeMap<UnleasedId, AuditState>,
    /// Those who were ended lately, or left when they were warned, the last one last.
    pub(crate) former: VecDeque<FormerProcess>,
    /// Why nobody can be ended here; `None`: that was not tried yet.
    pub(crate) self_test: Option<Result<(), String>>,
    /// How often it was tried.
    pub(crate) self_tests: u64,
}

/// Whoever comes so soon after somebody like it was ended, or warned, is started anew.
const ANEW: Span = Span::secs(600);

/// So many of those are remembered; of more, whoever has most forgets its oldest, so that nobody is forgotten for what
/// another user starts.
const FORMER_MAX: usize = 512;

/// A stranger that was ended, or that left when it was warned.
#[derive(Clone, Debug)]
pub(crate) struct FormerProcess {
    pub(crate) id: UnleasedId,
    at: Time,
    audit: Audit,
    /// It had until then to leave, for good.
    pub(crate) until: Option<Time>,
    /// The signal that it got, or was to get.
    pub(crate) told: Option<UnleasedStep>,
    /// Why it could not be taken off its cards.
    pub(crate) stays: Option<String>,
}

impl FormerProcess {
    /// What is remembered of a stranger that is gone, if anything was done about it.
    pub(crate) fn of(row: &UnleasedProcess, at: Time) -> Option<FormerProcess> {
        let (until, told) = match row.step {
            // Who comes and goes would be warned for ever.
            UnleasedStep::Warned { until, .. } | UnleasedStep::NotParked { since: until } => (Some(until), None),
            told @ UnleasedStep::Signalled { .. } => (None, Some(told)),
            UnleasedStep::Found | UnleasedStep::Parking { .. } | UnleasedStep::Survived => return None,
        };
        Some(FormerProcess { id: row.id, at, audit: row.audit.clone(), until, told, stays: row.why_not_parked.clone() })
    }

    pub(crate) fn process(&self) -> ProcKey {
        self.audit.process
    }

    /// Whether it is this very process, whatever that runs by now.
    pub(crate) fn is_process(&self, audit: &Audit) -> bool {
        self.audit.process == audit.process
    }

    /// A service is started anew by its unit; anything else by whoever calls the same program for the same user.
    fn is_same_program(&self, audit: &Audit) -> bool {
        match (&self.audit.unit, &audit.unit) {
            (Some(before), Some(now)) if now.ends_with(".service") => before == now,
            _ => {
                let who = |audit: &Audit| (audit.uid, audit.exe.clone(), audit.command.clone());
                audit.exe.is_some() && who(&self.audit) == who(audit)
            }
        }
    }
}

impl UnleasedReadings {
    /// A stranger that was signalled, or had until then to leave, is gone.
    pub(crate) fn remember(&mut self, former: FormerProcess) {
        self.former.push_back(former);
        if self.former.len() > FORMER_MAX {
            self.forget_one();
        }
    }

    /// The oldest of the user of whom there are most; of several such users, the oldest of them all.
    fn forget_one(&mut self) {
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        self.former.iter().for_each(|former| *of_user.entry(former.audit.uid).or_default() += 1);
        let most = of_user.values().copied().max();
        if let Some(place) = self.former.iter().position(|former| of_user.get(&former.audit.uid).copied() == most) {
            self.former.remove(place);
        }
    }

    /// Who was ended lately, or warned, and is here again: itself, of whom nothing is left to remember then, or one
    /// like it.
    pub(crate) fn take_former(&mut self, audit: &Audit, now: Time) -> Option<FormerProcess> {
        let is_late = |former: &FormerProcess| now.since(former.at) <= ANEW;
        match self.former.iter().rposition(|former| former.is_process(audit)) {
            Some(place) => self.former.remove(place).filter(is_late),
            None => self
                .former
                .iter()
                .rev()
                .take_while(|former| is_late(former))
                .find(|former| former.is_same_program(audit))
                .cloned(),
        }
    }
}

/// What this daemon found out about a stranger.
#[derive(Clone, Debug)]
pub(crate) struct AuditState {
    /// When it was last audited.
    pub audited_at: Time,
    /// It, and what descends from it in the same control group.
    pub tree: Vec<ProcKey>,
    /// It was sent the last signal it was to get.
    pub signal_sent: bool,
    /// Why a signal could not be sent to it.
    pub refused: Option<String>,
    /// When something else about it was last put on its record.
    pub noted: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::audit::tests::audit;

    fn former(uid: u32, pid: u32) -> FormerProcess {
        let process = ProcKey { pid, start: 1 };
        let audit = Audit { process, uid, unit: None, command: vec![pid.to_string()], ..audit() };
        FormerProcess { id: UnleasedId(1), at: Time(0), audit, until: Some(Time(9)), told: None, stays: None }
    }

    #[test]
    fn who_starts_many_makes_nobody_else_be_forgotten() {
        let mut list = UnleasedReadings::default();
        list.remember(former(7, 1));
        (0..2 * FORMER_MAX as u32).for_each(|pid| list.remember(former(8, 100 + pid)));
        assert_eq!(list.former.len(), FORMER_MAX);
        let mut knows = |uid, pid| list.take_former(&former(uid, pid).audit, Time(1)).is_some();
        assert!(knows(7, 1) && knows(8, 100 + 2 * FORMER_MAX as u32 - 1), "another's, and its own last");
        assert!(!knows(8, 100), "its own first is forgotten");
    }
}
