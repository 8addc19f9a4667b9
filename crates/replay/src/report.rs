//! The report of a replay, for people and programs: it has every number of the tables and
//! every point of the plots.
//!
//! It depends on the trace and the options alone. How fast the replay was is not in
//! it, so that two runs of the same trace give the same bytes.

use crate::calibration;
use crate::drive::{JobCourse, JobStage, LeaseTerms, ReplayRun, ReplaySetup, drive};
use crate::host_gpus::HostGpus;
use crate::policies::{PolicyName, for_replay, policy};
use crate::stats::{WaitStats, jain, quantile, round, round5, seconds};
use crate::trace::{Trace, tier_name};
use serde::Serialize;
use sublet_core::request::Tier;
use sublet_core::settings::Policy;
use sublet_core::units::{Bytes, Span, Time};

/// Fairness is judged over slots of this length, or longer ones of a long trace.
const SLOT_LENGTH: Span = Span::secs(600);
/// The greatest number of slots of a trace.
const SLOTS_MAX: u64 = 1_000;
/// More points than this are not seen in a plot.
const POINTS_MAX: usize = 240;
const GIB_HOUR: f64 = 1_073_741_824.0 * 3600.0 * 1e6;

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The rules of the host.
    pub rules: Policy,
    /// Under these policies, in this order.
    pub policies: Vec<PolicyName>,
    /// How long a lease jobs request.
    pub leases: LeaseTerms,
    /// A job is starved if it waited longer than this many times its own duration.
    pub starved: f64,
    /// Places in the queue for each tenant, if they are limited.
    pub places: Option<u32>,
    /// The replay stops this long after the first arrival.
    pub until: Option<Span>,
    /// Jobs can be parked, in this much host memory; `None` if they cannot.
    pub parking: Option<Bytes>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// What was replayed.
    pub trace: TraceSummary,
    /// One for each policy, in the order of the options.
    pub policies: Vec<PolicyOutcome>,
}

/// What was replayed.
#[derive(Clone, Debug, Serialize)]
pub struct TraceSummary {
    /// Where it is from.
    pub source: String,
    /// What a reader of the results must know about it.
    pub notes: Vec<String>,
    /// What was changed in it, in a few words.
    pub changed: Option<String>,
    /// The GPUs, as `8x80GiB`.
    pub cards: String,
    /// Bytes that can be leased, margins left out.
    pub leasable_bytes: u64,
    /// Jobs in it.
    pub jobs: u64,
    /// Tenants in it.
    pub tenants: u64,
    /// From the first arrival to the last.
    pub span_s: f64,
    /// Work in it as a share of what the GPUs can do between the first and the last arrival.
    pub load: f64,
    /// `renewed` or `fixed`.
    pub leases: &'static str,
    /// See [`Starvation`].
    pub starved_factor: f64,
    /// Length of the slots by which fairness is judged.
    pub slot_s: f64,
}

/// The results of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyOutcome {
    /// Its name.
    pub policy: String,
    /// Jobs that arrived.
    pub jobs: u64,
    /// Jobs with all of their work done.
    pub finished: u64,
    /// Jobs on their GPUs when the replay stopped.
    pub running: u64,
    /// Jobs in the queue when the replay stopped.
    pub waiting: u64,
    /// Jobs that were not admitted.
    pub refused: u64,
    /// Why they were not admitted.
    pub refusals: Vec<RefusalCount>,
    /// From the first arrival to the last event.
    pub ran_s: f64,
    /// Grants; a job needs several where its lease ended before its work.
    pub turns: u64,
    /// Leases that ended before the work of their job.
    pub cut: u64,
    /// Leases that were parked, or ended, for others.
    pub preemptions: u64,
    /// From the request to the end of the work, of jobs that finished.
    pub completion: WaitStats,
    /// Whether what waiters were told came true.
    pub calibration: calibration::CalibrationReport,
    /// Time in the queue, over all waits of a job; until the end, if the job still waits.
    pub wait: WaitStats,
    /// Time in the queue before the first grant, of jobs that had one.
    pub first_wait: WaitStats,
    /// The same for each tenant, by name.
    pub tenants: Vec<TenantOutcome>,
    /// The same for each tier.
    pub tiers: Vec<TierOutcome>,
    /// How much of the GPUs was used.
    pub utilisation: Utilisation,
    /// How evenly tenants were served.
    pub fairness: Fairness,
    /// Jobs that waited out of all proportion.
    pub starvation: Starvation,
    /// Events the core took in.
    pub events: u64,
    /// The plot of waits: this share of jobs waited no longer than that.
    pub wait_distribution: Vec<Point>,
    /// The plot over time.
    pub timeline: Vec<TimelinePoint>,
}

