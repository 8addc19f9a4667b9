//! Hooks that are commands: each in a process group of its own, killed when its time is up.
//!
//! The wrapper reaps every child it has, hooks too. So whoever reaps hands the end of a hook over here.

use super::too_slow;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open, waitpid};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Runs the command line that it is given. Beside it waits a process for the wrapper's end, which it knows by
/// the end of its input, and then kills the whole group: what is left of a hook would hold the lease on.
const WITH_ITS_WRAPPER: &str =
    r#"exec 3<&0 </dev/null; { read x <&3; kill -KILL 0; } >/dev/null 2>&1 & exec 3<&-; exec sh -c "$1""#;

/// How long a killed hook may take to be gone: longer only in the kernel's own hands.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Hooks that run, and how those ended whom somebody else reaped.
static RUNNING: Mutex<BTreeMap<i32, Option<WaitStatus>>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

fn running() -> MutexGuard<'static, BTreeMap<i32, Option<WaitStatus>>> {
    // Nothing that holds the lock can leave half of a change.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the end of a child that was reaped, if it was a hook.
pub fn adopt(pid: Pid, status: WaitStatus) {
    if let Some(ended) = running().get_mut(&pid.as_raw_pid()) {
        *ended = Some(status);
        ENDED.notify_all();
    }
}

/// Kills whatever hook runs: its command is over, and nobody waits for what it says.
pub fn stop_all() {
    for (pid, ended) in running().iter() {
        if let (Some(pid), None) = (Pid::from_raw(*pid), ended) {
            // It may have ended just now.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Runs a command line to its end.
pub(super) fn run(line: &str, variables: &[(&str, String)], within: Duration) -> Result<(), String> {
    let hook = Running::start(line, variables).map_err(|error| format!("it cannot be run: {error}"))?;
    let Some(status) = hook.wait(within) else {
        hook.kill();
        // For its end to be known, so that it is nobody's child any more.
        hook.wait(GONE_WITHIN);
        return Err(too_slow(within));
    };
    // What it left behind in its group is of no more use.
    hook.kill();
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(format!("its exit code was {code}")),
        (None, Some(signal)) => Err(format!("signal {signal} ended it")),
        (None, None) => Err("how it ended is not known".to_owned()),
    }
}

/// A hook's process.
struct Running {
    pid: Pid,
    /// Can be read from when it has ended, whoever reaps it.
    end: OwnedFd,
    /// Closed when the wrapper is gone, however it went.
    _alive: Option<ChildStdin>,
}

impl Running {
    fn start(line: &str, variables: &[(&str, String)]) -> io::Result<Running> {
        let mut command = Command::new("sh");
        command.args(["-c", WITH_ITS_WRAPPER, "sh", line]).process_group(0).stdin(Stdio::piped());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // stdout belongs to the command that runs on the lease.
        command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
        // Held until it is entered: whoever reaps it meanwhile waits here with its end.
        let mut running = running();
        let mut child = command.spawn()?;
        let (pid, alive) = (Pid::from_child(&child), child.stdin.take());
        running.insert(pid.as_raw_pid(), None);
        drop(running);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(end) => Ok(Running { pid, end, _alive: alive }),
            Err(error) => {
                let _ = kill_process_group(pid, Signal::KILL);
                self::running().remove(&pid.as_raw_pid());
                Err(error.into())
            }
        }
    }

    fn kill(&self) {
        // Nobody may be left in it.
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// How it ended, if it ends within this time.
    fn wait(&self, within: Duration) -> Option<WaitStatus> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok()?;
            match poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if left.is_zero() => return None,
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(_) => return None,
            }
        }
        match waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => Some(status),
            _ => self.reaped(),
        }
    }

    /// The end that somebody else saw, and is about to hand over.
    fn reaped(&self) -> Option<WaitStatus> {
        let mut running = running();
        let deadline = Instant::now() + GONE_WITHIN;
        loop {
            let status = running.get(&self.pid.as_raw_pid()).copied().flatten();
            let left = deadline.saturating_duration_since(Instant::now());
            if status.is_some() || left.is_zero() {
                return status;
            }
            running = ENDED.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        running().remove(&self.pid.as_raw_pid());
    }
}
