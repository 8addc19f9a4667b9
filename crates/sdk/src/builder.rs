//! A request for a lease, and how it becomes one.
//!
//! ```text
//!   acquire              waits in the queue
//!   try_acquire          granted now, or `CapacityExceeded`
//!   acquire_or_smaller   the full size now, else the largest that fits now, else waits for the full size
//! ```
//! A program that `sublet run` started has a lease already. If that is large enough, it is the one that is returned.

use crate::client::{CallError, DaemonClient, PollUntil, RESTART, sockets};
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::lease::registry::BindingClaim;
use crate::lease::{GpuLease, LeaseOwnership, LeaseStatus};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{EndReason, Exclusivity, Lease, LeaseRequest, LeaseState, Preempt, ProcessRef, Tier, Vram};

/// How long one poll for the grant lasts.
const POLL: Duration = Duration::from_secs(30);
/// The pause after a poll that got no answer.
const PAUSE: Duration = Duration::from_millis(200);
/// How long an answer about the inherited lease may take.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// Which other leases may be on the GPU at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuExclusivityClass {
    /// Any lease that fits beside it.
    #[default]
    Shared,
    /// No lease of another user; leases of the same user may join.
    SessionExclusive,
    /// No other lease at all.
    DeviceExclusive,
}

impl From<GpuExclusivityClass> for Exclusivity {
    fn from(class: GpuExclusivityClass) -> Exclusivity {
        match class {
            GpuExclusivityClass::Shared => Exclusivity::Shared,
            GpuExclusivityClass::SessionExclusive => Exclusivity::SessionExclusive,
            GpuExclusivityClass::DeviceExclusive => Exclusivity::DeviceExclusive,
        }
    }
}

/// A request for a lease.
#[derive(Clone, Debug)]
pub struct GpuBuilder {
    fabric: Option<Fabric>,
    request: LeaseRequest,
    is_separate: bool,
    is_unbound: bool,
}

impl Default for GpuBuilder {
    fn default() -> GpuBuilder {
        GpuBuilder::new()
    }
}

impl GpuBuilder {
    /// A whole GPU at tier batch, for the daemon's usual time.
    pub fn new() -> GpuBuilder {
        let request = LeaseRequest {
            vram_bytes: Vram::Whole,
            gpus: 1,
            ttl_s: None,
            time_s: None,
            tier: Tier::Batch,
            priority: 0,
            exclusivity: Exclusivity::Shared,
            preempt: None,
            has_hook: false,
            may_lose: false,
            notice: None,
            accept_smaller_bytes: None,
            on: None,
            name: None,
            wait_s: None,
            pid: None,
        };
        GpuBuilder { fabric: None, request, is_separate: false, is_unbound: false }
    }

    /// At this daemon, instead of the one that [`Fabric::connect`] finds.
    pub fn on(mut self, fabric: Fabric) -> GpuBuilder {
        self.fabric = Some(fabric);
        self
    }

    /// VRAM on each GPU, in bytes.
    pub fn min_vram(mut self, bytes: u64) -> GpuBuilder {
        self.request.vram_bytes = Vram::Bytes(bytes);
        self
    }

    /// Seconds from a renewal to the expiry.
    pub fn lease_secs(mut self, seconds: u64) -> GpuBuilder {
        self.request.ttl_s = Some(seconds);
        self
    }

    /// Which other leases may be on the GPU at the same time.
    pub fn exclusivity(mut self, class: GpuExclusivityClass) -> GpuBuilder {
        self.request.exclusivity = class.into();
        self
    }

    /// Which request goes first when not all fit.
    pub fn tier(mut self, tier: Tier) -> GpuBuilder {
        self.request.tier = tier;
        self
    }

    /// How many GPUs, all granted together.
    pub fn gpus(mut self, number: u32) -> GpuBuilder {
        self.request.gpus = number;
        self
    }

    /// Only on this GPU: its index, its UUID, or a text in its model.
    pub fn on_gpu(mut self, gpu: impl Into<String>) -> GpuBuilder {
        self.request.on = Some(gpu.into());
        self
    }

    /// A name for people; `sublet stop` and others find the lease by it.
    pub fn name(mut self, name: impl Into<String>) -> GpuBuilder {
        self.request.name = Some(name.into());
        self
    }

    /// What may be done to the lease when other requests need its GPUs.
    pub fn preempt(mut self, preempt: Preempt) -> GpuBuilder {
        self.request.preempt = Some(preempt);
        self
    }

    /// How long `acquire` stays in the queue; whole seconds. Without it, a day.
    pub fn wait(mut self, patience: Duration) -> GpuBuilder {
        self.request.wait_s = Some(patience.as_secs());
        self
    }

    /// A lease of its own, also in a program that `sublet run` started on one.
    pub fn separate(mut self) -> GpuBuilder {
        self.is_separate = true;
        self
    }

