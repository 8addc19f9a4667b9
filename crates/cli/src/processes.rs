//! Processes of this host, held by pidfds, so that a signal reaches the process that was inspected.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The most ancestors that are followed from this process upwards.
const ANCESTORS_MAX: usize = 256;
/// Shells that a user types into, also where /etc/shells does not list them.
const SHELLS: [&str; 9] = ["sh", "bash", "dash", "zsh", "fish", "ksh", "tcsh", "csh", "ash"];

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug)]
pub struct PidfdProcess {
    pid: u32,
    fd: OwnedFd,
}

impl PidfdProcess {
    /// `None` if no such process exists.
    pub fn open(pid: u32) -> Option<PidfdProcess> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        Some(PidfdProcess { pid, fd })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal. It succeeds if the process has already ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        match pidfd_send_signal(&self.fd, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => sent,
        }
    }
}

/// Waits until one process ends, for at most `most`, then keeps those that have not ended.
pub fn await_end(processes: &mut Vec<PidfdProcess>, most: Duration) {
    let mut fds: Vec<PollFd<'_>> = processes.iter().map(|process| PollFd::new(&process.fd, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    if poll(&mut fds, Some(&time)).is_err() {
        return;
    }
    let mut ended = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
    processes.retain(|_| !ended.next().unwrap_or(false));
}

/// The pids of this process and of its ancestors.
pub fn own_line() -> BTreeSet<u32> {
    let mut line = BTreeSet::new();
    let mut pid = std::process::id();
    while pid > 0 && line.len() < ANCESTORS_MAX && line.insert(pid) {
        pid = ProcessStat::read(pid).map_or(0, |facts| facts.parent);
    }
    line
}

/// Facts about a process from /proc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// The pid of its parent.
    pub parent: u32,
    /// It leads a session and has a controlling terminal.
    pub leads_terminal: bool,
}

impl ProcessStat {
    /// `None` if the process has ended.
    pub fn read(pid: u32) -> Option<ProcessStat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        ProcessStat::parse(pid, &stat)
    }

    fn parse(pid: u32, stat: &str) -> Option<ProcessStat> {
        // A program's name may contain any character, so parsing starts after the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let parent = fields.next()?.parse().ok()?;
        let session: u32 = fields.nth(1)?.parse().ok()?;
        let terminal: i64 = fields.next()?.parse().ok()?;
        Some(ProcessStat { parent, leads_terminal: session == pid && terminal != 0 })
    }
}

/// Whether a process is a shell that leads a terminal's session, so that a user types into it.
pub fn is_terminal_shell(pid: u32) -> bool {
    let is_shell = |name: String| SHELLS.contains(&name.as_str()) || is_listed_shell(&name);
    ProcessStat::read(pid).is_some_and(|facts| facts.leads_terminal) && program(pid).is_some_and(is_shell)
}

fn is_listed_shell(name: &str) -> bool {
    let listed = fs::read_to_string("/etc/shells").unwrap_or_default();
    listed.lines().any(|line| Path::new(line.trim()).file_name().is_some_and(|shell| shell == name))
}

/// Whether a process is `sublet run`, which passes signals on to its command.
pub fn is_wrapper(pid: u32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    program(pid).is_some_and(|name| name == "sublet") && is_run(&arguments)
}

fn is_run(arguments: &[u8]) -> bool {
    let words = arguments.split(|byte| *byte == 0).skip(1).take_while(|word| *word != b"--");
    words.into_iter().any(|word| word == b"run")
}

/// The file name of the executable.
fn program(pid: u32) -> Option<String> {
    let file = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = file.file_name()?.to_str()?;
    // The kernel appends this if the file was replaced by a newer one.
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Whether a process runs as this user.
pub fn runs_as(pid: u32, uid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid)
}

/// Whether a process was started with all of these variables in its environment.
pub fn carries(pid: u32, variables: &[String]) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let set: BTreeSet<&[u8]> = environment.split(|byte| *byte == 0).collect();
    variables.iter().all(|variable| set.contains(variable.as_bytes()))
}

/// The pids of all processes.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process is in the same pid namespace as this one; `pid` is its number here.
pub fn counts_as_here(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_of_a_terminal_is_told_from_a_script() {
        let stat = |session, terminal| format!("7 (a ) b) S 3 7 {session} {terminal} 7 0");
        assert_eq!(ProcessStat::parse(7, &stat(7, 34816)), Some(ProcessStat { parent: 3, leads_terminal: true }));
        assert_eq!(ProcessStat::parse(7, &stat(7, 0)), Some(ProcessStat { parent: 3, leads_terminal: false }));
        assert_eq!(ProcessStat::parse(7, &stat(2, 34816)), Some(ProcessStat { parent: 3, leads_terminal: false }));
        assert_eq!(ProcessStat::parse(7, "7 (a) Z 3 7 7 0"), None);
    }

    #[test]
    fn only_run_passes_signals_on() {
        assert!(is_run(b"sublet\0run\0--vram\x001G\0--\0python\0"));
        assert!(is_run(b"sublet\0--socket\0/s\0run\0python\0"));
        assert!(!is_run(b"sublet\0soft\0env\0--\0run\0"));
        assert!(!is_run(b"sublet\0lease\0"));
    }

    #[test]
    fn this_process_is_in_its_own_line_and_in_its_own_namespace() {
        let line = own_line();
        assert!(line.contains(&std::process::id()));
        assert!(line.contains(&std::os::unix::process::parent_id()));
        assert!(counts_as_here(std::process::id()));
    }

    #[test]
    fn a_process_that_ended_is_not_kept() {
        let mut child = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
        let mut all = vec![PidfdProcess::open(child.id()).unwrap()];
        await_end(&mut all, Duration::from_millis(1));
        assert_eq!(all.len(), 1);
        all[0].signal(Signal::KILL).unwrap();
        await_end(&mut all, Duration::from_secs(60));
        assert!(all.is_empty());
        child.wait().unwrap();
    }
}
