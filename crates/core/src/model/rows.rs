//! The durable state: what a restart finds, and what folding the log gives.
//!
//! [`Rows::apply`] cannot choose: an [`Action`](crate::model::action::Action) is a complete
//! fact. Readings, activity and everything derived live elsewhere
//! ([`crate::state`]).

mod gpu;
mod overuse;

use crate::model::cost::Costs;
use crate::model::durations::Durations;
use crate::model::ids::{Fence, GpuId, LeaseId, ProcKey, TenantId, TokenId};
use crate::model::lateness::Lateness;
use crate::model::method::Method;
use crate::model::request::{GpuSelector, LeaseRequest, Term, Vram};
use crate::model::table::{GpuTable, TenantTable};
use crate::model::token::Token;
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{Rule, RuleId, UnleasedId, UnleasedProcess};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use gpu::{Gpu, GpuService};
pub use overuse::Overuse;

/// Everything that survives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Counters and the clock.
    pub meta: Meta,
    /// Who ever asked, by [`TenantId`].
    pub tenants: TenantTable<Tenant>,
    /// Cards ever seen, by [`CardId`].
    #[serde(rename = "cards")]
    pub gpus: GpuTable<Gpu>,
    /// Leases that have not ended.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Tokens that were not revoked.
    #[serde(default)]
    pub tokens: BTreeMap<TokenId, Token>,
    /// Processes on cards that belong to no lease.
    #[serde(rename = "strangers", default)]
    pub unleased: BTreeMap<UnleasedId, UnleasedProcess>,
    /// What operators said about some of them.
    #[serde(default)]
    pub rules: BTreeMap<RuleId, Rule>,
}

/// Counters and the clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The boot that times of leases were measured in.
    pub boot: String,
    /// Add this to CLOCK_MONOTONIC (µs) of that boot to get [`Time`].
    pub clock_offset_us: i64,
    /// The next lease's number.
    pub next_lease: u64,
    /// The next grant's epoch.
    #[serde(rename = "next_epoch")]
    pub next_fence: Fence,
    /// The next token's number.
    #[serde(default = "one")]
    pub next_token: u32,
    /// The daemon was away until then…
    pub grace_from: Time,
    /// …and nothing that was running then expires before this.
    pub grace_until: Time,
    /// The day that daily budgets count, as days since 1970 where the host is.
    #[serde(default)]
    pub day: u32,
    /// The next stranger's number.
    #[serde(rename = "next_stranger", default = "one_more")]
    pub next_unleased: u64,
    /// The next rule's number.
    #[serde(default = "one")]
    pub next_rule: u32,
    /// How late waiters really start.
    #[serde(default, skip_serializing_if = "Lateness::is_empty")]
    pub lateness: Lateness,
}

fn one() -> u32 {
    1
}

fn one_more() -> u64 {
    1
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            boot: String::new(),
            clock_offset_us: 0,
            next_lease: 1,
            next_fence: Fence(1),
            next_token: 1,
            grace_from: Time::ZERO,
            grace_until: Time::ZERO,
            day: 0,
            next_unleased: 1,
            next_rule: 1,
            lateness: Lateness::default(),
        }
    }
}

impl Meta {
    /// When something that began at `since` and is due at `at` really is.
    pub fn due(&self, since: Time, at: Time) -> Time {
        if since <= self.grace_from { at.max(self.grace_until) } else { at }
    }
}

/// Who asks and is charged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// `uid:1000`.
    pub name: String,
    /// Leases that were granted and are over.
    pub leases: u64,
    /// Time charged for them, every card counted, in µs.
    #[serde(rename = "card_us")]
    pub gpu_us: u64,
    /// The same times bytes, in byte·µs.
    pub byte_us: u128,
    /// How far its use has carried it: beyond now, it queues as if it came later.
    #[serde(rename = "mark", default)]
    pub debt_clock: Time,
    /// Since when its first waiter is the first: who stood before it left then.
    #[serde(rename = "turn", default)]
    pub first_since: Time,
    /// Groups it belongs to, as far as the rules of the house name them.
    #[serde(default)]
    pub groups: Vec<String>,
    /// GPU time charged today, in µs: a whole card for an hour is an hour.
    #[serde(rename = "today", default)]
    pub today_us: u64,
    /// Host memory booked for its parked bytes, in byte·µs.
    #[serde(default)]
    pub parked_byte_us: u128,
    /// What it took its programs to leave their cards and to come back.
    #[serde(default)]
    pub costs: Costs,
    /// How long its leases lasted.
    #[serde(default, skip_serializing_if = "Durations::is_empty")]
    pub durations: Durations,
}

