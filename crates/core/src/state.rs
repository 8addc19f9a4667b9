//! The state: the durable rows, what is derived from them, and what was seen.
//!
//! One owner, no locks. [`State::apply`] keeps the derived parts in step with
//! the rows; nothing outside this file writes them. What was seen (readings,
//! members, activity) is volatile: unreadable after a start, never journaled.

mod expected;
mod gpus;
mod members;
mod movable;
mod overuse;
mod unleased;
mod withdraw;

use crate::action::Action;
use crate::decide::STALL;
use crate::ids::{GpuId, LeaseId, ProcKey, TenantId, TokenId};
use crate::lease_readings::{HintBackoff, LeaseReadings, SignalState, hook};
use crate::loss::Loss;
use crate::mutant::Mutant;
use crate::parking::{Backoff, LIED, MoveProgress};
use crate::policy::{Policy, Renewal};
use crate::queue::{Queue, QueuePlace};
use crate::quota::{QuotaLedger, TenantLoad};
use crate::reading::{GpuFacts, GpuReading, Reading};
use crate::request::{GpuSelector, LeaseRequest, Preempt, Term, Vram};
use crate::room::{Occupancy, Room};
use crate::rows::{EndedLease, Hold, Lease, LeaseEnd, Phase, Rows};
use crate::units::{Bytes, Span, Time};
use crate::unleased_readings::UnleasedReadings;
use gpus::{fit_room, lives_on, new_room};
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
    slots: BTreeMap<String, GpuId>,
    queue: Queue,
    /// How many waiters would do with how much of a card; none is for a whole one.
    wishes: BTreeMap<Option<Bytes>, usize>,
    rooms: Vec<Room>,
    books: QuotaLedger,
    /// What is had through each token, waiting and held.
    through: BTreeMap<TokenId, BTreeSet<LeaseId>>,
    due: BTreeSet<(Time, LeaseId)>,
    ending: Vec<BTreeSet<LeaseId>>,
    /// Leases whose bytes are leaving or coming back.
    moving: BTreeSet<LeaseId>,
    /// Host memory that is booked.
    booked: Bytes,
    /// Holders that could be made to leave their cards: somebody speaks for them, or they chose to be
    /// ended.
    movable: BTreeSet<LeaseId>,
    /// Holders that the driver brings back. Nobody else is let onto their cards meanwhile.
    restoring: BTreeSet<LeaseId>,
    /// Holders that were told that they have more than their leases.
    over: BTreeSet<LeaseId>,
    /// Parked leases that come back only into room that no waiter claims.
    passive: BTreeSet<LeaseId>,
    // Seen, and gone with the process.
    lives: BTreeMap<LeaseId, LeaseReadings>,
    owners: BTreeMap<ProcKey, LeaseId>,
    listed: BTreeSet<GpuId>,
    pub(crate) heard: Option<Time>,
    pub(crate) disk_full: bool,
    /// Lines that are missing from the journal, until an operator accepts that.
    pub(crate) loss: Option<Loss>,
    /// Whether something happened since it was last reckoned whether room could be made, and when that was.
    planned: (bool, Time),
    /// By card: whether the last looks showed a holder with more than its lease, and how many of them.
    excess: Vec<OveruseReadings>,
    /// Host memory that was available at the last look.
    pub(crate) ram: Option<Bytes>,
    /// Since when it is the day it is.
    pub(crate) day_seen: Option<Time>,
    /// When it was last remembered what was expected of a waiter.
    remembered: Time,
    watchlist: UnleasedReadings,
    mutant: Option<Mutant>,
}

