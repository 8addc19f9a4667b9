//! Where the host memory for a program's parked bytes comes from.
//!
//! The kernel charges a page to the cgroup of the process that touches it first, and kills at the limit:
//!
//! ```text
//!   cgroup of the program   memory                                          charged to
//!   without a limit         ready files, fresh files, its own                the program
//!   with a limit            files with pages that the daemon made first      the daemon
//!                           else its own, if that fits into the cgroup       the program
//!                           else none: it is not parked, and is told why
//!   limit not readable      none
//! ```
//! A program gives back what it took of a limited cgroup as soon as it is on its GPUs again: it may need that room
//! itself. The page tables of a mapping are always charged to the program. What a park may take of a limited cgroup
//! is booked until the park is done. Making pages takes seconds for a large program, so a thread of its own does it.

use super::memory::{HUGE, Memory, charged};
use super::{Place, Program, Work};
use crate::headroom::{Booker, Bookings, MemoryCgroup, NoRoom, Unknown};
use crate::process::{self, Cgroup};
use crate::wake::Wake;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::Builder;
use std::time::Instant;
use sublet_core::ids::LeaseId;
use sublet_core::parking::Said;
use sublet_core::units::Bytes;
use sublet_shim_wire::ShimOrder;

/// Added to what a program reports: chunks that are not full.
const SLACK: u64 = 64 << 20;
/// The share of its bytes that a park takes of the program's cgroup in any case: page tables (8 bytes for each 4 KiB,
/// counted twice), stacks of threads, messages.
const TABLES_SHARE: u64 = 256;
const TABLES_LEAST: u64 = 8 << 20;
/// Bytes of its own cgroup that the daemon leaves free.
pub(super) const RESERVE: u64 = 64 << 20;

/// Memory that a program was given to be parked in.
pub(super) struct Given {
    /// All of it, from every source.
    pub(super) bytes: u64,
    /// Bytes of it that the daemon has made: nothing is charged to the program for them.
    charged: u64,
    /// Bytes of it that the program has touched itself: they are charged to it already.
    own: u64,
    /// The program takes some of a limited cgroup for it: it is given back as soon as nothing is parked in it.
    pub(super) is_borrowed: bool,
    /// Bytes that are being made for it.
    filling: u64,
    /// Why the daemon could not make some.
    pub(super) failed: Option<String>,
    /// When it was last needed.
    pub(super) used: Instant,
    /// Bytes of it that the program was ordered to make ready.
    prepared: u64,
    /// Its cgroup, and how many processes were killed there before the last park began.
    kills: Option<(MemoryCgroup, u64)>,
}

impl Given {
    pub(super) fn new(now: Instant) -> Given {
        Given {
            bytes: 0,
            charged: 0,
            own: 0,
            is_borrowed: false,
            filling: 0,
            failed: None,
            used: now,
            prepared: 0,
            kills: None,
        }
    }

    /// A park is done: this many bytes are in it.
    pub(super) fn parked(&mut self, bytes: u64) {
        self.used = Instant::now();
        self.own = self.own.max(bytes.next_multiple_of(HUGE).saturating_sub(self.charged));
    }

    /// Why a program died while it was being parked, for the record.
    pub(super) fn why_died(&self) -> String {
        let now = self.kills.as_ref().and_then(|(cgroup, before)| Some((cgroup.oom_kills()?, *before)));
        match now {
            Some((now, before)) if now > before => "the kernel killed it for lack of memory in its cgroup".to_owned(),
            Some(_) => "the kernel did not kill it for lack of memory".to_owned(),
            None => "whether the kernel killed it for lack of memory is not known".to_owned(),
        }
    }

    /// Bytes that can be filled without a charge to the program. Memory that was granted and not touched yet does not
    /// count: its place in the program's arena is not known.
    fn ready(&self) -> u64 {
        if self.is_mixed() { 0 } else { self.charged + self.own }
    }

    fn is_mixed(&self) -> bool {
        self.bytes > self.charged + self.own
    }
}

/// Whether a program has the memory to be parked in.
pub(super) enum Supply {
    /// It has enough.
    Ready {
        /// For at most this many bytes.
        most: u64,
    },
    /// Not yet, or the program has ended.
    Later,
    /// It cannot have it.
    Refused(String),
}

/// Whether the daemon makes memory for a program.
enum Fill {
    /// The program has enough.
    Done,
    /// It is being made.
    UnderWay,
    /// It cannot be made: this many bytes are lacking.
    Lacking(u64),
}

