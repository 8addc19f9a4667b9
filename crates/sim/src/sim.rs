//! The loop of the simulation: it takes the earliest timer and does what is due.

use crate::checker::{Checker, Violation};
use crate::daemon::{CommitFate, SimDaemon, actors, tenant_name};
use crate::disk::SimDisk;
use crate::hooks::SimWrapper;
use crate::jobs::{JobStage, SimJob};
use crate::mutants::{Planted, Sabotage};
use crate::readings;
use crate::rng::Rng;
use crate::run::RunOptions;
use crate::shape::{S, WorldShape};
use crate::story::Story;
use crate::timers::{Timer, Timers};
use crate::unleased::UnleasedShape;
use crate::world::{GpuFault, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sublet_core::event::Caller;
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent, UnleasedEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::mutant::Mutant;
use sublet_core::reading::{GpuReading, Reading};
use sublet_core::units::{Span, Time};

/// In a calm world the waiters are counted after this many timers: to count them takes longer than a timer.
const TIMERS_PER_COUNT: usize = 16;
/// Waiters that are served one by one when the world calms down; the requests of all others are revoked.
const CALM_WAITERS: usize = 120;

/// Separates the random stream of parking from the others.
const RNG_PARKING: u64 = 0x7061_721D;
/// Separates the stream of journals that lost lines.
const RNG_LOSSES: u64 = 0x6C6F_7373;
/// Separates the stream of preemption.
const RNG_PREEMPTION: u64 = 0x726F_6F6D;
/// Separates the stream of wrappers.
const RNG_WRAPPERS: u64 = 0x646F_6F6D;
/// Separates the stream of unleased processes.
const RNG_UNLEASED: u64 = 0x6F64_6473;
/// Separates the stream of unleased processes that are parked instead of ended.
const RNG_UNLEASED_PARKING: u64 = 0x6D6F_6F64;
/// Separates the stream of leases that are exceeded.
const RNG_OVERUSE: u64 = 0x6772_6565;

/// Separates the stream of processes that use a GPU which their lease does not have.
const RNG_OFF_LEASE: u64 = 0x7374_7261;

/// Separates the stream of processes that are bound to a second lease.
const RNG_REBINDING: u64 = 0x6772_6162;

/// Separates the stream of contexts that the driver moves.
const RNG_CONTEXTS: u64 = 0x6465_7074;

/// Separates the stream of hints that parked leases are used.
const RNG_HINTS: u64 = 0x6869_6E74;

/// Separates the stream of GPUs that step aside. With this number the first 600 worlds still meet the rarest planted
/// bugs.
const RNG_ASIDE: u64 = 0x6173_8e0a;

/// The whole simulation of one seed.
#[derive(Debug)]
pub struct Sim<'a> {
    pub(crate) rng: Rng,
    /// Draws about parking.
    pub(crate) rng_parking: Rng,
    /// How many starts in 1,000 find that journal lines are missing.
    pub(crate) losses_permille: u64,
    pub(crate) rng_losses: Rng,
    /// Draws about preemption.
    pub(crate) rng_preemption: Rng,
    /// Draws which wrappers exit without their programs.
    pub(crate) rng_wrappers: Rng,
    /// Draws about unleased processes.
    pub(crate) rng_unleased: Rng,
    /// Draws which unleased processes are parked instead of ended.
    pub(crate) rng_unleased_parking: Rng,
    /// Draws which processes use a GPU that their lease does not have, and how often in 1,000.
    pub(crate) rng_off_lease: (Rng, u64),
    /// Draws which processes of other leases are bound to a lease, and how often in 1,000.
    pub(crate) rng_rebinding: (Rng, u64),
    /// Draws hints that parked leases are used, and how often in 1,000 one comes with a call by hand.
    pub(crate) rng_hints: (Rng, u64),
    /// Draws which GPUs step aside, and the longest time between two requests in seconds; 0: there are none.
    pub(crate) rng_aside: (Rng, u64),
    /// Draws which leases are exceeded.
    pub(crate) rng_overuse: Rng,
    /// Draws which contexts the driver moves.
    pub(crate) rng_contexts: Rng,
    pub(crate) shape: WorldShape,
    pub(crate) story: &'a Story,
    /// True time, in µs.
    pub(crate) t: u64,
    /// True time minus the daemon's time.
    pub(crate) lag: u64,
    pub(crate) wall_us: u64,
    pub(crate) timers: Timers,
    pub(crate) world: World,
    pub(crate) jobs: Vec<SimJob>,
    pub(crate) job_of_lease: BTreeMap<LeaseId, u32>,
    pub(crate) disk: SimDisk,
    pub(crate) daemon: Option<SimDaemon>,
    /// The number of the running daemon; timers of earlier ones do nothing.
    pub(crate) life: u32,
    pub(crate) boot: u32,
    pub(crate) booted: u32,
    pub(crate) commits: u64,
    pub(crate) checker: Checker,
    pub(crate) callers: Vec<Caller>,
    pub(crate) actors: Vec<Arc<str>>,
    pub(crate) calm: bool,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) kill_at: Option<(u64, CommitFate)>,
    /// How long the daemon ran before the world calmed down.
    pub(crate) elapsed: Span,
    /// How many processes were lost by a restore.
    pub(crate) lost_processes: u64,
    /// How often the driver took the contexts of a parked holder, and how many processes it brought back from that.
    pub(crate) context_moves: (u64, u64),
    /// Wrappers with a hook, by lease.
    pub(crate) wrappers: BTreeMap<LeaseId, SimWrapper>,
    /// Leases whose processes got SIGTERM.
    pub(crate) sigterm_leases: BTreeSet<LeaseId>,
    /// When each unleased process last got SIGTERM.
    pub(crate) sigterm_sent: BTreeMap<ProcKey, u64>,
    pending_readings: Vec<Option<PendingReading>>,
}

