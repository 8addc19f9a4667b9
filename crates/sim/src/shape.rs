//! The shape of the world that a seed makes: how many GPUs, tenants, jobs and faults.

use crate::programs::ProgramHabits;
use crate::rng::Rng;
use crate::unleased::UnleasedShape;
use sublet_core::reading::GpuFacts;
use sublet_core::settings::{Caps, HeadStart, Parking, Policy, Renewal};
use sublet_core::units::{Bytes, Span};

/// One second, in µs.
pub const S: u64 = 1_000_000;

/// The fixed properties of a world.
#[derive(Clone, Debug)]
pub struct WorldShape {
    /// Its GPUs, and whether each hides the bytes of single processes.
    pub gpus: Vec<(GpuFacts, bool)>,
    /// Tenants beside the operator.
    pub tenants: usize,
    /// The number of jobs.
    pub jobs: usize,
    /// The policy of the daemon.
    pub policy: Policy,
    /// From tick to tick, in µs.
    pub tick_us: u64,
    /// The longest term of a request.
    pub ttl_max_s: u64,
    /// How often faults happen.
    pub faults: FaultRates,
    /// What its programs are like.
    pub habits: ProgramHabits,
    /// How unleased processes are treated.
    pub unleased: UnleasedShape,
    /// Thirty holders share its one GPU by time slices.
    pub crowd: bool,
}

/// How often faults happen, in 1,000 where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct FaultRates {
    /// Readings that fail.
    pub failed_readings: u64,
    /// Readings that take longer than a period.
    pub slow_readings: u64,
    /// Commits that fail.
    pub commits: u64,
    /// The longest time between two larger faults in seconds; 0: there are none.
    pub every_s: u64,
    /// The longest time between two unleased processes in seconds; 0: there are none.
    pub unleased_s: u64,
}

impl WorldShape {
    /// Draws the world of a seed. Parking, preemption and unleased processes have streams of their own: a world in
    /// which none of them happens is the same with and without them.
    pub fn draw(
        rng: &mut Rng,
        rng_parking: &mut Rng,
        rng_preemption: &mut Rng,
        unleased: UnleasedShape,
        without_preemption: bool,
    ) -> WorldShape {
        let cards = rng.pick(&[1, 1, 2, 2, 3, 4, 4, 6, 8]);
        let gpus: Vec<_> = (0..cards).map(|index| draw_gpu(rng, index)).collect();
        let crowded = rng.chance(30);
        let jobs = if crowded { rng.within(500, 3_000) } else { rng.within(2, 12 * gpus.len() as u64 + 10) };
        // Where unleased processes come one at a time there is room for them.
        let jobs = if unleased.is_monitored && unleased.one_at_a_time { jobs.min(gpus.len() as u64) } else { jobs };
        let tenants = rng.within(1, 6) as usize;
        let habits = ProgramHabits::draw(rng_parking);
        let habits = if without_preemption { habits } else { habits.pressed(rng_preemption) };
        WorldShape {
            tenants,
            jobs: jobs as usize,
            policy: Policy {
                enforcement: unleased.times,
                ..with_parking(draw_policy(rng, crowded), habits, rng_parking, rng_preemption)
            },
            tick_us: rng.pick(&[S / 4, S / 2, S, S]),
            // No bound is known for a waiter behind a term that is longer than a lease may be held.
            ttl_max_s: rng.pick(if habits.orderly { &[10] } else { &[10, 30, 60, 120] }),
            faults: if habits.orderly { without_faults(draw_fault_rates(rng)) } else { draw_fault_rates(rng) },
            gpus,
            habits,
            unleased,
            crowd: false,
        }
    }

    /// Thirty holders of one GPU, each of which takes most of it: all of them are busy, and there are no faults.
    pub fn crowd(unleased: UnleasedShape) -> WorldShape {
        let habits = ProgramHabits::gentle();
        let parking = Parking { space: Bytes::gib(1_000), ..Parking::default() };
        WorldShape {
            gpus: vec![(GpuFacts::plain(0, Bytes::gib(24)), false)],
            tenants: 5,
            jobs: 30,
            policy: Policy { parking, hold_max: Span::secs(1_800), ..Policy::default() },
            tick_us: S,
            ttl_max_s: 60,
            faults: FaultRates { failed_readings: 0, slow_readings: 0, commits: 0, every_s: 0, unleased_s: 0 },
            habits,
            unleased,
            crowd: true,
        }
    }
}

