//! Rule 8: no lease ends before its time, nor after it.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{EventCause, ExpectedAnswer, LeaseCallKind};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::LeaseAction;
use sublet_core::ids::LeaseId;
use sublet_core::request::Preempt;
use sublet_core::rows::EndReason;
use sublet_core::units::Time;

/// The most that one tick deals with of what is due.
const DUE_MAX: usize = 1_024;

impl CheckerBooks {
    /// Checks a renewal: the lease was busy, or no waiter needs its GPUs.
    pub fn check_renewal(
        &self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        at: Time,
        until: Time,
        idle: bool,
    ) -> Verdict {
        let Some(LeaseBook { stage: LeaseStage::Held(held), tenant, worked, request, bound, .. }) =
            self.leases.get(&lease)
        else {
            return must(8, false, || format!("{lease} is renewed, and is not held"));
        };
        let full = now + request.term.span();
        let fixed = self.leases[&lease].has_fixed_term();
        must(8, !fixed, || format!("{lease} has a fixed term until {}, and is renewed until {until}", held.until))?;
        must(8, at == now && until > held.until.min(now) && until <= full, || {
            format!("{lease} is renewed at {at} until {until}; it is {now}, and it had until {}", held.until)
        })?;
        let wanted = self.wanted(*tenant, &held.gpus);
        let never = request.preempt == Preempt::Never;
        let capped = if never { Time::NEVER } else { held.slice_began + self.policy.hold_max };
        let limited = until == capped || Some(until) == held.not_beyond;
        let let_past = held.not_beyond.is_some() && !self.queue.is_empty();
        must(8, until == full || ((wanted.at_all || let_past) && limited), || {
            format!("{lease} is renewed until {until}, which is neither its term {full} nor its cap {capped}")
        })?;
        must(9, !wanted.freely || until <= capped.max(held.until), || {
            format!("{lease} is renewed until {until}, past its cap {capped}, while a waiter needs its GPUs")
        })?;
        must(9, !wanted.freely || held.not_beyond.is_none_or(|before| until <= before.max(held.until)), || {
            format!("{lease} is renewed until {until}, and it was let past a waiter until {:?} only", held.not_beyond)
        })?;
        let (soonest, _) = self.renewal_window(lease);
        let used = *worked && now >= (held.renewed + soonest).min(held.until);
        let ran_out = now >= held.until && !self.in_grace(now, held.renewed) && !wanted.freely;
        let fits = match cause {
            EventCause::LeaseCall(LeaseCallKind::Renew, of, _) => *of == lease && !bound,
            EventCause::Worked(of, _) => *of == lease && used,
            EventCause::Ticked if idle => ran_out && !worked,
            EventCause::Ticked => used || ran_out,
            _ => false,
        };
        must(8, fits, || format!("{lease} is renewed (idle: {idle}) without a reason, after {cause:?}"))
    }

    /// Checks an end because time passed.
    pub fn check_expiry(
        &self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        book: &LeaseBook,
        reason: EndReason,
    ) -> Verdict {
        let may_not_wait =
            matches!((cause, &book.stage), (EventCause::Asked { .. }, LeaseStage::Waiting(give_up)) if *give_up == now);
        must(8, matches!(cause, EventCause::Ticked) || may_not_wait, || {
            format!("{lease} ends ({reason:?}) after {cause:?}")
        })?;
        let due = match &book.stage {
            LeaseStage::Waiting(give_up) => *give_up,
            LeaseStage::Held(held) | LeaseStage::Park(held, _) => held.until,
            LeaseStage::Ending(_, ended, _) => *ended,
        };
        must(8, due <= now, || format!("{lease} ends ({reason:?}) at {now}, and it has until {due}"))?;
        let grace = self.in_grace(now, book.stage_began());
        must(8, may_not_wait || !grace, || {
            format!("{lease} ends ({reason:?}) at {now}, within the grace to {}", self.grace_until)
        })?;
        let wanted = || book.held().is_some_and(|held| self.wanted(book.tenant, &held.gpus).at_all);
        let capped = || {
            let cap = |held: &HeldBook| match book.request.preempt {
                Preempt::Never => Time::NEVER,
                _ => held.slice_began + self.policy.hold_max,
            };
            let limit = |held: &HeldBook| held.not_beyond.unwrap_or(Time::NEVER).min(cap(held));
            book.held().is_some_and(|held| now >= limit(held))
        };
        let fits = match reason {
            EndReason::WaitOver => book.held().is_none(),
            EndReason::TermOver => book.held().is_some() && !book.is_parked() && book.has_fixed_term(),
            EndReason::HoldCap => !book.has_fixed_term() && wanted() && capped(),
            EndReason::Expired => !book.has_fixed_term() && wanted() && !capped() && !book.worked,
            _ => false,
        };
        must(8, fits, || format!("{lease} ends as {reason:?}, and that is not so: {book:?}"))?;
        let ends_its_turn = matches!(reason, EndReason::HoldCap | EndReason::Expired);
        let keeps = if ends_its_turn { self.could_leave(now, lease, book) } else { None };
        must(8, keeps.is_none(), || format!("{lease} ends as {reason:?}, and it could be parked: {keeps:?}"))
    }