/// A reading that has begun and is not delivered.
#[derive(Debug)]
struct PendingReading {
    gpu: u16,
    begun: Time,
    /// The result, if it was read at the beginning.
    reading: Option<Reading>,
}

impl<'a> Sim<'a> {
    /// Returns the world of a seed.
    pub fn new(seed: u64, story: &'a Story, options: RunOptions) -> Sim<'a> {
        let RunOptions { planted, kill_at, without_preemption, without_enforcement, crowd, .. } = options;
        let mut rng = Rng::new(seed);
        let mut rng_parking = Rng::new(seed ^ RNG_PARKING);
        let mut rng_preemption = Rng::new(seed ^ RNG_PREEMPTION);
        let mut rng_unleased = Rng::new(seed ^ RNG_UNLEASED);
        let mut rng_unleased_parking = Rng::new(seed ^ RNG_UNLEASED_PARKING);
        let unleased = UnleasedShape::draw(
            &mut rng_unleased,
            &mut rng_unleased_parking,
            without_enforcement || without_preemption || crowd,
        );
        let mut rng_overuse = Rng::new(seed ^ RNG_OVERUSE);
        let mut rng_off_lease = Rng::new(seed ^ RNG_OFF_LEASE);
        let off_lease_permille = rng_off_lease.pick(&[0, 0, 40, 200]);
        let mut rng_rebinding = Rng::new(seed ^ RNG_REBINDING);
        let rebinding_permille = rng_rebinding.pick(&[0, 0, 30, 200]);
        let mut rng_losses = Rng::new(seed ^ RNG_LOSSES);
        let losses_permille = rng_losses.pick(&[0, 0, 0, 300]);
        let mut rng_hints = Rng::new(seed ^ RNG_HINTS);
        let hints_permille = rng_hints.pick(&[0, 0, 200, 900]);
        let mut rng_aside = Rng::new(seed ^ RNG_ASIDE);
        let aside_every_s = if crowd || without_preemption { 0 } else { rng_aside.pick(&[0, 0, 0, 20, 60]) };
        let mut shape = if crowd {
            WorldShape::crowd(unleased)
        } else {
            WorldShape::draw(&mut rng, &mut rng_parking, &mut rng_preemption, unleased, without_preemption)
        };
        shape.policy.overuse_grace = Span::secs(rng_overuse.pick(&[1, 5, 15, 60]));
        let mut rng_contexts = Rng::new(seed ^ RNG_CONTEXTS);
        if !without_preemption && !crowd {
            shape.deepen(&mut rng_contexts);
        }
        let world = World::new(&shape, &mut rng);
        let caller = |n| {
            let tenant = tenant_name(n, shape.tenants);
            Caller { operator: n == shape.tenants, ..Caller::user(tenant) }
        };
        Sim {
            t: 1_000 * S,
            lag: 1_000 * S - rng.below(100 * S),
            wall_us: rng.below(4_000_000_000_000_000),
            timers: Timers::default(),
            jobs: (0..shape.jobs).map(|_| SimJob::new(rng.below(shape.tenants as u64) as usize)).collect(),
            job_of_lease: BTreeMap::new(),
            disk: SimDisk::default(),
            daemon: None,
            life: 0,
            boot: 0,
            booted: 0,
            commits: 0,
            checker: Checker::new(shape.policy.clone()),
            callers: (0..=shape.tenants).map(caller).collect(),
            actors: actors(shape.tenants),
            calm: false,
            mutant: planted.and_then(Planted::mutant),
            sabotage: planted.and_then(Planted::sabotage),
            kill_at,
            elapsed: Span::ZERO,
            lost_processes: 0,
            context_moves: (0, 0),
            wrappers: BTreeMap::new(),
            sigterm_leases: BTreeSet::new(),
            sigterm_sent: BTreeMap::new(),
            pending_readings: Vec::new(),
            world,
            story,
            rng,
            rng_parking,
            losses_permille,
            rng_losses,
            rng_preemption,
            rng_wrappers: Rng::new(seed ^ RNG_WRAPPERS),
            rng_unleased,
            rng_unleased_parking,
            rng_overuse,
            rng_contexts,
            rng_off_lease: (rng_off_lease, off_lease_permille),
            rng_rebinding: (rng_rebinding, rebinding_permille),
            rng_hints: (rng_hints, hints_permille),
            rng_aside: (rng_aside, aside_every_s),
            shape,
        }
    }

    /// The daemon's time.
    pub fn now(&self) -> Time {
        Time(self.t - self.lag)
    }

    /// Runs `steps` events, then calms the world down.
    pub fn run(&mut self, steps: u64) -> Result<(), Violation> {
        self.restart()?;
        for job in 0..self.jobs.len() as u32 {
            let delay = self.rng.below(20 * S);
            self.set_job_timer(job, delay);
        }
        self.timers.set(self.t + S, Timer::WrongCall);
        self.timers.set(self.t + S, Timer::Operator);
        if self.parks() {
            self.timers.set(self.t + 5 * S, Timer::ByHand);
        }
        self.schedule_fault();
        self.schedule_short_unleased();
        self.schedule_long_unleased();
        self.schedule_aside();
        self.timers.set(self.t + 3 * S, Timer::ChangeEnforcement);
        let begun = self.now();
        while self.story.step.get() < steps {
            self.run_next_timer()?;
        }
        self.elapsed = self.now().since(begun);
        self.calm_down()
    }

    fn run_next_timer(&mut self) -> Result<(), Violation> {
        let Some((at, timer)) = self.timers.pop() else { return Ok(()) };
        self.wall_us += at.saturating_sub(self.t);
        self.t = self.t.max(at);
        if let Some(until) = self.daemon.as_ref().and_then(|daemon| daemon.stalled_until)
            && waits_for_loop(timer)
        {
            self.timers.set(until, timer);
            return Ok(());
        }
        match timer {
            Timer::Tick(life) if life == self.life => self.tick(),
            Timer::BeginReading(life, gpu) if life == self.life => self.begin_reading(gpu),
            Timer::FinishReading(life, reading) => self.finish_reading(life, reading),
            Timer::Synced(life) if life == self.life => self.synced(),
            Timer::ReportMembers(life, lease) if life == self.life => self.says(LeaseId(lease)),
            Timer::ListGpus(life) if life == self.life => self.list_gpus(),
            Timer::SignalSent(life, lease, signal) if life == self.life => {
                self.report(LeaseEvent::SignalSent { lease: LeaseId(lease), signal })
            }
            Timer::StallOver(life) if life == self.life => self.stall_over(),
            Timer::Restart if self.daemon.is_none() => self.restart(),
            Timer::Job(job, number) => self.advance_job(job, number),
            Timer::Exit(tree) => {
                let leases = self.world.exit(tree);
                self.schedule_member_reports(&leases);
                Ok(())
            }
            Timer::ShortUnleased => self.start_short_unleased(),
            Timer::Fault => self.inject_fault(),
            Timer::MendGpu(gpu) => self.mend_gpu(gpu),
            Timer::WrongCall => self.make_wrong_call(),
            Timer::Operator => self.act_as_operator(),
            Timer::Aside => self.request_aside(),
            Timer::DiskFreed => self.disk_freed(),
            Timer::AcceptLoss => self.accept_loss(),
            Timer::Connect(life, process, method) if life == self.life => self.connect((process, method)),
            Timer::DeliverReport(life, process, method) if life == self.life => self.hear((process, method)),
            Timer::CheckProgram(life, process, method) if life == self.life => self.mind((process, method)),
            Timer::ProgramExited(life, lease, process, method, died) if life == self.life => {
                self.left(LeaseId(lease), (process, method), died)
            }
            Timer::OrderDone(process, method, number) => self.done((process, method), number),
            Timer::WrapperPoll(life, lease) if life == self.life => self.heed(LeaseId(lease)),
            Timer::HookDone(lease, number) => self.hook_done(LeaseId(lease), number),
            Timer::WrapperExits(lease) => self.orphan(LeaseId(lease)),
            Timer::ReadHostMemory(life) if life == self.life => self.read_ram(),
            Timer::ByHand => self.hand(),
            Timer::ExitBySignal(process) => self.exit_by_signal(process),
            Timer::LongUnleased => self.start_long_unleased(),
            Timer::Audit(life, process) if life == self.life => self.deliver_audit(process),
            Timer::ReportExit(life, process) if life == self.life => self.report(UnleasedEvent::Exited { process }),
            Timer::SelfTest(life) if life == self.life => self.run_self_test(),
            Timer::SendSignal(life, number) if life == self.life => self.send_signal(number),
            Timer::SignalOutcome(life, number) if life == self.life => self.report_signal_outcome(number),
            Timer::ChangeEnforcement => self.change_enforcement(),
            _ => Ok(()),
        }
    }

    fn tick(&mut self) -> Result<(), Violation> {
        self.timers.set(self.t + self.shape.tick_us, Timer::Tick(self.life));
        self.report(DaemonEvent::Ticked)?;
        self.request_due_audits();
        Ok(())
    }

    // ---- readings ----------------------------------------------------------

    fn begin_reading(&mut self, number: u16) -> Result<(), Violation> {
        let period = self.shape.policy.period.0;
        self.timers.set(self.t + period, Timer::BeginReading(self.life, number));
        let failing = if self.calm { 0 } else { self.shape.faults.failed_readings };
        let slow = !self.calm && self.rng.chance(self.shape.faults.slow_readings);
        let delay = if slow { self.rng.within(period, 4 * period) } else { self.rng.below(period / 20) };
        let at_once = self.rng.chance(500);
        let reading = at_once.then(|| readings::read_gpu(&self.world.gpus[number as usize], &mut self.rng, failing));
        let pending = PendingReading { gpu: number, begun: self.now(), reading };
        let slot = self.pending_readings.iter().position(Option::is_none).unwrap_or(self.pending_readings.len());
        match self.pending_readings.get_mut(slot) {
            Some(free) => *free = Some(pending),
            None => self.pending_readings.push(Some(pending)),
        }
        self.timers.set(self.t + delay, Timer::FinishReading(self.life, slot as u32));
        Ok(())
    }

    fn finish_reading(&mut self, life: u32, slot: u32) -> Result<(), Violation> {
        let Some(PendingReading { gpu: number, begun, reading }) = self.pending_readings[slot as usize].take() else {
            return Ok(());
        };
        if life != self.life {
            return Ok(());
        }
        let failing = if self.calm { 0 } else { self.shape.faults.failed_readings };
        let gpu = &self.world.gpus[number as usize];
        let reading = reading.unwrap_or_else(|| readings::read_gpu(gpu, &mut self.rng, failing));
        let uuid = self.world.gpus[number as usize].facts.uuid.clone();
        let there = match &reading {
            Reading::Used(used) => used.processes.iter().map(|resident| resident.process).collect(),
            Reading::Unreadable(_) => Vec::new(),
        };
        self.report(GpuEvent::ReadingTaken { gpu: uuid, reading: GpuReading { begun, reading } })?;
        self.request_audits(number, &there);
        Ok(())
    }

    pub(crate) fn list_gpus(&mut self) -> Result<(), Violation> {
        self.timers.set(self.t + 20 * S, Timer::ListGpus(self.life));
        if !self.disk.full {
            // A full disk is tried again at each listing.
            self.disk_freed()?;
        }
        if self.calm {
            // A reading from before the calm may have taken a GPU out of service.
            (0..self.world.gpus.len()).try_for_each(|gpu| self.clear_gpu(gpu))?;
            self.leases_without_job().into_iter().try_for_each(|lease| self.revoke_lease(lease))?;
            self.revoke_excess_waiters()?;
        }
        self.report(GpuEvent::Listed(readings::list_gpus(&self.world)))
    }

    // ---- calm --------------------------------------------------------------

    /// Ends all faults and all unleased processes and lets all jobs release their leases; then all waiters must be
    /// served.
    fn calm_down(&mut self) -> Result<(), Violation> {
        self.story.add(|| format!("{} the world calms down", self.now()));
        self.calm = true;
        self.disk.full = false;
        self.calm_programs();
        self.calm_hooks();
        for gpu in 0..self.world.gpus.len() {
            self.world.gpus[gpu].fault = GpuFault::Healthy;
            self.world.gpus[gpu].facts.unusable = None;
        }
        let known: Vec<u32> = self.jobs.iter().filter_map(|job| job.tree).collect();
        let loose: Vec<u32> = self.world.trees.keys().copied().filter(|tree| !known.contains(tree)).collect();
        for tree in loose {
            let leases = self.world.exit(tree);
            self.schedule_member_reports(&leases);
        }
        self.world.free_everywhere();
        self.wait_for_daemon()?;
        self.restore_service()?;
        self.revoke_excess_waiters()?;
        let longest = 3 * self.shape.ttl_max_s * S + self.shape.policy.grace.0 + 10 * self.shape.policy.period.0;
        let mut waiting = self.checker.hopeful();
        let mut last = self.t;
        while waiting > 0 {
            // Counting takes longer than one timer.
            for _ in 0..TIMERS_PER_COUNT {
                self.run_next_timer()?;
            }
            let left = self.checker.hopeful();
            if left != waiting {
                (waiting, last) = (left, self.t);
            } else if self.t > last + longest + 60 * S {
                return Err(self.checker.starved(self.now()));
            }
        }
        self.check_contexts()?;
        let now = self.now();
        match &self.daemon {
            Some(daemon) => self.checker.cross_check(now, daemon.engine.state(), &self.disk),
            None => Ok(()),
        }
    }

    fn wait_for_daemon(&mut self) -> Result<(), Violation> {
        while self.daemon.as_ref().is_none_or(|daemon| daemon.stalled_until.is_some()) {
            self.run_next_timer()?;
        }
        Ok(())
    }

    fn restore_service(&mut self) -> Result<(), Violation> {
        self.report(DaemonEvent::DiskFreed)?;
        self.accept_loss()?;
        self.report(GpuEvent::Listed(readings::list_gpus(&self.world)))?;
        self.end_asides()?;
        for gpu in 0..self.world.gpus.len() {
            self.clear_gpu(gpu)?;
        }
        for job in 0..self.jobs.len() as u32 {
            if self.jobs[job as usize].stage != JobStage::Pausing {
                let delay = self.rng.below(2 * S);
                self.set_job_timer(job, delay);
            }
        }
        Ok(())
    }

    /// Held leases that no job knows of.
    fn leases_without_job(&self) -> Vec<LeaseId> {
        let job = |lease: &LeaseId| self.job_of_lease.get(lease).map(|job| &self.jobs[*job as usize]);
        let orphan = |lease: &&LeaseId| job(lease).is_none_or(|job| job.lease != Some(**lease));
        let held = self.disk.rows.leases.iter().filter(|(_, row)| row.is_held());
        held.map(|(lease, _)| lease).filter(orphan).copied().collect()
    }

    fn revoke_excess_waiters(&mut self) -> Result<(), Violation> {
        let waiters = self.checker.waiters_in_rank_order();
        for lease in waiters.into_iter().skip(CALM_WAITERS) {
            self.revoke_lease(lease)?;
        }
        Ok(())
    }
}

/// True if this must wait while the daemon's loop is stalled.
fn waits_for_loop(timer: Timer) -> bool {
    let loop_events = matches!(
        timer,
        Timer::Tick(_) | Timer::FinishReading(..) | Timer::Synced(_) | Timer::ReportMembers(..) | Timer::ListGpus(_)
    );
    let reports = matches!(
        timer,
        Timer::Connect(..)
            | Timer::DeliverReport(..)
            | Timer::CheckProgram(..)
            | Timer::ProgramExited(..)
            | Timer::ReadHostMemory(_)
            | Timer::WrapperPoll(..)
    );
    let unleased =
        matches!(timer, Timer::Audit(..) | Timer::ReportExit(..) | Timer::SelfTest(_) | Timer::SignalOutcome(..));
    loop_events || reports || unleased
}
