//! Rules 8, 9 and 14 for leases that are parked and resumed: no move takes for ever.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{CallWord, EventCause};
use super::park::{MoveBook, MoveWay, READINGS};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::parking::MoverReport;
use sublet_core::rows::EndReason;
use sublet_core::units::{Span, Time};

impl CheckerBooks {
    /// The method by which a lease is parked.
    pub fn method_of(&self, lease: LeaseId) -> Option<Method> {
        match &self.leases.get(&lease)?.stage {
            LeaseStage::Park(_, trip) => Some(trip.method),
            _ => None,
        }
    }

    /// True if a program of a lease that is parking refuses something though it is in host memory: that was about
    /// resuming.
    pub(super) fn is_outdated_refusal(
        &self,
        lease: LeaseId,
        rung: Method,
        process: &ProcKey,
        said: &MoverReport,
    ) -> bool {
        let at = self.leases.get(&lease).map(|book| &book.stage);
        let leaves = matches!(at, Some(LeaseStage::Park(_, trip)) if trip.way == MoveWay::Leaving);
        let parked = self.movers_of(lease, rung).get(process).is_some_and(|voice| voice.parked.is_some());
        leaves && parked && matches!(said, MoverReport::Refused(_) | MoverReport::Outgrown(_))
    }

    /// Since when a lease is parking or resuming.
    pub fn moving_since(&self, lease: LeaseId) -> Option<Time> {
        match &self.leases.get(&lease)?.stage {
            LeaseStage::Park(_, trip) if trip.way != MoveWay::Parked => Some(trip.since),
            _ => None,
        }
    }

    /// Checks that a lease was parked for as long as any may be.
    pub fn check_park_expired(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let over = match &book.stage {
            LeaseStage::Park(held, trip) => trip.way == MoveWay::Parked && self.is_park_expired(now, held, trip),
            _ => false,
        };
        must(8, over && matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends ({:?}) after {cause:?}: {book:?}", EndReason::ParkExpired)
        })
    }

    fn is_park_expired(&self, now: Time, held: &HeldBook, trip: &MoveBook) -> bool {
        let since = self.park_term_began(held, trip);
        since.is_some_and(|since| now >= since + self.policy.parking.term) && !self.in_grace(now, trip.since)
    }

    /// The host memory that a parked lease took until now, if an action ends that.
    pub fn parked_charge(&self, now: Time, action: &Action) -> Option<(usize, u128)> {
        let (Action::Resume { lease, .. } | Action::End { lease, .. }) = action else { return None };
        let book = self.leases.get(lease).filter(|book| book.is_parked())?;
        let LeaseStage::Park(held, trip) = &book.stage else { return None };
        Some((book.tenant, u128::from(held.booked.0) * u128::from(now.since(trip.since).0)))
    }

    /// Checks that no move and no park takes too long; `complete` means that all that was due was dealt with.
    pub fn check_moves(&self, now: Time, complete: bool) -> Verdict {
        for lease in self.moving.iter().filter(|_| complete) {
            let Some(LeaseBook { stage: LeaseStage::Park(held, trip), .. }) = self.leases.get(lease) else { continue };
            let late = match trip.way {
                // A hook's report must be seen soon.
                MoveWay::Leaving if trip.method == Method::Hook && self.is_sight_overdue(now, *lease, trip) => {
                    let said = self.all_reported_at(*lease, trip);
                    said.is_some_and(|said| now >= (said + trip.sight_limit).min(trip.since + trip.time_limit))
                }
                MoveWay::Parked => self.is_park_expired(now, held, trip) && now >= trip.since + trip.time_limit,
                MoveWay::Leaving => self.is_overdue(now, trip) && now >= trip.since + trip.time_limit,
                MoveWay::Returning => {
                    // While a lease is only waiting to be seen it may take as long as no reading succeeds.
                    let silent = trip.was_resumed && !self.none_parked(*lease, trip.method);
                    let words = self.movers_of(*lease, trip.method).values().map(|voice| voice.reported_at);
                    let heard = words.max().unwrap_or(trip.since).max(trip.since);
                    let grace = if trip.since <= self.grace_from { self.grace_until } else { Time::ZERO };
                    let span = Span(2 * trip.time_limit.max(trip.time_allowed(&self.policy.parking)).0);
                    silent && now >= heard.max(grace) + span
                }
            };
            must(8, !late, || format!("{lease} is {:?} since {}, and it is {now}: {trip:?}", trip.way, trip.since))?;
        }
        Ok(())
    }

    /// Checks that every lease that was seen to have arrived has.
    pub fn check_arrived(&self) -> Verdict {
        for lease in &self.moving {
            let Some(LeaseBook { stage: LeaseStage::Park(held, trip), .. }) = self.leases.get(lease) else { continue };
            let since_then = |card: &usize| trip.readings_after.get(card).is_some_and(|count| *count >= READINGS);
            let stays = trip.way != MoveWay::Parked && held.gpus.iter().all(since_then);
            must(9, !stays, || format!("{lease} was seen to have arrived in earlier readings, and is {trip:?}"))?;
        }
        Ok(())
    }

    /// Checks that a lease that needs its GPUs waits for them.
    pub fn check_wanted(&self, lease: LeaseId, word: CallWord) -> Verdict {
        let idle = |trip: &MoveBook| trip.way == MoveWay::Parked && trip.queued_since.is_none();
        let left = match self.leases.get(&lease) {
            Some(LeaseBook { stage: LeaseStage::Park(_, trip), .. }) if word == CallWord::Resume => {
                Some(trip).filter(|trip| idle(trip))
            }
            _ => None,
        };
        must(9, left.is_none(), || format!("{lease} needs its GPUs, and does not wait for them: {left:?}"))
    }

    /// Checks that a lease that was to request its GPUs again once it was parked does.
    pub fn check_requested_again(&self, actions: &[Action]) -> Verdict {
        for action in actions {
            let Action::Parked { lease, .. } = action else { continue };
            let Some(LeaseBook { stage: LeaseStage::Park(_, trip), .. }) = self.leases.get(lease) else { continue };
            let idle = trip.way == MoveWay::Parked && trip.queued_since.is_none();
            must(9, !(idle && (trip.requests_again.is_some() || trip.is_wanted)), || {
                format!("{lease} was to request its GPUs again, and does not wait for them: {trip:?}")
            })?;
        }
        Ok(())
    }
}
