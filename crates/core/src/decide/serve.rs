//! The queue is served: whoever is first gets its cards, or claims them (see [`super::board`]).

use super::Decider;
use super::admit::is_acceptable;
use super::board::{Board, Fit, could_host};
use super::park::{is_backing_off, with_present_need};
use crate::facts::LeaseAction;
use crate::ids::{Fence, GpuId, LeaseId, TenantId};
use crate::mutant::Mutant;
use crate::queue::{QueueCursor, QueuePlace};
use crate::quota::{self, QuotaBlock};
use crate::request::{GpuSelector, LeaseRequest, Vram};
use crate::rows::{GpuService, Lease, Phase};
use crate::state::State;
use crate::units::{Bytes, Span, Time};
use std::collections::BTreeMap;

/// So many waiters are looked at for one event; more would cost time and help few.
pub(crate) const LOOK_AHEAD: usize = 64;

/// Of one tenant so many: whoever asks a hundred times for a card that is taken does not keep those
/// behind it from another. Who could not start whatever ended is not counted: nobody waits behind it.
pub(crate) const LOOK_AHEAD_OF_TENANT: usize = 16;

/// And so many times in all, should the order change on the way, or quotas hold back whoever is met.
const LOOKS: usize = 8 * LOOK_AHEAD;

/// A whole card is one of which at least so many hundredths are really there for
/// the asker: a desktop's few hundred MiB do not matter, a stranger's model does.
const WHOLE_PERCENT: u64 = 75;

impl Decider<'_> {
    /// Grants what can be granted: first to waiters, in their order, then to passive leases.
    pub(super) fn serve(&mut self) {
        if self.state.is_stopped() {
            return;
        }
        self.serve_waiters();
        self.resume_passive();
    }

    fn serve_waiters(&mut self) {
        if self.state.queue().is_empty() {
            return;
        }
        let mut round = Round::new(self.state, self.now);
        let mut looked = 0;
        while looked < LOOKS && round.looked < LOOK_AHEAD && round.board.has_room(self.state.waiting_sizes()) {
            let Some((place, tenant)) = round.cursor.next(self.state.queue()) else { break };
            let Some(lease) = self.state.lease(place.lease) else { break };
            match quota::block(self.state, lease) {
                // It waits for its tenant's own leases to end, and those behind it with it.
                Some(QuotaBlock { is_permanent: false, .. }) => {
                    if self.state.queue().is_first(tenant, place) {
                        self.state.skip_tenant(tenant);
                    }
                    continue;
                }
                // A cap was lowered under it: it waits, but those behind it need not.
                Some(QuotaBlock { is_permanent: true, .. }) => round.pass(tenant),
                None if round.has_enough_of(self.state, tenant) => continue,
                // It could not come back a moment ago.
                None if is_backing_off(self.state, lease, self.now) => round.pass(tenant),
                None => match round.fit(self.state, &with_present_need(self.state, lease)) {
                    Some(fit) => {
                        let unowned = unowned_on(self.state, &fit.cards);
                        self.grant(place.lease, &fit);
                        let is_changed = unowned != self::unowned_on(self.state, &fit.cards);
                        let is_changed = is_changed || round.kept_rest(self.state, self.now);
                        if round.is_upset_by(self.state, tenant, place, is_changed) {
                            round = Round::new(self.state, self.now);
                            looked += 1;
                            continue;
                        }
                        round.board.note_granted(self.state, &fit);
                        round.looked += 1;
                    }
                    None => {
                        round.keep(self.state, &with_present_need(self.state, lease), place);
                        round.looked += 1;
                    }
                },
            }
            looked += 1;
            round.cursor.advance(self.state.queue(), place, tenant);
        }
    }

    pub(super) fn grant(&mut self, lease: LeaseId, fit: &Fit) {
        let Some(row) = self.state.lease(lease) else { return };
        if matches!(row.phase, Phase::Parked(..)) {
            return self.resume(&row.clone(), fit);
        }
        let span = row.request.term.span();
        let epoch = match self.state.rows().meta.next_fence {
            _ if self.state.planted(Mutant::ReuseEpoch) => Fence(1),
            next => next,
        };
        let mark = debt_clock_after(self.state, row.tenant, fit.vram, fit.cards.len(), span, self.now);
        let Fit { cards, vram, before } = fit.clone();
        let turn = self.state.is_first(row).then_some(self.now);
        let until = self.now + span;
        let (at, mark, told) = (self.now, Some(mark), self.noted_expectation(lease));
        self.emit(LeaseAction::Grant {
            lease,
            gpus: cards,
            vram,
            fence: epoch,
            at,
            until,
            debt_clock: mark,
            not_beyond: before,
            first_since: turn,
            expected: told,
        });
    }
}

