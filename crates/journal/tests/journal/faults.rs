//! A full disk, a damaged file, a later release: named, and nothing lost.

use crate::generate::{World, answer};
use crate::{Dir, sql_at};
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use sublet_core::durations::Durations;
use sublet_core::ids::LeaseId;
use sublet_core::lateness::Lateness;
use sublet_core::rows::{EndNotice, EndReason, LeaseEnd, Phase, Rows};
use sublet_core::units::{Span, Time};
use sublet_journal::{Batch, CommitError, Journal, OpenError, verify};

/// Commits until there is no room; returns what was acknowledged last.
fn fill(journal: &mut Journal, world: &mut World) -> Rows {
    loop {
        let acknowledged = world.rows.clone();
        for _ in 0..50 {
            world.lease();
        }
        match journal.commit(&world.close()) {
            Ok(_) => {}
            Err(CommitError::Full(_)) => return acknowledged,
            Err(other) => panic!("{other}: {:?}", other.source()),
        }
    }
}

#[test]
fn a_full_disk_loses_nothing_and_commits_continue_when_there_is_room() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    journal.cap_bytes(300 << 10).unwrap();
    let acknowledged = fill(&mut journal, &mut World::new(1));

    let stale = journal.commit(&Batch { answers: vec![answer(0, "k", 1)], ..Batch::default() }).unwrap_err();
    assert!(matches!(stale, CommitError::Broken(_)), "no commit on a state that is ahead of the disk");

    let loaded = journal.reload().unwrap();
    assert_eq!(loaded.rows, acknowledged);
    assert!(verify(&dir.path()).unwrap().is_clean());

    let mut world = World::with(loaded.rows, loaded.clock, 2);
    let first = *world.rows.leases.keys().next().unwrap();
    world.end(first);
    journal.cap_bytes(1 << 30).unwrap();
    journal.commit(&world.close()).unwrap();
    drop(journal);
    assert_eq!(dir.open().1.rows, world.rows);
    assert!(verify(&dir.path()).unwrap().is_clean());
}

/// Run with this set to a directory on a small disk.
const SMALL_DISK: &str = "SUBLET_TEST_SMALL_DISK";

#[test]
fn on_a_full_disk_releases_use_the_ballast() {
    if let Some(disk) = std::env::var_os(SMALL_DISK) {
        return on_a_small_disk(Path::new(&disk));
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can mount a small disk");
    }
    let mount = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=224m tmpfs \"$1\" || exit 99; exec \"$2\" --exact \"$3\" --nocapture";
    let name = "faults::on_a_disk_that_is_really_full_the_ballast_carries_releases";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(mount.path());
    command.arg(std::env::current_exe().unwrap()).arg(name).env(SMALL_DISK, mount.path());
    match command.output() {
        Ok(output) if output.status.success() => {}
        // The exit code of a test that failed.
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        }
        Ok(output) => eprintln!("skipped: cannot mount a small disk: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => eprintln!("skipped: cannot run `unshare`: {error}"),
    }
}

fn on_a_small_disk(disk: &Path) {
    a_start_on_a_full_disk(disk);
    let dir = disk.join("state");
    let (mut journal, _) = Journal::open(&dir).unwrap();
    // A file of another program, so that filling the rest does not take long.
    fs::write(disk.join("taken"), vec![0; 116 << 20]).unwrap();
    let mut world = World::new(1);
    let acknowledged = fill(&mut journal, &mut world);
    let loaded = journal.reload().unwrap();
    assert_eq!(loaded.rows, acknowledged);
    assert_eq!(journal.reader().unwrap().rows().unwrap(), acknowledged, "reads go on");

    crate::head::await_note(&dir, journal.head().0);
    journal.give_up_ballast().unwrap();
    let mut world = World::with(loaded.rows, loaded.clock, 2);
    for id in acknowledged.leases.keys().take(500) {
        world.end(*id);
        journal.commit(&world.close()).unwrap();
    }
    assert!(!journal.restore_ballast().unwrap(), "there is no room for it yet");
    drop(journal);
    let (_journal, loaded) = Journal::open(&dir).unwrap();
    assert_eq!(loaded.rows, world.rows);
    assert!(verify(&dir).unwrap().is_clean());
}

