//! The state: the durable rows, what is derived from them, and what was seen.
//!
//! One owner, no locks. [`State::apply`] keeps the derived parts in step with
//! the rows; nothing outside this file writes them. What was seen (readings,
//! members, activity) is volatile: unreadable after a start, never journaled.

mod aside;
mod derived;
mod gpus;
pub mod lease_readings;
mod leases;
pub mod ledger;
mod members;
mod movable;
mod overuse;
pub mod queue;
pub mod room;
mod stopped;
mod unleased;
pub mod unleased_readings;
mod withdraw;

use self::lease_readings::{HintBackoff, LeaseReadings, SignalState};
use self::ledger::{QuotaLedger, TenantLoad};
use self::queue::{Queue, QueuePlace};
use self::room::Room;
use self::unleased_readings::UnleasedReadings;
use crate::model::action::Action;
use crate::model::facts::{BrokenInvariant, LeaseAction};
use crate::model::ids::{GpuId, LeaseId, ProcKey, TenantId, TokenId};
use crate::model::loss::Loss;
use crate::model::mutant::Mutant;
use crate::model::reading::{GpuFacts, GpuReading, Reading};
use crate::model::request::{Preempt, Term};
use crate::model::rows::{EndedLease, Hold, Lease, LeaseEnd, Phase, Rows};
use crate::model::settings::{Policy, Renewal, STALL};
use crate::model::table::GpuTable;
use crate::model::units::{Bytes, Span, Time};
use gpus::{new_room, resize_room};
use overuse::OveruseReadings;
pub(crate) use overuse::SLACK;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that is known now.
#[derive(Clone, Debug)]
pub struct State {
    rows: Rows,
    policy: Policy,
    // Derived from the rows.
    names: BTreeMap<String, TenantId>,
    gpu_ids: BTreeMap<String, GpuId>,
    queue: Queue,
    /// How many waiters accept each size of a GPU; `None` is a whole one.
    waiting_sizes: BTreeMap<Option<Bytes>, usize>,
    rooms: GpuTable<Room>,
    ledger: QuotaLedger,
    /// The leases and requests of each token.
    by_token: BTreeMap<TokenId, BTreeSet<LeaseId>>,
    due: BTreeSet<(Time, LeaseId)>,
    ending: GpuTable<BTreeSet<LeaseId>>,
    /// Leases whose bytes are leaving or coming back.
    moving: BTreeSet<LeaseId>,
    /// Host memory that is booked.
    booked_host_memory: Bytes,
    /// Leases that could leave their GPUs: they have a mover, or their user opted to be ended.
    movable: BTreeSet<LeaseId>,
    /// Leases that the driver brings back. No other lease gets their GPUs meanwhile.
    restoring: BTreeSet<LeaseId>,
    /// Leases that were told that they are exceeded.
    overusing: BTreeSet<LeaseId>,
    /// Parked leases that come back only into room that no waiter claims.
    passive: BTreeSet<LeaseId>,
    // Seen, and gone with the process.
    readings: BTreeMap<LeaseId, LeaseReadings>,
    owners: BTreeMap<ProcKey, LeaseId>,
    listed_gpus: BTreeSet<GpuId>,
    pub(crate) last_event: Option<Time>,
    pub(crate) disk_full: bool,
    /// Lines that are missing from the journal, until an operator accepts that.
    pub(crate) journal_loss: Option<Loss>,
    /// Whether an event came since room was last planned, and when that was.
    plan_state: (bool, Time),
    /// By GPU: which leases the last readings showed beyond their size, and how many readings did.
    overuse: GpuTable<OveruseReadings>,
    /// Host memory that was available at the last reading.
    pub(crate) host_memory: Option<Bytes>,
    /// When this day began.
    pub(crate) day_seen: Option<Time>,
    /// When the expected start of a waiter was last noted.
    pub(crate) expectations_noted: Time,
    unleased: UnleasedReadings,
    /// How many actions did not fit the rows, and the last of them.
    broken_invariants: (u64, Option<BrokenInvariant>),
    mutant: Option<Mutant>,
}

