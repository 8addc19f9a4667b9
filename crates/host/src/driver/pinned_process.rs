//! One process that may be moved: identified by its start time, and held by a pidfd.
//!
//! The kernel reuses pids. The pidfd is opened first and the start time compared afterwards, so from then on "it has
//! not ended" means that the pid still names this process.

use crate::process;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::Duration;
use sublet_core::ids::ProcKey;

use crate::wake::timespec;

/// Exactly one process, held by a pidfd.
pub(crate) struct PinnedProcess {
    key: ProcKey,
    fd: OwnedFd,
}

impl PinnedProcess {
    /// Opens exactly this process. `None` if it has ended, or no pidfd can be opened.
    pub(crate) fn open(key: ProcKey) -> Option<PinnedProcess> {
        let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let found = process::identify(key.pid).ok()?;
        (found.key == key).then_some(PinnedProcess { key, fd })
    }

    pub(crate) const fn key(&self) -> ProcKey {
        self.key
    }

    /// True if it has not ended, so its pid is its own.
    pub(crate) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready == 0)
    }

    /// True if it is stopped, by a signal or a debugger: it does not respond, and the driver would wait for it.
    pub(crate) fn is_stopped(&self) -> bool {
        process::stat(self.key.pid).is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
    }
}
