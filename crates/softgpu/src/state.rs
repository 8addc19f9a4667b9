//! The file that all processes map: how much of which GPU each process has.
//!
//! A process takes a [`SoftGpuClient`]: a row, and the lock that shows that it is alive. Bytes are taken and given back
//! under one lock for all processes (a few microseconds), so that no bytes are given out twice. Rows of dead processes
//! are read as empty, and the next new process may take them.

use crate::fault::{CheckpointFault, NvmlFault, SoftGpuFault};
use crate::layout::{GPUS_MAX, MAGIC, PROCESSES_MAX, ProcessRow, SoftGpu, StateFile, VERSION};
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
const SOFT_UUID_BYTES: [u8; 4] = [0x50, 0xf7, 0xca, 0x2d];

/// The byte that is locked while the accounts are changed; it is beyond the end of the file.
const ACCOUNTS_BYTE: u64 = 1 << 40;
/// The byte that the owner of the first row locks; the others follow.
const FIRST_ROW_BYTE: u64 = 1 << 41;
/// The byte that a process locks while it is about to lock the first row's owner; the others follow.
const FIRST_LOCKER_BYTE: u64 = 1 << 42;

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
    NotSoftGpus {
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
    NoFreeRow,
}

/// The GPU does not have that many bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftGpuFull;

/// The checkpoint state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CheckpointState {
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

impl CheckpointState {
    /// From the number in the file; an unknown number means that the process is lost.
    pub fn from_number(number: u32) -> CheckpointState {
        match number {
            0 => CheckpointState::Running,
            1 => CheckpointState::Locked,
            2 => CheckpointState::Checkpointed,
            4 => CheckpointState::Locking,
            _ => CheckpointState::Failed,
        }
    }
}

/// The mapped file.
#[derive(Debug)]
pub struct SoftGpuState {
    file: File,
    path: PathBuf,
    content: NonNull<StateFile>,
    /// The lock of the file belongs to the process: its threads lock this first.
    thread_lock: Mutex<()>,
}

/// The accounts, locked until the drop.
pub(crate) struct AccountsLock<'a> {
    file: &'a File,
    _thread_lock: MutexGuard<'a, ()>,
}

impl Drop for AccountsLock<'_> {
    fn drop(&mut self) {
        let _ = lock::unlock_byte(self.file, ACCOUNTS_BYTE);
    }
}

// SAFETY: the mapping is only ever read and written through atomics, and lives until the drop.
unsafe impl Send for SoftGpuState {}
// SAFETY: as above.
unsafe impl Sync for SoftGpuState {}

impl Drop for SoftGpuState {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference is left.
        unsafe { libc::munmap(self.content.as_ptr().cast(), size_of::<StateFile>()) };
    }
}

/// A live process on the GPUs.
#[derive(Clone, Copy, Debug)]
pub struct SoftGpuProcess<'a> {
    /// The index of its row.
    pub number: usize,
    /// Its row.
    pub row: &'a ProcessRow,
}

