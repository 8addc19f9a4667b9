//! Finds the process that is "this shell".

use std::fs;
use std::path::PathBuf;

/// The most forks of a shell, such as for `$(…)`, that are followed upwards.
const CLIMB_MAX: usize = 8;

/// The shell that a command was typed into. `$(… || …)` runs in a short-lived fork of the shell; this returns the shell
/// itself, above the fork.
pub fn pid() -> u32 {
    let mut pid = rustix::process::getppid().map_or(1, |pid| pid.as_raw_pid().unsigned_abs());
    for _ in 0..CLIMB_MAX {
        match Process::read(pid) {
            Some(process) if Process::read(process.parent).is_some_and(|above| process.is_fork_of(&above)) => {
                pid = process.parent;
            }
            _ => break,
        }
    }
    pid
}

#[derive(Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    group: u32,
    program: PathBuf,
    arguments: Vec<u8>,
}

impl Process {
    fn read(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // A program's name may contain any character, so parsing starts after the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        Some(Process {
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            program: fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            arguments: fs::read(format!("/proc/{pid}/cmdline")).ok()?,
        })
    }

    /// Whether this is a fork of `above`. A shell that a user started inside another has its own process group.
    fn is_fork_of(&self, above: &Process) -> bool {
        self.group == above.group && self.program == above.program && self.arguments == above.arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_copy_is_told_from_a_shell_of_its_own() {
        let shell = |parent, group| Process { parent, group, program: "/bin/bash".into(), arguments: b"bash\0".into() };
        assert!(shell(10, 10).is_fork_of(&shell(1, 10)));
        assert!(!shell(10, 11).is_fork_of(&shell(1, 10)));
        let other = Process { arguments: b"bash\0x.sh\0".into(), ..shell(1, 10) };
        assert!(!shell(10, 10).is_fork_of(&other));
    }

    #[test]
    fn ones_own_parent_can_be_read() {
        assert!(Process::read(std::process::id()).is_some());
        assert_eq!(Process::read(0), None);
    }
}
