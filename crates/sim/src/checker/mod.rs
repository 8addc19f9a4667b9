//! The checker: separate code that keeps its own books and tests the rules.
//!
//! It sees every event before core does, every action and answer afterwards, every batch that became durable and every
//! answer that left. From that alone it recomputes what may be promised, which waiter is first, what is due and what is
//! owed; it never calls core's own arithmetic ([`cross`] compares the two now and then). What it tests, by the numbers
//! of DESIGN.md:
//!
//! | rule | tested | where |
//! |---|---|---|
//! | 1 | each grant against the readings delivered and the leases on the books | [`room`] |
//! | 2 | a parked lease is resumed only where its bytes fit beside what is left of it there | [`park`] |
//! | 2–5, 9 | contexts leave too when no process could take their room, once the shims keep still; they come back first | [`contexts`] |
//! | 3 | host memory is booked before anything moves, and never more than there is | [`park`] |
//! | 5 | no lease is told twice to park, and room is not made twice for one waiter | [`park`], [`preempt`] |
//! | 4 | an ended lease is retired only after a later reading of each of its GPUs; a lease is parked when its programs reported it and two later readings of each GPU agree | [`life`], [`park`] |
//! | 7 | fences only grow; an old one is refused and changes nothing | [`calls`], [`life`] |
//! | 8 | no lease expires early or late; grace after every absence; no lease waits for the hook of a wrapper that exited | [`term`], [`wrapper`] |
//! | 9 | order of service; bounds that were told; all waiters are served once the world is calm | [`order`], [`promises`], [`slices`] |
//! | 10 | what was answered is on the disk after every crash; the rest is whole or absent | [`durable`] |
//! | 11 | nothing is answered after a failed sync; a full disk stops grants only | [`durable`], [`life`] |
//! | 14 | an independent meter for each tenant | [`durable`] |
//! | 15 | each batch has exactly the entries decided, in order; folding them gives the rows | [`durable`] |
//! | 17 | a restart ends no lease; a new boot ends held leases and keeps waiters | [`life`] |
//! | 18 | another tenant's lease is answered like one that does not exist | [`calls`] |
//! | 19 | the queue keeps its bounds; what ended leaves nothing behind | [`calls`], [`cross`] |
//! | 16 | signals reach processes of that lease only, SIGKILL after SIGTERM and the grace; a survivor takes its GPU out of service | [`ends`] |
//! | 20 | only a lease that allows it is ended for a waiter; a lease that may stay stays | [`ends`], [`preempt`] |
//! | 15–17, 20 | unleased processes: recorded first, warned, audited again, signalled only where an operator wants it | [`enforce`] |
//! | 4, 16, 20 | unleased processes that are parked instead of ended: tried once, before any signal, and not signalled while they have a lease | [`park_unleased`] |
//! | 14, 1, 20 | exceeded leases: told after two readings, enlarged and charged where there is room, preempted and ended only after the grace | [`overuse`] |
//! | 16, 19, 20 | a process with a lease is unleased only on GPUs that its lease does not have; it gets no second lease | [`off_lease`] |
//! | 21 | nothing is granted or resumed on a GPU that steps aside, what can be parked there is, and it ends in time | [`aside`], [`room`] |
//! | 1 | the lease of an adopted process covers what it was seen to have, or what there is room for | [`adopt`] |

pub mod adopt;
pub mod aside;
pub mod books;
pub mod by_hand;
pub mod calls;
mod coarse;
pub mod contexts;
pub mod cross;
pub mod debt;
pub mod durable;
pub mod ends;
pub mod enforce;
pub mod life;
mod loss;
pub mod moves;
pub mod off_lease;
pub mod order;
pub mod overuse;
pub mod park;
pub mod park_unleased;
pub mod preempt;
pub mod promises;
pub mod room;
pub mod slices;
pub mod term;
pub mod wrapper;

use books::CheckerBooks;
pub use calls::EventCause;
pub use durable::AnsweredFact;
use durable::DurableLedger;
use enforce::EnforceCounts;
use promises::Promises;
use slices::Slices;
use std::fmt;
use sublet_core::action::Action;
use sublet_core::event::{Event, EventAnswer};
use sublet_core::facts::{DaemonEvent, GpuAction, LeaseAction, UnleasedAction};
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::rows::EndReason;
use sublet_core::settings::Policy;
use sublet_core::state::State;
use sublet_core::units::{Span, Time};
use sublet_core::unleased::UnleasedEnd;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the rule.
    pub rule: u8,
    /// What happened.
    pub what: String,
}

