//! Facts of holders that have more than their leases, made part of the rows.

use super::{Hold, Lease, Phase, Rows, gpu_time};
use crate::ids::LeaseId;
use crate::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};

/// A holder has more on its cards than its lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overuse {
    /// Since when.
    pub since: Time,
    /// It was told that it was seen to have so much on one card.
    #[serde(rename = "seen")]
    pub seen: Bytes,
}

impl Hold {
    /// What it was told of having more than its lease, while it has.
    pub fn over(&self) -> Option<&Overuse> {
        self.turns.as_ref()?.over.as_ref()
    }

    /// Whether it was told to leave its cards at least once.
    pub fn has_moved(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| !turns.unmoved)
    }

    pub(super) fn forget_over(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.over = None;
        }
    }
}

impl Rows {
    pub(super) fn over(&mut self, lease: LeaseId, at: Time, seen: Bytes) {
        if let Some(Lease { phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) {
            let since = hold.over().map_or(at, |over| over.since);
            hold.turns().over = Some(Overuse { since, seen });
        }
    }

    pub(super) fn within(&mut self, lease: LeaseId) {
        if let Some(Lease { phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) {
            hold.forget_over();
            // Nothing else was to be kept of it.
            hold.turns = hold.turns.take().filter(|turns| !turns.unmoved || turns.less_byte_us > 0);
        }
    }

    /// What it had so far is charged as it was; what is left of its term, as it is now.
    pub(super) fn grow(&mut self, lease: LeaseId, at: Time, vram: Bytes, mark: Option<Time>) {
        let Some(Lease { tenant, phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) else { return };
        let tenant = &mut self.tenants[tenant.0 as usize];
        let (left, term) = (hold.until.since(at), hold.until.since(hold.renewed));
        let costs = |vram: Bytes| gpu_time(&self.cards, &hold.cards, vram, left).0;
        let before = if hold.day == self.meta.day { costs(hold.vram) } else { 0 };
        tenant.spend_today(Span(costs(vram).saturating_sub(before)));
        // As if the whole term had been paid so: the part that is left is what counts.
        let paid = u128::from(tenant.pay(at, mark).0) * u128::from(term.0) / u128::from(left.0.max(1));
        hold.paid = hold.paid + Span(u64::try_from(paid).unwrap_or(u64::MAX));
        hold.day = self.meta.day;
        let had_us = u128::from(at.since(hold.began()).0) * hold.cards.len() as u128;
        let more = u128::from(vram.less(hold.vram).0);
        let turns = hold.turns();
        turns.less_byte_us = turns.less_byte_us.saturating_add(had_us.saturating_mul(more));
        turns.over = None;
        hold.vram = vram;
    }
}
