//! What the tests share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sublet_checkpoint::files::{Files, LocalDisk};
use sublet_checkpoint::register::{ChainRegister, MemoryRegister};
use sublet_checkpoint::{
    CheckpointName, CheckpointStore, EffectFingerprint, FailureDomain, FenceEpoch, LogicalResourceName,
    PlacementPolicy, PolicyHash, ReplicaHealth, ReplicaId, ReplicaLocator, ReplicaPolicy, ReplicaRole,
    ReplicaSetLocator, ReplicatedCheckpoint, ReplicatedIdempotencyStore, ResourceGeneration, SchemaId, StallLimits,
};

/// How many copies are written and read.
#[derive(Clone, Copy)]
pub struct Quorums {
    pub write: usize,
    pub read: usize,
}

pub const ONE: Quorums = Quorums { write: 1, read: 1 };
pub const TWO: Quorums = Quorums { write: 2, read: 1 };

pub fn job() -> CheckpointName {
    CheckpointName::new("job:7:latest")
}

pub fn resource() -> LogicalResourceName {
    LogicalResourceName::new("models")
}

pub fn fingerprint(of: &str) -> EffectFingerprint {
    EffectFingerprint::of(of.as_bytes())
}

pub fn policy(quorums: Quorums) -> ReplicaPolicy {
    ReplicaPolicy::new(PlacementPolicy::new().allow(domain())).write_quorum(quorums.write).read_quorum(quorums.read)
}

fn domain() -> FailureDomain {
    FailureDomain::cell("local", "tests")
}

pub fn locator(replicas: &[&str]) -> ReplicaSetLocator {
    let replica = |id: &&str| ReplicaLocator {
        replica_id: ReplicaId::new(*id),
        domain: domain(),
        role: ReplicaRole::Voter,
        health: ReplicaHealth::Healthy,
        epoch: FenceEpoch(1),
        content_generation: 1,
    };
    ReplicaSetLocator::new(ResourceGeneration(1), replicas.iter().map(replica).collect())
}

/// The checkpoints of a process that opened the store in this directory.
pub fn checkpoints_in(directory: &Path) -> ReplicatedCheckpoint {
    checkpoints(&CheckpointStore::open(directory).expect("a store"), &["a"], ONE)
}

pub fn checkpoints(store: &CheckpointStore, replicas: &[&str], quorums: Quorums) -> ReplicatedCheckpoint {
    let schema = SchemaId::new("tests.v1");
    let (policy, locator) = (policy(quorums), locator(replicas));
    ReplicatedCheckpoint::in_store(store, resource(), schema, FenceEpoch(1), policy, locator, PolicyHash([7; 32]))
        .expect("checkpoints")
}

pub fn effects(store: &CheckpointStore) -> ReplicatedIdempotencyStore {
    let name = LogicalResourceName::new("effects");
    let schema = SchemaId::new("effects.v1");
    ReplicatedIdempotencyStore::in_store(store, name, schema, FenceEpoch(1), policy(ONE), locator(&["a"]))
        .expect("effects")
}

/// A register in memory that several stores share, as several processes share a real one.
pub fn register() -> Arc<dyn ChainRegister> {
    Arc::new(MemoryRegister::new())
}

/// A store over these replicas, which lie below a directory. Nothing is waited for.
pub fn store_over(
    register: &Arc<dyn ChainRegister>,
    directory: &Path,
    replicas: &[&str],
    files: Arc<dyn Files>,
) -> CheckpointStore {
    let places = replicas.iter().map(|id| (ReplicaId::new(*id), directory.join(id)));
    let limits = StallLimits { needed: Duration::from_secs(60), surplus: Duration::from_secs(60) };
    CheckpointStore::with_parts(Arc::clone(register), places, files).expect("a store").with_stall_limits(limits)
}

/// The checkpoints over real directories `a`, `b` and `c`, of which two are written.
pub fn three_replicas(register: &Arc<dyn ChainRegister>, directory: &Path, quorums: Quorums) -> ReplicatedCheckpoint {
    let names = ["a", "b", "c"];
    for name in names {
        std::fs::create_dir_all(directory.join(name)).expect("a directory");
    }
    checkpoints(&store_over(register, directory, &names, Arc::new(LocalDisk)), &names, quorums)
}

/// The names in a directory, in order.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}
