//! How late waiters really start, compared with what was expected when they made their request.
//!
//! [`crate::policy::expected_starts`] plays forward what is there. It cannot know of later requests that go first, of tenants with a
//! growing debt, or of plans that fail. How much those matter is learned here: some waiters are remembered with what
//! was expected of them, and when they start, the ratio of the two is counted. An estimate for people is multiplied by
//! the ratio that was kept so far in five, or nine, of ten cases. It is kept apart for short, middle and long waits.

use crate::model::durations::{DurationOutcome, Histogram, ONE};
use crate::model::units::{Span, Time};
use serde::{Deserialize, Serialize};

/// Up to here a wait is short, and up to here it is middling.
const SHORT: Span = Span::secs(60);
const MIDDLE: Span = Span::secs(600);

/// Added to both sides of a ratio, so that nothing is divided by zero and a second does not count as much.
const BASE: Span = Span::secs(1);

/// A ratio of one, in the µs of a [`Histogram`]: just within a bucket that ends at [`NEXT`].
const EXACT: u64 = 1_023_000;
const NEXT: u64 = 1_024_000;

/// Fewer starts than this correct nothing.
const LEAST: u32 = 8;

/// No ratio is believed beyond these.
const RATIO_MAX: u64 = 64;

/// From the request to the start: as it was expected, with even odds and in nine of ten cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedWait {
    /// With even odds.
    pub p50: Span,
    /// In nine of ten cases.
    pub p90: Span,
}

/// Ratios for short, middling and long waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    #[serde(default)]
    p50: [Histogram; 3],
    #[serde(default)]
    p90: [Histogram; 3],
}

fn length(wait: Span) -> usize {
    match wait {
        wait if wait < SHORT => 0,
        wait if wait < MIDDLE => 1,
        _ => 2,
    }
}

fn ratio(waited: Span, expected: Span) -> Span {
    let parts = u128::from(EXACT) * u128::from((waited + BASE).0) / u128::from((expected + BASE).0);
    Span(parts.min(u128::from(RATIO_MAX * EXACT)) as u64)
}

fn corrected(of: &Histogram, expected: Span, over: u64) -> Span {
    let Some(ratio) = of.within(over).filter(|_| of.leases() >= LEAST) else { return expected };
    let scaled = u128::from((expected + BASE).0) * u128::from(ratio.0.min(RATIO_MAX * NEXT)) / u128::from(NEXT);
    Span(u64::try_from(scaled).unwrap_or(u64::MAX).saturating_sub(BASE.0))
}

impl Lateness {
    /// Whether nothing was learned.
    pub fn is_empty(&self) -> bool {
        *self == Lateness::default()
    }

    /// Adds how long a waiter waited until it started, or left the queue.
    pub fn learn(&mut self, expected: ExpectedWait, waited: Span, outcome: DurationOutcome, now: Time) {
        let length = length(expected.p50);
        self.p50[length].learn(ratio(waited, expected.p50), outcome, now);
        self.p90[length].learn(ratio(waited, expected.p90), outcome, now);
    }

    /// What to tell a waiter with this expectation.
    pub fn correct(&self, expected: ExpectedWait) -> ExpectedWait {
        let length = length(expected.p50);
        let p50 = corrected(&self.p50[length], expected.p50, ONE / 2);
        let p90 = corrected(&self.p90[length], expected.p90, ONE / 10 * 9);
        ExpectedWait { p50: p50.min(p90), p90 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(p50: u64, p90: u64) -> ExpectedWait {
        ExpectedWait { p50: Span::secs(p50), p90: Span::secs(p90) }
    }

    fn after(cases: impl Iterator<Item = (ExpectedWait, u64)>) -> Lateness {
        let mut lateness = Lateness::default();
        for (n, (expected, waited)) in (0..).zip(cases) {
            lateness.learn(expected, Span::secs(waited), DurationOutcome::Done, Time(n));
        }
        lateness
    }

    #[test]
    fn what_always_comes_true_is_told_as_it_is() {
        let lateness = after((0..40).map(|n| (wait(100 + n, 200 + n), 100 + n)));
        assert_eq!(lateness.correct(wait(300, 500)).p50, Span::secs(300));
    }

    #[test]
    fn few_starts_correct_nothing() {
        let lateness = after((0..7).map(|_| (wait(100, 200), 900)));
        assert_eq!(lateness.correct(wait(100, 200)), wait(100, 200));
    }

    #[test]
    fn waits_that_are_three_times_as_long_are_told_so() {
        let lateness = after((0..40).map(|_| (wait(100, 200), 600)));
        let ExpectedWait { p50, p90 } = lateness.correct(wait(100, 200));
        assert!((560..720).contains(&(p50.0 / 1_000_000)), "{p50}");
        assert!((560..720).contains(&(p90.0 / 1_000_000)), "{p90}");
        assert_eq!(lateness.correct(wait(10, 20)), wait(10, 20), "short waits are another matter");
    }

    #[test]
    fn nine_of_ten_waits_are_within_what_is_told() {
        // 1 to 100 times as long as expected, all equally often.
        let ratio = |n: u64| 1 + n * 37 % 100;
        let lateness = after((0..90).map(|n| (wait(1_000, 1_000), 1_000 * ratio(n) / 10)));
        let told = lateness.correct(wait(1_000, 1_000));
        let within = |wait: Span| (0..100).filter(|n| 1_000 * ratio(*n) / 10 <= wait.0 / 1_000_000).count();
        assert!((85..=100).contains(&within(told.p90)), "{}", within(told.p90));
        assert!((45..=65).contains(&within(told.p50)), "{}", within(told.p50));
    }
}
