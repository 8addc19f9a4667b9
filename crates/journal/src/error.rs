//! What can go wrong, said so that the caller knows what to do.
//!
//! [`OpenError`] is about a journal that cannot be opened or read; [`CommitError`] has
//! one variant for each thing the daemon must do next. The wording is for people and
//! may change; `hint` has the next step where there is one.

use crate::state_dir;
use rusqlite::ffi;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What SQLite or the system said, for the end of a chain of errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCause(String);

impl SystemCause {
    pub(crate) fn new(text: impl fmt::Display) -> SystemCause {
        SystemCause(text.to_string())
    }
}

impl fmt::Display for SystemCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SystemCause {}

/// A journal could not be opened, read, checked or copied. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The state directory cannot be made, entered or written.
    #[error("cannot use the state directory `{}`", path.display())]
    Directory {
        /// The state directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state directory belongs to another user.
    #[error("the state directory `{}` belongs to user {owner}, and this runs as user {us}", path.display())]
    NotOurs {
        /// The state directory.
        path: PathBuf,
        /// The user that owns it.
        owner: u32,
        /// The user of this process.
        us: u32,
    },
    /// Other users can put files into the state directory.
    #[error("the state directory `{}` can be written by others than its owner (mode {mode:o})", path.display())]
    Exposed {
        /// The state directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user may change a directory above it.
    #[error("`{}`, above the state directory `{}`, {why}: another user could put a directory in its place", above.display(), path.display())]
    ExposedAbove {
        /// The state directory.
        path: PathBuf,
        /// The directory or link above it.
        above: PathBuf,
        /// What is wrong with that one, as the rest of a sentence.
        why: String,
    },
    /// Another daemon has the journal open.
    #[error("the journal in `{}` is in use{}", path.display(), lock_holder_text(*pid))]
    Locked {
        /// The state directory.
        path: PathBuf,
        /// The process that holds the lock, if the lock file names it.
        pid: Option<u32>,
    },
    /// There is no journal.
    #[error("there is no journal at `{}`", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There may be a journal, but this user may not read it.
    #[error("you may not read `{}`", path.display())]
    Denied {
        /// The file or directory.
        path: PathBuf,
    },
    /// There was a journal, but its main file is gone or almost empty.
    #[error("`{}` is gone or cut short, but this directory held a journal", path.display())]
    Gone {
        /// The missing file.
        path: PathBuf,
    },
    /// A later release wrote the journal.
    #[error("`{}` has schema {found}; this program knows up to {known}", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The version of this program.
        known: i64,
    },
    /// An earlier release wrote the journal, and it was not migrated yet.
    #[error("`{}` has schema {found}; this program reads {known}", path.display())]
    OlderSchema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The version of this program.
        known: i64,
    },
    /// The file is no journal, or no database at all.
    #[error("`{}` is not a journal of this program", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error("`{}` is damaged", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is damaged, as far as is known.
        source: SystemCause,
    },
    /// The disk is full.
    #[error("no room on the disk of `{}`", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The target of a backup exists; a backup never replaces a file.
    #[error("`{}` exists already", path.display())]
    Exists {
        /// The file that exists.
        path: PathBuf,
    },
    /// The file cannot be opened, read or written.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system or SQLite said.
        source: SystemCause,
    },
}

fn lock_holder_text(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

impl OpenError {
    /// The next step.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            OpenError::Directory { .. } | OpenError::File { .. } => {
                "check its owner, its permissions and that its disk is mounted read-write".to_owned()
            }
            OpenError::NotOurs { path, owner, us } => format!(
                "start it as user {owner}, choose another state directory, or look at what is in this one and run `chown -R {us} {}`",
                path.display()
            ),
            OpenError::Exposed { path, .. } => format!("run `chmod 700 {}`", path.display()),
            OpenError::ExposedAbove { above, .. } => format!(
                "choose another `--state-dir`, or let only root change that directory: `chown root:root {0}` and `chmod go-w {0}`",
                above.display()
            ),
            OpenError::Locked { pid: Some(pid), .. } => {
                format!("stop process {pid} first, or choose another state directory")
            }
            OpenError::Locked { pid: None, .. } => {
                "stop the other daemon, or choose another state directory".to_owned()
            }
            OpenError::Missing { .. } => "check the path; a daemon makes its journal when it first starts".to_owned(),
            OpenError::Denied { .. } => {
                "run it as root (`sudo`), or as the user that the daemon runs as; no other user may read a journal"
                    .to_owned()
            }
            OpenError::Gone { path } => format!(
                "put a backup there as `{}`; to start empty, move everything out of that directory",
                path.file_name().unwrap_or_default().to_string_lossy()
            ),
            OpenError::NewerSchema { .. } => {
                "use the release that wrote it, or a later one; nothing was changed".to_owned()
            }
            OpenError::OlderSchema { .. } => "start the daemon once: it brings the file up to date".to_owned(),
            OpenError::Foreign { .. } => "choose another state directory; the file was left as it is".to_owned(),
            OpenError::Corrupt { .. } => {
                "keep the directory as it is, and start from a backup in a new one; nothing was changed".to_owned()
            }
            OpenError::Full { .. } => "free some space and try again; nothing was lost".to_owned(),
            OpenError::Exists { .. } => "choose another name".to_owned(),
        })
    }

    /// Converts an error of SQLite about the file at `path`.
    pub(crate) fn sqlite(path: &Path, error: &rusqlite::Error) -> OpenError {
        let path = path.to_owned();
        let source = SystemCause::new(error);
        if matches!(error.sqlite_error().map(|e| e.extended_code), Some(code) if ROOM_TO_OPEN.contains(&code)) {
            return OpenError::Full { path };
        }
        match error.sqlite_error().map(|e| e.extended_code & 0xff) {
            // A journal was set up here, so a file without SQLite's header is a damaged journal, not a foreign file.
            Some(ffi::SQLITE_NOTADB) if path.with_file_name(state_dir::BALLAST).exists() => {
                OpenError::Corrupt { path, source }
            }
            Some(ffi::SQLITE_NOTADB) => OpenError::Foreign { path },
            Some(ffi::SQLITE_CORRUPT) => OpenError::Corrupt { path, source },
            Some(ffi::SQLITE_FULL) => OpenError::Full { path },
            // The file is whole by SQLite's rules, but a row or column is missing or unreadable.
            Some(ffi::SQLITE_ERROR) | None => OpenError::Corrupt { path, source },
            _ => OpenError::File { path, source },
        }
    }

    pub(crate) fn file(path: &Path, error: impl fmt::Display) -> OpenError {
        OpenError::File { path: path.to_owned(), source: SystemCause::new(error) }
    }
}

