//! Registers of checkpoints on images of the disk as a power cut would leave it.
//!
//! The recorder of `power_cut.rs` notes what the daemon does to its files, and the client how much was recorded when each
//! answer arrived. A daemon on the image must have each entry that was answered before the cut, whole and in its place.
//! `SUBLET_CUTS=1000` cuts more often.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use sublet_blackbox::change_log::{DiskChange, build_recorder, read, recorder_env};
use sublet_blackbox::disk_image::{Image, KeptChanges};
use sublet_blackbox::{ServiceSetup, TestClient, TestService};
use sublet_wire::RegisterEntries;

/// Enough for several checkpoints of SQLite's log.
const ENTRIES: u64 = 40;
const REGISTERS: [&str; 2] = ["first", "second"];

/// An entry that was sent, and how much was recorded when it was answered.
struct SentEntry {
    register: &'static str,
    number: u64,
    bytes: Vec<u8>,
    answered_at: u64,
}

fn entries(register: &str) -> String {
    format!("/v1/registers/{register}/chains/c%2Fmodels%2Fjob/entries")
}

/// The second register begins in the middle. Some entries are large, so that the log is copied into the files.
fn send_entries(client: &TestClient, log: &Path) -> Vec<SentEntry> {
    let mut sent: Vec<SentEntry> = Vec::new();
    for at in 0..ENTRIES {
        let register = if at < ENTRIES / 2 || at % 2 == 0 { REGISTERS[0] } else { REGISTERS[1] };
        let number = 1 + sent.iter().filter(|other| other.register == register).count() as u64;
        let bytes = vec![at as u8; if at % 4 == 3 { 600 << 10 } else { 300 }];
        let answer = client.send("PUT", &format!("{}/{number}", entries(register)), &[], &bytes);
        assert_eq!(answer.status, 201, "{}", answer.text());
        let answered_at = fs::metadata(log).expect("there is a log").len();
        sent.push(SentEntry { register, number, bytes, answered_at });
    }
    sent
}

fn read_chain(client: &TestClient, register: &str) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        let page: RegisterEntries = client.get(&format!("{}?from={}", entries(register), all.len() + 1)).read();
        for entry in page.entries {
            assert_eq!(entry.number, all.len() as u64 + 1);
            all.push(entry.bytes.0);
        }
        if !page.more {
            return all;
        }
    }
}

/// Numbers of changes before the cut: each is behind a change of a register's files.
fn cuts(records: &[DiskChange]) -> Vec<usize> {
    let wanted: usize = std::env::var("SUBLET_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(12);
    let of_registers = records.iter().enumerate().filter(|(_, record)| record.path.starts_with("registers/"));
    let all: Vec<usize> = of_registers.map(|(at, _)| at + 1).collect();
    assert!(all.len() > ENTRIES as usize, "the recorder saw only {} changes of registers", all.len());
    all.iter().copied().step_by(all.len().div_ceil(wanted)).chain(all.last().copied()).collect()
}

#[test]
fn every_entry_that_was_answered_survives_a_power_cut() {
    let tools = tempfile::tempdir().expect("a directory can be made");
    let (state, log) = (tools.path().join("state"), tools.path().join("log"));
    fs::create_dir(&state).expect("a directory can be made");
    let sent = {
        let env = recorder_env(&build_recorder(tools.path()), &state, &log);
        let mut service = TestService::start_with(ServiceSetup { state: Some(state), env, ..ServiceSetup::default() });
        let sent = send_entries(&service.client(), &log);
        service.kill();
        sent
    };
    let records = read(&fs::read(&log).expect("there is a log"));
    let mut seen = BTreeSet::new();
    for cut in cuts(&records) {
        for kept in [KeptChanges::TornLast, KeptChanges::Synced, KeptChanges::Some(cut as u64)] {
            let image = Image::after(&records[..cut], kept);
            if seen.insert(image.fingerprint()) {
                check(&image, &sent, records[cut - 1].end, &format!("cut after {cut} changes, kept {kept:?}"));
            }
        }
    }
}

fn check(image: &Image, sent: &[SentEntry], end: u64, cut: &str) {
    let state = tempfile::tempdir().expect("a directory can be made");
    image.write_to(state.path());
    let setup = ServiceSetup { state: Some(state.path().to_owned()), ..ServiceSetup::default() };
    let service = TestService::start_with(setup);
    for register in REGISTERS {
        let found = read_chain(&service.client(), register);
        let of_register: Vec<&SentEntry> = sent.iter().filter(|entry| entry.register == register).collect();
        let answered = of_register.iter().filter(|entry| entry.answered_at <= end).count();
        assert!(found.len() >= answered, "{cut}: {register} has {} of {answered} answered entries", found.len());
        for (found, sent) in found.iter().zip(&of_register) {
            assert!(*found == sent.bytes, "{cut}: entry {} of {register} is another one", sent.number);
        }
        assert!(found.len() <= of_register.len(), "{cut}: {register} has entries that were never sent");
    }
}
