//! Values as text: the same words in every table and sentence.

use crate::table::Tone;
pub use sublet::client::state_text as lease_state;
use sublet_wire::{Exclusivity, GpuState, Lease, LeaseState, Tier, Vram, Waiting, size, span};

/// Shown where there is no value.
pub const NONE: &str = "-";

/// `16 GiB`, or `whole`.
pub fn vram(vram: Vram) -> String {
    match vram {
        Vram::Bytes(bytes) => size::show(bytes),
        Vram::Whole => "whole".into(),
    }
}

/// The total of a request: `16 GiB`, `2 whole gpus`.
pub fn wish(vram: Vram, gpus: u32) -> String {
    match (vram, gpus) {
        (Vram::Bytes(bytes), 1) => size::show(bytes),
        (Vram::Bytes(bytes), n) => format!("{} on each of {n} GPUs", size::show(bytes)),
        (Vram::Whole, 1) => "a whole GPU".into(),
        (Vram::Whole, n) => format!("{n} whole GPUs"),
    }
}

/// `16 GiB`, or `-` if the number is not known.
pub fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| NONE.into(), size::show)
}

/// `5 min`, or `-` if the time is not known.
pub fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| NONE.into(), span::show)
}

/// When a waiter starts: `expected in about 40 s (worst case 30 min)`, as far as that is known.
pub fn start(waiting: &Waiting) -> String {
    let worst = worst_case_s(waiting).map(|s| format!("worst case {}", span::show(s)));
    let planned = waiting.planned_s.map(span::show);
    match (waiting.expected_s, worst, planned) {
        (Some(s), Some(worst), _) => format!("expected in about {} ({worst})", span::show(s)),
        (Some(s), None, _) => format!("expected in about {}", span::show(s)),
        (None, Some(worst), _) => worst,
        (None, None, Some(planned)) => format!("in {planned} if no lease ends early"),
        (None, None, None) => "when it starts is not known".into(),
    }
}

/// The worst case of a waiter's start; `None` in lists, for which the daemon does not compute it.
pub fn worst_case_s(waiting: &Waiting) -> Option<f64> {
    waiting.bound.as_ref().and_then(|bound| bound.at_latest_s)
}

/// The time since a moment, or `-` if the moment is not known.
pub fn since(unix_s: Option<f64>, now_unix_s: f64) -> String {
    seconds(unix_s.map(|then| now_unix_s - then))
}

/// A text, or `-` if it is missing or empty.
pub fn or_none(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or(NONE).to_owned()
}

/// The tier as it is typed after `--tier`.
pub fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Interactive => "interactive",
        Tier::Batch => "batch",
        Tier::Spot => "spot",
    }
}

/// Which leases it may share its GPU with.
pub fn exclusivity(exclusivity: Exclusivity) -> &'static str {
    match exclusivity {
        Exclusivity::Shared => "shared",
        Exclusivity::SessionExclusive => "no other user on its GPUs",
        Exclusivity::DeviceExclusive => "no other lease on its GPUs",
    }
}

/// The state of a GPU.
pub fn gpu_state(state: GpuState) -> &'static str {
    match state {
        GpuState::InService => "in service",
        GpuState::Aside => "stepping aside",
        GpuState::Draining => "draining",
        GpuState::OutOfService => "out of service",
        GpuState::Unusable => "unusable",
        GpuState::Missing => "missing",
    }
}

/// `GPU 0`, `GPUs 0, 1`.
pub fn gpus(indices: &[u32]) -> String {
    let list: Vec<String> = indices.iter().map(u32::to_string).collect();
    let noun = if list.len() == 1 { "GPU" } else { "GPUs" };
    format!("{noun} {}", list.join(", "))
}

/// The memory and GPUs granted to a lease: `8 GiB on GPU 0`, `8 GiB on each of GPUs 0, 1`.
pub fn granted(lease: &Lease) -> String {
    let each = if lease.gpu_indices.len() > 1 { "each of " } else { "" };
    format!("{} on {each}{}", bytes(lease.vram_bytes), gpus(&lease.gpu_indices))
}

/// `L1`, `L1 and L2`, `L1, L2 and 5 more`: at most four are named.
pub fn names(ids: &[&str]) -> String {
    match ids {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] if ids.len() <= NAMED_MAX => format!("{} and {last}", first.join(", ")),
        _ => format!("{} and {} more", ids[..NAMED_MAX - 1].join(", "), ids.len() + 1 - NAMED_MAX),
    }
}

/// The most ids that a sentence names.
const NAMED_MAX: usize = 4;

/// The reason of a wait without the number of requests ahead, which the place in the queue already tells.
pub fn obstacle(why: &str) -> &str {
    match why.split_once(" ahead; ") {
        Some((ahead, obstacle)) if ahead.starts_with(|c: char| c.is_ascii_digit()) => obstacle,
        _ => why,
    }
}

/// How much attention a lease in this state needs.
pub fn lease_tone(lease: &Lease) -> Tone {
    match lease.state {
        _ if lease.overuse.is_some() => Tone::Wrong,
        LeaseState::Active | LeaseState::Ended => Tone::Plain,
        _ => Tone::Notable,
    }
}

/// `1 lease`, `2 leases`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// `1 process`, `2 processes`.
pub fn count_of(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

/// The wall-clock time in Unix seconds.
pub fn now_unix_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
