//! A process that trains, with once-only steps.
//!
//! Each step adds its number to the state, so a state that lost, repeated or mixed up a step shows it.

use crate::common::{Quorums, checkpoints, effects, fingerprint, job};
use sublet_checkpoint::{
    CheckpointStore, EffectKey, FenceEpoch, IdempotencyOutcome, ReplicatedCheckpoint, ReplicatedError,
    ReplicatedIdempotencyStore, SaveRequest, Version, open_together,
};

/// The steps of a training.
pub const STEPS: u64 = 4;

/// A part that never changes.
const DATA: &[u8] = b"the same in each version";

/// The state after these steps.
pub fn trained(step: u64) -> String {
    (1..=step).map(|step| format!(" {step}")).collect()
}

/// One process that trains.
pub struct Trainer {
    pub checkpoints: ReplicatedCheckpoint,
    effects: ReplicatedIdempotencyStore,
}

impl Trainer {
    pub fn start(store: &CheckpointStore, replicas: &[&str], quorums: Quorums) -> Trainer {
        Trainer { checkpoints: checkpoints(store, replicas, quorums), effects: effects(store) }
    }

    /// The newest version, its step, and its state.
    pub fn newest(&self) -> Result<(Version, u64, String), ReplicatedError> {
        let Some(loaded) = self.checkpoints.load(&job())? else { return Ok((Version(0), 0, String::new())) };
        let state = String::from_utf8(loaded.part("state").expect("a part").to_vec()).expect("UTF-8");
        assert_eq!(loaded.part("data").expect("a part").as_ref(), DATA);
        Ok((loaded.version, loaded.step.expect("a step"), state))
    }

    /// Trains until the last step, and tells of each step that is acknowledged.
    pub fn train(&self, mut acknowledge: impl FnMut(u64)) -> Result<(), ReplicatedError> {
        let fence = open_together(&self.checkpoints, &job(), &self.effects, "job:7")?;
        loop {
            let (version, step, state) = self.newest()?;
            assert_eq!(state, trained(step), "the state has each step once");
            if step == STEPS {
                return Ok(());
            }
            self.step(version, step + 1, &state, fence)?;
            acknowledge(step + 1);
        }
    }

    fn step(&self, version: Version, step: u64, state: &str, fence: FenceEpoch) -> Result<(), ReplicatedError> {
        let key = EffectKey::step("job:7", step);
        let input = fingerprint(&step.to_string());
        let reserved = self.effects.reserve_for(&self.checkpoints, &job(), key.clone(), input, None, fence)?;
        if matches!(reserved.value.outcome, IdempotencyOutcome::Completed { .. }) {
            // Another process saved it since this one loaded.
            assert!(self.checkpoints.newest_step(&job())? >= Some(step), "step {step} counts as done and is not saved");
            return Ok(());
        }
        let request = SaveRequest::new(job(), version, fence).part("data", DATA).step(step);
        let request = request.part("state", format!("{state} {step}").into_bytes());
        self.checkpoints.save(request.completes(key.clone(), input))?;
        self.effects.complete(key, reserved.version, IdempotencyOutcome::Completed { effect: None }, fence)?;
        Ok(())
    }

    /// Checks that each step is recorded as completed.
    pub fn check_steps(&self) {
        let fence = open_together(&self.checkpoints, &job(), &self.effects, "job:7").expect("a fence");
        for step in 1..=STEPS {
            let key = EffectKey::step("job:7", step);
            let found = self.effects.reserve(key, fingerprint(&step.to_string()), None, fence).expect("a record");
            assert_eq!(found.value.outcome, IdempotencyOutcome::Completed { effect: None }, "step {step}");
        }
    }
}