/// One reason for refusals.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalCount {
    /// In the core's words.
    pub why: String,
    /// How many.
    pub jobs: u64,
}

/// What one tenant got.
#[derive(Clone, Debug, Serialize)]
pub struct TenantOutcome {
    /// The tenant's name.
    pub tenant: String,
    /// Its jobs that were admitted.
    pub wait: WaitStats,
    /// Those with all of their work done.
    pub finished: u64,
    /// GiB·h it held.
    pub service_gib_h: f64,
    /// GiB·h it held in contended slots.
    pub contended_service_gib_h: f64,
    /// Its fair share of those slots.
    pub contended_share_gib_h: f64,
    /// One divided by the other; `None` if it wanted nothing while there was contention.
    pub of_fair_share: Option<f64>,
}

/// What one tier got.
#[derive(Clone, Debug, Serialize)]
pub struct TierOutcome {
    /// The tier's name.
    pub tier: &'static str,
    /// Its jobs that were admitted.
    pub wait: WaitStats,
}

/// How much of the GPUs was used.
#[derive(Clone, Debug, Serialize)]
pub struct Utilisation {
    /// GiB·h granted.
    pub granted_gib_h: f64,
    /// GiB·h that could have been leased, from the first arrival to the last event.
    pub there_were_gib_h: f64,
    /// One divided by the other.
    pub share: f64,
    /// Share of the time in which at least one job waited.
    pub time_somebody_waited: f64,
    /// Share of the time in which a job waited although it would have fitted: the room was reserved for others.
    pub time_waited_beside_room: f64,
    /// Share of all bytes that lay idle while a job waited.
    pub idle_while_waiting: f64,
}

/// How evenly tenants were served.
#[derive(Clone, Debug, Serialize)]
pub struct Fairness {
    /// Jain's index of service ÷ fair share, contended slots added up per tenant.
    pub jain: f64,
    /// The mean of Jain's index of each contended slot: fairness in the short run.
    pub jain_per_slot: f64,
    /// Slots in which more was wanted than there was.
    pub contended_slots: u64,
    /// All slots.
    pub slots: u64,
}

/// Jobs that waited out of all proportion.
#[derive(Clone, Debug, Serialize)]
pub struct Starvation {
    /// Jobs that waited longer than the hold cap and than the factor times their own duration.
    pub jobs: u64,
    /// How many tenants they belong to.
    pub tenants: u64,
    /// The longest wait of any job.
    pub longest_s: f64,
    /// The tenant of that job.
    pub longest_tenant: Option<String>,
}

/// A point of the distribution of waits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// This share of the jobs…
    pub share: f64,
    /// …waited no longer.
    pub wait_s: f64,
}

/// A point of the plot over time: the mean of some slots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimelinePoint {
    /// Seconds after the first arrival.
    pub at_s: f64,
    /// How many waited.
    pub queue: f64,
    /// Held bytes as a share of all.
    pub utilisation: f64,
}

/// The length of slots for a trace.
fn slot_of(trace: &Trace) -> Span {
    SLOT_LENGTH.max(Span(trace.span().0 / SLOTS_MAX))
}

/// What can be said of a trace before it is run.
fn trace_summary(trace: &Trace, host_gpus: &HostGpus, options: &ReplayOptions) -> TraceSummary {
    let leasable = host_gpus.leasable(options.rules.margin).0;
    let could = leasable as f64 * trace.span().0.max(1) as f64;
    TraceSummary {
        source: trace.source.clone(),
        notes: trace.notes.clone(),
        changed: trace.changed.clone(),
        cards: host_gpus.to_string(),
        leasable_bytes: leasable,
        jobs: trace.jobs.len() as u64,
        tenants: trace.tenants.len() as u64,
        span_s: round(trace.span().as_secs_f64()),
        load: round(trace.demand() as f64 / could),
        leases: match options.leases {
            LeaseTerms::Renewed => "renewed",
            LeaseTerms::Fixed => "fixed",
        },
        starved_factor: options.starved,
        slot_s: slot_of(trace).as_secs_f64(),
    }
}

