//! Single values of the state as clients spell them.

use crate::messages;
use crate::user_directory::UserDirectory;
use sublet_core::ids::GpuId;
use sublet_core::method::Method;
use sublet_core::request::{self, LeaseRequest};
use sublet_core::rows::{self, Hold, Rows};
use sublet_core::units::Time;
use sublet_wire as wire;

/// A waiting lease with what its request says.
pub(super) fn plain_lease(request: &LeaseRequest, id: String, tenant: String, names: &UserDirectory) -> wire::Lease {
    wire::Lease {
        id,
        state: wire::LeaseState::Waiting,
        user: names.of(&tenant),
        tenant,
        name: request.name.clone(),
        requested_vram_bytes: vram(request.vram),
        vram_bytes: None,
        gpus: request.gpus.into(),
        gpu_uuids: Vec::new(),
        gpu_indices: Vec::new(),
        tier: tier(request.tier),
        priority: request.priority.into(),
        exclusivity: exclusivity(request.exclusivity),
        fence: None,
        proof: None,
        ttl_s: request.term.span().secs_ceil(),
        fixed_term: matches!(request.term, request::Term::Fixed(_)),
        requested_unix_s: 0.0,
        granted_unix_s: None,
        on_gpus_unix_s: None,
        expires_unix_s: None,
        remaining_s: None,
        idle: false,
        pids: Vec::new(),
        seen_bytes: None,
        calls: None,
        peak_bytes: None,
        not_parkable: None,
        foreign_processes: None,
        resume_blocked: None,
        parked: None,
        method: None,
        overuse: None,
        ends_soon: None,
        has_hook: request.has_hook,
        may_lose: request.may_lose_state,
        waiting: None,
        ended: None,
    }
}

/// Adds what was granted.
pub(super) fn fill_hold(shown: &mut wire::Lease, hold: &Hold, rows: &Rows) {
    let facts = |gpu: &GpuId| rows.gpus.find(*gpu).map(|row| &row.facts);
    shown.vram_bytes = Some(hold.vram.0);
    shown.fence = Some(hold.fence.0);
    shown.idle = hold.idle;
    shown.gpu_uuids = hold.gpus.iter().filter_map(facts).map(|facts| facts.uuid.clone()).collect();
    shown.gpu_indices = hold.gpus.iter().filter_map(facts).map(|facts| facts.index).collect();
}

pub(super) fn lease_end(id: &str, end: &rows::LeaseEnd, at_unix_s: f64) -> wire::LeaseEnd {
    wire::LeaseEnd { reason: reason(end.reason), sentence: messages::ended(id, end.reason), at_unix_s }
}

pub(super) fn park_method(method: Method) -> Option<wire::ParkMethod> {
    match method {
        Method::Hook => Some(wire::ParkMethod::Hook),
        Method::Shim => Some(wire::ParkMethod::Shim),
        Method::Driver => Some(wire::ParkMethod::Driver),
        Method::End => None,
    }
}

/// The wall clock's µs as Unix seconds, to the millisecond.
pub fn wall_s(wall_us: u64) -> f64 {
    (wall_us / 1_000) as f64 / 1e3
}

pub(super) fn unix_s(wall_us: u64, now: Time, at: Time) -> f64 {
    let ms = (wall_us as i128 + at.0 as i128 - now.0 as i128) / 1000;
    ms as f64 / 1e3
}

pub(super) fn vram(vram: request::Vram) -> wire::Vram {
    match vram {
        request::Vram::Bytes(bytes) => wire::Vram::Bytes(bytes.0),
        request::Vram::Whole => wire::Vram::Whole,
    }
}

/// A tier as clients spell it.
pub fn tier(tier: request::Tier) -> wire::Tier {
    match tier {
        request::Tier::Interactive => wire::Tier::Interactive,
        request::Tier::Batch => wire::Tier::Batch,
        request::Tier::Spot => wire::Tier::Spot,
    }
}

fn exclusivity(exclusivity: request::Exclusivity) -> wire::Exclusivity {
    match exclusivity {
        request::Exclusivity::Shared => wire::Exclusivity::Shared,
        request::Exclusivity::Session => wire::Exclusivity::SessionExclusive,
        request::Exclusivity::Device => wire::Exclusivity::DeviceExclusive,
    }
}

fn reason(reason: rows::EndReason) -> wire::EndReason {
    match reason {
        rows::EndReason::Released => wire::EndReason::Released,
        rows::EndReason::Expired => wire::EndReason::Expired,
        rows::EndReason::HoldCap => wire::EndReason::RenewalCap,
        rows::EndReason::TermOver => wire::EndReason::TermOver,
        rows::EndReason::HolderExited => wire::EndReason::HolderExited,
        rows::EndReason::Revoked => wire::EndReason::Revoked,
        rows::EndReason::DeviceLost => wire::EndReason::GpuLost,
        rows::EndReason::DiedParking => wire::EndReason::DiedParking,
        rows::EndReason::RestoreFailed => wire::EndReason::RestoreFailed,
        rows::EndReason::HostRebooted => wire::EndReason::HostRebooted,
        rows::EndReason::WaitOver => wire::EndReason::WaitOver,
        rows::EndReason::NotMoved => wire::EndReason::ParkFailed,
        rows::EndReason::Budget => wire::EndReason::Budget,
        rows::EndReason::ParkExpired => wire::EndReason::ParkExpired,
        rows::EndReason::Preempted => wire::EndReason::Preempted,
        rows::EndReason::OverUse => wire::EndReason::Overuse,
    }
}
