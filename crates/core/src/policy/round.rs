//! One walk along the queue: which waiter fits where, and what a grant changes for the waiters that were passed.

use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::mutant::Mutant;
use crate::model::request::Vram;
use crate::model::rows::{Lease, Phase};
use crate::model::units::{Bytes, Time};
use crate::policy::board::{Board, Fit};
use crate::policy::moves::is_backing_off;
use crate::policy::waiters::{LOOK_AHEAD_OF_TENANT, count_hopeful};
use crate::state::State;
use crate::state::queue::{QueueCursor, QueuePlace};
use std::collections::BTreeMap;

/// One walk along the queue.
pub(crate) struct Round {
    pub(crate) cursor: QueueCursor,
    pub(crate) board: Board,
    pub(crate) looked: usize,
    /// Tenants with a waiter that was passed, and where the last of those waiters stands.
    kept: BTreeMap<TenantId, Vec<LeaseId>>,
    last: Option<(i64, LeaseId)>,
}

impl Round {
    pub(crate) fn new(state: &State, now: Time) -> Round {
        let board = Board::new(state, now);
        Round { cursor: QueueCursor::default(), board, looked: 0, kept: BTreeMap::new(), last: None }
    }

    pub(crate) fn fit(&self, state: &State, lease: &Lease) -> Option<Fit> {
        if state.planted(Mutant::ResumeBlind)
            && let (Phase::Parked(hold, _), Vram::Bytes(vram)) = (&lease.phase, lease.request.vram)
        {
            return Some(Fit { gpus: hold.gpus.clone(), vram, before: None });
        }
        let less = || self.board.fit_smaller(state, lease, lease.request.gpus, lease.request.at_least?);
        self.board.fit(state, lease).or_else(less)
    }

    /// A waiter stays, and claims what it needs.
    pub(crate) fn keep(&mut self, state: &State, lease: &Lease, place: QueuePlace) {
        self.last = self.last.max(state.queue().keys_of(lease.tenant, place).map(|[own, _]| own));
        self.board.claim(state, lease);
        self.kept.entry(lease.tenant).or_default().push(lease.id);
    }

    /// Passes a waiter that its quota never lets start.
    pub(crate) fn pass(&mut self, tenant: TenantId) {
        self.kept.entry(tenant).or_default();
    }

    pub(crate) fn has_enough_of(&mut self, state: &State, tenant: TenantId) -> bool {
        let Some(kept) = self.kept.get_mut(&tenant) else { return false };
        self.looked -= count_hopeful(state, kept);
        kept.len() >= LOOK_AHEAD_OF_TENANT
    }

    /// Whether a waiter that was passed backs off now: the driver will not restore it beside the lease that was
    /// granted, so its claim keeps no room.
    pub(crate) fn kept_rest(&self, state: &State, now: Time) -> bool {
        let mut kept = self.kept.values().flatten().filter_map(|lease| state.lease(*lease));
        kept.any(|row| is_backing_off(state, row, now))
    }

    /// Whether a waiter was passed in this round.
    pub(crate) fn has_passed(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether a grant to this tenant changes the order of what was found on the way: a waiter of the tenant further
    /// ahead has to let others pass, or the tenant's next one comes before the last waiter that was passed.
    pub(crate) fn is_upset_by(&self, state: &State, tenant: TenantId, place: QueuePlace) -> bool {
        let next = state.queue().keys_of(tenant, place).map(|[_, first]| first);
        self.kept.contains_key(&tenant) || next.is_some_and(|next| Some(next) < self.last)
    }
}

/// What belongs to no lease on these GPUs, or stays there when all leases end: processes, bytes, and what parked leases
/// have left.
pub(crate) fn unowned_on(state: &State, gpus: &[GpuId]) -> Vec<(usize, Option<Bytes>, Bytes)> {
    let of = |gpu: &GpuId| {
        (state.unleased_compute_processes(*gpu), state.room(*gpu).unowned_bytes(), state.room(*gpu).bytes_that_stay())
    };
    gpus.iter().map(of).collect()
}
