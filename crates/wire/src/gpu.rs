//! GPUs as clients see them.

use crate::{Aside, Mode, Tier};
use serde::{Deserialize, Serialize};

/// `GET /v1/gpus`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gpus {
    /// All managed GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// `real`; `soft` for GPUs simulated in software, on which programs of the driver API run; or `scripted` for GPUs
    /// that only report what a script says.
    pub kind: String,
    /// The file of the soft GPUs, which programs on this host find in SUBLET_SOFT_STATE; null for other kinds.
    #[serde(default)]
    pub soft_state: Option<String>,
    /// Why the driver does not list its GPUs, and what helps; null while it does.
    pub trouble: Option<String>,
    /// Why the last reload of the configuration was refused; only operators see it, and it is absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_trouble: Option<String>,
    /// The parking space: host memory for parked bytes; null where nothing can be parked.
    #[serde(default)]
    pub parking: Option<ParkingSpace>,
}

/// The parking space: host memory for the bytes of parked leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ParkingSpace {
    /// Its size.
    pub size_bytes: u64,
    /// How much of it is booked.
    pub booked_bytes: u64,
    /// How much of the rest is kept ready so that a first park is fast. A booking may use it.
    #[serde(default)]
    pub ready_bytes: u64,
    /// How much could be booked now; null while no holder is present that could be parked.
    pub free_bytes: Option<u64>,
    /// The kind of its pages, in words.
    pub pages: String,
    /// What would make parking faster, in words; null if nothing would.
    pub advice: Option<String>,
    /// Programs without the library are parked by the driver.
    #[serde(default)]
    pub by_driver: bool,
    /// What prevents the driver from parking programs here, in words; empty if no limit is known.
    #[serde(default)]
    pub driver_limits: Vec<String>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gpu {
    /// The driver's index of it.
    pub index: u32,
    /// The driver's name for it.
    pub uuid: String,
    /// Its model.
    pub name: String,
    /// Whether leases are granted there.
    pub state: GpuState,
    /// Why no leases are granted there, in words; null while it is in service.
    pub state_why: Option<String>,
    /// For which user it steps aside, and which leases stay; absent while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<Aside>,
    /// What is done there about unleased processes.
    pub mode: Mode,
    /// Why it could not be read; null while it can.
    pub unreadable: Option<UnreadableGpu>,
    /// All of its memory.
    pub total_bytes: u64,
    /// Memory in use by the driver's reading; null if unreadable.
    pub used_bytes: Option<u64>,
    /// Bytes in use that belong to no lease; null if unreadable.
    pub unowned_bytes: Option<u64>,
    /// Bytes counted as taken: leases, unowned bytes, margin; null if unreadable.
    pub committed_bytes: Option<u64>,
    /// Bytes that could be promised now; 0 if unreadable.
    pub promisable_bytes: u64,
    /// Size of a CUDA context there; null if not measured.
    pub context_bytes: Option<u64>,
    /// The driver does not report bytes per process.
    pub coarse: bool,
    /// What is on it: leases first, then unleased processes.
    pub occupants: Vec<Occupant>,
}

/// Whether leases are granted on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GpuState {
    /// Yes.
    InService,
    /// No: it steps aside for a user for a while.
    Aside,
    /// No: an operator drains it.
    Draining,
    /// No, until an operator clears it.
    OutOfService,
    /// No: it cannot be leased as it is set up (MIG, MPS, compute mode).
    Unusable,
    /// No: the driver listed it before and does not list it now.
    Missing,
}

/// Why a GPU could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnreadableGpu {
    /// One sentence with what to do.
    pub sentence: String,
}

/// A lease or an unleased process on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Occupant {
    /// The lease, if it is the caller's own (or the caller is an operator); else null.
    pub lease: Option<String>,
    /// The process id of an unleased process; null for a lease.
    pub pid: Option<u32>,
    /// The user; null for an unleased process of which the user could not be read.
    pub user: Option<String>,
    /// The tier of the lease; null for an unleased process.
    pub tier: Option<Tier>,
    /// Of a lease: `active`, `parking`, `parked`, `resuming` or `ending`. Of an unleased process: `unleased`, or
    /// `display` if it only draws, on a screen or with little memory.
    pub state: String,
    /// Bytes reserved for the lease; null for an unleased process.
    pub reserved_bytes: Option<u64>,
    /// Bytes that the driver reports for it; null if it does not.
    pub seen_bytes: Option<u64>,
    /// Since when, in Unix seconds; null if unknown.
    pub since_unix_s: Option<f64>,
    /// It uses more of a GPU than its lease is for.
    #[serde(default, skip_serializing_if = "crate::request::is_false")]
    pub exceeds_lease: bool,
}
