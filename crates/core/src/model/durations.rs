//! How long leases really lasted, learned from every lease that ended.
//!
//! Each tenant has one histogram for each program, tier and size class. A duration is the time on
//! the GPUs; parked time is not in it. A lease that was stopped early (at the hold cap, for others,
//! by an operator) lasted *at least* that long, and is counted so: the estimate is Kaplan and
//! Meier's. Whole numbers only, so that every replay of the log learns the same.
//!
//! ```text
//! bucket   … 12.3 s   14.3 s   16.4 s   20.5 s …     four for each doubling
//! ended         2        9        1
//! cut                                      1         stopped early
//! ```

use crate::model::request::{LeaseRequest, Tier, Vram};
use crate::model::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Histograms that are kept for one tenant; the one not changed for longest makes room.
const HISTOGRAMS_MAX: usize = 64;

/// One lease counts as this many units, so that halving keeps it for a while.
const UNITS: u16 = 4;

/// A histogram with more units than this is halved first: newer leases count more.
const UNITS_MAX: u32 = 96 * UNITS as u32;

/// Durations below 4 ms share a bucket; above 2³⁶ ms (two years) too.
const MS_MIN: u64 = 4;
const MS_MAX: u64 = (1 << 36) - 1;

/// Buckets for each doubling of the duration.
const STEPS: u64 = 4;

/// The weight of one lease in a [`Lifetime`].
const WEIGHT: u64 = 1 << 16;

/// All leases of the tenant together count for as much as two of the same kind, those of all tenants for one.
const TENANT_WEIGHT: u64 = 2 * WEIGHT;
const ALL_WEIGHT: u64 = WEIGHT;

/// Nothing is ever sure: half a lease outlasted all that was seen.
const DOUBT: u64 = WEIGHT / 2;

/// The unit of probabilities.
pub const ONE: u64 = 1 << 32;

/// What leases are told apart by, beside tenant and program: tier, and bytes on all GPUs in steps of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseKind(u8);

impl LeaseKind {
    /// The kind of a request that got, or would get, this much of each GPU.
    pub fn new(tier: Tier, vram: Bytes, gpus: usize) -> LeaseKind {
        let mib = (vram.0.saturating_mul(gpus as u64) >> 20).max(1);
        let tier = match tier {
            Tier::Interactive => 0,
            Tier::Batch => 1,
            Tier::Spot => 2,
        };
        LeaseKind(tier << 5 | (mib.ilog2() / 2) as u8)
    }

    /// The kind of a request; `whole` is what a whole GPU has.
    pub fn of(request: &LeaseRequest, whole: Bytes) -> LeaseKind {
        let vram = match request.vram {
            Vram::Bytes(vram) => vram,
            Vram::Whole => whole,
        };
        LeaseKind::new(request.tier, vram, request.gpus.into())
    }

    fn tier(self) -> u8 {
        self.0 >> 5
    }
}

/// How a lease ended, as far as its duration is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationOutcome {
    /// Its program was done.
    Done,
    /// It was stopped, and would have lasted longer.
    Cut,
}

/// Units of one bucket: its number, leases that were done, leases that were cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DurationBucket(u8, u16, u16);

/// Durations of one kind of lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// In ascending order, none empty.
    #[serde(rename = "b")]
    buckets: Vec<DurationBucket>,
    /// When it last changed.
    at: Time,
}

/// The histograms of one tenant, by program and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Durations(BTreeMap<String, BTreeMap<LeaseKind, Histogram>>);

fn bucket_of(span: Span) -> u8 {
    let ms = (span.0 / 1_000).clamp(MS_MIN, MS_MAX);
    let octave = u64::from(ms.ilog2());
    (octave * STEPS + ((ms >> (octave - 2)) & 3)) as u8
}

/// The shortest duration in a bucket.
fn edge(bucket: u8) -> Span {
    let (octave, step) = (u64::from(bucket) / STEPS, u64::from(bucket) % STEPS);
    if octave < 2 { Span::ZERO } else { Span(((STEPS + step) << (octave - 2)) * 1_000) }
}

impl Histogram {
    /// How many leases it counts, about.
    pub(crate) fn leases(&self) -> u32 {
        self.units() / u32::from(UNITS)
    }

    /// What so much of all (in parts of [`ONE`]) does not exceed: the end of a bucket. `None` if nothing was
    /// learned.
    pub(crate) fn within(&self, over: u64) -> Option<Span> {
        let mut sums = Sums::new();
        add(&mut sums, self);
        sums.values_mut().for_each(|(done, cut)| (*done, *cut) = (*done * WEIGHT, *cut * WEIGHT));
        let points = Lifetime::new(&sums)?.points;
        let last = points.last()?.0;
        let found = points.into_iter().find(|(_, alive)| *alive <= ONE - over.min(ONE));
        Some(found.map_or(Span(last.0.saturating_mul(2)), |(at, _)| at))
    }

