//! Where the bytes of each lease shall be, by which mover, and which readings are due.
//!
//! ```text
//!   phase of the lease      shim                         driver, for the processes that it moves
//!   Active                  on the GPUs                  –
//!   Parking, by the shim    in host memory               –
//!   Parking, by the driver  in host memory, but for      in host memory
//!                           the processes it moves
//!   Parked                  in host memory               in host memory, or the contexts only
//!   Resuming                on the GPUs, after the       on the GPUs once their room is proven,
//!                           driver                       else: wait
//!   Ending                  over                         –
//! ```
//! Everything follows from the state. Whatever carries targets out may send them again at any time: after a crash the same
//! state gives the same targets.
//!
//! Absent on purpose: what was sent before, and how a target is carried out (`crates/host`).

use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::method::Method;
use crate::model::movers::NotParkable;
use crate::model::rows::{EndReason, Gpu, Hold, Lease, ParkState, Phase};
use crate::model::units::{Bytes, Time};
use crate::model::unleased::Mode;
use crate::policy::lease_processes::residents;
use crate::policy::move_progress::{all_keep_still, driver_may_have, must_stay_off_gpus};
use crate::policy::restore_room::may_restore;
use crate::policy::{contexts, parking};
use crate::state::State;

/// Leases whose programs prepare to be parked at a time.
const PREPARED_MAX: usize = 16;
/// Leases whose processes the driver inspects at a time.
const INSPECTED_MAX: usize = 64;

/// Where the bytes of a lease shall be, for each mover that has a part in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// For the shim in its programs.
    pub shim: ShimGoal,
    /// Processes that the driver moves: the shim leaves their bytes where they are.
    pub moved_by_driver: Vec<ProcKey>,
    /// For the driver; `None` if the driver does nothing now.
    pub driver: Option<DriverGoal>,
}

/// Where the shim shall keep the bytes of a lease's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShimGoal {
    /// On their GPUs.
    OnGpus,
    /// In host memory.
    InHostMemory {
        /// So much of it is booked.
        booked: Bytes,
        /// The shim calls the driver for nothing, so that the driver can take the contexts.
        with_context: bool,
    },
    /// The lease is over.
    Over(EndReason),
}

/// Where the driver shall keep the processes of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverGoal {
    /// The processes.
    pub processes: Vec<ProcKey>,
    /// Where.
    pub place: DriverPlace,
}

/// A place for the bytes of processes that the driver moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverPlace {
    /// In host memory, of which so much is booked.
    InHostMemory {
        /// The bytes.
        booked: Bytes,
    },
    /// Where they are: another process could take the room that a restore needs.
    WaitForRoom,
    /// On their GPUs, each of which needs so much room for a restore.
    OnGpus(Vec<(GpuId, Bytes)>),
}

/// Where the bytes of a lease shall be; `None` while it waits for its first grant.
pub fn target(state: &State, row: &Lease) -> Option<Target> {
    let hold = row.hold()?;
    let by_driver = row.park_state().filter(|park| park.method == Method::Driver);
    Some(Target {
        shim: shim_goal(state, row, hold),
        moved_by_driver: by_driver.map(|park| park.processes.clone()).unwrap_or_default(),
        driver: driver_goal(state, row, hold),
    })
}

fn shim_goal(state: &State, row: &Lease, hold: &Hold) -> ShimGoal {
    let booked = hold.booked_host_memory();
    let away = |with_context: bool| ShimGoal::InHostMemory { booked, with_context };
    match &row.phase {
        // The shim leaves the processes alone that the driver moves; programs that began since then wait with them.
        _ if must_stay_off_gpus(state, row) => away(false),
        // The driver comes first.
        Phase::Resuming(_, park) if park.with_driver && driver_may_have(state, row) => away(true),
        Phase::Waiting { .. } | Phase::Active(_) | Phase::Resuming(..) => ShimGoal::OnGpus,
        // While a hook works the shim must not be in its way. Afterwards it keeps the programs off the GPUs, and reports
        // their next use.
        Phase::Parking(_, park) if park.method != Method::Shim => ShimGoal::OnGpus,
        Phase::Parked(_, park) if park.method == Method::Driver => ShimGoal::OnGpus,
        Phase::Parking(..) => away(driver_may_have(state, row)),
        Phase::Parked(_, park) => away(park.with_driver),
        Phase::Ending(_, end) => ShimGoal::Over(end.reason),
    }
}

