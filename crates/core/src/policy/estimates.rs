//! When the first waiters start if every lease lasts as long as it may.
//!
//! [`super::expected_starts`] takes the same timelines with the durations that leases really have.

use crate::model::ids::{GpuId, LeaseId};
use crate::model::request::Term;
use crate::model::units::{Bytes, Span, Time};
use crate::policy::eligibility::needed_bytes;
use crate::policy::placement::{could_host, could_start_if_all_ended};
use crate::policy::room_plan;
use crate::policy::waiters::waiters_within_quota;
use crate::rows::Lease;
use crate::state::State;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// For so many of the first waiters it is reckoned whether room is made.
const MADE: usize = 2;

/// Leases on a card with the latest moment each ends while somebody waits, first first.
pub fn blockers(state: &State, card: GpuId, now: Time) -> Vec<(Time, &Lease, Bytes)> {
    let ends = state.room(card).ends().iter();
    ends.filter_map(|(at, id, bytes)| state.lease(*id).map(|lease| (state.ends_after_grace(*at, now), lease, *bytes)))
        .collect()
}

/// When each of the first few waiters should start, if they are served in turn, everybody holds as
/// long as it may, and nobody is delayed by who comes later. Who is not in it is too far back, or
/// nothing that is known to end makes its room.
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
            // Nobody can say when this one starts, nor what is left for those behind it.
            None => break,
        }
    }
    starts
}

/// Cards as they empty and fill over time.
struct Plan {
    now: Time,
    cards: Vec<FreeTimeline>,
}

impl Plan {
    fn new(state: &State, now: Time) -> Plan {
        let usable = |card: &GpuId| {
            state.in_service(*card) && state.room(*card).check_readable(now, state.policy().period).is_ok()
        };
        let outlook = |card: GpuId| {
            // What is over is there with the next look.
            let seen = now + state.policy().next_reading();
            let gives: Vec<(Time, Bytes)> =
                blockers(state, card, now).into_iter().map(|(at, _, bytes)| (at.max(seen), bytes)).collect();
            FreeTimeline::filling(card, now, state.promisable(card, now), &gives)
        };
        Plan { now, cards: state.gpus().filter(usable).map(outlook).collect() }
    }

    /// Finds the first moment for a waiter, and books it from then on.
    fn place(&mut self, state: &State, waiter: &Lease) -> Option<Time> {
        let term = match waiter.request.term {
            Term::Fixed(term) => term,
            Term::Renewed(_) => state.policy().hold_max,
        };
        let wanted = usize::from(waiter.request.gpus);
        let mut able: Vec<(&mut FreeTimeline, Bytes)> = Vec::new();
        for outlook in &mut self.cards {
            if could_host(state, waiter, outlook.card) {
                let need = needed_bytes(state, &waiter.request, outlook.card);
                able.push((outlook, need));
            }
        }
        let mut moments: Vec<Time> =
            able.iter().flat_map(|(outlook, _)| outlook.steps.iter().map(|(at, _)| *at)).collect();
        moments.sort();
        moments.dedup();
        // Whoever waits could not start now: that was just tried.
        for at in moments.into_iter().filter(|at| *at > self.now) {
            let fit = |(outlook, need): &(&mut FreeTimeline, Bytes)| outlook.has(*need, at, at + term);
            if able.iter().filter(|one| fit(one)).count() >= wanted {
                let mut chosen: Vec<usize> = (0..able.len()).filter(|n| fit(&able[*n])).collect();
                // As claims are made: the cards that are free first, the roomiest of those.
                chosen.sort_by_key(|number| {
                    let (outlook, need) = &able[*number];
                    (outlook.first_with(*need), Reverse(outlook.steps[0].1), outlook.card)
                });
                for number in chosen.into_iter().take(wanted) {
                    let (outlook, need) = &mut able[number];
                    outlook.book(*need, at, at + term);
                }
                return Some(at);
            }
        }
        None
    }
}

/// How much of a card is free from when on; the last holds for ever.
pub(crate) struct FreeTimeline {
    pub(crate) card: GpuId,
    steps: Vec<(Time, Bytes)>,
}

impl FreeTimeline {
    /// So much is free now, and leases give back the rest, first first.
    pub(crate) fn filling(card: GpuId, now: Time, mut free: Bytes, gives: &[(Time, Bytes)]) -> FreeTimeline {
        let mut steps = vec![(now, free)];
        for (at, bytes) in gives.iter().take_while(|(at, _)| *at != Time::NEVER) {
            free = free + *bytes;
            match steps.last_mut() {
                Some((last, room)) if *last == *at => *room = free,
                _ => steps.push((*at, free)),
            }
        }
        FreeTimeline { card, steps }
    }

    /// The first moment after now from which on so much is free for so long. A waiter could not start now:
    /// that was just tried.
    pub(crate) fn earliest(&self, need: Bytes, lasts: Span) -> Option<Time> {
        self.steps.iter().skip(1).map(|(at, _)| *at).find(|at| self.has(need, *at, *at + lasts))
    }

    /// Frees so much from then until then.
    pub(crate) fn give_back(&mut self, bytes: Bytes, from: Time, to: Time) {
        self.cut(from, to);
        for (_, free) in self.steps.iter_mut().filter(|(at, _)| *at >= from && *at < to) {
            *free = *free + bytes;
        }
    }

    /// When so much is free first.
    fn first_with(&self, need: Bytes) -> Option<Time> {
        self.steps.iter().find(|(_, free)| *free >= need).map(|(at, _)| *at)
    }

    /// Whether so much is free all the time from then until then.
    pub(crate) fn has(&self, need: Bytes, from: Time, to: Time) -> bool {
        let first = self.steps.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        self.steps[first..].iter().take_while(|(at, _)| *at < to).all(|(_, free)| *free >= need)
    }

    /// Takes so much from then until then.
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
