//! What was decided: complete facts, in the imperative, in the order they happened.
//!
//! An action is applied to the state the moment it is emitted, written to the
//! log in the same transaction as the rows it changes, and read back by
//! `journal verify`. Its JSON form is kept on disk for ever: add fields with
//! defaults, and raise [`FORMAT`] for anything else.

use crate::aside::{Aside, AsideOver};
use crate::audit::Audit;
use crate::ids::{Fence, GpuId, LeaseId, ProcKey, TenantId, TokenId};
use crate::lateness::ExpectedWait;
use crate::loss::Loss;
use crate::method::Method;
use crate::reading::GpuFacts;
use crate::request::LeaseRequest;
use crate::rows::{EndReason, GpuService};
use crate::token::Token;
use crate::units::{Bytes, Time};
use crate::unleased::{Mode, Rule, RuleId, SignalOutcome, UnleasedEnd, UnleasedId, UnleasedProcess};
use serde::{Deserialize, Serialize};

/// The log's format number, written with every entry. 2: tokens. 3: parking. 4: preemption. 5: strangers.
/// 6: strangers that are parked, what an end took, and why a restore failed. 7: holders with more than their leases. 8: parked
/// holders of which the driver takes the contexts, too. 9: GPUs that step aside. 10: losses that were accepted,
/// and programs that died while they were parked.
pub const FORMAT: u32 = 10;

