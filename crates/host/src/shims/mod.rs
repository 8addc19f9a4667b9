//! The daemon's side of the library in holders' programs.
//!
//! ```text
//!   wishes (where each holder's bytes shall be, and its caps) ──► hub thread ──► orders, files, the page
//!                                                                   │ ▲
//!   Sight::Said, Sight::Ram, Sight::Worked ◄────────────────────────┘ └── words of the shims
//! ```
//! Nothing is decided here. A wish says where a holder's bytes shall be; whoever of its programs is
//! elsewhere is told so, now and whenever it connects again. A program's word is passed on as its word.

mod line;
mod memory;
mod page;
mod supply;

pub use memory::{available, page_kind, total};
pub use page::CardCap;
pub use sublet_shim_wire::beside;

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
use sublet_shim_wire::{Order, Word};
use supply::{Filler, Given, Supply};

/// How often pages and host memory are looked at, and what failed is tried again.
const TICK: Duration = Duration::from_secs(1);
/// The same of when programs last worked, while somebody waits for their cards.
const FINE: Duration = Duration::from_millis(200);
/// Somebody waits who was told of so lately.
const WAITED_FOR: Duration = Duration::from_secs(3);
/// Whoever comes says who it is within this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Lines at a time, and of one user.
pub const LINES_MAX: usize = 4096;
const LINES_OF_USER: usize = 1024;
/// Lines of one user that have not named a lease of that user. A program does so as soon as it is connected.
const UNNAMED_OF_USER: usize = 64;
/// Lines that are let in before the others get their turn: a user that connects without end delays no program.
const COMERS_AT_ONCE: usize = 16;
/// Words of one line that are dealt with before the others get their turn.
const WORDS_AT_ONCE: usize = 16;
/// Notes that may lie unread while no program is there whom they could concern.
const UNREAD: usize = 512;
/// Memory that a resumed holder keeps for its next park goes back after this.
const WARM: Duration = Duration::from_secs(600);
/// Programs that say this version, or a later one, can leave the driver alone altogether.
const DEEPENS: u32 = 2;
/// No program has more parked, whatever it says: more than any host's memory, and far from where sums overflow.
const PARKED_MAX: u64 = 1 << 50;
/// A context takes no more, whatever anybody says.
const CONTEXT_MAX: u64 = 4 << 30;

/// How to speak with shims.
#[derive(Clone, Debug)]
pub struct ShimSettings {
    /// Where they come.
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
    /// On its cards.
    OnCards,
    /// In host memory.
    Away {
        /// So much is booked.
        booked: u64,
        /// A program leaves within this or not at all.
        within: Duration,
        /// Once there it calls the driver for nothing, so that this may have its context, too.
        deep: bool,
    },
    /// Nowhere: the lease is over, and whatever is parked with it.
    Over {
        /// Why, for people.
        why: String,
    },
}

/// What shall be of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Whose.
    pub lease: LeaseId,
    /// Its user: nobody else's programs are its own.
    pub uid: u32,
    /// Where its bytes shall be.
    pub place: Place,
    /// All but those of these processes, which the driver moves: the library in them leaves them on their cards.
    pub but: Vec<ProcKey>,
    /// What it may have of each card.
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

/// The hub, from outside. Never blocks.
#[derive(Clone)]
pub(crate) struct Hub {
    notes: mpsc::Sender<Note>,
    bell: Arc<Wake>,
    desk: Arc<Desk>,
    stock: Stock,
}

/// What both sides of the hub count.
#[derive(Default)]
struct Desk {
    /// Programs that are there.
    programs: AtomicUsize,
    /// Notes that were sent since they were last read.
    unread: AtomicUsize,
}

impl Hub {
    /// Opens the door and starts the thread's work, to be run by the caller.
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

