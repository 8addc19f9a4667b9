//! A question with everything that does not matter taken away, laid out for being asked often.

use super::{GpuNeed, Victim};
use crate::model::ids::LeaseId;
use std::ops::Range;

/// Sites that all lack something, and the victims on them.
pub(super) struct PlanInput {
    /// How many of the sites must lack nothing.
    pub(super) wanted: usize,
    pub(super) spaces: Vec<PlanSite>,
    /// In the order of their leases.
    pub(super) leavers: Vec<Leaver>,
    /// What the victims that may stay would free, site by site, the cheapest per byte first.
    pub(super) parts: Vec<SitePart>,
    spots: Vec<GpuGain>,
}

/// A site.
pub(super) struct PlanSite {
    pub(super) lack: u64,
    /// Victims that must leave.
    pub(super) must: Vec<SitePart>,
    /// Its parts.
    pub(super) may: Range<usize>,
}

/// What one victim is to one site.
#[derive(Clone, Copy)]
pub(super) struct SitePart {
    pub(super) leaver: u32,
    /// Never more than the site lacks: more would not help it more.
    pub(super) gain: u64,
    /// What this site pays of the cost: all of it, or its part if the sites share costs.
    pub(super) share: u64,
    spot: u32,
}

/// A victim.
#[derive(Clone)]
pub(super) struct Leaver {
    /// Its place in the whole question.
    up: u32,
    lease: LeaseId,
    /// Price and number in one: sums of costs compare like sums of prices, then like numbers of victims.
    pub(super) cost: u64,
    spots: Range<usize>,
}

/// One site of a victim.
#[derive(Clone, Copy)]
pub(super) struct GpuGain {
    pub(super) space: u32,
    pub(super) gain: u64,
    pub(super) must: bool,
    /// Which of the parts it is, if it is one.
    pub(super) part: u32,
}

/// What each of a victim's sites pays.
#[derive(Clone, Copy)]
enum Pays {
    All,
    Part,
}

/// A set of victims while the sets are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaverSet {
    pub(super) cost: u64,
    /// Smallest first.
    leases: Vec<LeaseId>,
    /// The same victims by their places in the whole question.
    pub(super) leavers: Vec<u32>,
}

impl PlanInput {
    /// The whole question. `sites` are sorted by GPU, can all be cleared, and are at least `wanted`; `order` is the
    /// victims by lease, and the leavers are in the same places.
    pub(super) fn new(sites: &[&GpuNeed], wanted: usize, victims: &[Victim], order: &[usize]) -> PlanInput {
        let mut musts: Vec<(usize, u32)> =
            (0..).zip(sites).flat_map(|(space, site)| site.must.iter().map(move |index| (*index, space))).collect();
        musts.sort_unstable();
        musts.dedup();
        // What a cost is multiplied with, and where prices end, so that no sum overflows.
        let count = victims.len() as u64 + 1;
        let dearest = u64::MAX / count / count - 1;
        let mut leavers = Vec::with_capacity(order.len());
        let mut spots = Vec::with_capacity(order.len() * 2);
        for (up, index) in (0..).zip(order) {
            let victim = &victims[*index];
            let from = spots.len();
            if !musts.is_empty() {
                let first = musts.partition_point(|(other, _)| other < index);
                let mine = musts[first..].iter().take_while(|(other, _)| other == index);
                spots.extend(mine.map(|(_, space)| GpuGain { space: *space, gain: 0, must: true, part: 0 }));
            }
            for (gpu, gain) in &victim.gains {
                let Ok(at) = sites.binary_search_by_key(gpu, |site| site.gpu) else { continue };
                let (space, lack) = (at as u32, sites[at].lack.0);
                match spots[from..].iter_mut().find(|spot| spot.space == space) {
                    Some(spot) => spot.gain = spot.gain.saturating_add(gain.0).min(lack),
                    None if gain.0 == 0 || lack == 0 => {}
                    None => spots.push(GpuGain { space, gain: gain.0.min(lack), must: false, part: 0 }),
                }
            }
            let cost = victim.price.0.min(dearest) * count + 1;
            leavers.push(Leaver { up, lease: victim.lease, cost, spots: from..spots.len() });
        }
        PlanInput::laid_out(wanted, sites.iter().map(|site| site.lack.0), leavers, spots, Pays::All)
    }

