//! A training that goes on through faults at every operation of the disk and the register.
//!
//! Each step adds its number to the state, so a state that lost, repeated or mixed up a step shows it.

use crate::common::{ONE, Quorums, TWO, checkpoints, effects, fingerprint, job, store_over};
use crate::simulated_disk::{FaultKind, SimulatedDisk, Surviving};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sublet_checkpoint::files::Files;
use sublet_checkpoint::register::{ChainRegister, Creation, MemoryRegister, NumberedEntry, RegisterError};
use sublet_checkpoint::{
    ChainName, EffectKey, FenceEpoch, IdempotencyOutcome, ReplicatedCheckpoint, ReplicatedError,
    ReplicatedIdempotencyStore, SaveRequest, Version, open_together,
};

/// The steps of a training.
const STEPS: u64 = 4;

const SURVIVING: [Surviving; 3] = [Surviving::Synced, Surviving::NamesAndHalves, Surviving::NamesOnly];

/// One process that trains.
struct Trainer {
    checkpoints: ReplicatedCheckpoint,
    effects: ReplicatedIdempotencyStore,
}

impl Trainer {
    fn start(register: &Arc<dyn ChainRegister>, disk: &SimulatedDisk, replicas: &[&str], quorums: Quorums) -> Trainer {
        let store = store_over(register, Path::new("/"), replicas, Arc::new(disk.clone()));
        Trainer { checkpoints: checkpoints(&store, replicas, quorums), effects: effects(&store) }
    }

    /// The newest version, its step, and its state.
    fn newest(&self) -> Result<(Version, u64, String), ReplicatedError> {
        let Some(loaded) = self.checkpoints.load(&job())? else { return Ok((Version(0), 0, String::new())) };
        let state = String::from_utf8(loaded.part("state").expect("a part").to_vec()).expect("UTF-8");
        assert_eq!(loaded.part("data").expect("a part").as_ref(), DATA);
        Ok((loaded.version, loaded.step.expect("a step"), state))
    }

    /// Trains until the last step; `acknowledged` is the newest step that was reported as saved.
    fn train(&self, acknowledged: &mut u64) -> Result<(), ReplicatedError> {
        let fence = open_together(&self.checkpoints, &job(), &self.effects, "job:7")?;
        loop {
            let (version, step, state) = self.newest()?;
            assert_eq!(state, trained(step), "the state has each step once");
            assert!(step >= *acknowledged, "step {acknowledged} was acknowledged, and {step} is the newest");
            if step == STEPS {
                return Ok(());
            }
            self.step(version, step + 1, &state, fence)?;
            *acknowledged = step + 1;
        }
    }

    fn step(&self, version: Version, step: u64, state: &str, fence: FenceEpoch) -> Result<(), ReplicatedError> {
        let key = EffectKey::step("job:7", step);
        let input = fingerprint(&step.to_string());
        let reserved = self.effects.reserve_for(&self.checkpoints, &job(), key.clone(), input, None, fence)?;
        assert!(matches!(reserved.value.outcome, IdempotencyOutcome::Reserved { .. }), "step {step} is not saved");
        let request = SaveRequest::new(job(), version, fence).part("data", DATA).step(step);
        let request = request.part("state", format!("{state} {step}").into_bytes());
        self.checkpoints.save(request.completes(key.clone(), input))?;
        self.effects.complete(key, reserved.version, IdempotencyOutcome::Completed { effect: None }, fence)?;
        Ok(())
    }
}

/// A part that never changes.
const DATA: &[u8] = b"the same in each version";

fn trained(step: u64) -> String {
    (1..=step).map(|step| format!(" {step}")).collect()
}

/// Trains through one fault, and checks what is left at the end.
fn train_through(disk: &SimulatedDisk, register: &Arc<dyn ChainRegister>, surviving: Surviving) {
    let mut acknowledged = 0;
    let mut trainer = Trainer::start(register, disk, &["a"], ONE);
    for _ in 0..4 {
        if let Err(error) = trainer.train(&mut acknowledged) {
            assert!(!matches!(error.code(), "fenced" | "step_not_newer" | "effect_committed"), "{error}");
            if disk.is_off() {
                disk.restart(surviving);
                trainer = Trainer::start(register, disk, &["a"], ONE);
            }
            disk.mend();
        }
    }
    disk.disarm();
    if disk.is_off() {
        disk.restart(surviving);
        trainer = Trainer::start(register, disk, &["a"], ONE);
    }
    disk.mend();
    assert_eq!(acknowledged.max(trainer.newest().expect("a state").1), STEPS);
    trainer.checkpoints.open(&job()).expect("a fence");
    let home = Path::new("/a/models/job:7:latest");
    assert_eq!(disk.list(home).expect("names"), ["000003", "000004", "latest"], "nothing is left behind");
    assert_eq!(disk.read_link(&home.join("latest")).expect("a link").as_deref(), Some("000004"));
    let report = trainer.checkpoints.scrub(&job()).expect("a report");
    assert_eq!((report.whole, report.damaged.len()), (2, 0));
    for step in 1..=STEPS {
        let key = EffectKey::step("job:7", step);
        let fence = open_together(&trainer.checkpoints, &job(), &trainer.effects, "job:7").expect("a fence");
        let found = trainer.effects.reserve(key, fingerprint(&step.to_string()), None, fence).expect("a record");
        assert_eq!(found.value.outcome, IdempotencyOutcome::Completed { effect: None }, "step {step}");
    }
}

