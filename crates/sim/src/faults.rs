//! Faults of the host, the daemon and the GPUs, calls of operators, and calls without the right to make them.

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::driver::deep_after;
use crate::jobs::{JobStage, SimJob, draw_request};
use crate::shape::{S, draw_policy, with_parking};
use crate::sim::Sim;
use crate::timers::Timer;
use crate::world::GpuFault;
use sublet_core::event::Event;
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_core::ids::{Fence, LeaseId, ProcKey};
use sublet_core::loss::Loss;
use sublet_core::units::{Bytes, Span};

impl Sim<'_> {
    // ---- unleased processes ---------------------------------------------------------

    pub(crate) fn schedule_short_unleased(&mut self) {
        let lonely = self.shape.unleased.is_monitored && self.shape.unleased.one_at_a_time;
        if self.shape.faults.unleased_s > 0 && !self.calm && !lonely {
            let delay = self.rng.within(S / 2, self.shape.faults.unleased_s * S);
            self.timers.set(self.t + delay, Timer::ShortUnleased);
        }
    }

    pub(crate) fn start_short_unleased(&mut self) -> Result<(), Violation> {
        self.schedule_short_unleased();
        if self.calm {
            return Ok(());
        }
        let tree = self.world.spawn();
        let gpu = self.rng.below(self.world.gpus.len() as u64) as usize;
        let most = self.rng.pick(&[300, 4_000, 20_000]);
        let bytes = Bytes::mib(self.rng.within(1, most));
        let graphics = self.rng.chance(200);
        let process = self.world.trees[&tree].live[0];
        self.world.allocate(gpu, process, bytes, graphics);
        self.world.gpus[gpu].uncapped_use_us = self.t;
        let stay = self.rng.within(S, 60 * S);
        self.timers.set(self.t + stay, Timer::Exit(tree));
        Ok(())
    }

    // ---- faults ------------------------------------------------------------

    pub(crate) fn schedule_fault(&mut self) {
        if self.shape.faults.every_s > 0 && !self.calm {
            let delay = self.rng.within(S, self.shape.faults.every_s * S);
            self.timers.set(self.t + delay, Timer::Fault);
        }
    }

    pub(crate) fn inject_fault(&mut self) -> Result<(), Violation> {
        self.schedule_fault();
        if self.calm {
            return Ok(());
        }
        match self.rng.below(15) {
            0..=2 => self.stall_short(),
            3..=4 => self.stall_long(),
            5 => return self.suspend(),
            6 => self.jump_wall_clock(),
            7 if self.daemon.is_some() => self.die(false),
            8 if self.daemon.is_some() && self.rng.chance(300) => self.die(true),
            9 => self.fill_disk(),
            10 => return self.reload_configuration(),
            11 => self.change_gpu_facts(),
            _ => self.break_gpu(),
        }
        Ok(())
    }

    fn stall_short(&mut self) {
        let length = self.rng.within(S, 9 * S);
        self.stall(length);
    }

    fn stall_long(&mut self) {
        let length = self.rng.within(9 * S, 3 * self.shape.ttl_max_s * S);
        self.stall(length);
    }

    /// Suspends the host: the wall clock goes on, the monotonic clock does not.
    fn suspend(&mut self) -> Result<(), Violation> {
        self.wall_us += self.rng.below(100_000 * S);
        self.report(DaemonEvent::Awoke)
    }

    /// Sets the wall clock, by years.
    fn jump_wall_clock(&mut self) {
        const YEAR: u64 = 365 * 86_400 * S;
        let by = self.rng.within(0, 3 * YEAR);
        self.wall_us = if self.rng.chance(500) { self.wall_us + by } else { self.wall_us.saturating_sub(by) };
    }

    fn fill_disk(&mut self) {
        self.disk.full = true;
        let delay = self.rng.within(S, 100 * S);
        self.timers.set(self.t + delay, Timer::DiskFreed);
    }

    pub(crate) fn disk_freed(&mut self) -> Result<(), Violation> {
        self.disk.full = false;
        let told = self.daemon.as_ref().is_some_and(|daemon| daemon.engine.state().is_disk_full());
        match told {
            true if self.daemon.as_ref().is_some_and(|daemon| daemon.stalled_until.is_some()) => {
                self.timers.set(self.t + 10 * S, Timer::DiskFreed);
                Ok(())
            }
            true => self.report(DaemonEvent::DiskFreed),
            false => Ok(()),
        }
    }

    /// Sometimes finds that the watermark beside the journal is above its last line. The lost lines are not played: no
    /// rule holds for them.
    pub(crate) fn lose_journal_lines(&mut self) {
        if !self.calm && self.rng_losses.chance(self.losses_permille) {
            let lines = self.rng_losses.within(1, 100);
            let loss = Loss::Missing { lines, after: self.disk.seq, since_wall_us: None, until_wall_us: self.wall_us };
            self.disk.loss = Some(loss.after(self.disk.loss));
        }
    }

    /// Tells a daemon that starts of a loss that was not accepted yet.
    pub(crate) fn report_loss(&mut self) -> Result<(), Violation> {
        let Some(loss) = self.disk.loss else { return Ok(()) };
        let delay = self.rng_losses.within(S, 100 * S);
        self.timers.set(self.t + delay, Timer::AcceptLoss);
        self.take(self.callers.len(), Event::Daemon(DaemonEvent::LossFound(loss))).map(drop)
    }

    /// Accepts the loss by a tenant, which changes nothing, and then by an operator.
    pub(crate) fn accept_loss(&mut self) -> Result<(), Violation> {
        for number in [0, self.callers.len() - 1] {
            let by = self.callers[number].clone();
            self.call(SimCall { by: number, event: Event::Daemon(DaemonEvent::LossAccepted { by }), job: None })?;
        }
        Ok(())
    }

    /// Reads another configuration.
    fn reload_configuration(&mut self) -> Result<(), Violation> {
        if self.daemon.as_ref().is_none_or(|daemon| daemon.stalled_until.is_some()) {
            return Ok(());
        }
        let old = &self.shape.policy;
        let (period, queue_max, places, over) = (old.period, old.queue_max, old.caps.places, old.overuse_grace);
        let mut new = draw_policy(&mut self.rng, false);
        new = with_parking(new, self.shape.habits, &mut self.rng_parking, &mut self.rng_preemption);
        (new.period, new.queue_max, new.caps.places) = (period, queue_max, places);
        (new.enforcement, new.overuse_grace) = (self.shape.unleased.times, over);
        new.parking.context_after = deep_after(self.shape.habits, &mut self.rng_contexts);
        new.margin = Bytes::mib(self.rng.within(0, 1_000));
        new.wait = Span::secs(86_400);
        self.shape.policy = new.clone();
        self.report(DaemonEvent::Configured(Box::new(new)))
    }

    /// Changes a fact about a GPU.
    fn change_gpu_facts(&mut self) {
        let gpu = self.rng.below(self.world.gpus.len() as u64) as usize;
        let facts = &mut self.world.gpus[gpu].facts;
        match self.rng.below(3) {
            0 => facts.display = !facts.display,
            1 => facts.context = Some(Bytes::mib(self.rng.within(100, 600))),
            _ => facts.unusable = facts.unusable.is_none().then(|| "MIG is on".to_owned()),
        }
    }

    fn break_gpu(&mut self) {
        let gpu = self.rng.below(self.world.gpus.len() as u64) as u16;
        self.world.gpus[gpu as usize].fault =
            self.rng.pick(&[GpuFault::NoAnswer, GpuFault::NoAnswer, GpuFault::Lost, GpuFault::NotListed]);
        let delay = self.rng.within(S, 60 * S);
        self.timers.set(self.t + delay, Timer::MendGpu(gpu));
    }

    pub(crate) fn mend_gpu(&mut self, gpu: u16) -> Result<(), Violation> {
        self.world.gpus[gpu as usize].fault = GpuFault::Healthy;
        if self.rng.chance(500) { self.clear_gpu(gpu as usize) } else { Ok(()) }
    }

    // ---- operators and others ----------------------------------------------

    fn call_as_operator(&mut self, event: Event) -> Result<(), Violation> {
        self.call(SimCall { by: self.callers.len() - 1, event, job: None })
    }

    /// Puts a GPU back into service.
    pub(crate) fn clear_gpu(&mut self, card: usize) -> Result<(), Violation> {
        let by = self.callers[self.callers.len() - 1].clone();
        let card = self.world.gpus[card].facts.uuid.clone();
        self.call_as_operator(Event::Gpu(GpuEvent::ClearRequested { by, gpu: card }))
    }

    /// Ends a lease by an operator's call.
    pub(crate) fn revoke_lease(&mut self, lease: LeaseId) -> Result<(), Violation> {
        let by = self.callers[self.callers.len() - 1].clone();
        self.call_as_operator(Event::Lease(LeaseEvent::ReleaseRequested { by, lease, fence: None }))
    }

    pub(crate) fn act_as_operator(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd {
            return Ok(());
        }
        let delay = self.rng.within(S, 120 * S);
        self.timers.set(self.t + delay, Timer::Operator);
        let card = self.rng.below(self.world.gpus.len() as u64) as usize;
        let by = self.callers[self.callers.len() - 1].clone();
        match self.rng.below(6) {
            0 => {
                let card = self.world.gpus[card].facts.uuid.clone();
                self.call_as_operator(Event::Gpu(GpuEvent::DrainRequested { by, gpu: card }))
            }
            1 => {
                let lease = self.draw_lease_id();
                self.revoke_lease(lease)
            }
            _ => self.clear_gpu(card),
        }
    }

    /// Draws the id of a lease that exists, existed or will exist.
    fn draw_lease_id(&mut self) -> LeaseId {
        let next = self.disk.rows.meta.next_lease;
        LeaseId(self.rng.within(next.saturating_sub(2 * self.jobs.len() as u64 + 3), next + 1))
    }

    /// Makes a call about a lease, fence or GPU that the caller may not use, or not any more.
    pub(crate) fn make_wrong_call(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd {
            return Ok(());
        }
        let delay = self.rng.within(S / 4, 8 * S);
        self.timers.set(self.t + delay, Timer::WrongCall);
        let number = self.rng.below(self.callers.len() as u64) as usize;
        let (by, lease) = (self.callers[number].clone(), self.draw_lease_id());
        let next = self.disk.rows.meta.next_fence.0;
        let epoch = Fence(self.rng.within(next.saturating_sub(30), next + 2));
        let process = ProcKey { pid: self.rng.below(500) as u32, start: self.rng.below(1_000) };
        let card = format!("GPU-{}", self.rng.below(self.world.gpus.len() as u64 + 1));
        let event = match self.rng.below(10) {
            0..=3 => Event::Lease(LeaseEvent::RenewalRequested { by, lease, fence: epoch }),
            4..=6 => Event::Lease(LeaseEvent::BindRequested { by, lease, fence: epoch, process }),
            7 if self.rng.chance(300) => Event::Lease(LeaseEvent::ReleaseRequested { by, lease, fence: Some(epoch) }),
            7 | 8 if !by.operator => Event::Gpu(GpuEvent::ClearRequested { by, gpu: card }),
            _ if !by.operator => Event::Gpu(GpuEvent::DrainRequested { by, gpu: card }),
            _ => Event::Lease(LeaseEvent::RenewalRequested { by, lease, fence: epoch }),
        };
        self.call(SimCall { by: number, event, job: None })
    }

    /// Binds a process of another lease, or requests a lease with it: in 7 of 10 calls one whose memory is parked.
    pub(crate) fn bind_foreign_process(&mut self) -> Result<(), Violation> {
        let (often, life) = (self.rng_rebinding.1, self.life);
        if !self.rng_rebinding.0.chance(often) {
            return Ok(());
        }
        let away = self.rng_rebinding.0.chance(700);
        let known = self.world.programs.iter().filter(|(_, program)| !away || program.is_gated());
        let known = known.filter_map(|((process, _), program)| Some((*process, program.heard_as(life)?)));
        let known: Vec<(ProcKey, LeaseId)> = known.collect();
        let Some((process, owner)) = self.rng_rebinding.0.some(&known) else { return Ok(()) };
        let tenant = self.job_of_lease.get(&owner).map(|job| self.jobs[*job as usize].tenant);
        if self.rng_rebinding.0.chance(300) {
            let ask = draw_request(&mut self.rng_rebinding.0, self.shape.ttl_max_s, self.world.gpus.len());
            let by = tenant.unwrap_or_default();
            let event = Event::Lease(LeaseEvent::Requested {
                by: self.callers[by].clone(),
                request: ask,
                wait: None,
                root: Some(process),
            });
            return self.call(SimCall { by, event, job: None });
        }
        let tenant = tenant.filter(|_| self.rng_rebinding.0.chance(800));
        let may = |job: &&SimJob| job.stage == JobStage::Holding && tenant.is_none_or(|tenant| job.tenant == tenant);
        let others = self.jobs.iter().filter(may).filter_map(|job| Some((job.tenant, job.lease?, job.fence)));
        let others: Vec<(usize, LeaseId, Fence)> = others.filter(|(_, lease, _)| *lease != owner).collect();
        let Some((by, lease, epoch)) = self.rng_rebinding.0.some(&others) else { return Ok(()) };
        let event =
            Event::Lease(LeaseEvent::BindRequested { by: self.callers[by].clone(), lease, fence: epoch, process });
        self.call(SimCall { by, event, job: None })
    }
}
