//! The file that all processes map: how much of which GPU each process has.
//!
//! A process takes a [`Seat`]: a row, and the lock that shows that it is alive. Bytes are taken and given back under
//! one lock for all processes (a few microseconds), so that no bytes are given out twice. Rows of dead processes are
//! read as empty, and the next new process may take them.

use crate::fault::{CardFault, CheckpointFault, NvmlFault};
use crate::layout::{Board, CARDS_MAX, Card, MAGIC, PROCESSES_MAX, Row, VERSION};
use crate::lock;
use crate::spec::Spec;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// The environment variable that names the file.
pub const ENV: &str = "SUBLET_SOFT_STATE";
/// Bytes of a GPU that the driver keeps for itself.
pub const IDLE_BYTES: u64 = 64 << 20;
/// Bytes of a GPU that a context takes.
pub const CONTEXT_BYTES: u64 = 128 << 20;

/// The prefix of the UUIDs of soft GPUs in NVML's form; no real GPU has it.
pub const SOFT_UUID: &str = "GPU-50f7ca2d-";
/// The same as bytes.
const SOFT: [u8; 4] = [0x50, 0xf7, 0xca, 0x2d];

/// The byte that is locked while the accounts are changed; it is beyond the end of the file.
const BOOKS: u64 = 1 << 40;
/// The byte that the owner of the first row locks; the others follow.
const SEATS: u64 = 1 << 41;
/// The byte that a process locks while it is about to lock the first row's owner; the others follow.
const LOCKERS: u64 = 1 << 42;

/// Why the soft GPUs cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// The file cannot be made, opened or mapped.
    #[error("the soft GPUs' file `{}` cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is something else.
    #[error("`{}` is not a file of soft GPUs, or one of another version", path.display())]
    NotCards {
        /// The file.
        path: PathBuf,
    },
    /// Another user made it, or it has more than one name.
    #[error("`{}` belongs to user {uid}, or is no plain file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Other GPUs are wanted, and a process uses the present ones.
    #[error("process {pid} uses the soft GPUs there are: other ones can be made when it is gone")]
    InUse {
        /// One of the processes that use them.
        pid: u32,
    },
    /// The file has no free row for another process.
    #[error("{PROCESSES_MAX} processes use the soft GPUs already")]
    Crowded,
}

/// The GPU does not have that many bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The checkpoint state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Checkpoint {
    /// It runs.
    Running = 0,
    /// Its calls wait; nothing of it runs on a GPU.
    Locked = 1,
    /// Like `Locked`, and its memory is not on the GPUs.
    Checkpointed = 2,
    /// It could not be restored: it is lost.
    Failed = 3,
    /// A process is about to lock it, and waits for its work to end.
    Locking = 4,
}

impl Checkpoint {
    /// From the number in the file; an unknown number means that the process is lost.
    pub fn from_number(number: u32) -> Checkpoint {
        match number {
            0 => Checkpoint::Running,
            1 => Checkpoint::Locked,
            2 => Checkpoint::Checkpointed,
            4 => Checkpoint::Locking,
            _ => Checkpoint::Failed,
        }
    }
}

/// The mapped file.
#[derive(Debug)]
pub struct State {
    file: File,
    path: PathBuf,
    board: NonNull<Board>,
    /// The lock of the file belongs to the process: its threads lock this first.
    turn: Mutex<()>,
}

/// The accounts, locked until the drop.
pub(crate) struct Books<'a> {
    file: &'a File,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Books<'_> {
    fn drop(&mut self) {
        let _ = lock::release(self.file, BOOKS);
    }
}

// SAFETY: the mapping is only ever read and written through atomics, and lives until the drop.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference is left.
        unsafe { libc::munmap(self.board.as_ptr().cast(), size_of::<Board>()) };
    }
}

/// A live process on the GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// The index of its row.
    pub number: usize,
    /// Its row.
    pub row: &'a Row,
}

impl Process<'_> {
    /// Its id, in its own pid namespace.
    pub fn pid(&self) -> u32 {
        self.row.pid.load(SeqCst)
    }
    /// Bytes that it has of a GPU.
    pub fn used(&self, card: usize) -> u64 {
        self.row.cards[card].used.load(SeqCst)
    }
    /// True if it has a context on a GPU.
    pub fn is_on(&self, card: usize) -> bool {
        self.row.cards[card].contexts.load(SeqCst) > 0 && self.used(card) > 0
    }
    /// Nanoseconds during which its kernels ran on a GPU, until now.
    pub fn busy_ns(&self, card: usize) -> u64 {
        let share = &self.row.cards[card];
        let since = share.busy_since.load(SeqCst);
        let open = if since == 0 { 0 } else { now_ns().saturating_sub(since) };
        share.busy_ns.load(SeqCst).saturating_add(open)
    }
}

