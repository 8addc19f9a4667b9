//! `sublet replay`: the results of a trace under another policy.
//!
//! It needs no daemon. This module handles files and the clock; the rest is in the replay crate.

mod show;

use crate::args::Globals;
use crate::failure::Failure;
use crate::output;
use crate::table::TextFormat;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use sublet_replay::drive::LeaseTerms;
use sublet_replay::host_gpus::HostGpus;
use sublet_replay::policies::PolicyName;
use sublet_replay::report::{ReplayOptions, ReplayReport, replay};
use sublet_replay::synthetic::{self, SyntheticShape};
use sublet_replay::trace::Trace;
use sublet_replay::{Bytes, alibaba, csv, json, plots};
use sublet_wire::{exit, span};

/// Replay a trace of jobs under two policies and compare them
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct ReplayArgs {
    /// The trace: CSV or JSON with arrival_s, tenant, vram, gpus, duration_s, tier, and perhaps priority, name
    #[arg(value_name = "TRACE", required_unless_present_any = ["synthetic", "alibaba"])]
    trace: Option<PathBuf>,
    /// Make a trace up from this seed instead
    #[arg(long, value_name = "SEED", conflicts_with_all = ["trace", "alibaba"])]
    synthetic: Option<u64>,
    /// Take Alibaba's cluster-trace-gpu-v2023 task list instead
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    alibaba: Option<PathBuf>,
    /// Jobs to make up
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=5_000_000),
        conflicts_with_all = ["trace", "alibaba"]
    )]
    jobs: u64,
    /// Tenants to make up
    #[arg(
        long,
        value_name = "M",
        default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=10_000),
        conflicts_with = "trace",
        hide_short_help = true
    )]
    tenants: u64,
    /// Make up one more, interactive, with many short requests, a third of all
    #[arg(long, conflicts_with_all = ["trace", "alibaba"], hide_short_help = true)]
    chatty: bool,
    /// Work to make up, as a share of what the GPUs can do
    #[arg(long, value_name = "X", default_value_t = 0.6, value_parser = share, conflicts_with_all = ["trace", "alibaba"], hide_short_help = true)]
    load: f64,
    /// The seed by which tenants are drawn for a trace that has none
    #[arg(long, value_name = "SEED", default_value_t = 1, conflicts_with_all = ["trace", "synthetic"], hide_short_help = true)]
    seed: u64,
    /// The GPUs, such as 8x80GiB or 4x24GiB,2x80GiB
    #[arg(long, value_name = "GPUS", default_value = "8x80GiB")]
    gpus: HostGpus,
    /// A policy to compare, fifo or fair; may be given twice [default: both]
    #[arg(long, value_name = "NAME")]
    policy: Vec<PolicyName>,
    /// The rules of the house, as `sublet serve --config` takes them [default: its defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask for fixed terms as long as the work, so that no lease ends before it
    #[arg(long, hide_short_help = true)]
    fixed: bool,
    /// Let jobs come X times faster, so that they compete
    #[arg(long, value_name = "X", value_parser = factor, hide_short_help = true)]
    speed_up_load: Option<f64>,
    /// A job starved that waited longer than X times its own duration (and than the hold cap)
    #[arg(long, value_name = "X", default_value_t = 10.0, value_parser = factor, hide_short_help = true)]
    starved: f64,
    /// Places in the queue of each tenant [default: no limit]
    #[arg(long, value_name = "N", hide_short_help = true)]
    places: Option<u32>,
    /// Stop so long after the first arrival [default: when all work is done]
    #[arg(long, value_name = "TIME", value_parser = time, hide_short_help = true)]
    until: Option<u64>,
    /// Jobs can be parked, in this much host memory (such as 512GiB): time slices and preemption are replayed too
    #[arg(long, value_name = "SIZE", value_parser = size)]
    parking: Option<Bytes>,
    /// Write plots as SVG into this directory
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    svg: Option<PathBuf>,
    /// Write what would be replayed as CSV, and replay nothing
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    write: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
The real scheduler runs, with virtual time, no daemon and no GPU. A job works
all the time it holds its GPUs. By default its lease is renewed while it works,
as with `sublet run`, and ends at the hold cap while others wait; then the job
asks again for the rest of its work. That costs it nothing but the wait: its
state is taken to be saved. With --fixed no lease ends early. With --parking
jobs are parked and resumed as the daemon would: each move takes 0.15 s and 21
ms for each GiB.

Policies: fifo serves by arrival alone; fair is what the daemon does, by
--config FILE or by its defaults.

wait         time in the queue, all time slices of a job together
completion   from the request to the end of the work
expected     the start that a request which had to wait would have been told,
             beside when it really started
utilisation  byte-seconds granted divided by the byte-seconds there were
             (margins left out)
fairness     time is cut into slots. A tenant's demand in a slot is the most it
             could have used: the bytes of each of its jobs while the job was
             there, but no longer than it had work left. Its fair share is the
             max-min fair part of the GPUs, never above its demand; its score
             is what it held divided by that. Only slots in which all demands
             together exceed the GPUs count. Jain's index of the scores x:
             (sum of x)^2 / (n * sum of x^2); 1 is even, 1/n is one tenant
             taking all. Once with each tenant's slots added up, once as the
             mean of the slots' own
starved      waited longer than the hold cap and than --starved times the job's
             own duration";

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| (0.01..=100.0).contains(x)).ok_or_else(|| format!("`{text}` is not 0.01 to 100"))
}

