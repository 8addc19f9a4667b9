//! Training under random parks, kills of the trainer, crashes of the daemon, second trainers and disks that fail: the
//! result is the same.
//!
//! `SUBLET_SOAK_STEPS=10000` trains longer, `SUBLET_SOAK_SEED=7` repeats a run. The trainer is this test, run again as a
//! process of its own: it saves to three replicas, and two are enough.

mod disks;

use cookbook_preemptible_training::{
    SaveSchedule, TrainingError, TrainingLoop, acquire_preemptible_training_lease, train,
};
use disks::{Disks, REPLICAS};
use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use sublet::replicated::{
    CheckpointStore, LogicalResourceName, ReplicatedCheckpoint, ReplicatedError, SchemaId, Version,
};
use sublet::testing::LocalHost;
use sublet::training::training_checkpoint_name;

/// The steps that a trainer is to do; as a test of its own it does nothing.
const TRAINER: &str = "SUBLET_SOAK_TRAINER";
const VRAM: u64 = 1 << 30;
/// Far more than the training takes once it is left alone.
const LONG: Duration = Duration::from_secs(300);
/// The trainer saves after this many steps.
const SAVED_EVERY: u64 = 10;

/// What happens to a training.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Park,
    KillTrainer,
    CrashDaemon,
    SecondTrainer,
    Disk,
}

/// Numbers that depend on the seed alone (xorshift).
pub struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn disturbance(&mut self) -> Disturbance {
        match self.below(15) {
            0..=4 => Disturbance::Park,
            5..=7 => Disturbance::KillTrainer,
            8 => Disturbance::CrashDaemon,
            9 => Disturbance::SecondTrainer,
            _ => Disturbance::Disk,
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// The checkpoints of the soak, on all replicas of a store.
fn checkpoints(store: &CheckpointStore) -> Result<ReplicatedCheckpoint, ReplicatedError> {
    store.checkpoints(LogicalResourceName::new("soak"), SchemaId::new("none"))
}

fn run_trainer(steps: u64) -> Result<(), TrainingError> {
    let store = CheckpointStore::from_environment()?;
    let job = TrainingLoop::open(&checkpoints(&store)?, "cookbook")?.saving(SaveSchedule::EverySteps(SAVED_EVERY));
    train(&job, steps, vec![0; 16], || acquire_preemptible_training_lease(VRAM, 120)).map(drop)
}

/// The trainer.
#[test]
fn a_trainer() {
    let Ok(steps) = env::var(TRAINER) else { return };
    if let Err(error) = run_trainer(steps.parse().expect("a number")) {
        eprintln!("ended: {}", error.code());
        std::process::exit(1);
    }
}

/// What happened so far, by name.
#[derive(Default)]
struct SoakCounts(BTreeMap<String, u64>);

impl SoakCounts {
    fn add(&mut self, what: impl ToString, count: u64) {
        *self.0.entry(what.to_string()).or_default() += count;
    }
}

/// A training, the processes that do it, and the disks that it saves to.
struct SoakedTraining<'a> {
    host: &'a LocalHost,
    disks: Disks,
    log: File,
    steps: u64,
    trainers: Vec<Child>,
    counts: SoakCounts,
}

impl SoakedTraining<'_> {
    fn start_trainer(&mut self) {
        let mut command = Command::new(env::current_exe().expect("a path"));
        command.args(["a_trainer", "--exact", "--nocapture", "--test-threads=1"]).env(TRAINER, self.steps.to_string());
        command.env("SUBLET_SOCKET", self.host.socket()).env("SUBLET_CHECKPOINTS", self.disks.store());
        command.env_remove("SUBLET_LEASE").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(self.log.try_clone().expect("a file"));
        self.trainers.push(command.spawn().expect("it can be started"));
        self.counts.add("trainers started", 1);
    }

    fn disturb(&mut self, what: Disturbance, numbers: &mut SeededNumbers) {
        match what {
            // It may be parked already, or have just begun.
            Disturbance::Park => self.park_all(),
            Disturbance::KillTrainer => {
                let killed = self.kill_trainers();
                self.counts.add("trainers killed", killed);
            }
            Disturbance::CrashDaemon => {
                self.host.crash_and_restart().expect("it comes back");
                self.counts.add("daemons killed", 1);
            }
            Disturbance::SecondTrainer => {
                self.counts.add("second trainers", u64::from(!self.trainers.is_empty()));
                self.start_trainer();
            }
            Disturbance::Disk => {
                if let Some(fault) = self.disks.disturb(numbers) {
                    self.counts.add(format!("disk faults: {fault:?}"), 1);
                }
            }
        }
    }

    fn park_all(&mut self) {
        let client = self.host.fabric().client();
        let leases: serde_json::Value = client.get("/v1/leases").expect("an answer");
        for lease in leases["leases"].as_array().expect("a list") {
            let id = lease["id"].as_str().expect("an id");
            let parked = client.post(&format!("/v1/leases/{id}/park"), None::<&()>, LONG);
            self.counts.add("parks", u64::from(parked.is_ok()));
        }
    }

    /// Kills all trainers that still run, and returns their number.
    fn kill_trainers(&mut self) -> u64 {
        let mut killed = 0;
        for mut trainer in self.trainers.drain(..) {
            killed += u64::from(trainer.try_wait().expect("an own child").is_none());
            trainer.kill().expect("an own child can be killed");
            trainer.wait().expect("an own child ends");
        }
        killed
    }

    /// Whether a trainer got to the end. One that ended otherwise is replaced.
    fn is_done(&mut self) -> bool {
        let mut is_done = false;
        self.trainers.retain_mut(|trainer| match trainer.try_wait().expect("an own child") {
            Some(status) => {
                is_done |= status.success();
                false
            }
            None => true,
        });
        if self.trainers.is_empty() && !is_done {
            self.start_trainer();
        }
        is_done
    }
}

