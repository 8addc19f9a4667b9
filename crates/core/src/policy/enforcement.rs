//! What happens next to a process on a GPU that belongs to no lease there, and why a process is exempt.
//!
//! Level-triggered: the answer follows from the record of the process, the rules, the mode of its GPUs and their last
//! readings. Nothing happens to a process on a GPU that cannot be read.

use crate::model::audit::Audit;
use crate::model::ids::{GpuId, ProcKey};
use crate::model::mutant::Mutant;
use crate::model::reading::{Reading, Resident};
use crate::model::request::Tier;
use crate::model::signals::{KILL, TERM};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{
    Exemption, GpuPresence, Mode, NextStep, Rule, RuleAction, RuleId, UnleasedProcess, UnleasedStep,
};
use crate::state::State;

/// An unleased process is adopted after this time: most of what it takes is there then.
const ADOPT_AFTER: Span = Span::secs(5);

/// The same of one that a rule adopts.
const ATTACH_AFTER: Span = Span::secs(1);

/// How long an audit is acted upon.
const AUDIT_HOLDS: Span = Span::secs(5);

/// What a process does on GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuWork {
    /// It computes on at least one of them.
    Computes,
    /// It only draws.
    Draws,
}

/// The GPUs that can be read on which a process has no lease, and whether it does more there than draw; `None` if one
/// of the GPUs that it was found on cannot be read.
pub fn residence(state: &State, unleased: &UnleasedProcess, now: Time) -> Option<(Vec<GpuPresence>, GpuWork)> {
    let process = unleased.audit.process;
    let is_leased = state.lease_of(unleased).is_some();
    let is_open = |gpu: &GpuId| state.room(*gpu).check_readable(now, state.policy().period).is_ok();
    let matters = |gpu: &&GpuId| !is_leased || !state.has_lease_there(&process, **gpu);
    if !unleased.gpus.iter().filter(matters).all(is_open) && !state.planted(Mutant::ForgetUnseen) {
        return None;
    }
    let mut on = Vec::new();
    let mut work = GpuWork::Draws;
    for gpu in state.gpus().filter(is_open) {
        let resident = resident(state, gpu, process);
        if let Some(resident) = resident.filter(|resident| !is_leased || state.is_off_lease(resident, gpu)) {
            on.push((gpu, resident.bytes));
            if !resident.only_draws {
                work = GpuWork::Computes;
            }
        }
    }
    Some((on, work))
}

pub(crate) fn resident(state: &State, gpu: GpuId, process: ProcKey) -> Option<&Resident> {
    match &state.room(gpu).reading().reading {
        Reading::Used(used) => used.processes.iter().find(|resident| resident.process == process),
        Reading::Unreadable(_) => None,
    }
}

/// Why an unleased process is never ended, or `None`.
pub fn exemption(state: &State, unleased: &UnleasedProcess, on: &[GpuPresence], work: GpuWork) -> Option<Exemption> {
    let audit = &unleased.audit;
    if let Some(why) = absolute_exemption(state, audit, work) {
        return Some(why);
    }
    if work == GpuWork::Draws && rule(state, audit, RuleAction::Deny).is_none() {
        return Some(Exemption::Graphics);
    }
    if let Some(why) = self_test_failure(state) {
        return Some(why);
    }
    if let Some(why) = state.unleased_readings().audits.get(&unleased.id).and_then(|seen| seen.refused.clone()) {
        return Some(Exemption::Refused(why));
    }
    if audit.container.is_some() && rule(state, audit, RuleAction::Deny).is_none() {
        return Some(Exemption::Container);
    }
    if on.iter().any(|(_, bytes)| bytes.is_none()) {
        return Some(Exemption::Coarse);
    }
    if let Some(through) = audit.through.filter(|through| !through.alone) {
        return Some(Exemption::Shared(through.pid));
    }
    // It was on no other GPUs when it got its lease, so the rule was never asked about these.
    if let (Some(rule), Some(lease)) = (adopt_rule_of(state, audit), state.lease_of(unleased)) {
        return Some(Exemption::Attached(rule.id, lease));
    }
    audit_gap(audit)
}

