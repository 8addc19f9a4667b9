//! Hooks that are commands: each in its own process group, killed when its time is over.
//!
//! The wrapper reaps all of its children, hooks included. So the code that reaps a hook passes its exit status on here.

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

/// Runs the given command line. A process beside it waits for the end of the wrapper, which closes its input, and then
/// kills the whole process group: a remaining hook process would keep the lease.
const WITH_ITS_WRAPPER: &str =
    r#"exec 3<&0 </dev/null; { read x <&3; kill -KILL 0; } >/dev/null 2>&1 & exec 3<&-; exec sh -c "$1""#;

/// How long a killed hook may take to disappear. Only a process inside the kernel takes longer.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Running hooks, and the exit status of those that other code has reaped.
static RUNNING: Mutex<BTreeMap<i32, Option<WaitStatus>>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

fn running() -> MutexGuard<'static, BTreeMap<i32, Option<WaitStatus>>> {
    // No change under this lock can be left half done.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the exit status of a reaped child, if it was a hook.
pub fn adopt(pid: Pid, status: WaitStatus) {
    if let Some(ended) = running().get_mut(&pid.as_raw_pid()) {
        *ended = Some(status);
        ENDED.notify_all();
    }
}

/// Kills every running hook: the command is over, and its result is not needed.
pub fn stop_all() {
    for (pid, ended) in running().iter() {
        if let (Some(pid), None) = (Pid::from_raw(*pid), ended) {
            // The hook may have ended just now.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Runs a command line until it ends.
pub(super) fn run(line: &str, variables: &[(&str, String)], within: Duration) -> Result<(), String> {
    let hook = Running::start(line, variables).map_err(|error| format!("it cannot be run: {error}"))?;
    let Some(status) = hook.wait(within) else {
        hook.kill();
        // Waits until it is reaped, so that no zombie is left.
        hook.wait(GONE_WITHIN);
        return Err(too_slow(within));
    };
    // Processes that it left in its group are not needed any more.
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
    /// A pidfd: it becomes readable when the hook has ended, even if other code reaps it.
    end: OwnedFd,
    /// The hook's input, which is closed when the wrapper ends for any reason.
    _alive: Option<ChildStdin>,
}

impl Running {
    fn start(line: &str, variables: &[(&str, String)]) -> io::Result<Running> {
        let mut command = Command::new("sh");
        command.args(["-c", WITH_ITS_WRAPPER, "sh", line]).process_group(0).stdin(Stdio::piped());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // The wrapper's stdout belongs to the command that runs on the lease.
        command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
        // The lock is held until the hook is entered: code that reaps it meanwhile waits for the lock.
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
        // The group may be empty already.
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// The exit status, if the hook ends within this time.
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

    /// The exit status that other code has reaped and is about to pass on.
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
