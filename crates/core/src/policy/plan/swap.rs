//! Small changes of a set: one holder stays after all, and others leave in its place.
//!
//! Where most holders are on several cards the search's bound says little; this finds what the
//! search would come to late.

use super::input::{LeaverSet, PlanInput};

/// Changes a set as long as that makes it better and `work` steps are left.
pub(super) fn swapped(field: &PlanInput, mut best: LeaverSet, work: &mut usize) -> LeaverSet {
    'better: loop {
        let mut swap = Swap::new(field, &best);
        let mut dearest = best.movers.clone();
        dearest.sort_unstable_by_key(|mover| std::cmp::Reverse((field.movers[*mover as usize].cost, *mover)));
        for stays in dearest {
            let added = swap.others_for(stays, work);
            if *work == 0 {
                return best;
            }
            let Some(added) = added else { continue };
            *work = work.saturating_sub(best.movers.len() * 8);
            let movers = best.movers.iter().copied().filter(|mover| *mover != stays).chain(added).collect();
            let other = field.set(&field.reduced(movers));
            if other < best {
                best = other;
                continue 'better;
            }
        }
        return best;
    }
}

struct Swap<'a> {
    field: &'a PlanInput,
    /// Those that lack nothing.
    sites: Vec<usize>,
    leaves: Vec<bool>,
    /// What these sites lack, below zero if they gained more; of the others nothing matters.
    needs: Vec<i128>,
}

impl<'a> Swap<'a> {
    fn new(field: &'a PlanInput, set: &LeaverSet) -> Swap<'a> {
        let sites = field.cleared(&set.movers);
        // So low that it never comes above zero.
        let mut needs = vec![i128::MIN / 2; field.spaces.len()];
        sites.iter().for_each(|at| needs[*at] = i128::from(field.spaces[*at].lack));
        let mut swap = Swap { field, sites, leaves: vec![false; field.movers.len()], needs };
        set.movers.iter().for_each(|mover| swap.leave(*mover));
        swap
    }

    fn leave(&mut self, mover: u32) {
        self.leaves[mover as usize] = true;
        self.field.spots(mover).iter().for_each(|spot| self.needs[spot.space as usize] -= i128::from(spot.gain));
    }

    fn stay(&mut self, mover: u32) {
        self.leaves[mover as usize] = false;
        self.field.spots(mover).iter().for_each(|spot| self.needs[spot.space as usize] += i128::from(spot.gain));
    }

    /// Who else leaves if one stays, if that is not far too dear. Everything is then as it was before.
    fn others_for(&mut self, stays: u32, work: &mut usize) -> Option<Vec<u32>> {
        let spots = self.field.spots(stays);
        if spots.iter().any(|spot| spot.must && self.sites.contains(&(spot.space as usize))) {
            return None;
        }
        // Some of the others may turn out not to be needed any more.
        let cost_max = self.field.movers[stays as usize].cost.saturating_mul(2);
        let (mut added, mut cost, mut is_clear) = (Vec::new(), 0, false);
        self.stay(stays);
        while cost < cost_max {
            let Some(at) = self.sites.iter().copied().find(|at| self.needs[*at] > 0) else {
                is_clear = true;
                break;
            };
            let Some(next) = self.best_for(at, stays, work) else { break };
            cost += self.field.movers[next as usize].cost;
            self.leave(next);
            added.push(next);
        }
        added.iter().for_each(|mover| self.stay(*mover));
        self.leave(stays);
        is_clear.then_some(added)
    }

    /// Who frees most on all sites that still lack something, for what it costs.
    fn best_for(&self, at: usize, stays: u32, work: &mut usize) -> Option<u32> {
        let parts = &self.field.parts[self.field.spaces[at].may.clone()];
        *work = work.saturating_sub(parts.len() * 4);
        let mut best: Option<(u32, u64, u64)> = None;
        for part in parts.iter().filter(|part| part.mover != stays && !self.leaves[part.mover as usize]) {
            let cost = self.field.movers[part.mover as usize].cost;
            let help = self.field.spots(part.mover).iter().fold(0_u64, |sum, spot| {
                // No need is larger than what the site lacks at first.
                let need = u64::try_from(self.needs[spot.space as usize]).unwrap_or(0);
                sum.saturating_add(spot.gain.min(need))
            });
            let is_better = |(_, best_cost, best_help): (u32, u64, u64)| {
                u128::from(help) * u128::from(best_cost) > u128::from(best_help) * u128::from(cost)
            };
            if best.is_none_or(is_better) {
                best = Some((part.mover, cost, help));
            }
        }
        best.map(|(mover, ..)| mover)
    }
}