/// Everything but the ballast is full when the next daemon starts.
fn a_start_on_a_full_disk(disk: &Path) {
    let dir = disk.join("early");
    let mut world = World::new(3);
    let (mut journal, _) = Journal::open(&dir).unwrap();
    world.lease();
    journal.commit(&world.close()).unwrap();
    drop(journal);
    let mut filler = fs::File::create(disk.join("filler")).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok_and(|n| n > 0) {}
    let (mut journal, loaded) = Journal::open(&dir).unwrap();
    assert_eq!(loaded.rows, world.rows);
    world.lease();
    journal.commit(&world.close()).unwrap();
    drop(journal);
    fs::remove_file(disk.join("filler")).unwrap();
    fs::remove_dir_all(dir).unwrap();
}

/// A journal with some content, closed.
fn written() -> (Dir, World) {
    let dir = Dir::new();
    let mut world = World::new(9);
    let (mut journal, _) = dir.open();
    for _ in 0..200 {
        world.cycle();
        world.lease();
    }
    journal.commit(&world.close()).unwrap();
    drop(journal);
    (dir, world)
}

fn refused(dir: &Dir) -> OpenError {
    let before = files(dir);
    let error = Journal::open(&dir.path()).unwrap_err();
    assert!(error.hint().is_some());
    assert_eq!(files(dir), before, "a refusal changes nothing");
    error
}

fn files(dir: &Dir) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name() != "lock" && !entry.file_name().to_string_lossy().ends_with("-shm"))
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .filter(|(name, bytes)| !(name.ends_with("-wal") && bytes.is_empty()))
        .collect();
    files.sort();
    files
}

fn overwrite_bytes(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_damaged_beginning_is_named() {
    let (dir, _) = written();
    overwrite_bytes(&dir.file("journal.db"), 0, b"xxxx");
    let error = refused(&dir);
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
    assert!(matches!(verify(&dir.path()), Err(OpenError::Corrupt { .. })));
}

#[test]
fn a_damaged_page_is_named_at_the_start_or_by_verify_and_never_panics() {
    let (dir, world) = written();
    let path = dir.file("journal.db");
    let whole = fs::read(&path).unwrap();
    let mut named = 0;
    for page in 1..whole.len() / 4096 {
        fs::write(&path, &whole).unwrap();
        overwrite_bytes(&path, page as u64 * 4096, &[0xa5; 64]);
        let opened = match Journal::open(&dir.path()) {
            Ok((_, loaded)) => loaded.rows == world.rows,
            Err(error) => {
                assert!(matches!(error, OpenError::Corrupt { .. }), "page {page}: {error:?}");
                false
            }
        };
        let report = verify(&dir.path());
        assert!(!report.as_ref().is_ok_and(|report| report.is_clean()), "page {page}");
        named += usize::from(!opened);
    }
    assert!(named > 0, "the rows themselves were damaged at least once");
}

#[test]
fn a_truncated_file_is_named() {
    let (dir, _) = written();
    let file = OpenOptions::new().write(true).open(dir.file("journal.db")).unwrap();
    let half = file.metadata().unwrap().len() / 8192 * 4096;
    for length in [half, half - 100, 4096] {
        file.set_len(length).unwrap();
        let error = refused(&dir);
        assert!(matches!(error, OpenError::Corrupt { .. }), "{length}: {error:?}");
    }
    for length in [4095, 100, 1, 0] {
        file.set_len(length).unwrap();
        assert!(matches!(refused(&dir), OpenError::Gone { .. }), "{length}");
    }
    fs::remove_file(dir.file("journal.db")).unwrap();
    assert!(matches!(refused(&dir), OpenError::Gone { .. }));
}

#[test]
fn an_empty_database_beside_a_log_is_refused() {
    let (dir, _) = written();
    fs::remove_file(dir.file("ballast")).unwrap();
    fs::write(dir.file("journal.db"), "").unwrap();
    fs::write(dir.file("journal.db-wal"), "x").unwrap();
    assert!(matches!(refused(&dir), OpenError::Gone { .. }));
}

/// How far the frames of a write-ahead log go; zeros may follow them.
fn frames(wal: &[u8]) -> u64 {
    const HEADER: u64 = 32;
    const FRAME: u64 = 24 + 4096;
    let used = wal.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    HEADER + used.saturating_sub(HEADER).div_ceil(FRAME) * FRAME
}

#[test]
fn a_torn_end_of_the_write_ahead_log_loses_only_unacknowledged_commits() {
    let dir = Dir::new();
    let mut world = World::new(4);
    let (mut journal, _) = dir.open();
    journal.commit(&world.close()).unwrap();
    world.cycle();
    world.lease();
    journal.commit(&world.close()).unwrap();
    let acknowledged = world.rows.clone();
    let keep = frames(&fs::read(dir.file("journal.db-wal")).unwrap());
    world.lease();
    journal.commit(&world.close()).unwrap();
    let mut wal = fs::read(dir.file("journal.db-wal")).unwrap();
    wal.truncate(frames(&wal) as usize);
    assert!(wal.len() as u64 > keep);
    for length in (keep..wal.len() as u64).step_by(509) {
        let copy = Dir::new();
        fs::create_dir(copy.path()).unwrap();
        fs::copy(dir.file("journal.db"), copy.file("journal.db")).unwrap();
        fs::write(copy.file("journal.db-wal"), &wal[..length as usize]).unwrap();
        assert_eq!(copy.open().1.rows, acknowledged, "cut at {length}");
        assert!(verify(&copy.path()).unwrap().is_clean());
    }
}

#[test]
fn ending_an_unknown_lease_is_refused() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    let finish = LeaseEnd { reason: EndReason::Released, at: Time(1), peak: None, signal: None };
    let refused = journal.commit(&Batch { ending: vec![(LeaseId(9), finish)], ..Batch::default() }).unwrap_err();
    assert!(matches!(refused, CommitError::Broken(_)));
}

