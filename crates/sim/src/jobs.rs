//! What people do: ask, wait, bind, allocate, work or idle, give back, or walk away.
//!
//! ```text
//!  Idle ──ask──► Asking ──► Waiting ──► Holding ──► Over ──► Idle
//!                  └── refused, or the daemon died: Idle again; the lease, if
//!                      there is one, has nobody who knows of it
//! ```

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::programs::ShimOrder;
use crate::rng::Rng;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use sublet_core::decide::offer::offers;
use sublet_core::event::{Event, EventAnswer, Refusal};
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::{Fence, GpuId, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::request::{Exclusivity, GpuSelector, LeaseRequest, Preempt, Term, Tier, Vram};
use sublet_core::rows::Phase;
use sublet_core::units::{Bytes, Span};

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStage {
    /// Thinking.
    Idle,
    /// It asked, and has no answer yet.
    Asking,
    /// In the queue.
    Waiting,
    /// Told that it has its cards.
    Holding,
    /// Done with them.
    Over,
}

/// How it holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobStyle {
    /// By words alone.
    Words,
    /// Bound to a process after the grant.
    Bound,
    /// Bound to a process from the ask on.
    Rooted,
}

/// How it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobEnd {
    /// Gives back, then exits.
    Release,
    /// Gives back; its process stays and keeps its bytes.
    Linger,
    /// Gives back, and uses the same process for the next lease.
    Reuse,
    /// Exits without a word.
    Exit,
    /// Does nothing any more.
    Forget,
}

/// One thing somebody wants done.
#[derive(Debug)]
pub struct SimJob {
    /// Who.
    pub tenant: usize,
    /// Where it is.
    pub stage: JobStage,
    /// Its present alarm.
    pub turn: u32,
    /// As told.
    pub lease: Option<LeaseId>,
    /// As told.
    pub epoch: Fence,
    /// Its process.
    pub tree: Option<u32>,
    style: JobStyle,
    finish: JobEnd,
    busy: bool,
    greedy: bool,
    bound: bool,
    pub(crate) cards: Vec<usize>,
    pub(crate) vram: Bytes,
    ttl_us: u64,
    stop_us: u64,
}

impl SimJob {
    /// A job that has yet to begin.
    pub fn new(tenant: usize) -> SimJob {
        SimJob {
            tenant,
            stage: JobStage::Idle,
            turn: 0,
            lease: None,
            epoch: Fence(0),
            tree: None,
            style: JobStyle::Words,
            finish: JobEnd::Release,
            busy: false,
            greedy: false,
            bound: false,
            cards: Vec::new(),
            vram: Bytes::ZERO,
            ttl_us: 10 * S,
            stop_us: 0,
        }
    }

    /// Its host died, and its process with it.
    pub fn rebooted(&mut self) {
        if self.tree.take().is_some() {
            (self.stage, self.lease) = (JobStage::Idle, None);
        }
    }
}

