//! The state: the durable rows, what is derived from them, and what was seen.
//!
//! One owner, no locks. [`State::apply`] keeps the derived parts in step with
//! the rows; nothing outside this file writes them. What was seen (readings,
//! members, activity) is volatile: unreadable after a start, never journaled.

mod aside;
mod expected;
mod gpus;
pub mod lease_readings;
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

use self::lease_readings::{HintBackoff, LeaseReadings, SignalState, hook_mover};
use self::ledger::{QuotaLedger, TenantLoad};
use self::queue::{Queue, QueuePlace};
use self::room::{Occupancy, Room};
use self::unleased_readings::UnleasedReadings;
use crate::action::Action;
use crate::ids::{GpuId, LeaseId, ProcKey, TenantId, TokenId};
use crate::loss::Loss;
use crate::model::movers::{Backoff, FALSE_REPORT, MoveProgress};
use crate::model::settings::{Policy, Renewal, STALL};
use crate::mutant::Mutant;
use crate::reading::{GpuFacts, GpuReading, Reading};
use crate::request::{GpuSelector, LeaseRequest, Preempt, Term, Vram};
use crate::rows::{EndedLease, Hold, Lease, LeaseEnd, Phase, Rows};
use crate::units::{Bytes, Span, Time};
use gpus::{new_room, outlives_lease, resize_room};
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
    /// How many waiters would do with how much of a card; none is for a whole one.
    waiting_sizes: BTreeMap<Option<Bytes>, usize>,
    rooms: Vec<Room>,
    ledger: QuotaLedger,
    /// What is had through each token, waiting and held.
    by_token: BTreeMap<TokenId, BTreeSet<LeaseId>>,
    due: BTreeSet<(Time, LeaseId)>,
    ending: Vec<BTreeSet<LeaseId>>,
    /// Leases whose bytes are leaving or coming back.
    moving: BTreeSet<LeaseId>,
    /// Host memory that is booked.
    booked_host_memory: Bytes,
    /// Holders that could be made to leave their cards: somebody speaks for them, or they chose to be
    /// ended.
    movable: BTreeSet<LeaseId>,
    /// Holders that the driver brings back. Nobody else is let onto their cards meanwhile.
    restoring: BTreeSet<LeaseId>,
    /// Holders that were told that they have more than their leases.
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
    /// Whether something happened since it was last reckoned whether room could be made, and when that was.
    plan_state: (bool, Time),
    /// By card: whether the last looks showed a holder with more than its lease, and how many of them.
    overuse: Vec<OveruseReadings>,
    /// Host memory that was available at the last look.
    pub(crate) host_memory: Option<Bytes>,
    /// Since when it is the day it is.
    pub(crate) day_seen: Option<Time>,
    /// When it was last remembered what was expected of a waiter.
    expectations_noted: Time,
    unleased: UnleasedReadings,
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
            ending: vec![BTreeSet::new(); rows.gpus.len()],
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
            overuse: vec![OveruseReadings::new(); rows.gpus.len()],
            host_memory: None,
            day_seen: None,
            expectations_noted: Time::ZERO,
            unleased: UnleasedReadings::default(),
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

    fn index(&mut self, lease: &Lease) {
        // Activity is unreadable after a start, and unreadable counts as active.
        let mut live = LeaseReadings { was_busy: !lease.roots.is_empty(), ..LeaseReadings::default() };
        if let Some((rung, at)) = lease.hold().and_then(|hold| hold.history.as_ref()?.false_report) {
            let until = at + self.policy.parking.retry_after_false_report();
            live.backoffs.insert(rung, Backoff { since: at, until, why: FALSE_REPORT.to_owned() });
        }
        if let Some(hold) = lease.hold() {
            self.queue.set_last_served(lease.tenant, hold.granted);
        }
        match &lease.phase {
            Phase::Waiting { .. } => self.enqueue(lease),
            Phase::Active(hold) => self.put_claims(lease, hold),
            Phase::Parking(hold, _) | Phase::Resuming(hold, _) => {
                self.put_claims(lease, hold);
                self.moving.insert(lease.id);
            }
            Phase::Parked(hold, _) => {
                self.put_claims(lease, hold);
                if lease.queued_since().is_some() {
                    self.enqueue(lease);
                }
            }
            Phase::Ending(hold, _) => {
                self.put_claims(lease, hold);
                live.unread_gpus = hold.gpus.iter().copied().collect();
                for card in &hold.gpus {
                    self.ending[card.0 as usize].insert(lease.id);
                }
            }
        }
        self.booked_host_memory = self.booked_host_memory + lease.hold().map_or(Bytes::ZERO, Hold::booked_host_memory);
        if lease.request.has_hook && lease.is_held() {
            live.hooks = hook_mover(lease);
        }
        self.readings.insert(lease.id, live);
        self.index_token(lease);
        self.set_due(lease.id, self.first_due(lease));
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

    /// Makes an action part of the state. Returns what became history by it.
    pub fn apply(&mut self, action: &Action) -> Option<EndedLease> {
        self.unindex(action);
        let booked = self.booked_by(action);
        let ended = self.rows.apply(action);
        let booked_now = self.booked_by(action);
        self.booked_host_memory = self.booked_host_memory.less(booked) + booked_now;
        if matches!(action, Action::Deepen { .. }) {
            // The last look at the host's memory is from before the driver takes what is left.
            self.host_memory = self.host_memory.map(|ram| ram.less(booked_now.less(booked)));
        }
        self.reindex(action, ended.as_ref());
        if let Some(lease) = action.lease() {
            self.set_movable(lease);
            self.plan_state.0 = true;
        }
        ended
    }

    fn booked_by(&self, action: &Action) -> Bytes {
        let row = action.lease().and_then(|lease| self.rows.leases.get(&lease));
        row.and_then(Lease::hold).map_or(Bytes::ZERO, Hold::booked_host_memory)
    }

    /// What must be known of the old row, before it changes.
    fn unindex(&mut self, action: &Action) {
        if let Action::End { lease, .. } = action {
            self.unindex_token(*lease);
        }
        match action {
            Action::Grant { lease, .. } | Action::Resume { lease, .. } | Action::End { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease)
                    && row.queued_since().is_some()
                {
                    let (tenant, place) = (row.tenant, self.place_of(row));
                    let wish = least_acceptable(&row.request);
                    self.queue.remove(tenant, place);
                    if let Some(count) = self.waiting_sizes.get_mut(&wish) {
                        *count -= 1;
                        if *count == 0 {
                            self.waiting_sizes.remove(&wish);
                        }
                    }
                    self.ledger.update(tenant, |load| load.waiting -= 1);
                    self.queue.unskip_tenant(tenant);
                }
            }
            Action::Retire { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease)
                    && let Phase::Ending(hold, _) = &row.phase
                {
                    for card in &hold.gpus {
                        self.rooms[card.0 as usize].vacate(*lease);
                        self.ending[card.0 as usize].remove(lease);
                    }
                    let (tenant, load) = (row.tenant, TenantLoad::of_lease(&row.request, hold));
                    self.ledger.update(tenant, |books| books.subtract(&load));
                    self.unskip_quota_group(tenant);
                }
            }
            // A lease that ends while it is parked counts until its cards were seen again, like any.
            Action::Parked { lease, .. } | Action::Grow { lease, .. } => self.update_load(*lease, TenantLoad::subtract),
            _ => {}
        }
    }

    /// Puts a lease on the books, or takes it off.
    fn update_load(&mut self, lease: LeaseId, change: fn(&mut TenantLoad, &TenantLoad)) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Some(hold) = row.hold() else { return };
        let (tenant, load) = (row.tenant, TenantLoad::of_lease(row.first_request(), hold));
        self.ledger.update(tenant, |books| change(books, &load));
    }

    /// Quotas may have room again, of a tenant and of its groups.
    fn unskip_quota_group(&mut self, tenant: TenantId) {
        self.queue.unskip_tenant(tenant);
        for mate in self.ledger.group_members(tenant) {
            self.queue.unskip_tenant(mate);
        }
    }

    fn unskip_all(&mut self) {
        for tenant in self.queue.skipped_tenants().collect::<Vec<_>>() {
            self.queue.unskip_tenant(tenant);
        }
    }

    fn index_token(&mut self, lease: &Lease) {
        if let Some(token) = lease.token.filter(|_| !matches!(lease.phase, Phase::Ending(..))) {
            self.by_token.entry(token).or_default().insert(lease.id);
        }
    }

    /// What has ended is not had any more, although its bytes count until its cards were seen again.
    fn unindex_token(&mut self, lease: LeaseId) {
        if let Some(token) = self.rows.leases.get(&lease).and_then(|row| row.token)
            && let Some(leases) = self.by_token.get_mut(&token)
        {
            leases.remove(&lease);
            if leases.is_empty() {
                self.by_token.remove(&token);
            }
        }
    }

    /// The leases had through a token, waiting and held.
    pub(crate) fn leases_of_token(&self, token: TokenId) -> impl Iterator<Item = &Lease> {
        self.by_token.get(&token).into_iter().flatten().filter_map(|lease| self.lease(*lease))
    }

    /// Puts a waiter into its line.
    fn enqueue(&mut self, lease: &Lease) {
        let place = self.place_of(lease);
        self.queue.insert(lease.tenant, place);
        *self.waiting_sizes.entry(least_acceptable(&lease.request)).or_default() += 1;
        self.ledger.update(lease.tenant, |load| load.waiting += 1);
        self.queue.unskip_tenant(lease.tenant);
    }

    pub(crate) fn skip_tenant(&mut self, tenant: TenantId) {
        self.queue.skip_tenant(tenant);
    }

    fn reindex(&mut self, action: &Action, ended: Option<&EndedLease>) {
        match action {
            Action::Enrol { tenant, name } => {
                self.names.insert(name.clone(), *tenant);
                self.ledger.enrol(&self.rows.tenants[tenant.0 as usize], &self.policy);
            }
            Action::Regroup { .. } => self.recount(),
            Action::Day { .. } => self.unskip_all(),
            Action::List { card, facts } => {
                match self.rooms.get_mut(card.0 as usize) {
                    Some(room) => resize_room(room, &self.policy, facts),
                    None => {
                        self.rooms.push(new_room(&self.policy, facts));
                        self.ending.push(BTreeSet::new());
                        self.overuse.push(OveruseReadings::new());
                    }
                }
                self.gpu_ids.insert(facts.uuid.clone(), *card);
                // What a whole card is may be another size now, and more than its tenant may ever have.
                self.unskip_all();
            }
            Action::Queue { lease, .. } => {
                let row = self.rows.leases[lease].clone();
                self.enqueue(&row);
                self.index_token(&row);
                self.readings.insert(*lease, LeaseReadings::default());
                if let Action::Queue { root: Some(root), .. } = action {
                    self.add_member(*lease, *root);
                }
                self.set_due(*lease, self.first_due(&row));
            }
            Action::Grant { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease).cloned()
                    && let Phase::Active(hold) = &row.phase
                {
                    self.put_claims(&row, hold);
                    self.set_due(*lease, self.first_due(&row));
                    if row.request.has_hook {
                        self.readings.entry(*lease).or_default().hooks = hook_mover(&row);
                    }
                    self.update_debt_clock(row.tenant);
                    self.queue.set_last_served(row.tenant, hold.granted);
                }
            }
            Action::Renew { lease, .. } => {
                if let Some(live) = self.readings.get_mut(lease) {
                    live.was_busy = false;
                }
                self.set_ends(*lease);
                self.set_due(*lease, self.rows.leases.get(lease).and_then(|row| self.first_due(row)));
            }
            Action::Bind { lease, process } => self.add_member(*lease, *process),
            Action::Over { .. } => {}
            Action::Within { lease } => self.forget_overuse(*lease),
            Action::Grow { lease, .. } => {
                self.update_load(*lease, TenantLoad::add);
                self.set_reserved(*lease);
                self.set_ends(*lease);
                self.forget_overuse(*lease);
            }
            Action::Deepen { lease, .. } | Action::Shallow { lease, .. } => self.set_movable(*lease),
            Action::Park { lease, .. } | Action::Unpark { lease, .. } | Action::Retreat { lease, .. } => {
                self.moving.insert(*lease);
                self.forget_overuse(*lease);
                self.move_on(*lease);
                if self.planted(Mutant::LeavingIsGone) && matches!(action, Action::Park { .. }) {
                    let all = self.rooms.iter_mut();
                    all.for_each(|room| room.reserve(*lease, Bytes::ZERO, Time::ZERO, false));
                }
            }
            Action::Parked { lease, .. } => {
                self.moving.remove(lease);
                // The last look at the host's memory may be from before these bytes came.
                let booked = self.booked_by(action);
                self.host_memory = self.host_memory.map(|ram| ram.less(booked));
                self.move_on(*lease);
                self.set_reserved(*lease);
                if let Some(tenant) = self.rows.leases.get(lease).map(|row| row.tenant) {
                    self.unskip_quota_group(tenant);
                }
            }
            Action::Want { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease).cloned() {
                    self.enqueue(&row);
                }
            }
            Action::Resume { lease, at, .. } => {
                self.moving.insert(*lease);
                self.update_load(*lease, TenantLoad::add);
                self.move_on(*lease);
                self.set_reserved(*lease);
                if let Some(tenant) = self.rows.leases.get(lease).map(|row| row.tenant) {
                    self.queue.set_last_served(tenant, *at);
                }
                if let Some(live) = self.readings.get_mut(lease) {
                    // It was not on its card: what it does from now on counts.
                    live.was_busy = true;
                }
            }
            Action::Resumed { lease, .. } => {
                self.moving.remove(lease);
                self.move_on(*lease);
            }
            Action::End { lease, .. } => {
                self.moving.remove(lease);
                self.set_due(*lease, self.rows.leases.get(lease).and_then(|row| self.first_due(row)));
                if self.end_parked(*lease) {
                    self.update_load(*lease, TenantLoad::add);
                }
                self.set_ends(*lease);
                if let Some(ended) = ended {
                    self.update_debt_clock(ended.tenant);
                }
                match self.rows.leases.get(lease).and_then(Lease::hold) {
                    Some(hold) => {
                        let unseen: BTreeSet<GpuId> = hold.gpus.iter().copied().collect();
                        for card in &unseen {
                            self.ending[card.0 as usize].insert(*lease);
                        }
                        self.readings.entry(*lease).or_default().unread_gpus = unseen;
                    }
                    None => self.drop_readings(*lease),
                }
            }
            Action::Retire { lease, .. } => self.drop_readings(*lease),
            Action::Notice { lease, .. } | Action::Spare { lease } => {
                self.set_ends(*lease);
                self.set_due(*lease, self.rows.leases.get(lease).and_then(|row| self.first_due(row)));
            }
            Action::Signal { lease, .. } => {
                if let Some(live) = self.readings.get_mut(lease) {
                    live.last_signal = Some(SignalState::Pending);
                }
                self.set_due(*lease, self.rows.leases.get(lease).and_then(|row| self.first_due(row)));
            }
            Action::EndAside { card, .. } => self.look_at_parked_on(*card),
            Action::Start { .. }
            | Action::Died { .. }
            | Action::Grace { .. }
            | Action::Serve { .. }
            | Action::IssueToken { .. }
            | Action::RevokeToken { .. }
            | Action::SetMode { .. }
            | Action::SetAside { .. }
            | Action::SetRule { .. }
            | Action::DropRule { .. }
            | Action::AcceptLoss { .. } => {}
            Action::Find { .. }
            | Action::Reaudit { .. }
            | Action::Warn { .. }
            | Action::Strike { .. }
            | Action::Struck { .. }
            | Action::Take { .. }
            | Action::NotMoved { .. }
            | Action::Relent { .. }
            | Action::Survived { .. }
            | Action::Close { .. } => self.reindex_unleased(action),
        }
    }

    /// A lease is in another phase of being parked.
    fn move_on(&mut self, lease: LeaseId) {
        if let Some(live) = self.readings.get_mut(&lease) {
            live.progress = MoveProgress::default();
        }
        self.set_ends(lease);
        self.set_due(lease, self.rows.leases.get(&lease).and_then(|row| self.first_due(row)));
    }

    /// Its cards are its own again, or are not any more.
    fn set_reserved(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Some(hold) = row.hold() else { return };
        let (reserved, parked, ends) = (row.reserved(), !row.is_on_gpus(), self.ends_by(row, hold));
        for card in hold.gpus.clone() {
            self.rooms[card.0 as usize].reserve(lease, reserved, ends, parked);
        }
    }

    /// A parked lease that ends has no work on its cards, only what is seen of it. Says whether it was one.
    fn end_parked(&mut self, lease: LeaseId) -> bool {
        let cards = self.rows.leases.get(&lease).and_then(Lease::hold).map(|hold| hold.gpus.clone());
        let mut was = false;
        for card in cards.unwrap_or_default() {
            let room = &mut self.rooms[card.0 as usize];
            if room.leases().get(&lease).is_some_and(|claim| claim.is_parked) {
                room.reserve(lease, Bytes::ZERO, Time::ZERO, false);
                was = true;
            }
        }
        was
    }

    fn put_claims(&mut self, lease: &Lease, hold: &Hold) {
        let ends = self.ends_by(lease, hold);
        let parked = !lease.is_on_gpus();
        for card in &hold.gpus {
            let claim = Occupancy {
                tenant: lease.tenant,
                reserved: lease.reserved(),
                seen: Bytes::ZERO,
                exclusivity: lease.request.exclusivity,
                ends_by: ends,
                outlives_lease: outlives_lease(lease),
                is_parked: parked,
            };
            self.rooms[card.0 as usize].occupy(lease.id, claim);
        }
        if parked {
            return;
        }
        let load = TenantLoad::of_lease(&lease.request, hold);
        self.ledger.update(lease.tenant, |books| books.add(&load));
    }

    /// A lease's end may have moved, and its tenant's mark with it.
    fn set_ends(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let tenant = row.tenant;
        if let Some(hold) = row.hold() {
            let (ends, lives_on) = (self.ends_by(row, hold), outlives_lease(row));
            for card in hold.gpus.clone() {
                self.rooms[card.0 as usize].set_ends(lease, ends, lives_on);
            }
        }
        self.update_debt_clock(tenant);
        if matches!(self.rows.leases[&lease].phase, Phase::Ending(..)) {
            // What was charged ahead is given back.
            self.unskip_quota_group(tenant);
        }
    }

    fn update_debt_clocks(&mut self) {
        (0..self.rows.tenants.len() as u32).for_each(|tenant| self.update_debt_clock(TenantId(tenant)));
    }

    fn update_debt_clock(&mut self, tenant: TenantId) {
        let row = &self.rows.tenants[tenant.0 as usize];
        self.queue.set_debt_clock(tenant, row.debt_clock, self.policy.first_since_of(row));
    }

    /// When something that [`State::ends_by`] some time really is over: not within a grace.
    pub(crate) fn ends_after_grace(&self, ends: Time, now: Time) -> Time {
        if ends == Time::ZERO { now } else { ends.max(now).max(self.rows.meta.grace_until) }
    }

    /// When a holder gives its room back at the latest while somebody waits for it: zero if it is
    /// over already, the end of time if nobody can say.
    pub fn ends_by(&self, lease: &Lease, hold: &Hold) -> Time {
        match (&lease.phase, hold.notice) {
            (Phase::Ending(..) | Phase::Parking(..), _) => Time::ZERO,
            (_, Some(told)) => told.at().min(self.leaves_by_itself_at(lease, hold)),
            _ => self.leaves_by_itself_at(lease, hold),
        }
    }

    /// The same of a holder that stays on its cards, should it be on its way off them.
    pub fn leaves_by_itself_at(&self, lease: &Lease, hold: &Hold) -> Time {
        let cap = hold.slice_began() + self.policy.hold_max;
        match lease.request.term {
            Term::Fixed(_) => hold.until,
            // Who was let past somebody leaves in time, whatever it chose.
            Term::Renewed(_) if lease.request.preempt == Preempt::Never => {
                hold.not_beyond.map_or(Time::NEVER, |before| hold.until.max(before))
            }
            Term::Renewed(_) if hold.idle => hold.until,
            Term::Renewed(_) => hold.until.max(hold.not_beyond.map_or(cap, |before| before.min(cap))),
        }
    }

    fn drop_readings(&mut self, lease: LeaseId) {
        self.set_due(lease, None);
        for process in self.readings.remove(&lease).unwrap_or_default().members {
            if self.owners.get(&process) == Some(&lease) {
                self.owners.remove(&process);
            }
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
        held.into_iter().for_each(|lease| self.set_ends(lease));
        // A shorter limit on how long leases stay parked holds for those that are; when one comes due, it is looked at.
        let parked: Vec<Lease> =
            self.rows.leases.values().filter(|l| matches!(l.phase, Phase::Parked(..))).cloned().collect();
        parked.iter().for_each(|row| self.set_due(row.id, self.first_due(row)));
    }

    /// Counts anew what quotas count, and lines everybody up again: the rules changed, or a group.
    fn recount(&mut self) {
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
                self.enqueue(&lease);
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
        let room = &mut self.rooms[card.0 as usize];
        // Where nobody tells whose bytes are whose, nobody knows a peak.
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

    /// Notes that a card of an ended lease was seen again: nothing counts for it there any more.
    /// Says whether all its cards were.
    pub(crate) fn note_read_after_end(&mut self, lease: LeaseId, card: GpuId) -> bool {
        self.rooms[card.0 as usize].vacate(lease);
        self.ending[card.0 as usize].remove(&lease);
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
            // Who is ended for others gets its signals in time.
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

    // ---- looking -----------------------------------------------------------

    /// The durable part.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }
    /// The rules of the house.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
    /// Who waits.
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
        &self.rows.tenants[tenant.0 as usize].name
    }
    /// What tenants and groups have on the books, and may have.
    pub fn ledger(&self) -> &QuotaLedger {
        &self.ledger
    }
    /// All memory of all known cards.
    pub fn total(&self) -> Bytes {
        self.rows.gpus.iter().map(|card| card.facts.total).sum()
    }
    /// A card by UUID.
    pub fn gpu(&self, uuid: &str) -> Option<GpuId> {
        self.gpu_ids.get(uuid).copied()
    }
    /// All cards.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> + use<> {
        (0..self.rooms.len() as u16).map(GpuId)
    }
    /// A card's books.
    pub fn room(&self, card: GpuId) -> &Room {
        &self.rooms[card.0 as usize]
    }
    /// Ended leases whose bytes still count on a card.
    pub fn ending_leases_on(&self, card: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
        self.ending[card.0 as usize].iter().copied()
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
    /// Host memory that was available at the last look.
    pub fn host_memory(&self) -> Option<Bytes> {
        self.host_memory
    }
    pub(crate) fn readings_mut(&mut self, id: LeaseId) -> Option<&mut LeaseReadings> {
        self.readings.get_mut(&id)
    }
    /// Compute processes on a card that belong to no lease there.
    pub fn unleased_compute_processes(&self, card: GpuId) -> usize {
        self.room(card).unleased_compute_processes(|process| self.owner(process))
    }
    /// All processes on a card that belong to no lease there.
    pub(crate) fn unleased_processes_on(&self, card: GpuId) -> usize {
        self.room(card).unleased_processes(|process| self.owner(process))
    }
    /// Whether the driver lists the card now.
    pub fn is_listed(&self, card: GpuId) -> bool {
        self.listed_gpus.contains(&card)
    }
    /// What the driver lists now.
    pub fn listed_facts(&self) -> Vec<GpuFacts> {
        self.listed_gpus.iter().map(|card| self.rows.gpus[card.0 as usize].facts.clone()).collect()
    }
    /// Whether nothing was heard for so long that a tick is overdue.
    pub fn is_tick_overdue(&self, now: Time) -> bool {
        self.last_event.is_some_and(|heard| now.since(heard) > Span(STALL.0 / 2))
    }
    /// The same state on a disk that is known to be full before anything is decided: no grants until
    /// [`Event::DiskFreed`](crate::event::Event::DiskFreed).
    #[must_use]
    pub fn on_a_full_disk(self) -> State {
        State { disk_full: true, ..self }
    }
    /// Whether grants are stopped because nothing can be written.
    pub fn is_disk_full(&self) -> bool {
        self.disk_full
    }

    /// Whether somebody waits for a whole card, and the least that any of the others would do with.
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

/// The least of a card that an ask would do with; nothing for a whole card.
fn least_acceptable(ask: &LeaseRequest) -> Option<Bytes> {
    // What a parked holder lacks changes with what is left of it on its cards.
    let returns = matches!(ask.gpus_allowed, Some(GpuSelector::These(_))).then_some(Bytes(1));
    returns.or(ask.at_least).or(match ask.vram {
        Vram::Bytes(vram) => Some(vram),
        Vram::Whole => None,
    })
}
