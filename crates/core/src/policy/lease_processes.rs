//! Processes of a lease: which are on its GPUs, which run as another user, and which get the signals that its user chose.

use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::movers::NotParkable;
use crate::model::reading::Reading;
use crate::model::rows::{Hold, Lease};
use crate::state::State;

/// A lease's processes on a GPU, as of the last reading.
pub fn residents(state: &State, lease: LeaseId, gpu: GpuId) -> impl Iterator<Item = ProcKey> + '_ {
    let used = match &state.room(gpu).reading().reading {
        Reading::Used(used) => Some(used),
        Reading::Unreadable(_) => None,
    };
    let all = used.into_iter().flat_map(|used| used.processes.iter().map(|resident| resident.process));
    all.filter(move |process| state.owner(process) == Some(lease))
}

/// A process of a lease that has memory on its GPUs and runs as another user: the end of the lease would not free that.
pub(crate) fn other_user_on_gpus(state: &State, lease: LeaseId, hold: &Hold) -> Option<NotParkable> {
    let readings = state.readings(lease).filter(|readings| !readings.restricted.is_empty())?;
    let mut on_gpus = hold.gpus.iter().flat_map(|gpu| residents(state, lease, *gpu));
    on_gpus.find_map(|process| {
        let uid = readings.restricted.get(&process)?.runs_as?;
        Some(NotParkable::OtherUser { process, uid })
    })
}

/// Processes of a lease that run as another user, and get none of the signals that its user chose; with that user.
pub fn processes_of_other_users(state: &State, lease: LeaseId) -> impl Iterator<Item = (ProcKey, u32)> {
    let restricted = state.readings(lease).into_iter().flat_map(|readings| &readings.restricted);
    restricted.filter_map(|(process, restriction)| Some((*process, restriction.runs_as?)))
}

/// Processes of a lease that get the signals its user chose: all but its wrapper, unless that uses a GPU itself, and
/// except those of other users.
pub fn signal_targets(state: &State, row: &Lease) -> Vec<ProcKey> {
    let Some(readings) = state.readings(row.id) else { return Vec::new() };
    let wrapper = row.roots.first();
    let on_gpu = |process: &ProcKey| {
        let gpus = row.hold().into_iter().flat_map(|hold| &hold.gpus);
        gpus.into_iter().any(|gpu| match &state.room(*gpu).reading().reading {
            Reading::Used(used) => used.processes.iter().any(|resident| resident.process == *process),
            Reading::Unreadable(_) => false,
        })
    };
    let is_own = |process: &ProcKey| readings.restricted.get(process).is_none_or(|it| it.runs_as.is_none());
    let members = readings.members.iter().copied().filter(is_own);
    members.filter(|process| Some(process) != wrapper || on_gpu(process)).collect()
}