/// Trains with this fault at every operation of the disk.
fn fail_everywhere(kind: FaultKind, surviving: &[Surviving]) {
    for &surviving in surviving {
        let mut number = 0;
        loop {
            let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
            let disk = SimulatedDisk::new(&["a"]);
            disk.fail_at(number, kind, "/");
            train_through(&disk, &register, surviving);
            if !disk.has_failed() {
                break;
            }
            number += 1;
        }
        assert!(number > 60, "only {number} operations were tried");
    }
}

#[test]
fn a_power_cut_at_every_operation_loses_no_acknowledged_step() {
    fail_everywhere(FaultKind::PowerCut, &SURVIVING);
}

#[test]
fn a_torn_write_at_every_operation_loses_no_acknowledged_step() {
    fail_everywhere(FaultKind::TornWrite, &SURVIVING);
}

#[test]
fn an_input_output_error_at_every_operation_loses_no_acknowledged_step() {
    fail_everywhere(FaultKind::InputOutput, &[Surviving::Synced]);
}

#[test]
fn a_full_disk_at_every_operation_loses_no_acknowledged_step() {
    fail_everywhere(FaultKind::NoSpace, &[Surviving::Synced]);
}

/// What a register does at one call of `create`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// It creates nothing, and does not answer.
    Before,
    /// It creates the entry, and its answer is lost.
    After,
}

/// A register that breaks off at one call of `create`, and at those that follow at once.
struct FailingRegister {
    inner: MemoryRegister,
    calls: AtomicU64,
    at: u64,
    lasts: u64,
    outage: Outage,
}

impl ChainRegister for FailingRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call < self.at || call >= self.at + self.lasts {
            return self.inner.create(chain, number, entry);
        }
        if self.outage == Outage::After {
            self.inner.create(chain, number, entry)?;
        }
        Err(RegisterError::Unavailable { reason: "the line is cut".to_owned() })
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        self.inner.read(chain, from, limit)
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.inner.last(chain)
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.inner.forget_before(chain, number)
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        self.inner.chains()
    }
}

#[test]
fn a_register_that_breaks_off_at_every_create_repeats_no_step() {
    for outage in [Outage::Before, Outage::After] {
        // Three calls in a row are one call with its retries.
        for lasts in [1, 3] {
            for at in 0..20 {
                let inner = MemoryRegister::new();
                let failing = FailingRegister { inner, calls: AtomicU64::new(0), at, lasts, outage };
                let register: Arc<dyn ChainRegister> = Arc::new(failing);
                train_through(&SimulatedDisk::new(&["a"]), &register, Surviving::Synced);
            }
        }
    }
}

const THREE: [&str; 3] = ["a", "b", "c"];

#[test]
fn saves_go_on_when_one_of_three_replicas_fails_at_any_operation() {
    for kind in [FaultKind::Dead, FaultKind::NoSpace, FaultKind::InputOutput] {
        let mut number = 0;
        loop {
            let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
            let disk = SimulatedDisk::new(&THREE);
            disk.fail_at(number, kind, "/a");
            let trainer = Trainer::start(&register, &disk, &THREE, TWO);
            let mut acknowledged = 0;
            trainer.train(&mut acknowledged).expect("two replicas are enough");
            assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
            disk.mend();
            let report = trainer.checkpoints.scrub(&job()).expect("a report");
            assert_eq!(report.damaged, [], "{kind:?} at {number}");
            assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 6);
            if !disk.has_failed() {
                break;
            }
            number += 3;
        }
    }
}

#[test]
fn a_replica_that_lies_about_syncs_is_found_out_and_repaired() {
    for surviving in SURVIVING {
        let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
        let disk = SimulatedDisk::new(&THREE);
        disk.lie_below("/a");
        let trainer = Trainer::start(&register, &disk, &THREE, TWO);
        trainer.train(&mut 0).expect("three replicas");
        disk.restart(surviving);
        let trainer = Trainer::start(&register, &disk, &THREE, TWO);
        assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
        trainer.checkpoints.scrub(&job()).expect("a report");
        assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 6);
    }
}

#[test]
fn a_flipped_bit_in_any_file_of_a_replica_is_found_and_repaired() {
    let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
    let disk = SimulatedDisk::new(&THREE);
    let trainer = Trainer::start(&register, &disk, &THREE, Quorums { write: 2, read: 2 });
    trainer.train(&mut 0).expect("three replicas");
    for replica in THREE {
        for file in ["state", "data", "sublet.json"] {
            disk.damage(&Path::new("/").join(replica).join("models/job:7:latest/000004").join(file));
            assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
            trainer.checkpoints.scrub(&job()).expect("a report");
            assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 6, "{replica} {file}");
        }
    }
}