/// One decided fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Action {
    /// The daemon starts in this boot.
    Start {
        /// The kernel's boot id.
        boot: String,
        /// See [`crate::rows::Meta::clock_offset_us`].
        clock_offset_us: i64,
        /// No epoch below this is handed out any more.
        epoch_floor: Fence,
        /// No lease gets a number below this any more.
        #[serde(default)]
        lease_floor: u64,
    },
    /// The daemon was away: nothing that was running expires before `until`.
    Grace {
        /// When it came back.
        from: Time,
        /// The end of the grace.
        until: Time,
    },
    /// A tenant asks for the first time.
    Enrol {
        /// The next free number.
        tenant: TenantId,
        /// `uid:1000`.
        name: String,
    },
    /// A new day begins: daily budgets are whole again.
    Day {
        /// Days since 1970, where the host is.
        number: u32,
    },
    /// A tenant belongs to these groups from now on, as far as the rules of the house name them.
    Regroup {
        /// Who.
        tenant: TenantId,
        /// In order.
        groups: Vec<String>,
    },
    /// A card is seen for the first time, or differs from what was known.
    List {
        /// Its number here.
        card: GpuId,
        /// What it is.
        facts: GpuFacts,
    },
    /// A card goes into service or out of it.
    Serve {
        /// Which.
        card: GpuId,
        /// From now on.
        service: GpuService,
    },
    /// A GPU steps aside, or goes on doing so until another time.
    SetAside {
        /// The GPU.
        card: GpuId,
        /// The aside, as it is from now on.
        aside: Aside,
    },
    /// An aside of a GPU is over.
    EndAside {
        /// The GPU.
        card: GpuId,
        /// The tenant whose aside it was.
        by: String,
        /// Its key.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key: String,
        /// When it ended.
        at: Time,
        /// Why.
        how: AsideOver,
    },
    /// An ask joins the queue.
    Queue {
        /// The next free number.
        lease: LeaseId,
        /// Who asked.
        tenant: TenantId,
        /// For what.
        ask: LeaseRequest,
        /// When.
        at: Time,
        /// How long its owner will wait.
        give_up: Time,
        /// A process whose exit ends it, also while it waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<ProcKey>,
        /// The token it was asked through.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<TokenId>,
    },
    /// A waiter gets its cards.
    Grant {
        /// Which.
        lease: LeaseId,
        /// On these cards.
        cards: Vec<GpuId>,
        /// So much of each.
        vram: Bytes,
        /// With this epoch.
        epoch: Fence,
        /// When.
        at: Time,
        /// Until then, unless renewed.
        until: Time,
        /// Its tenant's mark from now on: the first term is charged ahead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Time>,
        /// It was let past somebody who needs the cards then: it is not renewed beyond.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Time>,
        /// It was its tenant's first waiter: the next one's turn begins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<Time>,
        /// What was expected when it asked, of some waiters. How late they start is learned by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<ExpectedWait>,
    },
    /// A lease goes on.
    Renew {
        /// Which.
        lease: LeaseId,
        /// When.
        at: Time,
        /// Until then.
        until: Time,
        /// Not because it was used, but because nobody waits.
        idle: bool,
        /// Its tenant's mark from now on: the added time is charged ahead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Time>,
        /// It still is not renewed beyond this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Time>,
    },
    /// A process and its descendants belong to a lease.
    Bind {
        /// Which lease.
        lease: LeaseId,
        /// Which process.
        process: ProcKey,
    },
    /// A holder's bytes shall leave its cards. Host memory is booked for them from now on.
    Park {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
        /// So much host memory is booked.
        booked: Bytes,
        /// In which way.
        #[serde(default)]
        rung: Method,
        /// What it had on its cards then.
        #[serde(default)]
        had: Bytes,
        /// What it runs, as far as was seen: what it takes is kept by that.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        program: String,
        /// For whom.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        room_for: Option<LeaseId>,
        /// The GPU that steps aside, if it is parked for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aside: Option<GpuId>,
        /// It was idle, and its next use cannot be noticed: once parked it is a passive waiter ([`Lease::is_passive`]).
        ///
        /// [`Lease::is_passive`]: crate::rows::Lease::is_passive
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        quiet: bool,
        /// Once it is parked the driver takes its contexts too, at once: the waiter needs their room.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_context: bool,
        /// The processes that the driver moves, where it does.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        processes: Vec<ProcKey>,
        /// It was at work, and asks for its cards again from then on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<Time>,
    },
    /// They stay: whatever has left comes back.
    Unpark {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
        /// Why.
        why: UnparkReason,
    },
    /// They were seen to be gone, twice on every card. Its cards are not its own any more.
    Parked {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
        /// Its tenant's mark from now on: what was charged ahead and not used is given back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Time>,
    },
    /// A parked holder needs its cards, and waits for them in the queue.
    Want {
        /// Who.
        lease: LeaseId,
        /// Since when.
        at: Time,
        /// So much of each of its cards, beside what it still has there.
        vram: Bytes,
        /// Less will do, down to so much.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<Bytes>,
        /// What woke it; `None` if it was preempted while it worked and has waited since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wake: Option<Wake>,
    },
    /// A parked holder has its cards again: its bytes shall come back.
    Resume {
        /// Who.
        lease: LeaseId,
        /// When.
        at: Time,
        /// So much of each card.
        vram: Bytes,
        /// Until then, unless renewed.
        until: Time,
        /// Its tenant's mark from now on: the term is charged ahead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Time>,
        /// It was let past somebody who needs the cards then: it is not renewed beyond.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Time>,
        /// It was its tenant's first waiter: the next one's turn begins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<Time>,
    },
    /// They found no room on the card after all: whatever came back leaves again.
    Retreat {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
    },
    /// It has been parked for a while: the driver shall take the contexts of these processes, too.
    Deepen {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
        /// The processes.
        processes: Vec<ProcKey>,
        /// So much host memory is booked for it from now on: what is left of it on its cards does not fit into what was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booked: Option<Bytes>,
    },
    /// It could not: what the library left on the cards stays there.
    Shallow {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
        /// Why.
        why: String,
    },
    /// A lease that has ended turns out to have ended because its program died while it was being parked.
    Died {
        /// Which.
        lease: LeaseId,
        /// When that became known.
        at: Time,
        /// What is known of the cause.
        why: String,
    },
    /// They are back, and the host memory is free.
    Resumed {
        /// Whose.
        lease: LeaseId,
        /// When.
        at: Time,
    },
    /// A holder has more on a card than its lease is for, and is told.
    Over {
        /// Which.
        lease: LeaseId,
        /// When.
        at: Time,
        /// It was seen to have so much on one card.
        seen: Bytes,
    },
    /// It has no more than its lease is for again.
    Within {
        /// Which.
        lease: LeaseId,
    },
    /// A holder that has more than its lease was for takes a larger one.
    Grow {
        /// Which.
        lease: LeaseId,
        /// When.
        at: Time,
        /// So much of each of its cards from now on.
        vram: Bytes,
        /// Its tenant's mark from now on: what is more is charged for the rest of the term.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Time>,
    },
    /// A holder that chose to be ended for others will be, or one that has more than its lease where that is
    /// enforced, and is told. So is one whose fixed term is over soon, if it wanted to be.
    Notice {
        /// Which.
        lease: LeaseId,
        /// When.
        at: Time,
        /// Its lease is over then.
        until: Time,
        /// For whom; for nobody else if its own term is over then.
        room_for: LeaseId,
    },
    /// It need not end after all.
    Spare {
        /// Which.
        lease: LeaseId,
    },
    /// The processes of a lease that was ended for others get this signal.
    Signal {
        /// Which.
        lease: LeaseId,
        /// The signal's number.
        signal: u8,
        /// When.
        at: Time,
        /// Which of them.
        processes: Vec<ProcKey>,
        /// Those that got none because they run as another user than the lease's.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<ProcKey>,
    },
    /// A lease stops for good.
    End {
        /// Which.
        lease: LeaseId,
        /// Why.
        reason: EndReason,
        /// When.
        at: Time,
        /// The most its processes were seen to have on one card.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peak: Option<Bytes>,
        /// Its tenant's mark from now on: what was charged ahead and not used is given back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Time>,
        /// It was its tenant's first waiter: the next one's turn begins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<Time>,
        /// What the driver said, if it lost its bytes; what is known of the cause, if its program died while it was parked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// If it was granted: the program it ran, empty if that is unknown. The duration is learned by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<String>,
        /// If it waited: what was expected when it asked, of some waiters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<ExpectedWait>,
    },
    /// Every card of an ended lease was seen again: its bytes count no more.
    Retire {
        /// Which.
        lease: LeaseId,
        /// If it was ended for others: what it ran, and when it was gone. So it is learned what that takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<(String, Time)>,
    },
    /// A token is good from now on.
    IssueToken {
        /// All of it but the secret, which nobody here knows.
        token: Token,
    },
    /// A token is good for nothing any more.
    RevokeToken {
        /// Which.
        token: TokenId,
        /// Whose it was.
        tenant: String,
        /// When, µs since 1970.
        at_wall_us: u64,
    },
    /// A process on a card belongs to no lease: this is who it is.
    Find {
        /// All of it.
        stranger: Box<UnleasedProcess>,
    },
    /// It is not what it was: it runs another program, or is on other cards.
    Reaudit {
        /// Which.
        stranger: UnleasedId,
        /// Who it is now.
        audit: Box<Audit>,
        /// Where.
        cards: Vec<GpuId>,
    },
    /// Its owner is told what happens unless it gets a lease.
    Warn {
        /// Which.
        stranger: UnleasedId,
        /// When.
        at: Time,
        /// When it happens.
        until: Time,
    },
    /// It and what descends from it get a signal.
    Strike {
        /// Which.
        stranger: UnleasedId,
        /// Which signal.
        signal: u8,
        /// When that was decided.
        at: Time,
        /// Who, all of them.
        processes: Vec<ProcKey>,
    },
    /// The signal has gone out, or was refused.
    Struck {
        /// Which.
        stranger: UnleasedId,
        /// Which signal.
        signal: u8,
        /// When.
        at: Time,
        /// To each of them.
        outcome: Vec<SignalOutcome>,
        /// It was decided before something else was: nothing counts from it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        late: bool,
    },
    /// It has a lease, by which it is taken off its cards.
    Take {
        /// Which.
        stranger: UnleasedId,
        /// Its lease.
        lease: LeaseId,
        /// When.
        at: Time,
    },
    /// It could not be taken off its cards, and stays there.
    NotMoved {
        /// Which.
        stranger: UnleasedId,
        /// When that was known.
        at: Time,
        /// Why.
        why: String,
    },
    /// Nothing more is done to it for now.
    Relent {
        /// Which.
        stranger: UnleasedId,
        /// When.
        at: Time,
        /// It is only looked into again, and counts as warned until then: it was not what had been audited. Said by
        /// earlier versions only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
    /// It survived SIGKILL.
    Survived {
        /// Which.
        stranger: UnleasedId,
        /// When.
        at: Time,
    },
    /// Its story is over.
    Close {
        /// Which.
        stranger: UnleasedId,
        /// When.
        at: Time,
        /// How.
        how: UnleasedEnd,
    },
    /// This is done about strangers on a card from now on.
    SetMode {
        /// Which card.
        card: GpuId,
        /// What.
        mode: Mode,
    },
    /// An operator's word about certain strangers.
    SetRule {
        /// All of it.
        rule: Rule,
    },
    /// That word holds no more.
    DropRule {
        /// Which.
        rule: RuleId,
    },
    /// An operator goes on without lines that are missing from the journal.
    AcceptLoss {
        /// What is known about them.
        loss: Loss,
    },
}

