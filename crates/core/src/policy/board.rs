//! The cards while the queue is served: what each can promise, and who claims it.
//!
//! A waiter that does not fit claims the cards it would get soonest, a gang all of its cards, for
//! the moment when the leases there will have given back enough, and for as long as it may hold them.
//! Others may claim the same cards for other times, or for what will be left over. Those behind them
//! may use a claimed card only as far as that moves nobody's moment: for bytes that will be left over
//! then, or for a term that is over by then and is not renewed beyond it. So a large ask is not
//! starved by small ones, and no card is idle for it that could do something useful meanwhile.

use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::request::{Exclusivity, GpuSelector, Preempt, Term, Vram};
use crate::model::units::{Bytes, Span, Time};
use crate::mutant::Mutant;
use crate::policy::eligibility::{is_acceptable, needed_bytes, whole_gpu_least};
use crate::policy::moves::is_backing_off;
use crate::policy::placement::{blocking_leases, could_host, may_hold_whole_gpu, removable_contexts};
use crate::policy::quota;
use crate::policy::restore_room::needs_others_gone;
use crate::policy::resume::with_present_need;
use crate::policy::waiters::{LOOK_AHEAD, waiters_in_order};
use crate::rows::Lease;
use crate::state::State;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Tenants whose first such waiter may claim cards at a time. Each takes some reckoning; who comes
/// later claims when one of them was served.
const CLAIMANTS: usize = 4;

/// Claims on one card at a time, so that those who wait for one card leave the others alone.
const CLAIMS_OF_CARD: usize = 4;

/// Beyond the cards it needs, so many of the roomiest are looked at for when they will do.
const CANDIDATES: usize = 8;

/// All cards, for one round.
pub(crate) struct Board {
    now: Time,
    slots: Vec<BoardGpu>,
    claimants: Vec<TenantId>,
    /// Waiters that do not fit and have no claim.
    unclaimed: Vec<LeaseId>,
}

/// One card.
struct BoardGpu {
    card: GpuId,
    /// What it can promise now.
    room: Bytes,
    /// Nobody has a lease there.
    empty: bool,
    claims: Vec<GpuClaim>,
}

/// Somebody will have this card.
#[derive(Clone, Copy)]
struct GpuClaim {
    /// From then …
    at: Time,
    /// … until then at the latest.
    until: Time,
    /// So much of it.
    need: Bytes,
    /// And nobody beside it.
    alone: bool,
    /// When it begins, so much will be left over.
    spare: Bytes,
}

/// What a waiter would claim.
struct ClaimSize {
    need: Bytes,
    alone: bool,
    term: Span,
}

impl BoardGpu {
    /// What will be free at a moment, of what is free now and what leases give back until then.
    fn free_at(&self, state: &State, now: Time, at: Time) -> Bytes {
        let ends = state.room(self.card).ends().iter();
        let back: Bytes =
            ends.take_while(|(ends, _, _)| state.ends_after_grace(*ends, now) <= at).map(|(_, _, b)| *b).sum();
        let taken: Bytes =
            self.claims.iter().filter(|claim| claim.at <= at && at < claim.until).map(|claim| claim.need).sum();
        (self.room + back).less(taken)
    }

    /// Whether nobody's claim is in the way of this one from a moment on; else when to look again.
    fn is_open(&self, state: &State, now: Time, wish: &ClaimSize, at: Time) -> Result<(), Time> {
        let until = at + wish.term;
        let overlap = self.claims.iter().filter(|claim| claim.at < until && at < claim.until);
        let in_the_way = |claim: &&GpuClaim| wish.alone || claim.alone || (claim.at >= at && wish.need > claim.spare);
        if let Some(claim) = overlap.filter(in_the_way).max_by_key(|claim| claim.until) {
            return Err(claim.until);
        }
        // Without a claim it is for the leases to say, and they did: a card that cannot be read now may
        // have the room when it can.
        let beside = self.claims.iter().filter(|claim| claim.at <= at && at < claim.until);
        let later = beside.map(|claim| claim.until).min();
        match later {
            Some(later) if wish.need > self.free_at(state, now, at) => Err(later),
            _ => Ok(()),
        }
    }

    /// The most that a lease may take which is over then.
    fn most_until(&self, over: Time) -> Bytes {
        let met = self.claims.iter().filter(|claim| claim.at < over);
        met.map(|claim| claim.spare).fold(self.room, Bytes::min)
    }

