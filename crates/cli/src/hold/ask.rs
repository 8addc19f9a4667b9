//! The flags that describe a request for a lease.

use super::hook::{Hook, WITHIN_S};
use super::notice;
use super::outer::NewLease;
use super::watch::LeaseHooks;
use crate::completion;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use std::time::Duration;
use sublet_wire::{Exclusivity, LeaseRequest, Notice, Preempt, Tier, Vram, size, span};

/// The smallest lease that a daemon grants.
const VRAM_MIN: u64 = 1 << 20;
/// The value of `--requeue` without a number: no limit.
const ALWAYS: u32 = u32::MAX;
/// The help heading of the flags about preemption.
const ROOM: &str = "When others need the GPUs";

/// What is wished for.
#[derive(Args, Clone, Debug)]
pub struct AskArgs {
    /// VRAM per GPU, such as 10G or 512M; without it, one whole GPU
    #[arg(long, value_name = "SIZE", value_parser = parse_vram, allow_hyphen_values = true)]
    pub vram: Option<u64>,
    /// How many GPUs, all granted together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_gpus)]
    pub gpus: u32,
    /// Only on this GPU (index or UUID), or on GPUs with this text in their model; several with commas
    #[arg(long, value_name = "GPU|MODEL", hide_short_help = true, add = completion::gpu())]
    pub on: Option<String>,
    /// A fixed term, such as 4h, instead of a lease that lasts while it is used
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub time: Option<u64>,
    /// How long the lease lasts after it was last used [default: the daemon's, 5 min]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, conflicts_with = "time", hide_short_help = true)]
    pub ttl: Option<u64>,
    /// The name of the lease in lists
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Which requests are served first
    #[arg(long, value_enum, value_name = "TIER", default_value_t = TierArg::Batch)]
    pub tier: TierArg,
    /// Within the tier: -10 (last) to 10 (first)
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
          value_parser = parse_priority, hide_short_help = true)]
    pub priority: i32,
    /// A smaller lease will do, down to this much per GPU, if it can start at once
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_hyphen_values = true)]
    pub accept_smaller: Option<u64>,
    /// What may be done to the lease when other requests need the GPU [default: park, but end at --tier spot]
    #[arg(long, value_enum, value_name = "WHAT", help_heading = ROOM, hide_short_help = true)]
    pub preempt: Option<PreemptArg>,
    /// What makes the program free its VRAM: `POST http://HOST:PORT/PATH [JSON]`, `unix:/PATH MESSAGE`, or
    /// a command line for sh
    #[arg(long, value_name = "HOOK", help_heading = ROOM, hide_short_help = true)]
    pub on_park: Option<Hook>,
    /// What makes the program allocate its VRAM again, when its GPUs are available again
    #[arg(long, value_name = "HOOK", requires = "on_park", help_heading = ROOM, hide_short_help = true)]
    pub on_resume: Option<Hook>,
    /// How long a hook may take before it counts as failed, and a command is killed; at most 2m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_bound, requires = "on_park", help_heading = ROOM, hide_short_help = true)]
    pub hook_timeout: Option<u64>,
    /// Which signal its programs get before the lease ends, and how many seconds before [default: 60],
    /// such as USR1@120: when it is to end for others (then SIGTERM, then SIGKILL), and when its --time
    /// is over (then nothing: the programs go on without a lease). Only processes that catch the signal get
    /// it; if none does, the command gets SIGTERM instead, unless it ignores the signal. Processes of other
    /// users (sudo) get none. One of HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG, WINCH
    #[arg(long, value_name = "SIGNAL[@S]", value_parser = notice::parse, help_heading = ROOM, hide_short_help = true)]
    pub signal: Option<Notice>,
    /// Request and start again after the command was ended for others: each time, or at most N times
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "always",
          value_parser = parse_times, help_heading = ROOM, hide_short_help = true)]
    pub requeue: Option<u32>,
    /// Let the driver park the lease even if a restore could fail, which would end its programs
    #[arg(long, help_heading = ROOM, hide_short_help = true)]
    pub may_lose: bool,
    /// How long to stay in the queue [default: a day]
    #[arg(long, value_name = "TIME", value_parser = parse_span, conflicts_with = "no_wait")]
    pub wait: Option<u64>,
    /// Do not wait: exit with 75 if no lease can be granted now
    #[arg(long)]
    pub no_wait: bool,
    /// Share the GPUs with no other user's leases (session), or with no other lease at all (device)
    #[arg(long, value_enum, value_name = "HOW", hide_short_help = true)]
    pub exclusive: Option<ExclusiveArg>,
    /// How CUDA_VISIBLE_DEVICES names the GPUs; some programs do not take UUIDs
    #[arg(long, value_enum, value_name = "NAMES", default_value_t = VisibleArg::Index, hide_short_help = true)]
    pub visible: VisibleArg,
    /// Also where this shell has a lease already: ask for a separate one, instead of using that
    #[arg(long, hide_short_help = true)]
    pub new_lease: bool,
    /// Start programs without Sublet's library: they are not capped, and cannot be parked
    #[arg(long, hide_short_help = true)]
    pub no_shim: bool,
}

