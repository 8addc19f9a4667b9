//! `sublet run`: a command on a lease, from the wish to its exit code.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::{AskArgs, typed_size};
use crate::hold::child::{self, Started};
use crate::hold::environment;
use crate::hold::events::{self, Event, Signal};
use crate::hold::leftover;
use crate::hold::wait::{self, Outcome};
use crate::hold::watch::Watch;
use crate::hold::{shim, soft};
use clap::Args;
use signal_hook::consts::{SIGCHLD, SIGTSTP};
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use sublet_softgpu::NOTICE;
use sublet_wire::{Bind, Lease, exit, size};

/// Longer than a pipeline takes to come down after its first process.
const LEFTOVER_GRACE: Duration = Duration::from_millis(100);
/// A command that is over sooner needs no watch and no cgroup; moving into one can take 10 ms.
const SETTLE: Duration = Duration::from_millis(50);
/// A daemon that stays away longer sees by itself that the holder ended.
const RELEASE_WITHIN: Duration = Duration::from_secs(3);

/// Run a command on a GPU lease; waits in the queue if there is no room yet
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
The command finds its cards in CUDA_VISIBLE_DEVICES, and SUBLET_LEASE, SUBLET_EPOCH,
SUBLET_DEADLINE (Unix seconds) and SUBLET_SOCKET in its environment; on soft cards also their
libraries and SUBLET_SOFT_STATE. The lease ends with its last process.

Exit codes: the command's own, or 128+n if signal n ended it; 124 the wait was over; 75 no room
with --no-wait, or the lease was lost before the command started; 126 and 127 the command cannot
be run or was not found; 64 usage; 69 no daemon; 77 not allowed.

Examples:
  sublet run -- python train.py                 one whole card
  sublet run --vram 10G -- python train.py      10 GiB of a card
  sublet run --gpus 2 --time 4h -- torchrun …   two cards for four hours";

/// Runs it; the exit code is the command's.
pub fn run(globals: &Globals, args: &RunArgs) -> Result<u8, Failure> {
    globals.must_be_local(
        "a command runs where its card is",
        "run it on that host, where `sublet run` finds the socket",
    )?;
    child::find(&args.command[0])?;
    let client = Client::open(globals)?;
    let (sender, receiver) = events::listen()?;
    let ask = args.ask.ask(Some(std::process::id()));
    let lease = match wait::obtain(&client, &ask, &sender, &receiver)? {
        Outcome::Granted(lease) => *lease,
        Outcome::GivenUp(signal) => return Ok(by_signal(signal)),
    };
    let started = match start(&client, args, &lease) {
        Ok(started) => started,
        Err(failure) => {
            release(&client, &lease);
            return Err(failure);
        }
    };
    let mut watch = None;
    let end = supervise(started, &receiver, || {
        watch = Some(Watch::begin(&client, &lease, started.pid(), &sender));
    });
    let others = end.others && !leave_behind(started, &receiver);
    if let Some(watch) = watch {
        watch.end();
    }
    let last = if others { hand_over(&client, &lease) } else { end.lost.or_else(|| release(&client, &lease)) };
    if let Some(advice) = last.as_ref().and_then(|lease| advice(lease, args.ask.vram)) {
        eprintln!("{advice}");
    }
    Ok(end.code)
}

fn start(client: &Client, args: &RunArgs, lease: &Lease) -> Result<Started, Failure> {
    let before = environment::seen_before();
    let mut variables = environment::variables(lease, args.ask.visible, &client.variable(), before.as_deref())?;
    if let Some(soft) = soft::of_lease(client, lease)? {
        eprintln!("{NOTICE}");
        variables.extend(soft);
    }
    if !args.ask.no_shim {
        variables.extend(shim::variables(client));
    }
    Started::start(&args.command, &variables)
}

/// How the command ended.
struct End {
    code: u8,
    /// Other processes of it were still there.
    others: bool,
    /// The lease, if it ended first.
    lost: Option<Lease>,
}

/// Handles events until the command ends; says once that it is not a matter of an instant.
fn supervise(started: Started, receiver: &Receiver<Event>, mut settled: impl FnMut()) -> End {
    let mut lost = None;
    let mut settles = Some(Instant::now() + SETTLE);
    loop {
        let patience = settles.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match receiver.recv_timeout(patience) {
            Ok(Event::Signal(Signal { number: SIGCHLD, .. })) => {
                let reaped = started.reap();
                if let Some(code) = reaped.command {
                    return End { code, others: reaped.others, lost };
                }
            }
            Ok(Event::Signal(signal)) => pass_on(started, signal),
            Ok(Event::Told(lease)) => {
                wait::say_lost(&lease);
                lost = Some(*lease);
            }
            Ok(Event::Silent | Event::Refused(_)) => {}
            Err(RecvTimeoutError::Timeout) => {
                settles = None;
                settled();
            }
            // The sender's other end lives as long as this call; without it nothing is known.
            Err(RecvTimeoutError::Disconnected) => return End { code: exit::FAILURE, others: true, lost },
        }
    }
}

