//! What owners choose for when others need their cards, and what signals do to processes: most of them
//! exit, some take long, some do not care, and a few survive even SIGKILL for a while.

use crate::checker::{Violation, must};
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::request::{LeaseRequest, Notice, Preempt};
use sublet_core::units::Span;

const KILL: u8 = 9;

impl Sim<'_> {
    /// Somebody chooses what may be done to it.
    pub(crate) fn choose(&mut self, ask: LeaseRequest) -> LeaseRequest {
        if !self.shape.habits.preempts || self.shape.habits.orderly {
            return ask;
        }
        let preempt = match self.whim.below(100) {
            0..8 => Preempt::Never,
            8..38 => Preempt::End,
            38..46 => Preempt::Park,
            _ => Preempt::Usual,
        };
        let notice = self.whim.chance(if preempt == Preempt::End { 800 } else { 300 }).then(|| Notice {
            signal: self.whim.within(0, 32) as u8,
            before: Span::secs(self.whim.pick(&[0, 5, 20, 60, 200, 200, 700])),
        });
        let yields = self.whim.chance(self.shape.habits.hooks);
        let may_lose = self.shape.habits.driver > 0 && self.whim.chance(200);
        LeaseRequest { preempt, notice, has_hook: yields, may_lose_state: may_lose, ..ask }
    }

    /// Processes of a lease get a signal.
    pub(crate) fn deliver(&mut self, lease: LeaseId, signal: u8, processes: &[ProcKey]) -> Result<(), Violation> {
        must(16, signal != KILL || self.termed.contains(&lease), || {
            format!("{lease} gets SIGKILL, and never got SIGTERM")
        })?;
        self.termed.insert(lease);
        let grace = self.shape.policy.parking.grace.0;
        // That it has left is heard at once, or when whoever sent it has a moment.
        let heard = if self.whim.chance(300) { self.whim.within(0, grace) } else { 0 };
        self.timers.set(self.t + heard, Timer::Sent(self.life, lease.0, signal));
        for process in processes {
            let longest = match self.whim.below(10) {
                0 if signal != KILL && !self.calm => 3 * grace,
                1 if signal != KILL && !self.calm => continue,
                2 if signal == KILL && !self.calm => 4 * grace,
                _ if signal == KILL => S / 10,
                _ => grace,
            };
            let delay = self.whim.within(0, longest);
            self.timers.set(self.t + delay, Timer::Die(*process));
        }
        Ok(())
    }

    /// A process exits by a signal.
    pub(crate) fn perish(&mut self, process: ProcKey) -> Result<(), Violation> {
        let leases = self.world.exit_process(process);
        self.noticed(&leases);
        Ok(())
    }
}