/// The monotonic clock, which all processes share.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives until the call returns, which fills it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl State {
    /// Makes the GPUs, unless the same ones exist already.
    pub fn create(path: &Path, spec: &Spec) -> Result<State, StateError> {
        let failed = |source| StateError::File { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o666).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        // In a directory such as /tmp another user may have put a link or a file of its own there.
        if !found.is_file() || found.uid() != own_uid() || found.nlink() != 1 {
            return Err(StateError::Foreign { path: path.to_owned(), uid: found.uid() });
        }
        // The file admits every user that may open its directory, whatever the umask was.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)).map_err(failed)?;
        State::create_in(file, path, spec)
    }

    /// Like [`create`](State::create), in a file that the caller has opened.
    pub fn create_in(file: File, path: &Path, spec: &Spec) -> Result<State, StateError> {
        let failed = |source| StateError::File { path: path.to_owned(), source };
        lock::take(&file, BOOKS).map_err(failed)?;
        file.set_len(size_of::<Board>() as u64).map_err(failed)?;
        let state = State::map(file, path)?;
        let made = state.make(spec);
        lock::release(&state.file, BOOKS).map_err(failed)?;
        made.map(|()| state)
    }

    /// Opens the GPUs of an existing file.
    pub fn open(path: &Path) -> Result<State, StateError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|source| StateError::File { path: path.to_owned(), source })?;
        let long = file.metadata().is_ok_and(|data| data.len() >= size_of::<Board>() as u64);
        let not = || StateError::NotCards { path: path.to_owned() };
        if !long {
            return Err(not());
        }
        let state = State::map(file, path)?;
        let board = state.board();
        if board.magic.load(SeqCst) != MAGIC || board.version.load(SeqCst) != VERSION || state.cards().is_empty() {
            return Err(not());
        }
        Ok(state)
    }

    fn map(file: File, path: &Path) -> Result<State, StateError> {
        let (access, length) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<Board>());
        // SAFETY: a new mapping of a file that is long enough; the kernel chooses where.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(at.cast::<Board>()).filter(|_| at != libc::MAP_FAILED) {
            Some(board) => Ok(State { file, path: path.to_owned(), board, turn: Mutex::new(()) }),
            None => Err(StateError::File { path: path.to_owned(), source: io::Error::last_os_error() }),
        }
    }

    fn make(&self, spec: &Spec) -> Result<(), StateError> {
        let board = self.board();
        let totals = |cards: &[Card]| cards.iter().map(|card| card.total.load(SeqCst)).collect::<Vec<_>>();
        let known = board.magic.load(SeqCst) == MAGIC && board.version.load(SeqCst) == VERSION;
        if known && totals(self.cards()) == spec.totals {
            return Ok(());
        }
        if let Some(process) = self.processes().next().filter(|_| known) {
            return Err(StateError::InUse { pid: process.pid() });
        }
        board.magic.store(0, SeqCst);
        board.processes.iter().for_each(clear);
        board.rows_len.store(0, SeqCst);
        for (number, (card, total)) in board.cards.iter().zip(&spec.totals).enumerate() {
            card.total.store(*total, SeqCst);
            let name = format!("Sublet Soft {}GiB", total >> 30);
            let name = name.bytes().chain(std::iter::repeat(0));
            card.name.iter().zip(name).for_each(|(place, byte)| place.store(byte, SeqCst));
            // The same after every start, as a real GPU's: derived from the file's path and the GPU's number.
            let uuid = uuid(&self.path, number);
            card.uuid.iter().zip(uuid).for_each(|(place, byte)| place.store(byte, SeqCst));
            set_fault(card, CardFault::Clear);
        }
        board.cards_len.store(spec.totals.len() as u32, SeqCst);
        board.version.store(VERSION, SeqCst);
        board.magic.store(MAGIC, SeqCst);
        Ok(())
    }

    fn board(&self) -> &Board {
        // SAFETY: mapped as long as `self` lives; every field is an atomic, for which any bytes are valid.
        unsafe { self.board.as_ref() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The GPUs.
    pub fn cards(&self) -> &[Card] {
        let board = self.board();
        &board.cards[..(board.cards_len.load(SeqCst) as usize).min(CARDS_MAX)]
    }

    /// The live processes in the file.
    pub fn processes(&self) -> impl Iterator<Item = Process<'_>> {
        self.processes_where(|_| true)
    }

    /// The live processes that have memory or a context on a GPU. Other rows are skipped before the kernel is asked.
    pub fn processes_on(&self, card: usize) -> impl Iterator<Item = Process<'_>> {
        self.processes_where(move |row| {
            let share = &row.cards[card];
            share.used.load(SeqCst) > 0 || share.contexts.load(SeqCst) > 0
        })
    }

    fn processes_where(&self, is: impl Fn(&Row) -> bool) -> impl Iterator<Item = Process<'_>> {
        let board = self.board();
        let rows = board.processes.iter().take(board.rows_len.load(SeqCst) as usize).enumerate();
        let there = rows.filter(move |(_, row)| row.pid.load(SeqCst) != 0 && is(row));
        there.filter(|(number, _)| self.lives(*number)).map(|(number, row)| Process { number, row })
    }

    /// The process with this id, in the pid namespace of the caller.
    pub fn process(&self, pid: u32) -> Option<Process<'_>> {
        let own = own_namespace();
        self.processes().find(|process| process.pid() == pid && process.row.namespace.load(SeqCst) == own)
    }

    fn lives(&self, number: usize) -> bool {
        // If the kernel does not say whether a process lives, it counts as alive: its memory is not free.
        lock::is_taken(&self.file, SEATS + number as u64).unwrap_or(true)
    }

    /// Bytes of a GPU that are not free.
    pub fn used(&self, card: usize) -> u64 {
        self.processes_on(card).fold(IDLE_BYTES, |sum, process| sum.saturating_add(process.used(card)))
    }

    /// Orders a fault of a GPU, or clears its faults.
    pub fn fault(&self, card: usize, fault: CardFault) -> bool {
        self.cards().get(card).map(|card| set_fault(card, fault)).is_some()
    }

    /// Registers this process as about to lock another, until the drop; `None` if another process is.
    pub(crate) fn begin_lock(&self, process: Process<'_>) -> io::Result<Option<File>> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(lock::try_take(&file, LOCKERS + process.number as u64)?.then_some(file))
    }

    /// Locks the accounts. On an error nothing may be taken from them.
    pub(crate) fn lock_books(&self) -> io::Result<Books<'_>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        lock::take(&self.file, BOOKS)?;
        Ok(Books { file: &self.file, _turn: turn })
    }
}