impl State {
    /// The state after a start: the rows, and nothing seen yet.
    pub fn new(rows: Rows, policy: Policy) -> State {
        let mut state = State {
            names: rows.tenants.iter().zip(0..).map(|(t, n)| (t.name.clone(), TenantId(n))).collect(),
            slots: rows.cards.iter().zip(0..).map(|(c, n)| (c.facts.uuid.clone(), GpuId(n))).collect(),
            queue: Queue::new(policy.debt_max),
            wishes: BTreeMap::new(),
            rooms: rows.cards.iter().map(|card| new_room(&policy, &card.facts)).collect(),
            books: QuotaLedger::new(&rows, &policy),
            through: BTreeMap::new(),
            due: BTreeSet::new(),
            ending: vec![BTreeSet::new(); rows.cards.len()],
            moving: BTreeSet::new(),
            booked: Bytes::ZERO,
            movable: BTreeSet::new(),
            restoring: BTreeSet::new(),
            over: BTreeSet::new(),
            passive: BTreeSet::new(),
            lives: BTreeMap::new(),
            owners: BTreeMap::new(),
            listed: BTreeSet::new(),
            heard: None,
            disk_full: false,
            loss: None,
            planned: (false, Time::ZERO),
            excess: vec![OveruseReadings::new(); rows.cards.len()],
            ram: None,
            day_seen: None,
            remembered: Time::ZERO,
            watchlist: UnleasedReadings::default(),
            mutant: None,
            rows: Rows::default(),
            policy,
        };
        state.rows.tenants.clone_from(&rows.tenants);
        state.set_marks();
        for lease in rows.leases.values() {
            state.index(lease);
        }
        state.rows = rows;
        state.list_strangers();
        for lease in state.rows.leases.keys().copied().collect::<Vec<_>>() {
            state.set_movable(lease);
        }
        state
    }

    fn index(&mut self, lease: &Lease) {
        // Activity is unreadable after a start, and unreadable counts as active.
        let mut live = LeaseReadings { worked: !lease.roots.is_empty(), ..LeaseReadings::default() };
        if let Some((rung, at)) = lease.hold().and_then(|hold| hold.turns.as_ref()?.lied) {
            let until = at + self.policy.parking.distrust();
            live.rests.insert(rung, Backoff { since: at, until, why: LIED.to_owned() });
        }
        if let Some(hold) = lease.hold() {
            self.queue.set_served(lease.tenant, hold.granted);
        }
        match &lease.phase {
            Phase::Waiting { .. } => self.line_up(lease),
            Phase::Active(hold) => self.put_claims(lease, hold),
            Phase::Parking(hold, _) | Phase::Resuming(hold, _) => {
                self.put_claims(lease, hold);
                self.moving.insert(lease.id);
            }
            Phase::Parked(hold, _) => {
                self.put_claims(lease, hold);
                if lease.queued().is_some() {
                    self.line_up(lease);
                }
            }
            Phase::Ending(hold, _) => {
                self.put_claims(lease, hold);
                live.unseen = hold.cards.iter().copied().collect();
                for card in &hold.cards {
                    self.ending[card.0 as usize].insert(lease.id);
                }
            }
        }
        self.booked = self.booked + lease.hold().map_or(Bytes::ZERO, Hold::booked);
        if lease.ask.yields && lease.is_held() {
            live.hooks = hook(lease);
        }
        self.lives.insert(lease.id, live);
        self.came_through(lease);
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
        self.booked = self.booked.less(booked) + booked_now;
        if matches!(action, Action::Deepen { .. }) {
            // The last look at the host's memory is from before the driver takes what is left.
            self.ram = self.ram.map(|ram| ram.less(booked_now.less(booked)));
        }
        self.reindex(action, ended.as_ref());
        if let Some(lease) = action.lease() {
            self.set_movable(lease);
            self.planned.0 = true;
        }
        ended
    }

    fn booked_by(&self, action: &Action) -> Bytes {
        let row = action.lease().and_then(|lease| self.rows.leases.get(&lease));
        row.and_then(Lease::hold).map_or(Bytes::ZERO, Hold::booked)
    }

