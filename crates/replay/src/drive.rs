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

use crate::calibration::Calibration;
use crate::host_gpus::{HostGpus, uuid};
use crate::moves::{MoveDirection, ReplayMoves, move_duration, process_of};
use crate::trace::{Trace, TraceJob};
use crate::usage::UsageIntegrals;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use sublet_core::action::Action;
use sublet_core::decide;
use sublet_core::event::{Caller, Event, EventAnswer};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseAction, LeaseEvent};
use sublet_core::ids::{GpuId, LeaseId};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::policy::room_plan::changes_at;
use sublet_core::reading::GpuReading;
use sublet_core::request::{LeaseRequest, Term};
use sublet_core::rows::{EndReason, Hold, Lease, Phase, Rows};
use sublet_core::settings::Policy;
use sublet_core::state::State;
use sublet_core::units::{Bytes, Span, Time};

/// The time from the end of a lease to the reading that confirms it.
const READING_DELAY: Span = Span(1);
/// The longest wait of a request: longer than any trace, so that none gives up.
const WAIT_MAX: Span = Span::secs(1_000 * 366 * 86_400);

/// How long a lease jobs request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTerms {
    /// The default: renewed while the job is busy, ended at the hold cap while others wait.
    Renewed,
    /// For exactly as long as the work takes.
    Fixed,
}

