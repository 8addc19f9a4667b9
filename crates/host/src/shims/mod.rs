//! The daemon's side of the library in holders' programs.
//!
//! ```text
//!   targets (where each holder's bytes shall be, and its caps) ─► hub thread ──► orders, files, the page
//!                                                                   │ ▲
//!   Sight::Said, Sight::Ram, Sight::Worked ◄────────────────────────┘ └── messages of the shims
//! ```
//! Nothing is decided here. A target says where a holder's bytes shall be; each of its programs that is elsewhere is
//! ordered to move, now and whenever it connects again. What a program reports is passed on as its own claim.

mod line;
mod memory;
mod page;
mod supply;

pub use memory::{available, page_kind, total};
pub use page::CardCap;
pub use sublet_shim_wire::shim_socket_path;

use crate::cards;
use crate::eyes::{Inbox, Message};
use crate::headroom::{Booker, Bookings};
use crate::process;
use crate::sight::{Counts, Sight};
use crate::wake::Wake;
use line::{Door, Heard, Line};
use memory::Stock;
use page::PageFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use sublet_core::ask::is_visible;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::parking::Said;
use sublet_core::units::Bytes;
use sublet_shim_wire::{ShimOrder, ShimReport};
use supply::{Filler, Given, Supply};

/// How often pages and host memory are read, and failed steps tried again.
const TICK: Duration = Duration::from_secs(1);
/// How often the last activity of programs is read while a waiter needs their GPUs.
const FINE: Duration = Duration::from_millis(200);
/// A waiter counts for this long after it was last announced by [`Hub::ahead`].
const WAITED_FOR: Duration = Duration::from_secs(3);
/// How long a new connection may take to identify itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at a time in all, and of one user.
pub const LINES_MAX: usize = 4096;
const LINES_OF_USER: usize = 1024;
/// Connections of one user that have not named a lease of that user. A program names it as soon as it is connected.
const UNNAMED_OF_USER: usize = 64;
/// Connections accepted in one round: a user that connects without end delays no program.
const COMERS_AT_ONCE: usize = 16;
/// Messages of one connection that are handled in one round.
const WORDS_AT_ONCE: usize = 16;
/// Notes that may stay unread while no program is connected.
const UNREAD: usize = 512;
/// Memory that a resumed holder keeps for its next park is released after this.
const WARM: Duration = Duration::from_secs(600);
/// Programs that report this version, or a later one, can stop using the driver altogether.
const DEEPENS: u32 = 2;
/// The maximum accepted for a program's parked bytes, whatever it reports: more than any host's memory, and too small
/// for sums to overflow.
const PARKED_MAX: u64 = 1 << 50;
/// The maximum accepted for the size of a context, whatever a program reports.
const CONTEXT_MAX: u64 = 4 << 30;

/// Settings for shims.
#[derive(Clone, Debug)]
pub struct ShimSettings {
    /// The socket at which they connect.
    pub socket: PathBuf,
    /// Host memory kept ready for parked bytes.
    pub stock: u64,
    /// Host memory for parked bytes in all.
    pub ram: u64,
    /// Host memory that stays available to others.
    pub leave: u64,
}

/// Where a holder's bytes shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On its GPUs.
    OnCards,
    /// In host memory.
    Away {
        /// Bytes booked for it.
        booked: u64,
        /// A program parks within this time or not at all.
        within: Duration,
        /// Once parked it stops using the driver, so that the driver can move its context, too.
        deep: bool,
    },
    /// Nowhere: the lease is over, and so are its parked bytes.
    Over {
        /// The reason, for people.
        why: String,
    },
}

/// The target of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The lease of the holder.
    pub lease: LeaseId,
    /// Its user: programs of other users are not its own.
    pub uid: u32,
    /// Where its bytes shall be.
    pub place: Place,
    /// Processes that the driver moves instead: the library leaves their bytes on their GPUs.
    pub but: Vec<ProcKey>,
    /// What it may have of each GPU.
    pub cards: Vec<CardCap>,
}

