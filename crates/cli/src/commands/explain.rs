//! `sublet explain`: why a lease waits, which requests are ahead, what would have to end.

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::completion;
use crate::failure::Failure;
use crate::hold::line;
use crate::output;
use crate::table::{Table, TextFormat, once, plain, wrapped};
use crate::text;
use clap::Args;
use std::fmt::Write as _;
use sublet_wire::{
    Ahead, Blocker, Bound, Explanation, GpuExplanation, Lease, PreemptionCost, Vram, Waiting, exit, size, span,
};

/// Say why a lease waits: what is ahead, what would have to end
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// Its id, such as L7, or its name
    #[arg(add = completion::any_lease())]
    lease: LeaseName,
}

/// Runs `sublet explain`.
pub fn run(globals: &Globals, args: &ExplainArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let id = client.id_of(&args.lease)?;
    let found = client.get(&format!("/v1/leases/{id}/explain"));
    let explanation: Explanation = found.map_err(|failure| failure.about(&id))?;
    if globals.json {
        output::json(&explanation)?;
    } else {
        output::print(&render(&explanation, TextFormat::of_stdout()))?;
    }
    Ok(exit::OK)
}

fn render(explanation: &Explanation, format: TextFormat) -> String {
    let mut sections = vec![prose(&format!("{}\n{}", heading(explanation), asked(&explanation.lease)), format)];
    if let Some(waiting) = &explanation.lease.waiting {
        let preemption =
            explanation.preemption.as_ref().map_or_else(String::new, |text| format!("preemption: {text}\n"));
        sections.push(prose((preemption + &outlook(&explanation.lease, waiting)).trim_end(), format));
    }
    if !explanation.ahead.is_empty() {
        sections.push(ahead(&explanation.ahead, format));
    }
    sections.extend(explanation.gpus.iter().map(|why| gpu(why, &explanation.summary, format)));
    sections.join("\n")
}

/// Sentences, each on a line of its own, with a newline at the end.
fn prose(text: &str, format: TextFormat) -> String {
    wrapped(text, 2, format) + "\n"
}

fn heading(explanation: &Explanation) -> String {
    let lease = &explanation.lease;
    match (&lease.waiting, &lease.ended) {
        (Some(_), _) => line::waiting(lease).to_string(),
        // The sentence about an end already names the lease.
        (None, Some(_)) => explanation.summary.clone(),
        (None, None) => {
            let name = lease.name.as_ref().map_or_else(String::new, |name| format!(" ({})", plain(name)));
            let summary = match explanation.summary.strip_prefix("it is ") {
                Some(state) => format!(" is {state}"),
                None => format!(": {}", explanation.summary),
            };
            format!("{}{name}{summary}{}", lease.id, leased(lease))
        }
    }
}

/// The memory and GPUs that a lease has; empty if it has none.
fn leased(lease: &Lease) -> String {
    let Some(vram) = lease.vram_bytes else { return String::new() };
    let each = if lease.gpu_indices.len() > 1 { " each" } else { "" };
    let (vram, gpus) = (size::show(vram), text::gpus(&lease.gpu_indices));
    let left = lease.remaining_s.map_or_else(String::new, |s| format!(", {} left", span::show(s)));
    let stays = lease.not_parkable.iter().map(|why| format!("\ncannot be parked now: {why}"));
    let others = lease.foreign_processes.iter().map(|others| format!("\nother users: {others}"));
    format!("\nleased: {vram}{each} on {gpus}{left}") + &stays.chain(others).collect::<String>()
}

fn asked(lease: &Lease) -> String {
    let what = text::wish(lease.requested_vram_bytes, lease.gpus);
    let mut line = format!("requested: {what}, {}", text::tier(lease.tier));
    if lease.priority != 0 {
        // Writing to a string cannot fail.
        let _ = write!(line, ", priority {}", lease.priority);
    }
    if lease.exclusivity != sublet_wire::Exclusivity::Shared {
        let _ = write!(line, ", {}", text::exclusivity(lease.exclusivity));
    }
    if lease.fixed_term {
        let _ = write!(line, ", for {}", span::show(lease.ttl_s as f64));
    }
    line
}

/// The offers that could start now, and the latest start of the full lease.
fn outlook(lease: &Lease, waiting: &Waiting) -> String {
    let mut text = String::new();
    for (n, offer) in waiting.offers.iter().enumerate() {
        let what = text::wish(Vram::Bytes(offer.vram_bytes), offer.gpus);
        let limit = offer.over_in_s.map_or_else(String::new, |s| format!(", if it is over within {}", span::show(s)));
        let how = if n == 0 { format!("   sublet accept {}", lease.id) } else { String::new() };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "offered now: {what}{limit}{how}");
    }
    if waiting.offers.is_empty() {
        text.push_str("offered now: nothing smaller can start\n");
    }
    let _ = writeln!(text, "start: {}", start(waiting));
    text
}

