//! Leases as clients see them.

use crate::request::is_false;
use crate::{Exclusivity, Tier, Vram};
use serde::{Deserialize, Serialize};

/// One lease: waiting, granted or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// `L7`.
    pub id: String,
    /// Its state. Work may start only while it is `active`.
    pub state: LeaseState,
    /// The tenant that requested it and is charged for it (`uid:1000`).
    pub tenant: String,
    /// The name of that user, for people.
    pub user: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// What was requested, per GPU.
    pub requested_vram_bytes: Vram,
    /// What is reserved on each of its GPUs; null until it is granted.
    pub vram_bytes: Option<u64>,
    /// How many GPUs.
    pub gpus: u32,
    /// The UUIDs of its GPUs; empty until it is granted.
    pub gpu_uuids: Vec<String>,
    /// The indices of the same GPUs, as `CUDA_VISIBLE_DEVICES` takes them.
    pub gpu_indices: Vec<u32>,
    /// Its tier.
    pub tier: Tier,
    /// Its priority within the tier.
    pub priority: i32,
    /// Which other leases may be on its GPUs.
    pub exclusivity: Exclusivity,
    /// Its fence, to be sent with every later call; null until it is granted.
    pub fence: Option<u64>,
    /// The proof by which its programs in containers belong to it, where their user is not known (`SUBLET_PROOF`). Only
    /// its owner gets it: in the answer to the request, to `accept`, and to `GET` of this one lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// Seconds from a renewal to the expiry.
    pub ttl_s: u64,
    /// It has a fixed term and is never renewed.
    pub fixed_term: bool,
    /// When it was requested, in Unix seconds.
    pub requested_unix_s: f64,
    /// When it was granted, in Unix seconds.
    pub granted_unix_s: Option<f64>,
    /// Since when it has had its GPUs without an interruption, in Unix seconds: since the grant, or since the last resume.
    #[serde(default)]
    pub on_gpus_unix_s: Option<f64>,
    /// When it expires unless it is renewed, in Unix seconds.
    pub expires_unix_s: Option<f64>,
    /// The same, in seconds from now; a change of the wall clock does not move it.
    pub remaining_s: Option<f64>,
    /// It was not used in its last term, and continues only because no request waits for its GPUs.
    pub idle: bool,
    /// The processes bound to it that were seen.
    pub pids: Vec<u32>,
    /// VRAM of its processes at the last reading, all GPUs together; null if unknown.
    pub seen_bytes: Option<u64>,
    /// The most VRAM that they had on one GPU at any reading; null if there was none.
    pub peak_bytes: Option<u64>,
    /// What its programs did, as Sublet's library in them reports it; absent if no program with the library has
    /// reported since the service started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<GpuCalls>,
    /// Why its holder cannot be parked now; null if it can, or has nothing on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_parkable: Option<String>,
    /// Which of its processes run as another user than the lease's; they get none of its signals, and the driver does
    /// not park them. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_processes: Option<String>,
    /// While it is `resuming`: why the driver does not resume its processes yet, and what helps; null if nothing
    /// prevents it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_blocked: Option<String>,
    /// What was parked; only while it is parking, parked or resuming.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<Parked>,
    /// The preemption method; only while it is parking, parked or resuming.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<ParkMethod>,
    /// Set while it uses more of a GPU than its lease is for: how much, and what can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overuse: Option<Overuse>,
    /// Set once its holder was told that it ends soon: when, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_soon: Option<EndsSoon>,
    /// Its wrapper runs a hook when its GPUs are needed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub has_hook: bool,
    /// The driver may park its programs although a restore could fail.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_lose: bool,
    /// Why it waits; only while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How it ended; only once it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<LeaseEnd>,
}

/// What the programs of a lease did with their GPUs, those that have ended included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuCalls {
    /// Kernels and graphs launched.
    pub launches: u64,
    /// Calls that copied or filled memory, of any size.
    pub copies: u64,
    /// Bytes that copies moved; null if a program has an older library, which does not count them.
    #[serde(default)]
    pub copied_bytes: Option<u64>,
    /// Calls that failed, by error.
    pub errors: Vec<ErrorCount>,
}

