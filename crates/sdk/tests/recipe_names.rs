//! Every name that the recipes of the cookbook use exists, and fits where they use it.

use sublet::replicated::{
    CheckpointName, EffectFingerprint, EffectKey, FailureDomain, FenceEpoch, IdempotencyOutcome, LogicalResourceName,
    PlacementPolicy, PolicyHash, ReplicaHealth, ReplicaId, ReplicaLocator, ReplicaPolicy, ReplicaRole,
    ReplicaSetLocator, ReplicatedCheckpoint, ReplicatedError, ReplicatedIdempotencyStore, ResourceGeneration, SchemaId,
    Version,
};
use sublet::testing::LocalHost;
use sublet::training::{
    TrainingBatch, TrainingError, TrainingStepOutcome, acquire_preemptible_training_lease, replicated_training_state,
    run_training_step,
};
use sublet::{
    BlockBuilder, BlockLease, Durable, Fabric, FabricError, GpuBuilder, GpuExclusivityClass, GpuLease, GpuSession,
    GrafosError, KernelArgs, LeaseStatus, RenewalManager, RenewalPolicy,
};

const GIB: u64 = 1 << 30;

fn acquire_for_a_session() -> Result<GpuLease, GrafosError> {
    let class = GpuExclusivityClass::SessionExclusive;
    Ok(GpuBuilder::new().min_vram(16 * GIB).lease_secs(120).exclusivity(class).acquire()?)
}

/// A studio's session, with the errors of the fabric alone.
fn studio(blocks: BlockLease) -> Result<LeaseStatus, FabricError> {
    let lease = GpuBuilder::new()
        .min_vram(16 * GIB)
        .lease_secs(300)
        .exclusivity(GpuExclusivityClass::SessionExclusive)
        .acquire()?;
    let mut renewals = RenewalManager::new();
    renewals.register(lease.lease_id(), lease.expires_at_unix_secs(), RenewalPolicy::default());
    let model = Durable::new(vec![0_u8; 1024], blocks);
    model.checkpoint()?;
    let session = GpuSession::new(&lease);
    assert_eq!((session.status(), renewals.len()), (lease.status(), 1));
    Ok(lease.status())
}

/// A cell of a notebook, on a fabric of its own choice.
fn cell(fabric: &Fabric, blocks: BlockLease) -> Result<Vec<u8>, FabricError> {
    let gpu = fabric.alloc_gpu().min_vram(2 * GIB).lease_secs(300).acquire()?;
    assert_eq!(gpu.status(), LeaseStatus::Active);
    let restored: Durable<Vec<u8>> = Durable::restore(blocks)?;
    Ok(restored.clone())
}

fn state() -> Result<(ReplicatedCheckpoint, ReplicatedIdempotencyStore), ReplicatedError> {
    let domain = FailureDomain::cell("here", "tests");
    let allowed = PlacementPolicy::new().allow(domain.clone());
    let policy = ReplicaPolicy::new(allowed).min_replicas(1).write_quorum(1).read_quorum(1);
    let generation = ResourceGeneration(1);
    let replica = ReplicaLocator {
        replica_id: ReplicaId::new("a"),
        domain,
        role: ReplicaRole::Voter,
        health: ReplicaHealth::Healthy,
        epoch: FenceEpoch(1),
        content_generation: generation.0,
    };
    let locator = ReplicaSetLocator::new(generation, vec![replica]);
    let (name, schema) = (LogicalResourceName::new("models"), SchemaId::new("model.v1"));
    let hash = PolicyHash([52; 32]);
    let checkpoints = ReplicatedCheckpoint::new(name, schema, FenceEpoch(1), policy.clone(), locator.clone(), hash)?;
    let (name, schema) = (LogicalResourceName::new("steps"), SchemaId::new("step.v1"));
    Ok((checkpoints, ReplicatedIdempotencyStore::new(name, schema, FenceEpoch(1), policy, locator)?))
}

/// One step in the order that makes it happen once, by hand.
fn step(
    lease: &GpuLease,
    checkpoints: &ReplicatedCheckpoint,
    effects: &ReplicatedIdempotencyStore,
    batch: TrainingBatch,
    module_bytes: &[u8],
) -> Result<TrainingStepOutcome, TrainingError> {
    if lease.status() != LeaseStatus::Active {
        return Err(TrainingError::LeaseNotActive(lease.status()));
    }
    let (key, print) = (EffectKey::step(batch.job_id.clone(), batch.step), EffectFingerprint::of(&batch.input));
    let reservation = effects.reserve(key.clone(), print, None, FenceEpoch(1))?;
    if matches!(reservation.value.outcome, IdempotencyOutcome::Completed { .. }) {
        return Ok(TrainingStepOutcome::Duplicate { job_id: batch.job_id, step: batch.step });
    }
    let session = GpuSession::new(lease);
    let input = session.mem_alloc(batch.input.len() as u64)?;
    session.mem_write(&input, 0, &batch.input)?;
    let module = session.module_load(module_bytes)?;
    let args = KernelArgs::new().push_u64(batch.step).push_u32(batch.output_len).push_buffer(&input);
    session.launch_with_args(&module, "train_step", [1, 1, 1], [1, 1, 1], args)?;
    session.sync()?;
    let output = session.mem_read(&input, 0, batch.output_len)?;
    session.module_unload(module)?;
    session.mem_free(input)?;
    let name = CheckpointName::new(format!("job:{}:latest", batch.job_id));
    let saved = checkpoints.save_bytes(name, Version(0), &output, FenceEpoch(1))?;
    effects.complete(key, reservation.version, IdempotencyOutcome::Completed { effect: None }, FenceEpoch(1))?;
    Ok(TrainingStepOutcome::Completed { job_id: batch.job_id, step: batch.step, output, version: saved.version })
}

#[test]
fn a_studio_and_a_notebook_work_as_they_are_written() {
    let (host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let blocks = || {
        let builder = BlockBuilder::new().min_blocks(512).lease_secs(3600).name("model").in_directory(dir.path());
        builder.acquire().expect("blocks")
    };
    assert_eq!(studio(blocks()).expect("it works"), LeaseStatus::Active);
    assert_eq!(cell(host.fabric(), blocks()).expect("it works"), vec![0; 1024]);
    assert_eq!(acquire_for_a_session().expect("there is room").status(), LeaseStatus::Active);
}

#[test]
fn the_names_of_the_training_recipe_fit_together() {
    // These use the user's own store, so they are compiled and not run.
    let _: fn() -> Result<_, ReplicatedError> = state;
    let _: fn() -> Result<_, ReplicatedError> = replicated_training_state;
    let _: fn(u64, u64) -> Result<GpuLease, FabricError> = acquire_preemptible_training_lease;
    let _ = (step as fn(&_, &_, &_, _, &_) -> _, run_training_step as fn(&mut _, &mut _, &_, &_, &_, _, _) -> _);
}
