//! Which leases should leave their GPUs so that a waiter fits: the cheapest set of them.
//!
//! A GPU lacks bytes, or must be left by all leases on it. A lease that leaves frees all of its GPUs and is paid once.
//! So this is a covering problem with a choice of GPUs: [`greedy`] answers it quickly, [`cheapest`] goes on from there
//! with branch and bound until its answer is proven or a fixed amount of work is done. The work is counted in steps,
//! not in time, so that the same question always has the same answer; the order in which leases and GPUs are named
//! changes nothing.
//!
//! Deliberately absent: what leaving costs, which leases may leave, and where a waiter could be. All of that arrives as
//! numbers.

mod input;
mod search;
mod swap;
#[cfg(test)]
mod tests;

use crate::model::ids::{GpuId, LeaseId};
use crate::model::units::{Bytes, Span};
use input::{LeaverSet, PlanInput};
use search::Search;
use swap::swapped;

/// Steps of work that one question may take: a step visits one lease on one GPU, and takes a few nanoseconds.
const WORK_MAX: usize = 200_000;
/// What is left of it where laying out the question takes long by itself.
const WORK_MIN: usize = 30_000;
/// What laying out a lease on one GPU takes, in steps.
const LAY_OUT: usize = 150;

/// A lease that could leave its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The lease.
    pub lease: LeaseId,
    /// Lower ranks leave before higher ones, whatever the price.
    pub rank: u8,
    /// The price of its leaving.
    pub price: Span,
    /// What each of its GPUs gains.
    pub gains: Vec<(GpuId, Bytes)>,
}

/// A GPU on which the waiter could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNeed {
    /// The GPU.
    pub gpu: GpuId,
    /// What it lacks there now; zero if it fits already.
    pub lack: Bytes,
    /// Victims (indices) that must all leave it, whatever the bytes: the waiter wants to be alone.
    pub must: Vec<usize>,
}

/// The leases that leave, and where the waiter is then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionChoice {
    /// As many GPUs as were wanted, by number.
    pub gpus: Vec<GpuId>,
    /// Indices of the victims that leave, smallest first. None of them can be left out.
    pub victims: Vec<usize>,
    /// The price of all of them.
    pub price: Span,
}

/// The cheapest set of victims after which `wanted` of the sites lack nothing.
///
/// The highest rank of a set counts first, then the sum of its prices, then how many it has, then its
/// leases in order: the set with the earlier ones. `None` if not even all victims together make the room.
///
/// It is never worse than [`greedy`], and exact unless the work runs out: for a dozen victims it is enough. Above
/// sixteen victims any of several sets may be taken that differ only in their leases, though always the same. Of a GPU
/// that is named twice the first site counts.
pub fn cheapest(sites: &[GpuNeed], wanted: usize, victims: &[Victim]) -> Option<PreemptionChoice> {
    choose(sites, wanted, victims, |input| {
        let start = input.set(&input.greedy());
        if input.wanted == 1 { one_gpu(input, start) } else { several_gpus(input, start) }
    })
}

/// A plain answer: GPU by GPU, victims by price per byte until the room is there; victims that turn out not to be
/// needed stay. Its highest rank is as low as that of [`cheapest`].
pub fn greedy(sites: &[GpuNeed], wanted: usize, victims: &[Victim]) -> Option<PreemptionChoice> {
    choose(sites, wanted, victims, |input| input.set(&input.greedy()))
}

/// One GPU: each site is a question of its own, and a victim's other GPUs do not matter.
fn one_gpu(input: &PlanInput, start: LeaverSet) -> LeaverSet {
    let none_leave = vec![false; input.leavers.len()];
    let alone = |at| {
        let alone = input.alone(at, &none_leave);
        (Search::least(&alone), at, alone)
    };
    let mut inputs: Vec<(u64, usize, PlanInput)> = (0..input.spaces.len()).map(alone).collect();
    // The most promising first: its answer spares the others.
    inputs.sort_unstable_by_key(|(least, at, _)| (*least, *at));
    let (mut best, mut work) = (start, work_for(input));
    for (done, (_, _, alone)) in inputs.iter().enumerate() {
        // Those that come later need a part of the work only if they could be better.
        let rivals = inputs[done..].iter().take_while(|(least, ..)| *least <= best.cost).count();
        if rivals == 0 {
            break;
        }
        let (found, used) = Search::run(alone, &best, work / rivals);
        work = work.saturating_sub(used);
        best = found.unwrap_or(best);
    }
    best
}

/// Several GPUs: two beginnings, the better ones improved GPU by GPU and victim by victim; then all together.
fn several_gpus(input: &PlanInput, start: LeaverSet) -> LeaverSet {
    let sharing = input.sharing();
    // A set made with shared costs prefers victims that are on several of the GPUs.
    let other = input.set(&sharing.greedy());
    let mut work = work_for(input);
    let quarter = work / 4;
    let mut best = polished(input, start, quarter, &mut work);
    if other < best {
        best = polished(input, other, quarter, &mut work).min(best);
    }
    let mut left = quarter;
    best = swapped(input, best, &mut left);
    work = work.saturating_sub(quarter - left);
    let (found, _) = Search::run(&sharing, &best, work);
    found.unwrap_or(best)
}

