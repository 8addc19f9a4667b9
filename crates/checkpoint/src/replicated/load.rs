//! Loading: read from the replicas, verify every byte, repair what is damaged.
//!
//! As many replicas are read as the read quorum needs; for each that fails, the next one is asked. The
//! copies that were found damaged are replaced by a good one before the call returns.

use super::{ReplicatedCheckpoint, start_thread};
use crate::chain::checkpoint::VersionChain;
use crate::content::UNNAMED_PART;
use crate::error::{ReplicaFailure, ReplicatedError};
use crate::manifest::SealedManifest;
use crate::names::{CheckpointName, EffectKey, FenceEpoch, Version};
use crate::patience;
use crate::policy::ReplicaHealth;
use crate::replica::CheckpointHome;
use crate::replica::layout::{Staging, StagingKind};
use crate::replica::read::{CheckedBytes, LoadedPart, WholeCopy};
use crate::store::draw_nonce;
use bytes::Bytes;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a load begins anew because its version was pruned while it was read.
const ATTEMPTS: usize = 16;

/// A version with its bytes. Every one was verified.
#[derive(Clone, Debug)]
pub struct LoadedCheckpoint {
    /// Its number.
    pub version: Version,
    /// The fence that it was saved under.
    pub fence: FenceEpoch,
    /// The training step that it contains.
    pub step: Option<u64>,
    /// The effect that it completed.
    pub effect: Option<EffectKey>,
    /// Its parts, in the order in which they were saved.
    pub parts: Vec<LoadedPart>,
}

impl LoadedCheckpoint {
    /// The bytes of a part; `None` if there is no such part.
    pub fn part(&self, name: &str) -> Option<&Bytes> {
        self.parts.iter().find(|part| part.name == name).map(|part| &part.bytes)
    }

    /// The bytes of a checkpoint that was saved without named parts.
    pub fn bytes(&self) -> Option<&Bytes> {
        self.part(UNNAMED_PART)
    }
}

/// What a replica's thread found.
type CopyRead = (usize, Result<WholeCopy, String>);

/// The copies that were read, and the replicas that failed.
struct CopiesRead {
    whole: Vec<(usize, WholeCopy)>,
    damaged: Vec<usize>,
    failures: Vec<ReplicaFailure>,
}

impl ReplicatedCheckpoint {
    /// The newest committed version; `None` if nothing was saved.
    pub fn load(&self, name: &CheckpointName) -> Result<Option<LoadedCheckpoint>, ReplicatedError> {
        let mut outcome = Ok(None);
        for _ in 0..ATTEMPTS {
            let state = self.state(name)?;
            if state.newest() == Version(0) {
                // An older copy of the register may know of no version that the replicas hold.
                self.check_register(name, &state)?;
                return Ok(None);
            }
            outcome = self.read_version(name, &state, state.newest()).map(Some);
            // A newer version may have been saved meanwhile, and this one pruned.
            if outcome.is_ok() || self.state(name)?.newest() == state.newest() {
                return outcome;
            }
        }
        outcome
    }

    /// One committed version.
    pub fn load_version(&self, name: &CheckpointName, version: Version) -> Result<LoadedCheckpoint, ReplicatedError> {
        let state = self.state(name)?;
        state.version(version)?;
        self.read_version(name, &state, version).or_else(|error| {
            self.state(name)?.version(version)?;
            Err(error)
        })
    }

    fn read_version(
        &self,
        name: &CheckpointName,
        state: &VersionChain,
        version: Version,
    ) -> Result<LoadedCheckpoint, ReplicatedError> {
        let home = self.home(name)?;
        let state = Arc::new(state.clone());
        let needed = self.shared.policy.copies_needed();
        let mut read = self.read_copies(&home, &state, version, needed);
        let verified = read.whole.len();
        if verified < needed {
            return Err(ReplicatedError::TooFewCopies { version, verified, needed, causes: read.failures });
        }
        for (index, copy) in &read.whole {
            if let Some(above) = copy.above {
                self.check_known(name, above, &self.shared.replicas[*index])?;
            }
        }
        // The copies are equal: their manifests have the hash that the register holds.
        let with_bytes = read.whole.iter().position(|(_, copy)| copy.parts.is_some());
        let (index, mut copy) = read.whole.swap_remove(with_bytes.unwrap_or(0));
        self.check_usable(&copy.manifest, version)?;
        if copy.parts.is_none() {
            // The replica that was to keep the bytes failed; this one was only checked.
            let again = self.shared.replicas[index].directory.read(&home, &state, version, CheckedBytes::Kept);
            copy = again.map_err(|reason| ReplicatedError::TooFewCopies {
                version,
                verified: verified - 1,
                needed,
                causes: vec![self.failure(index, reason)],
            })?;
        }
        let parts = copy.parts.unwrap_or_default();
        self.repair(&home, &state, &copy.manifest, &parts, &read.damaged);
        let manifest = &copy.manifest.manifest;
        Ok(LoadedCheckpoint {
            version,
            fence: manifest.fence,
            step: manifest.step,
            effect: manifest.effect.as_ref().map(|effect| effect.key.clone()),
            parts,
        })
    }

