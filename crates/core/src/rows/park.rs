//! Facts of holders that leave their cards and come back, made part of the rows.

use super::{EndNotice, Hold, Lease, ParkState, Phase, Rows, gpu_time};
use crate::action::{Action, UnparkReason};
use crate::cost::Direction;
use crate::ids::{LeaseId, ProcKey};
use crate::method::Method;
use crate::units::{Bytes, Span, Time};

impl Rows {
    pub(super) fn set_notice(&mut self, lease: LeaseId, notice: Option<EndNotice>) {
        if let Some(Lease { phase: Phase::Active(hold), .. }) = self.leases.get_mut(&lease) {
            hold.notice = notice;
        }
    }

    pub(super) fn park(&mut self, lease: LeaseId, action: &Action) {
        let Action::Park { at, booked, again, rung, had, program, processes, .. } = action else { return };
        let Action::Park { quiet, with_context, .. } = action else { return };
        let Some(row) = self.leases.get_mut(&lease) else { return };
        if let Phase::Active(hold) = &row.phase {
            // Who leaves in another way need not end.
            let mut hold = Hold { notice: None, ..hold.clone() };
            hold.clear_overuse();
            let turns = hold.history_mut();
            (turns.booked, turns.never_moved) = (*booked, false);
            let (program, processes) = (program.clone(), processes.clone());
            let (quiet, with_context) = (*quiet, *with_context);
            let away = ParkState { requests_again_at: *again, method: *rung, had_bytes: *had, ..ParkState::new(*at) };
            let away = ParkState { program, processes, is_passive: quiet, with_context, ..away };
            row.phase = Phase::Parking(hold, away);
        }
    }

    pub(super) fn unpark(&mut self, lease: LeaseId, at: Time, why: &UnparkReason) {
        let Some(row) = self.leases.get_mut(&lease) else { return };
        if let Phase::Parking(hold, away) = &row.phase {
            let mut hold = hold.clone();
            if *why == UnparkReason::NotSeen {
                hold.history_mut().false_report = Some((away.method, at));
            }
            row.phase = Phase::Resuming(hold, ParkState { since: at, was_resumed: false, ..away.clone() });
        }
    }

    /// It was ended for others: so long it took until its cards were seen without it.
    pub(super) fn learn_end(&mut self, lease: LeaseId, program: &str, at: Time) {
        if let Some(row) = self.leases.get(&lease)
            && let Phase::Ending(_, finish) = &row.phase
        {
            let costs = &mut self.tenants[row.tenant.0 as usize].costs;
            costs.learn(program, Method::End, Direction::OffGpu, Bytes::ZERO, at.since(finish.at), at);
        }
    }

    pub(super) fn retreat(&mut self, lease: LeaseId, at: Time) {
        let Some(row) = self.leases.get_mut(&lease) else { return };
        if let Phase::Resuming(hold, away) = &row.phase {
            row.phase = Phase::Parking(hold.clone(), ParkState { since: at, ..away.clone() });
        }
    }

    /// The driver shall have these processes of a parked holder, too, or none of them; or it has them, wherever the
    /// holder is on its way to. What is booked for it stays booked until it is back, wherever its contexts are.
    pub(super) fn deepen(&mut self, lease: LeaseId, processes: Option<&[ProcKey]>, booked: Option<Bytes>) {
        if let Some(Lease { phase, .. }) = self.leases.get_mut(&lease)
            && let Phase::Parked(hold, away) | Phase::Parking(hold, away) | Phase::Resuming(hold, away) = phase
        {
            if let Some(booked) = booked {
                hold.history_mut().booked = booked;
            }
            away.with_driver = processes.is_some();
            away.processes = processes.unwrap_or_default().to_vec();
        }
    }

    pub(super) fn resumed(&mut self, lease: LeaseId, at: Time) {
        let Some(row) = self.leases.get_mut(&lease) else { return };
        if let Phase::Resuming(hold, away) = &row.phase {
            let mut hold = hold.clone();
            // What the driver takes to bring contexts back is none of the library's cost.
            if away.was_resumed && !away.with_driver {
                let tenant = &mut self.tenants[row.tenant.0 as usize];
                tenant.costs.learn(
                    &away.program,
                    away.method,
                    Direction::OntoGpu,
                    away.had_bytes,
                    at.since(away.since),
                    at,
                );
            }
            hold.history_mut().booked = Bytes::ZERO;
            // A holder that was kept from its work meanwhile has its term all the same.
            hold.until = hold.until.max(at);
            row.phase = Phase::Active(hold);
        }
    }

