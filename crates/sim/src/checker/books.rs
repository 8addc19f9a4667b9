//! The checker's own books: leases, GPUs and tenants, from events and actions alone.

use super::ends::PendingEnd;
use super::enforce::ProcessWatch;
use super::overuse::OveruseBook;
use super::park::{BESIDE, BackoffBook, CONTEXT, HOOK, MoveBook, MoveStage, MoverBook, MoverBooks, UNHEARD};
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::aside::Aside;
use sublet_core::event::Event;
use sublet_core::facts::DaemonEvent;
use sublet_core::ids::{Fence, GpuId, LeaseId, ProcKey};
use sublet_core::loss::Loss;
use sublet_core::method::Method;
use sublet_core::reading::{GpuFacts, GpuUsage, Reading};
use sublet_core::request::{GpuSelector, LeaseRequest, Term, Tier, Vram};
use sublet_core::rows::{EndNotice, EndReason, GpuService, Phase, Rows};
use sublet_core::settings::Policy;
use sublet_core::units::{Bytes, Span, Time};

/// A gap between events that counts as an absence.
const ABSENCE: Span = Span::secs(10);

/// A lease on the checker's books.
#[derive(Clone, Debug)]
pub struct LeaseBook {
    /// Its id.
    pub id: LeaseId,
    /// The number of its tenant.
    pub tenant: usize,
    /// Its request.
    pub request: LeaseRequest,
    /// When it was requested.
    pub requested_at: Time,
    /// Whether a process is bound to it.
    pub bound: bool,
    /// True if it was busy since it was last renewed.
    pub worked: bool,
    /// When it last was busy, as far as was reported.
    pub worked_at: Time,
    /// Until when it is not parked or resumed again by each method after a failure.
    pub backoff: BackoffBook,
    /// From when on a hint that it is used counts, and how many counted since it last was busy.
    pub hints: (Time, u32),
    /// The processes that were bound to it, in order.
    pub roots: Vec<ProcKey>,
    /// True once the host reported its processes.
    pub members_known: bool,
    /// Its end for a waiter or for overuse, while processes may be left.
    pub pending_end: Option<PendingEnd>,
    /// Its stage.
    pub stage: LeaseStage,
}

/// The stage of a lease.
#[derive(Clone, Debug)]
pub enum LeaseStage {
    /// In the queue, at most until this time.
    Waiting(Time),
    /// With its holder.
    Held(HeldBook),
    /// Parking, parked or resuming.
    Park(HeldBook, Box<MoveBook>),
    /// Over since this time; the GPUs of the mask were not read since.
    Ending(HeldBook, Time, u64),
}

/// A granted lease.
#[derive(Clone, Debug)]
pub struct HeldBook {
    /// Its GPUs.
    pub gpus: Vec<usize>,
    /// The bytes of each GPU.
    pub vram: Bytes,
    /// Its fence.
    pub fence: Fence,
    /// When it was granted.
    pub granted: Time,
    /// When it was last renewed.
    pub renewed: Time,
    /// When it expires unless it is renewed.
    pub until: Time,
    /// True if it was not used in its last term.
    pub idle: bool,
    /// How far its tenant's debt clock was moved for its term.
    pub prepaid: Span,
    /// The limit beyond which it is not renewed.
    pub not_beyond: Option<Time>,
    /// Since when it has its GPUs without a break.
    pub slice_began: Time,
    /// Since when it is parked.
    pub stopped: Option<Time>,
    /// What it was charged before that: GPU·µs and byte·µs.
    pub spent: (u64, u128),
    /// Host memory booked for its bytes.
    pub booked: Bytes,
    /// True if it was parked at least once.
    pub was_moved: bool,
    /// The end that it was told.
    pub notice: Option<EndNotice>,
    /// Since when it is exceeded, and the bytes it was told.
    pub overuse: Option<(Time, Bytes)>,
    /// Since when its lease has its present size.
    pub resized_at: Time,
    /// The byte·µs that are not charged because it was smaller before.
    pub uncharged: u128,
}

