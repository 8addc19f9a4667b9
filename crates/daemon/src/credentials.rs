//! What the kernel says about the process that connected to the socket.
//!
//! User and groups are those of the moment of the connect; the kernel keeps them with the socket, whatever becomes of
//! the process. It does not keep namespaces: they are read from `/proc`, and count only if the process still lived when
//! they had been read, so that another process with its pid later is not taken for it. Absent on purpose: names, and
//! what follows from any of this.

use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use sublet_core::ids::ProcKey;
use sublet_host::process;
use tokio::net::UnixStream;

/// The process that connected, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its user.
    pub uid: u32,
    /// All of its groups.
    pub gids: Vec<u32>,
    /// Which of its numbers mean the same here.
    pub spaces: Namespaces,
    /// The process itself; `None` if it had exited, or cannot be seen from here.
    pub process: Option<ConnectedProcess>,
}

/// The process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedProcess {
    /// Its pid in our namespace.
    pub pid: u32,
    /// A time after its start, in ticks since boot: a later process with its pid has started after that.
    pub by: u64,
}

/// Which namespaces a process shares with us; unknown counts as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Its pids mean the same here.
    pub pids: bool,
    /// Its user ids mean the same here.
    pub users: bool,
}

impl Credentials {
    /// Reads them off a connection; fails if the groups cannot be read, because a quota may depend on them.
    pub fn of(stream: &UnixStream) -> io::Result<Credentials> {
        let cred = stream.peer_cred()?;
        let mut gids = peer_groups(stream.as_fd())?;
        gids.push(cred.gid());
        gids.sort_unstable();
        gids.dedup();
        // 0 stands for a process that our pid namespace does not have.
        let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let by = process::ticks_since_boot();
        let seen = pid.and_then(|pid| Some((ConnectedProcess { pid, by }, spaces(stream.as_fd(), pid)?)));
        let (process, spaces) = seen.unzip();
        Ok(Credentials { uid: cred.uid(), gids, spaces: spaces.unwrap_or_default(), process })
    }
}

/// What `/proc` says about a process, if it is the one that connected.
fn spaces(socket: BorrowedFd<'_>, pid: u32) -> Option<Namespaces> {
    let witness = Witness::of(socket, pid)?;
    let spaces = Namespaces { pids: same_pids(pid), users: same_users(pid) };
    witness.saw(pid).then_some(spaces)
}

/// Tells whether a pid belonged to one process all the time.
enum Witness {
    /// A handle on the process that connected, which no other process gets.
    Connected(OwnedFd),
    /// The process that had the pid first: kernels before 6.5 have no such handle.
    First(ProcKey),
}

impl Witness {
    fn of(socket: BorrowedFd<'_>, pid: u32) -> Option<Witness> {
        match peer_pidfd(socket) {
            Ok(pidfd) => Some(Witness::Connected(pidfd)),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => first(pid).map(Witness::First),
            Err(_) => None,
        }
    }

    fn saw(&self, pid: u32) -> bool {
        match self {
            Witness::Connected(pidfd) => is_alive(pidfd.as_fd()),
            Witness::First(key) => first(pid) == Some(*key),
        }
    }
}

fn first(pid: u32) -> Option<ProcKey> {
    process::identify(pid).ok().map(|identity| identity.key)
}

/// A pidfd can be read from once its process has ended.
fn is_alive(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// True if a process is in our pid namespace: then it has one pid, and not one for each namespace down to its own.
/// (Links to namespaces would tell this, too, but only to a user that may trace the process.)
fn same_pids(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.is_some_and(|pids| pids.split_whitespace().count() == 1)
}

/// True if user ids mean the same to a process as to us.
fn same_users(pid: u32) -> bool {
    let map = |process: &str| std::fs::read_to_string(format!("/proc/{process}/uid_map")).ok();
    map("self").is_some_and(|ours| map(&pid.to_string()) == Some(ours))
}

/// The supplementary groups of the process that connected.
fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    const SIZE: usize = size_of::<libc::gid_t>();
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(groups.len() * SIZE).map_err(io::Error::other)?;
        let place = groups.as_mut_ptr().cast();
        // SAFETY: `place` has room for `bytes` bytes, and the kernel writes no more; any bytes make group ids.
        let done = unsafe {
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &raw mut bytes)
        };
        let told = bytes as usize / SIZE;
        if done == 0 {
            groups.truncate(told);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // There are more than the buffer holds, and the kernel said how many.
        if error.raw_os_error() != Some(libc::ERANGE) || told <= groups.len() {
            return Err(error);
        }
        groups.resize(told, 0);
    }
}

/// A handle on the process that connected.
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    let place = (&raw mut pidfd).cast();
    // SAFETY: `place` has room for one descriptor, and `bytes` says so.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD, place, &raw mut bytes) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor just now, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream as StdUnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn this_process_shares_all_namespaces_with_itself() {
        let (one, _other) = StdUnixStream::pair().unwrap();
        let spaces = spaces(one.as_fd(), std::process::id());
        assert_eq!(spaces, Some(Namespaces { pids: true, users: true }));
        let own: Vec<u32> = rustix::process::getgroups().unwrap().into_iter().map(|gid| gid.as_raw()).collect();
        let mut told = peer_groups(one.as_fd()).unwrap();
        told.sort_unstable();
        let mut own = own;
        own.sort_unstable();
        assert_eq!(told, own);
    }

    #[test]
    fn an_exited_process_shares_no_namespace() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let pidfd = rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty()).unwrap();
        let (by_handle, by_start) = (Witness::Connected(pidfd), Witness::First(first(pid).unwrap()));
        assert!(by_handle.saw(pid) && by_start.saw(pid));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!by_handle.saw(pid) && !by_start.saw(pid));
        let another = Witness::First(ProcKey { pid, start: 1 });
        assert!(!another.saw(pid), "a later process with the pid is another one");
    }
}
