//! A trace: the jobs of each tenant, with their sizes, arrivals and durations.
//!
//! Whatever its origin, every job passes [`TraceBuilder::push`]: absurd values and
//! jobs out of order are refused there, with the number of their line.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use sublet_core::request::{LeaseRequest, Tier};
use sublet_core::units::{Bytes, Span, Time};

/// More jobs than this are a mistake, not a trace: a decade of a busy cluster has fewer.
const JOBS_MAX: usize = 10_000_000;
/// A century, in seconds: times beyond it are dates of another epoch.
const ARRIVAL_MAX_S: f64 = 100.0 * 366.0 * 86_400.0;
/// A job of more than a year is a reservation.
const DURATION_MAX_S: f64 = 366.0 * 86_400.0;
/// The longest name of a tenant or a job.
const TEXT_MAX: usize = 64;

/// One job: it runs for its duration once it has its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// When it is requested.
    pub arrival: Time,
    /// Its tenant: an index into [`Trace::tenants`].
    pub tenant: u32,
    /// Bytes on each GPU.
    pub vram: Bytes,
    /// Number of GPUs.
    pub gpus: u16,
    /// How long it works.
    pub duration: Span,
    /// Its tier.
    pub tier: Tier,
    /// Its priority within the tier.
    pub priority: i8,
    /// What its owner calls it.
    pub name: Option<Box<str>>,
}

impl TraceJob {
    /// Its bytes on all of its GPUs together.
    pub fn bytes(&self) -> u64 {
        self.vram.0.saturating_mul(u64::from(self.gpus))
    }
}

/// All jobs, by arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Where it is from, in words.
    pub source: String,
    /// What a reader of the results must know about it.
    pub notes: Vec<String>,
    /// What was changed in it, in a few words, if anything was.
    pub changed: Option<String>,
    /// The names of the tenants.
    pub tenants: Vec<String>,
    /// By arrival.
    pub jobs: Vec<TraceJob>,
}

/// One job as it was written, not yet checked.
#[derive(Clone, Debug)]
pub struct JobRow {
    /// Seconds after the beginning.
    pub arrival_s: f64,
    /// The name of its tenant.
    pub tenant: String,
    /// Bytes on each GPU.
    pub vram: u64,
    /// Number of GPUs.
    pub gpus: u64,
    /// Seconds of work.
    pub duration_s: f64,
    /// Its tier.
    pub tier: Tier,
    /// Its priority within the tier.
    pub priority: i64,
    /// What its owner calls it.
    pub name: Option<String>,
}

/// Why a text is not a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, counted from 1; `None` if the error is not in one line.
    pub line: Option<usize>,
    /// What is wrong there.
    pub what: String,
}

