//! Leases as clients see them.

use crate::ask::is_false;
use crate::{Exclusivity, Tier, Vram};
use serde::{Deserialize, Serialize};

/// One lease, waiting, held or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// `L7`.
    pub id: String,
    /// Where it is in its life. Work starts only while `active`.
    pub state: LeaseState,
    /// Who asked and is charged (`uid:1000`).
    pub tenant: String,
    /// The tenant's name for people.
    pub user: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// What was asked for, per card.
    pub asked_vram_bytes: Vram,
    /// What is reserved on each of its cards; null until it is granted.
    pub vram_bytes: Option<u64>,
    /// How many cards.
    pub gpus: u32,
    /// Which cards, by UUID; empty until it is granted.
    pub cards: Vec<String>,
    /// The same cards as indices, as `CUDA_VISIBLE_DEVICES` takes them.
    pub card_indices: Vec<u32>,
    /// Its tier.
    pub tier: Tier,
    /// Its priority within the tier.
    pub priority: i32,
    /// Whom it shares its cards with.
    pub exclusivity: Exclusivity,
    /// The number to carry in every later call; null until it is granted.
    pub epoch: Option<u64>,
    /// What its programs show for it where their user is not known, in containers (`SUBLET_MARK`); told only to whoever
    /// asked for it, in the answer to that, in `accept` and in a look at this one lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
    /// Seconds from one renewal to the next expiry.
    pub ttl_s: u64,
    /// It has a fixed term and is never renewed.
    pub fixed_term: bool,
    /// When it was asked for, in Unix seconds.
    pub asked_unix_s: f64,
    /// When it was granted, in Unix seconds.
    pub granted_unix_s: Option<f64>,
    /// Since when it has its cards without a break, in Unix seconds: since it was granted, or came back last.
    #[serde(default)]
    pub on_cards_unix_s: Option<f64>,
    /// When it expires unless it is renewed, in Unix seconds.
    pub expires_unix_s: Option<f64>,
    /// The same, in seconds from now; a change of the wall clock does not move it.
    pub remaining_s: Option<f64>,
    /// It was not used in its last term, and goes on only because nobody waits.
    pub idle: bool,
    /// Processes bound to it, as far as they were seen.
    pub pids: Vec<u32>,
    /// VRAM its processes were last seen to have, all cards together; null if unknown.
    pub seen_bytes: Option<u64>,
    /// The most they were ever seen to have on one card; null if never seen.
    pub peak_bytes: Option<u64>,
    /// What its programs did, by the word of Sublet's library in them; absent if none of them has it, or none has
    /// since the service started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<Did>,
    /// Why its holder cannot be parked now; null if it can, or has nothing on a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_parkable: Option<String>,
    /// Which of its processes run as another user than the lease's, and so get none of its signals and are not moved by
    /// the driver; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// While it is `resuming`: why the driver does not bring its processes back yet, and what helps; null if nothing
    /// keeps it from that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<String>,
    /// What was parked; only while it is parked, or on its way there or back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<Parked>,
    /// How its cards are made free; only while it is parked, or on its way there or back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rung: Option<Rung>,
    /// It has more on a card than its lease is for, and what it could do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<OverUse>,
    /// It was told that it ends soon, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_soon: Option<EndsSoon>,
    /// Its wrapper runs a hook when its cards are needed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub yields: bool,
    /// The driver's own way of parking may be used although a restore could fail.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_lose: bool,
    /// Why it waits; only while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How it ended; only once it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

/// What the programs of a lease did with their cards, those that have ended included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Did {
    /// Kernels and graphs launched.
    pub launches: u64,
    /// Calls that copied or filled memory, however much.
    pub copies: u64,
    /// Bytes that copies moved; null where a library of before is in one of the programs, which does not count them.
    #[serde(default)]
    pub copied_bytes: Option<u64>,
    /// Calls that failed, by why.
    pub errors: Vec<ErrorCount>,
}

