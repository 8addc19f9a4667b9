//! Locks on bytes of a file that the kernel releases with their owner.
//!
//! Open-file-description locks: they belong to one `open`, so two parts of a process cannot release each other's by
//! closing a descriptor. They end with the last descriptor, however the process ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// How a byte is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockChange {
    Lock,
    Unlock,
}

fn flock(kind: libc::c_int, byte: u64) -> libc::flock {
    // SAFETY: `flock` is plain numbers; all zeros is a valid one.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

fn change_lock(file: &File, command: libc::c_int, change: LockChange, byte: u64) -> io::Result<()> {
    let kind = if change == LockChange::Lock { libc::F_WRLCK } else { libc::F_UNLCK };
    let lock = flock(kind, byte);
    loop {
        // SAFETY: the descriptor is open, and the structure lives until the call returns.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Locks a byte, waiting for its present owner.
pub fn lock_byte(file: &File, byte: u64) -> io::Result<()> {
    change_lock(file, libc::F_OFD_SETLKW, LockChange::Lock, byte)
}

/// Locks a byte if it is free; false if it is not.
pub fn try_lock_byte(file: &File, byte: u64) -> io::Result<bool> {
    match change_lock(file, libc::F_OFD_SETLK, LockChange::Lock, byte) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Unlocks a byte.
pub fn unlock_byte(file: &File, byte: u64) -> io::Result<()> {
    change_lock(file, libc::F_OFD_SETLK, LockChange::Unlock, byte)
}

/// True if another open file has locked the byte.
pub fn is_locked_elsewhere(file: &File, byte: u64) -> io::Result<bool> {
    let mut lock = flock(libc::F_WRLCK, byte);
    // SAFETY: the descriptor is open, and the structure lives until the call returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}