fn factor(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| (0.001..=1e6).contains(x)).ok_or_else(|| format!("`{text}` is not 0.001 to 1000000"))
}

fn size(text: &str) -> Result<Bytes, String> {
    sublet_wire::size::parse(text).map(Bytes).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

fn time(text: &str) -> Result<u64, String> {
    span::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

/// The speed of a replay. It is not part of the report, which is the same for every run.
#[derive(Clone, Debug, Serialize)]
struct Speed {
    policy: String,
    events: u64,
    wall_s: f64,
    events_per_s: f64,
}

#[derive(Serialize)]
struct ReplayJson<'a> {
    #[serde(flatten)]
    report: &'a ReplayReport,
    speed: &'a [Speed],
}

/// Runs `sublet replay`.
pub fn run(globals: &Globals, args: &ReplayArgs) -> Result<u8, Failure> {
    let rules = crate::daemon::rules(args.config.as_deref())?;
    let mut trace = load(args, rules.margin)?;
    if let Some(factor) = args.speed_up_load {
        trace.speed_up(factor);
    }
    if let Some(path) = &args.write {
        write(path, &trace.to_csv())?;
        eprintln!("wrote {} jobs of {} tenants to {}", trace.jobs.len(), trace.tenants.len(), path.display());
        return Ok(exit::OK);
    }
    let options = ReplayOptions {
        rules,
        policies: if args.policy.is_empty() { PolicyName::ALL.to_vec() } else { args.policy.clone() },
        leases: if args.fixed { LeaseTerms::Fixed } else { LeaseTerms::Renewed },
        starved: args.starved,
        places: args.places,
        until: args.until.map(sublet_replay::span_of_secs),
        parking: args.parking,
    };
    let mut speed = Vec::new();
    let mut began = Instant::now();
    let report = replay(&trace, &args.gpus, &options, |outcome| {
        let wall_s = began.elapsed().as_secs_f64();
        let events_per_s = (outcome.events as f64 / wall_s.max(1e-9)).round();
        speed.push(Speed { policy: outcome.policy.clone(), events: outcome.events, wall_s, events_per_s });
        began = Instant::now();
    });
    if let Some(dir) = &args.svg {
        fs::create_dir_all(dir).map_err(|error| failed(dir, "made", &error))?;
        for (name, svg) in plots::all_plots(&report) {
            let path = dir.join(name);
            write(&path, &svg)?;
            eprintln!("wrote {}", path.display());
        }
    }
    if globals.json {
        output::json(&ReplayJson { report: &report, speed: &speed })?;
    } else {
        output::print(&show::render(&report, &speed, TextFormat::of_stdout()))?;
    }
    Ok(exit::OK)
}

/// Loads the trace from its source.
fn load(args: &ReplayArgs, margin: Bytes) -> Result<Trace, Failure> {
    if let Some(seed) = args.synthetic {
        let (jobs, tenants, chatty, load) = (args.jobs, args.tenants, args.chatty, args.load);
        let shape = SyntheticShape { seed, jobs, tenants, chatty, load };
        return synthetic::make(&shape, &args.gpus, margin)
            .map_err(|error| Failure::new(exit::FAILURE, format!("no trace can be made up: {error}")));
    }
    let Some(path) = args.alibaba.as_ref().or(args.trace.as_ref()) else {
        return Err(Failure::usage("there is nothing to replay").hint("name a trace, or --synthetic SEED"));
    };
    let text = fs::read_to_string(path).map_err(|error| failed(path, "read", &error))?;
    let source = path.display().to_string();
    let trace = match &args.alibaba {
        Some(_) => alibaba::read(&text, &args.gpus, margin, args.tenants, args.seed),
        None if json::is_json(&text) => json::read(&text, &source),
        None => csv::read(&text, &source),
    };
    trace.map_err(|error| {
        Failure::new(exit::USAGE, format!("{source}: {error}")).hint("docs/replay.md says what a trace looks like")
    })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| failed(path, "written", &error))
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::new(exit::FAILURE, format!("{} could not be {what}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser;

    fn parses(line: &str) -> bool {
        Cli::try_parse_from(format!("sublet replay {line}").split_whitespace()).is_ok()
    }

    #[test]
    fn there_is_one_trace_and_its_options_make_sense() {
        for line in [
            "trace.csv",
            "--synthetic 7 --jobs 100 --tenants 3 --chatty --load 0.8",
            "--alibaba list.csv --tenants 9 --seed 3 --speed-up-load 20",
            "trace.csv --gpus 4x24GiB,2x80GiB --policy fifo --policy fair --fixed --until 7d --svg plots --json",
            "--synthetic 7 --write made-up.csv",
        ] {
            assert!(parses(line), "{line}");
        }
        for line in [
            "",
            "trace.csv --synthetic 7",
            "trace.csv --alibaba list.csv",
            "trace.csv --chatty",
            "trace.csv --jobs 5",
            "trace.csv --tenants 5",
            "--synthetic 7 --seed 5",
            "--alibaba list.csv --load 0.5",
            "trace.csv --policy lifo",
            "trace.csv --gpus 8",
            "trace.csv --speed-up-load 0",
            "trace.csv --starved NaN",
            "trace.csv --until 7",
            "--synthetic 7 --jobs 0",
            "--synthetic 7 --load -1",
        ] {
            assert!(!parses(line), "{line}");
        }
    }
}
