//! What is added up while a replay runs: bytes times time, per tenant and in all.
//!
//! Everything is constant between two events, so an integral is a sum of products.
//! Time is cut into slots of equal length, and fairness is judged slot by slot:
//! over a run that lasts until all work is done, every tenant gets all that it wanted.
//!
//! The demand of a tenant in a slot is the most that it could have used there: the bytes of
//! each of its jobs, for as long as the job waited or ran, but no longer than it had work
//! left.

use crate::host_gpus::HostGpus;
use crate::stats::{fair_shares, jain};
use crate::trace::Trace;
use std::collections::BTreeMap;
use sublet_core::ids::GpuId;
use sublet_core::units::{Bytes, Span, Time};

/// The integrals of one run.
#[derive(Clone, Debug)]
pub struct UsageIntegrals {
    now: Time,
    began: Time,
    slot: Span,
    slot_began: Time,
    capacity: u64,
    free: Vec<u64>,
    held: u64,
    waiting: u64,
    /// How many jobs wait: by number of GPUs, then by bytes on each.
    waiting_sizes: BTreeMap<u16, BTreeMap<u64, u32>>,
    /// True if a waiting job would fit; `None` if that must be computed again.
    fits: Option<bool>,
    jobs: Vec<JobPresence>,
    /// Jobs that wait or run, in no order.
    present: Vec<u32>,
    tenants: Vec<TenantIntegrals>,
    slot_held: u128,
    slot_queue: u128,
    /// Byte·µs granted.
    pub granted: u128,
    /// µs in which a job waited.
    pub waiting_us: u64,
    /// µs in which a job waited although it would have fitted.
    pub fitting_us: u64,
    /// Byte·µs that lay idle while a request waited.
    pub idle_waiting: u128,
    /// One for each slot.
    pub slots: Vec<UsageSlot>,
    /// Jain's index of each contended slot.
    pub jains: Vec<f64>,
}

/// One job in the present slot.
#[derive(Clone, Debug)]
struct JobPresence {
    tenant: u32,
    gpus: u16,
    vram: u64,
    /// Its index in `present`; `None` if it neither waits nor runs.
    present_index: Option<u32>,
    /// When it arrived, or the slot began, whichever was later.
    entered: Time,
    /// Its work left then.
    left: Span,
    /// How long it ran since then, without its present hold.
    ran: Span,
    /// When its present hold began.
    running: Option<Time>,
}

impl JobPresence {
    fn bytes(&self) -> u64 {
        self.vram * u64::from(self.gpus)
    }
}

/// What one tenant got and could have used.
#[derive(Clone, Debug, Default)]
struct TenantIntegrals {
    slot_held: u128,
    slot_demand: u128,
    service: u128,
    contended_service: f64,
    contended_share: f64,
}

/// What one tenant got, in the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct TenantUsage {
    /// Byte·µs held.
    pub service: u128,
    /// Byte·µs held in contended slots.
    pub contended_service: f64,
    /// Its fair share of those slots.
    pub contended_share: f64,
}

/// The mean of one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsageSlot {
    /// When it began.
    pub began: Time,
    /// How long it was; the last one may be short.
    pub length: Span,
    /// How many waited.
    pub queue: f64,
    /// Held bytes as a share of all.
    pub utilisation: f64,
}

impl UsageIntegrals {
    /// Empty integrals that begin at `began`.
    pub fn new(host_gpus: &HostGpus, margin: Bytes, trace: &Trace, began: Time, slot: Span) -> UsageIntegrals {
        let presence = |job: &crate::trace::TraceJob| JobPresence {
            tenant: job.tenant,
            gpus: job.gpus,
            vram: job.vram.0,
            present_index: None,
            entered: began,
            left: job.duration,
            ran: Span::ZERO,
            running: None,
        };
        let free: Vec<u64> = host_gpus.gpus.iter().map(|total| total.less(margin).0).collect();
        UsageIntegrals {
            now: began,
            began,
            slot: Span(slot.0.max(1)),
            slot_began: began,
            capacity: free.iter().sum(),
            free,
            held: 0,
            waiting: 0,
            waiting_sizes: BTreeMap::new(),
            fits: None,
            jobs: trace.jobs.iter().map(presence).collect(),
            present: Vec::new(),
            tenants: vec![TenantIntegrals::default(); trace.tenants.len()],
            slot_held: 0,
            slot_queue: 0,
            granted: 0,
            waiting_us: 0,
            fitting_us: 0,
            idle_waiting: 0,
            slots: Vec::new(),
            jains: Vec::new(),
        }
    }

    /// Bytes that can be leased in all.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
    /// The time since the run began.
    pub fn elapsed(&self) -> Span {
        self.now.since(self.began)
    }
    /// Byte·µs that could have been leased so far.
    pub fn leasable_byte_us(&self) -> u128 {
        u128::from(self.capacity) * u128::from(self.elapsed().0)
    }
    /// What a tenant got.
    pub fn tenant_usage(&self, tenant: usize) -> TenantUsage {
        let TenantIntegrals { service, contended_service, contended_share, .. } = self.tenants[tenant];
        TenantUsage { service, contended_service, contended_share }
    }

    /// Advances the time to `to`; nothing changed since the last call.
    pub fn advance(&mut self, to: Time) {
        while to.since(self.slot_began) >= self.slot {
            self.integrate(self.slot_began + self.slot);
            self.close_slot();
        }
        self.integrate(to);
    }

