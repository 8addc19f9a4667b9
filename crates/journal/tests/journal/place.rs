//! The state directory: made, locked, refused.

use crate::Dir;
use std::error::Error;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use sublet_journal::{Journal, OpenError, live};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_missing_directory_is_made_for_its_owner_only() {
    let dir = Dir::new();
    let deep = dir.path().join("a/b");
    let (journal, _) = Journal::open(&deep).unwrap();
    assert_eq!(mode(&deep), 0o700);
    for name in ["journal.db", "journal.db-wal", "lock", "ballast"] {
        assert_eq!(mode(&deep.join(name)), 0o600, "{name}");
    }
    drop(journal);
}

#[test]
fn the_ballast_is_real_bytes_and_can_be_given_up_and_taken_back() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    let blocks = || fs::metadata(dir.file("ballast")).unwrap().blocks() * 512;
    assert!(blocks() >= 24 << 20);
    journal.give_up_ballast().unwrap();
    assert_eq!(blocks(), 0);
    assert!(journal.restore_ballast().unwrap());
    assert!(blocks() >= 24 << 20);
}

#[test]
fn a_second_daemon_is_told_who_has_it() {
    let dir = Dir::new();
    let first = dir.open();
    let error = Journal::open(&dir.path()).unwrap_err();
    let pid = std::process::id();
    assert!(matches!(error, OpenError::Locked { pid: Some(by), .. } if by == pid), "{error:?}");
    assert_eq!(error.to_string(), format!("the journal in `{}` is in use by process {pid}", dir.path().display()));
    assert_eq!(error.hint().unwrap(), format!("stop process {pid} first, or choose another state directory"));
    drop(first);
    dir.open();
}

#[test]
fn a_place_that_will_not_do_is_named() {
    let dir = Dir::new();
    fs::write(dir.path(), "").unwrap();
    let error = Journal::open(&dir.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use the state directory `{}`", dir.path().display()));
    assert!(error.source().unwrap().to_string().contains("Not a directory"));
    let below = Journal::open(&dir.path().join("below")).unwrap_err();
    assert!(matches!(below, OpenError::Directory { .. }));
    let proc = Journal::open(std::path::Path::new("/proc/sublet")).unwrap_err();
    assert!(matches!(proc, OpenError::Directory { .. }) && proc.hint().is_some());
    // Nobody, not even root, can make files there.
    let sealed = Journal::open(std::path::Path::new("/proc/self")).unwrap_err();
    assert!(matches!(sealed, OpenError::Directory { .. }), "{sealed:?}");
}

#[test]
fn a_directory_everybody_can_write_is_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = Journal::open(&dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Exposed { mode: 0o777, .. }));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_lock_file_that_leads_elsewhere_is_not_followed() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    let target = dir.0.path().join("precious");
    fs::write(&target, "precious").unwrap();
    symlink(&target, dir.file("lock")).unwrap();
    assert!(matches!(Journal::open(&dir.path()), Err(OpenError::Directory { .. })));
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}

#[test]
fn looking_where_nothing_is_says_so() {
    let dir = Dir::new();
    let error = live(&dir.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("there is no journal at `{}`", dir.path().display()));
    fs::create_dir(dir.path()).unwrap();
    assert!(matches!(live(&dir.path()), Err(OpenError::Missing { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "looking makes nothing");
}
