//! What happened in the world, in the past tense, and what is answered to it.

use crate::model::aside::{KEY_MAX, PER_GPU};
use crate::model::facts::{DaemonEvent, GpuEvent, LeaseEvent, TokenEvent, UnleasedEvent};
use crate::model::ids::{Fence, LeaseId};
use crate::model::loss::Loss;
use crate::model::movers::NotParkable;
use crate::model::quota::QuotaBlock;
use crate::model::request::{LeaseRequest, RequestError};
use crate::model::settings::AsideAllow;
use crate::model::token::{Token, TokenError};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::Rule;
use std::fmt;

pub use crate::model::aside::AsideRequest;
pub use crate::model::caller::Caller;

/// Something that happened. The facts themselves are in [`crate::model::facts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// About the daemon, its host or its configuration.
    Daemon(DaemonEvent),
    /// About GPUs.
    Gpu(GpuEvent),
    /// About a lease, or a request for one.
    Lease(LeaseEvent),
    /// About tokens.
    Token(TokenEvent),
    /// About unleased processes, or rules.
    Unleased(UnleasedEvent),
}

/// An event of one kind is an event.
macro_rules! from_kind {
    ($($kind:ident($event:ty)),*) => {
        $(impl From<$event> for Event {
            fn from(event: $event) -> Event {
                Event::$kind(event)
            }
        })*
    };
}

from_kind!(Daemon(DaemonEvent), Gpu(GpuEvent), Lease(LeaseEvent), Token(TokenEvent), Unleased(UnleasedEvent));

/// What is said to whoever caused an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventAnswer {
    /// Noted.
    Done,
    /// The loss that was accepted.
    LossAccepted(Loss),
    /// It concerns this lease; look at the state for where it is now.
    Lease(LeaseId),
    /// It concerned this token.
    Token(Box<Token>),
    /// It concerned this rule.
    Rule(Box<Rule>),
    /// No, and why.
    Refused(Refusal),
}

