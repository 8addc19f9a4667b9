//! Cards as clients see them.

use crate::{Aside, Mode, Tier};
use serde::{Deserialize, Serialize};

/// `GET /v1/cards`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cards {
    /// All managed cards, by index.
    pub cards: Vec<Card>,
    /// `real`; `soft` for cards in software, on which programs of the driver API run; or `scripted`
    /// where nothing is behind them.
    pub kind: String,
    /// The soft cards' file, which programs on this host find in SUBLET_SOFT_STATE; null for others.
    #[serde(default)]
    pub soft_state: Option<String>,
    /// Why the driver does not list its cards, and what helps; null while it does.
    pub trouble: Option<String>,
    /// Why the last reload of the configuration was refused, for operators; absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_trouble: Option<String>,
    /// Host memory for parked bytes; null where nobody is parked.
    #[serde(default)]
    pub parking: Option<ParkingRam>,
}

/// Host memory for bytes that have to leave a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ParkingRam {
    /// All of it.
    pub ram_bytes: u64,
    /// What is booked.
    pub booked_bytes: u64,
    /// What is kept ready of the rest, so that a first park is fast: it gives way to who books.
    #[serde(default)]
    pub stock_bytes: u64,
    /// What could be booked now; null while nobody is there who could be parked.
    pub free_bytes: Option<u64>,
    /// What kind of pages it has, in words.
    pub pages: String,
    /// What would make parking faster, in words; null if nothing would.
    pub advice: Option<String>,
    /// Programs without the library are parked by the driver.
    #[serde(default)]
    pub by_driver: bool,
    /// What the driver's own way of parking cannot do here, in words; empty if nothing is known against it.
    #[serde(default)]
    pub driver_limits: Vec<String>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Card {
    /// The driver's number for it.
    pub index: u32,
    /// The driver's name for it.
    pub uuid: String,
    /// Its model.
    pub name: String,
    /// Whether leases are granted there.
    pub state: CardState,
    /// Why not, in words; null while in service.
    pub state_why: Option<String>,
    /// For which user it steps aside, and which leases stay; null while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<Aside>,
    /// What is done there about processes without a lease.
    pub mode: Mode,
    /// Why it could not be read; null while it answers.
    pub unreadable: Option<Unreadable>,
    /// All of its memory.
    pub total_bytes: u64,
    /// Memory the driver calls used; null if unreadable.
    pub used_bytes: Option<u64>,
    /// Bytes nobody has a lease for; null if unreadable.
    pub loose_bytes: Option<u64>,
    /// Bytes counted as taken: leases, loose bytes, margin; null if unreadable.
    pub committed_bytes: Option<u64>,
    /// Bytes that could be promised now; 0 if unreadable.
    pub promisable_bytes: u64,
    /// What a CUDA context alone takes; null if not measured.
    pub context_bytes: Option<u64>,
    /// The driver does not tell bytes per process.
    pub coarse: bool,
    /// Who is on it: leases first, then strangers.
    pub occupants: Vec<Occupant>,
}

/// Whether leases are granted on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CardState {
    /// Yes.
    InService,
    /// It steps aside for a user: nothing is granted there for a while.
    Aside,
    /// An operator lets it run empty.
    Draining,
    /// Not until an operator clears it.
    OutOfService,
    /// It cannot be leased as it is set up (MIG, MPS, compute mode).
    Unusable,
    /// It was there once and is not now.
    Missing,
}

/// Why a card could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unreadable {
    /// One sentence with what to do.
    pub sentence: String,
}

/// Somebody on a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Occupant {
    /// The lease, if it is the caller's own (or the caller is an operator); else null.
    pub lease: Option<String>,
    /// The process of a stranger; null for a lease.
    pub pid: Option<u32>,
    /// Who; null for a stranger whose user could not be read.
    pub user: Option<String>,
    /// The tier of the lease; null for a stranger.
    pub tier: Option<Tier>,
    /// `active`, `ending` or `stranger`.
    pub state: String,
    /// Bytes promised; null for a stranger.
    pub reserved_bytes: Option<u64>,
    /// Bytes the driver shows for it; null if it does not tell.
    pub seen_bytes: Option<u64>,
    /// Since when, in Unix seconds; null if unknown.
    pub since_unix_s: Option<f64>,
    /// It has more on a card than its lease is for.
    #[serde(default, skip_serializing_if = "crate::ask::is_false")]
    pub over: bool,
}
