//! Several copies, of which some are lost, damaged or slow.

use crate::common::{ONE, Quorums, TWO, checkpoints, job, names_in, register, resource, store_over, three_replicas};
use crate::hanging_disk::HangingDisk;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use sublet_checkpoint::files::LocalDisk;
use sublet_checkpoint::{
    BackgroundSaver, FenceEpoch, ReplicaHealth, ReplicatedCheckpoint, SaveRequest, StallLimits, Version,
};

const STATE: &[u8] = b"weights of step 1";

/// Three replicas with one version.
fn saved() -> (tempfile::TempDir, ReplicatedCheckpoint) {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = three_replicas(&register(), directory.path(), TWO);
    let saved = checkpoints.save_bytes(job(), Version(0), STATE, FenceEpoch(1)).expect("a version");
    assert_eq!(saved.value.failures, []);
    (directory, checkpoints)
}

fn version_at(directory: &Path, replica: &str, version: u64) -> PathBuf {
    let home = directory.join(replica).join(resource().as_str()).join(job().as_str());
    home.join(Version(version).directory())
}

fn overwrite(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).expect("a file");
    fs::write(path, bytes).expect("a file");
}

fn loaded(checkpoints: &ReplicatedCheckpoint) -> Vec<u8> {
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    loaded.bytes().expect("bytes").to_vec()
}

#[test]
fn a_damaged_copy_is_not_believed_and_is_repaired_on_read() {
    for damage in [b"weights of step 2".as_slice(), b"short", b"", b"weights of step 1 and more"] {
        let (directory, checkpoints) = saved();
        let file = version_at(directory.path(), "a", 1).join("state");
        overwrite(&file, damage);
        assert_eq!(loaded(&checkpoints), STATE);
        assert_eq!(fs::read(&file).expect("a file"), STATE, "the copy is repaired");
    }
}

#[test]
fn a_copy_with_another_manifest_is_not_believed() {
    let (directory, checkpoints) = saved();
    checkpoints.save_bytes(job(), Version(1), b"other", FenceEpoch(1)).expect("a version");
    // The replica shows an old version under the new number: each file is whole by itself.
    let (old, new) = (version_at(directory.path(), "a", 1), version_at(directory.path(), "a", 2));
    fs::remove_dir_all(&new).expect("a directory");
    fs::create_dir(&new).expect("a directory");
    for file in names_in(&old) {
        fs::copy(old.join(&file), new.join(&file)).expect("a file");
    }
    assert_eq!(loaded(&checkpoints), b"other");
    assert_eq!(fs::read(new.join("state")).expect("a file"), b"other", "the copy is repaired");
}

#[test]
fn a_lost_replica_is_filled_again_by_a_scrub() {
    let (directory, checkpoints) = saved();
    checkpoints.save_bytes(job(), Version(1), b"two", FenceEpoch(1)).expect("a version");
    fs::remove_dir_all(directory.path().join("b")).expect("a directory");
    let saved = checkpoints.save_bytes(job(), Version(2), b"three", FenceEpoch(1)).expect("two copies are enough");
    assert_eq!(saved.value.failures.len(), 1);
    assert_eq!(saved.value.failures[0].replica.as_str(), "b");
    assert_eq!(checkpoints.health()[1].2, ReplicaHealth::Failed);
    let report = checkpoints.scrub(&job()).expect("a report");
    assert_eq!((report.whole, report.repaired.len(), report.damaged.len()), (4, 0, 2), "the directory is gone");
    fs::create_dir(directory.path().join("b")).expect("a directory");
    let report = checkpoints.scrub(&job()).expect("a report");
    assert_eq!((report.whole, report.repaired.len(), report.damaged.len()), (4, 2, 0));
    assert_eq!(fs::read(version_at(directory.path(), "b", 3).join("state")).expect("a file"), b"three");
    assert_eq!(checkpoints.scrub(&job()).expect("a report").whole, 6);
}

#[test]
fn a_minority_neither_saves_nor_loads() {
    let directory = tempfile::tempdir().expect("a directory");
    let quorums = Quorums { write: 2, read: 2 };
    let checkpoints = three_replicas(&register(), directory.path(), quorums);
    checkpoints.save_bytes(job(), Version(0), STATE, FenceEpoch(1)).expect("a version");
    fs::rename(directory.path().join("a"), directory.path().join("a-gone")).expect("a directory");
    assert_eq!(loaded(&checkpoints), STATE, "two copies are enough");
    fs::rename(directory.path().join("b"), directory.path().join("b-gone")).expect("a directory");
    let error = checkpoints.load(&job()).expect_err("a refusal");
    assert_eq!(error.code(), "too_few_copies");
    assert!(error.to_string().starts_with("version 1 has 1 whole copies of the 2 needed; "), "{error}");
    let error = checkpoints.save_bytes(job(), Version(1), b"two", FenceEpoch(1)).expect_err("a refusal");
    assert!(error.to_string().starts_with("1 of 2 copies were written; a: "), "{error}");
    assert_eq!(names_in(&directory.path().join("c/models/job:7:latest")), ["000001", "latest"], "nothing is left");
    fs::rename(directory.path().join("a-gone"), directory.path().join("a")).expect("a directory");
    checkpoints.save_bytes(job(), Version(1), b"two", FenceEpoch(1)).expect("a version");
    assert_eq!(loaded(&checkpoints), b"two");
}

