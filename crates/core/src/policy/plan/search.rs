//! Branch and bound over which victims leave and which stay.
//!
//! A node has decided for some victims. What the rest costs at least is told by a relaxation in which a part of a
//! victim can leave for a part of its price, and a victim's price is divided among its sites: then each site stands
//! alone, victims leave it by price per byte, and the cheapest sites are chosen. Rounded up, the same is a set that
//! makes the room. The search branches on the victim that was cut in two. A victim that frees no more elsewhere and
//! costs no less than one that stays, stays too: that keeps many equal victims from being tried in every combination.

use super::input::{LeaverSet, PlanInput};

/// Up to this number of victims, sets that differ only in their leases are told apart.
pub(super) const PATIENT: usize = 16;

/// Up to this number of victims, every rounded set is computed that could be better.
const SMALL: usize = 64;

/// What a node takes beside its visits of victims, in steps.
const NODE: usize = 40;
/// What it takes to write down one decision, in steps.
const DECISION: usize = 5;

/// What was decided for a victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Open,
    Leaves,
    Stays,
}

/// What clearing one site costs, relaxed, beyond what is decided.
#[derive(Clone, Copy)]
struct Fill {
    /// At least.
    least: u64,
    /// The same with the last victim whole.
    whole: u64,
    /// The same if no other site shares the cost of a victim.
    full: u64,
    /// The victim that was taken last.
    last: Option<u32>,
}

impl Fill {
    /// Of a site that cannot be cleared any more.
    const NEVER: Fill = Fill { least: u64::MAX, whole: u64::MAX, full: u64::MAX, last: None };
}

/// A part of the question while its victim is open; nothing once it is decided.
#[derive(Clone, Copy)]
struct Pending {
    gain: u64,
    share: u64,
    full: u64,
}

impl Pending {
    const NOTHING: Pending = Pending { gain: 0, share: 0, full: 0 };
}

/// One search.
pub(super) struct Search<'a> {
    input: &'a PlanInput,
    sides: Vec<Side>,
    live: Vec<Pending>,
    /// What each site lacks after the victims that leave; below zero if they free more.
    needs: Vec<i128>,
    /// How many victims that stay must leave a site.
    kept: Vec<u32>,
    fills: Vec<Fill>,
    /// The sites, the cheapest first; the chosen ones are at the front.
    ranking: Vec<u32>,
    /// The cost of the victims that leave.
    paid: u64,
    best: u64,
    found: Option<LeaverSet>,
    /// What `found` is compared with among equals.
    known: LeaverSet,
    patient: bool,
    /// By victim, the number of the last round that visited it.
    seen: Vec<u32>,
    round: u32,
    work: usize,
    work_max: usize,
    /// The victims that were made to stay, and fills before they changed, for the way back.
    stayed: Vec<u32>,
    trail: Vec<(u32, Fill)>,
}

impl<'a> Search<'a> {
    /// What every answer costs at least.
    pub(super) fn least(input: &PlanInput) -> u64 {
        Search::new(input, &input.set(&[]), 0).bound().least
    }

    /// A set better than `known`, if there is one that can be found in `work_max` steps; and the steps it took.
    pub(super) fn run(input: &'a PlanInput, known: &LeaverSet, work_max: usize) -> (Option<LeaverSet>, usize) {
        let mut search = Search::new(input, known, work_max);
        search.descend();
        (search.found, search.work)
    }