impl Drop for SoakedTraining<'_> {
    fn drop(&mut self) {
        self.kill_trainers();
    }
}

#[test]
fn a_disturbed_training_ends_with_the_bytes_of_an_undisturbed_one() {
    let (steps, seed) = (number("SUBLET_SOAK_STEPS", 1_000), number("SUBLET_SOAK_SEED", 1));
    println!("SUBLET_SOAK_STEPS={steps} SUBLET_SOAK_SEED={seed}");
    let (host, dir) = (LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let mut numbers = SeededNumbers(seed.max(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (disks, log) = (Disks::create(dir.path()), File::create(dir.path().join("log")).expect("a file"));
    let (trainers, counts) = (Vec::new(), SoakCounts::default());
    let mut training = SoakedTraining { host: &host, disks, log, steps, trainers, counts };
    let begun = Instant::now();
    training.start_trainer();
    let mut disturbances = 0;
    while disturbances < steps / 25 && !training.is_done() {
        thread::sleep(Duration::from_millis(numbers.below(60)));
        let what = numbers.disturbance();
        training.disturb(what, &mut numbers);
        disturbances += 1;
    }
    training.disks.mend_all();
    let disturbed = begun.elapsed();
    let deadline = Instant::now() + LONG;
    while !training.is_done() {
        assert!(Instant::now() < deadline, "it does not get to its end");
        thread::sleep(Duration::from_millis(20));
    }
    training.kill_trainers();
    let log = std::fs::read_to_string(dir.path().join("log")).expect("a file");
    log.lines().filter(|line| line.starts_with("ended: ")).for_each(|line| training.counts.add(line, 1));
    let store = CheckpointStore::at(training.disks.store()).expect("a store");
    let checkpoints = checkpoints(&store).expect("the checkpoints");
    let job = training_checkpoint_name("cookbook");
    let fence = checkpoints.current_fence(&job).expect("a fence");
    println!("{disturbances} disturbances in {disturbed:?}, the end after {:?}", begun.elapsed());
    println!("the job was opened {} times", fence.0 - 1);
    training.counts.0.iter().for_each(|(what, count)| println!("{count} {what}"));
    check(&checkpoints, steps, disturbances);
}

/// Checks the newest version, and then every copy.
fn check(checkpoints: &ReplicatedCheckpoint, steps: u64, disturbances: u64) {
    let job = training_checkpoint_name("cookbook");
    let saved = checkpoints.load(&job).expect("it is whole").expect("it is there");
    let expected = vec![(steps * (steps + 1) / 2) as u8; 16];
    assert_eq!((saved.step, saved.bytes().map(|bytes| bytes.to_vec())), (Some(steps), Some(expected)));
    // One version for each save: no step was committed twice, and none was left out.
    assert_eq!(saved.version, Version(steps.div_ceil(SAVED_EVERY)), "after {disturbances} disturbances");
    let mended = checkpoints.scrub(&job).expect("a report");
    println!("{} copies were whole at the end, {} were repaired", mended.whole, mended.repaired.len());
    let versions = checkpoints.versions(&job).expect("versions").len();
    let again = checkpoints.scrub(&job).expect("a report");
    assert_eq!((again.whole, again.damaged), (versions * REPLICAS.len(), vec![]));
}
