//! Detects that a process ran `exec` or ended after it was audited: only `exec` replaces the address space of a process.
//!
//! `/proc/PID/exe` is not enough. Every user may create a user namespace, and there a process may set which file
//! `/proc/PID/exe` shows (`PR_SET_MM_MAP`). A descriptor of `/proc/PID/mem` refers to one address space for good. When no
//! process uses that address space any more, a read at address 0 returns 0 bytes; otherwise the read fails with EIO.
//!
//! Known gap: if a process shares its address space with another one (`CLONE_VM`) and then runs `exec`, the address
//! space stays in use. This is accepted, because only the audited process itself can cause it.

use crate::process;
use crate::timed_read;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A handle of the address space that a process had when the handle was opened.
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// `None` if the process is gone, or its memory cannot be opened: that needs the permission to trace it.
    pub(super) fn of(pid: u32) -> Option<ProcessMemory> {
        let stat = process::stat(pid).ok()?;
        File::open(format!("{}/mem", process::proc_folder(pid, &stat))).ok().map(ProcessMemory)
    }

    /// True if any process uses the address space; false also if that cannot be found out in time.
    pub(super) fn is_in_use(&self) -> bool {
        let Ok(memory) = self.0.try_clone() else { return false };
        // Nothing is mapped at address 0. The kernel may block here if the process is stuck: hence the timeout.
        let read = timed_read::run_with_timeout(move || match memory.read_at(&mut [0], 0) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(1),
            read => read,
        });
        matches!(read, io::Result::Ok(1))
    }
}