/// One walk along the queue.
struct Round {
    cursor: QueueCursor,
    board: Board,
    looked: usize,
    /// Tenants with a waiter that was passed, and where the last of those waiters stands.
    kept: BTreeMap<TenantId, Vec<LeaseId>>,
    last: Option<(i64, LeaseId)>,
}

impl Round {
    fn new(state: &State, now: Time) -> Round {
        let board = Board::new(state, now);
        Round { cursor: QueueCursor::default(), board, looked: 0, kept: BTreeMap::new(), last: None }
    }

    fn fit(&self, state: &State, lease: &Lease) -> Option<Fit> {
        if state.planted(Mutant::ResumeBlind)
            && let (Phase::Parked(hold, _), Vram::Bytes(vram)) = (&lease.phase, lease.request.vram)
        {
            return Some(Fit { cards: hold.gpus.clone(), vram, before: None });
        }
        let less = || self.board.fit_smaller(state, lease, lease.request.gpus, lease.request.at_least?);
        self.board.fit(state, lease).or_else(less)
    }

    /// A waiter stays, and claims what it needs.
    fn keep(&mut self, state: &State, lease: &Lease, place: QueuePlace) {
        self.last = self.last.max(state.queue().keys_of(lease.tenant, place).map(|[own, _]| own));
        self.board.claim(state, lease);
        self.kept.entry(lease.tenant).or_default().push(lease.id);
    }

    /// A waiter stays whom its quota never lets start.
    fn pass(&mut self, tenant: TenantId) {
        self.kept.entry(tenant).or_default();
    }

    fn has_enough_of(&mut self, state: &State, tenant: TenantId) -> bool {
        let Some(kept) = self.kept.get_mut(&tenant) else { return false };
        self.looked -= count_hopeful(state, kept);
        kept.len() >= LOOK_AHEAD_OF_TENANT
    }

    /// Whether one who was passed waits for no card any more: the driver will not bring it back beside who was granted
    /// one, and so its claim holds nobody off.
    fn kept_rest(&self, state: &State, now: Time) -> bool {
        let mut kept = self.kept.values().flatten().filter_map(|lease| state.lease(*lease));
        kept.any(|row| is_backing_off(state, row, now))
    }

    /// Whether a grant to this tenant changes what was found on the way: a process on a card has become somebody's, a
    /// parked holder has its card again, or one who was passed rests, so that who could not be there may be now; a waiter
    /// of the tenant that stands further ahead has to let others pass; or the tenant's next one comes before who was
    /// passed.
    fn is_upset_by(&self, state: &State, tenant: TenantId, place: QueuePlace, is_changed: bool) -> bool {
        let next = state.queue().keys_of(tenant, place).map(|[_, first]| first);
        let is_found_otherwise = is_changed && !self.kept.is_empty();
        is_found_otherwise || self.kept.contains_key(&tenant) || next.is_some_and(|next| Some(next) < self.last)
    }
}

