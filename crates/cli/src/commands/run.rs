//! `sublet run`: a command on a lease, from the request to its exit code.

use crate::args::Globals;
use crate::client::Client;
use crate::completion;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::{AskArgs, typed_size};
use crate::hold::child::{self, Started};
use crate::hold::environment;
use crate::hold::events::{self, RunEvent, Signal};
use crate::hold::leftover;
use crate::hold::outer::{self, EnvLease, NewLease, Start};
use crate::hold::stuck::Stuck;
use crate::hold::visible::Visible;
use crate::hold::wait::{self, WaitOutcome};
use crate::hold::watch::CommandWatch;
use crate::hold::{shim, soft};
use crate::output::say;
use clap::Args;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use sublet_wire::{BindRequest, EndReason, Lease, LeaseRequest, exit, size};

/// More time than a pipeline needs to end after its first process.
const LEFTOVER_GRACE: Duration = Duration::from_millis(100);
/// A command that ends sooner needs no watch and no cgroup; moving into a cgroup can take 10 ms.
const SETTLE: Duration = Duration::from_millis(50);
/// The time limit for giving a lease back. If the daemon does not answer, it notices the end of the holder itself.
const RELEASE_WITHIN: Duration = Duration::from_secs(3);

/// Run a command on a GPU; wait in the queue if there is no room yet
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct RunArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", add = completion::command())]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
The command finds its GPUs in CUDA_VISIBLE_DEVICES, and SUBLET_LEASE,
SUBLET_FENCE, SUBLET_PROOF, SUBLET_DEADLINE (Unix seconds) and SUBLET_SOCKET in
its environment; on soft GPUs also their libraries and SUBLET_SOFT_STATE. The
lease ends with its last process.

Inside a lease, such as in a script that `sublet run` started, the command runs
on that lease: no second one is requested, and options for one are ignored.
`--new-lease` requests a separate lease.

Where CUDA_VISIBLE_DEVICES is set already (by Slurm, in a container), only those
GPUs are requested; set to nothing it means no GPU, and nothing is requested.

`docker run`, `podman run` and `nerdctl run` pass these on into their container
(but for paths), so that the container's processes are known to be on the lease.
SUBLET_PROOF proves that: a program that has it can have processes counted with
the lease, so keep it to yourself.

A hook (--on-park) runs here, as you; a command has SUBLET_LEASE and
SUBLET_HOOK (park or resume) in its environment. Its report frees nothing: the
GPUs are read, and a program that kept its VRAM is parked by the next method.
docs/recipes has hooks for known servers.

With --requeue a command that was ended for others (--preempt end, --tier spot)
is started again on a new lease, as in Slurm: each time, or at most N times,
with SUBLET_RESTARTS in its environment. A command that you stopped, or that
exited with 0 after its notice, is not started again.

Exit codes: the command's own (the last one's with --requeue), or 128+n if
signal n ended it; 124 the wait was over; 75 no room with --no-wait, or the
lease was lost before the command started; 126 and 127 the command cannot be run
or was not found; 64 usage; 69 no daemon; 77 not allowed.

Examples:
  sublet run -- python train.py                 one whole GPU
  sublet run --vram 10G -- python train.py      10 GiB of a GPU
  sublet run --gpus 2 --time 4h -- torchrun …   two GPUs for four hours
  sublet run --preempt end --signal USR1@60 --requeue -- ./train.sh
  sublet run --on-park 'POST http://localhost:8000/sleep' \\
             --on-resume 'POST http://localhost:8000/wake_up' -- vllm serve …";

