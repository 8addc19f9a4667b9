//! Named pipes, sockets and devices where files are expected: a call that opened one like a file would wait for ever.

use crate::common::{TWO, checkpoints, job};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use sublet_checkpoint::{CheckpointStore, FenceEpoch, ReplicaId, SaveRequest, Version};

const REPLICAS: [&str; 2] = ["a", "b"];

/// What can stand where a file is expected.
const KINDS: [&str; 2] = ["pipe", "socket"];

fn make(kind: &str, path: &Path) {
    match kind {
        "pipe" => mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("a named pipe"),
        _ => drop(UnixListener::bind(path).expect("a socket")),
    }
}

#[test]
fn a_source_that_is_no_regular_file_is_refused_by_name() {
    for kind in KINDS {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, source) = (directory.path().join("store"), directory.path().join("source"));
        fs::create_dir(&source).expect("a directory");
        make(kind, &source.join("weights"));
        let checkpoints = checkpoints(&CheckpointStore::open(store).expect("a store"), &REPLICAS, TWO);
        let refusal =
            checkpoints.commit_directory(job(), Version(0), &source, 1, FenceEpoch(1)).expect_err("a refusal");
        assert_eq!(refusal.code(), "invalid_part");
        assert!(refusal.to_string().contains("source/weights`"), "{refusal}");

        let request = || SaveRequest::new(job(), Version(0), FenceEpoch(1));
        for special in [source.join("weights"), "/dev/null".into(), source.clone()] {
            let refusal = request().file("weights", &special).map(|_| ()).expect_err("a refusal");
            assert_eq!(refusal.code(), "invalid_part");
            assert!(refusal.to_string().contains(special.to_str().expect("UTF-8")), "{refusal}");
        }

        // It was a file when the request was made.
        let file = source.join("file");
        fs::write(&file, "").expect("a file");
        let late = request().file("weights", &file).expect("a request");
        fs::remove_file(&file).expect("a file");
        make(kind, &file);
        let refusal = checkpoints.save(late).expect_err("a refusal");
        assert!(refusal.to_string().contains("source/file` is no regular file"), "{refusal}");
    }
}

#[test]
fn a_store_with_something_else_in_place_of_a_file_is_saved_to_and_loaded_from() {
    for kind in KINDS {
        for name in ["sublet.json", "state"] {
            let directory = tempfile::tempdir().expect("a directory");
            let checkpoints = checkpoints(&CheckpointStore::open(directory.path()).expect("a store"), &REPLICAS, TWO);
            let save = |version: u64| {
                checkpoints.save_bytes(
                    job(),
                    Version(version - 1),
                    format!("state {version}").as_bytes(),
                    FenceEpoch(1),
                )
            };
            save(1).expect("a version");
            let file = directory.path().join("replicas/a/models/job:7:latest/000001").join(name);
            fs::remove_file(&file).expect("a file");
            make(kind, &file);
            save(2).expect("a version");
            let loaded = checkpoints.load_version(&job(), Version(1)).expect("a version");
            assert_eq!(loaded.bytes().expect("bytes").as_ref(), b"state 1", "{kind} in place of {name}");
            assert!(file.metadata().expect("a file").is_file(), "the copy was repaired");
        }
    }
}

#[test]
fn a_lost_register_is_noticed_beside_files_that_are_no_checkpoints() {
    for (kind, place) in KINDS.into_iter().flat_map(|kind| ["0", "models/0"].map(|place| (kind, place))) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = CheckpointStore::open(directory.path()).expect("a store");
        checkpoints(&store, &REPLICAS, TWO).save_bytes(job(), Version(0), b"state", FenceEpoch(1)).expect("a version");
        drop(store);
        make(kind, &directory.path().join("replicas/a").join(place));
        fs::remove_file(directory.path().join("register.db")).expect("a file");
        let refusal = CheckpointStore::open(directory.path()).map(|_| ()).expect_err("a refusal");
        assert_eq!((refusal.code(), kind, place), ("register_lost", kind, place));
        fs::remove_file(directory.path().join("register.db")).expect("a file");
        fs::remove_dir_all(directory.path().join("replicas/b")).expect("a directory");
        let refusal = CheckpointStore::open(directory.path()).map(|_| ()).expect_err("a refusal");
        assert_eq!(refusal.code(), "register_lost", "{kind} at {place} of the only replica");
        let replicas = [ReplicaId::new("a")];
        let store = CheckpointStore::open_to_rebuild(directory.path()).expect("a store");
        assert_eq!(store.rebuild(&replicas).expect("a register").1.checkpoints.len(), 1);
    }
}
