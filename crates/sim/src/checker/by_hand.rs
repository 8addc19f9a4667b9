//! The answers to users that park or resume a lease by hand.

use super::books::{CheckerBooks, LeaseBook, LeaseStage};
use super::calls::ExpectedAnswer;
use super::park::{BackoffBook, MoveStage};
use super::preempt::nothing_but_room;
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::event::{Caller, EventAnswer, Refusal};
use sublet_core::facts::LeaseAction;
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::movers::NotParkable;
use sublet_core::units::{Span, Time};

impl CheckerBooks {
    fn visible_lease(&self, by: &Caller, lease: LeaseId) -> Option<&LeaseBook> {
        self.leases.get(&lease).filter(|book| by.operator || self.tenants[book.tenant].name == by.tenant)
    }

    /// What must be answered to a user that parks a lease. If it cannot be parked, any reason is right.
    pub fn expect_park(&mut self, now: Time, by: &Caller, lease: LeaseId) -> ExpectedAnswer {
        let cannot = ExpectedAnswer::Refusal(Refusal::NotParkable(NotParkable::NotActive));
        let asked = self.visible_lease(by, lease).map(|book| &book.stage);
        match asked {
            None => return ExpectedAnswer::Refusal(Refusal::NoSuchLease),
            Some(LeaseStage::Waiting(_)) => return ExpectedAnswer::Refusal(Refusal::StillWaiting),
            Some(LeaseStage::Ending(..)) => return ExpectedAnswer::Refusal(Refusal::Ended),
            Some(LeaseStage::Park(_, park)) if park.stage == MoveStage::Returning => return cannot,
            Some(LeaseStage::Park(..)) => return ExpectedAnswer::Yes(false),
            Some(LeaseStage::Held(_)) => {}
        }
        // A lease gains no time by a second try.
        let held = self.leases.get(&lease).and_then(LeaseBook::held);
        if held.is_some_and(|held| !self.is_term_over(now, held)) {
            self.clear_backoff(lease);
        }
        let can = self.leases.get(&lease).is_some_and(|book| self.could_leave(now, lease, book).is_some());
        if can { ExpectedAnswer::Yes(true) } else { cannot }
    }

    /// True if a hint that a lease is used counts: the shim does not notice its use, it does not wait, and the last
    /// hint that counted without work afterwards is at least 1 min ago, doubled each time up to 1 h.
    pub fn does_hint_count(&mut self, now: Time, lease: LeaseId) -> bool {
        let has_library = !self.movers_of(lease, Method::Shim).is_empty();
        let Some(book) = self.leases.get_mut(&lease) else { return false };
        let LeaseStage::Park(_, park) = &mut book.stage else { return false };
        let waits = park.stage == MoveStage::Returning || park.queued_since.is_some() || park.requests_again.is_some();
        let is_noticed = park.method == Method::Shim || (park.method == Method::Hook && has_library);
        if waits || is_noticed || now < book.hints.0 {
            return false;
        }
        let minutes = (1 << book.hints.1.min(6)).min(60);
        book.hints = (now + Span::secs(60 * minutes), book.hints.1 + 1);
        park.is_wanted |= park.stage == MoveStage::Leaving;
        true
    }

    /// What must be answered to a user that resumes a lease.
    pub fn expect_resume(&mut self, by: &Caller, lease: LeaseId) -> ExpectedAnswer {
        match self.visible_lease(by, lease).map(|book| &book.stage) {
            None => ExpectedAnswer::Refusal(Refusal::NoSuchLease),
            Some(LeaseStage::Waiting(_)) => ExpectedAnswer::Refusal(Refusal::StillWaiting),
            Some(LeaseStage::Ending(..)) => ExpectedAnswer::Refusal(Refusal::Ended),
            Some(LeaseStage::Held(_) | LeaseStage::Park(..)) => {
                if let Some(LeaseStage::Park(_, park)) = self.leases.get(&lease).map(|book| &book.stage)
                    && park.stage == MoveStage::Parked
                {
                    self.clear_backoff(lease);
                }
                self.note_wanted(lease);
                ExpectedAnswer::Yes(false)
            }
        }
    }

    /// A call by hand may try again at once.
    fn clear_backoff(&mut self, lease: LeaseId) {
        if let Some(book) = self.leases.get_mut(&lease) {
            book.backoff = BackoffBook::default();
        }
    }

    /// Checks the answer to a park by hand.
    pub fn check_park_answer(
        &self,
        lease: LeaseId,
        expect: &ExpectedAnswer,
        answer: &EventAnswer,
        actions: &[Action],
    ) -> Verdict {
        let parks = |action: &Action| matches!(action, Action::Lease(LeaseAction::Park { lease: of, room_for: None, aside: None, .. }) if *of == lease);
        let idle = || nothing_but_room(actions);
        match expect {
            ExpectedAnswer::Refusal(refusal) => {
                let right = match refusal {
                    Refusal::NotParkable(_) => matches!(answer, EventAnswer::Refused(Refusal::NotParkable(_))),
                    _ => *answer == EventAnswer::Refused(refusal.clone()),
                };
                let rule = match refusal {
                    Refusal::NoSuchLease => 18,
                    Refusal::NotParkable(_) => 3,
                    _ => 0,
                };
                must(rule, right, || format!("parking {lease} is answered {answer:?} instead of {refusal:?}"))?;
                must(rule, idle(), || format!("parking {lease} is refused, but {actions:?}"))
            }
            ExpectedAnswer::Yes(begins) => {
                must(0, *answer == EventAnswer::Lease(lease), || format!("parking {lease} is answered {answer:?}"))?;
                let begun = actions.iter().filter(|action| parks(action)).count() == usize::from(*begins);
                must(5, begun, || format!("{lease} should be parked ({begins}), but {actions:?}"))
            }
        }
    }
}
