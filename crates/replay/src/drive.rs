//! Drives the core over a trace: from event to event, with nothing in between.
//!
//! ```text
//! job:   arrives ──► waits ──► runs ──► finished
//!           │          ▲         │
//!           ▼          └─────────┘  its lease ended before its work (a turn)
//!        refused
//! ```
//!
//! A card is looked at a microsecond after something ended there, and shows as
//! empty: what leases were promised counts, strangers there are none. A job works
//! all the time, so it is said to have worked whenever its lease could be renewed.

use crate::books::Books;
use crate::cluster::{Cluster, uuid};
use crate::trace::{Job, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use sublet_core::action::Action;
use sublet_core::ask::{Ask, Term};
use sublet_core::decide;
use sublet_core::event::{Answer, Caller, Event};
use sublet_core::ids::{CardId, LeaseId};
use sublet_core::policy::Policy;
use sublet_core::reading::{Observation, Reading, Used};
use sublet_core::rows::{Lease, Phase, Reason, Rows};
use sublet_core::state::State;
use sublet_core::units::{Span, Time};

/// From an end to the look that proves it.
const LOOK_AFTER: Span = Span(1);
/// Everybody waits to the end: longer than any trace.
const FOR_EVER: Span = Span::secs(1_000 * 366 * 86_400);

/// How jobs ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// As people do by default: renewed while used, given up at the hold cap while others wait.
    Renewed,
    /// For exactly as long as the work takes.
    Fixed,
}

/// What is run, on what, and how.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The jobs.
    pub trace: &'a Trace,
    /// The cards.
    pub cluster: &'a Cluster,
    /// The rules, made fit by [`crate::policies::for_replay`].
    pub policy: Policy,
    /// How jobs ask.
    pub leases: Leases,
    /// Stop then, whatever still waits or runs.
    pub until: Option<Time>,
    /// See [`Books`].
    pub slot: Span,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The replay was stopped before it came.
    NotYet,
    /// In the queue.
    Waiting,
    /// On its cards.
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
    /// In the queue, all turns together.
    pub waited: Span,
    /// In the queue before its first turn.
    pub first_wait: Option<Span>,
    /// How often it was granted cards.
    pub turns: u32,
    /// When its wait or its turn began.
    since: Time,
    lease: LeaseId,
}

/// What came of a run.
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
    /// Bytes times time the core itself charged for leases that are over, in byte·µs.
    pub charged: u128,
    /// When the last thing happened.
    pub ended: Time,
}

struct Driver<'a> {
    setup: &'a Setup<'a>,
    state: State,
    now: Time,
    arrivals: usize,
    courses: Vec<Course>,
    /// When a job's work will be done: job and turn.
    dones: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// When use will renew a lease.
    renewals: BinaryHeap<Reverse<(Time, LeaseId)>>,
    /// Cards where something ended, and when they are looked at.
    unseen: BTreeSet<CardId>,
    look_at: Time,
    /// Jobs that must ask again.
    again: VecDeque<u32>,
    /// By lease, the job that asked for it.
    job_of: Vec<u32>,
    callers: Vec<Caller>,
    uuids: Vec<String>,
    books: Books,
    refused: BTreeMap<String, u64>,
    events: u64,
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
    };
    driver.tell(Event::Listed(setup.cluster.facts()));
    driver.unseen = (0..setup.cluster.cards.len() as u16).map(CardId).collect();
    driver.look();
    while driver.step() {}
    driver.finish()
}

impl Driver<'_> {
    /// Lets the next thing happen, if there is one.
    fn step(&mut self) -> bool {
        let done = self.dones.peek().map(|Reverse((at, ..))| *at);
        let renewal = self.renewals.peek().map(|Reverse((at, _))| *at);
        let look = (!self.unseen.is_empty()).then_some(self.look_at);
        let due = self.state.next_due().filter(|_| done.is_some() || renewal.is_some());
        let arrival = self.setup.trace.jobs.get(self.arrivals).map(|job| job.arrival);
        // At one instant: work ends before leases do, and room is seen before anybody new comes.
        let next = [done, renewal, due, look, arrival].into_iter().zip(0..).filter_map(|(at, n)| at.map(|at| (at, n)));
        let Some((at, kind)) = next.min() else { return false };
        if let Some(until) = self.setup.until.filter(|until| at > *until) {
            self.now = self.now.max(until);
            self.books.advance(self.now);
            return false;
        }
        // A due time may have passed while a look was taken.
        self.now = self.now.max(at);
        self.books.advance(self.now);
        match kind {
            0 => self.done(),
            1 => self.worked(),
            2 => self.tell(Event::Ticked),
            3 => self.look(),
            _ => {
                let job = self.arrivals as u32;
                self.arrivals += 1;
                self.ask(job);
            }
        }
        while let Some(job) = self.again.pop_front() {
            self.ask(job);
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
        let outcome = decide(&mut self.state, self.now, Event::Asked { by, ask, wait: Some(FOR_EVER), root: None });
        self.events += 1;
        if let Answer::Refused(why) = &outcome.answer {
            self.courses[number as usize].fate = Fate::Refused;
            self.books.leave(number);
            *self.refused.entry(why.to_string()).or_default() += 1;
        }
        self.note(&outcome.actions);
    }

    /// The first job whose work is over gives its cards back, unless its turn was over before.
    fn done(&mut self) {
        let Some(Reverse((_, number, turn))) = self.dones.pop() else { return };
        let course = &self.courses[number as usize];
        if course.fate == Fate::Running && course.turns == turn {
            let by = self.callers[self.setup.trace.jobs[number as usize].tenant as usize].clone();
            self.tell(Event::Released { by, lease: course.lease, epoch: None });
        }
    }

    /// The first lease whose renewal is due was used.
    fn worked(&mut self) {
        let Some(Reverse((_, lease))) = self.renewals.pop() else { return };
        if matches!(self.state.lease(lease), Some(Lease { phase: Phase::Active(_), .. })) {
            self.tell(Event::Worked { lease });
        }
    }

    /// Every card where something ended is looked at.
    fn look(&mut self) {
        for card in std::mem::take(&mut self.unseen) {
            let n = usize::from(card.0);
            let used = Used { free: self.setup.cluster.cards[n], processes: Vec::new(), coarse: false };
            let observation = Observation { begun: self.now, reading: Reading::Used(used) };
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
                    course.turns += 1;
                    (course.fate, course.since) = (Fate::Running, self.now);
                    self.dones.push(Reverse((self.now + course.left, number, course.turns)));
                    self.expect_renewal(*lease);
                }
                Action::Renew { lease, .. } => self.expect_renewal(*lease),
                Action::End { lease, reason, .. } => self.ended(*lease, *reason),
                _ => {}
            }
        }
    }

    fn queued(&mut self, lease: LeaseId) {
        let number = self.job_of[lease.0 as usize];
        self.courses[number as usize].lease = lease;
        self.books.wait(number);
    }

    /// Only a lease that is renewed before its job is done need be said to be used.
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
        if let Some(hold) = self.state.lease(lease).and_then(Lease::hold) {
            self.books.end(number, &hold.cards);
            self.unseen.extend(hold.cards.iter().copied());
            self.look_at = self.now + LOOK_AFTER;
        }
        let course = &mut self.courses[number as usize];
        course.left = Span(course.left.0.saturating_sub(self.now.since(course.since).0));
        if reason == Reason::Released || course.left == Span::ZERO {
            course.fate = Fate::Finished;
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
