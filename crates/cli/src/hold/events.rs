//! Everything that can happen while a lease is awaited or held, as one stream of events.
//!
//! A thread turns signals into events, so that code that waits for the daemon or for a child has a single channel to
//! read. A signal that was ignored when the program started stays ignored (`nohup`, background jobs).

use crate::failure::Failure;
use rustix::process::{getpid, getsid};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGWINCH, SIGXCPU,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{fs, io, thread};
use sublet_wire::{Lease, LeaseState, exit};

/// Signals that are passed on to the command: all that a user may send to it. Signals about a fault of the wrapper
/// itself (SIGSEGV, SIGPIPE …) are not passed on.
const PASSED_ON: [i32; 15] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
    SIGXCPU, SIGPWR,
];
/// Sent when a power failure is near. `signal_hook` has no constant for it, because not every system has the signal.
const SIGPWR: i32 = 30;
/// The real-time signals, which have no fixed meaning. The C library reserves 32 and 33.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// One event.
#[derive(Debug)]
pub enum RunEvent {
    /// A signal came.
    Signal(Signal),
    /// The daemon's answer to a request.
    Answered(Box<Result<Lease, Failure>>),
    /// The present state of the lease, from the daemon.
    Told(Box<Lease>),
    /// The lease of a running command changed to this state.
    Moved(LeaseState),
    /// The daemon does not answer now; the sender keeps trying.
    Silent,
    /// The daemon refused to report the lease.
    Refused(Failure),
}

/// A signal, and whether the terminal's whole foreground process group got it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// It came from the kernel: Ctrl-C, a resized window, a terminal that hung up.
    pub from_terminal: bool,
}

impl Signal {
    /// Whether the command got it too. A terminal's hang-up, and the SIGCONT that goes with it, reach only the leader
    /// of the terminal's session. This process is that leader if the terminal was started to run it.
    pub fn reached_command(self) -> bool {
        self.from_terminal && !(matches!(self.number, SIGHUP | SIGCONT) && leads_session())
    }
}

fn leads_session() -> bool {
    getsid(None).is_ok_and(|session| session == getpid())
}

/// Starts to receive signals.
pub fn listen() -> Result<(Sender<RunEvent>, Receiver<RunEvent>), Failure> {
    let (sender, receiver) = channel();
    let ignored = ignored_signals();
    let wanted = PASSED_ON.into_iter().chain(REAL_TIME).filter(|n| !is_in(ignored, *n)).chain([SIGCHLD]);
    let signals = SignalsInfo::<WithOrigin>::new(wanted).map_err(cannot_listen)?;
    let to = sender.clone();
    let tell = move |mut signals: SignalsInfo<WithOrigin>| {
        for origin in signals.forever() {
            // No receiver is left: the program is about to exit.
            if to.send(RunEvent::Signal(Signal::from(origin))).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(move || tell(signals)).map_err(cannot_listen)?;
    Ok((sender, receiver))
}

fn cannot_listen(error: io::Error) -> Failure {
    Failure::new(exit::FAILURE, format!("signals cannot be listened to: {error}"))
}

impl From<Origin> for Signal {
    fn from(origin: Origin) -> Signal {
        Signal { number: origin.signal, from_terminal: matches!(origin.cause, Cause::Kernel) }
    }
}

/// The mask of the signals that this process ignores.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_ignored(&status).unwrap_or(0)
}

fn parse_ignored(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn is_in(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_seen() {
        let mask = parse_ignored("Name:\tx\nSigIgn:\t0000000000001001\n").unwrap();
        assert!(is_in(mask, SIGHUP));
        assert!(!is_in(mask, SIGINT));
        assert_eq!(parse_ignored("Name:\tx\n"), None);
    }
}