/// How much work there is for a question.
fn work_for(input: &PlanInput) -> usize {
    WORK_MAX.saturating_sub(input.size() * LAY_OUT).max(WORK_MIN)
}

/// A set improved GPU by GPU: victims that leave for one GPU only are chosen anew, the others leave anyway.
fn polished(input: &PlanInput, start: LeaverSet, work_max: usize, work: &mut usize) -> LeaverSet {
    let mut leavers = start.leavers.clone();
    let cleared = input.cleared(&leavers);
    let mut is_cleared = vec![false; input.spaces.len()];
    cleared.iter().for_each(|at| is_cleared[*at] = true);
    for at in &cleared {
        let is_for_others = |leaver: &u32| {
            let mut spaces = input.spots(*leaver).iter().map(|spot| spot.space as usize);
            spaces.any(|space| space != *at && is_cleared[space])
        };
        let (mut others, mine): (Vec<u32>, Vec<u32>) = leavers.iter().partition(|leaver| is_for_others(leaver));
        let mut leaves = vec![false; input.leavers.len()];
        others.iter().for_each(|leaver| leaves[*leaver as usize] = true);
        let alone = input.alone(*at, &leaves);
        let (found, used) = Search::run(&alone, &input.set(&mine), work_max / cleared.len());
        *work = work.saturating_sub(used);
        if let Some(found) = found {
            others.extend(found.leavers);
            leavers = others;
        }
    }
    input.set(&input.reduced(leavers)).min(start)
}

/// Narrows the question to what matters, lets `answer` find a set, and translates it back.
fn choose(
    sites: &[GpuNeed],
    wanted: usize,
    victims: &[Victim],
    answer: impl FnOnce(&PlanInput) -> LeaverSet,
) -> Option<PreemptionChoice> {
    let mut sites: Vec<&GpuNeed> =
        sites.iter().filter(|site| site.must.iter().all(|index| *index < victims.len())).collect();
    sites.sort_by_key(|site| site.gpu);
    sites.dedup_by_key(|site| site.gpu);
    let fits = |site: &&GpuNeed| site.lack == Bytes::ZERO && site.must.is_empty();
    let missing = wanted.saturating_sub(sites.iter().filter(|site| fits(site)).count());
    let mut chosen = Vec::new();
    if missing > 0 {
        let lacking: Vec<&GpuNeed> = sites.iter().copied().filter(|site| !fits(site)).collect();
        let (rank, open) = lowest_rank(&lacking, missing, victims)?;
        // Everything is kept in the order of leases: the order of the slices then changes nothing.
        let mut order: Vec<usize> = (0..victims.len()).filter(|index| victims[*index].rank <= rank).collect();
        order.sort_by_key(|index| victims[*index].lease);
        let set = answer(&PlanInput::new(&open, missing, victims, &order));
        chosen = set.leavers.iter().map(|leaver| order[*leaver as usize]).collect();
        chosen.sort_unstable();
    }
    let gpus: Vec<GpuId> =
        sites.iter().filter(|site| is_clear(site, &chosen, victims)).map(|site| site.gpu).take(wanted).collect();
    let price = chosen.iter().fold(Span::ZERO, |sum, index| sum + victims[*index].price);
    (gpus.len() == wanted).then_some(PreemptionChoice { gpus, victims: chosen, price })
}

/// Whether a site lacks nothing once these victims have left.
fn is_clear(site: &GpuNeed, chosen: &[usize], victims: &[Victim]) -> bool {
    let on_site = |index: &usize| victims[*index].gains.iter().filter(|(gpu, _)| *gpu == site.gpu);
    site.must.iter().all(|must| chosen.binary_search(must).is_ok())
        && chosen.iter().flat_map(on_site).map(|(_, gain)| *gain).sum::<Bytes>() >= site.lack
}

/// The lowest rank up to which all victims together make room on enough sites, and those sites.
fn lowest_rank<'a>(sites: &[&'a GpuNeed], missing: usize, victims: &[Victim]) -> Option<(u8, Vec<&'a GpuNeed>)> {
    let mut by_rank: Vec<usize> = (0..victims.len()).collect();
    by_rank.sort_by_key(|index| victims[*index].rank);
    let mut lacks: Vec<Bytes> = sites.iter().map(|site| site.lack).collect();
    for group in by_rank.chunk_by(|left, right| victims[*left].rank == victims[*right].rank) {
        let rank = victims[group[0]].rank;
        for (gpu, gain) in group.iter().flat_map(|index| &victims[*index].gains) {
            if let Ok(at) = sites.binary_search_by_key(gpu, |site| site.gpu) {
                lacks[at] = lacks[at].less(*gain);
            }
        }
        let open = |(site, lack): &(&&'a GpuNeed, &Bytes)| {
            **lack == Bytes::ZERO && site.must.iter().all(|index| victims[*index].rank <= rank)
        };
        let open: Vec<&GpuNeed> = sites.iter().zip(&lacks).filter(open).map(|(site, _)| *site).collect();
        if open.len() >= missing {
            return Some((rank, open));
        }
    }
    None
}
