//! The checker: separate code that keeps its own books and tests the rules.
//!
//! It is told every event before core sees it, every action and answer after,
//! every batch that became durable and every answer that left. From that alone
//! it recomputes what may be promised, who is first, what is due and what is
//! owed; it never calls core's own arithmetic ([`cross`] compares the two now
//! and then). What it tests, by the numbers of DESIGN.md:
//!
//! | rule | tested | where |
//! |---|---|---|
//! | 1 | each grant against the readings delivered and the leases on the books | [`room`] |
//! | 2 | a parked holder comes back only where its bytes fit beside what is left of it there | [`park`] |
//! | 2–5, 9 | contexts leave too when nobody could take their room, once the library is quiet; they come back first | [`deep`] |
//! | 3 | host memory is booked before anything moves, and no more than there is | [`park`] |
//! | 5 | nobody is told twice to leave, nor room made twice for one waiter | [`park`], [`make`] |
//! | 4 | an ended lease is retired only after a later look at each of its cards; a holder is parked when its programs said so and two looks at each card after that agree | [`life`], [`park`] |
//! | 7 | epochs grow for ever; an old one is refused and changes nothing | [`calls`], [`life`] |
//! | 8 | nothing expires early or late; grace after every absence; whose wrapper died waits for no hook | [`term`], [`wrapper`] |
//! | 9 | order of service, bounds that were told, and all are served once the world is calm | [`order`], [`promises`], [`slices`] |
//! | 10 | what was told is on the disk after every crash; the rest is whole or absent | [`durable`] |
//! | 11 | nothing is told after a failed sync; a full disk stops grants only | [`durable`], [`life`] |
//! | 14 | an independent meter per tenant | [`durable`] |
//! | 15 | each batch has exactly the entries decided, in order; folding them gives the rows | [`durable`] |
//! | 17 | a restart ends nobody; a new boot ends holders and keeps waiters | [`life`] |
//! | 18 | another tenant's lease is answered like none | [`calls`] |
//! | 19 | the queue keeps its bounds; what ended leaves nothing behind | [`calls`], [`cross`] |
//! | 16 | signals go to processes of that lease, SIGKILL after SIGTERM and the grace; a survivor counts, and its card goes out of service | [`ends`] |
//! | 20 | only who chose it is told to end and ended; who may stay stays | [`ends`], [`make`] |
//! | 15–17, 20 | strangers: on the record first, warned, audited again, signalled where an operator wants it, and nobody else | [`enforce`] |
//! | 4, 16, 20 | strangers that are parked in place of being ended: tried once, first, and never signalled while they are a lease's | [`moving`] |
//! | 14, 1, 20 | who has more than its lease: told after two looks, given a larger one where there is room and for its price, made to leave and ended only after its time | [`over`] |
//! | 16, 19, 20 | a process of a lease is a stranger where that lease has nothing, and nowhere else; it gets no second lease | [`abroad`] |
//! | 21 | nothing is granted or resumed on a GPU that steps aside, what can be parked there is, and it ends in time | [`aside`], [`room`] |
//! | 1 | a stranger's lease is for what it was seen to have, or for what there is room for | [`adopt`] |

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
use sublet_core::policy::Policy;
use sublet_core::rows::EndReason;
use sublet_core::state::State;
use sublet_core::units::{Span, Time};
use sublet_core::unleased::UnleasedEnd;

/// A rule, broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: u8,
    /// What happened.
    pub what: String,
}

impl Violation {
    /// A rule's sentence.
    pub fn sentence(&self) -> &'static str {
        match self.rule {
            1 => "no promise is made beyond what a fresh reading allows",
            2 => "nobody comes back to a card without its room",
            3 => "what is parked never exceeds the host memory for it",
            4 => "a holder's word frees nothing: bytes count until the card was seen again",
            5 => "nobody is told twice to do one thing",
            7 => "whoever carries an old epoch is refused, and epochs only grow",
            8 => "no lease expires before its term, nor later than its term and a tick",
            9 => "whoever is first is served first, and everybody is served",
            10 => "what was answered survives a crash; what was not is whole or absent",
            11 => "after a failed sync nothing is told; on a full disk only grants stop",
            14 => "charged time is granted, unparked time: never negative, never twice",
            16 => "a signal reaches nobody but whom it is for, and SIGTERM comes before SIGKILL",
            15 => "every change has its entry in the same batch, in order, and the log folds to the rows",
            17 => "a restart ends nobody; a new boot ends holders and keeps waiters",
            18 => "another tenant's lease answers exactly like one that does not exist",
            19 => "nothing grows without bound",
            21 => "nothing is granted on a GPU that steps aside, what can be parked there is, and it ends in time",
            20 => "nobody is ended, or made to leave, who did not choose it",
            _ => "the books agree",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({}): {}", self.rule, self.sentence(), self.what)
    }
}

/// A verdict on one thing.
pub type Verdict = Result<(), Violation>;

/// A rule is kept, or this is what happened.
pub fn must(rule: u8, kept: bool, what: impl FnOnce() -> String) -> Verdict {
    if kept { Ok(()) } else { Err(Violation { rule, what: what() }) }
}

/// The books, and what is known of the disk.
#[derive(Debug)]
pub struct Checker {
    books: CheckerBooks,
    ledger: DurableLedger,
    cause: EventCause,
    /// What waiters were told.
    pub promises: Promises,
    slices: Slices,
    /// How often a holder was parked.
    pub parked: u64,
    /// How often one came back after that.
    pub resumed: u64,
    /// How often one was made to leave for somebody who waits.
    pub preempted: u64,
    /// How often one was parked by its hook, and by the driver.
    pub by_rung: (u64, u64),
    /// How often a lease was ended for others.
    pub ended: u64,
    /// How often a GPU stepped aside, and how often a lease was parked for that.
    pub aside: (u64, u64),
    /// How long holders were on their way, all of them together.
    pub moving: Span,
    /// What happened to strangers.
    pub strangers: EnforceCounts,
    /// How often a holder was told that it has more than its lease, took a larger one, and was ended for it.
    pub over: (u64, u64, u64),
}

