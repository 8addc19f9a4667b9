//! The daemon's side of the library in holders' programs.
//!
//! ```text
//!   targets (where each holder's bytes shall be, and its caps) ─► hub thread ──► orders, files, the page
//!                                                                   │ ▲
//!   ShimReported, HostMemory, Worked ◄──────────────────────────────┘ └── messages of the shims
//! ```
//! Nothing is decided here. A target says where a holder's bytes shall be; each of its programs that is elsewhere is
//! ordered to move, now and whenever it connects again. What a program reports is passed on as its own claim.

mod connection;
mod outgrown;
mod page;
mod park_files;
mod park_memory;

pub use page::GpuCap;
pub use park_files::{available_bytes, page_kind, total_bytes};
pub use sublet_shim_wire::shim_socket_path;

use crate::gpu_thread;
use crate::headroom::{Booker, Bookings};
use crate::mailbox::{Mailbox, MailboxSender};
use crate::process;
use crate::process_thread::{ProcessMessage, ProcessThreadInbox};
use crate::report::{ActivityCounts, HostReport};
use connection::{ReceivedPacket, ShimConnection, ShimListener};
use outgrown::OutgrownBooking;
use page::PageFile;
use park_files::ParkFileStock;
use park_memory::{MemorySupply, ParkMemory, ParkMemoryFiller};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::movers::MoverReport;
use sublet_core::request::is_visible;
use sublet_core::units::Bytes;
use sublet_shim_wire::{ShimOrder, ShimReport};

/// How often pages and host memory are read, and failed steps tried again.
const TICK: Duration = Duration::from_secs(1);
/// How often the last activity of programs is read while a waiter needs their GPUs.
const FINE_TICK: Duration = Duration::from_millis(200);
/// A waiter counts for this long after it was last announced by [`ShimHub::prepare`].
const ANNOUNCED_FOR: Duration = Duration::from_secs(3);
/// How long a new connection may take to identify itself.
const IDENTIFY_WITHIN: Duration = Duration::from_secs(5);
/// Connections at a time in all, and of one user.
pub const SHIM_CONNECTIONS_MAX: usize = 4096;
const CONNECTIONS_OF_USER: usize = 1024;
/// Connections of one user that have not named a lease of that user. A program names it as soon as it is connected.
const UNNAMED_CONNECTIONS_OF_USER: usize = 64;
/// Connections accepted in one round: a user that connects without end delays no program.
const ACCEPTED_AT_ONCE: usize = 16;
/// Messages of one connection that are handled in one round.
const MESSAGES_AT_ONCE: usize = 16;
/// Messages that may stay unread while no program is connected.
const UNREAD_MAX: usize = 512;
/// Memory that a resumed holder keeps for its next park is released after this.
const KEEP_MEMORY_FOR: Duration = Duration::from_secs(600);
/// Programs that report this version, or a later one, can stop using the driver altogether.
const CONTEXT_VERSION_MIN: u32 = 2;
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
    pub stock_bytes: u64,
    /// Host memory for parked bytes in all.
    pub parking_space: u64,
    /// Host memory that stays available to others.
    pub leave_available: u64,
}

/// Where a holder's bytes shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShimPlacement {
    /// On its GPUs.
    OnGpus,
    /// In host memory.
    InHostMemory {
        /// Bytes booked for it.
        booked: u64,
        /// A program parks within this time or not at all.
        within: Duration,
        /// Once parked it stops using the driver, so that the driver can move its context, too.
        with_context: bool,
    },
    /// Nowhere: the lease is over, and so are its parked bytes.
    LeaseOver {
        /// The reason, for people.
        why: String,
    },
}

/// The target of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimTarget {
    /// The lease of the holder.
    pub lease: LeaseId,
    /// Its user: programs of other users are not its own.
    pub uid: u32,
    /// Where its bytes shall be.
    pub placement: ShimPlacement,
    /// Processes that the driver moves instead: the library leaves their bytes on their GPUs.
    pub moved_by_driver: Vec<ProcKey>,
    /// What it may have of each GPU.
    pub gpus: Vec<GpuCap>,
}