/// Whatever comes from the terminal reached the command by itself.
fn pass_on(started: Started, signal: Signal) {
    if !signal.from_terminal {
        started.signal(signal.number);
    }
    if signal.number == SIGTSTP {
        child::stop_oneself();
    }
}

/// Gives what is on its way out a moment. Whether all are gone.
fn leave_behind(started: Started, receiver: &Receiver<Event>) -> bool {
    let deadline = Instant::now() + LEFTOVER_GRACE;
    while let Ok(event) = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if matches!(event, Event::Signal(Signal { number: SIGCHLD, .. })) && !started.reap().others {
            return true;
        }
    }
    !started.reap().others
}

/// Leaves the lease to the processes that the command left behind.
fn hand_over(client: &Client, lease: &Lease) -> Option<Lease> {
    let left = leftover::children();
    for pid in &left {
        // It may be over by now, or belong to another user by setuid: then it is no holder.
        let _ = client.bind(&lease.id, &Bind { epoch: lease.epoch.unwrap_or(0), pid: *pid }, RELEASE_WITHIN);
    }
    let named: Vec<String> = left.iter().take(4).map(|pid| format!("{pid} ({})", leftover::name(*pid))).collect();
    let more = if left.len() > named.len() { ", …" } else { "" };
    eprintln!("{} goes on: the command ended, but left {}{more} running", lease.id, named.join(", "));
    tell_hint(&format!("the lease ends with them; to end it now: `sublet end {}`", lease.id));
    None
}

/// Gives the lease back. If nobody answers, the daemon sees the holder's end by itself.
fn release(client: &Client, lease: &Lease) -> Option<Lease> {
    client.release(&lease.id, lease.epoch, RELEASE_WITHIN).ok().flatten()
}

/// What to ask for next time: whoever took a whole card needed less of it, or whoever said how much
/// needed more.
fn advice(lease: &Lease, asked: Option<u64>) -> Option<String> {
    let (peak, had) = (lease.peak_bytes?, lease.vram_bytes?);
    let enough = suggestion(peak);
    match asked {
        None if enough < had && peak > 0 => {
            Some(format!("peak {}: try --vram {}", size::show(peak), typed_size(enough)))
        }
        Some(_) if peak > had => Some(format!(
            "peak {}, and {} were leased: ask for --vram {}, or it may not fit",
            size::show(peak),
            size::show(had),
            typed_size(enough)
        )),
        _ => None,
    }
}

/// A tenth more than the peak, rounded up to what people type.
fn suggestion(peak: u64) -> u64 {
    let wanted = peak + peak / 10;
    let step = if wanted < 4 << 30 { 256 << 20 } else { 1 << 30 };
    wanted.div_ceil(step) * step
}

/// The exit code of something that a signal ended.
pub fn by_signal(signal: Signal) -> u8 {
    exit::SIGNAL_BASE + u8::try_from(signal.number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asked_for_too_much_or_too_little_is_told() {
        let used = |peak: u64| Lease { peak_bytes: Some(peak << 30), ..crate::sample::lease() };
        let advice = |peak, asked: Option<u64>| advice(&used(peak), asked).unwrap_or_default();
        assert_eq!(advice(7, None), "peak 7 GiB: try --vram 8G");
        assert_eq!(advice(10, None), "", "there is no less to ask for");
        assert_eq!(advice(0, None), "");
        assert_eq!(advice(7, Some(10 << 30)), "", "it knew what it needs");
        assert_eq!(
            advice(20, Some(10 << 30)),
            "peak 20 GiB, and 10 GiB were leased: ask for --vram 22G, or it may not fit"
        );
    }

    #[test]
    fn advice_is_a_tenth_more_than_the_peak_in_round_numbers() {
        let advice = |peak| typed_size(suggestion(peak));
        assert_eq!(advice((78 << 30) / 10), "9G");
        assert_eq!(advice(600 << 20), "768M");
        assert_eq!(advice(3 << 30), "3584M");
        assert_eq!(advice(1), "256M");
        assert_eq!(advice(20 << 30), "22G");
    }

    #[test]
    fn a_signal_is_told_by_the_exit_code() {
        assert_eq!(by_signal(Signal { number: 2, from_terminal: true }), 130);
    }
}
