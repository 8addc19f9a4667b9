//! `sublet-sim`: runs seeds, tells the story of one that fails, and proves that
//! planted bugs are noticed.

use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use sublet_sim::mutants::{Planted, hunt};
use sublet_sim::run::{RunCounts, RunOptions, run, tell};

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
    /// Worlds in which nobody is made to leave for whoever waits.
    #[arg(long)]
    still: bool,
    /// Worlds in which nobody looks into strangers.
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
    let options = RunOptions { steps: args.steps, still: args.still, blind: args.blind, ..RunOptions::default() };
    let begun = Instant::now();
    let enough = |done: u64| match args.minutes {
        Some(minutes) => begun.elapsed() >= Duration::from_secs(60 * minutes),
        None => done >= args.seeds,
    };
    let (mut done, mut broken, mut sum) = (0, 0, RunCounts::default());
    while !enough(done) {
        match run(args.seed + done, options) {
            Ok(passed) => sum = add(sum, passed),
            Err(failure) if args.keep_going => {
                println!("{failure}");
                broken += 1;
            }
            Err(failure) => {
                tell(failure.seed, options, args.lines).iter().for_each(|line| println!("{line}"));
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
    let RunCounts {
        events,
        commits,
        lives,
        next_lease,
        entries,
        kept,
        parked,
        resumed,
        preempted,
        yielded,
        driven,
        ended,
        lost,
        deep,
        surfaced,
        found,
        abroad,
        warned,
        struck,
        adopted,
        survived,
        spared,
        unmoved,
        told_over,
        grown,
        overused,
        asides,
        parked_aside,
        ..
    } = sum;
    println!(
        "{done} seeds, {events} events, {next_lease} leases, {entries} entries, {commits} commits, {lives} restarts, {preempted} made to leave for others, {ended} of them ended, {parked} parked, {yielded} of them by hooks and {driven} by the driver, {resumed} brought back, {deep} left their cards altogether and {surfaced} of their processes came back from that, {lost} lost by restores that lacked room, {kept} bounds met, {found} strangers found, {abroad} of them with a lease for other cards, {warned} warned, {spared} parked, {unmoved} not to be parked, {struck} signalled, {adopted} adopted, {survived} survivors, {told_over} told that they have more than their leases, {grown} took larger ones, {overused} ended for it, {asides} times a GPU stepped aside and {parked_aside} leases were parked for it: all rules kept"
    );
    if args.speed {
        println!("{:.0} events/s", events as f64 / begun.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

fn add(a: RunCounts, b: RunCounts) -> RunCounts {
    RunCounts {
        events: a.events + b.events,
        commits: a.commits + b.commits,
        lives: a.lives + b.lives,
        next_lease: a.next_lease + b.next_lease,
        entries: a.entries + b.entries,
        kept: a.kept + b.kept,
        parked: a.parked + b.parked,
        resumed: a.resumed + b.resumed,
        preempted: a.preempted + b.preempted,
        yielded: a.yielded + b.yielded,
        driven: a.driven + b.driven,
        ended: a.ended + b.ended,
        asides: a.asides + b.asides,
        parked_aside: a.parked_aside + b.parked_aside,
        lost: a.lost + b.lost,
        deep: a.deep + b.deep,
        surfaced: a.surfaced + b.surfaced,
        found: a.found + b.found,
        abroad: a.abroad + b.abroad,
        warned: a.warned + b.warned,
        struck: a.struck + b.struck,
        adopted: a.adopted + b.adopted,
        survived: a.survived + b.survived,
        spared: a.spared + b.spared,
        unmoved: a.unmoved + b.unmoved,
        told_over: a.told_over + b.told_over,
        grown: a.grown + b.grown,
        overused: a.overused + b.overused,
        elapsed: a.elapsed + b.elapsed,
        moving: a.moving + b.moving,
    }
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

/// A message's beginning: the rest is the books, which the story tells better.
fn short(what: &str) -> String {
    match what.char_indices().nth(140) {
        Some((end, _)) => format!("{} …", &what[..end]),
        None => what.to_owned(),
    }
}
