//! A training that goes on through faults at every operation of the disk and the register.

use crate::common::{ONE, Quorums, TWO, checkpoints, job, store_over};
use crate::failing_register::{FailingRegister, Outage};
use crate::simulated_disk::{FaultKind, SimulatedDisk, Surviving};
use crate::trainer::{STEPS, Trainer, trained};
use std::path::Path;
use std::sync::Arc;
use sublet_checkpoint::files::Files;
use sublet_checkpoint::register::{ChainRegister, MemoryRegister};
use sublet_checkpoint::{FenceEpoch, Version};

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

#[test]
fn a_register_that_breaks_off_at_every_create_repeats_no_step() {
    for outage in [Outage::Before, Outage::After] {
        // Three calls in a row are one call with its retries.
        for lasts in [1, 3] {
            for at in 0..20 {
                let register: Arc<dyn ChainRegister> = Arc::new(FailingRegister::new(at, lasts, outage));
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
            // The fault belongs to the training: the scrubs below are to meet none.
            disk.disarm();
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
fn a_committed_version_is_read_from_a_disk_that_got_full_before_it_was_published() {
    let mut unpublished = 0;
    for number in 0.. {
        let disk = SimulatedDisk::new(&["a"]);
        disk.fail_at(number, FaultKind::NoSpace, "/");
        let register: Arc<dyn ChainRegister> = Arc::new(MemoryRegister::new());
        let store = store_over(&register, Path::new("/"), &["a"], Arc::new(disk.clone()));
        let checkpoints = checkpoints(&store, &["a"], ONE);
        if let Ok(saved) = checkpoints.save_bytes(job(), Version(0), b"weights", FenceEpoch(1)) {
            unpublished += saved.value.failures.len();
            let loaded = checkpoints.load(&job()).expect("an answer").expect("a version");
            assert_eq!(loaded.bytes().expect("bytes").as_ref(), b"weights", "full at operation {number}");
        }
        if !disk.has_failed() {
            break;
        }
    }
    assert!(unpublished > 0, "the disk never got full between the commit and the publication");
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
