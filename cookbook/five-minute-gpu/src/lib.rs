//! A notebook that leases a GPU for a few minutes at a time.
//!
//! ```text
//!   run(cell) ── no lease? acquire one, for five minutes ──► GPU work ──► save the model ──► CellReport
//!                     renewed only while cells use the GPU       │ lease lost
//!                                                                ▼
//!                                     GpuEnded: a state with one sentence; run the cell again
//! ```
//! Between cells the lease is idle, so another user's request may park it, or it expires; the model is saved after each
//! cell that changed it. The next cell acquires a new lease and goes on with the saved model.
//!
//! The model is whatever serde can write; the tests have a few numbers.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};
use sublet::{
    BlockLease, Durable, DurableError, Fabric, FabricError, GpuLease, GpuSession, LeaseStatus, RenewWhen, RenewalEvent,
    RenewalManager, RenewalPolicy,
};

/// The time of a lease that is not renewed.
const LEASE_SECS: u64 = 300;
/// How long a cell waits for a parked lease.
const RESUME_WITHIN: Duration = Duration::from_secs(60);

/// A notebook with a model of type `T`.
pub struct Notebook<T> {
    fabric: Fabric,
    vram: u64,
    model: Durable<T>,
    gpu: Option<NotebookGpu>,
    renewals: RenewalManager,
}

/// The lease that the notebook has now.
struct NotebookGpu {
    session: GpuSession,
    lease: GpuLease,
}

/// What one cell cost.
#[derive(Clone, Debug, PartialEq)]
pub struct CellReport {
    /// The lease that it ran on.
    pub lease: String,
    /// VRAM leased.
    pub vram_bytes: u64,
    /// Seconds that it had the GPU.
    pub gpu_s: f64,
    /// Kernels that it launched.
    pub launches: u64,
    /// Its calls of the driver that failed.
    pub errors: u64,
}

/// A cell did not finish.
#[derive(Debug)]
pub enum CellError {
    /// The lease ended. That is a normal state of a notebook, and says so in one sentence.
    GpuEnded {
        /// Why, for people.
        reason: String,
    },
    /// There is no GPU now.
    GpuUnavailable(FabricError),
    /// The cell's own mistake.
    Failed(FabricError),
    /// The model could not be saved: it is as before the cell.
    NotSaved(DurableError),
}

impl std::fmt::Display for CellError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CellError::GpuEnded { reason } => {
                write!(f, "the GPU ended ({reason}); run the cell again to get a new one")
            }
            CellError::GpuUnavailable(error) => write!(f, "no GPU is available: {error} ({})", error.remedy()),
            CellError::Failed(error) => write!(f, "the cell failed: {error} ({})", error.remedy()),
            CellError::NotSaved(error) => write!(f, "the model was not saved: {error} ({})", error.remedy()),
        }
    }
}

impl std::error::Error for CellError {}

impl<T: Serialize + DeserializeOwned + Clone> Notebook<T> {
    /// A notebook that begins with `initial`, which is saved in the blocks.
    pub fn create(fabric: Fabric, vram: u64, initial: T, blocks: BlockLease) -> Result<Notebook<T>, DurableError> {
        let model = Durable::new(initial, blocks);
        model.checkpoint()?;
        Ok(Notebook { fabric, vram, model, gpu: None, renewals: RenewalManager::new() })
    }

    /// A notebook that goes on with the model in the blocks.
    pub fn open(fabric: Fabric, vram: u64, blocks: BlockLease) -> Result<Notebook<T>, DurableError> {
        let model = Durable::restore(blocks)?;
        Ok(Notebook { fabric, vram, model, gpu: None, renewals: RenewalManager::new() })
    }

    /// The model as it was saved last.
    pub fn model(&self) -> &T {
        &self.model
    }

    /// The lease that the notebook has, if it has one.
    pub fn lease_id(&self) -> Option<&str> {
        self.gpu.as_ref().map(|gpu| gpu.lease.lease_id())
    }

    /// Runs a cell, on the lease of the cell before if that goes on. The changed model is saved if the cell succeeds.
    pub fn run(
        &mut self,
        cell: impl FnOnce(&GpuSession, &mut T) -> Result<(), FabricError>,
    ) -> Result<CellReport, CellError> {
        self.acquire()?;
        let Some(gpu) = &self.gpu else { return Err(ended("no lease")) };
        let (before, begun, mut model) = (gpu.lease.usage(), Instant::now(), self.model.clone());
        let result = cell(&gpu.session, &mut model);
        let (after, lease) = (gpu.lease.usage(), gpu.lease.lease_id().to_owned());
        if let Err(error) = result {
            return Err(self.explain(error));
        }
        let previous = std::mem::replace(&mut *self.model, model);
        if let Err(error) = self.model.checkpoint() {
            *self.model = previous;
            return Err(CellError::NotSaved(error));
        }
        Ok(CellReport {
            lease,
            vram_bytes: after.vram_bytes,
            gpu_s: begun.elapsed().as_secs_f64(),
            launches: after.launches - before.launches,
            errors: after.errors - before.errors,
        })
    }

    /// Renews the lease if cells used it, at `now` in Unix seconds. A lease that was lost is reported once.
    pub fn tick(&mut self, now: f64) -> Option<CellError> {
        let lost = self.renewals.tick(now).into_iter().find_map(|event| match event {
            RenewalEvent::Preempted { reason, .. } => Some(reason),
            _ => None,
        })?;
        self.gpu = None;
        Some(ended(lost))
    }

    /// A lease for the next cell: the one there is, or a new one.
    fn acquire(&mut self) -> Result<(), CellError> {
        if let Some(gpu) = &self.gpu {
            match gpu.lease.status() {
                LeaseStatus::Active => return Ok(()),
                status if status.is_held() && gpu.lease.resume(RESUME_WITHIN).is_ok() => return Ok(()),
                // It ended between two cells, when nothing of it was in use.
                _ => self.gpu = None,
            }
        }
        let lease = self.fabric.alloc_gpu().min_vram(self.vram).lease_secs(LEASE_SECS).acquire();
        let lease = lease.map_err(CellError::GpuUnavailable)?;
        let policy = RenewalPolicy::renewing(RenewWhen::RemainingBelow(0.25));
        self.renewals.register(lease.lease_id(), lease.expires_at_unix_secs(), policy);
        self.gpu = Some(NotebookGpu { session: GpuSession::new(&lease), lease });
        Ok(())
    }

    /// What an error of a cell means. After the end of the lease the cell may be run again.
    fn explain(&mut self, error: FabricError) -> CellError {
        let is_over = self.gpu.as_ref().is_none_or(|gpu| gpu.lease.status().is_over());
        match error {
            error if is_over => {
                self.gpu = None;
                ended(error.to_string())
            }
            error @ FabricError::Disconnected { .. } => CellError::GpuUnavailable(error),
            error => CellError::Failed(error),
        }
    }
}

fn ended(reason: impl Into<String>) -> CellError {
    CellError::GpuEnded { reason: reason.into() }
}
