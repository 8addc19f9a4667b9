//! The checker's own books: leases, cards, tenants, from events and actions alone.

use super::ends::PendingEnd;
use super::enforce::ProcessWatch;
use super::overuse::OveruseBook;
use super::park::{BESIDE, BackoffBook, CONTEXT, HOOK, MoveBook, MoveWay, MoverBook, MoverBooks, SILENT};
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::aside::Aside;
use sublet_core::event::Event;
use sublet_core::facts::DaemonEvent;
use sublet_core::ids::{Fence, GpuId, LeaseId, ProcKey};
use sublet_core::loss::Loss;
use sublet_core::method::Method;
use sublet_core::policy::Policy;
use sublet_core::reading::{GpuFacts, GpuUsage, Reading};
use sublet_core::request::{GpuSelector, LeaseRequest, Term, Tier, Vram};
use sublet_core::rows::{EndNotice, EndReason, GpuService, Phase, Rows};
use sublet_core::units::{Bytes, Span, Time};

/// A gap between events that counts as an absence.
const ABSENCE: Span = Span::secs(10);

/// A lease on the checker's books.
#[derive(Clone, Debug)]
pub struct LeaseBook {
    /// Which.
    pub id: LeaseId,
    /// Whose.
    pub tenant: usize,
    /// What was asked.
    pub ask: LeaseRequest,
    /// When.
    pub asked: Time,
    /// Whether a process is bound to it.
    pub bound: bool,
    /// Whether it was seen to work since it was last renewed.
    pub worked: bool,
    /// When it last was, as far as was heard.
    pub worked_at: Time,
    /// After something went wrong it is not parked, nor brought back, in that way before then.
    pub rests: BackoffBook,
    /// From when on a hint that it is used counts, and how many counted since it last worked.
    pub hints: (Time, u32),
    /// The processes that were bound to it, in order.
    pub roots: Vec<ProcKey>,
    /// It was heard which its processes are.
    pub counted: bool,
    /// It ended for others.
    pub doom: Option<PendingEnd>,
    /// Where it is.
    pub at: LeaseStage,
}

/// Where a lease is.
#[derive(Clone, Debug)]
pub enum LeaseStage {
    /// In the queue, at most until then.
    Waiting(Time),
    /// With its holder.
    Held(HeldBook),
    /// Its holder's bytes leave its cards, are gone from them, or come back.
    Away(HeldBook, Box<MoveBook>),
    /// Over since then; the cards of the mask were not seen since.
    Ending(HeldBook, Time, u64),
}

/// What was granted.
#[derive(Clone, Debug)]
pub struct HeldBook {
    /// On these cards.
    pub cards: Vec<usize>,
    /// So much of each.
    pub vram: Bytes,
    /// The number to show.
    pub epoch: Fence,
    /// When.
    pub granted: Time,
    /// When last renewed.
    pub renewed: Time,
    /// Until then, unless renewed.
    pub until: Time,
    /// It was not used in its last term.
    pub idle: bool,
    /// How far its tenant's mark was moved for its term.
    pub paid: Span,
    /// It is not renewed beyond this.
    pub before: Option<Time>,
    /// Since when it has its cards without a break.
    pub began: Time,
    /// Since when it has them no more, though its lease goes on.
    pub stopped: Option<Time>,
    /// What it was charged for before that: card·µs and byte·µs.
    pub spent: (u64, u128),
    /// Host memory booked for its bytes.
    pub booked: Bytes,
    /// It was told to leave at least once.
    pub moved: bool,
    /// It was told that it ends then, for others.
    pub notice: Option<EndNotice>,
    /// It was told that it has more than its lease: when first, and how much it was.
    pub over: Option<(Time, Bytes)>,
    /// Since when its lease is as large as it is.
    pub sized: Time,
    /// By the disk, what its turn is charged less in byte·µs: it was smaller before.
    pub less: u128,
}

impl HeldBook {
    /// When it ends for others, by what it was told.
    pub fn for_others(&self) -> Option<Time> {
        self.notice.and_then(EndNotice::for_others)
    }

    /// What it is charged until then: the time in which it had its cards.
    pub fn charge(&self, until: Time) -> (u64, u128) {
        let turn = if self.stopped.is_some() { 0 } else { (until.0 - self.began.0) * self.cards.len() as u64 };
        let sized = if self.stopped.is_some() { 0 } else { (until.0 - self.sized.0) * self.cards.len() as u64 };
        (self.spent.0 + turn, self.spent.1 + u128::from(sized) * u128::from(self.vram.0) - self.less)
    }
}

