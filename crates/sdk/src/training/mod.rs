//! Training that may lose its GPU at any moment: each step is committed once.
//!
//! ```text
//!   lease active? ─► reserve the step ─► GPU work ─► save: commits the version and the step ─► complete
//!        │ no             │ done before                                                         │
//!        ▼                ▼                                                                     ▼
//!   LeaseNotActive     Duplicate, no GPU work                                               Completed
//! ```
//! The promise: a step is *committed* once. After a crash its GPU work may run again, and whatever it does outside the
//! checkpoint (mail, uploads) needs the step's key passed on.
//!
//! Absent on purpose: optimizers, data, models. The state is bytes, and a step is a kernel or a closure.

mod state;
mod step;
mod train_loop;

pub use state::{replicated_training_state, replicated_training_state_in, training_checkpoint_name};
pub use step::{TrainingBatch, TrainingStepOutcome, run_fenced_training_step, run_training_step};
pub use train_loop::{SaveSchedule, TrainingLoop, TrainingProgress};

use crate::builder::{GpuBuilder, GpuExclusivityClass};
use crate::error::FabricError;
use crate::lease::{GpuLease, LeaseStatus};
use sublet_checkpoint::ReplicatedError;
use thiserror::Error;

/// Acquires a lease for training: no other user's work is on the GPU meanwhile, and it may be parked for others.
pub fn acquire_preemptible_training_lease(min_vram: u64, lease_secs: u64) -> Result<GpuLease, FabricError> {
    GpuBuilder::new()
        .min_vram(min_vram)
        .lease_secs(lease_secs)
        .exclusivity(GpuExclusivityClass::SessionExclusive)
        .acquire()
}

/// A training step was not committed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// The lease is not active. No GPU work was started and nothing was reserved.
    #[error("the lease is {0}, and a step starts only while it is active")]
    LeaseNotActive(LeaseStatus),
    /// The GPU work failed, or the lease was lost during it. Nothing was saved.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The step could not be reserved, saved or completed. Progress must not be reported.
    #[error(transparent)]
    Replicated(#[from] ReplicatedError),
}

impl TrainingError {
    /// A word for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            TrainingError::LeaseNotActive(_) => "lease_not_active",
            TrainingError::Fabric(error) => error.code(),
            TrainingError::Replicated(error) => error.code(),
        }
    }

    /// What to do next, as a sentence.
    pub fn remedy(&self) -> &str {
        match self {
            TrainingError::LeaseNotActive(status) => status.remedy(),
            TrainingError::Fabric(error) => error.remedy(),
            TrainingError::Replicated(error) => error.remedy(),
        }
    }

    /// Whether the lease is lost: with a new one, the training goes on from the newest checkpoint.
    pub fn is_lease_lost(&self) -> bool {
        match self {
            TrainingError::LeaseNotActive(status) => status.is_over(),
            TrainingError::Fabric(error) => matches!(
                error,
                FabricError::LeaseExpired { .. } | FabricError::Revoked { .. } | FabricError::LeaseNotActive(_)
            ),
            TrainingError::Replicated(_) => false,
        }
    }
}