    fn units(&self) -> u32 {
        self.buckets.iter().map(|DurationBucket(_, done, cut)| u32::from(*done) + u32::from(*cut)).sum()
    }

    pub(crate) fn learn(&mut self, lasted: Span, outcome: DurationOutcome, now: Time) {
        if self.units() >= UNITS_MAX {
            self.buckets.iter_mut().for_each(|DurationBucket(_, done, cut)| (*done, *cut) = (*done / 2, *cut / 2));
            self.buckets.retain(|DurationBucket(_, done, cut)| done + cut > 0);
        }
        let number = bucket_of(lasted);
        let place = match self.buckets.binary_search_by_key(&number, |bucket| bucket.0) {
            Ok(place) => place,
            Err(place) => {
                self.buckets.insert(place, DurationBucket(number, 0, 0));
                place
            }
        };
        let DurationBucket(_, done, cut) = &mut self.buckets[place];
        match outcome {
            DurationOutcome::Done => *done += UNITS,
            DurationOutcome::Cut => *cut += UNITS,
        }
        self.at = now;
    }
}

impl Durations {
    /// Whether nothing was learned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a lease of this kind and how long it lasted.
    pub fn learn(&mut self, program: &str, kind: LeaseKind, lasted: Span, outcome: DurationOutcome, now: Time) {
        let known = self.0.get(program).is_some_and(|kinds| kinds.contains_key(&kind));
        if !known && self.0.values().map(BTreeMap::len).sum::<usize>() >= HISTOGRAMS_MAX {
            self.forget_oldest();
        }
        self.0.entry(program.to_owned()).or_default().entry(kind).or_default().learn(lasted, outcome, now);
    }

    fn forget_oldest(&mut self) {
        let all =
            self.0.iter().flat_map(|(program, kinds)| kinds.iter().map(move |(kind, of)| (of.at, program, *kind)));
        let Some((_, program, kind)) = all.min() else { return };
        let program = program.clone();
        if let Some(kinds) = self.0.get_mut(&program) {
            kinds.remove(&kind);
            if kinds.is_empty() {
                self.0.remove(&program);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, LeaseKind, &Histogram)> {
        self.0.iter().flat_map(|(program, kinds)| kinds.iter().map(|(kind, of)| (program.as_str(), *kind, of)))
    }
}

/// How long all tenants' leases lasted, by tier: what is expected of a tenant without a history of its own.
#[derive(Clone, Debug, Default)]
pub struct AllDurations {
    all: Sums,
    by_tier: [Sums; 3],
}

/// Weights by bucket: leases that were done, leases that were cut.
type Sums = BTreeMap<u8, (u64, u64)>;

fn add(sums: &mut Sums, of: &Histogram) {
    for DurationBucket(number, done, cut) in &of.buckets {
        let sum = sums.entry(*number).or_default();
        (sum.0, sum.1) = (sum.0 + u64::from(*done), sum.1 + u64::from(*cut));
    }
}

fn total(sums: &Sums) -> u64 {
    sums.values().map(|(done, cut)| done + cut).sum()
}

impl AllDurations {
    /// Adds up the histograms of all tenants.
    pub fn new<'a>(tenants: impl Iterator<Item = &'a Durations>) -> AllDurations {
        let mut everybody = AllDurations::default();
        for (_, kind, of) in tenants.flat_map(Durations::iter) {
            add(&mut everybody.all, of);
            add(&mut everybody.by_tier[usize::from(kind.tier().min(2))], of);
        }
        everybody
    }

    /// How long a lease of this tenant should last: by its own program (`None`: not known yet) and kind,
    /// mixed with a little of what else is known. `None` if no lease ever ended.
    pub fn lifetime(&self, own: &Durations, program: Option<&str>, kind: LeaseKind) -> Option<Lifetime> {
        let (mut same, mut tenant) = (Sums::new(), Sums::new());
        for (of_program, of_kind, of) in own.iter() {
            if of_kind == kind && program.is_none_or(|program| program == of_program) {
                add(&mut same, of);
            }
            if of_kind.tier() == kind.tier() {
                add(&mut tenant, of);
            }
        }
        let by_tier = &self.by_tier[usize::from(kind.tier().min(2))];
        let all = if by_tier.is_empty() { &self.all } else { by_tier };
        let mut mixed = Sums::new();
        let mut mix = |sums: &Sums, weight: Option<u64>| {
            let units = total(sums).max(1);
            for (number, (done, cut)) in sums {
                let scaled = |count: u64| match weight {
                    None => count * WEIGHT / u64::from(UNITS),
                    Some(weight) => count * weight / units,
                };
                let sum = mixed.entry(*number).or_default();
                (sum.0, sum.1) = (sum.0 + scaled(*done), sum.1 + scaled(*cut));
            }
        };
        mix(&same, None);
        mix(&tenant, Some(TENANT_WEIGHT));
        mix(all, Some(ALL_WEIGHT));
        Lifetime::new(&mixed)
    }
}

impl Durations {
    /// How long a lease of this program and kind should last by its own history alone. `None` if fewer
    /// than two such leases were seen to be done.
    pub fn lifetime(&self, program: &str, kind: LeaseKind) -> Option<Lifetime> {
        let of = self.0.get(program)?.get(&kind)?;
        let done: u32 = of.buckets.iter().map(|DurationBucket(_, done, _)| u32::from(*done)).sum();
        let mut sums = Sums::new();
        add(&mut sums, of);
        sums.values_mut().for_each(|(done, cut)| {
            (*done, *cut) = (*done * WEIGHT / u64::from(UNITS), *cut * WEIGHT / u64::from(UNITS));
        });
        (done >= 2 * u32::from(UNITS)).then(|| Lifetime::new(&sums)).flatten()
    }
}

/// The probability that a lease lasts longer than so long: a falling line from edge to edge, in parts of
/// [`ONE`]. Beyond the last edge, twice the duration has half the probability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    points: Vec<(Span, u64)>,
}