impl LeaseBook {
    /// The first process that was bound to it.
    pub fn root(&self) -> Option<ProcKey> {
        self.roots.first().copied()
    }

    /// What was granted, while it counts.
    pub fn held(&self) -> Option<&HeldBook> {
        match &self.at {
            LeaseStage::Waiting(_) => None,
            LeaseStage::Held(held) | LeaseStage::Away(held, _) | LeaseStage::Ending(held, ..) => Some(held),
        }
    }

    /// Whether it was granted and is not over.
    pub fn goes_on(&self) -> bool {
        matches!(self.at, LeaseStage::Held(_) | LeaseStage::Away(..))
    }

    /// Whether its bytes are in host memory, and its cards others'.
    pub fn is_parked(&self) -> bool {
        matches!(&self.at, LeaseStage::Away(_, trip) if trip.way == MoveWay::Gone)
    }

    /// What of each card will count for it once it is served: of a parked one what it had.
    pub fn counts_for(&self) -> Vram {
        let had = self.held().filter(|_| self.is_parked()).map(|held| Vram::Bytes(held.vram));
        had.unwrap_or(self.ask.vram)
    }

    /// Since when it waits for cards, if it does.
    pub fn queued(&self) -> Option<Time> {
        match &self.at {
            LeaseStage::Waiting(_) => Some(self.asked),
            LeaseStage::Away(_, trip) if trip.way == MoveWay::Gone => trip.wants,
            _ => None,
        }
    }

    /// What of each of its cards is promised to it: nothing, once it was parked.
    pub fn reserved(&self) -> Bytes {
        let held = self.held().filter(|held| held.stopped.is_none());
        held.map_or(Bytes::ZERO, |held| held.vram)
    }

    /// Whether its term is fixed.
    pub fn fixed(&self) -> bool {
        matches!(self.ask.term, Term::Fixed(_))
    }

    /// When its present term, or its wait, began.
    pub fn since(&self) -> Time {
        match &self.at {
            LeaseStage::Away(_, trip) if trip.way == MoveWay::Gone => trip.since,
            _ => self.held().map_or(self.asked, |held| held.renewed),
        }
    }

    /// When something happens to it by itself.
    fn due(&self) -> Option<Time> {
        match &self.at {
            LeaseStage::Waiting(give_up) => Some(*give_up),
            LeaseStage::Held(held) => Some(held.until),
            // Nothing that is on its way expires, but a fixed term is over when it is.
            LeaseStage::Away(held, trip) => (self.fixed() && trip.way != MoveWay::Gone).then_some(held.until),
            LeaseStage::Ending(..) => None,
        }
    }
}

/// A card on the checker's books.
#[derive(Debug)]
pub struct GpuBook {
    /// What it is.
    pub facts: GpuFacts,
    /// Its name in lower case.
    pub model: String,
    /// An operator lets it run empty.
    pub draining: bool,
    /// An operator, or the service itself, has not taken it out.
    pub serving: bool,
    /// For whom it steps aside.
    pub asides: Vec<Aside>,
    /// When it last ceased to.
    pub aside_ended: Option<Time>,
    /// The driver lists it.
    pub listed: bool,
    /// When the last look that counts began.
    pub begun: Time,
    /// What it gave.
    pub look: SeenReading,
    /// Bytes seen with a lease's processes, by lease.
    pub seen: Vec<(LeaseId, Bytes)>,
    /// Compute processes that were there.
    pub residents: Vec<ProcKey>,
    /// All processes that were there.
    pub all: Vec<ProcKey>,
    /// What each of them had, where the driver tells.
    pub sizes: Vec<(ProcKey, Option<Bytes>)>,
    /// Leases on it, with what is reserved for each.
    pub claims: BTreeMap<LeaseId, Bytes>,
    /// The sum of that.
    pub reserved: Bytes,
    /// Those of them that are over.
    pub ending: BTreeSet<LeaseId>,
    /// Who had more than its lease there in how many looks, and who that was told had not any more.
    pub excess: OveruseBook,
}

impl GpuBook {
    /// Whether the last look did not tell whose bytes are whose.
    pub fn is_coarse(&self) -> bool {
        matches!(self.look, SeenReading::Coarse(_))
    }

