//! Branch and bound over who leaves and who stays.
//!
//! A node has decided for some holders. What the rest costs at least is told by a relaxation in which
//! a part of a holder can leave for a part of its price, and a holder's price is divided among its
//! sites: then each site stands alone, holders leave it by price per byte, and the cheapest sites are
//! chosen. Rounded up, the same is a set that makes the room. The search branches on the holder that was
//! cut in two. Whoever frees no more elsewhere and costs no less than one who stays, stays too: that keeps
//! many equal holders from being tried in every combination.

use super::input::{LeaverSet, PlanInput};

/// Up to so many victims, sets that differ only in their leases are told apart.
pub(super) const PATIENT: usize = 16;

/// Up to so many victims, every rounded set is looked at that could be better.
const SMALL: usize = 64;

/// What a node takes beside its looks at holders, in steps.
const NODE: usize = 40;
/// What it takes to write down one decision, in steps.
const DECISION: usize = 5;

/// What was decided for a holder.
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
    /// The same with the last holder whole.
    whole: u64,
    /// The same if no other site shares anybody's cost.
    full: u64,
    /// Who was taken last.
    last: Option<u32>,
}

impl Fill {
    /// Of a site that cannot be cleared any more.
    const NEVER: Fill = Fill { least: u64::MAX, whole: u64::MAX, full: u64::MAX, last: None };
}

/// A part of the field while its holder is open; nothing once it is decided.
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
    field: &'a PlanInput,
    sides: Vec<Side>,
    live: Vec<Pending>,
    /// What each site lacks after those who leave; below zero if they free more.
    needs: Vec<i128>,
    /// How many must leave a site and stay.
    kept: Vec<u32>,
    fills: Vec<Fill>,
    /// The sites, the cheapest first; the chosen ones are at the front.
    ranking: Vec<u32>,
    /// What those cost who leave.
    paid: u64,
    best: u64,
    found: Option<LeaverSet>,
    /// What `found` is compared with among equals.
    known: LeaverSet,
    patient: bool,
    /// Marks of one round: whoever has the round's number was seen in it.
    seen: Vec<u32>,
    round: u32,
    work: usize,
    work_max: usize,
    /// Who was made to stay, and fills before they changed, for the way back.
    stayed: Vec<u32>,
    trail: Vec<(u32, Fill)>,
}

impl<'a> Search<'a> {
    /// What every answer costs at least.
    pub(super) fn least(field: &PlanInput) -> u64 {
        Search::new(field, &field.set(&[]), 0).bound().least
    }

    /// A set better than `known`, if there is one that can be found in `work_max` steps; and the steps it took.
    pub(super) fn run(field: &'a PlanInput, known: &LeaverSet, work_max: usize) -> (Option<LeaverSet>, usize) {
        let mut search = Search::new(field, known, work_max);
        search.descend();
        (search.found, search.work)
    }

