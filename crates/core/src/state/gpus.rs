//! What may be promised on a card, and what its room is made of.

use super::State;
use crate::model::ids::{GpuId, LeaseId, TenantId};
use crate::model::movers::CONTEXT;
use crate::model::mutant::Mutant;
use crate::model::reading::GpuFacts;
use crate::model::request::Exclusivity;
use crate::model::rows::{GpuService, Lease, Phase};
use crate::model::settings::Policy;
use crate::model::units::{Bytes, Time};
use crate::state::room::Room;

impl State {
    /// Whether new leases may land on a card at all.
    pub fn in_service(&self, card: GpuId) -> bool {
        let row = &self.rows.gpus[card];
        let is_aside = self.is_aside(card) && !self.planted(Mutant::GrantAside);
        row.service == GpuService::In && row.facts.unusable.is_none() && self.is_listed(card) && !is_aside
    }

    /// Bytes that may be promised on a card now.
    pub fn promisable(&self, card: GpuId, now: Time) -> Bytes {
        let room = self.room(card);
        let restores = self.is_restoring_on(card) && !self.planted(Mutant::GrantDuringRestore);
        if !self.in_service(card) || restores {
            return Bytes::ZERO;
        }
        let honest = room.promisable(now, self.policy.period);
        match () {
            () if self.planted(Mutant::UnreadableIsEmpty) && room.unowned_bytes().is_none() => {
                room.largest_ever().less(room.counted())
            }
            () if self.planted(Mutant::ForgetLoose) => honest + room.unowned_bytes().unwrap_or_default(),
            () if self.planted(Mutant::ForgetReserved) => honest + room.counted().less(room.seen()),
            () if self.planted(Mutant::NeverStale) => room.promisable(room.reading().begun, self.policy.period),
            () => honest,
        }
    }

    /// Whether the driver brings somebody back to a card: what it finds taken there, it loses.
    pub fn is_restoring_on(&self, card: GpuId) -> bool {
        let on = |lease: &LeaseId| self.room(card).leases().contains_key(lease);
        self.restoring.iter().any(on)
    }

    pub(crate) fn excludes(&self, card: GpuId, tenant: TenantId, wish: Exclusivity) -> bool {
        !self.planted(Mutant::ForgetExclusive)
            && self.room(card).excludes(tenant, wish, || self.unleased_compute_processes(card))
    }
}

/// A card as nobody has looked at it yet.
pub(super) fn new_room(policy: &Policy, facts: &GpuFacts) -> Room {
    Room::new(facts.total, margin(policy, facts.display), facts.context.unwrap_or(CONTEXT))
}

/// A card, or a policy, is not what it was.
pub(super) fn resize_room(room: &mut Room, policy: &Policy, facts: &GpuFacts) {
    room.resize(facts.total, margin(policy, facts.display), facts.context.unwrap_or(CONTEXT));
}

/// Whether the processes of a lease stay on its cards when it has left them.
pub(super) fn outlives_lease(lease: &Lease) -> bool {
    matches!(&lease.phase, Phase::Parking(_, away) if away.method.keeps_context())
}

fn margin(policy: &Policy, display: bool) -> Bytes {
    if display { policy.margin_display } else { policy.margin }
}
