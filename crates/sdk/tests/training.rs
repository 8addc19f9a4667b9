//! Training steps on soft GPUs: committed once, refused without a lease, and continued on the next one.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sublet::replicated::{
    CheckpointStore, EffectFingerprint, EffectKey, FenceEpoch, ReplicatedCheckpoint, ReplicatedIdempotencyStore,
    SaveRequest, Version, open_together,
};
use sublet::testing::{LocalHost, until};
use sublet::training::{
    SaveSchedule, TrainingBatch, TrainingError, TrainingLoop, TrainingStepOutcome, acquire_preemptible_training_lease,
    replicated_training_state_in, run_fenced_training_step, run_training_step, training_checkpoint_name,
};
use sublet::{GpuLease, GpuSession, KernelArgs, LeaseStatus};

/// train_step(u64 step, u32 length, u8 *state) adds the step to each byte.
const PTX: &[u8] = include_bytes!("../../../cookbook/preemptible-training/src/train_step.ptx");
const GIB: u64 = 1 << 30;

/// One test at a time has the lease that is bound to this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TrainingSetup {
    _alone: MutexGuard<'static, ()>,
    host: LocalHost,
    checkpoints: ReplicatedCheckpoint,
    steps: ReplicatedIdempotencyStore,
    _dir: tempfile::TempDir,
}