impl Lifetime {
    fn new(sums: &Sums) -> Option<Lifetime> {
        let mut at_risk = total(sums) + DOUBT;
        if at_risk == DOUBT {
            return None;
        }
        let mut alive = ONE;
        let mut points = vec![(Span::ZERO, ONE)];
        for (number, (done, cut)) in sums {
            let from = edge(*number);
            if points.last().is_some_and(|(last, _)| *last < from) {
                points.push((from, alive));
            }
            alive = (u128::from(alive) * u128::from(at_risk - done) / u128::from(at_risk)) as u64;
            at_risk -= done + cut;
            points.push((edge(number + 1), alive.max(1)));
        }
        Some(Lifetime { points })
    }

    /// The probability that it lasts longer than this.
    fn alive(&self, lasted: Span) -> u64 {
        let next = self.points.partition_point(|(at, _)| *at <= lasted);
        let (from, before) = self.points[next - 1];
        match self.points.get(next) {
            Some((to, after)) => {
                let fell = u128::from(before - after) * u128::from(lasted.0 - from.0) / u128::from(to.0 - from.0);
                before - fell as u64
            }
            None => (u128::from(before) * u128::from(from.0.max(1)) / u128::from(lasted.0.max(1))).max(1) as u64,
        }
    }

    /// How long one that has lasted so long still lasts, with this probability (in parts of [`ONE`]) that it
    /// is over by then.
    pub fn remaining(&self, lasted: Span, over: u64) -> Span {
        let target = (u128::from(self.alive(lasted)) * u128::from(ONE - over.min(ONE - 1)) / u128::from(ONE)).max(1);
        let target = target as u64;
        let next = self.points.partition_point(|(_, alive)| *alive > target);
        let lasts = match self.points.get(next) {
            Some((to, after)) => {
                let (from, before) = self.points[next.saturating_sub(1)];
                let part =
                    u128::from(to.0 - from.0) * u128::from(before - target) / u128::from((before - after).max(1));
                Span(from.0 + part as u64)
            }
            None => {
                let (from, before) = self.points[self.points.len() - 1];
                let lasts = u128::from(from.0) * u128::from(before) / u128::from(target);
                Span(u64::try_from(lasts).unwrap_or(u64::MAX))
            }
        };
        Span(lasts.0.saturating_sub(lasted.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: LeaseKind = LeaseKind(1 << 5 | 7);

    fn after(seconds: &[u64]) -> Durations {
        let mut durations = Durations::default();
        for (n, lasted) in seconds.iter().enumerate() {
            durations.learn("train", KIND, Span::secs(*lasted), DurationOutcome::Done, Time(n as u64));
        }
        durations
    }

    /// Seconds that are left after so many, with this probability in hundredths.
    fn left(durations: &Durations, lasted: u64, percent: u64) -> u64 {
        let everybody = AllDurations::new([durations].into_iter());
        let lifetime = everybody.lifetime(durations, Some("train"), KIND).unwrap();
        lifetime.remaining(Span::secs(lasted), ONE / 100 * percent).0 / 1_000_000
    }

    #[test]
    fn edges_and_buckets_agree() {
        for ms in (4..5_000).chain([1 << 20, (1 << 30) + 12_345, MS_MAX]) {
            let number = bucket_of(Span(ms * 1_000));
            assert!(edge(number).0 <= ms * 1_000 && ms * 1_000 < edge(number + 1).0, "{ms} ms in {number}");
        }
        assert_eq!(bucket_of(Span(u64::MAX)), bucket_of(Span(MS_MAX * 1_000)));
    }

    #[test]
    fn jobs_that_all_take_13_s_are_expected_to() {
        let durations = after(&[13; 20]);
        assert!((12..=14).contains(&left(&durations, 0, 50)), "{}", left(&durations, 0, 50));
        assert!((2..=4).contains(&left(&durations, 10, 50)), "{}", left(&durations, 10, 50));
        // One that outlasts them all is expected to go on for as long again.
        assert!((50..=70).contains(&left(&durations, 60, 50)), "{}", left(&durations, 60, 50));
    }

    #[test]
    fn what_has_lasted_long_lasts_longer_where_that_was_seen() {
        let durations = after(&[[5u64; 8].as_slice(), &[600; 8]].concat());
        assert!(left(&durations, 0, 40) < 10, "{}", left(&durations, 0, 40));
        assert!((480..660).contains(&left(&durations, 20, 50)), "{}", left(&durations, 20, 50));
    }

    #[test]
    fn a_lease_that_was_cut_lasted_at_least_that_long() {
        let mut durations = after(&[5; 4]);
        for n in 0..4 {
            durations.learn("train", KIND, Span::secs(1_800), DurationOutcome::Cut, Time(100 + n));
        }
        assert!(left(&durations, 0, 40) < 10);
        assert!(left(&durations, 30, 50) > 1_700, "{}", left(&durations, 30, 50));
    }

    #[test]
    fn another_tenants_leases_count_where_there_are_no_own() {
        let (own, others) = (Durations::default(), after(&[100; 5]));
        let everybody = AllDurations::new([&own, &others].into_iter());
        let lifetime = everybody.lifetime(&own, None, KIND).unwrap();
        assert!((80..130).contains(&(lifetime.remaining(Span::ZERO, ONE / 2).0 / 1_000_000)));
        assert_eq!(AllDurations::new([&own].into_iter()).lifetime(&own, None, KIND), None, "unknown is not zero");
    }

    #[test]
    fn own_history_outweighs_everybodys() {
        let (own, others) = (after(&[10; 6]), after(&[10_000; 90]));
        let everybody = AllDurations::new([&own, &others].into_iter());
        let lifetime = everybody.lifetime(&own, Some("train"), KIND).unwrap();
        assert!(lifetime.remaining(Span::ZERO, ONE / 2) < Span::secs(13));
    }

    #[test]
    fn own_history_alone_needs_two_leases() {
        assert_eq!(after(&[13]).lifetime("train", KIND), None);
        assert_eq!(after(&[13, 13]).lifetime("eval", KIND), None);
        assert!(after(&[13, 13]).lifetime("train", KIND).is_some());
    }

    #[test]
    fn new_durations_replace_old_ones_and_nothing_grows_without_bound() {
        let mut durations = after(&[[1_000u64; 200].as_slice(), &[10; 200]].concat());
        assert!(left(&durations, 0, 50) < 13, "{}", left(&durations, 0, 50));
        for n in 0..1_000u64 {
            let kind = LeaseKind::new(Tier::Batch, Bytes::mib(1 << (n % 20)), 1);
            durations.learn(
                &format!("p{}", n / 3),
                kind,
                Span(n * n * n * 1_000),
                DurationOutcome::Done,
                Time(1_000 + n),
            );
        }
        assert_eq!(durations.iter().count(), HISTOGRAMS_MAX);
        assert!(durations.iter().all(|(_, _, of)| of.units() <= UNITS_MAX + u32::from(UNITS)));
    }

    #[test]
    fn the_rows_survive_json() {
        let durations = after(&[1, 5, 13, 1_000_000]);
        let text = serde_json::to_string(&durations).unwrap();
        assert_eq!(serde_json::from_str::<Durations>(&text).unwrap(), durations);
        assert!(text.len() < 140, "{text}");
    }

    #[test]
    fn no_duration_and_no_probability_overflows() {
        let mut durations = after(&[]);
        for n in 0..500 {
            durations.learn("train", KIND, Span(u64::MAX - n), DurationOutcome::Done, Time(n));
            durations.learn("train", KIND, Span::ZERO, DurationOutcome::Cut, Time(n));
        }
        for lasted in [0, 1, u64::MAX / 2, u64::MAX] {
            for over in [0, 1, ONE / 2, ONE - 1, u64::MAX] {
                let everybody = AllDurations::new([&durations].into_iter());
                let lifetime = everybody.lifetime(&durations, Some("train"), KIND).unwrap();
                let _ = lifetime.remaining(Span(lasted), over);
            }
        }
    }
}
