//! The GPUs while the queue is served: what each can promise, and which waiters claim it.
//!
//! A waiter that does not fit claims the GPUs it would get soonest (a request for several GPUs claims all of them),
//! from the moment when the leases there will have given back enough, and for as long as it may hold them. Other
//! waiters may claim the same GPUs for other times, or for what will be left over. A waiter behind them may use a
//! claimed GPU only if that delays no claim: for bytes that will be left over then, or for a term that is over by then
//! and is not renewed beyond it. So a large request is not starved by small ones, and no GPU is idle for it that could
//! do something useful meanwhile.

use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::mutant::Mutant;
use crate::model::request::{Exclusivity, GpuSelector, Preempt, Term, Vram};
use crate::model::rows::Lease;
use crate::model::table::GpuTable;
use crate::model::units::{Bytes, Span, Time};
use crate::policy::eligibility::{is_acceptable, needed_bytes, whole_gpu_least};
use crate::policy::moves::is_backing_off;
use crate::policy::placement::{blocking_leases, could_host, may_hold_whole_gpu, removable_contexts};
use crate::policy::quota;
use crate::policy::restore_room::needs_others_gone;
use crate::policy::resume::with_present_need;
use crate::policy::waiters::{LOOK_AHEAD, waiters_in_order};
use crate::state::State;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Tenants whose first such waiter may claim GPUs at a time. Each claim takes some work; waiters of other tenants claim
/// when one of these was served.
const CLAIMANTS: usize = 4;

/// Claims on one GPU at a time, so that waiters for this GPU leave the other GPUs alone.
const CLAIMS_OF_CARD: usize = 4;

/// Beyond the number of GPUs it needs, this many of the roomiest are considered for a claim.
const CANDIDATES: usize = 8;

/// All GPUs, for one round.
pub(crate) struct Board {
    now: Time,
    slots: GpuTable<BoardGpu>,
    claimants: Vec<TenantId>,
    /// Waiters that do not fit and have no claim.
    unclaimed: Vec<LeaseId>,
}

/// One GPU.
struct BoardGpu {
    gpu: GpuId,
    /// What it can promise now.
    room: Bytes,
    /// No lease is there.
    empty: bool,
    claims: Vec<GpuClaim>,
}

/// A waiter will have this GPU.
#[derive(Clone, Copy)]
struct GpuClaim {
    /// From then …
    at: Time,
    /// … until then at the latest.
    until: Time,
    /// Bytes of it.
    need: Bytes,
    /// No other lease may be there.
    alone: bool,
    /// Bytes that will be left over when it begins.
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
        let ends = state.room(self.gpu).ends().iter();
        let back: Bytes =
            ends.take_while(|(ends, _, _)| state.ends_after_grace(*ends, now) <= at).map(|(_, _, b)| *b).sum();
        let taken: Bytes =
            self.claims.iter().filter(|claim| claim.at <= at && at < claim.until).map(|claim| claim.need).sum();
        (self.room + back).less(taken)
    }

    /// Whether no claim is in the way of this one from a moment on; else when to try again.
    fn is_open(&self, state: &State, now: Time, wish: &ClaimSize, at: Time) -> Result<(), Time> {
        let until = at + wish.term;
        let overlap = self.claims.iter().filter(|claim| claim.at < until && at < claim.until);
        let in_the_way = |claim: &&GpuClaim| wish.alone || claim.alone || (claim.at >= at && wish.need > claim.spare);
        if let Some(claim) = overlap.filter(in_the_way).max_by_key(|claim| claim.until) {
            return Err(claim.until);
        }
        // Without a claim it is for the leases to say, and they did: a GPU that cannot be read now may have the room
        // when it can.
        let beside = self.claims.iter().filter(|claim| claim.at <= at && at < claim.until);
        let later = beside.map(|claim| claim.until).min();
        match later {
            Some(later) if wish.need > self.free_at(state, now, at) => Err(later),
            _ => Ok(()),
        }
    }

    /// The most bytes for a lease that is over then.
    fn most_until(&self, over: Time) -> Bytes {
        let met = self.claims.iter().filter(|claim| claim.at < over);
        met.map(|claim| claim.spare).fold(self.room, Bytes::min)
    }

    /// By when a lease of these bytes must be over: the first claim that it would be in the way of.
    fn before(&self, vram: Bytes, exclusivity: Exclusivity) -> Option<Time> {
        let alone = exclusivity != Exclusivity::Shared;
        self.claims.iter().filter(|claim| alone || vram > claim.spare).map(|claim| claim.at).min()
    }
}

/// Where a waiter could start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// On these GPUs, in order.
    pub gpus: Vec<GpuId>,
    /// Bytes of each.
    pub vram: Bytes,
    /// If it is over by then.
    pub before: Option<Time>,
}