/// How many calls of the driver API failed with one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorCount {
    /// The driver's `CUresult`.
    pub code: u32,
    /// How many calls.
    pub count: u64,
}

/// `GET /v1/leases`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leases {
    /// The caller's leases that have not ended (an operator may list those of all tenants), oldest first.
    pub leases: Vec<Lease>,
    /// There are more: pass the id of the last one as `after=` to get the next page.
    pub more: bool,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// In the queue.
    Waiting,
    /// Granted.
    Active,
    /// Its bytes are being moved off its GPUs.
    Parking,
    /// Its bytes are in host memory. Its programs live, and block when they use the GPU. If `waiting` is set, the lease
    /// is in the queue for its GPUs.
    Parked,
    /// Its bytes are being moved back.
    Resuming,
    /// Over for its holder; its bytes count as used until the next reading of the GPU.
    Ending,
    /// Over.
    Ended,
}

/// What is known of a lease that is parking, parked or resuming.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Parked {
    /// Since when it has been in this state, in Unix seconds.
    pub since_unix_s: f64,
    /// Parking space booked for it.
    pub booked_bytes: u64,
    /// While it is parked: when the lease ends because it was parked too long, in Unix seconds.
    pub ends_unix_s: Option<f64>,
    /// For people: why it was parked, if that was since the service started, and when it is expected back. Empty for
    /// leases of other users in lists of the queue.
    #[serde(default)]
    pub why: String,
}

/// A preemption method by which a holder keeps its lease. The cheapest one that works is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ParkMethod {
    /// The wrapper runs the hook of the lease.
    Hook,
    /// Sublet's library in its programs moves their bytes.
    Shim,
    /// The driver takes its programs off the GPUs.
    Driver,
}

/// A holder uses more of a GPU than its lease is for. Sublet's library prevents that, so at least one of its programs
/// runs without it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Overuse {
    /// Since when, in Unix seconds.
    pub since_unix_s: f64,
    /// The most that it has on one GPU.
    pub seen_bytes: u64,
    /// The size per GPU of a larger lease that `accept` would give; null: none now.
    pub offer_bytes: Option<u64>,
    /// Seconds until it may be parked for a waiter; 0: at any time.
    pub parkable_in_s: f64,
    /// Seconds until it may be ended if it cannot be parked; null: never, because not all of its GPUs are in mode
    /// `enforce`.
    pub ends_in_s: Option<f64>,
}

/// What a holder was told when its lease ends soon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndsSoon {
    /// Why it will end.
    pub reason: EndReason,
    /// When, in Unix seconds.
    pub unix_s: f64,
    /// The same, in seconds from now.
    pub in_s: f64,
}

/// Why a lease waits, and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiting {
    /// Its place in the queue; 1 is next.
    pub place: u64,
    /// False: the place is at least that; counting stopped there.
    pub place_exact: bool,
    /// Why it waits, in one sentence.
    pub why: String,
    /// Seconds until it starts if every lease before it lasts as long as it may, and no later request goes first; null
    /// if that is not known.
    pub planned_s: Option<f64>,
    /// Seconds until it is expected to start (the median), by how long such leases lasted so far; null while too little
    /// is known.
    #[serde(default)]
    pub expected_s: Option<f64>,
    /// The 90th percentile of the same.
    #[serde(default)]
    pub expected_p90_s: Option<f64>,
    /// Smaller leases that could start now. Nothing is reserved for them: the first waiter that accepts one gets it.
    /// Empty in lists.
    #[serde(default)]
    pub offers: Vec<Offer>,
    /// When it starts at the latest; null in lists.
    #[serde(default)]
    pub bound: Option<Bound>,
}

/// A smaller lease that could start now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Offer {
    /// Bytes per GPU.
    pub vram_bytes: u64,
    /// How many GPUs.
    pub gpus: u32,
    /// It must be over in this many seconds, because a request before it needs the GPUs then; null: no limit.
    pub over_in_s: Option<f64>,
}

