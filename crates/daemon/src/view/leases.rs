//! Leases as clients see them: those that hold or wait, and those that have ended.

use super::View;
use super::shape::{self, fill_hold, lease_end, plain_lease};
use crate::messages;
use crate::notices;
use std::ops::Bound;
use sublet_core::event::Caller;
use sublet_core::ids::{GpuId, LeaseId};
use sublet_core::policy::moves::cheapest_method;
use sublet_core::policy::offers::Offer;
use sublet_core::policy::{explain, lease_processes, overuse, restore_room, waiters};
use sublet_core::reading::Reading;
use sublet_core::rows::{self, EndNotice, EndedLease, Hold, Lease, Phase};
use sublet_core::units::{Span, Time};
use sublet_core::unleased::Mode;
use sublet_wire as wire;

/// Processes of a lease that are listed.
const PIDS_MAX: usize = 64;

impl View<'_> {
    /// One lease, for a caller that may see it.
    pub fn lease(&self, by: &Caller, lease: &Lease) -> wire::Lease {
        let live = self.state.readings(lease.id);
        let tenant = self.state.tenant_name(lease.tenant).to_owned();
        let mut shown = plain_lease(lease.first_request(), lease.id.to_string(), tenant, self.names);
        shown.requested_unix_s = self.unix_s(lease.requested);
        shown.pids =
            live.map_or(Vec::new(), |live| live.members.iter().take(PIDS_MAX).map(|process| process.pid).collect());
        shown.peak_bytes = live.and_then(|live| live.peak_bytes).map(|peak| peak.0);
        shown.calls = self.gpu_calls(lease.id);
        shown.foreign_processes =
            messages::foreign_processes(lease_processes::processes_of_other_users(self.state, lease.id));
        match &lease.phase {
            Phase::Waiting { .. } => shown.waiting = Some(self.waiting(by, lease)),
            Phase::Active(hold) => {
                shown.state = wire::LeaseState::Active;
                self.show_hold(&mut shown, hold);
                shown.seen_bytes = self.seen_bytes(lease, hold);
                let until = self.state.rows().meta.due(hold.renewed, hold.until);
                shown.expires_unix_s = Some(self.unix_s(until));
                shown.remaining_s = Some(until.since(self.now).as_secs_f64());
                shown.not_parkable = self.not_parkable(lease, hold);
                shown.overuse = self.overuse(lease, hold);
                shown.ends_soon = hold.notice.map(|told| wire::EndsSoon {
                    reason: match told {
                        EndNotice::Term { .. } => wire::EndReason::TermOver,
                        EndNotice::ForOthers(_) if lease.request.may_be_ended() => wire::EndReason::Preempted,
                        EndNotice::ForOthers(_) => wire::EndReason::Overuse,
                    },
                    unix_s: self.unix_s(told.at()),
                    in_s: told.at().since(self.now).as_secs_f64(),
                });
            }
            Phase::Parking(hold, away) => self.show_park(by, &mut shown, wire::LeaseState::Parking, lease, hold, away),
            Phase::Parked(hold, away) => self.show_park(by, &mut shown, wire::LeaseState::Parked, lease, hold, away),
            Phase::Resuming(hold, away) => {
                self.show_park(by, &mut shown, wire::LeaseState::Resuming, lease, hold, away)
            }
            Phase::Ending(hold, finish) => {
                shown.state = wire::LeaseState::Ending;
                self.show_hold(&mut shown, hold);
                let at = self.unix_s(finish.at);
                shown.ended = Some(lease_end(&shown.id, finish, at));
            }
        }
        shown
    }

    /// One lease with offers and a bound, which take too long to compute for lists.
    pub fn lease_in_full(&self, by: &Caller, lease: &Lease) -> wire::Lease {
        let mut shown = self.lease(by, lease);
        if let Some(waiting) = &mut shown.waiting {
            let outlook = self.plans.outlook(self.state, self.version, self.now, lease);
            waiting.offers = outlook.offers.iter().map(|offer| self.offer(offer)).collect();
            waiting.bound = Some(self.bound(&outlook.bound));
        }
        shown
    }

    /// The caller's leases, oldest first; with `all`, those of all users for an operator.
    pub fn leases(&self, by: &Caller, all: bool, after: Option<LeaseId>, limit: usize) -> wire::Leases {
        let mine = self.state.tenant(&by.tenant);
        let visible = |lease: &&Lease| (by.operator && all) || Some(lease.tenant) == mine;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.state.rows().leases.range((from, Bound::Unbounded)).map(|(_, lease)| lease);
        let mut found = rest.filter(visible);
        let leases = found.by_ref().take(limit).map(|lease| self.lease(by, lease)).collect();
        wire::Leases { leases, more: found.next().is_some() }
    }

    /// The waiters that a caller may see, in order of service; those of other users without ids and names.
    pub fn queue(&self, by: &Caller, limit: usize) -> wire::Leases {
        let waiters = self.state.queue().all_waiters().take(limit).filter_map(|(id, _)| self.state.lease(id));
        let known = waiters.filter(|lease| self.sees_all(by) || self.is_own(by, lease.tenant));
        let leases = known.map(|lease| self.waiter(by, lease)).collect();
        wire::Leases { leases, more: self.state.queue().len() > limit }
    }

    fn waiter(&self, by: &Caller, lease: &Lease) -> wire::Lease {
        let mut shown = self.lease(by, lease);
        if !self.is_own(by, lease.tenant) {
            shown.id = "-".to_owned();
            shown.name = None;
            shown.pids = Vec::new();
            if let Some(waiting) = &mut shown.waiting {
                waiting.why = String::new();
            }
            if let Some(parked) = &mut shown.parked {
                parked.why = String::new();
            }
        }
        shown
    }

    /// The GPU calls of a lease's programs; `None` if no program has the shim, or all calls were before this daemon.
    fn gpu_calls(&self, lease: LeaseId) -> Option<wire::GpuCalls> {
        let counts = self.counts?.get(&lease)?;
        let errors = counts.errors.iter().map(|(code, count)| wire::ErrorCount { code: *code, count: *count });
        let (launches, copies, copied_bytes) = (counts.launches, counts.copies, counts.copied);
        Some(wire::GpuCalls { launches, copies, copied_bytes, errors: errors.collect() })
    }

    fn show_park(
        &self,
        by: &Caller,
        shown: &mut wire::Lease,
        state: wire::LeaseState,
        lease: &Lease,
        hold: &Hold,
        away: &rows::ParkState,
    ) {
        shown.state = state;
        shown.method = shape::park_method(away.method);
        self.show_hold(shown, hold);
        shown.seen_bytes = self.seen_bytes(lease, hold);
        let parked = state == wire::LeaseState::Parked;
        let since = self.state.parked_since(&hold.gpus, away.since);
        let over = self.state.rows().meta.due(away.since, since + self.state.policy().parking.term);
        shown.parked = Some(wire::Parked {
            since_unix_s: self.unix_s(away.since),
            booked_bytes: hold.booked_host_memory().0,
            ends_unix_s: parked.then(|| self.unix_s(over)),
            why: String::new(),
        });
        // The users of those processes are told by `explain`, which knows its caller.
        shown.resume_blocked = restore_room::restore_obstacle(self.state, lease)
            .map(|obstacle| messages::restore_obstacle(self.state, obstacle, None));
        if lease.queued_since().is_some() {
            shown.waiting = Some(self.waiting(by, lease));
        }
        let why = self.why_parked(lease, shown);
        shown.parked.iter_mut().for_each(|parked| parked.why.clone_from(&why));
    }

    /// Why a lease is parked, and when it is expected back.
    fn why_parked(&self, lease: &Lease, shown: &wire::Lease) -> String {
        let why = self.park_reason(lease.id).map(|reason| reason.why.clone());
        let expected = match lease.is_passive() {
            true => Some(messages::PASSIVE.to_owned()),
            false => notices::text::expected_back(shown),
        };
        let lacking = shown.waiting.as_ref().and_then(|waiting| self.lacking_space(lease, waiting.place as usize));
        let known = [why, expected, lacking];
        known.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Why a lease cannot be parked; `None` also for a lease with nothing on a GPU.
    fn not_parkable(&self, lease: &Lease, hold: &Hold) -> Option<String> {
        let has = hold.gpus.iter().any(|gpu| self.state.room(*gpu).seen_leases().contains_key(&lease.id));
        let why = if has { cheapest_method(self.state, lease, self.now).err()? } else { return None };
        Some(messages::not_parkable(&why))
    }

    /// What the holder of an exceeded lease must know; `None` if the lease is not exceeded.
    fn overuse(&self, lease: &Lease, hold: &Hold) -> Option<wire::Overuse> {
        let told = hold.overuse()?;
        let (policy, meta) = (self.state.policy(), &self.state.rows().meta);
        let left = |span: Span| meta.due(told.since, told.since + span).since(self.now).as_secs_f64();
        let seen = overuse::most_on_one_gpu(self.state, lease.id, hold).max(told.seen_bytes);
        let enforced = |gpu: &GpuId| self.state.mode(*gpu) == Mode::Enforce;
        Some(wire::Overuse {
            since_unix_s: self.unix_s(told.since),
            seen_bytes: seen.0,
            offer_bytes: overuse::larger_lease(self.state, lease, self.now).map(|vram| vram.0),
            parkable_in_s: left(policy.overuse_grace),
            ends_in_s: hold
                .gpus
                .iter()
                .all(enforced)
                .then(|| left(policy.enforcement.after_warning.max(policy.overuse_grace))),
        })
    }

    fn show_hold(&self, shown: &mut wire::Lease, hold: &Hold) {
        fill_hold(shown, hold, self.state.rows());
        shown.granted_unix_s = Some(self.unix_s(hold.granted));
        let stopped = hold.history.as_ref().is_some_and(|turns| turns.stopped.is_some());
        shown.on_gpus_unix_s = (!stopped).then(|| self.unix_s(hold.slice_began()));
    }

    fn seen_bytes(&self, lease: &Lease, hold: &Hold) -> Option<u64> {
        let mut sum = 0;
        for gpu in &hold.gpus {
            let room = self.state.room(*gpu);
            match &room.reading().reading {
                Reading::Used(used) if !used.coarse => sum += room.leases().get(&lease.id)?.seen.0,
                _ => return None,
            }
        }
        Some(sum)
    }

    fn waiting(&self, by: &Caller, lease: &Lease) -> wire::Waiting {
        let known = self.plans.places(self.state, self.version, self.now).get(&lease.id).copied();
        let starts = self.plans.starts(self.state, self.version, self.now);
        let place = known.unwrap_or(waiters::PLACE_MAX + 1);
        let in_s = |at: Time| at.since(self.now).as_secs_f64();
        let expected = starts.expected.get(&lease.id);
        wire::Waiting {
            place: place as u64,
            place_exact: known.is_some(),
            why: self.why_waiting(by, lease, place),
            planned_s: starts.planned.get(&lease.id).map(|at| in_s(*at)),
            expected_s: expected.map(|expected| in_s(expected.p50)),
            expected_p90_s: expected.map(|expected| in_s(expected.p90)),
            offers: Vec::new(),
            bound: None,
        }
    }

    fn offer(&self, offer: &Offer) -> wire::Offer {
        let before = offer.before.filter(|before| *before != Time::NEVER);
        wire::Offer {
            vram_bytes: offer.vram.0,
            gpus: offer.gpus.into(),
            over_in_s: before.map(|before| before.since(self.now).as_secs_f64()),
        }
    }

    fn bound(&self, bound: &explain::Bound) -> wire::Bound {
        match bound {
            explain::Bound::By { at, settled } => wire::Bound {
                at_latest_s: Some(at.since(self.now).as_secs_f64()),
                settled_in_s: Some(settled.since(self.now).as_secs_f64()),
                why_none: None,
            },
            explain::Bound::None(why) => {
                wire::Bound { at_latest_s: None, settled_in_s: None, why_none: Some(messages::no_bound(why)) }
            }
        }
    }
}

/// A lease that has ended.
pub fn past(ended: &EndedLease, view: &View<'_>) -> wire::Lease {
    let tenant = view.state.tenant_name(ended.tenant).to_owned();
    let mut shown = plain_lease(&ended.request, ended.id.to_string(), tenant, view.names);
    shown.state = wire::LeaseState::Ended;
    shown.requested_unix_s = view.unix_s(ended.requested);
    shown.peak_bytes = ended.end.peak.map(|b| b.0);
    shown.calls = view.gpu_calls(ended.id);
    if let Some(hold) = &ended.hold {
        fill_hold(&mut shown, hold, view.state.rows());
        shown.granted_unix_s = Some(view.unix_s(hold.granted));
    }
    let at = view.unix_s(ended.end.at);
    shown.ended = Some(lease_end(&shown.id, &ended.end, at));
    shown
}
