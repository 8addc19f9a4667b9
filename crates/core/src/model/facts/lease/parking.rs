//! What the facts of leases that are parked and resumed do to the rows.

use super::apply::{live, wrong_phase};
use super::{LeaseAction, UnparkReason};
use crate::model::cost::Direction;
use crate::model::facts::Misfit;
use crate::model::ids::{LeaseId, ProcKey};
use crate::model::rows::{Hold, ParkState, Phase, Rows, gpu_time};
use crate::model::units::{Bytes, Span, Time};

impl LeaseAction {
    pub(super) fn park(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let LeaseAction::Park { lease, at, booked, requests_again_at, method, had_bytes, program, .. } = self else {
            return Ok(());
        };
        let LeaseAction::Park { is_passive, with_context, processes, .. } = self else { return Ok(()) };
        let row = live(&mut rows.leases, *lease)?;
        let Phase::Active(hold) = &row.phase else { return Err(wrong_phase(row, "active")) };
        // A lease that is parked need not end.
        let mut hold = Hold { notice: None, ..hold.clone() };
        hold.clear_overuse();
        let history = hold.history_mut();
        (history.booked, history.never_moved) = (*booked, false);
        let state = ParkState {
            method: *method,
            had_bytes: *had_bytes,
            program: program.clone(),
            processes: processes.clone(),
            is_passive: *is_passive,
            with_context: *with_context,
            requests_again_at: *requests_again_at,
            ..ParkState::new(*at)
        };
        row.phase = Phase::Parking(hold, state);
        Ok(())
    }

    pub(super) fn queue_parked(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let LeaseAction::QueueParked { lease, at, vram, at_least, wake } = self else { return Ok(()) };
        let row = live(&mut rows.leases, *lease)?;
        let Phase::Parked(..) = &row.phase else { return Err(wrong_phase(row, "parked")) };
        let (first, request) = (row.first_request().clone(), row.resume_request(*vram, *at_least));
        if let Phase::Parked(_, state) = &mut row.phase {
            (state.queued_since, state.requests_again_at, state.first_request) = (Some(*at), None, Some(first));
            // Earlier versions put passive leases into the queue, and named nothing that woke them.
            state.is_passive &= wake.is_none();
        }
        row.request = request;
        Ok(())
    }

    pub(super) fn resume(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let LeaseAction::Resume { lease, at, vram, until, debt_clock, not_beyond, first_since } = self else {
            return Ok(());
        };
        let row = live(&mut rows.leases, *lease)?;
        let Phase::Parked(hold, state) = &row.phase else { return Err(wrong_phase(row, "parked")) };
        let mut hold = hold.clone();
        let tenant = &mut rows.tenants[row.tenant];
        tenant.meter_parked(&hold, state, *at);
        tenant.spend_today(gpu_time(&rows.gpus, &hold.gpus, *vram, until.since(*at)));
        tenant.first_since = first_since.unwrap_or(tenant.first_since);
        (hold.vram, hold.renewed, hold.until, hold.not_beyond) = (*vram, *at, *until, *not_beyond);
        (hold.prepaid, hold.day) = (tenant.charge(*at, *debt_clock), rows.meta.day);
        let history = hold.history_mut();
        (history.began, history.stopped) = (*at, None);
        let resuming = ParkState {
            method: state.method,
            had_bytes: state.had_bytes,
            program: state.program.clone(),
            processes: state.processes.clone(),
            with_driver: state.with_driver,
            // A passive lease that finds no room after all is passive again. In earlier versions it queued.
            is_passive: state.is_passive && state.queued_since.is_none(),
            requests_again_at: state.queued_since,
            was_resumed: true,
            ..ParkState::new(*at)
        };
        row.request = row.first_request().clone();
        row.phase = Phase::Resuming(hold, resuming);
        Ok(())
    }
}

impl Rows {
    pub(super) fn unpark(&mut self, lease: LeaseId, at: Time, why: &UnparkReason) -> Result<(), Misfit> {
        let row = live(&mut self.leases, lease)?;
        let Phase::Parking(hold, state) = &row.phase else { return Err(wrong_phase(row, "parking")) };
        let mut hold = hold.clone();
        if *why == UnparkReason::NotSeen {
            hold.history_mut().false_report = Some((state.method, at));
        }
        row.phase = Phase::Resuming(hold, ParkState { since: at, was_resumed: false, ..state.clone() });
        Ok(())
    }

