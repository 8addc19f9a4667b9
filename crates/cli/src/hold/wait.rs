//! From a request to a granted lease: request it, wait in the queue, print the progress.
//!
//! ```text
//! ask ──201──► granted
//!  │ └─202──► waiting ──poll──► granted
//!  │             │ └──────────► over: 124 (wait over) or 75
//!  └─Ctrl-C──────┴────────────► given up: 130
//! ```
//! The queue position survives a restart of the daemon. So a poll that no daemon answers is tried again until the user
//! presses Ctrl-C.
//!
//! The request is sent on its own thread, so that the user can give up while no daemon answers. A user that gives up
//! before the answer has no lease id to give back. But a request that names a waiting process ends with that process.
//! For a request that names none, the answer is awaited, and the lease is given back.

use super::events::{RunEvent, Signal};
use super::line::{self, ProgressLine, ProgressText};
use crate::client::{CallError, Client, PollUntil};
use crate::failure::{Failure, tell_hint};
use crate::output::say;
use crate::table::plain;
use crate::text;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;
use sublet_wire::{EndReason, Lease, LeaseRequest, LeaseState, exit, size, span};

/// The longest age of the progress line on a terminal.
const WATCHED_POLL: Duration = Duration::from_secs(2);
/// The longest age of the progress line in a log.
const UNWATCHED_POLL: Duration = Duration::from_secs(15);
/// Between two tries while no daemon answers.
const SILENT_PAUSE: Duration = Duration::from_millis(500);
/// The time limit for leaving the queue: a user that gives up should not have to wait for a daemon.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(2);

/// How a wait ended.
#[derive(Debug)]
pub enum WaitOutcome {
    /// The lease is active.
    Granted(Box<Lease>),
    /// A signal ended the wait, and the queue position is given up.
    GivenUp(Signal),
}

/// Requests a lease, and waits until it is active. The note is printed once if the request has to wait.
pub fn obtain(
    client: &Client,
    ask: &LeaseRequest,
    note: Option<&str>,
    sender: &Sender<RunEvent>,
    receiver: &Receiver<RunEvent>,
) -> Result<WaitOutcome, Failure> {
    let lease = match answer(client, ask, sender, receiver)? {
        RequestAnswer::Given(lease) => *lease,
        RequestAnswer::GivenUp(signal) => return Ok(WaitOutcome::GivenUp(signal)),
    };
    if lease.state != LeaseState::Waiting {
        let outcome = settled(lease)?;
        if let WaitOutcome::Granted(granted) = &outcome {
            say_granted_at_once(granted);
        }
        return Ok(outcome);
    }
    if let Some(note) = note {
        say!("{note}");
    }
    let mut line = ProgressLine::new();
    show(&mut line, &lease);
    poll(client, &lease.id, line.is_watched(), sender);
    let outcome = follow(client, &lease.id, &mut line, receiver);
    line.clear();
    if let Ok(WaitOutcome::Granted(granted)) = &outcome {
        say_granted(granted);
    }
    outcome
}

/// The answer to a request.
enum RequestAnswer {
    Given(Box<Lease>),
    GivenUp(Signal),
}

