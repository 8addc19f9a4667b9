//! Jobs of users: request, wait, bind, allocate, be busy or idle, release, or exit.
//!
//! ```text
//!  Pausing ──request──► Requesting ──► Waiting ──► Holding ──► Over ──► Pausing
//!                          └── refused, or the daemon exited: Pausing again; no job
//!                              knows of the lease, if there is one
//! ```

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::programs::ShimOrder;
use crate::rng::Rng;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use sublet_core::event::{Event, EventAnswer, Refusal};
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::{Fence, GpuId, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::policy::offers::offers;
use sublet_core::request::{Exclusivity, GpuSelector, LeaseRequest, Preempt, Term, Tier, Vram};
use sublet_core::rows::Phase;
use sublet_core::units::{Bytes, Span};

/// The stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStage {
    /// Before the next request.
    Pausing,
    /// It requested, and has no answer yet.
    Requesting,
    /// In the queue.
    Waiting,
    /// It was told that it has its GPUs.
    Holding,
    /// It has released them.
    Over,
}

/// How a job is bound to its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobStyle {
    /// To no process: it only calls.
    Unbound,
    /// To a process after the grant.
    Bound,
    /// To a process from the request on.
    BoundAtRequest,
}

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobEnd {
    /// It releases the lease, then exits.
    Release,
    /// It releases the lease; its process stays and keeps its memory.
    ReleaseAndStay,
    /// It releases the lease and uses the same process for the next one.
    ReleaseAndReuse,
    /// It exits without a call.
    Exit,
    /// It does nothing any more.
    Idle,
}

/// A job of a user.
#[derive(Debug)]
pub struct SimJob {
    /// The number of its tenant.
    pub tenant: usize,
    /// Its stage.
    pub stage: JobStage,
    /// The number of its present timer.
    pub timer_number: u32,
    /// Its lease, as it was told.
    pub lease: Option<LeaseId>,
    /// Its fence, as it was told.
    pub fence: Fence,
    /// The tree of its process.
    pub tree: Option<u32>,
    style: JobStyle,
    end: JobEnd,
    busy: bool,
    exceeds_lease: bool,
    bound: bool,
    pub(crate) gpus: Vec<usize>,
    pub(crate) vram: Bytes,
    ttl_us: u64,
    stop_us: u64,
}

impl SimJob {
    /// Returns a job that has not begun.
    pub fn new(tenant: usize) -> SimJob {
        SimJob {
            tenant,
            stage: JobStage::Pausing,
            timer_number: 0,
            lease: None,
            fence: Fence(0),
            tree: None,
            style: JobStyle::Unbound,
            end: JobEnd::Release,
            busy: false,
            exceeds_lease: false,
            bound: false,
            gpus: Vec::new(),
            vram: Bytes::ZERO,
            ttl_us: 10 * S,
            stop_us: 0,
        }
    }

    /// Forgets its process after a reboot of the host.
    pub fn forget_host(&mut self) {
        if self.tree.take().is_some() {
            (self.stage, self.lease) = (JobStage::Pausing, None);
        }
    }
}

