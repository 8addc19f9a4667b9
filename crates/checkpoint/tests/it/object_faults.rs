//! A training over an object store that goes on through faults at every operation.

use crate::common::{ONE, Quorums, TWO, job, store_over};
use crate::simulated_bucket::{BucketFault, SimulatedBucket};
use crate::trainer::{STEPS, Trainer, trained};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sublet_checkpoint::files::{Files, ObjectFiles, read_small, write_new};
use sublet_checkpoint::register::{ChainRegister, ObjectRegister};
use sublet_checkpoint::{ObjectBucket, ReplicaId, SaveRequest, Version};

const FAULTS: [BucketFault; 4] =
    [BucketFault::KilledBefore, BucketFault::KilledAfter, BucketFault::Fails, BucketFault::LosesAnswer];

const URL: &str = "s3://bucket";

fn bucket(store: &SimulatedBucket) -> ObjectBucket {
    let bucket = ObjectBucket::new(Arc::new(store.clone()), URL).expect("threads");
    bucket.with_call_limit(Duration::from_secs(60))
}

/// A program over one bucket that holds the register and the replicas.
fn start(store: &SimulatedBucket, replicas: &[&str], quorums: Quorums) -> Trainer {
    let register: Arc<dyn ChainRegister> = Arc::new(ObjectRegister::open(bucket(store), "r").expect("a register"));
    let files = Arc::new(ObjectFiles::new(bucket(store)));
    Trainer::start(&store_over(&register, Path::new(URL), replicas, files), replicas, quorums)
}

/// Trains through one fault, and checks what is left at the end.
fn train_through(store: &SimulatedBucket, number: u64, fault: BucketFault) {
    let mut acknowledged = 0;
    let mut trainer = start(store, &["a"], ONE);
    store.fail_at(number, fault, "");
    for _ in 0..4 {
        if let Err(error) = trainer.train(|step| acknowledged = step) {
            assert!(!matches!(error.code(), "fenced" | "step_not_newer" | "effect_committed"), "{error}");
        }
        if store.is_dead() {
            store.restart();
            trainer = start(store, &["a"], ONE);
        }
        assert!(trainer.newest().expect("a state").1 >= acknowledged, "a step was lost");
    }
    store.disarm();
    assert_eq!(acknowledged.max(trainer.newest().expect("a state").1), STEPS);
    trainer.checkpoints.open(&job()).expect("a fence");
    check_bucket(store, &["a"]);
    let report = trainer.checkpoints.scrub(&job()).expect("a report");
    assert_eq!((report.whole, report.damaged.len()), (2, 0));
    trainer.check_steps();
}

/// Checks that the replicas hold versions 3 and 4 and nothing else.
fn check_bucket(store: &SimulatedBucket, replicas: &[&str]) {
    assert_eq!(store.half_versions(), [""; 0]);
    let files = ObjectFiles::new(bucket(store));
    for replica in replicas {
        let home = Path::new(URL).join(replica).join("models/job:7:latest");
        let names = files.list(&home).expect("names");
        assert_eq!(names.len(), 3, "nothing is left behind: {names:?}");
        assert!(names[0].starts_with("000003-") && names[1].starts_with("000004-"), "{names:?}");
        assert_eq!(files.read_link(&home.join("latest")).expect("a link").as_ref(), Some(&names[1]));
        for version in &names[..2] {
            let parts = files.list(&home.join(version)).expect("names");
            assert_eq!(parts, ["_SUCCESS", "data", "state", "sublet.json"]);
        }
    }
}

#[test]
fn a_fault_at_every_operation_of_a_bucket_loses_and_repeats_no_step() {
    for fault in FAULTS {
        let mut number = 0;
        loop {
            let store = SimulatedBucket::default();
            train_through(&store, number, fault);
            if !store.has_failed() {
                break;
            }
            number += 1;
        }
        assert!(number > 40, "only {number} operations were tried");
    }
}

const THREE: [&str; 3] = ["a", "b", "c"];

#[test]
fn saves_go_on_when_one_of_three_prefixes_fails_at_any_operation() {
    for fault in FAULTS {
        let mut number = 0;
        loop {
            let store = SimulatedBucket::default();
            let trainer = start(&store, &THREE, TWO);
            store.fail_at(number, fault, "a/");
            let mut acknowledged = 0;
            let trained_on = trainer.train(|step| acknowledged = step);
            // Reads of the other replicas and of the register end with the program.
            let trainer = if store.is_dead() {
                store.restart();
                start(&store, &THREE, TWO)
            } else {
                trained_on.expect("two replicas are enough");
                trainer
            };
            assert!(trainer.newest().expect("a state").1 >= acknowledged);
            trainer.train(|_| ()).expect("a training");
            assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
            let report = trainer.checkpoints.scrub(&job()).expect("a report");
            assert_eq!(report.damaged, [], "{fault:?} at {number}");
            assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 6);
            trainer.checkpoints.open(&job()).expect("a fence");
            check_bucket(&store, &THREE);
            if !store.has_failed() {
                break;
            }
            number += 1;
        }
        assert!(number > 20, "only {number} operations were tried");
    }
}

