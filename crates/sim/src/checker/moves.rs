//! Rules 8, 9 and 14 for leases that are parked and resumed: no move takes for ever.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{EventCause, LeaseCallKind};
use super::park::{MoveBook, MoveStage, READINGS};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::LeaseAction;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::rows::EndReason;
use sublet_core::units::{Span, Time};

impl CheckerBooks {
    /// The method by which a lease is parked.
    pub fn method_of(&self, lease: LeaseId) -> Option<Method> {
        match &self.leases.get(&lease)?.stage {
            LeaseStage::Park(_, park) => Some(park.method),
            _ => None,
        }
    }

    /// True if a program of a lease that is parking refuses something though it is in host memory: that was about
    /// resuming.
    pub(super) fn is_outdated_refusal(
        &self,
        lease: LeaseId,
        method: Method,
        process: &ProcKey,
        said: &MoverReport,
    ) -> bool {
        let at = self.leases.get(&lease).map(|book| &book.stage);
        let leaves = matches!(at, Some(LeaseStage::Park(_, park)) if park.stage == MoveStage::Leaving);
        let parked = self.movers_of(lease, method).get(process).is_some_and(|mover| mover.parked.is_some());
        leaves && parked && matches!(said, MoverReport::Refused(_) | MoverReport::Outgrown(_))
    }

    /// Since when a lease is parking or resuming.
    pub fn moving_since(&self, lease: LeaseId) -> Option<Time> {
        match &self.leases.get(&lease)?.stage {
            LeaseStage::Park(_, park) if park.stage != MoveStage::Parked => Some(park.since),
            _ => None,
        }
    }

    /// Checks that a lease was parked for as long as any may be.
    pub fn check_park_expired(&self, now: Time, cause: &EventCause, lease: LeaseId, book: &LeaseBook) -> Verdict {
        let over = match &book.stage {
            LeaseStage::Park(held, park) => park.stage == MoveStage::Parked && self.is_park_expired(now, held, park),
            _ => false,
        };
        must(8, over && matches!(cause, EventCause::Ticked), || {
            format!("{lease} ends ({:?}) after {cause:?}: {book:?}", EndReason::ParkExpired)
        })
    }

    fn is_park_expired(&self, now: Time, held: &HeldBook, park: &MoveBook) -> bool {
        let since = self.park_term_began(held, park);
        since.is_some_and(|since| now >= since + self.policy.parking.term) && !self.in_grace(now, park.since)
    }

    /// The host memory that a parked lease took until now, if an action ends that.
    pub fn parked_charge(&self, now: Time, action: &Action) -> Option<(usize, u128)> {
        let Action::Lease(LeaseAction::Resume { lease, .. } | LeaseAction::End { lease, .. }) = action else {
            return None;
        };
        let book = self.leases.get(lease).filter(|book| book.is_parked())?;
        let LeaseStage::Park(held, park) = &book.stage else { return None };
        Some((book.tenant, u128::from(held.booked.0) * u128::from(now.since(park.since).0)))
    }

    /// Checks that no move and no park takes too long; `complete` means that all that was due was dealt with.
    pub fn check_moves(&self, now: Time, complete: bool) -> Verdict {
        for lease in self.moving.iter().filter(|_| complete) {
            let Some(LeaseBook { stage: LeaseStage::Park(held, park), .. }) = self.leases.get(lease) else { continue };
            let late = match park.stage {
                // A hook's report must be seen soon.
                MoveStage::Leaving if park.method == Method::Hook && self.is_sight_overdue(now, *lease, park) => {
                    let said = self.all_reported_at(*lease, park);
                    said.is_some_and(|said| now >= (said + park.sight_limit).min(park.since + park.time_limit))
                }
                MoveStage::Parked => self.is_park_expired(now, held, park) && now >= park.since + park.time_limit,
                MoveStage::Leaving => self.is_overdue(now, park) && now >= park.since + park.time_limit,
                MoveStage::Returning => {
                    // While a lease is only waiting to be seen it may take as long as no reading succeeds.
                    let silent = park.was_resumed && !self.none_parked(*lease, park.method);
                    let words = self.movers_of(*lease, park.method).values().map(|mover| mover.reported_at);
                    let heard = words.max().unwrap_or(park.since).max(park.since);
                    let grace = if park.since <= self.grace_from { self.grace_until } else { Time::ZERO };
                    let span = Span(2 * park.time_limit.max(park.time_allowed(&self.policy.parking)).0);
                    silent && now >= heard.max(grace) + span
                }
            };
            must(8, !late, || format!("{lease} is {:?} since {}, and it is {now}: {park:?}", park.stage, park.since))?;
        }
        Ok(())
    }

    /// Checks that every lease that was seen to have arrived has.
    pub fn check_arrived(&self) -> Verdict {
        for lease in &self.moving {
            let Some(LeaseBook { stage: LeaseStage::Park(held, park), .. }) = self.leases.get(lease) else { continue };
            let since_then = |gpu: &usize| park.readings_after.get(gpu).is_some_and(|count| *count >= READINGS);
            let stays = park.stage != MoveStage::Parked && held.gpus.iter().all(since_then);
            must(9, !stays, || format!("{lease} was seen to have arrived in earlier readings, and is {park:?}"))?;
        }
        Ok(())
    }

    /// Checks that a lease that needs its GPUs waits for them.
    pub fn check_wanted(&self, lease: LeaseId, kind: LeaseCallKind) -> Verdict {
        let idle = |park: &MoveBook| park.stage == MoveStage::Parked && park.queued_since.is_none();
        let left = match self.leases.get(&lease) {
            Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) if kind == LeaseCallKind::Resume => {
                Some(park).filter(|park| idle(park))
            }
            _ => None,
        };
        must(9, left.is_none(), || format!("{lease} needs its GPUs, and does not wait for them: {left:?}"))
    }

    /// Checks that a lease that was to request its GPUs again once it was parked does.
    pub fn check_requested_again(&self, actions: &[Action]) -> Verdict {
        for action in actions {
            let Action::Lease(LeaseAction::FinishPark { lease, .. }) = action else { continue };
            let Some(LeaseBook { stage: LeaseStage::Park(_, park), .. }) = self.leases.get(lease) else { continue };
            let idle = park.stage == MoveStage::Parked && park.queued_since.is_none();
            must(9, !(idle && (park.requests_again.is_some() || park.is_wanted)), || {
                format!("{lease} was to request its GPUs again, and does not wait for them: {park:?}")
            })?;
        }
        Ok(())
    }
}
