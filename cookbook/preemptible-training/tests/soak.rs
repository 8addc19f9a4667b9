//! Training under random parks, kills of the trainer, crashes of the daemon and second trainers: the result is the same.
//!
//! `SUBLET_SOAK_STEPS=10000` trains longer, `SUBLET_SOAK_SEED=7` repeats a run.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use sublet::replicated::{CheckpointStore, Version};
use sublet::testing::LocalHost;
use sublet::training::{replicated_training_state_in, training_checkpoint_name};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cookbook-preemptible-training");
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
}

/// Numbers that depend on the seed alone (xorshift).
struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn disturbance(&mut self) -> Disturbance {
        match self.below(10) {
            0..=4 => Disturbance::Park,
            5..=7 => Disturbance::KillTrainer,
            8 => Disturbance::CrashDaemon,
            _ => Disturbance::SecondTrainer,
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// A training, the processes that do it, and the store that it saves to.
struct SoakedTraining<'a> {
    host: &'a LocalHost,
    store: &'a Path,
    steps: u64,
    trainers: Vec<Child>,
}

impl SoakedTraining<'_> {
    fn start_trainer(&mut self) {
        let mut command = Command::new(PROGRAM);
        command.arg(self.steps.to_string()).env("SUBLET_SOCKET", self.host.socket());
        command.env("SUBLET_CHECKPOINTS", self.store).env_remove("SUBLET_LEASE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.trainers.push(command.spawn().expect("it can be started"));
    }

    fn disturb(&mut self, what: Disturbance) {
        match what {
            // It may be parked already, or have just begun.
            Disturbance::Park => self.park_all(),
            Disturbance::KillTrainer => self.kill_trainers(),
            Disturbance::CrashDaemon => self.host.crash_and_restart().expect("it comes back"),
            Disturbance::SecondTrainer => self.start_trainer(),
        }
    }

    fn park_all(&self) {
        let client = self.host.fabric().client();
        let leases: serde_json::Value = client.get("/v1/leases").expect("an answer");
        for lease in leases["leases"].as_array().expect("a list") {
            let id = lease["id"].as_str().expect("an id");
            drop(client.post(&format!("/v1/leases/{id}/park"), None::<&()>, LONG));
        }
    }

    fn kill_trainers(&mut self) {
        for mut trainer in self.trainers.drain(..) {
            trainer.kill().expect("an own child can be killed");
            trainer.wait().expect("an own child ends");
        }
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
    let mut training = SoakedTraining { host: &host, store: dir.path(), steps, trainers: Vec::new() };
    training.start_trainer();
    let mut disturbances = 0;
    while disturbances < steps / 25 && !training.is_done() {
        thread::sleep(Duration::from_millis(numbers.below(60)));
        let what = numbers.disturbance();
        println!("{what:?}");
        training.disturb(what);
        disturbances += 1;
    }
    let deadline = Instant::now() + LONG;
    while !training.is_done() {
        assert!(Instant::now() < deadline, "it does not get to its end");
        thread::sleep(Duration::from_millis(20));
    }
    drop(training);
    let store = CheckpointStore::open(dir.path()).expect("a store");
    let (checkpoints, _) = replicated_training_state_in(&store).expect("the state");
    let saved = checkpoints.load(&training_checkpoint_name("cookbook")).expect("it is whole").expect("it is there");
    let expected = vec![(steps * (steps + 1) / 2) as u8; 16];
    assert_eq!((saved.step, saved.bytes().map(|bytes| bytes.to_vec())), (Some(steps), Some(expected)));
    // One version for each save: no step was committed twice, and none was left out.
    assert_eq!(saved.version, Version(steps.div_ceil(SAVED_EVERY)), "after {disturbances} disturbances");
}
