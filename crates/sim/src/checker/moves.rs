//! Rules 8, 9 and 14 for holders that leave their cards and come back: nothing is on its way for ever.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{CallWord, EventCause};
use super::park::{LOOKS, MoveBook, MoveWay};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::LeaseAction;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::parking::MoverReport;
use sublet_core::rows::EndReason;
use sublet_core::units::{Span, Time};

impl CheckerBooks {
    /// In which way a holder left its cards, or leaves them.
    pub fn rung_of(&self, lease: LeaseId) -> Option<Method> {
        match &self.leases.get(&lease)?.at {
            LeaseStage::Away(_, trip) => Some(trip.rung),
            _ => None,
        }
    }

    /// Whether a program of a holder that leaves refuses something, and is in host memory: that was about coming back.
    pub(super) fn is_outdated(&self, lease: LeaseId, rung: Method, process: &ProcKey, said: &MoverReport) -> bool {
        let at = self.leases.get(&lease).map(|book| &book.at);
        let leaves = matches!(at, Some(LeaseStage::Away(_, trip)) if trip.way == MoveWay::Out);
        let parked = self.voices(lease, rung).get(process).is_some_and(|voice| voice.parked.is_some());
        leaves && parked && matches!(said, MoverReport::Refused(_) | MoverReport::Outgrown(_))
    }

    /// Since when a holder is on its way off its cards, or back to them.
    pub fn moves_since(&self, lease: LeaseId) -> Option<Time> {
        match &self.leases.get(&lease)?.at {
            LeaseStage::Away(_, trip) if trip.way != MoveWay::Gone => Some(trip.since),
            _ => None,
        }
    }

    /// A holder was parked as long as anything may be.
    pub fn check_park_over(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let over = match &book.at {
            LeaseStage::Away(held, trip) => trip.way == MoveWay::Gone && self.is_gone_too_long(now, held, trip),
            _ => false,
        };
        must(8, over && matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends ({:?}) after {cause:?}: {book:?}", EndReason::ParkExpired)
        })
    }

    fn is_gone_too_long(&self, now: Time, held: &HeldBook, trip: &MoveBook) -> bool {
        let since = self.gone_since(held, trip);
        since.is_some_and(|since| now >= since + self.policy.parking.term) && !self.in_grace(now, trip.since)
    }

    /// What host memory a parked holder took until now, if that is over.
    pub fn parked_until(&self, now: Time, action: &Action) -> Option<(usize, u128)> {
        let Action::Lease(LeaseAction::Resume { lease, .. } | LeaseAction::End { lease, .. }) = action else {
            return None;
        };
        let book = self.leases.get(lease).filter(|book| book.is_parked())?;
        let LeaseStage::Away(held, trip) = &book.at else { return None };
        Some((book.tenant, u128::from(held.booked.0) * u128::from(now.since(trip.since).0)))
    }

    /// Nothing is on its way for ever, nor parked; `complete` says that all that was due was dealt with.
    pub fn check_trips(&self, now: Time, complete: bool) -> Verdict {
        for lease in self.trips.iter().filter(|_| complete) {
            let Some(LeaseBook { at: LeaseStage::Away(held, trip), .. }) = self.leases.get(lease) else { continue };
            let late = match trip.way {
                // Of a hook it is known when it said so: what it said must be seen soon.
                MoveWay::Out if trip.rung == Method::Hook && self.is_unseen(now, *lease, trip) => {
                    let said = self.all_said(*lease, trip);
                    said.is_some_and(|said| now >= (said + trip.sight).min(trip.since + trip.span))
                }
                MoveWay::Gone => self.is_gone_too_long(now, held, trip) && now >= trip.since + trip.span,
                MoveWay::Out => self.is_overdue(now, trip) && now >= trip.since + trip.span,
                MoveWay::Back => {
                    // While it is only to be seen it may take as long as nobody can look.
                    let silent = trip.back && !self.none_parked(*lease, trip.rung);
                    let words = self.voices(*lease, trip.rung).values().map(|voice| voice.word);
                    let heard = words.max().unwrap_or(trip.since).max(trip.since);
                    let grace = if trip.since <= self.grace_from { self.grace_until } else { Time::ZERO };
                    let span = Span(2 * trip.span.max(trip.allowed(&self.policy.parking)).0);
                    silent && now >= heard.max(grace) + span
                }
            };
            must(8, !late, || format!("{lease} is {:?} since {}, and it is {now}: {trip:?}", trip.way, trip.since))?;
        }
        Ok(())
    }

    /// Whoever was seen to have arrived has.
    pub fn check_arrived(&self) -> Verdict {
        for lease in &self.trips {
            let Some(LeaseBook { at: LeaseStage::Away(held, trip), .. }) = self.leases.get(lease) else { continue };
            let since_then = |card: &usize| trip.since_then.get(card).is_some_and(|count| *count >= LOOKS);
            let stays = trip.way != MoveWay::Gone && held.cards.iter().all(since_then);
            must(9, !stays, || format!("{lease} was seen to have arrived long ago, and is {trip:?}"))?;
        }
        Ok(())
    }

    /// Whoever asked for its cards waits for them.
    pub fn check_heard(&self, lease: LeaseId, word: CallWord) -> Verdict {
        let idle = |trip: &MoveBook| trip.way == MoveWay::Gone && trip.wants.is_none();
        let left = match self.leases.get(&lease) {
            Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) if word == CallWord::Resume => {
                Some(trip).filter(|trip| idle(trip))
            }
            _ => None,
        };
        must(9, left.is_none(), || format!("{lease} asked for its cards, and does not wait for them: {left:?}"))
    }

    /// Whoever was to ask again once it was parked does.
    pub fn check_again(&self, actions: &[Action]) -> Verdict {
        for action in actions {
            let Action::Lease(LeaseAction::FinishPark { lease, .. }) = action else { continue };
            let Some(LeaseBook { at: LeaseStage::Away(_, trip), .. }) = self.leases.get(lease) else { continue };
            let idle = trip.way == MoveWay::Gone && trip.wants.is_none();
            must(9, !(idle && (trip.again.is_some() || trip.asked_for)), || {
                format!("{lease} was to ask for its cards again, and does not wait for them: {trip:?}")
            })?;
        }
        Ok(())
    }
}