/// A lease that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its name and arrival number.
    pub id: LeaseId,
    /// Who asked.
    pub tenant: TenantId,
    /// What was asked.
    #[serde(rename = "ask")]
    pub request: LeaseRequest,
    /// When.
    #[serde(rename = "asked")]
    pub requested: Time,
    /// Processes bound to it; their descendants belong to it.
    pub roots: Vec<ProcKey>,
    /// Where it is in its life.
    pub phase: Phase,
    /// The token it was asked through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenId>,
}

/// Where a lease is in its life.
///
/// ```text
/// Waiting ──► Active ──► Parking ──► Parked
///    │          ▲           ▲           │
///    │          │           ▼           │
///    │          └─────── Resuming ◄─────┘
///    │   Active, Parking, Parked, Resuming ──► Ending ──► ended: gone from the rows, kept as `Ended`
///    └─────────────────────────────────────────────────────▲
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// In the queue.
    Waiting {
        /// When its owner would rather not have it any more.
        give_up: Time,
    },
    /// Granted.
    Active(Hold),
    /// Its bytes are leaving its cards. They count in full until they were seen to be gone.
    Parking(Hold, ParkState),
    /// They are in host memory; what it still has on its cards counts as what it is.
    Parked(Hold, ParkState),
    /// They are coming back, and count in full.
    Resuming(Hold, ParkState),
    /// Over for its holder. Its bytes count until its cards were seen again.
    Ending(Hold, LeaseEnd),
}

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// On these cards.
    #[serde(rename = "cards")]
    pub gpus: Vec<GpuId>,
    /// So much of each.
    pub vram: Bytes,
    /// Whoever calls with a lower one is refused.
    #[serde(rename = "epoch")]
    pub fence: Fence,
    /// When it was granted.
    pub granted: Time,
    /// When it was last renewed (or granted).
    pub renewed: Time,
    /// When it expires unless it is renewed.
    pub until: Time,
    /// It was not used in its last term.
    pub idle: bool,
    /// How far its tenant's mark was moved for the time from `renewed` to `until`.
    #[serde(rename = "paid", default)]
    pub prepaid: Span,
    /// It was let past somebody who needs its cards then.
    #[serde(rename = "before", default)]
    pub not_beyond: Option<Time>,
    /// The day on which the time from `renewed` to `until` was charged.
    #[serde(default)]
    pub day: u32,
    /// What there is to know of one that was parked at least once, or had more than its lease.
    #[serde(rename = "turns", default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HoldHistory>,
    /// It was told when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<EndNotice>,
}

/// What a holder was told: why it is over, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EndNotice {
    /// It ends for others then, unless nobody needs its cards any more.
    ForOthers(Time),
    /// Its fixed term is over then.
    Term {
        /// When.
        term_over: Time,
    },
}

impl EndNotice {
    /// When it is over, by that word.
    pub fn at(self) -> Time {
        match self {
            EndNotice::ForOthers(at) | EndNotice::Term { term_over: at } => at,
        }
    }

    /// The same if it is for others.
    pub fn for_others(self) -> Option<Time> {
        match self {
            EndNotice::ForOthers(at) => Some(at),
            EndNotice::Term { .. } => None,
        }
    }
}

/// The turns of a holder on its cards, between which it was parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldHistory {
    /// When the last one began.
    pub began: Time,
    /// When it ended, while the holder is parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Time>,
    /// How long those before it were, every card counted, in µs.
    #[serde(default)]
    pub spent_us: u64,
    /// The same times bytes, in byte·µs.
    #[serde(default)]
    pub spent_byte_us: u128,
    /// Host memory booked for its bytes.
    #[serde(default)]
    pub booked: Bytes,
    /// When it last said that its bytes were gone though they were not, and in which way.
    #[serde(rename = "lied", default, skip_serializing_if = "Option::is_none")]
    pub false_report: Option<(Method, Time)>,
    /// It was never told to leave its cards: this is the first turn.
    #[serde(rename = "unmoved", default, skip_serializing_if = "std::ops::Not::not")]
    pub never_moved: bool,
    /// It has more on its cards than its lease is for.
    #[serde(rename = "over", default, skip_serializing_if = "Option::is_none")]
    pub overuse: Option<Overuse>,
    /// What this turn is charged less, in byte·µs: its lease was smaller at first.
    #[serde(rename = "less_byte_us", default, skip_serializing_if = "is_nothing")]
    pub uncharged_byte_us: u128,
}

fn is_nothing(byte_us: &u128) -> bool {
    *byte_us == 0
}