    /// Checks after all actions of an event that nothing is left undone.
    pub fn check_all_done(&mut self, now: Time, cause: &EventCause, actions: &[Action]) -> Verdict {
        self.check_requested_again(actions)?;
        match cause {
            EventCause::Listed(uuids) => self.set_listed(uuids),
            EventCause::Ticked => {
                let graceless =
                    |lease: &LeaseId| self.leases.get(lease).is_some_and(|b| !self.in_grace(now, b.stage_began()));
                let mut due = self.due.iter().take_while(|(due, _)| *due <= now).take(64);
                let over = due.find(|(_, lease)| actions.len() < DUE_MAX && graceless(lease));
                must(8, over.is_none(), || {
                    let book = over.and_then(|(_, lease)| self.leases.get(lease));
                    format!("at {now} {over:?} should be over: {book:?}")
                })?;
                self.check_moves(now, actions.len() < DUE_MAX)?;
                if actions.len() < DUE_MAX {
                    self.check_notices(now)?;
                }
            }
            EventCause::Worked(lease, true) => {
                let renewed = |action: &Action| matches!(action, Action::Lease(LeaseAction::Renew { lease: of, .. }) if of == lease);
                must(8, actions.iter().any(renewed), || format!("{lease} worked, and was not renewed by that"))?;
            }
            EventCause::Observed(Some(gpu), lost) => {
                self.check_seen(*gpu, *lost)?;
                self.check_arrived()?;
            }
            EventCause::Reported(lease, said) | EventCause::Hooked(lease, said) => self.check_wanted(*lease, *said)?,
            EventCause::Unwrapped(lease) => self.check_unwrapped(*lease)?,
            EventCause::Resume(lease, ExpectedAnswer::Yes(_)) | EventCause::Hinted(lease, true) => {
                self.check_wanted(*lease, LeaseCallKind::Resume)?;
            }
            EventCause::Started(rebooted, floor) => {
                must(7, self.next_fence >= *floor, || format!("fence {} is below the floor {floor}", self.next_fence))?;
                let held = |book: &&LeaseBook| matches!(book.stage, LeaseStage::Held(_) | LeaseStage::Park(..));
                let left = self.leases.values().find(held).filter(|_| *rebooted);
                must(17, left.is_none(), || format!("a held lease survives a reboot: {left:?}"))?;
            }
            EventCause::HolderExited(lease) => {
                let left = self.leases.get(lease).filter(|book| !matches!(book.stage, LeaseStage::Ending(..)));
                must(8, left.is_none(), || format!("{lease} has no process any more and goes on"))?;
            }
            EventCause::LeaseCall(
                LeaseCallKind::Release | LeaseCallKind::RevokeByOperator,
                lease,
                ExpectedAnswer::Yes(_),
            ) => {
                let left = self.leases.get(lease).filter(|book| !matches!(book.stage, LeaseStage::Ending(..)));
                must(11, left.is_none(), || format!("{lease} was released and goes on"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that a reading retires what ended before it, and that a GPU that was lost twice has no held leases.
    fn check_seen(&self, gpu: usize, lost: bool) -> Verdict {
        let book = |lease: &LeaseId| self.leases.get(lease);
        let left = self.gpus[gpu]
            .ending
            .iter()
            .find(|lease| matches!(book(lease), Some(LeaseBook { stage: LeaseStage::Ending(_, _, 0), .. })));
        must(19, left.is_none(), || format!("{left:?} was read to be over on all its GPUs, and is not retired"))?;
        let held = |lease: &&LeaseId| {
            matches!(book(lease), Some(LeaseBook { stage: LeaseStage::Held(_) | LeaseStage::Park(..), .. }))
        };
        let held = self.gpus[gpu].claims.keys().find(held).filter(|_| lost);
        must(1, held.is_none(), || format!("{held:?} holds GPU {gpu}, which is lost"))
    }
}