impl Sim<'_> {
    /// Sets the job's next timer; earlier ones are void.
    pub(crate) fn set_job_timer(&mut self, job: u32, delay_us: u64) {
        let timer_number = &mut self.jobs[job as usize].timer_number;
        *timer_number += 1;
        self.timers.set(self.t + delay_us, Timer::Job(job, *timer_number));
    }

    /// Does what is next for a job.
    pub(crate) fn advance_job(&mut self, job: u32, timer_number: u32) -> Result<(), Violation> {
        if self.jobs[job as usize].timer_number != timer_number {
            return Ok(());
        }
        match self.jobs[job as usize].stage {
            JobStage::Pausing if self.calm => Ok(()),
            JobStage::Pausing => self.request_lease(job),
            // Without an answer the job gives the request up, which may be in the queue nevertheless.
            JobStage::Requesting => {
                self.jobs[job as usize].stage = JobStage::Pausing;
                self.pause_job(job);
                Ok(())
            }
            JobStage::Waiting => self.advance_waiting(job),
            JobStage::Holding => self.advance_holding(job),
            JobStage::Over => {
                self.reset_job(job);
                Ok(())
            }
        }
    }

    fn pause_job(&mut self, job: u32) {
        let longest = if self.shape.jobs > 400 { 60 } else { 15 };
        let delay = self.rng.within(S / 10, longest * S);
        self.set_job_timer(job, delay);
    }

    fn request_lease(&mut self, number: u32) -> Result<(), Violation> {
        let ask = draw_request(&mut self.rng, self.shape.ttl_max_s, self.world.gpus.len());
        let ask = if self.shape.crowd {
            LeaseRequest::plain(Bytes::gib(16), Term::Renewed(Span::secs(60)))
        } else {
            self.draw_preemption_choice(ask)
        };
        let wait = match self.rng.below(10) {
            0 => Some(Span::ZERO),
            1..=3 => Some(Span::secs(self.rng.within(1, 200))),
            _ => None,
        };
        let style =
            match self.rng.pick(&[JobStyle::Unbound, JobStyle::Bound, JobStyle::Bound, JobStyle::BoundAtRequest]) {
                // Only a lease whose processes are known can be parked.
                JobStyle::Unbound if self.parks() && self.rng_parking.chance(800) => JobStyle::Bound,
                style => style,
            };
        let finish = [
            JobEnd::Release,
            JobEnd::Release,
            JobEnd::ReleaseAndStay,
            JobEnd::ReleaseAndReuse,
            JobEnd::Exit,
            JobEnd::Idle,
        ];
        let job = &mut self.jobs[number as usize];
        job.style = style;
        job.end = self.rng.pick(&finish);
        job.busy = self.rng.chance(650);
        job.exceeds_lease = self.rng.chance(80) || (!self.shape.crowd && self.rng_overuse.chance(120));
        job.bound = false;
        if self.shape.crowd {
            (job.style, job.end, job.busy) = (JobStyle::Bound, JobEnd::Release, true);
        }
        job.ttl_us = ask.term.span().0.min(600 * S);
        (job.stage, job.lease) = (JobStage::Requesting, None);
        let root = (style == JobStyle::BoundAtRequest).then(|| self.process_of(number)).flatten();
        let by = self.jobs[number as usize].tenant;
        self.set_job_timer(number, 40 * S);
        let caller = self.callers[by].clone();
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::Requested { by: caller, request: ask, wait, root }),
            job: Some(number),
        })
    }

    fn process_of(&mut self, job: u32) -> Option<ProcKey> {
        let known = self.jobs[job as usize].tree.filter(|tree| self.world.trees.contains_key(tree));
        let tree = known.unwrap_or_else(|| self.world.spawn());
        self.jobs[job as usize].tree = Some(tree);
        let root = self.world.trees.get(&tree).and_then(|tree| tree.live.first().copied())?;
        if known.is_none() {
            self.install(root);
        }
        Some(root)
    }

    /// Takes the answer to one of the job's calls.
    pub(crate) fn take_answer(&mut self, number: u32, event_was_ask: bool, answer: &EventAnswer) {
        let stage = self.jobs[number as usize].stage;
        match answer {
            EventAnswer::Refused(Refusal::NoSuchLease | Refusal::Ended)
                if !event_was_ask && stage != JobStage::Pausing =>
            {
                self.jobs[number as usize].stage = JobStage::Over;
                self.set_job_timer(number, S);
            }
            _ if !event_was_ask || stage != JobStage::Requesting => {}
            EventAnswer::Lease(lease) => {
                self.job_of_lease.insert(*lease, number);
                let job = &mut self.jobs[number as usize];
                (job.stage, job.lease) = (JobStage::Waiting, Some(*lease));
                let delay = self.rng.within(S, 60 * S);
                self.set_job_timer(number, delay);
            }
            _ => {
                self.jobs[number as usize].stage = JobStage::Pausing;
                self.pause_job(number);
            }
        }
    }

    /// Takes the notice that a lease was granted.
    pub(crate) fn note_granted(&mut self, lease: LeaseId, fence: Fence, gpus: Vec<usize>, vram: Bytes) {
        let Some(number) = self.job_of_lease.get(&lease).copied() else { return };
        let stop = self.rng.within(0, 6 * self.jobs[number as usize].ttl_us);
        let stop = if self.shape.crowd { u64::MAX / 4 } else { stop };
        let job = &mut self.jobs[number as usize];
        if job.lease == Some(lease) && job.stage == JobStage::Waiting {
            (job.stage, job.fence, job.gpus, job.vram) = (JobStage::Holding, fence, gpus, vram);
            job.stop_us = self.t + stop;
            let delay = self.rng.within(0, 2 * S);
            self.set_job_timer(number, delay);
        }
    }

    /// Takes the notice that a lease is over.
    pub(crate) fn note_ended(&mut self, lease: LeaseId) {
        let Some(number) = self.job_of_lease.remove(&lease) else { return };
        let job = &mut self.jobs[number as usize];
        if job.lease == Some(lease) {
            job.stage = JobStage::Over;
            let delay = self.rng.within(0, 10 * S);
            self.set_job_timer(number, delay);
        }
    }

    fn advance_waiting(&mut self, number: u32) -> Result<(), Violation> {
        let delay = self.rng.within(S, 60 * S);
        self.set_job_timer(number, delay);
        self.poll_lease(number);
        let rooted = self.jobs[number as usize].style == JobStyle::BoundAtRequest;
        match self.rng.below(100) {
            _ if self.calm => {}
            _ if self.shape.crowd => {}
            0..10 => return self.release_lease(number),
            10..15 if rooted => self.exit_tree(number),
            15..20 if rooted => self.use_memory(number),
            20..30 => return self.accept_offer(number),
            _ => {}
        }
        Ok(())
    }

    /// Accepts a smaller lease: an offer, or a size of its own.
    fn accept_offer(&mut self, number: u32) -> Result<(), Violation> {
        let Some(lease) = self.jobs[number as usize].lease else { return Ok(()) };
        let now = self.now();
        let offered = self.daemon.as_ref().and_then(|daemon| {
            let state = daemon.engine.state();
            let offers = offers(state, state.lease(lease)?, now);
            offers.into_iter().next()
        });
        let (vram, gpus) = match offered {
            Some(offer) if self.rng.chance(700) => (offer.vram, offer.gpus),
            _ => (Bytes::mib(self.rng.within(0, 12_000)), self.rng.within(0, self.world.gpus.len() as u64) as u16),
        };
        let by = self.jobs[number as usize].tenant;
        let caller = self.callers[by].clone();
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::OfferAccepted { by: caller, lease, vram, gpus }),
            job: Some(number),
        })
    }

    /// Reads where its lease is, in case a notice was lost.
    fn poll_lease(&mut self, number: u32) {
        let Some(lease) = self.jobs[number as usize].lease.filter(|_| self.daemon.is_some()) else { return };
        match self.disk.rows.leases.get(&lease).map(|row| &row.phase) {
            Some(Phase::Waiting { .. }) => {}
            Some(Phase::Active(hold) | Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _)) => {
                let index = |gpu: &GpuId| self.disk.rows.gpus[*gpu].facts.index as usize;
                let (fence, vram, gpus) = (hold.fence, hold.vram, hold.gpus.iter().map(index).collect());
                self.note_granted(lease, fence, gpus, vram);
            }
            Some(Phase::Ending(..)) | None => self.note_ended(lease),
        }
    }

    fn advance_holding(&mut self, number: u32) -> Result<(), Violation> {
        let job = &self.jobs[number as usize];
        if self.t >= job.stop_us || self.calm {
            return self.finish_job(number);
        }
        let (style, busy, bound) = (job.style, job.busy, job.bound);
        let delay = self.rng.within(job.ttl_us / 10, job.ttl_us * 6 / 10);
        self.set_job_timer(number, if self.shape.crowd { S } else { delay });
        let process = self.process_of(number);
        self.use_memory(number);
        if self.accept_larger_lease(number)? {
            return Ok(());
        }
        let job = &mut self.jobs[number as usize];
        let (Some(lease), epoch, by) = (job.lease, job.fence, job.tenant) else { return Ok(()) };
        let caller = self.callers[by].clone();
        match (style, process) {
            (JobStyle::Bound, Some(process)) if !bound => {
                job.bound = true;
                let event = Event::Lease(LeaseEvent::BindRequested { by: caller, lease, fence: epoch, process });
                self.call(SimCall { by, event, job: Some(number) })
            }
            (JobStyle::Unbound, _) if busy => self.call(SimCall {
                by,
                event: Event::Lease(LeaseEvent::RenewalRequested { by: caller, lease, fence: epoch }),
                job: Some(number),
            }),
            (JobStyle::Bound | JobStyle::BoundAtRequest, _) if busy && self.is_asleep(lease) => self.want_back(lease),
            (JobStyle::Bound | JobStyle::BoundAtRequest, _) if busy && self.submit_work(number) => Ok(()),
            (JobStyle::Bound | JobStyle::BoundAtRequest, _) if busy => self.report(LeaseEvent::UseSeen { lease }),
            _ => Ok(()),
        }
    }

    /// Lets its processes submit work; returns true if one of them was held at the gate.
    fn submit_work(&mut self, number: u32) -> bool {
        let tree = self.jobs[number as usize].tree.and_then(|tree| self.world.trees.get(&tree));
        let live = tree.map(|tree| tree.live.clone()).unwrap_or_default();
        let gated: Vec<ProcKey> = live.into_iter().filter(|process| self.is_gated(*process)).collect();
        gated.iter().for_each(|process| self.submit(*process));
        // Work from before may be noticed only now.
        !gated.is_empty() && !self.rng_parking.chance(100)
    }

    /// Lets its process take memory, sometimes more than the lease has.
    fn use_memory(&mut self, number: u32) {
        let Some(process) = self.process_of(number) else { return };
        let job = &self.jobs[number as usize];
        let Some(tree) = job.tree.and_then(|tree| self.world.trees.get(&tree)) else { return };
        let process = if self.rng.chance(700) { process } else { tree.live[tree.live.len() - 1] };
        let most = if job.exceeds_lease { job.vram.0 + job.vram.0 / 2 } else { job.vram.0 };
        let (tree, gpus) = (job.tree, job.gpus.clone());
        let gated = self.is_gated(process) || job.lease.is_some_and(|lease| self.is_asleep(lease));
        // The shim limits a program to its lease, which may have been resumed with less than it was granted.
        let capped = self.world.programs.contains_key(&(process, Method::Shim));
        let hold = job.lease.and_then(|lease| self.disk.rows.leases.get(&lease)).and_then(|row| row.hold());
        let cap = hold.map_or(job.vram.0, |hold| hold.vram.0.min(job.vram.0));
        // Core cannot foresee what a process takes that has no lease, or no shim that limits it.
        let intrudes = !capped || hold.is_none();
        let most = if capped { cap } else { most };
        if !gated {
            self.use_off_lease_gpu(process, &gpus);
        }
        for gpu in gpus {
            let here: u64 = self.world.gpus[gpu]
                .residents
                .iter()
                .filter(|resident| self.world.trees[&tree.unwrap_or_default()].live.contains(&resident.process))
                .map(|resident| resident.bytes.unwrap_or_default().0)
                .sum();
            // Memory that was parked still counts for the shim's limit.
            let here = here + if capped { self.world.away(tree.unwrap_or_default(), gpu).0 } else { 0 };
            match self.rng.below(10) {
                _ if gated => {}
                0 => self.world.free_all(gpu, process),
                1..=6 if here < most => {
                    let bytes = Bytes(self.rng.within(1, most - here));
                    if intrudes && self.world.gpus[gpu].bytes_of(process) == Bytes::ZERO {
                        self.world.gpus[gpu].uncapped_use_us = self.t;
                    }
                    self.world.allocate(gpu, process, bytes, false);
                }
                _ => {}
            }
        }
        if let Some(tree) = tree
            && !self.shape.crowd
            && self.rng.chance(60)
        {
            match self.world.trees.get(&tree).map(|tree| (tree.live.len(), tree.leases.clone())) {
                Some((1..4, leases)) => {
                    if let Some(child) = self.world.fork(tree) {
                        self.install(child);
                    }
                    self.schedule_member_reports(&leases);
                }
                Some((4.., _)) => {
                    let leases = self.world.exit_child(tree);
                    self.schedule_member_reports(&leases);
                }
                _ => {}
            }
        }
    }

    fn finish_job(&mut self, number: u32) -> Result<(), Violation> {
        let job = &mut self.jobs[number as usize];
        let (finish, delay) = (job.end, self.rng.within(20 * S, 200 * S));
        // The next end is always a release.
        job.end = JobEnd::Release;
        match finish {
            _ if self.calm => {
                self.exit_tree(number);
                self.release_lease(number)
            }
            JobEnd::Exit if job.tree.is_some() => {
                self.exit_tree(number);
                self.set_job_timer(number, delay);
                Ok(())
            }
            JobEnd::Exit | JobEnd::Idle => {
                self.set_job_timer(number, delay);
                Ok(())
            }
            JobEnd::Release => self.release_lease(number),
            JobEnd::ReleaseAndStay => {
                if let Some(tree) = job.tree.take() {
                    let stay = self.rng.within(S, 60 * S);
                    self.timers.set(self.t + stay, Timer::Exit(tree));
                }
                self.release_lease(number)
            }
            JobEnd::ReleaseAndReuse => {
                let result = self.release_lease(number);
                let job = &mut self.jobs[number as usize];
                (job.stage, job.lease) = (JobStage::Pausing, None);
                self.pause_job(number);
                result
            }
        }
    }

    fn release_lease(&mut self, number: u32) -> Result<(), Violation> {
        let job = &mut self.jobs[number as usize];
        let Some(lease) = job.lease else { return Ok(()) };
        let (by, held) = (job.tenant, job.stage == JobStage::Holding);
        let epoch = (held && self.rng.chance(500)).then_some(job.fence);
        let caller = self.callers[by].clone();
        self.set_job_timer(number, 20 * S);
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::ReleaseRequested { by: caller, lease, fence: epoch }),
            job: Some(number),
        })
    }

    fn reset_job(&mut self, number: u32) {
        self.exit_tree(number);
        let job = &mut self.jobs[number as usize];
        (job.stage, job.lease) = (JobStage::Pausing, None);
        self.pause_job(number);
    }

    fn exit_tree(&mut self, number: u32) {
        if let Some(tree) = self.jobs[number as usize].tree.take() {
            let leases = self.world.exit(tree);
            self.schedule_member_reports(&leases);
        }
    }

    /// The host will report that the processes of these leases changed.
    pub(crate) fn schedule_member_reports(&mut self, leases: &[LeaseId]) {
        self.schedule_exit_reports();
        for ((process, method), program) in std::mem::take(&mut self.world.unnoticed_programs) {
            if let Some(lease) = program.heard_as(self.life) {
                let delay = self.rng_parking.within(0, S / 3);
                let died = method == Method::Shim && program.doing == Some(ShimOrder::Park);
                self.timers.set(self.t + delay, Timer::ProgramExited(self.life, lease.0, process, method, died));
            }
        }
        for lease in leases {
            let delay = self.rng.within(0, S / 3);
            self.timers.set(self.t + delay, Timer::ReportMembers(self.life, lease.0));
        }
    }
}