/// Once so many of a tenant were looked at that no more would be, leaves out those who could not start whatever ended,
/// and says how many those are. Nobody is looked into before.
fn count_hopeful(state: &State, kept: &mut Vec<LeaseId>) -> usize {
    let before = kept.len();
    if before >= LOOK_AHEAD_OF_TENANT {
        kept.retain(|lease| state.lease(*lease).is_some_and(|row| could_start_if_all_ended(state, row)));
    }
    before - kept.len()
}

/// Whether a waiter could start if every lease ended; not while its GPUs step aside, drain or are out of service.
pub(crate) fn could_start_if_all_ended(state: &State, waiter: &Lease) -> bool {
    let able = state.gpus().filter(|card| could_host(state, waiter, *card));
    able.take(usize::from(waiter.request.gpus)).count() == usize::from(waiter.request.gpus)
}

/// What is on cards that is nobody's, or stays there when all leases end: processes, bytes, and what
/// parked holders have left.
fn unowned_on(state: &State, cards: &[GpuId]) -> Vec<(usize, Option<Bytes>, Bytes)> {
    let of = |card: &GpuId| {
        (
            state.unleased_compute_processes(*card),
            state.room(*card).unowned_bytes(),
            state.room(*card).bytes_that_stay(),
        )
    };
    cards.iter().map(of).collect()
}

/// A tenant's mark once it is charged for so much of so many cards for so long: its use in relation
/// to its share of all there is, beyond the present. Whoever uses just its share keeps pace with time.
pub(crate) fn debt_clock_after(
    state: &State,
    tenant: TenantId,
    vram: Bytes,
    cards: usize,
    span: Span,
    now: Time,
) -> Time {
    let (own, all) = state.ledger().shares(tenant);
    let use_ = u128::from(span.0) * u128::from(vram.0) * cards as u128;
    let share = u128::from(state.total().0.max(1)) * u128::from(own) / u128::from(all);
    let moved = (use_ / share.max(1)).min(u128::from(LONGEST_CHARGE.0)) as u64;
    state.rows().tenants[tenant.0 as usize].debt_clock.max(now) + Span(moved)
}

/// No charge moves a mark further: what is beyond any debt that counts need not be exact.
const LONGEST_CHARGE: Span = Span::secs(365 * 86_400);

/// The least an ask would put on the books. How much a whole card is shows only once one is found;
/// all of the smallest that would be enough of them is what must be allowed for.
pub(crate) fn least_bytes(state: &State, ask: &LeaseRequest) -> Bytes {
    let each = match ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => {
            let cards = state.gpus().filter(|card| is_acceptable(state, ask, *card));
            let mut sizes: Vec<Bytes> = cards.map(|card| state.room(card).largest_ever()).collect();
            sizes.sort();
            sizes.get(usize::from(ask.gpus).max(1) - 1).copied().unwrap_or_default()
        }
    };
    Bytes(each.0.saturating_mul(u64::from(ask.gpus)))
}

/// Whether its tenant may ever hold so much of a whole card.
pub(crate) fn may_hold_whole_gpu(state: &State, lease: &Lease, card: GpuId) -> bool {
    let all = Bytes(state.room(card).largest_ever().0.saturating_mul(u64::from(lease.request.gpus)));
    quota::may_ever_hold(state, lease.tenant, all)
}

/// How much the card could promise this waiter, if that is enough.
pub(crate) fn fits_on(state: &State, lease: &Lease, card: GpuId, now: Time) -> Option<Bytes> {
    if !is_eligible(state, &lease.request, card) || state.excludes(card, lease.tenant, lease.request.exclusivity) {
        return None;
    }
    let room = state.promisable(card, now);
    let enough = match lease.request.vram {
        Vram::Bytes(vram) => vram <= room,
        Vram::Whole => {
            let empty = state.room(card).is_empty();
            empty && room >= whole_gpu_least(state, card) && may_hold_whole_gpu(state, lease, card)
        }
    };
    enough.then_some(room)
}