/// The thread that makes memory, in the daemon's own cgroup.
pub(super) struct Filler {
    orders: mpsc::Sender<(u64, u64)>,
    made: mpsc::Receiver<(u64, io::Result<Memory>)>,
}

impl Filler {
    /// Starts the thread. It ends with this value; each piece of memory rings the bell.
    pub(super) fn start(bell: Arc<Wake>) -> io::Result<Filler> {
        let (orders, inbox) = mpsc::channel::<(u64, u64)>();
        let (done, made) = mpsc::channel();
        let work = move || {
            for (number, bytes) in inbox {
                if done.send((number, charged(bytes))).is_err() {
                    return;
                }
                bell.ring();
            }
        };
        Builder::new().name("sublet-filler".to_owned()).spawn(work)?;
        Ok(Filler { orders, made })
    }
}

impl Program {
    /// True if it keeps memory for its next park and does not use it.
    pub(super) fn is_warm(&self) -> bool {
        self.given.bytes > 0 && self.given.filling == 0 && !self.parked && self.under_way.is_none()
    }

    /// Returns false if the memory was not sent.
    fn send_memory(&mut self, memory: &Memory) -> bool {
        let order = ShimOrder::Arena { bytes: memory.bytes, filled: memory.filled };
        let sent = self.line.send(&order, Some(memory.file.as_fd()));
        if sent {
            self.given.bytes += memory.bytes;
        }
        sent
    }
}

impl Work {
    /// Ensures that a program has the memory to be parked in; `booked` bytes are booked for its lease.
    pub(super) fn supply(&mut self, number: u64, booked: u64) -> Supply {
        let Some(need) = self.need(number, booked) else { return Supply::Later };
        let cgroup = match self.lines.get(&number).and_then(|it| it.process).map(|it| MemoryCgroup::of(it.pid)) {
            // A program that gave up its GPU memory in another way needs nothing.
            _ if need == 0 => return Supply::Ready { most: booked },
            Some(Ok(cgroup)) => cgroup,
            Some(Err(unknown)) => return Supply::Refused(not_readable(&unknown)),
            None => return Supply::Later,
        };
        let kills = cgroup.as_ref().and_then(|cgroup| Some((cgroup.clone(), cgroup.oom_kills()?)));
        if let Some(program) = self.lines.get_mut(&number) {
            program.given.kills = kills;
        }
        let room = cgroup.as_ref().map_or(Ok(None), |cgroup| self.bookings.room(cgroup, Booker::Library(number)));
        match (room, cgroup) {
            (Ok(Some(room)), Some(cgroup)) => self.supply_limited(number, &cgroup, room, need, booked),
            (Err(unknown), _) => Supply::Refused(not_readable(&unknown)),
            _ if self.give(number, need) => Supply::Ready { most: booked },
            _ => Supply::Later,
        }
    }

    /// The same for a program in a cgroup that allows only `room` more bytes.
    fn supply_limited(&mut self, number: u64, cgroup: &MemoryCgroup, room: u64, need: u64, booked: u64) -> Supply {
        if room < tables(need) {
            return Supply::Refused(lacks(room, tables(need), None));
        }
        let lack = match self.fill(number, need) {
            Fill::Done => 0,
            Fill::UnderWay => return Supply::Later,
            Fill::Lacking(lack) => lack,
        };
        let Some(program) = self.lines.get_mut(&number) else { return Supply::Later };
        let own = lack + tables(need);
        match self.bookings.book(Booker::Library(number), std::slice::from_ref(cgroup), own) {
            Ok(()) => {
                let bytes = program.given.ready() + lack;
                program.given.bytes = program.given.bytes.max(bytes);
                program.given.is_borrowed |= lack > 0;
                Supply::Ready { most: booked.min(bytes) }
            }
            Err(NoRoom::Only(room)) => Supply::Refused(lacks(room, own, program.given.failed.as_deref())),
            Err(NoRoom::Unknown(unknown)) => Supply::Refused(not_readable(&unknown)),
        }
    }

    /// What a program needs to be parked: the bytes it reports and a little more, and no more than is booked.
    fn need(&self, number: u64, booked: u64) -> Option<u64> {
        let program = self.lines.get(&number)?;
        let (process, lease) = (program.process?, program.lease?);
        let page = self.holders.get(&lease).and_then(|holder| holder.page.as_ref());
        let bytes = page.and_then(|page| page.process(process.pid)).map_or(booked, |it| it.bytes);
        Some((bytes.saturating_add(bytes / 8).saturating_add(SLACK)).min(booked))
    }