/// Replays a trace under each policy. `on_outcome` is called after each of them, so that a caller with
/// a clock can measure the time.
pub fn replay(
    trace: &Trace,
    host_gpus: &HostGpus,
    options: &ReplayOptions,
    mut on_outcome: impl FnMut(&PolicyOutcome),
) -> ReplayReport {
    let mut policies = Vec::new();
    for name in &options.policies {
        let policy = for_replay(policy(*name, &options.rules), options.places, options.parking);
        let first = trace.jobs.first().map_or(Time::ZERO, |job| job.arrival);
        let until = options.until.map(|until| first + until);
        let setup = ReplaySetup { trace, host_gpus, policy, leases: options.leases, until, slot: slot_of(trace) };
        let outcome = outcome(name.to_string(), &setup, &drive(&setup), options.starved);
        on_outcome(&outcome);
        policies.push(outcome);
    }
    ReplayReport { trace: trace_summary(trace, host_gpus, options), policies }
}

fn outcome(policy: String, setup: &ReplaySetup<'_>, run: &ReplayRun, starved: f64) -> PolicyOutcome {
    let count = |stage: JobStage| run.courses.iter().filter(|course| course.stage == stage).count() as u64;
    let turns: u64 = run.courses.iter().map(|course| u64::from(course.turns)).sum();
    let started = run.courses.iter().filter(|course| course.turns > 0).count() as u64;
    // A job that was granted GPUs and neither runs nor finished lost its last lease too.
    let lost =
        |course: &&JobCourse| course.turns > 0 && !matches!(course.stage, JobStage::Running | JobStage::Finished);
    let lost = run.courses.iter().filter(lost).count() as u64;
    let refused = |(why, jobs): (&String, &u64)| RefusalCount { why: why.clone(), jobs: *jobs };
    PolicyOutcome {
        policy,
        jobs: run.courses.len() as u64 - count(JobStage::NotYet),
        finished: count(JobStage::Finished),
        running: count(JobStage::Running),
        waiting: count(JobStage::Waiting),
        refused: count(JobStage::Refused),
        refusals: run.refused.iter().map(refused).collect(),
        ran_s: round(run.usage.elapsed().as_secs_f64()),
        turns,
        cut: turns - started + lost,
        preemptions: run.preemptions,
        completion: WaitStats::of(run.courses.iter().filter_map(|course| course.took).map(|took| took.0).collect()),
        calibration: run.calibration.report(),
        wait: wait_stats(setup, run, |_| true),
        first_wait: WaitStats::of(
            run.courses.iter().filter_map(|course| course.first_wait).map(|wait| wait.0).collect(),
        ),
        tenants: tenants(setup, run),
        tiers: tiers(setup, run),
        utilisation: utilisation(run),
        fairness: fairness(setup, run),
        starvation: starvation(setup, run, starved),
        events: run.events,
        wait_distribution: distribution(run),
        timeline: timeline(run),
    }
}

/// True if a job waited at all, and so counts among the waits.
fn has_waited(course: &JobCourse) -> bool {
    matches!(course.stage, JobStage::Waiting | JobStage::Running | JobStage::Finished)
}

fn wait_stats(setup: &ReplaySetup<'_>, run: &ReplayRun, of: impl Fn(usize) -> bool) -> WaitStats {
    debug_assert_eq!(setup.trace.jobs.len(), run.courses.len());
    let counted = run.courses.iter().enumerate().filter(|(n, course)| has_waited(course) && of(*n));
    WaitStats::of(counted.map(|(_, course)| course.waited.0).collect())
}

fn tenants(setup: &ReplaySetup<'_>, run: &ReplayRun) -> Vec<TenantOutcome> {
    let mut lists: Vec<(Vec<u64>, u64)> = vec![(Vec::new(), 0); setup.trace.tenants.len()];
    for (job, course) in setup.trace.jobs.iter().zip(&run.courses).filter(|(_, course)| has_waited(course)) {
        let list = &mut lists[job.tenant as usize];
        list.0.push(course.waited.0);
        list.1 += u64::from(course.stage == JobStage::Finished);
    }
    let mut rows: Vec<TenantOutcome> = lists
        .into_iter()
        .enumerate()
        .map(|(n, (waits, finished))| {
            let tenant_usage = run.usage.tenant_usage(n);
            let ratio = tenant_usage.contended_service / tenant_usage.contended_share;
            TenantOutcome {
                tenant: setup.trace.tenants[n].clone(),
                wait: WaitStats::of(waits),
                finished,
                service_gib_h: round(tenant_usage.service as f64 / GIB_HOUR),
                contended_service_gib_h: round(tenant_usage.contended_service / GIB_HOUR),
                contended_share_gib_h: round(tenant_usage.contended_share / GIB_HOUR),
                of_fair_share: (tenant_usage.contended_share > 0.0).then_some(round5(ratio)),
            }
        })
        .collect();
    rows.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    rows
}

