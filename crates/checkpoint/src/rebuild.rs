//! Making a new register from what the replicas hold, after the old one was lost.
//!
//! ```text
//! replicas   000041 ← 000042 ← .prepared-000043        manifests name their parents
//! register   rebuilt: 41, 42, 43   generation 2, fences above all of generation 1
//! ```
//!
//! Versions that were published are committed. Beyond the newest of them, the replicas may hold
//! prepared versions; the old register may have committed one, and nothing says which. The longest
//! chain of the highest fence is taken, so no acknowledged version is lost. The newest version may be
//! one that was never acknowledged: a program that asks for the newest step is told it is saved.
//!
//! A process of the old generation has a fence that is too low, and an old register is refused by
//! locators of the new generation.
//!
//! Absent on purpose: records of effects that no save completed, and pins. They were in the register
//! only.

use crate::chain::checkpoint::{CheckpointChange, SavedVersion, VersionChain};
use crate::chain::log::{ChainLog, Decision};
use crate::error::ReplicatedError;
use crate::manifest::SealedManifest;
use crate::names::{ChainName, CheckpointName, LogicalResourceName, ReplicaId, ResourceGeneration, Version};
use crate::register::Creation;
use crate::replica::read::CommitStage;
use crate::replica::{CheckpointHome, ReplicaDirectory};
use crate::store::CheckpointStore;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

/// The highest generation. Each rebuild adds one, and the register has an entry for each: a higher number was not made by
/// rebuilds.
const GENERATION_MAX: u64 = 1_000;

/// What a rebuilt register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildReport {
    /// Its generation, which locators name from now on.
    pub generation: ResourceGeneration,
    /// Its checkpoints.
    pub checkpoints: Vec<RebuiltCheckpoint>,
    /// Newer versions of which no replica has a whole copy. What is left of them is kept as `found-…`.
    pub damaged: BTreeSet<(CheckpointName, Version)>,
}

/// One checkpoint of a rebuilt register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltCheckpoint {
    /// The resource.
    pub resource: LogicalResourceName,
    /// The checkpoint.
    pub name: CheckpointName,
    /// Its versions, oldest first.
    pub versions: Vec<Version>,
    /// Those that may not have been acknowledged.
    pub unproven: Vec<Version>,
}

/// A version that some replica holds whole.
struct RebuildCandidate {
    manifest: SealedManifest,
    stage: CommitStage,
    copies: usize,
}

/// All versions of one checkpoint that replicas hold, by the hashes of their manifests.
#[derive(Default)]
struct RebuildCandidates(BTreeMap<String, RebuildCandidate>);

impl CheckpointStore {
    /// Fills this store's empty register with the checkpoints that these replicas hold.
    ///
    /// Every replica that can be read should be named: a version that only others hold is lost.
    pub fn rebuild(self, replicas: &[ReplicaId]) -> Result<(CheckpointStore, RebuildReport), ReplicatedError> {
        let chains = self.register().chains()?.len();
        if chains > 0 {
            return Err(ReplicatedError::NotEmpty { chains });
        }
        let directories: Result<Vec<ReplicaDirectory>, _> = replicas.iter().map(|id| self.replica(id)).collect();
        let directories = directories?;
        let found = find_candidates(&directories)?;
        let generation = next_generation(&directories, &found)?;
        for directory in &directories {
            directory.mark_generation(generation).map_err(failed(directory))?;
        }
        let generations = ChainName::of_generations();
        for number in 1..generation {
            if self.register().create(&generations, number, b"{}")? == Creation::Taken {
                return Err(ReplicatedError::NotEmpty { chains: 1 });
            }
        }
        let mut checkpoints = Vec::new();
        for ((resource, name), candidates) in found {
            let versions = candidates.choose();
            if !versions.is_empty() {
                checkpoints.push(self.rebuild_chain(generation, resource, name, &versions)?);
            }
        }
        let damaged = set_damaged_aside(&directories, &checkpoints)?;
        let generation = ResourceGeneration(generation);
        Ok((self.at_generation(generation), RebuildReport { generation, checkpoints, damaged }))
    }

    fn rebuild_chain(
        &self,
        generation: u64,
        resource: LogicalResourceName,
        name: CheckpointName,
        chosen: &[&RebuildCandidate],
    ) -> Result<RebuiltCheckpoint, ReplicatedError> {
        let chain = ChainName::of_checkpoint(&resource, &name)?;
        let versions: BTreeMap<Version, SavedVersion> = chosen.iter().map(|candidate| candidate.saved()).collect();
        let mut log: ChainLog<VersionChain> = ChainLog::new(self.register().clone(), chain);
        log.append(|_| Ok(Decision::Append(CheckpointChange::Rebuilt { generation, versions: versions.clone() })))?;
        let unproven = chosen.iter().filter(|candidate| candidate.stage == CommitStage::Prepared);
        let mut unproven: Vec<Version> = unproven.map(|candidate| candidate.manifest.manifest.version).collect();
        unproven.sort();
        Ok(RebuiltCheckpoint { resource, name, versions: versions.into_keys().collect(), unproven })
    }
}