    /// What it had in all.
    pub fn taken(&self) -> Option<Bytes> {
        match self.look {
            SeenReading::Free(free) | SeenReading::Coarse(free) => Some(self.facts.total.less(free)),
            SeenReading::Blind | SeenReading::Lost => None,
        }
    }

    /// What a parked holder may have there at most, where nobody can see it.
    pub fn left(&self) -> Bytes {
        self.facts.context.unwrap_or(CONTEXT) + BESIDE
    }
}

/// What a look gave, without the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenReading {
    /// Nothing.
    Blind,
    /// The driver said that the card is lost.
    Lost,
    /// The card answered.
    Free(Bytes),
    /// The card answered, without bytes per process.
    Coarse(Bytes),
}

/// A tenant on the checker's books.
#[derive(Debug, Default)]
pub struct TenantBook {
    /// Its name.
    pub name: String,
    /// Leases granted and not retired.
    pub leases: u32,
    /// Bytes of those.
    pub vram: Bytes,
    /// Its waiters.
    pub waiting: usize,
    /// They, by rank and arrival, with the time they came.
    pub line: BTreeSet<(i64, LeaseId, Time)>,
    /// How far its use has carried it.
    pub mark: Time,
    /// Since when its first waiter is the first.
    pub turn: Time,
    /// When one of its waiters was last served.
    pub served: Time,
}

/// All books.
#[derive(Debug)]
pub struct CheckerBooks {
    /// The rules of the house.
    pub policy: Policy,
    /// Leases that are not history.
    pub leases: BTreeMap<LeaseId, LeaseBook>,
    /// Tenants by number.
    pub tenants: Vec<TenantBook>,
    /// Cards by number.
    pub cards: Vec<GpuBook>,
    /// Waiters by rank and arrival.
    pub queue: BTreeSet<(i64, LeaseId)>,
    /// What comes due by itself, and when.
    pub due: BTreeSet<(Time, LeaseId)>,
    /// Whose a process is.
    pub owners: BTreeMap<ProcKey, LeaseId>,
    /// The processes of each lease.
    pub members: BTreeMap<LeaseId, Vec<ProcKey>>,
    /// The next lease has at least this number.
    pub next_lease: u64,
    /// The next grant has at least this epoch.
    pub next_epoch: u64,
    /// What began until then …
    pub grace_from: Time,
    /// … does not expire before this.
    pub grace_until: Time,
    /// The boot.
    pub boot: String,
    /// When the last event was taken in; `None`: the daemon was away.
    pub heard: Option<Time>,
    /// The daemon was away just before the present event.
    pub absent: bool,
    /// The daemon was told that the disk is full.
    pub disk_full: bool,
    /// The daemon was told that lines are missing, and no operator has accepted that.
    pub loss: Option<Loss>,
    /// The last few leases that became history.
    pub gone: Vec<LeaseId>,
    /// Leases that are parked, or on their way there or back.
    pub trips: BTreeSet<LeaseId>,
    /// Programs of each lease that spoke to this daemon.
    pub voices: BTreeMap<(LeaseId, Method), MoverBooks>,
    /// Who was the first in the queue when the present event began to make room.
    pub made_first: Option<LeaseId>,
    /// Leases that were told that they end, for others.
    pub noticed: BTreeSet<LeaseId>,
    /// Programs whose bytes are in host memory, by their own word to this daemon or an earlier one.
    pub stowed: BTreeMap<(ProcKey, Method), LeaseId>,
    /// Host memory that was available at the last look.
    pub ram: Option<Bytes>,
    /// What was booked by those who were parked since then: the look may not have it.
    pub unread: Bytes,
    /// Strangers, and what is done about them.
    pub watch: ProcessWatch,
}

impl GpuBook {
    /// Nothing counts for a lease on this card any more.
    fn unclaim(&mut self, lease: LeaseId) {
        self.ending.remove(&lease);
        if let Some(held) = self.claims.remove(&lease) {
            self.reserved = self.reserved.less(held);
        }
    }
}

