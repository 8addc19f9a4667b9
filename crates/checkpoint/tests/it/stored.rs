//! What an operator does with a store, without the program that saves in it.

use crate::common::{TWO, checkpoints, job, names_in, resource};
use std::fs;
use std::path::Path;
use sublet_checkpoint::{
    CheckpointName, CheckpointStore, FenceEpoch, ReplicaId, ReplicatedCheckpoint, ReplicatedError, SaveRequest,
    StoredCheckpoint, Version,
};

const REPLICAS: [&str; 2] = ["a", "b"];

/// Three versions, on two replicas.
fn saved_in(directory: &Path) -> (CheckpointStore, ReplicatedCheckpoint, FenceEpoch) {
    let store = CheckpointStore::open(directory).expect("a store");
    let checkpoints = checkpoints(&store, &REPLICAS, TWO);
    let fence = checkpoints.open(&job()).expect("a fence");
    for step in 1..=3 {
        let request = SaveRequest::new(job(), Version(step - 1), fence).step(step).keep(10);
        let request = request.part("weights", format!("weights {step}").into_bytes());
        checkpoints.save(request.part("more/optimizer", vec![7; 5 << 20])).expect("a version");
    }
    (store, checkpoints, fence)
}

fn stored(store: &CheckpointStore) -> StoredCheckpoint {
    store.stored(&resource(), &job()).expect("a checkpoint")
}

fn version_path(directory: &Path, replica: &str, version: &str) -> std::path::PathBuf {
    directory.join("replicas").join(replica).join("models/job:7:latest").join(version)
}

/// Changes a byte of a file that was saved.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[0] ^= 1;
    fs::remove_file(path).expect("a file");
    fs::write(path, bytes).expect("a file");
}

#[test]
fn versions_and_copies_are_found_without_schema_and_policy() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, ..) = saved_in(directory.path());
    fs::remove_dir_all(version_path(directory.path(), "b", "000002")).expect("a copy");
    let stored = stored(&store);
    let versions = stored.versions().expect("versions");
    let steps: Vec<_> = versions.iter().map(|saved| (saved.version, saved.step)).collect();
    assert_eq!(steps, [(Version(1), Some(1)), (Version(2), Some(2)), (Version(3), Some(3))]);
    let copies = stored.copies(Version(2)).expect("copies");
    let missing: Vec<_> = copies.iter().map(|copy| (copy.replica.as_str(), copy.missing.as_deref())).collect();
    assert_eq!(missing, [("a", None), ("b", Some("it holds no copy"))]);
    assert!(copies[0].directory.join("_SUCCESS").exists());
    let manifest = stored.manifest(Version(3)).expect("an answer").expect("a manifest");
    let files: Vec<_> = manifest.files.iter().map(|file| (file.name.as_str(), file.bytes)).collect();
    assert_eq!((manifest.schema.as_str(), files), ("tests.v1", vec![("weights", 9), ("more/optimizer", 5 << 20)]));
    assert_eq!(stored.manifest(Version(9)).expect_err("a refusal").code(), "no_such_version");
}

#[test]
fn removing_issues_a_new_fence_and_a_refusal_issues_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, checkpoints, fence) = saved_in(directory.path());
    checkpoints.pin(&job(), Version(2), "the evaluation").expect("a pin");
    let stored = stored(&store);
    for (versions, reason) in [
        (vec![Version(1), Version(3)], "version 3 is kept: it is the newest"),
        (vec![Version(2)], "version 2 is kept: the evaluation names it"),
        (vec![Version(8)], "version 8 was never committed"),
    ] {
        assert_eq!(stored.remove(&versions).expect_err("a refusal").to_string(), reason);
    }
    assert_eq!(stored.fence().expect("a fence"), fence);
    let removed = stored.remove(&[Version(1), Version(1)]).expect("a new fence");
    assert!(removed > fence);
    assert_eq!(names_in(&version_path(directory.path(), "b", "")), ["000002", "000003", "latest"]);
    let stale = checkpoints.save_bytes(job(), Version(3), b"x", fence).expect_err("a refusal");
    assert_eq!(stale.code(), "fenced");
    assert_eq!(stored.remove(&[Version(1)]).expect_err("a refusal").code(), "pruned");
}

#[test]
fn a_pin_takes_names_of_jobs_as_long_as_other_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_store, checkpoints, _) = saved_in(directory.path());
    for name in [String::new(), "x".repeat(97), "x".repeat(100_000)] {
        let refusal = checkpoints.pin(&job(), Version(2), &name).expect_err("a refusal");
        assert_eq!(refusal.code(), "invalid_name");
        assert!(refusal.to_string().contains("1 to 96 characters") && refusal.to_string().len() < 300, "{refusal}");
    }
    checkpoints.pin(&job(), Version(2), &"x".repeat(96)).expect("a pin");
}

