//! A lease that this program has: its status, its expiry, what was done on it.
//!
//! ```text
//!   GpuBuilder ── acquire ──► GpuLease ── drop ──► given back
//!                               │ status, check: from atomics that a watcher thread keeps up to date (local, watch)
//!                               └── registry: found by id, for renewal
//! ```
//! Absent on purpose: the GPU's memory and kernels (`session`) and renewal (`renewal`).

pub(crate) mod local;
pub(crate) mod registry;
mod status;
mod watch;

pub use status::LeaseStatus;

use crate::client::{DaemonClient, RESTART};
use crate::error::FabricError;
use local::LocalLease;
use registry::BindingClaim;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use sublet_wire::{ErrorCount, Lease};

/// How long dropping a lease waits for the daemon. A lease that is bound to a process ends with it anyway.
const DROP_WITHIN: Duration = Duration::from_secs(2);

/// A granted lease. It is given back when this is dropped.
#[derive(Debug)]
pub struct GpuLease {
    local: Arc<LocalLease>,
    ownership: LeaseOwnership,
}

/// What happens to the lease when the guard is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseOwnership {
    /// It is given back.
    Owned,
    /// Nothing: `sublet run` started this program on it, and gives it back.
    Inherited,
}

/// What was done on a lease.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeaseUsage {
    /// VRAM leased on each GPU.
    pub vram_bytes: u64,
    /// How many GPUs.
    pub gpus: u32,
    /// Seconds since the grant.
    pub held_s: f64,
    /// Kernels that this process launched with `GpuSession`.
    pub launches: u64,
    /// Calls of the driver by `GpuSession` that failed.
    pub errors: u64,
    /// Bytes that `GpuSession` copied to GPUs.
    pub bytes_written: u64,
    /// Bytes that `GpuSession` copied from GPUs.
    pub bytes_read: u64,
    /// The most VRAM that its processes had on one GPU at any reading; `None` if there was none.
    pub peak_bytes: Option<u64>,
    /// Errors of all its processes by `CUresult`, as Sublet's library in them counts; `None` without the library.
    pub counted_errors: Option<Vec<ErrorCount>>,
}

impl GpuLease {
    /// Takes charge of a granted lease, and begins to watch it.
    pub(crate) fn new(
        client: DaemonClient,
        lease: Lease,
        claim: Option<BindingClaim>,
        ownership: LeaseOwnership,
    ) -> Result<GpuLease, FabricError> {
        let is_bound = claim.is_some() || ownership == LeaseOwnership::Inherited;
        let lease = GpuLease { local: Arc::new(LocalLease::new(client, lease, is_bound)), ownership };
        if let Some(claim) = claim {
            claim.use_for(&lease.local);
        }
        registry::add(&lease.local);
        watch::start(&lease.local)?;
        Ok(lease)
    }

    /// What this process knows of it.
    pub(crate) fn local(&self) -> &Arc<LocalLease> {
        &self.local
    }

    /// Its id, such as `L7`.
    pub fn lease_id(&self) -> &str {
        self.local.id()
    }

    /// When it expires unless it is renewed, in Unix seconds; 0 if that is not known, as while it is parked.
    pub fn expires_at_unix_secs(&self) -> u64 {
        self.local.latest().expires_unix_s.unwrap_or_default().max(0.0) as u64
    }

    /// Its status. The daemon is asked only if the time is over by what is known here.
    pub fn status(&self) -> LeaseStatus {
        self.local.status()
    }

    /// Whether GPU work may be done now; the error names the situation and the remedy.
    ///
    /// This is what `GpuSession` checks before every call. A parked lease passes: the call asks for its memory back.
    pub fn check(&self) -> Result<(), FabricError> {
        self.local.check()
    }

    /// The fence of the grant: it only grows, and a call with an older one is refused. Checkpoints have fences of their
    /// own, which their register issues.
    pub fn epoch(&self) -> u64 {
        self.local.fence()
    }

    /// VRAM leased on each GPU.
    pub fn vram_bytes(&self) -> u64 {
        self.local.latest().vram_bytes.unwrap_or_default()
    }

    /// The UUIDs of its GPUs.
    pub fn gpu_uuids(&self) -> Vec<String> {
        self.local.latest().gpu_uuids
    }

    /// Whether it is bound to this process: the daemon renews it by what the process does, and can park it.
    pub fn is_bound(&self) -> bool {
        self.local.is_bound()
    }

    /// The lease as the daemon described it last.
    pub fn description(&self) -> Lease {
        self.local.latest()
    }

    /// What was done on it so far.
    pub fn usage(&self) -> LeaseUsage {
        let (lease, work) = (self.local.latest(), &self.local.work);
        let granted = lease.granted_unix_s.map(|granted| crate::clock::unix_now_s() - granted);
        LeaseUsage {
            vram_bytes: lease.vram_bytes.unwrap_or_default(),
            gpus: lease.gpus,
            held_s: granted.unwrap_or_default().max(0.0),
            launches: work.launches.load(Relaxed),
            errors: work.errors.load(Relaxed),
            bytes_written: work.bytes_written.load(Relaxed),
            bytes_read: work.bytes_read.load(Relaxed),
            peak_bytes: lease.peak_bytes,
            counted_errors: lease.calls.map(|calls| calls.errors),
        }
    }

    /// Says that the program uses the lease in a way that `GpuSession` does not see, such as through another library.
    pub fn note_activity(&self) {
        self.local.count_activity();
    }

    /// Asks for the memory of a parked lease back, and waits until it is there, for at most `patience`.
    pub fn resume(&self, patience: Duration) -> Result<(), FabricError> {
        let deadline = Instant::now() + patience;
        let mut is_asked = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.status() {
                LeaseStatus::Active => return Ok(()),
                LeaseStatus::Parked if !is_asked => {
                    self.local.ask_to_resume()?;
                    is_asked = true;
                }
                status if status.is_held() && !left.is_zero() => self.local.await_change(status, left),
                status if status.is_held() => return Err(FabricError::LeaseNotActive(status)),
                _ => self.check()?,
            }
        }
    }

    /// Gives the lease back, and says whether that succeeded. A lease that is over already is given back.
    pub fn release(self) -> Result<(), FabricError> {
        self.give_back(RESTART)
    }

    fn give_back(&self, within: Duration) -> Result<(), FabricError> {
        if !self.local.begin_release() || self.ownership == LeaseOwnership::Inherited {
            return Ok(());
        }
        match self.local.client().release(self.lease_id(), Some(self.epoch()), within) {
            Ok(_) => Ok(()),
            Err(error) => match FabricError::of_call(self.local.client(), Some(self.lease_id()), error) {
                FabricError::Revoked { .. } | FabricError::Fenced { .. } => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl Drop for GpuLease {
    fn drop(&mut self) {
        // Nothing is known to do about a failure here. The lease expires, or ends with the process.
        let _ = self.give_back(DROP_WITHIN);
    }
}