    /// By when a lease of so many bytes must be over: the first claim that it would be in the way of.
    fn before(&self, vram: Bytes, alone: bool) -> Option<Time> {
        self.claims.iter().filter(|claim| alone || vram > claim.spare).map(|claim| claim.at).min()
    }
}

/// Where a waiter could start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// On these cards, in order.
    pub cards: Vec<GpuId>,
    /// With so much of each.
    pub vram: Bytes,
    /// If it is over by then.
    pub before: Option<Time>,
}

/// A card as one waiter sees it.
struct Candidate {
    card: GpuId,
    room: Bytes,
    /// What it may have of it, and when it must be over then.
    most: Bytes,
    before: Option<Time>,
}

impl Board {
    /// The cards as they are.
    pub fn new(state: &State, now: Time) -> Board {
        let slot = |card| BoardGpu {
            card,
            room: state.promisable(card, now),
            empty: state.room(card).is_empty(),
            claims: Vec::new(),
        };
        Board { now, slots: state.gpus().map(slot).collect(), claimants: Vec::new(), unclaimed: Vec::new() }
    }

    /// The cards as they are for a waiter, after all those ahead of it; `None` if there are more of
    /// those than are looked at.
    pub fn behind_waiter(state: &State, now: Time, lease: LeaseId) -> Option<Board> {
        Board::after(state, now, Some(lease))
    }

    /// The GPUs as they are behind every waiter; `None` if there are more waiters than are looked at.
    pub fn after_all(state: &State, now: Time) -> Option<Board> {
        Board::after(state, now, None)
    }

    fn after(state: &State, now: Time, lease: Option<LeaseId>) -> Option<Board> {
        let mut board = Board::new(state, now);
        let mut looked = 0;
        for (ahead, held) in waiters_in_order(state).take_while(|(ahead, _)| Some(ahead.id) != lease) {
            // Who could not come back a moment ago keeps nobody from anything meanwhile.
            if held.is_some() || is_backing_off(state, ahead, now) {
                continue;
            }
            looked += 1;
            let ahead = &*with_present_need(state, ahead);
            match board.fit(state, ahead) {
                Some(fit) => board.occupy(&fit),
                None => board.claim(state, ahead),
            }
        }
        (looked < LOOK_AHEAD).then_some(board)
    }

    /// Whether there is a card on which any waiter might start; on a full house there is none, and
    /// nobody need be looked at.
    pub fn has_room(&self, (whole, least): (bool, Option<Bytes>)) -> bool {
        let enough = |slot: &BoardGpu| least.is_some_and(|least| slot.room >= least) || (whole && slot.empty);
        self.slots.iter().any(|slot| slot.room > Bytes::ZERO && enough(slot))
    }

    /// Where a waiter could start now, on the tightest cards that fit, so that large rooms stay whole.
    pub fn fit(&self, state: &State, lease: &Lease) -> Option<Fit> {
        if needs_others_gone(state, lease) {
            return None;
        }
        let wanted = usize::from(lease.request.gpus);
        let mut seen: Vec<Candidate> =
            self.slots.iter().filter_map(|slot| self.candidate(state, lease, slot)).collect();
        if let Vram::Bytes(vram) = lease.request.vram {
            seen.retain(|seen| seen.most >= vram);
        }
        if state.planted(Mutant::PartialGang) && !seen.is_empty() {
            return self.place(state, lease, lease.request.vram, 1, seen);
        }
        if seen.len() < wanted {
            return None;
        }
        self.place(state, lease, lease.request.vram, wanted, seen)
    }

    /// Where a passive lease could come back: in room that no waiter claims, nor could use without having claimed it.
    pub fn fit_unclaimed(&self, state: &State, lease: &Lease) -> Option<Fit> {
        let less = || self.fit_smaller(state, lease, lease.request.gpus, lease.request.at_least?);
        let fit = self.fit(state, lease).or_else(less)?;
        let waiters = || self.unclaimed.iter().filter_map(|waiter| state.lease(*waiter));
        let is_sought = |card: &GpuId| waiters().any(|waiter| could_host(state, waiter, *card));
        (fit.before.is_none() && !fit.cards.iter().any(is_sought)).then_some(fit)
    }