    /// Gives a program in a cgroup without a limit what it lacks: ready files, then fresh ones; the rest is its own
    /// memory.
    fn give(&mut self, number: u64, need: u64) -> bool {
        let Some(given) = self.lines.get(&number).map(|it| it.given.bytes) else { return false };
        if need <= given {
            return true;
        }
        self.make_room(need - given, number);
        let Ok(files) = self.stock.take(need - given) else { return false };
        let Some(program) = self.lines.get_mut(&number) else { return false };
        for memory in files {
            if !program.send_memory(&memory) {
                return false;
            }
            program.given.charged += if memory.filled { memory.bytes } else { 0 };
        }
        program.given.bytes = program.given.bytes.max(need);
        self.fit_stock();
        true
    }

    /// Gives a program memory that the daemon has made, as far as the daemon's own cgroup allows.
    fn fill(&mut self, number: u64, need: u64) -> Fill {
        let Some(program) = self.lines.get(&number) else { return Fill::UnderWay };
        if program.given.filling > 0 {
            return Fill::UnderWay;
        }
        if program.given.is_mixed() {
            self.trim(number);
        }
        let Some(ready) = self.lines.get(&number).map(|it| it.given.ready()) else { return Fill::UnderWay };
        if need <= ready {
            return Fill::Done;
        }
        self.make_room(need - ready, number);
        for memory in self.stock.take_ready(need - ready) {
            let Some(program) = self.lines.get_mut(&number) else { return Fill::UnderWay };
            if !program.send_memory(&memory) {
                return Fill::UnderWay;
            }
            program.given.charged += memory.bytes;
        }
        let Some(program) = self.lines.get_mut(&number) else { return Fill::UnderWay };
        let lack = need.saturating_sub(program.given.ready()).next_multiple_of(HUGE);
        let filled = match (lack, &program.given.failed) {
            (0, _) => Fill::Done,
            (_, Some(_)) => Fill::Lacking(lack),
            (_, None) => match book_own(&self.bookings, Booker::Daemon(number), lack) {
                Ok(()) if self.filler.orders.send((number, lack)).is_ok() => {
                    program.given.filling = lack;
                    Fill::UnderWay
                }
                Ok(()) => Fill::Lacking(lack),
                Err(why) => {
                    program.given.failed = Some(why);
                    Fill::Lacking(lack)
                }
            },
        };
        self.fit_stock();
        filled
    }

    /// Sends memory that was made to its programs, and moves them to their targets.
    pub(super) fn take_filled(&mut self) {
        while let Ok((number, made)) = self.filler.made.try_recv() {
            self.bookings.release(Booker::Daemon(number));
            let Some(program) = self.lines.get_mut(&number) else { continue };
            program.given.filling = 0;
            match made {
                Ok(memory) if program.send_memory(&memory) => program.given.charged += memory.bytes,
                Ok(_) => {}
                Err(error) => program.given.failed = Some(format!("the daemon could not make it: {error}")),
            }
            self.fit_stock();
            self.put(number);
        }
    }

    /// A program stays on its GPUs, for lack of memory to be parked in.
    pub(super) fn refuse_park(&mut self, number: u64, why: String) {
        let Some(program) = self.lines.get_mut(&number) else { return };
        program.again = Some(Instant::now() + super::TICK);
        if let (Some(lease), Some(process)) = (program.lease, program.process) {
            self.say(lease, process, Said::Refused(why));
        }
    }

    /// Checks for each lease on its GPUs whether the memory cgroups of its programs allow parking it.
    pub(super) fn judge_memory(&mut self) {
        let mut known = BTreeMap::new();
        let mut leases: BTreeMap<LeaseId, Vec<Judged>> = BTreeMap::new();
        for (number, program) in &self.lines {
            if let (Some(lease), Some(lack)) = (program.lease, self.lack_of(*number, program, &mut known)) {
                leases.entry(lease).or_default().push((*number, lack));
            }
        }
        let own = own_room(&self.bookings, Booker::Daemon(u64::MAX));
        for programs in leases.into_values() {
            // A lease is parked whole or not at all.
            let all: Vec<&Lack> = programs.iter().filter_map(|(_, lack)| lack.as_ref().ok()?.as_ref()).collect();
            let lack: u64 = all.iter().map(|it| it.lack).sum();
            let daemon = match &own {
                Ok(Some(room)) if *room < lack => Err(daemon_lacks(*room)),
                Ok(_) => Ok(()),
                Err(why) => Err(why.clone()),
            };
            let short_of = |lack: &Result<Option<Lack>, Unknown>| match lack {
                Ok(lack) => lack.as_ref().and_then(|lack| lack.short_of(&all, daemon.as_ref().err())),
                Err(unknown) => Some(not_readable(unknown)),
            };
            let judged: Vec<_> = programs.iter().map(|(number, lack)| (*number, short_of(lack))).collect();
            for (number, short_of) in judged {
                if let Some(program) = self.lines.get_mut(&number) {
                    program.short_of = short_of;
                }
            }
        }
    }

