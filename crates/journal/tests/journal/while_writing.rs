//! Reading, checking and copying a journal during writes.

use crate::Dir;
use crate::generate::World;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use sublet_journal::{Journal, JournalReader, OpenError, backup, read_state, verify};

/// Writes until `work` is done; returns the world as it was last committed.
fn while_writing(dir: &Dir, work: impl FnOnce(&JournalReader)) -> World {
    let (mut journal, _) = dir.open();
    let mut world = World::new(11);
    journal.commit(&world.close()).unwrap();
    let reader = journal.reader().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                (0..20).for_each(|_| world.step());
                journal.commit(&world.close()).unwrap();
            }
            world
        });
        work(&reader);
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    })
}

#[test]
fn a_backup_of_a_busy_journal_is_whole_and_opens_by_itself() {
    let (dir, kept) = (Dir::new(), Dir::new());
    let to = dir.0.path().join("backup.db");
    let world = while_writing(&dir, |reader| {
        while reader.last_seq().unwrap() < 2_000 {
            thread::yield_now();
        }
        backup(&dir.path(), &to).unwrap();
    });
    assert_eq!(fs::read_dir(dir.0.path()).unwrap().count(), 2, "the state and the backup, no leftovers");
    let report = verify(&to).unwrap();
    assert!(report.is_clean() && report.last_seq >= 2_000, "{report:?}");
    let rows = read_state(&to).unwrap();

    assert!(matches!(backup(&dir.path(), &to), Err(OpenError::Exists { .. })));
    let nowhere = dir.0.path().join("nowhere");
    let error = backup(&dir.path(), &nowhere.join("backup.db")).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use `{}`", nowhere.display()), "the folder that was named");

    fs::create_dir(kept.path()).unwrap();
    fs::copy(&to, kept.file("journal.db")).unwrap();
    let (mut journal, loaded) = kept.open();
    assert_eq!((&loaded.rows, loaded.seq), (&rows, report.last_seq));
    let mut later = World::with(loaded.rows, loaded.clock, 12);
    later.cycle();
    journal.commit(&later.close()).unwrap();
    assert!(verify(&kept.path()).unwrap().is_clean());
    assert_eq!(read_state(&dir.path()).unwrap(), world.rows);
}

#[test]
fn verify_beside_a_busy_journal_sees_one_moment() {
    let dir = Dir::new();
    while_writing(&dir, |reader| {
        for _ in 0..5 {
            let report = verify(&dir.path()).unwrap();
            assert_eq!(report.findings, [""; 0]);
            let lines = reader.log(0, usize::MAX).unwrap();
            assert!(lines.iter().zip(1..).all(|(line, seq)| line.seq == seq), "whole commits, in order");
        }
    });
}

#[test]
fn the_write_ahead_log_stays_bounded_under_load() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    let mut world = World::new(13);
    let mut most = 0;
    for _ in 0..400 {
        (0..300).for_each(|_| world.cycle());
        journal.commit(&world.close()).unwrap();
        most = most.max(fs::metadata(dir.file("journal.db-wal")).unwrap().len());
    }
    let written = journal.head().0;
    assert!(most < 96 << 20, "{} MiB for {written} entries", most >> 20);
    drop(journal);
    assert!(!dir.file("journal.db-wal").exists(), "a clean stop leaves one file");
    assert_eq!(Journal::open(&dir.path()).unwrap().1.rows, world.rows);
}