/// A GPU that would do for a waiter.
struct Candidate {
    gpu: GpuId,
    room: Bytes,
    /// Bytes that the waiter may have of it, and when it must be over then.
    most: Bytes,
    before: Option<Time>,
}

impl Board {
    /// The GPUs as they are.
    pub fn new(state: &State, now: Time) -> Board {
        let slot = |gpu| BoardGpu {
            gpu,
            room: state.promisable(gpu, now),
            empty: state.room(gpu).is_empty(),
            claims: Vec::new(),
        };
        Board { now, slots: state.gpus().map(slot).collect(), claimants: Vec::new(), unclaimed: Vec::new() }
    }

    /// The GPUs as they are for a waiter, after all waiters ahead of it; `None` if there are more of those than one
    /// round serves.
    pub fn behind_waiter(state: &State, now: Time, lease: LeaseId) -> Option<Board> {
        Board::after(state, now, Some(lease))
    }

    /// The GPUs as they are behind every waiter; `None` if there are more waiters than one round serves.
    pub fn after_all(state: &State, now: Time) -> Option<Board> {
        Board::after(state, now, None)
    }

    fn after(state: &State, now: Time, lease: Option<LeaseId>) -> Option<Board> {
        let mut board = Board::new(state, now);
        let mut looked = 0;
        for (ahead, held) in waiters_in_order(state).take_while(|(ahead, _)| Some(ahead.id) != lease) {
            // A waiter that backs off keeps no room from others meanwhile.
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

    /// Whether there is a GPU on which any waiter might start; if there is none, no waiter need be examined.
    pub fn has_room(&self, (whole, least): (bool, Option<Bytes>)) -> bool {
        let enough = |slot: &BoardGpu| least.is_some_and(|least| slot.room >= least) || (whole && slot.empty);
        self.slots.iter().any(|slot| slot.room > Bytes::ZERO && enough(slot))
    }

    /// Where a waiter could start now, on the tightest GPUs that fit, so that large rooms stay whole.
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
        let is_sought = |gpu: &GpuId| waiters().any(|waiter| could_host(state, waiter, *gpu));
        (fit.before.is_none() && !fit.gpus.iter().any(is_sought)).then_some(fit)
    }

    /// The most that could start now on this many GPUs, if it is less than what was requested.
    pub fn fit_smaller(&self, state: &State, lease: &Lease, gpus: u16, least: Bytes) -> Option<Fit> {
        if needs_others_gone(state, lease) {
            return None;
        }
        let mut seen: Vec<Candidate> =
            self.slots.iter().filter_map(|slot| self.candidate(state, lease, slot)).collect();
        seen.sort_by_key(|seen| (Reverse(seen.most), seen.gpu));
        let most = seen.get(usize::from(gpus).checked_sub(1)?)?.most;
        let most = match lease.request.vram {
            Vram::Bytes(full) => most.min(full),
            Vram::Whole => most,
        };
        let each = quota::most_each(state, lease, gpus, most);
        seen.retain(|seen| seen.most >= each);
        let context = seen.iter().map(|seen| context(state, lease, seen.gpu)).max()?;
        if each < least.max(context).max(Bytes(1)) {
            return None;
        }
        self.place(state, lease, Vram::Bytes(each), usize::from(gpus), seen)
    }

    /// What a waiter may have of a GPU now.
    fn candidate(&self, state: &State, lease: &Lease, slot: &BoardGpu) -> Option<Candidate> {
        // The cheapest check first: on a busy host most GPUs are full.
        let least = match (lease.request.vram, lease.request.at_least) {
            (Vram::Bytes(vram), None) => vram,
            (_, least) => least.unwrap_or(Bytes(1)),
        };
        if slot.room < least {
            return None;
        }
        let whole = lease.request.vram == Vram::Whole && lease.request.at_least.is_none();
        if whole && !(slot.empty && slot.room >= whole_gpu_least(state, slot.gpu)) {
            return None;
        }
        if !is_acceptable(state, &lease.request, slot.gpu) || !state.in_service(slot.gpu) {
            return None;
        }
        if state.excludes(slot.gpu, lease.tenant, lease.request.exclusivity) {
            return None;
        }
        let over = self.now + lease.request.term.span();
        let alone = lease.request.exclusivity != Exclusivity::Shared;
        // A waiter that shares with no other lease would be in the way, however few bytes it takes.
        if alone && slot.claims.iter().any(|claim| claim.at < over) {
            return None;
        }
        let most = slot.most_until(over);
        (most >= least).then(|| Candidate {
            gpu: slot.gpu,
            room: slot.room,
            most,
            before: slot.before(most, lease.request.exclusivity),
        })
    }

    /// Chooses among GPUs that all would do: unclaimed ones, near one another, the tightest.
    fn place(&self, state: &State, lease: &Lease, vram: Vram, wanted: usize, mut seen: Vec<Candidate>) -> Option<Fit> {
        if let Vram::Bytes(vram) = vram {
            seen.retain(|seen| context(state, lease, seen.gpu) <= vram);
            // Bytes that will be left over need no end.
            if quota::has_budget(state, lease.tenant) {
                seen.retain(|seen| quota::allows(state, lease, &vec![seen.gpu; wanted], vram));
            }
            for seen in &mut seen {
                seen.before = self.slots[seen.gpu].before(vram, lease.request.exclusivity);
            }
        } else {
            seen.retain(|seen| {
                let empty = self.slots[seen.gpu].empty;
                let all = empty && seen.most == seen.room && seen.room >= whole_gpu_least(state, seen.gpu);
                all && may_hold_whole_gpu(state, lease, seen.gpu)
            });
        }
        seen.sort_by_key(|seen| (seen.before.is_some(), seen.room, seen.gpu));
        let chosen = if wanted > 1 { near_one_another(state, wanted, seen) } else { seen };
        let chosen = chosen.get(..wanted)?;
        let vram = match vram {
            Vram::Bytes(vram) => vram,
            Vram::Whole => chosen.iter().map(|seen| seen.room).min()?,
        };
        let before = chosen.iter().filter_map(|seen| seen.before).min();
        let mut gpus: Vec<GpuId> = chosen.iter().map(|seen| seen.gpu).collect();
        gpus.sort();
        if !quota::allows(state, lease, &gpus, vram) {
            return None;
        }
        Some(Fit { gpus, vram, before })
    }

    /// Takes what a waiter gets of its GPUs.
    fn occupy(&mut self, fit: &Fit) {
        for gpu in &fit.gpus {
            let slot = &mut self.slots[*gpu];
            slot.room = slot.room.less(fit.vram);
            slot.empty = false;
            // A request for several GPUs may be let past one GPU's claim by its end, and past another's by its size.
            for claim in slot.claims.iter_mut().filter(|claim| fit.before.is_none_or(|before| before > claim.at)) {
                claim.spare = claim.spare.less(fit.vram);
            }
        }
    }

    /// The same for a waiter that the state has granted: for a coarse GPU the state knows better.
    pub fn note_granted(&mut self, state: &State, fit: &Fit) {
        self.occupy(fit);
        for gpu in &fit.gpus {
            self.slots[*gpu].room = state.promisable(*gpu, self.now);
        }
    }

    /// A waiter that does not fit claims the GPUs that leases give back first; none if it could not start whatever
    /// ended: GPUs are not kept for what unleased processes, a drain or a fault prevent.
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
        let able: Vec<&BoardGpu> = self.slots.iter().filter(|slot| could_host(state, lease, slot.gpu)).collect();
        if able.len() < wanted {
            return false;
        }
        let open = able.into_iter().filter(|slot| slot.claims.len() < CLAIMS_OF_CARD);
        let mut open: Vec<(Reverse<Bytes>, GpuId)> = open.map(|slot| (Reverse(slot.room), slot.gpu)).collect();
        open.sort();
        open.truncate(wanted + CANDIDATES);
        let Some((at, gpus)) = self.soonest(state, lease, wanted, &open) else { return false };
        self.claimants.push(lease.tenant);
        gpus.into_iter().for_each(|gpu| self.put_claim(state, lease, gpu, at));
        true
    }