impl ShimTarget {
    /// Where the bytes of one of its programs shall be.
    fn placement_of(&self, process: Option<ProcKey>) -> &ShimPlacement {
        let is_driven = process.is_some_and(|process| self.moved_by_driver.contains(&process));
        match &self.placement {
            ShimPlacement::InHostMemory { .. } if is_driven => &ShimPlacement::OnGpus,
            placement => placement,
        }
    }
}

enum ShimHubMessage {
    SetTarget(ShimTarget),
    Forget(LeaseId),
    Prepare(LeaseId),
    Reading { uuid: [u8; 16], residents: Vec<(u32, u64)> },
    SetBooked(u64),
    AcceptConnections,
    ReportHostMemory,
    Stop,
}

/// A handle to the hub. Never blocks.
#[derive(Clone)]
pub(crate) struct ShimHub {
    mailbox: MailboxSender<ShimHubMessage>,
    /// Connected programs.
    programs: Arc<AtomicUsize>,
    stock: ParkFileStock,
}

impl ShimHub {
    /// Opens the socket and makes the thread's work, to be run by the caller.
    pub(crate) fn open(
        settings: &ShimSettings,
        process_thread: ProcessThreadInbox,
        gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
        bookings: Bookings,
    ) -> io::Result<(ShimHub, impl FnOnce() + Send + 'static)> {
        let listener = ShimListener::open(&settings.socket)?;
        let stock = ParkFileStock::start(
            settings.stock_bytes.min(settings.parking_space),
            settings.leave_available,
            bookings.clone(),
        )?;
        let (sender, mailbox) = Mailbox::new()?;
        let programs = Arc::new(AtomicUsize::new(0));
        let work = ShimHubThread {
            listener,
            filler: ParkMemoryFiller::start(Arc::clone(mailbox.wake()))?,
            mailbox,
            program_count: Arc::clone(&programs),
            process_thread,
            gpu_thread,
            stock: stock.clone(),
            bookings,
            parking_space: settings.parking_space,
            booked: 0,
            is_accepting: false,
            holders: BTreeMap::new(),
            programs: BTreeMap::new(),
            next_number: 0,
            next_order: 1,
            tick_at: Instant::now() + TICK,
            fine_tick_at: Instant::now(),
            announced_until: Instant::now(),
            reported_memory: None,
        };
        let socket = settings.socket.clone();
        let filling = stock.clone();
        let run = move || {
            work.run();
            filling.stop();
            let _ = std::fs::remove_file(socket);
        };
        Ok((ShimHub { mailbox: sender, programs, stock }, run))
    }

    /// Sends a message. While no program is connected the thread is not woken for it: a new connection is counted
    /// before the messages of this queue are read, and they are read before those of the connection are.
    fn send(&self, message: ShimHubMessage) {
        let urgent = matches!(
            message,
            ShimHubMessage::Stop
                | ShimHubMessage::ReportHostMemory
                | ShimHubMessage::SetBooked(_)
                | ShimHubMessage::AcceptConnections
        );
        let unread = self.mailbox.send_quietly(message);
        if urgent || unread >= UNREAD_MAX || self.programs.load(Ordering::SeqCst) > 0 {
            self.mailbox.wake();
        }
    }

    pub(crate) fn set_target(&self, target: ShimTarget) {
        self.send(ShimHubMessage::SetTarget(target));
    }

    pub(crate) fn forget(&self, lease: LeaseId) {
        self.send(ShimHubMessage::Forget(lease));
    }

    /// A waiter needs the lease's GPUs: its programs prepare to park.
    pub(crate) fn prepare(&self, lease: LeaseId) {
        self.send(ShimHubMessage::Prepare(lease));
    }

    pub(crate) fn add_reading(&self, uuid: [u8; 16], residents: Vec<(u32, u64)>) {
        self.send(ShimHubMessage::Reading { uuid, residents });
    }

    /// All leases that existed at the start are known: from now on connections are accepted.
    pub(crate) fn accept_connections(&self) {
        self.send(ShimHubMessage::AcceptConnections);
    }

    /// Sets the booked bytes of the parking space: the stock has at most the rest.
    pub(crate) fn set_booked(&self, bytes: u64) {
        self.send(ShimHubMessage::SetBooked(bytes));
    }

    /// Bytes of host memory kept ready.
    pub(crate) fn stock_bytes(&self) -> u64 {
        self.stock.ready()
    }

    /// Requests a report of the host memory, also while no program is connected.
    pub(crate) fn request_memory_report(&self) {
        self.send(ShimHubMessage::ReportHostMemory);
    }