/// `--tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TierArg {
    /// A user is looking at it
    Interactive,
    /// The ordinary case
    Batch,
    /// May be ended for any other request
    Spot,
}

impl From<TierArg> for Tier {
    fn from(tier: TierArg) -> Tier {
        match tier {
            TierArg::Interactive => Tier::Interactive,
            TierArg::Batch => Tier::Batch,
            TierArg::Spot => Tier::Spot,
        }
    }
}

/// `--preempt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PreemptArg {
    /// Park it and resume it later; never end it
    Park,
    /// Also end it: a notice, SIGTERM, SIGKILL
    End,
    /// Never preempt it while it is used; needs the quota `never`
    Never,
}

/// `--exclusive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExclusiveArg {
    /// No other user's work on the GPUs; your own leases may join
    Session,
    /// No other lease on the GPUs at all
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
    /// The flags as they would be typed, without those at their default.
    pub fn words(&self) -> Vec<String> {
        // The pattern names every field, so that a new flag cannot be forgotten here.
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
            on_park,
            on_resume,
            hook_timeout,
            signal,
            requeue,
            may_lose,
            wait,
            no_wait,
            exclusive,
            visible,
            new_lease,
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
        words.add("preempt", preempt.as_ref().map(choice));
        words.add("on-park", on_park.as_ref().map(Hook::to_string));
        words.add("on-resume", on_resume.as_ref().map(Hook::to_string));
        words.add("hook-timeout", hook_timeout.map(typed_span));
        words.add("signal", signal.as_ref().map(notice::typed));
        words.0.extend(requeue.map(|times| match times {
            ALWAYS => "--requeue".to_owned(),
            times => format!("--requeue={times}"),
        }));
        if *may_lose {
            words.0.push("--may-lose".to_owned());
        }
        words.add("wait", wait.map(typed_span));
        if *no_wait {
            words.0.push("--no-wait".to_owned());
        }
        words.add("exclusive", exclusive.as_ref().map(choice));
        words.add("visible", (*visible != VisibleArg::Index).then(|| choice(visible)));
        if *new_lease {
            words.0.push("--new-lease".to_owned());
        }
        if *no_shim {
            words.0.push("--no-shim".to_owned());
        }
        words.0
    }

    /// The request as it is sent. `pid` is bound to it at once, also while it waits.
    pub fn ask(&self, pid: Option<u32>) -> LeaseRequest {
        LeaseRequest {
            vram_bytes: self.vram.map_or(Vram::Whole, Vram::Bytes),
            gpus: self.gpus,
            ttl_s: self.ttl,
            time_s: self.time,
            tier: self.tier.into(),
            priority: self.priority,
            exclusivity: match self.exclusive {
                None => Exclusivity::Shared,
                Some(ExclusiveArg::Session) => Exclusivity::SessionExclusive,
                Some(ExclusiveArg::Device) => Exclusivity::DeviceExclusive,
            },
            preempt: self.preempt.map(|preempt| match preempt {
                PreemptArg::Park => Preempt::Park,
                PreemptArg::End => Preempt::End,
                PreemptArg::Never => Preempt::Never,
            }),
            has_hook: self.on_park.is_some(),
            may_lose: self.may_lose,
            notice: self.signal.clone(),
            accept_smaller_bytes: self.accept_smaller,
            on: self.on.clone(),
            name: self.name.clone(),
            wait_s: if self.no_wait { Some(0) } else { self.wait },
            pid: pid.map(Into::into),
        }
    }
}

