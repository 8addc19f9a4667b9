//! Whether a process still has the memory that it had: only `exec` replaces it.
//!
//! A process can misreport which file it runs: in a user namespace of its own, which every user may create, it may
//! set another in the kernel as often as it likes (`PR_SET_MM_MAP`). A descriptor of its memory refers to that memory
//! for good. When no process uses that memory any more, a read of it returns 0 bytes; as long as one does, it returns
//! a byte or an error.
//!
//! A process that shares its memory with another process of its own and then execs leaves the memory in use. That is
//! its own doing, and it is still the process that was audited.

use crate::process;
use crate::timed_read;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a process at one moment.
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// `None` if it may not be opened: that needs the rights of a debugger.
    pub(super) fn of(pid: u32) -> Option<ProcessMemory> {
        let stat = process::stat(pid).ok()?;
        File::open(format!("{}/mem", process::proc_folder(pid, &stat))).ok().map(ProcessMemory)
    }

    /// True if a process uses the memory; false also if that cannot be found out.
    pub(super) fn is_in_use(&self) -> bool {
        let Ok(memory) = self.0.try_clone() else { return false };
        // Nothing is mapped at address 0, but the lookup waits for a process that is stuck.
        let read = timed_read::run_with_timeout(move || match memory.read_at(&mut [0], 0) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(1),
            read => read,
        });
        matches!(read, io::Result::Ok(1))
    }
}
