//! `sublet stop`: ends the programs of leases, and the leases.
//!
//! ```text
//!   SIGTERM, SIGCONT ──all ended──► the lease is given back
//!        │ grace                        ▲
//!        └──────► SIGKILL ──────────────┘
//! ```
//! The caller itself sends the signals, through pidfds. The kernel decides whether they may be sent; the daemon only
//! says which processes belong to the lease. They go to the processes on the lease, parked or not. They do not go to
//! this command, to its ancestors, or to the shell that a user types into and that has the lease.
//!
//! Absent on purpose: any signal sent by the daemon.

use crate::args::{Globals, LeaseName};
use crate::client::{CallError, Client, RESTART, peer};
use crate::completion;
use crate::failure::Failure;
use crate::hold::ask::parse_span;
use crate::hold::outer;
use crate::output::{self, say};
use crate::processes::{self, PidfdProcess};
use crate::table::plain;
use crate::text;
use clap::Args;
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use sublet_wire::{Code, Lease, exit, span};

/// The time between two searches for processes that were started meanwhile.
const LOOK: Duration = Duration::from_millis(200);
/// The time limit for a killed process to disappear. It takes milliseconds, unless it is in an uninterruptible system
/// call.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// End programs and their leases, or leave the queue
///
/// Programs get SIGTERM, and SIGKILL after `--grace`
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct StopArgs {
    /// Their ids, such as L7, or their names
    #[arg(value_name = "LEASE", required_unless_present_any = ["name", "mine"], add = completion::any_lease())]
    leases: Vec<LeaseName>,
    /// All of your leases that have this name
    #[arg(long, value_name = "TEXT", conflicts_with = "leases", add = completion::lease_name())]
    name: Option<String>,
    /// All of your leases
    #[arg(long, conflicts_with_all = ["leases", "name"])]
    mine: bool,
    /// How long programs have to end after SIGTERM; then they get SIGKILL
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_grace)]
    grace: u64,
}

const AFTER_HELP: &str = "\
The signals are sent with your own rights, to the processes of the lease and to
no other. A program that is parked is ended too. The shell that has a lease by
`eval \"$(sublet lease)\"` goes on, and what was started from it is ended.

To give a lease back and let its programs go on: `sublet release`.

Exit codes: 0 all have ended; 1 a process or a lease is left; 64 usage; 69 no
daemon; 77 not allowed.

Examples:
  sublet stop L7
  sublet stop --name train --grace 2m    with two minutes to save its work
  sublet stop --mine                     everything of yours";

fn parse_grace(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_span(text) }
}

/// Stops each lease; the first failure decides the exit code.
pub fn run(globals: &Globals, args: &StopArgs) -> Result<u8, Failure> {
    globals
        .must_be_local("programs are ended where they run", "`sublet release` gives a lease of another host back")?;
    let client = Client::open(globals)?;
    let mut code = exit::OK;
    let mut fails = |failure: Failure| {
        failure.tell(globals.json);
        code = if code == exit::OK { failure.exit() } else { code };
    };
    let mut ids = BTreeSet::new();
    match (&args.name, args.mine) {
        (Some(name), _) => ids.extend(client.leases_called(name)?.into_iter().map(|lease| lease.id)),
        (None, true) => ids.extend(client.leases(false)?.leases.into_iter().map(|lease| lease.id)),
        (None, false) => {
            for typed in &args.leases {
                match client.id_of(typed) {
                    Ok(id) => ids.extend([id]),
                    Err(failure) => fails(failure),
                }
            }
        }
    }
    if args.mine && ids.is_empty() && !globals.json {
        say!("no leases");
    }
    let begun: Vec<Stop<'_>> = ids.iter().filter_map(|id| Stop::begin(&client, id).map_err(&mut fails).ok()).collect();
    let until = Instant::now() + Duration::from_secs(args.grace);
    let mut over = Vec::new();
    for stop in begun {
        let id = stop.id.clone();
        match stop.finish(until, Duration::from_secs(args.grace)) {
            Ok(stopped) => {
                stopped.tell(globals)?;
                over.push(id);
            }
            Err(failure) => fails(failure.about(&id)),
        }
    }
    if !globals.json {
        outer::hint_at_variables(&over);
    }
    Ok(code)
}

