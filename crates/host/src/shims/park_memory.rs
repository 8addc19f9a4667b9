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

use super::park_files::{HUGE_PAGE_BYTES, ParkFile, charged_file};
use super::{ConnectedProgram, ShimHubThread, ShimPlacement};
use crate::headroom::{Booker, Bookings, MemoryCgroup, NoRoom, UnknownRoom};
use crate::process::{self, Cgroup};
use crate::wake::WakeEvent;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::Builder;
use std::time::Instant;
use sublet_core::ids::LeaseId;
use sublet_core::movers::MoverReport;
use sublet_core::units::Bytes;
use sublet_shim_wire::ShimOrder;

/// Added to what a program reports: chunks that are not full.
const PARK_SLACK_BYTES: u64 = 64 << 20;
/// The share of its bytes that a park takes of the program's cgroup in any case: page tables (8 bytes for each 4 KiB,
/// counted twice), stacks of threads, messages.
const PAGE_TABLE_SHARE: u64 = 256;
const PAGE_TABLE_BYTES_MIN: u64 = 8 << 20;
/// Bytes of its own cgroup that the daemon leaves free.
pub(super) const DAEMON_RESERVE: u64 = 64 << 20;

/// Memory that a program was given to be parked in.
pub(super) struct ParkMemory {
    /// All of it, from every source.
    pub(super) bytes: u64,
    /// Bytes of it that the daemon has made: nothing is charged to the program for them.
    daemon_bytes: u64,
    /// Bytes of it that the program has touched itself: they are charged to it already.
    touched_bytes: u64,
    /// The program takes some of a limited cgroup for it: it is given back as soon as nothing is parked in it.
    pub(super) is_borrowed: bool,
    /// Bytes that are being made for it.
    filling_bytes: u64,
    /// Why the daemon could not make some.
    pub(super) failure: Option<String>,
    /// When it was last needed.
    pub(super) last_used: Instant,
    /// Bytes of it that the program was ordered to make ready.
    prepared_bytes: u64,
    /// Its cgroup, and how many processes were killed there before the last park began.
    kills_before: Option<(MemoryCgroup, u64)>,
}

impl ParkMemory {
    pub(super) fn new(now: Instant) -> ParkMemory {
        ParkMemory {
            bytes: 0,
            daemon_bytes: 0,
            touched_bytes: 0,
            is_borrowed: false,
            filling_bytes: 0,
            failure: None,
            last_used: now,
            prepared_bytes: 0,
            kills_before: None,
        }
    }

    /// A park is done: this many bytes are in it.
    pub(super) fn note_parked(&mut self, bytes: u64) {
        self.last_used = Instant::now();
        self.touched_bytes =
            self.touched_bytes.max(bytes.next_multiple_of(HUGE_PAGE_BYTES).saturating_sub(self.daemon_bytes));
    }

    /// Why a program died while it was being parked, for the record.
    pub(super) fn death_reason(&self) -> String {
        let now = self.kills_before.as_ref().and_then(|(cgroup, before)| Some((cgroup.oom_kills()?, *before)));
        match now {
            Some((now, before)) if now > before => "the kernel killed it for lack of memory in its cgroup".to_owned(),
            Some(_) => "the kernel did not kill it for lack of memory".to_owned(),
            None => "whether the kernel killed it for lack of memory is not known".to_owned(),
        }
    }

    /// Bytes that can be filled without a charge to the program. Memory that was granted and not touched yet does not
    /// count: its place in the program's arena is not known.
    fn ready(&self) -> u64 {
        if self.has_untouched_memory() { 0 } else { self.daemon_bytes + self.touched_bytes }
    }

    fn has_untouched_memory(&self) -> bool {
        self.bytes > self.daemon_bytes + self.touched_bytes
    }
}