#[test]
fn a_file_that_is_no_journal_is_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    for times in [1, 100, 1_000] {
        fs::write(dir.file("journal.db"), "dear diary, ".repeat(times)).unwrap();
        assert!(matches!(refused(&dir), OpenError::Foreign { .. }), "{times}");
    }
    fs::remove_file(dir.file("journal.db")).unwrap();
    dir.sql("CREATE TABLE bookmarks (url)");
    assert!(matches!(refused(&dir), OpenError::Foreign { .. }));
}

#[test]
fn an_older_file_is_migrated_and_a_newer_one_is_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    // Version 0: SQLite made the file, and nothing was set up before the power went.
    dir.sql("PRAGMA journal_mode = WAL; VACUUM");
    assert!(matches!(verify(&dir.path()), Err(OpenError::Missing { .. })));
    let (mut journal, loaded) = dir.open();
    assert_eq!(loaded.rows, Rows::default());
    let mut world = World::new(1);
    journal.commit(&world.close()).unwrap();
    drop(journal);
    assert_eq!(dir.open().1.rows, world.rows);

    dir.sql("PRAGMA user_version = 99");
    let error = refused(&dir);
    let OpenError::NewerSchema { found: 99, known, .. } = error else { panic!("{error:?}") };
    assert!(matches!(verify(&dir.path()), Err(OpenError::NewerSchema { .. })));
    dir.sql(&format!("PRAGMA user_version = {known}"));
    assert_eq!(dir.open().1.rows, world.rows);
}