/// Reads all replicas.
fn find_candidates(
    directories: &[ReplicaDirectory],
) -> Result<BTreeMap<(LogicalResourceName, CheckpointName), RebuildCandidates>, ReplicatedError> {
    let mut found: BTreeMap<_, RebuildCandidates> = BTreeMap::new();
    for directory in directories {
        for (resource, name) in directory.homes().map_err(failed(directory))? {
            let home = CheckpointHome::of(&resource, &name)?;
            for version in directory.whole_versions(&home).map_err(failed(directory))? {
                let manifest = &version.manifest.manifest;
                // A directory that was renamed by hand does not become another checkpoint.
                if (&manifest.resource, &manifest.name) == (&resource, &name) {
                    let candidates = found.entry((resource.clone(), name.clone())).or_default();
                    candidates.add(version.manifest, version.stage);
                }
            }
        }
    }
    Ok(found)
}

/// Sets aside what was published above the newest version of the register: it would be taken for a sign that the
/// register is an older copy.
fn set_damaged_aside(
    directories: &[ReplicaDirectory],
    rebuilt: &[RebuiltCheckpoint],
) -> Result<BTreeSet<(CheckpointName, Version)>, ReplicatedError> {
    let mut damaged = BTreeSet::new();
    for directory in directories {
        for (resource, name) in directory.homes().map_err(failed(directory))? {
            let of_home = |it: &&RebuiltCheckpoint| (&it.resource, &it.name) == (&resource, &name);
            let newest = rebuilt.iter().find(of_home).and_then(|it| it.versions.last().copied());
            let home = CheckpointHome::of(&resource, &name)?;
            let versions = directory.set_aside_above(&home, newest.unwrap_or(Version(0)));
            let versions = versions.map_err(failed(directory))?;
            damaged.extend(versions.into_iter().map(|version| (name.clone(), version)));
        }
    }
    Ok(damaged)
}

/// A generation above every one that a replica knows of.
fn next_generation(
    directories: &[ReplicaDirectory],
    found: &BTreeMap<(LogicalResourceName, CheckpointName), RebuildCandidates>,
) -> Result<u64, ReplicatedError> {
    let mut newest = 1;
    let mut take = |generation: u64, place: &dyn Fn() -> String| {
        if generation >= GENERATION_MAX {
            let (place, found, most) = (place(), generation, GENERATION_MAX - 1);
            return Err(ReplicatedError::GenerationTooHigh { place, found, most });
        }
        newest = newest.max(generation);
        Ok(())
    };
    for candidate in found.values().flat_map(|candidates| candidates.0.values()) {
        let manifest = &candidate.manifest.manifest;
        take(manifest.generation, &|| format!("version {} of `{}`", manifest.version, manifest.name))?;
    }
    for directory in directories {
        let generation = directory.generation().map_err(failed(directory))?;
        take(generation, &|| format!("replica `{}`", directory.id))?;
    }
    Ok(newest + 1)
}

fn failed(directory: &ReplicaDirectory) -> impl FnOnce(io::Error) -> ReplicatedError {
    let path = PathBuf::from(format!("replica {}", directory.id));
    move |source| ReplicatedError::File { path, source }
}

impl RebuildCandidate {
    /// What the register is to say of the version.
    fn saved(&self) -> (Version, SavedVersion) {
        let manifest = &self.manifest.manifest;
        let saved = SavedVersion {
            manifest: self.manifest.hash.clone(),
            nonce: manifest.nonce,
            fence: manifest.fence,
            step: manifest.step,
            bytes: manifest.content_bytes(),
            effect: manifest.effect.clone(),
        };
        (manifest.version, saved)
    }
}

impl RebuildCandidates {
    fn add(&mut self, manifest: SealedManifest, stage: CommitStage) {
        let candidate = self.0.entry(manifest.hash.clone());
        let candidate = candidate.or_insert(RebuildCandidate { manifest, stage, copies: 0 });
        candidate.copies += 1;
        candidate.stage = candidate.stage.max(stage);
    }

    /// The published versions, and the prepared ones between the newest of them and the chosen head.
    fn choose(&self) -> Vec<&RebuildCandidate> {
        let published = self.0.values().filter(|candidate| candidate.stage == CommitStage::Committed);
        let newest = published.clone().max_by_key(|candidate| candidate.manifest.manifest.version);
        let continues = |candidate: &&RebuildCandidate| match newest {
            None => true,
            Some(newest) => self.ancestors(candidate).any(|older| older.manifest.hash == newest.manifest.hash),
        };
        let head = self.0.values().filter(continues).max_by_key(|candidate| {
            let manifest = &candidate.manifest.manifest;
            (manifest.fence, manifest.version, candidate.copies, &candidate.manifest.hash)
        });
        let chosen = published.chain(head.into_iter().flat_map(|head| self.ancestors(head)));
        let mut seen = BTreeSet::new();
        chosen.filter(|candidate| seen.insert(&candidate.manifest.hash)).collect()
    }

    /// A version and those before it, as far as they were found.
    fn ancestors<'a>(&'a self, head: &'a RebuildCandidate) -> impl Iterator<Item = &'a RebuildCandidate> {
        std::iter::successors(Some(head), |candidate| {
            let manifest = &candidate.manifest.manifest;
            let parent = self.0.get(manifest.parent.as_ref()?)?;
            (parent.manifest.manifest.version < manifest.version).then_some(parent)
        })
    }
}
