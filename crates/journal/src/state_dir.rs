//! The state directory: its permissions, the lock, and the ballast.
//!
//! ```text
//! journal.db  journal.db-wal  journal.db-shm   SQLite's
//! journal.head                                 the last line that was committed (`head.rs`)
//! lock                                         held while a daemon runs; says its pid
//! ballast                                      bytes to give up when the disk is full
//! ```
//! The database's own files are never opened here: closing any descriptor of such a
//! file would drop SQLite's locks on it.

use crate::error::OpenError;
use crate::path_trust::{Exposed, exposed_above};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statvfs};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The database in a state directory.
pub const DATABASE: &str = "journal.db";
/// The lock file.
pub const LOCK: &str = "lock";
/// The ballast. It is emptied, never removed: its presence shows that a journal was set up.
pub const BALLAST: &str = "ballast";
/// The head of the chain: see `head.rs`.
pub const HEAD: &str = "journal.head";
/// Room to copy the longest write-ahead log into the database (64 MiB), and for some ten thousand
/// releases and expiries. On a small disk the ballast is smaller, and the write-ahead log is kept shorter
/// in proportion (`checkpoint.rs`).
pub const BALLAST_BYTES: u64 = 80 << 20;
/// One busy minute would use up less than this. Then there is no ballast, and the caller is told.
const BALLAST_BYTES_MIN: u64 = 4 << 20;

/// The smallest size of a database: one page.
const PAGE_BYTES: u64 = 4096;

/// Makes the directory if it does not exist, and refuses one that another user can change.
pub fn prepare_directory(dir: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Directory { path: dir.to_owned(), source };
    if let Some(Exposed { path: above, why }) = exposed_above(dir).map_err(failed)? {
        return Err(OpenError::ExposedAbove { path: dir.to_owned(), above, why });
    }
    if !dir.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent).map_err(failed)?;
        }
    }
    let metadata = fs::metadata(dir).map_err(failed)?;
    if !metadata.is_dir() {
        return Err(failed(Errno::NOTDIR.into()));
    }
    // A user that may write the directory could put a file in our way, or remove ours.
    let (owner, us) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != us && owner != 0 {
        return Err(OpenError::NotOurs { path: dir.to_owned(), owner, us });
    }
    match metadata.permissions().mode() & 0o7777 {
        mode if mode & 0o022 != 0 => Err(OpenError::Exposed { path: dir.to_owned(), mode }),
        _ => Ok(()),
    }
}

/// Makes new names in a directory durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The process that has this lock is the only writer. The kernel releases it when the process ends, however that ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes the lock; the error names the process that holds it.
    pub fn acquire(dir: &Path) -> Result<DirectoryLock, OpenError> {
        let failed = |source| OpenError::Directory { path: dir.to_owned(), source };
        let mut file = open_own_file(&dir.join(LOCK)).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(OpenError::Locked { path: dir.to_owned(), pid: pid_in(&mut file) });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        file.set_len(0).map_err(failed)?;
        // On a full disk the pid may not fit. It is only there to be shown.
        let _ = writeln!(file, "{}", std::process::id());
        Ok(DirectoryLock { _file: file })
    }
}

fn open_own_file(path: &Path) -> io::Result<File> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow).open(path)
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Refuses a lost or cut-short database file: SQLite would take it for a new one, make it empty, and drop
/// the write-ahead log beside it.
pub fn check_not_lost(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(DATABASE);
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    let held = dir.join(BALLAST).exists() || dir.join(HEAD).exists() || bytes(&dir.join("journal.db-wal")) > 0;
    match bytes(&path) {
        ..PAGE_BYTES if held => Err(OpenError::Gone { path }),
        // SQLite takes a file of less than a page for an empty one, and would write over it.
        1..PAGE_BYTES => Err(OpenError::Foreign { path }),
        _ => Ok(()),
    }
}

