//! A training that goes on through faults at every operation of the disk and the register.

use crate::common::{ONE, Quorums, TWO, job, store_over};
use crate::simulated_disk::{FaultKind, SimulatedDisk, Surviving};
use crate::trainer::{STEPS, Trainer, trained};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sublet_checkpoint::ChainName;
use sublet_checkpoint::files::Files;
use sublet_checkpoint::register::{ChainRegister, Creation, MemoryRegister, NumberedEntry, RegisterError};

const SURVIVING: [Surviving; 3] = [Surviving::Synced, Surviving::NamesAndHalves, Surviving::NamesOnly];

fn start(register: &Arc<dyn ChainRegister>, disk: &SimulatedDisk, replicas: &[&str], quorums: Quorums) -> Trainer {
    Trainer::start(&store_over(register, Path::new("/"), replicas, Arc::new(disk.clone())), replicas, quorums)
}

/// Trains through one fault, and checks what is left at the end.
fn train_through(disk: &SimulatedDisk, register: &Arc<dyn ChainRegister>, surviving: Surviving) {
    let mut acknowledged = 0;
    let mut trainer = start(register, disk, &["a"], ONE);
    for _ in 0..4 {
        assert!(trainer.newest().map_or(acknowledged, |(_, step, _)| step) >= acknowledged, "a step was lost");
        if let Err(error) = trainer.train(|step| acknowledged = step) {
            assert!(!matches!(error.code(), "fenced" | "step_not_newer" | "effect_committed"), "{error}");
            if disk.is_off() {
                disk.restart(surviving);
                trainer = start(register, disk, &["a"], ONE);
            }
            disk.mend();
        }
    }
    disk.disarm();
    if disk.is_off() {
        disk.restart(surviving);
        trainer = start(register, disk, &["a"], ONE);
    }
    disk.mend();
    assert_eq!(acknowledged.max(trainer.newest().expect("a state").1), STEPS);
    trainer.checkpoints.open(&job()).expect("a fence");
    let home = Path::new("/a/models/job:7:latest");
    assert_eq!(disk.list(home).expect("names"), ["000003", "000004", "latest"], "nothing is left behind");
    assert_eq!(disk.read_link(&home.join("latest")).expect("a link").as_deref(), Some("000004"));
    let report = trainer.checkpoints.scrub(&job()).expect("a report");
    assert_eq!((report.whole, report.damaged.len()), (2, 0));
    trainer.check_steps();
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
            let trainer = start(&register, &disk, &THREE, TWO);
            let mut acknowledged = 0;
            trainer.train(|step| acknowledged = step).expect("two replicas are enough");
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
        let trainer = start(&register, &disk, &THREE, TWO);
        trainer.train(|_| ()).expect("three replicas");
        disk.restart(surviving);
        let trainer = start(&register, &disk, &THREE, TWO);
        assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
        trainer.checkpoints.scrub(&job()).expect("a report");
        assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 6);
    }
}

#[test]
fn a_flipped_bit_in_any_file_of_a_replica_is_found_and_repaired() {
    let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
    let disk = SimulatedDisk::new(&THREE);
    let trainer = start(&register, &disk, &THREE, Quorums { write: 2, read: 2 });
    trainer.train(|_| ()).expect("three replicas");
    for replica in THREE {
        for file in ["state", "data", "sublet.json"] {
            disk.damage(&Path::new("/").join(replica).join("models/job:7:latest/000004").join(file));
            assert_eq!(trainer.newest().expect("a state").2, trained(STEPS));
            trainer.checkpoints.scrub(&job()).expect("a report");
            assert_eq!(trainer.checkpoints.scrub(&job()).expect("a report").whole, 6, "{replica} {file}");
        }
    }
}