    /// The most that could start now on so many cards, if it is less than what was asked for.
    pub fn fit_smaller(&self, state: &State, lease: &Lease, gpus: u16, least: Bytes) -> Option<Fit> {
        if needs_others_gone(state, lease) {
            return None;
        }
        let mut seen: Vec<Candidate> =
            self.slots.iter().filter_map(|slot| self.candidate(state, lease, slot)).collect();
        seen.sort_by_key(|seen| (Reverse(seen.most), seen.card));
        let most = seen.get(usize::from(gpus).checked_sub(1)?)?.most;
        let most = match lease.request.vram {
            Vram::Bytes(full) => most.min(full),
            Vram::Whole => most,
        };
        let each = quota::most_each(state, lease, gpus, most);
        seen.retain(|seen| seen.most >= each);
        let context = seen.iter().map(|seen| context(state, lease, seen.card)).max()?;
        if each < least.max(context).max(Bytes(1)) {
            return None;
        }
        self.place(state, lease, Vram::Bytes(each), usize::from(gpus), seen)
    }

    /// What a waiter may have of a card now.
    fn candidate(&self, state: &State, lease: &Lease, slot: &BoardGpu) -> Option<Candidate> {
        // The cheapest look first: on a busy host most cards are full.
        let least = match (lease.request.vram, lease.request.at_least) {
            (Vram::Bytes(vram), None) => vram,
            (_, least) => least.unwrap_or(Bytes(1)),
        };
        if slot.room < least {
            return None;
        }
        let whole = lease.request.vram == Vram::Whole && lease.request.at_least.is_none();
        if whole && !(slot.empty && slot.room >= whole_gpu_least(state, slot.card)) {
            return None;
        }
        if !is_acceptable(state, &lease.request, slot.card) || !state.in_service(slot.card) {
            return None;
        }
        if state.excludes(slot.card, lease.tenant, lease.request.exclusivity) {
            return None;
        }
        let over = self.now + lease.request.term.span();
        let alone = lease.request.exclusivity != Exclusivity::Shared;
        // Who wants to be alone would be in the way, however few bytes it takes.
        if alone && slot.claims.iter().any(|claim| claim.at < over) {
            return None;
        }
        let most = slot.most_until(over);
        (most >= least).then(|| Candidate { card: slot.card, room: slot.room, most, before: slot.before(most, alone) })
    }

    /// Chooses among cards that all would do: those nobody claims, near one another, the tightest.
    fn place(&self, state: &State, lease: &Lease, vram: Vram, wanted: usize, mut seen: Vec<Candidate>) -> Option<Fit> {
        if let Vram::Bytes(vram) = vram {
            seen.retain(|seen| context(state, lease, seen.card) <= vram);
            // Bytes that will be left over need no end.
            let alone = lease.request.exclusivity != Exclusivity::Shared;
            if quota::has_budget(state, lease.tenant) {
                seen.retain(|seen| quota::allows(state, lease, &vec![seen.card; wanted], vram));
            }
            for seen in &mut seen {
                seen.before = self.slots[seen.card.0 as usize].before(vram, alone);
            }
        } else {
            seen.retain(|seen| {
                let empty = self.slots[seen.card.0 as usize].empty;
                let all = empty && seen.most == seen.room && seen.room >= whole_gpu_least(state, seen.card);
                all && may_hold_whole_gpu(state, lease, seen.card)
            });
        }
        seen.sort_by_key(|seen| (seen.before.is_some(), seen.room, seen.card));
        let chosen = if wanted > 1 { near_one_another(state, wanted, seen) } else { seen };
        let chosen = chosen.get(..wanted)?;
        let vram = match vram {
            Vram::Bytes(vram) => vram,
            Vram::Whole => chosen.iter().map(|seen| seen.room).min()?,
        };
        let before = chosen.iter().filter_map(|seen| seen.before).min();
        let mut cards: Vec<GpuId> = chosen.iter().map(|seen| seen.card).collect();
        cards.sort();
        if !quota::allows(state, lease, &cards, vram) {
            return None;
        }
        Some(Fit { cards, vram, before })
    }

    /// A waiter gets its cards.
    fn occupy(&mut self, fit: &Fit) {
        for card in &fit.cards {
            let slot = &mut self.slots[card.0 as usize];
            slot.room = slot.room.less(fit.vram);
            slot.empty = false;
            // A gang may be let past one card's claim by its end, and past another's by its size.
            for claim in slot.claims.iter_mut().filter(|claim| fit.before.is_none_or(|before| before > claim.at)) {
                claim.spare = claim.spare.less(fit.vram);
            }
        }
    }

