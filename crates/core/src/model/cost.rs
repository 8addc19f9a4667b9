//! What it costs to park and to resume: a fixed part and a rate, by tenant, program and preemption method, learned
//! from every park and resume.
//!
//! A line is fitted through the measurements. Before the first one it is the line that a first measurement on real
//! GPUs gave; later measurements outweigh it, and newer ones outweigh older ones. Whole numbers only, so that every
//! replay of the log gives the same line.

use crate::model::method::Method;
use crate::model::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Programs of one tenant that are remembered; the one not seen for longest makes room.
const PROGRAMS_MAX: usize = 64;

/// What was measured before counts this many 256ths once more is measured.
const KEEP: i64 = 224;

/// A measurement counts for no more than this many times what was expected.
const ACCIDENT: u64 = 8;

/// The weight of one measurement.
const ONE: i64 = 256;

/// The weight of what is believed at first.
const FIRST: i64 = 64;

/// No measurement counts for more bytes or time than this: 16 TiB, and some hours.
const MIB_MAX: u64 = 16 << 20;
const MS_MAX: u64 = 20_000_000;

/// Off the GPU, or onto it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Off.
    #[serde(rename = "out")]
    OffGpu,
    /// Onto it.
    #[serde(rename = "back")]
    OntoGpu,
}

/// What was measured of a tenant's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Costs(BTreeMap<String, BTreeMap<Method, Cost>>);

/// One program and one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Off the GPU.
    #[serde(rename = "out")]
    pub off_gpu: CostLine,
    /// And back.
    #[serde(rename = "back")]
    pub onto_gpu: CostLine,
    /// When it was last measured.
    pub at: Time,
}

/// A line through measurements: sums, each weighted, of MiB (x) and ms (y).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostLine {
    /// How many there were.
    pub count: u32,
    w: i64,
    x: i64,
    y: i64,
    xx: i128,
    xy: i128,
}

impl CostLine {
    fn add(&mut self, weight: i64, mib: u64, ms: u64) {
        let (x, y) = (mib as i64, ms as i64);
        self.w += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.xx += i128::from(weight) * i128::from(x) * i128::from(x);
        self.xy += i128::from(weight) * i128::from(x) * i128::from(y);
    }

    fn learn(&mut self, bytes: Bytes, took: Span) {
        for sum in [&mut self.w, &mut self.x, &mut self.y] {
            *sum = *sum * KEEP / 256;
        }
        for sum in [&mut self.xx, &mut self.xy] {
            *sum = *sum * i128::from(KEEP) / 256;
        }
        self.count = self.count.saturating_add(1);
        self.add(ONE, mib(bytes), (took.0 / 1_000).min(MS_MAX));
    }

    /// The fixed part in µs, and µs for each GiB.
    pub fn fit(&self, method: Method, way: Direction) -> (u64, u64) {
        let mut line = self.clone();
        let (fixed, per_gib) = initial_cost(method, way);
        // What is believed at first fades as measurements come in.
        let weight = (FIRST * ONE / (ONE + line.w)).max(1);
        for gib in [1, 32] {
            line.add(weight, gib << 10, (fixed + per_gib * gib) / 1_000);
        }
        let (w, x, y) = (i128::from(line.w), i128::from(line.x), i128::from(line.y));
        let spread = w * line.xx - x * x;
        // µs per MiB, in 1024ths.
        let slope = if spread > 0 { ((w * line.xy - x * y) * 1_000 * 1_024 / spread).max(0) } else { 0 };
        let fixed = (y * 1_000 - slope * x / 1_024) / w.max(1);
        (fixed.max(0) as u64, slope as u64)
    }
}

fn mib(bytes: Bytes) -> u64 {
    (bytes.0 >> 20).min(MIB_MAX)
}

/// What is believed before anything was measured: a fixed part in µs, and µs for each GiB.
fn initial_cost(method: Method, way: Direction) -> (u64, u64) {
    match (method, way) {
        // A program with a hook of its own knows best, until the time it takes was measured.
        (Method::Hook, _) => (100_000, 20_000),
        // Two readings, and the rate of the bus.
        (Method::Shim, _) => (150_000, 21_000),
        (Method::Driver, Direction::OffGpu) => (500_000, 520_000),
        (Method::Driver, Direction::OntoGpu) => (300_000, 175_000),
        (Method::End, _) => (1_000_000, 0),
    }
}

