//! What must be answered to whoever wants a holder parked, or a parked one back, by hand.

use super::books::{At, Book, Books};
use super::calls::Expect;
use super::make::nothing_but_room;
use super::park::{Rests, Way};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::event::{Caller, EventAnswer, Refusal};
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::parking::NotParkable;
use sublet_core::units::{Span, Time};

impl Books {
    fn visible(&self, by: &Caller, lease: LeaseId) -> Option<&Book> {
        self.leases.get(&lease).filter(|book| by.operator || self.tenants[book.tenant].name == by.tenant)
    }

    /// What must be answered to whoever wants a holder parked. Of the reasons why it cannot be any
    /// will do.
    pub fn park_asked(&mut self, now: Time, by: &Caller, lease: LeaseId) -> Expect {
        let cannot = Expect::Refusal(Refusal::NotParkable(NotParkable::NotActive));
        let asked = self.visible(by, lease).map(|book| &book.at);
        match asked {
            None => return Expect::Refusal(Refusal::NoSuchLease),
            Some(At::Waiting(_)) => return Expect::Refusal(Refusal::StillWaiting),
            Some(At::Ending(..)) => return Expect::Refusal(Refusal::Ended),
            Some(At::Away(_, trip)) if trip.way == Way::Back => return cannot,
            Some(At::Away(..)) => return Expect::Yes(false),
            Some(At::Held(_)) => {}
        }
        // Nobody gains time on its cards by trying again.
        let held = self.leases.get(&lease).and_then(Book::held);
        if held.is_some_and(|held| !self.is_over(now, held)) {
            self.try_again(lease);
        }
        let can = self.leases.get(&lease).is_some_and(|book| self.could_leave(now, lease, book).is_some());
        if can { Expect::Yes(true) } else { cannot }
    }

    /// Whether a hint that a lease is used counts: its use cannot be noticed, it does not wait, and the last hint that
    /// counted and was not followed by work is at least a minute ago, twice as long each time, an hour at most.
    pub fn hinted(&mut self, now: Time, lease: LeaseId) -> bool {
        let has_library = !self.voices(lease, Method::Shim).is_empty();
        let Some(book) = self.leases.get_mut(&lease) else { return false };
        let At::Away(_, trip) = &mut book.at else { return false };
        let waits = trip.way == Way::Back || trip.wants.is_some() || trip.again.is_some();
        let is_noticed = trip.rung == Method::Shim || (trip.rung == Method::Hook && has_library);
        if waits || is_noticed || now < book.hints.0 {
            return false;
        }
        let minutes = (1 << book.hints.1.min(6)).min(60);
        book.hints = (now + Span::secs(60 * minutes), book.hints.1 + 1);
        trip.asked_for |= trip.way == Way::Out;
        true
    }

    /// What must be answered to whoever wants a parked holder to have its cards again.
    pub fn resume_asked(&mut self, by: &Caller, lease: LeaseId) -> Expect {
        match self.visible(by, lease).map(|book| &book.at) {
            None => Expect::Refusal(Refusal::NoSuchLease),
            Some(At::Waiting(_)) => Expect::Refusal(Refusal::StillWaiting),
            Some(At::Ending(..)) => Expect::Refusal(Refusal::Ended),
            Some(At::Held(_) | At::Away(..)) => {
                if let Some(At::Away(_, trip)) = self.leases.get(&lease).map(|book| &book.at)
                    && trip.way == Way::Gone
                {
                    self.try_again(lease);
                }
                self.ask_for(lease);
                Expect::Yes(false)
            }
        }
    }

    /// A hand that asks may try again at once.
    fn try_again(&mut self, lease: LeaseId) {
        if let Some(book) = self.leases.get_mut(&lease) {
            book.rests = Rests::default();
        }
    }

    /// Whether the answer to a wish to park is what the books say.
    pub fn answered_park(&self, lease: LeaseId, expect: &Expect, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let parks = |action: &Action| matches!(action, Action::Park { lease: of, room_for: None, aside: None, .. } if *of == lease);
        let idle = || nothing_but_room(actions);
        match expect {
            Expect::Refusal(refusal) => {
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
            Expect::Yes(begins) => {
                must(0, *answer == EventAnswer::Lease(lease), || format!("parking {lease} is answered {answer:?}"))?;
                let begun = actions.iter().filter(|action| parks(action)).count() == usize::from(*begins);
                must(5, begun, || format!("{lease} is to be parked ({begins}), and {actions:?}"))
            }
        }
    }
}
