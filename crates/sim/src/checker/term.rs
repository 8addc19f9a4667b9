//! Rule 8: nothing ends before its time, nor after it.

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{CallWord, EventCause, ExpectedAnswer};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::LeaseAction;
use sublet_core::ids::LeaseId;
use sublet_core::request::Preempt;
use sublet_core::rows::EndReason;
use sublet_core::units::Time;

/// So many things may come due in one tick and still be dealt with in it.
const DUE_MAX: usize = 1_024;

impl CheckerBooks {
    /// A lease goes on: because it was used, or because nobody waits for its cards.
    pub fn check_renewal(
        &self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        at: Time,
        until: Time,
        idle: bool,
    ) -> Verdict {
        let Some(LeaseBook { at: LeaseStage::Held(held), tenant, worked, ask, bound, .. }) = self.leases.get(&lease)
        else {
            return must(8, false, || format!("{lease} is renewed and nobody has it"));
        };
        let full = now + ask.term.span();
        let fixed = self.leases[&lease].fixed();
        must(8, !fixed, || format!("{lease} has a fixed term until {}, and is renewed until {until}", held.until))?;
        must(8, at == now && until > held.until.min(now) && until <= full, || {
            format!("{lease} is renewed at {at} until {until}; it is {now}, and it had until {}", held.until)
        })?;
        let wanted = self.wanted(*tenant, &held.cards);
        let never = ask.preempt == Preempt::Never;
        let capped = if never { Time::NEVER } else { held.began + self.policy.hold_max };
        let limited = until == capped || Some(until) == held.before;
        let let_past = held.before.is_some() && !self.queue.is_empty();
        must(8, until == full || ((wanted.at_all || let_past) && limited), || {
            format!("{lease} is renewed until {until}, which is neither its term {full} nor its cap {capped}")
        })?;
        must(9, !wanted.freely || until <= capped.max(held.until), || {
            format!("{lease} is renewed until {until}, past its cap {capped}, while somebody waits")
        })?;
        must(9, !wanted.freely || held.before.is_none_or(|before| until <= before.max(held.until)), || {
            format!("{lease} is renewed until {until}, and it was let past somebody until {:?} only", held.before)
        })?;
        let (soonest, _) = self.renewal_window(lease);
        let used = *worked && now >= (held.renewed + soonest).min(held.until);
        let ran_out = now >= held.until && !self.in_grace(now, held.renewed) && !wanted.freely;
        let fits = match cause {
            EventCause::Call(CallWord::Renew, of, _) => *of == lease && !bound,
            EventCause::Worked(of, _) => *of == lease && used,
            EventCause::Ticked if idle => ran_out && !worked,
            EventCause::Ticked => used || ran_out,
            _ => false,
        };
        must(8, fits, || format!("{lease} is renewed (idle: {idle}) without a reason, after {cause:?}"))
    }

    /// A lease ends because time passed.
    pub fn check_expiry(
        &self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        book: &LeaseBook,
        reason: EndReason,
    ) -> Verdict {
        let may_not_wait =
            matches!((cause, &book.at), (EventCause::Asked { .. }, LeaseStage::Waiting(give_up)) if *give_up == now);
        must(8, matches!(cause, EventCause::Ticked) || may_not_wait, || {
            format!("{lease} ends ({reason:?}) after {cause:?}")
        })?;
        let due = match &book.at {
            LeaseStage::Waiting(give_up) => *give_up,
            LeaseStage::Held(held) | LeaseStage::Away(held, _) => held.until,
            LeaseStage::Ending(_, ended, _) => *ended,
        };
        must(8, due <= now, || format!("{lease} ends ({reason:?}) at {now}, and it has until {due}"))?;
        let grace = self.in_grace(now, book.since());
        must(8, may_not_wait || !grace, || {
            format!("{lease} ends ({reason:?}) at {now}, within the grace to {}", self.grace_until)
        })?;
        let wanted = || book.held().is_some_and(|held| self.wanted(book.tenant, &held.cards).at_all);
        let capped = || {
            let cap = |held: &HeldBook| match book.ask.preempt {
                Preempt::Never => Time::NEVER,
                _ => held.began + self.policy.hold_max,
            };
            let limit = |held: &HeldBook| held.before.unwrap_or(Time::NEVER).min(cap(held));
            book.held().is_some_and(|held| now >= limit(held))
        };
        let fits = match reason {
            EndReason::WaitOver => book.held().is_none(),
            EndReason::TermOver => book.held().is_some() && !book.is_parked() && book.fixed(),
            EndReason::HoldCap => !book.fixed() && wanted() && capped(),
            EndReason::Expired => !book.fixed() && wanted() && !capped() && !book.worked,
            _ => false,
        };
        must(8, fits, || format!("{lease} ends as {reason:?}, which it is not: {book:?}"))?;
        let ends_its_turn = matches!(reason, EndReason::HoldCap | EndReason::Expired);
        let keeps = if ends_its_turn { self.could_leave(now, lease, book) } else { None };
        must(8, keeps.is_none(), || format!("{lease} ends as {reason:?}, and it could be parked: {keeps:?}"))
    }

