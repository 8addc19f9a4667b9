//! Leases that have more on their GPUs than they are for.
//!
//! Sublet's library keeps a program to its lease; this is about programs without it. Such a lease is told, once two
//! readings in a row have shown it, and offered a larger lease: its bytes are there already, so there is room
//! for that unless waiters need it too. If a waiter needs its GPUs, it is preempted after a while ([`super::preempt`]) by a
//! method that loses nothing; where it cannot be, and on GPUs that an operator set to `enforce`, it is ended. All of that
//! stops with the reading that shows it within its lease again.

use super::Decider;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::LeaseAction;
use crate::model::ids::{GpuId, LeaseId};
use crate::model::mutant::Mutant;
use crate::model::rows::Phase;
use crate::model::units::Bytes;
use crate::policy::charges::debt_clock_after;
use crate::policy::overuse::{larger_lease, larger_vram, most_on_one_gpu};
use crate::state::SLACK;

impl Decider<'_> {
    /// A card was looked at: who has more there than its lease is told, and who has not any more is let be. A lease whose
    /// size was measured grows instead, if there is room.
    pub(super) fn check_overuse(&mut self, card: GpuId) {
        if self.state.is_stopped() {
            return;
        }
        for (lease, has) in self.state.overuse_on(card) {
            let Some(row) = self.state.lease(lease) else { continue };
            let Phase::Active(hold) = &row.phase else { continue };
            if has
                && row.request.is_measured
                && let Some(vram) = larger_vram(self.state, row, hold, self.now)
            {
                self.enlarge(lease, vram);
                continue;
            }
            let seen = most_on_one_gpu(self.state, lease, hold);
            match hold.overuse() {
                // A measured lease without room to grow: its user is not told of so little.
                _ if has && seen <= hold.vram + SLACK => {}
                // Once, and again when it is much more.
                Some(told) if has && seen < told.seen_bytes + SLACK.max(Bytes(told.seen_bytes.0 / 8)) => {}
                _ if has => self.emit(LeaseAction::FlagOveruse { lease, at: self.now, seen_bytes: seen }),
                Some(_) if self.state.is_within(lease, hold) => self.emit(LeaseAction::ClearOveruse { lease }),
                _ => {}
            }
        }
    }

    /// Whether a lease is one that has more than it is for, and the caller may know of it.
    pub(super) fn is_overusing(&self, by: &Caller, lease: LeaseId) -> bool {
        let row = self.find(by, lease).ok();
        row.is_some_and(|row| matches!(&row.phase, Phase::Active(hold) if hold.overuse().is_some()))
    }

    /// Its holder takes a larger one.
    pub(super) fn accept_larger(&mut self, by: &Caller, lease: LeaseId, vram: Bytes, gpus: u16) -> EventAnswer {
        if let Some(stopped) = self.state.stopped() {
            return EventAnswer::Refused(stopped);
        }
        // Whoever can start now does so first.
        self.serve();
        let Ok(row) = self.find(by, lease) else { return EventAnswer::Refused(Refusal::NoSuchLease) };
        let Phase::Active(hold) = &row.phase else { return EventAnswer::Refused(Refusal::NotWaiting) };
        let (cards, offered) = (hold.gpus.len(), larger_lease(self.state, row, self.now));
        // What it has must be in it: who would have more still is no better off.
        let enough = vram > hold.vram && most_on_one_gpu(self.state, lease, hold) <= vram + SLACK;
        if !enough || usize::from(gpus) != cards || offered.is_none_or(|offered| vram > offered) {
            return EventAnswer::Refused(Refusal::NotLarger { instead: offered });
        }
        self.enlarge(lease, vram);
        EventAnswer::Lease(lease)
    }

    /// An active lease gets this much of each of its cards, and is charged for what that adds.
    fn enlarge(&mut self, lease: LeaseId, vram: Bytes) {
        let Some(row) = self.state.lease(lease) else { return };
        let Phase::Active(hold) = &row.phase else { return };
        let left = hold.until.since(self.now);
        let mark = debt_clock_after(self.state, row.tenant, vram.less(hold.vram), hold.gpus.len(), left, self.now);
        let mark = (!self.state.planted(Mutant::GrowFree)).then_some(mark);
        self.emit(LeaseAction::Enlarge { lease, at: self.now, vram, debt_clock: mark });
    }
}
