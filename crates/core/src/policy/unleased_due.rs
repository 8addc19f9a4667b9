//! What is due for unleased processes before they get a signal: the signal itself, and audits.

use crate::model::ids::{GpuId, ProcKey};
use crate::model::mutant::Mutant;
use crate::model::reading::Reading;
use crate::model::units::Time;
use crate::model::unleased::{Mode, NextStep, PendingSignal, UnleasedProcess, UnleasedStep};
use crate::policy::enforcement::{is_fresh, may_be_signalled, next_step};
use crate::state::State;
use crate::state::unleased_readings::FormerProcess;

/// Whether a signal that was decided is still to be sent to this process. It is asked once the decision is on the disk,
/// and again until the signal has left: meanwhile an operator may have changed a rule, the process may be gone or have a
/// lease, or its GPU may be unreadable.
pub fn is_signal_due(state: &State, pending: &PendingSignal, now: Time) -> bool {
    let Some(row) = state.rows().unleased.get(&pending.stranger) else { return false };
    let is_decided = row.step == UnleasedStep::Signalled { signal: pending.signal, since: pending.of, sent: false };
    let is_due = is_decided && matches!(next_step(state, row, None, now), NextStep::Signal(..));
    let own = row.audit.process;
    // The GPUs of its last audit count, and not only those that it went to since.
    let is_enforced = |gpu: &GpuId| state.mode(*gpu) == Mode::Enforce;
    let is_strange = row.gpus.iter().any(|gpu| is_enforced(gpu) && !state.has_lease_there(&own, *gpu));
    let is_its = is_strange && (pending.process == own || may_be_signalled(state, pending.process));
    is_due && is_its || state.planted(Mutant::StrikeLate)
}

/// Processes that left their GPUs after a warning or a signal, and are there again.
fn returned(state: &State) -> impl Iterator<Item = ProcKey> + '_ {
    let is_there = move |process: &ProcKey| {
        state.gpus().any(|gpu| match &state.room(gpu).reading().reading {
            Reading::Used(used) => used.processes.iter().any(|resident| {
                resident.process == *process && resident.is_of_interest() && !state.has_lease_there(process, gpu)
            }),
            Reading::Unreadable(_) => false,
        })
    };
    let left = state.unleased_readings().former.iter().map(FormerProcess::process);
    left.filter(move |process| !state.unleased_readings().by_process.contains_key(process)).filter(is_there)
}

/// Unleased processes whose next step is due and must follow an audit, and those that are back on a GPU.
pub fn audits_due(state: &State, now: Time) -> Vec<ProcKey> {
    let is_due = |unleased: &&UnleasedProcess| {
        let audited = state.unleased_readings().audits.get(&unleased.id).map(|seen| seen.audited_at);
        let due = match (next_step(state, unleased, None, now), unleased.step) {
            (NextStep::Signal(..) | NextStep::Park(_), UnleasedStep::Found) => return false,
            // A process of an ending lease waits until its GPUs were read again.
            (NextStep::Signal(..), UnleasedStep::NotParked { .. }) if state.lease_is_ending(unleased) => {
                return false;
            }
            // What an earlier daemon decided, and perhaps never did.
            (NextStep::Signal(..), UnleasedStep::Signalled { since, sent: false, .. }) => since,
            (NextStep::Signal(_, due) | NextStep::Park(due), _) => due,
            _ => return false,
        };
        let is_struck = state.unleased_readings().audits.get(&unleased.id).is_some_and(|seen| seen.signal_sent);
        !is_struck && due <= now && audited.is_none_or(|at| !is_fresh(at, due, now))
    };
    let due = state.rows().unleased.values().filter(is_due).map(|unleased| unleased.audit.process);
    due.chain(returned(state)).collect()
}
