//! Rules 15 to 17 and 20 for processes that belong to no lease: which are recorded, warned, signalled and adopted, and
//! when a record is closed.
//!
//! The same judgement is used twice: what is done must be a [due step](CheckerBooks::due_step), and a step that is due
//! when the record was just compared with the GPUs must have been done.

mod calls;

use super::books::{CheckerBooks, LeaseBook, SeenReading};
use super::calls::EventCause;
use super::{Checker, Verdict, must};
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::audit::Audit;
use sublet_core::event::{EventAnswer, Refusal};
use sublet_core::facts::UnleasedAction;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::rows::Rows;
use sublet_core::state::State;
use sublet_core::units::{Span, Time};
use sublet_core::unleased::{
    Mode, Rule, RuleAction, RuleId, RuleSubject, UnleasedEnd, UnleasedId, UnleasedProcess, UnleasedStep,
};

const TERM: u8 = 15;
const KILL: u8 = 9;
/// An audit counts for this time.
const FRESH: Span = Span::secs(5);
/// A process that returns within this time has not left.
const BACK_WITHIN: Span = Span::secs(600);
/// A process that is there this long after SIGKILL was sent has survived it.
const SURVIVES: Span = Span::secs(10);

/// What happened to unleased processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnforceCounts {
    /// Recorded.
    pub found: u64,
    /// Those of them that had a lease for other GPUs.
    pub off_lease: u64,
    /// Warned.
    pub warned: u64,
    /// Signals that were decided.
    pub signalled: u64,
    /// Adopted.
    pub adopted: u64,
    /// Alive after SIGKILL.
    pub survived: u64,
    /// Parkings that were begun.
    pub parkings: u64,
    /// Parked instead of ended.
    pub parked: u64,
    /// Due to be parked, and not parked.
    pub not_parked: u64,
}

/// What the books know of unleased processes.
#[derive(Debug, Default)]
pub struct ProcessWatch {
    by_id: BTreeMap<UnleasedId, FoundProcess>,
    by_process: BTreeMap<ProcKey, UnleasedId>,
    modes: Vec<Mode>,
    /// GPUs that step aside.
    gpus_aside: BTreeSet<usize>,
    rules: BTreeMap<RuleId, Rule>,
    next_id: u64,
    next_rule: u32,
    /// The result of this daemon's self-test.
    self_test: Option<Result<(), String>>,
    /// The lease that the present event grants to an adopted process.
    pub(super) adopting: Option<(LeaseId, UnleasedId)>,
    /// True if the audit of the present event is recorded.
    is_noted: bool,
    /// True if the last reading was compared with the record.
    pub(super) is_reading_compared: bool,
    /// Unleased processes that took a step in the present event: they take one at a time.
    stepped_now: Vec<UnleasedId>,
    /// Deadlines of processes that left when they were warned.
    former_deadlines: BTreeMap<UnleasedId, Time>,
    /// Processes that left their GPUs after a warning or a signal: their former number, when they left, and their step.
    left_gpus: BTreeMap<ProcKey, (UnleasedId, Time, SignalledStep)>,
    /// Users that were added by the present event.
    pub(super) new_users: Vec<String>,
    /// GPUs of processes that survived SIGKILL in the present event.
    gpus_of_survivors: Vec<usize>,
    /// Leases that are to end in the present event: a process could not be parked by them.
    pub(super) leases_to_end: Vec<LeaseId>,
}

/// A recorded unleased process.
#[derive(Clone, Debug)]
pub(super) struct FoundProcess {
    pub(super) audit: Audit,
    pub(super) since: Time,
    pub(super) gpus: Vec<usize>,
    pub(super) step: SignalledStep,
    /// The last audit by this daemon: when, and which processes descended from it.
    pub(super) audited: Option<(Time, Vec<ProcKey>)>,
    /// True if a signal was refused, and the process has not changed since.
    was_refused: bool,
    /// True if it could not be parked.
    pub(super) cannot_park: bool,
    /// The deadline of the record of which this one is the successor.
    former_deadline: Option<Time>,
}

/// The last step of an unleased process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalledStep {
    Found,
    Warned { since: Time, until: Time },
    Parking { lease: LeaseId, since: Time },
    NotParked { since: Time },
    Signal { signal: u8, since: Time, sent: Option<Time>, ours: bool },
    Survived,
}

/// What is done about an unleased process next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueStep {
    /// It is parked.
    Park,
    /// It gets a signal.
    Signal(u8),
}

/// What an event says about unleased processes.
#[derive(Debug)]
pub enum WatchedStep {
    /// The audit of one.
    Audited(Box<Audit>, Vec<ProcKey>),
    /// The exit of one.
    Left(ProcKey),
    /// The outcome of a signal, and when that was decided.
    SignalOutcome(UnleasedId, u8, Time),
    /// The result of a self-test.
    Tested,
    /// A call to adopt one: which, if the caller may, and whether it can have a lease.
    Adopt(Option<UnleasedId>, bool),
    /// A call to set a mode.
    Mode(usize, Mode, EventAnswer),
    /// A call to set a rule, with the answer that is right.
    Rule(EventAnswer),
    /// A call to drop a rule, with the answer that is right.
    RuleDropped(EventAnswer),
}

