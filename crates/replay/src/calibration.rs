//! Whether what waiters are told comes true: predictions made at the request, beside the real starts.

use crate::stats::{round, round5};
use serde::Serialize;
use sublet_core::expect::{Expected, expected};
use sublet_core::explain::{self, Bound};
use sublet_core::ids::LeaseId;
use sublet_core::state::State;
use sublet_core::units::Time;

/// Predictions of one run are no more than this: they cost more than the run.
const PREDICTIONS_MAX: usize = 4_000;

/// What one request was told when it had to wait.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    at: Time,
    expected: Option<Expected>,
    planned: Option<Time>,
    bound: Option<Time>,
    started: Option<Time>,
}

/// What all requests were told.
#[derive(Clone, Debug)]
pub struct Calibration {
    every: usize,
    seen: usize,
    told: Vec<(u32, Told)>,
}

impl Calibration {
    /// For a trace of `jobs` jobs.
    pub fn new(jobs: usize) -> Calibration {
        Calibration { every: jobs.div_ceil(PREDICTIONS_MAX).max(1), seen: 0, told: Vec::new() }
    }

    /// A job's first request has to wait: records the prediction that a waiter would be told.
    pub fn ask(&mut self, job: u32, state: &State, lease: LeaseId, now: Time) {
        self.seen += 1;
        let Some(row) = state.lease(lease).filter(|row| row.queued().is_some()) else { return };
        if !self.seen.is_multiple_of(self.every) {
            return;
        }
        let bound = match explain::bound(state, row, now) {
            Bound::By { at, .. } => Some(at),
            Bound::None(_) => None,
        };
        let told = Told {
            at: now,
            expected: expected(state, now).get(&lease).copied(),
            planned: explain::estimates(state, now).get(&lease).copied(),
            bound,
            started: None,
        };
        self.told.push((job, told));
    }

    /// A job has its GPUs for the first time.
    pub fn start(&mut self, job: u32, now: Time) {
        if let Some((_, told)) = self.told.iter_mut().rev().find(|(of, _)| *of == job) {
            told.started.get_or_insert(now);
        }
    }

    /// The errors of all predictions.
    pub fn report(&self) -> Report {
        let started: Vec<(&Told, Time)> =
            self.told.iter().filter_map(|(_, told)| Some((told, told.started?))).collect();
        let known: Vec<(Expected, &Told, Time)> =
            started.iter().filter_map(|(told, at)| Some((told.expected?, *told, *at))).collect();
        let within = |of: &dyn Fn(&Expected) -> Time| {
            let count = known.iter().filter(|(expected, _, at)| *at <= of(expected)).count();
            (!known.is_empty()).then(|| round5(count as f64 / known.len() as f64))
        };
        let error = |said: Time, at: Time| said.0.abs_diff(at.0);
        Report {
            waited: started.len() as u64,
            known: known.len() as u64,
            within_p50: within(&|expected| expected.p50),
            within_p90: within(&|expected| expected.p90),
            expected: Error::of(known.iter().map(|(said, _, at)| error(said.p50, *at)).collect()),
            bound: Against::new(
                known.iter().filter_map(|(said, told, at)| Some((error(said.p50, *at), error(told.bound?, *at)))),
            ),
            plan: Against::new(
                known.iter().filter_map(|(said, told, at)| Some((error(said.p50, *at), error(told.planned?, *at)))),
            ),
            wait_s: Error::of(started.iter().map(|(told, at)| at.since(told.at).0).collect()),
        }
    }
}

/// How far off predictions were, of requests that had to wait.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests that had to wait and started; of a long trace, a part of them.
    pub waited: u64,
    /// Those that were told an expected start.
    pub known: u64,
    /// Share of them that started no later than the median said.
    pub within_p50: Option<f64>,
    /// Share of them that started no later than the predicted 90th percentile.
    pub within_p90: Option<f64>,
    /// How far off the median was.
    pub expected: Option<Error>,
    /// The same beside the worst case, of those that were told both.
    pub bound: Option<Against>,
    /// The same beside the plan in which every lease lasts as long as it may.
    pub plan: Option<Against>,
    /// How long they waited.
    pub wait_s: Option<Error>,
}

/// Absolute errors, or waits, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Error {
    /// The mean.
    pub mean_s: f64,
    /// The median.
    pub median_s: f64,
}

/// Errors of the expected start beside those of another prediction, of the same requests.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// How many requests.
    pub requests: u64,
    /// Of the expected start.
    pub expected: Error,
    /// Of the other.
    pub other: Error,
}

impl Error {
    fn of(mut us: Vec<u64>) -> Option<Error> {
        us.sort_unstable();
        let median = *us.get(us.len().saturating_sub(1) / 2)?;
        let mean = us.iter().map(|us| *us as f64).sum::<f64>() / us.len() as f64;
        Some(Error { mean_s: round(mean / 1e6), median_s: round(median as f64 / 1e6) })
    }
}

impl Against {
    fn new(pairs: impl Iterator<Item = (u64, u64)>) -> Option<Against> {
        let (own, other): (Vec<u64>, Vec<u64>) = pairs.unzip();
        let requests = own.len() as u64;
        Some(Against { requests, expected: Error::of(own)?, other: Error::of(other)? })
    }
}