impl Violation {
    /// The rule as a sentence.
    pub fn sentence(&self) -> &'static str {
        match self.rule {
            1 => "no promise is made beyond what a fresh reading allows",
            2 => "no lease is resumed on a GPU without its room",
            3 => "parked bytes never exceed the host memory for them",
            4 => "a program's report frees nothing: bytes count until the GPU was read again",
            5 => "no lease is told twice to do one thing",
            7 => "a call with an old fence is refused, and fences only grow",
            8 => "no lease expires before its term, nor later than its term and a tick",
            9 => "the first waiter is served first, and all waiters are served",
            10 => "what was answered survives a crash; what was not is whole or absent",
            11 => "after a failed sync nothing is answered; on a full disk only grants stop",
            14 => "charged time is granted time without parked time: never negative, never counted twice",
            16 => "a signal reaches only the processes it is for, and SIGTERM comes before SIGKILL",
            15 => "every change has its entry in the same batch, in order, and the log folds to the rows",
            17 => "a restart ends no lease; a new boot ends held leases and keeps waiters",
            18 => "another tenant's lease answers exactly like one that does not exist",
            19 => "nothing grows without bound",
            21 => "nothing is granted on a GPU that steps aside, what can be parked there is, and it ends in time",
            20 => "no lease is ended or preempted that did not choose it",
            _ => "the books agree",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({}): {}", self.rule, self.sentence(), self.what)
    }
}

/// The result of one check.
pub type Verdict = Result<(), Violation>;

/// Returns a violation of this rule unless `kept` is true.
pub fn must(rule: u8, kept: bool, what: impl FnOnce() -> String) -> Verdict {
    if kept { Ok(()) } else { Err(Violation { rule, what: what() }) }
}

/// The checker's books, and what it knows of the disk.
#[derive(Debug)]
pub struct Checker {
    books: CheckerBooks,
    ledger: DurableLedger,
    cause: EventCause,
    /// The bounds that waiters were told.
    pub promises: Promises,
    slices: Slices,
    /// How often a lease was parked.
    pub parked: u64,
    /// How often a lease was resumed.
    pub resumed: u64,
    /// How often a lease was preempted for a waiter.
    pub preempted: u64,
    /// How often a lease was parked by its hook, and by the driver.
    pub by_method: (u64, u64),
    /// How often a lease was ended for a waiter.
    pub ended: u64,
    /// How often a GPU stepped aside, and how often a lease was parked for that.
    pub aside_counts: (u64, u64),
    /// How long leases were parking or resuming, all of them together.
    pub moving_time: Span,
    /// What happened to unleased processes.
    pub unleased: EnforceCounts,
    /// How often a lease was told that it is exceeded, enlarged for it, and ended for it.
    pub overuse_counts: (u64, u64, u64),
}

impl Checker {
    /// Returns a checker before the first event.
    pub fn new(policy: Policy) -> Checker {
        Checker {
            books: CheckerBooks::new(policy),
            ledger: DurableLedger::default(),
            cause: EventCause::Ticked,
            promises: Promises::default(),
            slices: Slices::default(),
            parked: 0,
            resumed: 0,
            preempted: 0,
            by_method: (0, 0),
            ended: 0,
            aside_counts: (0, 0),
            moving_time: Span::ZERO,
            unleased: EnforceCounts::default(),
            overuse_counts: (0, 0, 0),
        }
    }

    /// Takes an event before core does.
    pub fn before(&mut self, now: Time, event: &Event) {
        self.books.note_absence(now, event);
        if self.books.was_absent || matches!(event, Event::Daemon(DaemonEvent::Configured(_))) {
            self.promises.void();
        }
        self.cause = self.books.cause(now, event);
    }