impl Checker {
    /// Nothing happened yet.
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
            by_rung: (0, 0),
            ended: 0,
            aside: (0, 0),
            moving: Span::ZERO,
            strangers: EnforceCounts::default(),
            over: (0, 0, 0),
        }
    }

    /// An event is about to be taken in.
    pub fn before(&mut self, now: Time, event: &Event) {
        self.books.mind_the_gap(now, event);
        if self.books.absent || matches!(event, Event::Daemon(DaemonEvent::Configured(_))) {
            self.promises.void();
        }
        self.cause = self.books.cause(now, event);
    }

    /// It was, and this is the state after it.
    pub fn after(&mut self, now: Time, answer: &EventAnswer, actions: &[Action], state: &State) -> Verdict {
        let cause = std::mem::replace(&mut self.cause, EventCause::Ticked);
        self.books.answered(&cause, answer, actions)?;
        for action in actions {
            let parked = self.books.parked_until(now, action);
            self.count(now, action);
            self.books.act(now, &cause, action)?;
            self.ledger.decided(action, &self.books, parked);
        }
        if let (_, Some(broken)) = state.broken_invariants() {
            return must(0, false, || format!("core decided what does not fit its rows: {broken}"));
        }
        self.promises.after(now, state, actions, &cause)?;
        self.slices.after(now, state)?;
        self.books.check_restores(&cause)?;
        if actions.is_empty() {
            self.books.check_deep(now, &cause)?;
        }
        self.books.check_over(&cause)?;
        self.books.check_strangers(now, &cause)?;
        self.books.check_asides(now, &cause)?;
        self.books.settle(now, &cause, actions)
    }

    fn count(&mut self, now: Time, action: &Action) {
        if let Some(since) = action.lease().and_then(|lease| self.books.moves_since(lease)) {
            self.moving = self.moving + now.since(since);
        }
        match action {
            Action::Lease(LeaseAction::FinishPark { lease, .. }) => {
                self.parked += 1;
                match self.books.rung_of(*lease) {
                    Some(Method::Hook) => self.by_rung.0 += 1,
                    Some(Method::Driver) => self.by_rung.1 += 1,
                    _ => {}
                }
            }
            Action::Lease(LeaseAction::Resume { .. }) => self.resumed += 1,
            Action::Lease(LeaseAction::Park { room_for: Some(_), .. }) => self.preempted += 1,
            Action::Lease(LeaseAction::Park { aside: Some(_), .. }) => self.aside.1 += 1,
            Action::Gpu(GpuAction::SetAside { aside, .. }) => self.aside.0 += u64::from(aside.since == now),
            Action::Lease(LeaseAction::GiveNotice { lease, room_for, .. }) => {
                self.preempted += u64::from(lease != room_for)
            }
            Action::Lease(LeaseAction::End { reason: EndReason::Preempted, .. }) => self.ended += 1,
            Action::Lease(LeaseAction::FlagOveruse { .. }) => self.over.0 += 1,
            Action::Lease(LeaseAction::Enlarge { .. }) => self.over.1 += 1,
            Action::Lease(LeaseAction::End { reason: EndReason::OverUse, .. }) => self.over.2 += 1,
            Action::Unleased(UnleasedAction::Add { process: stranger }) => {
                self.strangers.found += 1;
                self.strangers.abroad += u64::from(stranger.lease.is_some());
            }
            Action::Unleased(UnleasedAction::Warn { .. }) => self.strangers.warned += 1,
            Action::Unleased(UnleasedAction::Signal { .. }) => self.strangers.struck += 1,
            Action::Unleased(UnleasedAction::Park { .. }) => self.strangers.taken += 1,
            Action::Unleased(UnleasedAction::RecordParkFailure { .. }) => self.strangers.unmoved += 1,
            Action::Unleased(UnleasedAction::Close { how: UnleasedEnd::Parked(_), .. }) => self.strangers.parked += 1,
            Action::Unleased(UnleasedAction::Close { how: UnleasedEnd::Adopted(_), .. }) => self.strangers.adopted += 1,
            Action::Unleased(UnleasedAction::RecordSurvival { .. }) => self.strangers.survived += 1,
            _ => {}
        }
    }

    /// How many wait and must be served once the world is calm.
    pub fn hopeful(&self) -> usize {
        self.books.hopeful().count()
    }

    /// Who waits, first first.
    pub fn waiters(&self) -> Vec<LeaseId> {
        self.books.queue.iter().map(|(_, lease)| *lease).collect()
    }

    /// Somebody still waits though nothing stands in the way.
    pub fn starved(&self, now: Time) -> Violation {
        let first = self.books.hopeful().next();
        let waiter = first.and_then(|lease| self.books.leases.get(&lease));
        let card = |card: &books::GpuBook| (self.books.promisable(card, now), self.books.open(card), card.claims.len());
        let what = format!(
            "at {now} the world is calm and {} still wait; the first is {first:?}: {waiter:?}; tenants {:?}; cards {:?}; queue {:?}",
            self.hopeful(),
            self.books.tenants,
            self.books.cards.iter().map(card).collect::<Vec<_>>(),
            self.books.queue.iter().take(5).filter_map(|(_, l)| self.books.leases.get(l)).collect::<Vec<_>>(),
        );
        Violation { rule: 9, what }
    }
}