impl TraceError {
    /// An error in this line.
    pub fn at(line: usize, what: impl Into<String>) -> TraceError {
        TraceError { line: Some(line), what: what.into() }
    }
    /// An error of the whole text.
    pub fn whole(what: impl Into<String>) -> TraceError {
        TraceError { line: None, what: what.into() }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for TraceError {}

/// Takes in jobs one by one.
#[derive(Debug, Default)]
pub struct TraceBuilder {
    trace: Trace,
    known: BTreeMap<String, u32>,
}

impl TraceBuilder {
    /// An empty trace from this source.
    pub fn new(source: impl Into<String>) -> TraceBuilder {
        TraceBuilder { trace: Trace { source: source.into(), ..Trace::default() }, known: BTreeMap::new() }
    }

    /// Adds the next job, or says what is wrong with it.
    pub fn push(&mut self, row: JobRow) -> Result<(), String> {
        check(&row)?;
        let arrival = Time(micros(row.arrival_s));
        if let Some(last) = self.trace.jobs.last().filter(|last| last.arrival > arrival) {
            let (this, last) = (row.arrival_s, last.arrival.since(Time::ZERO).as_secs_f64());
            return Err(format!(
                "`arrival_s` {this} is before the last job's, {last}: a trace must be sorted by arrival"
            ));
        }
        if self.trace.jobs.len() >= JOBS_MAX {
            return Err(format!("more than {JOBS_MAX} jobs"));
        }
        let tenant = self.tenant(row.tenant);
        self.trace.jobs.push(TraceJob {
            arrival,
            tenant,
            vram: Bytes(row.vram),
            gpus: row.gpus as u16,
            duration: Span(micros(row.duration_s).max(1)),
            tier: row.tier,
            priority: row.priority as i8,
            name: row.name.filter(|name| !name.is_empty()).map(String::into_boxed_str),
        });
        Ok(())
    }

    fn tenant(&mut self, name: String) -> u32 {
        if let Some(tenant) = self.known.get(&name) {
            return *tenant;
        }
        let tenant = self.trace.tenants.len() as u32;
        self.trace.tenants.push(name.clone());
        self.known.insert(name, tenant);
        tenant
    }

    /// Returns the trace, or an error if it has no job.
    pub fn finish(self) -> Result<Trace, TraceError> {
        if self.trace.jobs.is_empty() {
            return Err(TraceError::whole("there is no job in it"));
        }
        Ok(self.trace)
    }
}

/// Refuses a job with absurd values.
fn check(row: &JobRow) -> Result<(), String> {
    let plain = |text: &str| text.chars().count() <= TEXT_MAX && !text.chars().any(char::is_control);
    if !(0.0..=ARRIVAL_MAX_S).contains(&row.arrival_s) {
        return Err(format!("`arrival_s` {} is not between 0 and a century", row.arrival_s));
    }
    if !(row.duration_s > 0.0 && row.duration_s <= DURATION_MAX_S) {
        return Err(format!("`duration_s` {} is not above 0 and at most a year", row.duration_s));
    }
    if row.vram == 0 || row.vram > Bytes::MAX_ASK.0 {
        return Err(format!("`vram` of {} bytes is not between 1 byte and 1024 TiB", row.vram));
    }
    if row.gpus == 0 || row.gpus > u64::from(LeaseRequest::GPUS_MAX) {
        return Err(format!("`gpus` {} is not 1 to {}", row.gpus, LeaseRequest::GPUS_MAX));
    }
    if !(-10..=10).contains(&row.priority) {
        return Err(format!("`priority` {} is not -10 to 10", row.priority));
    }
    if row.tenant.is_empty() || !plain(&row.tenant) {
        return Err(format!("`tenant` must be 1 to {TEXT_MAX} characters, without control characters"));
    }
    if row.name.as_ref().is_some_and(|name| !plain(name)) {
        return Err(format!("`name` must be at most {TEXT_MAX} characters, without control characters"));
    }
    Ok(())
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// A tier as it is written in a trace.
pub fn read_tier(text: &str) -> Result<Tier, String> {
    match text {
        "interactive" => Ok(Tier::Interactive),
        "batch" => Ok(Tier::Batch),
        "spot" => Ok(Tier::Spot),
        _ => Err(format!("`tier` {text:?} is not `interactive`, `batch` or `spot`")),
    }
}

/// The name of a tier in a trace.
pub fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Interactive => "interactive",
        Tier::Batch => "batch",
        Tier::Spot => "spot",
    }
}

impl Trace {
    /// From the first arrival to the last.
    pub fn span(&self) -> Span {
        match (self.jobs.first(), self.jobs.last()) {
            (Some(first), Some(last)) => last.arrival.since(first.arrival),
            _ => Span::ZERO,
        }
    }

    /// What all jobs need, in byte·µs.
    pub fn demand(&self) -> u128 {
        self.jobs.iter().map(|job| u128::from(job.bytes()) * u128::from(job.duration.0)).sum()
    }

    /// Makes the jobs arrive `factor` times faster; the needs of each job stay as they are.
    pub fn speed_up(&mut self, factor: f64) {
        for job in &mut self.jobs {
            job.arrival = Time((job.arrival.0 as f64 / factor).round() as u64);
        }
        self.changed = Some(format!("arrivals {factor} times closer together"));
        self.notes.push(format!(
            "arrivals were brought {factor} times closer together, so that there is contention on these GPUs; \
             durations are as in the trace"
        ));
    }

    /// The trace as CSV that [`crate::csv::read`] takes.
    pub fn to_csv(&self) -> String {
        let mut text = String::from("arrival_s,tenant,vram,gpus,duration_s,tier,priority,name\n");
        for job in &self.jobs {
            let tenant = quoted(&self.tenants[job.tenant as usize]);
            let name = quoted(job.name.as_deref().unwrap_or_default());
            let (arrival, duration) = (decimal(job.arrival.0), decimal(job.duration.0));
            let tier = tier_name(job.tier);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{arrival},{tenant},{},{},{duration},{tier},{},{name}",
                job.vram.0, job.gpus, job.priority
            );
        }
        text
    }
}

/// Microseconds as seconds, exactly.
fn decimal(us: u64) -> String {
    let (whole, rest) = (us / 1_000_000, us % 1_000_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:06}").trim_end_matches('0').to_owned()
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"']) || text.trim() != text {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
