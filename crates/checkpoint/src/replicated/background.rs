//! Saving while the training goes on.
//!
//! ```text
//! trainer   step 10 ─ save ─ step 11 ─ step 12 ─ … ─ save ─┬─ step 21
//! thread              └─ write, commit ────────┘           └─ write, commit …
//! step              10 ─────────────────────────── 20
//! durable_step       0 ─────────────────────── 10
//! ```
//!
//! One save is under way at a time: the next one waits for it, and that wait is the stall. A save that
//! failed is an error of the next call.
//!
//! The saving thread, and the threads of the replicas that it starts, are 10 nicer than the thread that calls `save`:
//! hashing and writing keep two cores busy, and where no core is idle they would take them from the training. With nice
//! 10 they get about a tenth as much of a core as a thread of the training, so that a save takes longer and still ends
//! where all cores are busy for hours. `SCHED_IDLE` would leave them less than a hundredth, also while they hold the
//! lock of the register, for which other processes wait.
//!
//! Absent on purpose: the choice of when to save, and copying the state: a caller that replaces its state hands the old
//! one over as `Bytes`.

use super::{ReplicatedCheckpoint, SaveReport, SaveRequest};
use crate::effect_store::VersionedValue;
use crate::error::{ReplicaFailure, ReplicatedError};
use crate::names::Version;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How much nicer the saving thread is.
const NICER: i32 = 10;

/// Saves one checkpoint in a thread of its own. Dropping it waits for the save that is under way.
pub struct BackgroundSaver {
    checkpoints: ReplicatedCheckpoint,
    version: Version,
    step: Option<u64>,
    durable_step: Option<u64>,
    running: Option<RunningSave>,
    stalled: Duration,
    last_save_took: Option<Duration>,
    failures: Vec<ReplicaFailure>,
}

/// A save that is under way.
struct RunningSave {
    step: Option<u64>,
    thread: JoinHandle<SaveOutcome>,
}

/// What became of a save, and how long it took.
struct SaveOutcome {
    saved: Result<VersionedValue<SaveReport>, ReplicatedError>,
    took: Duration,
}

impl BackgroundSaver {
    /// Begins after this version, which is the newest one, and its step.
    pub fn new(checkpoints: &ReplicatedCheckpoint, newest: Version, step: Option<u64>) -> BackgroundSaver {
        BackgroundSaver {
            checkpoints: checkpoints.clone(),
            version: newest,
            step,
            durable_step: step,
            running: None,
            stalled: Duration::ZERO,
            last_save_took: None,
            failures: Vec::new(),
        }
    }

    /// Begins to save, after the save that is under way, and returns how long it waited for that one.
    ///
    /// The version that the request expects is set here. If the earlier save failed, this is its error,
    /// and nothing is begun.
    pub fn save(&mut self, mut request: SaveRequest) -> Result<Duration, ReplicatedError> {
        let began = Instant::now();
        let waited = self.finish();
        let stalled = began.elapsed();
        self.stalled += stalled;
        waited?;
        request.expected = self.version;
        let step = request.step;
        let checkpoints = self.checkpoints.clone();
        let work = move || {
            // A priority cannot be raised again, so each save has a thread of its own. Where it cannot be lowered, the
            // save goes on with the one it has.
            let _ = rustix::process::nice(NICER);
            let began = Instant::now();
            let saved = checkpoints.save(request);
            SaveOutcome { saved, took: began.elapsed() }
        };
        let spawned = thread::Builder::new().name("checkpoint save".to_owned()).spawn(work);
        let thread =
            spawned.map_err(|source| ReplicatedError::File { path: PathBuf::from("/proc/self/task"), source })?;
        self.step = step.or(self.step);
        self.running = Some(RunningSave { step, thread });
        Ok(stalled)
    }

    /// Without waiting, the error of a save that has failed since the last call. A training calls it at each step.
    pub fn check(&mut self) -> Result<(), ReplicatedError> {
        match &self.running {
            Some(running) if running.thread.is_finished() => self.finish(),
            _ => Ok(()),
        }
    }

    /// Waits for the save that is under way.
    pub fn finish(&mut self) -> Result<(), ReplicatedError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let step = running.step;
        let failed = |source| ReplicatedError::EarlierSave { step: step.unwrap_or(0), source: Box::new(source) };
        let Ok(outcome) = running.thread.join() else {
            return Err(failed(ReplicatedError::Unreadable { reason: "the saving thread panicked".to_owned() }));
        };
        self.last_save_took = Some(outcome.took);
        let saved = outcome.saved.map_err(failed)?;
        self.version = saved.version;
        self.failures = saved.value.failures;
        self.durable_step = step.or(self.durable_step);
        Ok(())
    }

    /// The step of the newest save that was begun.
    pub fn step(&self) -> Option<u64> {
        self.step
    }

    /// The step of the newest save that is known to be committed. Progress to report is this one.
    pub fn durable_step(&self) -> Option<u64> {
        self.durable_step
    }

    /// The newest version that is known to be committed.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How long calls of [`save`](Self::save) have waited, all together.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// The replicas that do not hold the newest committed save, or did not publish it yet. Enough others hold it.
    pub fn failures(&self) -> &[ReplicaFailure] {
        &self.failures
    }

    /// How long the last save took in its thread.
    pub fn last_save_took(&self) -> Option<Duration> {
        self.last_save_took
    }
}

impl Drop for BackgroundSaver {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // A failure is told by `finish`, which a program calls before it reports its last step.
            drop(running.thread.join());
        }
    }
}