    fn new(input: &'a PlanInput, known: &LeaverSet, work_max: usize) -> Search<'a> {
        let mut search = Search {
            input,
            sides: vec![Side::Open; input.leavers.len()],
            live: (0..input.parts.len()).map(|at| live(input, at)).collect(),
            needs: input.spaces.iter().map(|space| i128::from(space.lack)).collect(),
            kept: vec![0; input.spaces.len()],
            fills: Vec::with_capacity(input.spaces.len()),
            ranking: (0..input.spaces.len() as u32).collect(),
            paid: 0,
            best: known.cost,
            found: None,
            known: known.clone(),
            patient: input.leavers.len() <= PATIENT,
            seen: vec![0; input.leavers.len()],
            round: 0,
            work: 0,
            work_max,
            stayed: Vec::new(),
            trail: Vec::new(),
        };
        for space in 0..input.spaces.len() {
            let fill = search.fill(space);
            search.fills.push(fill);
        }
        search
    }

    /// Whether a set of this cost, or more, is of no use.
    fn is_too_dear(&self, cost: u64) -> bool {
        if self.patient { cost > self.best } else { cost >= self.best }
    }

    fn descend(&mut self) {
        let Fill { least, whole, full, .. } = self.bound();
        if self.is_too_dear(least) {
            return;
        }
        // Where costs are shared the rounded set may be cheaper than `full`: to look is worth it in small fields.
        if !self.is_too_dear(if self.input.leavers.len() <= SMALL { whole } else { full }) {
            self.round_up();
        }
        if self.is_too_dear(least) || self.work >= self.work_max {
            return;
        }
        let Some(leaver) = self.branch() else { return };
        let (stayed, trail) = (self.stayed.len(), self.trail.len());

        self.leave(leaver);
        self.descend();
        self.return_to(leaver, trail);
        if self.work >= self.work_max {
            return;
        }

        self.stay(leaver);
        self.descend();
        self.undo_fills(trail);
        while self.stayed.len() > stayed {
            let Some(leaver) = self.stayed.pop() else { break };
            self.decide(leaver, Side::Open);
        }
    }

    /// Writes down what was decided for one, or that it no longer is.
    fn decide(&mut self, leaver: u32, side: Side) {
        let input = self.input;
        self.work += DECISION;
        let before = std::mem::replace(&mut self.sides[leaver as usize], side);
        for spot in input.spots(leaver) {
            match spot.must {
                true if side == Side::Stays => self.kept[spot.space as usize] += 1,
                true if before == Side::Stays => self.kept[spot.space as usize] -= 1,
                true => {}
                false if side == Side::Open => self.live[spot.part as usize] = live(input, spot.part as usize),
                false => self.live[spot.part as usize] = Pending::NOTHING,
            }
        }
    }

    fn leave(&mut self, leaver: u32) {
        self.decide(leaver, Side::Leaves);
        self.paid += self.input.leavers[leaver as usize].cost;
        for spot in self.input.spots(leaver) {
            self.needs[spot.space as usize] -= i128::from(spot.gain);
        }
        self.refill(leaver);
    }

    fn return_to(&mut self, leaver: u32, trail: usize) {
        self.decide(leaver, Side::Open);
        self.paid -= self.input.leavers[leaver as usize].cost;
        for spot in self.input.spots(leaver) {
            self.needs[spot.space as usize] += i128::from(spot.gain);
        }
        self.undo_fills(trail);
    }

    fn stay(&mut self, leaver: u32) {
        let input = self.input;
        self.decide(leaver, Side::Stays);
        self.stayed.push(leaver);
        let cost = input.leavers[leaver as usize].cost;
        for spot in input.spots(leaver) {
            let may = input.spaces[spot.space as usize].may.clone();
            // A victim that is no better is not cheaper per byte either, and so comes later.
            let first = if spot.must { may.start } else { spot.part as usize + 1 };
            self.work += may.end - first;
            for at in first..may.end {
                let Pending { gain, full, .. } = self.live[at];
                let other = input.parts[at].leaver;
                if gain > 0 && gain <= spot.gain && full >= cost && self.is_no_better(other, leaver) {
                    self.decide(other, Side::Stays);
                    self.stayed.push(other);
                }
            }
        }
        self.refill(leaver);
    }

    /// Whether one victim could be replaced by another in every set.
    fn is_no_better(&self, one: u32, than: u32) -> bool {
        let cost = |leaver: u32| (self.input.leavers[leaver as usize].cost, leaver);
        let (mine, yours) = (self.input.spots(one), self.input.spots(than));
        cost(one) > cost(than)
            && mine.len() <= yours.len()
            && mine.iter().all(|spot| {
                let other = yours.iter().find(|other| other.space == spot.space);
                !spot.must && other.is_some_and(|other| other.gain >= spot.gain)
            })
    }

    /// Computes the sites of a victim anew. The victims that were decided with it have no others.
    fn refill(&mut self, leaver: u32) {
        for spot in self.input.spots(leaver) {
            self.trail.push((spot.space, self.fills[spot.space as usize]));
            self.fills[spot.space as usize] = self.fill(spot.space as usize);
        }
    }

    fn undo_fills(&mut self, until: usize) {
        for (space, fill) in self.trail.drain(until..).rev() {
            self.fills[space as usize] = fill;
        }
    }

    /// Clears one site by price per byte, the last victim in part.
    fn fill(&mut self, at: usize) -> Fill {
        if self.kept[at] > 0 {
            return Fill::NEVER;
        }
        let input = self.input;
        let space = &input.spaces[at];
        let mut need = self.needs[at];
        let (mut least, mut full, mut last) = (0, 0, None);
        for part in space.must.iter().filter(|part| self.sides[part.leaver as usize] == Side::Open) {
            need -= i128::from(part.gain);
            least += part.share;
            full += input.leavers[part.leaver as usize].cost;
            last = Some(part.leaver);
        }
        self.work += space.must.len() + 1;
        // It is at most what the site lacks at first.
        let Some(mut need) = u64::try_from(need).ok().filter(|need| *need > 0) else {
            return Fill { least, whole: least, full, last };
        };
        for (done, live) in self.live[space.may.clone()].iter().enumerate() {
            if live.gain >= need {
                self.work += done + 1;
                let part_of_it = u128::from(live.share) * u128::from(need) / u128::from(live.gain);
                return Fill {
                    least: least + part_of_it as u64,
                    whole: least + live.share,
                    full: full + live.full,
                    last: Some(input.parts[space.may.start + done].leaver),
                };
            }
            need -= live.gain;
            least += live.share;
            full += live.full;
        }
        self.work += space.may.len();
        Fill::NEVER
    }

    /// Chooses the cheapest sites: what a set costs from here.
    fn bound(&mut self) -> Fill {
        let fills = &self.fills;
        // Few have changed since the last time: this moves these and passes over the others.
        self.ranking.sort_unstable_by_key(|space| (fills[*space as usize].least, *space));
        self.work += NODE + fills.len();
        let nothing = Fill { least: self.paid, whole: self.paid, full: self.paid, last: None };
        self.ranking[..self.input.wanted].iter().map(|space| &fills[*space as usize]).fold(nothing, |sum, fill| Fill {
            least: sum.least.saturating_add(fill.least),
            whole: sum.whole.saturating_add(fill.whole),
            full: sum.full.saturating_add(fill.full),
            last: None,
        })
    }

    /// The victim to decide next: of the chosen sites, the last victim where rounding up costs most.
    fn branch(&self) -> Option<u32> {
        let fills = self.ranking[..self.input.wanted].iter().map(|space| (&self.fills[*space as usize], *space));
        let open = fills.filter(|(fill, _)| fill.last.is_some());
        open.max_by_key(|(fill, space)| (fill.whole - fill.least, fill.least, std::cmp::Reverse(*space)))
            .and_then(|(fill, _)| fill.last)
    }

    /// Takes every victim whole that the relaxation takes in part: a set that makes the room.
    fn round_up(&mut self) {
        let input = self.input;
        self.round += 1;
        let mut cost = self.paid;
        let mut taken = Vec::new();
        for space in &self.ranking[..input.wanted] {
            let Some(last) = self.fills[*space as usize].last else { continue };
            let space = &input.spaces[*space as usize];
            for part in space.must.iter().chain(&input.parts[space.may.clone()]) {
                self.work += 1;
                let leaver = part.leaver as usize;
                if self.sides[leaver] == Side::Open && self.seen[leaver] != self.round {
                    self.seen[leaver] = self.round;
                    cost += input.leavers[leaver].cost;
                    taken.push(part.leaver);
                }
                if part.leaver == last {
                    break;
                }
            }
        }
        if self.is_too_dear(cost) {
            return;
        }
        let leaves = (0..).zip(&self.sides).filter(|(_, side)| **side == Side::Leaves);
        taken.extend(leaves.map(|(leaver, _)| leaver));
        self.work += self.sides.len();
        let set = input.set(&input.reduced(taken));
        if set < self.known {
            self.best = set.cost;
            self.known = set.clone();
            self.found = Some(set);
        }
    }
}

/// A part as it is before anything is decided.
fn live(input: &PlanInput, at: usize) -> Pending {
    let part = &input.parts[at];
    Pending { gain: part.gain, share: part.share, full: input.leavers[part.leaver as usize].cost }
}
