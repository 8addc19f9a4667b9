//! The register is lost, and made anew from the replicas.

use crate::common::{TWO, checkpoints, job, locator, policy, register, resource, store_over};
use crate::failing_register::{FailingRegister, Outage};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use sublet_checkpoint::files::LocalDisk;
use sublet_checkpoint::register::{ChainRegister, SqliteRegister};
use sublet_checkpoint::{
    CheckpointStore, FenceEpoch, PolicyHash, RebuildReport, ReplicaId, ReplicaSetLocator, ReplicatedCheckpoint,
    ReplicatedError, ResourceGeneration, SaveRequest, SchemaId, Version,
};

const THREE: [&str; 3] = ["a", "b", "c"];

fn store(register: &Arc<dyn ChainRegister>, directory: &Path) -> CheckpointStore {
    for name in THREE {
        fs::create_dir_all(directory.join(name)).expect("a directory");
    }
    store_over(register, directory, &THREE, Arc::new(LocalDisk))
}

fn rebuild(directory: &Path) -> Result<(CheckpointStore, RebuildReport), ReplicatedError> {
    store(&register(), directory).rebuild(&THREE.map(ReplicaId::new))
}

/// Saves steps under one fence; the register breaks off at its last calls if that is wished.
fn save_steps(register: &Arc<dyn ChainRegister>, directory: &Path, steps: u64) -> Result<FenceEpoch, ReplicatedError> {
    let checkpoints = checkpoints(&store(register, directory), &THREE, TWO);
    let fence = checkpoints.open(&job())?;
    for step in 1..=steps {
        let request = SaveRequest::new(job(), Version(step - 1), fence).step(step);
        checkpoints.save(request.bytes(format!("state {step}").into_bytes()))?;
    }
    Ok(fence)
}

#[test]
fn a_rebuilt_register_has_every_version_and_fences_out_the_past() {
    let directory = tempfile::tempdir().expect("a directory");
    let lost = register();
    let old_fence = save_steps(&lost, directory.path(), 3).expect("versions");
    let (store, report) = rebuild(directory.path()).expect("a register");
    assert_eq!(report.generation, ResourceGeneration(2));
    assert_eq!(report.checkpoints[0].versions, [Version(2), Version(3)]);
    assert_eq!(report.checkpoints[0].unproven, []);
    let checkpoints = checkpoints(&store, &THREE, TWO);
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!((loaded.step, loaded.bytes().expect("bytes").as_ref()), (Some(3), b"state 3".as_slice()));
    for fence in [FenceEpoch(1), old_fence] {
        let stale = checkpoints.save_bytes(job(), Version(3), b"stale", fence).expect_err("a refusal");
        assert_eq!(stale.code(), "fenced");
    }
    let fence = checkpoints.open(&job()).expect("a fence");
    assert!(fence > FenceEpoch(1 << 32));
    let saved = checkpoints.save_bytes(job(), Version(3), b"state 4", fence).expect("a version");
    assert_eq!(saved.version, Version(4));
    assert_eq!(checkpoints.newest_step(&job()).expect("an answer"), Some(3));
}

#[test]
fn a_process_with_the_lost_register_saves_nothing_after_the_rebuild() {
    let directory = tempfile::tempdir().expect("a directory");
    let lost = register();
    let fence = save_steps(&lost, directory.path(), 3).expect("versions");
    let running = checkpoints(&store(&lost, directory.path()), &THREE, TWO);
    let (rebuilt, _) = rebuild(directory.path()).expect("a register");
    let error = running.save_bytes(job(), Version(3), b"state 4", fence).expect_err("a refusal");
    assert!(error.to_string().contains("a register of generation 2 was rebuilt from it"), "{error}");
    let loaded = checkpoints(&rebuilt, &THREE, TWO).load(&job()).expect("an answer").expect("a version");
    assert_eq!(loaded.version, Version(3));
    let fence = checkpoints(&rebuilt, &THREE, TWO).open(&job()).expect("a fence");
    let saved = checkpoints(&rebuilt, &THREE, TWO).save_bytes(job(), Version(3), b"state 4", fence);
    assert_eq!(saved.expect("a version").version, Version(4));
}