/// True if a rule is about a process.
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
            UnleasedStep::Found => SignalledStep::Found,
            UnleasedStep::Warned { since, until } => SignalledStep::Warned { since, until },
            UnleasedStep::Parking { lease, since } => SignalledStep::Parking { lease, since },
            UnleasedStep::NotParked { since } => SignalledStep::NotParked { since },
            UnleasedStep::Signalled { signal, since, sent } => {
                SignalledStep::Signal { signal, since, sent: sent.then_some(since), ours: false }
            }
            UnleasedStep::Survived => SignalledStep::Survived,
        };
        let gpus = row.gpus.iter().map(|gpu| usize::from(gpu.0)).collect();
        let cannot_park = row.why_not_parked.is_some();
        let (audit, former_deadline) = (row.audit.clone(), row.must_leave_by);
        FoundProcess {
            audit,
            since: row.since,
            gpus,
            step,
            audited: None,
            was_refused: false,
            cannot_park,
            former_deadline,
        }
    }

    fn matches_row(&self, row: &UnleasedProcess) -> bool {
        let own = FoundProcess::read(row);
        let step = match (self.step, own.step) {
            (SignalledStep::Signal { signal, sent, .. }, SignalledStep::Signal { signal: other, sent: theirs, .. }) => {
                signal == other && sent == theirs
            }
            (own, theirs) => own == theirs,
        };
        step && self.cannot_park == own.cannot_park && self.gpus == own.gpus && self.audit.process == own.audit.process
    }

    fn is_system(&self) -> bool {
        let audit = &self.audit;
        audit.process.pid < 2 || (audit.exe.is_none() && audit.command.is_empty() && audit.unread.is_empty())
    }
}

impl ProcessWatch {
    /// Returns what the disk has; without readings.
    pub fn from_rows(rows: &Rows) -> ProcessWatch {
        ProcessWatch {
            by_id: rows.unleased.iter().map(|(id, row)| (*id, FoundProcess::read(row))).collect(),
            by_process: rows.unleased.iter().map(|(id, row)| (row.audit.process, *id)).collect(),
            modes: rows.gpus.iter().map(|gpu| gpu.mode).collect(),
            gpus_aside: rows
                .gpus
                .iter()
                .enumerate()
                .filter(|(_, row)| !row.aside.now.is_empty())
                .map(|(number, _)| number)
                .collect(),
            rules: rows.rules.clone(),
            next_id: rows.meta.next_unleased,
            next_rule: rows.meta.next_rule,
            ..ProcessWatch::default()
        }
    }

    /// True if this daemon's self-test passed.
    pub(super) fn has_passed_self_test(&self) -> bool {
        self.self_test == Some(Ok(()))
    }

    /// True if no process is recorded.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn mode(&self, gpu: usize) -> Mode {
        let mode = self.modes.get(gpu).copied().unwrap_or_default();
        if self.gpus_aside.contains(&gpu) { Mode::Observe } else { mode }
    }

    /// Nothing is done to processes without a lease on a GPU that steps aside.
    pub(super) fn set_aside(&mut self, gpu: usize, is_aside: bool) {
        if is_aside {
            self.gpus_aside.insert(gpu);
        } else {
            self.gpus_aside.remove(&gpu);
        }
    }

    pub(super) fn has_rule(&self, treat: RuleAction, audit: &Audit) -> bool {
        self.rules.values().any(|rule| rule.action == treat && is_about(&rule.subject, audit))
    }

    pub(super) fn get(&self, unleased: UnleasedId) -> Option<&FoundProcess> {
        self.by_id.get(&unleased)
    }
}

impl Checker {
    /// Checks that a signal that reaches a process is recorded, and was not withdrawn since.
    pub fn check_signal_delivery(&self, unleased: UnleasedId, signal: u8) -> Verdict {
        let watch = &self.books.unleased;
        let found = watch.by_id.get(&unleased);
        let wanted = found.is_some_and(|found| {
            let told =
                matches!(found.step, SignalledStep::Signal { signal: told, sent: None, ours: true, .. } if told == signal);
            let enforced = found.gpus.iter().any(|gpu| watch.mode(*gpu) == Mode::Enforce);
            told && enforced && !watch.has_rule(RuleAction::Allow, &found.audit)
        });
        must(20, wanted, || format!("{unleased} gets signal {signal}, which was withdrawn: {found:?}"))?;
        must(15, self.ledger.is_recorded(unleased, signal), || {
            format!("{unleased} gets signal {signal}, and the disk does not have that")
        })
    }
}

