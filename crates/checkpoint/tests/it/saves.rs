//! One process, or several, that save and load one checkpoint.

use crate::common::{ONE, checkpoints, checkpoints_in, effects, fingerprint, job, locator, names_in, policy, resource};
use std::fs;
use std::os::unix::fs::MetadataExt;
use sublet_checkpoint::{
    CheckpointName, CheckpointStore, EffectKey, FenceEpoch, IdempotencyOutcome, PolicyHash, ReplicatedCheckpoint,
    SaveRequest, SchemaId, Version, open_together,
};

#[test]
fn a_saved_version_is_loaded_whole_and_lies_there_as_ordinary_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    assert!(checkpoints.load(&job()).expect("an answer").is_none());
    let saved = checkpoints.save_bytes(job(), Version(0), b"weights", FenceEpoch(1)).expect("a version");
    assert_eq!((saved.version, saved.value.bytes, saved.value.failures.len()), (Version(1), 7, 0));
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!(loaded.bytes().expect("bytes").as_ref(), b"weights");
    let home = directory.path().join("replicas/a/models/job:7:latest");
    assert_eq!(names_in(&home), ["000001", "latest"]);
    assert_eq!(names_in(&home.join("latest")), ["_SUCCESS", "state", "sublet.json"]);
    assert_eq!(fs::read(home.join("latest/state")).expect("a file"), b"weights");
}

#[test]
fn a_save_with_an_old_version_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    checkpoints.save_bytes(job(), Version(0), b"one", FenceEpoch(1)).expect("a version");
    let error = checkpoints.save_bytes(job(), Version(0), b"other", FenceEpoch(1)).expect_err("a refusal");
    assert_eq!(error.to_string(), "the newest version is 1, and the call expected 0");
    assert_eq!(checkpoints.load(&job()).expect("an answer").expect("one").bytes().expect("bytes").as_ref(), b"one");
}

#[test]
fn a_process_that_opens_a_name_makes_every_other_one_stale() {
    let directory = tempfile::tempdir().expect("a directory");
    let (old, new) = (checkpoints_in(directory.path()), checkpoints_in(directory.path()));
    let old_fence = old.open(&job()).expect("a fence");
    old.save_bytes(job(), Version(0), b"one", old_fence).expect("a version");
    let new_fence = new.open(&job()).expect("a fence");
    assert_eq!((old_fence, new_fence), (FenceEpoch(2), FenceEpoch(3)));
    let stale = old.save_bytes(job(), Version(1), b"stale", old_fence).expect_err("a refusal");
    assert_eq!(stale.code(), "fenced");
    let literal = old.save_bytes(job(), Version(1), b"stale", FenceEpoch(1)).expect_err("a refusal");
    assert_eq!(literal.code(), "fenced");
    let invented = old.save_bytes(job(), Version(1), b"stale", FenceEpoch(9)).expect_err("a refusal");
    assert_eq!(invented.code(), "fence_never_issued");
    let pruned = old.prune(&job(), &[Version(1)], old_fence).expect_err("a refusal");
    assert_eq!(pruned.code(), "fenced");
    new.save_bytes(job(), Version(1), b"two", new_fence).expect("a version");
    let home = directory.path().join("replicas/a/models/job:7:latest");
    assert_eq!(names_in(&home), ["000001", "000002", "latest"], "nothing is left of the refused saves");
}

#[test]
fn of_two_writers_with_one_fence_one_wins() {
    let directory = tempfile::tempdir().expect("a directory");
    let writers = [checkpoints_in(directory.path()), checkpoints_in(directory.path())];
    for round in 0..5 {
        let outcomes: Vec<Result<_, _>> = std::thread::scope(|scope| {
            let save = |writer: &'static str, checkpoints: &ReplicatedCheckpoint| {
                checkpoints.save_bytes(job(), Version(round), writer.as_bytes(), FenceEpoch(1)).map(|_| writer)
            };
            let (one, two) = (&writers[0], &writers[1]);
            let threads = [scope.spawn(move || save("one", one)), scope.spawn(move || save("two", two))];
            threads.map(|thread| thread.join().expect("no panic")).into()
        });
        let winners: Vec<&str> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok().copied()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {outcomes:?}");
        let loser = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).expect("a loser");
        assert_eq!(loser.code(), "version_conflict");
        let loaded = writers[0].load(&job()).expect("an answer").expect("a version");
        assert_eq!(loaded.bytes().expect("bytes").as_ref(), winners[0].as_bytes());
    }
}

