//! Latencies, kept whole: a run has at most a few million, and exact quantiles need no tuning.

use serde::Serialize;
use std::time::Duration;

/// Durations in the order they were measured.
#[derive(Clone, Default)]
pub struct Samples(Vec<u64>);

/// Their quantiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    /// How many.
    pub count: usize,
    /// The median.
    pub p50_us: f64,
    /// One in a hundred is slower.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
}

impl Samples {
    /// Room for `count` samples, so that the list does not grow during a measurement.
    pub fn with_capacity(count: usize) -> Samples {
        Samples(Vec::with_capacity(count))
    }

    /// Keeps one.
    pub fn push(&mut self, duration: Duration) {
        self.0.push(duration.as_nanos() as u64);
    }

    /// Both together.
    pub fn merged_with(&self, other: &Samples) -> Samples {
        Samples([self.0.as_slice(), other.0.as_slice()].concat())
    }

    /// Sorts and reads off; all zero where there are none.
    pub fn quantiles(&self) -> Quantiles {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        // The smallest sample that at least this share of all do not exceed.
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.max(1) - 1).map_or(0.0, |&ns| ns as f64 / 1000.0)
        };
        Quantiles { count: sorted.len(), p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
    }
}

/// The middle of a few numbers; NaN of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len().wrapping_sub(1) / 2), sorted.get(sorted.len() / 2)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let mut samples = Samples::default();
        (1..=200).rev().for_each(|us| samples.push(Duration::from_micros(us)));
        let Quantiles { count, p50_us, p99_us, max_us } = samples.quantiles();
        assert_eq!((count, p50_us, p99_us, max_us), (200, 100.0, 198.0, 200.0));
        assert_eq!(Samples::default().quantiles().p99_us, 0.0);
    }

    #[test]
    fn a_median_of_an_even_number_is_between_two() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }
}