impl SoftGpuProcess<'_> {
    /// Its id, in its own pid namespace.
    pub fn pid(&self) -> u32 {
        self.row.pid.load(SeqCst)
    }
    /// Bytes that it has of a GPU.
    pub fn used(&self, gpu: usize) -> u64 {
        self.row.gpus[gpu].used.load(SeqCst)
    }
    /// True if it has a context on a GPU.
    pub fn is_on(&self, gpu: usize) -> bool {
        self.row.gpus[gpu].contexts.load(SeqCst) > 0 && self.used(gpu) > 0
    }
    /// Nanoseconds during which its kernels ran on a GPU, until now.
    pub fn busy_ns(&self, gpu: usize) -> u64 {
        let share = &self.row.gpus[gpu];
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

impl SoftGpuState {
    /// Makes the GPUs, unless the same ones exist already.
    pub fn create(path: &Path, spec: &Spec) -> Result<SoftGpuState, StateError> {
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
        SoftGpuState::create_in(file, path, spec)
    }

    /// Like [`create`](State::create), in a file that the caller has opened.
    pub fn create_in(file: File, path: &Path, spec: &Spec) -> Result<SoftGpuState, StateError> {
        let failed = |source| StateError::File { path: path.to_owned(), source };
        lock::lock_byte(&file, ACCOUNTS_BYTE).map_err(failed)?;
        file.set_len(size_of::<StateFile>() as u64).map_err(failed)?;
        let state = SoftGpuState::map(file, path)?;
        let made = state.initialise(spec);
        lock::unlock_byte(&state.file, ACCOUNTS_BYTE).map_err(failed)?;
        made.map(|()| state)
    }

    /// Opens the GPUs of an existing file.
    pub fn open(path: &Path) -> Result<SoftGpuState, StateError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|source| StateError::File { path: path.to_owned(), source })?;
        let long = file.metadata().is_ok_and(|data| data.len() >= size_of::<StateFile>() as u64);
        let not = || StateError::NotSoftGpus { path: path.to_owned() };
        if !long {
            return Err(not());
        }
        let state = SoftGpuState::map(file, path)?;
        let content = state.content();
        if content.magic.load(SeqCst) != MAGIC || content.version.load(SeqCst) != VERSION || state.gpus().is_empty() {
            return Err(not());
        }
        Ok(state)
    }

    fn map(file: File, path: &Path) -> Result<SoftGpuState, StateError> {
        let (access, length) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<StateFile>());
        // SAFETY: a new mapping of a file that is long enough; the kernel chooses where.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(at.cast::<StateFile>()).filter(|_| at != libc::MAP_FAILED) {
            Some(content) => Ok(SoftGpuState { file, path: path.to_owned(), content, thread_lock: Mutex::new(()) }),
            None => Err(StateError::File { path: path.to_owned(), source: io::Error::last_os_error() }),
        }
    }

    fn initialise(&self, spec: &Spec) -> Result<(), StateError> {
        let content = self.content();
        let totals = |gpus: &[SoftGpu]| gpus.iter().map(|gpu| gpu.total.load(SeqCst)).collect::<Vec<_>>();
        let known = content.magic.load(SeqCst) == MAGIC && content.version.load(SeqCst) == VERSION;
        if known && totals(self.gpus()) == spec.totals {
            return Ok(());
        }
        if let Some(process) = self.processes().next().filter(|_| known) {
            return Err(StateError::InUse { pid: process.pid() });
        }
        content.magic.store(0, SeqCst);
        content.processes.iter().for_each(clear_row);
        content.rows_len.store(0, SeqCst);
        for (number, (gpu, total)) in content.gpus.iter().zip(&spec.totals).enumerate() {
            gpu.total.store(*total, SeqCst);
            let name = format!("Sublet Soft {}GiB", total >> 30);
            let name = name.bytes().chain(std::iter::repeat(0));
            gpu.name.iter().zip(name).for_each(|(place, byte)| place.store(byte, SeqCst));
            // The same after every start, as a real GPU's: derived from the file's path and the GPU's number.
            let uuid = soft_uuid(&self.path, number);
            gpu.uuid.iter().zip(uuid).for_each(|(place, byte)| place.store(byte, SeqCst));
            write_fault(gpu, SoftGpuFault::Clear);
        }
        content.gpus_len.store(spec.totals.len() as u32, SeqCst);
        content.version.store(VERSION, SeqCst);
        content.magic.store(MAGIC, SeqCst);
        Ok(())
    }

    fn content(&self) -> &StateFile {
        // SAFETY: mapped as long as `self` lives; every field is an atomic, for which any bytes are valid.
        unsafe { self.content.as_ref() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[SoftGpu] {
        let content = self.content();
        &content.gpus[..(content.gpus_len.load(SeqCst) as usize).min(GPUS_MAX)]
    }

    /// The live processes in the file.
    pub fn processes(&self) -> impl Iterator<Item = SoftGpuProcess<'_>> {
        self.processes_where(|_| true)
    }

    /// The live processes that have memory or a context on a GPU. Other rows are skipped before the kernel is asked.
    pub fn processes_on(&self, gpu: usize) -> impl Iterator<Item = SoftGpuProcess<'_>> {
        self.processes_where(move |row| {
            let share = &row.gpus[gpu];
            share.used.load(SeqCst) > 0 || share.contexts.load(SeqCst) > 0
        })
    }

    fn processes_where(&self, is: impl Fn(&ProcessRow) -> bool) -> impl Iterator<Item = SoftGpuProcess<'_>> {
        let content = self.content();
        let rows = content.processes.iter().take(content.rows_len.load(SeqCst) as usize).enumerate();
        let there = rows.filter(move |(_, row)| row.pid.load(SeqCst) != 0 && is(row));
        there.filter(|(number, _)| self.is_alive(*number)).map(|(number, row)| SoftGpuProcess { number, row })
    }

    /// The process with this id, in the pid namespace of the caller.
    pub fn process(&self, pid: u32) -> Option<SoftGpuProcess<'_>> {
        let own = own_namespace();
        self.processes().find(|process| process.pid() == pid && process.row.namespace.load(SeqCst) == own)
    }

    fn is_alive(&self, number: usize) -> bool {
        // If the kernel does not say whether a process lives, it counts as alive: its memory is not free.
        lock::is_locked_elsewhere(&self.file, FIRST_ROW_BYTE + number as u64).unwrap_or(true)
    }

    /// Bytes of a GPU that are not free.
    pub fn used(&self, gpu: usize) -> u64 {
        self.processes_on(gpu).fold(IDLE_BYTES, |sum, process| sum.saturating_add(process.used(gpu)))
    }

    /// Orders a fault of a GPU, or clears its faults.
    pub fn set_fault(&self, gpu: usize, fault: SoftGpuFault) -> bool {
        self.gpus().get(gpu).map(|gpu| write_fault(gpu, fault)).is_some()
    }

    /// Registers this process as about to lock another, until the drop; `None` if another process is.
    pub(crate) fn register_locker(&self, process: SoftGpuProcess<'_>) -> io::Result<Option<File>> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(lock::try_lock_byte(&file, FIRST_LOCKER_BYTE + process.number as u64)?.then_some(file))
    }

    /// Locks the accounts. On an error nothing may be taken from them.
    pub(crate) fn lock_accounts(&self) -> io::Result<AccountsLock<'_>> {
        let thread_lock = self.thread_lock.lock().unwrap_or_else(PoisonError::into_inner);
        lock::lock_byte(&self.file, ACCOUNTS_BYTE)?;
        Ok(AccountsLock { file: &self.file, _thread_lock: thread_lock })
    }
}