#[test]
fn an_unchanged_part_is_not_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    let large = vec![5; 9 << 20];
    let request = |version, step: &str| {
        let request = SaveRequest::new(job(), Version(version), FenceEpoch(1)).part("layers/weights", large.clone());
        request.part("step", step.as_bytes().to_vec())
    };
    checkpoints.save(request(0, "1")).expect("a version");
    checkpoints.save(request(1, "2")).expect("a version");
    let home = directory.path().join("replicas/a/models/job:7:latest");
    let inode = |path: &str| fs::metadata(home.join(path)).expect("a file").ino();
    assert_eq!(inode("000001/layers/weights"), inode("000002/layers/weights"));
    assert_ne!(inode("000001/step"), inode("000002/step"));
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!(loaded.part("layers/weights").expect("a part").len(), 9 << 20);
    assert_eq!(loaded.part("step").expect("a part").as_ref(), b"2");
}

#[test]
fn a_part_that_changed_in_its_last_chunk_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    let mut bytes = vec![5; 9 << 20];
    checkpoints.save_bytes(job(), Version(0), &bytes, FenceEpoch(1)).expect("a version");
    *bytes.last_mut().expect("a byte") = 6;
    checkpoints.save_bytes(job(), Version(1), &bytes, FenceEpoch(1)).expect("a version");
    let newest = checkpoints.load(&job()).expect("an answer").expect("a version");
    let before = checkpoints.load_version(&job(), Version(1)).expect("a version");
    assert_eq!(newest.bytes().expect("bytes").last(), Some(&6));
    assert_eq!(before.bytes().expect("bytes").last(), Some(&5));
}

#[test]
fn the_last_two_versions_and_pinned_ones_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    for version in 0..5 {
        let text = version.to_string();
        checkpoints.save_bytes(job(), Version(version), text.as_bytes(), FenceEpoch(1)).expect("a version");
        if version == 1 {
            checkpoints.pin(&job(), Version(2), "sweep-3").expect("a pin");
        }
    }
    let kept = |checkpoints: &ReplicatedCheckpoint| {
        let versions = checkpoints.versions(&job()).expect("versions");
        versions.iter().map(|summary| summary.version.0).collect::<Vec<_>>()
    };
    assert_eq!(kept(&checkpoints), [2, 4, 5]);
    let home = directory.path().join("replicas/a/models/job:7:latest");
    assert_eq!(names_in(&home), ["000002", "000004", "000005", "latest"]);
    let code = |outcome: Result<(), sublet_checkpoint::ReplicatedError>| outcome.expect_err("a refusal").code();
    assert_eq!(code(checkpoints.prune(&job(), &[Version(2)], FenceEpoch(1))), "kept");
    assert_eq!(code(checkpoints.prune(&job(), &[Version(5)], FenceEpoch(1))), "kept");
    assert_eq!(code(checkpoints.prune(&job(), &[Version(3)], FenceEpoch(1))), "pruned");
    assert_eq!(checkpoints.load_version(&job(), Version(9)).expect_err("a refusal").code(), "no_such_version");
    checkpoints.unpin(&job(), Version(2), "sweep-3").expect("no pin");
    checkpoints.prune(&job(), &[Version(2), Version(4)], FenceEpoch(1)).expect("a prune");
    assert_eq!(kept(&checkpoints), [5]);
    assert_eq!(names_in(&home), ["000005", "latest"]);
}

#[test]
fn another_schema_or_policy_hash_is_refused_at_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = CheckpointStore::open(directory.path()).expect("a store");
    checkpoints(&store, &["a"], ONE).save_bytes(job(), Version(0), b"x", FenceEpoch(1)).expect("a version");
    let load = |schema: &str, hash: u8| {
        let (schema, hash) = (SchemaId::new(schema), PolicyHash([hash; 32]));
        let (policy, locator) = (policy(ONE), locator(&["a"]));
        let other = ReplicatedCheckpoint::in_store(&store, resource(), schema, FenceEpoch(1), policy, locator, hash)
            .expect("checkpoints");
        other.load(&job()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(load("tests.v1", 7), Ok(()));
    let refused = load("tests.v2", 7).expect_err("a refusal");
    assert_eq!(refused, "version 1 was saved with schema `tests.v1`, and the program expects `tests.v2`");
    assert!(load("tests.v1", 8).expect_err("a refusal").contains("policy hash"));
}

#[test]
fn names_and_parts_with_path_tricks_stay_inside() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let checkpoints = checkpoints_in(&store);
    for name in ["../../../outside", "/etc/passwd", ".", "..", "a/b", "latest", ".prepared-000001-f1-0", "a\0b"] {
        let name = CheckpointName::new(name);
        checkpoints.save_bytes(name.clone(), Version(0), b"x", FenceEpoch(1)).expect("a version");
        assert!(checkpoints.load(&name).expect("an answer").is_some());
    }
    for part in ["../x", "/x", "a/../../x", "_SUCCESS", "sublet.json", "", "a//b", "a\0"] {
        let request = SaveRequest::new(job(), Version(0), FenceEpoch(1)).part(part, b"x".to_vec());
        assert_eq!(checkpoints.save(request).expect_err("a refusal").code(), "invalid_part", "{part}");
    }
    assert_eq!(names_in(directory.path()), ["store"]);
    assert_eq!(names_in(&store.join("replicas")), ["a"]);
    assert_eq!(names_in(&store.join("replicas/a")), ["models"]);
}

