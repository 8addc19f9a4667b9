//! Checkpoints with a fence, a chain of versions and several copies.
//!
//! ```text
//! open ─► fence          save ─► version n + 1, or an error and nothing
//!                        load ─► the newest version, whole and verified
//! ```
//!
//! Each call with a fence compares it with the newest one in the register. [`ReplicatedCheckpoint::open`]
//! issues a new one, and every process that opened the name before is refused from then on.
//! `FenceEpoch(1)` works for a name that was never opened.
//!
//! A lease of a GPU has a fence of its own, `lease.epoch()`. It grows with each lease, and may be given
//! to [`open_with_lease`](ReplicatedCheckpoint::open_with_lease) as information. It is never compared:
//! two leases of different GPUs may have the same number, and one checkpoint outlives many leases.
//!
//! Absent on purpose: the daemon, GPUs and leases.

mod background;
mod load;
mod request;
mod save;
mod scrub;
mod sweep;

pub use background::BackgroundSaver;
pub use load::LoadedCheckpoint;
pub use request::SaveRequest;
pub use save::SaveReport;
pub use scrub::{DamagedCopy, ScrubReport};

use crate::chain::checkpoint::{CommittedEffect, SavedVersion, VersionChain};
use crate::chain::log::{Appended, ChainLog, ChainLogs, Decision};
use crate::content::parts_of_directory;
use crate::effect_store::VersionedValue;
use crate::error::ReplicatedError;
use crate::manifest::SealedManifest;
use crate::names::{
    ChainName, CheckpointName, FenceEpoch, LogicalResourceName, PolicyHash, ReplicaId, SchemaId, Version, hex,
};
use crate::policy::{PlacementPolicy, ReplicaHealth, ReplicaPolicy, ReplicaRole, ReplicaSetLocator};
use crate::replica::{CheckpointHome, ReplicaDirectory};
use crate::store::CheckpointStore;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{io, thread};

/// The checkpoints of one resource. Clones share what they know of the register.
#[derive(Clone)]
pub struct ReplicatedCheckpoint {
    shared: Arc<CheckpointResource>,
}

/// What all clones share.
struct CheckpointResource {
    store: CheckpointStore,
    resource: LogicalResourceName,
    schema: SchemaId,
    policy_hash: String,
    lowest: FenceEpoch,
    policy: ReplicaPolicy,
    replicas: Vec<ReplicaMember>,
    logs: ChainLogs<VersionChain>,
    manifests: Mutex<BTreeMap<CheckpointName, Arc<SealedManifest>>>,
}

/// One replica, and how it did last.
struct ReplicaMember {
    directory: ReplicaDirectory,
    role: ReplicaRole,
    health: Mutex<ReplicaHealth>,
}

/// A committed version, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Its number.
    pub version: Version,
    /// The fence that it was saved under.
    pub fence: FenceEpoch,
    /// The training step that it contains.
    pub step: Option<u64>,
    /// The bytes of its parts.
    pub bytes: u64,
    /// The effect that it completed.
    pub effect: Option<CommittedEffect>,
    /// The jobs that keep it from being pruned.
    pub pinned_by: Vec<String>,
}

impl ReplicatedCheckpoint {
    /// The checkpoints of a resource, in the store of [`CheckpointStore::from_environment`].
    ///
    /// Calls with a fence below this one are refused. A version that was saved with another schema or
    /// policy hash is not loaded.
    pub fn new(
        resource: LogicalResourceName,
        schema: SchemaId,
        fence: FenceEpoch,
        policy: ReplicaPolicy,
        locator: ReplicaSetLocator,
        policy_hash: PolicyHash,
    ) -> Result<ReplicatedCheckpoint, ReplicatedError> {
        let store = CheckpointStore::from_environment()?;
        ReplicatedCheckpoint::in_store(&store, resource, schema, fence, policy, locator, policy_hash)
    }

    /// The checkpoints of a resource, in this store.
    pub fn in_store(
        store: &CheckpointStore,
        resource: LogicalResourceName,
        schema: SchemaId,
        fence: FenceEpoch,
        policy: ReplicaPolicy,
        locator: ReplicaSetLocator,
        policy_hash: PolicyHash,
    ) -> Result<ReplicatedCheckpoint, ReplicatedError> {
        policy.check(&locator)?;
        store.check_generation(&locator)?;
        ChainName::of_checkpoint(&resource, &CheckpointName::new("name"))?;
        let mut replicas = Vec::new();
        for replica in &locator.replicas {
            let directory = store.replica(&replica.replica_id)?;
            replicas.push(ReplicaMember { directory, role: replica.role, health: Mutex::new(replica.health) });
        }
        let shared = CheckpointResource {
            store: store.clone(),
            resource,
            schema,
            policy_hash: hex(&policy_hash.0),
            lowest: fence,
            policy,
            replicas,
            logs: ChainLogs::new(store.register().clone()),
            manifests: Mutex::default(),
        };
        Ok(ReplicatedCheckpoint { shared: Arc::new(shared) })
    }