    /// A waiter got its cards, and the state knows: where a card is coarse, it knows better.
    pub fn note_granted(&mut self, state: &State, fit: &Fit) {
        self.occupy(fit);
        for card in &fit.cards {
            self.slots[card.0 as usize].room = state.promisable(*card, self.now);
        }
    }

    /// A waiter that does not fit claims the cards that leases give back first; none if whatever ends would
    /// not do: cards are not kept for what strangers, a drain or a fault prevent.
    pub fn claim(&mut self, state: &State, lease: &Lease) {
        if !self.try_claim(state, lease) {
            self.unclaimed.push(lease.id);
        }
    }

    fn try_claim(&mut self, state: &State, lease: &Lease) -> bool {
        if self.claimants.len() == CLAIMANTS || self.claimants.contains(&lease.tenant) {
            return false;
        }
        let wanted = usize::from(lease.request.gpus);
        let able: Vec<&BoardGpu> = self.slots.iter().filter(|slot| could_host(state, lease, slot.card)).collect();
        if able.len() < wanted {
            return false;
        }
        let open = able.into_iter().filter(|slot| slot.claims.len() < CLAIMS_OF_CARD);
        let mut open: Vec<(Reverse<Bytes>, GpuId)> = open.map(|slot| (Reverse(slot.room), slot.card)).collect();
        open.sort();
        open.truncate(wanted + CANDIDATES);
        let Some((at, cards)) = self.soonest(state, lease, wanted, &open) else { return false };
        self.claimants.push(lease.tenant);
        cards.into_iter().for_each(|card| self.put_claim(state, lease, card, at));
        true
    }

    /// When a waiter has as many of these cards as it wants, all at once, and which.
    fn soonest(
        &self,
        state: &State,
        lease: &Lease,
        wanted: usize,
        open: &[(Reverse<Bytes>, GpuId)],
    ) -> Option<(Time, Vec<GpuId>)> {
        let frees: Vec<Time> = open.iter().map(|(_, card)| self.frees_at(state, lease, *card)).collect();
        let mut from = self.now;
        // Each look moves on past the end of a claim, of which there are few.
        for _ in 0..=CLAIMS_OF_CARD * 2 {
            let found = open.iter().zip(&frees);
            let found = found
                .map(|((room, card), frees)| (self.opens_from(state, lease, *card, (*frees).max(from)), *room, *card));
            let mut found: Vec<(Time, Reverse<Bytes>, GpuId)> = found.collect();
            found.sort();
            found.truncate(wanted);
            let at = found.get(wanted.checked_sub(1)?)?.0;
            if at == Time::NEVER {
                return None;
            }
            if found.iter().all(|(own, _, card)| *own == at || self.opens_from(state, lease, *card, at) == at) {
                return Some((at, found.into_iter().map(|(_, _, card)| card).collect()));
            }
            from = at;
        }
        None
    }

    /// When others' claims leave a card open to a waiter, from a moment on at which leases do.
    fn opens_from(&self, state: &State, lease: &Lease, card: GpuId, from: Time) -> Time {
        let (slot, wish) = (&self.slots[card.0 as usize], claim_size(state, lease, card));
        let mut at = from;
        for _ in 0..=CLAIMS_OF_CARD {
            match slot.is_open(state, self.now, &wish, at) {
                Ok(()) => return at,
                Err(Time::NEVER) => break,
                Err(later) => at = later,
            }
        }
        Time::NEVER
    }

    fn put_claim(&mut self, state: &State, lease: &Lease, card: GpuId, at: Time) {
        let ClaimSize { need, alone, term } = claim_size(state, lease, card);
        let (now, until) = (self.now, at + term);
        let slot = &mut self.slots[card.0 as usize];
        let spare = if alone { Bytes::ZERO } else { slot.free_at(state, now, at).less(need) };
        for claim in slot.claims.iter_mut().filter(|claim| at <= claim.at && claim.at < until) {
            claim.spare = claim.spare.less(need);
        }
        slot.claims.push(GpuClaim { at, until, need, alone, spare });
    }