#[test]
fn a_directory_of_another_tool_is_committed_with_its_step() {
    let directory = tempfile::tempdir().expect("a directory");
    let theirs = directory.path().join("theirs");
    fs::create_dir_all(theirs.join("optimizer")).expect("a directory");
    fs::write(theirs.join("model.bin"), "weights").expect("a file");
    fs::write(theirs.join("optimizer/state.bin"), "moments").expect("a file");
    let checkpoints = checkpoints_in(&directory.path().join("store"));
    let fence = checkpoints.open(&job()).expect("a fence");
    checkpoints.commit_directory(job(), Version(0), &theirs, 40, fence).expect("a version");
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!(loaded.step, Some(40));
    assert_eq!(loaded.part("optimizer/state.bin").expect("a part").as_ref(), b"moments");
    let again = checkpoints.commit_directory(job(), Version(1), &theirs, 40, fence).expect_err("a refusal");
    assert_eq!(again.to_string(), "step 40 cannot be saved: step 40 is saved already");
    assert_eq!(checkpoints.newest_step(&job()).expect("an answer"), Some(40));
}

#[test]
fn a_save_completes_its_effect_even_if_the_process_ends_before_it_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let key = EffectKey::step("job:7", 1);
    {
        let store = CheckpointStore::open(directory.path()).expect("a store");
        let (checkpoints, effects) = (checkpoints(&store, &["a"], ONE), effects(&store));
        let fence = open_together(&checkpoints, &job(), &effects, "job:7").expect("a fence");
        let reserved =
            effects.reserve_for(&checkpoints, &job(), key.clone(), fingerprint("in"), None, fence).expect("a record");
        assert_eq!(reserved.value.outcome, IdempotencyOutcome::Reserved { deadline_unix_s: None });
        let request = SaveRequest::new(job(), Version(0), fence).bytes(b"x".to_vec()).step(1);
        checkpoints.save(request.completes(key.clone(), fingerprint("in"))).expect("a version");
    }
    let store = CheckpointStore::open(directory.path()).expect("a store");
    let (checkpoints, effects) = (checkpoints(&store, &["a"], ONE), effects(&store));
    // Even without opening: the save is what counts.
    let fence = checkpoints.current_fence(&job()).expect("a fence");
    let found = effects.reserve(key.clone(), fingerprint("in"), None, fence).expect("a record");
    assert_eq!(found.value.outcome, IdempotencyOutcome::Completed { effect: None });
    let other = effects.reserve(key.clone(), fingerprint("other"), None, fence).expect_err("a refusal");
    assert_eq!(other.code(), "fingerprint_mismatch");
    let request = SaveRequest::new(job(), Version(1), fence).bytes(b"y".to_vec());
    let repeated = checkpoints.save(request.completes(key, fingerprint("in"))).expect_err("a refusal");
    assert_eq!(repeated.to_string(), "step 1 of job:7 is committed already, by version 1");
}

#[test]
fn a_file_that_grew_since_it_was_named_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("model.bin");
    fs::write(&file, "weights").expect("a file");
    let checkpoints = checkpoints_in(&directory.path().join("store"));
    let request = SaveRequest::new(job(), Version(0), FenceEpoch(1)).file("model.bin", &file).expect("a part");
    fs::write(&file, "weights, and more").expect("a file");
    let error = checkpoints.save(request).expect_err("a refusal");
    assert_eq!(
        error.to_string(),
        "the parts of the checkpoint cannot be read: part `model.bin`: it changed while it was saved"
    );
    assert!(checkpoints.load(&job()).expect("an answer").is_none());
}
