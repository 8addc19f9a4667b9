//! Whether an unleased process could be parked instead of ended.

use crate::model::ids::ProcKey;
use crate::model::movers;
use crate::model::movers::NotParkable;
use crate::model::reading::Reading;
use crate::model::units::Bytes;
use crate::model::unleased::{GpuPresence, Mode, RuleAction, UnleasedProcess};
use crate::policy::enforcement::{adopt_rule, is_allowed, rule};
use crate::policy::{parking, restore_room};
use crate::state::State;

/// What was begun in another mode, or before a rule was there, is not gone on with.
pub(crate) fn is_exempt_now(state: &State, unleased: &UnleasedProcess) -> bool {
    let audit = &unleased.audit;
    let is_enforced = unleased.gpus.iter().any(|gpu| state.mode(*gpu) == Mode::Enforce);
    let is_contained = audit.container.is_some() && rule(state, audit, RuleAction::Deny).is_none();
    !is_enforced || is_contained || is_allowed(state, audit) || adopt_rule(state, audit).is_some()
}

/// Why an unleased process could not be parked. Its user was never asked to take a risk.
pub(crate) fn reason_text(why: &NotParkable) -> String {
    match why {
        NotParkable::NotInspected => "the driver did not say in time whether it can be parked".to_owned(),
        NotParkable::RestoreUnsure(why) => format!("a restore would not be sure to have room: {why}"),
        why => why.to_string(),
    }
}

/// Why the driver could not park an unleased process, as far as that is known before the driver is asked: other
/// processes could take the room that it needs to come back, or there is too little host memory.
pub(crate) fn check_could_park(
    state: &State,
    unleased: &UnleasedProcess,
    on: &[GpuPresence],
) -> Result<(), NotParkable> {
    let tree = state.unleased_readings().audits.get(&unleased.id).map(|seen| seen.tree.as_slice()).unwrap_or_default();
    let is_its = |process: &ProcKey| *process == unleased.audit.process || tree.contains(process);
    for (gpu, _) in on {
        let room = state.room(*gpu);
        let Reading::Used(used) = &room.reading().reading else { continue };
        let is_ours = |process: &ProcKey| state.owner(process).is_some_and(|lease| room.leases().contains_key(&lease));
        let unleased = used.processes.iter().map(|resident| &resident.process);
        let unleased = unleased.filter(|process| !is_ours(process) && !is_its(process)).count();
        restore_room::check_gpu_is_capped(state, *gpu, None, unleased)?;
    }
    let need = on.iter().filter_map(|(_, bytes)| *bytes).sum::<Bytes>() + movers::UNVERIFIED_MAX;
    match parking::free_parking_space(state) {
        Some(room) if need > room => Err(NotParkable::NoSpace { need, room }),
        _ => Ok(()),
    }
}