/// Sends the request, and handles events until it is answered.
fn answer(
    client: &Client,
    ask: &LeaseRequest,
    sender: &Sender<RunEvent>,
    receiver: &Receiver<RunEvent>,
) -> Result<RequestAnswer, Failure> {
    let (asker, wish, to) = (client.clone(), ask.clone(), sender.clone());
    // The send fails if no receiver is left: the program is about to exit then.
    thread::spawn(move || drop(to.send(RunEvent::Answered(Box::new(asker.ask(&wish))))));
    let mut given_up = None;
    for event in receiver {
        match event {
            RunEvent::Answered(answer) => {
                return match (given_up, (*answer).map(Box::new)) {
                    (None, answer) => answer.map(RequestAnswer::Given),
                    (Some(signal), Ok(lease)) => {
                        give_up(client, &lease.id, signal).map(|_| RequestAnswer::GivenUp(signal))
                    }
                    (Some(signal), Err(_)) => Ok(RequestAnswer::GivenUp(signal)),
                };
            }
            RunEvent::Signal(signal) if ends_the_wait(signal) && ask.pid.is_none() && given_up.is_none() => {
                say!("no daemon has answered yet; the request is withdrawn as soon as one does");
                tell_hint("press Ctrl-C again to leave without waiting for that");
                given_up = Some(signal);
            }
            RunEvent::Signal(signal) if ends_the_wait(signal) => {
                let ends = if ask.pid.is_some() { "with its process" } else { "unused, after a while" };
                say!("no daemon has answered yet; the request ends {ends}");
                return Ok(RequestAnswer::GivenUp(signal));
            }
            RunEvent::Signal(Signal { number: SIGTSTP, .. }) => super::child::stop_oneself(),
            // These are about an earlier lease.
            RunEvent::Signal(_) | RunEvent::Told(_) | RunEvent::Moved(_) | RunEvent::Silent | RunEvent::Refused(_) => {}
        }
    }
    Err(Failure::new(exit::FAILURE, "the request was not answered: its connection to the daemon is gone"))
}

/// Whether a signal ends the wait: every signal that would end a program without a handler, except those that are meant
/// for the command and may come too early.
fn ends_the_wait(signal: Signal) -> bool {
    !matches!(signal.number, SIGUSR1 | SIGUSR2 | SIGWINCH | SIGTSTP | SIGCONT | SIGCHLD)
}

/// Handles events until the wait is over.
fn follow(
    client: &Client,
    id: &str,
    line: &mut ProgressLine,
    receiver: &Receiver<RunEvent>,
) -> Result<WaitOutcome, Failure> {
    for event in receiver {
        match event {
            // This is about an earlier lease.
            RunEvent::Told(lease) if lease.id != id => {}
            RunEvent::Told(lease) if lease.state == LeaseState::Waiting => show(line, &lease),
            RunEvent::Told(lease) => return settled(*lease),
            RunEvent::Silent => {
                line.set(ProgressText::plainly(format!("{id} waits; no daemon answers now, still trying")))
            }
            RunEvent::Refused(failure) => return Err(failure),
            RunEvent::Signal(signal) if ends_the_wait(signal) => {
                line.clear();
                return give_up(client, id, signal);
            }
            RunEvent::Signal(Signal { number: SIGTSTP, .. }) => super::child::stop_oneself(),
            RunEvent::Signal(_) | RunEvent::Moved(_) | RunEvent::Answered(_) => {}
        }
    }
    Err(Failure::new(exit::FAILURE, "the wait is over: the connection to the daemon is gone"))
}

fn give_up(client: &Client, id: &str, signal: Signal) -> Result<WaitOutcome, Failure> {
    match client.release(id, None, GIVE_UP_WITHIN) {
        Ok(_) => say!("{id} left the queue"),
        Err(error) if error.may_pass() || matches!(error, CallError::Gone(_)) => {
            say!("no daemon answers; {id} leaves the queue when the daemon sees that this process ended");
        }
        Err(error) => client.failure(error).tell(false),
    }
    Ok(WaitOutcome::GivenUp(signal))
}

/// The outcome for a lease that does not wait any more.
fn settled(lease: Lease) -> Result<WaitOutcome, Failure> {
    let code = match (lease.state, &lease.ended) {
        (LeaseState::Active, _) => return Ok(WaitOutcome::Granted(Box::new(lease))),
        (_, Some(ended)) if ended.reason == EndReason::WaitOver => exit::WAIT_OVER,
        _ => exit::LEASE_LOST,
    };
    Err(Failure::new(code, sentence(&lease)))
}

/// How the lease ended, in the daemon's words, which name the lease.
fn sentence(lease: &Lease) -> String {
    lease.ended.as_ref().map_or_else(|| format!("lease {} ended", lease.id), |ended| plain(&ended.sentence))
}

fn show(line: &mut ProgressLine, lease: &Lease) {
    line.set(line::waiting(lease));
}

/// Prints what was granted without a wait.
pub fn say_granted_at_once(lease: &Lease) {
    say!("{}: {}", lease.id, text::granted(lease));
}