impl CheckerBooks {
    /// Empty books.
    pub fn new(policy: Policy) -> CheckerBooks {
        CheckerBooks {
            policy,
            leases: BTreeMap::new(),
            tenants: Vec::new(),
            cards: Vec::new(),
            queue: BTreeSet::new(),
            due: BTreeSet::new(),
            owners: BTreeMap::new(),
            members: BTreeMap::new(),
            next_lease: 1,
            next_epoch: 1,
            grace_from: Time::ZERO,
            grace_until: Time::ZERO,
            boot: String::new(),
            heard: None,
            absent: true,
            disk_full: false,
            loss: None,
            gone: Vec::new(),
            trips: BTreeSet::new(),
            voices: BTreeMap::new(),
            made_first: None,
            noticed: BTreeSet::new(),
            stowed: BTreeMap::new(),
            ram: None,
            unread: Bytes::ZERO,
            watch: ProcessWatch::default(),
        }
    }

    /// The books after a start: what the disk has, and nothing seen.
    pub fn from_rows(policy: Policy, rows: &Rows) -> CheckerBooks {
        let mut books = CheckerBooks::new(policy);
        books.next_lease = rows.meta.next_lease;
        books.next_epoch = rows.meta.next_fence.0;
        (books.grace_from, books.grace_until) = (rows.meta.grace_from, rows.meta.grace_until);
        books.boot.clone_from(&rows.meta.boot);
        books.watch = ProcessWatch::from_rows(rows);
        for card in &rows.gpus {
            books.put_card(books.cards.len(), &card.facts);
            if let Some(book) = books.cards.last_mut() {
                (book.asides, book.aside_ended) = (card.aside.now.clone(), card.aside.ended);
            }
            books.serve(books.cards.len() - 1, &card.service);
        }
        for tenant in &rows.tenants {
            books.enrol(&tenant.name);
            if let Some(book) = books.tenants.last_mut() {
                (book.mark, book.turn) = (tenant.debt_clock, tenant.first_since);
            }
        }
        let parking = &books.policy.parking.clone();
        for row in rows.leases.values() {
            let held = |hold: &sublet_core::rows::Hold| HeldBook {
                cards: hold.gpus.iter().map(|card| usize::from(card.0)).collect(),
                vram: hold.vram,
                epoch: hold.fence,
                granted: hold.granted,
                renewed: hold.renewed,
                until: hold.until,
                idle: hold.idle,
                paid: hold.prepaid,
                before: hold.not_beyond,
                began: hold.history.as_ref().map_or(hold.granted, |turns| turns.began),
                stopped: hold.history.as_ref().and_then(|turns| turns.stopped),
                spent: hold.history.as_ref().map_or((0, 0), |turns| (turns.spent_us, turns.spent_byte_us)),
                booked: hold.history.as_ref().map_or(Bytes::ZERO, |turns| turns.booked),
                moved: hold.history.as_ref().is_some_and(|turns| !turns.never_moved),
                notice: hold.notice,
                over: hold.history.as_ref().and_then(|turns| turns.overuse).map(|over| (over.since, over.seen_bytes)),
                sized: hold.history.as_ref().map_or(hold.granted, |turns| turns.began),
                less: hold.history.as_ref().map_or(0, |turns| turns.uncharged_byte_us),
            };
            let at = match &row.phase {
                Phase::Waiting { give_up } => LeaseStage::Waiting(*give_up),
                Phase::Active(hold) => LeaseStage::Held(held(hold)),
                Phase::Parking(hold, away) => {
                    LeaseStage::Away(held(hold), Box::new(MoveBook::read(MoveWay::Out, away, parking)))
                }
                Phase::Parked(hold, away) => {
                    LeaseStage::Away(held(hold), Box::new(MoveBook::read(MoveWay::Gone, away, parking)))
                }
                Phase::Resuming(hold, away) => {
                    LeaseStage::Away(held(hold), Box::new(MoveBook::read(MoveWay::Back, away, parking)))
                }
                Phase::Ending(hold, finish) => LeaseStage::Ending(held(hold), finish.at, mask(&hold.gpus)),
            };
            let bound = !row.roots.is_empty();
            let (tenant, ask, asked) = (row.tenant.0 as usize, row.request.clone(), row.requested);
            // What is not known counts as work.
            let (worked, worked_at) = (bound, Time::ZERO);
            let lied = row.hold().and_then(|hold| hold.history.as_ref()).and_then(|turns| turns.false_report);
            let rests = BackoffBook::read(lied, parking);
            let doom = match &row.phase {
                Phase::Ending(_, finish) if matches!(finish.reason, EndReason::Preempted | EndReason::OverUse) => {
                    let from = finish.signal.map_or(finish.at, |(_, at)| at + parking.grace);
                    Some(PendingEnd { signal: finish.signal.map(|(signal, _)| signal), from, sent: false })
                }
                _ => None,
            };
            let (id, roots, counted, hints) = (row.id, row.roots.clone(), false, (Time::ZERO, 0));
            let book =
                LeaseBook { id, tenant, ask, asked, bound, worked, worked_at, rests, hints, roots, counted, doom, at };
            if book.held().is_some_and(|held| held.for_others().is_some()) {
                books.noticed.insert(id);
            }
            books.insert(id, book);
            if row.request.has_hook && row.is_held() {
                // Who was on its way back has not come.
                let away = matches!(row.phase, Phase::Parked(..) | Phase::Resuming(..));
                let voice = MoverBook { parked: away.then_some(Bytes::ZERO), ..SILENT };
                books.voices.entry((row.id, Method::Hook)).or_default().insert(HOOK, voice);
            }
        }
        books
    }