impl Wish {
    /// Where the bytes of one of its programs shall be.
    fn place_of(&self, process: Option<ProcKey>) -> &Place {
        let is_driven = process.is_some_and(|process| self.but.contains(&process));
        match &self.place {
            Place::Away { .. } if is_driven => &Place::OnCards,
            place => place,
        }
    }
}

enum Note {
    Wish(Wish),
    Forget(LeaseId),
    Ahead(LeaseId),
    Looked { uuid: [u8; 16], residents: Vec<(u32, u64)> },
    Booked(u64),
    Listen,
    Ram,
    Stop,
}

/// A handle to the hub. Never blocks.
#[derive(Clone)]
pub(crate) struct Hub {
    notes: mpsc::Sender<Note>,
    bell: Arc<Wake>,
    desk: Arc<Desk>,
    stock: Stock,
}

/// Counters shared by both sides of the hub.
#[derive(Default)]
struct Desk {
    /// Connected programs.
    programs: AtomicUsize,
    /// Notes sent since they were last read.
    unread: AtomicUsize,
}

impl Hub {
    /// Opens the socket and makes the thread's work, to be run by the caller.
    pub(crate) fn open(
        settings: &ShimSettings,
        eyes: Inbox,
        cards: Arc<cards::Shared>,
        bookings: Bookings,
    ) -> io::Result<(Hub, impl FnOnce() + Send + 'static)> {
        let door = Door::open(&settings.socket)?;
        let stock = Stock::start(settings.stock.min(settings.ram), settings.leave, bookings.clone())?;
        let bell = Arc::new(Wake::new()?);
        let (notes, inbox) = mpsc::channel();
        let desk = Arc::new(Desk::default());
        let work = Work {
            door,
            inbox,
            bell: Arc::clone(&bell),
            desk: Arc::clone(&desk),
            eyes,
            cards,
            stock: stock.clone(),
            filler: Filler::start(Arc::clone(&bell))?,
            bookings,
            ram: settings.ram,
            booked: 0,
            listens: false,
            holders: BTreeMap::new(),
            lines: BTreeMap::new(),
            next_line: 0,
            next_order: 1,
            tick_at: Instant::now() + TICK,
            fine_at: Instant::now(),
            fine_until: Instant::now(),
            told_ram: None,
        };
        let socket = settings.socket.clone();
        let filling = stock.clone();
        let run = move || {
            work.run();
            filling.stop();
            let _ = std::fs::remove_file(socket);
        };
        Ok((Hub { notes, bell, desk, stock }, run))
    }

    /// Sends a note. While no program is connected the thread is not woken for it: a new connection is counted before
    /// the notes are read, and they are read before its messages are.
    fn note(&self, note: Note) {
        let urgent = matches!(note, Note::Stop | Note::Ram | Note::Booked(_) | Note::Listen);
        // Fails only when the thread has ended, and then the note does not matter.
        let _ = self.notes.send(note);
        let unread = self.desk.unread.fetch_add(1, Ordering::SeqCst) + 1;
        if urgent || unread >= UNREAD || self.desk.programs.load(Ordering::SeqCst) > 0 {
            self.bell.ring();
        }
    }

    pub(crate) fn wish(&self, wish: Wish) {
        self.note(Note::Wish(wish));
    }

    pub(crate) fn forget(&self, lease: LeaseId) {
        self.note(Note::Forget(lease));
    }

    /// A waiter needs the lease's GPUs: its programs prepare to park.
    pub(crate) fn ahead(&self, lease: LeaseId) {
        self.note(Note::Ahead(lease));
    }

    pub(crate) fn looked(&self, uuid: [u8; 16], residents: Vec<(u32, u64)>) {
        self.note(Note::Looked { uuid, residents });
    }

    /// All leases that existed at the start are known: from now on connections are accepted.
    pub(crate) fn listen(&self) {
        self.note(Note::Listen);
    }