    /// When leases will have given back enough of a card for this waiter.
    fn frees_at(&self, state: &State, lease: &Lease, card: GpuId) -> Time {
        let ends = state.room(card).ends();
        let last = ends.last().map_or(self.now, |(at, _, _)| state.ends_after_grace(*at, self.now));
        let Vram::Bytes(need) = lease.request.vram else { return last };
        let mut room = self.slots[card.0 as usize].room;
        let enough = if room >= need {
            self.now
        } else {
            let enough = ends.iter().find(|(_, _, bytes)| {
                room = room + *bytes;
                room >= need
            });
            match enough {
                Some((at, _, _)) => state.ends_after_grace(*at, self.now),
                None => self.frees_with_contexts_at(state, lease, card, need).unwrap_or(last),
            }
        };
        enough.max(self.opens_at(state, lease, card))
    }

    /// When leases will have given back enough of a GPU, if the contexts of parked programs leave it too; `None` if even
    /// that is not enough.
    fn frees_with_contexts_at(&self, state: &State, lease: &Lease, card: GpuId, need: Bytes) -> Option<Time> {
        let mut room = self.slots[card.0 as usize].room + removable_contexts(state, lease.id, card);
        if room >= need {
            return Some(self.now);
        }
        let enough = state.room(card).ends().iter().find(|(_, _, bytes)| {
            room = room + *bytes;
            room >= need
        });
        enough.map(|(at, _, _)| state.ends_after_grace(*at, self.now))
    }

    /// When nobody's exclusivity keeps the waiter off a card any more, nor its own wish for it.
    fn opens_at(&self, state: &State, lease: &Lease, card: GpuId) -> Time {
        let alone = needs_others_gone(state, lease);
        if !alone && !state.excludes(card, lease.tenant, lease.request.exclusivity) {
            return self.now;
        }
        let in_the_way = blocking_leases(state, lease, card).filter_map(|id| state.room(card).leases().get(&id));
        in_the_way.map(|claim| state.ends_after_grace(claim.ends_by, self.now)).max().unwrap_or(self.now)
    }
}

/// What a waiter would claim of a card.
fn claim_size(state: &State, lease: &Lease, card: GpuId) -> ClaimSize {
    let whole = lease.request.vram == Vram::Whole;
    let term = match (lease.request.term, lease.request.preempt) {
        (Term::Fixed(term), _) => term,
        (Term::Renewed(_), Preempt::Never) => Span(Time::NEVER.0),
        (Term::Renewed(_), Preempt::Usual | Preempt::Park | Preempt::End) => state.policy().hold_max,
    };
    let need = if whole { state.room(card).largest_ever() } else { needed_bytes(state, &lease.request, card) };
    // A program without the library that starts beside it would put its restore off again.
    let alone = whole || lease.request.exclusivity != Exclusivity::Shared || needs_others_gone(state, lease);
    ClaimSize { need, alone, term }
}

/// What a CUDA context alone takes; who was there before has its own.
fn context(state: &State, lease: &Lease, card: GpuId) -> Bytes {
    match lease.request.gpus_allowed {
        Some(GpuSelector::These(_)) => Bytes::ZERO,
        _ => state.rows().gpus[card.0 as usize].facts.context.unwrap_or_default(),
    }
}

/// Of cards in order of preference, those of one board first, if one has enough of them, or else
/// those of one memory node: where the fewest others are, so that large gangs find theirs.
fn near_one_another(state: &State, wanted: usize, seen: Vec<Candidate>) -> Vec<Candidate> {
    let facts = |seen: &Candidate| &state.rows().gpus[seen.card.0 as usize].facts;
    let board = |seen: &Candidate| facts(seen).board;
    let node = |seen: &Candidate| facts(seen).node;
    let free = |seen: &&Candidate| seen.before.is_none();
    let best = |place: &dyn Fn(&Candidate) -> Option<u32>| {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for number in seen.iter().filter(free).filter_map(place) {
            *counts.entry(number).or_default() += 1;
        }
        let enough = counts.into_iter().filter(|(_, count)| *count >= wanted);
        enough.min_by_key(|(number, count)| (*count, *number)).map(|(number, _)| number)
    };
    let (best_board, best_node) = (best(&board), best(&node));
    let is_near = |seen: &Candidate| match (best_board, best_node) {
        (None, None) => false,
        (None, best) => node(seen) == best,
        (best, _) => board(seen) == best,
    };
    let (mut near, far): (Vec<Candidate>, Vec<Candidate>) =
        seen.into_iter().partition(|seen| free(&seen) && is_near(seen));
    near.extend(far);
    near
}
