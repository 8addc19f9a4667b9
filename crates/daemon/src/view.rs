//! The state as clients see it. What a caller may see is decided here and in
//! core's `find`, nowhere else.

use crate::estimate_cache::EstimateCache;
use crate::messages;
use crate::notices::{self, ParkReason};
use crate::unleased;
use crate::user_directory::{UserDirectory, tenant_of};
use std::collections::BTreeMap;
use std::ops::Bound;
use sublet_core::decide::cheapest_method;
use sublet_core::decide::may_know;
use sublet_core::decide::offer::Offer;
use sublet_core::decide::overuse;
use sublet_core::decide::preempt::{self, RoomPlan};
use sublet_core::event::Caller;
use sublet_core::explain;
use sublet_core::ids::{GpuId, LeaseId, TenantId};
use sublet_core::method::Method;
use sublet_core::parking::{self, RestoreObstacle};
use sublet_core::reading::{Reading, Resident};
use sublet_core::request::{self, LeaseRequest};
use sublet_core::rows::{self, EndNotice, EndedLease, GpuService, Hold, Lease, Phase, Rows};
use sublet_core::state::State;
use sublet_core::token::Token;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{Mode, UnleasedProcess};
use sublet_host::ActivityCounts;
use sublet_wire as wire;

/// Looks at the state at one moment for one caller.
pub struct View<'a> {
    /// What is known.
    pub state: &'a State,
    /// When.
    pub now: Time,
    /// The same moment by the wall clock, µs since 1970.
    pub wall_us: u64,
    /// Names for people.
    pub names: &'a UserDirectory,
    /// Which state it is: another one has another number.
    version: u64,
    /// What was reckoned of it before.
    plans: &'a EstimateCache,
    /// What the programs of leases did.
    counts: Option<&'a BTreeMap<LeaseId, ActivityCounts>>,
    /// Why leases were parked.
    park_reasons: Option<&'a BTreeMap<LeaseId, ParkReason>>,
    /// Which users local users see.
    visibility: Visibility,
}

/// Which users a local user sees on a GPU and in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All.
    All,
    /// Itself.
    Own,
}

/// What is shown instead of a name where each user sees only itself.
pub const ANOTHER: &str = "another user";
/// Processes of a lease that are listed.
const PIDS_MAX: usize = 64;

impl<'a> View<'a> {
    /// A look at this moment.
    pub fn new(
        (state, version): (&'a State, u64),
        (now, wall_us): (Time, u64),
        names: &'a UserDirectory,
        plans: &'a EstimateCache,
    ) -> View<'a> {
        View {
            state,
            now,
            wall_us,
            names,
            version,
            plans,
            counts: None,
            park_reasons: None,
            visibility: Visibility::Own,
        }
    }