#[test]
fn an_export_takes_damaged_bytes_from_another_copy() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, ..) = saved_in(directory.path());
    damage(&version_path(directory.path(), "a", "000003").join("more/optimizer"));
    fs::remove_file(version_path(directory.path(), "b", "000003").join("weights")).expect("a file");
    let target = directory.path().join("out/model");
    let report = stored(&store).export(Version(3), &target).expect("files");
    assert_eq!((report.files, report.bytes), (2, 9 + (5 << 20)));
    let failed: Vec<_> = report.failures.iter().map(|failure| failure.replica.as_str()).collect();
    assert_eq!(failed, ["b", "a"]);
    assert_eq!(fs::read(target.join("weights")).expect("a file"), b"weights 3");
    assert_eq!(fs::read(target.join("more/optimizer")).expect("a file"), vec![7; 5 << 20]);
    assert_eq!(names_in(&directory.path().join("out")), ["model"]);
}

#[test]
fn an_export_without_a_whole_copy_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, ..) = saved_in(directory.path());
    for replica in REPLICAS {
        damage(&version_path(directory.path(), replica, "000003").join("more/optimizer"));
    }
    let stored = stored(&store);
    let target = directory.path().join("out/model");
    let error = stored.export(Version(3), &target).expect_err("a refusal");
    assert_eq!(error.code(), "too_few_copies");
    assert!(error.to_string().contains("b: part `more/optimizer`: the bytes from 0 on are damaged"), "{error}");
    assert_eq!(names_in(&directory.path().join("out")), [""; 0]);
    let taken = stored.export(Version(2), directory.path()).expect_err("a refusal");
    assert!(matches!(taken, ReplicatedError::NotEmptyDirectory { .. }), "{taken}");
    stored.export(Version(2), &target).expect("the version before is whole");
}

#[test]
fn a_scrub_repairs_and_fills_a_new_replica() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, ..) = saved_in(directory.path());
    damage(&version_path(directory.path(), "a", "000001").join("more/optimizer"));
    let report = stored(&store).scrub(&[]).expect("a report");
    assert_eq!((report.whole, report.repaired.len(), report.damaged.len()), (5, 1, 0));
    let filled = stored(&store).scrub(&[ReplicaId::new("c")]).expect("a report");
    assert_eq!((filled.whole, filled.repaired.len(), filled.damaged.len()), (6, 3, 0));
    let again = stored(&store).scrub(&[]).expect("a report");
    assert_eq!((again.whole, again.repaired.len()), (9, 0));
}

#[test]
fn a_store_whose_register_is_lost_is_refused_until_it_is_rebuilt() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(saved_in(directory.path()));
    for name in names_in(directory.path()).iter().filter(|name| name.starts_with("register.db")) {
        fs::remove_file(directory.path().join(name)).expect("a file");
    }
    for opened in [CheckpointStore::open(directory.path()), CheckpointStore::open_existing(directory.path())] {
        let lost = opened.map(|_| ()).expect_err("a refusal");
        assert_eq!(lost.code(), "register_lost");
        assert_eq!(
            lost.to_string(),
            "the register is lost: it is empty, and replica `a` holds versions of `job:7:latest`"
        );
    }
    let store = CheckpointStore::open_to_rebuild(directory.path()).expect("a store");
    let replicas: Vec<_> = store.replicas().expect("replicas").into_iter().map(|(id, _)| id).collect();
    let (_, report) = store.rebuild(&replicas).expect("a register");
    assert_eq!(report.checkpoints[0].versions, [Version(1), Version(2), Version(3)]);
    let store = CheckpointStore::open(directory.path()).expect("a store");
    assert_eq!(stored(&store).versions().expect("versions").len(), 3);
}

#[test]
fn a_load_with_a_register_from_before_the_first_save_does_not_say_that_nothing_was_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    let (register, backup) = (directory.path().join("register.db"), directory.path().join("backup"));
    let store = CheckpointStore::open(directory.path()).expect("a store");
    checkpoints(&store, &REPLICAS, TWO).open(&job()).expect("a fence");
    drop(store);
    fs::copy(&register, &backup).expect("a copy");
    drop(saved_in(directory.path()));
    fs::rename(&backup, &register).expect("a rename");
    let store = CheckpointStore::open(directory.path()).expect("a store");
    let refusal = checkpoints(&store, &REPLICAS, TWO).load(&job()).expect_err("a refusal");
    assert_eq!(refusal.code(), "register_behind", "{refusal}");
    assert!(refusal.remedy().contains("sublet checkpoint rebuild"));
    let fresh = CheckpointName::new("job:8:latest");
    assert!(checkpoints(&store, &REPLICAS, TWO).load(&fresh).expect("an answer").is_none(), "nothing was saved");
}
