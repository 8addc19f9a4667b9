//! What the facts of leases do to the rows. The facts of parking are in [`super::parking`].
//!
//! Each function looks up what it needs first, and changes rows only after that: an action that does not fit changes
//! nothing.

use super::LeaseAction;
use crate::model::cost::Direction;
use crate::model::durations::{DurationOutcome, LeaseKind};
use crate::model::facts::{Misfit, check, check_gpus, check_tenant};
use crate::model::ids::{Fence, LeaseId, TenantId};
use crate::model::method::Method;
use crate::model::rows::{EndNotice, EndReason, EndedLease, Hold, Lease, LeaseEnd, Overuse, Phase, Rows, gpu_time};
use crate::model::units::{Bytes, Span, Time};
use std::collections::BTreeMap;

impl LeaseAction {
    /// Makes it part of the rows. Returns the lease that became history by it.
    pub(crate) fn apply(&self, rows: &mut Rows) -> Result<Option<EndedLease>, Misfit> {
        match self {
            LeaseAction::Queue { .. } => self.queue(rows)?,
            LeaseAction::Grant { .. } => self.grant(rows)?,
            LeaseAction::Renew { .. } => self.renew(rows)?,
            LeaseAction::Bind { lease, process } => live(&mut rows.leases, *lease)?.roots.push(*process),
            LeaseAction::Park { .. } => self.park(rows)?,
            LeaseAction::Unpark { lease, at, why } => rows.unpark(*lease, *at, why)?,
            LeaseAction::FinishPark { lease, at, debt_clock } => rows.finish_park(*lease, *at, *debt_clock)?,
            LeaseAction::QueueParked { .. } => self.queue_parked(rows)?,
            LeaseAction::Resume { .. } => self.resume(rows)?,
            LeaseAction::ParkAgain { lease, at } => rows.park_again(*lease, *at)?,
            LeaseAction::RemoveContexts { lease, processes, booked, .. } => {
                rows.set_driven_processes(*lease, Some(processes), *booked)?;
            }
            LeaseAction::KeepContexts { lease, .. } => rows.set_driven_processes(*lease, None, None)?,
            LeaseAction::FinishResume { lease, at } => rows.finish_resume(*lease, *at)?,
            LeaseAction::FlagOveruse { lease, at, seen_bytes } => {
                let (hold, _) = active(&mut rows.leases, *lease)?;
                let since = hold.overuse().map_or(*at, |overuse| overuse.since);
                hold.history_mut().overuse = Some(Overuse { since, seen_bytes: *seen_bytes });
            }
            LeaseAction::ClearOveruse { lease } => {
                let (hold, _) = active(&mut rows.leases, *lease)?;
                hold.clear_overuse();
                // Nothing else was to be kept of it.
                hold.history = hold.history.take().filter(|kept| !kept.never_moved || kept.uncharged_byte_us > 0);
            }
            LeaseAction::Enlarge { lease, at, vram, debt_clock } => rows.enlarge(*lease, *at, *vram, *debt_clock)?,
            LeaseAction::GiveNotice { lease, until, room_for, .. } => {
                let is_for_others = lease != room_for;
                let notice =
                    if is_for_others { EndNotice::ForOthers(*until) } else { EndNotice::Term { term_over: *until } };
                active(&mut rows.leases, *lease)?.0.notice = Some(notice);
            }
            LeaseAction::CancelNotice { lease } => active(&mut rows.leases, *lease)?.0.notice = None,
            LeaseAction::Signal { lease, signal, at, .. } => {
                ending(&mut rows.leases, *lease)?.signal = Some((*signal, *at));
            }
            LeaseAction::RecordDeath { lease, .. } => {
                ending(&mut rows.leases, *lease)?.reason = EndReason::DiedParking;
            }
            LeaseAction::End { .. } => return self.end(rows),
            LeaseAction::Retire { lease, ran } => return rows.retire(*lease, ran.as_ref()).map(Some),
        }
        Ok(None)
    }

    fn queue(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let LeaseAction::Queue { lease, tenant, request, at, give_up, root, token } = self else { return Ok(()) };
        check(lease.0 < u64::MAX, "names an impossible lease")?;
        check_tenant(rows, *tenant)?;
        check(!rows.leases.contains_key(lease), "queues a lease that is there")?;
        rows.meta.next_lease = rows.meta.next_lease.max(lease.0 + 1);
        let row = Lease {
            id: *lease,
            tenant: *tenant,
            request: request.clone(),
            requested: *at,
            roots: root.iter().copied().collect(),
            phase: Phase::Waiting { give_up: *give_up },
            token: *token,
        };
        rows.leases.insert(*lease, row);
        Ok(())
    }