    /// Sets the booked bytes of the parking space: the stock has at most the rest.
    pub(crate) fn booked(&self, bytes: u64) {
        self.note(Note::Booked(bytes));
    }

    /// Bytes of host memory kept ready.
    pub(crate) fn stock(&self) -> u64 {
        self.stock.ready()
    }

    /// Requests a report of the host memory, also while no program is connected.
    pub(crate) fn ram(&self) {
        self.note(Note::Ram);
    }

    pub(crate) fn stop(&self) {
        self.note(Note::Stop);
    }
}

/// What the hub knows of a lease.
struct Holder {
    wish: Wish,
    page: Option<PageFile>,
    /// When one of its programs was last seen to work.
    active_ns: u64,
    /// The counts of its programs that have ended, and the counts last reported of all.
    done: Counts,
    told: Counts,
}

/// One program.
struct Program {
    line: Line,
    uid: u32,
    process: Option<ProcKey>,
    lease: Option<LeaseId>,
    came: Instant,
    parked: bool,
    /// It does not use the driver.
    deep: bool,
    /// The order in progress is to stop using the driver.
    deepens: bool,
    /// An order that was not answered yet.
    under_way: Option<u64>,
    /// It refused, and gets no new order before then.
    again: Option<Instant>,
    /// Memory it was given to be parked in.
    given: Given,
    /// Why there is too little host memory to park it, as of the last tick.
    short_of: Option<String>,
    cannot: Option<String>,
}

struct Work {
    door: Door,
    inbox: mpsc::Receiver<Note>,
    bell: Arc<Wake>,
    desk: Arc<Desk>,
    eyes: Inbox,
    cards: Arc<cards::Shared>,
    stock: Stock,
    filler: Filler,
    /// What parks in progress may still take of memory cgroups.
    bookings: Bookings,
    ram: u64,
    /// Booked bytes of the parking space, by all movers.
    booked: u64,
    /// True if connections are accepted. A program that connected before all leases were known would be treated as
    /// one of a lease that is over, and lose its parked bytes.
    listens: bool,
    holders: BTreeMap<LeaseId, Holder>,
    lines: BTreeMap<u64, Program>,
    next_line: u64,
    next_order: u64,
    tick_at: Instant,
    /// When pages are read next while a waiter needs GPUs; `fine_until` is when that ends.
    fine_at: Instant,
    fine_until: Instant,
    told_ram: Option<Option<u64>>,
}