    /// Leaves a note. Where no program is there whom it could concern, nobody is called for it: whoever
    /// comes is counted before the notes are read, and they are read before it is listened to.
    fn note(&self, note: Note) {
        let urgent = matches!(note, Note::Stop | Note::Ram | Note::Booked(_) | Note::Listen);
        // Refused only when the thread is gone, and then nobody wants to know.
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

    /// Somebody waits for its cards: it is made ready to leave them.
    pub(crate) fn ahead(&self, lease: LeaseId) {
        self.note(Note::Ahead(lease));
    }

    pub(crate) fn looked(&self, uuid: [u8; 16], residents: Vec<(u32, u64)>) {
        self.note(Note::Looked { uuid, residents });
    }

    /// All leases that there were at the start have been told: from now on programs are listened to.
    pub(crate) fn listen(&self) {
        self.note(Note::Listen);
    }

    /// So much of the parking RAM is booked: the stock has no more than the rest.
    pub(crate) fn booked(&self, bytes: u64) {
        self.note(Note::Booked(bytes));
    }

    /// Host memory that is kept ready.
    pub(crate) fn stock(&self) -> u64 {
        self.stock.ready()
    }

    /// Says how much host memory there is, also while no program of its own is there.
    pub(crate) fn ram(&self) {
        self.note(Note::Ram);
    }

    pub(crate) fn stop(&self) {
        self.note(Note::Stop);
    }
}

/// A lease, as far as its programs are concerned.
struct Holder {
    wish: Wish,
    page: Option<PageFile>,
    /// When one of its programs was last seen to work.
    active_ns: u64,
    /// What those of its programs did that have ended, and what was told of all of them.
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
    /// It calls the driver for nothing.
    deep: bool,
    /// What is under way is about that.
    deepens: bool,
    /// An order that was not answered yet.
    under_way: Option<u64>,
    /// It said no, and is not told again before then.
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
    /// What parks under way may still take of memory cgroups.
    bookings: Bookings,
    ram: u64,
    /// So much of it is booked, by whoever moves in whatever way.
    booked: u64,
    /// Whether programs are listened to. Who came before all leases were told would be taken for one whose lease is over,
    /// and lose what it has parked.
    listens: bool,
    holders: BTreeMap<LeaseId, Holder>,
    lines: BTreeMap<u64, Program>,
    next_line: u64,
    next_order: u64,
    tick_at: Instant,
    /// When pages are looked at next, and how long still so often: somebody waits.
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

