//! Which holders should leave their cards so that a waiter fits: the cheapest set of them.
//!
//! A card lacks bytes, or must be left by everybody on it. A holder that leaves frees all of its
//! cards and is paid once. So this is a covering problem with a choice of cards: [`greedy`] answers
//! it quickly, [`cheapest`] goes on from there with branch and bound until its answer is proven or a
//! fixed amount of work is done. The work is counted in steps, not in time, so that the same question
//! always has the same answer; the order in which holders and cards are named changes nothing.
//!
//! Deliberately absent: what leaving costs, who may be asked, and where a waiter could be. All of
//! that arrives as numbers.

mod input;
mod search;
mod swap;
#[cfg(test)]
mod tests;

use crate::ids::{GpuId, LeaseId};
use crate::units::{Bytes, Span};
use input::{LeaverSet, PlanInput};
use search::Search;
use swap::swapped;

/// Steps of work that one question may take: a step is a look at one holder on one card, and takes
/// a few nanoseconds.
const WORK_MAX: usize = 200_000;
/// What is left of it where laying out the question takes long by itself.
const WORK_MIN: usize = 30_000;
/// What laying out a holder on one card takes, in steps.
const LAY_OUT: usize = 150;

/// A holder that could leave its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Whose.
    pub lease: LeaseId,
    /// Who is asked first: lower ranks before higher ones, whatever the price.
    pub rank: u8,
    /// Everything it costs if this one leaves.
    pub price: Span,
    /// What each of its cards gains.
    pub gains: Vec<(GpuId, Bytes)>,
}

/// A card on which the waiter could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNeed {
    /// Which.
    pub card: GpuId,
    /// What it lacks there now; zero if it fits already.
    pub lack: Bytes,
    /// Victims (indices) that must all leave it, whatever the bytes: the waiter wants to be alone.
    pub must: Vec<usize>,
}

/// Who leaves, and where the waiter is then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionChoice {
    /// As many cards as were wanted, by number.
    pub cards: Vec<GpuId>,
    /// Indices of those who leave, smallest first. None of them can be left out.
    pub victims: Vec<usize>,
    /// What it costs all together.
    pub price: Span,
}

/// The cheapest set of victims after which `wanted` of the sites lack nothing.
///
/// The highest rank of a set counts first, then the sum of its prices, then how many it has, then its
/// leases in order: the set with the earlier ones. `None` if not even all victims together make the room.
///
/// It is never worse than [`greedy`], and exact unless the work runs out: for a dozen victims it is enough.
/// Above sixteen victims any of several sets may be taken that differ only in their leases, though always
/// the same. Of a card that is named twice the first site counts.
pub fn cheapest(sites: &[GpuNeed], wanted: usize, victims: &[Victim]) -> Option<PreemptionChoice> {
    choose(sites, wanted, victims, |field| {
        let start = field.set(&field.greedy());
        if field.wanted == 1 { one_card(field, start) } else { gang(field, start) }
    })
}

/// A plain answer: card by card, holders by price per byte until the room is there, and whoever
/// turns out not to be needed stays. Its highest rank is as low as that of [`cheapest`].
pub fn greedy(sites: &[GpuNeed], wanted: usize, victims: &[Victim]) -> Option<PreemptionChoice> {
    choose(sites, wanted, victims, |field| field.set(&field.greedy()))
}

/// Each card is a question of its own, and a holder's other cards do not matter.
fn one_card(field: &PlanInput, start: LeaverSet) -> LeaverSet {
    let nobody = vec![false; field.movers.len()];
    let alone = |at| {
        let alone = field.alone(at, &nobody);
        (Search::least(&alone), at, alone)
    };
    let mut fields: Vec<(u64, usize, PlanInput)> = (0..field.spaces.len()).map(alone).collect();
    // The most promising first: its answer spares the others.
    fields.sort_unstable_by_key(|(least, at, _)| (*least, *at));
    let (mut best, mut work) = (start, work_for(field));
    for (done, (_, _, alone)) in fields.iter().enumerate() {
        // Those that come later need a part of the work only if they could be better.
        let rivals = fields[done..].iter().take_while(|(least, ..)| *least <= best.cost).count();
        if rivals == 0 {
            break;
        }
        let (found, used) = Search::run(alone, &best, work / rivals);
        work = work.saturating_sub(used);
        best = found.unwrap_or(best);
    }
    best
}

/// Two beginnings, the better ones made better card by card and holder by holder; then all together.
fn gang(field: &PlanInput, start: LeaverSet) -> LeaverSet {
    let sharing = field.sharing();
    // Who counts on sharing finds those who are on several of the cards.
    let other = field.set(&sharing.greedy());
    let mut work = work_for(field);
    let quarter = work / 4;
    let mut best = polished(field, start, quarter, &mut work);
    if other < best {
        best = polished(field, other, quarter, &mut work).min(best);
    }
    let mut left = quarter;
    best = swapped(field, best, &mut left);
    work = work.saturating_sub(quarter - left);
    let (found, _) = Search::run(&sharing, &best, work);
    found.unwrap_or(best)
}

