//! Trains on a GPU that may be taken away at any moment.
//!
//! Another user's request may park the training (nothing is lost) or end its lease (the steps since the last save are
//! repeated). Each saved step is committed once, and a second trainer of the same job makes the first one stale.
//!
//! ```text
//!   lease ── owns the VRAM            session ── owns buffers and kernels on it
//!   checkpoint ── owns the progress   step record ── says that a step is done
//! ```
//! The "model" is a few bytes, and a step adds its number to each: so the tests can say what must come out. A real
//! program has its own kernel and its own bytes.

use sublet::replicated::{CheckpointStore, ReplicatedError};
use sublet::training::replicated_training_state_in;
pub use sublet::training::{
    SaveSchedule, TrainingBatch, TrainingError, TrainingLoop, TrainingProgress, TrainingStepOutcome,
    acquire_preemptible_training_lease, replicated_training_state, run_training_step,
};
use sublet::{FabricError, GpuLease, GpuSession, KernelArgs};

/// The kernel of one step.
pub const TRAIN_STEP: &[u8] = include_bytes!("train_step.ptx");
/// The name of that kernel.
pub const KERNEL: &str = "train_step";

/// One step: the next state of the model, computed on the GPU.
pub fn train_step(session: &GpuSession, step: u64, state: &[u8]) -> Result<Vec<u8>, FabricError> {
    let length = state.len() as u64;
    let buffer = session.mem_alloc(length)?;
    session.mem_write(&buffer, 0, state)?;
    let module = session.module_load(TRAIN_STEP)?;
    let args = KernelArgs::new().push_u64(step).push_u32(state.len() as u32).push_buffer(&buffer);
    session.launch_with_args(&module, KERNEL, [1, 1, 1], [1, 1, 1], args)?;
    session.sync()?;
    session.mem_read(&buffer, 0, length)
}

/// Opens a job in a store; the loop that is returned saves every `every` steps.
pub fn open_job(store: &CheckpointStore, job: &str, every: u64) -> Result<TrainingLoop, ReplicatedError> {
    let (checkpoints, _) = replicated_training_state_in(store)?;
    Ok(TrainingLoop::open(&checkpoints, job)?.saving(SaveSchedule::EverySteps(every)))
}

/// Trains a job up to `steps` on as many leases as that takes; `acquire` gets each.
pub fn train(
    job: &TrainingLoop,
    steps: u64,
    initial: Vec<u8>,
    acquire: impl FnMut() -> Result<GpuLease, FabricError>,
) -> Result<TrainingProgress, TrainingError> {
    job.run(steps, initial, acquire, train_step)
}