    /// Notes whether the daemon was away, and the grace that follows from it.
    pub fn mind_the_gap(&mut self, now: Time, event: &Event) {
        let away = self.heard.is_none_or(|heard| now.since(heard) > ABSENCE);
        self.heard = Some(now);
        self.absent = away || matches!(event, Event::Daemon(DaemonEvent::Awoke | DaemonEvent::Started { .. }));
        let is_aside = self.cards.iter().any(|card| !card.asides.is_empty());
        if self.absent && (is_aside || !(self.leases.is_empty() && self.watch.is_empty())) {
            self.grace_from = now;
            self.grace_until = self.grace_until.max(now + self.policy.grace);
        }
    }

    /// Whether something that began at `since` is protected now.
    pub fn in_grace(&self, now: Time, since: Time) -> bool {
        since <= self.grace_from && now < self.grace_until
    }

    /// The moment a waiter queues by.
    pub fn rank(&self, ask: &LeaseRequest, asked: Time) -> i64 {
        let start = &self.policy.head_start;
        let tier = match ask.tier {
            Tier::Interactive => start.interactive,
            Tier::Batch => start.batch,
            Tier::Spot => start.spot,
        };
        asked.0 as i64 - tier.0 as i64 - i64::from(ask.priority) * start.priority.0 as i64
    }

    // ---- leases ------------------------------------------------------------

    /// Puts a lease on the books.
    pub fn insert(&mut self, lease: LeaseId, book: LeaseBook) {
        if let Some(due) = book.due() {
            self.due.insert((due, lease));
        }
        if let Some(asked) = book.queued() {
            let rank = self.rank(&book.ask, asked);
            self.queue.insert((rank, lease));
            self.tenants[book.tenant].line.insert((rank, lease, asked));
            self.tenants[book.tenant].waiting += 1;
        }
        if let Some(held) = book.held() {
            for card in &held.cards {
                let card = &mut self.cards[*card];
                card.claims.insert(lease, book.reserved());
                if let LeaseStage::Ending(..) = &book.at {
                    card.ending.insert(lease);
                }
                card.reserved = card.reserved + book.reserved();
            }
            let tenant = &mut self.tenants[book.tenant];
            tenant.served = tenant.served.max(held.granted);
            if !book.is_parked() {
                tenant.leases += 1;
                tenant.vram = tenant.vram + Bytes(held.vram.0 * held.cards.len() as u64);
            }
        }
        if let LeaseStage::Away(..) = &book.at {
            self.trips.insert(lease);
        }
        self.leases.insert(lease, book);
    }

    /// Takes a lease off the books.
    pub fn remove(&mut self, lease: LeaseId) -> Option<LeaseBook> {
        let book = self.leases.remove(&lease)?;
        if let Some(due) = book.due() {
            self.due.remove(&(due, lease));
        }
        if let Some(asked) = book.queued() {
            let rank = self.rank(&book.ask, asked);
            self.queue.remove(&(rank, lease));
            self.tenants[book.tenant].line.remove(&(rank, lease, asked));
            self.tenants[book.tenant].waiting -= 1;
        }
        if let Some(held) = book.held() {
            for card in &held.cards {
                self.cards[*card].unclaim(lease);
            }
            if !book.is_parked() {
                let tenant = &mut self.tenants[book.tenant];
                tenant.leases -= 1;
                tenant.vram = tenant.vram.less(Bytes(held.vram.0 * held.cards.len() as u64));
            }
        }
        self.trips.remove(&lease);
        self.noticed.remove(&lease);
        Some(book)
    }