    /// What a program on its GPUs lacks to be parked, if its cgroup has a limit. `None` while that is unknown: it is
    /// being moved, or has ended.
    fn lack_of(&self, number: u64, program: &Program, known: &mut Cgroups) -> Option<Result<Option<Lack>, Unknown>> {
        if program.parked || program.under_way.is_some() || program.given.filling > 0 {
            return None;
        }
        let holder = self.holders.get(&program.lease?).filter(|it| it.wish.place == Place::OnCards)?;
        let need = self.need(number, holder.wish.cards.iter().map(|card| card.cap).sum())?;
        let cgroups = process::cgroups(program.process?.pid).ok()?;
        let cgroup = known.entry(cgroups).or_insert_with_key(|cgroups| MemoryCgroup::among(cgroups)).clone();
        let lack = |cgroup: MemoryCgroup| {
            let room = self.bookings.room(&cgroup, Booker::Library(number))?;
            let lack = need.saturating_sub(program.given.ready()).next_multiple_of(HUGE);
            Ok(room.map(|room| Lack { cgroup, room, lack, tables: tables(need) }))
        };
        Some(cgroup.and_then(|cgroup| cgroup.map_or(Ok(None), lack)))
    }

    /// Limits the stock to the part of the parking space that is neither booked nor kept by programs on their GPUs.
    pub(super) fn fit_stock(&self) {
        let is_away = |program: &Program| {
            let holder = program.lease.and_then(|lease| self.holders.get(&lease));
            holder.is_some_and(|holder| matches!(holder.wish.place_of(program.process), Place::Away { .. }))
        };
        let kept = self.lines.values().filter(|program| !is_away(program));
        let kept: u64 = kept.map(|program| program.given.bytes + program.given.filling).sum();
        self.stock.limit(self.ram.saturating_sub(self.booked).saturating_sub(kept));
    }

    /// Programs that keep memory for their next park release it when another program needs it now.
    fn make_room(&mut self, need: u64, but: u64) {
        let given: u64 = self.lines.values().map(|program| program.given.bytes + program.given.filling).sum();
        let mut over = given.saturating_add(need).saturating_sub(self.ram);
        let mut warm: Vec<(Instant, u64)> =
            self.lines.iter().filter(|(_, it)| it.is_warm()).map(|(n, it)| (it.given.used, *n)).collect();
        warm.sort();
        for (_, number) in warm.into_iter().filter(|(_, number)| *number != but) {
            if over == 0 {
                return;
            }
            over = over.saturating_sub(self.trim(number));
        }
    }

    pub(super) fn trim(&mut self, number: u64) -> u64 {
        let id = self.next_order;
        self.next_order += 1;
        match self.lines.get_mut(&number) {
            Some(program) if program.line.send(&ShimOrder::Trim { id }, None) => {
                let given = &mut program.given;
                (given.prepared, given.charged, given.own, given.is_borrowed) = (0, 0, 0, false);
                std::mem::take(&mut given.bytes)
            }
            _ => 0,
        }
    }

    /// Prepares a holder to be parked.
    pub(super) fn prepare(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get(&lease).filter(|it| it.wish.place == Place::OnCards) else { return };
        let most: u64 = holder.wish.cards.iter().map(|card| card.cap).sum();
        for number in self.of_lease(lease).collect::<Vec<_>>() {
            let Some(program) = self.lines.get(&number) else { continue };
            let page = self.holders.get(&lease).and_then(|holder| holder.page.as_ref());
            let bytes = page
                .zip(program.process)
                .and_then(|(page, process)| page.process(process.pid))
                .map_or(0, |it| it.bytes);
            // Memory beyond the parking space is not taken in advance.
            let others = self.lines.iter().filter(|(n, _)| **n != number);
            let others: u64 = others.map(|(_, it)| it.given.bytes + it.given.filling).sum();
            let fits = others.saturating_add(bytes) <= self.ram;
            if bytes == 0 || program.given.prepared >= bytes || program.under_way.is_some() || !fits {
                continue;
            }
            if let Some(given) = self.supply_ahead(number, most)
                && let Some(program) = self.lines.get_mut(&number)
                && program.line.send(&ShimOrder::Prepare { bytes: bytes.min(given) }, None)
            {
                (program.given.prepared, program.given.used) = (bytes, Instant::now());
            }
        }
    }