impl CheckerBooks {
    // ---- where it is ------------------------------------------------------------

    /// True if a GPU has a fresh reading.
    fn has_fresh_reading(&self, now: Time, number: usize) -> bool {
        let Some(gpu) = self.gpus.get(number) else { return false };
        let fresh = now.since(gpu.reading_began).0 <= 2 * self.policy.period.0;
        fresh && matches!(gpu.reading, SeenReading::Free(_) | SeenReading::Coarse(_))
    }

    /// The GPUs on which it was seen without a lease for them, or why that is not known.
    fn gpus_without_lease(&self, now: Time, found: &FoundProcess) -> Result<Vec<usize>, &'static str> {
        let (process, leased) = (found.audit.process, self.other_lease(found).is_some());
        let home = |number: usize| leased && self.has_lease_there(process, number);
        if !found.gpus.iter().all(|gpu| home(*gpu) || self.has_fresh_reading(now, *gpu)) {
            return Err("one of its GPUs cannot be read");
        }
        let there = |number: usize| self.gpus[number].processes.contains(&process);
        let on = |number: &usize| self.has_fresh_reading(now, *number) && there(*number);
        let strange = |number: &usize| !leased || self.is_off_lease(process, *number);
        Ok((0..self.gpus.len()).filter(on).filter(strange).collect())
    }

    fn has_compute_process(&self, found: &FoundProcess, on: &[usize]) -> bool {
        on.iter().any(|number| self.gpus[*number].compute_processes.contains(&found.audit.process))
    }

    /// Why nothing is done about it in any mode.
    fn exemption(&self, found: &FoundProcess, on: &[usize]) -> Option<&'static str> {
        match () {
            () if found.is_system() => Some("it belongs to the system"),
            () if self.unleased.has_rule(RuleAction::Allow, &found.audit) => Some("a rule allows it"),
            () if found.audit.seat.is_some() && !self.has_compute_process(found, on) => Some("it draws a screen"),
            () => None,
        }
    }

    fn strictest_mode(&self, on: &[usize]) -> Mode {
        on.iter().map(|number| self.unleased.mode(*number)).max().unwrap_or_default()
    }

    /// When something is due that began at `since` and was due at `until`: not within a grace.
    pub fn deadline(&self, since: Time, until: Time) -> Time {
        if since <= self.grace_from { until.max(self.grace_until) } else { until }
    }

    // ---- signals -------------------------------------------------------------------

    /// What may be done about an unleased process now, or the rule that forbids it, and why.
    pub(super) fn due_step(&self, now: Time, found: &FoundProcess) -> Result<DueStep, (u8, &'static str)> {
        let no = |why| Err((20, why));
        if found.step == SignalledStep::Found {
            return no("it was not warned");
        }
        let on = self.gpus_without_lease(now, found).map_err(|why| (20, why))?;
        let audit = &found.audit;
        if self.strictest_mode(&on) != Mode::Enforce {
            return no("no operator set this GPU to `enforce`");
        }
        if let Some(why) = self.exemption(found, &on) {
            return no(why);
        }
        match () {
            () if self.unleased.self_test != Some(Ok(())) => return no("the self-test has not passed"),
            () if found.was_refused => return no("a signal was refused a moment ago"),
            () if !self.has_compute_process(found, &on) && !self.unleased.has_rule(RuleAction::Deny, audit) => {
                return no("it only draws");
            }
            () if audit.container.is_some() && !self.unleased.has_rule(RuleAction::Deny, audit) => {
                return no("it is in a container");
            }
            () if on.iter().any(|number| !matches!(self.gpus[*number].reading, SeenReading::Free(_))) => {
                return no("its bytes are not known");
            }
            () if audit.exe.is_none() => return no("its program could not be read"),
            () if audit.devices.is_empty() => return no("it has no device file open"),
            () if self.holder(&audit.process) != self.other_lease(found) => {
                return Err((16, "it is a process of a lease"));
            }
            () => {}
        }
        let (next, due) = match found.step {
            SignalledStep::Found => return no("it was not warned"),
            SignalledStep::Warned { since, until } if !self.has_compute_process(found, &on) => {
                (DueStep::Signal(TERM), self.deadline(since, until))
            }
            SignalledStep::Warned { since, until } => (self.after_warning(found), self.deadline(since, until)),
            SignalledStep::Parking { .. } => return Err((16, "it is being parked")),
            SignalledStep::NotParked { since } => (DueStep::Signal(TERM), self.deadline(since, since)),
            // What an earlier daemon meant to send may not have arrived.
            SignalledStep::Signal { signal, since, sent: None, ours: false } => (DueStep::Signal(signal), since),
            SignalledStep::Signal { sent: None, .. } => return Err((16, "its last signal was not sent yet")),
            SignalledStep::Signal { signal: TERM, sent: Some(sent), .. } => {
                (DueStep::Signal(KILL), self.deadline(sent, sent + self.policy.enforcement.after_sigterm))
            }
            SignalledStep::Signal { .. } | SignalledStep::Survived => return Err((16, "it got SIGKILL")),
        };
        match &found.audited {
            _ if due > now => no("its deadline is not over"),
            Some((at, _)) if *at >= due && now.since(*at) <= FRESH => Ok(next),
            _ => Err((16, "it was not audited again")),
        }
    }

    fn take_signal_to_unleased(&mut self, now: Time, cause: &EventCause, action: &UnleasedAction) -> Verdict {
        let UnleasedAction::Signal { id: stranger, signal, at, processes } = action else {
            return Ok(());
        };
        must(17, !matches!(cause, EventCause::Started(..)), || format!("{stranger} is signalled at a start"))?;
        let Some(found) = self.unleased.by_id.get(stranger) else {
            return must(16, false, || format!("{action:?}, and it is not recorded"));
        };
        let step = self.due_step(now, found);
        match step {
            Ok(DueStep::Park) => must(20, false, || format!("{action:?}, and it could have been parked: {found:?}"))?,
            Ok(due) => {
                must(16, due == DueStep::Signal(*signal), || {
                    format!("{action:?}, and {due:?} is due: {:?}", found.step)
                })?;
            }
            Err((rule, why)) => must(rule, false, || format!("{action:?}, but {why}: {found:?}"))?,
        }
        let requests_again = matches!(found.step, SignalledStep::Signal { since, .. } if since == *at);
        must(15, *at == now || requests_again, || format!("{action:?} at {now}"))?;
        let tree = found.audited.as_ref().map(|(_, tree)| tree.as_slice()).unwrap_or_default();
        let own = found.audit.process;
        must(16, processes.contains(&own), || format!("{action:?}, and its process is {own:?}"))?;
        for process in processes {
            let audited = *process == own || tree.contains(process);
            must(16, audited, || format!("{action:?}: {process:?} was not found to descend from it: {tree:?}"))?;
            // The process itself may wait for a lease, or have one for other GPUs; its descendants have none.
            let owner = if *process == own { self.holder(process) } else { self.owners.get(process).copied() };
            let off_lease = *process == own && self.other_lease(found).is_some();
            let free = (owner.is_none() || off_lease) && process.pid > 1;
            must(16, free, || {
                format!("{action:?}: {process:?} belongs to {:?}, or to the system", self.owners.get(process))
            })?;
            let other = self.unleased.by_process.get(process).and_then(|id| self.unleased.by_id.get(id));
            let allowed = other.is_some_and(|other| self.unleased.has_rule(RuleAction::Allow, &other.audit));
            must(20, !allowed, || format!("{action:?}: a rule allows {process:?}"))?;
        }
        self.unleased
            .set_step(*stranger, SignalledStep::Signal { signal: *signal, since: *at, sent: None, ours: true });
        Ok(())
    }

    // ---- actions -------------------------------------------------------------------

    /// Takes an action about an unleased process, or a rule.
    pub fn act_on_unleased(&mut self, now: Time, cause: &EventCause, action: &UnleasedAction) -> Verdict {
        match action {
            UnleasedAction::Add { process: stranger } => self.take_found(now, cause, stranger),
            UnleasedAction::SetAudit { id: stranger, audit, gpus: cards } => {
                let fits = matches!(cause, EventCause::Unleased(it) if matches!(&**it, WatchedStep::Audited(own, _) if own == audit));
                let found = self.unleased.by_id.get(stranger);
                let on = found.map(|found| self.unleased_on(audit.process, Some(found))).unwrap_or_default();
                must(16, cards.iter().map(|card| usize::from(card.0)).eq(on.iter().copied()), || {
                    format!("{stranger} is found on {cards:?}, and is unleased on {on:?}")
                })?;
                let known = self.unleased.by_id.get_mut(stranger).filter(|it| it.audit.process == audit.process);
                let Some(found) = known.filter(|_| fits) else {
                    return must(15, false, || format!("{action:?} after {cause:?}"));
                };
                let same = Audit { ran: None, ..found.audit.clone() } == Audit { ran: None, ..(**audit).clone() };
                found.was_refused &= same;
                found.audit = (**audit).clone();
                found.gpus = cards.iter().map(|card| usize::from(card.0)).collect();
                Ok(())
            }
            UnleasedAction::Warn { id: stranger, at, until } => self.take_warning(now, *stranger, *at, *until),
            UnleasedAction::Signal { .. } => self.take_signal_to_unleased(now, cause, action),
            UnleasedAction::RecordSignal { id: stranger, signal, at, outcome, late } => {
                let of = match cause {
                    EventCause::Unleased(it) => match **it {
                        WatchedStep::SignalOutcome(id, sent, of) if (id, sent) == (*stranger, *signal) => Some(of),
                        _ => None,
                    },
                    _ => None,
                };
                must(15, of.is_some() && *at == now, || format!("{action:?} after {cause:?}"))?;
                let Some(found) = self.unleased.by_id.get_mut(stranger) else {
                    return must(15, false, || format!("{action:?}, and it is not recorded"));
                };
                let step = found.step;
                // A process that was to get another signal since, or the same again, has not had that yet.
                let is_it = matches!(step, SignalledStep::Signal { signal: told, since, sent: None, .. } if told == *signal && Some(since) == of);
                must(17, *late != is_it, || format!("{action:?}, and its step is {step:?}"))?;
                if is_it {
                    let own = outcome.iter().find(|struck| struck.process == found.audit.process);
                    let (gets, changed) = own.map_or((true, false), |own| (own.refused.is_none(), own.changed));
                    found.was_refused = !gets && !changed;
                    // It was not audited as it is now.
                    found.audited = found.audited.take().filter(|_| !changed);
                    // A signal that was refused is to be sent again.
                    if let SignalledStep::Signal { sent, ours, .. } = &mut found.step {
                        (*sent, *ours) = if gets { (Some(now), *ours) } else { (None, false) };
                    }
                }
                Ok(())
            }
            UnleasedAction::Park { id: stranger, lease, at } => self.take_parking(now, *stranger, *lease, *at),
            UnleasedAction::RecordParkFailure { id: stranger, at, .. } => self.take_not_parked(now, *stranger, *at),
            UnleasedAction::Spare { id: stranger, .. } => self.take_relent(now, *stranger),
            UnleasedAction::RecordSurvival { id: stranger, at } => self.take_survived(now, *stranger, *at),
            UnleasedAction::Close { id: stranger, at, how } => self.take_close(now, cause, *stranger, *at, how),
            UnleasedAction::SetRule { rule } => {
                let fits = matches!(cause, EventCause::Unleased(it) if matches!(&**it, WatchedStep::Rule(EventAnswer::Rule(own)) if **own == *rule));
                must(20, fits, || format!("{action:?} after {cause:?}"))?;
                self.unleased.next_rule = self.unleased.next_rule.max(rule.id.0 + 1);
                self.unleased.rules.insert(rule.id, rule.clone());
                Ok(())
            }
            UnleasedAction::RemoveRule { rule } => {
                let fits = matches!(cause, EventCause::Unleased(it) if matches!(&**it, WatchedStep::RuleDropped(EventAnswer::Rule(was)) if was.id == *rule));
                must(20, fits && self.unleased.rules.remove(rule).is_some(), || format!("{action:?} after {cause:?}"))
            }
        }
    }

    /// The mode of a GPU changes.
    pub fn set_mode(&mut self, cause: &EventCause, number: usize, mode: Mode) -> Verdict {
        let fits = matches!(cause, EventCause::Unleased(it) if matches!(&**it, WatchedStep::Mode(n, m, EventAnswer::Done) if (*n, *m) == (number, mode)));
        must(20, fits, || format!("GPU {number} is set to {mode} after {cause:?}"))?;
        self.unleased.modes.resize(self.gpus.len(), Mode::Observe);
        self.unleased.modes[number] = mode;
        Ok(())
    }

    fn take_found(&mut self, now: Time, cause: &EventCause, unleased: &UnleasedProcess) -> Verdict {
        let (id, process) = (unleased.id, unleased.audit.process);
        let tree = match cause {
            EventCause::Unleased(it) => match &**it {
                WatchedStep::Audited(audit, tree) if **audit == unleased.audit => Some(tree.clone()),
                _ => None,
            },
            _ => None,
        };
        must(15, tree.is_some(), || format!("{id} is found after {cause:?}"))?;
        let next = self.unleased.next_id.max(1);
        must(15, id.0 == next && unleased.since == now, || format!("{unleased:?}"))?;
        let mut found = FoundProcess::read(unleased);
        // A process that left its GPUs for a moment, whatever it runs by now, is at the step that it had reached.
        let left = self.unleased.left_gpus.remove(&process).filter(|(_, at, _)| now.since(*at) <= BACK_WITHIN);
        must(20, left.is_none_or(|(former, ..)| unleased.successor_of == Some(former)), || {
            format!("{id} is {left:?}, and recorded as the successor of {:?}", unleased.successor_of)
        })?;
        let step = match left {
            Some((_, _, SignalledStep::Signal { signal, since, sent, .. })) => {
                SignalledStep::Signal { signal, since, sent, ours: false }
            }
            _ => SignalledStep::Found,
        };
        let as_was = match (found.step, step) {
            (SignalledStep::Signal { signal, sent, .. }, SignalledStep::Signal { signal: was, sent: then, .. }) => {
                signal == was && sent == then
            }
            (found, was) => found == was,
        };
        must(20, as_was, || format!("{id} is found at step {:?}, and had come to {step:?}", found.step))?;
        let known = self.unleased.by_process.get(&process);
        must(19, known.is_none(), || format!("{id} is recorded already as {known:?}"))?;
        let owner = self.holder(&process);
        must(18, owner == unleased.lease, || {
            format!("{id} is {process:?}, a process of {owner:?}: {:?}", unleased.lease)
        })?;
        let former = unleased.successor_of.and_then(|former| self.unleased.former_deadlines.get(&former)).copied();
        must(20, unleased.must_leave_by == former, || {
            format!("{id} has until {:?}, and its predecessor had until {former:?}", unleased.must_leave_by)
        })?;
        let on = self.unleased_on(process, None);
        must(16, !on.is_empty() && on == found.gpus, || {
            format!("{id} is found on {:?}, and seen on {on:?}", found.gpus)
        })?;
        found.audited = tree.map(|tree| (now, tree));
        self.unleased.next_id = id.0 + 1;
        self.unleased.by_process.insert(process, id);
        self.unleased.by_id.insert(id, found);
        Ok(())
    }

    fn take_warning(&mut self, now: Time, unleased: UnleasedId, at: Time, until: Time) -> Verdict {
        let Some(found) = self.unleased.by_id.get(&unleased) else {
            return must(15, false, || format!("{unleased} is warned, and is not recorded"));
        };
        let due = self.check_warning_due(now, found);
        must(20, due.is_ok(), || format!("{unleased} is warned, but {due:?}: {found:?}"))?;
        // A process that was warned before and returned has what was left of its time.
        let most = now + self.policy.enforcement.after_warning;
        let right = found.former_deadline.map_or(most, |left| left.max(now).min(most));
        must(20, at == now && until == right, || format!("{unleased} is warned at {at} until {until}, not {right}"))?;
        self.unleased.set_step(unleased, SignalledStep::Warned { since: at, until });
        Ok(())
    }

    fn check_warning_due(&self, now: Time, found: &FoundProcess) -> Result<(), &'static str> {
        if found.step != SignalledStep::Found {
            return Err("it was warned");
        }
        let on = self.gpus_without_lease(now, found)?;
        match () {
            () if self.strictest_mode(&on) < Mode::Warn => Err("it is on no GPU in mode `warn` or above"),
            () => self.exemption(found, &on).map_or(Ok(()), Err),
        }
    }

    /// True if a step that was begun must not be continued.
    fn is_exempt_now(&self, now: Time, found: &FoundProcess) -> bool {
        let begun = matches!(
            found.step,
            SignalledStep::NotParked { .. } | SignalledStep::Signal { .. } | SignalledStep::Survived
        );
        let allowed = || !found.is_system() && self.unleased.has_rule(RuleAction::Allow, &found.audit);
        let lenient = |on: Vec<usize>| !on.is_empty() && (self.strictest_mode(&on) != Mode::Enforce || allowed());
        begun && self.gpus_without_lease(now, found).is_ok_and(lenient)
    }

    fn take_relent(&mut self, now: Time, unleased: UnleasedId) -> Verdict {
        let found = self.unleased.by_id.get(&unleased);
        let fits = found.is_some_and(|found| self.is_exempt_now(now, found));
        must(20, fits, || format!("{unleased} is exempted without a reason: {found:?}"))?;
        self.unleased.set_step(unleased, SignalledStep::Found);
        Ok(())
    }

    /// True if it is there long after SIGKILL was sent.
    fn has_survived(&self, now: Time, found: &FoundProcess) -> bool {
        let killed = matches!(found.step, SignalledStep::Signal { signal: KILL, sent: Some(sent), .. } if sent + SURVIVES <= now);
        killed && self.gpus_without_lease(now, found).is_ok_and(|on| !on.is_empty())
    }

    fn take_survived(&mut self, now: Time, unleased: UnleasedId, at: Time) -> Verdict {
        let found = self.unleased.by_id.get(&unleased);
        let fits = found.is_some_and(|found| self.has_survived(now, found)) && at == now;
        must(16, fits, || format!("{unleased} survived at {at}, it is {now}: {found:?}"))?;
        let on = found.and_then(|found| self.gpus_without_lease(now, found).ok()).unwrap_or_default();
        self.unleased.gpus_of_survivors.extend(on);
        self.unleased.set_step(unleased, SignalledStep::Survived);
        Ok(())
    }

    /// True if an unleased process on this GPU survived in the present event.
    pub fn has_survivor(&self, gpu: usize) -> bool {
        self.unleased.gpus_of_survivors.contains(&gpu)
    }

    fn take_close(
        &mut self,
        now: Time,
        cause: &EventCause,
        unleased: UnleasedId,
        at: Time,
        how: &UnleasedEnd,
    ) -> Verdict {
        let Some(found) = self.unleased.by_id.get(&unleased) else {
            return must(15, false, || format!("{unleased} is closed, and is not recorded"));
        };
        let process = found.audit.process;
        let moved = self.parked_away(now, cause, unleased, found, how);
        let gone = matches!(how, UnleasedEnd::Exited | UnleasedEnd::OffGpus);
        let left = match found.step {
            SignalledStep::Warned { until, .. } | SignalledStep::NotParked { since: until } if gone => Some(until),
            _ => None,
        };
        let step = found.step;
        let home = |number: &usize| self.has_lease_there(process, *number);
        let fits = match how {
            UnleasedEnd::Adopted(_) | UnleasedEnd::Parked(_) if moved.is_some() => true,
            UnleasedEnd::Parked(_) => false,
            UnleasedEnd::OffGpus | UnleasedEnd::Matched(_) if self.belongs_to_parking_lease(found) => false,
            UnleasedEnd::Exited => {
                matches!(cause, EventCause::Unleased(it) if matches!(**it, WatchedStep::Left(of) if of == process))
            }
            UnleasedEnd::OffGpus | UnleasedEnd::Matched(_)
                if !self.gpus_without_lease(now, found).is_ok_and(|on| on.is_empty()) =>
            {
                false
            }
            UnleasedEnd::OffGpus => self.other_lease(found).is_none() || !found.gpus.iter().any(home),
            UnleasedEnd::Adopted(lease) => {
                let holds = self.leases.get(lease).is_some_and(|book| book.held().is_some());
                self.unleased.adopting.take() == Some((*lease, unleased)) && holds
            }
            UnleasedEnd::Matched(lease) => self.other_lease(found) == Some(*lease) && found.gpus.iter().any(home),
            UnleasedEnd::HostRebooted => matches!(cause, EventCause::Started(true, _)),
        };
        must(4, fits && at == now, || format!("{unleased} is closed as {how:?} after {cause:?}: {found:?}"))?;
        if let Some((lease, true)) = moved {
            self.note_wanted_now(lease);
        }
        if gone && (left.is_some() || matches!(step, SignalledStep::Signal { .. })) {
            self.unleased.left_gpus.insert(process, (unleased, now, step));
        }
        self.unleased.former_deadlines.extend(left.map(|until| (unleased, until)));
        self.unleased.by_id.remove(&unleased);
        self.unleased.by_process.remove(&process);
        Ok(())
    }

    // ---- afterwards -------------------------------------------------------------------

    /// Checks after the record was compared with the GPUs that no step is left undone.
    pub fn check_unleased(&mut self, now: Time, cause: &EventCause) -> Verdict {
        let gpus = std::mem::take(&mut self.unleased.gpus_of_survivors);
        let serving = gpus.iter().find(|gpu| self.gpus[**gpu].serving);
        must(16, serving.is_none(), || format!("a process survived SIGKILL on GPU {serving:?}, which is in service"))?;
        let left = self.unleased.adopting.take();
        must(1, left.is_none(), || format!("the adoption {left:?} was begun and not finished"))?;
        let held = |lease: &&LeaseId| self.leases.get(lease).is_some_and(LeaseBook::is_held_or_parked);
        let unended = std::mem::take(&mut self.unleased.leases_to_end);
        let unended = unended.iter().find(held);
        must(16, unended.is_none(), || format!("{unended:?} parks no process, and goes on"))?;
        let compared = match cause {
            EventCause::Unleased(it) => match &**it {
                WatchedStep::Left(process) => {
                    let left = self.unleased.by_process.get(process);
                    return must(19, left.is_none(), || format!("{left:?} exited, and is recorded"));
                }
                WatchedStep::Audited(audit, _) => {
                    let (process, noted) = (audit.process, self.unleased.is_noted);
                    let known = self.unleased.by_process.contains_key(&process);
                    let there = known || self.unleased_on(process, None).is_empty();
                    must(20, there || !noted, || {
                        format!("{process:?} is on a GPU without a lease for it, and is not recorded")
                    })?;
                    known && noted
                }
                WatchedStep::Tested => true,
                _ => false,
            },
            EventCause::Observed(..) => self.unleased.is_reading_compared,
            _ => false,
        };
        let verdict = match compared && !self.is_stopped() {
            true => {
                self.unleased.by_id.iter().try_for_each(|(id, found)| self.check_unleased_one(now, cause, *id, found))
            }
            false => Ok(()),
        };
        self.unleased.stepped_now.clear();
        self.unleased.new_users.clear();
        verdict
    }

    fn check_unleased_one(&self, now: Time, cause: &EventCause, id: UnleasedId, found: &FoundProcess) -> Verdict {
        if let SignalledStep::Parking { lease, since } = found.step {
            return if self.unleased.stepped_now.contains(&id) {
                Ok(())
            } else {
                self.check_parking(now, id, found, lease, since)
            };
        }
        if self.belongs_to_parking_lease(found) {
            return Ok(());
        }
        // A process with a lease that was granted a GPU a moment ago is compared with the next reading.
        let (process, owner) = (found.audit.process, self.holder(&found.audit.process));
        let is_its = |book: &LeaseBook| owner == Some(book.id) || book.roots.contains(&process);
        let granted = |book: &LeaseBook| book.held().is_some_and(|held| held.slice_began == now);
        if self.leases.values().any(|book| is_its(book) && granted(book)) {
            return Ok(());
        }
        let Ok(on) = self.gpus_without_lease(now, found) else { return Ok(()) };
        must(19, !on.is_empty(), || {
            format!("{id} (of {owner:?}) is where it has a lease, or on no GPU, and is recorded: {found:?}")
        })?;
        if self.unleased.stepped_now.contains(&id) {
            return Ok(());
        }
        let warned = self.check_warning_due(now, found).is_err();
        must(20, warned, || format!("{id} was to be warned after {cause:?}: {found:?}"))?;
        let step = self.due_step(now, found);
        must(20, step.is_err(), || format!("{id} was due for {step:?} after {cause:?}: {found:?}"))?;
        must(20, !self.is_exempt_now(now, found), || format!("{id} was to be exempted after {cause:?}: {found:?}"))?;
        must(16, !self.has_survived(now, found), || format!("{id} survived, and that is not recorded: {found:?}"))?;
        // A process of a user that was added in this event has its turn with the next one.
        let is_new = self.unleased.new_users.contains(&format!("uid:{}", found.audit.uid));
        let adopted = !is_new && self.is_adoption_due(now, found);
        must(1, !adopted, || format!("{id} was to be adopted after {cause:?}: {found:?}"))
    }

    /// True if it can be adopted, and its GPUs are in mode `adopt`.
    pub(super) fn is_adoption_due(&self, now: Time, found: &FoundProcess) -> bool {
        if !self.unleased.modes.contains(&Mode::Adopt) {
            return false;
        }
        let Ok(on) = self.gpus_without_lease(now, found) else { return false };
        self.strictest_mode(&on) == Mode::Adopt
            && found.since + super::adopt::SETTLES_AFTER <= now
            && self.tenants.iter().any(|tenant| tenant.name == format!("uid:{}", found.audit.uid))
            && self.exemption(found, &on).is_none()
            && self.unleased.self_test == Some(Ok(()))
            && found.audit.exe.is_some()
            && !found.audit.devices.is_empty()
            && self.adoption_room(now, found, None).is_ok()
    }

    /// The GPUs of an unleased process.
    pub(super) fn gpus_of_unleased(&self, now: Time, found: &FoundProcess) -> Result<Vec<usize>, &'static str> {
        self.gpus_without_lease(now, found)
    }

    /// Compares the record, the modes and the rules with the state.
    pub fn check_record(&self, state: &State) -> Verdict {
        let rows = state.rows();
        let same = rows.unleased.len() == self.unleased.by_id.len()
            && rows.unleased.values().all(|row| self.unleased.get(row.id).is_some_and(|found| found.matches_row(row)));
        must(0, same, || {
            format!("unleased processes are {:?}, and on the books {:?}", rows.unleased, self.unleased.by_id)
        })?;
        let modes = rows
            .gpus
            .iter()
            .enumerate()
            .all(|(number, gpu)| self.unleased.modes.get(number).copied().unwrap_or_default() == gpu.mode);
        must(0, modes, || format!("the modes are not {:?}", self.unleased.modes))?;
        must(0, rows.rules == self.unleased.rules, || {
            format!("rules are {:?}, not {:?}", rows.rules, self.unleased.rules)
        })
    }
}

impl ProcessWatch {
    fn by_process_mut(&mut self, process: ProcKey) -> Option<&mut FoundProcess> {
        let id = self.by_process.get(&process)?;
        self.by_id.get_mut(id)
    }

    pub(super) fn set_step(&mut self, unleased: UnleasedId, step: SignalledStep) {
        if let Some(found) = self.by_id.get_mut(&unleased) {
            found.step = step;
            self.stepped_now.push(unleased);
        }
    }

    /// True if an unleased process is being parked by this lease.
    pub(super) fn is_parking_lease(&self, lease: LeaseId) -> bool {
        self.by_id.values().any(|found| matches!(found.step, SignalledStep::Parking { lease: by, .. } if by == lease))
    }

    /// All recorded processes.
    pub(super) fn all(&self) -> impl Iterator<Item = &FoundProcess> {
        self.by_id.values()
    }

    pub(super) fn get_mut(&mut self, unleased: UnleasedId) -> Option<&mut FoundProcess> {
        self.by_id.get_mut(&unleased)
    }

    /// The number of a recorded process.
    pub(super) fn id_of(&self, process: ProcKey) -> Option<UnleasedId> {
        self.by_process.get(&process).copied()
    }
}