    /// When a waiter has as many of these GPUs as it needs, all at once, and which.
    fn soonest(
        &self,
        state: &State,
        lease: &Lease,
        wanted: usize,
        open: &[(Reverse<Bytes>, GpuId)],
    ) -> Option<(Time, Vec<GpuId>)> {
        let frees: Vec<Time> = open.iter().map(|(_, gpu)| self.frees_at(state, lease, *gpu)).collect();
        let mut from = self.now;
        // Each pass moves on past the end of a claim, of which there are few.
        for _ in 0..=CLAIMS_OF_CARD * 2 {
            let found = open.iter().zip(&frees);
            let found = found
                .map(|((room, gpu), frees)| (self.opens_from(state, lease, *gpu, (*frees).max(from)), *room, *gpu));
            let mut found: Vec<(Time, Reverse<Bytes>, GpuId)> = found.collect();
            found.sort();
            found.truncate(wanted);
            let at = found.get(wanted.checked_sub(1)?)?.0;
            if at == Time::NEVER {
                return None;
            }
            if found.iter().all(|(own, _, gpu)| *own == at || self.opens_from(state, lease, *gpu, at) == at) {
                return Some((at, found.into_iter().map(|(_, _, gpu)| gpu).collect()));
            }
            from = at;
        }
        None
    }