    /// Checks what core did with that event.
    pub fn after(&mut self, now: Time, answer: &EventAnswer, actions: &[Action], state: &State) -> Verdict {
        let cause = std::mem::replace(&mut self.cause, EventCause::Ticked);
        self.books.check_answer(&cause, answer, actions)?;
        for action in actions {
            let parked = self.books.parked_charge(now, action);
            self.count(now, action);
            self.books.act(now, &cause, action)?;
            self.ledger.note_decided(action, &self.books, parked);
        }
        if let (_, Some(broken)) = state.broken_invariants() {
            return must(0, false, || format!("core decided what does not fit its rows: {broken}"));
        }
        self.promises.after(now, state, actions, &cause)?;
        self.slices.after(now, state)?;
        self.books.check_restores(&cause)?;
        if actions.is_empty() {
            self.books.check_contexts_due(now, &cause)?;
        }
        self.books.check_overuse(&cause)?;
        self.books.check_unleased(now, &cause)?;
        self.books.check_asides_done(now, &cause)?;
        self.books.check_all_done(now, &cause, actions)
    }

    fn count(&mut self, now: Time, action: &Action) {
        if let Some(since) = action.lease().and_then(|lease| self.books.moving_since(lease)) {
            self.moving_time = self.moving_time + now.since(since);
        }
        match action {
            Action::Lease(LeaseAction::FinishPark { lease, .. }) => {
                self.parked += 1;
                match self.books.method_of(*lease) {
                    Some(Method::Hook) => self.by_method.0 += 1,
                    Some(Method::Driver) => self.by_method.1 += 1,
                    _ => {}
                }
            }
            Action::Lease(LeaseAction::Resume { .. }) => self.resumed += 1,
            Action::Lease(LeaseAction::Park { room_for: Some(_), .. }) => self.preempted += 1,
            Action::Lease(LeaseAction::Park { aside: Some(_), .. }) => self.aside_counts.1 += 1,
            Action::Gpu(GpuAction::SetAside { aside, .. }) => self.aside_counts.0 += u64::from(aside.since == now),
            Action::Lease(LeaseAction::GiveNotice { lease, room_for, .. }) => {
                self.preempted += u64::from(lease != room_for)
            }
            Action::Lease(LeaseAction::End { reason: EndReason::Preempted, .. }) => self.ended += 1,
            Action::Lease(LeaseAction::FlagOveruse { .. }) => self.overuse_counts.0 += 1,
            Action::Lease(LeaseAction::Enlarge { .. }) => self.overuse_counts.1 += 1,
            Action::Lease(LeaseAction::End { reason: EndReason::OverUse, .. }) => self.overuse_counts.2 += 1,
            Action::Unleased(UnleasedAction::Add { process: stranger }) => {
                self.unleased.found += 1;
                self.unleased.off_lease += u64::from(stranger.lease.is_some());
            }
            Action::Unleased(UnleasedAction::Warn { .. }) => self.unleased.warned += 1,
            Action::Unleased(UnleasedAction::Signal { .. }) => self.unleased.signalled += 1,
            Action::Unleased(UnleasedAction::Park { .. }) => self.unleased.parkings += 1,
            Action::Unleased(UnleasedAction::RecordParkFailure { .. }) => self.unleased.not_parked += 1,
            Action::Unleased(UnleasedAction::Close { how: UnleasedEnd::Parked(_), .. }) => self.unleased.parked += 1,
            Action::Unleased(UnleasedAction::Close { how: UnleasedEnd::Adopted(_), .. }) => self.unleased.adopted += 1,
            Action::Unleased(UnleasedAction::RecordSurvival { .. }) => self.unleased.survived += 1,
            _ => {}
        }
    }

    /// How many waiters must be served once the world is calm.
    pub fn hopeful(&self) -> usize {
        self.books.must_be_served().count()
    }

    /// All waiters in order of rank.
    pub fn waiters_in_rank_order(&self) -> Vec<LeaseId> {
        self.books.queue.iter().map(|(_, lease)| *lease).collect()
    }

    /// The violation that a waiter still waits though nothing prevents its grant.
    pub fn starved(&self, now: Time) -> Violation {
        let first = self.books.must_be_served().next();
        let waiter = first.and_then(|lease| self.books.leases.get(&lease));
        let gpu = |gpu: &books::GpuBook| (self.books.promisable(gpu, now), self.books.is_open(gpu), gpu.claims.len());
        let what = format!(
            "at {now} the world is calm and {} still wait; the first is {first:?}: {waiter:?}; tenants {:?}; GPUs {:?}; queue {:?}",
            self.hopeful(),
            self.books.tenants,
            self.books.gpus.iter().map(gpu).collect::<Vec<_>>(),
            self.books.queue.iter().take(5).filter_map(|(_, l)| self.books.leases.get(l)).collect::<Vec<_>>(),
        );
        Violation { rule: 9, what }
    }
}
