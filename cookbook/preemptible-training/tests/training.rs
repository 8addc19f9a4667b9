//! The recipe on a private daemon with soft GPUs.

use cookbook_preemptible_training::{
    KERNEL, TRAIN_STEP, TrainingBatch, TrainingError, TrainingStepOutcome, acquire_preemptible_training_lease,
    open_job, run_training_step, train,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use sublet::replicated::{CheckpointStore, Version};
use sublet::testing::{LocalHost, until};
use sublet::training::replicated_training_state_in;
use sublet::{GpuLease, LeaseStatus};

const VRAM: u64 = 2 << 30;

/// One test at a time has the lease that is bound to this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn store() -> (tempfile::TempDir, CheckpointStore) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = CheckpointStore::open(dir.path()).expect("a store");
    (dir, store)
}

fn batch(step: u64) -> TrainingBatch {
    TrainingBatch { job_id: "resnet".to_owned(), step, input: vec![1, 2, 3, 4], output_len: 4 }
}

fn await_revoked(lease: &GpuLease) {
    until("the lease is revoked", || (lease.status() == LeaseStatus::Revoked).then_some(()));
}

#[test]
fn a_step_is_done_and_saved_once() {
    let _alone = alone();
    let _host = LocalHost::start().expect("a daemon");
    let (_dir, store) = store();
    let (mut checkpoints, mut steps) = replicated_training_state_in(&store).expect("the state");
    let lease = acquire_preemptible_training_lease(VRAM, 120).expect("there is room");
    let mut run = |expected| {
        run_training_step(&mut checkpoints, &mut steps, &lease, TRAIN_STEP, KERNEL, batch(42), Version(expected))
    };
    let outcome = run(0).expect("it is done");
    assert!(matches!(&outcome, TrainingStepOutcome::Completed { output, .. } if output == &[43, 44, 45, 46]));
    assert!(matches!(run(1).expect("it was done"), TrainingStepOutcome::Duplicate { step: 42, .. }));
    assert_eq!(lease.usage().launches, 1);
}

#[test]
fn without_a_lease_nothing_happens() {
    let _alone = alone();
    let host = LocalHost::start().expect("a daemon");
    let (_dir, store) = store();
    let (mut checkpoints, mut steps) = replicated_training_state_in(&store).expect("the state");
    let lease = acquire_preemptible_training_lease(VRAM, 120).expect("there is room");
    host.revoke(lease.lease_id()).expect("it can be ended");
    await_revoked(&lease);
    let refused = run_training_step(&mut checkpoints, &mut steps, &lease, TRAIN_STEP, KERNEL, batch(1), Version(0));
    assert!(matches!(refused, Err(TrainingError::LeaseNotActive(LeaseStatus::Revoked))), "{refused:?}");
    assert_eq!(lease.usage().launches, 0);
}

#[test]
fn training_ends_with_the_same_bytes_however_often_the_gpu_is_lost() {
    let _alone = alone();
    let host = LocalHost::start().expect("a daemon");
    let (_undisturbed, quiet) = store();
    let acquire = || acquire_preemptible_training_lease(VRAM, 120);
    let expected = train(&open_job(&quiet, "a", 3).expect("a job"), 12, vec![7; 8], acquire).expect("it is trained");
    assert_eq!(expected.leases_lost, 0);

    let (_dir, store) = store();
    let mut lost = 0;
    let progress = train(&open_job(&store, "a", 3).expect("a job"), 12, vec![7; 8], || {
        let lease = acquire_preemptible_training_lease(VRAM, 120)?;
        if lost < 3 {
            lost += 1;
            host.revoke(lease.lease_id())?;
        }
        Ok(lease)
    });
    let progress = progress.expect("it is trained");
    assert!(progress.leases_lost <= 3);
    assert_eq!((progress.state, progress.durable_step), (expected.state, 12));
}
