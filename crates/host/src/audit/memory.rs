//! Whether a process still has the memory that it had: only `exec` gives it other.
//!
//! Which file a process runs is its own word: in a user namespace of its own, which anybody may have, it tells the
//! kernel another as often as it likes (`PR_SET_MM_MAP`). A descriptor of its memory is of that memory for good. When
//! nobody has that any more, a read of it gives nothing; as long as somebody does, it gives a byte or an error.
//!
//! Who shares its memory with another process of its own and starts another program leaves it in use: that is its own
//! doing, and it is the process that was audited all the same.

use crate::patient;
use crate::process;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a process at one moment.
pub(super) struct Memory(File);

impl Memory {
    /// `None` for whoever may not open it: that needs what a debugger needs.
    pub(super) fn of(pid: u32) -> Option<Memory> {
        let stat = process::stat(pid).ok()?;
        File::open(format!("{}/mem", process::folder(pid, &stat))).ok().map(Memory)
    }

    /// Somebody has it. Who cannot tell says no.
    pub(super) fn is_in_use(&self) -> bool {
        let Ok(memory) = self.0.try_clone() else { return false };
        // There is nothing at the beginning, but it is looked for, and that waits for a process that is stuck.
        let read = patient::patiently(move || match memory.read_at(&mut [0], 0) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(1),
            read => read,
        });
        matches!(read, io::Result::Ok(1))
    }
}
