//! Rate limits: a bucket for each caller, refilled steadily, in a bounded number of buckets.
//!
//! No clock is read here; the caller passes the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Buckets kept at a time. Tenants with a token are never more; of addresses, the one that was silent longest is
/// forgotten first.
const BUCKETS_MAX: usize = 10_000;
/// Searching all buckets costs some 100 µs, so it is not done with every call.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A rate, and how many calls at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Calls in a second in the long run.
    pub per_s: f64,
    /// Calls at once, after a pause.
    pub burst: f64,
}

/// The buckets.
#[derive(Debug)]
pub struct CallRates<K>(Mutex<RateTable<K>>);

#[derive(Debug)]
struct RateTable<K> {
    rate: Rate,
    buckets: HashMap<K, RateBucket>,
    swept: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct RateBucket {
    level: f64,
    at: Instant,
}

impl RateBucket {
    fn level(&self, rate: Rate, now: Instant) -> f64 {
        let refill = now.saturating_duration_since(self.at).as_secs_f64() * rate.per_s;
        (self.level + refill).min(rate.burst)
    }
}

/// The refusal of a call that came too soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSoon {
    /// When to try again.
    pub after_s: u64,
}

impl<K: Hash + Eq + Clone> CallRates<K> {
    /// Returns a limit at which all buckets are full.
    pub fn new(rate: Rate) -> CallRates<K> {
        CallRates(Mutex::new(RateTable { rate, buckets: HashMap::new(), swept: None }))
    }

    /// Changes the rate.
    pub fn set(&self, rate: Rate) {
        if let Ok(mut inside) = self.0.lock() {
            inside.rate = rate;
        }
    }

    /// Lets a call through and takes it from the bucket, or refuses it.
    pub fn take(&self, who: &K, now: Instant) -> Result<(), TooSoon> {
        let Ok(mut inside) = self.0.lock() else { return Err(TooSoon { after_s: 1 }) };
        let rate = inside.rate;
        let level = inside.buckets.get(who).map_or(rate.burst, |bucket| bucket.level(rate, now));
        enough(level, rate)?;
        if !inside.buckets.contains_key(who) {
            inside.make_room(now);
        }
        inside.buckets.insert(who.clone(), RateBucket { level: level - 1.0, at: now });
        Ok(())
    }
}

impl<K: Hash + Eq + Clone> RateTable<K> {
    /// Removes a bucket: one that is full again, or else any. Its owner then has a full one, which matters less than
    /// memory without bound.
    fn make_room(&mut self, now: Instant) {
        if self.buckets.len() < BUCKETS_MAX {
            return;
        }
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_EVERY) {
            self.swept = Some(now);
            let rate = self.rate;
            self.buckets.retain(|_, bucket| bucket.level(rate, now) < rate.burst);
        }
        if self.buckets.len() >= BUCKETS_MAX
            && let Some(any) = self.buckets.keys().next().cloned()
        {
            self.buckets.remove(&any);
        }
    }
}

fn enough(level: f64, rate: Rate) -> Result<(), TooSoon> {
    if level >= 1.0 {
        return Ok(());
    }
    let after_s = ((1.0 - level) / rate.per_s).ceil().clamp(1.0, 3600.0) as u64;
    Err(TooSoon { after_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_s: 2.0, burst: 3.0 };

    #[test]
    fn a_burst_passes_then_the_steady_rate_does() {
        let (rates, start) = (CallRates::new(RATE), Instant::now());
        let taken = |at_ms: u64, who| rates.take(&who, start + Duration::from_millis(at_ms)).is_ok();
        assert_eq!((0..5).map(|_| taken(0, "ana")).collect::<Vec<_>>(), [true, true, true, false, false]);
        assert!(taken(0, "ben"), "another's calls are not one's own");
        assert!(!taken(400, "ana"));
        assert!(taken(500, "ana"));
        assert!(!taken(600, "ana"));
        assert_eq!((0..5).map(|_| taken(60_000, "ana")).filter(|taken| *taken).count(), 3, "no more than a burst");
    }

    #[test]
    fn a_call_too_soon_is_told_when_to_retry() {
        let (rates, now) = (CallRates::new(Rate { per_s: 0.1, burst: 1.0 }), Instant::now());
        assert_eq!(rates.take(&1, now), Ok(()));
        assert_eq!(rates.take(&1, now), Err(TooSoon { after_s: 10 }));
        assert_eq!(rates.take(&1, now + Duration::from_secs(4)), Err(TooSoon { after_s: 6 }));
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let (rates, start) = (CallRates::new(RATE), Instant::now());
        for n in 0..3 * BUCKETS_MAX {
            rates.take(&n, start + Duration::from_micros(n as u64)).unwrap();
        }
        assert_eq!(rates.0.lock().unwrap().buckets.len(), BUCKETS_MAX);
        rates.take(&usize::MAX, start + Duration::from_secs(60)).unwrap();
        assert_eq!(rates.0.lock().unwrap().buckets.len(), 1, "those that are full again were swept");
    }
}