impl HeldBook {
    /// When it ends for a waiter, as it was told.
    pub fn for_others(&self) -> Option<Time> {
        self.notice.and_then(EndNotice::for_others)
    }

    /// What it is charged until a time: GPU·µs and byte·µs while it had its GPUs.
    pub fn charge(&self, until: Time) -> (u64, u128) {
        let turn = if self.stopped.is_some() { 0 } else { (until.0 - self.slice_began.0) * self.gpus.len() as u64 };
        let sized = if self.stopped.is_some() { 0 } else { (until.0 - self.resized_at.0) * self.gpus.len() as u64 };
        (self.spent.0 + turn, self.spent.1 + u128::from(sized) * u128::from(self.vram.0) - self.uncharged)
    }
}

impl LeaseBook {
    /// The first process that was bound to it.
    pub fn root(&self) -> Option<ProcKey> {
        self.roots.first().copied()
    }

    /// What was granted, until the lease is retired.
    pub fn held(&self) -> Option<&HeldBook> {
        match &self.stage {
            LeaseStage::Waiting(_) => None,
            LeaseStage::Held(held) | LeaseStage::Park(held, _) | LeaseStage::Ending(held, ..) => Some(held),
        }
    }

    /// True if it was granted and has not ended.
    pub fn is_held_or_parked(&self) -> bool {
        matches!(self.stage, LeaseStage::Held(_) | LeaseStage::Park(..))
    }

    /// True if its bytes are in host memory and its GPUs are free for others.
    pub fn is_parked(&self) -> bool {
        matches!(&self.stage, LeaseStage::Park(_, park) if park.stage == MoveStage::Parked)
    }

    /// What counts of each GPU once it is served: for a parked lease what it had.
    pub fn needed_vram(&self) -> Vram {
        let had = self.held().filter(|_| self.is_parked()).map(|held| Vram::Bytes(held.vram));
        had.unwrap_or(self.request.vram)
    }

    /// Since when it waits for GPUs; `None` if it does not.
    pub fn queued_since(&self) -> Option<Time> {
        match &self.stage {
            LeaseStage::Waiting(_) => Some(self.requested_at),
            LeaseStage::Park(_, park) if park.stage == MoveStage::Parked => park.queued_since,
            _ => None,
        }
    }

    /// The bytes of each GPU that are promised to it; 0 while it is parked.
    pub fn reserved(&self) -> Bytes {
        let held = self.held().filter(|held| held.stopped.is_none());
        held.map_or(Bytes::ZERO, |held| held.vram)
    }

    /// True if its term is fixed.
    pub fn has_fixed_term(&self) -> bool {
        matches!(self.request.term, Term::Fixed(_))
    }

    /// When its present term or wait began.
    pub fn stage_began(&self) -> Time {
        match &self.stage {
            LeaseStage::Park(_, park) if park.stage == MoveStage::Parked => park.since,
            _ => self.held().map_or(self.requested_at, |held| held.renewed),
        }
    }

    /// When it is due to end without a call.
    fn due(&self) -> Option<Time> {
        match &self.stage {
            LeaseStage::Waiting(give_up) => Some(*give_up),
            LeaseStage::Held(held) => Some(held.until),
            // Nothing that is moving expires, except for a fixed term.
            LeaseStage::Park(held, park) => {
                (self.has_fixed_term() && park.stage != MoveStage::Parked).then_some(held.until)
            }
            LeaseStage::Ending(..) => None,
        }
    }
}

