//! The flags that describe a wish for a lease.

use clap::{Args, ValueEnum};
use sublet_wire::{Ask, Exclusivity, Preempt, Tier, Vram, size, span};

/// What is wished for.
#[derive(Args, Clone, Debug)]
pub struct AskArgs {
    /// VRAM per card, such as 10G or 512M; without it, one whole card
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub vram: Option<u64>,
    /// How many cards, all granted together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus: u32,
    /// Only on this card (index or UUID), or on cards whose model contains this text
    #[arg(long, value_name = "CARD|MODEL")]
    pub on: Option<String>,
    /// A fixed term, such as 4h, instead of a lease that lasts while it is used
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub time: Option<u64>,
    /// How long the lease lasts after it was last used [default: the service's, 5 min]
    #[arg(long, value_name = "TIME", value_parser = parse_span, conflicts_with = "time")]
    pub ttl: Option<u64>,
    /// What to call it in lists
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Who goes first when not all fit
    #[arg(long, value_enum, value_name = "TIER", default_value_t = TierArg::Batch)]
    pub tier: TierArg,
    /// Within the tier: -10 (last) to 10 (first)
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-10..=10))]
    pub priority: i32,
    /// Less will do, down to this much per card, if that can start at once
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub accept_smaller: Option<u64>,
    /// What others who need the cards may do to it
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = PreemptArg::Park)]
    pub preempt: PreemptArg,
    /// How long to stay in the queue [default: a day]
    #[arg(long, value_name = "TIME", value_parser = parse_span, conflicts_with = "no_wait")]
    pub wait: Option<u64>,
    /// Granted now, or exit with 75
    #[arg(long)]
    pub no_wait: bool,
    /// Share the cards with nobody else's leases (session), or with no other lease at all (device)
    #[arg(long, value_enum, value_name = "HOW")]
    pub exclusive: Option<ExclusiveArg>,
    /// How CUDA_VISIBLE_DEVICES names the cards; some programs do not take UUIDs
    #[arg(long, value_enum, value_name = "NAMES", default_value_t = VisibleArg::Index)]
    pub visible: VisibleArg,
    /// Start programs without Sublet's library: they are not capped, and cannot be parked
    #[arg(long)]
    pub no_shim: bool,
}

/// `--tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TierArg {
    /// Somebody is looking at it
    Interactive,
    /// The ordinary case
    Batch,
    /// May be ended for anybody else
    Spot,
}

/// `--preempt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PreemptArg {
    /// Whatever loses nothing: the cards are not kept beyond the hold cap while others wait
    Park,
    /// Nothing, as long as they are used; takes a quota
    Never,
}

/// `--exclusive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExclusiveArg {
    /// Nobody else's work on the cards; one's own leases may join
    Session,
    /// No other lease on the cards at all
    Device,
}

/// `--visible`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VisibleArg {
    /// 0,1
    Index,
    /// GPU-…,GPU-…
    Uuid,
}

impl AskArgs {
    /// As it is sent; `pid` is bound at once, also while it waits.
    pub fn ask(&self, pid: Option<u32>) -> Ask {
        Ask {
            vram_bytes: self.vram.map_or(Vram::Whole, Vram::Bytes),
            gpus: self.gpus,
            ttl_s: self.ttl,
            time_s: self.time,
            tier: match self.tier {
                TierArg::Interactive => Tier::Interactive,
                TierArg::Batch => Tier::Batch,
                TierArg::Spot => Tier::Spot,
            },
            priority: self.priority,
            exclusivity: match self.exclusive {
                None => Exclusivity::Shared,
                Some(ExclusiveArg::Session) => Exclusivity::SessionExclusive,
                Some(ExclusiveArg::Device) => Exclusivity::DeviceExclusive,
            },
            preempt: match self.preempt {
                PreemptArg::Park => Preempt::Park,
                PreemptArg::Never => Preempt::Never,
            },
            at_least_bytes: self.accept_smaller,
            on: self.on.clone(),
            name: self.name.clone(),
            wait_s: if self.no_wait { Some(0) } else { self.wait },
            pid,
        }
    }
}

/// A size, with what to write instead if it is none.
pub fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

/// A length of time in seconds, with what to write instead if it is none.
pub fn parse_span(text: &str) -> Result<u64, String> {
    span::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}