#[test]
fn an_unchanged_part_is_written_in_full_to_a_replica_that_lacks_the_version_before() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = register();
    let checkpoints = three_replicas(&register, directory.path(), TWO);
    let request = |version| SaveRequest::new(job(), Version(version), FenceEpoch(1)).part("w", STATE.to_vec());
    checkpoints.save(request(0)).expect("a version");
    fs::remove_dir_all(version_at(directory.path(), "a", 1)).expect("a directory");
    let mixed_up = version_at(directory.path(), "b", 1);
    overwrite(&mixed_up.join("sublet.json"), b"{}");
    overwrite(&mixed_up.join("w"), b"weights of step 9");
    checkpoints.save(request(1)).expect("a version");
    for replica in ["a", "b", "c"] {
        let file = version_at(directory.path(), replica, 2).join("w");
        assert_eq!(fs::read(file).expect("a file"), STATE, "{replica}");
    }
}

#[test]
fn what_a_stale_process_prepared_is_removed_when_the_name_is_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = register();
    let checkpoints = three_replicas(&register, directory.path(), TWO);
    checkpoints.save_bytes(job(), Version(0), STATE, FenceEpoch(1)).expect("a version");
    let home = directory.path().join("a/models/job:7:latest");
    for left_over in [
        ".prepared-000002-f1-00000000000000000000000000000001",
        ".repaired-000001-f1-00000000000000000000000000000002",
        ".removed-000000-f1-00000000000000000000000000000003",
    ] {
        fs::create_dir(home.join(left_over)).expect("a directory");
    }
    fs::write(home.join("notes.txt"), "the user's").expect("a file");
    let store = store_over(&register, directory.path(), &["a", "b", "c"], Arc::new(LocalDisk));
    let other = self::checkpoints(&store, &["a", "b", "c"], TWO);
    other.open(&job()).expect("a fence");
    assert_eq!(names_in(&home), ["000001", "latest", "notes.txt"]);
}

#[test]
fn a_replica_that_hangs_is_left_behind_and_filled_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let names = ["a", "b", "c"];
    for name in names {
        fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    let disk = HangingDisk::default();
    let limits = StallLimits { needed: Duration::from_secs(60), surplus: Duration::ZERO };
    let store = store_over(&register(), directory.path(), &names, Arc::new(disk.clone())).with_stall_limits(limits);
    let checkpoints = checkpoints(&store, &names, TWO);
    disk.hang(true);
    let reasons = |version, bytes: &[u8]| {
        let saved = checkpoints.save_bytes(job(), Version(version), bytes, FenceEpoch(1)).expect("two are enough");
        saved.value.failures.into_iter().map(|failure| format!("{failure:?}")).collect::<String>()
    };
    assert!(reasons(0, STATE).contains("it made no progress and was left behind"));
    assert!(reasons(1, b"two").contains("an earlier call is still stuck on it"));
    assert_eq!(loaded(&checkpoints), b"two");
    disk.hang(false);
    // The thread that hung goes on by itself; then a scrub fills the replica.
    let patient = self::checkpoints(&store.with_stall_limits(StallLimits::default()), &names, TWO);
    while patient.scrub(&job()).expect("a report").whole < 6 {
        std::thread::yield_now();
    }
    let saved = patient.save_bytes(job(), Version(2), b"three", FenceEpoch(1)).expect("a version");
    assert_eq!(saved.value.failures, []);
}

#[test]
fn nothing_is_written_where_a_disk_was_that_vanishes_in_a_save() {
    let directory = tempfile::tempdir().expect("a directory");
    let (disk, place) = (HangingDisk::default(), directory.path().join("c"));
    fs::create_dir(&place).expect("a directory");
    let store = store_over(&register(), directory.path(), &["c"], Arc::new(disk.clone()));
    let mut saver = BackgroundSaver::new(&checkpoints(&store, &["c"], ONE), Version(0), None);
    disk.hang(true);
    saver.save(SaveRequest::new(job(), Version(0), FenceEpoch(1)).bytes(STATE)).expect("a thread");
    // The disk was seen to be there, and hangs before the version is begun.
    while !place.join("models/job:7:latest").is_dir() {
        std::thread::yield_now();
    }
    fs::rename(&place, directory.path().join("elsewhere")).expect("a directory");
    disk.hang(false);
    let error = saver.finish().expect_err("there is no disk");
    assert_eq!(error.code(), "earlier_save_failed");
    assert!(!place.exists());
}

#[test]
fn opening_and_loading_go_on_without_a_replica_that_hangs() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = register();
    let names = ["c", "a", "b"];
    let writer = three_replicas(&register, directory.path(), TWO);
    writer.save_bytes(job(), Version(0), STATE, FenceEpoch(1)).expect("a version");
    let disk = HangingDisk::default();
    let limits = StallLimits { needed: Duration::from_secs(60), surplus: Duration::ZERO };
    let store = store_over(&register, directory.path(), &names, Arc::new(disk.clone())).with_stall_limits(limits);
    let reader = checkpoints(&store, &names, TWO);
    disk.hang(true);
    assert_eq!(loaded(&reader), STATE, "the first replica hangs, and the next one is read");
    reader.open(&job()).expect("a fence");
    disk.hang(false);
}
