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
    /// As it would be typed: only what is not the default.
    pub fn words(&self) -> Vec<String> {
        // Every field by name: a flag that is added must not be forgotten here.
        let AskArgs {
            vram,
            gpus,
            on,
            time,
            ttl,
            name,
            tier,
            priority,
            accept_smaller,
            preempt,
            wait,
            no_wait,
            exclusive,
            visible,
            no_shim,
        } = self;
        let mut words = Words::default();
        words.add("vram", vram.map(typed_size));
        words.add("gpus", (*gpus != 1).then(|| gpus.to_string()));
        words.add("on", on.clone());
        words.add("time", time.map(typed_span));
        words.add("ttl", ttl.map(typed_span));
        words.add("name", name.clone());
        words.add("tier", (*tier != TierArg::Batch).then(|| choice(tier)));
        words.add("priority", (*priority != 0).then(|| priority.to_string()));
        words.add("accept-smaller", accept_smaller.map(typed_size));
        words.add("preempt", (*preempt != PreemptArg::Park).then(|| choice(preempt)));
        words.add("wait", wait.map(typed_span));
        if *no_wait {
            words.0.push("--no-wait".to_owned());
        }
        words.add("exclusive", exclusive.as_ref().map(choice));
        words.add("visible", (*visible != VisibleArg::Index).then(|| choice(visible)));
        if *no_shim {
            words.0.push("--no-shim".to_owned());
        }
        words.0
    }

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
            yields: false,
            may_lose: false,
            notice: None,
            at_least_bytes: self.accept_smaller,
            on: self.on.clone(),
            name: self.name.clone(),
            wait_s: if self.no_wait { Some(0) } else { self.wait },
            pid,
        }
    }
}

/// Flags and their values, one after the other.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn add(&mut self, flag: &str, value: Option<String>) {
        match value {
            None => {}
            // What begins with a dash would be taken for a flag of its own.
            Some(value) if value.starts_with('-') => self.0.push(format!("--{flag}={value}")),
            Some(value) => self.0.extend([format!("--{flag}"), value]),
        }
    }
}

fn choice(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Exactly these bytes, as they are typed: `9G`, `768M`.
pub fn typed_size(bytes: u64) -> String {
    let units = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    let (one, unit) = units.into_iter().find(|(one, _)| bytes.is_multiple_of(*one)).unwrap_or((1, 'B'));
    format!("{}{unit}", bytes / one)
}

/// Exactly so many seconds, as they are typed: `4h`, `90m`.
fn typed_span(seconds: u64) -> String {
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let (one, unit) =
        units.into_iter().find(|(one, _)| seconds > 0 && seconds.is_multiple_of(*one)).unwrap_or((1, 's'));
    format!("{}{unit}", seconds / one)
}

/// A size, with what to write instead if it is none.
pub fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

/// A length of time in seconds, with what to write instead if it is none.
pub fn parse_span(text: &str) -> Result<u64, String> {
    span::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        ask: AskArgs,
    }

    fn words(line: &str) -> String {
        let line = Line::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).unwrap();
        line.ask.words().join(" ")
    }

    #[test]
    fn what_was_typed_can_be_typed_again() {
        assert_eq!(words(""), "");
        assert_eq!(words("--vram 8GiB --gpus 1 --tier batch"), "--vram 8G", "defaults need not be said");
        let all = "--vram 1536M --gpus 2 --on H200 --time 90m --name train --tier spot --priority 3 \
                   --accept-smaller 1000B --preempt never --wait 1d --exclusive device --visible uuid";
        assert_eq!(words(all), all);
        let others = "--vram 1T --ttl 45s --name=-x --priority=-3 --no-wait --exclusive session";
        assert_eq!(words(others), others);
        assert_eq!(words("--wait 0s --time 36h --vram 1.5G"), "--vram 1536M --time 36h --wait 0s");
    }
}
