//! When a lease is renewed: numbers only.

use std::time::Duration;

/// When a lease is renewed, how failures are repeated, and when it is given up.
#[derive(Clone, Debug, PartialEq)]
pub struct RenewalPolicy {
    /// The moment within a term.
    pub when: RenewWhen,
    /// The pause after a renewal that got no answer; each later one is twice as long.
    pub first_pause: Duration,
    /// The longest such pause.
    pub longest_pause: Duration,
    /// No renewal after the lease was held for this long, so that others get the GPU; `None`: no limit of its own (the
    /// daemon's `renewal_cap` holds in any case).
    pub hold_cap: Option<Duration>,
    /// A lease that ends in less than this is reported once in each term.
    pub warn_before: Duration,
}

/// The moment within a term at which a lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RenewWhen {
    /// After a part of the term between these two, such as 0.6 and 0.8. Where exactly depends on the id of the lease, so
    /// that leases that were granted together are not renewed together.
    FractionOfTerm {
        /// The earliest part.
        from: f64,
        /// The latest part.
        to: f64,
    },
    /// When less than this part of the term is left, such as 0.25.
    RemainingBelow(f64),
    /// After this time, however long the term is, but before its end.
    Every(Duration),
}

impl Default for RenewalPolicy {
    /// After 60 % to 80 % of the term; failures are repeated after 1 s to 30 s; no cap; a warning 30 s before the end.
    fn default() -> RenewalPolicy {
        RenewalPolicy {
            when: RenewWhen::FractionOfTerm { from: 0.6, to: 0.8 },
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            hold_cap: None,
            warn_before: Duration::from_secs(30),
        }
    }
}

impl RenewalPolicy {
    /// The default, but renewed at another moment.
    pub fn renewing(when: RenewWhen) -> RenewalPolicy {
        RenewalPolicy { when, ..RenewalPolicy::default() }
    }

    /// When to renew a lease with a term from `start` to `end`.
    pub(super) fn renew_at(&self, lease: &str, start: f64, end: f64) -> f64 {
        let term = (end - start).max(0.0);
        match self.when {
            RenewWhen::FractionOfTerm { from, to } => {
                let (from, to) = (from.clamp(0.0, 1.0), to.clamp(0.0, 1.0));
                start + term * (from + (to - from).max(0.0) * jitter(lease))
            }
            RenewWhen::RemainingBelow(part) => end - term * part.clamp(0.0, 1.0),
            RenewWhen::Every(period) => start + period.as_secs_f64().min(term),
        }
    }

    /// The pause after this many failures in a row.
    pub(super) fn pause_s(&self, failures: u32) -> f64 {
        let doubled = self.first_pause.as_secs_f64() * 2_f64.powi(failures.saturating_sub(1).min(30) as i32);
        doubled.min(self.longest_pause.as_secs_f64())
    }
}

/// A number from 0 to 1 that depends on nothing but the id (FNV-1a).
fn jitter(lease: &str) -> f64 {
    let hash = lease
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // The upper bits of short texts differ little; the last multiplications mix them.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_within_a_term_of_100_s() {
        let at = |when| RenewalPolicy::renewing(when).renew_at("L1", 1_000.0, 1_100.0);
        assert_eq!(at(RenewWhen::RemainingBelow(0.25)), 1_075.0);
        assert_eq!(at(RenewWhen::Every(Duration::from_secs(60))), 1_060.0);
        assert_eq!(at(RenewWhen::Every(Duration::from_secs(600))), 1_100.0, "not after the end");
        assert_eq!(at(RenewWhen::FractionOfTerm { from: 0.5, to: 0.5 }), 1_050.0);
        assert_eq!(at(RenewWhen::FractionOfTerm { from: 9.0, to: -1.0 }), 1_100.0, "senseless parts do no harm");
    }

    #[test]
    fn the_default_renews_at_60_to_80_percent_by_the_id_alone() {
        let policy = RenewalPolicy::default();
        let at: Vec<f64> = (0..1_000).map(|n| policy.renew_at(&format!("L{n}"), 0.0, 100.0)).collect();
        assert!(at.iter().all(|at| (60.0..80.0).contains(at)));
        assert_eq!(at[7], policy.renew_at("L7", 0.0, 100.0));
        let early = at.iter().filter(|at| **at < 70.0).count();
        assert!((400..600).contains(&early), "{early} of 1,000 are in the first half");
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let policy = RenewalPolicy::default();
        let pauses: Vec<f64> = [1, 2, 3, 5, 6, 60].map(|failures| policy.pause_s(failures)).into();
        assert_eq!(pauses, [1.0, 2.0, 4.0, 16.0, 30.0, 30.0]);
    }
}