/// The codes of SQLite when it cannot make or lengthen a file that it needs to open a database. The `errno` is lost by
/// then; on a disk with room these errors do not happen.
const ROOM_TO_OPEN: [i32; 3] = [ffi::SQLITE_IOERR_SHMSIZE, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMMAP];

/// A batch was not committed. Nothing of it may be acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The disk is full; nothing of the batch is in the journal. The state must be
    /// reloaded. Smaller batches may still fit, if need be after the ballast is given up.
    #[error("no room on the disk: nothing of this batch was written")]
    Full(#[source] SystemCause),
    /// The disk did not confirm a write, so its content is unknown. The process must exit,
    /// and read the disk when it starts again.
    #[error("the disk did not confirm a write")]
    Sync(#[source] SystemCause),
    /// The batch was refused; nothing of it is in the journal. The state must be reloaded.
    #[error("the journal refused a batch: nothing of it was written")]
    Broken(#[source] SystemCause),
}

impl CommitError {
    /// The next step.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            CommitError::Full(_) => "free some space on the disk of the state directory".to_owned(),
            CommitError::Sync(_) => "check the disk (`dmesg`); the daemon starts again from what is on it".to_owned(),
            CommitError::Broken(_) => "run `sublet journal verify`".to_owned(),
        })
    }

    /// Converts an error of SQLite; `errno` is the last one of that connection.
    pub(crate) fn sqlite(error: &rusqlite::Error, errno: i32) -> CommitError {
        let cause = SystemCause::new(error);
        match error.sqlite_error().map(|e| e.extended_code) {
            Some(code) if out_of_room(code, errno) => CommitError::Full(cause),
            Some(code) if code & 0xff == ffi::SQLITE_IOERR => CommitError::Sync(cause),
            _ => CommitError::Broken(cause),
        }
    }
}

/// SQLite itself reports "full" for ENOSPC only. An exhausted quota and a limit on file sizes count as full too.
fn out_of_room(code: i32, errno: i32) -> bool {
    use rustix::io::Errno;
    let errno_of_room = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].map(Errno::raw_os_error).contains(&errno);
    match code {
        ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_SHMSIZE => errno_of_room,
        _ => code & 0xff == ffi::SQLITE_FULL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn sorted(code: i32, errno: i32) -> &'static str {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        match CommitError::sqlite(&error, errno) {
            CommitError::Full(_) => "full",
            CommitError::Sync(_) => "sync",
            CommitError::Broken(_) => "broken",
        }
    }

    #[test]
    fn sqlite_errors_are_mapped_to_what_the_daemon_must_do() {
        assert_eq!(sorted(ffi::SQLITE_FULL, Errno::NOSPC.raw_os_error()), "full");
        assert_eq!(sorted(ffi::SQLITE_IOERR_WRITE, Errno::DQUOT.raw_os_error()), "full");
        assert_eq!(sorted(ffi::SQLITE_IOERR_WRITE, Errno::FBIG.raw_os_error()), "full");
        assert_eq!(sorted(ffi::SQLITE_IOERR_SHMSIZE, Errno::NOSPC.raw_os_error()), "full");
        assert_eq!(sorted(ffi::SQLITE_IOERR_WRITE, Errno::IO.raw_os_error()), "sync");
        // An fsync that failed for want of room has still lost pages.
        assert_eq!(sorted(ffi::SQLITE_IOERR_FSYNC, Errno::NOSPC.raw_os_error()), "sync");
        assert_eq!(sorted(ffi::SQLITE_IOERR_DIR_FSYNC, Errno::IO.raw_os_error()), "sync");
        assert_eq!(sorted(ffi::SQLITE_IOERR_READ, Errno::IO.raw_os_error()), "sync");
        assert_eq!(sorted(ffi::SQLITE_CONSTRAINT_PRIMARYKEY, 0), "broken");
        assert_eq!(sorted(ffi::SQLITE_BUSY, 0), "broken");
        assert_eq!(sorted(ffi::SQLITE_CORRUPT, 0), "broken");
    }
}
