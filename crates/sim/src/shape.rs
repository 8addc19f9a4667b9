//! What kind of world a seed makes: how many cards, people and faults.

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
    /// Its cards; whether each hides the bytes per process.
    pub cards: Vec<(GpuFacts, bool)>,
    /// Tenants beside the operator.
    pub tenants: usize,
    /// Jobs that live, wait or think at a time.
    pub jobs: usize,
    /// The rules of the house.
    pub policy: Policy,
    /// From tick to tick.
    pub tick_us: u64,
    /// Longest term anybody asks for.
    pub ttl_max_s: u64,
    /// How often things go wrong.
    pub faults: FaultRates,
    /// What its programs are like.
    pub habits: ProgramHabits,
    /// How strangers are looked after.
    pub vigil: UnleasedShape,
    /// Thirty holders take turns on its one card.
    pub crowd: bool,
}

/// How often things go wrong, in thousandths where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct FaultRates {
    /// Of looks that fail.
    pub looks: u64,
    /// Of looks that take longer than a period.
    pub slow: u64,
    /// Of commits that something happens to.
    pub commits: u64,
    /// Seconds from one larger fault to the next, at the most; zero: none.
    pub every_s: u64,
    /// Seconds from one stranger to the next, at the most; zero: none.
    pub strangers_s: u64,
}

impl WorldShape {
    /// The world of a seed. What has to do with parking has its own luck: a world in which nobody is
    /// parked is the same with it and without. So has what has to do with making room, which nobody does
    /// in a still world; and so has what has to do with strangers.
    pub fn draw(rng: &mut Rng, luck: &mut Rng, whim: &mut Rng, vigil: UnleasedShape, still: bool) -> WorldShape {
        let cards = rng.pick(&[1, 1, 2, 2, 3, 4, 4, 6, 8]);
        let cards: Vec<_> = (0..cards).map(|index| card(rng, index)).collect();
        let crowded = rng.chance(30);
        let jobs = if crowded { rng.within(500, 3_000) } else { rng.within(2, 12 * cards.len() as u64 + 10) };
        // Where strangers come one at a time there is room for them.
        let jobs = if vigil.awake && vigil.rare { jobs.min(cards.len() as u64) } else { jobs };
        let tenants = rng.within(1, 6) as usize;
        let habits = ProgramHabits::draw(luck);
        let habits = if still { habits } else { habits.pressed(whim) };
        WorldShape {
            tenants,
            jobs: jobs as usize,
            policy: Policy { enforcement: vigil.patience, ..in_which_parks(policy(rng, crowded), habits, luck, whim) },
            tick_us: rng.pick(&[S / 4, S / 2, S, S]),
            // Nobody can say when whoever stands behind a longer term than may be held is served.
            ttl_max_s: rng.pick(if habits.orderly { &[10] } else { &[10, 30, 60, 120] }),
            faults: if habits.orderly { gentle(rates(rng)) } else { rates(rng) },
            cards,
            habits,
            vigil,
            crowd: false,
        }
    }

    /// Thirty holders of one card, each of which takes most of it: all are at work, and nothing goes wrong.
    pub fn crowd(vigil: UnleasedShape) -> WorldShape {
        let habits = ProgramHabits::gentle();
        let parking = Parking { space: Bytes::gib(1_000), ..Parking::default() };
        WorldShape {
            cards: vec![(GpuFacts::plain(0, Bytes::gib(24)), false)],
            tenants: 5,
            jobs: 30,
            policy: Policy { parking, hold_max: Span::secs(1_800), ..Policy::default() },
            tick_us: S,
            ttl_max_s: 60,
            faults: FaultRates { looks: 0, slow: 0, commits: 0, every_s: 0, strangers_s: 0 },
            habits,
            vigil,
            crowd: true,
        }
    }
}

fn card(rng: &mut Rng, index: u32) -> (GpuFacts, bool) {
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

/// Rules of a house, most of them tight enough to be felt.
pub fn policy(rng: &mut Rng, crowded: bool) -> Policy {
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

/// The same rules, with a place for what leaves a card.
pub fn in_which_parks(policy: Policy, habits: ProgramHabits, luck: &mut Rng, whim: &mut Rng) -> Policy {
    let parked = (habits.library > 0 && luck.chance(200)).then(|| Bytes::gib(luck.within(1, 40)));
    let policy = Policy { parking: habits.parking(luck, whim), caps: Caps { parked, ..policy.caps }, ..policy };
    if !habits.orderly {
        return policy;
    }
    let span = Span::secs(1);
    let head_start = HeadStart { interactive: span, batch: span, spot: span, priority: Span::ZERO };
    Policy { hold_max: Span::secs(luck.pick(&[20, 40])), debt_max: Span::ZERO, head_start, ..policy }
}

/// Nothing goes wrong but what programs do.
fn gentle(rates: FaultRates) -> FaultRates {
    FaultRates { looks: 0, commits: 0, every_s: 0, strangers_s: 0, ..rates }
}

fn rates(rng: &mut Rng) -> FaultRates {
    let gentle = rng.chance(150);
    let pick = |rng: &mut Rng, from: &[u64]| if gentle { 0 } else { rng.pick(from) };
    FaultRates {
        looks: pick(rng, &[0, 10, 50, 200]),
        slow: pick(rng, &[0, 10, 100]),
        commits: pick(rng, &[0, 2, 10, 40]),
        every_s: pick(rng, &[0, 10, 60, 300]),
        strangers_s: pick(rng, &[0, 5, 30, 120]),
    }
}
