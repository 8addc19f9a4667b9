//! Renewal, expiry and the cap on holding.
//!
//! Expiry ends the claim, not the process. A lease nobody waits for is extended
//! and shown idle; one that somebody waits for ends on time.

use super::park::ParkCause;
use super::{DUE_AT_ONCE, Decider};
use crate::model::facts::LeaseAction;
use crate::model::ids::LeaseId;
use crate::model::mutant::Mutant;
use crate::model::request::Preempt;
use crate::model::rows::{EndNotice, EndReason, Hold, Lease, Phase, gpu_time};
use crate::model::units::{Span, Time};
use crate::policy::charges::debt_clock_after;
use crate::policy::lease_processes::signal_targets;
use crate::policy::quota;
use crate::policy::waiters::is_wanted;

/// Whether a lease was used in the term that a renewal follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TermUse {
    Used,
    Unused,
}

impl Decider<'_> {
    /// Deals with whatever came due by itself.
    pub(super) fn handle_due_leases(&mut self) {
        for _ in 0..DUE_AT_ONCE {
            let Some(lease) = self.state.take_due(self.now) else { return };
            let Some(row) = self.state.lease(lease).cloned() else { continue };
            match &row.phase {
                Phase::Waiting { give_up } => self.handle_due_waiter(&row, *give_up),
                Phase::Active(hold) => self.handle_due_holder(&row, hold),
                Phase::Parking(hold, away) | Phase::Resuming(hold, away) => {
                    self.handle_due_move(&row, hold, away.since)
                }
                Phase::Parked(_, away) => self.park_expired(&row, away.since),
                Phase::Ending(..) => self.signal_ended(lease),
            }
        }
    }

    /// Something came due of a holder whose bytes are on their way. A fixed term does not wait for them.
    fn handle_due_move(&mut self, lease: &Lease, hold: &Hold, since: Time) {
        if lease.has_fixed_term() && self.later_due_time(hold.renewed, hold.until).is_none() {
            return self.end(lease.id, EndReason::TermOver);
        }
        self.move_timed_out(lease, since);
    }

    fn handle_due_waiter(&mut self, lease: &Lease, give_up: Time) {
        // A daemon that was away could not have served the waiter either.
        match self.later_due_time(lease.requested, give_up) {
            Some(later) => self.state.set_due(lease.id, Some(later)),
            None => self.end(lease.id, EndReason::WaitOver),
        }
    }

    /// The later moment at which something really is due, if it is not now.
    pub(super) fn later_due_time(&self, since: Time, at: Time) -> Option<Time> {
        let late = if self.state.planted(Mutant::ExpireLate) { Span::secs(60) } else { Span::ZERO };
        let at = self.state.rows().meta.due(since, at) + late;
        (at > self.now).then_some(at)
    }

    fn handle_due_holder(&mut self, lease: &Lease, hold: &Hold) {
        let notice = hold.notice.and_then(EndNotice::for_others);
        let notice = notice.map(|notice| self.state.rows().meta.due(notice, notice));
        if notice.is_some_and(|notice| notice <= self.now) {
            return self.notice_over(lease, hold);
        }
        let early = self.state.planted(Mutant::ExpireEarly);
        let worked = self.state.readings(lease.id).is_some_and(|live| live.was_busy);
        let renews = worked && !lease.has_fixed_term() && self.state.renewal_point(lease, hold) <= self.now;
        // Work counts even when the daemon looks late, after the expiry.
        if !early && renews && self.renew_lease(lease, hold) {
            return;
        }
        match self.later_due_time(hold.renewed, hold.until) {
            Some(later) if !early => {
                let told = hold.term_notice(&lease.request, later);
                if told.is_some_and(|at| at <= self.now) {
                    return self.give_term_notice(lease, later);
                }
                let due = [notice, told].into_iter().flatten().fold(later, Time::min);
                self.state.set_due(lease.id, Some(due));
            }
            _ => self.expire(lease, hold),
        }
    }

    /// A fixed term is over soon, and the holder wanted to be told. A command that has hardly begun is waited for: the
    /// signal comes once, and must find somebody. It is over at `until`, which a grace may have put off.
    fn give_term_notice(&mut self, lease: &Lease, until: Time) {
        if !lease.roots.is_empty() && signal_targets(self.state, lease).is_empty() {
            return self.state.set_due(lease.id, Some(until.min(self.now + Span::secs(1))));
        }
        let lease = lease.id;
        self.emit(LeaseAction::GiveNotice { lease, at: self.now, until, room_for: lease });
    }

    fn expire(&mut self, lease: &Lease, hold: &Hold) {
        if lease.has_fixed_term() {
            return self.end(lease.id, EndReason::TermOver);
        }
        let until = self.now + lease.request.term.span();
        let idle = self.state.readings(lease.id).is_none_or(|live| !live.was_busy);
        let (cause, term) = if idle { (ParkCause::Idle, TermUse::Unused) } else { (ParkCause::Busy, TermUse::Used) };
        if !self.affords(lease, hold, until) {
            return self.park_or_end(lease.id, cause, EndReason::Budget);
        }
        if is_wanted(self.state, lease, &hold.gpus) {
            let capped = self.renewal_limit(lease, hold).is_some_and(|limit| self.now >= limit);
            return self.park_or_end(lease.id, cause, if capped { EndReason::HoldCap } else { EndReason::Expired });
        }
        self.extend(lease, hold, until, term, None);
    }

    /// A holder has to leave its cards. Who can be parked keeps its lease, and who was at work asks for
    /// its cards again at once; the others' lease is over.
    fn park_or_end(&mut self, lease: LeaseId, cause: ParkCause, reason: EndReason) {
        if self.park(lease, cause).is_err() {
            self.end(lease, reason);
        }
    }

    /// Whether the day's budget still has the GPU time to go on until then.
    fn affords(&self, lease: &Lease, hold: &Hold, until: Time) -> bool {
        let rows = self.state.rows();
        let more = gpu_time(&rows.gpus, &hold.gpus, hold.vram, hold.charged_span(until, self.now, rows.meta.day));
        quota::affords(self.state, lease.tenant, more)
    }

    /// Beyond this it is not renewed while somebody waits for its cards.
    fn renewal_limit(&self, lease: &Lease, hold: &Hold) -> Option<Time> {
        let cap = (lease.request.preempt != Preempt::Never).then(|| hold.slice_began() + self.state.policy().hold_max);
        let before = hold.not_beyond.filter(|_| !self.state.planted(Mutant::RenewBackfill));
        [cap, before].into_iter().flatten().min()
    }

    fn extend(&mut self, lease: &Lease, hold: &Hold, until: Time, term: TermUse, before: Option<Time>) {
        let idle = term == TermUse::Unused;
        let added = until.since(hold.until);
        let mark = debt_clock_after(self.state, lease.tenant, hold.vram, hold.gpus.len(), added, self.now);
        self.emit(LeaseAction::Renew {
            lease: lease.id,
            at: self.now,
            until,
            idle,
            debt_clock: Some(mark),
            not_beyond: before,
        });
    }

    /// The holder worked: from its renewal point on, that renews it.
    pub(super) fn note_busy(&mut self, lease: LeaseId) {
        self.state.set_busy(lease, self.now);
        let Some(row) = self.state.lease(lease).cloned() else { return };
        if let Phase::Active(hold) = &row.phase
            && !row.has_fixed_term()
            && self.state.renewal_point(&row, hold) <= self.now
        {
            self.renew_lease(&row, hold);
        }
    }

    /// Gives the lease another term, as far as is allowed while somebody waits.
    pub(super) fn renew_lease(&mut self, lease: &Lease, hold: &Hold) -> bool {
        let full = self.now + lease.request.term.span();
        // Who was let past somebody goes on beyond that only when nobody waits any more: its card may
        // be out of sight for a moment.
        let let_past = hold.not_beyond.is_some() && !self.state.queue().is_empty();
        let waited_for = let_past || is_wanted(self.state, lease, &hold.gpus);
        let until =
            if waited_for { self.renewal_limit(lease, hold).map_or(full, |limit| full.min(limit)) } else { full };
        if until <= hold.until || !self.affords(lease, hold, until) {
            return false;
        }
        self.extend(lease, hold, until, TermUse::Used, hold.not_beyond.filter(|_| waited_for));
        true
    }
}
