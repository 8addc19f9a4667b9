//! Which holders are preempted so that a waiter fits: how long the choice takes with 1,000 holders on 16
//! GPUs, how much cheaper it is than a plain greedy one, and how far small choices are from the best.
//!
//! The thread's CPU time counts, not wall time: other programs on the machine do not change the
//! result.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::{Quantiles, Samples, median};
use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;
use sublet_core::ids::{GpuId, LeaseId};
use sublet_core::policy::plan::{GpuNeed, PreemptionChoice, Victim, cheapest, greedy};
use sublet_core::units::{Bytes, Span};

const HOLDERS: u64 = 1000;
const GPUS: u64 = 16;
/// Questions of each shape for each number of GPUs.
const QUESTIONS: u64 = 150;
/// Questions that brute force answers too, and their sizes.
const SMALL: u64 = 1500;
const SMALL_HOLDERS: u64 = 12;
const SMALL_GPUS: u64 = 4;

/// How holders' prices and sizes are made. All but the first are made to be hard.
const SHAPES: [HolderShape; 7] = [
    HolderShape { name: "mixed", make: |dice| (dice.below(600_000_000), 1 + dice.below(24 << 10)), two: 10, alone: 0 },
    HolderShape { name: "one price", make: |dice| (1_000_000, 1 + dice.below(24 << 10)), two: 10, alone: 0 },
    HolderShape { name: "four sizes", make: |dice| (dice.below(60_000_000), 2048 << dice.below(4)), two: 10, alone: 0 },
    HolderShape { name: "all the same", make: |_| (1_000_000, 4096), two: 10, alone: 0 },
    HolderShape { name: "price follows size", make: |dice| move_time(1 + dice.below(24 << 10)), two: 10, alone: 0 },
    HolderShape { name: "all on two cards", make: |dice| move_time(1 + dice.below(24 << 10)), two: 100, alone: 0 },
    HolderShape { name: "alone", make: |dice| (dice.below(600_000_000), 1 + dice.below(24 << 10)), two: 50, alone: 50 },
];

struct HolderShape {
    name: &'static str,
    /// A price in µs, and a size in MiB.
    make: fn(&mut Dice) -> (u64, u64),
    /// Percent of the holders that are on two GPUs.
    two: u64,
    /// Percent of the GPUs that all holders must leave.
    alone: u64,
}