    pub(crate) fn stop(&self) {
        self.send(ShimHubMessage::Stop);
    }
}

/// What the hub knows of a lease.
struct ShimHolder {
    target: ShimTarget,
    page: Option<PageFile>,
    /// When one of its programs was last seen to work.
    active_ns: u64,
    outgrown: OutgrownBooking,
    /// The counts of its programs that have ended, and the counts last reported of all.
    ended_counts: ActivityCounts,
    reported: ActivityCounts,
}

/// One program.
struct ConnectedProgram {
    connection: ShimConnection,
    uid: u32,
    process: Option<ProcKey>,
    lease: Option<LeaseId>,
    connected_at: Instant,
    parked: bool,
    /// It does not use the driver.
    is_off_the_driver: bool,
    /// The order in progress is to stop using the driver, or to use it again.
    order_changes_context: bool,
    /// An order that was not answered yet.
    order_in_progress: Option<u64>,
    /// It refused, and gets no new order before then.
    retry_at: Option<Instant>,
    /// Memory it was given to be parked in.
    park_memory: ParkMemory,
    /// Why there is too little host memory to park it, as of the last tick.
    memory_shortage: Option<String>,
    obstacle: Option<String>,
}

struct ShimHubThread {
    listener: ShimListener,
    mailbox: Mailbox<ShimHubMessage>,
    /// Connected programs, for the senders.
    program_count: Arc<AtomicUsize>,
    process_thread: ProcessThreadInbox,
    gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
    stock: ParkFileStock,
    filler: ParkMemoryFiller,
    /// What parks in progress may still take of memory cgroups.
    bookings: Bookings,
    parking_space: u64,
    /// Booked bytes of the parking space, by all movers.
    booked: u64,
    /// True if connections are accepted. A program that connected before all leases were known would be treated as
    /// one of a lease that is over, and lose its parked bytes.
    is_accepting: bool,
    holders: BTreeMap<LeaseId, ShimHolder>,
    programs: BTreeMap<u64, ConnectedProgram>,
    next_number: u64,
    next_order: u64,
    tick_at: Instant,
    /// When pages are read next while a waiter needs GPUs; `announced_until` is when that ends.
    fine_tick_at: Instant,
    announced_until: Instant,
    reported_memory: Option<Option<u64>>,
}