/// How much work there is for a field.
fn work_for(field: &PlanInput) -> usize {
    WORK_MAX.saturating_sub(field.size() * LAY_OUT).max(WORK_MIN)
}

/// A set made better card by card: those who leave for one card only are chosen anew, the others leave anyway.
fn polished(field: &PlanInput, start: LeaverSet, work_max: usize, work: &mut usize) -> LeaverSet {
    let mut movers = start.movers.clone();
    let cleared = field.cleared(&movers);
    let mut is_cleared = vec![false; field.spaces.len()];
    cleared.iter().for_each(|at| is_cleared[*at] = true);
    for at in &cleared {
        let is_for_others = |mover: &u32| {
            let mut spaces = field.spots(*mover).iter().map(|spot| spot.space as usize);
            spaces.any(|space| space != *at && is_cleared[space])
        };
        let (mut others, mine): (Vec<u32>, Vec<u32>) = movers.iter().partition(|mover| is_for_others(mover));
        let mut leaves = vec![false; field.movers.len()];
        others.iter().for_each(|mover| leaves[*mover as usize] = true);
        let alone = field.alone(*at, &leaves);
        let (found, used) = Search::run(&alone, &field.set(&mine), work_max / cleared.len());
        *work = work.saturating_sub(used);
        if let Some(found) = found {
            others.extend(found.movers);
            movers = others;
        }
    }
    field.set(&field.reduced(movers)).min(start)
}

/// Narrows the question to what matters, lets `answer` find a set, and says what it means.
fn choose(
    sites: &[GpuNeed],
    wanted: usize,
    victims: &[Victim],
    answer: impl FnOnce(&PlanInput) -> LeaverSet,
) -> Option<PreemptionChoice> {
    let mut sites: Vec<&GpuNeed> =
        sites.iter().filter(|site| site.must.iter().all(|who| *who < victims.len())).collect();
    sites.sort_by_key(|site| site.card);
    sites.dedup_by_key(|site| site.card);
    let fits = |site: &&GpuNeed| site.lack == Bytes::ZERO && site.must.is_empty();
    let missing = wanted.saturating_sub(sites.iter().filter(|site| fits(site)).count());
    let mut who = Vec::new();
    if missing > 0 {
        let lacking: Vec<&GpuNeed> = sites.iter().copied().filter(|site| !fits(site)).collect();
        let (rank, open) = lowest_rank(&lacking, missing, victims)?;
        // Everything is kept in the order of leases: the order of the slices then changes nothing.
        let mut order: Vec<usize> = (0..victims.len()).filter(|who| victims[*who].rank <= rank).collect();
        order.sort_by_key(|who| victims[*who].lease);
        let set = answer(&PlanInput::new(&open, missing, victims, &order));
        who = set.movers.iter().map(|mover| order[*mover as usize]).collect();
        who.sort_unstable();
    }
    let cards: Vec<GpuId> =
        sites.iter().filter(|site| is_clear(site, &who, victims)).map(|site| site.card).take(wanted).collect();
    let price = who.iter().fold(Span::ZERO, |sum, who| sum + victims[*who].price);
    (cards.len() == wanted).then_some(PreemptionChoice { cards, victims: who, price })
}

/// Whether a site lacks nothing once these have left.
fn is_clear(site: &GpuNeed, who: &[usize], victims: &[Victim]) -> bool {
    let on_site = |who: &usize| victims[*who].gains.iter().filter(|(card, _)| *card == site.card);
    site.must.iter().all(|must| who.binary_search(must).is_ok())
        && who.iter().flat_map(on_site).map(|(_, gain)| *gain).sum::<Bytes>() >= site.lack
}

/// The lowest rank up to which all victims together make room on enough sites, and those sites.
fn lowest_rank<'a>(sites: &[&'a GpuNeed], missing: usize, victims: &[Victim]) -> Option<(u8, Vec<&'a GpuNeed>)> {
    let mut by_rank: Vec<usize> = (0..victims.len()).collect();
    by_rank.sort_by_key(|who| victims[*who].rank);
    let mut lacks: Vec<Bytes> = sites.iter().map(|site| site.lack).collect();
    for group in by_rank.chunk_by(|left, right| victims[*left].rank == victims[*right].rank) {
        let rank = victims[group[0]].rank;
        for (card, gain) in group.iter().flat_map(|who| &victims[*who].gains) {
            if let Ok(at) = sites.binary_search_by_key(card, |site| site.card) {
                lacks[at] = lacks[at].less(*gain);
            }
        }
        let open = |(site, lack): &(&&'a GpuNeed, &Bytes)| {
            **lack == Bytes::ZERO && site.must.iter().all(|who| victims[*who].rank <= rank)
        };
        let open: Vec<&GpuNeed> = sites.iter().zip(&lacks).filter(open).map(|(site, _)| *site).collect();
        if open.len() >= missing {
            return Some((rank, open));
        }
    }
    None
}