/// Whether two audits of a process differ in no more than what it may write itself, and nothing follows from.
pub(crate) fn differs_in_names_only(before: &Audit, now: &Audit) -> bool {
    let without = |audit: &Audit| Audit {
        name: String::new(),
        command: vec![String::new(); audit.command.len().min(1)],
        cwd: None,
        ran: None,
        ..audit.clone()
    };
    without(before) == without(now)
}

/// Why the driver's report on the bytes of each process is not acted upon.
fn self_test_failure(state: &State) -> Option<Exemption> {
    let why = match &state.unleased_readings().self_test {
        Some(Ok(())) => return None,
        Some(Err(why)) => why.clone(),
        None if state.planted(Mutant::EnforceUntested) => return None,
        None => "it was not tried yet".to_owned(),
    };
    Some(Exemption::CannotEnforce(why))
}

/// Its program and its open files must be known; what else was not read is only reported.
fn audit_gap(audit: &Audit) -> Option<Exemption> {
    let has_none = audit.devices.is_empty() && !audit.crowded;
    match audit.unread.first() {
        Some(what) if !audit.is_of_known_program() || has_none => Some(Exemption::Unread(what.clone())),
        None if has_none => Some(Exemption::NoDevice),
        _ => None,
    }
}

/// Why its owner is not even warned.
fn absolute_exemption(state: &State, audit: &Audit, work: GpuWork) -> Option<Exemption> {
    if audit.process.pid <= 1 || audit.exe.is_none() && audit.command.is_empty() && audit.unread.is_empty() {
        return Some(Exemption::System);
    }
    if let Some(rule) = rule(state, audit, RuleAction::Allow) {
        return Some(Exemption::Allowed(rule));
    }
    audit.seat.clone().filter(|_| work == GpuWork::Draws).map(Exemption::Display)
}

pub(crate) fn rule(state: &State, audit: &Audit, treat: RuleAction) -> Option<RuleId> {
    if treat == RuleAction::Allow && state.planted(Mutant::StrikeAllowed) {
        return None;
    }
    let mut rules = state.rows().rules.values();
    rules.find(|rule| rule.action == treat && rule.subject.matches(audit)).map(|rule| rule.id)
}

/// What a rule says that an unleased process gets: bytes of each GPU, and its tier.
pub(crate) fn adopt_rule(state: &State, audit: &Audit) -> Option<(Option<Bytes>, Tier)> {
    adopt_rule_of(state, audit).and_then(|rule| match rule.action {
        RuleAction::Adopt { vram, tier } => Some((vram, tier)),
        RuleAction::Allow | RuleAction::Deny => None,
    })
}

fn adopt_rule_of<'a>(state: &'a State, audit: &Audit) -> Option<&'a Rule> {
    let is_standing = |rule: &&Rule| matches!(rule.action, RuleAction::Adopt { .. }) && rule.subject.matches(audit);
    state.rows().rules.values().find(is_standing)
}

/// Whether a rule says that nothing is done about it.
pub(crate) fn is_allowed(state: &State, audit: &Audit) -> bool {
    rule(state, audit, RuleAction::Allow).is_some()
}

