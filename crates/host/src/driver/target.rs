//! One process that may be moved: known by its start, and held by a pidfd.
//!
//! A pid is a number that the kernel gives again. The pidfd is opened first and the start compared
//! after it, so from then on "it has not ended" means that the pid still names this process.

use crate::process;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::Duration;
use sublet_core::ids::ProcKey;

use crate::wake::timespec;

/// A process and no other.
pub(crate) struct Target {
    key: ProcKey,
    fd: OwnedFd,
}

impl Target {
    /// Takes hold of exactly this process. Nothing if it has ended, or cannot be held.
    pub(crate) fn open(key: ProcKey) -> Option<Target> {
        let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let found = process::identify(key.pid).ok()?;
        (found.key == key).then_some(Target { key, fd })
    }

    pub(crate) const fn key(&self) -> ProcKey {
        self.key
    }

    /// It has not ended, so its pid is its own.
    pub(crate) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready == 0)
    }

    /// It is stopped, by a signal or a debugger: it answers nobody, and the driver waits for its answer.
    pub(crate) fn is_stopped(&self) -> bool {
        process::stat(self.key.pid).is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
    }
}