/// Runs the command and returns its exit code.
pub fn run(globals: &Globals, args: &RunArgs) -> Result<u8, Failure> {
    globals
        .must_be_local("a command runs where its GPU is", "run it on that host, where `sublet run` finds the socket")?;
    args.ask.check()?;
    child::find(&args.command[0])?;
    let (client, note) = match begin(globals, args)? {
        RunPlace::Asks(client, note) => (client, note),
        RunPlace::OnOuter => return Err(child::replace(&args.command, &environment::inherited())),
    };
    let visible = Visible::here()?;
    let on = visible.narrow(args.ask.on.clone(), || client.get("/v1/gpus"))?;
    let ask = LeaseRequest { on, ..args.ask.ask(Some(std::process::id())) };
    let (sender, receiver) = events::listen()?;
    let mut restarts = 0;
    loop {
        let outcome = wait::obtain(&client, &ask, note.as_deref(), &sender, &receiver)
            .map_err(|failure| visible.explain(failure))?;
        let lease = match outcome {
            WaitOutcome::Granted(lease) => *lease,
            WaitOutcome::GivenUp(signal) => return Ok(by_signal(signal)),
        };
        let turn = LeaseRun { client: &client, args, lease: &lease, visible: &visible, restarts };
        let (code, preempted) = turn.run(&sender, &receiver)?;
        if !preempted || restarts == args.ask.requeue.unwrap_or(0) {
            return Ok(code);
        }
        restarts += 1;
        say!("{} was preempted: requesting a new lease and starting the command again (restart {restarts})", lease.id);
    }
}

/// Where a command runs.
enum RunPlace {
    /// On a lease requested from this daemon; the text is printed if the request has to wait.
    Asks(Client, Option<String>),
    /// On the lease that this process already has.
    OnOuter,
}

fn begin(globals: &Globals, args: &RunArgs) -> Result<RunPlace, Failure> {
    let wanted = args.ask.wanted();
    let client = match (Client::open(globals), EnvLease::here(), wanted) {
        (Err(failure), Some(outer), NewLease::IfNone) if failure.exit() == exit::NO_DAEMON => {
            outer::say_unchecked(outer.id());
            return Ok(RunPlace::OnOuter);
        }
        (client, ..) => client?,
    };
    Ok(match Start::find(&client, wanted) {
        Start::New { note, .. } => RunPlace::Asks(client, note),
        Start::OnOuter(lease) => {
            outer::say_runs_on(&lease, &args.ask.words());
            RunPlace::OnOuter
        }
        Start::Unchecked(id) => {
            outer::say_unchecked(&id);
            RunPlace::OnOuter
        }
    })
}

/// One run of the command on one lease.
struct LeaseRun<'a> {
    client: &'a Client,
    args: &'a RunArgs,
    lease: &'a Lease,
    visible: &'a Visible,
    /// The number of earlier starts.
    restarts: u32,
}

impl LeaseRun<'_> {
    /// Runs the command to its end. Returns its exit code, and whether it was preempted.
    fn run(&self, sender: &Sender<RunEvent>, receiver: &Receiver<RunEvent>) -> Result<(u8, bool), Failure> {
        let (client, lease, ask) = (self.client, self.lease, &self.args.ask);
        let started = self.start().inspect_err(|_| drop(release(client, lease)))?;
        let mut watch = None;
        let mut end = supervise(client, started, lease, receiver, || {
            watch = Some(CommandWatch::begin(client, lease, started.pid(), ask.hooks(), sender));
        });
        if let Some(watch) = &watch {
            watch.stop_hooks();
        }
        let others = end.others && !leave_behind(started, receiver);
        if let Some(watch) = watch {
            watch.end();
        }
        let preempted = ask.requeue.is_some() && self.was_preempted(&mut end);
        let last = match others && !preempted {
            true => hand_over(client, lease),
            false => end.lost.or_else(|| release(client, lease)),
        };
        if let Some(advice) = last.as_ref().and_then(|lease| advice(lease, ask.vram)) {
            say!("{advice}");
        }
        Ok((end.code, preempted))
    }

    fn start(&self) -> Result<Started, Failure> {
        let (client, lease, ask) = (self.client, self.lease, &self.args.ask);
        let mut variables = environment::variables(lease, ask.visible, &client.variable(), self.visible)?;
        if let Some(soft) = soft::of_lease(client, lease)? {
            variables.extend(soft);
        }
        if !ask.no_shim {
            variables.extend(shim::variables(client));
        }
        if ask.requeue.is_some() {
            variables.push(("SUBLET_RESTARTS", self.restarts.to_string()));
        }
        Started::start(&self.args.command, &variables)
    }

    /// Whether the command was preempted and shall run again. It may have ended before the end of its lease was
    /// reported, so the daemon is asked.
    fn was_preempted(&self, end: &mut CommandEnd) -> bool {
        if end.lost.is_none() {
            let now = self.client.lease(&self.lease.id, RELEASE_WITHIN).ok();
            end.lost = now.filter(|lease| lease.ended.is_some() || lease.ends_soon.is_some());
        }
        let again = end.lost.as_ref().is_some_and(|lease| goes_again(lease, end.code, end.stopped));
        // A lease that only ends soon has not ended, and is still given back.
        end.lost.take_if(|lease| lease.ended.is_none());
        again
    }
}