    /// What must be known of the old row, before it changes.
    fn unindex(&mut self, action: &Action) {
        if let Action::End { lease, .. } = action {
            self.ended_through(*lease);
        }
        match action {
            Action::Grant { lease, .. } | Action::Resume { lease, .. } | Action::End { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease)
                    && row.queued().is_some()
                {
                    let (tenant, place) = (row.tenant, self.place_of(row));
                    let wish = least(&row.ask);
                    self.queue.remove(tenant, place);
                    if let Some(count) = self.wishes.get_mut(&wish) {
                        *count -= 1;
                        if *count == 0 {
                            self.wishes.remove(&wish);
                        }
                    }
                    self.books.book(tenant, |load| load.waiting -= 1);
                    self.queue.come_back(tenant);
                }
            }
            Action::Retire { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease)
                    && let Phase::Ending(hold, _) = &row.phase
                {
                    for card in &hold.cards {
                        self.rooms[card.0 as usize].unclaim(*lease);
                        self.ending[card.0 as usize].remove(lease);
                    }
                    let (tenant, load) = (row.tenant, TenantLoad::of(&row.ask, hold));
                    self.books.book(tenant, |books| books.take_off(&load));
                    self.call_back(tenant);
                }
            }
            // A lease that ends while it is parked counts until its cards were seen again, like any.
            Action::Parked { lease, .. } | Action::Grow { lease, .. } => self.weigh(*lease, TenantLoad::take_off),
            _ => {}
        }
    }

    /// Puts a lease on the books, or takes it off.
    fn weigh(&mut self, lease: LeaseId, change: fn(&mut TenantLoad, &TenantLoad)) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Some(hold) = row.hold() else { return };
        let (tenant, load) = (row.tenant, TenantLoad::of(row.first_ask(), hold));
        self.books.book(tenant, |books| change(books, &load));
    }

    /// Quotas may have room again, of a tenant and of its groups.
    fn call_back(&mut self, tenant: TenantId) {
        self.queue.come_back(tenant);
        for mate in self.books.mates(tenant) {
            self.queue.come_back(mate);
        }
    }

    fn call_all_back(&mut self) {
        for tenant in self.queue.aside().collect::<Vec<_>>() {
            self.queue.come_back(tenant);
        }
    }

    fn came_through(&mut self, lease: &Lease) {
        if let Some(token) = lease.token.filter(|_| !matches!(lease.phase, Phase::Ending(..))) {
            self.through.entry(token).or_default().insert(lease.id);
        }
    }

    /// What has ended is not had any more, although its bytes count until its cards were seen again.
    fn ended_through(&mut self, lease: LeaseId) {
        if let Some(token) = self.rows.leases.get(&lease).and_then(|row| row.token)
            && let Some(leases) = self.through.get_mut(&token)
        {
            leases.remove(&lease);
            if leases.is_empty() {
                self.through.remove(&token);
            }
        }
    }

    /// The leases had through a token, waiting and held.
    pub(crate) fn had_through(&self, token: TokenId) -> impl Iterator<Item = &Lease> {
        self.through.get(&token).into_iter().flatten().filter_map(|lease| self.lease(*lease))
    }

    /// Puts a waiter into its line.
    fn line_up(&mut self, lease: &Lease) {
        let place = self.place_of(lease);
        self.queue.insert(lease.tenant, place);
        *self.wishes.entry(least(&lease.ask)).or_default() += 1;
        self.books.book(lease.tenant, |load| load.waiting += 1);
        self.queue.come_back(lease.tenant);
    }

    pub(crate) fn stand_aside(&mut self, tenant: TenantId) {
        self.queue.stand_aside(tenant);
    }

    fn reindex(&mut self, action: &Action, ended: Option<&EndedLease>) {
        match action {
            Action::Enrol { tenant, name } => {
                self.names.insert(name.clone(), *tenant);
                self.books.enrol(&self.rows.tenants[tenant.0 as usize], &self.policy);
            }
            Action::Regroup { .. } => self.recount(),
            Action::Day { .. } => self.call_all_back(),
            Action::List { card, facts } => {
                match self.rooms.get_mut(card.0 as usize) {
                    Some(room) => fit_room(room, &self.policy, facts),
                    None => {
                        self.rooms.push(new_room(&self.policy, facts));
                        self.ending.push(BTreeSet::new());
                        self.excess.push(OveruseReadings::new());
                    }
                }
                self.slots.insert(facts.uuid.clone(), *card);
                // What a whole card is may be another size now, and more than its tenant may ever have.
                self.call_all_back();
            }
            Action::Queue { lease, .. } => {
                let row = self.rows.leases[lease].clone();
                self.line_up(&row);
                self.came_through(&row);
                self.lives.insert(*lease, LeaseReadings::default());
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
                    if row.ask.yields {
                        self.lives.entry(*lease).or_default().hooks = hook(&row);
                    }
                    self.set_mark(row.tenant);
                    self.queue.set_served(row.tenant, hold.granted);
                }
            }
            Action::Renew { lease, .. } => {
                if let Some(live) = self.lives.get_mut(lease) {
                    live.worked = false;
                }
                self.set_ends(*lease);
                self.set_due(*lease, self.rows.leases.get(lease).and_then(|row| self.first_due(row)));
            }
            Action::Bind { lease, process } => self.add_member(*lease, *process),
            Action::Over { .. } => {}
            Action::Within { lease } => self.forget_excess(*lease),
            Action::Grow { lease, .. } => {
                self.weigh(*lease, TenantLoad::put_on);
                self.set_reserved(*lease);
                self.set_ends(*lease);
                self.forget_excess(*lease);
            }
            Action::Deepen { lease, .. } | Action::Shallow { lease, .. } => self.set_movable(*lease),
            Action::Park { lease, .. } | Action::Unpark { lease, .. } | Action::Retreat { lease, .. } => {
                self.moving.insert(*lease);
                self.forget_excess(*lease);
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
                self.ram = self.ram.map(|ram| ram.less(booked));
                self.move_on(*lease);
                self.set_reserved(*lease);
                if let Some(tenant) = self.rows.leases.get(lease).map(|row| row.tenant) {
                    self.call_back(tenant);
                }
            }
            Action::Want { lease, .. } => {
                if let Some(row) = self.rows.leases.get(lease).cloned() {
                    self.line_up(&row);
                }
            }
            Action::Resume { lease, at, .. } => {
                self.moving.insert(*lease);
                self.weigh(*lease, TenantLoad::put_on);
                self.move_on(*lease);
                self.set_reserved(*lease);
                if let Some(tenant) = self.rows.leases.get(lease).map(|row| row.tenant) {
                    self.queue.set_served(tenant, *at);
                }
                if let Some(live) = self.lives.get_mut(lease) {
                    // It was not on its card: what it does from now on counts.
                    live.worked = true;
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
                    self.weigh(*lease, TenantLoad::put_on);
                }
                self.set_ends(*lease);
                if let Some(ended) = ended {
                    self.set_mark(ended.tenant);
                }
                match self.rows.leases.get(lease).and_then(Lease::hold) {
                    Some(hold) => {
                        let unseen: BTreeSet<GpuId> = hold.cards.iter().copied().collect();
                        for card in &unseen {
                            self.ending[card.0 as usize].insert(*lease);
                        }
                        self.lives.entry(*lease).or_default().unseen = unseen;
                    }
                    None => self.drop_live(*lease),
                }
            }
            Action::Retire { lease, .. } => self.drop_live(*lease),
            Action::Notice { lease, .. } | Action::Spare { lease } => {
                self.set_ends(*lease);
                self.set_due(*lease, self.rows.leases.get(lease).and_then(|row| self.first_due(row)));
            }
            Action::Signal { lease, .. } => {
                if let Some(live) = self.lives.get_mut(lease) {
                    live.sent = Some(SignalState::Soon);
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
            | Action::Close { .. } => self.note_stranger(action),
        }
    }

    /// A lease is in another phase of being parked.
    fn move_on(&mut self, lease: LeaseId) {
        if let Some(live) = self.lives.get_mut(&lease) {
            live.watch = MoveProgress::default();
        }
        self.set_ends(lease);
        self.set_due(lease, self.rows.leases.get(&lease).and_then(|row| self.first_due(row)));
    }

    /// Its cards are its own again, or are not any more.
    fn set_reserved(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let Some(hold) = row.hold() else { return };
        let (reserved, parked, ends) = (row.reserved(), !row.is_on_cards(), self.ends_by(row, hold));
        for card in hold.cards.clone() {
            self.rooms[card.0 as usize].reserve(lease, reserved, ends, parked);
        }
    }

    /// A parked lease that ends has no work on its cards, only what is seen of it. Says whether it was one.
    fn end_parked(&mut self, lease: LeaseId) -> bool {
        let cards = self.rows.leases.get(&lease).and_then(Lease::hold).map(|hold| hold.cards.clone());
        let mut was = false;
        for card in cards.unwrap_or_default() {
            let room = &mut self.rooms[card.0 as usize];
            if room.claims().get(&lease).is_some_and(|claim| claim.parked) {
                room.reserve(lease, Bytes::ZERO, Time::ZERO, false);
                was = true;
            }
        }
        was
    }

    fn put_claims(&mut self, lease: &Lease, hold: &Hold) {
        let ends = self.ends_by(lease, hold);
        let parked = !lease.is_on_cards();
        for card in &hold.cards {
            let claim = Occupancy {
                tenant: lease.tenant,
                reserved: lease.reserved(),
                seen: Bytes::ZERO,
                exclusivity: lease.ask.exclusivity,
                ends,
                lives_on: lives_on(lease),
                parked,
            };
            self.rooms[card.0 as usize].claim(lease.id, claim);
        }
        if parked {
            return;
        }
        let load = TenantLoad::of(&lease.ask, hold);
        self.books.book(lease.tenant, |books| books.put_on(&load));
    }

    /// A lease's end may have moved, and its tenant's mark with it.
    fn set_ends(&mut self, lease: LeaseId) {
        let Some(row) = self.rows.leases.get(&lease) else { return };
        let tenant = row.tenant;
        if let Some(hold) = row.hold() {
            let (ends, lives_on) = (self.ends_by(row, hold), lives_on(row));
            for card in hold.cards.clone() {
                self.rooms[card.0 as usize].set_ends(lease, ends, lives_on);
            }
        }
        self.set_mark(tenant);
        if matches!(self.rows.leases[&lease].phase, Phase::Ending(..)) {
            // What was charged ahead is given back.
            self.call_back(tenant);
        }
    }

    fn set_marks(&mut self) {
        (0..self.rows.tenants.len() as u32).for_each(|tenant| self.set_mark(TenantId(tenant)));
    }

    fn set_mark(&mut self, tenant: TenantId) {
        let row = &self.rows.tenants[tenant.0 as usize];
        self.queue.set_mark(tenant, row.mark, self.policy.turn(row));
    }

    /// When something that [`State::ends_by`] some time really is over: not within a grace.
    pub(crate) fn over_by(&self, ends: Time, now: Time) -> Time {
        if ends == Time::ZERO { now } else { ends.max(now).max(self.rows.meta.grace_until) }
    }

    /// When a holder gives its room back at the latest while somebody waits for it: zero if it is
    /// over already, the end of time if nobody can say.
    pub fn ends_by(&self, lease: &Lease, hold: &Hold) -> Time {
        match (&lease.phase, hold.notice) {
            (Phase::Ending(..) | Phase::Parking(..), _) => Time::ZERO,
            (_, Some(told)) => told.at().min(self.holds_to(lease, hold)),
            _ => self.holds_to(lease, hold),
        }
    }

    /// The same of a holder that stays on its cards, should it be on its way off them.
    pub fn holds_to(&self, lease: &Lease, hold: &Hold) -> Time {
        let cap = hold.began() + self.policy.hold_cap;
        match lease.ask.term {
            Term::Fixed(_) => hold.until,
            // Who was let past somebody leaves in time, whatever it chose.
            Term::Renewed(_) if lease.ask.preempt == Preempt::Never => {
                hold.before.map_or(Time::NEVER, |before| hold.until.max(before))
            }
            Term::Renewed(_) if hold.idle => hold.until,
            Term::Renewed(_) => hold.until.max(hold.before.map_or(cap, |before| before.min(cap))),
        }
    }

    fn drop_live(&mut self, lease: LeaseId) {
        self.set_due(lease, None);
        for process in self.lives.remove(&lease).unwrap_or_default().members {
            if self.owners.get(&process) == Some(&lease) {
                self.owners.remove(&process);
            }
        }
    }

    // ---- what is seen ------------------------------------------------------

    pub(crate) fn configure(&mut self, policy: Policy) {
        self.policy = policy;
        for (room, card) in self.rooms.iter_mut().zip(&self.rows.cards) {
            fit_room(room, &self.policy, &card.facts);
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
        self.books = QuotaLedger::new(&self.rows, &self.policy);
        self.wishes.clear();
        let unbound = self.planted(Mutant::NoClamp);
        let queue = Queue::new(if unbound { Span::secs(1 << 40) } else { self.policy.debt_max });
        let old = std::mem::replace(&mut self.queue, queue);
        for tenant in (0..self.rows.tenants.len() as u32).map(TenantId) {
            self.queue.set_served(tenant, old.served(tenant));
        }
        self.set_marks();
        for lease in self.rows.leases.values().cloned().collect::<Vec<_>>() {
            if lease.queued().is_some() {
                self.line_up(&lease);
            }
            if lease.is_on_cards()
                && let Some(hold) = lease.hold()
            {
                let load = TenantLoad::of(&lease.ask, hold);
                self.books.book(lease.tenant, |books| books.put_on(&load));
            }
        }
    }

    pub(crate) fn set_listed(&mut self, cards: BTreeSet<GpuId>) {
        self.listed = cards;
    }

    pub(crate) fn set_rested(&mut self, lease: LeaseId, idle: Span, now: Time) {
        if let Some(live) = self.lives.get_mut(&lease) {
            live.worked_at = live.worked_at.max(Some(now - idle));
            live.looked_at = Some(now);
        }
    }

    pub(crate) fn set_worked(&mut self, lease: LeaseId, now: Time) {
        if let Some(live) = self.lives.get_mut(&lease) {
            (live.worked, live.worked_at) = (true, Some(now));
            if self.rows.leases.get(&lease).is_some_and(|row| matches!(row.phase, Phase::Active(_))) {
                live.hints = HintBackoff::default();
            }
        }
    }

    pub(crate) fn set_observed(&mut self, card: GpuId, observation: GpuReading) {
        let room = &mut self.rooms[card.0 as usize];
        // Where nobody tells whose bytes are whose, nobody knows a peak.
        let fresh = matches!(&observation.reading, Reading::Used(used) if !used.coarse);
        room.observe(observation, |process| self.owners.get(process).copied());
        if fresh {
            for (lease, bytes) in room.present() {
                let live = self.lives.entry(*lease).or_default();
                live.peak = live.peak.max(Some(*bytes));
            }
        }
        self.weigh_excess(card);
    }

    /// Notes that a card of an ended lease was seen again: nothing counts for it there any more.
    /// Says whether all its cards were.
    pub(crate) fn set_seen_again(&mut self, lease: LeaseId, card: GpuId) -> bool {
        self.rooms[card.0 as usize].unclaim(lease);
        self.ending[card.0 as usize].remove(&lease);
        self.lives.get_mut(&lease).is_some_and(|live| {
            live.unseen.remove(&card);
            live.unseen.is_empty()
        })
    }

    // ---- timers ------------------------------------------------------------

    /// When something comes due by itself, if anything does.
    pub fn next_due(&self) -> Option<Time> {
        let lease = self.due.first().map(|(at, _)| *at);
        [lease, self.next_aside_over()].into_iter().flatten().min()
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<LeaseId> {
        let (at, lease) = self.due.first().copied()?;
        if at > now {
            return None;
        }
        self.set_due(lease, None);
        Some(lease)
    }

    /// The last signal of a lease that was ended for others left; the next is due a grace later.
    pub(crate) fn set_signalled(&mut self, lease: LeaseId, now: Time) {
        if let Some(live) = self.lives.get_mut(&lease).filter(|live| live.sent == Some(SignalState::Soon)) {
            live.sent = Some(SignalState::Gone(now));
            self.set_due(lease, Some(now + self.policy.parking.grace));
        }
    }

    pub(crate) fn set_due(&mut self, lease: LeaseId, at: Option<Time>) {
        let Some(live) = self.lives.get_mut(&lease) else { return };
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
                let due = match lease.fixed() {
                    true => hold.term_notice(&lease.ask, hold.until).unwrap_or(hold.until),
                    false => self.renewal_point(lease, hold),
                };
                Some(hold.notice.map_or(due, |told| told.at().min(due)))
            }
            Phase::Parking(hold, away) | Phase::Resuming(hold, away) => {
                let over = if lease.fixed() { hold.until } else { Time::NEVER };
                Some(over.min(away.since + self.policy.parking.limit_of(away)))
            }
            Phase::Parked(_, away) if self.planted(Mutant::ExpireParked) => Some(away.since + lease.ask.term.span()),
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
        let term = lease.ask.term.span();
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
    pub fn live(&self, id: LeaseId) -> Option<&LeaseReadings> {
        self.lives.get(&id)
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
    pub fn books(&self) -> &QuotaLedger {
        &self.books
    }
    /// All memory of all known cards.
    pub fn total(&self) -> Bytes {
        self.rows.cards.iter().map(|card| card.facts.total).sum()
    }
    /// A card by UUID.
    pub fn card(&self, uuid: &str) -> Option<GpuId> {
        self.slots.get(uuid).copied()
    }
    /// All cards.
    pub fn cards(&self) -> impl Iterator<Item = GpuId> + use<> {
        (0..self.rooms.len() as u16).map(GpuId)
    }
    /// A card's books.
    pub fn room(&self, card: GpuId) -> &Room {
        &self.rooms[card.0 as usize]
    }
    /// Ended leases whose bytes still count on a card.
    pub fn ending_on(&self, card: GpuId) -> impl Iterator<Item = LeaseId> + '_ {
        self.ending[card.0 as usize].iter().copied()
    }
    /// Leases whose bytes are leaving or coming back.
    pub fn moving(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.moving.iter().copied()
    }
    /// Whether a park or a resume needs only another look at its cards: its programs are done, and no look
    /// since then showed otherwise.
    pub fn awaits_look(&self) -> bool {
        self.moving
            .iter()
            .filter_map(|lease| self.lives.get(lease))
            .any(|live| live.watch.said.is_some() && live.watch.looks.values().all(|looks| *looks > 0))
    }
    /// Host memory that is booked for parked bytes.
    pub fn booked(&self) -> Bytes {
        self.booked
    }
    /// Host memory that was available at the last look.
    pub fn ram(&self) -> Option<Bytes> {
        self.ram
    }
    pub(crate) fn live_mut(&mut self, id: LeaseId) -> Option<&mut LeaseReadings> {
        self.lives.get_mut(&id)
    }
    /// Compute processes on a card that belong to no lease there.
    pub fn strangers(&self, card: GpuId) -> usize {
        self.room(card).strangers(|process| self.owner(process))
    }
    /// All processes on a card that belong to no lease there.
    pub(crate) fn unowned_on(&self, card: GpuId) -> usize {
        self.room(card).unowned(|process| self.owner(process))
    }
    /// Whether the driver lists the card now.
    pub fn is_listed(&self, card: GpuId) -> bool {
        self.listed.contains(&card)
    }
    /// What the driver lists now.
    pub fn listed_facts(&self) -> Vec<GpuFacts> {
        self.listed.iter().map(|card| self.rows.cards[card.0 as usize].facts.clone()).collect()
    }
    /// Whether nothing was heard for so long that a tick is overdue.
    pub fn stalled(&self, now: Time) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) > Span(STALL.0 / 2))
    }
    /// The same state on a disk that is known to be full before anything is decided: no grants until
    /// [`Event::DiskFreed`](crate::event::Event::DiskFreed).
    #[must_use]
    pub fn on_a_full_disk(self) -> State {
        State { disk_full: true, ..self }
    }
    /// Whether grants are stopped because nothing can be written.
    pub fn disk_full(&self) -> bool {
        self.disk_full
    }

    /// Whether somebody waits for a whole card, and the least that any of the others would do with.
    pub fn wishes(&self) -> (bool, Option<Bytes>) {
        (self.wishes.contains_key(&None), self.wishes.keys().find_map(|wish| *wish))
    }

    /// Whether it is its tenant's first waiter.
    pub fn is_first(&self, lease: &Lease) -> bool {
        lease.queued().is_some() && self.queue.is_first(lease.tenant, self.place_of(lease))
    }

    /// Where a waiter stands in its tenant's line.
    pub fn place_of(&self, lease: &Lease) -> QueuePlace {
        let arrival = lease.queued().unwrap_or(lease.asked);
        let rank = self.policy.rank(&lease.ask, arrival, self.books.caps(lease.tenant));
        let rank = if self.planted(Mutant::ServeLast) { -rank } else { rank };
        QueuePlace { rank, lease: lease.id, arrival }
    }
}

/// The least of a card that an ask would do with; nothing for a whole card.
fn least(ask: &LeaseRequest) -> Option<Bytes> {
    // What a parked holder lacks changes with what is left of it on its cards.
    let returns = matches!(ask.on, Some(GpuSelector::These(_))).then_some(Bytes(1));
    returns.or(ask.at_least).or(match ask.vram {
        Vram::Bytes(vram) => Some(vram),
        Vram::Whole => None,
    })
}