/// How often calls of the driver failed with one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorCount {
    /// Which: the driver's `CUresult`.
    pub code: u32,
    /// How often.
    pub count: u64,
}

/// `GET /v1/leases`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leases {
    /// The caller's leases that have not ended (an operator's view: everybody's), oldest first.
    pub leases: Vec<Lease>,
    /// There are more than were listed: `after=` the last of them has the next.
    pub more: bool,
}

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// In the queue.
    Waiting,
    /// Granted.
    Active,
    /// Its bytes are leaving its cards.
    Parking,
    /// Its bytes are in host memory; its programs live, and wait where they use the card. With `waiting`, it
    /// stands in the queue for its cards.
    Parked,
    /// Its bytes are coming back.
    Resuming,
    /// Over for its holder; its bytes count until the card was seen again.
    Ending,
    /// Over.
    Ended,
}

/// A holder whose bytes are in host memory, or on their way there or back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Parked {
    /// Since when it is in this state, in Unix seconds.
    pub since_unix_s: f64,
    /// Host memory booked for it.
    pub booked_bytes: u64,
    /// While it is parked: when its lease ends for being parked too long, in Unix seconds.
    pub ends_unix_s: Option<f64>,
    /// For people: why it was parked, as far as the service knows since it started, and when it is expected back;
    /// empty in lists of the queue, for the leases of other users.
    #[serde(default)]
    pub why: String,
}

/// How a holder's cards are made free while it keeps its lease: the cheapest that works is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// Its wrapper runs the hook it named.
    Yield,
    /// Sublet's library in its programs moves their bytes.
    Park,
    /// The driver takes its programs off the cards.
    Driver,
}

/// A holder has more on a card than its lease is for. Sublet's library keeps programs from that; this one has
/// a program without it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OverUse {
    /// Since when, in Unix seconds.
    pub since_unix_s: f64,
    /// The most it has on one card.
    pub seen_bytes: u64,
    /// A lease for so much of each card can be had with `accept`; null: not now.
    pub offer_bytes: Option<u64>,
    /// It may be made to leave its cards after so many seconds, should somebody wait for them; 0: at any time.
    pub leaves_in_s: f64,
    /// After so many seconds it may be ended, should it not be able to leave in another way; null: never, for
    /// not all of its cards are enforced.
    pub ends_in_s: Option<f64>,
}

/// A holder was told that its lease ends soon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndsSoon {
    /// Why it will end.
    pub reason: Reason,
    /// When, in Unix seconds.
    pub unix_s: f64,
    /// The same, in seconds from now.
    pub in_s: f64,
}

/// Why a lease waits, in words and numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiting {
    /// 1 is next.
    pub place: u64,
    /// False: at least that far back; counting stopped there.
    pub place_exact: bool,
    /// One sentence.
    pub why: String,
    /// Seconds until it starts if every lease in its way lasts as long as it may, and no request made later
    /// goes first; null if that is not known.
    pub estimate_s: Option<f64>,
    /// Seconds until it is expected to start, by how long such leases lasted so far: as likely earlier as
    /// later. Null while too little is known.
    #[serde(default)]
    pub expected_s: Option<f64>,
    /// The same in nine of ten cases.
    #[serde(default)]
    pub expected_p90_s: Option<f64>,
    /// Smaller leases that could start now. Nothing is kept for them: whoever accepts first has them.
    /// Not told in lists.
    #[serde(default)]
    pub offers: Vec<Offer>,
    /// When it starts at the latest. Not told in lists.
    #[serde(default)]
    pub bound: Option<Bound>,
}

/// A smaller lease that could start now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Offer {
    /// So many bytes of each card.
    pub vram_bytes: u64,
    /// On so many cards.
    pub gpus: u32,
    /// It must be over in so many seconds, because somebody ahead needs the cards then; null: no limit.
    pub over_in_s: Option<f64>,
}

