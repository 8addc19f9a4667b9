//! Events about unleased processes, and the answers to calls about them.

use super::*;
use sublet_core::action::Action;
use sublet_core::event::Caller;
use sublet_core::facts::{LeaseAction, UnleasedEvent};

impl CheckerBooks {
    /// Takes an event about unleased processes before core does.
    pub fn expect_unleased(&mut self, now: Time, event: &UnleasedEvent) -> EventCause {
        let watched = match event {
            UnleasedEvent::Audited { audit, tree } => {
                // Nothing is recorded about a process where its lease is.
                let known = self.unleased.id_of(audit.process).and_then(|id| self.unleased.get(id));
                let is_noted = self.is_audit_recorded(audit.process, known);
                self.unleased.is_noted = is_noted;
                if let Some(found) = self.unleased.by_process_mut(audit.process).filter(|_| is_noted) {
                    found.audited = Some((now, tree.clone()));
                }
                WatchedStep::Audited(audit.clone(), tree.clone())
            }
            UnleasedEvent::Exited { process } => WatchedStep::Left(*process),
            UnleasedEvent::SignalSent { id: stranger, signal, decided_at: of, .. } => {
                WatchedStep::SignalOutcome(*stranger, *signal, *of)
            }
            UnleasedEvent::SelfTested { result: can } => {
                self.unleased.self_test = Some(can.clone());
                WatchedStep::Tested
            }
            UnleasedEvent::AdoptRequested { by, process, vram, .. } => {
                let of = |id: &UnleasedId| self.unleased.by_id.get(id);
                let theirs = |id: &UnleasedId| {
                    of(id).is_some_and(|it| by.operator || by.tenant == format!("uid:{}", it.audit.uid))
                };
                let id = self.unleased.by_process.get(process).copied().filter(theirs);
                let can = id.as_ref().and_then(of).is_some_and(|found| self.may_be_adopted(now, found, *vram));
                WatchedStep::Adopt(id, can)
            }
            UnleasedEvent::RuleRequested { by, subject: who, action: treat } => {
                let same = self.unleased.rules.values().find(|rule| rule.subject == *who).map(|rule| rule.id);
                let short = matches!(who, RuleSubject::Container(id) if id.len() < 12);
                WatchedStep::Rule(match () {
                    () if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
                    () if short => EventAnswer::Refused(Refusal::BadRule),
                    () => {
                        let id = same.unwrap_or(RuleId(self.unleased.next_rule));
                        EventAnswer::Rule(Box::new(Rule { id, subject: who.clone(), action: *treat }))
                    }
                })
            }
            UnleasedEvent::RuleRemovalRequested { by, rule } => {
                WatchedStep::RuleDropped(match self.unleased.rules.get(rule) {
                    _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
                    Some(rule) => EventAnswer::Rule(Box::new(rule.clone())),
                    None => EventAnswer::Refused(Refusal::NoSuchRule),
                })
            }
        };
        EventCause::Unleased(Box::new(watched))
    }

    /// Takes a request that changes the mode of a GPU.
    pub fn expect_mode(&self, by: &Caller, gpu: &str, mode: Mode) -> EventCause {
        let cannot = match &self.unleased.self_test {
            _ if !matches!(mode, Mode::Adopt | Mode::Enforce) => None,
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why.clone()),
            None => Some("it was not tried yet".to_owned()),
        };
        let answer = match (self.gpu_number(gpu), cannot) {
            _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
            (None, _) => EventAnswer::Refused(Refusal::NoSuchCard),
            (_, Some(why)) => EventAnswer::Refused(Refusal::CannotEnforce(why)),
            _ => EventAnswer::Done,
        };
        EventCause::Unleased(Box::new(WatchedStep::Mode(self.gpu_number(gpu).unwrap_or_default(), mode, answer)))
    }

    /// Checks the answer to a call about unleased processes.
    pub fn check_unleased_answer(&self, watched: &WatchedStep, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let nothing = |actions: &[Action]| crate::checker::preempt::nothing_but_room(actions);
        match watched {
            WatchedStep::Mode(_, _, right) | WatchedStep::Rule(right) | WatchedStep::RuleDropped(right) => {
                must(18, answer == right, || format!("{watched:?} is answered {answer:?}"))?;
                let refused = matches!(right, EventAnswer::Refused(_));
                must(18, !refused || nothing(actions), || format!("{watched:?} is refused, but {actions:?}"))
            }
            WatchedStep::Adopt(None, _) => {
                let right = *answer == EventAnswer::Refused(Refusal::NoSuchStranger);
                must(18, right, || format!("a process that the caller may not see: {answer:?}"))?;
                must(18, nothing(actions), || format!("the caller may not adopt it, but {actions:?}"))
            }
            WatchedStep::Adopt(Some(id), can) => {
                let adopted = |action: &Action| match action {
                    Action::Unleased(UnleasedAction::Close {
                        id: stranger, how: UnleasedEnd::Adopted(lease), ..
                    }) => stranger == id && *answer == EventAnswer::Lease(*lease),
                    _ => false,
                };
                let right = if *can { actions.iter().any(adopted) } else { matches!(answer, EventAnswer::Refused(_)) };
                must(1, right, || {
                    format!("{id} is to be adopted, which is possible: {can}; {answer:?} with {actions:?}")
                })?;
                let grants = |action: &Action| {
                    matches!(action, Action::Lease(LeaseAction::Queue { .. } | LeaseAction::Grant { .. }))
                };
                must(1, *can || !actions.iter().any(grants), || format!("{id} is refused, but {actions:?}"))
            }
            _ => Ok(()),
        }
    }
}
