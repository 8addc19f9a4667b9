//! The command itself: found, started, signalled, reaped.
//!
//! The wrapper is a subreaper: processes that the command leaves behind become its children and can be seen. The
//! command stays in the wrapper's process group, so signals from the terminal reach it directly.

use super::container;
use super::environment::{self, Variables};
use super::hook;
use crate::failure::Failure;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use sublet_wire::exit;

/// A started command.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    pid: Pid,
}

/// The result of reaping children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// The command's exit code, if it ended now.
    pub command: Option<u8>,
    /// Other children are still alive.
    pub others: bool,
}

/// Fails if a command cannot be found, so that the user learns it before a wait for a lease.
pub fn find(command: &OsStr) -> Result<(), Failure> {
    if command.as_bytes().contains(&b'/') {
        return check_file(Path::new(command), command);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let files: Vec<PathBuf> = env::split_paths(&path).map(|dir| dir.join(command)).filter(|f| f.is_file()).collect();
    if files.iter().any(|file| is_executable(file)) {
        return Ok(());
    }
    match files.first() {
        Some(file) => check_file(file, command),
        None => Err(not_found(command)),
    }
}

fn check_file(file: &Path, command: &OsStr) -> Result<(), Failure> {
    match file.metadata() {
        Ok(found) if found.is_dir() => Err(cannot_run(command, "it is a directory")),
        Ok(_) if is_executable(file) => Ok(()),
        Ok(_) => Err(cannot_run(command, "it is not executable")),
        Err(_) => Err(not_found(command)),
    }
}

/// Whether any user may execute a file.
pub fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}

fn not_found(command: &OsStr) -> Failure {
    Failure::new(exit::NOT_FOUND, format!("`{}` was not found", command.display()))
        .hint("is it in a directory of PATH? otherwise give its path, such as `./train.sh`")
}

fn cannot_run(command: &OsStr, why: &str) -> Failure {
    Failure::new(exit::CANNOT_EXEC, format!("`{}` cannot be run: {why}", command.display()))
}

/// Replaces this process by the command; returns only if that fails.
pub fn replace(command: &[OsString], variables: &Variables) -> Failure {
    match build(command, variables) {
        Ok(mut built) => failed(built.get_program().to_owned().as_os_str(), &built.exec()),
        Err(failure) => failure,
    }
}

fn build(command: &[OsString], variables: &Variables) -> Result<Command, Failure> {
    let command = container::through(command, variables);
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::usage("no command was given"))?;
    let mut built = Command::new(program);
    built.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    if let Some(other) = environment::other_daemon(variables) {
        built.env_remove(other);
    }
    Ok(built)
}

fn failed(program: &OsStr, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => not_found(program),
        _ => cannot_run(program, &error.to_string()),
    }
}

impl Started {
    /// Starts a command with the variables of its lease.
    pub fn start(command: &[OsString], variables: &Variables) -> Result<Started, Failure> {
        // A failure is ignored: only processes that the command leaves behind are not noticed then.
        let _ = set_child_subreaper(Some(rustix::process::getpid()));
        let mut built = build(command, variables)?;
        let child = built.spawn().map_err(|error| failed(built.get_program(), &error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.map(|pid| Started { pid }).ok_or_else(|| Failure::new(exit::FAILURE, "the command has no process id"))
    }

    /// Its process id.
    pub fn pid(self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Passes a signal on. If the command has just ended, nothing happens.
    pub fn signal(self, number: i32) {
        // SAFETY: the number is of a signal that this process received, so the kernel knows it.
        let signal = unsafe { rustix::process::Signal::from_raw_unchecked(number) };
        let _ = kill_process(self.pid, signal);
    }

    /// Reaps every child that has ended, without waiting.
    pub fn reap(self) -> Reaped {
        let mut command = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => command = exit_code(status).or(command),
                Ok(Some((pid, status))) => hook::adopt(pid, status),
                Err(Errno::INTR) => {}
                Ok(None) => return Reaped { command, others: true },
                Err(_) => return Reaped { command, others: false },
            }
        }
    }
}

fn exit_code(status: WaitStatus) -> Option<u8> {
    let signalled = || status.terminating_signal().map(|n| i32::from(exit::SIGNAL_BASE) + n);
    status.exit_status().or_else(signalled).map(|code| u8::try_from(code).unwrap_or(u8::MAX))
}

/// Stops this process as Ctrl-Z would have without a signal handler.
pub fn stop_oneself() {
    let _ = kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_code(command: &str) -> u8 {
        find(OsStr::new(command)).map_or_else(|failure| failure.exit(), |()| 0)
    }

    #[test]
    fn a_command_is_found_before_a_lease_is_asked_for() {
        assert_eq!(find_code("sh"), 0);
        assert_eq!(find_code("/bin/sh"), 0);
        assert_eq!(find_code("no-such-command-anywhere"), exit::NOT_FOUND);
        assert_eq!(find_code("/no/such/command"), exit::NOT_FOUND);
        assert_eq!(find_code("/etc/passwd"), exit::CANNOT_EXEC);
        assert_eq!(find_code("/etc"), exit::CANNOT_EXEC);
    }
}
