//! Effects that are committed once.

use crate::common::{ONE, checkpoints, effects, fingerprint, job};
use sublet_checkpoint::{
    CheckpointStore, EffectKey, FenceEpoch, IdempotencyOutcome, ReplicatedError, ReplicatedIdempotencyStore, Version,
    open_together,
};

/// Two processes over one store.
fn two_processes() -> (tempfile::TempDir, ReplicatedIdempotencyStore, ReplicatedIdempotencyStore) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || effects(&CheckpointStore::open(directory.path()).expect("a store"));
    let (one, two) = (open(), open());
    (directory, one, two)
}

fn reserve(
    effects: &ReplicatedIdempotencyStore,
    key: &EffectKey,
    fence: FenceEpoch,
) -> Result<(IdempotencyOutcome, Version), ReplicatedError> {
    let reserved = effects.reserve(key.clone(), fingerprint("in"), Some(1), fence)?;
    Ok((reserved.value.outcome, reserved.version))
}

const RESERVED: IdempotencyOutcome = IdempotencyOutcome::Reserved { deadline_unix_s: Some(1) };

#[test]
fn a_completed_effect_answers_with_its_stored_result() {
    let (_directory, one, two) = two_processes();
    let key = EffectKey::new("mail", "invoice 12");
    let (outcome, version) = reserve(&one, &key, FenceEpoch(1)).expect("a record");
    assert_eq!(outcome, RESERVED);
    let done = IdempotencyOutcome::Completed { effect: Some(b"sent".to_vec()) };
    one.complete(key.clone(), version, done.clone(), FenceEpoch(1)).expect("a record");
    assert_eq!(reserve(&two, &key, FenceEpoch(1)).expect("a record").0, done);
    let again = IdempotencyOutcome::Completed { effect: None };
    let kept = one.complete(key, version, again, FenceEpoch(1)).expect("a record");
    assert_eq!(kept.value.outcome, done, "the first result stays");
}

#[test]
fn a_passed_deadline_alone_permits_no_take_over() {
    let (_directory, one, two) = two_processes();
    let key = EffectKey::step("job", 4);
    // The deadline is in 1970.
    reserve(&one, &key, FenceEpoch(1)).expect("a record");
    let error = reserve(&two, &key, FenceEpoch(1)).expect_err("a refusal");
    assert_eq!(error.to_string(), "step 4 of job is being worked on by another process");
    assert!(error.remedy().contains("open the name again"));
    assert_eq!(reserve(&one, &key, FenceEpoch(1)).expect("its own record").0, RESERVED);
}

#[test]
fn opening_the_scope_takes_over_and_makes_the_first_process_stale() {
    let (_directory, one, two) = two_processes();
    let key = EffectKey::step("job", 4);
    let old = one.open("job").expect("a fence");
    let (_, version) = reserve(&one, &key, old).expect("a record");
    let new = two.open("job").expect("a fence");
    let (outcome, taken) = reserve(&two, &key, new).expect("a record");
    assert_eq!(outcome, RESERVED);
    let done = || IdempotencyOutcome::Completed { effect: None };
    assert_eq!(one.complete(key.clone(), version, done(), old).expect_err("a refusal").code(), "fenced");
    assert_eq!(one.complete(key.clone(), version, done(), new).expect_err("a refusal").code(), "not_reserved");
    two.complete(key, taken, done(), new).expect("a record");
}

#[test]
fn steps_stay_completed_after_their_records_are_dropped() {
    let (_directory, one, _) = two_processes();
    for step in 1..=80 {
        let key = EffectKey::step("job", step);
        let (_, version) = reserve(&one, &key, FenceEpoch(1)).expect("a record");
        let done = IdempotencyOutcome::Completed { effect: None };
        one.complete(key, version, done, FenceEpoch(1)).expect("a record");
    }
    assert_eq!(reserve(&one, &EffectKey::step("job", 3), FenceEpoch(1)).expect_err("a refusal").code(), "forgotten");
    let kept = reserve(&one, &EffectKey::step("job", 80), FenceEpoch(1)).expect("a record");
    assert_eq!(kept.0, IdempotencyOutcome::Completed { effect: None });
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let (_directory, one, _) = two_processes();
    let key = EffectKey::new("job", "x");
    let (reserved, version) = reserve(&one, &key, FenceEpoch(1)).expect("a record");
    let code = |outcome| one.complete(key.clone(), version, outcome, FenceEpoch(1)).expect_err("a refusal").code();
    assert_eq!(code(reserved), "not_an_outcome");
    assert_eq!(code(IdempotencyOutcome::Completed { effect: Some(vec![0; 1025]) }), "effect_too_large");
    let free = EffectKey::new("job", "y");
    let done = IdempotencyOutcome::Completed { effect: None };
    let error = one.complete(free, Version(1), done, FenceEpoch(1)).expect_err("a refusal");
    assert_eq!(error.code(), "not_reserved");
}

#[test]
fn a_forgotten_key_is_free_again() {
    let (_directory, one, _) = two_processes();
    let key = EffectKey::new("job", "x");
    let (_, version) = reserve(&one, &key, FenceEpoch(1)).expect("a record");
    let keys = [key.clone()];
    assert_eq!(one.forget(&keys, FenceEpoch(1)).expect_err("a refusal").code(), "in_progress");
    let done = IdempotencyOutcome::Completed { effect: None };
    one.complete(key.clone(), version, done, FenceEpoch(1)).expect("a record");
    one.forget(&keys, FenceEpoch(1)).expect("it is dropped");
    assert!(one.look_up(&key).expect("an answer").is_none());
    assert_eq!(reserve(&one, &key, FenceEpoch(1)).expect("a record").0, RESERVED);
}

#[test]
fn a_checkpoint_and_its_effects_are_opened_under_one_fence() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = CheckpointStore::open(directory.path()).expect("a store");
    let (checkpoints, effects) = (checkpoints(&store, &["a"], ONE), effects(&store));
    let open = || open_together(&checkpoints, &job(), &effects, "job").expect("a fence");
    assert_eq!(open(), FenceEpoch(2));
    for _ in 0..3 {
        effects.open("job").expect("a fence");
    }
    assert_eq!(open(), FenceEpoch(6));
    for _ in 0..3 {
        checkpoints.open(&job()).expect("a fence");
    }
    assert_eq!(open(), FenceEpoch(10));
    assert_eq!(checkpoints.current_fence(&job()).expect("a fence"), FenceEpoch(10));
}