    /// Gives a program memory in advance; returns how much it has then. Of a limited cgroup nothing but page tables
    /// is taken in advance.
    fn supply_ahead(&mut self, number: u64, most: u64) -> Option<u64> {
        let need = self.need(number, most)?;
        let pid = self.lines.get(&number)?.process?.pid;
        let room = match MemoryCgroup::of(pid).ok()? {
            Some(cgroup) => self.bookings.room(&cgroup, Booker::Library(number)).ok()?,
            None => None,
        };
        match room {
            None => self.give(number, need).then_some(())?,
            Some(room) if room < tables(need) => return None,
            Some(_) if matches!(self.fill(number, need), Fill::Done) => {}
            Some(_) => return None,
        }
        self.lines.get(&number).map(|it| it.given.bytes)
    }
}

/// What a program in a limited cgroup lacks to be parked.
struct Lack {
    cgroup: MemoryCgroup,
    room: u64,
    lack: u64,
    tables: u64,
}

/// A program, and what it lacks; `None` where its cgroup has no limit.
type Judged = (u64, Result<Option<Lack>, Unknown>);
/// The memory cgroups that were found already.
type Cgroups = BTreeMap<Vec<Cgroup>, Result<Option<MemoryCgroup>, Unknown>>;

impl Lack {
    /// Why there is too little memory for all programs of the lease together, if so; `daemon` is why the daemon does
    /// not make it.
    fn short_of(&self, lease: &[&Lack], daemon: Option<&String>) -> Option<String> {
        let same = || lease.iter().filter(|other| other.cgroup == self.cgroup);
        let tables: u64 = same().map(|it| it.tables).sum();
        let own = tables + same().map(|it| it.lack).sum::<u64>();
        match daemon {
            _ if self.room < tables => Some(lacks(self.room, tables, None)),
            Some(why) if self.room < own => Some(lacks(self.room, own, Some(why))),
            _ => None,
        }
    }
}

/// What a park of this many bytes takes of the program's cgroup, wherever the bytes themselves are.
fn tables(bytes: u64) -> u64 {
    TABLES_LEAST + bytes / TABLES_SHARE
}

/// What the daemon's own cgroup still allows it to make; `None` without a limit.
pub(super) fn own_room(bookings: &Bookings, booker: Booker) -> Result<Option<u64>, String> {
    let unknown = |error: Unknown| format!("the memory limit of the daemon cannot be read: {error}");
    let Some(own) = MemoryCgroup::of(std::process::id()).map_err(unknown)? else { return Ok(None) };
    let room = bookings.room(&own, booker).map_err(unknown)?;
    Ok(room.map(|room| room.saturating_sub(RESERVE)))
}

/// Books memory that the daemon is about to make.
pub(super) fn book_own(bookings: &Bookings, booker: Booker, bytes: u64) -> Result<(), String> {
    let unknown = |error: Unknown| format!("the memory limit of the daemon cannot be read: {error}");
    let own = MemoryCgroup::of(std::process::id()).map_err(unknown)?;
    bookings.book(booker, own.as_slice(), bytes + RESERVE).map_err(|lack| match lack {
        NoRoom::Only(room) => daemon_lacks(room.saturating_sub(RESERVE)),
        NoRoom::Unknown(error) => unknown(error),
    })
}

fn daemon_lacks(room: u64) -> String {
    format!("the daemon's own cgroup has {} left", Bytes(room))
}

/// For people: too little memory is left in a program's cgroup, and why the daemon does not make it.
fn lacks(room: u64, need: u64, daemon: Option<&str>) -> String {
    let (room, need) = (Bytes(room), Bytes(need));
    let daemon = daemon.map(|why| format!(" ({why})")).unwrap_or_default();
    let raise = "raise its limit (`MemoryMax=`, `--memory`, `--mem`)";
    format!("its memory cgroup has {room} left, and {need} are needed to park it{daemon}; {raise}")
}

fn not_readable(unknown: &Unknown) -> String {
    format!("the limit of its memory cgroup cannot be read, and a park beyond it would get it killed: {unknown}")
}
