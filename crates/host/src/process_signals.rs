//! Signals to processes: each goes to the intended process, or is not sent.
//!
//! The processes are chosen elsewhere, and are on the record before this is called. Only [`announce_end`] chooses among
//! the processes it is given, by what each of them does with the signal. `uid` is the user that chose the signal. A
//! process of another user gets none: `sudo` and `su` make processes of other users in one lease.

use crate::process::{self, ProcessError, Uids, status_field};
use crate::wake::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::time::Duration;
use sublet_core::ids::ProcKey;
use thiserror::Error;

/// Why a process gets no signal.
#[derive(Debug, Error)]
pub enum NotSignalled {
    /// It ended, or cannot be signalled.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It runs as another user, at least in part.
    #[error("it runs as uid {uid}, not as the lease's user")]
    OtherUser {
        /// The other user.
        uid: u32,
    },
}

impl NotSignalled {
    /// True if the process has ended.
    pub const fn is_gone(&self) -> bool {
        matches!(self, NotSignalled::Process(error) if error.is_gone())
    }
}

/// Sends a signal to exactly this process of this user. The pidfd is opened first and the process is read by its pid
/// afterwards: if that is another process by now, or another user's, no signal is sent. The last check is of the
/// pidfd itself: the process has not ended, so the pid was its own while the uids were read.
pub fn send_signal(process: ProcKey, uid: u32, number: u8) -> Result<(), NotSignalled> {
    let pid = process.pid;
    let refused = |source: io::Error| NotSignalled::from(ProcessError::of(pid, source));
    let invalid = || refused(io::ErrorKind::InvalidInput.into());
    let signal = Signal::from_named_raw(number.into()).ok_or_else(invalid)?;
    let raw = i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw).ok_or_else(invalid)?;
    if raw.as_raw_nonzero().get() as u32 == std::process::id() {
        return Err(invalid());
    }
    let descriptor = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| refused(error.into()))?;
    if process::identify(pid)?.key != process {
        return Err(ProcessError::Gone { pid }.into());
    }
    if let Some(uid) = Uids::read(pid)?.other_than(uid) {
        return Err(NotSignalled::OtherUser { uid });
    }
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    if poll(&mut polled, Some(&timespec(Duration::ZERO))).map_err(|error| refused(error.into()))? > 0 {
        return Err(ProcessError::Gone { pid }.into());
    }
    pidfd_send_signal(&descriptor, signal).map_err(|error| refused(error.into()))
}

/// SIGTERM.
const TERM: u8 = 15;

/// One signal of [`announce_end`], and its outcome.
#[derive(Debug)]
pub struct SignalDelivery {
    /// The intended process.
    pub process: ProcKey,
    /// The signal's number: the one that was asked for, or SIGTERM.
    pub signal: u8,
    /// Why the process did not get it.
    pub outcome: Result<(), NotSignalled>,
}

/// Gives the processes of a lease the signal that announces its end.
///
/// ```text
///   a process catches it     that process gets it (and each other that does)
///   no process catches it    the top process gets SIGTERM, unless it ignores the signal
/// ```
/// A process without a handler would die of most signals, and one that ignores the signal chose not to get it:
/// neither gets it. The top process is the earliest of `processes` with a parent outside of them: for `sublet run`,
/// its command.
pub fn announce_end(processes: &[ProcKey], uid: u32, signal: u8) -> Vec<SignalDelivery> {
    let send = |process: ProcKey, number: u8| {
        let outcome = send_signal(process, uid, number);
        SignalDelivery { process, signal: number, outcome }
    };
    let is_others = |process: &ProcKey| Uids::read(process.pid).is_ok_and(|uids| uids.other_than(uid).is_some());
    let (others, own): (Vec<ProcKey>, Vec<ProcKey>) = processes.iter().copied().partition(is_others);
    // Each is refused by itself, with the reason.
    let left_out: Vec<SignalDelivery> = others.into_iter().map(|process| send(process, signal)).collect();
    let processes = own.as_slice();
    let catches = |process: &&ProcKey| disposition(**process, signal) == Some(Disposition::Caught);
    let caught: Vec<SignalDelivery> = processes.iter().filter(catches).map(|process| send(*process, signal)).collect();
    if !caught.is_empty() {
        return caught.into_iter().chain(left_out).collect();
    }
    let top = top_process(processes).filter(|top| disposition(*top, signal) == Some(Disposition::Default));
    top.map(|top| send(top, TERM)).into_iter().chain(left_out).collect()
}