fn write_fault(gpu: &SoftGpu, fault: SoftGpuFault) {
    match fault {
        SoftGpuFault::Nvml(fault) => gpu.nvml_fault.store(fault as u32, SeqCst),
        SoftGpuFault::Checkpoint(fault) => gpu.checkpoint_fault.store(fault as u32, SeqCst),
        SoftGpuFault::Allocations(count) => gpu.failing_allocations.store(count, SeqCst),
        SoftGpuFault::SlowPercent(percent) => gpu.slow_percent.store(percent, SeqCst),
        SoftGpuFault::CopyBytesPerS(rate) => gpu.copy_bytes_per_s.store(rate, SeqCst),
        SoftGpuFault::Clear => {
            write_fault(gpu, SoftGpuFault::Nvml(NvmlFault::None));
            write_fault(gpu, SoftGpuFault::Checkpoint(CheckpointFault::None));
            write_fault(gpu, SoftGpuFault::Allocations(0));
            write_fault(gpu, SoftGpuFault::SlowPercent(0));
            write_fault(gpu, SoftGpuFault::CopyBytesPerS(0));
        }
    }
}

/// A process's own row, and the lock that shows that it is alive.
#[derive(Debug)]
pub struct SoftGpuClient {
    state: SoftGpuState,
    number: usize,
    /// A separate open file: the lock ends with it.
    file: File,
    running: Mutex<()>,
}

impl SoftGpuClient {
    /// Takes a row; it is free again when this process ends, in any way.
    pub fn register(state: SoftGpuState) -> Result<SoftGpuClient, StateError> {
        let failed = |source| StateError::File { path: state.path.clone(), source };
        let file = OpenOptions::new().read(true).write(true).open(&state.path).map_err(failed)?;
        let accounts = state.lock_accounts().map_err(failed)?;
        let rows = &state.content().processes;
        let found =
            (0..rows.len()).find(|number| lock::try_lock_byte(&file, FIRST_ROW_BYTE + *number as u64).unwrap_or(false));
        if let Some(number) = found {
            let row = &rows[number];
            clear_row(row);
            state.content().rows_len.fetch_max(number as u32 + 1, SeqCst);
            row.uid.store(own_uid(), SeqCst);
            row.start.store(own_start_ticks(), SeqCst);
            row.namespace.store(own_namespace(), SeqCst);
            row.pid.store(std::process::id(), SeqCst);
        }
        drop(accounts);
        match found {
            Some(number) => Ok(SoftGpuClient { state, number, file, running: Mutex::new(()) }),
            None => Err(StateError::NoFreeRow),
        }
    }

