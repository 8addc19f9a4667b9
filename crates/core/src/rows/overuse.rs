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
    pub seen_bytes: Bytes,
}

impl Hold {
    /// What it was told of having more than its lease, while it has.
    pub fn overuse(&self) -> Option<&Overuse> {
        self.history.as_ref()?.overuse.as_ref()
    }

    /// Whether it was told to leave its cards at least once.
    pub fn has_moved(&self) -> bool {
        self.history.as_ref().is_some_and(|turns| !turns.never_moved)
    }

    pub(super) fn clear_overuse(&mut self) {
        if let Some(turns) = &mut self.history {
            turns.overuse = None;
        }
    }
}

impl Rows {
    pub(super) fn over(&mut self, lease: LeaseId, at: Time, seen: Bytes) {
        if let Some(Lease { phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) {
            let since = hold.overuse().map_or(at, |over| over.since);
            hold.history_mut().overuse = Some(Overuse { since, seen_bytes: seen });
        }
    }

    pub(super) fn within(&mut self, lease: LeaseId) {
        if let Some(Lease { phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) {
            hold.clear_overuse();
            // Nothing else was to be kept of it.
            hold.history = hold.history.take().filter(|turns| !turns.never_moved || turns.uncharged_byte_us > 0);
        }
    }

    /// What it had so far is charged as it was; what is left of its term, as it is now.
    pub(super) fn grow(&mut self, lease: LeaseId, at: Time, vram: Bytes, mark: Option<Time>) {
        let Some(Lease { tenant, phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) else { return };
        let tenant = &mut self.tenants[tenant.0 as usize];
        let (left, term) = (hold.until.since(at), hold.until.since(hold.renewed));
        let costs = |vram: Bytes| gpu_time(&self.gpus, &hold.gpus, vram, left).0;
        let before = if hold.day == self.meta.day { costs(hold.vram) } else { 0 };
        tenant.spend_today(Span(costs(vram).saturating_sub(before)));
        // As if the whole term had been paid so: the part that is left is what counts.
        let paid = u128::from(tenant.charge(at, mark).0) * u128::from(term.0) / u128::from(left.0.max(1));
        hold.prepaid = hold.prepaid + Span(u64::try_from(paid).unwrap_or(u64::MAX));
        hold.day = self.meta.day;
        let had_us = u128::from(at.since(hold.slice_began()).0) * hold.gpus.len() as u128;
        let more = u128::from(vram.less(hold.vram).0);
        let turns = hold.history_mut();
        turns.uncharged_byte_us = turns.uncharged_byte_us.saturating_add(had_us.saturating_mul(more));
        turns.overuse = None;
        hold.vram = vram;
    }
}