/// Makes an empty database file that only its owner can read, unless there is one.
pub fn make_private_file(path: &Path) -> Result<(), OpenError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(OpenError::file(path, error)),
        _ => Ok(()),
    }
}

/// Bytes that the user of this process can still write on the disk of a file or directory.
pub fn free_bytes(at: &Path) -> io::Result<u64> {
    let disk = statvfs(at)?;
    // Some file systems keep their last blocks for root. Where root may not use them either, a write fails.
    let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    // A file system without a size of its own does not say how much is free: there too, a write fails.
    Ok(if disk.f_blocks == 0 { u64::MAX } else { blocks.saturating_mul(disk.f_frsize) })
}

/// Bytes that are kept to be given up.
#[derive(Debug)]
pub struct Ballast {
    path: PathBuf,
    /// Its present size.
    bytes: u64,
    /// The least that was free since the ballast was given up. If no more than this is free, the disk is still full.
    least_free: Option<u64>,
}

impl Ballast {
    /// The ballast of a state directory.
    pub fn of(dir: &Path) -> Ballast {
        Ballast { path: dir.join(BALLAST), bytes: 0, least_free: None }
    }

    /// Its present size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Frees its bytes for the next writes on that disk.
    pub fn give_up(&mut self) -> io::Result<()> {
        // The disk was full a moment ago, so what is free from here on are the ballast's own bytes.
        self.least_free = Some(self.least_free.unwrap_or(u64::MAX).min(self.bytes));
        self.bytes = 0;
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        match OpenOptions::new().write(true).custom_flags(nofollow).open(&self.path) {
            // There was never room for it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => {
                let file = opened?;
                file.set_len(0)?;
                file.sync_all()
            }
        }
    }

    /// Reserves as many bytes as fit the disk now; returns true if there is a ballast again. Bytes that were free
    /// ever since it was given up are its own, and do not show that the disk has room.
    pub fn restore(&mut self) -> io::Result<bool> {
        let file = open_own_file(&self.path)?;
        self.bytes = file.metadata()?.len();
        let free = free_bytes(&self.path)?;
        if let Some(least) = &mut self.least_free {
            *least = free.min(*least);
            if free - *least < 2 * BALLAST_BYTES_MIN {
                return Ok(false);
            }
        }
        let size = fitting_ballast_bytes(self.bytes.saturating_add(free));
        if self.bytes < size {
            if let Err(error) = reserve_bytes(&file, size) {
                self.bytes = 0;
                file.set_len(0)?;
                return if error.kind() == io::ErrorKind::StorageFull { Ok(false) } else { Err(error) };
            }
            file.sync_all()?;
            self.bytes = size;
        }
        if self.bytes < BALLAST_BYTES_MIN {
            return Ok(false);
        }
        self.least_free = None;
        Ok(true)
    }
}

/// The size of the ballast for a disk with `room` bytes: half of it in whole MiB, at most [`BALLAST_BYTES`], or 0 if
/// that is less than [`BALLAST_BYTES_MIN`].
fn fitting_ballast_bytes(room: u64) -> u64 {
    let half = (room / 2).min(BALLAST_BYTES) >> 20 << 20;
    if half < BALLAST_BYTES_MIN { 0 } else { half }
}

fn reserve_bytes(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => {
            let mut file = file;
            let chunk = vec![0u8; 1 << 20];
            (0..bytes >> 20).try_for_each(|_| file.write_all(&chunk))
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_takes_half_of_a_small_disk_and_nothing_of_a_tiny_one() {
        let mib = |n: u64| n << 20;
        assert_eq!(fitting_ballast_bytes(u64::MAX), mib(80));
        assert_eq!(fitting_ballast_bytes(mib(160)), mib(80));
        assert_eq!(fitting_ballast_bytes(mib(61)), mib(30));
        assert_eq!(fitting_ballast_bytes(mib(8)), mib(4));
        assert_eq!(fitting_ballast_bytes(mib(8) - 1), 0);
    }
}