/// A GPU on the checker's books.
#[derive(Debug)]
pub struct GpuBook {
    /// Its facts.
    pub facts: GpuFacts,
    /// Its model in lower case.
    pub model: String,
    /// True while an operator drains it.
    pub draining: bool,
    /// False if an operator or the daemon took it out of service.
    pub serving: bool,
    /// Its asides.
    pub asides: Vec<Aside>,
    /// When the last aside ended.
    pub aside_ended: Option<Time>,
    /// True if the driver lists it.
    pub listed: bool,
    /// When the last reading that counts began.
    pub reading_began: Time,
    /// The result of that reading.
    pub reading: SeenReading,
    /// The bytes that a lease's processes have, by lease.
    pub seen_bytes: Vec<(LeaseId, Bytes)>,
    /// Compute processes in the last reading.
    pub compute_processes: Vec<ProcKey>,
    /// All processes in the last reading.
    pub processes: Vec<ProcKey>,
    /// The bytes of each process, where the driver tells them.
    pub sizes: Vec<(ProcKey, Option<Bytes>)>,
    /// Leases on it, with the bytes reserved for each.
    pub claims: BTreeMap<LeaseId, Bytes>,
    /// The sum of that.
    pub reserved: Bytes,
    /// Those of them that have ended.
    pub ending: BTreeSet<LeaseId>,
    /// Which leases were exceeded there in how many readings, and which were not any more.
    pub overuse: OveruseBook,
}

impl GpuBook {
    /// True if the last reading did not tell the bytes of single processes.
    pub fn is_coarse(&self) -> bool {
        matches!(self.reading, SeenReading::Coarse(_))
    }

    /// The bytes in use.
    pub fn used_bytes(&self) -> Option<Bytes> {
        match self.reading {
            SeenReading::Free(free) | SeenReading::Coarse(free) => Some(self.facts.total.less(free)),
            SeenReading::Unreadable | SeenReading::Lost => None,
        }
    }

    /// The most that a parked lease may leave there, where the driver does not tell it.
    pub fn residue_max(&self) -> Bytes {
        self.facts.context.unwrap_or(CONTEXT) + BESIDE
    }
}

/// The result of a reading, without the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenReading {
    /// The GPU could not be read.
    Unreadable,
    /// The driver said that the GPU is lost.
    Lost,
    /// The free bytes.
    Free(Bytes),
    /// The free bytes, without bytes of single processes.
    Coarse(Bytes),
}

/// A tenant on the checker's books.
#[derive(Debug, Default)]
pub struct TenantBook {
    /// Its name.
    pub name: String,
    /// Leases granted and not retired.
    pub leases: u32,
    /// The bytes of those.
    pub vram: Bytes,
    /// How many of its leases wait.
    pub waiting: usize,
    /// Those, by rank and arrival, with the time of their requests.
    pub waiters: BTreeSet<(i64, LeaseId, Time)>,
    /// Its debt clock.
    pub debt_clock: Time,
    /// Since when its first waiter is the first.
    pub first_since: Time,
    /// When one of its waiters was last served.
    pub last_served: Time,
}

/// The books.
#[derive(Debug)]
pub struct CheckerBooks {
    /// The policy.
    pub policy: Policy,
    /// Leases that are not retired.
    pub leases: BTreeMap<LeaseId, LeaseBook>,
    /// Tenants by number.
    pub tenants: Vec<TenantBook>,
    /// GPUs by number.
    pub gpus: Vec<GpuBook>,
    /// Waiters in order of rank and arrival.
    pub queue: BTreeSet<(i64, LeaseId)>,
    /// When each lease is due.
    pub due: BTreeSet<(Time, LeaseId)>,
    /// The lease of each process.
    pub owners: BTreeMap<ProcKey, LeaseId>,
    /// The processes of each lease.
    pub members: BTreeMap<LeaseId, Vec<ProcKey>>,
    /// The next lease has at least this number.
    pub next_lease: u64,
    /// The next grant has at least this fence.
    pub next_fence: u64,
    /// What began until this time …
    pub grace_from: Time,
    /// … does not expire before this one.
    pub grace_until: Time,
    /// The id of the boot.
    pub boot: String,
    /// When the last event was taken; `None`: the daemon was away.
    pub last_event_at: Option<Time>,
    /// True if the daemon was away just before the present event.
    pub was_absent: bool,
    /// The daemon was told that the disk is full.
    pub disk_full: bool,
    /// Lines are missing from the journal, and no operator has accepted that.
    pub loss: Option<Loss>,
    /// The last leases that were retired.
    pub retired: Vec<LeaseId>,
    /// Leases that are parking, parked or resuming.
    pub moving: BTreeSet<LeaseId>,
    /// What moves the bytes of each lease, by method, as reported to this daemon.
    pub movers: BTreeMap<(LeaseId, Method), MoverBooks>,
    /// The first waiter when the present event began to make room.
    pub first_before_room: Option<LeaseId>,
    /// Leases that were told that they end for a waiter.
    pub told_to_end: BTreeSet<LeaseId>,
    /// Programs with bytes in host memory, as reported to this daemon or an earlier one.
    pub in_host_memory: BTreeMap<(ProcKey, Method), LeaseId>,
    /// The host memory that was available at the last reading.
    pub host_memory: Option<Bytes>,
    /// What was booked by parks since then: the reading may not include it.
    pub booked_since_reading: Bytes,
    /// Unleased processes, and what is done about them.
    pub unleased: ProcessWatch,
}