    pub(super) fn park_again(&mut self, lease: LeaseId, at: Time) -> Result<(), Misfit> {
        let row = live(&mut self.leases, lease)?;
        let Phase::Resuming(hold, state) = &row.phase else { return Err(wrong_phase(row, "resuming")) };
        row.phase = Phase::Parking(hold.clone(), ParkState { since: at, ..state.clone() });
        Ok(())
    }

    /// The driver shall have these processes of a parked lease, too, or none of them; or it has them, wherever the
    /// lease is on its way to. What is booked for it stays booked until it is back, wherever its contexts are.
    pub(super) fn set_driven_processes(
        &mut self,
        lease: LeaseId,
        processes: Option<&[ProcKey]>,
        booked: Option<Bytes>,
    ) -> Result<(), Misfit> {
        let row = live(&mut self.leases, lease)?;
        let Some(_) = row.park_state() else { return Err(wrong_phase(row, "parked, or on its way there or back")) };
        if let Phase::Parked(hold, state) | Phase::Parking(hold, state) | Phase::Resuming(hold, state) = &mut row.phase
        {
            if let Some(booked) = booked {
                hold.history_mut().booked = booked;
            }
            state.with_driver = processes.is_some();
            state.processes = processes.unwrap_or_default().to_vec();
        }
        Ok(())
    }

    pub(super) fn finish_resume(&mut self, lease: LeaseId, at: Time) -> Result<(), Misfit> {
        let row = live(&mut self.leases, lease)?;
        let Phase::Resuming(hold, state) = &row.phase else { return Err(wrong_phase(row, "resuming")) };
        let mut hold = hold.clone();
        // What the driver takes to bring contexts back is none of the shim's cost.
        if state.was_resumed && !state.with_driver {
            let (method, bytes, took) = (state.method, state.had_bytes, at.since(state.since));
            let costs = &mut self.tenants[row.tenant].costs;
            costs.learn(&state.program, method, Direction::OntoGpu, bytes, took, at);
        }
        hold.history_mut().booked = Bytes::ZERO;
        // A holder that was kept from its work meanwhile has its term all the same.
        hold.until = hold.until.max(at);
        row.phase = Phase::Active(hold);
        Ok(())
    }

    pub(super) fn finish_park(&mut self, lease: LeaseId, at: Time, debt_clock: Option<Time>) -> Result<(), Misfit> {
        let row = live(&mut self.leases, lease)?;
        let Phase::Parking(hold, state) = &row.phase else { return Err(wrong_phase(row, "parking")) };
        let began = state.since;
        let (mut hold, mut state) = (hold.clone(), ParkState { since: at, ..state.clone() });
        let tenant = &mut self.tenants[row.tenant];
        tenant.refund_today(&self.gpus, self.meta.day, &hold, at);
        tenant.debt_clock = debt_clock.unwrap_or(tenant.debt_clock);
        // If its resume failed, its bytes never came, and nothing is learned of how long they take to leave.
        if !state.was_resumed {
            let (method, bytes, took) = (state.method, state.had_bytes, at.since(began));
            tenant.costs.learn(&state.program, method, Direction::OffGpu, bytes, took, at);
        }
        state.was_resumed = false;
        state.term_left = row.has_fixed_term().then(|| self.meta.due(hold.renewed, hold.until).since(at));
        (hold.prepaid, hold.idle, hold.not_beyond) = (Span::ZERO, false, None);
        let (spent_us, spent_byte_us) = hold.charge(at);
        let history = hold.history_mut();
        history.false_report = history.false_report.filter(|(method, _)| *method != state.method);
        // This time on its GPUs is over, and counted.
        (history.began, history.stopped) = (at, Some(at));
        (history.spent_us, history.spent_byte_us, history.uncharged_byte_us) = (spent_us, spent_byte_us, 0);
        row.phase = Phase::Parked(hold, state);
        Ok(())
    }
}