/// Whether a program has the memory to be parked in.
pub(super) enum MemorySupply {
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
enum FillProgress {
    /// The program has enough.
    Done,
    /// It is being made.
    UnderWay,
    /// It cannot be made: this many bytes are lacking.
    Lacking(u64),
}

/// The thread that makes memory, in the daemon's own cgroup.
pub(super) struct ParkMemoryFiller {
    orders: mpsc::Sender<(u64, u64)>,
    made: mpsc::Receiver<(u64, io::Result<ParkFile>)>,
}

impl ParkMemoryFiller {
    /// Starts the thread. It ends with this value; each piece of memory sets the wake event.
    pub(super) fn start(wake: Arc<WakeEvent>) -> io::Result<ParkMemoryFiller> {
        let (orders, inbox) = mpsc::channel::<(u64, u64)>();
        let (done, made) = mpsc::channel();
        let work = move || {
            for (number, bytes) in inbox {
                if done.send((number, charged_file(bytes))).is_err() {
                    return;
                }
                wake.notify();
            }
        };
        Builder::new().name("sublet-filler".to_owned()).spawn(work)?;
        Ok(ParkMemoryFiller { orders, made })
    }
}

impl ConnectedProgram {
    /// True if it keeps memory for its next park and does not use it.
    pub(super) fn keeps_unused_memory(&self) -> bool {
        self.park_memory.bytes > 0
            && self.park_memory.filling_bytes == 0
            && !self.parked
            && self.order_in_progress.is_none()
    }

    /// Returns false if the memory was not sent.
    fn send_memory(&mut self, memory: &ParkFile) -> bool {
        let order = ShimOrder::Arena { bytes: memory.bytes, filled: memory.filled };
        let sent = self.connection.send(&order, Some(memory.file.as_fd()));
        if sent {
            self.park_memory.bytes += memory.bytes;
        }
        sent
    }
}

impl ShimHubThread {
    /// Ensures that a program has the memory to be parked in; `booked` bytes are booked for its lease.
    pub(super) fn supply_memory(&mut self, number: u64, booked: u64) -> MemorySupply {
        let Some(need) = self.bytes_needed(number, booked) else { return MemorySupply::Later };
        let cgroup = match self.programs.get(&number).and_then(|it| it.process).map(|it| MemoryCgroup::of(it.pid)) {
            // A program that gave up its GPU memory in another way needs nothing.
            _ if need == 0 => return MemorySupply::Ready { most: booked },
            Some(Ok(cgroup)) => cgroup,
            Some(Err(unknown)) => return MemorySupply::Refused(unreadable_limit_text(&unknown)),
            None => return MemorySupply::Later,
        };
        let kills = cgroup.as_ref().and_then(|cgroup| Some((cgroup.clone(), cgroup.oom_kills()?)));
        if let Some(program) = self.programs.get_mut(&number) {
            program.park_memory.kills_before = kills;
        }
        let room = cgroup.as_ref().map_or(Ok(None), |cgroup| self.bookings.room(cgroup, Booker::Library(number)));
        match (room, cgroup) {
            (Ok(Some(room)), Some(cgroup)) => self.supply_limited(number, &cgroup, room, need, booked),
            (Err(unknown), _) => MemorySupply::Refused(unreadable_limit_text(&unknown)),
            _ if self.give_files(number, need) => MemorySupply::Ready { most: booked },
            _ => MemorySupply::Later,
        }
    }

    /// The same for a program in a cgroup that allows only `room` more bytes.
    fn supply_limited(
        &mut self,
        number: u64,
        cgroup: &MemoryCgroup,
        room: u64,
        need: u64,
        booked: u64,
    ) -> MemorySupply {
        if room < page_table_bytes(need) {
            return MemorySupply::Refused(shortage_text(room, page_table_bytes(need), None));
        }
        let lack = match self.fill_for(number, need) {
            FillProgress::Done => 0,
            FillProgress::UnderWay => return MemorySupply::Later,
            FillProgress::Lacking(lack) => lack,
        };
        let Some(program) = self.programs.get_mut(&number) else { return MemorySupply::Later };
        let own = lack + page_table_bytes(need);
        match self.bookings.book(Booker::Library(number), std::slice::from_ref(cgroup), own) {
            Ok(()) => {
                let bytes = program.park_memory.ready() + lack;
                program.park_memory.bytes = program.park_memory.bytes.max(bytes);
                program.park_memory.is_borrowed |= lack > 0;
                MemorySupply::Ready { most: booked.min(bytes) }
            }
            Err(NoRoom::Only(room)) => {
                MemorySupply::Refused(shortage_text(room, own, program.park_memory.failure.as_deref()))
            }
            Err(NoRoom::Unknown(unknown)) => MemorySupply::Refused(unreadable_limit_text(&unknown)),
        }
    }