/// Whether a command is started again, by the last state of its lease. It is if it was preempted, or if it failed after
/// a notice of preemption. It is not if the wrapper was told to stop.
fn goes_again(lease: &Lease, code: u8, stopped: bool) -> bool {
    let ended = lease.ended.as_ref().is_some_and(|ended| ended.reason == EndReason::Preempted);
    let warned = lease.ends_soon.as_ref().is_some_and(|soon| soon.reason == EndReason::Preempted);
    !stopped && (ended || (lease.ended.is_none() && warned && code != exit::OK))
}

/// How the command ended.
struct CommandEnd {
    code: u8,
    /// Other processes of the command were still running.
    others: bool,
    /// The lease, if it ended before the command.
    lost: Option<Lease>,
    /// The wrapper got SIGHUP, SIGINT, SIGQUIT or SIGTERM.
    stopped: bool,
}

/// Handles events until the command ends. Calls `settled` once if the command runs longer than `SETTLE`.
fn supervise(
    client: &Client,
    started: Started,
    lease: &Lease,
    receiver: &Receiver<RunEvent>,
    mut settled: impl FnMut(),
) -> CommandEnd {
    let (mut lost, mut stopped) = (None, false);
    let mut settles = Some(Instant::now() + SETTLE);
    let mut stuck = Stuck::default();
    loop {
        let next = settles.into_iter().chain(stuck.look_at()).min();
        let patience = next.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match receiver.recv_timeout(patience) {
            Ok(RunEvent::Signal(Signal { number: SIGCHLD, .. })) => {
                let reaped = started.reap();
                if let Some(code) = reaped.command {
                    return CommandEnd { code, others: reaped.others, lost, stopped };
                }
            }
            Ok(RunEvent::Signal(signal)) => {
                stopped |= matches!(signal.number, SIGHUP | SIGINT | SIGQUIT | SIGTERM);
                if signal.number == SIGTERM {
                    stuck.told_to_end();
                }
                pass_on(started, signal);
            }
            Ok(RunEvent::Told(told)) if told.id == lease.id && told.ended.is_some() => {
                wait::say_lost(&told);
                lost = Some(*told);
            }
            Ok(RunEvent::Told(told)) if told.id == lease.id && told.ends_soon.is_some() => wait::say_ends_soon(&told),
            Ok(RunEvent::Told(told)) if told.id == lease.id => wait::say_over(&told),
            Ok(RunEvent::Moved(state)) => stuck.moved(state),
            // These are about an earlier lease of this command.
            Ok(RunEvent::Told(_) | RunEvent::Silent | RunEvent::Refused(_) | RunEvent::Answered(_)) => {}
            Err(RecvTimeoutError::Timeout) => {
                if settles.take_if(|at| *at <= Instant::now()).is_some() {
                    settled();
                }
                stuck.look(client, &lease.id, started);
            }
            // The sender lives as long as this call, so this does not happen; the state of the command is unknown then.
            Err(RecvTimeoutError::Disconnected) => {
                return CommandEnd { code: exit::FAILURE, others: true, lost, stopped };
            }
        }
    }
}

/// Passes a signal on if the command did not get it directly.
pub fn pass_on(started: Started, signal: Signal) {
    if !signal.reached_command() {
        started.signal(signal.number);
    }
    if signal.number == SIGTSTP {
        child::stop_oneself();
    }
}

/// Gives processes that are about to end `LEFTOVER_GRACE` to do so. Returns whether all have ended.
fn leave_behind(started: Started, receiver: &Receiver<RunEvent>) -> bool {
    let deadline = Instant::now() + LEFTOVER_GRACE;
    while let Ok(event) = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if matches!(event, RunEvent::Signal(Signal { number: SIGCHLD, .. })) && !started.reap().others {
            return true;
        }
    }
    !started.reap().others
}