fn say_granted(lease: &Lease) {
    let waited = lease.granted_unix_s.map_or(0.0, |granted| granted - lease.requested_unix_s);
    say!(
        "{} starts: {} on {}, after {}",
        lease.id,
        text::bytes(lease.vram_bytes),
        text::gpus(&lease.gpu_indices),
        span::show(waited)
    );
}

/// Polls on its own thread until the lease does not wait any more.
fn poll(client: &Client, id: &str, watched: bool, sender: &Sender<RunEvent>) {
    let (client, id, sender) = (client.clone(), id.to_owned(), sender.clone());
    let wait = if watched { WATCHED_POLL } else { UNWATCHED_POLL };
    thread::spawn(move || {
        loop {
            let event = match client.poll(&id, wait, PollUntil::Granted) {
                Ok(lease) => RunEvent::Told(Box::new(lease)),
                Err(error) if error.may_pass() => {
                    thread::sleep(SILENT_PAUSE);
                    RunEvent::Silent
                }
                Err(error) => RunEvent::Refused(client.failure(error)),
            };
            let last = match &event {
                RunEvent::Told(lease) => lease.state != LeaseState::Waiting,
                event => matches!(event, RunEvent::Refused(_)),
            };
            if sender.send(event).is_err() || last {
                return;
            }
        }
    });
}

/// Prints that the lease of a running command has ended, and what that means.
pub fn say_lost(lease: &Lease) {
    say!("{}", sentence(lease));
    let is_ended_too = |reason| matches!(reason, EndReason::Preempted | EndReason::Overuse);
    if lease.ended.as_ref().is_none_or(|ended| !is_ended_too(ended.reason)) {
        tell_hint("the command goes on, but its VRAM may be leased to others");
    }
}

/// Prints when and why the lease of a running command will end.
pub fn say_ends_soon(lease: &Lease) {
    if let Some(soon) = &lease.ends_soon {
        say!("lease {} ends in {}: {}", lease.id, span::show(soon.in_s), why_soon(soon.reason));
    }
}

/// Prints that a command uses more memory on a GPU than its lease is for, and what to do.
pub fn say_over(lease: &Lease) {
    if let Some((said, hint)) = over(lease) {
        say!("{said}");
        tell_hint(&hint);
    }
}

fn over(lease: &Lease) -> Option<(String, String)> {
    let (id, over) = (&lease.id, lease.overuse.as_ref()?);
    let (seen, leased) = (size::show(over.seen_bytes), text::bytes(lease.vram_bytes));
    let ends = over.ends_in_s.map_or_else(String::new, |s| match s > 0.0 {
        true => format!(", or ended in {} where it cannot be", span::show(s)),
        false => ", or ended where it cannot be".to_owned(),
    });
    let said = format!(
        "{id} has {seen} on a GPU, and its lease is for {leased}: if another request waits, it is parked{ends}"
    );
    let hint = match over.offer_bytes {
        Some(offer) => format!("`sublet accept {id}` makes the lease {}", size::show(offer)),
        None => "there is no room, or no quota, for a larger lease: let it use less".to_owned(),
    };
    Some((said, hint))
}

fn why_soon(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Overuse => "its program uses more VRAM than the lease is for, and another request needs it",
        EndReason::Preempted => {
            "another request needs its GPUs, and it may be ended for that (`--preempt end`, `--tier spot`)"
        }
        EndReason::TermOver => "its term is over then",
        EndReason::Expired => "it is not used, and another request waits",
        EndReason::RenewalCap => "it reached the longest time that a lease may keep its GPUs while others wait",
        EndReason::Revoked => "an operator ends it",
        EndReason::Budget => "the GPU time of the day is used up",
        EndReason::ParkExpired => "it was parked for the longest time that is allowed",
        EndReason::GpuLost => "its GPU is lost",
        EndReason::RestoreFailed => "the driver could not restore its VRAM",
        EndReason::DiedParking => "its program died while it was being parked",
        EndReason::ParkFailed => "it could not be parked",
        EndReason::Released | EndReason::HolderExited | EndReason::HostRebooted | EndReason::WaitOver => "it is over",
    }
}
