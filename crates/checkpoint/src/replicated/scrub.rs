//! Checking every copy of every version, and repairing what is damaged.

use super::ReplicatedCheckpoint;
use crate::chain::checkpoint::VersionChain;
use crate::error::ReplicatedError;
use crate::manifest::SealedManifest;
use crate::names::{CheckpointName, ReplicaId, Version};
use crate::policy::ReplicaHealth;
use crate::replica::CheckpointHome;
use crate::replica::read::{CheckedBytes, LoadedPart};

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// The copies that were whole.
    pub whole: usize,
    /// The copies that were not, and are now.
    pub repaired: Vec<DamagedCopy>,
    /// The copies that are not whole.
    pub damaged: Vec<DamagedCopy>,
}

/// A copy that was found damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedCopy {
    /// Where.
    pub replica: ReplicaId,
    /// Of which version.
    pub version: Version,
    /// What was wrong with it.
    pub reason: String,
}

impl ReplicatedCheckpoint {
    /// Reads every copy of every version, and replaces damaged ones by good ones.
    pub fn scrub(&self, name: &CheckpointName) -> Result<ScrubReport, ReplicatedError> {
        let home = self.home(name)?;
        let state = self.state(name)?;
        self.sweep(name, &state)?;
        let mut report = ScrubReport::default();
        for &version in state.versions().keys() {
            self.scrub_version(&home, &state, version, &mut report);
        }
        // What was pruned meanwhile is not damaged.
        let now = self.state(name)?;
        report.damaged.retain(|copy| now.versions().contains_key(&copy.version));
        Ok(report)
    }

    fn scrub_version(&self, home: &CheckpointHome, state: &VersionChain, version: Version, report: &mut ScrubReport) {
        let mut whole = Vec::new();
        let mut damaged = Vec::new();
        for (index, replica) in self.shared.replicas.iter().enumerate() {
            match replica.directory.read(home, state, version, CheckedBytes::Dropped) {
                Ok(_) => whole.push(index),
                Err(reason) => damaged.push((index, reason)),
            }
        }
        report.whole += whole.len();
        if damaged.is_empty() {
            return;
        }
        let source = whole.iter().find_map(|index| self.read_whole(*index, home, state, version));
        for (index, reason) in damaged {
            let replica = &self.shared.replicas[index];
            replica.set_health(ReplicaHealth::Degraded);
            if let Some((manifest, parts)) = &source {
                self.repair(home, state, manifest, parts, &[index]);
            }
            let copy = DamagedCopy { replica: replica.directory.id.clone(), version, reason };
            let is_repaired = replica.health() == ReplicaHealth::Healthy;
            if is_repaired { report.repaired.push(copy) } else { report.damaged.push(copy) }
        }
    }

    fn read_whole(
        &self,
        index: usize,
        home: &CheckpointHome,
        state: &VersionChain,
        version: Version,
    ) -> Option<(SealedManifest, Vec<LoadedPart>)> {
        let copy = self.shared.replicas[index].directory.read(home, state, version, CheckedBytes::Kept).ok()?;
        Some((copy.manifest, copy.parts?))
    }
}
