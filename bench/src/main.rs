//! Measurements, as ratios in one run.
//!
//! Every figure is compared with something that bounds or rivals it (a FastAPI service, one
//! fdatasync, raw SQLite, gflow's command line), alternately, on the same machine and file system, so
//! that a slow or shared machine moves both sides. `all` runs every bench and, with `--out`, writes
//! a Markdown table and the raw numbers.
//!
//! A new bench is a file with `pub fn run(rig: &BenchRig) -> Result<BenchOutcome>` and a line in [`BENCHES`].
//!
//! Deliberately absent: a verdict. A missed target is shown, not turned into a failed exit; only a
//! bench that could not be run fails.

mod abuse;
mod audit;
mod checkpoint;
mod cli;
mod client;
mod disk;
mod figure;
mod gflow;
mod grant;
mod http;
mod idle;
mod large_host;
mod load;
mod loop_batches;
mod machine;
mod plan;
mod proc;
mod ptx;
mod queue;
mod raw_sqlite;
mod restart;
mod rig;
mod samples;
mod service;
mod sim;
mod soft;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use figure::{BenchOutcome, BenchReport};
use rig::BenchRig;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How a bench is run.
type BenchRun = fn(&BenchRig) -> Result<BenchOutcome>;

/// Every bench in the order `all` runs them.
const BENCHES: &[(&str, BenchRun)] = &[
    ("http", http::run),
    ("grant", grant::run),
    ("loop", loop_batches::run),
    ("queue", queue::run),
    ("fair", large_host::run),
    ("plan", plan::run),
    ("restart", restart::run),
    ("idle", idle::run),
    ("cli", cli::run),
    ("sim", sim::run),
    ("ptx", ptx::run),
    ("soft", soft::run),
    ("audit", audit::run),
    ("abuse", abuse::run),
    ("checkpoint", checkpoint::run),
];

/// Compares Sublet with its peers.
#[derive(Parser)]
#[command(name = "sublet-bench", version)]
struct BenchCommand {
    #[command(subcommand)]
    what: BenchChoice,
    #[command(flatten)]
    options: BenchOptions,
}

#[derive(Subcommand)]
enum BenchChoice {
    /// Every bench, one after the other.
    All,
    /// Durable request + release pairs over HTTP, compared with FastAPI + SQLite.
    Http,
    /// One unloaded grant, compared with one fdatasync.
    Grant,
    /// The loop without HTTP, compared with raw SQLite writing the same rows.
    Loop,
    /// The head of a million waiters, and what a request costs there.
    Queue,
    /// A large host, and the speed of a replay.
    Fair,
    /// Which of 1,000 holders are preempted for a waiter, compared with greedy and brute force.
    Plan,
    /// Events a second of the simulation with its checker on.
    Sim,
    /// kill -9 to first correct answer with many leases, compared with raw SQLite reading the rows.
    Restart,
    /// What an idle daemon costs.
    Idle,
    /// `sublet run` compared with the bare command; `sublet lease` compared with gflow's `gbatch`.
    Cli,
    /// Kernels of a training step on one core of the soft GPUs' processor.
    Ptx,
    /// What calls of the soft GPUs cost, with one process and with sixteen.
    Soft,
    /// Which of 10,000 processes are on a GPU.
    Audit,
    /// How much an abusive user slows down another user.
    Abuse,
    /// Checkpoints compared with plain writes, raw SQLite, and a training without saves.
    Checkpoint,
    /// A training that is killed, for `checkpoint`.
    #[command(hide = true)]
    Trainer {
        /// The folder of its checkpoints.
        store: PathBuf,
    },
    /// An abusive user, for `abuse`.
    #[command(hide = true)]
    Abuser {
        /// What it does.
        kind: abuse::Abuse,
        /// Where the service listens.
        socket: PathBuf,
    },
    /// Many processes that sleep, for `audit`.
    #[command(hide = true)]
    Crowd {
        /// How many.
        count: usize,
    },
    /// A process on a soft GPU, for `soft` and `audit`.
    #[command(hide = true)]
    Sit {
        /// The file of the soft GPUs.
        cards: PathBuf,
    },
    /// The load of `http` against a service that already runs; for profiling.
    Load {
        /// Where it listens.
        #[arg(long)]
        socket: PathBuf,
    },
    /// The load of `http` against the FastAPI service alone.
    Peer,
}