/// Draws a request, now and then a senseless one.
pub fn draw_request(rng: &mut Rng, ttl_max_s: u64, cards: usize) -> LeaseRequest {
    let vram = match rng.below(40) {
        0 => Vram::Bytes(Bytes(rng.pick(&[0, 1, u64::MAX]))),
        1..=5 => Vram::Whole,
        6 => Vram::Bytes(Bytes::gib(rng.within(20, 100))),
        7 => Vram::Bytes(Bytes::mib(rng.within(50, 800))),
        _ => Vram::Bytes(Bytes::mib(rng.within(500, 12_000))),
    };
    let term = match rng.below(20) {
        0..=3 => Term::Fixed(Span::secs(rng.within(1, 2 * ttl_max_s))),
        4 => Term::Renewed(Span(rng.pick(&[0, S / 2, u64::MAX]))),
        _ => Term::Renewed(Span::secs(rng.within(3, ttl_max_s))),
    };
    LeaseRequest {
        vram,
        gpus: if rng.chance(150) { rng.within(1, cards as u64 + 1) as u16 } else { 1 },
        term,
        tier: rng.pick(&[Tier::Interactive, Tier::Batch, Tier::Batch, Tier::Spot]),
        priority: if rng.chance(200) { rng.within(0, 20) as i8 - 10 } else { 0 },
        exclusivity: match rng.below(12) {
            0 => Exclusivity::Session,
            1 => Exclusivity::Device,
            _ => Exclusivity::Shared,
        },
        preempt: Preempt::Usual,
        at_least: rng.chance(60).then(|| Bytes::mib(rng.within(1, 2_000))),
        gpus_allowed: match rng.below(20) {
            0 => Some(GpuSelector::Index(rng.below(cards as u64) as u32)),
            1 => {
                let gpu = rng.below(cards as u64 + 1);
                Some(GpuSelector::AnyOf(vec![GpuSelector::Uuid(format!("GPU-{gpu}")), GpuSelector::Index(gpu as u32)]))
            }
            2 => Some(GpuSelector::Model(rng.pick(&["desk", "RACK", "8"]).to_owned())),
            _ => None,
        },
        has_hook: false,
        may_lose_state: false,
        is_measured: false,
        notice: None,
        name: None,
    }
}
