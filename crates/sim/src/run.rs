//! A seed becomes a verdict; a broken rule becomes a story.

use crate::checker::Violation;
use crate::daemon::CommitFate;
use crate::mutants::Planted;
use crate::sim::Sim;
use crate::story::Story;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use sublet_core::units::Span;

/// How a seed is run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Events before the world calms down.
    pub steps: u64,
    /// A bug, if one is planted.
    pub planted: Option<Planted>,
    /// A commit to die in, and how.
    pub kill_at: Option<(u64, CommitFate)>,
    /// Nobody is made to leave for whoever waits, whatever the seed says.
    pub still: bool,
    /// Nobody looks into strangers, whatever the seed says.
    pub blind: bool,
    /// Thirty holders take turns on one card, all of them at work, and nothing goes wrong.
    pub crowd: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions { steps: 2_000, planted: None, kill_at: None, still: false, blind: false, crowd: false }
    }
}

/// What a run without fault came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Events taken in.
    pub events: u64,
    /// Batches closed.
    pub commits: u64,
    /// Daemons that lived.
    pub lives: u32,
    /// The number the next lease would have.
    pub next_lease: u64,
    /// The number of the log's last entry.
    pub entries: u64,
    /// Waiters that were served by when they were told, at the latest.
    pub kept: u64,
    /// How often a holder was parked.
    pub parked: u64,
    /// How often one had its cards again.
    pub resumed: u64,
    /// How often one was made to leave for somebody who waits.
    pub preempted: u64,
    /// How often one was parked by its hook.
    pub yielded: u64,
    /// How often one was parked by the driver.
    pub driven: u64,
    /// How often a lease was ended for others.
    pub ended: u64,
    /// How often a GPU stepped aside.
    pub asides: u64,
    /// How often a lease was parked for that.
    pub parked_aside: u64,
    /// Processes that a restore lost, of owners who took the risk or to who came from nowhere.
    pub lost: u64,
    /// How often the driver took the contexts of a parked holder, too.
    pub deep: u64,
    /// How many processes of such it brought back.
    pub surfaced: u64,
    /// Strangers that were put on the record.
    pub found: u64,
    /// Those of them that had a lease, for other cards.
    pub abroad: u64,
    /// How often one was warned.
    pub warned: u64,
    /// How often one was to get a signal.
    pub struck: u64,
    /// How often one got a lease.
    pub adopted: u64,
    /// How often one survived SIGKILL.
    pub survived: u64,
    /// How often one was parked in place of being ended.
    pub spared: u64,
    /// How often one that was due to be parked could not be.
    pub unmoved: u64,
    /// How often a holder was told that it has more than its lease.
    pub told_over: u64,
    /// How often one took a larger lease.
    pub grown: u64,
    /// How often one was ended for it.
    pub overused: u64,
    /// The daemon's time in all.
    pub elapsed: Span,
    /// How long holders were on their way off their cards, or back to them, all of them together.
    pub moving: Span,
}

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// The seed to run again.
    pub seed: u64,
    /// The event at which it was noticed.
    pub step: u64,
    /// Which rule, and how.
    pub violation: Violation,
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} broke a rule at step {}: {}", self.seed, self.step, self.violation)
    }
}

/// Runs a seed.
pub fn run(seed: u64, options: RunOptions) -> Result<RunCounts, RunFailure> {
    run_with(seed, options, &Story::default())
}

/// Runs a seed again and gives so many of its last lines.
pub fn tell(seed: u64, options: RunOptions, lines: usize) -> Vec<String> {
    let story = Story::told(lines);
    // The verdict is known; this is about how it came to it.
    let _ = run_with(seed, options, &story);
    story.lines()
}

fn run_with(seed: u64, options: RunOptions, story: &Story) -> Result<RunCounts, RunFailure> {
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(seed, story, options);
        sim.run(options.steps).map(|()| RunCounts {
            events: story.step.get(),
            commits: sim.commits,
            lives: sim.life,
            next_lease: sim.disk.rows.meta.next_lease,
            entries: sim.disk.seq,
            kept: sim.checker.promises.kept,
            parked: sim.checker.parked,
            resumed: sim.checker.resumed,
            preempted: sim.checker.preempted,
            yielded: sim.checker.by_rung.0,
            driven: sim.checker.by_rung.1,
            ended: sim.checker.ended,
            asides: sim.checker.aside.0,
            parked_aside: sim.checker.aside.1,
            lost: sim.lost,
            deep: sim.deep.0,
            surfaced: sim.deep.1,
            found: sim.checker.strangers.found,
            abroad: sim.checker.strangers.abroad,
            warned: sim.checker.strangers.warned,
            struck: sim.checker.strangers.struck,
            adopted: sim.checker.strangers.adopted,
            survived: sim.checker.strangers.survived,
            spared: sim.checker.strangers.parked,
            unmoved: sim.checker.strangers.unmoved,
            told_over: sim.checker.over.0,
            grown: sim.checker.over.1,
            overused: sim.checker.over.2,
            elapsed: sim.elapsed,
            moving: sim.checker.moving,
        })
    }));
    let failed = |violation| RunFailure { seed, step: story.step.get(), violation };
    match verdict {
        Ok(verdict) => verdict.map_err(failed),
        Err(_) => Err(failed(Violation { rule: 0, what: "it panicked; the message is above".to_owned() })),
    }
}