fn setup() -> TrainingSetup {
    let alone = alone();
    let (host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let store = CheckpointStore::open(dir.path()).expect("a store");
    let (checkpoints, steps) = replicated_training_state_in(&store).expect("the state");
    TrainingSetup { _alone: alone, host, checkpoints, steps, _dir: dir }
}

fn lease() -> GpuLease {
    acquire_preemptible_training_lease(2 * GIB, 120).expect("there is room")
}

fn batch(step: u64, input: &[u8]) -> TrainingBatch {
    TrainingBatch { job_id: "j".to_owned(), step, input: input.to_vec(), output_len: input.len() as u32 }
}

fn await_status(lease: &GpuLease, status: LeaseStatus) {
    until("the lease has that status", || (lease.status() == status).then_some(()));
}

impl TrainingSetup {
    fn step(
        &mut self,
        lease: &GpuLease,
        batch: TrainingBatch,
        expected: u64,
    ) -> Result<TrainingStepOutcome, TrainingError> {
        run_training_step(&mut self.checkpoints, &mut self.steps, lease, PTX, "train_step", batch, Version(expected))
    }

    fn saved(&self) -> Option<(u64, Option<u64>, Vec<u8>)> {
        let saved = self.checkpoints.load(&training_checkpoint_name("j")).expect("it can be read")?;
        Some((saved.version.0, saved.step, saved.bytes().expect("bytes").to_vec()))
    }
}

#[test]
fn a_step_is_committed_and_its_repetition_is_a_duplicate_without_gpu_work() {
    let mut setup = setup();
    let lease = lease();
    let done = setup.step(&lease, batch(42, &[1, 2, 3, 255]), 0).expect("it is done");
    let TrainingStepOutcome::Completed { job_id, step, output, version } = done else { panic!("{done:?}") };
    assert_eq!((job_id.as_str(), step, output.as_slice(), version), ("j", 42, &[43, 44, 45, 41][..], Version(1)));
    assert_eq!(setup.saved(), Some((1, Some(42), output)));
    let launches = lease.usage().launches;
    let again = setup.step(&lease, batch(42, &[1, 2, 3, 255]), 0).expect("it was done");
    assert_eq!(again, TrainingStepOutcome::Duplicate { job_id: "j".to_owned(), step: 42 });
    assert_eq!(lease.usage().launches, launches);
    // The same step with other input is other work.
    let error = setup.step(&lease, batch(42, &[9]), 1).expect_err("the key is taken");
    assert_eq!(error.code(), "fingerprint_mismatch", "{error:?}");
}

#[test]
fn a_revoked_lease_starts_no_gpu_work_and_reserves_nothing() {
    let mut setup = setup();
    let lease = lease();
    setup.host.revoke(lease.lease_id()).expect("it can be ended");
    await_status(&lease, LeaseStatus::Revoked);
    let error = setup.step(&lease, batch(1, &[0; 4]), 0).expect_err("the lease is over");
    assert!(matches!(error, TrainingError::LeaseNotActive(LeaseStatus::Revoked)), "{error:?}");
    assert!(error.is_lease_lost() && error.remedy().contains("new lease"));
    assert_eq!((lease.usage().launches, setup.saved()), (0, None));
    let key = EffectKey::step("j", 1);
    assert!(setup.steps.look_up(&key).expect("an answer").is_none(), "nothing was reserved");
}

#[test]
fn a_crash_between_save_and_complete_repeats_nothing() {
    let mut setup = setup();
    let lease = lease();
    setup.step(&lease, batch(1, &[0; 2]), 0).expect("it is done");
    // A process that dies right after the save has committed the version and the step.
    let fence = open_together(&setup.checkpoints, &training_checkpoint_name("j"), &setup.steps, "j").expect("a fence");
    let (key, print) = (EffectKey::step("j", 2), EffectFingerprint::of(b"another trainer's"));
    let request = SaveRequest::new(training_checkpoint_name("j"), Version(1), fence).bytes(vec![3; 2]).step(2);
    setup.checkpoints.save(request.completes(key, print)).expect("it is saved");
    let next = open_together(&setup.checkpoints, &training_checkpoint_name("j"), &setup.steps, "j").expect("a fence");
    let launches = lease.usage().launches;
    let again = run_fenced_training_step(
        &mut setup.checkpoints,
        &mut setup.steps,
        &lease,
        PTX,
        "train_step",
        batch(2, &[1; 2]),
        Version(2),
        next,
    );
    // The step is in the checkpoint, so it is not done again.
    let duplicate = TrainingStepOutcome::Duplicate { job_id: "j".to_owned(), step: 2 };
    assert_eq!(again.expect("it was done"), duplicate);
    assert_eq!(lease.usage().launches, launches);
    assert_eq!(setup.saved(), Some((2, Some(2), vec![3; 2])));
}

#[test]
fn a_stale_trainer_commits_nothing() {
    let mut setup = setup();
    let lease = lease();
    let fence = open_together(&setup.checkpoints, &training_checkpoint_name("j"), &setup.steps, "j").expect("a fence");
    assert!(fence > FenceEpoch(1));
    let error = setup.step(&lease, batch(1, &[0; 2]), 0).expect_err("fence 1 is stale");
    assert_eq!(error.code(), "fenced", "{error:?}");
    assert!(!error.is_lease_lost());
    assert_eq!(setup.saved(), None);
}

/// One step of the loops below.
fn add(session: &GpuSession, step: u64, state: &[u8]) -> Result<Vec<u8>, sublet::FabricError> {
    let buffer = session.mem_alloc(state.len() as u64)?;
    session.mem_write(&buffer, 0, state)?;
    let module = session.module_load(PTX)?;
    let args = KernelArgs::new().push_u64(step).push_u32(state.len() as u32).push_buffer(&buffer);
    session.launch_with_args(&module, "train_step", [1, 1, 1], [1, 1, 1], args)?;
    session.mem_read(&buffer, 0, state.len() as u64)
}

/// The state after this many steps.
fn expected(steps: u64) -> Vec<u8> {
    (0..4_u64).map(|at| (at + steps * (steps + 1) / 2) as u8).collect()
}

#[test]
fn a_loop_goes_on_over_parks_lost_leases_and_a_crash_of_the_daemon_with_the_same_result() {
    let setup = setup();
    let training = TrainingLoop::open(&setup.checkpoints, "j").expect("a fence");
    let training = training.saving(SaveSchedule::EverySteps(4));
    let (host, current) = (&setup.host, Mutex::new(String::new()));
    let acquire = || {
        let lease = acquire_preemptible_training_lease(GIB, 120)?;
        *current.lock().expect("no test panicked") = lease.lease_id().to_owned();
        Ok(lease)
    };
    let mut disturbed = Vec::new();
    let progress = training.run(20, vec![0, 1, 2, 3], acquire, |session, step, state| {
        if [6, 11].contains(&step) && !disturbed.contains(&step) {
            disturbed.push(step);
            host.park(&current.lock().expect("no test panicked"))?;
        }
        if step == 9 && !disturbed.contains(&step) {
            disturbed.push(step);
            host.crash_and_restart()?;
        }
        if [7, 13].contains(&step) && !disturbed.contains(&step) {
            disturbed.push(step);
            host.revoke(&current.lock().expect("no test panicked"))?;
            // The call meets the end of its lease here, or at one of the next.
            until("the end is noticed", || (session.status() == LeaseStatus::Revoked).then_some(()));
        }
        add(session, step, state)
    });
    let progress = progress.expect("it is trained");
    assert_eq!((progress.step, progress.durable_step, progress.leases_lost), (20, 20, 2));
    assert_eq!(progress.state, expected(20));
    assert_eq!(setup.saved(), Some((5, Some(20), expected(20))), "steps 4, 8, 12, 16 and 20 were saved once each");
    let again = training.run(20, vec![], || panic!("no lease is needed"), |_, _, _| panic!("no step is left"));
    assert_eq!(again.expect("it is trained").state, expected(20));
}

#[test]
fn of_two_loops_of_one_job_the_first_is_told_that_it_is_stale() {
    let setup = setup();
    let first = TrainingLoop::open(&setup.checkpoints, "j").expect("a fence").saving(SaveSchedule::EverySteps(1));
    let second = TrainingLoop::open(&setup.checkpoints, "j").expect("a fence").saving(SaveSchedule::EverySteps(1));
    let trained = |second: &TrainingLoop| second.run(2, vec![0, 1, 2, 3], || Ok(lease()), add).expect("it is trained");
    let error = first.run(
        9,
        vec![0, 1, 2, 3],
        || Ok(lease()),
        |session, step, state| {
            // The first one has its lease, so the second one gets it too: it is that of this process.
            if step == 1 {
                assert_eq!(trained(&second).state, expected(2));
            }
            add(session, step, state)
        },
    );
    assert_eq!(error.expect_err("it is stale").code(), "fenced");
    let again = first.run(9, vec![0, 1, 2, 3], || Ok(lease()), add).expect_err("it is stale");
    assert_eq!(again.code(), "fenced", "a loop does not take the job back by itself");
    assert_eq!((first.fence(), second.fence()), (Some(FenceEpoch(2)), Some(FenceEpoch(3))));
}

#[test]
fn a_loop_that_gets_no_lease_does_not_stop_the_one_that_trains() {
    let setup = setup();
    let open = || TrainingLoop::open(&setup.checkpoints, "j").expect("a job").saving(SaveSchedule::EverySteps(1));
    let (first, second) = (open(), open());
    let progress = first.run(
        3,
        vec![0, 1, 2, 3],
        || Ok(lease()),
        |session, step, state| {
            let refused = second.run(3, vec![0; 4], || acquire_preemptible_training_lease(1 << 50, 120), add);
            assert_eq!(refused.expect_err("there is no such GPU").code(), "capacity_exceeded");
            add(session, step, state)
        },
    );
    assert_eq!(progress.expect("it is trained").state, expected(3));
    assert_eq!(second.fence(), None);
}

#[test]
fn a_training_tells_when_a_replica_fails_and_when_all_hold_its_saves_again() {
    let _alone = alone();
    let (_host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let file = dir.path().join("store.toml");
    let replicas = ["one", "two", "three"].map(|name| dir.path().join(name));
    replicas.iter().for_each(|replica| fs::create_dir(replica).expect("a directory"));
    let text = "register = \"r.db\"\n[replicas]\none = \"one\"\ntwo = \"two\"\nthree = \"three\"\n";
    fs::write(&file, text).expect("a file");
    let (checkpoints, _) =
        replicated_training_state_in(&CheckpointStore::at(&file).expect("a store")).expect("a state");
    let told: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let heard = Arc::clone(&told);
    let job = TrainingLoop::open(&checkpoints, "j").expect("a fence").saving(SaveSchedule::EverySteps(1));
    let job = job.on_replica_failure(move |failures| {
        let names = failures.iter().map(|failure| failure.replica.to_string()).collect();
        heard.lock().expect("no panic before").push(names);
    });
    let away = dir.path().join("away");
    let progress = job.run(
        9,
        vec![0],
        || acquire_preemptible_training_lease(2 * GIB, 120),
        |_, step, state| {
            // A save of an earlier step may be under way, so that each state of the disk lasts for three steps.
            match step {
                4 => fs::rename(&replicas[1], &away).expect("a rename"),
                7 => fs::rename(&away, &replicas[1]).expect("a rename"),
                _ => {}
            }
            Ok(state.to_vec())
        },
    );
    let progress = progress.expect("two of three replicas are enough");
    assert_eq!((progress.durable_step, progress.failures.len()), (9, 0));
    assert_eq!(*told.lock().expect("no panic before"), [vec!["two".to_owned()], vec![]]);
}