#[derive(Args)]
struct BenchOptions {
    /// The binary to measure. Default: target/release/sublet, built if it is not there.
    #[arg(long, global = true)]
    sublet: Option<PathBuf>,
    /// Writes `measurements.md` and `measurements.json` there.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
    /// Rounds, each with both sides.
    #[arg(long, global = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Seconds of load in a round.
    #[arg(long, global = true, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Connections of the load.
    #[arg(long, global = true, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
    /// Leases that `restart` prepares.
    #[arg(long, global = true, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    leases: u32,
    /// Seconds that `idle` watches.
    #[arg(long, global = true, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    idle_seconds: u64,
    /// Calls of each kind that `cli` times.
    #[arg(long, global = true, default_value_t = 100, value_parser = clap::value_parser!(u32).range(3..=1000))]
    calls: u32,
    /// The only part of `checkpoint` to run: saves, unchanged, training, effects or takeover.
    #[arg(long, global = true)]
    part: Option<String>,
}

fn main() -> ExitCode {
    match measure(BenchCommand::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(command: BenchCommand) -> Result<ExitCode> {
    let options = command.options;
    let rig = BenchRig {
        sublet: options.sublet,
        rounds: options.rounds,
        load: Duration::from_secs(options.seconds),
        connections: options.connections as usize,
        leases: options.leases as usize,
        idle: Duration::from_secs(options.idle_seconds),
        calls: options.calls as usize,
        part: options.part,
    };
    let names: Vec<&str> = match command.what {
        BenchChoice::All => BENCHES.iter().map(|(name, _)| *name).collect(),
        BenchChoice::Http => vec!["http"],
        BenchChoice::Grant => vec!["grant"],
        BenchChoice::Loop => vec!["loop"],
        BenchChoice::Queue => vec!["queue"],
        BenchChoice::Fair => vec!["fair"],
        BenchChoice::Plan => vec!["plan"],
        BenchChoice::Sim => vec!["sim"],
        BenchChoice::Restart => vec!["restart"],
        BenchChoice::Idle => vec!["idle"],
        BenchChoice::Cli => vec!["cli"],
        BenchChoice::Ptx => vec!["ptx"],
        BenchChoice::Soft => vec!["soft"],
        BenchChoice::Audit => vec!["audit"],
        BenchChoice::Abuse => vec!["abuse"],
        BenchChoice::Checkpoint => vec!["checkpoint"],
        BenchChoice::Trainer { store } => return checkpoint::takeover::run_trainer(&store).map(|()| ExitCode::SUCCESS),
        BenchChoice::Abuser { kind, socket } => return abuse::run_abuse(kind, &socket).map(|()| ExitCode::SUCCESS),
        BenchChoice::Crowd { count } => return audit::sleepers(count).map(|()| ExitCode::SUCCESS),
        BenchChoice::Sit { cards } => return soft::occupy_gpu(&cards).map(|()| ExitCode::SUCCESS),
        BenchChoice::Load { socket } => return printed_json(&load::pairs(&socket, rig.connections, rig.load)?),
        BenchChoice::Peer => return printed_json(&http::peer_round(&rig, 1)?),
    };
    let mut report = BenchReport::new(&rig)?;
    for name in names {
        eprintln!("{name} …");
        let Some((_, run)) = BENCHES.iter().find(|(known, _)| *known == name) else { bail!("no bench `{name}`") };
        let outcome = run(&rig);
        if let Err(error) = &outcome {
            eprintln!("error: {name}: {error:#}");
        }
        report.add(name, outcome);
    }
    print!("{}", report.markdown());
    if let Some(folder) = options.out {
        report.write(&folder).with_context(|| format!("cannot write to `{}`", folder.display()))?;
    }
    Ok(if report.all_ran() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn printed_json(value: &impl serde::Serialize) -> Result<ExitCode> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(ExitCode::SUCCESS)
}