    /// What a program needs to be parked: the bytes it reports and a little more, and no more than is booked.
    fn bytes_needed(&self, number: u64, booked: u64) -> Option<u64> {
        let program = self.programs.get(&number)?;
        let (process, lease) = (program.process?, program.lease?);
        let page = self.holders.get(&lease).and_then(|holder| holder.page.as_ref());
        let bytes = page.and_then(|page| page.process(process.pid)).map_or(booked, |it| it.bytes);
        Some((bytes.saturating_add(bytes / 8).saturating_add(PARK_SLACK_BYTES)).min(booked))
    }

    /// Gives a program in a cgroup without a limit what it lacks: ready files, then fresh ones; the rest is its own
    /// memory.
    fn give_files(&mut self, number: u64, need: u64) -> bool {
        let Some(given_bytes) = self.programs.get(&number).map(|it| it.park_memory.bytes) else { return false };
        if need <= given_bytes {
            return true;
        }
        self.trim_others(need - given_bytes, number);
        let Ok(files) = self.stock.take_files(need - given_bytes) else { return false };
        let Some(program) = self.programs.get_mut(&number) else { return false };
        for memory in files {
            if !program.send_memory(&memory) {
                return false;
            }
            program.park_memory.daemon_bytes += if memory.filled { memory.bytes } else { 0 };
        }
        program.park_memory.bytes = program.park_memory.bytes.max(need);
        self.fit_stock();
        true
    }

    /// Gives a program memory that the daemon has made, as far as the daemon's own cgroup allows.
    fn fill_for(&mut self, number: u64, need: u64) -> FillProgress {
        let Some(program) = self.programs.get(&number) else { return FillProgress::UnderWay };
        if program.park_memory.filling_bytes > 0 {
            return FillProgress::UnderWay;
        }
        if program.park_memory.has_untouched_memory() {
            self.order_trim(number);
        }
        let Some(ready) = self.programs.get(&number).map(|it| it.park_memory.ready()) else {
            return FillProgress::UnderWay;
        };
        if need <= ready {
            return FillProgress::Done;
        }
        self.trim_others(need - ready, number);
        for memory in self.stock.take_ready_files(need - ready) {
            let Some(program) = self.programs.get_mut(&number) else { return FillProgress::UnderWay };
            if !program.send_memory(&memory) {
                return FillProgress::UnderWay;
            }
            program.park_memory.daemon_bytes += memory.bytes;
        }
        let Some(program) = self.programs.get_mut(&number) else { return FillProgress::UnderWay };
        let lack = need.saturating_sub(program.park_memory.ready()).next_multiple_of(HUGE_PAGE_BYTES);
        let filled = match (lack, &program.park_memory.failure) {
            (0, _) => FillProgress::Done,
            (_, Some(_)) => FillProgress::Lacking(lack),
            (_, None) => match book_for_daemon(&self.bookings, Booker::Daemon(number), lack) {
                Ok(()) if self.filler.orders.send((number, lack)).is_ok() => {
                    program.park_memory.filling_bytes = lack;
                    FillProgress::UnderWay
                }
                Ok(()) => FillProgress::Lacking(lack),
                Err(why) => {
                    program.park_memory.failure = Some(why);
                    FillProgress::Lacking(lack)
                }
            },
        };
        self.fit_stock();
        filled
    }