impl AskArgs {
    /// Refuses flags that contradict each other.
    pub fn check(&self) -> Result<(), Failure> {
        match (self.accept_smaller, self.vram) {
            (Some(least), Some(vram)) if least >= vram => {
                let (least, vram) = (typed_size(least), typed_size(vram));
                Err(Failure::usage(format!("`--accept-smaller {least}` is not smaller than `--vram {vram}`"))
                    .hint("give a smaller size, or leave `--accept-smaller` out"))
            }
            _ => Ok(()),
        }
    }

    /// The hooks that the wrapper runs when the GPUs are needed; `None` without `--on-park`.
    pub fn hooks(&self) -> Option<LeaseHooks> {
        Some(LeaseHooks {
            on_park: self.on_park.clone()?,
            on_resume: self.on_resume.clone(),
            within: Duration::from_secs(self.hook_timeout.unwrap_or(WITHIN_S)),
        })
    }

    /// Whether a lease that this process already has is enough.
    pub fn wanted(&self) -> NewLease {
        if self.new_lease { NewLease::Always } else { NewLease::IfNone }
    }

    /// The first given flag that needs a wrapper for the whole life of the lease, if any.
    pub fn needs_wrapper(&self) -> Option<&'static str> {
        match (&self.on_park, self.requeue) {
            (Some(_), _) => Some("--on-park"),
            (None, Some(_)) => Some("--requeue"),
            (None, None) => None,
        }
    }
}

/// Flags and their values, in order.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn add(&mut self, flag: &str, value: Option<String>) {
        match value {
            None => {}
            // A separate value that begins with a dash would be read as a flag.
            Some(value) if value.starts_with('-') => self.0.push(format!("--{flag}={value}")),
            Some(value) => self.0.extend([format!("--{flag}"), value]),
        }
    }
}

