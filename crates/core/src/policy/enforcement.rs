//! What happens next to a process on a GPU that belongs to no lease there, and why a process is exempt.
//!
//! Level-triggered: the answer follows from the record of the process, the rules, the mode of its GPUs and their last
//! readings. Nothing happens to a process on a GPU that cannot be read.

use crate::model::audit::Audit;
use crate::model::ids::{GpuId, ProcKey};
use crate::model::reading::{Reading, Resident};
use crate::model::request::Tier;
use crate::model::signals::{KILL, TERM};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{
    Exemption, GpuPresence, Mode, NextStep, Rule, RuleAction, RuleId, UnleasedProcess, UnleasedStep,
};
use crate::mutant::Mutant;
use crate::state::State;

/// A stranger is adopted when it was there for so long: most of what it takes is there then.
const ADOPT_AFTER: Span = Span::secs(5);

/// The same of one with a standing ask.
const ATTACH_AFTER: Span = Span::secs(1);

/// An audit is acted upon for so long.
const AUDIT_HOLDS: Span = Span::secs(5);

/// Where a process is without a lease, on cards that can be read, and whether it does more there than draw; `None` if
/// one of the cards it was found on cannot be.
pub fn residence(state: &State, stranger: &UnleasedProcess, now: Time) -> Option<(Vec<GpuPresence>, bool)> {
    let process = stranger.audit.process;
    let is_leased = state.lease_of(stranger).is_some();
    let is_open = |card: &GpuId| state.room(*card).check_readable(now, state.policy().period).is_ok();
    let matters = |card: &&GpuId| !is_leased || !state.has_lease_there(&process, **card);
    if !stranger.gpus.iter().filter(matters).all(is_open) && !state.planted(Mutant::ForgetUnseen) {
        return None;
    }
    let mut on = Vec::new();
    let mut computes = false;
    for card in state.gpus().filter(is_open) {
        let resident = resident(state, card, process);
        if let Some(resident) = resident.filter(|resident| !is_leased || state.is_off_lease(resident, card)) {
            on.push((card, resident.bytes));
            computes |= !resident.only_draws;
        }
    }
    Some((on, computes))
}

pub(crate) fn resident(state: &State, card: GpuId, process: ProcKey) -> Option<&Resident> {
    match &state.room(card).reading().reading {
        Reading::Used(used) => used.processes.iter().find(|resident| resident.process == process),
        Reading::Unreadable(_) => None,
    }
}

