//! A checkpoint as an operator sees it, without the program that saves it.
//!
//! ```text
//! register ──► versions, fence, pins          replicas ──► copies: found by their manifests, not read
//!                                                          export, scrub: read, every byte verified
//! ```
//! The program knows the schema, the policy and the replicas. Here the replicas are those of the store that
//! have a directory for the checkpoint.
//!
//! Absent on purpose: saving and loading.

mod export;

pub use export::ExportReport;

use crate::chain::checkpoint::VersionChain;
use crate::error::{ReplicaFailure, ReplicatedError};
use crate::manifest::Manifest;
use crate::names::{CheckpointName, FenceEpoch, LogicalResourceName, ReplicaId, SchemaId, Version};
use crate::replica::{CheckpointHome, ReplicaDirectory};
use crate::replicated::{CheckpointSummary, ReplicatedCheckpoint, ScrubReport};
use crate::store::CheckpointStore;
use std::path::PathBuf;

/// One checkpoint of a store.
pub struct StoredCheckpoint {
    store: CheckpointStore,
    resource: LogicalResourceName,
    name: CheckpointName,
    home: CheckpointHome,
    replicas: Vec<ReplicaDirectory>,
    unreadable: Vec<ReplicaFailure>,
}

/// One copy of a version. Its manifest was verified, its other bytes were not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCopy {
    /// The replica.
    pub replica: ReplicaId,
    /// The directory of the version, with ordinary files.
    pub directory: PathBuf,
    /// Why this is no copy; `None` if it is one.
    pub missing: Option<String>,
}

/// What the manifest of a version says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    /// How the bytes are to be understood.
    pub schema: SchemaId,
    /// When it was saved, by the clock of the program that saved it.
    pub saved_unix_s: u64,
    /// Its files.
    pub files: Vec<StoredFile>,
}

/// One file of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Its path inside the version's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

impl CheckpointStore {
    /// A checkpoint of this store. One that the register does not know has no versions.
    pub fn stored(
        &self,
        resource: &LogicalResourceName,
        name: &CheckpointName,
    ) -> Result<StoredCheckpoint, ReplicatedError> {
        let home = CheckpointHome::of(resource, name)?;
        let (mut replicas, mut unreadable) = (Vec::new(), Vec::new());
        for (replica, _) in self.replicas()? {
            let directory = self.replica(&replica)?;
            match directory.has_home(&home) {
                Ok(true) => replicas.push(directory),
                Ok(false) => {}
                Err(error) => unreadable.push(ReplicaFailure { replica, reason: error.to_string() }),
            }
        }
        let (store, resource, name) = (self.clone(), resource.clone(), name.clone());
        Ok(StoredCheckpoint { store, resource, name, home, replicas, unreadable })
    }
}

impl StoredCheckpoint {
    /// The resource.
    pub fn resource(&self) -> &LogicalResourceName {
        &self.resource
    }

    /// The name.
    pub fn name(&self) -> &CheckpointName {
        &self.name
    }

    /// The committed versions that were not pruned, oldest first.
    pub fn versions(&self) -> Result<Vec<CheckpointSummary>, ReplicatedError> {
        self.checkpoints().versions(&self.name)
    }

    /// An error if the register is older than a replica, such as a copy from before the newest saves.
    pub fn check_register(&self) -> Result<(), ReplicatedError> {
        let checkpoints = self.checkpoints();
        checkpoints.check_register(&self.name, &checkpoints.state(&self.name)?)
    }

    /// The newest fence.
    pub fn fence(&self) -> Result<FenceEpoch, ReplicatedError> {
        self.checkpoints().current_fence(&self.name)
    }

    /// The replicas of the store that cannot be read, such as a disk that is not mounted.
    pub fn unreadable(&self) -> &[ReplicaFailure] {
        &self.unreadable
    }