impl GpuBook {
    /// Removes what counts for a lease on this GPU.
    fn remove_claim(&mut self, lease: LeaseId) {
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
            gpus: Vec::new(),
            queue: BTreeSet::new(),
            due: BTreeSet::new(),
            owners: BTreeMap::new(),
            members: BTreeMap::new(),
            next_lease: 1,
            next_fence: 1,
            grace_from: Time::ZERO,
            grace_until: Time::ZERO,
            boot: String::new(),
            last_event_at: None,
            was_absent: true,
            disk_full: false,
            loss: None,
            retired: Vec::new(),
            moving: BTreeSet::new(),
            movers: BTreeMap::new(),
            first_before_room: None,
            told_to_end: BTreeSet::new(),
            in_host_memory: BTreeMap::new(),
            host_memory: None,
            booked_since_reading: Bytes::ZERO,
            unleased: ProcessWatch::default(),
        }
    }

    /// Returns the books after a start: what the disk has, and no readings.
    pub fn from_rows(policy: Policy, rows: &Rows) -> CheckerBooks {
        let mut books = CheckerBooks::new(policy);
        books.next_lease = rows.meta.next_lease;
        books.next_fence = rows.meta.next_fence.0;
        (books.grace_from, books.grace_until) = (rows.meta.grace_from, rows.meta.grace_until);
        books.boot.clone_from(&rows.meta.boot);
        books.unleased = ProcessWatch::from_rows(rows);
        for gpu in &rows.gpus {
            books.set_gpu_facts(books.gpus.len(), &gpu.facts);
            if let Some(book) = books.gpus.last_mut() {
                (book.asides, book.aside_ended) = (gpu.aside.now.clone(), gpu.aside.ended);
            }
            books.set_service(books.gpus.len() - 1, &gpu.service);
        }
        for tenant in &rows.tenants {
            books.add_tenant(&tenant.name);
            if let Some(book) = books.tenants.last_mut() {
                (book.debt_clock, book.first_since) = (tenant.debt_clock, tenant.first_since);
            }
        }
        let parking = &books.policy.parking.clone();
        for row in rows.leases.values() {
            let held = |hold: &sublet_core::rows::Hold| HeldBook {
                gpus: hold.gpus.iter().map(|gpu| usize::from(gpu.0)).collect(),
                vram: hold.vram,
                fence: hold.fence,
                granted: hold.granted,
                renewed: hold.renewed,
                until: hold.until,
                idle: hold.idle,
                prepaid: hold.prepaid,
                not_beyond: hold.not_beyond,
                slice_began: hold.history.as_ref().map_or(hold.granted, |turns| turns.began),
                stopped: hold.history.as_ref().and_then(|turns| turns.stopped),
                spent: hold.history.as_ref().map_or((0, 0), |turns| (turns.spent_us, turns.spent_byte_us)),
                booked: hold.history.as_ref().map_or(Bytes::ZERO, |turns| turns.booked),
                was_moved: hold.history.as_ref().is_some_and(|turns| !turns.never_moved),
                notice: hold.notice,
                overuse: hold
                    .history
                    .as_ref()
                    .and_then(|turns| turns.overuse)
                    .map(|over| (over.since, over.seen_bytes)),
                resized_at: hold.history.as_ref().map_or(hold.granted, |turns| turns.began),
                uncharged: hold.history.as_ref().map_or(0, |turns| turns.uncharged_byte_us),
            };
            let stage = match &row.phase {
                Phase::Waiting { give_up } => LeaseStage::Waiting(*give_up),
                Phase::Active(hold) => LeaseStage::Held(held(hold)),
                Phase::Parking(hold, away) => {
                    LeaseStage::Park(held(hold), Box::new(MoveBook::read(MoveStage::Leaving, away, parking)))
                }
                Phase::Parked(hold, away) => {
                    LeaseStage::Park(held(hold), Box::new(MoveBook::read(MoveStage::Parked, away, parking)))
                }
                Phase::Resuming(hold, away) => {
                    LeaseStage::Park(held(hold), Box::new(MoveBook::read(MoveStage::Returning, away, parking)))
                }
                Phase::Ending(hold, finish) => LeaseStage::Ending(held(hold), finish.at, gpu_mask(&hold.gpus)),
            };
            let bound = !row.roots.is_empty();
            let (tenant, request, requested_at) = (row.tenant.0 as usize, row.request.clone(), row.requested);
            // A lease of which nothing is known counts as busy.
            let (worked, worked_at) = (bound, Time::ZERO);
            let false_report = row.hold().and_then(|hold| hold.history.as_ref()).and_then(|turns| turns.false_report);
            let backoff = BackoffBook::read(false_report, parking);
            let pending_end = match &row.phase {
                Phase::Ending(_, finish) if matches!(finish.reason, EndReason::Preempted | EndReason::OverUse) => {
                    let from = finish.signal.map_or(finish.at, |(_, stage)| stage + parking.grace);
                    Some(PendingEnd {
                        signal: finish.signal.map(|(signal, _)| signal),
                        next_from: from,
                        is_ours: false,
                    })
                }
                _ => None,
            };
            let (id, roots, members_known, hints) = (row.id, row.roots.clone(), false, (Time::ZERO, 0));
            let book = LeaseBook {
                id,
                tenant,
                request,
                requested_at,
                bound,
                worked,
                worked_at,
                backoff,
                hints,
                roots,
                members_known,
                pending_end,
                stage,
            };
            if book.held().is_some_and(|held| held.for_others().is_some()) {
                books.told_to_end.insert(id);
            }
            books.insert(id, book);
            if row.request.has_hook && row.is_held() {
                // A lease that was resuming is not back.
                let away = matches!(row.phase, Phase::Parked(..) | Phase::Resuming(..));
                let mover = MoverBook { parked: away.then_some(Bytes::ZERO), ..UNHEARD };
                books.movers.entry((row.id, Method::Hook)).or_default().insert(HOOK, mover);
            }
        }
        books
    }

    /// Notes an absence of the daemon, and the grace that follows.
    pub fn note_absence(&mut self, now: Time, event: &Event) {
        let away = self.last_event_at.is_none_or(|heard| now.since(heard) > ABSENCE);
        self.last_event_at = Some(now);
        self.was_absent = away || matches!(event, Event::Daemon(DaemonEvent::Awoke | DaemonEvent::Started { .. }));
        let is_aside = self.gpus.iter().any(|gpu| !gpu.asides.is_empty());
        if self.was_absent && (is_aside || !(self.leases.is_empty() && self.unleased.is_empty())) {
            self.grace_from = now;
            self.grace_until = self.grace_until.max(now + self.policy.grace);
        }
    }

    /// True if what began at `since` is within a grace now.
    pub fn in_grace(&self, now: Time, since: Time) -> bool {
        since <= self.grace_from && now < self.grace_until
    }

    /// The time by which a waiter is ordered, in µs.
    pub fn rank(&self, request: &LeaseRequest, asked: Time) -> i64 {
        let start = &self.policy.head_start;
        let tier = match request.tier {
            Tier::Interactive => start.interactive,
            Tier::Batch => start.batch,
            Tier::Spot => start.spot,
        };
        asked.0 as i64 - tier.0 as i64 - i64::from(request.priority) * start.priority.0 as i64
    }

    // ---- leases ------------------------------------------------------------

    /// Adds a lease to the books.
    pub fn insert(&mut self, lease: LeaseId, book: LeaseBook) {
        if let Some(due) = book.due() {
            self.due.insert((due, lease));
        }
        if let Some(asked) = book.queued_since() {
            let rank = self.rank(&book.request, asked);
            self.queue.insert((rank, lease));
            self.tenants[book.tenant].waiters.insert((rank, lease, asked));
            self.tenants[book.tenant].waiting += 1;
        }
        if let Some(held) = book.held() {
            for gpu in &held.gpus {
                let gpu = &mut self.gpus[*gpu];
                gpu.claims.insert(lease, book.reserved());
                if let LeaseStage::Ending(..) = &book.stage {
                    gpu.ending.insert(lease);
                }
                gpu.reserved = gpu.reserved + book.reserved();
            }
            let tenant = &mut self.tenants[book.tenant];
            tenant.last_served = tenant.last_served.max(held.granted);
            if !book.is_parked() {
                tenant.leases += 1;
                tenant.vram = tenant.vram + Bytes(held.vram.0 * held.gpus.len() as u64);
            }
        }
        if let LeaseStage::Park(..) = &book.stage {
            self.moving.insert(lease);
        }
        self.leases.insert(lease, book);
    }

    /// Takes a lease off the books.
    pub fn remove(&mut self, lease: LeaseId) -> Option<LeaseBook> {
        let book = self.leases.remove(&lease)?;
        if let Some(due) = book.due() {
            self.due.remove(&(due, lease));
        }
        if let Some(asked) = book.queued_since() {
            let rank = self.rank(&book.request, asked);
            self.queue.remove(&(rank, lease));
            self.tenants[book.tenant].waiters.remove(&(rank, lease, asked));
            self.tenants[book.tenant].waiting -= 1;
        }
        if let Some(held) = book.held() {
            for gpu in &held.gpus {
                self.gpus[*gpu].remove_claim(lease);
            }
            if !book.is_parked() {
                let tenant = &mut self.tenants[book.tenant];
                tenant.leases -= 1;
                tenant.vram = tenant.vram.less(Bytes(held.vram.0 * held.gpus.len() as u64));
            }
        }
        self.moving.remove(&lease);
        self.told_to_end.remove(&lease);
        Some(book)
    }

    /// Forgets a retired lease, except for its number.
    pub fn retire_books(&mut self, lease: LeaseId) {
        self.remove_members(lease);
        self.remove_movers(lease);
        if self.retired.len() == 64 {
            self.retired.clear();
        }
        self.retired.push(lease);
    }

    /// Takes a renewal.
    pub fn set_until(&mut self, lease: LeaseId, at: Time, until: Time, idle: bool, paid: Span, before: Option<Time>) {
        if let Some(LeaseBook { stage: LeaseStage::Held(held), worked, .. }) = self.leases.get_mut(&lease) {
            self.due.remove(&(held.until, lease));
            self.due.insert((until, lease));
            held.prepaid = held.unused_payment(at) + paid;
            (held.renewed, held.until, *worked) = (at, until, false);
            (held.idle, held.not_beyond) = (idle, before);
        }
    }

    // ---- tenants and GPUs -------------------------------------------------

    /// Adds a tenant.
    pub fn add_tenant(&mut self, name: &str) {
        self.tenants.push(TenantBook { name: name.to_owned(), ..TenantBook::default() });
    }

    /// Adds a GPU, or changes its facts.
    pub fn set_gpu_facts(&mut self, number: usize, facts: &GpuFacts) {
        match self.gpus.get_mut(number) {
            Some(gpu) => gpu.facts = facts.clone(),
            None => self.gpus.push(GpuBook {
                model: facts.name.to_lowercase(),
                facts: facts.clone(),
                serving: true,
                asides: Vec::new(),
                aside_ended: None,
                draining: false,
                listed: false,
                reading_began: Time::ZERO,
                reading: SeenReading::Unreadable,
                seen_bytes: Vec::new(),
                compute_processes: Vec::new(),
                processes: Vec::new(),
                sizes: Vec::new(),
                claims: BTreeMap::new(),
                reserved: Bytes::ZERO,
                ending: BTreeSet::new(),
                overuse: OveruseBook::new(),
            }),
        }
    }

    /// Puts a GPU into service or out of it.
    pub fn set_service(&mut self, number: usize, service: &GpuService) {
        self.gpus[number].serving = *service == GpuService::In;
        self.gpus[number].draining = *service == GpuService::Draining;
    }

    /// The number of a GPU.
    pub fn gpu_number(&self, uuid: &str) -> Option<usize> {
        self.gpus.iter().position(|gpu| gpu.facts.uuid == uuid)
    }

    /// Adds a process that was bound to a lease; what it did before counts as work.
    pub fn add_member(&mut self, lease: LeaseId, process: ProcKey) {
        if let Some(book) = self.leases.get_mut(&lease) {
            (book.bound, book.worked, book.members_known) = (true, true, true);
            book.roots.push(process);
            self.set_owner(lease, process);
        }
    }

    /// Takes the processes of a lease; each belongs to the lease that was reported last.
    pub fn set_members(&mut self, lease: LeaseId, processes: &[ProcKey]) {
        if let Some(book) = self.leases.get_mut(&lease) {
            book.members_known = true;
            self.remove_members(lease);
            self.in_host_memory.retain(|(process, _), of| *of != lease || processes.contains(process));
            processes.iter().for_each(|process| self.set_owner(lease, *process));
            self.note_driver_told(lease);
        }
    }

    /// The lease of a process, if that was granted.
    pub fn holder(&self, process: &ProcKey) -> Option<LeaseId> {
        self.owners.get(process).copied().filter(|lease| !self.is_waiting(*lease))
    }

    fn is_waiting(&self, lease: LeaseId) -> bool {
        self.leases.get(&lease).is_some_and(|book| book.held().is_none())
    }

    fn set_owner(&mut self, lease: LeaseId, process: ProcKey) {
        // A waiting lease takes no process from a granted one.
        if self.is_waiting(lease) && self.holder(&process).is_some() {
            return;
        }
        if let Some(before) = self.owners.insert(process, lease) {
            if let Some(members) = self.members.get_mut(&before) {
                members.retain(|member| *member != process);
            }
            if before != lease {
                self.lose_process(before, process);
            }
        }
        self.members.entry(lease).or_default().push(process);
    }

    fn remove_members(&mut self, lease: LeaseId) {
        for process in self.members.remove(&lease).unwrap_or_default() {
            self.owners.remove(&process);
        }
    }

    /// Takes a reading of a GPU.
    pub fn take_reading(&mut self, number: usize, begun: Time, reading: &Reading) {
        let gpu = &mut self.gpus[number];
        if begun < gpu.reading_began {
            return;
        }
        gpu.reading_began = begun;
        match reading {
            Reading::Unreadable(why) => {
                let lost = *why == sublet_core::reading::Unreadable::Lost;
                gpu.reading = if lost { SeenReading::Lost } else { SeenReading::Unreadable };
            }
            Reading::Used(used) => {
                gpu.reading = if used.coarse { SeenReading::Coarse(used.free) } else { SeenReading::Free(used.free) };
                self.sum_by_lease(number, used);
                self.release_ended(number, begun);
                self.count_readings(number, begun);
            }
        }
        self.update_overuse(number);
    }

    fn sum_by_lease(&mut self, number: usize, used: &GpuUsage) {
        let gpu = &mut self.gpus[number];
        gpu.seen_bytes.clear();
        gpu.compute_processes.clear();
        gpu.processes = used.processes.iter().map(|resident| resident.process).collect();
        gpu.sizes = used.processes.iter().map(|resident| (resident.process, resident.bytes)).collect();
        for resident in &used.processes {
            if !resident.only_draws {
                gpu.compute_processes.push(resident.process);
            }
            let bytes = resident.bytes.unwrap_or_default();
            if let Some(lease) = self.owners.get(&resident.process).filter(|lease| gpu.claims.contains_key(lease)) {
                match gpu.seen_bytes.iter_mut().find(|(id, _)| id == lease) {
                    Some((_, sum)) => *sum = *sum + bytes,
                    None => gpu.seen_bytes.push((*lease, bytes)),
                }
            }
        }
    }

    /// Frees on this GPU what ended before the reading began.
    pub fn release_ended(&mut self, number: usize, begun: Time) {
        for lease in self.gpus[number].ending.clone() {
            // A lease that was ended for a waiter counts until its processes are gone.
            if self.leases.get(&lease).is_some_and(|book| self.may_have_processes(book)) {
                continue;
            }
            if let Some(LeaseBook { stage: LeaseStage::Ending(_, ended, unseen), .. }) = self.leases.get_mut(&lease)
                && *ended < begun
            {
                *unseen &= !(1 << number);
                self.gpus[number].remove_claim(lease);
            }
        }
    }

    // ---- requests and GPUs -------------------------------------------------

    /// The bytes that are not leased on a GPU.
    pub fn margin(&self, gpu: &GpuBook) -> Bytes {
        if gpu.facts.display { self.policy.margin_display } else { self.policy.margin }
    }

    /// The largest lease on a GPU.
    pub fn largest(&self, gpu: &GpuBook) -> Bytes {
        gpu.facts.total.less(self.margin(gpu))
    }

    /// True if the request allows this GPU.
    pub fn is_allowed_by_request(&self, request: &LeaseRequest, gpu: &GpuBook) -> bool {
        let Some(on) = &request.gpus_allowed else { return true };
        let several = if let GpuSelector::AnyOf(several) = on { &several[..] } else { std::slice::from_ref(on) };
        several.iter().any(|on| match on {
            GpuSelector::Index(index) => gpu.facts.index == *index,
            GpuSelector::Uuid(uuid) => gpu.facts.uuid.starts_with(uuid),
            GpuSelector::These(gpus) => gpus
                .iter()
                .any(|other| self.gpus.get(usize::from(other.0)).is_some_and(|it| it.facts.uuid == gpu.facts.uuid)),
            GpuSelector::Model(part) => gpu.model.contains(&part.to_lowercase()),
            // Lists in lists are refused.
            GpuSelector::AnyOf(_) => false,
        })
    }

    /// True if leases may be granted on this GPU.
    pub fn is_open(&self, gpu: &GpuBook) -> bool {
        gpu.serving && gpu.listed && gpu.facts.unusable.is_none() && gpu.asides.is_empty()
    }

    /// True if the request could be granted on this GPU if it were empty.
    pub fn eligible(&self, request: &LeaseRequest, gpu: &GpuBook) -> bool {
        let sized = match request.vram {
            Vram::Whole => true,
            Vram::Bytes(vram) => vram <= self.largest(gpu) && self.least_useful(request, gpu) <= vram,
        };
        sized && self.is_open(gpu) && self.is_allowed_by_request(request, gpu)
    }

    /// The least size that is useful on a GPU: its context, which a parked lease has there already.
    pub fn least_useful(&self, request: &LeaseRequest, gpu: &GpuBook) -> Bytes {
        let returns = matches!(request.gpus_allowed, Some(GpuSelector::These(_)));
        gpu.facts.context.filter(|_| !returns).unwrap_or_default()
    }
}

/// GPUs as bits of a mask.
pub fn gpu_mask(gpus: &[GpuId]) -> u64 {
    gpus.iter().fold(0, |mask, gpu| mask | 1 << gpu.0)
}
