//! Lines that are missing at the journal's end are noticed, and stay noticed until an operator accepts that.

use crate::Dir;
use crate::generate::World;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use sublet_core::facts::DaemonAction;
use sublet_core::loss::Loss;
use sublet_core::rows::Rows;
use sublet_journal::{Alarm, CommitError, HeadComparison, Journal, backup, verify};

/// Far longer than the pause of the thread that notes the head.
const LONG: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the last line is noted beside the journal.
pub fn await_note(dir: &Path, seq: u64) {
    let line = format!("\"seq\":{seq},");
    until("the note", || String::from_utf8_lossy(&fs::read(dir.join("journal.head")).unwrap()).contains(&line));
}

/// A journal as a crash leaves it: some lines are in the database, the later ones only in the write-ahead log.
struct Crashed {
    dir: Dir,
    rows: Rows,
    /// The last line in the database itself.
    copied: u64,
    /// The last line.
    last: u64,
}

fn crashed() -> Crashed {
    let (running, dir) = (Dir::new(), Dir::new());
    let mut world = World::new(21);
    let write = |world: &mut World, journal: &mut Journal, lines: u64| {
        while journal.head().0 < lines {
            world.lease();
            journal.commit(&world.close()).unwrap();
        }
    };
    let (mut journal, _) = running.open();
    write(&mut world, &mut journal, 20);
    let copied = journal.head().0;
    // A clean stop copies the write-ahead log into the database.
    drop(journal);
    let (mut journal, _) = running.open();
    write(&mut world, &mut journal, 60);
    let last = journal.head().0;
    await_note(&running.path(), last);
    copy_files(&running.path(), &dir.path());
    Crashed { dir, rows: world.rows, copied, last }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        if !["lock", "ballast", "journal.db-shm"].contains(&name.to_str().unwrap()) {
            fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
}

/// A crashed journal with something done to its files.
fn damaged(of: &Crashed, damage: impl FnOnce(&Path)) -> Dir {
    let dir = Dir::new();
    copy_files(&of.dir.path(), &dir.path());
    damage(&dir.path());
    dir
}

/// Opens a journal, and checks that exactly the lines that are missing are said to be. Returns how many those are.
fn missing(dir: &Dir, of: &Crashed, what: &str) -> u64 {
    let last = of.last;
    let before = verify(&dir.path()).unwrap().beside;
    let (journal, loaded) = dir.open();
    match (last - loaded.seq, loaded.loss) {
        (0, None) => {
            assert_eq!(loaded.rows, of.rows, "{what}");
            assert_eq!(before, HeadComparison::Fits, "{what}");
        }
        (missing, Some(loss @ Loss::Missing { lines, after, .. })) => {
            assert_eq!((lines, after), (missing, loaded.seq), "{what}");
            assert_eq!(before, HeadComparison::Lost(loss), "{what}");
        }
        other => panic!("{what}: {other:?} of {last} lines"),
    }
    assert!(loaded.seq >= of.copied, "{what}");
    drop(journal);
    last - loaded.seq
}

#[test]
fn a_crash_alone_loses_nothing() {
    let crashed = crashed();
    assert_eq!(missing(&crashed.dir, &crashed, "a crash"), 0);
    assert!(verify(&crashed.dir.path()).unwrap().is_clean());
}

#[test]
fn a_flipped_bit_anywhere_in_the_write_ahead_log_is_noticed_if_it_costs_a_line() {
    let crashed = crashed();
    let wal = fs::read(crashed.dir.file("journal.db-wal")).unwrap();
    let used = wal.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    let (header, frame, page) = (32, 24, 4096);
    // Magic number, format, page size, salts, checksums; then number, size, salts, checksums and content of frames.
    let mut places: Vec<u64> = vec![0, 5, 9, 17, 21, 25, 30];
    let frames = (used - header) / (frame + page) + 1;
    for number in [0, frames / 3, frames / 2, frames - 1] {
        let at = header + number * (frame + page);
        places.extend([0, 5, 9, 13, 17, 21, frame + 100, frame + page - 1].map(|within| at + within));
    }
    let mut most = 0;
    for place in places {
        let flip = |dir: &Path| {
            let file = OpenOptions::new().write(true).open(dir.join("journal.db-wal")).unwrap();
            file.write_all_at(&[wal[place as usize] ^ 0x10], place).unwrap();
        };
        let dir = damaged(&crashed, flip);
        most = most.max(missing(&dir, &crashed, &format!("byte {place} of {used} was changed")));
    }
    assert_eq!(most, crashed.last - crashed.copied, "damage at the beginning costs all lines of the write-ahead log");
}

#[test]
fn a_write_ahead_log_that_is_gone_or_cut_short_is_noticed() {
    let crashed = crashed();
    let gone = damaged(&crashed, |dir| fs::remove_file(dir.join("journal.db-wal")).unwrap());
    assert_eq!(missing(&gone, &crashed, "without the log"), crashed.last - crashed.copied);
    let wal = fs::read(crashed.dir.file("journal.db-wal")).unwrap();
    let used = wal.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    for length in [0, 32, used / 2, used - 5000] {
        let cut = damaged(&crashed, |dir| {
            OpenOptions::new().write(true).open(dir.join("journal.db-wal")).unwrap().set_len(length).unwrap();
        });
        assert!(missing(&cut, &crashed, &format!("{length} bytes are left")) > 0);
    }
}

#[test]
fn a_loss_stays_until_it_is_accepted_and_further_losses_add_to_it() {
    let crashed = crashed();
    let (copied, last) = (crashed.copied, crashed.last);
    let dir = damaged(&crashed, |dir| fs::remove_file(dir.join("journal.db-wal")).unwrap());
    let lost = last - copied;
    let (mut journal, loaded) = dir.open();
    let Some(first @ Loss::Missing { since_wall_us, until_wall_us, .. }) = loaded.loss else { panic!("{loaded:?}") };
    assert!(since_wall_us.is_some_and(|since| since <= until_wall_us), "{first:?}");
    // What a daemon writes meanwhile, beyond the line that was noted, hides nothing.
    let mut world = World::with(loaded.rows, loaded.clock, 3);
    while journal.head().0 <= last {
        world.lease();
        journal.commit(&world.close()).unwrap();
    }
    assert_eq!(journal.reload().unwrap().loss, Some(first));
    await_note(&dir.path(), journal.head().0);
    let (again, before_it) = (Dir::new(), journal.head().0);
    copy_files(&dir.path(), &again.path());
    drop(journal);
    assert_eq!(dir.open().1.loss, Some(first), "over a restart");
    assert_eq!(verify(&dir.path()).unwrap().beside, HeadComparison::Lost(first));

    fs::remove_file(again.file("journal.db-wal")).unwrap();
    let more = before_it - copied;
    let (mut journal, loaded) = again.open();
    let Some(both @ Loss::Missing { lines, after, .. }) = loaded.loss else { panic!("{loaded:?}") };
    assert_eq!((lines, after), (lost + more, copied));

    let mut world = World::with(loaded.rows, loaded.clock, 4);
    world.act(DaemonAction::AcceptLoss { loss: both });
    journal.commit(&world.close()).unwrap();
    assert_eq!(journal.reload().unwrap().loss, None);
    drop(journal);
    assert_eq!(again.open().1.loss, None);
    assert!(verify(&again.path()).unwrap().is_clean());
}

#[test]
fn an_older_copy_and_another_journal_are_noticed() {
    let dir = Dir::new();
    let mut world = World::new(5);
    let (mut journal, _) = dir.open();
    world.lease();
    journal.commit(&world.close()).unwrap();
    let copy = dir.0.path().join("copy.db");
    backup(&dir.path(), &copy).unwrap();
    assert_eq!(verify(&copy).unwrap().beside, HeadComparison::NoNote);
    let copied = journal.head().0;
    while journal.head().0 < 50 {
        world.lease();
        journal.commit(&world.close()).unwrap();
    }
    let last = journal.head().0;
    drop(journal);
    fs::copy(&copy, dir.file("journal.db")).unwrap();
    let loss = dir.open().1.loss;
    assert!(matches!(loss, Some(Loss::Missing { lines, after, .. }) if (lines, after) == (last - copied, copied)));

    let other = Dir::new();
    let mut world = World::new(6);
    let (mut journal, _) = other.open();
    while journal.head().0 <= last {
        world.lease();
        journal.commit(&world.close()).unwrap();
    }
    drop(journal);
    fs::remove_file(dir.file("journal.head")).unwrap();
    drop(dir.open());
    fs::copy(other.file("journal.db"), dir.file("journal.db")).unwrap();
    let loss = dir.open().1.loss;
    assert!(matches!(loss, Some(Loss::Other { line, .. }) if line == copied), "{loss:?}");
}

#[test]
fn without_a_note_only_the_journal_is_checked_and_a_damaged_note_is_a_loss() {
    let crashed = crashed();
    let none = damaged(&crashed, |dir| fs::remove_file(dir.join("journal.head")).unwrap());
    let report = verify(&none.path()).unwrap();
    assert!(report.is_clean() && report.beside == HeadComparison::NoNote, "{report:?}");
    assert_eq!(none.open().1.loss, None, "a journal of an earlier release");
    assert_eq!(verify(&none.path()).unwrap().beside, HeadComparison::Fits, "from then on it has one");

    let spoiled = damaged(&crashed, |dir| fs::write(dir.join("journal.head"), "x").unwrap());
    assert_eq!(verify(&spoiled.path()).unwrap().beside, HeadComparison::Lost(Loss::Unknown));
    assert_eq!(spoiled.open().1.loss, Some(Loss::Unknown));
    assert_eq!(spoiled.open().1.loss, Some(Loss::Unknown), "until it is accepted");
}

#[test]
fn trimming_the_old_end_is_no_loss() {
    let dir = Dir::new();
    let mut world = World::new(8);
    let (mut journal, _) = dir.open();
    for _ in 0..40 {
        world.cycle();
        journal.commit(&world.close()).unwrap();
    }
    while journal.trim(0).unwrap() > 0 {}
    drop(journal);
    assert_eq!(dir.open().1.loss, None);
    assert_eq!(verify(&dir.path()).unwrap().beside, HeadComparison::Fits);
}

/// Moves a file of a state directory away.
type MoveAway = fn(&Path, &str);

#[test]
fn after_the_journal_was_moved_every_commit_fails() {
    let unlink = |dir: &Path, name: &str| fs::remove_file(dir.join(name)).unwrap();
    let replace = |dir: &Path, name: &str| {
        fs::copy(dir.join(name), dir.join("copy")).unwrap();
        fs::rename(dir.join("copy"), dir.join(name)).unwrap();
    };
    let rename = |dir: &Path, _: &str| fs::rename(dir, dir.with_extension("elsewhere")).unwrap();
    let moves: [(&str, MoveAway); 5] = [
        ("journal.db", unlink),
        ("journal.db-wal", unlink),
        ("lock", unlink),
        ("journal.db", replace),
        ("journal.db", rename),
    ];
    for (name, move_away) in moves {
        let dir = Dir::new();
        let (mut journal, _) = dir.open();
        let (tell, told) = mpsc::channel();
        journal.on_alarm(move |alarm| match alarm {
            Alarm::Moved { path } => tell.send(path.clone()).unwrap(),
            Alarm::NotNoted(error) => panic!("{error}"),
        });
        let mut world = World::new(9);
        world.lease();
        journal.commit(&world.close()).unwrap();
        move_away(&dir.path(), name);
        assert_eq!(told.recv_timeout(LONG).unwrap(), dir.file(name));
        until("a refusal", || {
            world.lease();
            match journal.commit(&world.close()) {
                Ok(_) => false,
                Err(CommitError::Sync(_)) => true,
                Err(other) => panic!("{other}"),
            }
        });
    }
}