    pub(super) fn parked(&mut self, lease: LeaseId, at: Time, mark: Option<Time>) {
        let Some(row) = self.leases.get_mut(&lease) else { return };
        let Phase::Parking(hold, away) = &row.phase else { return };
        let began = away.since;
        let (mut hold, mut away) = (hold.clone(), ParkState { since: at, ..away.clone() });
        let tenant = &mut self.tenants[row.tenant.0 as usize];
        tenant.refund_today(&self.gpus, self.meta.day, &hold, at);
        tenant.debt_clock = mark.unwrap_or(tenant.debt_clock);
        // Whose way back failed did not leave now: its bytes never came.
        if !away.was_resumed {
            tenant.costs.learn(&away.program, away.method, Direction::OffGpu, away.had_bytes, at.since(began), at);
        }
        away.was_resumed = false;
        away.term_left = row.has_fixed_term().then(|| self.meta.due(hold.renewed, hold.until).since(at));
        (hold.prepaid, hold.idle, hold.not_beyond) = (Span::ZERO, false, None);
        let (spent_us, spent_byte_us) = hold.charge(at);
        let turns = hold.history_mut();
        turns.false_report = turns.false_report.filter(|(rung, _)| *rung != away.method);
        // The turn is over, and counted.
        (turns.began, turns.stopped, turns.spent_us, turns.spent_byte_us) = (at, Some(at), spent_us, spent_byte_us);
        turns.uncharged_byte_us = 0;
        row.phase = Phase::Parked(hold, away);
    }

    pub(super) fn want(&mut self, lease: LeaseId, action: &Action) {
        let Action::Want { at, vram, at_least, wake, .. } = action else { return };
        let Some(row) = self.leases.get_mut(&lease) else { return };
        let (first, ask) = (row.first_request().clone(), row.resume_request(*vram, *at_least));
        if let Phase::Parked(_, away) = &mut row.phase {
            (away.queued_since, away.requests_again_at, away.first_request) = (Some(*at), None, Some(first));
            // Earlier versions put passive leases into the queue, and named nothing that woke them.
            away.is_passive &= wake.is_none();
            row.request = ask;
        }
    }

    pub(super) fn resume(&mut self, lease: LeaseId, action: &Action) {
        let Action::Resume { at, vram, until, mark, before, turn, .. } = action else { return };
        let Some(row) = self.leases.get_mut(&lease) else { return };
        let Phase::Parked(hold, away) = &row.phase else { return };
        let (mut hold, wanted) = (hold.clone(), away.queued_since);
        let tenant = &mut self.tenants[row.tenant.0 as usize];
        tenant.meter_parked(&hold, away, *at);
        tenant.spend_today(gpu_time(&self.gpus, &hold.gpus, *vram, until.since(*at)));
        tenant.first_since = turn.unwrap_or(tenant.first_since);
        (hold.vram, hold.renewed, hold.until, hold.not_beyond) = (*vram, *at, *until, *before);
        (hold.prepaid, hold.day) = (tenant.charge(*at, *mark), self.meta.day);
        let turns = hold.history_mut();
        (turns.began, turns.stopped) = (*at, None);
        let (rung, had, program, processes) =
            (away.method, away.had_bytes, away.program.clone(), away.processes.clone());
        row.request = row.first_request().clone();
        // A passive lease that finds no room after all is passive again. In earlier versions it waited in the queue.
        let (deep, quiet) = (away.with_driver, away.is_passive && wanted.is_none());
        let away = ParkState {
            requests_again_at: wanted,
            was_resumed: true,
            method: rung,
            had_bytes: had,
            program,
            with_driver: deep,
            is_passive: quiet,
            processes,
            ..ParkState::new(*at)
        };
        row.phase = Phase::Resuming(hold, away);
    }
}