/// What a process does with a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    Caught,
    Ignored,
    Default,
}

/// What exactly this process does with a signal; `None` if it is gone or cannot be read.
fn disposition(process: ProcKey, signal: u8) -> Option<Disposition> {
    let before = process::stat(process.pid).ok()?;
    let status = process::read(process.pid, "status").ok()?;
    let has = |field| Some(signal_mask(&status, field)? >> signal.checked_sub(1)? & 1 == 1);
    match (before.start == process.start, has("SigCgt:")?, has("SigIgn:")?) {
        (false, ..) => None,
        (true, true, _) => Some(Disposition::Caught),
        (true, false, true) => Some(Disposition::Ignored),
        (true, false, false) => Some(Disposition::Default),
    }
}

/// `SigCgt:  0000000000010002`: one bit for each signal, the lowest for signal 1.
fn signal_mask(status: &[u8], field: &str) -> Option<u64> {
    u64::from_str_radix(&status_field::<String>(status, field)?, 16).ok()
}

/// The earliest of the processes with a parent outside of them.
fn top_process(processes: &[ProcKey]) -> Option<ProcKey> {
    let is_among = |pid: u32| processes.iter().any(|process| process.pid == pid);
    let is_top = |process: &ProcKey| {
        process::stat(process.pid).is_ok_and(|stat| stat.start == process.start && !is_among(stat.parent))
    };
    processes.iter().copied().filter(is_top).min_by_key(|process| (process.start, process.pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Stdio;
    use std::process::{Child, Command};

    fn own_uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn sleeper() -> (Child, ProcKey) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let key = process::identify(child.id()).unwrap().key;
        (child, key)
    }

    #[test]
    fn a_signal_reaches_the_intended_process() {
        let (mut child, key) = sleeper();
        send_signal(key, own_uid(), 15).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        assert!(send_signal(key, own_uid(), 15).unwrap_err().is_gone());
    }

    #[test]
    fn another_process_with_the_same_number_gets_none() {
        let (mut child, key) = sleeper();
        let earlier = ProcKey { start: key.start - 1, ..key };
        assert!(send_signal(earlier, own_uid(), 9).unwrap_err().is_gone());
        assert_eq!(child.try_wait().unwrap(), None);
        send_signal(key, own_uid(), 9).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn neither_pid_1_nor_this_process_is_signalled() {
        for pid in [0, 1, std::process::id()] {
            let start = process::stat(pid).map_or(0, |stat| stat.key(pid).start);
            assert!(!send_signal(ProcKey { pid, start }, own_uid(), 15).unwrap_err().is_gone(), "{pid}");
        }
    }

    /// A shell that runs `script`, once it has reported that it is ready.
    fn shell(script: &str) -> (Child, BufReader<std::process::ChildStdout>, ProcKey) {
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(line(&mut out), "ready");
        let key = process::identify(child.id()).unwrap().key;
        (child, out, key)
    }

    fn line(out: &mut impl BufRead) -> String {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn sent(deliveries: &[SignalDelivery]) -> Vec<(u32, u8)> {
        deliveries.iter().map(|it| (it.process.pid, it.signal)).collect()
    }

    const USR1: u8 = 10;

    #[test]
    fn only_processes_that_catch_the_signal_get_it() {
        let (mut plain, one) = sleeper();
        let (mut catches, mut out, two) =
            shell("trap 'echo told; exit 3' USR1; echo ready; while :; do sleep 0.05; done");
        let (mut ignores, _out, three) = shell("trap '' USR1; echo ready; while :; do sleep 0.05; done");
        assert_eq!(sent(&announce_end(&[one, two, three], own_uid(), USR1)), [(two.pid, USR1)]);
        assert_eq!((line(&mut out).as_str(), catches.wait().unwrap().code()), ("told", Some(3)));
        assert_eq!((plain.try_wait().unwrap(), ignores.try_wait().unwrap()), (None, None));
        send_signal(one, own_uid(), 9).unwrap();
        send_signal(three, own_uid(), 9).unwrap();
        plain.wait().unwrap();
        ignores.wait().unwrap();
    }

    #[test]
    fn without_a_handler_the_top_process_gets_sigterm() {
        let (mut parent, mut out, top) = shell("sleep 60 & echo ready; echo $!; wait");
        let below = process::identify(line(&mut out).parse().unwrap()).unwrap().key;
        assert_eq!(sent(&announce_end(&[below, top], own_uid(), USR1)), [(top.pid, TERM)]);
        assert_eq!(parent.wait().unwrap().signal(), Some(15));
        assert!(process::is_running(below), "only the top process gets it");
        send_signal(below, own_uid(), 9).unwrap();
    }

    #[test]
    fn a_top_process_that_ignores_the_signal_is_left_alone() {
        let (mut child, _out, top) = shell("trap '' USR1; echo ready; while :; do sleep 0.05; done");
        assert_eq!(sent(&announce_end(&[top], own_uid(), USR1)), []);
        let gone = ProcKey { start: top.start + 1, ..top };
        assert_eq!(sent(&announce_end(&[gone], own_uid(), USR1)), []);
        assert_eq!(child.try_wait().unwrap(), None);
        send_signal(top, own_uid(), 9).unwrap();
        child.wait().unwrap();
    }

    /// A uid without a name, of which no test host has programs.
    const OTHER: u32 = 61_234;

    #[test]
    fn a_process_of_another_user_gets_no_signal() {
        if own_uid() != 0 {
            return eprintln!("skipped: only root can start programs of other users");
        }
        let mut child = Command::new("sleep").arg("60").uid(OTHER).spawn().unwrap();
        let key = process::identify(child.id()).unwrap().key;
        let refused = |uid| matches!(send_signal(key, uid, 9), Err(NotSignalled::OtherUser { uid: OTHER }));
        assert!(refused(0) && refused(OTHER + 1));
        assert_eq!(child.try_wait().unwrap(), None);
        send_signal(key, OTHER, 9).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_notice_reaches_only_processes_of_the_user_and_names_those_left_out() {
        if own_uid() != 0 {
            return eprintln!("skipped: only root can start programs of other users");
        }
        let script = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done";
        let start = |uid| {
            let mut child = Command::new("sh").args(["-c", script]).uid(uid).stdout(Stdio::piped()).spawn().unwrap();
            assert_eq!(line(&mut BufReader::new(child.stdout.take().unwrap())), "ready");
            let key = process::identify(child.id()).unwrap().key;
            (child, key)
        };
        let ((mut roots, one), (mut users, two)) = (start(0), start(OTHER));
        let deliveries = announce_end(&[one, two], OTHER, USR1);
        assert_eq!(sent(&deliveries), [(two.pid, USR1), (one.pid, USR1)]);
        assert!(deliveries[0].outcome.is_ok());
        assert!(matches!(deliveries[1].outcome, Err(NotSignalled::OtherUser { uid: 0 })));
        assert_eq!(users.wait().unwrap().code(), Some(3));
        assert_eq!(roots.try_wait().unwrap(), None);
        send_signal(one, 0, 9).unwrap();
        roots.wait().unwrap();
    }
}