/// What happens to an unleased process next, in this mode or in that of its GPUs.
pub fn next_step(state: &State, unleased: &UnleasedProcess, mode: Option<Mode>, now: Time) -> NextStep {
    // Its bytes may have left its GPUs already.
    if let UnleasedStep::Parking { lease, .. } = unleased.step {
        return NextStep::Parking(lease);
    }
    let Some((on, work)) = residence(state, unleased, now) else { return NextStep::Nothing };
    let of = |(gpu, _): &GpuPresence| state.mode(*gpu);
    let mode = mode.or(on.iter().map(of).max()).unwrap_or_default();
    // A process with a lease gets no second one.
    let is_leased = state.lease_of(unleased).is_some();
    if adopt_rule(state, &unleased.audit).is_some() && !is_leased {
        return NextStep::Adopt(unleased.since + ATTACH_AFTER);
    }
    if mode == Mode::Observe {
        return NextStep::Nothing;
    }
    if let Some(why) = absolute_exemption(state, &unleased.audit, work) {
        return NextStep::Exempt(why);
    }
    let patience = state.policy().enforcement;
    let due = |since: Time, span: Span| state.rows().meta.due(since, since + span);
    match mode {
        Mode::Observe => NextStep::Nothing,
        Mode::Adopt => match state.tenant(&unleased.audit.tenant_name()).filter(|_| !is_leased) {
            Some(_) => match self_test_failure(state).or_else(|| audit_gap(&unleased.audit)) {
                Some(why) => NextStep::Exempt(why),
                None => NextStep::Adopt(unleased.since + ADOPT_AFTER),
            },
            None => NextStep::Nothing,
        },
        Mode::Warn => NextStep::Warn,
        Mode::Enforce => match (exemption(state, unleased, &on, work), unleased.step) {
            (_, UnleasedStep::Survived) => NextStep::Survived,
            (Some(why), _) => NextStep::Exempt(why),
            (None, UnleasedStep::Found) => after_warning(state, unleased, work, now + patience.after_warning),
            (None, UnleasedStep::Warned { since, until }) => {
                after_warning(state, unleased, work, due(since, until.since(since)))
            }
            (None, UnleasedStep::Parking { lease, .. }) => NextStep::Parking(lease),
            (None, UnleasedStep::NotParked { since }) => NextStep::Signal(TERM, due(since, Span::ZERO)),
            (None, UnleasedStep::Signalled { signal: TERM, since, sent: true }) => {
                NextStep::Signal(KILL, due(since, patience.after_sigterm))
            }
            (None, UnleasedStep::Signalled { signal, since, .. }) => NextStep::Signal(signal, since),
        },
    }
}

/// What follows a warning that was not heeded.
fn after_warning(state: &State, unleased: &UnleasedProcess, work: GpuWork, due: Time) -> NextStep {
    let policy = state.policy();
    let is_untried = unleased.why_not_parked.is_none() || state.planted(Mutant::MoveForEver);
    // A process with a lease is not parked by another.
    let is_untried = is_untried && state.lease_of(unleased).is_none();
    // The driver can park neither a process that only draws nor what a process left that ended.
    let is_untried = is_untried && work == GpuWork::Computes && unleased.audit.through.is_none();
    let parks = policy.enforcement.parks_first && policy.parking.space > Bytes::ZERO && is_untried;
    if parks && !state.planted(Mutant::StrikeMovable) { NextStep::Park(due) } else { NextStep::Signal(TERM, due) }
}

/// Whether an audit is good enough to act upon: it is from after the step was due, and not of long ago.
pub(crate) fn is_fresh(audited: Time, due: Time, now: Time) -> bool {
    audited >= due && now.since(audited) <= AUDIT_HOLDS
}

/// Whether a process may be signalled because it descends from an unleased process: it belongs to no lease, and no
/// rule allows it.
pub(crate) fn may_be_signalled(state: &State, process: ProcKey) -> bool {
    let known = state.unleased_readings().by_process.get(&process);
    let known = known.and_then(|id| state.rows().unleased.get(id));
    let is_spared = |audit: &Audit| is_allowed(state, audit) || adopt_rule(state, audit).is_some();
    let is_allowed = known.is_some_and(|known| is_spared(&known.audit));
    let is_free = state.owner(&process).is_none() || state.planted(Mutant::StrikeOthers);
    process.pid > 1 && is_free && !is_allowed
}

/// Whether an exempt process is warned nevertheless, where unleased processes are.
pub(crate) fn is_warned_all_the_same(why: &Exemption) -> bool {
    !matches!(why, Exemption::Allowed(_) | Exemption::Display(_) | Exemption::System)
}