    /// All actions of an event are on the books: is anything left undone?
    pub fn settle(&mut self, now: Time, cause: &EventCause, actions: &[Action]) -> Verdict {
        self.check_again(actions)?;
        match cause {
            EventCause::Listed(uuids) => self.set_listed(uuids),
            EventCause::Ticked => {
                let graceless =
                    |lease: &LeaseId| self.leases.get(lease).is_some_and(|b| !self.in_grace(now, b.since()));
                let mut due = self.due.iter().take_while(|(due, _)| *due <= now).take(64);
                let over = due.find(|(_, lease)| actions.len() < DUE_MAX && graceless(lease));
                must(8, over.is_none(), || {
                    let book = over.and_then(|(_, lease)| self.leases.get(lease));
                    format!("at {now} {over:?} should be over: {book:?}")
                })?;
                self.check_trips(now, actions.len() < DUE_MAX)?;
                if actions.len() < DUE_MAX {
                    self.check_notices(now)?;
                }
            }
            EventCause::Worked(lease, true) => {
                let renewed = |action: &Action| matches!(action, Action::Lease(LeaseAction::Renew { lease: of, .. }) if of == lease);
                must(8, actions.iter().any(renewed), || format!("{lease} worked, and was not renewed by that"))?;
            }
            EventCause::Observed(Some(card), lost) => {
                self.check_seen(*card, *lost)?;
                self.check_arrived()?;
            }
            EventCause::Said(lease, said) | EventCause::Hooked(lease, said) => self.check_heard(*lease, *said)?,
            EventCause::Unwrapped(lease) => self.check_unwrapped(*lease)?,
            EventCause::Resume(lease, ExpectedAnswer::Yes(_)) | EventCause::Hinted(lease, true) => {
                self.check_heard(*lease, CallWord::Resume)?;
            }
            EventCause::Started(rebooted, floor) => {
                must(7, self.next_epoch >= *floor, || format!("epoch {} is below the floor {floor}", self.next_epoch))?;
                let held = |book: &&LeaseBook| matches!(book.at, LeaseStage::Held(_) | LeaseStage::Away(..));
                let left = self.leases.values().find(held).filter(|_| *rebooted);
                must(17, left.is_none(), || format!("a holder survives its host: {left:?}"))?;
            }
            EventCause::Gone(lease) => {
                let left = self.leases.get(lease).filter(|book| !matches!(book.at, LeaseStage::Ending(..)));
                must(8, left.is_none(), || format!("{lease} has no process any more and goes on"))?;
            }
            EventCause::Call(CallWord::Release | CallWord::Revoke, lease, ExpectedAnswer::Yes(_)) => {
                let left = self.leases.get(lease).filter(|book| !matches!(book.at, LeaseStage::Ending(..)));
                must(11, left.is_none(), || format!("{lease} was given back and goes on"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A look settles what ended before it; a card lost twice has no holders.
    fn check_seen(&self, card: usize, lost: bool) -> Verdict {
        let book = |lease: &LeaseId| self.leases.get(lease);
        let left = self.cards[card]
            .ending
            .iter()
            .find(|lease| matches!(book(lease), Some(LeaseBook { at: LeaseStage::Ending(_, _, 0), .. })));
        must(19, left.is_none(), || format!("{left:?} was seen to be over on all its cards, and is not retired"))?;
        let held = |lease: &&LeaseId| {
            matches!(book(lease), Some(LeaseBook { at: LeaseStage::Held(_) | LeaseStage::Away(..), .. }))
        };
        let held = self.cards[card].claims.keys().find(held).filter(|_| lost);
        must(1, held.is_none(), || format!("{held:?} holds card {card}, which is lost"))
    }
}