    /// A lease that does not belong to this process, as for work that other processes do. It lasts only while it is
    /// renewed (`RenewalManager`), and cannot be parked.
    pub fn unbound(mut self) -> GpuBuilder {
        self.is_unbound = true;
        self
    }

    /// Waits until the lease is granted.
    pub fn acquire(self) -> Result<GpuLease, FabricError> {
        let fabric = self.fabric.clone().map_or_else(Fabric::connect, Ok)?;
        let client = fabric.client();
        if let Some(lease) = self.inherited(client)? {
            return Ok(lease);
        }
        let mut request = self.request;
        let may_bind = !self.is_unbound && client.socket().is_some();
        let claim = if may_bind { BindingClaim::take() } else { None };
        // Not by its pid: in a container the daemon knows this process by another one.
        request.pid = claim.is_some().then_some(ProcessRef::Caller);
        let failed = |error| FabricError::of_call(client, None, error);
        let lease = client.request_lease(&request).map_err(failed)?;
        let lease = PendingRequest { client, id: lease.id.clone(), is_granted: false }.wait(lease)?;
        GpuLease::new(client.clone(), lease, claim, LeaseOwnership::Owned)
    }

    /// The lease if it can be granted now; `CapacityExceeded` otherwise.
    pub fn try_acquire(mut self) -> Result<GpuLease, FabricError> {
        self.request.wait_s = Some(0);
        self.acquire()
    }

    /// The lease in full if it can be granted now, else the largest of at least `least` bytes that can; if there is
    /// none, waits for the full size. [`GpuLease::vram_bytes`] says what it became.
    pub fn acquire_or_smaller(mut self, least: u64) -> Result<GpuLease, FabricError> {
        self.request.accept_smaller_bytes = Some(least);
        self.acquire()
    }

    /// The lease that this program was started on, if it covers the request.
    fn inherited(&self, client: &DaemonClient) -> Result<Option<GpuLease>, FabricError> {
        let name = sockets::variable("SUBLET_LEASE").filter(|_| !self.is_separate && !self.is_unbound);
        let Some(name) = name else { return Ok(None) };
        let Ok(lease) = client.lease(&name.to_string_lossy(), LOOK_WITHIN) else { return Ok(None) };
        // Another daemon has leases of the same names.
        if std::env::var("SUBLET_FENCE").ok() != lease.fence.map(|fence| fence.to_string()) {
            return Ok(None);
        }
        let is_large_enough = match self.request.vram_bytes {
            Vram::Bytes(bytes) => lease.vram_bytes.is_some_and(|leased| leased >= bytes),
            Vram::Whole => lease.requested_vram_bytes == Vram::Whole,
        };
        if !LeaseStatus::of(&lease).is_held() || !is_large_enough || lease.gpus < self.request.gpus {
            return Ok(None);
        }
        GpuLease::new(client.clone(), lease, BindingClaim::take(), LeaseOwnership::Inherited).map(Some)
    }
}

/// A request in the queue. It leaves the queue if this is dropped before the grant.
struct PendingRequest<'a> {
    client: &'a DaemonClient,
    id: String,
    is_granted: bool,
}

impl PendingRequest<'_> {
    fn wait(mut self, mut lease: Lease) -> Result<Lease, FabricError> {
        let mut silent_since = None;
        loop {
            match lease.state {
                LeaseState::Waiting => {}
                LeaseState::Ending | LeaseState::Ended => return Err(not_granted(&lease)),
                _ => {
                    self.is_granted = true;
                    return Ok(lease);
                }
            }
            match self.client.poll(&self.id, POLL, PollUntil::Granted) {
                Ok(now) => (lease, silent_since) = (now, None),
                Err(error) if self.is_worth_waiting(&error, &mut silent_since) => thread::sleep(PAUSE),
                Err(error) => return Err(FabricError::of_call(self.client, Some(&self.id), error)),
            }
        }
    }

    /// Whether the daemon may only be restarting: the request is still in its queue then.
    fn is_worth_waiting(&self, error: &CallError, silent_since: &mut Option<Instant>) -> bool {
        error.is_silence() && silent_since.get_or_insert_with(Instant::now).elapsed() < RESTART
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_granted {
            // It ends by itself when this process does.
            let _ = self.client.release(&self.id, None, Duration::from_secs(2));
        }
    }
}

fn not_granted(lease: &Lease) -> FabricError {
    match &lease.ended {
        Some(end) if end.reason == EndReason::WaitOver => FabricError::CapacityExceeded {
            code: "wait_over",
            detail: end.sentence.clone(),
            hint: None,
            retry_after_s: None,
        },
        end => FabricError::ended(&lease.id, LeaseStatus::of(lease), end.as_ref()),
    }
}