    /// The same question in which a victim's cost is divided among its sites.
    pub(super) fn sharing(&self) -> PlanInput {
        let lacks = self.spaces.iter().map(|space| space.lack);
        PlanInput::laid_out(self.wanted, lacks, self.leavers.clone(), self.spots.clone(), Pays::Part)
    }

    /// One site of the whole question as a question of its own, if some victims leave anyway.
    pub(super) fn alone(&self, at: usize, leaves: &[bool]) -> PlanInput {
        let space = &self.spaces[at];
        let parts = space.must.iter().map(|part| (part, true));
        let parts = parts.chain(self.parts[space.may.clone()].iter().map(|part| (part, false)));
        let leave = parts.clone().filter(|(part, _)| leaves[part.leaver as usize]);
        let lack = leave.fold(space.lack, |lack, (part, _)| lack.saturating_sub(part.gain));
        let stay = parts.filter(|(part, must)| !leaves[part.leaver as usize] && (*must || lack > 0));
        let mut there: Vec<(u32, u64, bool)> =
            stay.map(|(part, must)| (part.leaver, part.gain.min(lack), must)).collect();
        there.sort_unstable();
        let leaver = |(spot, (up, ..)): (usize, &(u32, u64, bool))| {
            let whole = &self.leavers[*up as usize];
            Leaver { up: *up, lease: whole.lease, cost: whole.cost, spots: spot..spot + 1 }
        };
        let leavers = there.iter().enumerate().map(leaver).collect();
        let spots =
            there.iter().map(|(_, gain, must)| GpuGain { space: 0, gain: *gain, must: *must, part: 0 }).collect();
        PlanInput::laid_out(1, [lack].into_iter(), leavers, spots, Pays::All)
    }

    fn laid_out(
        wanted: usize,
        lacks: impl Iterator<Item = u64>,
        leavers: Vec<Leaver>,
        mut spots: Vec<GpuGain>,
        pays: Pays,
    ) -> PlanInput {
        let mut spaces: Vec<PlanSite> = lacks.map(|lack| PlanSite { lack, must: Vec::new(), may: 0..0 }).collect();
        let mut may: Vec<Vec<SitePart>> = vec![Vec::new(); spaces.len()];
        for (leaver, whole) in (0..).zip(&leavers) {
            let share = match pays {
                Pays::All => whole.cost,
                // At most so many of its sites are chosen: together they pay no more than the cost.
                Pays::Part => whole.cost / whole.spots.len().min(wanted).max(1) as u64,
            };
            for at in whole.spots.clone() {
                let GpuGain { space, gain, must, .. } = spots[at];
                let part = SitePart { leaver, gain, share, spot: at as u32 };
                if must { &mut spaces[space as usize].must } else { &mut may[space as usize] }.push(part);
            }
        }
        let mut parts: Vec<SitePart> = Vec::with_capacity(spots.len());
        for (space, mut may) in spaces.iter_mut().zip(may) {
            // Of two that cost the same per byte the larger comes first, then the earlier lease.
            may.sort_unstable_by(|left, right| {
                let ahead = u128::from(left.share) * u128::from(right.gain);
                let behind = u128::from(right.share) * u128::from(left.gain);
                ahead.cmp(&behind).then(right.gain.cmp(&left.gain)).then(left.leaver.cmp(&right.leaver))
            });
            space.may = parts.len()..parts.len() + may.len();
            parts.append(&mut may);
        }
        for (at, part) in (0..).zip(&parts) {
            spots[part.spot as usize].part = at;
        }
        PlanInput { wanted, spaces, leavers, parts, spots }
    }

    /// How many victims on how many GPUs: each pair counts.
    pub(super) fn size(&self) -> usize {
        self.spots.len()
    }

    /// The sites of a leaver.
    pub(super) fn spots(&self, leaver: u32) -> &[GpuGain] {
        &self.spots[self.leavers[leaver as usize].spots.clone()]
    }

    /// The set of these leavers.
    pub(super) fn set(&self, leavers: &[u32]) -> LeaverSet {
        let mut leavers = leavers.to_vec();
        leavers.sort_unstable();
        let all = || leavers.iter().map(|leaver| &self.leavers[*leaver as usize]);
        LeaverSet {
            cost: all().map(|leaver| leaver.cost).sum(),
            leases: all().map(|leaver| leaver.lease).collect(),
            leavers: all().map(|leaver| leaver.up).collect(),
        }
    }