#[test]
fn a_version_that_may_have_been_committed_is_taken() {
    let directory = tempfile::tempdir().expect("a directory");
    // One call opens, three save; all calls after that break off.
    let failing: Arc<dyn ChainRegister> = Arc::new(FailingRegister::new(3, 100, Outage::After));
    let error = save_steps(&failing, directory.path(), 3).expect_err("the register breaks off");
    assert_eq!(error.code(), "register_unavailable");
    let (store, report) = rebuild(directory.path()).expect("a register");
    assert_eq!(report.checkpoints[0].versions, [Version(1), Version(2), Version(3)]);
    assert_eq!(report.checkpoints[0].unproven, [Version(3)]);
    let checkpoints = checkpoints(&store, &THREE, TWO);
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!(loaded.bytes().expect("bytes").as_ref(), b"state 3");
    checkpoints.open(&job()).expect("a fence");
    assert_eq!(checkpoints.scrub(&job()).expect("a report").whole, 9);
}

#[test]
fn an_older_register_is_refused_after_a_rebuild() {
    let directory = tempfile::tempdir().expect("a directory");
    let lost = register();
    save_steps(&lost, directory.path(), 2).expect("versions");
    let (first, _) = rebuild(directory.path()).expect("a register");
    let (second, report) = rebuild(directory.path()).expect("another register");
    assert_eq!((first.generation().0, report.generation.0), (2, 3), "no generation is given twice");
    let of_generation = |store: &CheckpointStore, generation| {
        let replicas = locator(&THREE);
        let moved = ReplicaSetLocator::new(ResourceGeneration(generation), replicas.replicas().to_vec());
        let (schema, hash) = (SchemaId::new("tests.v1"), PolicyHash([7; 32]));
        ReplicatedCheckpoint::in_store(store, resource(), schema, FenceEpoch(1), policy(TWO), moved, hash)
            .map(|_| ())
            .map_err(|error| error.code())
    };
    assert_eq!(of_generation(&second, 3), Ok(()));
    assert_eq!(of_generation(&second, 1), Ok(()), "a program that was not told goes on");
    assert_eq!(of_generation(&first, 3), Err("old_generation"));
    assert_eq!(of_generation(&store(&lost, directory.path()), 3), Err("old_generation"));
}

#[test]
fn a_training_goes_on_from_the_version_before_a_damaged_one_after_a_rebuild() {
    let directory = tempfile::tempdir().expect("a directory");
    save_steps(&register(), directory.path(), 3).expect("versions");
    for replica in THREE {
        let state = directory.path().join(replica).join("models/job:7:latest/000003/state");
        fs::remove_file(&state).expect("a file");
        fs::write(&state, "state X").expect("a file");
    }
    let (rebuilt, report) = rebuild(directory.path()).expect("a register");
    assert_eq!(report.damaged.into_iter().collect::<Vec<_>>(), [(job(), Version(3))]);
    let checkpoints = checkpoints(&rebuilt, &THREE, TWO);
    let fence = checkpoints.open(&job()).expect("a fence");
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!((loaded.version, loaded.bytes().expect("bytes").as_ref()), (Version(2), b"state 2".as_slice()));
    let saved = checkpoints.save_bytes(job(), Version(2), b"state 3 again", fence).expect("a version");
    assert_eq!((saved.version, saved.value.failures), (Version(3), vec![]));
}

#[test]
fn only_an_empty_register_is_rebuilt() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = register();
    save_steps(&register, directory.path(), 1).expect("a version");
    let error = store(&register, directory.path()).rebuild(&[ReplicaId::new("a")]).map(|_| ()).expect_err("a refusal");
    assert_eq!(error.to_string(), "the register is not lost (chains: 1), and only an empty one can be rebuilt");
}

