//! Who has more than its lease is offered a larger one, and now and then takes it: what is offered, or what is not.

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::sim::Sim;
use sublet_core::decide::overuse::larger_lease;
use sublet_core::event::Event;
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::LeaseId;
use sublet_core::rows::Lease;
use sublet_core::units::Bytes;

impl Sim<'_> {
    /// A job whose lease has more than it is for may take a larger one. Says whether it tried.
    pub(crate) fn takes_more(&mut self, number: u32) -> Result<bool, Violation> {
        let job = &self.jobs[number as usize];
        let (Some(lease), by, cards, vram) = (job.lease, job.tenant, job.cards.len(), job.vram) else {
            return Ok(false);
        };
        let hold = self.disk.rows.leases.get(&lease).and_then(Lease::hold);
        if hold.is_none_or(|hold| hold.overuse().is_none()) || !self.greed.chance(250) {
            return Ok(false);
        }
        let now = self.now();
        let offered = self.daemon.as_ref().and_then(|daemon| {
            let state = daemon.engine.state();
            larger_lease(state, state.lease(lease)?, now)
        });
        let (vram, gpus) = match offered {
            Some(offer) if self.greed.chance(800) => (offer, cards as u16),
            _ => (Bytes(vram.0 + Bytes::mib(self.greed.within(0, 8_000)).0), self.greed.within(0, 2) as u16),
        };
        let caller = self.callers[by].clone();
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::OfferAccepted { by: caller, lease, vram, gpus }),
            job: Some(number),
        })?;
        Ok(true)
    }

    /// The daemon said that a lease is larger.
    pub(crate) fn told_grown(&mut self, lease: LeaseId, vram: Bytes) {
        if let Some(number) = self.by_lease.get(&lease).copied() {
            self.jobs[number as usize].vram = vram;
        }
    }
}