    /// A lease is history: nothing of it is kept but its number, for a while.
    pub fn forget(&mut self, lease: LeaseId) {
        self.disown(lease);
        self.forget_programs(lease);
        if self.gone.len() == 64 {
            self.gone.clear();
        }
        self.gone.push(lease);
    }

    /// A holder keeps its lease until another time.
    pub fn set_until(&mut self, lease: LeaseId, at: Time, until: Time, idle: bool, paid: Span, before: Option<Time>) {
        if let Some(LeaseBook { at: LeaseStage::Held(held), worked, .. }) = self.leases.get_mut(&lease) {
            self.due.remove(&(held.until, lease));
            self.due.insert((until, lease));
            held.paid = held.unused(at) + paid;
            (held.renewed, held.until, *worked) = (at, until, false);
            (held.idle, held.before) = (idle, before);
        }
    }

    // ---- tenants and cards -------------------------------------------------

    /// A tenant asks for the first time.
    pub fn enrol(&mut self, name: &str) {
        self.tenants.push(TenantBook { name: name.to_owned(), ..TenantBook::default() });
    }

    /// A card's facts.
    pub fn put_card(&mut self, number: usize, facts: &GpuFacts) {
        match self.cards.get_mut(number) {
            Some(card) => card.facts = facts.clone(),
            None => self.cards.push(GpuBook {
                model: facts.name.to_lowercase(),
                facts: facts.clone(),
                serving: true,
                asides: Vec::new(),
                aside_ended: None,
                draining: false,
                listed: false,
                begun: Time::ZERO,
                look: SeenReading::Blind,
                seen: Vec::new(),
                residents: Vec::new(),
                all: Vec::new(),
                sizes: Vec::new(),
                claims: BTreeMap::new(),
                reserved: Bytes::ZERO,
                ending: BTreeSet::new(),
                excess: OveruseBook::new(),
            }),
        }
    }

    /// A card goes into service or out of it.
    pub fn serve(&mut self, number: usize, service: &GpuService) {
        self.cards[number].serving = *service == GpuService::In;
        self.cards[number].draining = *service == GpuService::Draining;
    }

    /// A card's number.
    pub fn card(&self, uuid: &str) -> Option<usize> {
        self.cards.iter().position(|card| card.facts.uuid == uuid)
    }

    /// A process was bound to a lease, and what it did so far counts as work.
    pub fn add_member(&mut self, lease: LeaseId, process: ProcKey) {
        if let Some(book) = self.leases.get_mut(&lease) {
            (book.bound, book.worked, book.counted) = (true, true, true);
            book.roots.push(process);
            self.own(lease, process);
        }
    }

    /// These are a lease's processes; each belongs to whom it was last seen with.
    pub fn set_members(&mut self, lease: LeaseId, processes: &[ProcKey]) {
        if let Some(book) = self.leases.get_mut(&lease) {
            book.counted = true;
            self.disown(lease);
            self.stowed.retain(|(process, _), of| *of != lease || processes.contains(process));
            processes.iter().for_each(|process| self.own(lease, *process));
            self.note_quiet(lease);
        }
    }

    /// Whose a process is, of those that were granted cards.
    pub fn holder(&self, process: &ProcKey) -> Option<LeaseId> {
        self.owners.get(process).copied().filter(|lease| !self.waits(*lease))
    }

    fn waits(&self, lease: LeaseId) -> bool {
        self.leases.get(&lease).is_some_and(|book| book.held().is_none())
    }

    fn own(&mut self, lease: LeaseId, process: ProcKey) {
        // Who waits takes nothing from who does not.
        if self.waits(lease) && self.holder(&process).is_some() {
            return;
        }
        if let Some(before) = self.owners.insert(process, lease) {
            if let Some(members) = self.members.get_mut(&before) {
                members.retain(|member| *member != process);
            }
            if before != lease {
                self.lose(before, process);
            }
        }
        self.members.entry(lease).or_default().push(process);
    }

    fn disown(&mut self, lease: LeaseId) {
        for process in self.members.remove(&lease).unwrap_or_default() {
            self.owners.remove(&process);
        }
    }

