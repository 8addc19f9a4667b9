//! Saves that go on while the program does.

use crate::common::{ONE, checkpoints, checkpoints_in, job, register, store_over};
use crate::hanging_disk::HangingDisk;
use crate::simulated_disk::{FaultKind, SimulatedDisk};
use std::path::Path;
use std::sync::Arc;
use sublet_checkpoint::{BackgroundSaver, FenceEpoch, SaveRequest, Version};

fn request(step: u64) -> SaveRequest {
    SaveRequest::new(job(), Version(0), FenceEpoch(1)).bytes(format!("state {step}").into_bytes()).step(step)
}

#[test]
fn the_durable_step_follows_the_step() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("c")).expect("a directory");
    let disk = HangingDisk::default();
    let store = store_over(&register(), directory.path(), &["c"], Arc::new(disk.clone()));
    let mut saver = BackgroundSaver::new(&checkpoints(&store, &["c"], ONE), Version(0), None);
    disk.hang(true);
    saver.save(request(1)).expect("a thread");
    saver.check().expect("no failure");
    assert_eq!((saver.step(), saver.durable_step()), (Some(1), None));
    disk.hang(false);
    saver.finish().expect("a version");
    assert_eq!((saver.step(), saver.durable_step(), saver.version()), (Some(1), Some(1), Version(1)));
    let stalled = saver.save(request(2)).expect("a thread");
    assert!(stalled <= saver.stalled());
    saver.finish().expect("a version");
    assert_eq!((saver.durable_step(), saver.version()), (Some(2), Version(2)));
    assert!(saver.last_save_took().is_some());
}

#[test]
fn a_failed_save_is_an_error_of_the_next_call_and_then_saving_goes_on() {
    let disk = SimulatedDisk::new(&["a"]);
    let store = store_over(&register(), Path::new("/"), &["a"], Arc::new(disk.clone()));
    let checkpoints = checkpoints(&store, &["a"], ONE);
    let mut saver = BackgroundSaver::new(&checkpoints, Version(0), None);
    saver.save(request(1)).expect("a thread");
    saver.finish().expect("a version");
    disk.fail_at(0, FaultKind::Dead, "/");
    saver.save(request(2)).expect("a thread");
    let error = saver.save(request(3)).expect_err("the failure of step 2");
    assert_eq!((error.code(), error.to_string().as_str()), ("earlier_save_failed", "step 2 was not saved"));
    assert_eq!(error.remedy(), "nothing was committed: mend the replicas named above, then save again");
    assert_eq!((saver.step(), saver.durable_step()), (Some(2), Some(1)));
    disk.mend();
    saver.save(request(3)).expect("a thread");
    saver.finish().expect("a version");
    assert_eq!((saver.durable_step(), saver.version()), (Some(3), Version(2)));
    let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
    assert_eq!((loaded.step, loaded.bytes().expect("bytes").as_ref()), (Some(3), b"state 3".as_slice()));
}

/// The nice values of the threads with this name.
fn nice_of(thread: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a directory");
    // Threads that end meanwhile have no file.
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let nice = |stat: String| {
        let (before, after) = stat.rsplit_once(") ")?;
        let is_meant = before.split_once('(')?.1 == thread;
        is_meant.then(|| after.split(' ').nth(16)?.parse().ok())?
    };
    stats.filter_map(nice).collect()
}

#[test]
fn the_threads_of_a_save_are_nicer_than_the_training() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("c")).expect("a directory");
    let disk = HangingDisk::default();
    let store = store_over(&register(), directory.path(), &["c"], Arc::new(disk.clone()));
    let mut saver = BackgroundSaver::new(&checkpoints(&store, &["c"], ONE), Version(0), None);
    let own = rustix::process::getpriority_process(None).expect("a nice value");
    disk.hang(true);
    saver.save(request(1)).expect("a thread");
    // The kernel keeps 15 bytes of a name. The copy's thread is begun by the saving one.
    for thread in ["checkpoint save", "checkpoint copy"] {
        while !nice_of(thread).contains(&(own + 10).min(19)) {
            std::thread::yield_now();
        }
    }
    disk.hang(false);
    saver.finish().expect("a version");
    assert_eq!(rustix::process::getpriority_process(None).expect("a nice value"), own);
}

#[test]
fn dropping_the_saver_waits_for_its_save() {
    let directory = tempfile::tempdir().expect("a directory");
    let checkpoints = checkpoints_in(directory.path());
    let mut saver = BackgroundSaver::new(&checkpoints, Version(0), None);
    saver.save(request(1)).expect("a thread");
    drop(saver);
    assert_eq!(checkpoints.newest_step(&job()).expect("an answer"), Some(1));
}