fn driver_goal(state: &State, row: &Lease, hold: &Hold) -> Option<DriverGoal> {
    let park = row.park_state().filter(|park| park.needs_driver())?;
    let leaves = matches!(row.phase, Phase::Parking(..) | Phase::Parked(..));
    // A process is not taken while its own calls could still find the driver gone.
    if park.with_driver && leaves && !all_keep_still(state, row) {
        return None;
    }
    let place = match &row.phase {
        Phase::Parking(..) | Phase::Parked(..) => DriverPlace::InHostMemory { booked: hold.booked_host_memory() },
        // States are still queried: a process that never left its GPUs is back, even if there is no room to restore.
        Phase::Resuming(..) if !may_restore(state, row) => DriverPlace::WaitForRoom,
        Phase::Resuming(..) => DriverPlace::OnGpus(hold.gpus.iter().map(|gpu| (*gpu, hold.vram)).collect()),
        Phase::Waiting { .. } | Phase::Active(_) | Phase::Ending(..) => return None,
    };
    Some(DriverGoal { processes: park.processes.clone(), place })
}

/// True if the target of a lease may change although its row does not: the driver has a part in its park, which depends on
/// what movers report and readings show.
pub fn follows_reports(row: &Lease) -> bool {
    row.park_state().is_some_and(ParkState::needs_driver)
}

/// Processes of a lease on its GPUs that the driver shall look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The lease.
    pub lease: LeaseId,
    /// The processes.
    pub processes: Vec<ProcKey>,
    /// What they have on their GPUs.
    pub bytes: Bytes,
}

/// What the driver shall look at: leases that no other mover could park, and parked ones whose contexts it could take.
/// At most 64.
pub fn inspections(state: &State, now: Time) -> Vec<Inspection> {
    let due = state.rows().leases.values().filter(|row| needs_inspection(state, row, now));
    due.filter_map(|row| inspection(state, row)).take(INSPECTED_MAX).collect()
}

fn needs_inspection(state: &State, row: &Lease, now: Time) -> bool {
    let takes_contexts = state.policy().parking.context_after.is_some();
    let is_unable = |method: &Method| parking::parkable(state, row, *method, now).is_err();
    match &row.phase {
        Phase::Active(hold) => {
            // A waiter may need the room of its contexts.
            let is_sought = takes_contexts
                && !state.queue().is_empty()
                && contexts::removable_after_park(state, row, hold, now) == Err(NotParkable::NotInspected);
            is_sought || [Method::Hook, Method::Shim].iter().all(is_unable)
        }
        Phase::Parked(..) => takes_contexts && contexts::removable(state, row, now) == Err(NotParkable::NotInspected),
        _ => false,
    }
}

fn inspection(state: &State, row: &Lease) -> Option<Inspection> {
    let (mut processes, mut bytes) = (Vec::new(), Bytes::ZERO);
    for gpu in row.hold().into_iter().flat_map(|hold| &hold.gpus) {
        bytes = bytes + state.room(*gpu).seen_of(row.id);
        processes.extend(residents(state, row.id, *gpu));
    }
    processes.sort();
    processes.dedup();
    (!processes.is_empty()).then_some(Inspection { lease: row.id, processes, bytes })
}

/// Leases whose programs shall prepare to be parked, because a waiter may need their room. At most 16.
pub fn preparations(state: &State, now: Time) -> Vec<LeaseId> {
    if state.queue().is_empty() {
        return Vec::new();
    }
    let is_parkable = |row: &&Lease| parking::parkable(state, row, Method::Shim, now).is_ok();
    state.rows().leases.values().filter(is_parkable).take(PREPARED_MAX).map(|row| row.id).collect()
}

/// A GPU on which it must be tested whether the driver's pids are those of this host: unleased processes are adopted or
/// ended there. `None` once it was tested.
pub fn self_test_due(state: &State) -> Option<&Gpu> {
    if state.self_tests() > 0 {
        return None;
    }
    let mut listed = state.gpus().filter(|gpu| state.is_listed(*gpu)).map(|gpu| &state.rows().gpus[gpu]);
    listed.find(|row| matches!(row.mode, Mode::Adopt | Mode::Enforce))
}