/// What turned a parked lease that did not wait into an ordinary waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// One of its programs submitted GPU work.
    Use,
    /// A user, or a request at its proxy, asked for it to be resumed.
    Resume,
    /// Something seen from outside suggests that it is used.
    Hint(Hint),
}

/// A sign, seen from outside, that a parked program is used. It may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// A user typed at its terminal while it was in the foreground there.
    Terminal,
    /// One of its threads called CUDA and waits for the call to return.
    BlockedCall,
}

/// Why a holder's bytes stayed on its cards, or came back to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnparkReason {
    /// The library in one of its programs said no.
    Refused(String),
    /// One of its programs did not answer in time.
    Silent,
    /// All of them said that the bytes are gone, and the cards say otherwise.
    NotSeen,
    /// The same where nobody tells whose bytes are whose: somebody else may have grown meanwhile.
    Unclear,
}

impl Action {
    /// A holder leaves by the library in its programs, for nobody, with nothing known of it.
    pub(crate) fn bare_park(lease: LeaseId, at: Time, booked: Bytes) -> Action {
        Action::Park {
            lease,
            at,
            booked,
            again: None,
            rung: Method::Shim,
            had: Bytes::ZERO,
            program: String::new(),
            room_for: None,
            aside: None,
            quiet: false,
            with_context: false,
            processes: Vec::new(),
        }
    }

