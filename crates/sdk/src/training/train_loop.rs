//! Trains over many leases: acquires one, restores, goes on, saves, and begins again when the lease is lost.
//!
//! ```text
//!   restore the newest version ─► acquire ─► open: fence ─► step, step, … save ─► done
//!              ▲                          (the first time)       │ lease lost
//!              └─────────────────────────────────────────────────┘
//! ```
//! The job is opened when the first lease was acquired: a process that gets no GPU does not stop the one that trains. A loop
//! opens its job once. If another process opens it later, this one ends, and must be started again to take over.
//!
//! Two numbers say how far it is: `step` in memory, `durable_step` on disk. Steps after the durable one are repeated if
//! the lease is lost before the next save; each save commits its step once, under the fence that opening the job issued.
//! A process that opens the same job later makes this one stale: its next save fails.
//!
//! Saves go on in a thread while the next steps run. A save that failed is an error at the next step. The state is never
//! copied: each step returns a new one, and a save keeps the one that it was given.
//!
//! A save goes on without a replica that fails, if enough others hold it. The loop says so once, and once more when all
//! replicas hold the newest save again.
//!
//! Absent on purpose: copying the state off the GPU; that is the step's part, since it returns the state.

use super::{TrainingError, training_checkpoint_name};
use crate::client::RESTART;
use crate::error::FabricError;
use crate::lease::{GpuLease, LeaseStatus};
use crate::session::GpuSession;
use bytes::Bytes;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use sublet_checkpoint::{
    BackgroundSaver, CheckpointName, FenceEpoch, ReplicaFailure, ReplicatedCheckpoint, ReplicatedError, SaveRequest,
    Version,
};

/// The shortest time between two saves of [`SaveSchedule::Continuous`].
const CONTINUOUS_FLOOR: Duration = Duration::from_secs(10);
/// A save begins after 20 times as long as the last one took.
const CONTINUOUS_FACTOR: u32 = 20;
/// The training waits for saves for at most one part in 50 of the time.
const STALL_PART: u32 = 50;

/// When the state is saved. The last step is saved in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveSchedule {
    /// After this many steps; 0 counts as 1.
    EverySteps(u64),
    /// When this much time passed since the last save.
    Every(Duration),
    /// As often as stalls the training for at most 2 % of the time; at most every 10 s, and not before 20 times as
    /// long as the last save took.
    Continuous,
}

/// What a schedule decides by.
#[derive(Clone, Copy, Debug, Default)]
struct SaveTimes {
    /// Steps since the last save began.
    steps: u64,
    /// Time since then.
    since_save: Duration,
    /// How long the last save took.
    last_save: Duration,
    /// How long the training waited for saves, of how long it runs.
    stalled: Duration,
    running: Duration,
}

impl SaveSchedule {
    fn is_due(self, times: SaveTimes) -> bool {
        match self {
            SaveSchedule::EverySteps(every) => times.steps >= every.max(1),
            SaveSchedule::Every(period) => times.since_save >= period,
            SaveSchedule::Continuous => {
                times.since_save >= CONTINUOUS_FLOOR.max(times.last_save * CONTINUOUS_FACTOR)
                    && times.stalled * STALL_PART <= times.running
            }
        }
    }
}

/// How far a training is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingProgress {
    /// The last step that was done.
    pub step: u64,
    /// The last step that is saved: what is left after a crash.
    pub durable_step: u64,
    /// The version of the checkpoint that has it.
    pub version: Version,
    /// How many leases were lost so far.
    pub leases_lost: u32,
    /// How long the training waited for saves.
    pub stalled: Duration,
    /// The replicas that do not hold the newest save, and why.
    pub failures: Vec<ReplicaFailure>,
    /// The state after `step`. Clones share its bytes.
    pub state: Bytes,
}

/// What is told when other replicas than before do not hold the newest save.
type ReplicaHook = Box<dyn Fn(&[ReplicaFailure]) + Send + Sync>;

/// A training that goes on over many leases.
pub struct TrainingLoop {
    checkpoints: ReplicatedCheckpoint,
    name: CheckpointName,
    /// Issued when the job is opened.
    fence: OnceLock<FenceEpoch>,
    schedule: SaveSchedule,
    on_replica_failure: ReplicaHook,
}