impl Work {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            self.bell.hush();
            if !self.read_notes() {
                return;
            }
            self.take_filled();
            for number in ready {
                self.hear(number);
            }
            if self.listens {
                self.let_in();
            }
            if self.is_waited_for() && Instant::now() >= self.fine_at {
                self.fine_at = Instant::now() + FINE;
                self.tell_idle();
            }
            if Instant::now() >= self.tick_at {
                self.tick_at = Instant::now() + TICK;
                self.tick();
            }
            self.count();
        }
    }

    fn count(&self) {
        self.desk.programs.store(self.lines.len(), Ordering::SeqCst);
    }

    /// Waits for an event; returns the connections on which something arrived.
    fn wait(&self) -> Vec<u64> {
        let next = if self.is_waited_for() { self.tick_at.min(self.fine_at) } else { self.tick_at };
        let pause = next.saturating_duration_since(Instant::now());
        // Without a connection nothing needs to be read.
        let pause = if self.lines.is_empty() { Duration::from_secs(60) } else { pause };
        let comers = if self.listens { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN), PollFd::new(&self.door, comers)];
        let lines = self.lines.values().map(|program| PollFd::from_borrowed_fd(program.line.as_fd(), PollFlags::IN));
        fds.extend(lines);
        let time = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        if poll(&mut fds, Some(&time)).is_err() {
            return Vec::new();
        }
        let heard = self.lines.keys().zip(&fds[2..]).filter(|(_, fd)| !fd.revents().is_empty());
        heard.map(|(number, _)| *number).collect()
    }

    /// Returns false when the thread must stop.
    fn read_notes(&mut self) -> bool {
        self.desk.unread.store(0, Ordering::SeqCst);
        while let Ok(note) = self.inbox.try_recv() {
            match note {
                Note::Wish(wish) => self.take_wish(wish),
                Note::Forget(lease) => drop(self.holders.remove(&lease)),
                Note::Ahead(lease) => {
                    self.fine_until = Instant::now() + WAITED_FOR;
                    self.prepare(lease);
                }
                Note::Looked { uuid, residents } => self.measure(uuid, &residents),
                Note::Booked(bytes) => {
                    self.booked = bytes;
                    self.fit_stock();
                }
                Note::Listen => self.listens = true,
                Note::Ram => self.tell_ram(),
                Note::Stop => return false,
            }
        }
        true
    }

    fn take_wish(&mut self, wish: Wish) {
        let lease = wish.lease;
        match self.holders.get_mut(&lease) {
            Some(holder) => {
                let caps = |wish: &Wish| wish.cards.iter().map(|card| (card.uuid, card.cap)).collect::<Vec<_>>();
                let contexts: Vec<u64> = holder.wish.cards.iter().map(|card| card.context).collect();
                let changed = caps(&holder.wish) != caps(&wish);
                holder.wish = wish;
                // Measured sizes of contexts are kept.
                for (card, context) in holder.wish.cards.iter_mut().zip(contexts).filter(|_| !changed) {
                    card.context = card.context.max(context);
                }
                if let Some(page) = &holder.page {
                    page.set_cards(&holder.wish.cards);
                }
            }
            None => {
                drop(self.holders.insert(
                    lease,
                    Holder { wish, page: None, active_ns: 0, done: Counts::none(), told: Counts::none() },
                ))
            }
        }
        let programs: Vec<u64> = self.of_lease(lease).collect();
        for number in programs {
            if let Some(program) = self.lines.get_mut(&number) {
                program.again = None;
                program.given.failed = None;
            }
            self.put(number);
        }
    }

    fn of_lease(&self, lease: LeaseId) -> impl Iterator<Item = u64> + '_ {
        self.lines.iter().filter(move |(_, program)| program.lease == Some(lease)).map(|(number, _)| *number)
    }

    fn let_in(&mut self) {
        for _ in 0..COMERS_AT_ONCE {
            let Some((line, pid, uid)) = self.door.accept() else { break };
            if !self.has_room_for(uid) {
                continue;
            }
            let Ok(found) = process::identify(pid) else { continue };
            let now = Instant::now();
            let program = Program {
                line,
                uid,
                process: Some(found.key),
                lease: None,
                came: now,
                parked: false,
                deep: false,
                deepens: false,
                under_way: None,
                again: None,
                given: Given::new(now),
                short_of: None,
                cannot: None,
            };
            self.lines.insert(self.next_line, program);
            self.next_line += 1;
        }
        self.count();
    }

    fn has_room_for(&self, uid: u32) -> bool {
        let own = || self.lines.values().filter(|program| program.uid == uid);
        let unnamed = own().filter(|program| program.lease.is_none()).count();
        self.lines.len() < LINES_MAX && unnamed < UNNAMED_OF_USER && own().count() < LINES_OF_USER
    }

    fn hear(&mut self, number: u64) {
        for _ in 0..WORDS_AT_ONCE {
            let Some(program) = self.lines.get(&number) else { return };
            match program.line.hear() {
                Heard::Nothing => return,
                Heard::Noise => {}
                Heard::End => return self.hang_up(number),
                Heard::Word(word) => self.take_word(number, word),
            }
        }
    }

    fn hang_up(&mut self, number: u64) {
        let Some(program) = self.lines.remove(&number) else { return };
        self.bookings.release(Booker::Library(number));
        let (Some(lease), Some(process)) = (program.lease, program.process) else { return };
        self.sweep(lease);
        self.tell_counts(lease);
        if self.of_lease(lease).next().is_none() {
            self.eyes.send(Message::JudgedByShim { lease, is: false });
        }
        let is_parking = program.under_way.is_some() && !program.parked && !program.deepens;
        let said = match is_parking && process::is_ending(process) {
            true => Said::Died(program.given.why_died()),
            false => Said::Left,
        };
        self.say(lease, process, said);
        self.cards.wish();
    }

    /// Frees the places on a lease's page that belong to ended processes. A connection can break while its process
    /// lives.
    fn sweep(&mut self, lease: LeaseId) {
        let here: BTreeSet<u32> =
            self.of_lease(lease).filter_map(|number| Some(self.lines.get(&number)?.process?.pid)).collect();
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let Some(page) = &holder.page else { return };
        for pid in page.pids().filter(|pid| !here.contains(pid)) {
            if !process::identify(pid).is_ok_and(|found| process::is_running(found.key)) {
                holder.done.add(&page.counts(pid));
                page.clear(pid);
            }
        }
    }

    /// Reports what a holder's programs did, if that changed.
    fn tell_counts(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let Some(page) = &holder.page else { return };
        let mut counts = holder.done.clone();
        page.pids().for_each(|pid| counts.add(&page.counts(pid)));
        if counts != holder.told {
            holder.told = counts.clone();
            self.eyes.send(Message::Tell(Sight::Counted { lease, counts }));
        }
    }

    fn say(&self, lease: LeaseId, process: ProcKey, said: Said) {
        self.eyes.send(Message::Tell(Sight::Said { lease, process, said }));
    }

    fn take_word(&mut self, number: u64, word: ShimReport) {
        match word {
            // A tool has replaced the library: what the process has on a GPU counts as that of a program without the
            // library.
            ShimReport::Hello { aside: Some(_), .. } => return,
            ShimReport::Hello { lease, looks: true, .. } => return self.show(number, lease.as_deref()),
            ShimReport::Hello { version, lease, parked, bytes, deep, .. } => {
                let deep = (version >= DEEPENS).then_some(deep);
                return self.welcome(number, lease.as_deref(), parked.then_some(bytes.min(PARKED_MAX)), deep);
            }
            _ => {}
        }
        let Some(program) = self.lines.get_mut(&number) else { return };
        let (Some(lease), Some(process)) = (program.lease, program.process) else { return };
        let answers = |id: u64, program: &Program| program.under_way == Some(id);
        let said = match word {
            ShimReport::Hello { .. } | ShimReport::Prepared { .. } => return,
            ShimReport::Parked { id, bytes, .. } if answers(id, program) => {
                let bytes = bytes.min(PARKED_MAX);
                (program.under_way, program.parked) = (None, true);
                program.given.parked(bytes);
                self.bookings.release(Booker::Library(number));
                Said::Parked(Bytes(bytes))
            }
            ShimReport::Resumed { id, .. } if answers(id, program) => {
                (program.under_way, program.parked) = (None, false);
                (program.given.used, program.deep) = (Instant::now(), false);
                Said::Resumed
            }
            ShimReport::Deep { id } if answers(id, program) => {
                (program.under_way, program.deep) = (None, true);
                Said::Deep(true)
            }
            ShimReport::Shallow { id } if answers(id, program) => {
                (program.under_way, program.deep) = (None, false);
                Said::Deep(false)
            }
            // It stays as it is, and is ordered again.
            ShimReport::Refused { id, .. } if answers(id, program) && program.deepens => {
                (program.under_way, program.again) = (None, Some(Instant::now() + TICK));
                return;
            }
            ShimReport::Refused { id, why } if answers(id, program) => {
                (program.under_way, program.again) = (None, Some(Instant::now() + TICK));
                self.bookings.release(Booker::Library(number));
                Said::Refused(short(why))
            }
            ShimReport::Wants { .. } if program.parked => Said::Wants,
            // Too late, or never asked for.
            _ => return,
        };
        let gives_back =
            program.given.is_borrowed && matches!(said, Said::Resumed | Said::Refused(_)) && !program.parked;
        let looks = matches!(said, Said::Parked(_) | Said::Resumed);
        self.say(lease, process, said);
        if looks {
            self.cards.wish();
        }
        if gives_back {
            self.trim(number);
        }
        self.put(number);
    }

    /// The lease that a program names, if it runs as the lease's user.
    fn named(&self, number: u64, lease: Option<&str>) -> Option<LeaseId> {
        let lease = lease?.parse::<LeaseId>().ok()?;
        let (holder, program) = (self.holders.get(&lease)?, self.lines.get(&number)?);
        (holder.wish.uid == program.uid).then_some(lease)
    }

    /// True if the lease that a program names has ended; all others are known here. For another user's lease the
    /// answer is the same as for one that has ended.
    fn is_over(&self, number: u64, lease: Option<&str>) -> bool {
        if lease.and_then(|lease| lease.parse::<LeaseId>().ok()).is_none() {
            return false;
        }
        let holder = self.named(number, lease).and_then(|lease| self.holders.get(&lease));
        holder.is_none_or(|holder| matches!(holder.wish.place, Place::Over { .. }))
    }

    /// The page of a lease; made when it is first needed.
    fn page(&mut self, lease: LeaseId) -> Option<&PageFile> {
        let holder = self.holders.get_mut(&lease)?;
        if holder.page.is_none() {
            holder.page = PageFile::new().ok();
            holder.page.as_ref()?.set_cards(&holder.wish.cards);
        }
        holder.page.as_ref()
    }

    /// Sends the page to a program that does not use the driver.
    fn show(&mut self, number: u64, lease: Option<&str>) {
        let Some(lease) = self.named(number, lease) else { return };
        let file = self.page(lease).and_then(|page| page.file().try_clone_to_owned().ok());
        if let Some(program) = self.lines.get(&number) {
            let pid = program.process.map(|process| process.pid);
            let welcome = ShimOrder::Welcome { page: file.is_some(), pid, over: false };
            program.line.send(&welcome, file.as_ref().map(AsFd::as_fd));
        }
    }

    /// A program identifies itself: it belongs to a lease if it runs as the lease's user.
    fn welcome(&mut self, number: u64, lease: Option<&str>, parked: Option<u64>, deep: Option<bool>) {
        let over = self.is_over(number, lease);
        let lease = self.named(number, lease);
        let page = lease.and_then(|lease| self.page(lease)).and_then(|page| page.file().try_clone_to_owned().ok());
        let Some(program) = self.lines.get_mut(&number) else { return };
        let (Some(lease), Some(process)) = (lease, program.process) else {
            program.line.send(&ShimOrder::Welcome { page: false, pid: None, over }, None);
            if parked.is_some() {
                program.line.send(&ShimOrder::Over { why: "the lease of this program is over".to_owned() }, None);
            }
            return;
        };
        let pid = Some(process.pid);
        program.line.send(&ShimOrder::Welcome { page: page.is_some(), pid, over }, page.as_ref().map(AsFd::as_fd));
        (program.lease, program.parked, program.deep) = (Some(lease), parked.is_some(), deep == Some(true));
        self.eyes.send(Message::JudgedByShim { lease, is: true });
        // The available host memory is reported before any program could be parked.
        self.tell_ram();
        self.say(lease, process, Said::Here { parked: parked.map(Bytes) });
        if let Some(deep) = deep {
            self.say(lease, process, Said::Deep(deep));
        }
        self.put(number);
    }

    /// Orders a program to move to its target, unless it is there or on its way.
    fn put(&mut self, number: u64) {
        let Some(program) = self.lines.get(&number) else { return };
        let Some(holder) = program.lease.and_then(|lease| self.holders.get(&lease)) else { return };
        if program.under_way.is_some() || program.again.is_some_and(|again| again > Instant::now()) {
            return;
        }
        let id = self.next_order;
        match (holder.wish.place_of(program.process), program.parked) {
            (Place::OnCards, true) => self.order(number, &ShimOrder::Resume { id }, id),
            (Place::Away { deep: true, .. }, true) if !program.deep => {
                self.order(number, &ShimOrder::Deepen { id }, id)
            }
            (Place::Away { deep: false, .. }, true) if program.deep => {
                self.order(number, &ShimOrder::Shallow { id }, id)
            }
            (Place::Away { booked, within, .. }, false) => {
                let (booked, deadline_ms) = (*booked, within.as_millis() as u64);
                match self.supply(number, booked) {
                    Supply::Ready { most } => {
                        self.order(number, &ShimOrder::Park { id, deadline_ms, most: Some(most) }, id);
                    }
                    Supply::Later => {}
                    Supply::Refused(why) => self.refuse_park(number, why),
                }
            }
            (Place::Over { why }, true) => {
                let why = why.clone();
                if let Some(program) = self.lines.get_mut(&number)
                    && program.line.send(&ShimOrder::Over { why }, None)
                {
                    program.parked = false;
                }
            }
            _ => {}
        }
    }

    fn order(&mut self, number: u64, order: &ShimOrder, id: u64) {
        self.next_order += 1;
        if let Some(program) = self.lines.get_mut(&number)
            && program.line.send(order, None)
        {
            program.under_way = Some(id);
            program.deepens = matches!(order, ShimOrder::Deepen { .. } | ShimOrder::Shallow { .. });
        }
    }

    /// The size of a context is what the driver reports for a process, less what the process counts itself.
    fn measure(&mut self, uuid: [u8; 16], residents: &[(u32, u64)]) {
        for (pid, seen) in residents {
            let program = self.lines.values().find(|it| it.process.is_some_and(|process| process.pid == *pid));
            let Some(program) = program.filter(|it| !it.parked && it.under_way.is_none()) else { continue };
            let Some(holder) = program.lease.and_then(|lease| self.holders.get_mut(&lease)) else { continue };
            let Some(place) = holder.wish.cards.iter().position(|card| card.uuid == uuid) else { continue };
            let Some(page) = &holder.page else { continue };
            let context = seen.saturating_sub(page.bytes_on(*pid, place).unwrap_or(0)).min(CONTEXT_MAX);
            if context > holder.wish.cards[place].context {
                holder.wish.cards[place].context = context;
                page.set_cards(&holder.wish.cards);
            }
        }
    }

    fn tick(&mut self) {
        self.judge_memory();
        self.read_pages();
        let now = Instant::now();
        let strangers = self.lines.iter().filter(|(_, it)| it.lease.is_none() && now - it.came > PATIENCE);
        for number in strangers.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.lines.remove(&number);
        }
        let cold = |program: &Program| program.is_warm() && now - program.given.used > WARM;
        for number in self.lines.iter().filter(|(_, it)| cold(it)).map(|(n, _)| *n).collect::<Vec<_>>() {
            self.trim(number);
        }
        for number in self.lines.keys().copied().collect::<Vec<_>>() {
            self.put(number);
        }
        for lease in self.holders.keys().copied().collect::<Vec<_>>() {
            self.sweep(lease);
            self.tell_counts(lease);
        }
        self.fit_stock();
        self.tell_ram();
    }

    fn tell_ram(&mut self) {
        let available = available().map(|bytes| bytes.saturating_add(self.stock.ready()));
        let warm: u64 = self.lines.values().filter(|it| !it.parked).map(|it| it.given.bytes).sum();
        // Memory kept for a next park is released when it is needed.
        let available = available.map(|bytes| bytes.saturating_add(warm));
        if self.told_ram != Some(available) {
            self.told_ram = Some(available);
            self.eyes.send(Message::Tell(Sight::Ram { available: available.map(Bytes) }));
        }
    }

    fn is_waited_for(&self) -> bool {
        self.fine_until > Instant::now()
    }

    /// Reports how long each holder has not worked, with the resolution of two consecutive readings.
    fn tell_idle(&mut self) {
        self.read_pages();
        let now_ns = process_clock_ns();
        let on_cards: BTreeSet<LeaseId> =
            self.lines.values().filter(|it| !it.parked).filter_map(|it| it.lease).collect();
        for lease in on_cards {
            let Some(holder) = self.holders.get(&lease).filter(|it| it.active_ns > 0) else { continue };
            let idle = Duration::from_nanos(now_ns.saturating_sub(holder.active_ns));
            self.eyes.send(Message::Tell(Sight::Idle { lease, idle }));
        }
    }

    fn read_pages(&mut self) {
        let mut worked: BTreeSet<LeaseId> = BTreeSet::new();
        let mut news = Vec::new();
        for program in self.lines.values_mut() {
            let (Some(lease), Some(process)) = (program.lease, program.process) else { continue };
            let Some(holder) = self.holders.get_mut(&lease) else { continue };
            let Some(found) = holder.page.as_ref().and_then(|page| page.process(process.pid)) else { continue };
            if found.active_ns > holder.active_ns {
                holder.active_ns = found.active_ns;
                worked.insert(lease);
            }
            let cannot = found.reason.map(|reason| reason.text().to_owned()).or_else(|| program.short_of.clone());
            if cannot != program.cannot {
                program.cannot.clone_from(&cannot);
                news.push((lease, process, cannot));
            }
        }
        for (lease, process, cannot) in news {
            self.say(lease, process, Said::Cannot(cannot));
        }
        for lease in worked {
            self.eyes.send(Message::Tell(Sight::Worked { lease }));
        }
    }
}