#[test]
fn a_notice_of_an_earlier_version_at_the_end_of_a_fixed_term_is_a_term_notice() {
    for (term, told) in [("fixed", true), ("renewed", false)] {
        let dir = Dir::new();
        let (mut journal, _) = dir.open();
        let mut world = World::new(1);
        world.lease();
        journal.commit(&world.close()).unwrap();
        drop(journal);
        dir.sql("ALTER TABLE leases DROP COLUMN notice_of_term; ALTER TABLE cards DROP COLUMN aside");
        dir.sql(&format!(
            "UPDATE leases SET notice_us = until_us, ask = json_set(ask, '$.term', json('{{\"{term}\":6000000}}'))"
        ));
        dir.sql("ALTER TABLE tenants DROP COLUMN durations; ALTER TABLE meta DROP COLUMN lateness");
        dir.without_stubs();
        dir.sql("PRAGMA user_version = 7");
        let rows = dir.open().1.rows;
        let mut notices = rows.leases.values().filter_map(|lease| lease.hold()?.notice);
        assert!(notices.next().is_some_and(|notice| matches!(notice, EndNotice::Term { .. }) == told), "{term}");
    }
}

#[test]
fn a_file_of_the_first_version_keeps_its_leases() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    let mut world = World::new(1);
    world.lease();
    journal.commit(&world.close()).unwrap();
    drop(journal);
    let later =
        ["meta.day", "tenants.mark_us", "tenants.turn_us", "tenants.today_us", "tenants.groups"].into_iter().chain([
            "leases.paid_us",
            "leases.before_us",
            "leases.day",
            "past.paid_us",
            "past.before_us",
            "past.day",
            "meta.next_token",
            "leases.token",
            "leases.turns",
            "leases.away",
            "past.turns",
            "tenants.parked_byte_us",
            "tenants.costs",
            "leases.notice_us",
            "leases.notice_of_term",
            "cards.mode",
            "cards.aside",
            "meta.next_stranger",
            "meta.next_rule",
            "tenants.durations",
            "meta.lateness",
        ]);
    for (table, column) in later.filter_map(|name| name.split_once('.')) {
        dir.sql(&format!("ALTER TABLE {table} DROP COLUMN {column}"));
    }
    dir.sql("DROP TABLE tokens; DROP TABLE strangers; DROP TABLE rules");
    dir.without_stubs();
    dir.sql("PRAGMA user_version = 1");
    let mut rows = dir.open().1.rows;
    let mut known = world.rows.clone();
    for rows in [&mut rows, &mut known] {
        // The statistics start again from nothing.
        rows.meta.lateness = Lateness::default();
        rows.tenants.iter_mut().for_each(|tenant| tenant.durations = Durations::default());
        rows.tenants
            .iter_mut()
            .for_each(|tenant| (tenant.debt_clock, tenant.first_since, tenant.today_us) = (Time::ZERO, Time::ZERO, 0));
        for lease in rows.leases.values_mut() {
            if let Phase::Active(hold) = &mut lease.phase {
                (hold.prepaid, hold.not_beyond) = (Span::ZERO, None);
            }
        }
    }
    assert!(!rows.leases.is_empty());
    assert_eq!(rows, known);
}

#[test]
fn an_invalid_row_is_named() {
    let spoil = [
        "UPDATE leases SET ask = '{}'",
        "UPDATE leases SET tenant = 77",
        "UPDATE leases SET vram = NULL",
        "UPDATE leases SET cards = '[70000]'",
        "UPDATE tenants SET byte_us = 'many'",
        "UPDATE cards SET mode = 'shout'",
        "UPDATE cards SET aside = '7'",
        "INSERT INTO strangers (id, body) VALUES (1, '{}')",
        "INSERT INTO rules (id, body) VALUES (1, '{\"id\":1}')",
        "DELETE FROM tenants WHERE id = 0",
        "DELETE FROM cards WHERE id = 0",
        "UPDATE meta SET head_hash = x'00'",
        "DELETE FROM meta",
        "DROP TABLE answers",
        "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = 'CREATE GARBAGE' WHERE name = 'leases'",
    ];
    let (dir, _) = written();
    let whole = fs::read(dir.file("journal.db")).unwrap();
    for sql in spoil {
        fs::write(dir.file("journal.db"), &whole).unwrap();
        sql_at(&dir.file("journal.db"), sql);
        let error = Journal::open(&dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::Corrupt { .. }), "{sql}: {error:?}");
    }
}
