//! Rules 15 to 17 and 20 for processes that belong to no lease: who is on the record, who may be warned,
//! who gets which signal, who gets a lease for what it has, and when a story is over.
//!
//! The same judgement is used twice: what is done must be [`ripe`](Books::ripe), and what is ripe when the
//! record was just compared with the cards must have been done.

use super::books::{CheckerBooks, LeaseBook, SeenReading};
use super::calls::EventCause;
use super::{Checker, Verdict, must};
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::action::Action;
use sublet_core::audit::Audit;
use sublet_core::event::{Caller, EventAnswer, Refusal};
use sublet_core::facts::{LeaseAction, UnleasedAction, UnleasedEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::rows::Rows;
use sublet_core::state::State;
use sublet_core::units::{Span, Time};
use sublet_core::unleased::{
    Mode, Rule, RuleAction, RuleId, RuleSubject, UnleasedEnd, UnleasedId, UnleasedProcess, UnleasedStep,
};

const TERM: u8 = 15;
const KILL: u8 = 9;
/// An audit is acted upon for so long.
const FRESH: Span = Span::secs(5);
/// Who comes back so soon has not left.
const BACK_WITHIN: Span = Span::secs(600);
/// Whoever is there so long after SIGKILL went out has survived it.
const SURVIVES: Span = Span::secs(10);

/// What happened to strangers.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnforceCounts {
    /// Put on the record.
    pub found: u64,
    /// Those of them that had a lease, for other cards.
    pub abroad: u64,
    /// Warned.
    pub warned: u64,
    /// To get a signal.
    pub struck: u64,
    /// With a lease.
    pub adopted: u64,
    /// Alive after SIGKILL.
    pub survived: u64,
    /// To be taken off their cards.
    pub taken: u64,
    /// Parked, in place of being ended.
    pub parked: u64,
    /// To be taken off them, or due to be, and not taken.
    pub unmoved: u64,
}

/// What is known of strangers, by the books.
#[derive(Debug, Default)]
pub struct ProcessWatch {
    strangers: BTreeMap<UnleasedId, FoundProcess>,
    by_process: BTreeMap<ProcKey, UnleasedId>,
    modes: Vec<Mode>,
    /// GPUs that step aside.
    aside: BTreeSet<usize>,
    rules: BTreeMap<RuleId, Rule>,
    next_stranger: u64,
    next_rule: u32,
    /// What this daemon's self-test gave.
    tested: Option<Result<(), String>>,
    /// The lease that the present event makes of a stranger.
    pub(super) adopting: Option<(LeaseId, UnleasedId)>,
    /// What the present event found out about a process is noted.
    is_noted: bool,
    /// The last look was compared with the record.
    pub(super) is_compared: bool,
    /// Strangers that took a step in the present event: they take one at a time.
    stepped: Vec<UnleasedId>,
    /// Those who left when they were warned, and until when they had time.
    warned: BTreeMap<UnleasedId, Time>,
    /// Processes that left their cards when they were warned or told, when, and how far they had come.
    left: BTreeMap<ProcKey, (UnleasedId, Time, SignalledStep)>,
    /// Users that were not known before this event.
    pub(super) enrolled: Vec<String>,
    /// Cards that survivors of the present event are on.
    survived: Vec<usize>,
    /// Leases that are to end in the present event: who has one could not be moved by it.
    pub(super) unmoving: Vec<LeaseId>,
}

/// A stranger on the books.
#[derive(Clone, Debug)]
pub(super) struct FoundProcess {
    pub(super) audit: Audit,
    pub(super) since: Time,
    pub(super) cards: Vec<usize>,
    pub(super) step: SignalledStep,
    /// When this daemon last looked into it, and who it found to descend from it.
    pub(super) seen: Option<(Time, Vec<ProcKey>)>,
    /// A signal was refused, and it is what it was then.
    refused: bool,
    /// It could not be taken off its cards.
    pub(super) stays: bool,
    /// Who was the same had until then.
    until: Option<Time>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalledStep {
    Nothing,
    Warned { since: Time, until: Time },
    Moving { lease: LeaseId, since: Time },
    Unmoved { since: Time },
    Signal { signal: u8, since: Time, sent: Option<Time>, ours: bool },
    Stuck,
}

/// What happens to a stranger next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueStep {
    /// It is taken off its cards.
    Move,
    /// It gets a signal.
    Signal(u8),
}

/// What an event says of strangers.
#[derive(Debug)]
pub enum WatchedStep {
    /// One was looked into.
    Audited(Box<Audit>, Vec<ProcKey>),
    /// One exited.
    Left(ProcKey),
    /// A signal was sent, or refused, that was decided then.
    Struck(UnleasedId, u8, Time),
    /// A daemon tried whether it could end anybody.
    Tested,
    /// One shall have a lease: which, if the caller may say so, and whether it can have one.
    Adopt(Option<UnleasedId>, bool),
    /// A mode was chosen.
    Mode(usize, Mode, EventAnswer),
    /// A rule was made, with what must be answered.
    Rule(EventAnswer),
    /// A rule was dropped.
    Unrule(EventAnswer),
}