/// The clock by which programs report when they worked.
fn process_clock_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Limits a holder's own text to one line.
fn short(why: String) -> String {
    why.chars().filter(|c| is_visible(*c)).take(200).collect()
}

/// The driver's 16 bytes of a UUID as NVML writes it.
pub fn uuid_bytes(uuid: &str) -> Option<[u8; 16]> {
    let digits = uuid.strip_prefix("GPU-").unwrap_or(uuid).chars().filter(|c| *c != '-');
    let (mut number, mut count) = (0_u128, 0);
    for digit in digits {
        number = number << 4 | u128::from(digit.to_digit(16)?);
        count += 1;
    }
    (count == 32).then(|| number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_driver_moves_the_library_leaves_alone_and_who_began_since_waits() {
        let [taken, began] = [1, 2].map(|pid| ProcKey { pid, start: 1 });
        let place = Place::Away { booked: 0, within: Duration::ZERO, deep: false };
        let wish = Wish { lease: LeaseId(1), uid: 0, place, but: vec![taken], cards: Vec::new() };
        assert_eq!(wish.place_of(Some(taken)), &Place::OnCards);
        assert_eq!(wish.place_of(Some(began)), &wish.place);
        // What is parked in a lease that is over is released.
        let wish = Wish { place: Place::Over { why: String::new() }, ..wish };
        assert_eq!(wish.place_of(Some(taken)), &wish.place);
    }

    #[test]
    fn words_of_a_program_are_cut_and_lose_what_is_not_seen() {
        assert_eq!(short("no\u{202e}\x1b[2J room\n".to_owned()), "no[2J room");
        assert_eq!(short("x".repeat(999)).len(), 200);
    }

    #[test]
    fn a_uuid_is_sixteen_bytes() {
        let bytes = uuid_bytes("GPU-50f7ca2d-0001-0203-0405-060708090a0b").expect("a UUID");
        assert_eq!(bytes[..6], [0x50, 0xf7, 0xca, 0x2d, 0x00, 0x01]);
        assert_eq!(uuid_bytes("GPU-7"), None);
    }
}