    /// The GPUs.
    pub fn state(&self) -> &SoftGpuState {
        &self.state
    }

    /// True if no process is about to lock this one; false if the kernel does not say.
    pub(crate) fn has_no_locker(&self) -> bool {
        !lock::is_locked_elsewhere(&self.state.file, FIRST_LOCKER_BYTE + self.number as u64).unwrap_or(true)
    }

    /// Its row.
    pub fn row(&self) -> &ProcessRow {
        &self.state.content().processes[self.number]
    }

    /// The descriptors that a forked child must close: with them it would keep its parent's row.
    pub fn descriptors(&self) -> [i32; 2] {
        [self.file.as_raw_fd(), self.state.file.as_raw_fd()]
    }

    /// Takes bytes of a GPU.
    pub fn reserve(&self, gpu: usize, bytes: u64) -> Result<(), SoftGpuFull> {
        let Some(gpu_row) = self.state.gpus().get(gpu) else { return Err(SoftGpuFull) };
        let fails = gpu_row.failing_allocations.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Err(SoftGpuFull);
        }
        let Ok(_accounts) = self.state.lock_accounts() else { return Err(SoftGpuFull) };
        let free = gpu_row.total.load(SeqCst).saturating_sub(self.state.used(gpu));
        let fits = bytes <= free;
        if fits {
            self.row().gpus[gpu].used.fetch_add(bytes, SeqCst);
        }
        if fits { Ok(()) } else { Err(SoftGpuFull) }
    }

    /// Gives bytes back.
    pub fn give_back(&self, gpu: usize, bytes: u64) {
        let share = &self.row().gpus[gpu];
        // Every process can write this number, so it may be smaller than it should be.
        let _ = share.used.fetch_update(SeqCst, SeqCst, |used| Some(used.saturating_sub(bytes)));
    }

    /// Records that a kernel runs on a GPU, until the drop.
    pub fn start_kernel(&self, gpu: usize) -> RunningKernel<'_> {
        let share = &self.row().gpus[gpu];
        let held = self.running.lock();
        if share.running.fetch_add(1, SeqCst) == 0 {
            share.busy_since.store(now_ns().max(1), SeqCst);
        }
        drop(held);
        RunningKernel { client: self, gpu }
    }
}

impl Drop for SoftGpuClient {
    fn drop(&mut self) {
        // Only its own row changes, and only to smaller values: that needs no lock.
        clear_row(self.row());
        let _ = lock::unlock_byte(&self.file, FIRST_ROW_BYTE + self.number as u64);
    }
}

/// A running kernel.
#[derive(Debug)]
pub struct RunningKernel<'a> {
    client: &'a SoftGpuClient,
    gpu: usize,
}

impl Drop for RunningKernel<'_> {
    fn drop(&mut self) {
        let share = &self.client.row().gpus[self.gpu];
        let held = self.client.running.lock();
        if share.running.fetch_sub(1, SeqCst) == 1 {
            let since = share.busy_since.swap(0, SeqCst);
            share.busy_ns.fetch_add(now_ns().saturating_sub(since), SeqCst);
        }
        drop(held);
    }
}

fn clear_row(row: &ProcessRow) {
    row.pid.store(0, SeqCst);
    for number in [&row.uid, &row.checkpoint, &row.inside, &row.managed] {
        number.store(0, SeqCst);
    }
    row.start.store(0, SeqCst);
    row.namespace.store(0, SeqCst);
    for share in &row.gpus {
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
fn own_start_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after.split_whitespace().nth(19).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Sixteen bytes that mark the GPU as soft, and identify the file and the GPU in it (FNV-1a, twice).
fn soft_uuid(path: &Path, number: usize) -> [u8; 16] {
    let text = format!("{}#{number}", path.display());
    let hash = |seed: u64| text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_le_bytes());
    uuid[8..].copy_from_slice(&hash(0x8422_2325_cbf2_9ce4).to_le_bytes());
    uuid[..SOFT_UUID_BYTES.len()].copy_from_slice(&SOFT_UUID_BYTES);
    uuid
}
