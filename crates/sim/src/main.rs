//! `sublet-sim`: runs seeds, prints the story of one that breaks a rule, and proves that planted bugs are caught.

use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use sublet_sim::mutants::{Planted, hunt};
use sublet_sim::run::{RunCounts, RunOptions, run, story_of};

/// Seeds within which a planted bug must be caught.
const HUNT_SEEDS: u64 = 2_000;

/// Simulates the lease service from seeds, with faults, and checks the rules.
#[derive(Debug, Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// Events for each seed, before the world calms down.
    #[arg(long, default_value_t = 2_000)]
    steps: u64,
    /// Go on with further seeds for so many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Tell so many of the last lines of a seed that breaks a rule.
    #[arg(long, default_value_t = 40)]
    lines: usize,
    /// Go on after a seed that breaks a rule, and say of each only which.
    #[arg(long)]
    keep_going: bool,
    /// Worlds in which no lease is preempted for a waiter.
    #[arg(long)]
    still: bool,
    /// Worlds in which no unleased process is audited.
    #[arg(long)]
    blind: bool,
    /// Plant every bug in turn; each must be caught.
    #[arg(long)]
    mutants: bool,
    /// Plant only this one.
    #[arg(long)]
    mutant: Option<String>,
    /// Print events per second, checker on.
    #[arg(long)]
    speed: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.mutants || args.mutant.is_some() { mutants(&args) } else { seeds(&args) }
}

fn seeds(args: &Args) -> ExitCode {
    let options = RunOptions {
        steps: args.steps,
        without_preemption: args.still,
        without_enforcement: args.blind,
        ..RunOptions::default()
    };
    let begun = Instant::now();
    let enough = |done: u64| match args.minutes {
        Some(minutes) => begun.elapsed() >= Duration::from_secs(60 * minutes),
        None => done >= args.seeds,
    };
    let (mut done, mut broken, mut sum) = (0, 0, RunCounts::default());
    while !enough(done) {
        match run(args.seed + done, options) {
            Ok(passed) => sum = sum.sum_with(passed),
            Err(failure) if args.keep_going => {
                println!("{failure}");
                broken += 1;
            }
            Err(failure) => {
                story_of(failure.seed, options, args.lines).iter().for_each(|line| println!("{line}"));
                println!("{failure}");
                println!("hint: sublet-sim --seed {} --seeds 1 --steps {}", failure.seed, args.steps);
                return ExitCode::FAILURE;
            }
        }
        done += 1;
    }
    if broken > 0 {
        println!("{broken} of {done} seeds broke a rule");
        return ExitCode::FAILURE;
    }
    println!("{done} seeds, {sum}: all rules kept");
    if args.speed {
        println!("{:.0} events/s", sum.events as f64 / begun.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

fn mutants(args: &Args) -> ExitCode {
    // A mutant may make core panic; the table says so in a line.
    std::panic::set_hook(Box::new(|_| {}));
    let mut survivors = 0;
    println!("| mutant | rule | caught at | how |\n|---|---|---|---|");
    let wanted = |planted: &Planted| args.mutant.as_ref().is_none_or(|name| *name == planted.name());
    for planted in Planted::all().into_iter().filter(wanted) {
        match hunt(planted, args.seed..args.seed + HUNT_SEEDS, args.steps) {
            Some(failure) => println!(
                "| {} | {} | seed {}, step {} | {} |",
                planted.name(),
                failure.violation.rule,
                failure.seed,
                failure.step,
                short(&failure.violation.what)
            ),
            None => {
                survivors += 1;
                println!("| {} | | never, in {HUNT_SEEDS} seeds | |", planted.name());
            }
        }
    }
    if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The beginning of a message: the rest is a dump of the books, and the story tells the same.
fn short(what: &str) -> String {
    match what.char_indices().nth(140) {
        Some((end, _)) => format!("{} …", &what[..end]),
        None => what.to_owned(),
    }
}
