//! A worker process at the end of two pipes, asked with a deadline.
//!
//! Only the child that was started here is ever killed, through its handle. Restarting is done by the caller.

use crate::soft::SoftPlace;
use crate::wake::{WakeEvent, wait_readable};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// More than any host's GPUs and processes can need; a worker that sends more is broken.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why a worker did not answer.
#[derive(Debug, Error)]
pub(crate) enum WorkerError {
    #[error("it did not answer within {0:?}")]
    Late(Duration),
    #[error("it ended")]
    Ended,
    #[error("its answer makes no sense")]
    Invalid,
    #[error("the pipe to it failed")]
    Pipe(#[from] io::Error),
    /// This process is stopping.
    #[error("no caller waits for it any more")]
    Stopped,
}

pub(crate) struct WorkerLink {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl WorkerLink {
    /// Starts a worker; on soft GPUs if they are given.
    pub(crate) fn start(exe: &Path, args: &[String], soft: Option<&SoftPlace>) -> io::Result<WorkerLink> {
        let mut child = Command::new(exe)
            .arg0("sublet")
            .arg("worker")
            .args(args)
            .envs(soft.into_iter().flat_map(SoftPlace::environment))
            // A daemon with `CUDA_VISIBLE_DEVICES` set still reports all GPUs.
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove(crate::roster::LEASE_VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C at a terminal is for the daemon, which then ends the worker.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("a pipe is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        Ok(WorkerLink { child, stdin, stdout })
    }

    /// Sends one line and waits for one.
    pub(crate) fn ask(&mut self, line: &str, timeout: Duration, stop: &WakeEvent) -> Result<Vec<u8>, WorkerError> {
        // A request is far smaller than a pipe and the last one was answered, so this cannot block.
        self.stdin.write_all(format!("{line}\n").as_bytes()).map_err(|_| WorkerError::Ended)?;
        self.read_line(timeout, stop)
    }

    /// Waits for one line.
    pub(crate) fn read_line(&mut self, timeout: Duration, stop: &WakeEvent) -> Result<Vec<u8>, WorkerError> {
        let until = Instant::now() + timeout;
        let mut line = Vec::new();
        let mut piece = [0u8; 8192];
        while !line.ends_with(b"\n") {
            let [answered, stopped] = wait_readable([self.stdout.as_fd(), stop.as_fd()], until)?;
            match (stopped, answered) {
                (true, _) => return Err(WorkerError::Stopped),
                (false, false) => return Err(WorkerError::Late(timeout)),
                (false, true) => {}
            }
            match self.stdout.read(&mut piece)? {
                0 => return Err(WorkerError::Ended),
                n => line.extend_from_slice(&piece[..n]),
            }
            if line.len() > ANSWER_BYTES_MAX {
                return Err(WorkerError::Invalid);
            }
        }
        Ok(line)
    }

    /// Closes the line to the worker without killing it: it ends when it is done.
    pub(crate) fn close(self) -> Child {
        drop(self.stdin);
        self.child
    }

    /// Kills the worker. Returns the child if it could not be reaped yet: a process inside a driver call may take any
    /// time to end, and this does not wait for it.
    pub(crate) fn kill(mut self) -> Option<Child> {
        drop(self.stdin);
        let _ = self.child.kill(); // it may have ended by itself
        is_unreaped(&mut self.child).then_some(self.child)
    }
}

/// True if the child still has to be reaped. Reaps it if possible.
pub(crate) fn is_unreaped(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}
