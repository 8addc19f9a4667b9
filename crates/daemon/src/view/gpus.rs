//! GPUs as clients see them, with the leases and processes on them.

use super::View;
use super::shape::tier;
use crate::messages;
use crate::unleased;
use sublet_core::event::Caller;
use sublet_core::ids::{GpuId, LeaseId};
use sublet_core::policy::parking;
use sublet_core::reading::{Reading, Resident};
use sublet_core::rows::{GpuService, Phase};
use sublet_core::units::Bytes;
use sublet_core::unleased::UnleasedProcess;
use sublet_wire as wire;

/// Leases, and unleased processes, that are listed for each GPU.
const OCCUPANTS_MAX: usize = 256;

impl View<'_> {
    /// All GPUs, by index.
    pub fn gpus(&self, by: &Caller) -> Vec<wire::Gpu> {
        let mut gpus: Vec<wire::Gpu> = self.state.gpus().map(|gpu| self.gpu(by, gpu)).collect();
        gpus.sort_by_key(|gpu| gpu.index);
        gpus
    }

    fn gpu(&self, by: &Caller, gpu: GpuId) -> wire::Gpu {
        let row = &self.state.rows().gpus[gpu];
        let room = self.state.room(gpu);
        let (used, coarse, unreadable) = match &room.reading().reading {
            Reading::Used(used) => (Some(room.total().less(used.free).0), used.coarse, None),
            Reading::Unreadable(why) => (None, false, Some(messages::unreadable(row.facts.index, why))),
        };
        wire::Gpu {
            index: row.facts.index,
            uuid: row.facts.uuid.clone(),
            name: row.facts.name.clone(),
            state: match &row.service {
                GpuService::Draining => wire::GpuState::Draining,
                GpuService::Out { .. } => wire::GpuState::OutOfService,
                GpuService::In if row.facts.unusable.is_some() => wire::GpuState::Unusable,
                GpuService::In if !self.state.is_listed(gpu) => wire::GpuState::Missing,
                GpuService::In if self.state.is_aside(gpu) => wire::GpuState::Aside,
                GpuService::In => wire::GpuState::InService,
            },
            state_why: messages::service(&row.service)
                .or_else(|| row.facts.unusable.clone())
                .or_else(|| self.aside_why(by, gpu)),
            aside: self.aside(by, gpu),
            mode: unleased::to_wire(row.mode),
            unreadable: unreadable.map(|sentence| wire::UnreadableGpu { sentence }),
            total_bytes: row.facts.total.0,
            used_bytes: used,
            unowned_bytes: room.unowned_bytes().map(|b| b.0),
            committed_bytes: room.committed().map(|b| b.0),
            promisable_bytes: self.state.promisable(gpu, self.now).0,
            context_bytes: row.facts.context.map(|b| b.0),
            coarse,
            occupants: self.occupants(by, gpu),
        }
    }

    fn occupants(&self, by: &Caller, gpu: GpuId) -> Vec<wire::Occupant> {
        let room = self.state.room(gpu);
        let Reading::Used(used) = &room.reading().reading else { return self.leases_on(by, gpu) };
        let mut found = self.leases_on(by, gpu);
        // A process with a lease for other GPUs, or with one that waits, is unleased here.
        let is_ours = |lease: LeaseId| room.leases().contains_key(&lease);
        let others = used.processes.iter().filter(|r| !self.state.owner(&r.process).is_some_and(is_ours));
        found.extend(others.take(OCCUPANTS_MAX).map(|resident| wire::Occupant {
            lease: None,
            pid: Some(resident.process.pid),
            user: None,
            tier: None,
            state: if self.is_display(resident) { "display" } else { "unleased" }.to_owned(),
            reserved_bytes: None,
            seen_bytes: resident.bytes.map(|b| b.0),
            since_unix_s: None,
            exceeds_lease: false,
        }));
        found
    }

    /// True if a process that only draws is left alone: it has little, or draws the screen of a seat.
    fn is_display(&self, resident: &Resident) -> bool {
        let known = |row: &&UnleasedProcess| row.audit.process == resident.process;
        let draws_screen =
            || self.state.rows().unleased.values().find(known).is_some_and(|row| row.audit.seat.is_some());
        resident.only_draws && (!resident.is_of_interest() || draws_screen())
    }

    fn leases_on(&self, by: &Caller, gpu: GpuId) -> Vec<wire::Occupant> {
        let room = self.state.room(gpu);
        let coarse = !matches!(&room.reading().reading, Reading::Used(used) if !used.coarse);
        let leases = room.leases().iter().filter_map(|(id, claim)| self.state.lease(*id).map(|l| (l, claim)));
        leases
            .filter(|(lease, _)| self.sees_all(by) || self.is_own(by, lease.tenant))
            .take(OCCUPANTS_MAX)
            .map(|(lease, claim)| wire::Occupant {
                lease: self.id_for(by, lease),
                pid: None,
                user: Some(self.user(lease.tenant)),
                tier: Some(tier(lease.request.tier)),
                state: match lease.phase {
                    Phase::Waiting { .. } | Phase::Active(_) => "active",
                    Phase::Parking(..) => "parking",
                    Phase::Parked(..) => "parked",
                    Phase::Resuming(..) => "resuming",
                    Phase::Ending(..) => "ending",
                }
                .to_owned(),
                reserved_bytes: Some(claim.reserved.0),
                seen_bytes: (!coarse).then_some(claim.seen.0),
                since_unix_s: lease.hold().map(|hold| self.unix_s(hold.granted)),
                exceeds_lease: lease.hold().is_some_and(|hold| hold.overuse().is_some()),
            })
            .collect()
    }

    /// Host memory for parked bytes; `None` if parking is off.
    pub fn parking(&self, by_driver: bool, kind: &str, ready_bytes: u64) -> Option<wire::ParkingSpace> {
        let space = self.state.policy().parking.space;
        let (pages, advice) = sublet_host::shims::page_kind();
        (space > Bytes::ZERO).then(|| wire::ParkingSpace {
            size_bytes: space.0,
            booked_bytes: self.state.booked_host_memory().0,
            ready_bytes,
            free_bytes: parking::free_parking_space(self.state).map(|room| room.0),
            pages: pages.to_owned(),
            advice: advice.map(str::to_owned),
            by_driver,
            // A soft driver has no limits.
            driver_limits: if kind == "real" && by_driver { sublet_host::driver::limits() } else { Vec::new() },
        })
    }
}