impl TrainingLoop {
    /// A job in a store that can be read. [`run`](Self::run) opens the job when it has its first lease: another process that
    /// trains it is stale from then on.
    pub fn open(checkpoints: &ReplicatedCheckpoint, job: &str) -> Result<TrainingLoop, ReplicatedError> {
        let name = training_checkpoint_name(job);
        checkpoints.newest(&name)?;
        let (schedule, on_replica_failure) = (SaveSchedule::Continuous, Box::new(warn));
        let (checkpoints, fence) = (checkpoints.clone(), OnceLock::new());
        Ok(TrainingLoop { checkpoints, name, fence, schedule, on_replica_failure })
    }

    /// Calls this when other replicas than before do not hold the newest save; with none, all replicas hold it again.
    /// Without this, a line on stderr says so.
    pub fn on_replica_failure(mut self, hook: impl Fn(&[ReplicaFailure]) + Send + Sync + 'static) -> TrainingLoop {
        self.on_replica_failure = Box::new(hook);
        self
    }

    /// When the state is saved; without this, continuously.
    pub fn saving(mut self, schedule: SaveSchedule) -> TrainingLoop {
        self.schedule = schedule;
        self
    }

    /// The fence of this process; `None` until the job was opened.
    pub fn fence(&self) -> Option<FenceEpoch> {
        self.fence.get().copied()
    }