/// Why something is refused: few, and each says what the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The wish makes no sense.
    BadAsk(RequestError),
    /// No such lease, or another tenant's: nobody can tell which.
    NoSuchLease,
    /// No such card.
    NoSuchCard,
    /// Only an operator may.
    NotOperator,
    /// The caller may not put a GPU aside, by this rule.
    MayNotPutAside(AsideAllow),
    /// The request that a GPU steps aside makes no sense.
    BadAside,
    /// The caller has no such aside any more.
    NoSuchAside,
    /// This tenant put the GPU aside, and only this tenant or an operator may end that.
    AnothersAside(String),
    /// There are as many asides on this GPU as may be.
    TooManyAsides,
    /// An old epoch.
    Fenced {
        /// What the call carried.
        given: Fence,
        /// What the lease is at.
        current: Fence,
    },
    /// The lease is over.
    Ended,
    /// The lease was not granted yet.
    StillWaiting,
    /// A renewed lease may not go longer without showing life than others must wait for it.
    TtlTooLong {
        /// The longest that is allowed.
        longest: Span,
    },
    /// More processes are bound to the lease than may be.
    TooManyProcesses,
    /// The process belongs to a lease whose bytes are off its cards, or on their way: to which, if the caller may know.
    ProcessAway(Option<LeaseId>),
    /// No card was ever seen on this host.
    NoCards,
    /// Not one of the cards that would do is large enough, or there are too few.
    NeverFits {
        /// The largest that could ever be leased there; `None` if no card would do at all.
        largest: Option<Bytes>,
        /// How many cards would do by name.
        cards: u32,
    },
    /// Less than a CUDA context alone.
    BelowContext {
        /// What a context takes.
        context: Bytes,
    },
    /// A quota does not allow it: never, or not today.
    OverQuota(QuotaBlock),
    /// The holder cannot be parked now.
    NotParkable(NotParkable),
    /// The lease does not wait any more.
    NotWaiting,
    /// That cannot start now.
    NoSuchOffer {
        /// What can, of how many cards.
        instead: Option<(Bytes, u16)>,
    },
    /// The lease cannot be made so large.
    NotLarger {
        /// It could be made so large.
        instead: Option<Bytes>,
    },
    /// No room now, and it would not wait.
    NoRoom {
        /// The largest that one card could give now, of those that the ask names.
        largest: Bytes,
        /// That card's index; `None` if the ask names no card.
        gpu: Option<u32>,
    },
    /// No room now, and it would not wait: a GPU that would do steps aside.
    StepsAside {
        /// The driver's number of the GPU.
        index: u32,
        /// The tenant it steps aside for.
        by: String,
        /// When that is over at the latest.
        until: Time,
    },
    /// Too many wait already.
    QueueFull {
        /// Of this tenant's own making.
        own: bool,
    },
    /// No promise can be written down.
    DiskFull,
    /// Lines are missing from the journal, and no operator has accepted that yet.
    LossNotAccepted(Loss),
    /// There is no loss to accept.
    NoLoss,
    /// The wish for a token makes no sense.
    BadToken(TokenError),
    /// No such token, or another tenant's: nobody can tell which.
    NoSuchToken,
    /// Not through a token, whatever it may do otherwise.
    ThroughToken,
    /// The token was revoked while the call was on its way.
    TokenGone,
    /// No process of the caller's with this number is on a card without a lease.
    NoSuchStranger,
    /// That process cannot have a lease, and why.
    NotAdoptable(String),
    /// Strangers cannot be ended here, and why.
    CannotEnforce(String),
    /// The rule makes no sense.
    BadRule,
    /// There are as many rules as may be.
    TooManyRules,
    /// No such rule.
    NoSuchRule,
    /// There are as many tokens as may be.
    TooManyTokens {
        /// Of this tenant.
        own: bool,
    },
    /// Through this token no more leases may be had.
    TokenLeases {
        /// So many may.
        cap: u32,
    },
    /// Through this token not so many bytes may be had.
    TokenVram {
        /// So many may.
        cap: Bytes,
        /// So many are.
        has: Bytes,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::BadAsk(RequestError::Vram) => {
                f.write_str("`vram_bytes` must be at least 1 MiB and at most 1024 TiB")
            }
            Refusal::BadAsk(RequestError::Gpus) => write!(f, "`gpus` must be 1 to {}", LeaseRequest::GPUS_MAX),
            Refusal::BadAsk(RequestError::Term) => f.write_str("`ttl_s` must be 1 s to 1 day, `time_s` 1 s to 7 days"),
            Refusal::BadAsk(RequestError::Priority) => f.write_str("`priority` must be -10 to 10"),
            Refusal::BadAsk(RequestError::Name) => {
                write!(
                    f,
                    "`name` must be at most {} characters, without invisible, bidirectional and control characters",
                    LeaseRequest::NAME_MAX
                )
            }
            Refusal::BadAsk(RequestError::AtLeast) => {
                f.write_str("`accept_smaller_bytes` must be at least 1 byte and less than `vram_bytes`")
            }
            Refusal::BadAsk(RequestError::Notice) => {
                write!(
                    f,
                    "`notice` must be a signal that programs can catch, at most {} before the end",
                    LeaseRequest::NOTICE_MAX
                )
            }
            Refusal::BadAsk(RequestError::On) => write!(
                f,
                "`on` must be a GPU's index, its UUID, or part of its model, or up to {} of them with commas",
                LeaseRequest::GPUS_MAX
            ),
            Refusal::NoSuchLease => f.write_str("no such lease"),
            Refusal::NoSuchCard => f.write_str("no such GPU"),
            Refusal::NotOperator => f.write_str("only an operator may do this"),
            Refusal::MayNotPutAside(AsideAllow::Operators) => {
                f.write_str("only an operator may put a GPU aside on this host")
            }
            Refusal::MayNotPutAside(_) => {
                f.write_str("only a user at this host's seat, or an operator, may put a GPU aside")
            }
            Refusal::BadAside => {
                write!(
                    f,
                    "`for_s` must be 1 s to 1 day, `key` at most {KEY_MAX} letters, digits, `-`, `.`, `:` and `_`"
                )
            }
            Refusal::NoSuchAside => f.write_str("the GPU does not step aside for this any more"),
            Refusal::AnothersAside(by) => {
                write!(f, "the GPU steps aside for {by}, and only {by} or an operator may end that")
            }
            Refusal::TooManyAsides => {
                write!(f, "{PER_GPU} users or keys have put the GPU aside already, the most that are allowed")
            }
            Refusal::Fenced { given, current } => {
                write!(f, "the lease has fence {current}, but the call carried fence {given}")
            }
            Refusal::Ended => f.write_str("the lease has ended"),
            Refusal::StillWaiting => f.write_str("the lease was not granted yet"),
            Refusal::TtlTooLong { longest } => write!(f, "`ttl_s` may be at most {longest} here"),
            Refusal::TooManyProcesses => {
                f.write_str("the most processes that are allowed are bound to the lease already")
            }
            Refusal::ProcessAway(lease) => {
                let whose = lease.map_or_else(|| "another lease".to_owned(), |lease| lease.to_string());
                write!(f, "the process belongs to {whose}, which is parked, or being parked or resumed")
            }
            Refusal::NoCards => f.write_str("no GPU has been seen on this host"),
            Refusal::NeverFits { largest: None, .. } => f.write_str("no GPU here is the one that `on` names"),
            Refusal::NeverFits { largest: Some(largest), cards } => {
                write!(f, "this can never be granted (suitable GPUs: {cards}, largest lease there: {largest})")
            }
            Refusal::BelowContext { context } => {
                write!(f, "a CUDA context alone takes {context} on the GPU, and a lease includes it")
            }
            Refusal::OverQuota(held) => held.fmt(f),
            Refusal::NotParkable(why) => write!(f, "the holder cannot be parked: {why}"),
            Refusal::NotWaiting => f.write_str("the lease does not wait any more"),
            Refusal::NoSuchOffer { instead: None } => f.write_str("that cannot start now, and nothing smaller can"),
            Refusal::NoSuchOffer { instead: Some((vram, 1)) } => write!(f, "that cannot start now, but {vram} can"),
            Refusal::NoSuchOffer { instead: Some((vram, gpus)) } => {
                write!(f, "that cannot start now, but {vram} of each of {gpus} GPUs can")
            }
            Refusal::NotLarger { instead: None } => f.write_str("the lease cannot be made larger now"),
            Refusal::NotLarger { instead: Some(vram) } => {
                write!(f, "the lease can be enlarged to {vram} now, and not more")
            }
            Refusal::NoRoom { largest, .. } => write!(f, "there is no room now (largest possible: {largest})"),
            Refusal::StepsAside { index, by, until } => write!(f, "GPU {index} steps aside for {by} until {until}"),
            Refusal::QueueFull { own: true } => {
                f.write_str("you, or your group, have the most waiting requests that are allowed")
            }
            Refusal::QueueFull { own: false } => f.write_str("the queue is full"),
            Refusal::DiskFull => f.write_str("the disk is full, so no new lease can be promised"),
            Refusal::LossNotAccepted(_) => {
                f.write_str("lines of the journal are missing, so no lease is granted until an operator accepts that")
            }
            Refusal::NoLoss => f.write_str("no line of the journal is known to be missing"),
            Refusal::BadToken(bad) => bad.fmt(f),
            Refusal::NoSuchToken => f.write_str("no such token"),
            Refusal::ThroughToken => f.write_str("a token cannot make tokens"),
            Refusal::NoSuchStranger => f.write_str("no unleased process of yours with this id is on a GPU"),
            Refusal::NotAdoptable(why) => write!(f, "it cannot have a lease now: {why}"),
            Refusal::CannotEnforce(why) => write!(f, "unleased processes cannot be told apart here: {why}"),
            Refusal::BadRule => f.write_str(
                "a rule is about `exe:PATH`, `unit:NAME`, `container:ID` (12 characters at least) or `uid:N`",
            ),
            Refusal::TooManyRules => f.write_str("the most rules that are allowed exist already"),
            Refusal::NoSuchRule => f.write_str("no such rule"),
            Refusal::TokenGone => f.write_str("the token was revoked"),
            Refusal::TooManyTokens { own: true } => {
                write!(
                    f,
                    "there are {} tokens of this tenant, the most that are allowed",
                    crate::model::token::TOKENS_OF_TENANT
                )
            }
            Refusal::TooManyTokens { own: false } => {
                write!(f, "there are {} tokens, the most that are allowed", crate::model::token::TOKENS_MAX)
            }
            Refusal::TokenLeases { cap } => write!(f, "this token has {cap} leases, the most that it may have"),
            Refusal::TokenVram { cap, has } => {
                write!(f, "this token may lease {cap} and has {has}: the request is larger than the rest")
            }
        }
    }
}
