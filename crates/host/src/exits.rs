//! Reports at once when a process ends, through its pidfd.
//!
//! The number of pidfds is bounded; other exits are noticed by the next refresh. No signals are sent: a pidfd here is
//! only for listening.

use crate::process;
use crate::wake::{WakeEvent, timespec};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use sublet_core::ids::ProcKey;

/// Enough for every GPU process of a big host; others are left to the refresh.
const PIDFDS_MAX: usize = 4096;
/// Exits returned together, so that processes that end together are handled together.
const EXITS_AT_ONCE: usize = 256;
/// The epoll token of the wake event, which is no process.
const WAKE_TOKEN: u64 = 0;

/// Whether the exit of a process must be noticed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitWatch {
    /// Half of the descriptors are reserved for these: the processes that leases are bound to, and those on GPUs.
    Reserved,
    /// As long as descriptors are left.
    Ordinary,
    /// The next refresh notices it.
    None,
}

pub(crate) struct ExitWatcher {
    epoll: OwnedFd,
    pidfds: BTreeMap<ProcKey, (u64, OwnedFd)>,
    by_token: BTreeMap<u64, ProcKey>,
    next_token: u64,
    pidfds_max: usize,
}

impl ExitWatcher {
    pub(crate) fn new(wake: &WakeEvent) -> io::Result<ExitWatcher> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake.as_fd(), EventData::new_u64(WAKE_TOKEN), EventFlags::IN)?;
        Ok(ExitWatcher {
            epoll,
            pidfds: BTreeMap::new(),
            by_token: BTreeMap::new(),
            next_token: WAKE_TOKEN + 1,
            pidfds_max: pidfds_max(),
        })
    }

    /// Watches for the end of exactly this process. False if it has ended already.
    pub(crate) fn watch(&mut self, key: ProcKey, exit_watch: ExitWatch) -> bool {
        if self.pidfds.contains_key(&key) {
            return true;
        }
        let pidfds_max = match exit_watch {
            ExitWatch::Reserved => self.pidfds_max,
            ExitWatch::Ordinary => self.pidfds_max / 2,
            ExitWatch::None => 0,
        };
        let pidfd = if self.pidfds.len() < pidfds_max { open(key.pid) } else { Ok(None) };
        // Checked after opening: from here on the descriptor means this process and no other.
        let Some(pidfd) = pidfd.ok().filter(|_| process::is_running(key)) else { return false };
        if let Some(pidfd) = pidfd {
            let token = self.next_token;
            if epoll::add(&self.epoll, &pidfd, EventData::new_u64(token), EventFlags::IN).is_ok() {
                self.next_token += 1;
                self.by_token.insert(token, key);
                self.pidfds.insert(key, (token, pidfd));
            }
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.pidfds.len()
    }

    /// Stops watching.
    pub(crate) fn unwatch(&mut self, key: ProcKey) {
        // Closing the descriptor takes it out of the epoll set.
        if let Some((token, _)) = self.pidfds.remove(&key) {
            self.by_token.remove(&token);
        }
    }

    /// Waits for exits, the wake event or the end of `timeout` (for ever without one), and returns the processes that
    /// ended.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<ProcKey>> {
        let timeout = timeout.map(timespec);
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EXITS_AT_ONCE];
        let events = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        Ok(events.iter().filter_map(|event| self.by_token.get(&event.data.u64()).copied()).collect())
    }
}

/// `Ok(None)`: it may exist, but no descriptor is available. `Err`: it does not exist.
fn open(pid: u32) -> Result<Option<OwnedFd>, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        // It does not exist, or is a thread.
        Err(error @ (Errno::SRCH | Errno::INVAL)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// At most half of the descriptors this process may open: the daemon has clients too.
fn pidfds_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 2).unwrap_or(PIDFDS_MAX).min(PIDFDS_MAX)
}
