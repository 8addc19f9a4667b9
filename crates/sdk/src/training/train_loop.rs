//! Trains over many leases: acquires one, restores, goes on, saves, and begins again when the lease is lost.
//!
//! ```text
//!   open: fence ─► restore the newest version ─► acquire ─► step, step, … save ─► done
//!                          ▲                                    │ lease lost
//!                          └────────────────────────────────────┘
//! ```
//! Two numbers say how far it is: `step` in memory, `durable_step` on disk. Steps after the durable one are repeated if
//! the lease is lost before the next save; each save commits its step once, under the fence that opening the job issued.
//! A process that opens the same job later makes this one stale: its next save fails.
//!
//! Absent on purpose: saves beside the training. A save here stalls the loop for as long as it takes.

use super::{TrainingError, training_checkpoint_name};
use crate::client::RESTART;
use crate::error::FabricError;
use crate::lease::{GpuLease, LeaseStatus};
use crate::session::GpuSession;
use std::time::{Duration, Instant};
use sublet_checkpoint::{CheckpointName, FenceEpoch, ReplicatedCheckpoint, ReplicatedError, SaveRequest, Version};

/// The shortest time between two saves of [`SaveSchedule::Continuous`].
const CONTINUOUS_FLOOR: Duration = Duration::from_secs(10);
/// With a save after 49 times as long as the last one took, at most 2 % of the time are saves.
const CONTINUOUS_FACTOR: u32 = 49;

/// When the state is saved. The last step is saved in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveSchedule {
    /// After this many steps; 0 counts as 1.
    EverySteps(u64),
    /// When this much time passed since the last save.
    Every(Duration),
    /// As often as costs at most 2 % of the time, and at most every 10 s.
    Continuous,
}

impl SaveSchedule {
    fn is_due(self, steps: u64, since_save: Duration, last_save: Duration) -> bool {
        match self {
            SaveSchedule::EverySteps(every) => steps >= every.max(1),
            SaveSchedule::Every(period) => since_save >= period,
            SaveSchedule::Continuous => since_save >= CONTINUOUS_FLOOR.max(last_save * CONTINUOUS_FACTOR),
        }
    }
}

/// How far a training is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingProgress {
    /// The last step that was done.
    pub step: u64,
    /// The last step that is saved: what is left after a crash.
    pub durable_step: u64,
    /// The version of the checkpoint that has it.
    pub version: Version,
    /// How many leases were lost so far.
    pub leases_lost: u32,
    /// The state after `step`.
    pub state: Vec<u8>,
}

/// A training that goes on over many leases.
pub struct TrainingLoop {
    checkpoints: ReplicatedCheckpoint,
    name: CheckpointName,
    fence: FenceEpoch,
    schedule: SaveSchedule,
}

impl TrainingLoop {
    /// Opens a job for this process: another one that trains it is stale from now on.
    pub fn open(checkpoints: &ReplicatedCheckpoint, job: &str) -> Result<TrainingLoop, ReplicatedError> {
        let name = training_checkpoint_name(job);
        let fence = checkpoints.open(&name)?;
        let schedule = SaveSchedule::Continuous;
        Ok(TrainingLoop { checkpoints: checkpoints.clone(), name, fence, schedule })
    }

    /// When the state is saved; without this, continuously.
    pub fn saving(mut self, schedule: SaveSchedule) -> TrainingLoop {
        self.schedule = schedule;
        self
    }

    /// The fence of this process.
    pub fn fence(&self) -> FenceEpoch {
        self.fence
    }

    /// Trains up to `last_step`, from the newest checkpoint or from `initial` at step 0.
    ///
    /// `acquire` is called for each lease. `train` does one step: it gets the session, the number of the step and the
    /// state, and returns the next state. It may be called again for a step whose lease was lost.
    pub fn run(
        &self,
        last_step: u64,
        initial: Vec<u8>,
        mut acquire: impl FnMut() -> Result<GpuLease, FabricError>,
        mut train: impl FnMut(&GpuSession, u64, &[u8]) -> Result<Vec<u8>, FabricError>,
    ) -> Result<TrainingProgress, TrainingError> {
        let mut leases_lost = 0;
        loop {
            let mut progress = self.restore(&initial)?;
            progress.leases_lost = leases_lost;
            if progress.step >= last_step {
                return Ok(progress);
            }
            let lease = acquire()?;
            match self.run_on(&lease, last_step, &mut progress, &mut train) {
                Ok(()) => return Ok(progress),
                Err(error) if error.is_lease_lost() => leases_lost += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The newest version, or the beginning.
    fn restore(&self, initial: &[u8]) -> Result<TrainingProgress, TrainingError> {
        let begin =
            |state, step, version| TrainingProgress { step, durable_step: step, version, leases_lost: 0, state };
        Ok(match self.checkpoints.load(&self.name)? {
            None => begin(initial.to_vec(), 0, Version(0)),
            Some(saved) => {
                let state = saved.bytes().map(|bytes| bytes.to_vec()).unwrap_or_default();
                begin(state, saved.step.unwrap_or_default(), saved.version)
            }
        })
    }

    fn run_on(
        &self,
        lease: &GpuLease,
        last_step: u64,
        progress: &mut TrainingProgress,
        train: &mut impl FnMut(&GpuSession, u64, &[u8]) -> Result<Vec<u8>, FabricError>,
    ) -> Result<(), TrainingError> {
        let session = GpuSession::new(lease);
        let (mut saved_at, mut last_save) = (Instant::now(), Duration::ZERO);
        while progress.step < last_step {
            await_active(lease)?;
            let step = progress.step + 1;
            progress.state = train(&session, step, &progress.state)?;
            progress.step = step;
            let unsaved = step - progress.durable_step;
            if step == last_step || self.schedule.is_due(unsaved, saved_at.elapsed(), last_save) {
                let begun = Instant::now();
                self.save(progress)?;
                (saved_at, last_save) = (Instant::now(), begun.elapsed());
            }
        }
        Ok(())
    }

    fn save(&self, progress: &mut TrainingProgress) -> Result<(), TrainingError> {
        let request = SaveRequest::new(self.name.clone(), progress.version, self.fence);
        let saved = self.checkpoints.save(request.bytes(progress.state.clone()).step(progress.step))?;
        (progress.version, progress.durable_step) = (saved.version, progress.step);
        Ok(())
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

    #[test]
    fn saves_are_due_by_steps_by_time_or_by_what_they_cost() {
        let seconds = Duration::from_secs;
        let due = |schedule: SaveSchedule, steps, since, last| schedule.is_due(steps, seconds(since), seconds(last));
        assert!(!due(SaveSchedule::EverySteps(10), 9, 1_000, 0) && due(SaveSchedule::EverySteps(10), 10, 0, 0));
        assert!(due(SaveSchedule::EverySteps(0), 1, 0, 0));
        assert!(
            !due(SaveSchedule::Every(seconds(30)), 1_000, 29, 0) && due(SaveSchedule::Every(seconds(30)), 1, 30, 0)
        );
        assert!(!due(SaveSchedule::Continuous, 1_000, 9, 0) && due(SaveSchedule::Continuous, 1, 10, 0));
        assert!(!due(SaveSchedule::Continuous, 1, 97, 2) && due(SaveSchedule::Continuous, 1, 98, 2));
    }
}
