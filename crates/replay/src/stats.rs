//! Figures out of lists of numbers: shares, means, quantiles, Jain's index.

use serde::Serialize;

/// How long a set of jobs waited, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WaitStats {
    /// How many jobs.
    pub jobs: u64,
    /// Their mean.
    pub mean_s: f64,
    /// Half of them waited no longer.
    pub p50_s: f64,
    /// 95 in 100 waited no longer.
    pub p95_s: f64,
    /// 99 in 100 waited no longer.
    pub p99_s: f64,
    /// The longest wait.
    pub max_s: f64,
}

impl WaitStats {
    /// Of waits in microseconds, in any order.
    pub fn of(mut waits: Vec<u64>) -> WaitStats {
        waits.sort_unstable();
        let sum: u128 = waits.iter().map(|wait| u128::from(*wait)).sum();
        let quantile = |q: f64| seconds(quantile(&waits, q));
        WaitStats {
            jobs: waits.len() as u64,
            mean_s: if waits.is_empty() { 0.0 } else { round(sum as f64 / waits.len() as f64 / 1e6) },
            p50_s: quantile(0.50),
            p95_s: quantile(0.95),
            p99_s: quantile(0.99),
            max_s: quantile(1.0),
        }
    }
}

/// The smallest of the sorted values that at least this share of them does not exceed; zero of none.
pub fn quantile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

/// Jain's index: 1 where all are equal, 1/n where one of n has everything, 1 for an empty list.
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

/// Shares `capacity` by max-min fairness: no tenant gets more than it demands, and a tenant that gets less than it
/// demands gets at least as much as any other.
pub fn fair_shares(demands: &[f64], capacity: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|a, b| demands[*a].total_cmp(&demands[*b]));
    let mut shares = vec![0.0; demands.len()];
    let mut left = capacity;
    for (served, who) in order.into_iter().enumerate() {
        let equal = left / (demands.len() - served) as f64;
        shares[who] = demands[who].min(equal);
        left -= shares[who];
    }
    shares
}

/// Microseconds as seconds, to the millisecond: the reading after the end of a lease takes 1 µs in a replay.
pub fn seconds(us: u64) -> f64 {
    ((us + 500) / 1000) as f64 / 1e3
}

/// Three digits after the point: enough for people, and the same on every machine.
pub fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Five digits after the point, for shares.
pub fn round5(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_of_known_vectors() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[3.0, 1.0]), 0.8);
        assert_eq!(jain(&[]), 1.0);
        // (1 + 2 + 3)² / (3 × 14)
        assert!((jain(&[1.0, 2.0, 3.0]) - 36.0 / 42.0).abs() < 1e-12);
    }

    #[test]
    fn fair_shares_are_capped_by_demand_and_use_all_there_is() {
        assert_eq!(fair_shares(&[2.0, 8.0, 10.0], 12.0), [2.0, 5.0, 5.0]);
        assert_eq!(fair_shares(&[10.0, 1.0, 3.0], 9.0), [5.0, 1.0, 3.0]);
        assert_eq!(fair_shares(&[1.0, 2.0], 9.0), [1.0, 2.0]);
        assert_eq!(fair_shares(&[], 9.0), Vec::<f64>::new());
    }

    #[test]
    fn quantiles_are_values_of_the_list() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!([0.0, 0.5, 0.95, 0.99, 1.0].map(|q| quantile(&values, q)), [1, 50, 95, 99, 100]);
        assert_eq!(quantile(&[7], 0.5), 7);
        assert_eq!(quantile(&[], 0.5), 0);
        let waits = WaitStats::of(vec![3_000_000, 1_000_000, 2_000_000]);
        assert_eq!((waits.jobs, waits.mean_s, waits.p50_s, waits.max_s), (3, 2.0, 2.0, 3.0));
    }
}