    /// Waits for anything; returns lines on which something came.
    fn wait(&self) -> Vec<u64> {
        let next = if self.is_waited_for() { self.tick_at.min(self.fine_at) } else { self.tick_at };
        let pause = next.saturating_duration_since(Instant::now());
        // With nobody there, nothing needs to be looked at.
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

    /// False when it is time to stop.
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
                // What was measured stays measured.
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

    /// Places on a lease's page whose processes are gone are free. A line can break and the process live.
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

    /// Tells what a holder's programs did, if that is something new.
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

    fn take_word(&mut self, number: u64, word: Word) {
        match word {
            // A tool is in its place: what it has on a card is a program's without the library.
            Word::Hello { aside: Some(_), .. } => return,
            Word::Hello { lease, looks: true, .. } => return self.show(number, lease.as_deref()),
            Word::Hello { version, lease, parked, bytes, deep, .. } => {
                let deep = (version >= DEEPENS).then_some(deep);
                return self.welcome(number, lease.as_deref(), parked.then_some(bytes.min(PARKED_MAX)), deep);
            }
            _ => {}
        }
        let Some(program) = self.lines.get_mut(&number) else { return };
        let (Some(lease), Some(process)) = (program.lease, program.process) else { return };
        let answers = |id: u64, program: &Program| program.under_way == Some(id);
        let said = match word {
            Word::Hello { .. } | Word::Prepared { .. } => return,
            Word::Parked { id, bytes, .. } if answers(id, program) => {
                let bytes = bytes.min(PARKED_MAX);
                (program.under_way, program.parked) = (None, true);
                program.given.parked(bytes);
                self.bookings.release(Booker::Library(number));
                Said::Parked(Bytes(bytes))
            }
            Word::Resumed { id, .. } if answers(id, program) => {
                (program.under_way, program.parked) = (None, false);
                (program.given.used, program.deep) = (Instant::now(), false);
                Said::Resumed
            }
            Word::Deep { id } if answers(id, program) => {
                (program.under_way, program.deep) = (None, true);
                Said::Deep(true)
            }
            Word::Shallow { id } if answers(id, program) => {
                (program.under_way, program.deep) = (None, false);
                Said::Deep(false)
            }
            // It stays as it is, and is told again.
            Word::Refused { id, .. } if answers(id, program) && program.deepens => {
                (program.under_way, program.again) = (None, Some(Instant::now() + TICK));
                return;
            }
            Word::Refused { id, why } if answers(id, program) => {
                (program.under_way, program.again) = (None, Some(Instant::now() + TICK));
                self.bookings.release(Booker::Library(number));
                Said::Refused(short(why))
            }
            Word::Wants { .. } if program.parked => Said::Wants,
            // Too late, or never asked.
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

    /// Whether the lease that a program names has ended; all that have not are known here. Another user's lease
    /// answers like one that has ended.
    fn is_over(&self, number: u64, lease: Option<&str>) -> bool {
        if lease.and_then(|lease| lease.parse::<LeaseId>().ok()).is_none() {
            return false;
        }
        let holder = self.named(number, lease).and_then(|lease| self.holders.get(&lease));
        holder.is_none_or(|holder| matches!(holder.wish.place, Place::Over { .. }))
    }

    /// The page of a lease; made when somebody first wants it.
    fn page(&mut self, lease: LeaseId) -> Option<&PageFile> {
        let holder = self.holders.get_mut(&lease)?;
        if holder.page.is_none() {
            holder.page = PageFile::new().ok();
            holder.page.as_ref()?.set_cards(&holder.wish.cards);
        }
        holder.page.as_ref()
    }

    /// Shows the page to a program that does not use the driver.
    fn show(&mut self, number: u64, lease: Option<&str>) {
        let Some(lease) = self.named(number, lease) else { return };
        let file = self.page(lease).and_then(|page| page.file().try_clone_to_owned().ok());
        if let Some(program) = self.lines.get(&number) {
            let pid = program.process.map(|process| process.pid);
            let welcome = Order::Welcome { page: file.is_some(), pid, over: false };
            program.line.send(&welcome, file.as_ref().map(AsFd::as_fd));
        }
    }

    /// A program says who it is: it is a lease's if it runs as the lease's user.
    fn welcome(&mut self, number: u64, lease: Option<&str>, parked: Option<u64>, deep: Option<bool>) {
        let over = self.is_over(number, lease);
        let lease = self.named(number, lease);
        let page = lease.and_then(|lease| self.page(lease)).and_then(|page| page.file().try_clone_to_owned().ok());
        let Some(program) = self.lines.get_mut(&number) else { return };
        let (Some(lease), Some(process)) = (lease, program.process) else {
            program.line.send(&Order::Welcome { page: false, pid: None, over }, None);
            if parked.is_some() {
                program.line.send(&Order::Over { why: "the lease of this program is over".to_owned() }, None);
            }
            return;
        };
        let pid = Some(process.pid);
        program.line.send(&Order::Welcome { page: page.is_some(), pid, over }, page.as_ref().map(AsFd::as_fd));
        (program.lease, program.parked, program.deep) = (Some(lease), parked.is_some(), deep == Some(true));
        self.eyes.send(Message::JudgedByShim { lease, is: true });
        // How much memory there is to park in is known before anybody could be.
        self.tell_ram();
        self.say(lease, process, Said::Here { parked: parked.map(Bytes) });
        if let Some(deep) = deep {
            self.say(lease, process, Said::Deep(deep));
        }
        self.put(number);
    }

    /// Tells a program to go where it shall be, unless it is there or on its way.
    fn put(&mut self, number: u64) {
        let Some(program) = self.lines.get(&number) else { return };
        let Some(holder) = program.lease.and_then(|lease| self.holders.get(&lease)) else { return };
        if program.under_way.is_some() || program.again.is_some_and(|again| again > Instant::now()) {
            return;
        }
        let id = self.next_order;
        match (holder.wish.place_of(program.process), program.parked) {
            (Place::OnCards, true) => self.order(number, &Order::Resume { id }, id),
            (Place::Away { deep: true, .. }, true) if !program.deep => self.order(number, &Order::Deepen { id }, id),
            (Place::Away { deep: false, .. }, true) if program.deep => self.order(number, &Order::Shallow { id }, id),
            (Place::Away { booked, within, .. }, false) => {
                let (booked, deadline_ms) = (*booked, within.as_millis() as u64);
                match self.supply(number, booked) {
                    Supply::Ready { most } => {
                        self.order(number, &Order::Park { id, deadline_ms, most: Some(most) }, id);
                    }
                    Supply::Later => {}
                    Supply::Refused(why) => self.refuse_park(number, why),
                }
            }
            (Place::Over { why }, true) => {
                let why = why.clone();
                if let Some(program) = self.lines.get_mut(&number)
                    && program.line.send(&Order::Over { why }, None)
                {
                    program.parked = false;
                }
            }
            _ => {}
        }
    }

    fn order(&mut self, number: u64, order: &Order, id: u64) {
        self.next_order += 1;
        if let Some(program) = self.lines.get_mut(&number)
            && program.line.send(order, None)
        {
            program.under_way = Some(id);
            program.deepens = matches!(order, Order::Deepen { .. } | Order::Shallow { .. });
        }
    }

    /// What a context takes is what the driver sees with a process beside what it counts itself.
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
        // What is kept warm goes back when it is needed.
        let available = available.map(|bytes| bytes.saturating_add(warm));
        if self.told_ram != Some(available) {
            self.told_ram = Some(available);
            self.eyes.send(Message::Tell(Sight::Ram { available: available.map(Bytes) }));
        }
    }

    fn is_waited_for(&self) -> bool {
        self.fine_until > Instant::now()
    }

    /// Says for how long each holder has not worked, to within the time between two looks.
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

/// The clock by which programs say when they worked.
fn process_clock_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A holder's own words are not taken for longer than a line.
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
        // Whatever is parked with a lease that is over is over.
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