/// Whether a rule is about a process.
fn is_about(who: &RuleSubject, audit: &Audit) -> bool {
    let is = |own: &Option<String>, test: &dyn Fn(&str) -> bool| own.as_deref().is_some_and(test);
    match who {
        RuleSubject::Exe(path) if path.contains('/') => is(&audit.exe, &|own| own == path),
        RuleSubject::Exe(name) => is(&audit.exe, &|own| own.split('/').next_back() == Some(name)),
        RuleSubject::Unit(unit) => is(&audit.unit, &|own| own == unit || *own == format!("{unit}.service")),
        RuleSubject::Container(begins) => is(&audit.container, &|own| own.starts_with(begins)),
        RuleSubject::Uid(uid) => audit.uid == *uid,
    }
}

impl FoundProcess {
    fn read(row: &UnleasedProcess) -> FoundProcess {
        let step = match row.step {
            UnleasedStep::Found => SignalledStep::Nothing,
            UnleasedStep::Warned { since, until } => SignalledStep::Warned { since, until },
            UnleasedStep::Parking { lease, since } => SignalledStep::Moving { lease, since },
            UnleasedStep::NotParked { since } => SignalledStep::Unmoved { since },
            UnleasedStep::Signalled { signal, since, sent } => {
                SignalledStep::Signal { signal, since, sent: sent.then_some(since), ours: false }
            }
            UnleasedStep::Survived => SignalledStep::Stuck,
        };
        let cards = row.gpus.iter().map(|card| usize::from(card.0)).collect();
        let stays = row.why_not_parked.is_some();
        let (audit, until) = (row.audit.clone(), row.must_leave_by);
        FoundProcess { audit, since: row.since, cards, step, seen: None, refused: false, stays, until }
    }

    fn is_as(&self, row: &UnleasedProcess) -> bool {
        let own = FoundProcess::read(row);
        let step = match (self.step, own.step) {
            (SignalledStep::Signal { signal, sent, .. }, SignalledStep::Signal { signal: other, sent: theirs, .. }) => {
                signal == other && sent == theirs
            }
            (own, theirs) => own == theirs,
        };
        step && self.stays == own.stays && self.cards == own.cards && self.audit.process == own.audit.process
    }

    fn is_system(&self) -> bool {
        let audit = &self.audit;
        audit.process.pid < 2 || (audit.exe.is_none() && audit.command.is_empty() && audit.unread.is_empty())
    }
}

impl ProcessWatch {
    /// What the disk has of it; nothing of it was seen yet.
    pub fn from_rows(rows: &Rows) -> ProcessWatch {
        ProcessWatch {
            strangers: rows.unleased.iter().map(|(id, row)| (*id, FoundProcess::read(row))).collect(),
            by_process: rows.unleased.iter().map(|(id, row)| (row.audit.process, *id)).collect(),
            modes: rows.gpus.iter().map(|card| card.mode).collect(),
            aside: (0..rows.gpus.len()).filter(|number| !rows.gpus[*number].aside.now.is_empty()).collect(),
            rules: rows.rules.clone(),
            next_stranger: rows.meta.next_unleased,
            next_rule: rows.meta.next_rule,
            ..ProcessWatch::default()
        }
    }

    /// Whether this daemon has seen that it can end whom it means.
    pub(super) fn is_able(&self) -> bool {
        self.tested == Some(Ok(()))
    }

    /// Whether anybody is on the record.
    pub fn is_empty(&self) -> bool {
        self.strangers.is_empty()
    }

    pub(super) fn mode(&self, card: usize) -> Mode {
        let mode = self.modes.get(card).copied().unwrap_or_default();
        if self.aside.contains(&card) { Mode::Observe } else { mode }
    }

    /// Nothing is done to processes without a lease on a GPU that steps aside.
    pub(super) fn set_aside(&mut self, card: usize, is_aside: bool) {
        if is_aside {
            self.aside.insert(card);
        } else {
            self.aside.remove(&card);
        }
    }

    pub(super) fn is_told(&self, treat: RuleAction, audit: &Audit) -> bool {
        self.rules.values().any(|rule| rule.action == treat && is_about(&rule.subject, audit))
    }

    pub(super) fn get(&self, stranger: UnleasedId) -> Option<&FoundProcess> {
        self.strangers.get(&stranger)
    }
}

impl Checker {
    /// A signal reaches a process: that it does is on the record, and nobody has taken it back since.
    pub fn reaches(&self, stranger: UnleasedId, signal: u8) -> Verdict {
        let watch = &self.books.watch;
        let found = watch.strangers.get(&stranger);
        let wanted = found.is_some_and(|found| {
            let told =
                matches!(found.step, SignalledStep::Signal { signal: told, sent: None, ours: true, .. } if told == signal);
            let enforced = found.cards.iter().any(|card| watch.mode(*card) == Mode::Enforce);
            told && enforced && !watch.is_told(RuleAction::Allow, &found.audit)
        });
        must(20, wanted, || format!("{stranger} gets signal {signal}, and is not to get it any more: {found:?}"))?;
        must(15, self.ledger.is_recorded(stranger, signal), || {
            format!("{stranger} gets signal {signal}, and the disk does not have that")
        })
    }
}

impl CheckerBooks {
    // ---- events ----------------------------------------------------------------

