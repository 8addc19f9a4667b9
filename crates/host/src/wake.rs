//! A wake-up between threads that can be waited for by `poll` and `epoll`.
//!
//! It carries no message: what to do is in a queue or a flag beside it.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// An event that is set or not. Two notifications before it is cleared are one.
pub(crate) struct WakeEvent {
    fd: OwnedFd,
}

impl WakeEvent {
    pub(crate) fn new() -> io::Result<WakeEvent> {
        Ok(WakeEvent { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Sets the event. The only possible failure is a full counter, and then it is set already.
    pub(crate) fn notify(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Clears the event. The caller reads the queue afterwards, so nothing is lost.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }

    /// True if it was set and not cleared since.
    pub(crate) fn is_set(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|n| n > 0)
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of `fds` is readable, or until `until`. Returns true for each that is readable.
pub(crate) fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], until: Instant) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match poll(&mut polled, Some(&timespec(left))) {
            Ok(_) => return Ok(polled.each_ref().map(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A duration as the kernel takes it, capped at a day so that nothing overflows.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let duration = duration.min(Duration::from_secs(86_400));
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
