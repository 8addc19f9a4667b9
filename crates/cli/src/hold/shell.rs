//! Which process is "this shell".

use std::fs;
use std::path::PathBuf;

/// A shell forks for `$(…)` at most a few times over.
const CLIMB_MAX: usize = 8;

/// The shell that a command was typed into. `$(… || …)` runs in a forked copy of it,
/// which is gone a moment later: its twin above it is meant.
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
        // The name may contain anything: the fields after its last parenthesis are safe.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        Some(Process {
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            program: fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            arguments: fs::read(format!("/proc/{pid}/cmdline")).ok()?,
        })
    }

    /// A shell that somebody started inside another has a process group of its own.
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
