//! What goes over the socket: requests, answers, problems, and the exit codes
//! that follow from them.
//!
//! No logic: nothing here decides, connects or formats for a screen. The two
//! parsers ([`size`] and [`span`]) are here because every face must read
//! people's sizes and times alike.

mod aside;
pub mod exit;
mod gpu;
mod lease;
mod problem;
mod record;
mod register;
mod request;
pub mod size;
pub mod span;
mod token;
mod unleased;

pub use aside::{Aside, AsideRequest, AsideStay};
pub use gpu::{Gpu, GpuState, Gpus, Occupant, ParkingSpace, UnreadableGpu};
pub use lease::{
    Ahead, Blocker, Bound, EndReason, EndsSoon, ErrorCount, Explanation, GpuCalls, GpuExplanation, Lease, LeaseEnd,
    LeaseState, Leases, Offer, Overuse, ParkMethod, Parked, PreemptionCost, Waiting,
};
pub use problem::{Code, Problem, Remedy};
pub use record::{AuditLine, AuditPage, Health, JournalLoss, Usage, UsageBy, UsageRow};
pub use register::{
    CheckpointRegister, CheckpointRegisters, EntryBytes, RegisterChain, RegisterChains, RegisterEntries, RegisterEntry,
};
pub use request::{
    AcceptRequest, BindRequest, Exclusivity, HookReport, HookResult, LeaseRequest, Notice, Preempt, ProcessRef,
    RenewRequest, Tier, Vram,
};
pub use token::{TOKEN_DIGITS, TOKEN_PREFIX, Token, TokenRequest, Tokens};
pub use unleased::{
    AdoptRequest, GpuMode, Mode, ModeRequest, NextStep, Rule, RuleAction, RuleRequest, UnleasedProcess,
    UnleasedProcesses, UnleasedStep,
};

/// The media type of every refusal.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// The header that makes a POST safe to send again.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The version of `--json` outputs and of this API.
pub const VERSION: u32 = 1;
