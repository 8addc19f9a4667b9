//! Jobs that exceed their leases are offered larger ones, and now and then accept: the offer, or another size.

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::sim::Sim;
use sublet_core::event::Event;
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::LeaseId;
use sublet_core::policy::overuse::larger_lease;
use sublet_core::rows::Lease;
use sublet_core::units::Bytes;

impl Sim<'_> {
    /// A job that exceeds its lease may accept a larger one; returns true if it tried.
    pub(crate) fn accept_larger_lease(&mut self, number: u32) -> Result<bool, Violation> {
        let job = &self.jobs[number as usize];
        let (Some(lease), by, cards, vram) = (job.lease, job.tenant, job.gpus.len(), job.vram) else {
            return Ok(false);
        };
        let hold = self.disk.rows.leases.get(&lease).and_then(Lease::hold);
        if hold.is_none_or(|hold| hold.overuse().is_none()) || !self.rng_overuse.chance(250) {
            return Ok(false);
        }
        let now = self.now();
        let offered = self.daemon.as_ref().and_then(|daemon| {
            let state = daemon.engine.state();
            larger_lease(state, state.lease(lease)?, now)
        });
        let (vram, gpus) = match offered {
            Some(offer) if self.rng_overuse.chance(800) => (offer, cards as u16),
            _ => {
                (Bytes(vram.0 + Bytes::mib(self.rng_overuse.within(0, 8_000)).0), self.rng_overuse.within(0, 2) as u16)
            }
        };
        let caller = self.callers[by].clone();
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::OfferAccepted { by: caller, lease, vram, gpus }),
            job: Some(number),
        })?;
        Ok(true)
    }

    /// Takes the notice that a lease is larger.
    pub(crate) fn note_grown(&mut self, lease: LeaseId, vram: Bytes) {
        if let Some(number) = self.job_of_lease.get(&lease).copied() {
            self.jobs[number as usize].vram = vram;
        }
    }
}