    fn integrate(&mut self, to: Time) {
        let us = to.since(self.now).0;
        if us == 0 {
            return;
        }
        self.now = to;
        let held = u128::from(self.held) * u128::from(us);
        self.granted += held;
        self.slot_held += held;
        self.slot_queue += u128::from(self.waiting) * u128::from(us);
        if self.waiting > 0 {
            self.waiting_us += us;
            self.idle_waiting += u128::from(self.capacity.saturating_sub(self.held)) * u128::from(us);
            if self.any_waiter_fits() {
                self.fitting_us += us;
            }
        }
    }

    /// True if a waiting job fits into the free bytes, even if the scheduler reserves them for another.
    fn any_waiter_fits(&mut self) -> bool {
        if let Some(fits) = self.fits {
            return fits;
        }
        let room = |(gpus, sizes): (&u16, &BTreeMap<u64, u32>)| {
            let least = sizes.keys().next().copied().unwrap_or(u64::MAX);
            self.free.iter().filter(|free| **free >= least).count() >= usize::from(*gpus)
        };
        let fits = self.waiting_sizes.iter().any(room);
        self.fits = Some(fits);
        fits
    }

    fn close_slot(&mut self) {
        let length = self.now.since(self.slot_began);
        for n in 0..self.present.len() {
            self.credit_tenant(self.present[n]);
        }
        let there = self.capacity as f64 * length.0 as f64;
        let wanting: Vec<usize> = (0..self.tenants.len()).filter(|n| self.tenants[*n].slot_demand > 0).collect();
        let demands: Vec<f64> = wanting.iter().map(|n| self.tenants[*n].slot_demand as f64).collect();
        if wanting.len() > 1 && demands.iter().sum::<f64>() > there {
            let shares = fair_shares(&demands, there);
            let mut ratios = Vec::with_capacity(wanting.len());
            for (tenant, share) in wanting.iter().zip(shares) {
                let tenant = &mut self.tenants[*tenant];
                let got = tenant.slot_held as f64;
                tenant.contended_service += got;
                tenant.contended_share += share;
                ratios.push(got / share);
            }
            self.jains.push(jain(&ratios));
        }
        for tenant in &mut self.tenants {
            (tenant.slot_held, tenant.slot_demand) = (0, 0);
        }
        let us = length.0.max(1) as f64;
        self.slots.push(UsageSlot {
            began: self.slot_began,
            length,
            queue: self.slot_queue as f64 / us,
            utilisation: self.slot_held as f64 / there.max(1.0),
        });
        (self.slot_held, self.slot_queue) = (0, 0);
        self.slot_began = self.now;
    }

    /// Closes the last slot at the end of the run.
    pub fn close(&mut self) {
        if self.now > self.slot_began || self.slots.is_empty() {
            self.close_slot();
        }
    }

    /// Adds to the tenant what a job got and could have used since it arrived or the slot began.
    fn credit_tenant(&mut self, job: u32) {
        let now = self.now;
        let job = &mut self.jobs[job as usize];
        if let Some(since) = &mut job.running {
            job.ran = job.ran + now.since(*since);
            *since = now;
        }
        let bytes = u128::from(job.bytes());
        let (held, could) = (u128::from(job.ran.0), u128::from(now.since(job.entered).min(job.left).0));
        let tenant = &mut self.tenants[job.tenant as usize];
        tenant.slot_held += bytes * held;
        tenant.service += bytes * held;
        tenant.slot_demand += bytes * could;
        job.left = Span(job.left.0.saturating_sub(job.ran.0));
        (job.entered, job.ran) = (now, Span::ZERO);
    }

    /// A job begins to wait.
    pub fn job_waits(&mut self, number: u32) {
        let job = &mut self.jobs[number as usize];
        if job.present_index.is_none() {
            (job.present_index, job.entered) = (Some(self.present.len() as u32), self.now);
            self.present.push(number);
        }
        self.waiting += 1;
        *self.waiting_sizes.entry(job.gpus).or_default().entry(job.vram).or_default() += 1;
        self.fits = None;
    }

    /// A job that waited is served.
    pub fn job_granted(&mut self, number: u32, gpus: &[GpuId]) {
        let job = &mut self.jobs[number as usize];
        job.running = Some(self.now);
        self.held += job.bytes();
        self.waiting -= 1;
        for gpu in gpus {
            self.free[usize::from(gpu.0)] -= job.vram;
        }
        self.remove_waiting_size(number);
    }

    /// A job that waited does not any more, and was not served.
    pub fn job_left_queue(&mut self, number: u32) {
        self.waiting -= 1;
        self.remove_waiting_size(number);
    }

    fn remove_waiting_size(&mut self, number: u32) {
        let job = &self.jobs[number as usize];
        if let Some(sizes) = self.waiting_sizes.get_mut(&job.gpus)
            && let Some(left) = sizes.get_mut(&job.vram)
        {
            *left -= 1;
            if *left == 0 {
                sizes.remove(&job.vram);
            }
            if sizes.is_empty() {
                self.waiting_sizes.remove(&job.gpus);
            }
        }
        self.fits = None;
    }

    /// A job gives its GPUs back, whether its work is done or not.
    pub fn job_released(&mut self, number: u32, gpus: &[GpuId]) {
        let now = self.now;
        let job = &mut self.jobs[number as usize];
        if let Some(since) = job.running.take() {
            job.ran = job.ran + now.since(since);
        }
        self.held -= job.bytes();
        for gpu in gpus {
            self.free[usize::from(gpu.0)] += job.vram;
        }
        self.fits = None;
    }

    /// A job is done, or was not let in.
    pub fn job_left(&mut self, number: u32) {
        if let Some(present_index) = self.jobs[number as usize].present_index.take() {
            self.credit_tenant(number);
            self.present.swap_remove(present_index as usize);
            if let Some(moved) = self.present.get(present_index as usize) {
                self.jobs[*moved as usize].present_index = Some(present_index);
            }
        }
    }
}
