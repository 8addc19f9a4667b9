//! Serves the queue: the first waiter gets its GPUs, or claims them ([`crate::policy::board`]).

use super::Decider;
use crate::model::facts::LeaseAction;
use crate::model::ids::{Fence, LeaseId};
use crate::model::mutant::Mutant;
use crate::model::quota::QuotaBlock;
use crate::model::rows::Phase;
use crate::policy::board::Fit;
use crate::policy::charges::debt_clock_after;
use crate::policy::moves::is_backing_off;
use crate::policy::quota;
use crate::policy::resume::with_present_need;
use crate::policy::round::{Round, unowned_on};
use crate::policy::waiters::{LOOK_AHEAD, LOOKS};

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
                        let unowned = unowned_on(self.state, &fit.gpus);
                        self.grant(place.lease, &fit);
                        let is_changed = unowned != self::unowned_on(self.state, &fit.gpus);
                        // A process has a lease now, a parked lease has its GPU again, or a waiter that was passed backs
                        // off: a waiter that could not start before may start now.
                        let is_changed = is_changed || round.kept_rest(self.state, self.now);
                        let is_upset =
                            (is_changed && round.has_passed()) || round.is_upset_by(self.state, tenant, place);
                        if is_upset {
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
        let mark = debt_clock_after(self.state, row.tenant, fit.vram, fit.gpus.len(), span, self.now);
        let Fit { gpus: cards, vram, before } = fit.clone();
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
