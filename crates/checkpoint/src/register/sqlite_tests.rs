//! Registers whose files are moved, locked, full, read-only or not a register's.

use super::*;
use crate::register::contract;
use rustix::mount::{MountFlags, UnmountFlags};
use std::cell::RefCell;
use std::ffi::CStr;
use std::io::Write;

#[test]
fn a_register_in_sqlite_keeps_the_contract() {
    let directories = RefCell::new(Vec::new());
    contract::check(&|| {
        let directory = tempfile::tempdir().expect("a directory");
        let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
        directories.borrow_mut().push(directory);
        register
    });
}

#[test]
fn two_registers_over_one_file_are_one_register() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("register.db");
    let (one, two) = (SqliteRegister::open(&path).expect("one"), SqliteRegister::open(&path).expect("two"));
    let chain = ChainName::parse("c/a/b").expect("a name");
    assert_eq!(one.create(&chain, 1, b"one").expect("an answer"), Creation::New);
    assert_eq!(two.create(&chain, 1, b"two").expect("an answer"), Creation::Taken);
    assert_eq!(two.create(&chain, 2, b"two").expect("an answer"), Creation::New);
    assert_eq!(one.last(&chain).expect("an answer"), 2);
}

#[test]
fn a_register_whose_file_or_log_was_moved_or_replaced_acknowledges_nothing_more() {
    let chain = ChainName::parse("c/a/b").expect("a name");
    for (file, is_replaced) in
        [("register.db", false), ("register.db", true), ("register.db-wal", false), ("register.db-wal", true)]
    {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(file);
        let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
        register.create(&chain, 1, b"one").expect("an answer");
        std::fs::rename(&path, directory.path().join("away")).expect("a rename");
        if is_replaced {
            std::fs::copy(directory.path().join("away"), &path).expect("a copy");
        }
        let refusal = register.create(&chain, 2, b"two").expect_err("a refusal");
        assert_eq!(refusal.code(), "register_unavailable");
        let what = if is_replaced { "was replaced" } else { "was moved away or removed" };
        assert!(refusal.to_string().contains(&format!("{file}` {what} while the program ran")), "{refusal}");
        assert!(refusal.to_string().contains("put the file back"), "{refusal}");
        assert!(register.is_broken());
        // The file has its place again, and what was written to it in between is not known.
        std::fs::rename(directory.path().join("away"), &path).expect("a rename");
        assert!(register.last(&chain).is_err() && register.forget_before(&chain, 1).is_err());
    }
}

#[test]
fn a_register_behind_a_link_and_beside_others_keeps_its_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, link) = (directory.path().join("real.db"), directory.path().join("link.db"));
    let chain = ChainName::parse("c/a/b").expect("a name");
    drop(SqliteRegister::open(&path).expect("a register"));
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let register = SqliteRegister::open(&link).expect("a register");
    for number in 1..=3 {
        // Another connection comes and goes, and checkpoints the log.
        SqliteRegister::open(&path).expect("another").create(&chain, number * 2 - 1, b"x").expect("an answer");
        register.create(&chain, number * 2, b"y").expect("an answer");
    }
    assert_eq!(register.last(&chain).expect("an answer"), 6);
}

#[test]
fn many_processes_may_open_a_new_register_at_once() {
    for _ in 0..100 {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let path = directory.path().join("register.db");
        let chain = ChainName::parse("c/a/b").expect("a name");
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    let register = SqliteRegister::open(&path).expect("a register");
                    register.create(&chain, 1, b"one").expect("an answer");
                });
            }
        });
    }
}

#[test]
fn a_file_that_may_not_grow_takes_entries_again_when_others_are_forgotten() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = SqliteRegister::open_within(directory.path().join("register.db"), 1 << 20).expect("a register");
    let (chain, entry) = (ChainName::parse("c/a/b").expect("a name"), vec![7; 64 << 10]);
    let mut last = 0;
    let refusal = loop {
        match register.create(&chain, last + 1, &entry) {
            Ok(created) => assert_eq!(created, Creation::New),
            Err(error) => break error,
        }
        last += 1;
        assert!(last < 100, "the limit holds");
    };
    assert_eq!(refusal.to_string(), "the register of checkpoints has no room: its file has reached its limit");
    assert!(last > 8 && !register.is_broken());
    assert_eq!(register.last(&chain).expect("an answer"), last);
    register.forget_before(&chain, last).expect("an answer");
    assert_eq!(register.create(&chain, last + 1, &entry).expect("an answer"), Creation::New);
}