    /// The checkpoints of a resource without the program that saves them: for calls that neither save nor load.
    pub(crate) fn of_operator(
        store: &CheckpointStore,
        resource: LogicalResourceName,
        replicas: impl IntoIterator<Item = ReplicaDirectory>,
    ) -> ReplicatedCheckpoint {
        let member = |directory| {
            let health = Mutex::new(ReplicaHealth::Healthy);
            ReplicaMember { directory, role: ReplicaRole::Voter, health }
        };
        let shared = CheckpointResource {
            store: store.clone(),
            resource,
            schema: SchemaId::new(""),
            policy_hash: String::new(),
            lowest: FenceEpoch(0),
            policy: ReplicaPolicy::new(PlacementPolicy::new()),
            replicas: replicas.into_iter().map(member).collect(),
            logs: ChainLogs::new(store.register().clone()),
            manifests: Mutex::default(),
        };
        ReplicatedCheckpoint { shared: Arc::new(shared) }
    }

    /// Opens a checkpoint for this process and returns its fence; every process with an older one is
    /// stale from then on. What crashed processes left behind is finished or removed.
    pub fn open(&self, name: &CheckpointName) -> Result<FenceEpoch, ReplicatedError> {
        self.open_at_least(name, FenceEpoch(0), None)
    }

    /// Opens a checkpoint, and notes the fence of the lease that the process works under.
    pub fn open_with_lease(&self, name: &CheckpointName, lease_fence: u64) -> Result<FenceEpoch, ReplicatedError> {
        self.open_at_least(name, FenceEpoch(0), Some(lease_fence))
    }

    /// Opens a checkpoint with a new fence that is not below this one.
    pub(crate) fn open_at_least(
        &self,
        name: &CheckpointName,
        at_least: FenceEpoch,
        lease_fence: Option<u64>,
    ) -> Result<FenceEpoch, ReplicatedError> {
        // A register that is behind its replicas is refused before it grows.
        self.sweep(name, &self.state(name)?)?;
        let state = self.with_log(name, |log| {
            log.append(|state| Ok(Decision::Append(state.open(at_least, lease_fence))))?;
            Ok(log.state().clone())
        })?;
        self.sweep(name, &state)?;
        Ok(state.fences().newest)
    }

    /// Commits the bytes as the version after `expected`. A failed call has committed nothing, unless the
    /// error is `register_unavailable`; then [`newest`](Self::newest) tells.
    pub fn save_bytes(
        &self,
        name: CheckpointName,
        expected: Version,
        bytes: &[u8],
        fence: FenceEpoch,
    ) -> Result<VersionedValue<SaveReport>, ReplicatedError> {
        self.save(SaveRequest::new(name, expected, fence).bytes(bytes.to_vec()))
    }

    /// Commits a directory that another program wrote, as the next version with this step.
    ///
    /// The files are copied. They must not change meanwhile; a change that is noticed is an error.
    pub fn commit_directory(
        &self,
        name: CheckpointName,
        expected: Version,
        directory: &Path,
        step: u64,
        fence: FenceEpoch,
    ) -> Result<VersionedValue<SaveReport>, ReplicatedError> {
        let parts = parts_of_directory(directory)?;
        self.save(SaveRequest::new(name, expected, fence).parts(parts).step(step))
    }

    /// The newest committed version without its bytes; `None` if nothing was saved.
    pub fn newest(&self, name: &CheckpointName) -> Result<Option<CheckpointSummary>, ReplicatedError> {
        Ok(self.versions(name)?.pop())
    }

    /// The newest committed step; `None` if no version has one.
    pub fn newest_step(&self, name: &CheckpointName) -> Result<Option<u64>, ReplicatedError> {
        Ok(self.state(name)?.newest_step())
    }

