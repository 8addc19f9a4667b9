//! Drives the core over a trace: from event to event, with nothing in between.
//!
//! ```text
//! job:   arrives ──► waits ──► runs ──► finished
//!           │          ▲         │
//!           ▼          └─────────┘  its lease ended before its work, or it was parked
//!        refused
//! ```
//!
//! A GPU is read 1 µs after a lease ended there, and the reading shows it empty: only the
//! reservations of leases count, and there are no unleased processes. A job is always busy,
//! so it is reported as busy whenever its lease could be renewed.

use crate::books::Books;
use crate::calibration::Calibration;
use crate::cluster::{Cluster, uuid};
use crate::moves::{Move, Moves, process, takes};
use crate::trace::{Job, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use sublet_core::action::Action;
use sublet_core::ask::{Ask, Term};
use sublet_core::decide;
use sublet_core::decide::preempt::changes_at;
use sublet_core::event::{Answer, Caller, Event};
use sublet_core::ids::{CardId, LeaseId};
use sublet_core::parking::Said;
use sublet_core::policy::Policy;
use sublet_core::reading::Observation;
use sublet_core::rows::{Hold, Lease, Phase, Reason, Rows};
use sublet_core::rung::Rung;
use sublet_core::state::State;
use sublet_core::units::{Bytes, Span, Time};

/// The time from the end of a lease to the reading that confirms it.
const LOOK_AFTER: Span = Span(1);
/// The longest wait of a request: longer than any trace, so that none gives up.
const FOR_EVER: Span = Span::secs(1_000 * 366 * 86_400);

/// How long a lease jobs request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// The default: renewed while the job is busy, ended at the hold cap while others wait.
    Renewed,
    /// For exactly as long as the work takes.
    Fixed,
}

/// What is run, on what, and how.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The jobs.
    pub trace: &'a Trace,
    /// The GPUs.
    pub cluster: &'a Cluster,
    /// The rules, made fit by [`crate::policies::for_replay`].
    pub policy: Policy,
    /// How long a lease jobs request.
    pub leases: Leases,
    /// The time to stop at, even if jobs still wait or run.
    pub until: Option<Time>,
    /// The length of a slot of [`Books`].
    pub slot: Span,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The replay was stopped before it arrived.
    NotYet,
    /// In the queue.
    Waiting,
    /// On its GPUs.
    Running,
    /// All its work is done.
    Finished,
    /// Not admitted.
    Refused,
}

/// What became of one job.
#[derive(Clone, Debug)]
pub struct Course {
    /// Where it is.
    pub fate: Fate,
    /// Work not done yet.
    pub left: Span,
    /// Time in the queue, over all of its waits.
    pub waited: Span,
    /// Time in the queue before its first grant.
    pub first_wait: Option<Span>,
    /// How often it was granted GPUs, or was resumed.
    pub turns: u32,
    /// From its request to the end of its work.
    pub took: Option<Span>,
    /// When its present wait or hold began.
    since: Time,
    lease: LeaseId,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// For each job of the trace.
    pub courses: Vec<Course>,
    /// The integrals.
    pub books: Books,
    /// Why jobs were refused, and how many.
    pub refused: BTreeMap<String, u64>,
    /// Events the core took in.
    pub events: u64,
    /// What the core charged for leases that are over, in byte·µs.
    pub charged: u128,
    /// The time of the last event.
    pub ended: Time,
    /// Leases parked or ended for others.
    pub preemptions: u64,
    /// What waiters were told, and when they really started.
    pub calibration: Calibration,
}

struct Driver<'a> {
    setup: &'a Setup<'a>,
    state: State,
    now: Time,
    arrivals: usize,
    courses: Vec<Course>,
    /// When a job's work will be done: time, job, number of the grant.
    dones: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// When a busy job will renew its lease.
    renewals: BinaryHeap<Reverse<(Time, LeaseId)>>,
    /// GPUs where a lease ended, and when they are read.
    unseen: BTreeSet<CardId>,
    look_at: Time,
    /// Jobs that must make another request.
    again: VecDeque<u32>,
    /// For each lease, the job that requested it.
    job_of: Vec<u32>,
    callers: Vec<Caller>,
    uuids: Vec<String>,
    books: Books,
    refused: BTreeMap<String, u64>,
    events: u64,
    moves: Moves,
    /// Answers of programs to the latest decisions.
    replies: VecDeque<Event>,
    /// When the scheduler may decide differently without any event.
    plans: Option<Time>,
    preemptions: u64,
    calibration: Calibration,
}