/// When a waiter starts at the latest, whatever other leases do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bound {
    /// Seconds until then; null: there is no bound.
    pub at_latest_s: Option<f64>,
    /// Seconds until no new request can go before it. Until then a more urgent one may, which moves the bound; null:
    /// there is no bound.
    pub settled_in_s: Option<f64>,
    /// Why there is no bound; null if there is one.
    pub why_none: Option<String>,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseEnd {
    /// Why, for programs.
    pub reason: EndReason,
    /// For people: what happened and what to do next.
    pub sentence: String,
    /// When, in Unix seconds.
    pub at_unix_s: f64,
}

/// Why a lease ended: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its owner gave it back.
    Released,
    /// It was not used, and a waiter needs its memory.
    Expired,
    /// It reached `renewal_cap`, the longest that a waiter has to accept.
    RenewalCap,
    /// Its fixed term was over.
    TermOver,
    /// Its last process exited.
    HolderExited,
    /// An operator ended it.
    Revoked,
    /// Its GPU is gone.
    GpuLost,
    /// The driver could not restore its programs.
    RestoreFailed,
    /// The host was rebooted.
    HostRebooted,
    /// It was not granted within the time that its owner wanted to wait.
    WaitOver,
    /// Its tenant's GPU time for the day was used up.
    Budget,
    /// It was parked for the longest time that is allowed.
    ParkExpired,
    /// Other requests needed its GPUs, and its owner had allowed that it is ended for them.
    Preempted,
    /// It was made for an unleased process on a GPU in mode `enforce`, in order to park it, and parking failed.
    ParkFailed,
    /// It used more than its lease on GPUs in mode `enforce`, and other requests needed them.
    Overuse,
    /// Its program died while it was being parked, perhaps killed because its cgroup had too little memory.
    DiedParking,
}

/// `GET /v1/leases/{id}/explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The lease itself.
    pub lease: Lease,
    /// The explanation in one sentence.
    pub summary: String,
    /// The requests that are served before it, in order; at most 64.
    pub ahead: Vec<Ahead>,
    /// What each GPU could give it, and which leases would have to end.
    pub gpus: Vec<GpuExplanation>,
    /// Whether other leases are preempted for it, which ones, at what cost and why; absent if it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<String>,
}

/// A request that is served earlier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ahead {
    /// Its id if it is the caller's own (or the caller is an operator), else null.
    pub id: Option<String>,
    /// The user.
    pub user: String,
    /// Its tier.
    pub tier: Tier,
    /// What it requests, per GPU.
    pub vram_bytes: Vram,
    /// How many GPUs.
    pub gpus: u32,
    /// How long it has waited, in seconds.
    pub waited_s: f64,
    /// Why it is ahead, in a few words.
    pub why: String,
}

/// One GPU, as a waiter for it sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuExplanation {
    /// The GPU's index.
    pub index: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// Bytes that could be promised now.
    pub promisable_bytes: u64,
    /// Bytes in use that belong to no lease: unleased processes, display, driver; null if unreadable.
    pub unowned_bytes: Option<u64>,
    /// Why it cannot start here now; null: it could.
    pub obstacle: Option<String>,
    /// Leases on this GPU, first to end first.
    pub blockers: Vec<Blocker>,
    /// What preempting leases here would cost, in seconds of all users' time; absent if that is not possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_s: Option<f64>,
}

/// A lease that blocks a waiter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Blocker {
    /// Its id if it is the caller's own (or the caller is an operator), else null.
    pub id: Option<String>,
    /// The user.
    pub user: String,
    /// Bytes counted for it on this GPU.
    pub counted_bytes: u64,
    /// Seconds until it ends at the latest while a request waits.
    pub ends_by_s: f64,
    /// How it could be preempted, and at what cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionCost>,
    /// Why it is not preempted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_preempted: Option<String>,
}

/// How a lease could be preempted, and what that costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreemptionCost {
    /// The preemption method: `hook`, `shim`, `driver` or `end`.
    pub method: String,
    /// Seconds until its GPUs are free.
    pub park_s: f64,
    /// Seconds of work that it loses.
    pub lost_work_s: f64,
    /// Seconds to resume it.
    pub resume_s: f64,
    /// The total cost in seconds.
    pub cost_s: f64,
    /// It would be one of the leases that are preempted now.
    pub is_chosen: bool,
}
