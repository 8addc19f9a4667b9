//! What the queue looks like, reckoned once however many look.
//!
//! When everybody may start follows from the state and the time, and takes tens of milliseconds
//! when thousands hold and gangs wait. It is kept until the state is another, or for a second:
//! what is told is when somebody starts, not how long that is from now, so that it does not grow
//! wrong meanwhile. Where it is dear it is kept for some changes too, so that the loop has most of
//! its time for deciding, however many look and however much they change.

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

/// Nothing is kept for longer, even if nothing happens.
const KEPT: Span = Span::secs(1);
/// What takes no longer is always reckoned anew for another state.
const CHEAP: Span = Span(5_000);
/// What takes longer is kept for so many times as long: a fifth of the loop's time at most.
const SPARED: u64 = 4;

/// What one waiter is told of itself alone.
#[derive(Debug)]
pub struct Estimates {
    /// What it could have now.
    pub offers: Vec<Offer>,
    /// When it starts at the latest.
    pub bound: Bound,
}

/// What was reckoned last.
#[derive(Debug, Default)]
pub struct EstimateCache(RefCell<CachedEstimates>);

#[derive(Debug, Default)]
struct CachedEstimates {
    starts: Option<StartEstimates>,
    /// Of what state the rest is, and when.
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

/// When those may start of whom it can be told.
#[derive(Debug)]
pub struct EstimateTimes {
    /// If every lease lasts as long as it may.
    pub planned: BTreeMap<LeaseId, Time>,
    /// By how long leases lasted so far.
    pub expected: BTreeMap<LeaseId, ExpectedStart>,
}

impl EstimateCache {
    /// Where those in front stand, in this version of the state.
    pub fn places(&self, state: &State, version: u64, now: Time) -> Arc<BTreeMap<LeaseId, usize>> {
        let mut kept = self.0.borrow_mut();
        let places = kept.renewed(version, now).places.get_or_insert_with(|| Arc::new(explain::places(state)));
        Arc::clone(places)
    }

    /// When those may start of whom it can be told.
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

    /// What one waiter is told of itself, in this version of the state.
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

/// Whether what was reckoned of one state at one time will do for another.
fn is_good((of, at): (u64, Time), cost: Span, version: u64, now: Time) -> bool {
    let age = now.since(at);
    let spared = cost > CHEAP && age.0 < cost.0 * SPARED;
    (of == version || spared) && now >= at && age < KEPT
}

/// How long this thread has worked: what others did meanwhile is not what it cost.
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
    fn however_many_look_at_one_state_it_is_reckoned_once_a_second() {
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
    fn what_is_dear_outlives_a_change_and_what_is_cheap_does_not() {
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