    /// When the claims of others leave a GPU open to a waiter, from a moment on at which leases do.
    fn opens_from(&self, state: &State, lease: &Lease, gpu: GpuId, from: Time) -> Time {
        let (slot, wish) = (&self.slots[gpu], claim_size(state, lease, gpu));
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

    fn put_claim(&mut self, state: &State, lease: &Lease, gpu: GpuId, at: Time) {
        let ClaimSize { need, alone, term } = claim_size(state, lease, gpu);
        let (now, until) = (self.now, at + term);
        let slot = &mut self.slots[gpu];
        let spare = if alone { Bytes::ZERO } else { slot.free_at(state, now, at).less(need) };
        for claim in slot.claims.iter_mut().filter(|claim| at <= claim.at && claim.at < until) {
            claim.spare = claim.spare.less(need);
        }
        slot.claims.push(GpuClaim { at, until, need, alone, spare });
    }

    /// When leases will have given back enough of a GPU for this waiter.
    fn frees_at(&self, state: &State, lease: &Lease, gpu: GpuId) -> Time {
        let ends = state.room(gpu).ends();
        let last = ends.last().map_or(self.now, |(at, _, _)| state.ends_after_grace(*at, self.now));
        let Vram::Bytes(need) = lease.request.vram else { return last };
        let mut room = self.slots[gpu].room;
        let enough = if room >= need {
            self.now
        } else {
            let enough = ends.iter().find(|(_, _, bytes)| {
                room = room + *bytes;
                room >= need
            });
            match enough {
                Some((at, _, _)) => state.ends_after_grace(*at, self.now),
                None => self.frees_with_contexts_at(state, lease, gpu, need).unwrap_or(last),
            }
        };
        enough.max(self.opens_at(state, lease, gpu))
    }

    /// When leases will have given back enough of a GPU, if the contexts of parked programs leave it too; `None` if even
    /// that is not enough.
    fn frees_with_contexts_at(&self, state: &State, lease: &Lease, gpu: GpuId, need: Bytes) -> Option<Time> {
        let mut room = self.slots[gpu].room + removable_contexts(state, lease.id, gpu);
        if room >= need {
            return Some(self.now);
        }
        let enough = state.room(gpu).ends().iter().find(|(_, _, bytes)| {
            room = room + *bytes;
            room >= need
        });
        enough.map(|(at, _, _)| state.ends_after_grace(*at, self.now))
    }

    /// When neither a lease's exclusivity nor the waiter's own keeps the waiter off a GPU any more.
    fn opens_at(&self, state: &State, lease: &Lease, gpu: GpuId) -> Time {
        let alone = needs_others_gone(state, lease);
        if !alone && !state.excludes(gpu, lease.tenant, lease.request.exclusivity) {
            return self.now;
        }
        let in_the_way = blocking_leases(state, lease, gpu).filter_map(|id| state.room(gpu).leases().get(&id));
        in_the_way.map(|claim| state.ends_after_grace(claim.ends_by, self.now)).max().unwrap_or(self.now)
    }
}

/// What a waiter would claim of a GPU.
fn claim_size(state: &State, lease: &Lease, gpu: GpuId) -> ClaimSize {
    let whole = lease.request.vram == Vram::Whole;
    let term = match (lease.request.term, lease.request.preempt) {
        (Term::Fixed(term), _) => term,
        (Term::Renewed(_), Preempt::Never) => Span(Time::NEVER.0),
        (Term::Renewed(_), Preempt::Usual | Preempt::Park | Preempt::End) => state.policy().hold_max,
    };
    let need = if whole { state.room(gpu).largest_ever() } else { needed_bytes(state, &lease.request, gpu) };
    // A program without the library that starts beside it would put its restore off again.
    let alone = whole || lease.request.exclusivity != Exclusivity::Shared || needs_others_gone(state, lease);
    ClaimSize { need, alone, term }
}

/// The bytes of a CUDA context; zero for a parked lease, which has its own.
fn context(state: &State, lease: &Lease, gpu: GpuId) -> Bytes {
    match lease.request.gpus_allowed {
        Some(GpuSelector::These(_)) => Bytes::ZERO,
        _ => state.rows().gpus[gpu].facts.context.unwrap_or_default(),
    }
}

/// Puts GPUs of one board first, if one board has enough of them, or else those of one memory node: where the fewest
/// others are, so that requests for many GPUs find theirs.
fn near_one_another(state: &State, wanted: usize, seen: Vec<Candidate>) -> Vec<Candidate> {
    let facts = |seen: &Candidate| &state.rows().gpus[seen.gpu].facts;
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
