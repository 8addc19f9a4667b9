//! Room beside a register, so that old versions can be removed when its disk is full.
//!
//! ```text
//! register.db-reserve   512 KiB   made when the register is opened and there is room
//!                       gone      while an operator's command runs, and made again at its end
//! ```
//! Removing a version takes two entries, and opening SQLite's file takes room too. Programs that save never use the
//! reserve: they would fill the disk again.
//!
//! Absent on purpose: anything in it. Its blocks are allocated and never written; a file system that cannot do that gets no
//! reserve.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The sizes that are tried, the largest first.
const SIZES: [u64; 3] = [512 << 10, 256 << 10, 128 << 10];

/// The file that holds the room.
fn file_beside(register: &Path) -> PathBuf {
    let mut name = register.as_os_str().to_owned();
    name.push("-reserve");
    name.into()
}

/// Makes the reserve, unless there is one. A register works without one, too.
pub fn make(register: &Path) {
    let path = file_beside(register);
    let Ok(file) = File::create_new(&path) else { return };
    let is_made = SIZES.iter().any(|size| fallocate(&file, FallocateFlags::empty(), 0, *size).is_ok());
    if !is_made {
        // An empty file would keep later calls from making it. If it cannot be removed now, a command removes it.
        let _ = fs::remove_file(&path);
    }
}

/// The room is free until this is dropped.
#[derive(Debug)]
pub struct FreedReserve {
    register: PathBuf,
}

impl FreedReserve {
    /// Frees the room.
    pub fn of(register: &Path) -> FreedReserve {
        // Without a reserve, and where it is not this user's to remove, the command has the room that the disk has.
        let _ = fs::remove_file(file_beside(register));
        FreedReserve { register: register.to_owned() }
    }
}

impl Drop for FreedReserve {
    fn drop(&mut self) {
        make(&self.register);
    }
}
