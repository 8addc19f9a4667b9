//! Whose processes are.

use super::State;
use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::mutant::Mutant;
use crate::model::reading::{Reading, Resident};
use crate::model::restrictions::Restrictions;
use crate::model::rows::Lease;
use crate::model::units::Bytes;
use crate::model::unleased::STRANGERS_MAX;
use std::collections::BTreeSet;

impl State {
    /// Whose a process is.
    pub fn owner(&self, process: &ProcKey) -> Option<LeaseId> {
        self.owners.get(process).copied()
    }

    /// For whom the driver speaks of a process: for whom it moves it, whoever has it by now, and else for whose it is.
    pub(crate) fn lease_that_driver_moves(&self, process: &ProcKey) -> Option<LeaseId> {
        let moves = |row: &&Lease| row.park_state().is_some_and(|away| away.is_moved_by_driver(process));
        let moved_for = self.rows.leases.values().find(moves).map(|row| row.id);
        moved_for.or_else(|| self.owner(process))
    }

    /// Whose a process is, of those that were granted cards: who only waits for some has no right to any.
    pub fn holder(&self, process: &ProcKey) -> Option<LeaseId> {
        self.owner(process).filter(|lease| !self.waits(*lease) || self.planted(Mutant::WaitAsShield))
    }

    /// Whether a process belongs to a lease that has this card. One that was bound to several belongs to the last of
    /// them, and has the cards of all.
    pub(crate) fn has_lease_there(&self, process: &ProcKey, card: GpuId) -> bool {
        let Some(lease) = self.holder(process) else { return false };
        let claims = self.room(card).leases();
        let is_root = |other: &LeaseId| self.lease(*other).is_some_and(|row| row.roots.contains(process));
        let is_home = claims.contains_key(&lease) || claims.keys().any(is_root);
        let shields = self.planted(Mutant::AtHomeAnywhere) || self.waits(lease) && self.planted(Mutant::WaitAsShield);
        is_home || shields
    }

    /// Whether who is on a card has a lease, which is not for it: what it takes there is nobody's. Who only draws
    /// a little there, or has nothing there, takes nothing.
    pub(crate) fn is_off_lease(&self, resident: &Resident, card: GpuId) -> bool {
        let process = &resident.process;
        let takes = resident.is_of_interest() && resident.bytes != Some(Bytes::ZERO);
        takes && self.holder(process).is_some() && !self.has_lease_there(process, card)
    }

    /// Processes of leases on a card that those leases do not have, where the driver tells whose bytes are whose. The
    /// host takes them for holders, and looks into them if it is asked to.
    pub fn off_lease_processes(&self, card: GpuId) -> Vec<ProcKey> {
        let residents = match &self.room(card).reading().reading {
            Reading::Used(used) if !used.coarse => used.processes.as_slice(),
            Reading::Used(_) | Reading::Unreadable(_) => &[],
        };
        let abroad = residents.iter().filter(|resident| self.is_off_lease(resident, card));
        abroad.map(|resident| resident.process).take(STRANGERS_MAX).collect()
    }

    fn waits(&self, lease: LeaseId) -> bool {
        self.rows.leases.get(&lease).is_some_and(|row| row.hold().is_none())
    }

    /// A process that was just bound lives, and what it did so far counts as work.
    pub(crate) fn add_member(&mut self, lease: LeaseId, process: ProcKey) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.was_busy = true;
            self.restore_member(lease, process);
        }
    }

    /// Adds a process to a lease, without counting that as work.
    pub(super) fn restore_member(&mut self, lease: LeaseId, process: ProcKey) {
        if let Some(live) = self.readings.get(&lease).filter(|live| !live.members.contains(&process)) {
            let (mut members, restricted) = (live.members.clone(), live.restricted.clone());
            members.push(process);
            self.set_members(lease, members, restricted);
        }
    }

    pub(crate) fn set_members(&mut self, lease: LeaseId, processes: Vec<ProcKey>, restricted: Restrictions) {
        let Some(live) = self.readings.get_mut(&lease) else { return };
        live.members_known = true;
        live.restricted = restricted;
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
            if let Some(other) = before.and_then(|before| self.readings.get_mut(&before)) {
                other.members.retain(|member| *member != process);
            }
            if let Some(before) = before {
                self.hand_over(before, &process);
            }
        }
        if let Some(live) = self.readings.get_mut(&lease).filter(|_| !kept.is_empty()) {
            live.members.retain(|member| !kept.contains(member));
        }
        self.set_movable(lease);
    }

    /// A lease has lost a process to another: the driver, which could move it, does not do so for this one any more;
    /// unless it does already.
    fn hand_over(&mut self, from: LeaseId, process: &ProcKey) {
        let is_moved =
            self.lease(from).and_then(Lease::park_state).is_some_and(|away| away.is_moved_by_driver(process));
        let is_moved = is_moved || self.planted(Mutant::MoveOthers);
        if let Some(live) = self.readings.get_mut(&from).filter(|_| !is_moved) {
            live.driver.remove(process);
            self.set_movable(from);
        }
    }
}