impl State {
    /// The state after a start: the rows, and nothing seen yet.
    pub fn new(rows: Rows, policy: Policy) -> State {
        let mut state = State {
            names: rows.tenants.iter().zip(0..).map(|(t, n)| (t.name.clone(), TenantId(n))).collect(),
            gpu_ids: rows.gpus.iter().zip(0..).map(|(c, n)| (c.facts.uuid.clone(), GpuId(n))).collect(),
            queue: Queue::new(policy.debt_max),
            waiting_sizes: BTreeMap::new(),
            rooms: rows.gpus.iter().map(|card| new_room(&policy, &card.facts)).collect(),
            ledger: QuotaLedger::new(&rows, &policy),
            by_token: BTreeMap::new(),
            due: BTreeSet::new(),
            ending: rows.gpus.iter().map(|_| BTreeSet::new()).collect(),
            moving: BTreeSet::new(),
            booked_host_memory: Bytes::ZERO,
            movable: BTreeSet::new(),
            restoring: BTreeSet::new(),
            overusing: BTreeSet::new(),
            passive: BTreeSet::new(),
            readings: BTreeMap::new(),
            owners: BTreeMap::new(),
            listed_gpus: BTreeSet::new(),
            last_event: None,
            disk_full: false,
            journal_loss: None,
            plan_state: (false, Time::ZERO),
            overuse: rows.gpus.iter().map(|_| OveruseReadings::new()).collect(),
            host_memory: None,
            day_seen: None,
            expectations_noted: Time::ZERO,
            unleased: UnleasedReadings::default(),
            broken_invariants: (0, None),
            mutant: None,
            rows: Rows::default(),
            policy,
        };
        state.rows.tenants.clone_from(&rows.tenants);
        state.update_debt_clocks();
        for lease in rows.leases.values() {
            state.index(lease);
        }
        state.rows = rows;
        state.index_unleased();
        for lease in state.rows.leases.keys().copied().collect::<Vec<_>>() {
            state.set_movable(lease);
        }
        state
    }

    /// Plants a bug. For the simulation only; does nothing without the feature.
    pub fn plant(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant;
        self.recount();
    }