#[test]
fn a_page_ends_at_the_limit_of_entries_or_of_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
    let chain = ChainName::parse("c/a/b").expect("a name");
    for number in 1..=5 {
        register.create(&chain, number, &[0; 100]).expect("an answer");
    }
    let page = |from, limit, bytes| {
        let page = register.read_page(&chain, from, limit, bytes).expect("an answer");
        (page.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(page(1, 3, 1_000), (vec![1, 2, 3], true));
    assert_eq!(page(1, 10, 150), (vec![1, 2], true));
    assert_eq!(page(4, 10, 1), (vec![4], true));
    assert_eq!(page(4, 10, 1_000), (vec![4, 5], false));
    assert_eq!(page(6, 10, 1_000), (vec![], false));
}

#[test]
fn chains_are_listed_in_pages_with_their_newest_entries() {
    let directory = tempfile::tempdir().expect("a directory");
    let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
    let chains = ["c/a/1", "c/a/2", "c/b/1", "e/a/1"].map(|name| ChainName::parse(name).expect("a name"));
    for (chain, entries) in chains.iter().zip(1..) {
        for number in 1..=entries {
            register.create(chain, number, b"entry").expect("an answer");
        }
    }
    let page = |after: &str, limit| register.chains_after(after, limit).expect("an answer");
    assert_eq!(page("", 3), [(chains[0].clone(), 1), (chains[1].clone(), 2), (chains[2].clone(), 3)]);
    assert_eq!(page("c/b/1", 3), [(chains[3].clone(), 4)]);
    assert_eq!(page("e/a/1", 3), []);
}

#[test]
fn a_directory_that_is_not_known_to_be_local_is_refused() {
    let error = SqliteRegister::open("/proc/register.db").expect_err("a refusal");
    assert_eq!(error.code(), "register_not_local");
    assert!(error.remedy().contains("put the register on a local disk"));
}

#[test]
fn a_file_of_another_program_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("other.db");
    Connection::open(&path).expect("a file").execute_batch("CREATE TABLE theirs (x)").expect("a table");
    let before = std::fs::read(&path).expect("the file");
    let error = SqliteRegister::open(&path).expect_err("a refusal");
    assert_eq!(error.code(), "register_damaged");
    assert_eq!(std::fs::read(&path).expect("the file"), before);

    std::fs::write(&path, "not a database, and long enough to have a header of its own").expect("a file");
    assert_eq!(SqliteRegister::open(&path).expect_err("a refusal").code(), "register_damaged");
}

/// A disk in memory, of this size. `None` where none can be mounted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &CStr) -> Option<SmallDisk> {
        let directory = tempfile::tempdir().expect("a directory");
        match rustix::mount::mount("small", directory.path(), "tmpfs", MountFlags::empty(), Some(size)) {
            Ok(()) => Some(SmallDisk(directory)),
            Err(error) => {
                eprintln!("skipped: no disk can be mounted here ({error})");
                None
            }
        }
    }

    fn register(&self) -> PathBuf {
        self.0.path().join("register.db")
    }

    /// Writes until there is no room for another byte.
    fn fill(&self) {
        let mut file = File::create(self.0.path().join("filler")).expect("a file");
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn make_read_only(&self) {
        let flags = MountFlags::RDONLY;
        rustix::mount::mount_remount(self.0.path(), flags, c"").expect("a mount");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH).expect("an unmount");
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_room_for_an_operators_command() {
    let Some(disk) = SmallDisk::mount(c"size=2m") else { return };
    let chain = ChainName::parse("c/a/b").expect("a name");
    SqliteRegister::open(disk.register()).expect("a register").create(&chain, 1, b"one").expect("an entry");
    disk.fill();
    for _ in 0..2 {
        let refusal = SqliteRegister::open(disk.register()).expect_err("a refusal");
        assert_eq!(refusal.code(), "register_full");
        let full =
            format!("the register of checkpoints has no room: the disk of `{}` is full", disk.register().display());
        assert_eq!(refusal.to_string(), full);
        assert!(refusal.remedy().contains("sublet checkpoint rm"));
    }
    for number in 2..=3 {
        let register = SqliteRegister::open_for_operator(disk.register()).expect("a register");
        assert_eq!(register.create(&chain, number, b"removed").expect("an entry"), Creation::New);
    }
}

#[test]
fn a_read_only_disk_is_named() {
    let Some(disk) = SmallDisk::mount(c"size=2m") else { return };
    let chain = ChainName::parse("c/a/b").expect("a name");
    let register = SqliteRegister::open(disk.register()).expect("a register");
    register.create(&chain, 1, b"one").expect("an entry");
    drop(register);
    disk.make_read_only();
    let refusal = SqliteRegister::open(disk.register()).and_then(|register| register.create(&chain, 2, b"two"));
    let refusal = refusal.expect_err("a refusal");
    assert_eq!(refusal.code(), "register_read_only", "{refusal}");
    assert!(refusal.to_string().ends_with("is on a disk that is mounted read-only"), "{refusal}");
    assert!(refusal.remedy().contains("mount the disk for writing"));
}

#[test]
fn a_directory_that_another_process_keeps_locked_is_named_after_the_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = File::open(directory.path()).expect("a directory");
    lock.lock_shared().expect("a lock");
    let refusal = lock_directory(directory.path(), Duration::from_millis(30)).expect_err("a refusal");
    let shown = directory.path().display();
    assert!(refusal.to_string().contains(&format!("another process has kept `{shown}` locked for 0 s")), "{refusal}");
    assert!(refusal.to_string().contains("fuser -v") && refusal.to_string().contains("chmod go-rx"), "{refusal}");
    drop(lock);
    lock_directory(directory.path(), Duration::ZERO).expect("a lock");
}