    /// Reads copies until enough are whole or no replica is left. The first of them has its bytes.
    fn read_copies(
        &self,
        home: &CheckpointHome,
        state: &Arc<VersionChain>,
        version: Version,
        needed: usize,
    ) -> CopiesRead {
        let (sender, reports): (Sender<CopyRead>, Receiver<CopyRead>) = channel();
        let mut waiting = self.in_reading_order().into_iter();
        let mut reading: Vec<(usize, Weak<()>)> = Vec::new();
        let mut keep = CheckedBytes::Kept;
        let mut read = CopiesRead { whole: Vec::new(), damaged: Vec::new(), failures: Vec::new() };
        while read.whole.len() < needed {
            while reading.len() + read.whole.len() < needed
                && let Some(index) = waiting.next()
            {
                match self.start_reading(index, home, state, version, keep, sender.clone()) {
                    Ok(thread) => reading.push((index, thread)),
                    Err(reason) => read.failures.push(self.failure(index, reason)),
                }
                // One copy in memory is enough.
                keep = CheckedBytes::Dropped;
            }
            if reading.is_empty() {
                return read;
            }
            let limits = self.shared.store.limits();
            let limit = if waiting.len() > 0 { limits.surplus } else { limits.needed };
            match self.next_report(&reports, &reading, limit) {
                Some((index, outcome)) => {
                    reading.retain(|(other, _)| *other != index);
                    if outcome.is_err() && read.whole.is_empty() {
                        keep = CheckedBytes::Kept;
                    }
                    self.note(index, outcome, &mut read);
                }
                // A replica that hangs is given up; the next ones are asked instead.
                None => {
                    for (index, thread) in reading.drain(..) {
                        self.shared.replicas[index].directory.leave_behind(thread);
                        self.shared.replicas[index].set_health(ReplicaHealth::Failed);
                        read.failures.push(self.failure(index, "it made no progress".to_owned()));
                    }
                }
            }
        }
        read
    }

    fn note(&self, index: usize, outcome: Result<WholeCopy, String>, read: &mut CopiesRead) {
        match outcome {
            Ok(copy) => read.whole.push((index, copy)),
            Err(reason) => {
                self.shared.replicas[index].set_health(ReplicaHealth::Degraded);
                read.damaged.push(index);
                read.failures.push(self.failure(index, reason));
            }
        }
    }

    fn failure(&self, index: usize, reason: String) -> ReplicaFailure {
        ReplicaFailure { replica: self.shared.replicas[index].directory.id.clone(), reason }
    }

    /// The voters, healthy ones first. A copy of an observer counts towards no quorum.
    fn in_reading_order(&self) -> Vec<usize> {
        let replicas = &self.shared.replicas;
        let mut voters: Vec<usize> = (0..replicas.len()).filter(|index| replicas[*index].is_voter()).collect();
        voters.sort_by_key(|index| match replicas[*index].health() {
            _ if replicas[*index].directory.is_stuck() => 3,
            ReplicaHealth::Healthy => 0,
            ReplicaHealth::Degraded => 1,
            ReplicaHealth::Failed => 2,
        });
        voters
    }

    fn start_reading(
        &self,
        index: usize,
        home: &CheckpointHome,
        state: &Arc<VersionChain>,
        version: Version,
        keep: CheckedBytes,
        sender: Sender<CopyRead>,
    ) -> Result<Weak<()>, String> {
        let directory = self.shared.replicas[index].directory.clone();
        let (home, state) = (home.clone(), Arc::clone(state));
        let started = start_thread("checkpoint read", move || {
            let read = directory.read(&home, &state, version, keep);
            // The load may have gone on without this replica.
            let _ = sender.send((index, read));
        });
        started.map_err(|error| format!("no thread could be started: {error}"))
    }

    /// The next report; `None` if none of these replicas makes progress.
    fn next_report(
        &self,
        reports: &Receiver<CopyRead>,
        reading: &[(usize, Weak<()>)],
        limit: Duration,
    ) -> Option<CopyRead> {
        let progress = || {
            let each = reading.iter().map(|(index, _)| self.shared.replicas[*index].directory.progress());
            each.fold(0, u64::wrapping_add)
        };
        patience::receive(reports, limit, progress)
    }

    fn check_usable(&self, manifest: &SealedManifest, version: Version) -> Result<(), ReplicatedError> {
        let manifest = &manifest.manifest;
        let pairs = [
            ("schema", manifest.schema.as_str(), self.shared.schema.as_str()),
            ("policy hash", &manifest.policy, &self.shared.policy_hash),
        ];
        for (what, found, expected) in pairs {
            if found != expected {
                let (found, expected) = (found.to_owned(), expected.to_owned());
                return Err(ReplicatedError::Mismatch { version, what, found, expected });
            }
        }
        Ok(())
    }

    /// Replaces damaged copies by this one. A replica that refuses is left for a scrub.
    pub(super) fn repair(
        &self,
        home: &CheckpointHome,
        state: &VersionChain,
        manifest: &SealedManifest,
        parts: &[LoadedPart],
        damaged: &[usize],
    ) {
        for &index in damaged {
            let replica = &self.shared.replicas[index];
            let Ok(nonce) = draw_nonce() else { continue };
            if replica.directory.is_stuck() {
                continue;
            }
            let (kind, version, fence) = (StagingKind::Repaired, manifest.manifest.version, state.fences().newest);
            let by = Staging { kind, version, fence, nonce };
            let repaired = replica.directory.repair(home, by, manifest, parts);
            replica.set_health(if repaired.is_ok() { ReplicaHealth::Healthy } else { ReplicaHealth::Failed });
        }
    }
}