/// Runs a trace to its end.
pub fn drive(setup: &Setup<'_>) -> Run {
    let trace = setup.trace;
    let began = trace.jobs.first().map_or(Time::ZERO, |job| job.arrival);
    let course = |job: &Job| Course {
        fate: Fate::NotYet,
        left: job.duration,
        waited: Span::ZERO,
        first_wait: None,
        turns: 0,
        took: None,
        since: job.arrival,
        lease: LeaseId(0),
    };
    let mut driver = Driver {
        setup,
        state: State::new(Rows::default(), setup.policy.clone()),
        now: began,
        arrivals: 0,
        courses: trace.jobs.iter().map(course).collect(),
        dones: BinaryHeap::new(),
        renewals: BinaryHeap::new(),
        unseen: BTreeSet::new(),
        look_at: began,
        again: VecDeque::new(),
        job_of: Vec::new(),
        callers: trace.tenants.iter().map(Caller::user).collect(),
        uuids: (0..setup.cluster.cards.len()).map(uuid).collect(),
        books: Books::new(setup.cluster, setup.policy.margin, trace, began, setup.slot),
        refused: BTreeMap::new(),
        events: 0,
        moves: Moves::new(setup.cluster),
        replies: VecDeque::new(),
        plans: None,
        preemptions: 0,
        calibration: Calibration::new(trace.jobs.len()),
    };
    driver.reply_ram();
    driver.tell(Event::Listed(setup.cluster.facts()));
    driver.unseen = (0..setup.cluster.cards.len() as u16).map(CardId).collect();
    driver.look();
    while driver.step() {}
    driver.finish()
}