    fn grant(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let LeaseAction::Grant { lease, gpus, vram, fence, at, until, debt_clock, not_beyond, first_since, expected } =
            self
        else {
            return Ok(());
        };
        check_gpus(rows, gpus)?;
        check(fence.0 < u64::MAX, "names an impossible epoch")?;
        let row = live(&mut rows.leases, *lease)?;
        if !matches!(row.phase, Phase::Waiting { .. }) {
            return Err(wrong_phase(row, "waiting"));
        }
        rows.meta.next_fence = rows.meta.next_fence.max(Fence(fence.0 + 1));
        if let Some(expected) = expected {
            rows.meta.lateness.learn(*expected, at.since(row.requested), DurationOutcome::Done, *at);
        }
        let tenant = &mut rows.tenants[row.tenant];
        tenant.spend_today(gpu_time(&rows.gpus, gpus, *vram, until.since(*at)));
        tenant.first_since = first_since.unwrap_or(tenant.first_since);
        row.phase = Phase::Active(Hold {
            gpus: gpus.clone(),
            vram: *vram,
            fence: *fence,
            granted: *at,
            renewed: *at,
            until: *until,
            idle: false,
            prepaid: tenant.charge(*at, *debt_clock),
            not_beyond: *not_beyond,
            day: rows.meta.day,
            history: None,
            notice: None,
        });
        Ok(())
    }

    fn renew(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let LeaseAction::Renew { lease, at, until, idle, debt_clock, not_beyond } = self else { return Ok(()) };
        let (hold, tenant) = active(&mut rows.leases, *lease)?;
        let tenant = &mut rows.tenants[tenant];
        let added = hold.charged_span(*until, *at, rows.meta.day);
        tenant.spend_today(gpu_time(&rows.gpus, &hold.gpus, hold.vram, added));
        hold.prepaid = hold.unused_payment(*at) + tenant.charge(*at, *debt_clock);
        (hold.renewed, hold.until, hold.idle, hold.not_beyond) = (*at, *until, *idle, *not_beyond);
        hold.day = rows.meta.day;
        Ok(())
    }

    /// A waiter is history at once; a holder when its GPUs were read again.
    fn end(&self, rows: &mut Rows) -> Result<Option<EndedLease>, Misfit> {
        let LeaseAction::End { lease, reason, at, peak, debt_clock, first_since, program, expected, .. } = self else {
            return Ok(None);
        };
        let row = live(&mut rows.leases, *lease)?;
        if matches!(row.phase, Phase::Ending(..)) {
            return Err(wrong_phase(row, "waiting or held"));
        }
        let (tenant, requested) = (row.tenant, row.requested);
        let tenant = &mut rows.tenants[tenant];
        tenant.debt_clock = debt_clock.unwrap_or(tenant.debt_clock);
        tenant.first_since = first_since.unwrap_or(tenant.first_since);
        if let Some(expected) = expected {
            rows.meta.lateness.learn(*expected, at.since(requested), DurationOutcome::Cut, *at);
        }
        if let Some(program) = program {
            rows.learn_duration(*lease, program, *reason, *at);
        }
        Ok(rows.end(*lease, LeaseEnd { reason: *reason, at: *at, peak: *peak, signal: None }))
    }
}

/// A lease that has not ended, or whose bytes still count.
pub(super) fn live(leases: &mut BTreeMap<LeaseId, Lease>, lease: LeaseId) -> Result<&mut Lease, Misfit> {
    leases.get_mut(&lease).ok_or_else(|| format!("names the lease {lease}, which is not there"))
}

pub(super) fn wrong_phase(row: &Lease, needed: &str) -> Misfit {
    misfit(row.id, needed, row.phase.name())
}

fn misfit(lease: LeaseId, needed: &str, phase: &str) -> Misfit {
    format!("needs the lease {lease} to be {needed}, and it is {phase}")
}

/// What an active lease holds, and its tenant.
fn active(leases: &mut BTreeMap<LeaseId, Lease>, lease: LeaseId) -> Result<(&mut Hold, TenantId), Misfit> {
    let row = live(leases, lease)?;
    let phase = row.phase.name();
    match &mut row.phase {
        Phase::Active(hold) => Ok((hold, row.tenant)),
        _ => Err(misfit(lease, "active", phase)),
    }
}

/// How a lease ended whose bytes still count.
fn ending(leases: &mut BTreeMap<LeaseId, Lease>, lease: LeaseId) -> Result<&mut LeaseEnd, Misfit> {
    let row = live(leases, lease)?;
    let phase = row.phase.name();
    match &mut row.phase {
        Phase::Ending(_, end) => Ok(end),
        _ => Err(misfit(lease, "ending", phase)),
    }
}