#[test]
fn a_damaged_copy_in_a_bucket_is_replaced_through_a_fault_at_every_operation() {
    for fault in FAULTS {
        let mut number = 0;
        loop {
            let store = SimulatedBucket::default();
            let trainer = start(&store, &["a", "b"], TWO);
            trainer.train(|_| ()).expect("a training");
            damage(&store, "a/models/job:7:latest/000004-", "/state");
            store.fail_at(number, fault, "a/");
            // The load gives the version of the other replica, or fails with the program.
            let newest = trainer.newest();
            let trainer = if store.is_dead() {
                store.restart();
                start(&store, &["a", "b"], TWO)
            } else {
                assert_eq!(newest.expect("a state").2, trained(STEPS));
                trainer
            };
            assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
            trainer.checkpoints.scrub(&job()).expect("a report");
            assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 4, "{fault:?} at {number}");
            assert_eq!(store.half_versions(), [""; 0]);
            if !store.has_failed() {
                break;
            }
            number += 1;
        }
        assert!(number >= 8, "only {number} operations were tried");
    }
}

/// Flips a bit of the object whose key begins and ends like this.
fn damage(store: &SimulatedBucket, start: &str, end: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut keys = store.keys().await.into_iter();
        let key = keys.rfind(|key| key.starts_with(start) && key.ends_with(end)).expect("an object");
        let key = object_store::path::Path::from(key);
        let mut bytes = store.get(&key).await.expect("an object").bytes().await.expect("bytes").to_vec();
        bytes[0] ^= 1;
        store.put(&key, bytes.into()).await.expect("an object");
    });
}

#[test]
fn a_register_in_a_bucket_that_is_lost_is_rebuilt_from_the_copies() {
    let store = SimulatedBucket::default();
    start(&store, &["a", "b"], TWO).train(|_| ()).expect("a training");
    let register: Arc<dyn ChainRegister> = Arc::new(ObjectRegister::open(bucket(&store), "new").expect("a register"));
    let replicas = ["a", "b"];
    let files = Arc::new(ObjectFiles::new(bucket(&store)));
    let rebuilt = store_over(&register, Path::new(URL), &replicas, files);
    let (rebuilt, report) = rebuilt.rebuild(&replicas.map(ReplicaId::new)).expect("a register");
    assert_eq!(report.checkpoints[0].versions, [Version(3), Version(4)]);
    let trainer = Trainer::start(&rebuilt, &replicas, TWO);
    assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
    assert!(trainer.checkpoints.open(&job()).expect("a fence").0 > 1 << 32, "every older fence is stale");
    check_bucket(&store, &replicas);
}

#[test]
fn processes_that_take_over_from_each_other_in_a_bucket_commit_each_step_once() {
    for _ in 0..5 {
        let store = SimulatedBucket::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let trainer = start(&store, &["a"], ONE);
                    while let Err(error) = trainer.train(|_| ()) {
                        assert_eq!(error.code(), "fenced", "{error}");
                    }
                });
            }
        });
        let trainer = start(&store, &["a"], ONE);
        assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
        trainer.check_steps();
        check_bucket(&store, &["a"]);
    }
}

#[test]
fn a_large_file_is_written_in_parts_and_read_back() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = ObjectFiles::new(ObjectBucket::new(Arc::clone(&store), URL).expect("threads"));
    let bytes: Vec<u8> = (0..40_000_000_u32).map(|number| (number / 3) as u8).collect();
    let path = Path::new("s3://bucket/a/large[1] %2F");
    let mut file = files.create(path).expect("a file");
    for chunk in bytes.chunks(3_000_000) {
        file.write_all(chunk).expect("a chunk");
    }
    assert_eq!(files.open(path).err().expect("no file yet").kind(), std::io::ErrorKind::NotFound);
    file.finish().expect("a file");
    assert!(read_small(&files, path, u64::MAX).expect("the file") == bytes);
    assert_eq!(files.list(Path::new("s3://bucket/a")).expect("names"), ["large[1] %2F"]);
    let read = files.open(path).expect("the file");
    for (offset, length) in [(0, 10), (35_000_000, 5_000_000), (3_999_990, 20), (39_999_999, 1), (7, 0)] {
        let mut buffer = vec![0; length];
        read.read_exact_at(&mut buffer, offset as u64).expect("bytes");
        assert!(buffer == bytes[offset..offset + length], "{offset} {length}");
    }
    assert!(read.read_exact_at(&mut [0; 2], 39_999_999).is_err());
}

#[test]
fn a_file_that_is_not_finished_is_not_there() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = ObjectFiles::new(ObjectBucket::new(store, URL).expect("threads"));
    for bytes in [10, 20_000_000] {
        let mut file = files.create(Path::new("s3://bucket/a/x")).expect("a file");
        file.write_all(&vec![7; bytes]).expect("bytes");
        drop(file);
    }
    assert_eq!(files.list(Path::new("s3://bucket/a")).expect("names"), [""; 0]);
    assert!(files.check_dir(Path::new("s3://bucket/a")).is_err());
    write_new(&files, Path::new("s3://bucket/a/x"), b"").expect("a file");
    assert!(files.check_dir(Path::new("s3://bucket/a")).is_ok());
    assert!(files.create(Path::new("s3://other/a/x")).is_err(), "it is another bucket");
}

#[test]
fn a_save_lists_the_files_of_its_checkpoint_ten_times_at_most() {
    let store = SimulatedBucket::default();
    let trainer = start(&store, &["a"], ONE);
    let fence = trainer.checkpoints.open(&job()).expect("a fence");
    let save = |version: u64| {
        let mut request = SaveRequest::new(job(), Version(version - 1), fence).part("state", "").part("data", "");
        for part in 0..50 {
            request = request.part(format!("part-{part}"), format!("{version}"));
        }
        trainer.checkpoints.save(request).expect("a version");
    };
    (1..=3).for_each(save);
    let before = store.listed();
    save(4);
    let lists = store.listed() - before;
    assert!(lists <= 10, "{lists} lists; each is a request for 1,000 files");
}
