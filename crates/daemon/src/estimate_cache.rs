//! Estimates about the queue, computed once for all readers.
//!
//! When each waiter may start follows from the state and the time, and takes tens of milliseconds to compute when
//! thousands of leases and gangs wait. An estimate is kept until the state changes, or for 1 s: it is a moment and not
//! a distance from now, so it does not become wrong meanwhile. An expensive one is kept over some changes, too, so that
//! the loop has most of its time for decisions, however many readers and changes there are.

use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use sublet_core::State;
use sublet_core::ids::LeaseId;
use sublet_core::policy::estimates;
use sublet_core::policy::expected_starts::{self, ExpectedStart};
use sublet_core::policy::explain::{self, Bound};
use sublet_core::policy::offers::{Offer, offers};
use sublet_core::rows::Lease;
use sublet_core::units::{Span, Time};

/// The longest time that an estimate is kept.
const KEPT: Span = Span::secs(1);
/// An estimate that takes no longer than this is computed anew for every state.
const CHEAP: Span = Span(5_000);
/// One that takes longer is kept for this many times as long: at most a fifth of the loop's time is spent on it.
const SPARED: u64 = 4;

/// Estimates about one waiter.
#[derive(Debug)]
pub struct Estimates {
    /// The offers of this moment.
    pub offers: Vec<Offer>,
    /// The latest start.
    pub bound: Bound,
}

/// The last estimates.
#[derive(Debug, Default)]
pub struct EstimateCache(RefCell<CachedEstimates>);

#[derive(Debug, Default)]
struct CachedEstimates {
    starts: Option<StartEstimates>,
    /// The version and the time of the state that they are about.
    of: (u64, Time),
    places: Option<Arc<BTreeMap<LeaseId, usize>>>,
    outlooks: BTreeMap<LeaseId, Arc<Estimates>>,
}

#[derive(Debug)]
struct StartEstimates {
    of: (u64, Time),
    cost: Span,
    at: Arc<EstimateTimes>,
}

/// When waiters may start, where that is known.
#[derive(Debug)]
pub struct EstimateTimes {
    /// If every lease lasts as long as it may.
    pub planned: BTreeMap<LeaseId, Time>,
    /// By how long leases lasted so far.
    pub expected: BTreeMap<LeaseId, ExpectedStart>,
}

impl EstimateCache {
    /// The places of the first waiters, in this version of the state.
    pub fn places(&self, state: &State, version: u64, now: Time) -> Arc<BTreeMap<LeaseId, usize>> {
        let mut kept = self.0.borrow_mut();
        let places = kept.renewed(version, now).places.get_or_insert_with(|| Arc::new(explain::places(state)));
        Arc::clone(places)
    }

    /// When waiters may start, where that is known.
    pub fn starts(&self, state: &State, version: u64, now: Time) -> Arc<EstimateTimes> {
        let mut kept = self.0.borrow_mut();
        if let Some(starts) = kept.starts.as_ref().filter(|starts| is_good(starts.of, starts.cost, version, now)) {
            return Arc::clone(&starts.at);
        }
        let begun = worked();
        let at = EstimateTimes {
            planned: estimates::estimates(state, now),
            expected: expected_starts::expected(state, now),
        };
        let at = Arc::new(at);
        let cost = Span(worked().saturating_sub(begun).as_micros() as u64);
        kept.starts = Some(StartEstimates { of: (version, now), cost, at: Arc::clone(&at) });
        at
    }

    /// The estimates about one waiter, in this version of the state.
    pub fn outlook(&self, state: &State, version: u64, now: Time, lease: &Lease) -> Arc<Estimates> {
        let mut kept = self.0.borrow_mut();
        let reckon = || Estimates { offers: offers(state, lease, now), bound: explain::bound(state, lease, now) };
        let outlook = kept.renewed(version, now).outlooks.entry(lease.id).or_insert_with(|| Arc::new(reckon()));
        Arc::clone(outlook)
    }
}

impl CachedEstimates {
    fn renewed(&mut self, version: u64, now: Time) -> &mut CachedEstimates {
        if !is_good(self.of, Span(0), version, now) {
            (self.of, self.places, self.outlooks) = ((version, now), None, BTreeMap::new());
        }
        self
    }
}

/// True if an estimate for one state and time still counts for another.
fn is_good((of, at): (u64, Time), cost: Span, version: u64, now: Time) -> bool {
    let age = now.since(at);
    let spared = cost > CHEAP && age.0 < cost.0 * SPARED;
    (of == version || spared) && now >= at && age < KEPT
}

/// How long this thread has worked; other threads do not count.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::rows::Rows;
    use sublet_core::settings::Policy;

    #[test]
    fn one_state_is_estimated_once_a_second_for_all_readers() {
        let (plans, state) = (EstimateCache::default(), State::new(Rows::default(), Policy::default()));
        let look = |version, at_ms: u64| plans.starts(&state, version, Time(at_ms * 1_000));
        let first = look(1, 0);
        assert!(Arc::ptr_eq(&first, &look(1, 999)), "the same state, a little later");
        let second = look(2, 999);
        assert!(!Arc::ptr_eq(&first, &second), "another state");
        assert!(!Arc::ptr_eq(&second, &look(2, 1_999)), "a second later");
        let places = |version, at_ms: u64| plans.places(&state, version, Time(at_ms * 1_000));
        let first = places(1, 0);
        assert!(Arc::ptr_eq(&first, &places(1, 999)) && !Arc::ptr_eq(&first, &places(2, 999)));
    }

    #[test]
    fn an_expensive_estimate_is_kept_over_a_change_and_a_cheap_one_is_not() {
        let check = |cost_ms: u64, version: u64, at_ms: u64, expected: bool| {
            let good = is_good((1, Time(0)), Span(cost_ms * 1_000), version, Time(at_ms * 1_000));
            assert_eq!(good, expected, "{cost_ms} ms, version {version}, {at_ms} ms later");
        };
        check(5, 2, 0, false);
        check(26, 2, 103, true);
        check(26, 2, 104, false);
        check(26, 1, 104, true);
        check(900, 2, 1_000, false);
    }
}