impl ShimHubThread {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            self.mailbox.wake().clear();
            if !self.handle_messages() {
                return;
            }
            self.give_filled();
            for number in ready {
                self.read_messages(number);
            }
            if self.is_accepting {
                self.accept_programs();
            }
            if self.is_waiter_announced() && Instant::now() >= self.fine_tick_at {
                self.fine_tick_at = Instant::now() + FINE_TICK;
                self.report_idle();
            }
            if Instant::now() >= self.tick_at {
                self.tick_at = Instant::now() + TICK;
                self.tick();
            }
            self.store_program_count();
        }
    }

    fn store_program_count(&self) {
        self.program_count.store(self.programs.len(), Ordering::SeqCst);
    }

    /// Waits for an event; returns the connections on which something arrived.
    fn wait(&self) -> Vec<u64> {
        let next = if self.is_waiter_announced() { self.tick_at.min(self.fine_tick_at) } else { self.tick_at };
        let pause = next.saturating_duration_since(Instant::now());
        // Without a connection nothing needs to be read.
        let pause = if self.programs.is_empty() { Duration::from_secs(60) } else { pause };
        let listening = if self.is_accepting { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&**self.mailbox.wake(), PollFlags::IN), PollFd::new(&self.listener, listening)];
        let programs =
            self.programs.values().map(|program| PollFd::from_borrowed_fd(program.connection.as_fd(), PollFlags::IN));
        fds.extend(programs);
        let time = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        if poll(&mut fds, Some(&time)).is_err() {
            return Vec::new();
        }
        let ready = self.programs.keys().zip(&fds[2..]).filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(number, _)| *number).collect()
    }

    /// Returns false when the thread must stop.
    fn handle_messages(&mut self) -> bool {
        while let Some(message) = self.mailbox.next() {
            match message {
                ShimHubMessage::SetTarget(target) => self.apply_target(target),
                ShimHubMessage::Forget(lease) => drop(self.holders.remove(&lease)),
                ShimHubMessage::Prepare(lease) => {
                    self.announced_until = Instant::now() + ANNOUNCED_FOR;
                    self.prepare(lease);
                }
                ShimHubMessage::Reading { uuid, residents } => self.measure_contexts(uuid, &residents),
                ShimHubMessage::SetBooked(bytes) => {
                    self.booked = bytes;
                    self.fit_stock();
                }
                ShimHubMessage::AcceptConnections => self.is_accepting = true,
                ShimHubMessage::ReportHostMemory => self.report_host_memory(),
                ShimHubMessage::Stop => return false,
            }
        }
        true
    }

    fn apply_target(&mut self, target: ShimTarget) {
        let lease = target.lease;
        match self.holders.get_mut(&lease) {
            Some(holder) => {
                let caps = |target: &ShimTarget| target.gpus.iter().map(|gpu| (gpu.uuid, gpu.cap)).collect::<Vec<_>>();
                let contexts: Vec<u64> = holder.target.gpus.iter().map(|gpu| gpu.context).collect();
                let changed = caps(&holder.target) != caps(&target);
                holder.target = target;
                // Measured sizes of contexts are kept.
                for (gpu, context) in holder.target.gpus.iter_mut().zip(contexts).filter(|_| !changed) {
                    gpu.context = gpu.context.max(context);
                }
                if let Some(page) = &holder.page {
                    page.set_caps(&holder.target.gpus);
                }
            }
            None => drop(self.holders.insert(
                lease,
                ShimHolder {
                    target,
                    page: None,
                    active_ns: 0,
                    outgrown: OutgrownBooking::default(),
                    ended_counts: ActivityCounts::none(),
                    reported: ActivityCounts::none(),
                },
            )),
        }
        let programs: Vec<u64> = self.programs_of_lease(lease).collect();
        for number in programs {
            if let Some(program) = self.programs.get_mut(&number) {
                program.retry_at = None;
                program.park_memory.failure = None;
            }
            self.move_to_target(number);
        }
    }

    fn programs_of_lease(&self, lease: LeaseId) -> impl Iterator<Item = u64> + '_ {
        self.programs.iter().filter(move |(_, program)| program.lease == Some(lease)).map(|(number, _)| *number)
    }

    fn accept_programs(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some((connection, pid, uid)) = self.listener.accept() else { break };
            if !self.has_room_for(uid) {
                continue;
            }
            let Ok(found) = process::identify(pid) else { continue };
            let now = Instant::now();
            let program = ConnectedProgram {
                connection,
                uid,
                process: Some(found.key),
                lease: None,
                connected_at: now,
                parked: false,
                is_off_the_driver: false,
                order_changes_context: false,
                order_in_progress: None,
                retry_at: None,
                park_memory: ParkMemory::new(now),
                memory_shortage: None,
                obstacle: None,
            };
            self.programs.insert(self.next_number, program);
            self.next_number += 1;
        }
        self.store_program_count();
    }

    fn has_room_for(&self, uid: u32) -> bool {
        let own = || self.programs.values().filter(|program| program.uid == uid);
        let unnamed = own().filter(|program| program.lease.is_none()).count();
        self.programs.len() < SHIM_CONNECTIONS_MAX
            && unnamed < UNNAMED_CONNECTIONS_OF_USER
            && own().count() < CONNECTIONS_OF_USER
    }

    fn read_messages(&mut self, number: u64) {
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(program) = self.programs.get(&number) else { return };
            match program.connection.receive() {
                ReceivedPacket::Nothing => return,
                ReceivedPacket::NotUnderstood => {}
                ReceivedPacket::Closed => return self.disconnect(number),
                ReceivedPacket::Message(packet) => self.handle_message(number, packet),
            }
        }
    }

    fn disconnect(&mut self, number: u64) {
        let Some(program) = self.programs.remove(&number) else { return };
        self.bookings.release(Booker::Library(number));
        let (Some(lease), Some(process)) = (program.lease, program.process) else { return };
        self.clear_ended_processes(lease);
        self.report_counts(lease);
        if self.programs_of_lease(lease).next().is_none() {
            self.process_thread.send(ProcessMessage::JudgedByShim { lease, is: false });
        }
        let is_parking = program.order_in_progress.is_some() && !program.parked && !program.order_changes_context;
        let said = match is_parking && process::is_ending(process) {
            true => MoverReport::Died(program.park_memory.death_reason()),
            false => MoverReport::Gone,
        };
        self.report(lease, process, said);
        self.gpu_thread.request_reading();
    }

    /// Frees the places on a lease's page that belong to ended processes. A connection can break while its process
    /// lives.
    fn clear_ended_processes(&mut self, lease: LeaseId) {
        let here: BTreeSet<u32> =
            self.programs_of_lease(lease).filter_map(|number| Some(self.programs.get(&number)?.process?.pid)).collect();
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let Some(page) = &holder.page else { return };
        for pid in page.pids().filter(|pid| !here.contains(pid)) {
            if !process::identify(pid).is_ok_and(|found| process::is_running(found.key)) {
                holder.ended_counts.add(&page.counts(pid));
                page.clear(pid);
            }
        }
    }

    /// Reports what a holder's programs did, if that changed.
    fn report_counts(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let Some(page) = &holder.page else { return };
        let mut counts = holder.ended_counts.clone();
        page.pids().for_each(|pid| counts.add(&page.counts(pid)));
        if counts != holder.reported {
            holder.reported = counts.clone();
            self.process_thread.send(ProcessMessage::Report(HostReport::Counted { lease, counts }));
        }
    }

    fn report(&self, lease: LeaseId, process: ProcKey, said: MoverReport) {
        let program = process::executable_name_if_present(process, &said);
        self.process_thread.send(ProcessMessage::Report(HostReport::ShimReported { lease, process, said, program }));
    }

    fn handle_message(&mut self, number: u64, packet: ShimReport) {
        match packet {
            // A tool has replaced the library: what the process has on a GPU counts as that of a program without the
            // library.
            ShimReport::Hello { aside: Some(_), .. } => return,
            ShimReport::Hello { lease, looks: true, .. } => return self.send_page(number, lease.as_deref()),
            ShimReport::Hello { version, lease, parked, bytes, deep, .. } => {
                let deep = (version >= CONTEXT_VERSION_MIN).then_some(deep);
                return self.welcome(number, lease.as_deref(), parked.then_some(bytes.min(PARKED_MAX)), deep);
            }
            _ => {}
        }
        let Some(program) = self.programs.get_mut(&number) else { return };
        let (Some(lease), Some(process)) = (program.lease, program.process) else { return };
        let is_answer = |id: u64, program: &ConnectedProgram| program.order_in_progress == Some(id);
        let said = match packet {
            ShimReport::Hello { .. } | ShimReport::Prepared { .. } => return,
            ShimReport::Parked { id, bytes, .. } if is_answer(id, program) => {
                let bytes = bytes.min(PARKED_MAX);
                (program.order_in_progress, program.parked) = (None, true);
                program.park_memory.note_parked(bytes);
                if let Some(holder) = self.holders.get_mut(&lease) {
                    holder.outgrown.forget();
                }
                self.bookings.release(Booker::Library(number));
                MoverReport::Parked(Bytes(bytes))
            }
            ShimReport::Resumed { id, .. } if is_answer(id, program) => {
                (program.order_in_progress, program.parked) = (None, false);
                (program.park_memory.last_used, program.is_off_the_driver) = (Instant::now(), false);
                MoverReport::Resumed
            }
            ShimReport::Deep { id } if is_answer(id, program) => {
                (program.order_in_progress, program.is_off_the_driver) = (None, true);
                MoverReport::KeepsStill(true)
            }
            ShimReport::Shallow { id } if is_answer(id, program) => {
                (program.order_in_progress, program.is_off_the_driver) = (None, false);
                MoverReport::KeepsStill(false)
            }
            // It stays as it is, and is ordered again.
            ShimReport::Refused { id, .. } if is_answer(id, program) && program.order_changes_context => {
                (program.order_in_progress, program.retry_at) = (None, Some(Instant::now() + TICK));
                return;
            }
            ShimReport::Refused { id, why } if is_answer(id, program) => {
                (program.order_in_progress, program.retry_at) = (None, Some(Instant::now() + TICK));
                self.bookings.release(Booker::Library(number));
                match self.has_outgrown_booking(lease, process) {
                    true => MoverReport::Outgrown(one_line(why)),
                    false => MoverReport::Refused(one_line(why)),
                }
            }
            ShimReport::Wants { .. } if program.parked => MoverReport::Used,
            // Too late, or never asked for.
            _ => return,
        };
        let Some(program) = self.programs.get(&number) else { return };
        let stays = matches!(said, MoverReport::Resumed | MoverReport::Refused(_) | MoverReport::Outgrown(_));
        let gives_back = program.park_memory.is_borrowed && stays && !program.parked;
        let looks = matches!(said, MoverReport::Parked(_) | MoverReport::Resumed | MoverReport::Outgrown(_));
        self.report(lease, process, said);
        if looks {
            self.gpu_thread.request_reading();
        }
        if gives_back {
            self.order_trim(number);
        }
        self.move_to_target(number);
    }

    /// True if a program that is to be parked counts more bytes than were booked for its lease, and is believed.
    fn has_outgrown_booking(&mut self, lease: LeaseId, process: ProcKey) -> bool {
        let Some(holder) = self.holders.get_mut(&lease) else { return false };
        let ShimPlacement::InHostMemory { booked, .. } = *holder.target.placement_of(Some(process)) else {
            return false;
        };
        let counted = holder.page.as_ref().and_then(|page| page.process(process.pid));
        counted.is_some_and(|counted| holder.outgrown.is_outgrown(counted.bytes, booked))
    }

    /// The lease that a program names, if it runs as the lease's user.
    fn named_lease(&self, number: u64, lease: Option<&str>) -> Option<LeaseId> {
        let lease = lease?.parse::<LeaseId>().ok()?;
        let (holder, program) = (self.holders.get(&lease)?, self.programs.get(&number)?);
        (holder.target.uid == program.uid).then_some(lease)
    }

    /// True if the lease that a program names has ended; all others are known here. For another user's lease the
    /// answer is the same as for one that has ended.
    fn is_lease_over(&self, number: u64, lease: Option<&str>) -> bool {
        if lease.and_then(|lease| lease.parse::<LeaseId>().ok()).is_none() {
            return false;
        }
        let holder = self.named_lease(number, lease).and_then(|lease| self.holders.get(&lease));
        holder.is_none_or(|holder| matches!(holder.target.placement, ShimPlacement::LeaseOver { .. }))
    }

    /// The page of a lease; made when it is first needed.
    fn page(&mut self, lease: LeaseId) -> Option<&PageFile> {
        let holder = self.holders.get_mut(&lease)?;
        if holder.page.is_none() {
            holder.page = PageFile::new().ok();
            holder.page.as_ref()?.set_caps(&holder.target.gpus);
        }
        holder.page.as_ref()
    }

    /// Sends the page to a program that does not use the driver.
    fn send_page(&mut self, number: u64, lease: Option<&str>) {
        let Some(lease) = self.named_lease(number, lease) else { return };
        let file = self.page(lease).and_then(|page| page.file().try_clone_to_owned().ok());
        if let Some(program) = self.programs.get(&number) {
            let pid = program.process.map(|process| process.pid);
            let welcome = ShimOrder::Welcome { page: file.is_some(), pid, over: false };
            program.connection.send(&welcome, file.as_ref().map(AsFd::as_fd));
        }
    }

    /// A program identifies itself: it belongs to a lease if it runs as the lease's user.
    fn welcome(&mut self, number: u64, lease: Option<&str>, parked: Option<u64>, deep: Option<bool>) {
        let over = self.is_lease_over(number, lease);
        let lease = self.named_lease(number, lease);
        let page = lease.and_then(|lease| self.page(lease)).and_then(|page| page.file().try_clone_to_owned().ok());
        let Some(program) = self.programs.get_mut(&number) else { return };
        let (Some(lease), Some(process)) = (lease, program.process) else {
            program.connection.send(&ShimOrder::Welcome { page: false, pid: None, over }, None);
            if parked.is_some() {
                program.connection.send(&ShimOrder::Over { why: "the lease of this program is over".to_owned() }, None);
            }
            return;
        };
        let pid = Some(process.pid);
        program
            .connection
            .send(&ShimOrder::Welcome { page: page.is_some(), pid, over }, page.as_ref().map(AsFd::as_fd));
        (program.lease, program.parked, program.is_off_the_driver) =
            (Some(lease), parked.is_some(), deep == Some(true));
        self.process_thread.send(ProcessMessage::JudgedByShim { lease, is: true });
        // The available host memory is reported before any program could be parked.
        self.report_host_memory();
        self.report(lease, process, MoverReport::Present { parked: parked.map(Bytes) });
        if let Some(deep) = deep {
            self.report(lease, process, MoverReport::KeepsStill(deep));
        }
        self.move_to_target(number);
    }

    /// Orders a program to move to its target, unless it is there or on its way.
    fn move_to_target(&mut self, number: u64) {
        let Some(program) = self.programs.get(&number) else { return };
        let Some(holder) = program.lease.and_then(|lease| self.holders.get(&lease)) else { return };
        if program.order_in_progress.is_some() || program.retry_at.is_some_and(|retry_at| retry_at > Instant::now()) {
            return;
        }
        let id = self.next_order;
        match (holder.target.placement_of(program.process), program.parked) {
            (ShimPlacement::OnGpus, true) => self.send_order(number, &ShimOrder::Resume { id }, id),
            (ShimPlacement::InHostMemory { with_context: true, .. }, true) if !program.is_off_the_driver => {
                self.send_order(number, &ShimOrder::Deepen { id }, id)
            }
            (ShimPlacement::InHostMemory { with_context: false, .. }, true) if program.is_off_the_driver => {
                self.send_order(number, &ShimOrder::Shallow { id }, id)
            }
            (ShimPlacement::InHostMemory { booked, within, .. }, false) => {
                let (booked, deadline_ms) = (*booked, within.as_millis() as u64);
                match self.supply_memory(number, booked) {
                    MemorySupply::Ready { most } => {
                        self.send_order(number, &ShimOrder::Park { id, deadline_ms, most: Some(most) }, id);
                    }
                    MemorySupply::Later => {}
                    MemorySupply::Refused(why) => self.refuse_park(number, why),
                }
            }
            (ShimPlacement::LeaseOver { why }, true) => {
                let why = why.clone();
                if let Some(program) = self.programs.get_mut(&number)
                    && program.connection.send(&ShimOrder::Over { why }, None)
                {
                    program.parked = false;
                }
            }
            _ => {}
        }
    }

    fn send_order(&mut self, number: u64, order: &ShimOrder, id: u64) {
        self.next_order += 1;
        if let Some(program) = self.programs.get_mut(&number)
            && program.connection.send(order, None)
        {
            program.order_in_progress = Some(id);
            program.order_changes_context = matches!(order, ShimOrder::Deepen { .. } | ShimOrder::Shallow { .. });
        }
    }

    /// The size of a context is what the driver reports for a process, less what the process counts itself.
    fn measure_contexts(&mut self, uuid: [u8; 16], residents: &[(u32, u64)]) {
        for (pid, seen) in residents {
            let program = self.programs.values().find(|it| it.process.is_some_and(|process| process.pid == *pid));
            let Some(program) = program.filter(|it| !it.parked && it.order_in_progress.is_none()) else { continue };
            let Some(holder) = program.lease.and_then(|lease| self.holders.get_mut(&lease)) else { continue };
            let Some(index) = holder.target.gpus.iter().position(|gpu| gpu.uuid == uuid) else { continue };
            let Some(page) = &holder.page else { continue };
            let context = seen.saturating_sub(page.bytes_on(*pid, index).unwrap_or(0)).min(CONTEXT_MAX);
            if context > holder.target.gpus[index].context {
                holder.target.gpus[index].context = context;
                page.set_caps(&holder.target.gpus);
            }
        }
    }

    fn tick(&mut self) {
        self.update_memory_shortages();
        self.read_pages();
        let now = Instant::now();
        let unidentified =
            self.programs.iter().filter(|(_, it)| it.lease.is_none() && now - it.connected_at > IDENTIFY_WITHIN);
        for number in unidentified.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.programs.remove(&number);
        }
        let unused_for_long = |program: &ConnectedProgram| {
            program.keeps_unused_memory() && now - program.park_memory.last_used > KEEP_MEMORY_FOR
        };
        for number in self.programs.iter().filter(|(_, it)| unused_for_long(it)).map(|(n, _)| *n).collect::<Vec<_>>() {
            self.order_trim(number);
        }
        for number in self.programs.keys().copied().collect::<Vec<_>>() {
            self.move_to_target(number);
        }
        for lease in self.holders.keys().copied().collect::<Vec<_>>() {
            self.clear_ended_processes(lease);
            self.report_counts(lease);
        }
        self.fit_stock();
        self.report_host_memory();
    }

    fn report_host_memory(&mut self) {
        let available = available_bytes().map(|bytes| bytes.saturating_add(self.stock.ready()));
        let warm: u64 = self.programs.values().filter(|it| !it.parked).map(|it| it.park_memory.bytes).sum();
        // Memory kept for a next park is released when it is needed.
        let available = available.map(|bytes| bytes.saturating_add(warm));
        if self.reported_memory != Some(available) {
            self.reported_memory = Some(available);
            self.process_thread
                .send(ProcessMessage::Report(HostReport::HostMemory { available: available.map(Bytes) }));
        }
    }

    fn is_waiter_announced(&self) -> bool {
        self.announced_until > Instant::now()
    }

    /// Reports how long each holder has not worked, with the resolution of two consecutive readings.
    fn report_idle(&mut self) {
        self.read_pages();
        let now_ns = process_clock_ns();
        let on_gpus: BTreeSet<LeaseId> =
            self.programs.values().filter(|it| !it.parked).filter_map(|it| it.lease).collect();
        for lease in on_gpus {
            let Some(holder) = self.holders.get(&lease).filter(|it| it.active_ns > 0) else { continue };
            let idle = Duration::from_nanos(now_ns.saturating_sub(holder.active_ns));
            self.process_thread.send(ProcessMessage::Report(HostReport::Idle { lease, idle }));
        }
    }

    fn read_pages(&mut self) {
        let mut worked: BTreeSet<LeaseId> = BTreeSet::new();
        let mut news = Vec::new();
        for program in self.programs.values_mut() {
            let (Some(lease), Some(process)) = (program.lease, program.process) else { continue };
            let Some(holder) = self.holders.get_mut(&lease) else { continue };
            let Some(found) = holder.page.as_ref().and_then(|page| page.process(process.pid)) else { continue };
            if found.active_ns > holder.active_ns {
                holder.active_ns = found.active_ns;
                worked.insert(lease);
            }
            let obstacle =
                found.reason.map(|reason| reason.text().to_owned()).or_else(|| program.memory_shortage.clone());
            if obstacle != program.obstacle {
                program.obstacle.clone_from(&obstacle);
                news.push((lease, process, obstacle));
            }
        }
        for (lease, process, obstacle) in news {
            self.report(lease, process, MoverReport::Cannot(obstacle));
        }
        for lease in worked {
            self.process_thread.send(ProcessMessage::Report(HostReport::Worked { lease }));
        }
    }
}

