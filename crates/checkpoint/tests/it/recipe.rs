//! A program that names no store, and carries the fence `FenceEpoch(1)` in its text.
//!
//! The test runs itself again as the program, because the store is found through the environment.

use crate::common::{fingerprint, names_in};
use std::env;
use std::path::Path;
use std::process::Command;
use sublet_checkpoint::{
    CheckpointName, EffectKey, FailureDomain, FenceEpoch, IdempotencyOutcome, LogicalResourceName, PlacementPolicy,
    PolicyHash, ReplicaHealth, ReplicaId, ReplicaLocator, ReplicaPolicy, ReplicaRole, ReplicaSetLocator,
    ReplicatedCheckpoint, ReplicatedError, ReplicatedIdempotencyStore, ResourceGeneration, SchemaId, Version,
};

/// Set for the program. As a test of its own it does nothing.
const PROGRAM: &str = "SUBLET_TEST_RECIPE";

fn stores() -> Result<(ReplicatedCheckpoint, ReplicatedIdempotencyStore), ReplicatedError> {
    let domain = FailureDomain::cell("local", "here");
    let policy =
        ReplicaPolicy::new(PlacementPolicy::new().allow(domain.clone())).min_replicas(1).write_quorum(1).read_quorum(1);
    let generation = ResourceGeneration(1);
    let replica = ReplicaLocator {
        replica_id: ReplicaId::new("local-a"),
        domain,
        role: ReplicaRole::Voter,
        health: ReplicaHealth::Healthy,
        epoch: FenceEpoch(1),
        content_generation: generation.0,
    };
    let locator = ReplicaSetLocator::new(generation, vec![replica]);
    let checkpoints = ReplicatedCheckpoint::new(
        LogicalResourceName::new("training-checkpoints"),
        SchemaId::new("checkpoint.v1"),
        FenceEpoch(1),
        policy.clone(),
        locator.clone(),
        PolicyHash([52; 32]),
    )?;
    let effects = ReplicatedIdempotencyStore::new(
        LogicalResourceName::new("training-effects"),
        SchemaId::new("effect.v1"),
        FenceEpoch(1),
        policy,
        locator,
    )?;
    Ok((checkpoints, effects))
}

#[test]
fn a_program_that_names_no_store() -> Result<(), ReplicatedError> {
    let Ok(step) = env::var(PROGRAM) else { return Ok(()) };
    // The test's name may stand on the line, so each outcome begins a new one.
    let step: u64 = step.parse().expect("a step");
    let (checkpoints, effects) = stores()?;
    let key = EffectKey::step("spot-resnet", step);
    let reservation = effects.reserve(key.clone(), fingerprint("batch"), None, FenceEpoch(1))?;
    if matches!(reservation.value.outcome, IdempotencyOutcome::Completed { .. }) {
        println!("\nduplicate");
        return Ok(());
    }
    let name = CheckpointName::new("job:spot-resnet:latest");
    let saved = checkpoints.save_bytes(name, Version(step - 1), b"weights", FenceEpoch(1))?;
    effects.complete(key, reservation.version, IdempotencyOutcome::Completed { effect: None }, FenceEpoch(1))?;
    println!("\ncompleted version {}", saved.version);
    Ok(())
}

fn run(step: u64, variable: &str, directory: &Path) -> String {
    let program = Command::new(env::current_exe().expect("a path"))
        .args(["recipe::a_program_that_names_no_store", "--exact", "--nocapture"])
        .env_remove("SUBLET_CHECKPOINTS")
        .env_remove("XDG_STATE_HOME")
        .env(PROGRAM, step.to_string())
        .env(variable, directory)
        .output()
        .expect("a program");
    assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stderr));
    let text = String::from_utf8_lossy(&program.stdout).into_owned();
    text.lines().find(|line| line.starts_with("completed") || *line == "duplicate").expect("an outcome").to_owned()
}

#[test]
fn the_environment_says_where_checkpoints_lie() {
    let places = [
        ("SUBLET_CHECKPOINTS", ""),
        ("XDG_STATE_HOME", "sublet/checkpoints"),
        ("HOME", ".local/state/sublet/checkpoints"),
    ];
    for (variable, below) in places {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(run(1, variable, directory.path()), "completed version 1");
        assert_eq!(run(1, variable, directory.path()), "duplicate");
        assert_eq!(run(2, variable, directory.path()), "completed version 2");
        let store = directory.path().join(below);
        let names: Vec<String> = names_in(&store).into_iter().filter(|name| !name.contains("-")).collect();
        assert_eq!(names, ["register.db", "replicas"], "{variable}");
        let home = store.join("replicas/local-a/training-checkpoints/job:spot-resnet:latest");
        assert_eq!(names_in(&home), ["000001", "000002", "latest"]);
    }
}
