//! What goes over the socket: requests, answers, problems, and the exit codes
//! that follow from them.
//!
//! No logic: nothing here decides, connects or formats for a screen. The two
//! parsers ([`size`] and [`span`]) are here because every face must read
//! people's sizes and times alike.

mod aside;
mod ask;
mod card;
pub mod exit;
mod lease;
mod problem;
mod record;
pub mod size;
pub mod span;
mod stranger;
mod token;

pub use aside::{Aside, AsideAsk, Stays};
pub use ask::{Accept, Ask, Bind, Done, Exclusivity, Hooked, Notice, Preempt, Renew, Tier, Vram};
pub use card::{Card, CardState, Cards, Occupant, ParkingRam, Unreadable};
pub use lease::{
    Ahead, Blocker, Bound, CardWhy, Did, Ended, EndsSoon, ErrorCount, Explanation, Lease, LeaseState, Leases, Leaves,
    Offer, OverUse, Parked, Reason, Rung, Waiting,
};
pub use problem::{Code, Problem, Remedy};
pub use record::{AuditLine, AuditPage, Health, JournalLoss, Usage, UsageBy, UsageRow};
pub use stranger::{Adopt, CardMode, Mode, ModeAsk, Next, Rule, RuleAsk, Step, Stranger, Strangers, Treat};
pub use token::{TOKEN_DIGITS, TOKEN_PREFIX, Token, TokenAsk, Tokens};

/// The media type of every refusal.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// The header that makes a POST safe to send again.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The version of `--json` outputs and of this API.
pub const VERSION: u32 = 1;
