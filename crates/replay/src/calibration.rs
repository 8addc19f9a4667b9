//! Whether what waiters are told comes true: predictions made at the request, beside the real starts.

use crate::stats::{round, round5};
use serde::Serialize;
use sublet_core::ids::LeaseId;
use sublet_core::policy::estimates;
use sublet_core::policy::expected_starts::{ExpectedStart, expected};
use sublet_core::policy::explain::{self, Bound};
use sublet_core::state::State;
use sublet_core::units::Time;

/// Predictions of one run are no more than this: they cost more than the run.
const PREDICTIONS_MAX: usize = 4_000;

/// What one request was told when it had to wait.
#[derive(Clone, Copy, Debug)]
pub struct StartPrediction {
    at: Time,
    expected: Option<ExpectedStart>,
    planned: Option<Time>,
    bound: Option<Time>,
    started: Option<Time>,
}

/// What all requests were told.
#[derive(Clone, Debug)]
pub struct Calibration {
    every: usize,
    waiters_seen: usize,
    predictions: Vec<(u32, StartPrediction)>,
}

impl Calibration {
    /// For a trace of `jobs` jobs.
    pub fn new(jobs: usize) -> Calibration {
        Calibration { every: jobs.div_ceil(PREDICTIONS_MAX).max(1), waiters_seen: 0, predictions: Vec::new() }
    }

    /// A job's first request has to wait: records the prediction that a waiter would be told.
    pub fn record_prediction(&mut self, job: u32, state: &State, lease: LeaseId, now: Time) {
        self.waiters_seen += 1;
        let Some(row) = state.lease(lease).filter(|row| row.queued_since().is_some()) else { return };
        if !self.waiters_seen.is_multiple_of(self.every) {
            return;
        }
        let bound = match explain::bound(state, row, now) {
            Bound::By { at, .. } => Some(at),
            Bound::None(_) => None,
        };
        let prediction = StartPrediction {
            at: now,
            expected: expected(state, now).get(&lease).copied(),
            planned: estimates::estimates(state, now).get(&lease).copied(),
            bound,
            started: None,
        };
        self.predictions.push((job, prediction));
    }

    /// A job has its GPUs for the first time.
    pub fn record_start(&mut self, job: u32, now: Time) {
        if let Some((_, prediction)) = self.predictions.iter_mut().rev().find(|(of, _)| *of == job) {
            prediction.started.get_or_insert(now);
        }
    }

    /// The errors of all predictions.
    pub fn report(&self) -> CalibrationReport {
        let started: Vec<(&StartPrediction, Time)> =
            self.predictions.iter().filter_map(|(_, prediction)| Some((prediction, prediction.started?))).collect();
        let known: Vec<(ExpectedStart, &StartPrediction, Time)> =
            started.iter().filter_map(|(prediction, at)| Some((prediction.expected?, *prediction, *at))).collect();
        let within = |of: &dyn Fn(&ExpectedStart) -> Time| {
            let count = known.iter().filter(|(expected, _, at)| *at <= of(expected)).count();
            (!known.is_empty()).then(|| round5(count as f64 / known.len() as f64))
        };
        let error = |estimate: Time, at: Time| estimate.0.abs_diff(at.0);
        CalibrationReport {
            waited: started.len() as u64,
            known: known.len() as u64,
            within_p50: within(&|expected| expected.p50),
            within_p90: within(&|expected| expected.p90),
            expected: PredictionError::of(known.iter().map(|(estimate, _, at)| error(estimate.p50, *at)).collect()),
            bound: PredictionComparison::new(known.iter().filter_map(|(estimate, prediction, at)| {
                Some((error(estimate.p50, *at), error(prediction.bound?, *at)))
            })),
            plan: PredictionComparison::new(known.iter().filter_map(|(estimate, prediction, at)| {
                Some((error(estimate.p50, *at), error(prediction.planned?, *at)))
            })),
            wait_s: PredictionError::of(started.iter().map(|(prediction, at)| at.since(prediction.at).0).collect()),
        }
    }
}

/// How far off predictions were, of requests that had to wait.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationReport {
    /// Requests that had to wait and started; of a long trace, a part of them.
    pub waited: u64,
    /// Those that were told an expected start.
    pub known: u64,
    /// Share of them that started no later than the median estimate.
    pub within_p50: Option<f64>,
    /// Share of them that started no later than the predicted 90th percentile.
    pub within_p90: Option<f64>,
    /// How far off the median was.
    pub expected: Option<PredictionError>,
    /// The same beside the worst case, of those that were told both.
    pub bound: Option<PredictionComparison>,
    /// The same beside the plan in which every lease lasts as long as it may.
    pub plan: Option<PredictionComparison>,
    /// How long they waited.
    pub wait_s: Option<PredictionError>,
}

/// Absolute errors, or waits, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct PredictionError {
    /// The mean.
    pub mean_s: f64,
    /// The median.
    pub median_s: f64,
}

/// Errors of the expected start beside those of another prediction, of the same requests.
#[derive(Clone, Debug, Serialize)]
pub struct PredictionComparison {
    /// How many requests.
    pub requests: u64,
    /// Of the expected start.
    pub expected: PredictionError,
    /// Of the other.
    pub other: PredictionError,
}

impl PredictionError {
    fn of(mut us: Vec<u64>) -> Option<PredictionError> {
        us.sort_unstable();
        let median = *us.get(us.len().saturating_sub(1) / 2)?;
        let mean = us.iter().map(|us| *us as f64).sum::<f64>() / us.len() as f64;
        Some(PredictionError { mean_s: round(mean / 1e6), median_s: round(median as f64 / 1e6) })
    }
}

impl PredictionComparison {
    fn new(pairs: impl Iterator<Item = (u64, u64)>) -> Option<PredictionComparison> {
        let (own, other): (Vec<u64>, Vec<u64>) = pairs.unzip();
        let requests = own.len() as u64;
        Some(PredictionComparison { requests, expected: PredictionError::of(own)?, other: PredictionError::of(other)? })
    }
}