/// What there is to know of a holder that is parked, or on its way there or back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkState {
    /// Since when it is in this phase.
    pub since: Time,
    /// In which way it leaves, and comes back.
    #[serde(rename = "rung", default)]
    pub method: Method,
    /// What it had on its cards when it began to leave.
    #[serde(rename = "had", default)]
    pub had_bytes: Bytes,
    /// What it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The library took its bytes, and the driver shall have the rest: not even contexts stay on its cards.
    #[serde(rename = "deep", default, skip_serializing_if = "std::ops::Not::not")]
    pub with_driver: bool,
    /// It was parked while idle, and its next use cannot be noticed: see [`Lease::is_passive`].
    #[serde(rename = "quiet", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_passive: bool,
    /// A waiter needs the room of its contexts too: they leave as soon as it is parked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_context: bool,
    /// The processes that the driver moves, where it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcKey>,
    /// While it is on its way: once parked, it asks for its cards again, and as of then.
    #[serde(rename = "again", default, skip_serializing_if = "Option::is_none")]
    pub requests_again_at: Option<Time>,
    /// While it comes back: its cards were given to it anew, and if they have no room it leaves again.
    #[serde(rename = "back", default)]
    pub was_resumed: bool,
    /// While it is parked: since when it waits for its cards.
    #[serde(rename = "wants", default, skip_serializing_if = "Option::is_none")]
    pub queued_since: Option<Time>,
    /// What it asked for at first. While it waits, its ask is for what it had, on the cards it had.
    #[serde(rename = "ask", default, skip_serializing_if = "Option::is_none")]
    pub first_request: Option<LeaseRequest>,
    /// What was left of a fixed term.
    #[serde(rename = "left", default, skip_serializing_if = "Option::is_none")]
    pub term_left: Option<Span>,
}

impl ParkState {
    /// Whether the driver brings it back, to cards that were given to it anew.
    pub fn needs_restore(&self) -> bool {
        self.needs_driver() && self.was_resumed
    }

    /// Whether it does not come back without the driver.
    pub fn needs_driver(&self) -> bool {
        self.method == Method::Driver || self.with_driver
    }

    /// Whether the driver moves a process of it.
    pub fn is_moved_by_driver(&self, process: &ProcKey) -> bool {
        self.needs_driver() && self.processes.contains(process)
    }

    /// It leaves, or comes back, from then on.
    pub fn new(since: Time) -> ParkState {
        let (method, had_bytes, program, processes) = (Method::Shim, Bytes::ZERO, String::new(), Vec::new());
        ParkState {
            since,
            method,
            had_bytes,
            program,
            processes,
            with_driver: false,
            is_passive: false,
            with_context: false,
            requests_again_at: None,
            was_resumed: false,
            queued_since: None,
            first_request: None,
            term_left: None,
        }
    }
}

impl Hold {
    /// When a holder with a fixed term gets the signal that it wanted before that is `over`; `None` if it wanted
    /// none, or was told already.
    pub fn term_notice(&self, ask: &LeaseRequest, over: Time) -> Option<Time> {
        let before = ask.notice.filter(|_| matches!(ask.term, Term::Fixed(_)) && self.notice.is_none())?.before;
        Some((over - before).max(self.renewed))
    }
}

impl Hold {
    /// The time that a renewal until then charges on this day. What is left of a term that an earlier
    /// day was charged is used today, so today is charged for it: it is what an early end gives back.
    pub fn charged_span(&self, until: Time, now: Time, day: u32) -> Span {
        if self.day == day { until.since(self.until) } else { until.since(now) }
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseEnd {
    /// Why.
    pub reason: EndReason,
    /// When.
    pub at: Time,
    /// The most bytes its processes were seen to have on one card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
    /// When its processes last got a signal, and which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<(u8, Time)>,
}

/// Why a lease ended: a closed set, without "other".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its owner gave it back.
    Released,
    /// It was not used, and somebody waits for the room.
    Expired,
    /// It was held as long as a waiter must accept.
    HoldCap,
    /// Others needed its cards, and its owner chose that it is ended for them.
    Preempted,
    /// It had more than its lease on cards where that is enforced, and others needed them.
    OverUse,
    /// Its fixed term was over.
    TermOver,
    /// Its tenant's GPU time of the day was used up.
    Budget,
    /// Its last process exited.
    HolderExited,
    /// An operator ended it.
    Revoked,
    /// It was parked as long as anything may be.
    ParkExpired,
    /// Its card is gone.
    DeviceLost,
    /// The driver could not bring its bytes back.
    RestoreFailed,
    /// The host was started anew.
    HostRebooted,
    /// It was not granted within the time its owner would wait.
    WaitOver,
    /// Its process never asked for it and was to leave an enforced card by it, which could not be done.
    NotMoved,
    /// Its program ended while its bytes were being taken off its cards.
    DiedParking,
}

impl Phase {
    /// Its name in messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Phase::Waiting { .. } => "waiting",
            Phase::Active(_) => "active",
            Phase::Parking(..) => "parking",
            Phase::Parked(..) => "parked",
            Phase::Resuming(..) => "resuming",
            Phase::Ending(..) => "ending",
        }
    }
}