/// The expected start, and the worst case.
fn start(waiting: &Waiting) -> String {
    let mut parts = Vec::new();
    if let (Some(expected), Some(p90)) = (waiting.expected_s, waiting.expected_p90_s) {
        parts.push(format!("expected in about {} (90 %: within {})", span::show(expected), span::show(p90)));
    }
    match &waiting.bound {
        Some(Bound { at_latest_s: Some(latest), settled_in_s, .. }) => {
            let settled = settled_in_s.filter(|settled| *settled > 0.0);
            let later = settled.map_or_else(String::new, |settled| {
                format!(" (more urgent requests made in the next {} may go first)", span::show(settled))
            });
            parts.push(format!("worst case {}{later}", span::show(*latest)));
        }
        Some(Bound { why_none: Some(why), .. }) => parts.push(format!("no worst case, because {why}")),
        _ => {}
    }
    if parts.is_empty() { "not known".to_owned() } else { parts.join("; ") }
}

/// The requests that are served first. If all have the same reason, it stands above the table.
fn ahead(ahead: &[Ahead], format: TextFormat) -> String {
    let reasons = once(ahead.iter().map(|waiter| ("", plain(&waiter.why))));
    let shared = <&[_; 1]>::try_from(reasons.as_slice()).ok().map(|[(_, why)]| why);
    let headers = ["LEASE", "~USER", ">VRAM", ">GPUS", "TIER", ">WAITED", "~WHY"];
    let headers = if shared.is_some() { &headers[..6] } else { &headers[..] };
    let mut table = Table::new(headers).drops(&["GPUS", "WAITED", "TIER"]);
    for waiter in ahead {
        let cells = [
            text::or_none(waiter.id.as_deref()),
            waiter.user.clone(),
            text::vram(waiter.vram_bytes),
            waiter.gpus.to_string(),
            text::tier(waiter.tier).into(),
            span::show(waiter.waited_s),
        ];
        table.row(cells.into_iter().chain(shared.is_none().then(|| waiter.why.clone())));
    }
    let why = shared.map_or_else(String::new, |why| format!(" ({why})"));
    prose(&format!("served before it{why}:"), format) + &table.show("  ", format)
}

/// Why a GPU cannot take the lease now. A reason that the first line gave already is not repeated.
fn gpu(gpu: &GpuExplanation, said: &str, format: TextFormat) -> String {
    let mut text = match &gpu.obstacle {
        Some(obstacle) if said.contains(obstacle.as_str()) => format!("GPU {}", gpu.index),
        Some(obstacle) => obstacle.clone(),
        None => format!("GPU {} has room, but other requests are served first", gpu.index),
    };
    // Writing to a string cannot fail.
    _ = write!(text, "\n  {} free to lease", size::show(gpu.promisable_bytes));
    match gpu.unowned_bytes {
        Some(0) => {}
        Some(loose) => _ = write!(text, ", {} used outside leases", size::show(loose)),
        None => text.push_str("; what is used outside leases is unknown"),
    }
    if let Some(price) = gpu.cost_s {
        _ = write!(text, "\n  making room here costs {}", short(price));
    }
    let mut text = prose(&text, format);
    if !gpu.blockers.is_empty() {
        text.push_str(&blockers(&gpu.blockers, format));
    }
    text
}

/// The leases in the way: how each could be preempted and at what cost, and below the table why some cannot be.
fn blockers(blockers: &[Blocker], format: TextFormat) -> String {
    let headers = ["LEASE", "~USER", ">HOLDS", ">ENDS WITHIN", "PREEMPT BY", ">OUT", ">LOST", ">BACK", ">COST"];
    let mut table = Table::new(&headers).drops(&["OUT", "LOST", "BACK"]);
    for blocker in blockers {
        let [method, out, lost, back, cost] = preemption(blocker);
        table.row([
            text::or_none(blocker.id.as_deref()),
            blocker.user.clone(),
            size::show(blocker.counted_bytes),
            span::show(blocker.ends_by_s),
            method,
            out,
            lost,
            back,
            cost,
        ]);
    }
    let stays = blockers.iter().filter_map(|blocker| Some((blocker, plain(blocker.not_preempted.as_ref()?))));
    let of_user = |blocker: &Blocker| blocker.id.clone().unwrap_or_else(|| format!("{}'s lease", blocker.user));
    let stays: Vec<(String, String)> = stays.map(|(blocker, why)| (of_user(blocker), why)).collect();
    let stays = once(stays.iter().map(|(id, why)| (id.as_str(), why.clone())));
    let lines = stays
        .into_iter()
        .map(|(ids, why)| wrapped(&format!("  {} cannot be preempted: {why}", text::names(&ids)), 4, format) + "\n");
    table.show("  ", format) + &lines.collect::<String>()
}