/// A second plus the time to move the bytes.
fn move_time(mib: u64) -> (u64, u64) {
    (1_000_000 + mib * 40, mib)
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        // A step of a linear generator, its high bits stirred into the low ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = self.0 >> 32;
        let stirred = (high ^ (high >> 15)) * 2_654_435_761 % (1 << 32);
        (stirred * end) >> 32
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

struct PlanQuestion {
    sites: Vec<GpuNeed>,
    victims: Vec<Victim>,
}

impl PlanQuestion {
    fn new(seed: u64, shape: &HolderShape, holders: u64, gpus: u64) -> PlanQuestion {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut sites: Vec<GpuNeed> =
            (0..gpus).map(|card| GpuNeed { gpu: GpuId(card as u16), lack: Bytes::ZERO, must: Vec::new() }).collect();
        let mut held = vec![Vec::new(); sites.len()];
        let mut victims = Vec::new();
        for number in 0..holders {
            let (price, mib) = (shape.make)(&mut dice);
            let first = dice.below(gpus);
            let mut on = vec![first];
            if dice.percent(shape.two) {
                on.push((first + 1 + dice.below(gpus - 1)) % gpus);
            }
            on.iter().for_each(|card| held[*card as usize].push((number as usize, Bytes::mib(mib))));
            let gains = on.iter().map(|card| (GpuId(*card as u16), Bytes::mib(mib))).collect();
            victims.push(Victim { lease: LeaseId(number), rank: 0, price: Span(price), gains });
        }
        for (site, held) in sites.iter_mut().zip(held) {
            let all: Bytes = held.iter().map(|(_, bytes)| *bytes).sum();
            site.lack = Bytes(all.0 / 100 * (5 + dice.below(90)) + 1);
            if dice.percent(shape.alone) {
                site.must = held.iter().map(|(holder, _)| *holder).collect();
            }
        }
        PlanQuestion { sites, victims }
    }

    /// The best price of all sets that make the room.
    fn best_price(&self, wanted: usize) -> Option<u64> {
        let sets = 0..1_u32 << self.victims.len();
        let price = |set: u32| -> u64 {
            self.victims
                .iter()
                .enumerate()
                .filter(|(holder, _)| set >> holder & 1 == 1)
                .map(|(_, victim)| victim.price.0)
                .sum()
        };
        sets.filter(|set| self.sites.iter().filter(|site| self.is_clear(site, *set)).count() >= wanted).map(price).min()
    }

    fn is_clear(&self, site: &GpuNeed, set: u32) -> bool {
        let leaves = |holder: usize| set >> holder & 1 == 1;
        let gone = self.victims.iter().enumerate().filter(|(holder, _)| leaves(*holder));
        let gains = gone.flat_map(|(_, victim)| &victim.gains).filter(|(card, _)| *card == site.gpu);
        site.must.iter().all(|holder| leaves(*holder)) && gains.map(|(_, bytes)| *bytes).sum::<Bytes>() >= site.lack
    }
}

/// This thread's time.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How an answer came about.
#[derive(Default)]
struct TimedAnswers {
    all: Samples,
    /// By shape: its name, the times, and what greedy costs compared with it (the median).
    shapes: Vec<(&'static str, Quantiles, f64)>,
}

fn time_large(wanted: usize) -> Result<TimedAnswers> {
    let mut timed = TimedAnswers::default();
    for shape in &SHAPES {
        let mut samples = Samples::with_capacity(QUESTIONS as usize);
        let mut won = Vec::new();
        for seed in 0..QUESTIONS {
            let question = PlanQuestion::new(seed, shape, HOLDERS, GPUS);
            let begun = thread_time();
            let choice = cheapest(black_box(&question.sites), wanted, black_box(&question.victims));
            samples.push(thread_time() - begun);
            let price = |choice: &PreemptionChoice| choice.price.0 as f64;
            let mine = choice.as_ref().map(price).context("there is a set")?;
            let plain = greedy(&question.sites, wanted, &question.victims).as_ref().map(price).context("a set")?;
            won.push(plain / mine);
        }
        timed.shapes.push((shape.name, samples.quantiles(), median(won)));
        timed.all = timed.all.merged_with(&samples);
    }
    Ok(timed)
}

/// The worst ratio to the best price, and of how many questions it was exactly that.
fn compare_small() -> Result<(f64, usize, usize)> {
    let (mut worst, mut exact, mut count) = (1.0_f64, 0, 0);
    for seed in 0..SMALL {
        let shape = &SHAPES[(seed % SHAPES.len() as u64) as usize];
        let question = PlanQuestion::new(seed, shape, SMALL_HOLDERS, SMALL_GPUS);
        let wanted = (seed / 7 % 3 + 1) as usize;
        // `None`: a GPU without holders lacks bytes that no preemption can free.
        let Some(best) = question.best_price(wanted) else { continue };
        let mine = cheapest(&question.sites, wanted, &question.victims).context("there is a set")?.price.0;
        count += 1;
        exact += usize::from(mine == best);
        worst = worst.max(mine as f64 / best as f64);
    }
    Ok((worst, exact, count))
}

/// Single GPUs and gangs, then small questions compared with brute force.
pub fn run(_: &BenchRig) -> Result<BenchOutcome> {
    let whats = [
        (1, "preemption for one GPU: 1,000 holders on 16 GPUs, the slowest answer"),
        (4, "preemption for a gang of 4: the same"),
        (8, "preemption for a gang of 8: the same"),
    ];
    let mut figures = Vec::new();
    let mut raw = serde_json::Map::new();
    for (wanted, what) in whats {
        let TimedAnswers { all, shapes } = time_large(wanted)?;
        let quantiles = all.quantiles();
        let slowest = shapes.iter().max_by(|left, right| left.1.max_us.total_cmp(&right.1.max_us));
        let won = shapes.iter().map(|shape| shape.2).fold(1.0, f64::max);
        figures.push(Figure {
            what,
            target: FigureTarget::AtMost(1000.0),
            measured: quantiles.max_us,
            unit: "µs",
            note: format!(
                "p50 {} µs, p99 {} µs of {} answers; the slowest shape: {}; greedy pays up to {} × (median of a shape)",
                digits(quantiles.p50_us),
                digits(quantiles.p99_us),
                quantiles.count,
                slowest.map_or("none", |shape| shape.0),
                digits(won)
            ),
        });
        let shapes = shapes
            .iter()
            .map(|(name, took, won)| serde_json::json!({ "shape": name, "took": took, "greedy_pays": won }));
        raw.insert(
            format!("wanted_{wanted}"),
            serde_json::json!({ "all": quantiles, "shapes": shapes.collect::<Vec<_>>() }),
        );
    }
    let (worst, exact, count) = compare_small()?;
    figures.push(Figure {
        what: "preemption of 12 holders on 4 GPUs for gangs up to 3: the worst price, compared with the best of all sets",
        target: FigureTarget::AtMost(1.05),
        measured: worst,
        unit: "×",
        note: format!("{exact} of {count} answers cost what the best does"),
    });
    raw.insert("small".to_owned(), serde_json::json!({ "worst": worst, "exact": exact, "count": count }));
    Ok(BenchOutcome { figures, raw: raw.into() })
}