impl EndReason {
    /// Whether its holder was done with it: the lease lasted as long as it was needed.
    pub fn is_completed(self) -> bool {
        matches!(self, EndReason::Released | EndReason::HolderExited | EndReason::TermOver)
    }

    /// Whether its owner or its last process ended it.
    pub(crate) fn is_exit(self) -> bool {
        matches!(self, EndReason::Released | EndReason::HolderExited)
    }

    /// Whether its processes are ended with it.
    pub fn ends_processes(self) -> bool {
        matches!(self, EndReason::Preempted | EndReason::OverUse)
    }
}

/// A lease that is over, as history keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLease {
    /// Its name.
    pub id: LeaseId,
    /// Who asked.
    pub tenant: TenantId,
    /// What was asked.
    #[serde(rename = "ask")]
    pub request: LeaseRequest,
    /// When.
    #[serde(rename = "asked")]
    pub requested: Time,
    /// What was granted, if anything was.
    pub hold: Option<Hold>,
    /// How it ended.
    #[serde(rename = "finish")]
    pub end: LeaseEnd,
}

impl Tenant {
    /// What was charged today for a time after now was not used.
    pub(crate) fn refund_today(&mut self, cards: &GpuTable<Gpu>, day: u32, hold: &Hold, now: Time) {
        if hold.day == day {
            let unused = gpu_time(cards, &hold.gpus, hold.vram, hold.until.since(now));
            self.today_us = self.today_us.saturating_sub(unused.0);
        }
    }

    /// Adds GPU time to the budget of the day. The terms are of a log that may have been changed, so the sum is capped.
    pub(crate) fn spend_today(&mut self, span: Span) {
        self.today_us = self.today_us.saturating_add(span.0);
    }

    /// Its bytes were in host memory until now.
    pub(crate) fn meter_parked(&mut self, hold: &Hold, away: &ParkState, now: Time) {
        let more = u128::from(hold.booked_host_memory().0) * u128::from(now.since(away.since).0);
        self.parked_byte_us = self.parked_byte_us.saturating_add(more);
    }

    /// Moves the mark, and says how far beyond the present.
    pub(crate) fn charge(&mut self, at: Time, mark: Option<Time>) -> Span {
        let before = self.debt_clock.max(at);
        self.debt_clock = mark.unwrap_or(self.debt_clock);
        self.debt_clock.since(before)
    }
}

impl Hold {
    /// What holding it until `now` is charged: card·µs and byte·µs.
    pub fn charge(&self, now: Time) -> (u64, u128) {
        let (began, to, spent, less) = match &self.history {
            None => (self.granted, now, (0, 0), 0),
            Some(turns) => {
                let spent = (turns.spent_us, turns.spent_byte_us);
                (turns.began, turns.stopped.unwrap_or(now), spent, turns.uncharged_byte_us)
            }
        };
        let card_us = to.since(began).0.saturating_mul(self.gpus.len() as u64);
        let byte_us = (u128::from(card_us) * u128::from(self.vram.0)).saturating_sub(less);
        (spent.0.saturating_add(card_us), spent.1.saturating_add(byte_us))
    }

    /// Its time on its GPUs until `now`, without the time in which it was parked.
    pub fn time_on_gpus(&self, now: Time) -> Span {
        Span(self.charge(now).0 / self.gpus.len().max(1) as u64)
    }

    /// Since when it has its cards without a break.
    pub fn slice_began(&self) -> Time {
        self.history.as_ref().map_or(self.granted, |turns| turns.began)
    }

    /// Host memory booked for its bytes.
    pub fn booked_host_memory(&self) -> Bytes {
        self.history.as_ref().map_or(Bytes::ZERO, |turns| turns.booked)
    }

    pub(crate) fn history_mut(&mut self) -> &mut HoldHistory {
        let began = self.granted;
        let new = || HoldHistory {
            began,
            stopped: None,
            spent_us: 0,
            spent_byte_us: 0,
            booked: Bytes::ZERO,
            false_report: None,
            never_moved: true,
            overuse: None,
            uncharged_byte_us: 0,
        };
        self.history.get_or_insert_with(new)
    }

