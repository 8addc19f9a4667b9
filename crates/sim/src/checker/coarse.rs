//! GPUs whose readings tell the used bytes, and not those of single processes. One lease at a time moves there, by the shim; its
//! GPUs must have lost seven eighths of what its programs report, and no other process or lease may have left
//! meanwhile.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::park::{LITTLE, MoveBook, MoveStage};
use std::collections::BTreeMap;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::units::Bytes;

/// A GPU at the moment at which a lease began to leave it.
#[derive(Clone, Debug)]
pub struct OtherLeases {
    taken: Bytes,
    leases: Vec<LeaseId>,
    processes: Vec<ProcKey>,
}

impl CheckerBooks {
    /// True if a lease's GPUs have lost what its programs report, while no other process left them.
    pub(super) fn has_lost_enough(&self, held: &HeldBook, park: &MoveBook, said: Bytes) -> bool {
        let mut lost = Bytes::ZERO;
        for number in &held.gpus {
            let (gpu, before) = (&self.gpus[*number], park.others_before.get(number));
            let (Some(before), Some(taken)) = (before, gpu.used_bytes()) else { return false };
            let stayed = before.leases.iter().all(|other| gpu.claims.contains_key(other))
                && before.processes.iter().all(|process| gpu.processes.contains(process));
            if gpu.is_coarse() && !stayed {
                return false;
            }
            lost = lost + before.taken.less(taken);
        }
        said <= LITTLE || lost.0 >= said.0 / 8 * 7
    }

    /// The other leases and processes on a lease's GPUs, if one of them does not tell the bytes of single processes.
    pub(super) fn other_users_of(&self, lease: LeaseId, held: &HeldBook) -> BTreeMap<usize, OtherLeases> {
        let of = |number: &usize| {
            let gpu = &self.gpus[*number];
            let others = gpu.processes.iter().filter(|process| self.owners.get(process) != Some(&lease));
            let leases = gpu.claims.keys().filter(|other| **other != lease).copied().collect();
            Some((*number, OtherLeases { taken: gpu.used_bytes()?, leases, processes: others.copied().collect() }))
        };
        let hidden = held.gpus.iter().any(|number| self.gpus[*number].is_coarse());
        held.gpus.iter().filter(|_| hidden).filter_map(of).collect()
    }

    /// What a lease has on its GPUs: what was seen of it, or the size of the lease where that cannot be seen.
    pub(super) fn bytes_held(&self, lease: LeaseId, held: &HeldBook) -> Bytes {
        let on = |number: &usize| match self.gpus[*number].is_coarse() {
            true => held.vram,
            false => self.seen_of(lease, *number),
        };
        held.gpus.iter().map(on).sum()
    }

    /// What counts for a parked lease on a GPU.
    pub fn residue_of(&self, lease: LeaseId, number: usize) -> Bytes {
        let gpu = &self.gpus[number];
        let parked = self.leases.get(&lease).is_some_and(LeaseBook::is_parked) && gpu.claims.contains_key(&lease);
        if gpu.is_coarse() && parked { gpu.residue_max() } else { self.seen_of(lease, number) }
    }

    /// True if bytes of another lease leave or come to such a GPU.
    pub fn is_other_move_under_way(&self, lease: LeaseId, held: &HeldBook) -> bool {
        let goes = |other: &LeaseId| match self.leases.get(other).map(|book| &book.stage) {
            Some(LeaseStage::Park(_, park)) => park.stage != MoveStage::Parked,
            Some(LeaseStage::Ending(..)) => true,
            _ => false,
        };
        let coarse = held.gpus.iter().map(|number| &self.gpus[*number]).filter(|gpu| gpu.is_coarse());
        coarse.flat_map(|gpu| gpu.claims.keys()).any(|other| *other != lease && goes(other))
    }
}
