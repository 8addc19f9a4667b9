//! Runs a seed and returns a verdict; a broken rule comes with the last steps as a story.

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
    /// A planted bug.
    pub planted: Option<Planted>,
    /// The commit at which the daemon is killed, and how.
    pub kill_at: Option<(u64, CommitFate)>,
    /// No lease is preempted for a waiter, whatever the seed says.
    pub without_preemption: bool,
    /// No unleased process is audited, whatever the seed says.
    pub without_enforcement: bool,
    /// Thirty busy holders share one GPU by time slices, and there are no faults.
    pub crowd: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            steps: 2_000,
            planted: None,
            kill_at: None,
            without_preemption: false,
            without_enforcement: false,
            crowd: false,
        }
    }
}

/// What happened in a run that kept all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Events taken in.
    pub events: u64,
    /// Batches closed.
    pub commits: u64,
    /// Daemons that were started.
    pub lives: u32,
    /// The number of the next lease.
    pub next_lease: u64,
    /// The number of the last log entry.
    pub entries: u64,
    /// Waiters that were served within the bound that they were told.
    pub bounds_kept: u64,
    /// Parks.
    pub parked: u64,
    /// Resumes.
    pub resumed: u64,
    /// Leases that were parked or told to end for a waiter.
    pub preempted: u64,
    /// Parks by a hook.
    pub parked_by_hook: u64,
    /// Parks by the driver.
    pub parked_by_driver: u64,
    /// Leases that were ended for a waiter.
    pub ended: u64,
    /// GPUs that stepped aside.
    pub asides: u64,
    /// Leases that were parked for a GPU that stepped aside.
    pub parked_aside: u64,
    /// Processes that were lost by a restore: their owners allowed that, or another process took the room at that
    /// moment.
    pub lost_by_restore: u64,
    /// Parked holders whose contexts the driver took.
    pub contexts_taken: u64,
    /// Processes that came back from that.
    pub contexts_restored: u64,
    /// Unleased processes that were recorded.
    pub unleased_found: u64,
    /// Those of them that had a lease for other GPUs.
    pub off_lease_found: u64,
    /// Warnings to unleased processes.
    pub warned: u64,
    /// Signals to unleased processes that were decided.
    pub signalled: u64,
    /// Unleased processes that got a lease.
    pub adopted: u64,
    /// Unleased processes that survived SIGKILL.
    pub survived: u64,
    /// Unleased processes that were parked instead of ended.
    pub unleased_parked: u64,
    /// Unleased processes that were due to be parked and could not be.
    pub unleased_not_parked: u64,
    /// Notices that a lease is exceeded.
    pub overuse_told: u64,
    /// Leases that were exceeded and enlarged.
    pub leases_grown: u64,
    /// Leases that were exceeded and ended.
    pub ended_for_overuse: u64,
    /// The daemon's time in all.
    pub elapsed: Span,
    /// How long leases were parking or resuming, all of them together.
    pub moving: Span,
}

impl RunCounts {
    /// Returns the counts of two runs together.
    pub fn sum_with(self, other: RunCounts) -> RunCounts {
        RunCounts {
            events: self.events + other.events,
            commits: self.commits + other.commits,
            lives: self.lives + other.lives,
            next_lease: self.next_lease + other.next_lease,
            entries: self.entries + other.entries,
            bounds_kept: self.bounds_kept + other.bounds_kept,
            parked: self.parked + other.parked,
            resumed: self.resumed + other.resumed,
            preempted: self.preempted + other.preempted,
            parked_by_hook: self.parked_by_hook + other.parked_by_hook,
            parked_by_driver: self.parked_by_driver + other.parked_by_driver,
            ended: self.ended + other.ended,
            asides: self.asides + other.asides,
            parked_aside: self.parked_aside + other.parked_aside,
            lost_by_restore: self.lost_by_restore + other.lost_by_restore,
            contexts_taken: self.contexts_taken + other.contexts_taken,
            contexts_restored: self.contexts_restored + other.contexts_restored,
            unleased_found: self.unleased_found + other.unleased_found,
            off_lease_found: self.off_lease_found + other.off_lease_found,
            warned: self.warned + other.warned,
            signalled: self.signalled + other.signalled,
            adopted: self.adopted + other.adopted,
            survived: self.survived + other.survived,
            unleased_parked: self.unleased_parked + other.unleased_parked,
            unleased_not_parked: self.unleased_not_parked + other.unleased_not_parked,
            overuse_told: self.overuse_told + other.overuse_told,
            leases_grown: self.leases_grown + other.leases_grown,
            ended_for_overuse: self.ended_for_overuse + other.ended_for_overuse,
            elapsed: self.elapsed + other.elapsed,
            moving: self.moving + other.moving,
        }
    }
}