    fn new(field: &'a PlanInput, known: &LeaverSet, work_max: usize) -> Search<'a> {
        let mut search = Search {
            field,
            sides: vec![Side::Open; field.movers.len()],
            live: (0..field.parts.len()).map(|at| live(field, at)).collect(),
            needs: field.spaces.iter().map(|space| i128::from(space.lack)).collect(),
            kept: vec![0; field.spaces.len()],
            fills: Vec::with_capacity(field.spaces.len()),
            ranking: (0..field.spaces.len() as u32).collect(),
            paid: 0,
            best: known.cost,
            found: None,
            known: known.clone(),
            patient: field.movers.len() <= PATIENT,
            seen: vec![0; field.movers.len()],
            round: 0,
            work: 0,
            work_max,
            stayed: Vec::new(),
            trail: Vec::new(),
        };
        for space in 0..field.spaces.len() {
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
        if !self.is_too_dear(if self.field.movers.len() <= SMALL { whole } else { full }) {
            self.round_up();
        }
        if self.is_too_dear(least) || self.work >= self.work_max {
            return;
        }
        let Some(mover) = self.branch() else { return };
        let (stayed, trail) = (self.stayed.len(), self.trail.len());

        self.leave(mover);
        self.descend();
        self.return_to(mover, trail);
        if self.work >= self.work_max {
            return;
        }

        self.stay(mover);
        self.descend();
        self.undo_fills(trail);
        while self.stayed.len() > stayed {
            let Some(mover) = self.stayed.pop() else { break };
            self.decide(mover, Side::Open);
        }
    }

    /// Writes down what was decided for one, or that it no longer is.
    fn decide(&mut self, mover: u32, side: Side) {
        let field = self.field;
        self.work += DECISION;
        let before = std::mem::replace(&mut self.sides[mover as usize], side);
        for spot in field.spots(mover) {
            match spot.must {
                true if side == Side::Stays => self.kept[spot.space as usize] += 1,
                true if before == Side::Stays => self.kept[spot.space as usize] -= 1,
                true => {}
                false if side == Side::Open => self.live[spot.part as usize] = live(field, spot.part as usize),
                false => self.live[spot.part as usize] = Pending::NOTHING,
            }
        }
    }

    fn leave(&mut self, mover: u32) {
        self.decide(mover, Side::Leaves);
        self.paid += self.field.movers[mover as usize].cost;
        for spot in self.field.spots(mover) {
            self.needs[spot.space as usize] -= i128::from(spot.gain);
        }
        self.refill(mover);
    }

    fn return_to(&mut self, mover: u32, trail: usize) {
        self.decide(mover, Side::Open);
        self.paid -= self.field.movers[mover as usize].cost;
        for spot in self.field.spots(mover) {
            self.needs[spot.space as usize] += i128::from(spot.gain);
        }
        self.undo_fills(trail);
    }

    fn stay(&mut self, mover: u32) {
        let field = self.field;
        self.decide(mover, Side::Stays);
        self.stayed.push(mover);
        let cost = field.movers[mover as usize].cost;
        for spot in field.spots(mover) {
            let may = field.spaces[spot.space as usize].may.clone();
            // Whoever is no better is not cheaper per byte either, and so comes later.
            let first = if spot.must { may.start } else { spot.part as usize + 1 };
            self.work += may.end - first;
            for at in first..may.end {
                let Pending { gain, full, .. } = self.live[at];
                let other = field.parts[at].mover;
                if gain > 0 && gain <= spot.gain && full >= cost && self.is_no_better(other, mover) {
                    self.decide(other, Side::Stays);
                    self.stayed.push(other);
                }
            }
        }
        self.refill(mover);
    }

    /// Whether one could be replaced by another in every set.
    fn is_no_better(&self, one: u32, than: u32) -> bool {
        let cost = |mover: u32| (self.field.movers[mover as usize].cost, mover);
        let (mine, yours) = (self.field.spots(one), self.field.spots(than));
        cost(one) > cost(than)
            && mine.len() <= yours.len()
            && mine.iter().all(|spot| {
                let other = yours.iter().find(|other| other.space == spot.space);
                !spot.must && other.is_some_and(|other| other.gain >= spot.gain)
            })
    }

    /// Reckons the sites of a mover anew. Those who were decided with it have no others.
    fn refill(&mut self, mover: u32) {
        for spot in self.field.spots(mover) {
            self.trail.push((spot.space, self.fills[spot.space as usize]));
            self.fills[spot.space as usize] = self.fill(spot.space as usize);
        }
    }

    fn undo_fills(&mut self, until: usize) {
        for (space, fill) in self.trail.drain(until..).rev() {
            self.fills[space as usize] = fill;
        }
    }

    /// Clears one site by price per byte, the last holder in part.
    fn fill(&mut self, at: usize) -> Fill {
        if self.kept[at] > 0 {
            return Fill::NEVER;
        }
        let field = self.field;
        let space = &field.spaces[at];
        let mut need = self.needs[at];
        let (mut least, mut full, mut last) = (0, 0, None);
        for part in space.must.iter().filter(|part| self.sides[part.mover as usize] == Side::Open) {
            need -= i128::from(part.gain);
            least += part.share;
            full += field.movers[part.mover as usize].cost;
            last = Some(part.mover);
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
                    last: Some(field.parts[space.may.start + done].mover),
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
        self.ranking[..self.field.wanted].iter().map(|space| &fills[*space as usize]).fold(nothing, |sum, fill| Fill {
            least: sum.least.saturating_add(fill.least),
            whole: sum.whole.saturating_add(fill.whole),
            full: sum.full.saturating_add(fill.full),
            last: None,
        })
    }

    /// Who is decided next: of the chosen sites, the last holder where rounding up costs most.
    fn branch(&self) -> Option<u32> {
        let fills = self.ranking[..self.field.wanted].iter().map(|space| (&self.fills[*space as usize], *space));
        let open = fills.filter(|(fill, _)| fill.last.is_some());
        open.max_by_key(|(fill, space)| (fill.whole - fill.least, fill.least, std::cmp::Reverse(*space)))
            .and_then(|(fill, _)| fill.last)
    }

    /// Takes everybody whole whom the relaxation takes in part: a set that makes the room.
    fn round_up(&mut self) {
        let field = self.field;
        self.round += 1;
        let mut cost = self.paid;
        let mut taken = Vec::new();
        for space in &self.ranking[..field.wanted] {
            let Some(last) = self.fills[*space as usize].last else { continue };
            let space = &field.spaces[*space as usize];
            for part in space.must.iter().chain(&field.parts[space.may.clone()]) {
                self.work += 1;
                let mover = part.mover as usize;
                if self.sides[mover] == Side::Open && self.seen[mover] != self.round {
                    self.seen[mover] = self.round;
                    cost += field.movers[mover].cost;
                    taken.push(part.mover);
                }
                if part.mover == last {
                    break;
                }
            }
        }
        if self.is_too_dear(cost) {
            return;
        }
        let leaves = (0..).zip(&self.sides).filter(|(_, side)| **side == Side::Leaves);
        taken.extend(leaves.map(|(mover, _)| mover));
        self.work += self.sides.len();
        let set = field.set(&field.reduced(taken));
        if set < self.known {
            self.best = set.cost;
            self.known = set.clone();
            self.found = Some(set);
        }
    }
}

/// A part as it is before anything is decided.
fn live(field: &PlanInput, at: usize) -> Pending {
    let part = &field.parts[at];
    Pending { gain: part.gain, share: part.share, full: field.movers[part.mover as usize].cost }
}