    /// A look at a card was delivered.
    pub fn observe(&mut self, number: usize, begun: Time, reading: &Reading) {
        let card = &mut self.cards[number];
        if begun < card.begun {
            return;
        }
        card.begun = begun;
        match reading {
            Reading::Unreadable(why) => {
                let lost = *why == sublet_core::reading::Unreadable::Lost;
                card.look = if lost { SeenReading::Lost } else { SeenReading::Blind };
            }
            Reading::Used(used) => {
                card.look = if used.coarse { SeenReading::Coarse(used.free) } else { SeenReading::Free(used.free) };
                self.attribute(number, used);
                self.seen_again(number, begun);
                self.look_at_trips(number, begun);
            }
        }
        self.weigh_excess(number);
    }

    fn attribute(&mut self, number: usize, used: &GpuUsage) {
        let card = &mut self.cards[number];
        card.seen.clear();
        card.residents.clear();
        card.all = used.processes.iter().map(|resident| resident.process).collect();
        card.sizes = used.processes.iter().map(|resident| (resident.process, resident.bytes)).collect();
        for resident in &used.processes {
            if !resident.only_draws {
                card.residents.push(resident.process);
            }
            let bytes = resident.bytes.unwrap_or_default();
            if let Some(lease) = self.owners.get(&resident.process).filter(|lease| card.claims.contains_key(lease)) {
                match card.seen.iter_mut().find(|(id, _)| id == lease) {
                    Some((_, sum)) => *sum = *sum + bytes,
                    None => card.seen.push((*lease, bytes)),
                }
            }
        }
    }

    /// What ended before then does not count on this card any more.
    pub fn seen_again(&mut self, number: usize, begun: Time) {
        for lease in self.cards[number].ending.clone() {
            // Who ended for others has its processes until they are gone.
            if self.leases.get(&lease).is_some_and(|book| self.is_haunted(book)) {
                continue;
            }
            if let Some(LeaseBook { at: LeaseStage::Ending(_, ended, unseen), .. }) = self.leases.get_mut(&lease)
                && *ended < begun
            {
                *unseen &= !(1 << number);
                self.cards[number].unclaim(lease);
            }
        }
    }

    // ---- asks and cards ----------------------------------------------------

    /// Memory left alone on a card.
    pub fn margin(&self, card: &GpuBook) -> Bytes {
        if card.facts.display { self.policy.margin_display } else { self.policy.margin }
    }

    /// The most that a lease could have of a card.
    pub fn largest(&self, card: &GpuBook) -> Bytes {
        card.facts.total.less(self.margin(card))
    }

    /// Whether the card is one of those the ask names.
    pub fn named(&self, ask: &LeaseRequest, card: &GpuBook) -> bool {
        let Some(on) = &ask.gpus_allowed else { return true };
        let several = if let GpuSelector::AnyOf(several) = on { &several[..] } else { std::slice::from_ref(on) };
        several.iter().any(|on| match on {
            GpuSelector::Index(index) => card.facts.index == *index,
            GpuSelector::Uuid(uuid) => card.facts.uuid.starts_with(uuid),
            GpuSelector::These(cards) => cards
                .iter()
                .any(|other| self.cards.get(usize::from(other.0)).is_some_and(|it| it.facts.uuid == card.facts.uuid)),
            GpuSelector::Model(part) => card.model.contains(&part.to_lowercase()),
            // A list in a list cannot be asked for.
            GpuSelector::AnyOf(_) => false,
        })
    }

    /// Whether a lease may land there at all.
    pub fn open(&self, card: &GpuBook) -> bool {
        card.serving && card.listed && card.facts.unusable.is_none() && card.asides.is_empty()
    }

    /// Whether the ask could start on the card if that were empty.
    pub fn eligible(&self, ask: &LeaseRequest, card: &GpuBook) -> bool {
        let sized = match ask.vram {
            Vram::Whole => true,
            Vram::Bytes(vram) => vram <= self.largest(card) && self.context(ask, card) <= vram,
        };
        sized && self.open(card) && self.named(ask, card)
    }

    /// The least of a card that makes sense. Whoever was there before has its context.
    pub fn context(&self, ask: &LeaseRequest, card: &GpuBook) -> Bytes {
        let returns = matches!(ask.gpus_allowed, Some(GpuSelector::These(_)));
        card.facts.context.filter(|_| !returns).unwrap_or_default()
    }
}

/// Cards as bits.
pub fn mask(cards: &[GpuId]) -> u64 {
    cards.iter().fold(0, |mask, card| mask | 1 << card.0)
}