    /// What of its payment is for the time after `now`.
    pub fn unused_payment(&self, now: Time) -> Span {
        let (left, term) = (self.until.since(now).0, self.until.since(self.renewed).0);
        if term == 0 {
            Span::ZERO
        } else {
            Span((u128::from(self.prepaid.0) * u128::from(left.min(term)) / u128::from(term)) as u64)
        }
    }
}

impl Lease {
    /// What was granted, while it counts.
    pub fn hold(&self) -> Option<&Hold> {
        match &self.phase {
            Phase::Waiting { .. } => None,
            Phase::Active(hold)
            | Phase::Parking(hold, _)
            | Phase::Parked(hold, _)
            | Phase::Resuming(hold, _)
            | Phase::Ending(hold, _) => Some(hold),
        }
    }

    /// What there is to know of it while it is parked, or on its way there or back.
    pub fn park_state(&self) -> Option<&ParkState> {
        match &self.phase {
            Phase::Parking(_, away) | Phase::Parked(_, away) | Phase::Resuming(_, away) => Some(away),
            Phase::Waiting { .. } | Phase::Active(_) | Phase::Ending(..) => None,
        }
    }

    /// Since when it stands in the queue, if it does.
    pub fn queued_since(&self) -> Option<Time> {
        match &self.phase {
            Phase::Waiting { .. } => Some(self.requested),
            Phase::Parked(_, away) => away.queued_since.filter(|_| !self.is_passive()),
            _ => None,
        }
    }

    /// True for a parked lease that was idle and whose next use cannot be noticed. It is not in the queue: it preempts
    /// no lease, and comes back only into room that no waiter claims, or once [`LeaseAction::QueueParked`] wakes it.
    pub fn is_passive(&self) -> bool {
        matches!(&self.phase, Phase::Parked(_, away) if away.is_passive)
    }

    /// The request of a parked lease for its GPUs: what it had, on the GPUs it had, for what is left of a fixed term.
    pub(crate) fn resume_request(&self, vram: Bytes, at_least: Option<Bytes>) -> LeaseRequest {
        let mut ask = self.first_request().clone();
        if let Phase::Parked(hold, away) = &self.phase {
            (ask.vram, ask.at_least, ask.gpus) = (Vram::Bytes(vram), at_least, hold.gpus.len() as u16);
            ask.gpus_allowed = Some(GpuSelector::These(hold.gpus.clone()));
            ask.term = away.term_left.map_or(ask.term, Term::Fixed);
        }
        ask
    }

    /// Whether its cards are promised to it.
    pub fn is_on_gpus(&self) -> bool {
        !matches!(self.phase, Phase::Waiting { .. } | Phase::Parked(..))
    }

    /// What of each of its cards is promised to it.
    pub fn reserved(&self) -> Bytes {
        match &self.phase {
            Phase::Waiting { .. } | Phase::Parked(..) => Bytes::ZERO,
            // It was parked when it ended.
            Phase::Ending(hold, _) if hold.history.as_ref().is_some_and(|turns| turns.stopped.is_some()) => Bytes::ZERO,
            Phase::Active(hold) | Phase::Parking(hold, _) | Phase::Resuming(hold, _) | Phase::Ending(hold, _) => {
                hold.vram
            }
        }
    }

    /// Whether it was granted and has not ended.
    pub fn is_held(&self) -> bool {
        !matches!(self.phase, Phase::Waiting { .. } | Phase::Ending(..))
    }

    /// What it asked for at first.
    pub fn first_request(&self) -> &LeaseRequest {
        self.park_state().and_then(|away| away.first_request.as_ref()).unwrap_or(&self.request)
    }

    /// Whether its term is fixed.
    pub fn has_fixed_term(&self) -> bool {
        matches!(self.request.term, Term::Fixed(_))
    }
}

/// The part of so long that so much of these cards is.
pub fn gpu_time(all: &GpuTable<Gpu>, cards: &[GpuId], vram: Bytes, span: Span) -> Span {
    let of = |card: &GpuId| {
        let total = all.find(*card).map_or(1, |card| card.facts.total.0.max(1));
        u128::from(span.0) * u128::from(vram.0.min(total)) / u128::from(total)
    };
    Span(cards.iter().map(of).sum::<u128>() as u64)
}

impl Rows {
    /// The name of a tenant, if there is one with this number.
    pub fn tenant_name(&self, tenant: TenantId) -> Option<String> {
        self.tenants.find(tenant).map(|tenant| tenant.name.clone())
    }
}
