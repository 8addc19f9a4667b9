//! Which leases stay on a GPU that steps aside, and why.

use crate::model::aside::Aside;
use crate::model::ids::{GpuId, LeaseId};
use crate::model::movers::NotParkable;
use crate::model::request::Preempt;
use crate::model::rows::{Lease, Phase};
use crate::model::units::Time;
use crate::policy::moves::cheapest_method;
use crate::state::State;
use std::fmt;

/// Why a lease stays on a GPU that steps aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StayReason {
    /// Its owner has the right not to be preempted, and did not put the GPU aside.
    Never,
    /// It cannot be parked now.
    NotParkable(NotParkable),
}

impl fmt::Display for StayReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StayReason::Never => f.write_str("it may not be preempted (`--preempt never`)"),
            StayReason::NotParkable(why) => why.fmt(f),
        }
    }
}

/// The leases that stay on a GPU that steps aside, and why each does.
pub fn leases_that_stay(state: &State, gpu: GpuId, now: Time) -> Vec<(LeaseId, StayReason)> {
    let active = active_on(state, gpu).filter_map(|row| Some((row.id, may_leave(state, row, now).err()?)));
    active.collect()
}

pub(crate) fn active_on(state: &State, gpu: GpuId) -> impl Iterator<Item = &Lease> {
    let on = state.room(gpu).leases().keys().filter_map(|lease| state.lease(*lease));
    on.filter(|row| matches!(row.phase, Phase::Active(_)))
}

/// Whether a lease can be parked for a GPU that steps aside. The right not to be preempted is kept, but for the
/// tenant that put the GPU aside itself.
pub(crate) fn may_leave(state: &State, row: &Lease, now: Time) -> Result<(), StayReason> {
    let gpus = row.hold().map(|hold| hold.gpus.as_slice()).unwrap_or_default();
    let asides = gpus.iter().flat_map(|gpu| &state.rows().gpus[*gpu].aside.now);
    let is_own = |aside: &Aside| aside.by == state.tenant_name(row.tenant);
    if row.request.preempt == Preempt::Never && !asides.into_iter().any(is_own) {
        return Err(StayReason::Never);
    }
    cheapest_method(state, row, now).map(|_| ()).map_err(StayReason::NotParkable)
}