/// Why a stranger is never ended, or `None`.
pub fn exemption(state: &State, stranger: &UnleasedProcess, on: &[GpuPresence], computes: bool) -> Option<Exemption> {
    let audit = &stranger.audit;
    if let Some(why) = absolute_exemption(state, audit, computes) {
        return Some(why);
    }
    if !computes && rule(state, audit, RuleAction::Deny).is_none() {
        return Some(Exemption::Graphics);
    }
    if let Some(why) = self_test_failure(state) {
        return Some(why);
    }
    if let Some(why) = state.unleased_readings().audits.get(&stranger.id).and_then(|seen| seen.refused.clone()) {
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
    // It never asked for some of its cards only: it was on no others when it got its lease.
    if let (Some(rule), Some(lease)) = (adopt_rule_of(state, audit), state.lease_of(stranger)) {
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

/// Why the driver's word on whose bytes are whose is not acted upon.
fn self_test_failure(state: &State) -> Option<Exemption> {
    let why = match &state.unleased_readings().self_test {
        Some(Ok(())) => return None,
        Some(Err(why)) => why.clone(),
        None if state.planted(Mutant::EnforceUntested) => return None,
        None => "it was not tried yet".to_owned(),
    };
    Some(Exemption::CannotEnforce(why))
}

/// What it runs and has open must be known; of the rest it is enough to say what was not read.
fn audit_gap(audit: &Audit) -> Option<Exemption> {
    let has_none = audit.devices.is_empty() && !audit.crowded;
    match audit.unread.first() {
        Some(what) if !audit.is_of_known_program() || has_none => Some(Exemption::Unread(what.clone())),
        None if has_none => Some(Exemption::NoDevice),
        _ => None,
    }
}

/// Why its owner is not even warned.
fn absolute_exemption(state: &State, audit: &Audit, computes: bool) -> Option<Exemption> {
    if audit.process.pid <= 1 || audit.exe.is_none() && audit.command.is_empty() && audit.unread.is_empty() {
        return Some(Exemption::System);
    }
    if let Some(rule) = rule(state, audit, RuleAction::Allow) {
        return Some(Exemption::Allowed(rule));
    }
    audit.seat.clone().filter(|_| !computes).map(Exemption::Display)
}

pub(crate) fn rule(state: &State, audit: &Audit, treat: RuleAction) -> Option<RuleId> {
    if treat == RuleAction::Allow && state.planted(Mutant::StrikeAllowed) {
        return None;
    }
    let mut rules = state.rows().rules.values();
    rules.find(|rule| rule.action == treat && rule.subject.matches(audit)).map(|rule| rule.id)
}

/// The standing ask of a stranger: so much of each card, and how urgent.
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

/// Whether a rule says that it is left alone.
pub(crate) fn is_allowed(state: &State, audit: &Audit) -> bool {
    rule(state, audit, RuleAction::Allow).is_some()
}

/// What happens to a stranger next, in this mode or in that of its cards.
pub fn next_step(state: &State, stranger: &UnleasedProcess, mode: Option<Mode>, now: Time) -> NextStep {
    // Its bytes may have left its cards already.
    if let UnleasedStep::Parking { lease, .. } = stranger.step {
        return NextStep::Parking(lease);
    }
    let Some((on, computes)) = residence(state, stranger, now) else { return NextStep::Nothing };
    let of = |(card, _): &GpuPresence| state.mode(*card);
    let mode = mode.or(on.iter().map(of).max()).unwrap_or_default();
    // Who has a lease gets no second one.
    let is_leased = state.lease_of(stranger).is_some();
    if adopt_rule(state, &stranger.audit).is_some() && !is_leased {
        return NextStep::Adopt(stranger.since + ATTACH_AFTER);
    }
    if mode == Mode::Observe {
        return NextStep::Nothing;
    }
    if let Some(why) = absolute_exemption(state, &stranger.audit, computes) {
        return NextStep::Exempt(why);
    }
    let patience = state.policy().enforcement;
    let due = |since: Time, span: Span| state.rows().meta.due(since, since + span);
    match mode {
        Mode::Observe => NextStep::Nothing,
        Mode::Adopt => match state.tenant(&tenant_of(&stranger.audit)).filter(|_| !is_leased) {
            Some(_) => match self_test_failure(state).or_else(|| audit_gap(&stranger.audit)) {
                Some(why) => NextStep::Exempt(why),
                None => NextStep::Adopt(stranger.since + ADOPT_AFTER),
            },
            None => NextStep::Nothing,
        },
        Mode::Warn => NextStep::Warn,
        Mode::Enforce => match (exemption(state, stranger, &on, computes), stranger.step) {
            (_, UnleasedStep::Survived) => NextStep::Survived,
            (Some(why), _) => NextStep::Exempt(why),
            (None, UnleasedStep::Found) => after_warning(state, stranger, computes, now + patience.after_warning),
            (None, UnleasedStep::Warned { since, until }) => {
                after_warning(state, stranger, computes, due(since, until.since(since)))
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
fn after_warning(state: &State, stranger: &UnleasedProcess, computes: bool, due: Time) -> NextStep {
    let policy = state.policy();
    let is_untried = stranger.why_not_parked.is_none() || state.planted(Mutant::MoveForEver);
    // Who has a lease is not parked by another.
    let is_untried = is_untried && state.lease_of(stranger).is_none();
    // What draws is nothing that the driver could take off a card, nor is what a process left that ended.
    let is_untried = is_untried && computes && stranger.audit.through.is_none();
    let parks = policy.enforcement.parks_first && policy.parking.space > Bytes::ZERO && is_untried;
    if parks && !state.planted(Mutant::StrikeMovable) { NextStep::Park(due) } else { NextStep::Signal(TERM, due) }
}

/// Whether an audit is good enough to act upon: it is from after the step was due, and not of long ago.
pub(crate) fn is_fresh(audited: Time, due: Time, now: Time) -> bool {
    audited >= due && now.since(audited) <= AUDIT_HOLDS
}

/// Whether a process may be signalled because a stranger is that it descends from: it belongs to no lease, and no
/// rule allows it.
pub(crate) fn may_be_signalled(state: &State, process: ProcKey) -> bool {
    let known = state.unleased_readings().by_process.get(&process);
    let known = known.and_then(|id| state.rows().unleased.get(id));
    let is_spared = |audit: &Audit| is_allowed(state, audit) || adopt_rule(state, audit).is_some();
    let is_allowed = known.is_some_and(|known| is_spared(&known.audit));
    let is_free = state.owner(&process).is_none() || state.planted(Mutant::StrikeOthers);
    process.pid > 1 && is_free && !is_allowed
}

/// Whose lease a stranger would have.
pub fn tenant_of(audit: &Audit) -> String {
    format!("uid:{}", audit.uid)
}

/// Who is never ended is warned all the same, where strangers are.
pub(crate) fn is_warned_all_the_same(why: &Exemption) -> bool {
    !matches!(why, Exemption::Allowed(_) | Exemption::Display(_) | Exemption::System)
}