impl Costs {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was measured, by program.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Method, &Cost)> {
        self.0.iter().flat_map(|(program, rungs)| rungs.iter().map(|(method, cost)| (program.as_str(), *method, cost)))
    }

    /// Adds how long a move of these bytes took. What is far beyond what it should have been is an accident more than a
    /// measurement, and counts for less.
    pub fn learn(&mut self, program: &str, method: Method, way: Direction, bytes: Bytes, took: Span, now: Time) {
        let most = Span(self.estimate(program, method, way, bytes).0.saturating_mul(ACCIDENT));
        let took = took.min(most);
        if !self.0.contains_key(program) && self.0.len() >= PROGRAMS_MAX {
            let last = |rungs: &BTreeMap<Method, Cost>| rungs.values().map(|cost| cost.at).max();
            let oldest = self.0.iter().min_by_key(|(_, rungs)| last(rungs)).map(|(name, _)| name.clone());
            oldest.map(|name| self.0.remove(&name));
        }
        let rungs = self.0.entry(program.to_owned()).or_default();
        let new = || Cost { off_gpu: CostLine::default(), onto_gpu: CostLine::default(), at: now };
        let cost = rungs.entry(method).or_insert_with(new);
        cost.at = now;
        match way {
            Direction::OffGpu => cost.off_gpu.learn(bytes, took),
            Direction::OntoGpu => cost.onto_gpu.learn(bytes, took),
        }
    }

    /// The expected duration of a move of these bytes of this program.
    pub fn estimate(&self, program: &str, method: Method, way: Direction, bytes: Bytes) -> Span {
        let none = CostLine::default();
        let cost = self.0.get(program).and_then(|rungs| rungs.get(&method));
        let line = match (cost, way) {
            (None, _) => &none,
            (Some(cost), Direction::OffGpu) => &cost.off_gpu,
            (Some(cost), Direction::OntoGpu) => &cost.onto_gpu,
        };
        let (fixed, per_gib) = line.fit(method, way);
        Span(fixed + (u128::from(per_gib) * u128::from(mib(bytes)) / 1_024) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: &[(u64, u64)]) -> Costs {
        let mut costs = Costs::default();
        for (n, (gib, ms)) in samples.iter().enumerate() {
            let took = Span(ms * 1_000);
            costs.learn("train", Method::Shim, Direction::OffGpu, Bytes::gib(*gib), took, Time(n as u64));
        }
        costs
    }

    fn estimate(costs: &Costs, gib: u64) -> u64 {
        costs.estimate("train", Method::Shim, Direction::OffGpu, Bytes::gib(gib)).0 / 1_000
    }

    #[test]
    fn what_is_believed_at_first_is_what_real_cards_showed() {
        let costs = Costs::default();
        assert_eq!(estimate(&costs, 0), 150);
        assert_eq!(estimate(&costs, 32), 822);
        let driver = costs.estimate("train", Method::Driver, Direction::OffGpu, Bytes::gib(32));
        assert!((16..18).contains(&(driver.0 / 1_000_000)), "{driver:?}");
    }

    #[test]
    fn a_few_measurements_outweigh_it() {
        let slow = after(&[(8, 4_000); 6]);
        assert!((3_500..4_200).contains(&estimate(&slow, 8)), "{}", estimate(&slow, 8));
    }

    #[test]
    fn the_fixed_part_and_the_rate_are_told_apart() {
        let line = |gib: u64| 300 + 100 * gib;
        let costs = after(&[1, 4, 16, 2, 8, 24, 1, 30, 12].map(|gib| (gib, line(gib))));
        for gib in [1, 8, 20, 40] {
            let (found, real) = (estimate(&costs, gib), line(gib));
            assert!(found * 10 >= real * 9 && found * 10 <= real * 11, "{gib} GiB: {found} ms, not {real}");
        }
    }

    #[test]
    fn what_was_measured_lately_counts_most() {
        let before = [(8, 1_000); 20].to_vec();
        let now = vec![(8, 3_000); 20];
        let found = estimate(&after(&[before, now].concat()), 8);
        assert!((2_600..3_100).contains(&found), "{found}");
    }

    #[test]
    fn one_accident_does_not_make_a_program_dear_for_ever() {
        let mut samples = vec![(8, 500); 10];
        samples.push((8, 600_000));
        let found = estimate(&after(&samples), 8);
        assert!(found < 2_000, "{found} ms");
        // What takes that long each time is what it takes.
        let slow = estimate(&after(&[(8, 60_000); 12]), 8);
        assert!(slow > 50_000, "{slow} ms");
    }

    #[test]
    fn programs_are_forgotten_and_not_without_bound() {
        let mut costs = Costs::default();
        for n in 0..1_000u64 {
            costs.learn(&format!("p{n}"), Method::Shim, Direction::OffGpu, Bytes::gib(1), Span::secs(1), Time(n));
        }
        assert_eq!(costs.iter().count(), PROGRAMS_MAX);
        assert!(costs.iter().all(|(_, _, cost)| cost.at >= Time(1_000 - PROGRAMS_MAX as u64)));
    }

    #[test]
    fn nothing_overflows_whatever_is_measured() {
        let mut costs = Costs::default();
        for n in 0..10_000u64 {
            let took = Span(u64::MAX - n);
            costs.learn("p", Method::Driver, Direction::OntoGpu, Bytes(u64::MAX), took, Time(n));
            costs.learn("p", Method::Driver, Direction::OntoGpu, Bytes::ZERO, Span::ZERO, Time(n));
        }
        let most = costs.estimate("p", Method::Driver, Direction::OntoGpu, Bytes(u64::MAX));
        assert!(most.0 < u64::MAX / 2);
    }
}
