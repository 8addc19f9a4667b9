//! What goes wrong, and what people do who mean no good or know no better.

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::driver::deep_after;
use crate::jobs::{JobStage, SimJob, draw_ask};
use crate::shape::{S, in_which_parks, policy};
use crate::sim::Sim;
use crate::timers::Timer;
use crate::world::GpuFault;
use sublet_core::event::Event;
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_core::ids::{Fence, LeaseId, ProcKey};
use sublet_core::loss::Loss;
use sublet_core::units::{Bytes, Span};

impl Sim<'_> {
    // ---- strangers ---------------------------------------------------------

    pub(crate) fn again_stranger(&mut self) {
        let lonely = self.shape.vigil.awake && self.shape.vigil.rare;
        if self.shape.faults.strangers_s > 0 && !self.calm && !lonely {
            let delay = self.rng.within(S / 2, self.shape.faults.strangers_s * S);
            self.timers.set(self.t + delay, Timer::Stranger);
        }
    }

    pub(crate) fn stranger(&mut self) -> Result<(), Violation> {
        self.again_stranger();
        if self.calm {
            return Ok(());
        }
        let tree = self.world.spawn();
        let card = self.rng.below(self.world.cards.len() as u64) as usize;
        let most = self.rng.pick(&[300, 4_000, 20_000]);
        let bytes = Bytes::mib(self.rng.within(1, most));
        let graphics = self.rng.chance(200);
        let process = self.world.trees[&tree].live[0];
        self.world.allocate(card, process, bytes, graphics);
        self.world.cards[card].intruded_us = self.t;
        let stay = self.rng.within(S, 60 * S);
        self.timers.set(self.t + stay, Timer::Exit(tree));
        Ok(())
    }

    // ---- faults ------------------------------------------------------------

    pub(crate) fn again_fault(&mut self) {
        if self.shape.faults.every_s > 0 && !self.calm {
            let delay = self.rng.within(S, self.shape.faults.every_s * S);
            self.timers.set(self.t + delay, Timer::Fault);
        }
    }

    pub(crate) fn fault(&mut self) -> Result<(), Violation> {
        self.again_fault();
        if self.calm {
            return Ok(());
        }
        match self.rng.below(15) {
            0..=2 => self.stall_short(),
            3..=4 => self.stall_long(),
            5 => return self.suspend(),
            6 => self.jump(),
            7 if self.daemon.is_some() => self.die(false),
            8 if self.daemon.is_some() && self.rng.chance(300) => self.die(true),
            9 => self.fill_disk(),
            10 => return self.reload(),
            11 => self.remodel(),
            _ => self.ail(),
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

    /// The host sleeps: the wall clock goes on, the waking clock does not.
    fn suspend(&mut self) -> Result<(), Violation> {
        self.wall_us += self.rng.below(100_000 * S);
        self.report(DaemonEvent::Awoke)
    }

    /// The wall clock is set, by years.
    fn jump(&mut self) {
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

    /// Sometimes what is noted beside the journal does not fit it. What was lost is not played: no rule holds for it.
    pub(crate) fn lose_lines(&mut self) {
        if !self.calm && self.rng_losses.chance(self.losses) {
            let lines = self.rng_losses.within(1, 100);
            let loss = Loss::Missing { lines, after: self.disk.seq, since_wall_us: None, until_wall_us: self.wall_us };
            self.disk.loss = Some(loss.after(self.disk.loss));
        }
    }

    /// A daemon that starts is told of a loss that was not accepted yet.
    pub(crate) fn find_loss(&mut self) -> Result<(), Violation> {
        let Some(loss) = self.disk.loss else { return Ok(()) };
        let delay = self.rng_losses.within(S, 100 * S);
        self.timers.set(self.t + delay, Timer::AcceptLoss);
        self.take(self.callers.len(), Event::Daemon(DaemonEvent::LossFound(loss))).map(drop)
    }

    /// A tenant accepts the loss, which changes nothing, and then an operator.
    pub(crate) fn accept_loss(&mut self) -> Result<(), Violation> {
        for number in [0, self.callers.len() - 1] {
            let by = self.callers[number].clone();
            self.call(SimCall { by: number, event: Event::Daemon(DaemonEvent::LossAccepted { by }), job: None })?;
        }
        Ok(())
    }

    /// The configuration is read anew.
    fn reload(&mut self) -> Result<(), Violation> {
        if self.daemon.as_ref().is_none_or(|daemon| daemon.stalled_until.is_some()) {
            return Ok(());
        }
        let old = &self.shape.policy;
        let (period, queue_max, places, over) = (old.period, old.queue_max, old.caps.places, old.overuse_grace);
        let mut new = policy(&mut self.rng, false);
        new = in_which_parks(new, self.shape.habits, &mut self.luck, &mut self.whim);
        (new.period, new.queue_max, new.caps.places) = (period, queue_max, places);
        (new.enforcement, new.overuse_grace) = (self.shape.vigil.patience, over);
        new.parking.context_after = deep_after(self.shape.habits, &mut self.depth);
        new.margin = Bytes::mib(self.rng.within(0, 1_000));
        new.wait = Span::secs(86_400);
        self.shape.policy = new.clone();
        self.report(DaemonEvent::Configured(Box::new(new)))
    }

    /// Something about a card is not what it was.
    fn remodel(&mut self) {
        let card = self.rng.below(self.world.cards.len() as u64) as usize;
        let facts = &mut self.world.cards[card].facts;
        match self.rng.below(3) {
            0 => facts.display = !facts.display,
            1 => facts.context = Some(Bytes::mib(self.rng.within(100, 600))),
            _ => facts.unusable = facts.unusable.is_none().then(|| "MIG is on".to_owned()),
        }
    }

    fn ail(&mut self) {
        let card = self.rng.below(self.world.cards.len() as u64) as u16;
        self.world.cards[card as usize].ail =
            self.rng.pick(&[GpuFault::Mute, GpuFault::Mute, GpuFault::Lost, GpuFault::Hidden]);
        let delay = self.rng.within(S, 60 * S);
        self.timers.set(self.t + delay, Timer::Heal(card));
    }

    pub(crate) fn heal(&mut self, card: u16) -> Result<(), Violation> {
        self.world.cards[card as usize].ail = GpuFault::Well;
        if self.rng.chance(500) { self.clear(card as usize) } else { Ok(()) }
    }

    // ---- operators and others ----------------------------------------------

    fn operator(&mut self, event: Event) -> Result<(), Violation> {
        self.call(SimCall { by: self.callers.len() - 1, event, job: None })
    }

    /// An operator trusts a card again.
    pub(crate) fn clear(&mut self, card: usize) -> Result<(), Violation> {
        let by = self.callers[self.callers.len() - 1].clone();
        let card = self.world.cards[card].facts.uuid.clone();
        self.operator(Event::Gpu(GpuEvent::ClearRequested { by, gpu: card }))
    }

    /// An operator ends a lease.
    pub(crate) fn revoke(&mut self, lease: LeaseId) -> Result<(), Violation> {
        let by = self.callers[self.callers.len() - 1].clone();
        self.operator(Event::Lease(LeaseEvent::ReleaseRequested { by, lease, fence: None }))
    }

    pub(crate) fn operate(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd {
            return Ok(());
        }
        let delay = self.rng.within(S, 120 * S);
        self.timers.set(self.t + delay, Timer::Operator);
        let card = self.rng.below(self.world.cards.len() as u64) as usize;
        let by = self.callers[self.callers.len() - 1].clone();
        match self.rng.below(6) {
            0 => {
                let card = self.world.cards[card].facts.uuid.clone();
                self.operator(Event::Gpu(GpuEvent::DrainRequested { by, gpu: card }))
            }
            1 => {
                let lease = self.some_lease();
                self.revoke(lease)
            }
            _ => self.clear(card),
        }
    }

    /// A lease that exists, or did, or will.
    fn some_lease(&mut self) -> LeaseId {
        let next = self.disk.rows.meta.next_lease;
        LeaseId(self.rng.within(next.saturating_sub(2 * self.jobs.len() as u64 + 3), next + 1))
    }

    /// Somebody calls with what is not theirs, or not any more.
    pub(crate) fn mischief(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd {
            return Ok(());
        }
        let delay = self.rng.within(S / 4, 8 * S);
        self.timers.set(self.t + delay, Timer::Mischief);
        let number = self.rng.below(self.callers.len() as u64) as usize;
        let (by, lease) = (self.callers[number].clone(), self.some_lease());
        let next = self.disk.rows.meta.next_fence.0;
        let epoch = Fence(self.rng.within(next.saturating_sub(30), next + 2));
        let process = ProcKey { pid: self.rng.below(500) as u32, start: self.rng.below(1_000) };
        let card = format!("GPU-{}", self.rng.below(self.world.cards.len() as u64 + 1));
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

    /// Somebody binds a process to its lease that another has, or asks for a lease with it: more often than not one whose
    /// bytes are away.
    pub(crate) fn grab(&mut self) -> Result<(), Violation> {
        let (often, life) = (self.grabs.1, self.life);
        if !self.grabs.0.chance(often) {
            return Ok(());
        }
        let away = self.grabs.0.chance(700);
        let known = self.world.programs.iter().filter(|(_, program)| !away || program.is_gated());
        let known = known.filter_map(|((process, _), program)| Some((*process, program.heard_as(life)?)));
        let known: Vec<(ProcKey, LeaseId)> = known.collect();
        let Some((process, owner)) = self.grabs.0.some(&known) else { return Ok(()) };
        let tenant = self.by_lease.get(&owner).map(|job| self.jobs[*job as usize].tenant);
        if self.grabs.0.chance(300) {
            let ask = draw_ask(&mut self.grabs.0, self.shape.ttl_max_s, self.world.cards.len());
            let by = tenant.unwrap_or_default();
            let event = Event::Lease(LeaseEvent::Requested {
                by: self.callers[by].clone(),
                request: ask,
                wait: None,
                root: Some(process),
            });
            return self.call(SimCall { by, event, job: None });
        }
        let tenant = tenant.filter(|_| self.grabs.0.chance(800));
        let may = |job: &&SimJob| job.stage == JobStage::Holding && tenant.is_none_or(|tenant| job.tenant == tenant);
        let others = self.jobs.iter().filter(may).filter_map(|job| Some((job.tenant, job.lease?, job.epoch)));
        let others: Vec<(usize, LeaseId, Fence)> = others.filter(|(_, lease, _)| *lease != owner).collect();
        let Some((by, lease, epoch)) = self.grabs.0.some(&others) else { return Ok(()) };
        let event =
            Event::Lease(LeaseEvent::BindRequested { by: self.callers[by].clone(), lease, fence: epoch, process });
        self.call(SimCall { by, event, job: None })
    }
}