/// When a waiter starts at the latest, whatever the others do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bound {
    /// Seconds until then; null: there is no bound.
    pub at_latest_s: Option<f64>,
    /// Seconds until nobody who comes can pass it any more. Until then somebody more urgent may, and
    /// moves the bound.
    pub settled_in_s: Option<f64>,
    /// Why there is no bound.
    pub why_none: Option<String>,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ended {
    /// For machines.
    pub reason: Reason,
    /// For people: what happened and what to do next.
    pub sentence: String,
    /// When, in Unix seconds.
    pub at_unix_s: f64,
}

/// Why a lease ended: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its owner gave it back.
    Released,
    /// It was not used, and somebody waits for the room.
    Expired,
    /// It was held as long as a waiter must accept.
    HoldCap,
    /// Its fixed term was over.
    TermOver,
    /// Its last process exited.
    HolderExited,
    /// An operator ended it.
    Revoked,
    /// Its card is gone.
    DeviceLost,
    /// The driver could not bring its bytes back.
    RestoreFailed,
    /// The host was started anew.
    HostRebooted,
    /// It was not granted within the time its owner would wait.
    WaitOver,
    /// Its tenant's GPU time of the day was used up.
    Budget,
    /// It was parked as long as anything may be.
    ParkExpired,
    /// Others needed its cards, and its owner had said that it may be ended for them.
    Preempted,
    /// Its process never asked for it and was to be parked off an enforced card by it, which could not be done.
    NotMoved,
    /// It had more than its lease on cards where that is enforced, and others needed them.
    OverUse,
    /// Its program died while it was being parked: it may have been killed for lack of memory in its cgroup.
    DiedParking,
}

/// `GET /v1/leases/{id}/explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The lease itself.
    pub lease: Lease,
    /// One sentence.
    pub summary: String,
    /// Who is served before it, first first; at most 64.
    pub ahead: Vec<Ahead>,
    /// What each card could give it, and what would have to end.
    pub cards: Vec<CardWhy>,
    /// Whether room is made for it, who leaves, at what price and why; null if it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<String>,
}

/// Somebody who is served first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ahead {
    /// Its id if it is the caller's own (or the caller is an operator), else null.
    pub id: Option<String>,
    /// Who.
    pub user: String,
    /// Its tier.
    pub tier: Tier,
    /// What it asks for, per card.
    pub vram_bytes: Vram,
    /// On so many cards.
    pub gpus: u32,
    /// How long it has waited, in seconds.
    pub waited_s: f64,
    /// Why it is ahead, in a few words.
    pub why: String,
}

/// One card, as seen by somebody who waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CardWhy {
    /// The card's index.
    pub index: u32,
    /// The card's UUID.
    pub uuid: String,
    /// Bytes that could be promised now.
    pub promisable_bytes: u64,
    /// Bytes nobody has a lease for: strangers, display, driver; null if unreadable.
    pub loose_bytes: Option<u64>,
    /// Why not here, now; null: this card would do.
    pub obstacle: Option<String>,
    /// Leases that hold this card, first to end first.
    pub blockers: Vec<Blocker>,
    /// What making the room here would cost, in seconds of everybody's time; null if it cannot be made here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_s: Option<f64>,
}

/// A lease that stands in the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Blocker {
    /// Its id if it is the caller's own (or the caller is an operator), else null.
    pub id: Option<String>,
    /// Who.
    pub user: String,
    /// Bytes counted for it on this card.
    pub counted_bytes: u64,
    /// Seconds until it ends at the latest while somebody waits.
    pub ends_by_s: f64,
    /// How it could be made to leave, and at what price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<Leaves>,
    /// Why it is not made to leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
}

/// How a holder could be made to leave its cards, and what that costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leaves {
    /// In which way: `yield`, `park`, `driver` or `end`.
    pub rung: String,
    /// Seconds until its cards are free.
    pub out_s: f64,
    /// Seconds of work it loses.
    pub loss_s: f64,
    /// Seconds to bring it back.
    pub back_s: f64,
    /// All of that together.
    pub price_s: f64,
    /// It would be one of those who leave now.
    pub chosen: bool,
}