impl fmt::Display for RunCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, {} leases, {} entries, ", self.events, self.next_lease, self.entries)?;
        write!(f, "{} commits, {} restarts, ", self.commits, self.lives)?;
        write!(f, "{} preempted, {} of them ended, ", self.preempted, self.ended)?;
        write!(f, "{} parked, {} of them by hooks ", self.parked, self.parked_by_hook)?;
        write!(f, "and {} by the driver, {} resumed, ", self.parked_by_driver, self.resumed)?;
        write!(f, "contexts of {} parked leases moved ", self.contexts_taken)?;
        write!(f, "and {} processes back from that, ", self.contexts_restored)?;
        write!(f, "{} lost by restores that lacked room, ", self.lost_by_restore)?;
        write!(f, "{} bounds kept, ", self.bounds_kept)?;
        write!(f, "{} unleased processes found, {} of them ", self.unleased_found, self.off_lease_found)?;
        write!(f, "with a lease for other GPUs, {} warned, {} parked, ", self.warned, self.unleased_parked)?;
        write!(f, "{} that could not be parked, {} signalled, ", self.unleased_not_parked, self.signalled)?;
        write!(f, "{} adopted, {} survivors of SIGKILL, ", self.adopted, self.survived)?;
        write!(f, "{} exceeded leases told, {} enlarged, ", self.overuse_told, self.leases_grown)?;
        write!(f, "{} ended, {} GPUs put aside ", self.ended_for_overuse, self.asides)?;
        write!(f, "and {} leases parked for that", self.parked_aside)
    }
}

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// The seed.
    pub seed: u64,
    /// The number of the event.
    pub step: u64,
    /// The broken rule.
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

/// Runs a seed again and returns the last lines of its story, at most `lines`.
pub fn story_of(seed: u64, options: RunOptions, lines: usize) -> Vec<String> {
    let story = Story::with_lines(lines);
    // The verdict is known already; only the story is wanted.
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
            bounds_kept: sim.checker.promises.kept,
            parked: sim.checker.parked,
            resumed: sim.checker.resumed,
            preempted: sim.checker.preempted,
            parked_by_hook: sim.checker.by_method.0,
            parked_by_driver: sim.checker.by_method.1,
            ended: sim.checker.ended,
            asides: sim.checker.aside_counts.0,
            parked_aside: sim.checker.aside_counts.1,
            lost_by_restore: sim.lost_processes,
            contexts_taken: sim.context_moves.0,
            contexts_restored: sim.context_moves.1,
            unleased_found: sim.checker.unleased.found,
            off_lease_found: sim.checker.unleased.off_lease,
            warned: sim.checker.unleased.warned,
            signalled: sim.checker.unleased.signalled,
            adopted: sim.checker.unleased.adopted,
            survived: sim.checker.unleased.survived,
            unleased_parked: sim.checker.unleased.parked,
            unleased_not_parked: sim.checker.unleased.not_parked,
            overuse_told: sim.checker.overuse_counts.0,
            leases_grown: sim.checker.overuse_counts.1,
            ended_for_overuse: sim.checker.overuse_counts.2,
            elapsed: sim.elapsed,
            moving: sim.checker.moving_time,
        })
    }));
    let failed = |violation| RunFailure { seed, step: story.step.get(), violation };
    match verdict {
        Ok(verdict) => verdict.map_err(failed),
        Err(_) => Err(failed(Violation { rule: 0, what: "it panicked; the message is above".to_owned() })),
    }
}
