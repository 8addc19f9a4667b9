//! Whose processes are.

use super::State;
use crate::ids::{LeaseId, ProcKey};
use crate::mutant::Mutant;
use std::collections::BTreeSet;

impl State {
    /// Whose a process is.
    pub fn owner(&self, process: &ProcKey) -> Option<LeaseId> {
        self.owners.get(process).copied()
    }

    /// Whose a process is, of those that were granted cards: who only waits for some has no right to any.
    pub fn holder(&self, process: &ProcKey) -> Option<LeaseId> {
        self.owner(process).filter(|lease| !self.waits(*lease) || self.planted(Mutant::WaitAsShield))
    }

    fn waits(&self, lease: LeaseId) -> bool {
        self.rows.leases.get(&lease).is_some_and(|row| row.hold().is_none())
    }

    /// A process that was just bound lives, and what it did so far counts as work.
    pub(super) fn add_member(&mut self, lease: LeaseId, process: ProcKey) {
        if let Some(live) = self.lives.get_mut(&lease) {
            live.worked = true;
            let mut members = live.members.clone();
            if !members.contains(&process) {
                members.push(process);
                self.set_members(lease, members);
            }
        }
    }

    pub(crate) fn set_members(&mut self, lease: LeaseId, processes: Vec<ProcKey>) {
        let Some(live) = self.lives.get_mut(&lease) else { return };
        live.counted = true;
        for process in std::mem::replace(&mut live.members, processes.clone()) {
            if self.owners.get(&process) == Some(&lease) {
                self.owners.remove(&process);
            }
        }
        // A process belongs to whom it was last seen with; but who waits takes none from who was granted its cards.
        let waits = self.waits(lease);
        let mut kept = BTreeSet::new();
        for process in processes {
            let before = self.owners.get(&process).copied().filter(|before| *before != lease);
            if waits && before.is_some_and(|before| !self.waits(before)) {
                kept.insert(process);
                continue;
            }
            self.owners.insert(process, lease);
            if let Some(other) = before.and_then(|before| self.lives.get_mut(&before)) {
                other.members.retain(|member| *member != process);
            }
        }
        if let Some(live) = self.lives.get_mut(&lease).filter(|_| !kept.is_empty()) {
            live.members.retain(|member| !kept.contains(member));
        }
        self.set_movable(lease);
    }
}