impl Sim<'_> {
    /// Sets the job's next alarm; earlier ones are void.
    pub(crate) fn alarm(&mut self, job: u32, delay_us: u64) {
        let turn = &mut self.jobs[job as usize].turn;
        *turn += 1;
        self.timers.set(self.t + delay_us, Timer::Wake(job, *turn));
    }

    /// A job does its next thing.
    pub(crate) fn wake(&mut self, job: u32, turn: u32) -> Result<(), Violation> {
        if self.jobs[job as usize].turn != turn {
            return Ok(());
        }
        match self.jobs[job as usize].stage {
            JobStage::Idle if self.calm => Ok(()),
            JobStage::Idle => self.ask(job),
            // Nobody answered: it gives up on that ask, which may be in the queue all the same.
            JobStage::Asking => {
                self.jobs[job as usize].stage = JobStage::Idle;
                self.think(job);
                Ok(())
            }
            JobStage::Waiting => self.wait_on(job),
            JobStage::Holding => self.hold_on(job),
            JobStage::Over => {
                self.leave(job);
                Ok(())
            }
        }
    }

    fn think(&mut self, job: u32) {
        let longest = if self.shape.jobs > 400 { 60 } else { 15 };
        let delay = self.rng.within(S / 10, longest * S);
        self.alarm(job, delay);
    }

    fn ask(&mut self, number: u32) -> Result<(), Violation> {
        let ask = draw_ask(&mut self.rng, self.shape.ttl_max_s, self.world.cards.len());
        let ask = if self.shape.crowd {
            LeaseRequest::plain(Bytes::gib(16), Term::Renewed(Span::secs(60)))
        } else {
            self.choose(ask)
        };
        let wait = match self.rng.below(10) {
            0 => Some(Span::ZERO),
            1..=3 => Some(Span::secs(self.rng.within(1, 200))),
            _ => None,
        };
        let style = match self.rng.pick(&[JobStyle::Words, JobStyle::Bound, JobStyle::Bound, JobStyle::Rooted]) {
            // Only whose processes are known can be parked.
            JobStyle::Words if self.parks() && self.luck.chance(800) => JobStyle::Bound,
            style => style,
        };
        let finish = [JobEnd::Release, JobEnd::Release, JobEnd::Linger, JobEnd::Reuse, JobEnd::Exit, JobEnd::Forget];
        let job = &mut self.jobs[number as usize];
        job.style = style;
        job.finish = self.rng.pick(&finish);
        job.busy = self.rng.chance(650);
        job.greedy = self.rng.chance(80) || (!self.shape.crowd && self.greed.chance(120));
        job.bound = false;
        if self.shape.crowd {
            (job.style, job.finish, job.busy) = (JobStyle::Bound, JobEnd::Release, true);
        }
        job.ttl_us = ask.term.span().0.min(600 * S);
        (job.stage, job.lease) = (JobStage::Asking, None);
        let root = (style == JobStyle::Rooted).then(|| self.process_of(number)).flatten();
        let by = self.jobs[number as usize].tenant;
        self.alarm(number, 40 * S);
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

    /// The answer to one of its calls has left the daemon.
    pub(crate) fn answered(&mut self, number: u32, event_was_ask: bool, answer: &EventAnswer) {
        let stage = self.jobs[number as usize].stage;
        match answer {
            EventAnswer::Refused(Refusal::NoSuchLease | Refusal::Ended)
                if !event_was_ask && stage != JobStage::Idle =>
            {
                self.jobs[number as usize].stage = JobStage::Over;
                self.alarm(number, S);
            }
            _ if !event_was_ask || stage != JobStage::Asking => {}
            EventAnswer::Lease(lease) => {
                self.by_lease.insert(*lease, number);
                let job = &mut self.jobs[number as usize];
                (job.stage, job.lease) = (JobStage::Waiting, Some(*lease));
                let delay = self.rng.within(S, 60 * S);
                self.alarm(number, delay);
            }
            _ => {
                self.jobs[number as usize].stage = JobStage::Idle;
                self.think(number);
            }
        }
    }

    /// The daemon said that a lease was granted.
    pub(crate) fn told_granted(&mut self, lease: LeaseId, epoch: Fence, cards: Vec<usize>, vram: Bytes) {
        let Some(number) = self.by_lease.get(&lease).copied() else { return };
        let stop = self.rng.within(0, 6 * self.jobs[number as usize].ttl_us);
        let stop = if self.shape.crowd { u64::MAX / 4 } else { stop };
        let job = &mut self.jobs[number as usize];
        if job.lease == Some(lease) && job.stage == JobStage::Waiting {
            (job.stage, job.epoch, job.cards, job.vram) = (JobStage::Holding, epoch, cards, vram);
            job.stop_us = self.t + stop;
            let delay = self.rng.within(0, 2 * S);
            self.alarm(number, delay);
        }
    }

    /// The daemon said that a lease is over.
    pub(crate) fn told_ended(&mut self, lease: LeaseId) {
        let Some(number) = self.by_lease.remove(&lease) else { return };
        let job = &mut self.jobs[number as usize];
        if job.lease == Some(lease) {
            job.stage = JobStage::Over;
            let delay = self.rng.within(0, 10 * S);
            self.alarm(number, delay);
        }
    }

    fn wait_on(&mut self, number: u32) -> Result<(), Violation> {
        let delay = self.rng.within(S, 60 * S);
        self.alarm(number, delay);
        self.poll(number);
        let rooted = self.jobs[number as usize].style == JobStyle::Rooted;
        match self.rng.below(100) {
            _ if self.calm => {}
            _ if self.shape.crowd => {}
            0..10 => return self.say_released(number),
            10..15 if rooted => self.exit(number),
            15..20 if rooted => self.grow(number),
            20..30 => return self.accept(number),
            _ => {}
        }
        Ok(())
    }

    /// It would take less now: what is offered, or some other amount.
    fn accept(&mut self, number: u32) -> Result<(), Violation> {
        let Some(lease) = self.jobs[number as usize].lease else { return Ok(()) };
        let now = self.now();
        let offered = self.daemon.as_ref().and_then(|daemon| {
            let state = daemon.engine.state();
            let offers = offers(state, state.lease(lease)?, now);
            offers.into_iter().next()
        });
        let (vram, gpus) = match offered {
            Some(offer) if self.rng.chance(700) => (offer.vram, offer.gpus),
            _ => (Bytes::mib(self.rng.within(0, 12_000)), self.rng.within(0, self.world.cards.len() as u64) as u16),
        };
        let by = self.jobs[number as usize].tenant;
        let caller = self.callers[by].clone();
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::OfferAccepted { by: caller, lease, vram, gpus }),
            job: Some(number),
        })
    }

    /// Looks where its lease is, in case nobody said.
    fn poll(&mut self, number: u32) {
        let Some(lease) = self.jobs[number as usize].lease.filter(|_| self.daemon.is_some()) else { return };
        match self.disk.rows.leases.get(&lease).map(|row| &row.phase) {
            Some(Phase::Waiting { .. }) => {}
            Some(Phase::Active(hold) | Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _)) => {
                let index = |card: &GpuId| self.disk.rows.gpus[card.0 as usize].facts.index as usize;
                let (epoch, vram, cards) = (hold.fence, hold.vram, hold.gpus.iter().map(index).collect());
                self.told_granted(lease, epoch, cards, vram);
            }
            Some(Phase::Ending(..)) | None => self.told_ended(lease),
        }
    }

    fn hold_on(&mut self, number: u32) -> Result<(), Violation> {
        let job = &self.jobs[number as usize];
        if self.t >= job.stop_us || self.calm {
            return self.finish(number);
        }
        let (style, busy, bound) = (job.style, job.busy, job.bound);
        let delay = self.rng.within(job.ttl_us / 10, job.ttl_us * 6 / 10);
        self.alarm(number, if self.shape.crowd { S } else { delay });
        let process = self.process_of(number);
        self.grow(number);
        if self.takes_more(number)? {
            return Ok(());
        }
        let job = &mut self.jobs[number as usize];
        let (Some(lease), epoch, by) = (job.lease, job.epoch, job.tenant) else { return Ok(()) };
        let caller = self.callers[by].clone();
        match (style, process) {
            (JobStyle::Bound, Some(process)) if !bound => {
                job.bound = true;
                let event = Event::Lease(LeaseEvent::BindRequested { by: caller, lease, fence: epoch, process });
                self.call(SimCall { by, event, job: Some(number) })
            }
            (JobStyle::Words, _) if busy => self.call(SimCall {
                by,
                event: Event::Lease(LeaseEvent::RenewalRequested { by: caller, lease, fence: epoch }),
                job: Some(number),
            }),
            (JobStyle::Bound | JobStyle::Rooted, _) if busy && self.is_asleep(lease) => self.want_back(lease),
            (JobStyle::Bound | JobStyle::Rooted, _) if busy && self.submits(number) => Ok(()),
            (JobStyle::Bound | JobStyle::Rooted, _) if busy => self.report(LeaseEvent::UseSeen { lease }),
            _ => Ok(()),
        }
    }

    /// Its processes submit work. Says whether one of them was held up with it.
    fn submits(&mut self, number: u32) -> bool {
        let tree = self.jobs[number as usize].tree.and_then(|tree| self.world.trees.get(&tree));
        let live = tree.map(|tree| tree.live.clone()).unwrap_or_default();
        let gated: Vec<ProcKey> = live.into_iter().filter(|process| self.is_gated(*process)).collect();
        gated.iter().for_each(|process| self.submit(*process));
        // Some of what it did before may be noticed only now.
        !gated.is_empty() && !self.luck.chance(100)
    }

    /// Its process takes bytes, sometimes more than were promised.
    fn grow(&mut self, number: u32) {
        let Some(process) = self.process_of(number) else { return };
        let job = &self.jobs[number as usize];
        let Some(tree) = job.tree.and_then(|tree| self.world.trees.get(&tree)) else { return };
        let process = if self.rng.chance(700) { process } else { tree.live[tree.live.len() - 1] };
        let most = if job.greedy { job.vram.0 + job.vram.0 / 2 } else { job.vram.0 };
        let (tree, cards) = (job.tree, job.cards.clone());
        let gated = self.is_gated(process) || job.lease.is_some_and(|lease| self.is_asleep(lease));
        // The library keeps a program to its lease, which may have come back with less than it was granted.
        let capped = self.world.programs.contains_key(&(process, Method::Shim));
        let hold = job.lease.and_then(|lease| self.disk.rows.leases.get(&lease)).and_then(|row| row.hold());
        let cap = hold.map_or(job.vram.0, |hold| hold.vram.0.min(job.vram.0));
        // Nobody reckons with who comes without a lease, nor with who is not kept to his.
        let intrudes = !capped || hold.is_none();
        let most = if capped { cap } else { most };
        if !gated {
            self.stray(process, &cards);
        }
        for card in cards {
            let here: u64 = self.world.cards[card]
                .residents
                .iter()
                .filter(|resident| self.world.trees[&tree.unwrap_or_default()].live.contains(&resident.process))
                .map(|resident| resident.bytes.unwrap_or_default().0)
                .sum();
            // What was taken off the card still counts where the library counts.
            let here = here + if capped { self.world.away(tree.unwrap_or_default(), card).0 } else { 0 };
            match self.rng.below(10) {
                _ if gated => {}
                0 => self.world.vacate(card, process),
                1..=6 if here < most => {
                    let bytes = Bytes(self.rng.within(1, most - here));
                    if intrudes && self.world.cards[card].bytes_of(process) == Bytes::ZERO {
                        self.world.cards[card].intruded_us = self.t;
                    }
                    self.world.allocate(card, process, bytes, false);
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
                    self.noticed(&leases);
                }
                Some((4.., _)) => {
                    let leases = self.world.exit_child(tree);
                    self.noticed(&leases);
                }
                _ => {}
            }
        }
    }

    fn finish(&mut self, number: u32) -> Result<(), Violation> {
        let job = &mut self.jobs[number as usize];
        let (finish, delay) = (job.finish, self.rng.within(20 * S, 200 * S));
        // Whatever was chosen, the next time it gives back.
        job.finish = JobEnd::Release;
        match finish {
            _ if self.calm => {
                self.exit(number);
                self.say_released(number)
            }
            JobEnd::Exit if job.tree.is_some() => {
                self.exit(number);
                self.alarm(number, delay);
                Ok(())
            }
            JobEnd::Exit | JobEnd::Forget => {
                self.alarm(number, delay);
                Ok(())
            }
            JobEnd::Release => self.say_released(number),
            JobEnd::Linger => {
                if let Some(tree) = job.tree.take() {
                    let stay = self.rng.within(S, 60 * S);
                    self.timers.set(self.t + stay, Timer::Exit(tree));
                }
                self.say_released(number)
            }
            JobEnd::Reuse => {
                let result = self.say_released(number);
                let job = &mut self.jobs[number as usize];
                (job.stage, job.lease) = (JobStage::Idle, None);
                self.think(number);
                result
            }
        }
    }

    fn say_released(&mut self, number: u32) -> Result<(), Violation> {
        let job = &mut self.jobs[number as usize];
        let Some(lease) = job.lease else { return Ok(()) };
        let (by, held) = (job.tenant, job.stage == JobStage::Holding);
        let epoch = (held && self.rng.chance(500)).then_some(job.epoch);
        let caller = self.callers[by].clone();
        self.alarm(number, 20 * S);
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::ReleaseRequested { by: caller, lease, fence: epoch }),
            job: Some(number),
        })
    }

    fn leave(&mut self, number: u32) {
        self.exit(number);
        let job = &mut self.jobs[number as usize];
        (job.stage, job.lease) = (JobStage::Idle, None);
        self.think(number);
    }

    fn exit(&mut self, number: u32) {
        if let Some(tree) = self.jobs[number as usize].tree.take() {
            let leases = self.world.exit(tree);
            self.noticed(&leases);
        }
    }

    /// The host will notice that the processes of these leases changed.
    pub(crate) fn noticed(&mut self, leases: &[LeaseId]) {
        self.notice_exits();
        for ((process, rung), program) in std::mem::take(&mut self.world.left) {
            if let Some(lease) = program.heard_as(self.life) {
                let delay = self.luck.within(0, S / 3);
                let died = rung == Method::Shim && program.doing == Some(ShimOrder::Park);
                self.timers.set(self.t + delay, Timer::Left(self.life, lease.0, process, rung, died));
            }
        }
        for lease in leases {
            let delay = self.rng.within(0, S / 3);
            self.timers.set(self.t + delay, Timer::Says(self.life, lease.0));
        }
    }
}

/// A wish, now and then one that makes no sense.
pub fn draw_ask(rng: &mut Rng, ttl_max_s: u64, cards: usize) -> LeaseRequest {
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
                let card = rng.below(cards as u64 + 1);
                Some(GpuSelector::AnyOf(vec![
                    GpuSelector::Uuid(format!("GPU-{card}")),
                    GpuSelector::Index(card as u32),
                ]))
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