/// What is run, on what, and how.
#[derive(Clone, Debug)]
pub struct ReplaySetup<'a> {
    /// The jobs.
    pub trace: &'a Trace,
    /// The GPUs.
    pub host_gpus: &'a HostGpus,
    /// The rules, made fit by [`crate::policies::for_replay`].
    pub policy: Policy,
    /// How long a lease jobs request.
    pub leases: LeaseTerms,
    /// The time to stop at, even if jobs still wait or run.
    pub until: Option<Time>,
    /// The length of a slot of [`UsageIntegrals`].
    pub slot: Span,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStage {
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
pub struct JobCourse {
    /// Where it is.
    pub stage: JobStage,
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
pub struct ReplayRun {
    /// For each job of the trace.
    pub courses: Vec<JobCourse>,
    /// The integrals.
    pub usage: UsageIntegrals,
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

struct ReplayDriver<'a> {
    setup: &'a ReplaySetup<'a>,
    state: State,
    now: Time,
    arrivals: usize,
    courses: Vec<JobCourse>,
    /// When a job's work will be done: time, job, number of the grant.
    completions: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// When a busy job will renew its lease.
    renewals: BinaryHeap<Reverse<(Time, LeaseId)>>,
    /// GPUs where a lease ended, and when they are read.
    unread_gpus: BTreeSet<GpuId>,
    reading_due: Time,
    /// Jobs that must make another request.
    retries: VecDeque<u32>,
    /// For each lease, the job that requested it.
    job_of: Vec<u32>,
    callers: Vec<Caller>,
    uuids: Vec<String>,
    usage: UsageIntegrals,
    refused: BTreeMap<String, u64>,
    events: u64,
    moves: ReplayMoves,
    /// Answers of programs to the latest decisions.
    replies: VecDeque<Event>,
    /// When the scheduler may decide differently without any event.
    next_change: Option<Time>,
    preemptions: u64,
    calibration: Calibration,
}

/// Runs a trace to its end.
pub fn drive(setup: &ReplaySetup<'_>) -> ReplayRun {
    let trace = setup.trace;
    let began = trace.jobs.first().map_or(Time::ZERO, |job| job.arrival);
    let course = |job: &TraceJob| JobCourse {
        stage: JobStage::NotYet,
        left: job.duration,
        waited: Span::ZERO,
        first_wait: None,
        turns: 0,
        took: None,
        since: job.arrival,
        lease: LeaseId(0),
    };
    let mut driver = ReplayDriver {
        setup,
        state: State::new(Rows::default(), setup.policy.clone()),
        now: began,
        arrivals: 0,
        courses: trace.jobs.iter().map(course).collect(),
        completions: BinaryHeap::new(),
        renewals: BinaryHeap::new(),
        unread_gpus: BTreeSet::new(),
        reading_due: began,
        retries: VecDeque::new(),
        job_of: Vec::new(),
        callers: trace.tenants.iter().map(Caller::user).collect(),
        uuids: (0..setup.host_gpus.gpus.len()).map(uuid).collect(),
        usage: UsageIntegrals::new(setup.host_gpus, setup.policy.margin, trace, began, setup.slot),
        refused: BTreeMap::new(),
        events: 0,
        moves: ReplayMoves::new(setup.host_gpus),
        replies: VecDeque::new(),
        next_change: None,
        preemptions: 0,
        calibration: Calibration::new(trace.jobs.len()),
    };
    driver.report_free_memory();
    driver.apply_event(Event::Gpu(GpuEvent::Listed(setup.host_gpus.facts())));
    driver.unread_gpus = (0..setup.host_gpus.gpus.len() as u16).map(GpuId).collect();
    driver.read_gpus();
    while driver.step() {}
    driver.finish()
}

impl ReplayDriver<'_> {
    /// Handles the next event; returns false if there is none.
    fn step(&mut self) -> bool {
        let done = self.completions.peek().map(|Reverse((at, ..))| *at);
        let renewal = self.renewals.peek().map(|Reverse((at, _))| *at);
        let reading = (!self.unread_gpus.is_empty()).then_some(self.reading_due);
        let due = self.state.next_due().filter(|_| done.is_some() || renewal.is_some());
        let arrival = self.setup.trace.jobs.get(self.arrivals).map(|job| job.arrival);
        // At the same instant, work ends before leases expire, and freed bytes are read before a new job arrives.
        let (moved, next_change) = (self.moves.next_due(), self.next_change);
        let next = [done, renewal, due, reading, moved, next_change, arrival]
            .into_iter()
            .zip(0..)
            .filter_map(|(at, n)| at.map(|at| (at, n)));
        let Some((at, kind)) = next.min() else { return false };
        if let Some(until) = self.setup.until.filter(|until| at > *until) {
            self.now = self.now.max(until);
            self.usage.advance(self.now);
            return false;
        }
        // A due time may have passed during a reading.
        self.now = self.now.max(at);
        self.usage.advance(self.now);
        match kind {
            0 => self.finish_first_job(),
            1 => self.report_busy(),
            2 => self.apply_event(Event::Daemon(DaemonEvent::Ticked)),
            3 => self.read_gpus(),
            4 => self.finish_move(),
            5 => self.apply_event(Event::Daemon(DaemonEvent::Ticked)),
            _ => {
                let job = self.arrivals as u32;
                self.arrivals += 1;
                self.request_lease(job);
            }
        }
        self.deliver_replies();
        while let Some(job) = self.retries.pop_front() {
            self.request_lease(job);
            self.deliver_replies();
        }
        if self.can_park() {
            self.next_change = changes_at(&self.state, self.now);
        }
        true
    }

    fn finish(mut self) -> ReplayRun {
        self.usage.close();
        for course in &mut self.courses {
            let since = self.now.since(course.since);
            match course.stage {
                JobStage::Waiting => course.waited = course.waited + since,
                JobStage::Running => course.left = Span(course.left.0.saturating_sub(since.0)),
                JobStage::NotYet | JobStage::Finished | JobStage::Refused => {}
            }
        }
        ReplayRun {
            courses: self.courses,
            usage: self.usage,
            refused: self.refused,
            events: self.events,
            charged: self.state.rows().tenants.iter().map(|tenant| tenant.byte_us).sum(),
            ended: self.now,
            preemptions: self.preemptions,
            calibration: self.calibration,
        }
    }

    // ---- what jobs do ------------------------------------------------------

    fn request_lease(&mut self, number: u32) {
        let job = &self.setup.trace.jobs[number as usize];
        let course = &mut self.courses[number as usize];
        (course.stage, course.since) = (JobStage::Waiting, self.now);
        let ask = request_of(job, course.left, self.setup);
        let by = self.callers[job.tenant as usize].clone();
        let lease = self.state.rows().meta.next_lease as usize;
        self.job_of.resize(lease + 1, number);
        self.job_of[lease] = number;
        let first = course.turns == 0;
        let id = LeaseId(lease as u64);
        let root = self.can_park().then(|| process_of(id));
        let outcome = decide(
            &mut self.state,
            self.now,
            Event::Lease(LeaseEvent::Requested { by, request: ask, wait: Some(WAIT_MAX), root }),
        );
        self.events += 1;
        if let EventAnswer::Refused(why) = &outcome.answer {
            self.courses[number as usize].stage = JobStage::Refused;
            self.usage.job_left(number);
            *self.refused.entry(why.to_string()).or_default() += 1;
        }
        self.follow_actions(&outcome.actions);
        if first {
            self.calibration.record_prediction(number, &self.state, id, self.now);
        }
    }

    /// The first job of `completions` gives its GPUs back, unless its lease ended before.
    fn finish_first_job(&mut self) {
        let Some(Reverse((_, number, turn))) = self.completions.pop() else { return };
        let course = &self.courses[number as usize];
        if course.stage == JobStage::Running && course.turns == turn {
            let by = self.callers[self.setup.trace.jobs[number as usize].tenant as usize].clone();
            self.apply_event(Event::Lease(LeaseEvent::ReleaseRequested { by, lease: course.lease, fence: None }));
        }
    }

    /// The first lease of `renewals` is reported as busy.
    fn report_busy(&mut self) {
        let Some(Reverse((_, lease))) = self.renewals.pop() else { return };
        if matches!(self.state.lease(lease), Some(Lease { phase: Phase::Active(_), .. })) {
            self.apply_event(Event::Lease(LeaseEvent::UseSeen { lease }));
        }
    }

    /// Reads every GPU where a lease ended.
    fn read_gpus(&mut self) {
        // The earlier answers of programs come first.
        self.deliver_replies();
        for card in std::mem::take(&mut self.unread_gpus) {
            let n = usize::from(card.0);
            let observation = GpuReading { begun: self.now, reading: self.moves.reading(card) };
            self.apply_event(Event::Gpu(GpuEvent::ReadingTaken { gpu: self.uuids[n].clone(), reading: observation }));
        }
    }

    // ---- what the core decides ---------------------------------------------

    fn apply_event(&mut self, event: Event) {
        let outcome = decide(&mut self.state, self.now, event);
        self.events += 1;
        self.follow_actions(&outcome.actions);
    }

    fn follow_actions(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Lease(LeaseAction::Queue { lease, .. }) => self.job_queued(*lease),
                Action::Lease(LeaseAction::Grant { lease, gpus: cards, .. }) => {
                    let number = self.job_of[lease.0 as usize];
                    self.usage.job_granted(number, cards);
                    let course = &mut self.courses[number as usize];
                    let wait = self.now.since(course.since);
                    course.waited = course.waited + wait;
                    course.first_wait.get_or_insert(wait);
                    self.calibration.record_start(number, self.now);
                    self.start_work(*lease);
                    if self.can_park() {
                        self.moves.set_resident(*lease, cards, self.setup.trace.jobs[number as usize].vram);
                        self.schedule_reading(cards);
                        let said = MoverReport::Present { parked: None };
                        let process = process_of(*lease);
                        self.replies.push_back(Event::Lease(LeaseEvent::MoverReported {
                            lease: *lease,
                            method: Method::Shim,
                            process,
                            report: said,
                        }));
                    }
                }
                Action::Lease(LeaseAction::Renew { lease, .. }) => self.schedule_renewal(*lease),
                Action::Lease(LeaseAction::Park { lease, room_for, .. }) => {
                    self.preemptions += u64::from(room_for.is_some());
                    self.stop_work(*lease);
                    self.order_move(*lease, MoveDirection::Out);
                }
                Action::Lease(LeaseAction::ParkAgain { lease, .. }) => self.order_move(*lease, MoveDirection::Out),
                Action::Lease(LeaseAction::Unpark { lease, .. }) => self.order_move(*lease, MoveDirection::Back),
                Action::Lease(LeaseAction::FinishPark { lease, .. }) => {
                    let number = self.job_of[lease.0 as usize];
                    if let Some(hold) = self.state.lease(*lease).and_then(Lease::hold) {
                        self.usage.job_released(number, &hold.gpus);
                    }
                    self.usage.job_waits(number);
                    self.report_free_memory();
                    // A job is always busy, so it wants its GPUs back at once.
                    let (rung, process, said) = (Method::Shim, process_of(*lease), MoverReport::Used);
                    self.replies.push_back(Event::Lease(LeaseEvent::MoverReported {
                        lease: *lease,
                        method: rung,
                        process,
                        report: said,
                    }));
                }
                Action::Lease(LeaseAction::Resume { lease, .. }) => {
                    if let Some(hold) = self.state.lease(*lease).and_then(Lease::hold) {
                        self.usage.job_granted(self.job_of[lease.0 as usize], &hold.gpus);
                    }
                    self.order_move(*lease, MoveDirection::Back);
                }
                Action::Lease(LeaseAction::FinishResume { lease, .. }) => {
                    let course = &mut self.courses[self.job_of[lease.0 as usize] as usize];
                    course.waited = course.waited + self.now.since(course.since);
                    self.start_work(*lease);
                    self.report_free_memory();
                }
                Action::Lease(LeaseAction::End { lease, reason, .. }) => {
                    self.preemptions += u64::from(*reason == EndReason::Preempted);
                    self.lease_ended(*lease, *reason);
                }
                _ => {}
            }
        }
    }

    fn can_park(&self) -> bool {
        self.setup.policy.parking.preempt
    }

    /// Host memory that is not taken by parked bytes.
    fn report_free_memory(&mut self) {
        if self.can_park() {
            let available = Some(self.setup.policy.parking.space.less(self.state.booked_host_memory()));
            self.replies.push_back(Event::Daemon(DaemonEvent::HostMemoryRead { available }));
        }
    }

    fn deliver_replies(&mut self) {
        while let Some(event) = self.replies.pop_front() {
            self.apply_event(event);
        }
    }

    fn schedule_reading(&mut self, cards: &[GpuId]) {
        self.unread_gpus.extend(cards.iter().copied());
        self.reading_due = self.now + READING_DELAY;
    }

    /// A job has its GPUs and works.
    fn start_work(&mut self, lease: LeaseId) {
        let number = self.job_of[lease.0 as usize];
        let course = &mut self.courses[number as usize];
        course.turns += 1;
        (course.stage, course.since) = (JobStage::Running, self.now);
        self.completions.push(Reverse((self.now + course.left, number, course.turns)));
        self.schedule_renewal(lease);
    }

    /// A job does not work any more, and waits.
    fn stop_work(&mut self, lease: LeaseId) {
        let course = &mut self.courses[self.job_of[lease.0 as usize] as usize];
        if course.stage == JobStage::Running {
            course.left = Span(course.left.0.saturating_sub(self.now.since(course.since).0));
            (course.stage, course.since) = (JobStage::Waiting, self.now);
        }
    }

    /// A job is told where its bytes shall be.
    fn order_move(&mut self, lease: LeaseId, direction: MoveDirection) {
        let number = self.job_of[lease.0 as usize];
        let job = &self.setup.trace.jobs[number as usize];
        let bytes = Bytes(job.vram.0.saturating_mul(u64::from(job.gpus)));
        self.moves.start(lease, direction, self.now + move_duration(bytes));
    }

    /// The first move is done: the job says so, and its GPUs are read until that is seen.
    fn finish_move(&mut self) {
        let Some((lease, direction)) = self.moves.pop_finished() else { return };
        let job = &self.setup.trace.jobs[self.job_of[lease.0 as usize] as usize];
        let bytes = Bytes(job.vram.0.saturating_mul(u64::from(job.gpus)));
        let Some(cards) = self.state.lease(lease).and_then(Lease::hold).map(|hold| hold.gpus.clone()) else { return };
        let (on_each, said, readings) = match direction {
            MoveDirection::Out => (Bytes::ZERO, MoverReport::Parked(bytes), 2),
            MoveDirection::Back => (job.vram, MoverReport::Resumed, 1),
        };
        self.moves.set_resident(lease, &cards, on_each);
        self.apply_event(Event::Lease(LeaseEvent::MoverReported {
            lease,
            method: Method::Shim,
            process: process_of(lease),
            report: said,
        }));
        for _ in 0..readings {
            self.now = self.now + READING_DELAY;
            self.usage.advance(self.now);
            self.schedule_reading(&cards);
            self.read_gpus();
        }
    }

    fn job_queued(&mut self, lease: LeaseId) {
        let number = self.job_of[lease.0 as usize];
        self.courses[number as usize].lease = lease;
        self.usage.job_waits(number);
    }

    /// Schedules a renewal, only if the lease would expire before its job is done.
    fn schedule_renewal(&mut self, lease: LeaseId) {
        if let Some(row) = self.state.lease(lease)
            && !row.has_fixed_term()
            && let Phase::Active(hold) = &row.phase
        {
            let at = self.state.renewal_point(row, hold);
            let course = &self.courses[self.job_of[lease.0 as usize] as usize];
            if at < course.since + course.left {
                self.renewals.push(Reverse((at, lease)));
            }
        }
    }

    fn lease_ended(&mut self, lease: LeaseId, reason: EndReason) {
        let number = self.job_of[lease.0 as usize];
        let hold = self.state.lease(lease).and_then(Lease::hold).cloned();
        let was_parked = hold.as_ref().is_some_and(is_parked);
        if let Some(hold) = hold {
            if was_parked {
                self.usage.job_left_queue(number);
            } else {
                self.usage.job_released(number, &hold.gpus);
            }
            self.moves.set_resident(lease, &hold.gpus, Bytes::ZERO);
            self.moves.cancel(lease);
            self.schedule_reading(&hold.gpus);
        }
        self.stop_work(lease);
        if reason.ends_processes() {
            self.replies.push_back(Event::Lease(LeaseEvent::MembersRead {
                lease,
                processes: Vec::new(),
                restricted: BTreeMap::new(),
            }));
        }
        let job = &self.setup.trace.jobs[number as usize];
        let course = &mut self.courses[number as usize];
        if reason == EndReason::Released || course.left == Span::ZERO {
            course.stage = JobStage::Finished;
            course.took = Some(self.now.since(job.arrival));
            self.usage.job_left(number);
        } else {
            self.retries.push_back(number);
        }
    }
}

/// What a job asks for, with this much work left.
fn request_of(job: &TraceJob, left: Span, setup: &ReplaySetup<'_>) -> LeaseRequest {
    let term = match setup.leases {
        LeaseTerms::Renewed => Term::Renewed(setup.policy.ttl),
        LeaseTerms::Fixed => Term::Fixed(left.max(Span::secs(1)).min(LeaseRequest::FIXED_MAX)),
    };
    LeaseRequest { gpus: job.gpus, tier: job.tier, priority: job.priority, ..LeaseRequest::plain(job.vram, term) }
}

/// True if a lease was parked when it ended.
fn is_parked(hold: &Hold) -> bool {
    hold.history.as_ref().is_some_and(|turns| turns.stopped.is_some())
}