fn set_fault(card: &Card, fault: CardFault) {
    match fault {
        CardFault::Nvml(fault) => card.nvml_fault.store(fault as u32, SeqCst),
        CardFault::Checkpoint(fault) => card.checkpoint_fault.store(fault as u32, SeqCst),
        CardFault::Allocations(count) => card.failing_allocations.store(count, SeqCst),
        CardFault::SlowPercent(percent) => card.slow_percent.store(percent, SeqCst),
        CardFault::CopyBytesPerS(rate) => card.copy_bytes_per_s.store(rate, SeqCst),
        CardFault::Clear => {
            set_fault(card, CardFault::Nvml(NvmlFault::None));
            set_fault(card, CardFault::Checkpoint(CheckpointFault::None));
            set_fault(card, CardFault::Allocations(0));
            set_fault(card, CardFault::SlowPercent(0));
            set_fault(card, CardFault::CopyBytesPerS(0));
        }
    }
}

/// A process's own row, and the lock that shows that it is alive.
#[derive(Debug)]
pub struct Seat {
    state: State,
    number: usize,
    /// A separate open file: the lock ends with it.
    file: File,
    running: Mutex<()>,
}

impl Seat {
    /// Takes a row; it is free again when this process ends, in any way.
    pub fn take(state: State) -> Result<Seat, StateError> {
        let failed = |source| StateError::File { path: state.path.clone(), source };
        let file = OpenOptions::new().read(true).write(true).open(&state.path).map_err(failed)?;
        let books = state.lock_books().map_err(failed)?;
        let rows = &state.board().processes;
        let found = (0..rows.len()).find(|number| lock::try_take(&file, SEATS + *number as u64).unwrap_or(false));
        if let Some(number) = found {
            let row = &rows[number];
            clear(row);
            state.board().rows_len.fetch_max(number as u32 + 1, SeqCst);
            row.uid.store(own_uid(), SeqCst);
            row.start.store(own_start(), SeqCst);
            row.namespace.store(own_namespace(), SeqCst);
            row.pid.store(std::process::id(), SeqCst);
        }
        drop(books);
        match found {
            Some(number) => Ok(Seat { state, number, file, running: Mutex::new(()) }),
            None => Err(StateError::Crowded),
        }
    }

