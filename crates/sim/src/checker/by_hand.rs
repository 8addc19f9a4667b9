//! What must be answered to whoever wants a holder parked, or a parked one back, by hand.

use super::books::{CheckerBooks, LeaseBook, LeaseStage};
use super::calls::ExpectedAnswer;
use super::park::{BackoffBook, MoveWay};
use super::preempt::nothing_but_room;
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::event::{Caller, EventAnswer, Refusal};
use sublet_core::facts::LeaseAction;
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::parking::NotParkable;
use sublet_core::units::{Span, Time};

impl CheckerBooks {
    fn visible(&self, by: &Caller, lease: LeaseId) -> Option<&LeaseBook> {
        self.leases.get(&lease).filter(|book| by.operator || self.tenants[book.tenant].name == by.tenant)
    }

    /// What must be answered to whoever wants a holder parked. Of the reasons why it cannot be any
    /// will do.
    pub fn park_asked(&mut self, now: Time, by: &Caller, lease: LeaseId) -> ExpectedAnswer {
        let cannot = ExpectedAnswer::Refusal(Refusal::NotParkable(NotParkable::NotActive));
        let asked = self.visible(by, lease).map(|book| &book.at);
        match asked {
            None => return ExpectedAnswer::Refusal(Refusal::NoSuchLease),
            Some(LeaseStage::Waiting(_)) => return ExpectedAnswer::Refusal(Refusal::StillWaiting),
            Some(LeaseStage::Ending(..)) => return ExpectedAnswer::Refusal(Refusal::Ended),
            Some(LeaseStage::Away(_, trip)) if trip.way == MoveWay::Back => return cannot,
            Some(LeaseStage::Away(..)) => return ExpectedAnswer::Yes(false),
            Some(LeaseStage::Held(_)) => {}
        }
        // Nobody gains time on its cards by trying again.
        let held = self.leases.get(&lease).and_then(LeaseBook::held);
        if held.is_some_and(|held| !self.is_over(now, held)) {
            self.try_again(lease);
        }
        let can = self.leases.get(&lease).is_some_and(|book| self.could_leave(now, lease, book).is_some());
        if can { ExpectedAnswer::Yes(true) } else { cannot }
    }

    /// Whether a hint that a lease is used counts: its use cannot be noticed, it does not wait, and the last hint that
    /// counted and was not followed by work is at least a minute ago, twice as long each time, an hour at most.
    pub fn hinted(&mut self, now: Time, lease: LeaseId) -> bool {
        let has_library = !self.voices(lease, Method::Shim).is_empty();
        let Some(book) = self.leases.get_mut(&lease) else { return false };
        let LeaseStage::Away(_, trip) = &mut book.at else { return false };
        let waits = trip.way == MoveWay::Back || trip.wants.is_some() || trip.again.is_some();
        let is_noticed = trip.rung == Method::Shim || (trip.rung == Method::Hook && has_library);
        if waits || is_noticed || now < book.hints.0 {
            return false;
        }
        let minutes = (1 << book.hints.1.min(6)).min(60);
        book.hints = (now + Span::secs(60 * minutes), book.hints.1 + 1);
        trip.asked_for |= trip.way == MoveWay::Out;
        true
    }

    /// What must be answered to whoever wants a parked holder to have its cards again.
    pub fn resume_asked(&mut self, by: &Caller, lease: LeaseId) -> ExpectedAnswer {
        match self.visible(by, lease).map(|book| &book.at) {
            None => ExpectedAnswer::Refusal(Refusal::NoSuchLease),
            Some(LeaseStage::Waiting(_)) => ExpectedAnswer::Refusal(Refusal::StillWaiting),
            Some(LeaseStage::Ending(..)) => ExpectedAnswer::Refusal(Refusal::Ended),
            Some(LeaseStage::Held(_) | LeaseStage::Away(..)) => {
                if let Some(LeaseStage::Away(_, trip)) = self.leases.get(&lease).map(|book| &book.at)
                    && trip.way == MoveWay::Gone
                {
                    self.try_again(lease);
                }
                self.ask_for(lease);
                ExpectedAnswer::Yes(false)
            }
        }
    }

    /// A hand that asks may try again at once.
    fn try_again(&mut self, lease: LeaseId) {
        if let Some(book) = self.leases.get_mut(&lease) {
            book.rests = BackoffBook::default();
        }
    }

    /// Whether the answer to a wish to park is what the books say.
    pub fn answered_park(
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
                must(rule, idle(), || format!("parking {lease} is refused, and yet {actions:?}"))
            }
            ExpectedAnswer::Yes(begins) => {
                must(0, *answer == EventAnswer::Lease(lease), || format!("parking {lease} is answered {answer:?}"))?;
                let begun = actions.iter().filter(|action| parks(action)).count() == usize::from(*begins);
                must(5, begun, || format!("{lease} is to be parked ({begins}), and {actions:?}"))
            }
        }
    }
}