impl Rows {
    /// True if the totals of a tenant would overflow when the lease ends then.
    pub(super) fn overflows_when_ended(&self, lease: LeaseId, at: Time) -> bool {
        let Some(lease) = self.leases.get(&lease) else { return false };
        let Some(hold) = lease.hold().filter(|_| lease.is_held()) else { return false };
        let (gpu_us, byte_us) = hold.charge(at);
        let sum = || {
            let tenant = self.tenants.find(lease.tenant)?;
            at.0.saturating_sub(hold.granted.0).checked_mul(hold.gpus.len() as u64)?;
            tenant.leases.checked_add(1)?;
            tenant.gpu_us.checked_add(gpu_us)?;
            tenant.byte_us.checked_add(byte_us)
        };
        sum().is_none()
    }

    /// A lease that was granted ends: its time on its GPUs counts for those of its kind.
    fn learn_duration(&mut self, lease: LeaseId, program: &str, reason: EndReason, at: Time) {
        let Some(row) = self.leases.get(&lease) else { return };
        let Some(hold) = row.hold().filter(|_| row.is_held()) else { return };
        let kind = LeaseKind::new(row.first_request().tier, hold.vram, hold.gpus.len());
        let outcome = if reason.is_completed() { DurationOutcome::Done } else { DurationOutcome::Cut };
        self.tenants[row.tenant].durations.learn(program, kind, hold.time_on_gpus(at), outcome, at);
    }

    fn end(&mut self, lease: LeaseId, end: LeaseEnd) -> Option<EndedLease> {
        let row = self.leases.get_mut(&lease)?;
        match &row.phase {
            Phase::Waiting { .. } => self.leases.remove(&lease).map(|row| ended(row, None, end)),
            Phase::Active(hold) | Phase::Parking(hold, _) | Phase::Parked(hold, _) | Phase::Resuming(hold, _) => {
                let mut hold = Hold { notice: None, ..hold.clone() };
                hold.clear_overuse();
                let (gpu_us, byte_us) = hold.charge(end.at);
                let tenant = &mut self.tenants[row.tenant];
                // Totals of a file that was changed may be at their ends.
                tenant.leases = tenant.leases.saturating_add(1);
                tenant.gpu_us = tenant.gpu_us.saturating_add(gpu_us);
                tenant.byte_us = tenant.byte_us.saturating_add(byte_us);
                match row.park_state() {
                    Some(away) if !row.is_on_gpus() => tenant.meter_parked(&hold, away, end.at),
                    _ => tenant.refund_today(&self.gpus, self.meta.day, &hold, end.at),
                }
                row.request = row.first_request().clone();
                row.phase = Phase::Ending(hold, end);
                None
            }
            Phase::Ending(..) => None,
        }
    }

    fn retire(&mut self, lease: LeaseId, ran: Option<&(String, Time)>) -> Result<EndedLease, Misfit> {
        let row = live(&mut self.leases, lease)?;
        let Phase::Ending(hold, end) = &row.phase else { return Err(wrong_phase(row, "ending")) };
        if let Some((program, at)) = ran {
            // It was ended for a waiter: this is how long it took until its GPUs were read without it.
            let costs = &mut self.tenants[row.tenant].costs;
            costs.learn(program, Method::End, Direction::OffGpu, Bytes::ZERO, at.since(end.at), *at);
        }
        // The log has its signals.
        let (hold, end) = (hold.clone(), LeaseEnd { signal: None, ..end.clone() });
        let row = self.leases.remove(&lease).ok_or("names a lease that is not there")?;
        Ok(ended(row, Some(hold), end))
    }

    /// What it had so far is charged as it was; what is left of its term, as it is now.
    fn enlarge(&mut self, lease: LeaseId, at: Time, vram: Bytes, debt_clock: Option<Time>) -> Result<(), Misfit> {
        let (hold, tenant) = active(&mut self.leases, lease)?;
        let tenant = &mut self.tenants[tenant];
        let (left, term) = (hold.until.since(at), hold.until.since(hold.renewed));
        let costs = |vram: Bytes| gpu_time(&self.gpus, &hold.gpus, vram, left).0;
        let before = if hold.day == self.meta.day { costs(hold.vram) } else { 0 };
        tenant.spend_today(Span(costs(vram).saturating_sub(before)));
        // As if the whole term had been paid so: the part that is left is what counts.
        let paid = u128::from(tenant.charge(at, debt_clock).0) * u128::from(term.0) / u128::from(left.0.max(1));
        hold.prepaid = hold.prepaid + Span(u64::try_from(paid).unwrap_or(u64::MAX));
        hold.day = self.meta.day;
        let had_us = u128::from(at.since(hold.slice_began()).0) * hold.gpus.len() as u128;
        let more = u128::from(vram.less(hold.vram).0);
        let history = hold.history_mut();
        history.uncharged_byte_us = history.uncharged_byte_us.saturating_add(had_us.saturating_mul(more));
        history.overuse = None;
        hold.vram = vram;
        Ok(())
    }
}

fn ended(row: Lease, hold: Option<Hold>, end: LeaseEnd) -> EndedLease {
    EndedLease { id: row.id, tenant: row.tenant, request: row.request, requested: row.requested, hold, end }
}