    /// Sends memory that was made to its programs, and moves them to their targets.
    pub(super) fn give_filled(&mut self) {
        while let Ok((number, made)) = self.filler.made.try_recv() {
            self.bookings.release(Booker::Daemon(number));
            let Some(program) = self.programs.get_mut(&number) else { continue };
            program.park_memory.filling_bytes = 0;
            match made {
                Ok(memory) if program.send_memory(&memory) => program.park_memory.daemon_bytes += memory.bytes,
                Ok(_) => {}
                Err(error) => program.park_memory.failure = Some(format!("the daemon could not make it: {error}")),
            }
            self.fit_stock();
            self.move_to_target(number);
        }
    }

    /// A program stays on its GPUs, for lack of memory to be parked in.
    pub(super) fn refuse_park(&mut self, number: u64, why: String) {
        let Some(program) = self.programs.get_mut(&number) else { return };
        program.retry_at = Some(Instant::now() + super::TICK);
        if let (Some(lease), Some(process)) = (program.lease, program.process) {
            self.report(lease, process, MoverReport::Refused(why));
        }
    }

    /// Checks for each lease on its GPUs whether the memory cgroups of its programs allow parking it.
    pub(super) fn update_memory_shortages(&mut self) {
        let mut known = BTreeMap::new();
        let mut leases: BTreeMap<LeaseId, Vec<ProgramShortfall>> = BTreeMap::new();
        for (number, program) in &self.programs {
            if let (Some(lease), Some(lack)) = (program.lease, self.shortfall_of(*number, program, &mut known)) {
                leases.entry(lease).or_default().push((*number, lack));
            }
        }
        let own = daemon_room(&self.bookings, Booker::Daemon(u64::MAX));
        for programs in leases.into_values() {
            // A lease is parked whole or not at all.
            let all: Vec<&MemoryShortfall> =
                programs.iter().filter_map(|(_, lack)| lack.as_ref().ok()?.as_ref()).collect();
            let lack: u64 = all.iter().map(|it| it.lack).sum();
            let daemon = match &own {
                Ok(Some(room)) if *room < lack => Err(daemon_shortage_text(*room)),
                Ok(_) => Ok(()),
                Err(why) => Err(why.clone()),
            };
            let memory_shortage = |lack: &Result<Option<MemoryShortfall>, UnknownRoom>| match lack {
                Ok(lack) => lack.as_ref().and_then(|lack| lack.memory_shortage(&all, daemon.as_ref().err())),
                Err(unknown) => Some(unreadable_limit_text(unknown)),
            };
            let judged: Vec<_> = programs.iter().map(|(number, lack)| (*number, memory_shortage(lack))).collect();
            for (number, memory_shortage) in judged {
                if let Some(program) = self.programs.get_mut(&number) {
                    program.memory_shortage = memory_shortage;
                }
            }
        }
    }

    /// What a program on its GPUs lacks to be parked, if its cgroup has a limit. `None` while that is unknown: it is
    /// being moved, or has ended.
    fn shortfall_of(
        &self,
        number: u64,
        program: &ConnectedProgram,
        known: &mut Cgroups,
    ) -> Option<Result<Option<MemoryShortfall>, UnknownRoom>> {
        if program.parked || program.order_in_progress.is_some() || program.park_memory.filling_bytes > 0 {
            return None;
        }
        let holder = self.holders.get(&program.lease?).filter(|it| it.target.placement == ShimPlacement::OnGpus)?;
        let need = self.bytes_needed(number, holder.target.gpus.iter().map(|gpu| gpu.cap).sum())?;
        let cgroups = process::cgroups(program.process?.pid).ok()?;
        let cgroup = known.entry(cgroups).or_insert_with_key(|cgroups| MemoryCgroup::among(cgroups)).clone();
        let lack = |cgroup: MemoryCgroup| {
            let room = self.bookings.room(&cgroup, Booker::Library(number))?;
            let lack = need.saturating_sub(program.park_memory.ready()).next_multiple_of(HUGE_PAGE_BYTES);
            Ok(room.map(|room| MemoryShortfall { cgroup, room, lack, tables: page_table_bytes(need) }))
        };
        Some(cgroup.and_then(|cgroup| cgroup.map_or(Ok(None), lack)))
    }