    /// The same where local users see so much of each other.
    pub fn with_visibility(self, visibility: Visibility) -> View<'a> {
        View { visibility, ..self }
    }

    /// The same, with what the programs of leases did.
    pub fn with_counts(self, counts: &'a BTreeMap<LeaseId, ActivityCounts>) -> View<'a> {
        View { counts: Some(counts), ..self }
    }

    /// The same, with why leases were parked.
    pub fn with_park_reasons(self, park_reasons: &'a BTreeMap<LeaseId, ParkReason>) -> View<'a> {
        View { park_reasons: Some(park_reasons), ..self }
    }
}

impl View<'_> {
    /// A moment as Unix seconds.
    pub fn unix_s(&self, at: Time) -> f64 {
        unix_s(self.wall_us, self.now, at)
    }

    /// What the programs of a lease did; none: no program of it has the shim, or that was before this daemon.
    fn did(&self, lease: LeaseId) -> Option<wire::GpuCalls> {
        let counts = self.counts?.get(&lease)?;
        let errors = counts.errors.iter().map(|(code, count)| wire::ErrorCount { code: *code, count: *count });
        let (launches, copies, copied_bytes) = (counts.launches, counts.copies, counts.copied);
        Some(wire::GpuCalls { launches, copies, copied_bytes, errors: errors.collect() })
    }

    pub(crate) fn user(&self, tenant: TenantId) -> String {
        self.names.of(self.state.tenant_name(tenant))
    }

    /// One lease, for a caller that may see it.
    pub fn lease(&self, by: &Caller, lease: &Lease) -> wire::Lease {
        let live = self.state.readings(lease.id);
        let tenant = self.state.tenant_name(lease.tenant).to_owned();
        let mut shown = plain(lease.first_request(), lease.id.to_string(), tenant, self.names);
        shown.requested_unix_s = self.unix_s(lease.requested);
        shown.pids =
            live.map_or(Vec::new(), |live| live.members.iter().take(PIDS_MAX).map(|process| process.pid).collect());
        shown.peak_bytes = live.and_then(|live| live.peak_bytes).map(|peak| peak.0);
        shown.calls = self.did(lease.id);
        shown.foreign_processes = messages::left_out(preempt::processes_of_other_users(self.state, lease.id));
        match &lease.phase {
            Phase::Waiting { .. } => shown.waiting = Some(self.waiting(by, lease)),
            Phase::Active(hold) => {
                shown.state = wire::LeaseState::Active;
                self.show_hold(&mut shown, hold);
                shown.seen_bytes = self.seen(lease, hold);
                let until = self.state.rows().meta.due(hold.renewed, hold.until);
                shown.expires_unix_s = Some(self.unix_s(until));
                shown.remaining_s = Some(until.since(self.now).as_secs_f64());
                shown.not_parkable = self.not_parkable(lease, hold);
                shown.overuse = self.over(lease, hold);
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
            Phase::Parking(hold, away) => self.show_away(by, &mut shown, wire::LeaseState::Parking, lease, hold, away),
            Phase::Parked(hold, away) => self.show_away(by, &mut shown, wire::LeaseState::Parked, lease, hold, away),
            Phase::Resuming(hold, away) => {
                self.show_away(by, &mut shown, wire::LeaseState::Resuming, lease, hold, away)
            }
            Phase::Ending(hold, finish) => {
                shown.state = wire::LeaseState::Ending;
                self.show_hold(&mut shown, hold);
                let at = self.unix_s(finish.at);
                shown.ended = Some(finish_of(&shown.id, finish, at));
            }
        }
        shown
    }

    fn show_away(
        &self,
        by: &Caller,
        shown: &mut wire::Lease,
        state: wire::LeaseState,
        lease: &Lease,
        hold: &Hold,
        away: &rows::ParkState,
    ) {
        shown.state = state;
        shown.method = match away.method {
            Method::Hook => Some(wire::ParkMethod::Hook),
            Method::Shim => Some(wire::ParkMethod::Shim),
            Method::Driver => Some(wire::ParkMethod::Driver),
            Method::End => None,
        };
        self.show_hold(shown, hold);
        shown.seen_bytes = self.seen(lease, hold);
        let parked = state == wire::LeaseState::Parked;
        let since = self.state.parked_since(&hold.gpus, away.since);
        let over = self.state.rows().meta.due(away.since, since + self.state.policy().parking.term);
        shown.parked = Some(wire::Parked {
            since_unix_s: self.unix_s(away.since),
            booked_bytes: hold.booked_host_memory().0,
            ends_unix_s: parked.then(|| self.unix_s(over)),
            why: String::new(),
        });
        // Whose processes they are is told by `explain`, which knows who asks.
        shown.resume_blocked =
            parking::restore_obstacle(self.state, lease).map(|who| messages::held_back(self.state, who, None));
        if lease.queued_since().is_some() {
            shown.waiting = Some(self.waiting(by, lease));
        }
        let why = self.why_parked(lease, shown);
        shown.parked.iter_mut().for_each(|parked| parked.why.clone_from(&why));
    }

    /// Why a lease was parked, if that was since the daemon started.
    pub fn park_reason(&self, lease: LeaseId) -> Option<&ParkReason> {
        self.park_reasons?.get(&lease)
    }

    /// Why a lease is parked, and when it is expected back.
    fn why_parked(&self, lease: &Lease, shown: &wire::Lease) -> String {
        let why = self.park_reason(lease.id).map(|reason| reason.why.clone());
        let expected = match lease.is_passive() {
            true => Some("it comes back when there is room that no waiter needs".to_owned()),
            false => notices::text::expected_back(shown),
        };
        let lacking = shown.waiting.as_ref().and_then(|waiting| self.lacking_space(lease, waiting.place as usize));
        let known = [why, expected, lacking];
        known.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Why a holder cannot be parked; nothing is said of one that has nothing on a GPU.
    fn not_parkable(&self, lease: &Lease, hold: &Hold) -> Option<String> {
        let has = hold.gpus.iter().any(|card| self.state.room(*card).seen_leases().contains_key(&lease.id));
        let why = if has { cheapest_method(self.state, lease, self.now).err()? } else { return None };
        Some(messages::not_parkable(&why))
    }

    /// What a holder must know that has more on a GPU than its lease is for.
    fn over(&self, lease: &Lease, hold: &Hold) -> Option<wire::Overuse> {
        let told = hold.overuse()?;
        let (policy, meta) = (self.state.policy(), &self.state.rows().meta);
        let left = |span: Span| meta.due(told.since, told.since + span).since(self.now).as_secs_f64();
        let seen = overuse::most_on_one_gpu(self.state, lease.id, hold).max(told.seen_bytes);
        let enforced = |card: &GpuId| self.state.mode(*card) == Mode::Enforce;
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

    fn seen(&self, lease: &Lease, hold: &Hold) -> Option<u64> {
        let mut sum = 0;
        for card in &hold.gpus {
            let room = self.state.room(*card);
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
        let place = known.unwrap_or(explain::PLACE_MAX + 1);
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

    /// One lease with all there is to say: offers and a bound take some reckoning, too much for lists.
    pub fn lease_in_full(&self, by: &Caller, lease: &Lease) -> wire::Lease {
        let mut shown = self.lease(by, lease);
        if let Some(waiting) = &mut shown.waiting {
            let outlook = self.plans.outlook(self.state, self.version, self.now, lease);
            waiting.offers = outlook.offers.iter().map(|offer| self.offer(offer)).collect();
            waiting.bound = Some(self.bound(&outlook.bound));
        }
        shown
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

    /// True if a caller sees other users: an operator, and a local user where local users do. Nothing of one user is
    /// shown to another beyond the host.
    pub(crate) fn sees_all(&self, by: &Caller) -> bool {
        by.operator || (self.visibility == Visibility::All && by.token.is_none())
    }

    /// Whether this caller may see whose lease it is by id.
    pub(crate) fn mine(&self, by: &Caller, tenant: TenantId) -> bool {
        by.operator || self.state.tenant_name(tenant) == by.tenant
    }

    pub(crate) fn id_for(&self, by: &Caller, lease: &Lease) -> Option<String> {
        self.mine(by, lease.tenant).then(|| lease.id.to_string())
    }

    /// The caller's leases, oldest first; everybody's for an operator who wants all.
    pub fn leases(&self, by: &Caller, all: bool, after: Option<LeaseId>, limit: usize) -> wire::Leases {
        let mine = self.state.tenant(&by.tenant);
        let visible = |lease: &&Lease| (by.operator && all) || Some(lease.tenant) == mine;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.state.rows().leases.range((from, Bound::Unbounded)).map(|(_, lease)| lease);
        let mut found = rest.filter(visible);
        let leases = found.by_ref().take(limit).map(|lease| self.lease(by, lease)).collect();
        wire::Leases { leases, more: found.next().is_some() }
    }

    /// The waiters that a caller may know of, in order of service; others' without their ids and names.
    pub fn queue(&self, by: &Caller, limit: usize) -> wire::Leases {
        let waiters = self.state.queue().all_waiters().take(limit).filter_map(|(id, _)| self.state.lease(id));
        let known = waiters.filter(|lease| self.sees_all(by) || self.mine(by, lease.tenant));
        let leases = known.map(|lease| self.waiter(by, lease)).collect();
        wire::Leases { leases, more: self.state.queue().len() > limit }
    }

    fn waiter(&self, by: &Caller, lease: &Lease) -> wire::Lease {
        let mut shown = self.lease(by, lease);
        if !self.mine(by, lease.tenant) {
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

    /// Why a lease is where it is.
    pub fn explain(&self, by: &Caller, lease: &Lease) -> wire::Explanation {
        let shown = self.lease_in_full(by, lease);
        let summary = match (&shown.waiting, &shown.ended) {
            (Some(waiting), _) => waiting.why.clone(),
            (_, Some(ended)) => ended.sentence.clone(),
            _ if shown.state == wire::LeaseState::Parked => {
                self.parked_aside(by, lease).unwrap_or_else(|| parked(lease))
            }
            _ if shown.state == wire::LeaseState::Parking => "its bytes are leaving its GPUs".to_owned(),
            _ if shown.state == wire::LeaseState::Resuming => self.resuming(by, lease),
            _ if shown.overuse.is_some() => {
                "it is active and has more on a GPU than its lease is for; if another request waits it may be parked"
                    .into()
            }
            _ if shown.idle => {
                "it is active but was not used in its last term; it goes on because no request waits".into()
            }
            _ => "it is active".to_owned(),
        };
        let waits = lease.queued_since().is_some();
        let ahead = if waits { explain::ahead(self.state, lease.id) } else { Vec::new() };
        let cards = if waits { self.state.gpus().collect() } else { Vec::new() };
        let making = if waits { preempt::room_plan(self.state, lease, self.now) } else { None };
        wire::Explanation {
            summary,
            preemption: waits.then(|| {
                let making = making.as_ref().map(|(making, _)| making);
                messages::room_made(self.state, making, self.now, |id| self.name_for(by, id))
            }),
            ahead: ahead.into_iter().map(|other| self.ahead(by, lease, other)).collect(),
            gpus: cards.into_iter().map(|card| self.card_why(by, lease, card, making.as_ref())).collect(),
            lease: shown,
        }
    }

    /// Why a lease that comes back is not back yet.
    fn resuming(&self, by: &Caller, lease: &Lease) -> String {
        let Some(who) = parking::restore_obstacle(self.state, lease) else {
            return "its bytes are coming back to its GPUs".to_owned();
        };
        let name = match who {
            RestoreObstacle::Unreadable(_) => None,
            RestoreObstacle::Unleased(card, _) => self.stranger_on(by, card),
            RestoreObstacle::Uncapped(_, other) => Some(self.name_for(by, other)),
        };
        format!("it is not brought back yet: {}", messages::held_back(self.state, who, name))
    }

    /// A process on a GPU that has no lease there, and whose it is, as far as this caller may know.
    fn stranger_on(&self, by: &Caller, card: GpuId) -> Option<String> {
        let room = self.state.room(card);
        let Reading::Used(used) = &room.reading().reading else { return None };
        let is_ours = |lease: LeaseId| room.leases().contains_key(&lease);
        let mut others = used.processes.iter().filter(|it| !self.state.owner(&it.process).is_some_and(is_ours));
        let process = others.next().filter(|_| by.token.is_none())?.process;
        let mut known = self.state.rows().unleased.values().filter(|row| row.audit.process == process);
        let user = known.find(|row| unleased::may_see(by, row)).map(|row| self.names.of(&tenant_of(row.audit.uid)));
        let of = user.map_or_else(String::new, |user| format!(" of {user}"));
        Some(format!("process {}{of}", process.pid))
    }

    /// How a holder could be made to leave for a waiter and at what price, or why it is not.
    fn could_leave(
        &self,
        waiter: &Lease,
        holder: &Lease,
        making: Option<&(RoomPlan, Vec<(GpuId, Span)>)>,
    ) -> (Option<wire::PreemptionCost>, Option<String>) {
        let chosen = match making {
            Some((RoomPlan::Plan { victims, .. }, _)) => victims.iter().any(|(id, _)| *id == holder.id),
            Some(_) => false,
            None => return (None, None),
        };
        match preempt::preemption_option(self.state, waiter, holder, self.now) {
            Ok(prospect) => {
                let leaves = wire::PreemptionCost {
                    method: prospect.rung.name().to_owned(),
                    park_s: prospect.out.as_secs_f64(),
                    lost_work_s: prospect.loss.as_secs_f64(),
                    resume_s: prospect.back.as_secs_f64(),
                    cost_s: prospect.price().as_secs_f64(),
                    is_chosen: chosen,
                };
                (Some(leaves), None)
            }
            Err(spared) => (None, Some(messages::spared(&spared, self.now))),
        }
    }

    /// A lease by its id for whoever may know it, or else by its user.
    fn name_for(&self, by: &Caller, lease: LeaseId) -> String {
        let row = self.state.lease(lease);
        row.map_or_else(String::new, |row| self.id_for(by, row).unwrap_or_else(|| self.user_for(by, row)))
    }

    fn user_for(&self, by: &Caller, lease: &Lease) -> String {
        if self.sees_all(by) || self.mine(by, lease.tenant) { self.user(lease.tenant) } else { ANOTHER.to_owned() }
    }

    fn ahead(&self, by: &Caller, behind: &Lease, lease: &Lease) -> wire::Ahead {
        wire::Ahead {
            id: self.id_for(by, lease),
            user: self.user_for(by, lease),
            tier: tier(lease.request.tier),
            vram_bytes: vram(lease.request.vram),
            gpus: lease.request.gpus.into(),
            waited_s: self.now.since(lease.requested).as_secs_f64(),
            why: messages::why_ahead(self.state, lease, behind, self.now),
        }
    }

    fn card_why(
        &self,
        by: &Caller,
        lease: &Lease,
        card: GpuId,
        making: Option<&(RoomPlan, Vec<(GpuId, Span)>)>,
    ) -> wire::GpuExplanation {
        let facts = &self.state.rows().gpus[card.0 as usize].facts;
        let obstacle = explain::obstacle(self.state, lease, card, self.now);
        let blockers = explain::blockers(self.state, card, self.now);
        wire::GpuExplanation {
            index: facts.index,
            uuid: facts.uuid.clone(),
            promisable_bytes: self.state.promisable(card, self.now).0,
            unowned_bytes: self.state.room(card).unowned_bytes().map(|b| b.0),
            obstacle: self.obstacle(by, lease, card, &obstacle),
            cost_s: making.and_then(|(_, prices)| {
                let (_, price) = prices.iter().find(|(on, _)| *on == card)?;
                Some(price.as_secs_f64())
            }),
            blockers: blockers
                .into_iter()
                .take(64)
                .map(|(at, other, counted)| {
                    let (leaves, stays) = self.could_leave(lease, other, making);
                    wire::Blocker {
                        id: self.id_for(by, other),
                        user: self.user_for(by, other),
                        counted_bytes: counted.0,
                        ends_by_s: at.since(self.now).as_secs_f64(),
                        preemption: leaves,
                        not_preempted: stays,
                    }
                })
                .collect(),
        }
    }

    /// All GPUs, by index.
    pub fn cards(&self, by: &Caller) -> Vec<wire::Gpu> {
        let mut cards: Vec<wire::Gpu> = self.state.gpus().map(|card| self.card(by, card)).collect();
        cards.sort_by_key(|card| card.index);
        cards
    }

    fn card(&self, by: &Caller, card: GpuId) -> wire::Gpu {
        let row = &self.state.rows().gpus[card.0 as usize];
        let room = self.state.room(card);
        let (used, coarse, unreadable) = match &room.reading().reading {
            Reading::Used(used) => (Some(room.total().less(used.free).0), used.coarse, None),
            Reading::Unreadable(why) => (None, false, Some(messages::unreadable(row.facts.index, why))),
        };
        wire::Gpu {
            index: row.facts.index,
            uuid: row.facts.uuid.clone(),
            name: row.facts.name.clone(),
            state: match &row.service {
                GpuService::Draining => wire::GpuState::Draining,
                GpuService::Out { .. } => wire::GpuState::OutOfService,
                GpuService::In if row.facts.unusable.is_some() => wire::GpuState::Unusable,
                GpuService::In if !self.state.is_listed(card) => wire::GpuState::Missing,
                GpuService::In if self.state.is_aside(card) => wire::GpuState::Aside,
                GpuService::In => wire::GpuState::InService,
            },
            state_why: messages::service(&row.service)
                .or_else(|| row.facts.unusable.clone())
                .or_else(|| self.aside_why(by, card)),
            aside: self.aside(by, card),
            mode: unleased::to_wire(row.mode),
            unreadable: unreadable.map(|sentence| wire::UnreadableGpu { sentence }),
            total_bytes: row.facts.total.0,
            used_bytes: used,
            unowned_bytes: room.unowned_bytes().map(|b| b.0),
            committed_bytes: room.committed().map(|b| b.0),
            promisable_bytes: self.state.promisable(card, self.now).0,
            context_bytes: row.facts.context.map(|b| b.0),
            coarse,
            occupants: self.occupants(by, card),
        }
    }

    fn occupants(&self, by: &Caller, card: GpuId) -> Vec<wire::Occupant> {
        let room = self.state.room(card);
        let Reading::Used(used) = &room.reading().reading else { return self.leases_on(by, card) };
        let mut found = self.leases_on(by, card);
        // Who has a lease for other GPUs, or only waits for one, is an unleased process here.
        let is_ours = |lease: LeaseId| room.leases().contains_key(&lease);
        let strangers = used.processes.iter().filter(|r| !self.state.owner(&r.process).is_some_and(is_ours));
        found.extend(strangers.take(256).map(|resident| wire::Occupant {
            lease: None,
            pid: Some(resident.process.pid),
            user: None,
            tier: None,
            state: if self.is_display(resident) { "display" } else { "unleased" }.to_owned(),
            reserved_bytes: None,
            seen_bytes: resident.bytes.map(|b| b.0),
            since_unix_s: None,
            exceeds_lease: false,
        }));
        found
    }

    /// Whether who only draws is left alone: it has little, or draws somebody's screen.
    fn is_display(&self, resident: &Resident) -> bool {
        let known = |row: &&UnleasedProcess| row.audit.process == resident.process;
        let draws_screen =
            || self.state.rows().unleased.values().find(known).is_some_and(|row| row.audit.seat.is_some());
        resident.only_draws && (!resident.is_of_interest() || draws_screen())
    }

    fn leases_on(&self, by: &Caller, card: GpuId) -> Vec<wire::Occupant> {
        let room = self.state.room(card);
        let coarse = !matches!(&room.reading().reading, Reading::Used(used) if !used.coarse);
        let leases = room.leases().iter().filter_map(|(id, claim)| self.state.lease(*id).map(|l| (l, claim)));
        leases
            .filter(|(lease, _)| self.sees_all(by) || self.mine(by, lease.tenant))
            .take(256)
            .map(|(lease, claim)| wire::Occupant {
                lease: self.id_for(by, lease),
                pid: None,
                user: Some(self.user(lease.tenant)),
                tier: Some(tier(lease.request.tier)),
                state: match lease.phase {
                    Phase::Waiting { .. } | Phase::Active(_) => "active",
                    Phase::Parking(..) => "parking",
                    Phase::Parked(..) => "parked",
                    Phase::Resuming(..) => "resuming",
                    Phase::Ending(..) => "ending",
                }
                .to_owned(),
                reserved_bytes: Some(claim.reserved.0),
                seen_bytes: (!coarse).then_some(claim.seen.0),
                since_unix_s: lease.hold().map(|hold| self.unix_s(hold.granted)),
                exceeds_lease: lease.hold().is_some_and(|hold| hold.overuse().is_some()),
            })
            .collect()
    }

    /// Host memory for parked bytes, if there is to be any.
    pub fn parking(&self, by_driver: bool, kind: &str, stock: u64) -> Option<wire::ParkingSpace> {
        let ram = self.state.policy().parking.space;
        let (pages, advice) = sublet_host::shims::page_kind();
        (ram > Bytes::ZERO).then(|| wire::ParkingSpace {
            size_bytes: ram.0,
            booked_bytes: self.state.booked_host_memory().0,
            ready_bytes: stock,
            free_bytes: parking::free_parking_space(self.state).map(|room| room.0),
            pages: pages.to_owned(),
            advice: advice.map(str::to_owned),
            by_driver,
            // A soft driver bears all.
            driver_limits: if kind == "real" && by_driver { sublet_host::driver::limits() } else { Vec::new() },
        })
    }

    /// The tokens the caller may see, oldest first.
    pub fn tokens(&self, by: &Caller) -> Vec<wire::Token> {
        let known = self.state.rows().tokens.values().filter(|token| may_know(by, token));
        known.map(|token| self.token(token)).collect()
    }

    /// One token, for whoever may see it.
    pub fn token(&self, token: &Token) -> wire::Token {
        wire::Token {
            id: token.id.to_string(),
            tenant: token.tenant.clone(),
            user: self.names.of(&token.tenant),
            name: token.name.clone(),
            read_only: token.read_only,
            vram_bytes: token.caps.vram.map(|bytes| bytes.0),
            leases: token.caps.leases,
            made_unix_s: wall_s(token.made_wall_us),
            expires_unix_s: token.expires_wall_us.map(wall_s),
            expired: token.is_expired(self.wall_us),
            last_used_unix_s: None,
        }
    }

    /// What each tenant the caller may see was charged, running leases included.
    pub fn usage(&self, by: &Caller) -> Vec<wire::UsageRow> {
        let mut rows: Vec<wire::UsageRow> = Vec::new();
        let mut running = vec![(0u64, 0u64, 0u128, 0u128); self.state.rows().tenants.len()];
        for lease in self.state.rows().leases.values().filter(|lease| lease.is_held()) {
            let Some(hold) = lease.hold() else { continue };
            let (card_us, byte_us) = hold.charge(self.now);
            let parked_us = match &lease.phase {
                Phase::Parked(_, away) => {
                    u128::from(self.now.since(away.since).0) * u128::from(hold.booked_host_memory().0)
                }
                _ => 0,
            };
            let sum = &mut running[lease.tenant.0 as usize];
            *sum = (sum.0 + 1, sum.1 + card_us, sum.2 + byte_us, sum.3 + parked_us);
        }
        for (tenant, (leases, card_us, byte_us, parked_us)) in self.state.rows().tenants.iter().zip(running) {
            if by.operator || tenant.name == by.tenant {
                rows.push(wire::UsageRow {
                    tenant: tenant.name.clone(),
                    user: self.names.of(&tenant.name),
                    lease: None,
                    name: None,
                    leases: tenant.leases + leases,
                    gpu_seconds: (tenant.gpu_us + card_us) as f64 / 1e6,
                    gib_seconds: gib_seconds(tenant.byte_us + byte_us),
                    parked_gib_seconds: Some(gib_seconds(tenant.parked_byte_us + parked_us)),
                    peak_bytes: None,
                    refused: BTreeMap::new(),
                });
            }
        }
        rows
    }

    /// What each of the caller's running leases is charged so far.
    pub fn usage_of_leases(&self, by: &Caller) -> Vec<wire::UsageRow> {
        let running = self.state.rows().leases.values().rev().filter(|lease| self.mine(by, lease.tenant));
        running.filter_map(|lease| self.lease_usage(lease)).collect()
    }

    fn lease_usage(&self, lease: &Lease) -> Option<wire::UsageRow> {
        let hold = lease.hold()?;
        let until = match &lease.phase {
            Phase::Ending(_, finish) => finish.at,
            _ => self.now,
        };
        let peak = self.state.readings(lease.id).and_then(|live| live.peak_bytes).map(|b| b.0);
        let tenant = self.state.tenant_name(lease.tenant);
        Some(usage_row(hold, until, lease.id.to_string(), lease.request.name.clone(), tenant, peak, self.names))
    }
}

/// What a lease that is history was charged.
pub fn past_usage(ended: &EndedLease, rows: &[rows::Tenant], names: &UserDirectory) -> Option<wire::UsageRow> {
    let hold = ended.hold.as_ref()?;
    let tenant = &rows.get(ended.tenant.0 as usize)?.name;
    let peak = ended.end.peak.map(|b| b.0);
    Some(usage_row(hold, ended.end.at, ended.id.to_string(), ended.request.name.clone(), tenant, peak, names))
}

fn usage_row(
    hold: &Hold,
    until: Time,
    id: String,
    name: Option<String>,
    tenant: &str,
    peak_bytes: Option<u64>,
    names: &UserDirectory,
) -> wire::UsageRow {
    let (card_us, byte_us) = hold.charge(until);
    wire::UsageRow {
        tenant: tenant.to_owned(),
        user: names.of(tenant),
        lease: Some(id),
        name,
        leases: 1,
        gpu_seconds: card_us as f64 / 1e6,
        gib_seconds: gib_seconds(byte_us),
        parked_gib_seconds: None,
        peak_bytes,
        refused: BTreeMap::new(),
    }
}

fn gib_seconds(byte_us: u128) -> f64 {
    byte_us as f64 / (1u64 << 30) as f64 / 1e6
}

/// A lease that is history.
pub fn past(ended: &EndedLease, view: &View<'_>) -> wire::Lease {
    let tenant = view.state.tenant_name(ended.tenant).to_owned();
    let mut shown = plain(&ended.request, ended.id.to_string(), tenant, view.names);
    shown.state = wire::LeaseState::Ended;
    shown.requested_unix_s = view.unix_s(ended.requested);
    shown.peak_bytes = ended.end.peak.map(|b| b.0);
    shown.calls = view.did(ended.id);
    if let Some(hold) = &ended.hold {
        fill_hold(&mut shown, hold, view.state.rows());
        shown.granted_unix_s = Some(view.unix_s(hold.granted));
    }
    let at = view.unix_s(ended.end.at);
    shown.ended = Some(finish_of(&shown.id, &ended.end, at));
    shown
}

fn plain(ask: &LeaseRequest, id: String, tenant: String, names: &UserDirectory) -> wire::Lease {
    wire::Lease {
        id,
        state: wire::LeaseState::Waiting,
        user: names.of(&tenant),
        tenant,
        name: ask.name.clone(),
        requested_vram_bytes: vram(ask.vram),
        vram_bytes: None,
        gpus: ask.gpus.into(),
        gpu_uuids: Vec::new(),
        gpu_indices: Vec::new(),
        tier: tier(ask.tier),
        priority: ask.priority.into(),
        exclusivity: exclusivity(ask.exclusivity),
        fence: None,
        proof: None,
        ttl_s: ask.term.span().secs_ceil(),
        fixed_term: matches!(ask.term, request::Term::Fixed(_)),
        requested_unix_s: 0.0,
        granted_unix_s: None,
        on_gpus_unix_s: None,
        expires_unix_s: None,
        remaining_s: None,
        idle: false,
        pids: Vec::new(),
        seen_bytes: None,
        calls: None,
        peak_bytes: None,
        not_parkable: None,
        foreign_processes: None,
        resume_blocked: None,
        parked: None,
        method: None,
        overuse: None,
        ends_soon: None,
        has_hook: ask.has_hook,
        may_lose: ask.may_lose_state,
        waiting: None,
        ended: None,
    }
}

fn fill_hold(shown: &mut wire::Lease, hold: &Hold, rows: &Rows) {
    let facts = |card: &GpuId| rows.gpus.get(card.0 as usize).map(|card| &card.facts);
    shown.vram_bytes = Some(hold.vram.0);
    shown.fence = Some(hold.fence.0);
    shown.idle = hold.idle;
    shown.gpu_uuids = hold.gpus.iter().filter_map(facts).map(|facts| facts.uuid.clone()).collect();
    shown.gpu_indices = hold.gpus.iter().filter_map(facts).map(|facts| facts.index).collect();
}

/// Where a parked holder's bytes are, and what brings them back: only the shim in a program notices its use.
fn parked(lease: &Lease) -> String {
    let by_hand = match lease.is_passive() {
        true => format!(
            "it comes back when there is room that no waiter needs; `sublet resume {}` puts it into the queue",
            lease.id
        ),
        false => format!("`sublet resume {}` brings it back", lease.id),
    };
    match lease.park_state().map(|away| away.method) {
        Some(Method::Driver) => {
            format!("it is parked: the driver has its bytes in host memory, and it stands still; {by_hand}")
        }
        Some(Method::Hook) => format!("it is parked: it gave up its bytes by its own hook; {by_hand}"),
        _ if lease.is_passive() => {
            format!("it is parked: its bytes are in host memory, and come back when it is used; {by_hand}")
        }
        _ => "it is parked: its bytes are in host memory, and come back when it is used".to_owned(),
    }
}

fn finish_of(id: &str, finish: &rows::LeaseEnd, at_unix_s: f64) -> wire::LeaseEnd {
    wire::LeaseEnd { reason: reason(finish.reason), sentence: messages::ended(id, finish.reason), at_unix_s }
}

/// The wall clock's µs as Unix seconds, to the millisecond.
pub fn wall_s(wall_us: u64) -> f64 {
    (wall_us / 1_000) as f64 / 1e3
}

fn unix_s(wall_us: u64, now: Time, at: Time) -> f64 {
    let ms = (wall_us as i128 + at.0 as i128 - now.0 as i128) / 1000;
    ms as f64 / 1e3
}

fn vram(vram: request::Vram) -> wire::Vram {
    match vram {
        request::Vram::Bytes(bytes) => wire::Vram::Bytes(bytes.0),
        request::Vram::Whole => wire::Vram::Whole,
    }
}

/// A tier as clients spell it.
pub fn tier(tier: request::Tier) -> wire::Tier {
    match tier {
        request::Tier::Interactive => wire::Tier::Interactive,
        request::Tier::Batch => wire::Tier::Batch,
        request::Tier::Spot => wire::Tier::Spot,
    }
}

fn exclusivity(exclusivity: request::Exclusivity) -> wire::Exclusivity {
    match exclusivity {
        request::Exclusivity::Shared => wire::Exclusivity::Shared,
        request::Exclusivity::Session => wire::Exclusivity::SessionExclusive,
        request::Exclusivity::Device => wire::Exclusivity::DeviceExclusive,
    }
}

fn reason(reason: rows::EndReason) -> wire::EndReason {
    match reason {
        rows::EndReason::Released => wire::EndReason::Released,
        rows::EndReason::Expired => wire::EndReason::Expired,
        rows::EndReason::HoldCap => wire::EndReason::RenewalCap,
        rows::EndReason::TermOver => wire::EndReason::TermOver,
        rows::EndReason::HolderExited => wire::EndReason::HolderExited,
        rows::EndReason::Revoked => wire::EndReason::Revoked,
        rows::EndReason::DeviceLost => wire::EndReason::GpuLost,
        rows::EndReason::DiedParking => wire::EndReason::DiedParking,
        rows::EndReason::RestoreFailed => wire::EndReason::RestoreFailed,
        rows::EndReason::HostRebooted => wire::EndReason::HostRebooted,
        rows::EndReason::WaitOver => wire::EndReason::WaitOver,
        rows::EndReason::NotMoved => wire::EndReason::ParkFailed,
        rows::EndReason::Budget => wire::EndReason::Budget,
        rows::EndReason::ParkExpired => wire::EndReason::ParkExpired,
        rows::EndReason::Preempted => wire::EndReason::Preempted,
        rows::EndReason::OverUse => wire::EndReason::Overuse,
    }
}