    /// Clears the site that costs least, given who leaves already, until enough are clear.
    pub(super) fn greedy(&self) -> Vec<u32> {
        let mut leaves = vec![false; self.leavers.len()];
        let mut needs: Vec<u64> = self.spaces.iter().map(|space| space.lack).collect();
        let mut chosen = Vec::new();
        let mut open: Vec<usize> = (0..self.spaces.len()).collect();
        for _ in 0..self.wanted {
            let costs = open.iter().map(|at| self.clearing(*at, needs[*at], &leaves, |_| ()));
            let Some((_, next)) = costs.zip(0..).min() else { break };
            let at = open.remove(next);
            let from = chosen.len();
            self.clearing(at, needs[at], &leaves, |leaver| chosen.push(leaver));
            for leaver in &chosen[from..] {
                leaves[*leaver as usize] = true;
                for spot in self.spots(*leaver) {
                    let need = &mut needs[spot.space as usize];
                    *need = need.saturating_sub(spot.gain);
                }
            }
        }
        self.reduced(chosen)
    }

    /// What it costs to clear a site by price per byte if some victims leave anyway; `takes` is called for each other
    /// victim that leaves.
    fn clearing(&self, at: usize, mut need: u64, leaves: &[bool], mut takes: impl FnMut(u32)) -> u64 {
        let space = &self.spaces[at];
        let mut cost = 0;
        let mut take = |part: &SitePart| {
            cost += self.leavers[part.leaver as usize].cost;
            takes(part.leaver);
            part.gain
        };
        for part in space.must.iter().filter(|part| !leaves[part.leaver as usize]) {
            need = need.saturating_sub(take(part));
        }
        for part in &self.parts[space.may.clone()] {
            if need == 0 {
                break;
            }
            if !leaves[part.leaver as usize] {
                need = need.saturating_sub(take(part));
            }
        }
        cost
    }

    /// Drops victims that are not needed, the dearest first.
    pub(super) fn reduced(&self, mut leavers: Vec<u32>) -> Vec<u32> {
        leavers.sort_unstable_by_key(|leaver| std::cmp::Reverse((self.leavers[*leaver as usize].cost, *leaver)));
        let mut lacks = self.lacks(&leavers);
        let mut clear = lacks.iter().filter(|lack| lack.is_clear()).count();
        leavers.retain(|leaver| {
            let spots = self.spots(*leaver);
            let reopens = |spot: &&GpuGain| {
                let lack = lacks[spot.space as usize];
                lack.is_clear() && !lack.without(spot).is_clear()
            };
            let reopened = spots.iter().filter(reopens).count();
            let needed = clear - reopened < self.wanted;
            if !needed {
                clear -= reopened;
                spots.iter().for_each(|spot| lacks[spot.space as usize] = lacks[spot.space as usize].without(spot));
            }
            needed
        });
        leavers
    }

    /// The sites that lack nothing after these leavers, as many as are wanted.
    pub(super) fn cleared(&self, leavers: &[u32]) -> Vec<usize> {
        let lacks = self.lacks(leavers);
        (0..lacks.len()).filter(|at| lacks[*at].is_clear()).take(self.wanted).collect()
    }

    fn lacks(&self, leavers: &[u32]) -> Vec<Lack> {
        let lack = |space: &PlanSite| Lack { need: i128::from(space.lack), musts: space.must.len() };
        let mut lacks: Vec<Lack> = self.spaces.iter().map(lack).collect();
        for spot in leavers.iter().flat_map(|leaver| self.spots(*leaver)) {
            let lack = &mut lacks[spot.space as usize];
            lack.need -= i128::from(spot.gain);
            lack.musts -= usize::from(spot.must);
        }
        lacks
    }
}

/// What a site still lacks.
#[derive(Clone, Copy)]
struct Lack {
    /// Bytes; below zero if it has more than it needs.
    need: i128,
    /// How many must still leave it.
    musts: usize,
}

impl Lack {
    fn is_clear(self) -> bool {
        self.need <= 0 && self.musts == 0
    }

    /// The same if one that left it had stayed.
    fn without(self, spot: &GpuGain) -> Lack {
        Lack { need: self.need + i128::from(spot.gain), musts: self.musts + usize::from(spot.must) }
    }
}
