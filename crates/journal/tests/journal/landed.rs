//! A journal that version 0.1.0 wrote opens, verifies, and is what this version writes, byte for byte.
//!
//! `landed/` was written by that version with [`history`]; it is never written again.

use crate::Dir;
use crate::generate::World;
use std::fs;
use std::path::{Path, PathBuf};
use sublet_core::facts::{DaemonAction, LeaseAction, TenantAction, UnleasedAction};
use sublet_core::ids::{LeaseId, ProcKey, TenantId};
use sublet_core::loss::Loss;
use sublet_core::rows::Phase;
use sublet_core::units::Bytes;
use sublet_journal::{Journal, JournalReader, LogLine, verify};

/// The files of a state directory that hold the journal.
const FILES: [&str; 2] = ["journal.db", "journal.head"];

fn landed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journal/landed")
}

/// A history with each kind of action, committed in batches.
fn history(journal: &mut Journal) -> World {
    let mut world = World::new(25);
    for _ in 0..30 {
        for _ in 0..12 {
            world.step();
        }
        let batch = world.close();
        journal.commit(&batch).unwrap();
    }
    what_steps_leave_out(&mut world);
    let batch = world.close();
    journal.commit(&batch).unwrap();
    world
}

/// The kinds that [`World::step`] does not draw.
fn what_steps_leave_out(world: &mut World) {
    let at = world.now;
    world.act(DaemonAction::BeginDay { number: 20_000 });
    world.act(TenantAction::SetGroups { tenant: TenantId(0), groups: vec!["staff".to_owned(), "ml".to_owned()] });
    let loss = Loss::Missing { lines: 3, after: 7, since_wall_us: None, until_wall_us: 9 };
    world.act(DaemonAction::AcceptLoss { loss });
    world.act(DaemonAction::AcceptLoss { loss: Loss::Unknown });
    let lease = lease_in(world, |phase| matches!(phase, Phase::Parked(..)));
    let processes = vec![ProcKey { pid: 7, start: 9 }];
    world.act(LeaseAction::RemoveContexts { lease, at, processes, booked: Some(Bytes::gib(2)) });
    world.act(LeaseAction::KeepContexts { lease, at, why: "the driver refused".to_owned() });
    let lease = lease_in(world, |phase| matches!(phase, Phase::Resuming(..)));
    world.act(LeaseAction::ParkAgain { lease, at });
    let lease = lease_in(world, |phase| matches!(phase, Phase::Active(_)));
    world.act(LeaseAction::FlagOveruse { lease, at, seen_bytes: Bytes::gib(17) });
    world.act(LeaseAction::Enlarge { lease, at, vram: Bytes::gib(18), debt_clock: Some(at) });
    world.act(LeaseAction::GiveNotice { lease, at, until: at, room_for: LeaseId(1) });
    world.act(LeaseAction::CancelNotice { lease });
    let at = world.now;
    let stranger = *world.rows.unleased.keys().next().unwrap();
    world.act(UnleasedAction::Spare { id: stranger, at, until: Some(at) });
    world.act(UnleasedAction::RecordSurvival { id: stranger, at });
}

/// A lease in this phase, after as many steps as that takes.
fn lease_in(world: &mut World, phase: fn(&Phase) -> bool) -> LeaseId {
    loop {
        if let Some(row) = world.rows.leases.values().find(|row| phase(&row.phase)) {
            return row.id;
        }
        world.step();
    }
}

fn lines(reader: &JournalReader) -> Vec<LogLine> {
    reader.log(0, usize::MAX >> 1).unwrap()
}

fn copy_of_landed() -> Dir {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    for file in FILES {
        fs::copy(landed().join(file), dir.file(file)).unwrap();
    }
    dir
}

#[test]
fn landed_journal_opens_and_verifies_and_its_rows_are_read() {
    let dir = copy_of_landed();
    let world = history(&mut Dir::new().open().0);
    let (journal, loaded) = dir.open();
    assert_eq!(loaded.rows, world.rows);
    assert_eq!(loaded.loss, None);
    drop(journal);
    let report = verify(&dir.path()).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn log_lines_and_their_hashes_are_the_bytes_of_the_landed_version() {
    let (old, new) = (copy_of_landed(), Dir::new());
    let (mut journal, _) = new.open();
    history(&mut journal);
    let (before, now) = (lines(&old.open().0.reader().unwrap()), lines(&journal.reader().unwrap()));
    assert_eq!(before.len(), now.len());
    for (before, now) in before.iter().zip(&now) {
        assert_eq!(before, now);
    }
}

#[test]
fn landed_journal_has_every_kind_of_action() {
    let dir = copy_of_landed();
    let lines = lines(&dir.open().0.reader().unwrap());
    let kind = |line: &LogLine| {
        let value: serde_json::Value = serde_json::from_str(&line.json).unwrap();
        value["kind"].as_str().unwrap().to_owned()
    };
    let kinds: std::collections::BTreeSet<String> = lines.iter().map(kind).collect();
    assert_eq!(kinds.len(), 47, "{kinds:?}");
}
