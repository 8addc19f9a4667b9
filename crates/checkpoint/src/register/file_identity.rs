//! Whether the files of an SQLite register are still the ones that it was opened with.
//!
//! ```text
//! rm register.db; cp old.db register.db     main file: another inode, SQLite writes on into the deleted one
//! rm register.db-wal                        log: no inode, the newest entries are in the deleted one only
//! ```
//! SQLite goes on with the files that it has open, whatever their names mean by now. An entry there is lost with the
//! process, so it must not be acknowledged.
//!
//! The log is there from the first look at the file until the last connection is closed. While this process is connected
//! no other one removes it.
//!
//! Only the number of a file is asked for, not its times: since Linux 6.13 a write after a look at the times changes the
//! file's inode, and the sync of each commit writes it too. That costs 50 µs where a sync takes 100 µs.
//!
//! Absent on purpose: opening the files to look at them. Closing such a handle would drop the locks that SQLite holds.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Device and number of a file.
type FileId = (u32, u32, u64);

/// The files of a register that is open.
#[derive(Debug)]
pub struct FileIdentity {
    main: (PathBuf, FileId),
    /// `None` until it was seen.
    log: Option<FileId>,
    log_path: PathBuf,
}

/// Why a register's files can be relied on no longer.
#[derive(Debug)]
pub enum IdentityError {
    /// A file has been removed, moved or replaced.
    Other {
        /// Its name.
        path: PathBuf,
        /// What is there instead.
        found: FoundInstead,
    },
    /// A file cannot be looked at.
    Unknown(PathBuf, io::Error),
}

/// What has the name of a file that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundInstead {
    /// No file.
    Nothing,
    /// Another file.
    Another,
}

impl FileIdentity {
    /// The files of the register at this path, which is open.
    pub fn of(path: &Path) -> io::Result<FileIdentity> {
        let path = std::path::absolute(path)?;
        // SQLite names the log after the file that a link leads to.
        let mut log_path = OsString::from(fs::canonicalize(&path)?);
        log_path.push("-wal");
        let log_path = PathBuf::from(log_path);
        let id = id_at(&path)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(FileIdentity { main: (path, id), log: id_at(&log_path)?, log_path })
    }

    /// Fails if a file's name means another file by now, or none.
    pub fn check(&mut self) -> Result<(), IdentityError> {
        let (path, id) = &self.main;
        expect(path, *id)?;
        match self.log {
            Some(id) => expect(&self.log_path, id),
            None => {
                self.log =
                    id_at(&self.log_path).map_err(|error| IdentityError::Unknown(self.log_path.clone(), error))?;
                Ok(())
            }
        }
    }
}

fn expect(path: &Path, id: FileId) -> Result<(), IdentityError> {
    let found = match id_at(path) {
        Ok(Some(found)) if found == id => return Ok(()),
        Ok(Some(_)) => FoundInstead::Another,
        Ok(None) => FoundInstead::Nothing,
        Err(error) => return Err(IdentityError::Unknown(path.to_owned(), error)),
    };
    Err(IdentityError::Other { path: path.to_owned(), found })
}

/// `None` if there is no file.
fn id_at(path: &Path) -> io::Result<Option<FileId>> {
    match statx(CWD, path, AtFlags::empty(), StatxFlags::INO) {
        Ok(found) => Ok(Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
