//! Small changes of a set: one victim stays after all, and others leave in its place.
//!
//! Where most victims are on several GPUs the search's bound says little; this finds early what the search would find
//! late.

use super::input::{LeaverSet, PlanInput};

/// Changes a set as long as that makes it better and `work` steps are left.
pub(super) fn swapped(input: &PlanInput, mut best: LeaverSet, work: &mut usize) -> LeaverSet {
    'better: loop {
        let mut swap = Swap::new(input, &best);
        let mut dearest = best.leavers.clone();
        dearest.sort_unstable_by_key(|leaver| std::cmp::Reverse((input.leavers[*leaver as usize].cost, *leaver)));
        for stays in dearest {
            let added = swap.others_for(stays, work);
            if *work == 0 {
                return best;
            }
            let Some(added) = added else { continue };
            *work = work.saturating_sub(best.leavers.len() * 8);
            let leavers = best.leavers.iter().copied().filter(|leaver| *leaver != stays).chain(added).collect();
            let other = input.set(&input.reduced(leavers));
            if other < best {
                best = other;
                continue 'better;
            }
        }
        return best;
    }
}

struct Swap<'a> {
    input: &'a PlanInput,
    /// Sites that lack nothing.
    sites: Vec<usize>,
    leaves: Vec<bool>,
    /// What these sites lack, below zero if they gained more; of the others nothing matters.
    needs: Vec<i128>,
}

impl<'a> Swap<'a> {
    fn new(input: &'a PlanInput, set: &LeaverSet) -> Swap<'a> {
        let sites = input.cleared(&set.leavers);
        // So low that it never comes above zero.
        let mut needs = vec![i128::MIN / 2; input.spaces.len()];
        sites.iter().for_each(|at| needs[*at] = i128::from(input.spaces[*at].lack));
        let mut swap = Swap { input, sites, leaves: vec![false; input.leavers.len()], needs };
        set.leavers.iter().for_each(|leaver| swap.leave(*leaver));
        swap
    }

    fn leave(&mut self, leaver: u32) {
        self.leaves[leaver as usize] = true;
        self.input.spots(leaver).iter().for_each(|spot| self.needs[spot.space as usize] -= i128::from(spot.gain));
    }

    fn stay(&mut self, leaver: u32) {
        self.leaves[leaver as usize] = false;
        self.input.spots(leaver).iter().for_each(|spot| self.needs[spot.space as usize] += i128::from(spot.gain));
    }

    /// The victims that leave if one stays, if that is not far too dear. Everything is then as it was before.
    fn others_for(&mut self, stays: u32, work: &mut usize) -> Option<Vec<u32>> {
        let spots = self.input.spots(stays);
        if spots.iter().any(|spot| spot.must && self.sites.contains(&(spot.space as usize))) {
            return None;
        }
        // Some of the others may turn out not to be needed any more.
        let cost_max = self.input.leavers[stays as usize].cost.saturating_mul(2);
        let (mut added, mut cost, mut is_clear) = (Vec::new(), 0, false);
        self.stay(stays);
        while cost < cost_max {
            let Some(at) = self.sites.iter().copied().find(|at| self.needs[*at] > 0) else {
                is_clear = true;
                break;
            };
            let Some(next) = self.best_for(at, stays, work) else { break };
            cost += self.input.leavers[next as usize].cost;
            self.leave(next);
            added.push(next);
        }
        added.iter().for_each(|leaver| self.stay(*leaver));
        self.leave(stays);
        is_clear.then_some(added)
    }

    /// The victim that frees most on all sites that still lack something, for what it costs.
    fn best_for(&self, at: usize, stays: u32, work: &mut usize) -> Option<u32> {
        let parts = &self.input.parts[self.input.spaces[at].may.clone()];
        *work = work.saturating_sub(parts.len() * 4);
        let mut best: Option<(u32, u64, u64)> = None;
        for part in parts.iter().filter(|part| part.leaver != stays && !self.leaves[part.leaver as usize]) {
            let cost = self.input.leavers[part.leaver as usize].cost;
            let help = self.input.spots(part.leaver).iter().fold(0_u64, |sum, spot| {
                // No need is larger than what the site lacks at first.
                let need = u64::try_from(self.needs[spot.space as usize]).unwrap_or(0);
                sum.saturating_add(spot.gain.min(need))
            });
            let is_better = |(_, best_cost, best_help): (u32, u64, u64)| {
                u128::from(help) * u128::from(best_cost) > u128::from(best_help) * u128::from(cost)
            };
            if best.is_none_or(is_better) {
                best = Some((part.leaver, cost, help));
            }
        }
        best.map(|(leaver, ..)| leaver)
    }
}
