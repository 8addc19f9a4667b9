//! A trace from a seed, with what makes sharing hard: heavy tails, days and nights,
//! gangs, a tenant that makes 1,000 requests at once, and a tenant that never stops making requests.

use crate::host_gpus::HostGpus;
use crate::rng::{ReplayRng, Zipf};
use crate::trace::{JobRow, Trace, TraceBuilder, TraceError};
use sublet_core::request::Tier;
use sublet_core::units::Bytes;

const DAY_S: f64 = 86_400.0;
/// The requests that one tenant makes at one instant, unless that is more than a fifth of all.
const BURST_JOBS: u64 = 1_000;

/// What to make.
#[derive(Clone, Debug)]
pub struct SyntheticShape {
    /// Everything follows from it.
    pub seed: u64,
    /// Jobs in all.
    pub jobs: u64,
    /// Tenants beside the one with the dump and the chatty one.
    pub tenants: u64,
    /// If true, a third of all jobs are short ones of one interactive tenant.
    pub chatty: bool,
    /// Work that arrives in the mean, as a share of what the GPUs can do.
    pub load: f64,
}

/// A job without its arrival time.
struct DraftJob {
    tenant: String,
    vram: u64,
    gpus: u64,
    duration_s: f64,
    tier: Tier,
    priority: i64,
    /// It arrives with the others of the dump.
    in_burst: bool,
}

/// Makes a trace for these GPUs.
pub fn make(shape: &SyntheticShape, host_gpus: &HostGpus, margin: Bytes) -> Result<Trace, TraceError> {
    let mut rng = ReplayRng::new(shape.seed);
    let gpu = host_gpus.smallest().less(margin).0;
    let tenants = Zipf::new(shape.tenants.max(1) as usize);
    let in_burst = BURST_JOBS.min(shape.jobs / 5);
    let drafts: Vec<DraftJob> = (0..shape.jobs)
        .map(|n| match n {
            n if n < in_burst => burst_job(&mut rng, gpu),
            _ if shape.chatty && rng.chance(1.0 / 3.0) => chatty_job(&mut rng, gpu),
            _ => ordinary_job(&mut rng, &tenants, gpu, host_gpus.gpus.len() as u64),
        })
        .collect();
    // The span in which the GPUs could do `1 / load` times this work.
    let work: f64 = drafts.iter().map(|draft| draft.vram as f64 * draft.gpus as f64 * draft.duration_s).sum();
    let span_s = work / (host_gpus.leasable(margin).0 as f64 * shape.load);
    let burst_s = (span_s * 0.3).round();
    let mut timed: Vec<(f64, DraftJob)> = drafts
        .into_iter()
        .map(|draft| (if draft.in_burst { burst_s } else { arrival(&mut rng, span_s) }, draft))
        .collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let chatty = if shape.chatty { " and a chatty one" } else { "" };
    let mut builder = TraceBuilder::new(format!(
        "synthetic, seed {}: {} jobs of {} tenants, one that dumps {in_burst} asks at once{chatty}",
        shape.seed, shape.jobs, shape.tenants
    ));
    for (arrival_s, draft) in timed {
        let row = JobRow {
            arrival_s,
            tenant: draft.tenant,
            vram: draft.vram,
            gpus: draft.gpus,
            duration_s: draft.duration_s,
            tier: draft.tier,
            priority: draft.priority,
            name: None,
        };
        builder.push(row).map_err(TraceError::whole)?;
    }
    let mut trace = builder.finish()?;
    trace.notes.push(format!(
        "made up: arrivals follow the time of day, sizes and durations have heavy tails, and the mean load is {} of \
         what these GPUs can do",
        shape.load
    ));
    Ok(trace)
}

/// Twice as many at noon as in the mean, next to none at midnight. In whole milliseconds.
fn arrival(rng: &mut ReplayRng, span_s: f64) -> f64 {
    loop {
        let at = rng.unit() * span_s;
        let hour = (at / DAY_S).fract();
        // A parabola over the day, highest at noon.
        let rate = 0.1 + 0.9 * 4.0 * hour * (1.0 - hour);
        if rng.chance(rate) {
            return (at * 1e3).round() / 1e3;
        }
    }
}

/// A part of a GPU, in whole MiB, never less than one.
fn gpu_part(gpu: u64, share: f64) -> u64 {
    (((gpu as f64 * share) as u64) >> 20).max(1) << 20
}

fn whole_s(seconds: f64) -> f64 {
    seconds.round().max(1.0)
}

fn burst_job(rng: &mut ReplayRng, gpu: u64) -> DraftJob {
    DraftJob {
        tenant: "dumper".into(),
        vram: gpu_part(gpu, rng.log_normal(0.15, 0.5, 0.02, 0.9)),
        gpus: 1,
        duration_s: whole_s(rng.log_normal(400.0, 0.7, 30.0, 7_200.0)),
        tier: Tier::Batch,
        priority: 0,
        in_burst: true,
    }
}

fn chatty_job(rng: &mut ReplayRng, gpu: u64) -> DraftJob {
    DraftJob {
        tenant: "chatty".into(),
        vram: gpu_part(gpu, rng.log_normal(0.04, 0.5, 0.01, 0.2)),
        gpus: 1,
        duration_s: whole_s(rng.log_normal(20.0, 0.8, 2.0, 180.0)),
        tier: Tier::Interactive,
        priority: 0,
        in_burst: false,
    }
}

fn ordinary_job(rng: &mut ReplayRng, tenants: &Zipf, gpu: u64, gpus: u64) -> DraftJob {
    let tenant = tenants.draw(rng);
    let gang = rng.chance(0.03) && gpus > 1;
    let count = if gang { (2u64 << rng.below(3)).min(gpus) } else { 1 };
    let whole = gang || rng.chance(0.08);
    let tier = match rng.below(20) {
        0..5 => Tier::Interactive,
        5..16 => Tier::Batch,
        _ => Tier::Spot,
    };
    let median = if tier == Tier::Interactive { 240.0 } else { 700.0 };
    DraftJob {
        tenant: format!("tenant-{:02}", tenant + 1),
        vram: if whole { gpu_part(gpu, 1.0) } else { gpu_part(gpu, rng.log_normal(0.12, 1.0, 0.01, 1.0)) },
        gpus: count,
        duration_s: whole_s(rng.log_normal(median, 1.4, 5.0, 2.0 * DAY_S)),
        tier,
        priority: if rng.chance(0.1) { rng.below(11) as i64 - 5 } else { 0 },
        in_burst: false,
    }
}