    pub(crate) fn planted(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    // ---- facts become state ------------------------------------------------

    /// Makes an action part of the state. Returns the lease that became history by it.
    ///
    /// # Errors
    ///
    /// If the action does not fit the rows. Neither they nor what is derived from them change.
    pub fn apply(&mut self, action: &Action) -> Result<Option<EndedLease>, BrokenInvariant> {
        if let Action::Lease(action) = action {
            return self.apply_lease_action(action);
        }
        self.rows.apply(action)?;
        match action {
            Action::Daemon(action) => self.index_daemon_action(action),
            Action::Gpu(action) => self.index_gpu_action(action),
            Action::Tenant(action) => self.index_tenant_action(action),
            Action::Unleased(action) => self.index_unleased_action(action),
            Action::Lease(_) | Action::Token(_) => {}
        }
        Ok(None)
    }

    fn apply_lease_action(&mut self, action: &LeaseAction) -> Result<Option<EndedLease>, BrokenInvariant> {
        let lease = action.lease();
        self.unindex_lease_action(action);
        let booked = self.booked_for(lease);
        let applied = self.rows.apply_lease_action(action);
        let Ok(ended) = &applied else {
            // What was taken out of the queue and the ledger is put in again.
            self.recount();
            return applied;
        };
        let booked_now = self.booked_for(lease);
        self.booked_host_memory = self.booked_host_memory.less(booked) + booked_now;
        self.index_lease_action(action, ended.as_ref(), booked_now.less(booked));
        self.plan_state.0 = true;
        applied
    }

    /// Counts an action that core emitted though it does not fit the rows. It was not applied, and is not logged.
    ///
    /// # Panics
    ///
    /// In debug builds, so that tests and the simulation find it.
    pub(crate) fn note_broken_invariant(&mut self, broken: BrokenInvariant) {
        debug_assert!(false, "{broken}");
        self.broken_invariants = (self.broken_invariants.0 + 1, Some(broken));
    }

    /// How many actions did not fit the rows since the start, and the last of them: mistakes of core, which release builds
    /// survive.
    pub fn broken_invariants(&self) -> (u64, Option<&BrokenInvariant>) {
        (self.broken_invariants.0, self.broken_invariants.1.as_ref())
    }

    /// Quotas may have room again, of a tenant and of its groups.
    fn unskip_quota_group(&mut self, tenant: TenantId) {
        self.queue.unskip_tenant(tenant);
        for mate in self.ledger.group_members(tenant) {
            self.queue.unskip_tenant(mate);
        }
    }

    pub(crate) fn unskip_all(&mut self) {
        for tenant in self.queue.skipped_tenants().collect::<Vec<_>>() {
            self.queue.unskip_tenant(tenant);
        }
    }

    /// The leases of a token, waiting and held.
    pub(crate) fn leases_of_token(&self, token: TokenId) -> impl Iterator<Item = &Lease> {
        self.by_token.get(&token).into_iter().flatten().filter_map(|lease| self.lease(*lease))
    }

    pub(crate) fn skip_tenant(&mut self, tenant: TenantId) {
        self.queue.skip_tenant(tenant);
    }

    fn update_debt_clocks(&mut self) {
        (0..self.rows.tenants.len() as u32).for_each(|tenant| self.update_debt_clock(TenantId(tenant)));
    }

    pub(crate) fn index_tenant(&mut self, tenant: TenantId) {
        let row = &self.rows.tenants[tenant];
        self.names.insert(row.name.clone(), tenant);
        self.ledger.enrol(row, &self.policy);
    }

    /// A GPU is seen for the first time, or differs from what was known.
    pub(crate) fn index_gpu(&mut self, gpu: GpuId, facts: &GpuFacts) {
        match self.rooms.find_mut(gpu) {
            Some(room) => resize_room(room, &self.policy, facts),
            None => {
                self.rooms.push(new_room(&self.policy, facts));
                self.ending.push(BTreeSet::new());
                self.overuse.push(OveruseReadings::new());
            }
        }
        self.gpu_ids.insert(facts.uuid.clone(), gpu);
        // A whole GPU may have another size now, and more than its tenant may ever have.
        self.unskip_all();
    }

    fn update_debt_clock(&mut self, tenant: TenantId) {
        let row = &self.rows.tenants[tenant];
        self.queue.set_debt_clock(tenant, row.debt_clock, self.policy.first_since_of(row));
    }

    /// When something that [`State::ends_by`] some time really is over: not within a grace.
    pub(crate) fn ends_after_grace(&self, ends: Time, now: Time) -> Time {
        if ends == Time::ZERO { now } else { ends.max(now).max(self.rows.meta.grace_until) }
    }

    /// When a lease gives its room back at the latest while a waiter needs it: zero if it is over already,
    /// [`Time::NEVER`] if that is unknown.
    pub fn ends_by(&self, lease: &Lease, hold: &Hold) -> Time {
        match (&lease.phase, hold.notice) {
            (Phase::Ending(..) | Phase::Parking(..), _) => Time::ZERO,
            (_, Some(told)) => told.at().min(self.leaves_by_itself_at(lease, hold)),
            _ => self.leaves_by_itself_at(lease, hold),
        }
    }

    /// The same if the lease stays on its GPUs, also if it is being parked.
    pub fn leaves_by_itself_at(&self, lease: &Lease, hold: &Hold) -> Time {
        let cap = hold.slice_began() + self.policy.hold_max;
        match lease.request.term {
            Term::Fixed(_) => hold.until,
            // A lease that passed a waiter leaves in time, whatever its user chose.
            Term::Renewed(_) if lease.request.preempt == Preempt::Never => {
                hold.not_beyond.map_or(Time::NEVER, |before| hold.until.max(before))
            }
            Term::Renewed(_) if hold.idle => hold.until,
            Term::Renewed(_) => hold.until.max(hold.not_beyond.map_or(cap, |before| before.min(cap))),
        }
    }

    // ---- what is seen ------------------------------------------------------

    pub(crate) fn configure(&mut self, policy: Policy) {
        self.policy = policy;
        for (room, card) in self.rooms.iter_mut().zip(&self.rows.gpus) {
            resize_room(room, &self.policy, &card.facts);
        }
        self.recount();
        let held: Vec<LeaseId> = self.rows.leases.values().filter(|l| l.hold().is_some()).map(|l| l.id).collect();
        held.into_iter().for_each(|lease| self.update_ends(lease));
        // A shorter limit on how long leases stay parked holds for those that are parked, too.
        let parked: Vec<Lease> =
            self.rows.leases.values().filter(|l| matches!(l.phase, Phase::Parked(..))).cloned().collect();
        parked.iter().for_each(|row| self.set_due(row.id, self.first_due(row)));
    }

    /// Counts anew what quotas count, and lines everybody up again: the rules changed, or a group.
    pub(crate) fn recount(&mut self) {
        self.ledger = QuotaLedger::new(&self.rows, &self.policy);
        self.waiting_sizes.clear();
        let unbound = self.planted(Mutant::NoClamp);
        let queue = Queue::new(if unbound { Span::secs(1 << 40) } else { self.policy.debt_max });
        let old = std::mem::replace(&mut self.queue, queue);
        for tenant in (0..self.rows.tenants.len() as u32).map(TenantId) {
            self.queue.set_last_served(tenant, old.last_served(tenant));
        }
        self.update_debt_clocks();
        for lease in self.rows.leases.values().cloned().collect::<Vec<_>>() {
            if lease.queued_since().is_some() {
                self.put_into_queue(&lease);
            }
            if lease.is_on_gpus()
                && let Some(hold) = lease.hold()
            {
                let load = TenantLoad::of_lease(&lease.request, hold);
                self.ledger.update(lease.tenant, |books| books.add(&load));
            }
        }
    }

    pub(crate) fn set_listed(&mut self, cards: BTreeSet<GpuId>) {
        self.listed_gpus = cards;
    }

    pub(crate) fn set_idle(&mut self, lease: LeaseId, idle: Span, now: Time) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.last_busy = live.last_busy.max(Some(now - idle));
            live.last_checked = Some(now);
        }
    }

    pub(crate) fn set_busy(&mut self, lease: LeaseId, now: Time) {
        if let Some(live) = self.readings.get_mut(&lease) {
            (live.was_busy, live.last_busy) = (true, Some(now));
            if self.rows.leases.get(&lease).is_some_and(|row| matches!(row.phase, Phase::Active(_))) {
                live.hint_backoff = HintBackoff::default();
            }
        }
    }

    pub(crate) fn set_reading(&mut self, card: GpuId, observation: GpuReading) {
        let room = &mut self.rooms[card];
        // A driver that reports no bytes per process shows no peak.
        let fresh = matches!(&observation.reading, Reading::Used(used) if !used.coarse);
        room.set_reading(observation, |process| self.owners.get(process).copied());
        if fresh {
            for (lease, bytes) in room.seen_leases() {
                let live = self.readings.entry(*lease).or_default();
                live.peak_bytes = live.peak_bytes.max(Some(*bytes));
            }
        }
        self.update_overuse(card);
    }

    /// Notes that a GPU was read after the end of a lease: nothing counts for the lease there any more. True if all its GPUs
    /// were read.
    pub(crate) fn note_read_after_end(&mut self, lease: LeaseId, card: GpuId) -> bool {
        self.rooms[card].vacate(lease);
        self.ending[card].remove(&lease);
        self.readings.get_mut(&lease).is_some_and(|live| {
            live.unread_gpus.remove(&card);
            live.unread_gpus.is_empty()
        })
    }

    // ---- timers ------------------------------------------------------------

    /// When something comes due by itself, if anything does.
    pub fn next_due(&self) -> Option<Time> {
        let lease = self.due.first().map(|(at, _)| *at);
        [lease, self.next_aside_over()].into_iter().flatten().min()
    }

    pub(crate) fn take_due(&mut self, now: Time) -> Option<LeaseId> {
        let (at, lease) = self.due.first().copied()?;
        if at > now {
            return None;
        }
        self.set_due(lease, None);
        Some(lease)
    }

    /// The last signal of a lease that was ended for others left; the next is due a grace later.
    pub(crate) fn note_signal_sent(&mut self, lease: LeaseId, now: Time) {
        if let Some(live) = self.readings.get_mut(&lease).filter(|live| live.last_signal == Some(SignalState::Pending))
        {
            live.last_signal = Some(SignalState::Sent(now));
            self.set_due(lease, Some(now + self.policy.parking.grace));
        }
    }

    pub(crate) fn set_due(&mut self, lease: LeaseId, at: Option<Time>) {
        let Some(live) = self.readings.get_mut(&lease) else { return };
        if let Some(old) = live.due.take() {
            self.due.remove(&(old, lease));
        }
        live.due = at;
        if let Some(at) = at {
            self.due.insert((at, lease));
        }
    }

    pub(crate) fn first_due(&self, lease: &Lease) -> Option<Time> {
        match &lease.phase {
            Phase::Waiting { give_up } => Some(*give_up),
            Phase::Active(hold) => {
                let due = match lease.has_fixed_term() {
                    true => hold.term_notice(&lease.request, hold.until).unwrap_or(hold.until),
                    false => self.renewal_point(lease, hold),
                };
                Some(hold.notice.map_or(due, |told| told.at().min(due)))
            }
            Phase::Parking(hold, away) | Phase::Resuming(hold, away) => {
                let over = if lease.has_fixed_term() { hold.until } else { Time::NEVER };
                Some(over.min(away.since + self.policy.parking.timeout_of(away)))
            }
            Phase::Parked(_, away) if self.planted(Mutant::ExpireParked) => {
                Some(away.since + lease.request.term.span())
            }
            Phase::Parked(_, away) => Some(away.since + self.policy.parking.term),
            // A lease that is ended for others gets its signals in time.
            Phase::Ending(_, LeaseEnd { reason, signal, at, .. }) if reason.ends_processes() => match signal {
                None => Some(*at),
                Some((_, at)) => Some(*at + self.policy.parking.grace),
            },
            Phase::Ending(..) => None,
        }
    }

    /// From when on use renews the lease. Deterministic: the spread comes from its id.
    pub fn renewal_point(&self, lease: &Lease, hold: &Hold) -> Time {
        let term = lease.request.term.span();
        let after = match self.policy.renewal {
            Renewal::At { percent, jitter } => {
                let spread = 2 * u64::from(jitter) + 1;
                let draw = (lease.id.0 ^ hold.renewed.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                term.percent((u64::from(percent) + draw % spread).saturating_sub(u64::from(jitter)).min(99))
            }
            Renewal::Below { percent } => term.percent(100 - u64::from(percent.min(99))),
            Renewal::Every(span) => Span(span.0.min(term.percent(90).0)),
        };
        (hold.renewed + after).min(hold.until)
    }

    // ---- reading ---------------------------------------------------------------

    /// The durable part.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }
    /// The rules of the house.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
    /// The waiters.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
    /// A lease that has not ended.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.rows.leases.get(&id)
    }
    /// What was seen of a lease.
    pub fn readings(&self, id: LeaseId) -> Option<&LeaseReadings> {
        self.readings.get(&id)
    }
    /// A tenant by name.
    pub fn tenant(&self, name: &str) -> Option<TenantId> {
        self.names.get(name).copied()
    }
    /// A tenant's name.
    pub fn tenant_name(&self, tenant: TenantId) -> &str {
        &self.rows.tenants[tenant].name
    }
    /// What tenants and groups have on the books, and may have.
    pub fn ledger(&self) -> &QuotaLedger {
        &self.ledger
    }
    /// The memory of all known GPUs.
    pub fn total(&self) -> Bytes {
        self.rows.gpus.iter().map(|card| card.facts.total).sum()
    }
    /// A GPU by UUID.
    pub fn gpu(&self, uuid: &str) -> Option<GpuId> {
        self.gpu_ids.get(uuid).copied()
    }
    /// All GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> + use<> {
        (0..self.rooms.len() as u16).map(GpuId)
    }
    /// What is reserved and seen on a GPU.
    pub fn room(&self, card: GpuId) -> &Room {
        &self.rooms[card]
    }
    /// Ended leases whose bytes still count on a GPU.
    pub fn ending_leases_on(&self, card: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
        self.ending[card].iter().copied()
    }
    /// Leases whose bytes are leaving or coming back.
    pub fn moving(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.moving.iter().copied()
    }
    /// Whether a park or a resume needs only another look at its cards: its programs are done, and no look
    /// since then showed otherwise.
    pub fn awaits_reading(&self) -> bool {
        self.moving.iter().filter_map(|lease| self.readings.get(lease)).any(|live| {
            live.progress.reported_at.is_some() && live.progress.agreeing_readings.values().all(|looks| *looks > 0)
        })
    }
    /// Host memory that is booked for parked bytes.
    pub fn booked_host_memory(&self) -> Bytes {
        self.booked_host_memory
    }
    /// Host memory that was available at the last reading.
    pub fn host_memory(&self) -> Option<Bytes> {
        self.host_memory
    }
    pub(crate) fn readings_mut(&mut self, id: LeaseId) -> Option<&mut LeaseReadings> {
        self.readings.get_mut(&id)
    }
    /// How many compute processes on a GPU belong to no lease there.
    pub fn unleased_compute_processes(&self, card: GpuId) -> usize {
        self.room(card).unleased_compute_processes(|process| self.owner(process))
    }
    /// How many processes on a GPU belong to no lease there, whatever they do.
    pub(crate) fn unleased_processes_on(&self, card: GpuId) -> usize {
        self.room(card).unleased_processes(|process| self.owner(process))
    }
    /// True if the driver lists the GPU now.
    pub fn is_listed(&self, card: GpuId) -> bool {
        self.listed_gpus.contains(&card)
    }
    /// What the driver lists now.
    pub fn listed_facts(&self) -> Vec<GpuFacts> {
        self.listed_gpus.iter().map(|card| self.rows.gpus[*card].facts.clone()).collect()
    }
    /// Whether nothing was heard for so long that a tick is overdue.
    pub fn is_tick_overdue(&self, now: Time) -> bool {
        self.last_event.is_some_and(|heard| now.since(heard) > Span(STALL.0 / 2))
    }
    /// The same state on a disk that is known to be full before anything is decided: no grants until
    /// [`DaemonEvent::DiskFreed`](DaemonEvent::DiskFreed).
    #[must_use]
    pub fn on_a_full_disk(self) -> State {
        State { disk_full: true, ..self }
    }
    /// Whether grants are stopped because nothing can be written.
    pub fn is_disk_full(&self) -> bool {
        self.disk_full
    }

    /// Whether a request for a whole GPU waits, and the smallest size that any other waiter accepts.
    pub fn waiting_sizes(&self) -> (bool, Option<Bytes>) {
        (self.waiting_sizes.contains_key(&None), self.waiting_sizes.keys().find_map(|wish| *wish))
    }

    /// Whether it is its tenant's first waiter.
    pub fn is_first(&self, lease: &Lease) -> bool {
        lease.queued_since().is_some() && self.queue.is_first(lease.tenant, self.place_of(lease))
    }

    /// Where a waiter stands in its tenant's line.
    pub fn place_of(&self, lease: &Lease) -> QueuePlace {
        let arrival = lease.queued_since().unwrap_or(lease.requested);
        let rank = self.policy.rank(&lease.request, arrival, self.ledger.caps(lease.tenant));
        let rank = if self.planted(Mutant::ServeLast) { -rank } else { rank };
        QueuePlace { rank, lease: lease.id, arrival }
    }
}
