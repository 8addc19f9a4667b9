//! When the first waiters start if every lease lasts as long as it may.
//!
//! [`super::expected_starts`] takes the same timelines with the durations that leases really have.

use crate::model::ids::{GpuId, LeaseId};
use crate::model::request::Term;
use crate::model::rows::Lease;
use crate::model::units::{Bytes, Span, Time};
use crate::policy::eligibility::needed_bytes;
use crate::policy::placement::{could_host, could_start_if_all_ended};
use crate::policy::room_plan;
use crate::policy::waiters::waiters_within_quota;
use crate::state::State;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The first waiters for which it is computed whether room is made.
const MADE: usize = 2;

/// Leases on a GPU, the first to end first, with the latest moment at which each ends while a waiter needs it.
pub fn blockers(state: &State, gpu: GpuId, now: Time) -> Vec<(Time, &Lease, Bytes)> {
    let ends = state.room(gpu).ends().iter();
    ends.filter_map(|(at, id, bytes)| state.lease(*id).map(|lease| (state.ends_after_grace(*at, now), lease, *bytes)))
        .collect()
}

/// When each of the first few waiters should start, if they are served in turn, each lease lasts as long as it may, and
/// no later request delays them. A waiter that is missing is too far back, or nothing that is known to end makes its
/// room.
pub fn estimates(state: &State, now: Time) -> BTreeMap<LeaseId, Time> {
    let mut plan = Plan::new(state, now);
    let mut starts = BTreeMap::new();
    for waiter in waiters_within_quota(state) {
        match plan.place(state, waiter) {
            // Room may be made sooner than it comes by itself.
            Some(at) => {
                let made = if starts.len() < MADE { room_plan::room_comes_at(state, waiter, now) } else { None };
                starts.insert(waiter.id, made.map_or(at, |made| made.min(at)));
            }
            // It takes no room from those behind it: its GPUs step aside, say.
            None if !could_start_if_all_ended(state, waiter) => {}
            // When this one starts cannot be known, nor what is left for those behind it.
            None => break,
        }
    }
    starts
}

/// GPUs as they empty and fill over time.
struct Plan {
    now: Time,
    gpus: Vec<FreeTimeline>,
}

impl Plan {
    fn new(state: &State, now: Time) -> Plan {
        let usable =
            |gpu: &GpuId| state.in_service(*gpu) && state.room(*gpu).check_readable(now, state.policy().period).is_ok();
        let timeline = |gpu: GpuId| {
            // What is over is seen with the next reading.
            let seen = now + state.policy().next_reading();
            let gives: Vec<(Time, Bytes)> =
                blockers(state, gpu, now).into_iter().map(|(at, _, bytes)| (at.max(seen), bytes)).collect();
            FreeTimeline::filling(gpu, now, state.promisable(gpu, now), &gives)
        };
        Plan { now, gpus: state.gpus().filter(usable).map(timeline).collect() }
    }

    /// Finds the first moment for a waiter, and books it from then on.
    fn place(&mut self, state: &State, waiter: &Lease) -> Option<Time> {
        let term = match waiter.request.term {
            Term::Fixed(term) => term,
            Term::Renewed(_) => state.policy().hold_max,
        };
        let wanted = usize::from(waiter.request.gpus);
        let mut able: Vec<(&mut FreeTimeline, Bytes)> = Vec::new();
        for timeline in &mut self.gpus {
            if could_host(state, waiter, timeline.gpu) {
                let need = needed_bytes(state, &waiter.request, timeline.gpu);
                able.push((timeline, need));
            }
        }
        let mut moments: Vec<Time> =
            able.iter().flat_map(|(timeline, _)| timeline.steps.iter().map(|(at, _)| *at)).collect();
        moments.sort();
        moments.dedup();
        // No waiter could start now: that was just tried.
        for at in moments.into_iter().filter(|at| *at > self.now) {
            let fit = |(timeline, need): &(&mut FreeTimeline, Bytes)| timeline.has(*need, at, at + term);
            if able.iter().filter(|one| fit(one)).count() >= wanted {
                let mut chosen: Vec<usize> = (0..able.len()).filter(|n| fit(&able[*n])).collect();
                // As claims are made: the GPUs that are free first, the roomiest of those.
                chosen.sort_by_key(|number| {
                    let (timeline, need) = &able[*number];
                    (timeline.first_with(*need), Reverse(timeline.steps[0].1), timeline.gpu)
                });
                for number in chosen.into_iter().take(wanted) {
                    let (timeline, need) = &mut able[number];
                    timeline.book(*need, at, at + term);
                }
                return Some(at);
            }
        }
        None
    }
}

/// How much of a GPU is free from when on; the last step holds for ever.
pub(crate) struct FreeTimeline {
    pub(crate) gpu: GpuId,
    steps: Vec<(Time, Bytes)>,
}

impl FreeTimeline {
    /// A timeline of `free` bytes now, to which `gives` are added at their moments.
    pub(crate) fn filling(gpu: GpuId, now: Time, mut free: Bytes, gives: &[(Time, Bytes)]) -> FreeTimeline {
        let mut steps = vec![(now, free)];
        for (at, bytes) in gives.iter().take_while(|(at, _)| *at != Time::NEVER) {
            free = free + *bytes;
            match steps.last_mut() {
                Some((last, room)) if *last == *at => *room = free,
                _ => steps.push((*at, free)),
            }
        }
        FreeTimeline { gpu, steps }
    }

    /// The first moment after now from which on this many bytes are free for this long. No waiter could start now: that
    /// was just tried.
    pub(crate) fn earliest(&self, need: Bytes, lasts: Span) -> Option<Time> {
        self.steps.iter().skip(1).map(|(at, _)| *at).find(|at| self.has(need, *at, *at + lasts))
    }

    /// Frees these bytes between two moments.
    pub(crate) fn give_back(&mut self, bytes: Bytes, from: Time, to: Time) {
        self.cut(from, to);
        for (_, free) in self.steps.iter_mut().filter(|(at, _)| *at >= from && *at < to) {
            *free = *free + bytes;
        }
    }

    /// When this many bytes are free first.
    fn first_with(&self, need: Bytes) -> Option<Time> {
        self.steps.iter().find(|(_, free)| *free >= need).map(|(at, _)| *at)
    }

    /// Whether this many bytes are free all the time between two moments.
    pub(crate) fn has(&self, need: Bytes, from: Time, to: Time) -> bool {
        let first = self.steps.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        self.steps[first..].iter().take_while(|(at, _)| *at < to).all(|(_, free)| *free >= need)
    }

    /// Takes these bytes between two moments.
    pub(crate) fn book(&mut self, need: Bytes, from: Time, to: Time) {
        self.cut(from, to);
        for (_, free) in self.steps.iter_mut().filter(|(at, _)| *at >= from && *at < to) {
            *free = free.less(need);
        }
    }

    /// Makes steps begin at these moments.
    fn cut(&mut self, from: Time, to: Time) {
        for at in [from, to] {
            let next = self.steps.partition_point(|(step, _)| *step <= at);
            if next > 0 && self.steps[next - 1].0 != at {
                self.steps.insert(next, (at, self.steps[next - 1].1));
            }
        }
    }
}