/// The preemption method, the three parts of its cost, and the cost.
fn preemption(blocker: &Blocker) -> [String; 5] {
    let Some(cost) = &blocker.preemption else {
        return [(); 5].map(|()| text::NONE.to_owned());
    };
    let PreemptionCost { method, park_s, lost_work_s, resume_s, cost_s, is_chosen } = cost;
    let method = if *is_chosen { format!("{method} (next)") } else { method.clone() };
    [method, short(*park_s), short(*lost_work_s), short(*resume_s), short(*cost_s)]
}

/// A time, with tenths of a second below 10 s.
fn short(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { span::show(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;
    use sublet_wire::{Exclusivity, Tier};

    fn sample() -> Explanation {
        let ahead = Ahead {
            id: None,
            user: "ana".into(),
            tier: Tier::Batch,
            vram_bytes: Vram::Bytes(16 << 30),
            gpus: 2,
            waited_s: 300.0,
            why: "came earlier".into(),
        };
        let first = GpuExplanation {
            index: 0,
            uuid: "GPU-0a".into(),
            promisable_bytes: 26 << 30,
            unowned_bytes: Some(3 << 30),
            obstacle: Some("the request is for all of GPU 0; ana holds 10 GiB (L7)".into()),
            blockers: vec![Blocker {
                id: Some("L7".into()),
                user: "ana".into(),
                counted_bytes: 10 << 30,
                ends_by_s: 1500.0,
                preemption: Some(PreemptionCost {
                    method: "park".into(),
                    park_s: 0.7,
                    lost_work_s: 1.3,
                    resume_s: 0.6,
                    cost_s: 2.6,
                    is_chosen: true,
                }),
                not_preempted: None,
            }],
            cost_s: Some(2.6),
        };
        let second = GpuExplanation {
            index: 1,
            unowned_bytes: None,
            obstacle: None,
            blockers: vec![],
            cost_s: None,
            ..first.clone()
        };
        Explanation {
            lease: sample::waiting(),
            summary: "GPU 0 is not empty".into(),
            ahead: vec![ahead],
            gpus: vec![first, second],
            preemption: Some("L7 (park) can be preempted, which costs 2 s in all".into()),
        }
    }

    #[test]
    fn a_wait_is_explained_gpu_by_gpu() {
        expect![[r#"
            L8 waits, place 2, expected in about 40 s (worst case 2 h 0 min): GPU 0 is not empty
            requested: a whole GPU, interactive

            preemption: L7 (park) can be preempted, which costs 2 s in all
            offered now: 6 GiB, if it is over within 15 min   sublet accept L8
            start: expected in about 40 s (90 %: within 2 min); worst case 2 h 0 min (more urgent requests made in the next 10 min may go first)

            served before it (came earlier):
              LEASE  USER    VRAM  GPUS  TIER   WAITED
              -      ana   16 GiB     2  batch   5 min

            the request is for all of GPU 0; ana holds 10 GiB (L7)
              26 GiB free to lease, 3 GiB used outside leases
              making room here costs 2.6 s
              LEASE  USER   HOLDS  ENDS WITHIN  PREEMPT BY     OUT   LOST   BACK   COST
              L7     ana   10 GiB       25 min  park (next)  0.7 s  1.3 s  0.6 s  2.6 s

            GPU 1 has room, but other requests are served first
              26 GiB free to lease; what is used outside leases is unknown
        "#]]
        .assert_eq(&render(&sample(), TextFormat::default()));
    }

    #[test]
    fn who_does_not_wait_is_told_so() {
        let explanation = Explanation {
            lease: sample::lease(),
            summary: "it is active".into(),
            ahead: vec![],
            gpus: vec![],
            preemption: None,
        };
        expect![[r#"
            L7 (train) is active
            leased: 10 GiB on GPU 0, 4 min left
            requested: 10 GiB, batch
        "#]]
        .assert_eq(&render(&explanation, TextFormat::default()));
    }

    #[test]
    fn what_was_asked_is_said_where_it_is_unusual() {
        let lease = Lease {
            priority: -3,
            exclusivity: Exclusivity::DeviceExclusive,
            fixed_term: true,
            ..sample::two_gpu_lease()
        };
        expect!["requested: 10 GiB on each of 2 GPUs, batch, priority -3, no other lease on its GPUs, for 5 min"]
            .assert_eq(&asked(&lease));
    }
}
