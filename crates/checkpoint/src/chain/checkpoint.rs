//! The chain of one checkpoint: the fence that may write, and the versions.
//!
//! ```text
//! opened: fence 2 ─ saved: version 1 ─ saved: version 2 ─ opened: fence 3 ─ saved: version 3, prunes 1 ─ …
//! ```

use super::{ChainState, Fences};
use crate::error::ReplicatedError;
use crate::names::{EffectFingerprint, EffectKey, EffectName, FenceEpoch, Version, escape};
use crate::nonce::Nonce;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The completed effects that are remembered, newest first. Their versions may be pruned.
const EFFECTS_KEPT: usize = 1_000;

/// The versions of one checkpoint, as its chain tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionChain {
    fences: Fences,
    newest: Version,
    newest_step: Option<u64>,
    versions: BTreeMap<Version, SavedVersion>,
    pins: BTreeMap<Version, BTreeSet<String>>,
    /// The effects that the newest saves completed, oldest first, with their versions.
    effects: VecDeque<(Version, CommittedEffect)>,
    /// The newest version with an effect that is not among them any more.
    newest_dropped_effect: Version,
}

/// A committed version: what the register says of it. The rest is in its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVersion {
    /// The hash of its manifest, which names the hashes of everything else.
    pub manifest: String,
    /// Which attempt to save it won; its files are in a directory that carries this number until they are published.
    pub nonce: Nonce,
    /// The fence that it was saved under.
    pub fence: FenceEpoch,
    /// The training step that it contains.
    pub step: Option<u64>,
    /// The bytes of its parts.
    pub bytes: u64,
    /// The effect that it completes.
    pub effect: Option<CommittedEffect>,
}

/// An effect that is completed by committing a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedEffect {
    /// The effect.
    pub key: EffectKey,
    /// What it was asked to do.
    pub fingerprint: EffectFingerprint,
}

/// How an effect stands, as a checkpoint's chain tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedEffect {
    /// A save completed it: this one, if it is remembered.
    Committed(Option<Version>),
    /// No save completed it.
    NotCommitted,
    /// It was reserved so long ago that a save may have completed it and be forgotten.
    Unknown,
}

/// What one entry of a checkpoint's chain changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointChange {
    /// A process opened the checkpoint for writing.
    Opened {
        /// Its fence.
        fence: FenceEpoch,
        /// The fence of its lease, if it has one; information.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_fence: Option<u64>,
    },
    /// A version was committed, and older ones pruned.
    Saved {
        /// Its number.
        version: Version,
        /// What is known of it.
        saved: SavedVersion,
        /// The versions that it pruned.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pruned: Vec<Version>,
    },
    /// Versions were pruned on request.
    Pruned {
        /// The fence of the process.
        fence: FenceEpoch,
        /// The versions.
        versions: Vec<Version>,
    },
    /// A job names a version: it is kept.
    Pinned {
        /// The version.
        version: Version,
        /// The job.
        by: String,
    },
    /// A job names a version no more.
    Unpinned {
        /// The version.
        version: Version,
        /// The job.
        by: String,
    },
    /// The chain begins anew, from what the replicas hold.
    Rebuilt {
        /// The generation; higher than any before.
        generation: u64,
        /// The versions that were found.
        versions: BTreeMap<Version, SavedVersion>,
    },
}

impl VersionChain {
    /// Which process may write.
    pub fn fences(&self) -> &Fences {
        &self.fences
    }

    /// The newest version; 0 if there is none.
    pub fn newest(&self) -> Version {
        self.newest
    }

    /// The newest committed step.
    pub fn newest_step(&self) -> Option<u64> {
        self.newest_step
    }

    /// The versions that were committed and not pruned.
    pub fn versions(&self) -> &BTreeMap<Version, SavedVersion> {
        &self.versions
    }

    /// The jobs that name a version.
    pub fn pins_of(&self, version: Version) -> impl Iterator<Item = &str> {
        self.pins.get(&version).into_iter().flatten().map(String::as_str)
    }

    /// What is known of a version, or why there is none of this number.
    pub fn version(&self, version: Version) -> Result<&SavedVersion, ReplicatedError> {
        match self.versions.get(&version) {
            Some(saved) => Ok(saved),
            None if version.0 == 0 || version > self.newest => Err(ReplicatedError::NoSuchVersion { version }),
            None => Err(ReplicatedError::Pruned { version }),
        }
    }

    /// Opens the checkpoint for one writer; every other one is stale from then on.
    pub fn open(&self, at_least: FenceEpoch, lease_fence: Option<u64>) -> CheckpointChange {
        CheckpointChange::Opened { fence: self.fences.next(at_least), lease_fence }
    }

    /// How an effect stands that a save of this checkpoint was to complete.
    pub fn progress_of(&self, key: &EffectKey, reserved_at: Version) -> SavedEffect {
        if let Some((version, _)) = self.effects.iter().find(|(_, effect)| effect.key == *key) {
            return SavedEffect::Committed(Some(*version));
        }
        match key.name {
            EffectName::Step(step) if Some(step) <= self.newest_step => SavedEffect::Committed(None),
            EffectName::Named(_) if reserved_at < self.newest_dropped_effect => SavedEffect::Unknown,
            _ => SavedEffect::NotCommitted,
        }
    }