    /// Takes in an event about unleased processes, before core does.
    pub fn watched(&mut self, now: Time, event: &UnleasedEvent) -> EventCause {
        let watched = match event {
            UnleasedEvent::Audited { audit, tree } => {
                // Of whoever has a lease for where it is nothing is noted.
                let known = self.watch.of(audit.process).and_then(|id| self.watch.get(id));
                let is_noted = self.is_noted(audit.process, known);
                self.watch.is_noted = is_noted;
                if let Some(found) = self.watch.known_mut(audit.process).filter(|_| is_noted) {
                    found.seen = Some((now, tree.clone()));
                }
                WatchedStep::Audited(audit.clone(), tree.clone())
            }
            UnleasedEvent::Exited { process } => WatchedStep::Left(*process),
            UnleasedEvent::SignalSent { id: stranger, signal, decided_at: of, .. } => {
                WatchedStep::Struck(*stranger, *signal, *of)
            }
            UnleasedEvent::SelfTested { result: can } => {
                self.watch.tested = Some(can.clone());
                WatchedStep::Tested
            }
            UnleasedEvent::AdoptRequested { by, process, vram, .. } => {
                let of = |id: &UnleasedId| self.watch.strangers.get(id);
                let theirs = |id: &UnleasedId| {
                    of(id).is_some_and(|it| by.operator || by.tenant == format!("uid:{}", it.audit.uid))
                };
                let id = self.watch.by_process.get(process).copied().filter(theirs);
                let can = id.as_ref().and_then(of).is_some_and(|found| self.may_be_adopted(now, found, *vram));
                WatchedStep::Adopt(id, can)
            }
            UnleasedEvent::RuleRequested { by, subject: who, action: treat } => {
                let same = self.watch.rules.values().find(|rule| rule.subject == *who).map(|rule| rule.id);
                let short = matches!(who, RuleSubject::Container(id) if id.len() < 12);
                WatchedStep::Rule(match () {
                    () if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
                    () if short => EventAnswer::Refused(Refusal::BadRule),
                    () => {
                        let id = same.unwrap_or(RuleId(self.watch.next_rule));
                        EventAnswer::Rule(Box::new(Rule { id, subject: who.clone(), action: *treat }))
                    }
                })
            }
            UnleasedEvent::RuleRemovalRequested { by, rule } => WatchedStep::Unrule(match self.watch.rules.get(rule) {
                _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
                Some(rule) => EventAnswer::Rule(Box::new(rule.clone())),
                None => EventAnswer::Refused(Refusal::NoSuchRule),
            }),
        };
        EventCause::Watched(Box::new(watched))
    }