impl Driver<'_> {
    /// Handles the next event; returns false if there is none.
    fn step(&mut self) -> bool {
        let done = self.dones.peek().map(|Reverse((at, ..))| *at);
        let renewal = self.renewals.peek().map(|Reverse((at, _))| *at);
        let look = (!self.unseen.is_empty()).then_some(self.look_at);
        let due = self.state.next_due().filter(|_| done.is_some() || renewal.is_some());
        let arrival = self.setup.trace.jobs.get(self.arrivals).map(|job| job.arrival);
        // At the same instant, work ends before leases expire, and freed bytes are read before a new job arrives.
        let (moved, plans) = (self.moves.next(), self.plans);
        let next = [done, renewal, due, look, moved, plans, arrival]
            .into_iter()
            .zip(0..)
            .filter_map(|(at, n)| at.map(|at| (at, n)));
        let Some((at, kind)) = next.min() else { return false };
        if let Some(until) = self.setup.until.filter(|until| at > *until) {
            self.now = self.now.max(until);
            self.books.advance(self.now);
            return false;
        }
        // A due time may have passed during a reading.
        self.now = self.now.max(at);
        self.books.advance(self.now);
        match kind {
            0 => self.done(),
            1 => self.worked(),
            2 => self.tell(Event::Ticked),
            3 => self.look(),
            4 => self.moved(),
            5 => self.tell(Event::Ticked),
            _ => {
                let job = self.arrivals as u32;
                self.arrivals += 1;
                self.ask(job);
            }
        }
        self.reply();
        while let Some(job) = self.again.pop_front() {
            self.ask(job);
            self.reply();
        }
        if self.parks() {
            self.plans = changes_at(&self.state, self.now);
        }
        true
    }

    fn finish(mut self) -> Run {
        self.books.close();
        for course in &mut self.courses {
            let since = self.now.since(course.since);
            match course.fate {
                Fate::Waiting => course.waited = course.waited + since,
                Fate::Running => course.left = Span(course.left.0.saturating_sub(since.0)),
                Fate::NotYet | Fate::Finished | Fate::Refused => {}
            }
        }
        Run {
            courses: self.courses,
            books: self.books,
            refused: self.refused,
            events: self.events,
            charged: self.state.rows().tenants.iter().map(|tenant| tenant.byte_us).sum(),
            ended: self.now,
            preemptions: self.preemptions,
            calibration: self.calibration,
        }
    }

    // ---- what jobs do ------------------------------------------------------

    fn ask(&mut self, number: u32) {
        let job = &self.setup.trace.jobs[number as usize];
        let course = &mut self.courses[number as usize];
        (course.fate, course.since) = (Fate::Waiting, self.now);
        let ask = ask_of(job, course.left, self.setup);
        let by = self.callers[job.tenant as usize].clone();
        let lease = self.state.rows().meta.next_lease as usize;
        self.job_of.resize(lease + 1, number);
        self.job_of[lease] = number;
        let first = course.turns == 0;
        let id = LeaseId(lease as u64);
        let root = self.parks().then(|| process(id));
        let outcome = decide(&mut self.state, self.now, Event::Asked { by, ask, wait: Some(FOR_EVER), root });
        self.events += 1;
        if let Answer::Refused(why) = &outcome.answer {
            self.courses[number as usize].fate = Fate::Refused;
            self.books.leave(number);
            *self.refused.entry(why.to_string()).or_default() += 1;
        }
        self.note(&outcome.actions);
        if first {
            self.calibration.ask(number, &self.state, id, self.now);
        }
    }

    /// The first job of `dones` gives its GPUs back, unless its lease ended before.
    fn done(&mut self) {
        let Some(Reverse((_, number, turn))) = self.dones.pop() else { return };
        let course = &self.courses[number as usize];
        if course.fate == Fate::Running && course.turns == turn {
            let by = self.callers[self.setup.trace.jobs[number as usize].tenant as usize].clone();
            self.tell(Event::Released { by, lease: course.lease, epoch: None });
        }
    }

    /// The first lease of `renewals` is reported as busy.
    fn worked(&mut self) {
        let Some(Reverse((_, lease))) = self.renewals.pop() else { return };
        if matches!(self.state.lease(lease), Some(Lease { phase: Phase::Active(_), .. })) {
            self.tell(Event::Worked { lease });
        }
    }

    /// Reads every GPU where a lease ended.
    fn look(&mut self) {
        // The earlier answers of programs come first.
        self.reply();
        for card in std::mem::take(&mut self.unseen) {
            let n = usize::from(card.0);
            let observation = Observation { begun: self.now, reading: self.moves.reading(card) };
            self.tell(Event::Observed { card: self.uuids[n].clone(), observation });
        }
    }

    // ---- what the core decides ---------------------------------------------

    fn tell(&mut self, event: Event) {
        let outcome = decide(&mut self.state, self.now, event);
        self.events += 1;
        self.note(&outcome.actions);
    }

    fn note(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Queue { lease, .. } => self.queued(*lease),
                Action::Grant { lease, cards, .. } => {
                    let number = self.job_of[lease.0 as usize];
                    self.books.grant(number, cards);
                    let course = &mut self.courses[number as usize];
                    let wait = self.now.since(course.since);
                    course.waited = course.waited + wait;
                    course.first_wait.get_or_insert(wait);
                    self.calibration.start(number, self.now);
                    self.runs(*lease);
                    if self.parks() {
                        self.moves.set(*lease, cards, self.setup.trace.jobs[number as usize].vram);
                        self.look_at(cards);
                        let said = Said::Here { parked: None };
                        let process = process(*lease);
                        self.replies.push_back(Event::Said { lease: *lease, rung: Rung::Park, process, said });
                    }
                }
                Action::Renew { lease, .. } => self.expect_renewal(*lease),
                Action::Park { lease, room_for, .. } => {
                    self.preemptions += u64::from(room_for.is_some());
                    self.stops(*lease);
                    self.order(*lease, Move::Out);
                }
                Action::Retreat { lease, .. } => self.order(*lease, Move::Out),
                Action::Unpark { lease, .. } => self.order(*lease, Move::Back),
                Action::Parked { lease, .. } => {
                    let number = self.job_of[lease.0 as usize];
                    if let Some(hold) = self.state.lease(*lease).and_then(Lease::hold) {
                        self.books.end(number, &hold.cards);
                    }
                    self.books.wait(number);
                    self.reply_ram();
                    // A job is always busy, so it wants its GPUs back at once.
                    let (rung, process, said) = (Rung::Park, process(*lease), Said::Wants);
                    self.replies.push_back(Event::Said { lease: *lease, rung, process, said });
                }
                Action::Resume { lease, .. } => {
                    if let Some(hold) = self.state.lease(*lease).and_then(Lease::hold) {
                        self.books.grant(self.job_of[lease.0 as usize], &hold.cards);
                    }
                    self.order(*lease, Move::Back);
                }
                Action::Resumed { lease, .. } => {
                    let course = &mut self.courses[self.job_of[lease.0 as usize] as usize];
                    course.waited = course.waited + self.now.since(course.since);
                    self.runs(*lease);
                    self.reply_ram();
                }
                Action::End { lease, reason, .. } => {
                    self.preemptions += u64::from(*reason == Reason::Preempted);
                    self.ended(*lease, *reason);
                }
                _ => {}
            }
        }
    }

    fn parks(&self) -> bool {
        self.setup.policy.parking.preempt
    }

    /// Host memory that is not taken by parked bytes.
    fn reply_ram(&mut self) {
        if self.parks() {
            let available = Some(self.setup.policy.parking.ram.less(self.state.booked()));
            self.replies.push_back(Event::Ram { available });
        }
    }

    fn reply(&mut self) {
        while let Some(event) = self.replies.pop_front() {
            self.tell(event);
        }
    }

    fn look_at(&mut self, cards: &[CardId]) {
        self.unseen.extend(cards.iter().copied());
        self.look_at = self.now + LOOK_AFTER;
    }

    /// A job has its GPUs and works.
    fn runs(&mut self, lease: LeaseId) {
        let number = self.job_of[lease.0 as usize];
        let course = &mut self.courses[number as usize];
        course.turns += 1;
        (course.fate, course.since) = (Fate::Running, self.now);
        self.dones.push(Reverse((self.now + course.left, number, course.turns)));
        self.expect_renewal(lease);
    }

    /// A job does not work any more, and waits.
    fn stops(&mut self, lease: LeaseId) {
        let course = &mut self.courses[self.job_of[lease.0 as usize] as usize];
        if course.fate == Fate::Running {
            course.left = Span(course.left.0.saturating_sub(self.now.since(course.since).0));
            (course.fate, course.since) = (Fate::Waiting, self.now);
        }
    }

    /// A job is told where its bytes shall be.
    fn order(&mut self, lease: LeaseId, way: Move) {
        let number = self.job_of[lease.0 as usize];
        let job = &self.setup.trace.jobs[number as usize];
        let bytes = Bytes(job.vram.0.saturating_mul(u64::from(job.cards)));
        self.moves.order(lease, way, self.now + takes(bytes));
    }

    /// The first move is done: the job says so, and its GPUs are read until that is seen.
    fn moved(&mut self) {
        let Some((lease, way)) = self.moves.done() else { return };
        let job = &self.setup.trace.jobs[self.job_of[lease.0 as usize] as usize];
        let bytes = Bytes(job.vram.0.saturating_mul(u64::from(job.cards)));
        let Some(cards) = self.state.lease(lease).and_then(Lease::hold).map(|hold| hold.cards.clone()) else { return };
        let (on_each, said, readings) = match way {
            Move::Out => (Bytes::ZERO, Said::Parked(bytes), 2),
            Move::Back => (job.vram, Said::Resumed, 1),
        };
        self.moves.set(lease, &cards, on_each);
        self.tell(Event::Said { lease, rung: Rung::Park, process: process(lease), said });
        for _ in 0..readings {
            self.now = self.now + LOOK_AFTER;
            self.books.advance(self.now);
            self.look_at(&cards);
            self.look();
        }
    }

    fn queued(&mut self, lease: LeaseId) {
        let number = self.job_of[lease.0 as usize];
        self.courses[number as usize].lease = lease;
        self.books.wait(number);
    }

    /// Schedules a renewal, only if the lease would expire before its job is done.
    fn expect_renewal(&mut self, lease: LeaseId) {
        if let Some(row) = self.state.lease(lease)
            && !row.fixed()
            && let Phase::Active(hold) = &row.phase
        {
            let at = self.state.renewal_point(row, hold);
            let course = &self.courses[self.job_of[lease.0 as usize] as usize];
            if at < course.since + course.left {
                self.renewals.push(Reverse((at, lease)));
            }
        }
    }

    fn ended(&mut self, lease: LeaseId, reason: Reason) {
        let number = self.job_of[lease.0 as usize];
        let hold = self.state.lease(lease).and_then(Lease::hold).cloned();
        let was_parked = hold.as_ref().is_some_and(is_stopped);
        if let Some(hold) = hold {
            if was_parked {
                self.books.leave_queue(number);
            } else {
                self.books.end(number, &hold.cards);
            }
            self.moves.set(lease, &hold.cards, Bytes::ZERO);
            self.moves.forget(lease);
            self.look_at(&hold.cards);
        }
        self.stops(lease);
        if reason.ends_processes() {
            self.replies.push_back(Event::Members { lease, processes: Vec::new(), restricted: BTreeMap::new() });
        }
        let job = &self.setup.trace.jobs[number as usize];
        let course = &mut self.courses[number as usize];
        if reason == Reason::Released || course.left == Span::ZERO {
            course.fate = Fate::Finished;
            course.took = Some(self.now.since(job.arrival));
            self.books.leave(number);
        } else {
            self.again.push_back(number);
        }
    }
}

/// What a job asks for, with this much work left.
fn ask_of(job: &Job, left: Span, setup: &Setup<'_>) -> Ask {
    let term = match setup.leases {
        Leases::Renewed => Term::Renewed(setup.policy.ttl),
        Leases::Fixed => Term::Fixed(left.max(Span::secs(1)).min(Ask::FIXED_MAX)),
    };
    Ask { gpus: job.cards, tier: job.tier, priority: job.priority, ..Ask::plain(job.vram, term) }
}

/// True if a lease was parked when it ended.
fn is_stopped(hold: &Hold) -> bool {
    hold.turns.as_ref().is_some_and(|turns| turns.stopped.is_some())
}