fn draw_gpu(rng: &mut Rng, index: u32) -> (GpuFacts, bool) {
    let (gib, name) = rng.pick(&[(8, "Tiny 8"), (24, "Desk 24"), (24, "Desk 24"), (80, "Rack 80")]);
    let facts = GpuFacts {
        name: name.to_owned(),
        display: rng.chance(150),
        context: rng.chance(300).then(|| Bytes::mib(rng.within(200, 700))),
        node: rng.chance(300).then(|| rng.below(2) as u32),
        ..GpuFacts::plain(index, Bytes::gib(gib))
    };
    (facts, rng.chance(100))
}

/// Draws a policy with limits that are mostly reached.
pub fn draw_policy(rng: &mut Rng, crowded: bool) -> Policy {
    let tight = |rng: &mut Rng| rng.chance(300);
    let caps = Caps {
        vram: tight(rng).then(|| Bytes::gib(rng.within(4, 60))),
        leases: tight(rng).then(|| rng.within(1, 6) as u32),
        places: Some(if crowded { 1_000 } else { rng.pick(&[2, 5, 20, 1_000]) }),
        ..Caps::default()
    };
    Policy {
        renewal: match rng.below(4) {
            0 => Renewal::Below { percent: 25 },
            1 => Renewal::Every(Span::secs(rng.within(2, 20))),
            _ => Renewal::At { percent: 70, jitter: 10 },
        },
        hold_max: Span::secs(rng.pick(&[20, 60, 300, 1_800])),
        head_start: rng.chance(500).then(HeadStart::default).unwrap_or(HeadStart {
            interactive: Span::secs(60),
            batch: Span::secs(20),
            spot: Span::ZERO,
            priority: Span::secs(3),
        }),
        debt_max: Span::secs(rng.pick(&[0, 10, 120, 14_400])),
        period: Span::secs(rng.pick(&[1, 1, 2, 5])),
        grace: Span::secs(rng.pick(&[5, 20, 60])),
        queue_max: if crowded { rng.pick(&[1_000, 100_000]) } else { rng.pick(&[4, 16, 64, 100_000]) },
        caps,
        ..Policy::default()
    }
}

/// The same policy with parking.
pub fn with_parking(policy: Policy, habits: ProgramHabits, rng_parking: &mut Rng, rng_preemption: &mut Rng) -> Policy {
    let parked = (habits.library > 0 && rng_parking.chance(200)).then(|| Bytes::gib(rng_parking.within(1, 40)));
    let policy =
        Policy { parking: habits.parking(rng_parking, rng_preemption), caps: Caps { parked, ..policy.caps }, ..policy };
    if !habits.orderly {
        return policy;
    }
    let span = Span::secs(1);
    let head_start = HeadStart { interactive: span, batch: span, spot: span, priority: Span::ZERO };
    Policy { hold_max: Span::secs(rng_parking.pick(&[20, 40])), debt_max: Span::ZERO, head_start, ..policy }
}

/// Without faults, except those of programs.
fn without_faults(rates: FaultRates) -> FaultRates {
    FaultRates { failed_readings: 0, commits: 0, every_s: 0, unleased_s: 0, ..rates }
}

fn draw_fault_rates(rng: &mut Rng) -> FaultRates {
    let gentle = rng.chance(150);
    let pick = |rng: &mut Rng, from: &[u64]| if gentle { 0 } else { rng.pick(from) };
    FaultRates {
        failed_readings: pick(rng, &[0, 10, 50, 200]),
        slow_readings: pick(rng, &[0, 10, 100]),
        commits: pick(rng, &[0, 2, 10, 40]),
        every_s: pick(rng, &[0, 10, 60, 300]),
        unleased_s: pick(rng, &[0, 5, 30, 120]),
    }
}