/// The clock by which programs report when they worked.
fn process_clock_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Limits a holder's own text to one line.
fn one_line(why: String) -> String {
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
    fn the_library_leaves_processes_alone_that_the_driver_moves() {
        let [taken, began] = [1, 2].map(|pid| ProcKey { pid, start: 1 });
        let placement = ShimPlacement::InHostMemory { booked: 0, within: Duration::ZERO, with_context: false };
        let target =
            ShimTarget { lease: LeaseId(1), uid: 0, placement, moved_by_driver: vec![taken], gpus: Vec::new() };
        assert_eq!(target.placement_of(Some(taken)), &ShimPlacement::OnGpus);
        assert_eq!(target.placement_of(Some(began)), &target.placement);
        // What is parked in a lease that is over is released.
        let target = ShimTarget { placement: ShimPlacement::LeaseOver { why: String::new() }, ..target };
        assert_eq!(target.placement_of(Some(taken)), &target.placement);
    }

    #[test]
    fn text_of_a_program_is_truncated_and_loses_invisible_characters() {
        assert_eq!(one_line("no\u{202e}\x1b[2J room\n".to_owned()), "no[2J room");
        assert_eq!(one_line("x".repeat(999)).len(), 200);
    }

    #[test]
    fn a_uuid_is_sixteen_bytes() {
        let bytes = uuid_bytes("GPU-50f7ca2d-0001-0203-0405-060708090a0b").expect("a UUID");
        assert_eq!(bytes[..6], [0x50, 0xf7, 0xca, 0x2d, 0x00, 0x01]);
        assert_eq!(uuid_bytes("GPU-7"), None);
    }
}