    /// The lease it concerns, if one.
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Action::Queue { lease, .. }
            | Action::Grant { lease, .. }
            | Action::Renew { lease, .. }
            | Action::Bind { lease, .. }
            | Action::Park { lease, .. }
            | Action::Unpark { lease, .. }
            | Action::Parked { lease, .. }
            | Action::Want { lease, .. }
            | Action::Resume { lease, .. }
            | Action::Retreat { lease, .. }
            | Action::Deepen { lease, .. }
            | Action::Shallow { lease, .. }
            | Action::Died { lease, .. }
            | Action::Resumed { lease, .. }
            | Action::Over { lease, .. }
            | Action::Within { lease }
            | Action::Grow { lease, .. }
            | Action::Notice { lease, .. }
            | Action::Spare { lease }
            | Action::Signal { lease, .. }
            | Action::End { lease, .. }
            | Action::Retire { lease, .. } => Some(*lease),
            _ => None,
        }
    }

    /// The other lease that it makes room for, if one.
    pub fn room_for(&self) -> Option<LeaseId> {
        match self {
            Action::Park { room_for, .. } => *room_for,
            Action::Notice { lease, room_for, .. } if room_for != lease => Some(*room_for),
            _ => None,
        }
    }

    /// The stranger it concerns, if one.
    pub fn stranger(&self) -> Option<UnleasedId> {
        match self {
            Action::Find { stranger } => Some(stranger.id),
            Action::Reaudit { stranger, .. }
            | Action::Warn { stranger, .. }
            | Action::Strike { stranger, .. }
            | Action::Struck { stranger, .. }
            | Action::Take { stranger, .. }
            | Action::NotMoved { stranger, .. }
            | Action::Relent { stranger, .. }
            | Action::Survived { stranger, .. }
            | Action::Close { stranger, .. } => Some(*stranger),
            _ => None,
        }
    }

    /// Its kind, as in its JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Start { .. } => "start",
            Action::Grace { .. } => "grace",
            Action::Enrol { .. } => "enrol",
            Action::Regroup { .. } => "regroup",
            Action::Day { .. } => "day",
            Action::List { .. } => "list",
            Action::Serve { .. } => "serve",
            Action::SetAside { .. } => "set_aside",
            Action::EndAside { .. } => "end_aside",
            Action::Queue { .. } => "queue",
            Action::Grant { .. } => "grant",
            Action::Renew { .. } => "renew",
            Action::Bind { .. } => "bind",
            Action::Park { .. } => "park",
            Action::Unpark { .. } => "unpark",
            Action::Parked { .. } => "parked",
            Action::Want { .. } => "want",
            Action::Resume { .. } => "resume",
            Action::Retreat { .. } => "retreat",
            Action::Deepen { .. } => "deepen",
            Action::Shallow { .. } => "shallow",
            Action::Died { .. } => "died",
            Action::Resumed { .. } => "resumed",
            Action::Over { .. } => "over",
            Action::Within { .. } => "within",
            Action::Grow { .. } => "grow",
            Action::Notice { .. } => "notice",
            Action::Spare { .. } => "spare",
            Action::Signal { .. } => "signal",
            Action::End { .. } => "end",
            Action::Retire { .. } => "retire",
            Action::IssueToken { .. } => "issue_token",
            Action::RevokeToken { .. } => "revoke_token",
            Action::Find { .. } => "find",
            Action::Reaudit { .. } => "reaudit",
            Action::Warn { .. } => "warn",
            Action::Strike { .. } => "strike",
            Action::Struck { .. } => "struck",
            Action::Take { .. } => "take",
            Action::NotMoved { .. } => "not_moved",
            Action::Relent { .. } => "relent",
            Action::Survived { .. } => "survived",
            Action::Close { .. } => "close",
            Action::SetMode { .. } => "set_mode",
            Action::SetRule { .. } => "set_rule",
            Action::DropRule { .. } => "drop_rule",
            Action::AcceptLoss { .. } => "accept_loss",
        }
    }
}
