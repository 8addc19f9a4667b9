//! The state directory: made, locked, refused.

use crate::Dir;
use std::error::Error;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use sublet_journal::{Journal, OpenError, read_state, verify};

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
fn the_ballast_has_real_bytes_and_can_be_given_up_and_restored() {
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
fn a_second_daemon_is_refused_with_the_pid_of_the_first() {
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
fn an_unusable_state_directory_is_named() {
    let dir = Dir::new();
    fs::write(dir.path(), "").unwrap();
    let error = Journal::open(&dir.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use the state directory `{}`", dir.path().display()));
    assert!(error.source().unwrap().to_string().contains("Not a directory"));
    let below = Journal::open(&dir.path().join("below")).unwrap_err();
    assert!(matches!(below, OpenError::Directory { .. }));
    let proc = Journal::open(std::path::Path::new("/proc/sublet")).unwrap_err();
    assert!(matches!(proc, OpenError::Directory { .. }) && proc.hint().is_some());
    // No user, not even root, can make files there.
    let sealed = Journal::open(std::path::Path::new("/proc/self")).unwrap_err();
    assert!(matches!(sealed, OpenError::Directory { .. }), "{sealed:?}");
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    for bad in [0o777, 0o770, 0o702] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(bad)).unwrap();
        let error = Journal::open(&dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::Exposed { mode, .. } if mode == bad), "{error:?}");
        assert_eq!(error.hint().unwrap(), format!("run `chmod 700 {}`", dir.path().display()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir.open();
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can give a directory away");
    }
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    std::os::unix::fs::chown(dir.path(), Some(12_345), None).unwrap();
    let error = Journal::open(&dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::NotOurs { owner: 12_345, us: 0, .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("start it as user 12345"), "{:?}", error.hint());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_state_directory_below_one_that_another_user_may_change_is_refused() {
    let dir = Dir::new();
    let above = dir.0.path().join("above");
    let state = above.join("own/state");
    fs::create_dir_all(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(&above, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Journal::open(&state).unwrap_err();
    let (open, shut) = (above.display(), state.display());
    let expected = format!(
        "`{open}`, above the state directory `{shut}`, can be changed by everybody: another user could put a directory in its place"
    );
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().unwrap().contains(&format!("chmod go-w {open}")), "{:?}", error.hint());
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
    fs::set_permissions(&above, fs::Permissions::from_mode(0o1777)).unwrap();
    drop(Journal::open(&state).unwrap());
    if !rustix::process::geteuid().is_root() {
        return eprintln!("the rest was skipped: only root can give a directory away");
    }
    std::os::unix::fs::chown(&above, Some(12_345), None).unwrap();
    let error = Journal::open(&state).unwrap_err();
    assert!(error.to_string().contains("belongs to user 12345"), "{error}");
}

#[test]
fn a_lock_file_that_is_a_link_is_not_followed() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    let target = dir.0.path().join("precious");
    fs::write(&target, "precious").unwrap();
    symlink(&target, dir.file("lock")).unwrap();
    assert!(matches!(Journal::open(&dir.path()), Err(OpenError::Directory { .. })));
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}

#[test]
fn reading_without_permission_is_denied() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody who may not look");
    }
    let dir = Dir::new();
    drop(dir.open());
    // The way there is open, so that it is the directory itself that is closed.
    fs::set_permissions(dir.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let denied = || {
        let path = dir.path();
        // A thread of its own has its own user, and takes it along when it ends.
        let look = move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
            verify(&path).unwrap_err()
        };
        let error = std::thread::spawn(look).join().unwrap();
        assert!(matches!(error, OpenError::Denied { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("as the user that the daemon runs as"));
    };
    denied();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    denied();
}

#[test]
fn reading_without_a_journal_reports_it_missing() {
    let dir = Dir::new();
    let error = read_state(&dir.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("there is no journal at `{}`", dir.path().display()));
    fs::create_dir(dir.path()).unwrap();
    assert!(matches!(read_state(&dir.path()), Err(OpenError::Missing { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "looking makes nothing");
}