fn tiers(setup: &ReplaySetup<'_>, run: &ReplayRun) -> Vec<TierOutcome> {
    [Tier::Interactive, Tier::Batch, Tier::Spot]
        .into_iter()
        .map(|tier| TierOutcome {
            tier: tier_name(tier),
            wait: wait_stats(setup, run, |n| setup.trace.jobs[n].tier == tier),
        })
        .collect()
}

fn utilisation(run: &ReplayRun) -> Utilisation {
    let usage = &run.usage;
    let (all_us, leasable_byte_us) = (usage.elapsed().0.max(1) as f64, usage.leasable_byte_us().max(1) as f64);
    Utilisation {
        granted_gib_h: round(usage.granted as f64 / GIB_HOUR),
        there_were_gib_h: round(leasable_byte_us / GIB_HOUR),
        share: round5(usage.granted as f64 / leasable_byte_us),
        time_somebody_waited: round5(usage.waiting_us as f64 / all_us),
        time_waited_beside_room: round5(usage.fitting_us as f64 / all_us),
        idle_while_waiting: round5(usage.idle_waiting as f64 / leasable_byte_us),
    }
}

fn fairness(setup: &ReplaySetup<'_>, run: &ReplayRun) -> Fairness {
    let tenant_usage = (0..setup.trace.tenants.len())
        .map(|n| run.usage.tenant_usage(n))
        .filter(|tenant_usage| tenant_usage.contended_share > 0.0);
    let ratios: Vec<f64> =
        tenant_usage.map(|tenant_usage| tenant_usage.contended_service / tenant_usage.contended_share).collect();
    let jains = &run.usage.jains;
    let mean = if jains.is_empty() { 1.0 } else { jains.iter().sum::<f64>() / jains.len() as f64 };
    Fairness {
        jain: round5(jain(&ratios)),
        jain_per_slot: round5(mean),
        contended_slots: jains.len() as u64,
        slots: run.usage.slots.len() as u64,
    }
}

fn starvation(setup: &ReplaySetup<'_>, run: &ReplayRun, factor: f64) -> Starvation {
    let jobs = setup.trace.jobs.iter().zip(&run.courses).filter(|(_, course)| has_waited(course));
    let mut starved = 0;
    let mut starved_tenants = std::collections::BTreeSet::new();
    let mut longest: Option<(Span, u32)> = None;
    for (job, course) in jobs {
        let bound = setup.policy.hold_max.max(Span((job.duration.0 as f64 * factor) as u64));
        if course.waited > bound {
            starved += 1;
            starved_tenants.insert(job.tenant);
        }
        if longest.is_none_or(|(wait, _)| course.waited > wait) {
            longest = Some((course.waited, job.tenant));
        }
    }
    Starvation {
        jobs: starved,
        tenants: starved_tenants.len() as u64,
        longest_s: longest.map_or(0.0, |(wait, _)| seconds(wait.0)),
        longest_tenant: longest.map(|(_, tenant)| setup.trace.tenants[tenant as usize].clone()),
    }
}

fn distribution(run: &ReplayRun) -> Vec<Point> {
    let mut waits: Vec<u64> =
        run.courses.iter().filter(|course| has_waited(course)).map(|course| course.waited.0).collect();
    waits.sort_unstable();
    // In steps of 0.5 %, and the last 5 % in steps of 0.1 %.
    let shares = (0..190).map(|n| f64::from(n) / 200.0).chain((0..=50).map(|n| 0.95 + f64::from(n) / 1000.0));
    shares.map(|share| Point { share: round5(share), wait_s: seconds(quantile(&waits, share)) }).collect()
}

fn timeline(run: &ReplayRun) -> Vec<TimelinePoint> {
    let slots = &run.usage.slots;
    let began = slots.first().map_or(Time::ZERO, |slot| slot.began);
    let together = slots.len().div_ceil(POINTS_MAX).max(1);
    slots
        .chunks(together)
        .map(|slots| {
            let us: f64 = slots.iter().map(|slot| slot.length.0 as f64).sum::<f64>().max(1.0);
            let mean = |of: fn(&crate::usage::UsageSlot) -> f64| {
                slots.iter().map(|slot| of(slot) * slot.length.0 as f64).sum::<f64>() / us
            };
            TimelinePoint {
                at_s: round(slots[0].began.since(began).as_secs_f64()),
                queue: round(mean(|slot| slot.queue)),
                utilisation: round5(mean(|slot| slot.utilisation)),
            }
        })
        .collect()
}