    /// Refuses a version that cannot be committed after `expected`.
    pub fn check_save(&self, expected: Version, saved: &SavedVersion) -> Result<(), ReplicatedError> {
        self.fences.check(saved.fence)?;
        if expected != self.newest {
            return Err(ReplicatedError::VersionConflict { expected, newest: self.newest });
        }
        if let (Some(step), Some(newest)) = (saved.step, self.newest_step)
            && step <= newest
        {
            return Err(ReplicatedError::StepNotNewer { step, newest });
        }
        if let Some(CommittedEffect { key, .. }) = &saved.effect
            && let Some((version, _)) = self.effects.iter().find(|(_, effect)| effect.key == *key)
        {
            return Err(ReplicatedError::EffectCommitted { key: key.clone(), version: *version });
        }
        Ok(())
    }

    /// Commits the version after `expected`, and prunes what need not be kept.
    pub fn save(
        &self,
        expected: Version,
        saved: SavedVersion,
        keep: usize,
    ) -> Result<CheckpointChange, ReplicatedError> {
        self.check_save(expected, &saved)?;
        let older = self.versions.keys().rev().skip(keep.max(1) - 1);
        let pruned = older.filter(|version| !self.pins.contains_key(version)).copied().collect();
        Ok(CheckpointChange::Saved { version: expected.next(), saved, pruned })
    }

    /// Prunes versions on request; the newest one and pinned ones are refused.
    pub fn prune(&self, versions: &[Version], fence: FenceEpoch) -> Result<CheckpointChange, ReplicatedError> {
        self.fences.check(fence)?;
        for &version in versions {
            self.version(version)?;
            if version == self.newest {
                let reason = "it is the newest".to_owned();
                return Err(ReplicatedError::Kept { version, reason });
            }
            if let Some(job) = self.pins_of(version).next() {
                let reason = format!("{job} names it");
                return Err(ReplicatedError::Kept { version, reason });
            }
        }
        let versions: BTreeSet<Version> = versions.iter().copied().collect();
        Ok(CheckpointChange::Pruned { fence, versions: versions.into_iter().collect() })
    }

    /// Keeps a version for a job; `None` if the job names it already. The job's name is as long as other names may be:
    /// each pin is part of the register from then on.
    pub fn pin(&self, version: Version, by: &str) -> Result<Option<CheckpointChange>, ReplicatedError> {
        escape(by)?;
        self.version(version)?;
        let change = CheckpointChange::Pinned { version, by: by.to_owned() };
        Ok((!self.is_pinned_by(version, by)).then_some(change))
    }

    /// Ends that a job keeps a version; `None` if it did not.
    pub fn unpin(&self, version: Version, by: &str) -> Option<CheckpointChange> {
        let change = CheckpointChange::Unpinned { version, by: by.to_owned() };
        self.is_pinned_by(version, by).then_some(change)
    }

    fn is_pinned_by(&self, version: Version, by: &str) -> bool {
        self.pins_of(version).any(|job| job == by)
    }
}

impl ChainState for VersionChain {
    type Change = CheckpointChange;

    fn apply(&mut self, _number: u64, change: &CheckpointChange) -> Result<(), String> {
        match change {
            CheckpointChange::Opened { fence, .. } => self.fences.raise(*fence)?,
            CheckpointChange::Saved { version, saved, pruned } => {
                self.fences.expect(saved.fence)?;
                if *version != self.newest.next() {
                    return Err(format!("it saves version {version}, and the one before is {}", self.newest));
                }
                self.newest = *version;
                self.newest_step = saved.step.or(self.newest_step);
                self.versions.insert(*version, saved.clone());
                self.remember_effect(*version, saved);
                self.drop_versions(pruned)?;
            }
            CheckpointChange::Pruned { fence, versions } => {
                self.fences.expect(*fence)?;
                self.drop_versions(versions)?;
            }
            CheckpointChange::Pinned { version, by } => {
                self.pins.entry(*version).or_default().insert(by.clone());
            }
            CheckpointChange::Unpinned { version, by } => {
                if let Some(jobs) = self.pins.get_mut(version) {
                    jobs.remove(by);
                }
                self.pins.retain(|_, jobs| !jobs.is_empty());
            }
            CheckpointChange::Rebuilt { generation, versions } => {
                let fences = Fences::after_rebuild(*generation);
                if fences.newest <= self.fences.newest {
                    return Err(format!("it rebuilds as generation {generation}, which is not new"));
                }
                self.fences = fences;
                self.newest = versions.keys().next_back().copied().unwrap_or_default();
                self.newest_step = versions.values().filter_map(|saved| saved.step).max();
                self.versions.clone_from(versions);
                self.pins.clear();
                self.effects.clear();
                for (version, saved) in versions {
                    self.remember_effect(*version, saved);
                }
            }
        }
        Ok(())
    }
}

impl VersionChain {
    fn remember_effect(&mut self, version: Version, saved: &SavedVersion) {
        self.effects.extend(saved.effect.iter().map(|effect| (version, effect.clone())));
        while self.effects.len() > EFFECTS_KEPT {
            self.newest_dropped_effect = self.effects.pop_front().map_or(version, |(dropped, _)| dropped);
        }
    }

    fn drop_versions(&mut self, versions: &[Version]) -> Result<(), String> {
        for version in versions {
            if *version == self.newest || self.pins.contains_key(version) {
                return Err(format!("it prunes version {version}, which has to be kept"));
            }
            self.versions.remove(version).ok_or_else(|| format!("it prunes version {version}, which is not there"))?;
        }
        Ok(())
    }
}
