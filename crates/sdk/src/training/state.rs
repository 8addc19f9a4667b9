//! The durable state of a training: its checkpoints and the record of its steps.

use crate::register::checkpoint_store;
use sublet_checkpoint::{
    CheckpointName, CheckpointStore, FailureDomain, FenceEpoch, LogicalResourceName, PlacementPolicy, PolicyHash,
    ReplicaHealth, ReplicaId, ReplicaLocator, ReplicaPolicy, ReplicaRole, ReplicaSetLocator, ReplicatedCheckpoint,
    ReplicatedError, ReplicatedIdempotencyStore, ResourceGeneration, SchemaId,
};

/// What [`replicated_training_state`] calls its checkpoints and its records.
const CHECKPOINTS: &str = "training-checkpoints";
const STEPS: &str = "training-steps";
/// The layout of both: the checkpoint is the program's bytes as they are.
const CHECKPOINT_SCHEMA: &str = "training-checkpoint.v1";
const STEP_SCHEMA: &str = "training-step.v1";
/// The one copy.
const REPLICA: &str = "local";

/// Checkpoints and step records with one copy, in the store of this user (`SUBLET_CHECKPOINTS`).
///
/// Programs that want copies on several disks make both values themselves, with a policy and a locator.
pub fn replicated_training_state() -> Result<(ReplicatedCheckpoint, ReplicatedIdempotencyStore), ReplicatedError> {
    replicated_training_state_in(&checkpoint_store()?)
}

/// The same in another store.
pub fn replicated_training_state_in(
    store: &CheckpointStore,
) -> Result<(ReplicatedCheckpoint, ReplicatedIdempotencyStore), ReplicatedError> {
    let domain = FailureDomain::cell("local", "disk");
    let policy = ReplicaPolicy::new(PlacementPolicy::new().allow(domain.clone()));
    let generation = ResourceGeneration(1);
    let replica = ReplicaLocator {
        replica_id: ReplicaId::new(REPLICA),
        domain,
        role: ReplicaRole::Voter,
        health: ReplicaHealth::Healthy,
        epoch: FenceEpoch(1),
        content_generation: generation.0,
    };
    let locator = ReplicaSetLocator::new(generation, vec![replica]);
    let checkpoints = ReplicatedCheckpoint::in_store(
        store,
        LogicalResourceName::new(CHECKPOINTS),
        SchemaId::new(CHECKPOINT_SCHEMA),
        FenceEpoch(1),
        policy.clone(),
        locator.clone(),
        PolicyHash([0; 32]),
    )?;
    let steps = ReplicatedIdempotencyStore::in_store(
        store,
        LogicalResourceName::new(STEPS),
        SchemaId::new(STEP_SCHEMA),
        FenceEpoch(1),
        policy,
        locator,
    )?;
    Ok((checkpoints, steps))
}

/// The name of a job's checkpoint.
pub fn training_checkpoint_name(job: &str) -> CheckpointName {
    CheckpointName::new(format!("job:{job}:latest"))
}