/// The least that passes for a whole card.
pub(crate) fn whole_gpu_least(state: &State, card: GpuId) -> Bytes {
    Bytes(state.room(card).largest_ever().0 / 100 * WHOLE_PERCENT)
}

/// Whether an ask could ever be on a card, by what the card is.
pub(crate) fn could_ever_fit(state: &State, ask: &LeaseRequest, card: GpuId) -> bool {
    let sized = match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(card).largest_ever(),
        Vram::Whole => true,
    };
    sized && is_acceptable(state, ask, card)
}

/// Whether the waiter could ever start on this card.
pub(crate) fn is_eligible(state: &State, ask: &LeaseRequest, card: GpuId) -> bool {
    let facts = &state.rows().gpus[card.0 as usize].facts;
    // Who was there before has its context.
    let returns = matches!(ask.gpus_allowed, Some(GpuSelector::These(_)));
    let context = facts.context.filter(|_| !returns).unwrap_or_default();
    let sized = match ask.vram {
        Vram::Bytes(vram) => vram <= state.room(card).largest_ever() && vram >= context,
        Vram::Whole => true,
    };
    sized && state.in_service(card) && is_acceptable(state, ask, card)
}

/// What an ask must find on a card.
pub(crate) fn needed_bytes(state: &State, ask: &LeaseRequest, card: GpuId) -> Bytes {
    match ask.vram {
        Vram::Bytes(vram) => vram,
        Vram::Whole => whole_gpu_least(state, card),
    }
}

/// The first waiters in the order of service, as [`Turn::serve`] walks along them, with what holds
/// each back. Behind one that waits for its tenant's own leases the tenant's others are passed over,
/// and those whom quotas hold back do not count.
pub(crate) fn waiters_in_order(state: &State) -> impl Iterator<Item = (&Lease, Option<QuotaBlock>)> {
    let mut cursor = QueueCursor::default();
    let mut seen: BTreeMap<TenantId, Vec<LeaseId>> = BTreeMap::new();
    let mut looked = 0;
    let walk = std::iter::from_fn(move || {
        let (place, tenant) = cursor.next(state.queue()).filter(|_| looked < LOOK_AHEAD)?;
        let lease = state.lease(place.lease)?;
        let held = quota::block(state, lease);
        let of_tenant = seen.entry(tenant).or_default();
        if held.is_none() {
            of_tenant.push(place.lease);
            looked += 1;
        }
        looked -= count_hopeful(state, of_tenant);
        if held.as_ref().is_none_or(|held| held.is_permanent) && of_tenant.len() < LOOK_AHEAD_OF_TENANT {
            cursor.advance(state.queue(), place, tenant);
        }
        Some((lease, held))
    });
    walk.take(LOOKS)
}

/// Those of them whom no quota holds back.
pub(crate) fn waiters_within_quota(state: &State) -> impl Iterator<Item = &Lease> {
    waiters_in_order(state).filter_map(|(lease, held)| held.is_none().then_some(lease))
}

/// Whether somebody near the head of the queue could use what this holder has.
pub(crate) fn is_wanted(state: &State, holder: &Lease, cards: &[GpuId]) -> bool {
    // Who is held back by a quota has no use for anybody's room, but for its own tenant's and its
    // groups'.
    let shares_quota = |tenant: TenantId| state.ledger().share_quota(tenant, holder.tenant);
    // A card that is to run empty is wanted by its operator.
    let drains = |card: &GpuId| state.rows().gpus[card.0 as usize].service == GpuService::Draining;
    cards.iter().any(drains)
        || state.queue().skipped_tenants().any(shares_quota)
        || waiters_in_order(state).any(|(waiter, held)| match held {
            // Who could not start there whatever ended has no use for it.
            None => cards.iter().any(|card| could_host(state, waiter, *card)),
            Some(held) => !held.is_permanent && shares_quota(waiter.tenant),
        })
}