    /// Limits the stock to the part of the parking space that is neither booked nor kept by programs on their GPUs.
    pub(super) fn fit_stock(&self) {
        let is_away = |program: &ConnectedProgram| {
            let holder = program.lease.and_then(|lease| self.holders.get(&lease));
            holder.is_some_and(|holder| {
                matches!(holder.target.placement_of(program.process), ShimPlacement::InHostMemory { .. })
            })
        };
        let kept = self.programs.values().filter(|program| !is_away(program));
        let kept: u64 = kept.map(|program| program.park_memory.bytes + program.park_memory.filling_bytes).sum();
        self.stock.limit(self.parking_space.saturating_sub(self.booked).saturating_sub(kept));
    }

    /// Programs that keep memory for their next park release it when another program needs it now.
    fn trim_others(&mut self, need: u64, but: u64) {
        let given_bytes: u64 =
            self.programs.values().map(|program| program.park_memory.bytes + program.park_memory.filling_bytes).sum();
        let mut over = given_bytes.saturating_add(need).saturating_sub(self.parking_space);
        let mut warm: Vec<(Instant, u64)> = self
            .programs
            .iter()
            .filter(|(_, it)| it.keeps_unused_memory())
            .map(|(n, it)| (it.park_memory.last_used, *n))
            .collect();
        warm.sort();
        for (_, number) in warm.into_iter().filter(|(_, number)| *number != but) {
            if over == 0 {
                return;
            }
            over = over.saturating_sub(self.order_trim(number));
        }
    }

    pub(super) fn order_trim(&mut self, number: u64) -> u64 {
        let id = self.next_order;
        self.next_order += 1;
        match self.programs.get_mut(&number) {
            Some(program) if program.connection.send(&ShimOrder::Trim { id }, None) => {
                let park_memory = &mut program.park_memory;
                (
                    park_memory.prepared_bytes,
                    park_memory.daemon_bytes,
                    park_memory.touched_bytes,
                    park_memory.is_borrowed,
                ) = (0, 0, 0, false);
                std::mem::take(&mut park_memory.bytes)
            }
            _ => 0,
        }
    }

    /// Prepares a holder to be parked.
    pub(super) fn prepare(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get(&lease).filter(|it| it.target.placement == ShimPlacement::OnGpus) else {
            return;
        };
        let most: u64 = holder.target.gpus.iter().map(|gpu| gpu.cap).sum();
        for number in self.programs_of_lease(lease).collect::<Vec<_>>() {
            let Some(program) = self.programs.get(&number) else { continue };
            let page = self.holders.get(&lease).and_then(|holder| holder.page.as_ref());
            let bytes = page
                .zip(program.process)
                .and_then(|(page, process)| page.process(process.pid))
                .map_or(0, |it| it.bytes);
            // Memory beyond the parking space is not taken in advance.
            let others = self.programs.iter().filter(|(n, _)| **n != number);
            let others: u64 = others.map(|(_, it)| it.park_memory.bytes + it.park_memory.filling_bytes).sum();
            let fits = others.saturating_add(bytes) <= self.parking_space;
            if bytes == 0 || program.park_memory.prepared_bytes >= bytes || program.order_in_progress.is_some() || !fits
            {
                continue;
            }
            if let Some(given_bytes) = self.supply_ahead(number, most)
                && let Some(program) = self.programs.get_mut(&number)
                && program.connection.send(&ShimOrder::Prepare { bytes: bytes.min(given_bytes) }, None)
            {
                (program.park_memory.prepared_bytes, program.park_memory.last_used) = (bytes, Instant::now());
            }
        }
    }