    /// Trains up to `last_step`, from the newest checkpoint or from `initial` at step 0.
    ///
    /// `acquire` is called for each lease. `train` does one step: it gets the session, the number of the step and the
    /// state, and returns the next state. It may be called again for a step if its lease was lost.
    pub fn run(
        &self,
        last_step: u64,
        initial: Vec<u8>,
        mut acquire: impl FnMut() -> Result<GpuLease, FabricError>,
        mut train: impl FnMut(&GpuSession, u64, &[u8]) -> Result<Vec<u8>, FabricError>,
    ) -> Result<TrainingProgress, TrainingError> {
        let initial = Bytes::from(initial);
        let mut progress = TrainingProgress::default();
        loop {
            self.restore(&initial, &mut progress)?;
            if progress.step >= last_step {
                return Ok(progress);
            }
            let lease = acquire()?;
            let fence = self.open_once(&initial, &mut progress)?;
            match self.run_on(&lease, fence, last_step, &mut progress, &mut train) {
                Ok(()) => return Ok(progress),
                Err(error) if error.is_lease_lost() => progress.leases_lost += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the job, unless this process has opened it, and returns its fence.
    fn open_once(&self, initial: &Bytes, progress: &mut TrainingProgress) -> Result<FenceEpoch, TrainingError> {
        if let Some(fence) = self.fence() {
            return Ok(fence);
        }
        let fence = self.checkpoints.open(&self.name)?;
        // Another process may have saved until now.
        let newest = self.checkpoints.newest(&self.name)?.map_or(Version(0), |newest| newest.version);
        if newest != progress.version {
            self.restore(initial, progress)?;
        }
        Ok(*self.fence.get_or_init(|| fence))
    }

    /// Goes back to the newest version, or to the beginning.
    fn restore(&self, initial: &Bytes, progress: &mut TrainingProgress) -> Result<(), TrainingError> {
        let saved = self.checkpoints.load(&self.name)?;
        progress.state =
            saved.as_ref().map_or_else(|| initial.clone(), |saved| saved.bytes().cloned().unwrap_or_default());
        progress.version = saved.as_ref().map_or(Version(0), |saved| saved.version);
        progress.step = saved.and_then(|saved| saved.step).unwrap_or_default();
        progress.durable_step = progress.step;
        Ok(())
    }

    fn run_on(
        &self,
        lease: &GpuLease,
        fence: FenceEpoch,
        last_step: u64,
        progress: &mut TrainingProgress,
        train: &mut impl FnMut(&GpuSession, u64, &[u8]) -> Result<Vec<u8>, FabricError>,
    ) -> Result<(), TrainingError> {
        let session = GpuSession::new(lease);
        let mut saver = BackgroundSaver::new(&self.checkpoints, progress.version, Some(progress.durable_step));
        let (begun, stalled_before) = (Instant::now(), progress.stalled);
        let (mut saved_at, mut saved_step) = (begun, progress.step);
        while progress.step < last_step {
            await_active(lease)?;
            saver.check().map_err(save_error)?;
            self.tell_failures(&saver, progress);
            let step = progress.step + 1;
            progress.state = train(&session, step, &progress.state)?.into();
            progress.step = step;
            let times = SaveTimes {
                steps: step - saved_step,
                since_save: saved_at.elapsed(),
                last_save: saver.last_save_took().unwrap_or_default(),
                stalled: saver.stalled(),
                running: begun.elapsed(),
            };
            if step == last_step || self.schedule.is_due(times) {
                let request = SaveRequest::new(self.name.clone(), saver.version(), fence);
                saver.save(request.bytes(progress.state.clone()).step(step)).map_err(save_error)?;
                (saved_at, saved_step) = (Instant::now(), step);
            }
            progress.stalled = stalled_before + saver.stalled();
        }
        saver.finish().map_err(save_error)?;
        self.tell_failures(&saver, progress);
        (progress.version, progress.durable_step) = (saver.version(), saver.durable_step().unwrap_or_default());
        Ok(())
    }

    /// Says it if other replicas than before do not hold the newest save.
    fn tell_failures(&self, saver: &BackgroundSaver, progress: &mut TrainingProgress) {
        if saver.version() == progress.version {
            return;
        }
        progress.version = saver.version();
        let replicas = |failures: &[ReplicaFailure]| -> Vec<_> {
            failures.iter().map(|failure| failure.replica.clone()).collect()
        };
        if replicas(saver.failures()) != replicas(&progress.failures) {
            (self.on_replica_failure)(saver.failures());
        }
        progress.failures = saver.failures().to_vec();
    }
}

/// Tells a person which replicas fail.
fn warn(failures: &[ReplicaFailure]) {
    if failures.is_empty() {
        eprintln!("all replicas hold the newest checkpoint again");
    }
    for failure in failures {
        eprintln!("warning: the newest checkpoint is not on replica `{}`: {}", failure.replica, failure.reason);
        eprintln!("hint: the training goes on; mend the replica, then `sublet checkpoint scrub` fills it");
    }
}

/// The error of a save in the background. A process that was overtaken is told that, whichever call finds it out.
fn save_error(error: ReplicatedError) -> TrainingError {
    match error {
        ReplicatedError::EarlierSave { source, .. } if matches!(*source, ReplicatedError::Fenced { .. }) => {
            TrainingError::Replicated(*source)
        }
        error => TrainingError::Replicated(error),
    }
}

/// Waits for a parked lease, which comes back; every other status than active is an error.
fn await_active(lease: &GpuLease) -> Result<(), TrainingError> {
    loop {
        match lease.status() {
            LeaseStatus::Active => return Ok(()),
            // Others need the GPU for now. The lease keeps its place, however long that takes.
            status if status.is_held() => match lease.resume(RESTART) {
                Err(FabricError::LeaseNotActive(status)) if status.is_held() => {}
                answer => answer?,
            },
            status => return Err(TrainingError::LeaseNotActive(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(steps: u64, since_save: u64, last_save: u64) -> SaveTimes {
        let seconds = Duration::from_secs;
        let running = seconds(10_000);
        SaveTimes {
            steps,
            since_save: seconds(since_save),
            last_save: seconds(last_save),
            running,
            ..SaveTimes::default()
        }
    }

    #[test]
    fn saves_are_due_by_steps_by_time_or_by_what_they_cost() {
        let by_steps = SaveSchedule::EverySteps(10);
        assert!(!by_steps.is_due(times(9, 1_000, 0)) && by_steps.is_due(times(10, 0, 0)));
        assert!(SaveSchedule::EverySteps(0).is_due(times(1, 0, 0)));
        let by_time = SaveSchedule::Every(Duration::from_secs(30));
        assert!(!by_time.is_due(times(1_000, 29, 0)) && by_time.is_due(times(1, 30, 0)));
        let continuous = SaveSchedule::Continuous;
        assert!(!continuous.is_due(times(1_000, 9, 0)) && continuous.is_due(times(1, 10, 0)));
        assert!(!continuous.is_due(times(1, 39, 2)) && continuous.is_due(times(1, 40, 2)));
    }

    #[test]
    fn continuous_saves_pause_while_they_stall_the_training_for_more_than_2_percent() {
        let stalled = |seconds| SaveTimes { stalled: Duration::from_secs(seconds), ..times(1, 100, 1) };
        assert!(SaveSchedule::Continuous.is_due(stalled(200)) && !SaveSchedule::Continuous.is_due(stalled(201)));
    }
}