    /// The copies of a version, by their manifests.
    pub fn copies(&self, version: Version) -> Result<Vec<StoredCopy>, ReplicatedError> {
        let state = self.state()?;
        let hash = &state.version(version)?.manifest;
        let copy = |replica: &ReplicaDirectory| {
            // A writer may have died between the commit and the publication.
            let published = replica.publish_if_prepared(&self.home, &state, version);
            let found = published.map_err(|error| error.to_string());
            let found = found.and_then(|()| replica.read_manifest(&self.home, version, hash));
            let directory = replica.version_path(&self.home, version).ok().flatten();
            let directory = directory.unwrap_or_else(|| replica.path(&self.home).join(version.directory()));
            StoredCopy { replica: replica.id.clone(), directory, missing: found.err() }
        };
        Ok(self.replicas.iter().map(copy).collect())
    }

    /// The manifest of a version; `None` if no replica holds it.
    pub fn manifest(&self, version: Version) -> Result<Option<StoredManifest>, ReplicatedError> {
        Ok(self.find_manifest(&self.state()?, version)?.map(|manifest| StoredManifest {
            schema: manifest.schema,
            saved_unix_s: manifest.unix_s,
            files: manifest.parts.into_iter().map(|part| StoredFile { name: part.name, bytes: part.bytes }).collect(),
        }))
    }

    /// Deletes versions under a new fence, which it returns: a program that saves this checkpoint is stale then.
    ///
    /// The newest version and pinned ones are refused. A refused call deletes nothing and issues no fence.
    pub fn remove(&self, versions: &[Version]) -> Result<FenceEpoch, ReplicatedError> {
        let state = self.state()?;
        state.prune(versions, state.fences().newest)?;
        let checkpoints = self.checkpoints();
        let fence = checkpoints.open(&self.name)?;
        checkpoints.prune(&self.name, versions, fence)?;
        Ok(fence)
    }

    /// Keeps a version from being pruned and removed while a job names it. Programs that save go on.
    pub fn pin(&self, version: Version, job: &str) -> Result<(), ReplicatedError> {
        self.checkpoints().pin(&self.name, version, job)
    }

    /// Ends that a job keeps a version. One that it does not keep is no error.
    pub fn unpin(&self, version: Version, job: &str) -> Result<(), ReplicatedError> {
        self.checkpoints().unpin(&self.name, version, job)
    }

    /// The jobs that keep a version.
    pub fn pins_of(&self, version: Version) -> Result<Vec<String>, ReplicatedError> {
        let state = self.state()?;
        state.version(version)?;
        Ok(state.pins_of(version).map(str::to_owned).collect())
    }

    /// Reads every copy of every version, and replaces damaged and missing ones by good ones.
    ///
    /// `fill` are replicas that get copies although they hold nothing of this checkpoint yet, such as new disks.
    pub fn scrub(&self, fill: &[ReplicaId]) -> Result<ScrubReport, ReplicatedError> {
        let mut replicas = self.replicas.clone();
        for replica in fill.iter().filter(|replica| self.replicas.iter().all(|known| known.id != **replica)) {
            replicas.push(self.store.replica(replica)?);
        }
        ReplicatedCheckpoint::of_operator(&self.store, self.resource.clone(), replicas).scrub(&self.name)
    }

    fn checkpoints(&self) -> ReplicatedCheckpoint {
        ReplicatedCheckpoint::of_operator(&self.store, self.resource.clone(), self.replicas.iter().cloned())
    }

    fn state(&self) -> Result<VersionChain, ReplicatedError> {
        self.checkpoints().state(&self.name)
    }

    fn find_manifest(&self, state: &VersionChain, version: Version) -> Result<Option<Manifest>, ReplicatedError> {
        let hash = &state.version(version)?.manifest;
        let found = self.replicas.iter().find_map(|replica| {
            replica.publish_if_prepared(&self.home, state, version).ok()?;
            replica.read_manifest(&self.home, version, hash).ok()
        });
        Ok(found.map(|sealed| sealed.manifest))
    }
}
