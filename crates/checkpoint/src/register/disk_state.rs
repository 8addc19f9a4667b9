//! Why SQLite cannot write: it says "disk I/O error" of a full disk, and "unable to open" of one that is read-only.
//!
//! Absent on purpose: watching disks. A disk is looked at only after a call has failed.

use super::RegisterError;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::path::Path;

/// What a connection and one entry take: the index of the write-ahead log, and some pages.
const ROOM_NEEDED: u64 = 128 << 10;

/// The refusal of a register whose disk is read-only or full; `None` if its disk is neither, or cannot be looked at.
pub fn refusal_of_disk(register: &Path) -> Option<RegisterError> {
    let disk = statvfs(register.parent()?).ok()?;
    if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Some(RegisterError::ReadOnly { path: register.to_owned() });
    }
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    (free < ROOM_NEEDED).then(|| full_disk(register))
}

/// The refusal of a register whose disk is full.
pub fn full_disk(register: &Path) -> RegisterError {
    RegisterError::Full { reason: format!("the disk of `{}` is full", register.display()) }
}
