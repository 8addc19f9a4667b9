//! One training step: its order is what makes it happen once.
//!
//! The save commits the new version and the step together. So a crash between the save and `complete` repeats nothing:
//! the next reservation finds the save and answers that the step is done.

use super::{TrainingError, training_checkpoint_name};
use crate::error::FabricError;
use crate::lease::{GpuLease, LeaseStatus};
use crate::session::{GpuSession, KernelArgs};
use sublet_checkpoint::{
    EffectFingerprint, EffectKey, FenceEpoch, IdempotencyOutcome, ReplicatedCheckpoint, ReplicatedIdempotencyStore,
    SaveRequest, Version,
};

/// The input of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingBatch {
    /// The job; its checkpoint and its steps have its name.
    pub job_id: String,
    /// The number of the step. Steps only grow.
    pub step: u64,
    /// What the kernel gets in its buffer.
    pub input: Vec<u8>,
    /// How many bytes of the buffer are the new state.
    pub output_len: u32,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrainingStepOutcome {
    /// It was done and committed.
    Completed {
        /// The job.
        job_id: String,
        /// The step.
        step: u64,
        /// The new state, as it was saved.
        output: Vec<u8>,
        /// The version of the checkpoint that has it.
        version: Version,
    },
    /// It was committed before, with the same input. The GPU was not used.
    Duplicate {
        /// The job.
        job_id: String,
        /// The step.
        step: u64,
    },
}

/// Runs one step of a job with a single trainer: its names were never opened with a fence.
///
/// The kernel is called with one thread, as `kernel(u64 step, u32 output_len, u8 *buffer)`. `expected` is the newest
/// version of the checkpoint; `Version(0)` if there is none.
pub fn run_training_step(
    checkpoints: &mut ReplicatedCheckpoint,
    effects: &mut ReplicatedIdempotencyStore,
    lease: &GpuLease,
    module: &[u8],
    kernel: &str,
    batch: TrainingBatch,
    expected: Version,
) -> Result<TrainingStepOutcome, TrainingError> {
    run_fenced_training_step(checkpoints, effects, lease, module, kernel, batch, expected, FenceEpoch(1))
}

/// The same under a fence that `open_together` issued: a process that opens the job later makes this one stale.
#[expect(clippy::too_many_arguments, reason = "the one of `run_training_step` and the fence")]
pub fn run_fenced_training_step(
    checkpoints: &mut ReplicatedCheckpoint,
    effects: &mut ReplicatedIdempotencyStore,
    lease: &GpuLease,
    module: &[u8],
    kernel: &str,
    batch: TrainingBatch,
    expected: Version,
    fence: FenceEpoch,
) -> Result<TrainingStepOutcome, TrainingError> {
    let status = lease.status();
    if status != LeaseStatus::Active {
        return Err(TrainingError::LeaseNotActive(status));
    }
    let name = training_checkpoint_name(&batch.job_id);
    let (key, print) = (EffectKey::step(batch.job_id.clone(), batch.step), fingerprint(&batch, kernel, module));
    let reserved = effects.reserve_for(checkpoints, &name, key.clone(), print, None, fence)?;
    if matches!(reserved.value.outcome, IdempotencyOutcome::Completed { .. }) {
        return Ok(TrainingStepOutcome::Duplicate { job_id: batch.job_id, step: batch.step });
    }
    let output = compute(lease, module, kernel, &batch)?;
    let request = SaveRequest::new(name, expected, fence).bytes(output.clone()).step(batch.step);
    let saved = checkpoints.save(request.completes(key.clone(), print))?;
    effects.complete(key, reserved.version, IdempotencyOutcome::Completed { effect: None }, fence)?;
    Ok(TrainingStepOutcome::Completed { job_id: batch.job_id, step: batch.step, output, version: saved.version })
}

/// The GPU work of a step. What it allocates is freed before it returns, also after an error.
fn compute(lease: &GpuLease, module: &[u8], kernel: &str, batch: &TrainingBatch) -> Result<Vec<u8>, FabricError> {
    let session = GpuSession::new(lease);
    let bytes = (batch.input.len() as u64).max(batch.output_len.into());
    let buffer = session.mem_alloc(bytes)?;
    session.mem_write(&buffer, 0, &batch.input)?;
    let module = session.module_load(module)?;
    let args = KernelArgs::new().push_u64(batch.step).push_u32(batch.output_len).push_buffer(&buffer);
    session.launch_with_args(&module, kernel, [1, 1, 1], [1, 1, 1], args)?;
    session.sync()?;
    let output = session.mem_read(&buffer, 0, batch.output_len)?;
    session.module_unload(module)?;
    session.mem_free(buffer)?;
    Ok(output)
}

/// The hash of everything that the step depends on. Each part has its length, so that no two differ only in where one
/// ends.
fn fingerprint(batch: &TrainingBatch, kernel: &str, module: &[u8]) -> EffectFingerprint {
    let mut text = Vec::new();
    for part in [batch.job_id.as_bytes(), kernel.as_bytes(), module, &batch.input] {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part);
    }
    text.extend_from_slice(&batch.step.to_le_bytes());
    text.extend_from_slice(&batch.output_len.to_le_bytes());
    EffectFingerprint::of(&text)
}
