//! Events about unleased processes, and the answers to calls about them.

use super::*;

impl CheckerBooks {
    /// Takes an event about unleased processes before core does.
    pub fn expect_unleased(&mut self, now: Time, event: &Event) -> EventCause {
        let watched = match event {
            Event::Audited { audit, tree } => {
                // Nothing is recorded about a process where its lease is.
                let known = self.unleased.id_of(audit.process).and_then(|id| self.unleased.get(id));
                let is_noted = self.is_audit_recorded(audit.process, known);
                self.unleased.is_noted = is_noted;
                if let Some(found) = self.unleased.by_process_mut(audit.process).filter(|_| is_noted) {
                    found.audited = Some((now, tree.clone()));
                }
                WatchedStep::Audited(audit.clone(), tree.clone())
            }
            Event::Left { process } => WatchedStep::Left(*process),
            Event::Struck { stranger, signal, of, .. } => WatchedStep::SignalOutcome(*stranger, *signal, *of),
            Event::SelfTested { can } => {
                self.unleased.self_test = Some(can.clone());
                WatchedStep::Tested
            }
            Event::AdoptAsked { by, process, vram, .. } => {
                let of = |id: &UnleasedId| self.unleased.by_id.get(id);
                let theirs = |id: &UnleasedId| {
                    of(id).is_some_and(|it| by.operator || by.tenant == format!("uid:{}", it.audit.uid))
                };
                let id = self.unleased.by_process.get(process).copied().filter(theirs);
                let can = id.as_ref().and_then(of).is_some_and(|found| self.may_be_adopted(now, found, *vram));
                WatchedStep::Adopt(id, can)
            }
            Event::ModeAsked { by, card, mode } => {
                let cannot = match &self.unleased.self_test {
                    _ if !matches!(mode, Mode::Adopt | Mode::Enforce) => None,
                    Some(Ok(())) => None,
                    Some(Err(why)) => Some(why.clone()),
                    None => Some("it was not tried yet".to_owned()),
                };
                let answer = match (self.gpu_number(card), cannot) {
                    _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
                    (None, _) => EventAnswer::Refused(Refusal::NoSuchCard),
                    (_, Some(why)) => EventAnswer::Refused(Refusal::CannotEnforce(why)),
                    _ => EventAnswer::Done,
                };
                WatchedStep::Mode(self.gpu_number(card).unwrap_or_default(), *mode, answer)
            }
            Event::RuleAsked { by, who, treat } => {
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
            Event::RuleDropped { by, rule } => WatchedStep::RuleDropped(match self.unleased.rules.get(rule) {
                _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
                Some(rule) => EventAnswer::Rule(Box::new(rule.clone())),
                None => EventAnswer::Refused(Refusal::NoSuchRule),
            }),
            _ => return EventCause::Other,
        };
        EventCause::Unleased(Box::new(watched))
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
                    Action::Close { stranger, how: UnleasedEnd::Adopted(lease), .. } => {
                        stranger == id && *answer == EventAnswer::Lease(*lease)
                    }
                    _ => false,
                };
                let right = if *can { actions.iter().any(adopted) } else { matches!(answer, EventAnswer::Refused(_)) };
                must(1, right, || {
                    format!("{id} is to be adopted, which is possible: {can}; {answer:?} with {actions:?}")
                })?;
                let grants = |action: &Action| matches!(action, Action::Queue { .. } | Action::Grant { .. });
                must(1, *can || !actions.iter().any(grants), || format!("{id} is refused, but {actions:?}"))
            }
            _ => Ok(()),
        }
    }
}
