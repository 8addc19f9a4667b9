//! What jobs choose about preemption, and what signals do to processes: most of them exit, some exit late, some ignore
//! SIGTERM, and a few survive SIGKILL for a while.

use crate::checker::{Violation, must};
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{LeaseRequest, Notice, Preempt};
use sublet_core::units::Span;

const KILL: u8 = 9;

impl Sim<'_> {
    /// Draws how a request may be preempted.
    pub(crate) fn draw_preemption_choice(&mut self, request: LeaseRequest) -> LeaseRequest {
        if !self.shape.habits.preempts || self.shape.habits.orderly {
            return request;
        }
        let preempt = match self.rng_preemption.below(100) {
            0..8 => Preempt::Never,
            8..38 => Preempt::End,
            38..46 => Preempt::Park,
            _ => Preempt::Usual,
        };
        let notice = self.rng_preemption.chance(if preempt == Preempt::End { 800 } else { 300 }).then(|| Notice {
            signal: self.rng_preemption.within(0, 32) as u8,
            before: Span::secs(self.rng_preemption.pick(&[0, 5, 20, 60, 200, 200, 700])),
        });
        let yields = self.rng_preemption.chance(self.shape.habits.hooks);
        let may_lose = self.shape.habits.driver > 0 && self.rng_preemption.chance(200);
        LeaseRequest { preempt, notice, has_hook: yields, may_lose_state: may_lose, ..request }
    }

    /// Sends a signal to processes of a lease.
    pub(crate) fn deliver_signal(
        &mut self,
        lease: LeaseId,
        signal: u8,
        processes: &[ProcKey],
    ) -> Result<(), Violation> {
        must(16, signal != KILL || self.sigterm_leases.contains(&lease), || {
            format!("{lease} gets SIGKILL, and never got SIGTERM")
        })?;
        self.sigterm_leases.insert(lease);
        let grace = self.shape.policy.parking.grace.0;
        // The daemon hears at once, or a while later, that the signal was sent.
        let heard = if self.rng_preemption.chance(300) { self.rng_preemption.within(0, grace) } else { 0 };
        self.timers.set(self.t + heard, Timer::SignalSent(self.life, lease.0, signal));
        for process in processes {
            let longest = match self.rng_preemption.below(10) {
                0 if signal != KILL && !self.calm => 3 * grace,
                1 if signal != KILL && !self.calm => continue,
                2 if signal == KILL && !self.calm => 4 * grace,
                _ if signal == KILL => S / 10,
                _ => grace,
            };
            let delay = self.rng_preemption.within(0, longest);
            self.timers.set(self.t + delay, Timer::ExitBySignal(*process));
        }
        Ok(())
    }

    /// A process exits by a signal.
    pub(crate) fn exit_by_signal(&mut self, process: ProcKey) -> Result<(), Violation> {
        let leases = self.world.exit_process(process);
        self.schedule_member_reports(&leases);
        Ok(())
    }
}