#[test]
fn a_generation_that_no_rebuild_can_have_made_is_refused_and_nothing_is_written() {
    for generation in [1_001, 1 << 32, u64::MAX] {
        let directory = tempfile::tempdir().expect("a directory");
        save_steps(&register(), directory.path(), 1).expect("a version");
        let mark = format!(".generation-{generation}");
        fs::write(directory.path().join("b").join(&mark), "").expect("a file");
        let register = register();
        let error = store(&register, directory.path()).rebuild(&THREE.map(ReplicaId::new)).map(|_| ());
        let error = error.expect_err("a refusal");
        assert_eq!(error.code(), "generation_too_high");
        assert!(error.to_string().contains(&format!("replica `b` names generation {generation}")), "{error}");
        assert!(error.remedy().contains(".generation-"));
        assert_eq!(register.chains().expect("an answer"), []);
        fs::remove_file(directory.path().join("b").join(&mark)).expect("a file");
        assert_eq!(rebuild(directory.path()).expect("a register").1.generation, ResourceGeneration(2));
    }
}

#[test]
fn damaged_copies_and_directories_of_users_are_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    save_steps(&register(), directory.path(), 2).expect("versions");
    for replica in THREE {
        let home = directory.path().join(replica).join("models/job:7:latest");
        fs::remove_file(home.join("000002/state")).expect("a file");
        fs::write(home.join("000002/state"), "state X").expect("a file");
        fs::create_dir_all(home.join("000009")).expect("a directory");
        fs::rename(home.join("000001"), home.join("000007")).expect("a directory");
    }
    fs::create_dir_all(directory.path().join("a/My Notes/x")).expect("a directory");
    let (_, report) = rebuild(directory.path()).expect("a register");
    assert_eq!(report.checkpoints, [], "version 1 lies under another number, and version 2 is damaged");
}

#[test]
fn a_register_from_an_old_backup_neither_saves_nor_loads() {
    // The old version may be gone, or be there because a job named it.
    for is_pinned in [false, true] {
        restore_an_old_backup(is_pinned);
    }
}

fn restore_an_old_backup(is_pinned: bool) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let open = || {
        let register: Arc<dyn ChainRegister> = Arc::new(SqliteRegister::open(path("register.db")).expect("a register"));
        checkpoints(&store(&register, directory.path()), &THREE, TWO)
    };
    let writer = open();
    writer.save_bytes(job(), Version(0), b"one", FenceEpoch(1)).expect("a version");
    if is_pinned {
        writer.pin(&job(), Version(1), "sweep-3").expect("a pin");
    }
    drop(writer);
    fs::copy(path("register.db"), path("backup.db")).expect("a backup");
    let writer = open();
    for version in 1..4 {
        writer.save_bytes(job(), Version(version), b"more", FenceEpoch(1)).expect("a version");
    }
    drop(writer);
    fs::copy(path("backup.db"), path("register.db")).expect("an old register");
    let stale = open();
    let error = stale.load(&job()).expect_err("a refusal");
    let expected = if is_pinned { "register_behind" } else { "too_few_copies" };
    assert_eq!(error.code(), expected);
    assert!(error.to_string().contains("holds version 4, "), "{error}");
    let error = stale.save_bytes(job(), Version(1), b"again", FenceEpoch(1)).expect_err("a refusal");
    assert!(error.to_string().contains("the register may be an older copy"), "{error}");
    fs::create_dir_all(path("a/models/job:7:latest/000009")).expect("a directory of the user");
    let error = stale.open(&job()).expect_err("a refusal");
    assert_eq!(error.to_string(), "replica `a` holds version 4, and the register knows none above 1");
    drop(stale);
    fs::remove_file(path("register.db")).expect("a file");
    let register: Arc<dyn ChainRegister> = Arc::new(SqliteRegister::open(path("register.db")).expect("a register"));
    let (rebuilt, _) = store(&register, directory.path()).rebuild(&THREE.map(ReplicaId::new)).expect("a register");
    let loaded = checkpoints(&rebuilt, &THREE, TWO).load(&job()).expect("an answer").expect("a version");
    assert_eq!((loaded.version, loaded.bytes().expect("bytes").as_ref()), (Version(4), b"more".as_slice()));
}