/// A lease with programs that are being ended.
struct Stop<'a> {
    client: &'a Client,
    id: String,
    lease: Lease,
    /// This process and its ancestors.
    own: BTreeSet<u32>,
    /// Processes that got SIGTERM and have not ended.
    told: Vec<PidfdProcess>,
    /// The pids of all processes that got a signal.
    known: BTreeSet<u32>,
    /// Shells that continue.
    spared: BTreeSet<u32>,
    killed: u64,
}

/// A lease that was stopped.
struct Stopped {
    lease: Lease,
    ended: u64,
    killed: u64,
    grace: Duration,
    spared: BTreeSet<u32>,
}

impl Stop<'_> {
    /// Sends SIGTERM to every process of a lease.
    fn begin<'a>(client: &'a Client, id: &str) -> Result<Stop<'a>, Failure> {
        let lease = client.lease(id, RESTART).map_err(|error| client.failure(error).about(id))?;
        let daemon = client.socket().and_then(peer).map(|(pid, _)| pid);
        if !lease.pids.is_empty() && !daemon.is_some_and(processes::counts_as_here) {
            let what = format!("{id}: the daemon sees other process ids than this shell, as in another PID namespace");
            return Err(Failure::new(exit::FAILURE, what).hint("stop it on the host itself, outside of containers"));
        }
        let (own, known, spared) = (processes::own_line(), BTreeSet::new(), BTreeSet::new());
        let mut stop = Stop { client, id: id.to_owned(), lease, own, told: Vec::new(), known, spared, killed: 0 };
        stop.tell_new(Signal::TERM).map_err(|failure| failure.about(id))?;
        Ok(stop)
    }

    /// The processes of the lease: those that the daemon knows, and those that were started with its variables.
    fn members(&self) -> BTreeSet<u32> {
        let mut members: BTreeSet<u32> = self.lease.pids.iter().copied().collect();
        let uid = self.lease.tenant.strip_prefix("uid:").and_then(|uid| uid.parse().ok());
        if let (Some(fence), Some(uid)) = (self.lease.fence, uid) {
            let carried = [format!("SUBLET_LEASE={}", self.id), format!("SUBLET_FENCE={fence}")];
            let is_member = |pid: &u32| processes::runs_as(*pid, uid) && processes::carries(*pid, &carried);
            members.extend(processes::all().filter(is_member));
        }
        members.retain(|pid| !self.own.contains(pid));
        members
    }

    /// Sends a signal to the processes of the lease that have not got one.
    fn tell_new(&mut self, signal: Signal) -> Result<(), Failure> {
        let new: Vec<PidfdProcess> =
            self.members().into_iter().filter(|pid| !self.known.contains(pid)).filter_map(PidfdProcess::open).collect();
        if new.is_empty() {
            return Ok(());
        }
        // A process that was opened between two readings, and is in both with the same number, belongs to the lease.
        self.refresh()?;
        let members = self.members();
        let wrappers: BTreeSet<u32> = members.iter().copied().filter(|pid| processes::is_wrapper(*pid)).collect();
        let mut refused = Vec::new();
        for process in new.into_iter().filter(|process| members.contains(&process.pid())) {
            let pid = process.pid();
            if processes::is_terminal_shell(pid) && !processes::carries(pid, &[format!("SUBLET_LEASE={}", self.id)]) {
                self.spared.insert(pid);
                continue;
            }
            let parent = processes::ProcessStat::read(pid).map_or(0, |facts| facts.parent);
            // The wrapper passes the signal on to its command. A program may take a second SIGTERM as an order to stop
            // without cleaning up.
            let signalled = match signal == Signal::KILL || !wrappers.contains(&parent) {
                // A stopped process receives the signal only when it continues.
                true => process.signal(signal).and_then(|()| process.signal(Signal::CONT)),
                false => process.signal(Signal::CONT),
            };
            match signalled {
                Ok(()) => {}
                // For example a process in a container. It may end with the command that started it.
                Err(Errno::PERM) => refused.push(pid),
                Err(error) => return Err(not_sent(pid, error)),
            }
            self.known.insert(pid);
            self.told.push(process);
        }
        match refused.first() {
            Some(pid) if refused.len() == self.told.len() => Err(not_sent(*pid, Errno::PERM)),
            _ => Ok(()),
        }
    }

    fn refresh(&mut self) -> Result<(), Failure> {
        let now = self.client.lease(&self.id, RESTART).map_err(|error| self.client.failure(error))?;
        // The fence is needed after the lease has ended, too.
        self.lease = Lease { fence: now.fence.or(self.lease.fence), ..now };
        Ok(())
    }

    /// Waits until `until` for the processes to end, kills the rest, and gives the lease back.
    fn finish(mut self, until: Instant, grace: Duration) -> Result<Stopped, Failure> {
        self.await_all(until, Signal::TERM)?;
        if !self.told.is_empty() {
            self.kill()?;
        }
        let ended = self.known.len() as u64;
        let lease = self.give_back()?;
        Ok(Stopped { lease, ended, killed: self.killed, grace, spared: self.spared })
    }

    /// Waits until no process is left, or until `until`. Processes that are started meanwhile get the signal too.
    fn await_all(&mut self, until: Instant, signal: Signal) -> Result<(), Failure> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            processes::await_end(&mut self.told, left.min(LOOK));
            if self.told.is_empty() {
                self.refresh()?;
                self.tell_new(signal)?;
            }
            if self.told.is_empty() || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn kill(&mut self) -> Result<(), Failure> {
        // A wrapper ends after its command, and reports how the command ended.
        let is_command = |process: &&PidfdProcess| !processes::is_wrapper(process.pid());
        for process in self.told.iter().filter(is_command) {
            process.signal(Signal::KILL).map_err(|error| not_sent(process.pid(), error))?;
            self.killed += 1;
        }
        self.await_all(Instant::now() + KILLED_WITHIN, Signal::KILL)?;
        for process in &self.told {
            process.signal(Signal::KILL).map_err(|error| not_sent(process.pid(), error))?;
        }
        self.await_all(Instant::now() + LOOK, Signal::KILL)?;
        match self.told.first() {
            None => Ok(()),
            Some(process) => {
                let more = self.told.len() - 1;
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Err(Failure::new(exit::FAILURE, format!("process {}{more} did not end", process.pid()))
                    .hint("it is in a system call that cannot be interrupted (state D); the lease was not released"))
            }
        }
    }

    fn give_back(&self) -> Result<Lease, Failure> {
        match self.client.release(&self.id, None, RESTART) {
            Ok(Some(lease)) => Ok(lease),
            Ok(None) => Ok(self.lease.clone()),
            // The lease ended with its last process.
            Err(CallError::Refused(problem)) if problem.code == Code::LeaseEnded => {
                self.client.lease(&self.id, RESTART).map_err(|error| self.client.failure(error))
            }
            Err(error) => Err(self.client.failure(error)),
        }
    }
}

fn not_sent(pid: u32, error: Errno) -> Failure {
    match error {
        Errno::PERM => Failure::new(exit::DENIED, format!("you may not signal process {pid}"))
            .hint("it runs as another user: stop it as that user, or as root"),
        error => Failure::new(exit::FAILURE, format!("process {pid} cannot be signalled: {error}")),
    }
}

impl Stopped {
    fn tell(&self, globals: &Globals) -> Result<(), Failure> {
        if globals.json {
            return output::json_line(&self.lease);
        }
        let id = &self.lease.id;
        output::print(&match (self.ended, self.killed) {
            (0, _) => format!("{id} stopped\n"),
            (ended, 0) => format!("{id} stopped: {}\n", were_ended(ended)),
            (ended, killed) => {
                let grace = span::show(self.grace.as_secs_f64());
                format!("{id} stopped: {}, {killed} by SIGKILL after {grace}\n", were_ended(ended))
            }
        })?;
        for pid in &self.spared {
            say!("the shell that had {} goes on (process {pid})", plain(id));
        }
        Ok(())
    }
}

fn were_ended(count: u64) -> String {
    format!("{} ended", text::count_of(count, "process", "processes"))
}