    /// Gives a program memory in advance; returns how much it has then. Of a limited cgroup nothing but page tables
    /// is taken in advance.
    fn supply_ahead(&mut self, number: u64, most: u64) -> Option<u64> {
        let need = self.bytes_needed(number, most)?;
        let pid = self.programs.get(&number)?.process?.pid;
        let room = match MemoryCgroup::of(pid).ok()? {
            Some(cgroup) => self.bookings.room(&cgroup, Booker::Library(number)).ok()?,
            None => None,
        };
        match room {
            None => self.give_files(number, need).then_some(())?,
            Some(room) if room < page_table_bytes(need) => return None,
            Some(_) if matches!(self.fill_for(number, need), FillProgress::Done) => {}
            Some(_) => return None,
        }
        self.programs.get(&number).map(|it| it.park_memory.bytes)
    }
}

/// What a program in a limited cgroup lacks to be parked.
struct MemoryShortfall {
    cgroup: MemoryCgroup,
    room: u64,
    lack: u64,
    tables: u64,
}

/// A program, and what it lacks; `None` where its cgroup has no limit.
type ProgramShortfall = (u64, Result<Option<MemoryShortfall>, UnknownRoom>);
/// The memory cgroups that were found already.
type Cgroups = BTreeMap<Vec<Cgroup>, Result<Option<MemoryCgroup>, UnknownRoom>>;

impl MemoryShortfall {
    /// Why there is too little memory for all programs of the lease together, if so; `daemon` is why the daemon does
    /// not make it.
    fn memory_shortage(&self, lease: &[&MemoryShortfall], daemon: Option<&String>) -> Option<String> {
        let same = || lease.iter().filter(|other| other.cgroup == self.cgroup);
        let tables: u64 = same().map(|it| it.tables).sum();
        let own = tables + same().map(|it| it.lack).sum::<u64>();
        match daemon {
            _ if self.room < tables => Some(shortage_text(self.room, tables, None)),
            Some(why) if self.room < own => Some(shortage_text(self.room, own, Some(why))),
            _ => None,
        }
    }
}

/// What a park of this many bytes takes of the program's cgroup, wherever the bytes themselves are.
fn page_table_bytes(bytes: u64) -> u64 {
    PAGE_TABLE_BYTES_MIN + bytes / PAGE_TABLE_SHARE
}

/// What the daemon's own cgroup still allows it to make; `None` without a limit.
pub(super) fn daemon_room(bookings: &Bookings, booker: Booker) -> Result<Option<u64>, String> {
    let unknown = |error: UnknownRoom| format!("the memory limit of the daemon cannot be read: {error}");
    let Some(own) = MemoryCgroup::of(std::process::id()).map_err(unknown)? else { return Ok(None) };
    let room = bookings.room(&own, booker).map_err(unknown)?;
    Ok(room.map(|room| room.saturating_sub(DAEMON_RESERVE)))
}

/// Books memory that the daemon is about to make.
pub(super) fn book_for_daemon(bookings: &Bookings, booker: Booker, bytes: u64) -> Result<(), String> {
    let unknown = |error: UnknownRoom| format!("the memory limit of the daemon cannot be read: {error}");
    let own = MemoryCgroup::of(std::process::id()).map_err(unknown)?;
    bookings.book(booker, own.as_slice(), bytes + DAEMON_RESERVE).map_err(|lack| match lack {
        NoRoom::Only(room) => daemon_shortage_text(room.saturating_sub(DAEMON_RESERVE)),
        NoRoom::Unknown(error) => unknown(error),
    })
}

fn daemon_shortage_text(room: u64) -> String {
    format!("the daemon's own cgroup has {} left", Bytes(room))
}

/// For people: too little memory is left in a program's cgroup, and why the daemon does not make it.
fn shortage_text(room: u64, need: u64, daemon: Option<&str>) -> String {
    let (room, need) = (Bytes(room), Bytes(need));
    let daemon = daemon.map(|why| format!(" ({why})")).unwrap_or_default();
    let raise = "raise its limit (`MemoryMax=`, `--memory`, `--mem`)";
    format!("its memory cgroup has {room} left, and {need} are needed to park it{daemon}; {raise}")
}

fn unreadable_limit_text(unknown: &UnknownRoom) -> String {
    format!("the limit of its memory cgroup cannot be read, and a park beyond it would get it killed: {unknown}")
}