    /// The GPUs.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// True if no process is about to lock this one; false if the kernel does not say.
    pub(crate) fn has_no_locker(&self) -> bool {
        !lock::is_taken(&self.state.file, LOCKERS + self.number as u64).unwrap_or(true)
    }

    /// Its row.
    pub fn row(&self) -> &Row {
        &self.state.board().processes[self.number]
    }

    /// The descriptors that a forked child must close: with them it would keep its parent's seat.
    pub fn descriptors(&self) -> [i32; 2] {
        [self.file.as_raw_fd(), self.state.file.as_raw_fd()]
    }

    /// Takes bytes of a GPU.
    pub fn reserve(&self, card: usize, bytes: u64) -> Result<(), Full> {
        let Some(of_card) = self.state.cards().get(card) else { return Err(Full) };
        let fails = of_card.failing_allocations.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Err(Full);
        }
        let Ok(_books) = self.state.lock_books() else { return Err(Full) };
        let free = of_card.total.load(SeqCst).saturating_sub(self.state.used(card));
        let fits = bytes <= free;
        if fits {
            self.row().cards[card].used.fetch_add(bytes, SeqCst);
        }
        if fits { Ok(()) } else { Err(Full) }
    }

    /// Gives bytes back.
    pub fn give_back(&self, card: usize, bytes: u64) {
        let share = &self.row().cards[card];
        // Every process can write this number, so it may be smaller than it should be.
        let _ = share.used.fetch_update(SeqCst, SeqCst, |used| Some(used.saturating_sub(bytes)));
    }

    /// Records that a kernel runs on a GPU, until the drop.
    pub fn kernel(&self, card: usize) -> Running<'_> {
        let share = &self.row().cards[card];
        let held = self.running.lock();
        if share.running.fetch_add(1, SeqCst) == 0 {
            share.busy_since.store(now_ns().max(1), SeqCst);
        }
        drop(held);
        Running { seat: self, card }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Only its own row changes, and only to smaller values: that needs no lock.
        clear(self.row());
        let _ = lock::release(&self.file, SEATS + self.number as u64);
    }
}

/// A running kernel.
#[derive(Debug)]
pub struct Running<'a> {
    seat: &'a Seat,
    card: usize,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let share = &self.seat.row().cards[self.card];
        let held = self.seat.running.lock();
        if share.running.fetch_sub(1, SeqCst) == 1 {
            let since = share.busy_since.swap(0, SeqCst);
            share.busy_ns.fetch_add(now_ns().saturating_sub(since), SeqCst);
        }
        drop(held);
    }
}

fn clear(row: &Row) {
    row.pid.store(0, SeqCst);
    for number in [&row.uid, &row.checkpoint, &row.inside, &row.managed] {
        number.store(0, SeqCst);
    }
    row.start.store(0, SeqCst);
    row.namespace.store(0, SeqCst);
    for share in &row.cards {
        for number in [&share.used, &share.parked, &share.busy_ns, &share.busy_since] {
            number.store(0, SeqCst);
        }
        share.running.store(0, SeqCst);
        share.contexts.store(0, SeqCst);
    }
}

/// The caller's effective user.
pub fn own_uid() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

fn own_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// When this process started: field 22 of `/proc/self/stat`, counted after the name in parentheses.
fn own_start() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after.split_whitespace().nth(19).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Sixteen bytes that mark the GPU as soft, and identify the file and the GPU in it (FNV-1a, twice).
fn uuid(path: &Path, number: usize) -> [u8; 16] {
    let text = format!("{}#{number}", path.display());
    let hash = |seed: u64| text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_le_bytes());
    uuid[8..].copy_from_slice(&hash(0x8422_2325_cbf2_9ce4).to_le_bytes());
    uuid[..SOFT.len()].copy_from_slice(&SOFT);
    uuid
}