/// Leaves the lease to the processes that the command left behind.
fn hand_over(client: &Client, lease: &Lease) -> Option<Lease> {
    let (left, deadline) = (leftover::children(), Instant::now() + RELEASE_WITHIN);
    for pid in &left {
        let patience = deadline.saturating_duration_since(Instant::now());
        // The process may have ended, or run as another user by setuid: it is no holder then.
        let _ = client.bind(&lease.id, &BindRequest { fence: lease.fence.unwrap_or(0), pid: (*pid).into() }, patience);
    }
    let named: Vec<String> = left.iter().take(4).map(|pid| format!("{pid} ({})", leftover::name(*pid))).collect();
    let more = if left.len() > named.len() { ", …" } else { "" };
    say!("{} goes on: the command ended, but left {}{more} running", lease.id, named.join(", "));
    tell_hint(&format!("the lease ends with them; to end them now: `sublet stop {}`", lease.id));
    None
}

/// Gives the lease back. If the daemon does not answer, it notices the end of the holder itself.
fn release(client: &Client, lease: &Lease) -> Option<Lease> {
    client.release(&lease.id, lease.fence, RELEASE_WITHIN).ok().flatten()
}

/// A better `--vram` for the next run, if a whole GPU was leased and not needed, or the given size was far too large or
/// too small.
fn advice(lease: &Lease, asked: Option<u64>) -> Option<String> {
    let (peak, had) = (lease.peak_bytes?, lease.vram_bytes?);
    let enough = suggestion(peak);
    match asked {
        None if enough < had && peak > 0 => {
            Some(format!("peak {}: try --vram {}", size::show(peak), typed_size(enough)))
        }
        // Less than half was needed, and other leases could have had the rest.
        Some(_) if enough <= had / 2 && peak > 0 => {
            Some(format!("peak {} of {}: try --vram {}", size::show(peak), size::show(had), typed_size(enough)))
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

/// The peak plus a tenth, rounded up to a round number.
fn suggestion(peak: u64) -> u64 {
    let wanted = peak + peak / 10;
    let step = if wanted < 4 << 30 { 256 << 20 } else { 1 << 30 };
    wanted.div_ceil(step) * step
}

/// The exit code of a process that a signal ended.
pub fn by_signal(signal: Signal) -> u8 {
    exit::SIGNAL_BASE + u8::try_from(signal.number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_wire::{EndsSoon, LeaseEnd};

    #[test]
    fn whoever_asked_for_too_much_or_too_little_is_told() {
        let used = |peak: u64| Lease { peak_bytes: Some(peak << 30), ..crate::sample::lease() };
        let advice = |peak, asked: Option<u64>| advice(&used(peak), asked).unwrap_or_default();
        assert_eq!(advice(7, None), "peak 7 GiB: try --vram 8G");
        assert_eq!(advice(10, None), "", "there is no less to ask for");
        assert_eq!(advice(0, None), "");
        assert_eq!(advice(7, Some(10 << 30)), "", "it knew what it needs");
        assert_eq!(advice(4, Some(10 << 30)), "peak 4 GiB of 10 GiB: try --vram 5G");
        assert_eq!(advice(0, Some(10 << 30)), "");
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
    fn what_was_ended_for_others_is_started_again_and_nothing_else() {
        let ended = |reason| Lease {
            ended: Some(LeaseEnd { reason, sentence: String::new(), at_unix_s: 0.0 }),
            ..crate::sample::lease()
        };
        assert!(goes_again(&ended(EndReason::Preempted), 143, false));
        assert!(goes_again(&ended(EndReason::Preempted), 0, false), "its lease was over before it was");
        assert!(!goes_again(&ended(EndReason::Preempted), 143, true), "somebody pressed Ctrl-C");
        assert!(!goes_again(&ended(EndReason::TermOver), 143, false));
        assert!(!goes_again(&crate::sample::lease(), 1, false));
        let warned =
            |reason| Lease { ends_soon: Some(EndsSoon { reason, unix_s: 0.0, in_s: 30.0 }), ..crate::sample::lease() };
        assert!(goes_again(&warned(EndReason::Preempted), 1, false), "it left before it was made to");
        assert!(!goes_again(&warned(EndReason::Preempted), 0, false), "it was done");
        assert!(!goes_again(&warned(EndReason::TermOver), 1, false));
    }

    #[test]
    fn a_signal_is_told_by_the_exit_code() {
        assert_eq!(by_signal(Signal { number: 2, from_terminal: true }), 130);
    }
}