    /// The committed versions that were not pruned, oldest first.
    pub fn versions(&self, name: &CheckpointName) -> Result<Vec<CheckpointSummary>, ReplicatedError> {
        let state = self.state(name)?;
        let summary = |(version, saved): (&Version, &SavedVersion)| CheckpointSummary {
            version: *version,
            fence: saved.fence,
            step: saved.step,
            bytes: saved.bytes,
            effect: saved.effect.clone(),
            pinned_by: state.pins_of(*version).map(str::to_owned).collect(),
        };
        Ok(state.versions().iter().map(summary).collect())
    }

    /// The fence that calls must carry now.
    pub fn current_fence(&self, name: &CheckpointName) -> Result<FenceEpoch, ReplicatedError> {
        Ok(self.state(name)?.fences().newest)
    }

    /// Deletes versions. The newest one and pinned ones are refused, and then nothing is deleted.
    pub fn prune(&self, name: &CheckpointName, versions: &[Version], fence: FenceEpoch) -> Result<(), ReplicatedError> {
        self.check_fence(fence)?;
        let state = self.with_log(name, |log| {
            log.append(|state| state.prune(versions, fence).map(Decision::Append))?;
            Ok(log.state().clone())
        })?;
        self.sweep(name, &state)
    }

    /// Keeps a version from being pruned while a job names it.
    pub fn pin(&self, name: &CheckpointName, version: Version, job: &str) -> Result<(), ReplicatedError> {
        self.append(name, |state| state.pin(version, job).map(Decision::from))
    }

    /// Ends that a job keeps a version.
    pub fn unpin(&self, name: &CheckpointName, version: Version, job: &str) -> Result<(), ReplicatedError> {
        self.append(name, |state| Ok(state.unpin(version, job).into()))
    }

    /// The directories that hold a version as ordinary files. Nothing in them was verified by this call.
    pub fn directories(
        &self,
        name: &CheckpointName,
        version: Version,
    ) -> Result<Vec<(ReplicaId, PathBuf)>, ReplicatedError> {
        self.state(name)?.version(version)?;
        let home = self.home(name)?;
        let replicas = self.shared.replicas.iter().map(|replica| &replica.directory);
        let holders = replicas.filter(|replica| replica.has_version(&home, version).unwrap_or(false));
        let directory =
            |replica: &ReplicaDirectory| Some((replica.id.clone(), replica.version_path(&home, version).ok()??));
        Ok(holders.filter_map(directory).collect())
    }

    /// Each replica, and how it did in the last call that used it.
    pub fn health(&self) -> Vec<(ReplicaId, ReplicaRole, ReplicaHealth)> {
        let member = |replica: &ReplicaMember| (replica.directory.id.clone(), replica.role, replica.health());
        self.shared.replicas.iter().map(member).collect()
    }

    /// The chain of a checkpoint in the register.
    pub(crate) fn chain(&self, name: &CheckpointName) -> Result<ChainName, ReplicatedError> {
        ChainName::of_checkpoint(&self.shared.resource, name)
    }

    pub(crate) fn home(&self, name: &CheckpointName) -> Result<CheckpointHome, ReplicatedError> {
        CheckpointHome::of(&self.shared.resource, name)
    }

    /// The checkpoint as the register has it now.
    pub(crate) fn state(&self, name: &CheckpointName) -> Result<VersionChain, ReplicatedError> {
        self.with_log(name, |log| log.refresh().cloned())
    }

    fn append(
        &self,
        name: &CheckpointName,
        decide: impl Fn(&VersionChain) -> Result<Decision<crate::chain::checkpoint::CheckpointChange>, ReplicatedError>,
    ) -> Result<(), ReplicatedError> {
        self.with_log(name, |log| log.append(decide)).map(|_: Appended| ())
    }

    fn with_log<T>(
        &self,
        name: &CheckpointName,
        call: impl FnOnce(&mut ChainLog<VersionChain>) -> Result<T, ReplicatedError>,
    ) -> Result<T, ReplicatedError> {
        self.shared.logs.with(self.chain(name)?, call)
    }

    fn check_fence(&self, given: FenceEpoch) -> Result<(), ReplicatedError> {
        let current = self.shared.lowest;
        if given < current { Err(ReplicatedError::Fenced { given, current }) } else { Ok(()) }
    }
}

/// Starts a thread. The other end can be upgraded while it runs.
fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Weak<()>> {
    let running = Arc::new(());
    let thread = Arc::downgrade(&running);
    let work = move || {
        let _running = running;
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(thread)
}

impl ReplicaMember {
    fn health(&self) -> ReplicaHealth {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_health(&self, health: ReplicaHealth) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }

    fn is_voter(&self) -> bool {
        self.role == ReplicaRole::Voter
    }
}