fn choice(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A number of bytes as it is typed, exactly: `9G`, `768M`.
pub fn typed_size(bytes: u64) -> String {
    let units = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    let (one, unit) = units.into_iter().find(|(one, _)| bytes.is_multiple_of(*one)).unwrap_or((1, 'B'));
    format!("{}{unit}", bytes / one)
}

/// A number of seconds as it is typed, exactly: `4h`, `90m`.
fn typed_span(seconds: u64) -> String {
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let (one, unit) =
        units.into_iter().find(|(one, _)| seconds > 0 && seconds.is_multiple_of(*one)).unwrap_or((1, 's'));
    format!("{}{unit}", seconds / one)
}

/// Parses a size; the error says what to write instead.
pub fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

/// Parses the size of a lease.
fn parse_vram(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < VRAM_MIN => Err("a lease is for 1M or more of each GPU\nhint: such as 10G or 512M".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a length of time in seconds; the error says what to write instead.
pub fn parse_span(text: &str) -> Result<u64, String> {
    span::parse(text).map_err(|error| format!("{error}\nhint: {}", error.hint()))
}

/// Parses a number of GPUs.
pub fn parse_gpus(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=64).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number of GPUs from 1 to 64\nhint: `sublet gpus` lists them"))
}

/// Parses the priority within a tier; higher numbers go first.
fn parse_priority(text: &str) -> Result<i32, String> {
    let number = text.parse().ok().filter(|number| (-10..=10).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a priority from -10 to 10\nhint: 10 goes first, -10 last"))
}

/// Parses a fixed term in seconds.
fn parse_time(text: &str) -> Result<u64, String> {
    match parse_span(text)? {
        seconds @ 1..=604_800 => Ok(seconds),
        _ => Err("a fixed term is from 1s to 7d\nhint: without `--time` a lease lasts while it is used".to_owned()),
    }
}

/// Parses in seconds how long a lease lasts unused.
fn parse_ttl(text: &str) -> Result<u64, String> {
    match parse_span(text)? {
        seconds @ 1..=86_400 => Ok(seconds),
        _ => {
            Err("a lease lasts from 1s to 1d after it was used\nhint: `--time` asks for a longer, fixed term"
                .to_owned())
        }
    }
}

/// Parses the time limit of a hook in seconds. It is short, because the waiter for the GPUs waits for the hook.
fn parse_bound(text: &str) -> Result<u64, String> {
    match parse_span(text)? {
        seconds @ 1..=120 => Ok(seconds),
        _ => Err("a hook may take from 1s to 2m\nhint: others wait for the GPUs meanwhile".to_owned()),
    }
}

/// Parses a number of times, or `always`.
fn parse_times(text: &str) -> Result<u32, String> {
    match (text, text.parse()) {
        ("always", _) => Ok(ALWAYS),
        (_, Ok(times @ 1..=1000)) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(times),
        _ => Err(format!("`{text}` is not a number from 1 to 1000\nhint: without a number it is each time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ProgressLine {
        #[command(flatten)]
        ask: AskArgs,
    }

    fn words(line: &str) -> String {
        let line = ProgressLine::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).unwrap();
        line.ask.words().join(" ")
    }

    #[test]
    fn what_was_typed_can_be_typed_again() {
        assert_eq!(words(""), "");
        assert_eq!(words("--vram 8GiB --gpus 1 --tier batch"), "--vram 8G", "defaults need not be said");
        let all = "--vram 1536M --gpus 2 --on H200 --time 90m --name train --tier spot --priority 3 \
                   --accept-smaller 1000B --preempt never --wait 1d --exclusive device --visible uuid";
        assert_eq!(words(all), all);
        let room = "--preempt end --signal USR2@90 --requeue=3 --may-lose";
        assert_eq!(words(room), room);
        assert_eq!(words("--signal SIGUSR1@60 --requeue"), "--signal USR1 --requeue");
        let others = "--vram 1T --ttl 45s --name=-x --priority=-3 --no-wait --exclusive session --new-lease";
        assert_eq!(words(others), others);
        assert_eq!(words("--wait 0s --time 36h --vram 1.5G"), "--vram 1536M --time 36h --wait 0s");
    }
    #[test]
    fn hooks_stay_as_they_were_typed() {
        let typed = ["--on-park", "curl -X POST 'http://x/y z'", "--on-resume", "unix:/s wake", "--hook-timeout", "5s"];
        let line = ProgressLine::try_parse_from(["x"].into_iter().chain(typed)).unwrap();
        assert_eq!(line.ask.words(), typed);
        assert_eq!(line.ask.hooks().map(|hooks| hooks.within), Some(Duration::from_secs(5)));
        assert!(line.ask.ask(None).has_hook);
        assert_eq!(line.ask.needs_wrapper(), Some("--on-park"));
    }

    #[test]
    fn hooks_that_make_no_sense_are_refused_before_anybody_asks() {
        for line in [
            &["--on-resume", "true"][..],
            &["--hook-timeout", "5s"],
            &["--on-park", ""],
            &["--on-park", "true", "--hook-timeout", "0s"],
            &["--on-park", "true", "--hook-timeout", "1h"],
            &["--on-park", "POST https://x/"],
            &["--requeue=0"],
            &["--requeue=many"],
            &["--signal", "KILL"],
        ] {
            assert!(ProgressLine::try_parse_from(["x"].iter().chain(line)).is_err(), "{line:?}");
        }
    }
}