    /// The same for a request that changes the mode of a GPU.
    pub fn mode_asked(&self, by: &Caller, gpu: &str, mode: Mode) -> EventCause {
        let cannot = match &self.watch.tested {
            _ if !matches!(mode, Mode::Adopt | Mode::Enforce) => None,
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why.clone()),
            None => Some("it was not tried yet".to_owned()),
        };
        let answer = match (self.card(gpu), cannot) {
            _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
            (None, _) => EventAnswer::Refused(Refusal::NoSuchCard),
            (_, Some(why)) => EventAnswer::Refused(Refusal::CannotEnforce(why)),
            _ => EventAnswer::Done,
        };
        EventCause::Watched(Box::new(WatchedStep::Mode(self.card(gpu).unwrap_or_default(), mode, answer)))
    }

    /// Whether the answer is what the books say.
    pub fn answered_watched(&self, watched: &WatchedStep, answer: &EventAnswer, actions: &[Action]) -> Verdict {
        let nothing = |actions: &[Action]| super::preempt::nothing_but_room(actions);
        match watched {
            WatchedStep::Mode(_, _, right) | WatchedStep::Rule(right) | WatchedStep::Unrule(right) => {
                must(18, answer == right, || format!("{watched:?} is answered {answer:?}"))?;
                let refused = matches!(right, EventAnswer::Refused(_));
                must(18, !refused || nothing(actions), || format!("{watched:?} is refused, and yet {actions:?}"))
            }
            WatchedStep::Adopt(None, _) => {
                let right = *answer == EventAnswer::Refused(Refusal::NoSuchStranger);
                must(18, right, || format!("a stranger that is not the caller's: {answer:?}"))?;
                must(18, nothing(actions), || format!("it is not the caller's to adopt, and yet {actions:?}"))
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
                    format!("{id} shall have a lease, which can be: {can}; {answer:?} with {actions:?}")
                })?;
                let grants = |action: &Action| {
                    matches!(action, Action::Lease(LeaseAction::Queue { .. } | LeaseAction::Grant { .. }))
                };
                must(1, *can || !actions.iter().any(grants), || format!("{id} is refused, and yet {actions:?}"))
            }
            _ => Ok(()),
        }
    }

    // ---- where it is ------------------------------------------------------------

    /// Whether what is known of a card is good now.
    fn is_plain(&self, now: Time, number: usize) -> bool {
        let Some(card) = self.cards.get(number) else { return false };
        let fresh = now.since(card.begun).0 <= 2 * self.policy.period.0;
        fresh && matches!(card.look, SeenReading::Free(_) | SeenReading::Coarse(_))
    }

    /// The cards it was seen on without a lease for them, or why nobody can say.
    fn places(&self, now: Time, found: &FoundProcess) -> Result<Vec<usize>, &'static str> {
        let (process, leased) = (found.audit.process, self.other_lease(found).is_some());
        let home = |number: usize| leased && self.is_home(process, number);
        if !found.cards.iter().all(|card| home(*card) || self.is_plain(now, *card)) {
            return Err("a card of its cannot be read");
        }
        let there = |number: usize| self.cards[number].all.contains(&process);
        let on = |number: &usize| self.is_plain(now, *number) && there(*number);
        let strange = |number: &usize| !leased || self.is_abroad(process, *number);
        Ok((0..self.cards.len()).filter(on).filter(strange).collect())
    }

    fn computes(&self, found: &FoundProcess, on: &[usize]) -> bool {
        on.iter().any(|number| self.cards[*number].residents.contains(&found.audit.process))
    }

    /// Whatever the mode, nothing is done to it.
    fn is_exempt(&self, found: &FoundProcess, on: &[usize]) -> Option<&'static str> {
        match () {
            () if found.is_system() => Some("it is of the system"),
            () if self.watch.is_told(RuleAction::Allow, &found.audit) => Some("a rule allows it"),
            () if found.audit.seat.is_some() && !self.computes(found, on) => Some("it draws a screen"),
            () => None,
        }
    }

    fn mode_of(&self, on: &[usize]) -> Mode {
        on.iter().map(|number| self.watch.mode(*number)).max().unwrap_or_default()
    }

    /// When something that began then and was to be at another time may be: not within a grace.
    pub fn deadline(&self, since: Time, until: Time) -> Time {
        if since <= self.grace_from { until.max(self.grace_until) } else { until }
    }

    // ---- signals -------------------------------------------------------------------

    /// What may be done to a stranger now, or which rule says no, and why.
    pub(super) fn ripe(&self, now: Time, found: &FoundProcess) -> Result<DueStep, (u8, &'static str)> {
        let no = |why| Err((20, why));
        if found.step == SignalledStep::Nothing {
            return no("it was not warned");
        }
        let on = self.places(now, found).map_err(|why| (20, why))?;
        let audit = &found.audit;
        if self.mode_of(&on) != Mode::Enforce {
            return no("no operator said that strangers there are ended");
        }
        if let Some(why) = self.is_exempt(found, &on) {
            return no(why);
        }
        match () {
            () if self.watch.tested != Some(Ok(())) => return no("it was not seen that strangers can be told apart"),
            () if found.refused => return no("it was refused a moment ago"),
            () if !self.computes(found, &on) && !self.watch.is_told(RuleAction::Deny, audit) => {
                return no("it only draws");
            }
            () if audit.container.is_some() && !self.watch.is_told(RuleAction::Deny, audit) => {
                return no("it is in a container");
            }
            () if on.iter().any(|number| !matches!(self.cards[*number].look, SeenReading::Free(_))) => {
                return no("it is not known how much it has");
            }
            () if audit.exe.is_none() => return no("what it runs could not be read"),
            () if audit.devices.is_empty() => return no("it has no device file open"),
            () if self.holder(&audit.process) != self.other_lease(found) => return Err((16, "it is a lease's")),
            () => {}
        }
        let (next, due) = match found.step {
            SignalledStep::Nothing => return no("it was not warned"),
            SignalledStep::Warned { since, until } if !self.computes(found, &on) => {
                (DueStep::Signal(TERM), self.deadline(since, until))
            }
            SignalledStep::Warned { since, until } => (self.after_warning(found), self.deadline(since, until)),
            SignalledStep::Moving { .. } => return Err((16, "it is taken off its cards")),
            SignalledStep::Unmoved { since } => (DueStep::Signal(TERM), self.deadline(since, since)),
            // What an earlier daemon meant to send may not have arrived.
            SignalledStep::Signal { signal, since, sent: None, ours: false } => (DueStep::Signal(signal), since),
            SignalledStep::Signal { sent: None, .. } => return Err((16, "its last signal is on its way")),
            SignalledStep::Signal { signal: TERM, sent: Some(sent), .. } => {
                (DueStep::Signal(KILL), self.deadline(sent, sent + self.policy.enforcement.after_sigterm))
            }
            SignalledStep::Signal { .. } | SignalledStep::Stuck => return Err((16, "it got SIGKILL")),
        };
        match &found.seen {
            _ if due > now => no("it has some time left"),
            Some((at, _)) if *at >= due && now.since(*at) <= FRESH => Ok(next),
            _ => Err((16, "it was not audited again")),
        }
    }

    fn strike(&mut self, now: Time, cause: &EventCause, action: &UnleasedAction) -> Verdict {
        let UnleasedAction::Signal { id: stranger, signal, at, processes } = action else { return Ok(()) };
        must(17, !matches!(cause, EventCause::Started(..)), || format!("a start signals {stranger}"))?;
        let Some(found) = self.watch.strangers.get(stranger) else {
            return must(16, false, || format!("{action:?}, and it is not on the record"));
        };
        let ripe = self.ripe(now, found);
        match ripe {
            Ok(DueStep::Move) => must(20, false, || format!("{action:?}, and it could have been parked: {found:?}"))?,
            Ok(due) => {
                must(16, due == DueStep::Signal(*signal), || {
                    format!("{action:?}, and it is due {due:?}: {:?}", found.step)
                })?;
            }
            Err((rule, why)) => must(rule, false, || format!("{action:?}, but {why}: {found:?}"))?,
        }
        let again = matches!(found.step, SignalledStep::Signal { since, .. } if since == *at);
        must(15, *at == now || again, || format!("{action:?} at {now}"))?;
        let tree = found.seen.as_ref().map(|(_, tree)| tree.as_slice()).unwrap_or_default();
        let own = found.audit.process;
        must(16, processes.contains(&own), || format!("{action:?}, and it is {own:?}"))?;
        for process in processes {
            let audited = *process == own || tree.contains(process);
            must(16, audited, || format!("{action:?}: {process:?} was not found to descend from it: {tree:?}"))?;
            // It may wait for a lease, or have one for other cards; who goes with it has none.
            let owner = if *process == own { self.holder(process) } else { self.owners.get(process).copied() };
            let abroad = *process == own && self.other_lease(found).is_some();
            let free = (owner.is_none() || abroad) && process.pid > 1;
            must(16, free, || format!("{action:?}: {process:?} is {:?}'s, or the system's", self.owners.get(process)))?;
            let other = self.watch.by_process.get(process).and_then(|id| self.watch.strangers.get(id));
            let allowed = other.is_some_and(|other| self.watch.is_told(RuleAction::Allow, &other.audit));
            must(20, !allowed, || format!("{action:?}: a rule allows {process:?}"))?;
        }
        self.watch.set_step(*stranger, SignalledStep::Signal { signal: *signal, since: *at, sent: None, ours: true });
        Ok(())
    }

    // ---- actions -------------------------------------------------------------------

    /// Checks an action about an unleased process, or a rule, and takes it in.
    pub fn act_on_unleased(&mut self, now: Time, cause: &EventCause, action: &UnleasedAction) -> Verdict {
        match action {
            UnleasedAction::Add { process: stranger } => self.find(now, cause, stranger),
            UnleasedAction::SetAudit { id: stranger, audit, gpus: cards } => {
                let fits = matches!(cause, EventCause::Watched(it) if matches!(&**it, WatchedStep::Audited(own, _) if own == audit));
                let found = self.watch.strangers.get(stranger);
                let on = found.map(|found| self.strange_on(audit.process, Some(found))).unwrap_or_default();
                must(16, cards.iter().map(|card| usize::from(card.0)).eq(on.iter().copied()), || {
                    format!("{stranger} is found on {cards:?}, and is a stranger on {on:?}")
                })?;
                let known = self.watch.strangers.get_mut(stranger).filter(|it| it.audit.process == audit.process);
                let Some(found) = known.filter(|_| fits) else {
                    return must(15, false, || format!("{action:?} after {cause:?}"));
                };
                let same = Audit { ran: None, ..found.audit.clone() } == Audit { ran: None, ..(**audit).clone() };
                found.refused &= same;
                found.audit = (**audit).clone();
                found.cards = cards.iter().map(|card| usize::from(card.0)).collect();
                Ok(())
            }
            UnleasedAction::Warn { id: stranger, at, until } => self.warn(now, *stranger, *at, *until),
            UnleasedAction::Signal { .. } => self.strike(now, cause, action),
            UnleasedAction::RecordSignal { id: stranger, signal, at, outcome, late } => {
                let of = match cause {
                    EventCause::Watched(it) => match **it {
                        WatchedStep::Struck(id, sent, of) if (id, sent) == (*stranger, *signal) => Some(of),
                        _ => None,
                    },
                    _ => None,
                };
                must(15, of.is_some() && *at == now, || format!("{action:?} after {cause:?}"))?;
                let Some(found) = self.watch.strangers.get_mut(stranger) else {
                    return must(15, false, || format!("{action:?}, and it is not on the record"));
                };
                let step = found.step;
                // Who was told something else since, or the same again, has not had that yet.
                let is_it = matches!(step, SignalledStep::Signal { signal: told, since, sent: None, .. } if told == *signal && Some(since) == of);
                must(17, *late != is_it, || format!("{action:?}, and it is told {step:?}"))?;
                if is_it {
                    let own = outcome.iter().find(|struck| struck.process == found.audit.process);
                    let (gets, changed) = own.map_or((true, false), |own| (own.refused.is_none(), own.changed));
                    found.refused = !gets && !changed;
                    // What it is now was not looked into.
                    found.seen = found.seen.take().filter(|_| !changed);
                    // Who did not get it is still to get it.
                    if let SignalledStep::Signal { sent, ours, .. } = &mut found.step {
                        (*sent, *ours) = if gets { (Some(now), *ours) } else { (None, false) };
                    }
                }
                Ok(())
            }
            UnleasedAction::Park { id: stranger, lease, at } => self.take_off(now, *stranger, *lease, *at),
            UnleasedAction::RecordParkFailure { id: stranger, at, .. } => self.not_moved(now, *stranger, *at),
            UnleasedAction::Spare { id: stranger, .. } => self.relent(now, *stranger),
            UnleasedAction::RecordSurvival { id: stranger, at } => self.survive(now, *stranger, *at),
            UnleasedAction::Close { id: stranger, at, how } => self.close(now, cause, *stranger, *at, how),
            UnleasedAction::SetRule { rule } => {
                let fits = matches!(cause, EventCause::Watched(it) if matches!(&**it, WatchedStep::Rule(EventAnswer::Rule(own)) if **own == *rule));
                must(20, fits, || format!("{action:?} after {cause:?}"))?;
                self.watch.next_rule = self.watch.next_rule.max(rule.id.0 + 1);
                self.watch.rules.insert(rule.id, rule.clone());
                Ok(())
            }
            UnleasedAction::RemoveRule { rule } => {
                let fits = matches!(cause, EventCause::Watched(it) if matches!(&**it, WatchedStep::Unrule(EventAnswer::Rule(was)) if was.id == *rule));
                must(20, fits && self.watch.rules.remove(rule).is_some(), || format!("{action:?} after {cause:?}"))
            }
        }
    }

    /// The mode of a GPU changes.
    pub fn set_mode(&mut self, cause: &EventCause, number: usize, mode: Mode) -> Verdict {
        let fits = matches!(cause, EventCause::Watched(it) if matches!(&**it, WatchedStep::Mode(n, m, EventAnswer::Done) if (*n, *m) == (number, mode)));
        must(20, fits, || format!("GPU {number} is set to {mode} after {cause:?}"))?;
        self.watch.modes.resize(self.cards.len(), Mode::Observe);
        self.watch.modes[number] = mode;
        Ok(())
    }

    fn find(&mut self, now: Time, cause: &EventCause, stranger: &UnleasedProcess) -> Verdict {
        let (id, process) = (stranger.id, stranger.audit.process);
        let tree = match cause {
            EventCause::Watched(it) => match &**it {
                WatchedStep::Audited(audit, tree) if **audit == stranger.audit => Some(tree.clone()),
                _ => None,
            },
            _ => None,
        };
        must(15, tree.is_some(), || format!("{id} is found after {cause:?}"))?;
        let next = self.watch.next_stranger.max(1);
        must(15, id.0 == next && stranger.since == now, || format!("{stranger:?}"))?;
        let mut found = FoundProcess::read(stranger);
        // Whoever left its cards for a moment, whatever it runs by now, has come as far as it had.
        let left = self.watch.left.remove(&process).filter(|(_, at, _)| now.since(*at) <= BACK_WITHIN);
        must(20, left.is_none_or(|(former, ..)| stranger.successor_of == Some(former)), || {
            format!("{id} is {left:?}, and taken for {:?}", stranger.successor_of)
        })?;
        let step = match left {
            Some((_, _, SignalledStep::Signal { signal, since, sent, .. })) => {
                SignalledStep::Signal { signal, since, sent, ours: false }
            }
            _ => SignalledStep::Nothing,
        };
        let as_was = match (found.step, step) {
            (SignalledStep::Signal { signal, sent, .. }, SignalledStep::Signal { signal: was, sent: then, .. }) => {
                signal == was && sent == then
            }
            (found, was) => found == was,
        };
        must(20, as_was, || format!("{id} is found as {:?}, and had come to {step:?}", found.step))?;
        let known = self.watch.by_process.get(&process);
        must(19, known.is_none(), || format!("{id} is on the record as {known:?}"))?;
        let owner = self.holder(&process);
        must(18, owner == stranger.lease, || {
            format!("{id} is {process:?}, a process of {owner:?}: {:?}", stranger.lease)
        })?;
        let former = stranger.successor_of.and_then(|former| self.watch.warned.get(&former)).copied();
        must(20, stranger.must_leave_by == former, || {
            format!("{id} has until {:?}, and who was the same until {former:?}", stranger.must_leave_by)
        })?;
        let on = self.strange_on(process, None);
        must(16, !on.is_empty() && on == found.cards, || {
            format!("{id} is found on {:?}, and seen on {on:?}", found.cards)
        })?;
        found.seen = tree.map(|tree| (now, tree));
        self.watch.next_stranger = id.0 + 1;
        self.watch.by_process.insert(process, id);
        self.watch.strangers.insert(id, found);
        Ok(())
    }

    fn warn(&mut self, now: Time, stranger: UnleasedId, at: Time, until: Time) -> Verdict {
        let Some(found) = self.watch.strangers.get(&stranger) else {
            return must(15, false, || format!("{stranger} is warned, and is not on the record"));
        };
        let due = self.is_to_be_warned(now, found);
        must(20, due.is_ok(), || format!("{stranger} is warned, but {due:?}: {found:?}"))?;
        // Who was warned before and came back has what was left of its time.
        let most = now + self.policy.enforcement.after_warning;
        let right = found.until.map_or(most, |left| left.max(now).min(most));
        must(20, at == now && until == right, || format!("{stranger} is warned at {at} until {until}, not {right}"))?;
        self.watch.set_step(stranger, SignalledStep::Warned { since: at, until });
        Ok(())
    }

    fn is_to_be_warned(&self, now: Time, found: &FoundProcess) -> Result<(), &'static str> {
        if found.step != SignalledStep::Nothing {
            return Err("it was");
        }
        let on = self.places(now, found)?;
        match () {
            () if self.mode_of(&on) < Mode::Warn => Err("nobody is there"),
            () => self.is_exempt(found, &on).map_or(Ok(()), Err),
        }
    }

    /// Whether what was begun must not be gone on with.
    fn is_let_off(&self, now: Time, found: &FoundProcess) -> bool {
        let begun =
            matches!(found.step, SignalledStep::Unmoved { .. } | SignalledStep::Signal { .. } | SignalledStep::Stuck);
        let allowed = || !found.is_system() && self.watch.is_told(RuleAction::Allow, &found.audit);
        let lenient = |on: Vec<usize>| !on.is_empty() && (self.mode_of(&on) != Mode::Enforce || allowed());
        begun && self.places(now, found).is_ok_and(lenient)
    }

    fn relent(&mut self, now: Time, stranger: UnleasedId) -> Verdict {
        let found = self.watch.strangers.get(&stranger);
        let fits = found.is_some_and(|found| self.is_let_off(now, found));
        must(20, fits, || format!("{stranger} is let off, and there is no reason: {found:?}"))?;
        self.watch.set_step(stranger, SignalledStep::Nothing);
        Ok(())
    }

    /// Whether it is there though SIGKILL went out long ago.
    fn is_survivor(&self, now: Time, found: &FoundProcess) -> bool {
        let killed = matches!(found.step, SignalledStep::Signal { signal: KILL, sent: Some(sent), .. } if sent + SURVIVES <= now);
        killed && self.places(now, found).is_ok_and(|on| !on.is_empty())
    }

    fn survive(&mut self, now: Time, stranger: UnleasedId, at: Time) -> Verdict {
        let found = self.watch.strangers.get(&stranger);
        let fits = found.is_some_and(|found| self.is_survivor(now, found)) && at == now;
        must(16, fits, || format!("{stranger} survived at {at}, it is {now}: {found:?}"))?;
        let on = found.and_then(|found| self.places(now, found).ok()).unwrap_or_default();
        self.watch.survived.extend(on);
        self.watch.set_step(stranger, SignalledStep::Stuck);
        Ok(())
    }

    /// Whether a stranger that survived just now is on this card.
    pub fn is_haunted_by_stranger(&self, card: usize) -> bool {
        self.watch.survived.contains(&card)
    }

    fn close(&mut self, now: Time, cause: &EventCause, stranger: UnleasedId, at: Time, how: &UnleasedEnd) -> Verdict {
        let Some(found) = self.watch.strangers.get(&stranger) else {
            return must(15, false, || format!("{stranger} is closed, and is not on the record"));
        };
        let process = found.audit.process;
        let moved = self.is_moved_away(now, cause, stranger, found, how);
        let gone = matches!(how, UnleasedEnd::Exited | UnleasedEnd::OffGpus);
        let left = match found.step {
            SignalledStep::Warned { until, .. } | SignalledStep::Unmoved { since: until } if gone => Some(until),
            _ => None,
        };
        let step = found.step;
        let home = |number: &usize| self.is_home(process, *number);
        let fits = match how {
            UnleasedEnd::Adopted(_) | UnleasedEnd::Parked(_) if moved.is_some() => true,
            UnleasedEnd::Parked(_) => false,
            UnleasedEnd::OffGpus | UnleasedEnd::Matched(_) if self.is_still_moved(found) => false,
            UnleasedEnd::Exited => {
                matches!(cause, EventCause::Watched(it) if matches!(**it, WatchedStep::Left(of) if of == process))
            }
            UnleasedEnd::OffGpus | UnleasedEnd::Matched(_)
                if !self.places(now, found).is_ok_and(|on| on.is_empty()) =>
            {
                false
            }
            UnleasedEnd::OffGpus => self.other_lease(found).is_none() || !found.cards.iter().any(home),
            UnleasedEnd::Adopted(lease) => {
                let holds = self.leases.get(lease).is_some_and(|book| book.held().is_some());
                self.watch.adopting.take() == Some((*lease, stranger)) && holds
            }
            UnleasedEnd::Matched(lease) => self.other_lease(found) == Some(*lease) && found.cards.iter().any(home),
            UnleasedEnd::HostRebooted => matches!(cause, EventCause::Started(true, _)),
        };
        must(4, fits && at == now, || format!("{stranger} is closed as {how:?} after {cause:?}: {found:?}"))?;
        if let Some((lease, true)) = moved {
            self.ask_at_once(lease);
        }
        if gone && (left.is_some() || matches!(step, SignalledStep::Signal { .. })) {
            self.watch.left.insert(process, (stranger, now, step));
        }
        self.watch.warned.extend(left.map(|until| (stranger, until)));
        self.watch.strangers.remove(&stranger);
        self.watch.by_process.remove(&process);
        Ok(())
    }

    // ---- afterwards -------------------------------------------------------------------

    /// The record was compared with the cards: is anything left undone?
    pub fn check_strangers(&mut self, now: Time, cause: &EventCause) -> Verdict {
        let cards = std::mem::take(&mut self.watch.survived);
        let serving = cards.iter().find(|card| self.cards[**card].serving);
        must(16, serving.is_none(), || format!("somebody survived SIGKILL on card {serving:?}, which is in service"))?;
        let left = self.watch.adopting.take();
        must(1, left.is_none(), || format!("{left:?} was begun to be adopted, and is not"))?;
        let held = |lease: &&LeaseId| self.leases.get(lease).is_some_and(LeaseBook::goes_on);
        let unended = std::mem::take(&mut self.watch.unmoving);
        let unended = unended.iter().find(held);
        must(16, unended.is_none(), || format!("{unended:?} moves nobody, and goes on"))?;
        let compared = match cause {
            EventCause::Watched(it) => match &**it {
                WatchedStep::Left(process) => {
                    let left = self.watch.by_process.get(process);
                    return must(19, left.is_none(), || format!("{left:?} exited, and is on the record"));
                }
                WatchedStep::Audited(audit, _) => {
                    let (process, noted) = (audit.process, self.watch.is_noted);
                    let known = self.watch.by_process.contains_key(&process);
                    let there = known || self.strange_on(process, None).is_empty();
                    must(20, there || !noted, || {
                        format!("{process:?} is where it has no lease, and not on the record")
                    })?;
                    known && noted
                }
                WatchedStep::Tested => true,
                _ => false,
            },
            EventCause::Observed(..) => self.watch.is_compared,
            _ => false,
        };
        let verdict = match compared && !self.is_stopped() {
            true => self.watch.strangers.iter().try_for_each(|(id, found)| self.check_stranger(now, cause, *id, found)),
            false => Ok(()),
        };
        self.watch.stepped.clear();
        self.watch.enrolled.clear();
        verdict
    }

    fn check_stranger(&self, now: Time, cause: &EventCause, id: UnleasedId, found: &FoundProcess) -> Verdict {
        if let SignalledStep::Moving { lease, since } = found.step {
            return if self.watch.stepped.contains(&id) {
                Ok(())
            } else {
                self.check_moving(now, id, found, lease, since)
            };
        }
        if self.is_still_moved(found) {
            return Ok(());
        }
        // Who got a card a moment ago, by its lease or by another that it is bound to, is compared with the next look.
        let (process, owner) = (found.audit.process, self.holder(&found.audit.process));
        let is_its = |book: &LeaseBook| owner == Some(book.id) || book.roots.contains(&process);
        let granted = |book: &LeaseBook| book.held().is_some_and(|held| held.began == now);
        if self.leases.values().any(|book| is_its(book) && granted(book)) {
            return Ok(());
        }
        let Ok(on) = self.places(now, found) else { return Ok(()) };
        must(19, !on.is_empty(), || {
            format!("{id} (of {owner:?}) is where it has a lease, or nowhere, and is on the record: {found:?}")
        })?;
        if self.watch.stepped.contains(&id) {
            return Ok(());
        }
        let warned = self.is_to_be_warned(now, found).is_err();
        must(20, warned, || format!("{id} was to be warned after {cause:?}: {found:?}"))?;
        let ripe = self.ripe(now, found);
        must(20, ripe.is_err(), || format!("{id} was due {ripe:?} after {cause:?}: {found:?}"))?;
        must(20, !self.is_let_off(now, found), || format!("{id} was to be let off after {cause:?}: {found:?}"))?;
        must(16, !self.is_survivor(now, found), || format!("{id} survived, and nobody noticed: {found:?}"))?;
        // Whose user became known by what came after its turn has the next one.
        let is_new = self.watch.enrolled.contains(&format!("uid:{}", found.audit.uid));
        let adopted = !is_new && self.is_to_be_adopted(now, found);
        must(1, !adopted, || format!("{id} was to be adopted after {cause:?}: {found:?}"))
    }

    /// Its card's strangers get leases, and it could have one.
    pub(super) fn is_to_be_adopted(&self, now: Time, found: &FoundProcess) -> bool {
        if !self.watch.modes.contains(&Mode::Adopt) {
            return false;
        }
        let Ok(on) = self.places(now, found) else { return false };
        self.mode_of(&on) == Mode::Adopt
            && found.since + super::adopt::SETTLES <= now
            && self.tenants.iter().any(|tenant| tenant.name == format!("uid:{}", found.audit.uid))
            && self.is_exempt(found, &on).is_none()
            && self.watch.tested == Some(Ok(()))
            && found.audit.exe.is_some()
            && !found.audit.devices.is_empty()
            && self.adoptable(now, found, None).is_ok()
    }

    /// Where a stranger is.
    pub(super) fn whereabouts(&self, now: Time, found: &FoundProcess) -> Result<Vec<usize>, &'static str> {
        self.places(now, found)
    }

    /// The record, the modes and the rules are what the state has.
    pub fn check_record(&self, state: &State) -> Verdict {
        let rows = state.rows();
        let same = rows.unleased.len() == self.watch.strangers.len()
            && rows.unleased.values().all(|row| self.watch.get(row.id).is_some_and(|found| found.is_as(row)));
        must(0, same, || format!("strangers are {:?}, and on the books {:?}", rows.unleased, self.watch.strangers))?;
        let modes = rows
            .gpus
            .iter()
            .enumerate()
            .all(|(number, card)| self.watch.modes.get(number).copied().unwrap_or_default() == card.mode);
        must(0, modes, || format!("the modes are not {:?}", self.watch.modes))?;
        must(0, rows.rules == self.watch.rules, || format!("rules are {:?}, not {:?}", rows.rules, self.watch.rules))
    }
}

impl ProcessWatch {
    fn known_mut(&mut self, process: ProcKey) -> Option<&mut FoundProcess> {
        let id = self.by_process.get(&process)?;
        self.strangers.get_mut(id)
    }

    pub(super) fn set_step(&mut self, stranger: UnleasedId, step: SignalledStep) {
        if let Some(found) = self.strangers.get_mut(&stranger) {
            found.step = step;
            self.stepped.push(stranger);
        }
    }

    /// Whether a lease is one by which a stranger is taken off its cards.
    pub(super) fn is_by(&self, lease: LeaseId) -> bool {
        self.strangers
            .values()
            .any(|found| matches!(found.step, SignalledStep::Moving { lease: by, .. } if by == lease))
    }

    /// Those on the record.
    pub(super) fn all(&self) -> impl Iterator<Item = &FoundProcess> {
        self.strangers.values()
    }

    pub(super) fn get_mut(&mut self, stranger: UnleasedId) -> Option<&mut FoundProcess> {
        self.strangers.get_mut(&stranger)
    }

    /// The stranger that a process is.
    pub(super) fn of(&self, process: ProcKey) -> Option<UnleasedId> {
        self.by_process.get(&process).copied()
    }
}
