//! Host memory for parked bytes: files that are given to one holder and never reused for another.
//!
//! Making memory ready takes longer than filling it: pages must be found and cleared. So a thread keeps a stock of
//! files with their pages present, and files are taken from the stock as long as it lasts. The daemon closes a file
//! with the message that hands it over, and its pages go back to the kernel when the holder releases them.
//!
//! The stock is a part of the parking space: it uses what is not booked, and shrinks when a holder books. A file that
//! a holder takes belongs to the holder from then on, and the stock is filled again only as far as the ledger has
//! room.

use super::park_memory::book_for_daemon;
use crate::headroom::{Booker, Bookings};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::Duration;

/// The size of a file of the stock.
const PARK_FILE_BYTES: u64 = 1 << 30;
/// The size of a huge page: memory is taken in multiples of it.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Threads that make a piece ready.
const FILL_THREADS: u64 = 4;
/// How often filling the stock is tried again after a failure, also one for lack of huge pages: each try clears a
/// piece.
const FILL_RETRY: Duration = Duration::from_secs(10);
const SCATTERED_RETRY: Duration = Duration::from_secs(300);

/// A file to park in.
pub(crate) struct ParkFile {
    pub(crate) file: OwnedFd,
    pub(crate) bytes: u64,
    /// Its pages are present.
    pub(crate) filled: bool,
}

/// A stock of such files.
#[derive(Clone)]
pub(crate) struct ParkFileStock {
    shared: Arc<StockShared>,
}

struct StockShared {
    state: Mutex<StockState>,
    wake: Condvar,
    /// Bytes to keep in the stock.
    target_bytes: u64,
    /// Bytes of host memory that must stay available.
    leave: u64,
    /// What is booked of the daemon's own memory cgroup.
    bookings: Bookings,
}

#[derive(Default)]
struct StockState {
    ready: Vec<ParkFile>,
    /// The stock has at most this many bytes, however much is to be kept.
    limit: u64,
    /// The last piece had small pages: the host's memory is fragmented.
    is_scattered: bool,
    stop: bool,
}

impl ParkFileStock {
    /// A stock of `target_bytes` bytes, filled in the background.
    pub(crate) fn start(target_bytes: u64, leave: u64, bookings: Bookings) -> io::Result<ParkFileStock> {
        // A stock of small pages would be slower than a process's own memory.
        let target_bytes = if has_huge_pages() { target_bytes - target_bytes % PARK_FILE_BYTES } else { 0 };
        let state = Mutex::new(StockState { limit: target_bytes, ..StockState::default() });
        let shared = Arc::new(StockShared { state, wake: Condvar::new(), target_bytes, leave, bookings });
        if target_bytes > 0 {
            let work = Arc::clone(&shared);
            Builder::new().name("sublet-stock".to_owned()).spawn(move || work.fill())?;
        }
        Ok(ParkFileStock { shared })
    }

    /// Bytes in the stock.
    pub(crate) fn ready(&self) -> u64 {
        self.shared.lock().ready()
    }

    /// Sets the maximum of the stock: the excess goes back to the kernel at once. A piece in preparation is released
    /// when it is done.
    pub(crate) fn limit(&self, bytes: u64) {
        let mut state = self.shared.lock();
        let grows = bytes > state.limit;
        state.limit = bytes;
        let mut beyond = Vec::new();
        while state.ready() > bytes {
            beyond.extend(state.ready.pop());
        }
        drop(state);
        // Releasing pages takes a while, so it is done without the lock.
        drop(beyond);
        if grows {
            self.shared.wake.notify_all();
        }
    }

    /// Ends the thread that fills it.
    pub(crate) fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
    }

    /// Files of `bytes` in total, or fewer where a process's own memory is better: small pages are slow to fill and
    /// slow to register with the driver, and the process's own can be huge.
    pub(crate) fn take_files(&self, bytes: u64) -> io::Result<Vec<ParkFile>> {
        let mut found = self.take_ready_files(bytes);
        let ready: u64 = found.iter().map(|memory| memory.bytes).sum();
        let left = bytes.next_multiple_of(HUGE_PAGE_BYTES).saturating_sub(ready);
        let is_scattered = self.shared.lock().is_scattered;
        if left > 0 && has_huge_pages() && !is_scattered {
            found.push(ParkFile { file: new_file(left, MemfdFlags::empty())?, bytes: left, filled: false });
        }
        Ok(found)
    }
}

impl ParkFileStock {
    /// The same, only files with their pages present: the daemon's cgroup is charged for them.
    pub(crate) fn take_ready_files(&self, bytes: u64) -> Vec<ParkFile> {
        let mut left = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let mut found = Vec::new();
        let mut state = self.shared.lock();
        // A small holder does not take a large piece: the rest of it would be wasted.
        while left >= PARK_FILE_BYTES / 2
            && let Some(memory) = state.ready.pop()
        {
            left = left.saturating_sub(memory.bytes);
            found.push(memory);
        }
        drop(state);
        self.shared.wake.notify_all();
        found
    }
}

impl StockState {
    fn ready(&self) -> u64 {
        self.ready.iter().map(|memory| memory.bytes).sum()
    }
}

impl StockShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, StockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self) {
        let mut state = self.lock();
        loop {
            if state.stop {
                return;
            }
            if state.ready() + PARK_FILE_BYTES > self.target_bytes.min(state.limit) {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            let room = available_bytes().is_some_and(|available| available >= self.leave + PARK_FILE_BYTES);
            // At the limit of its own cgroup the daemon itself would be killed.
            let room = room && book_for_daemon(&self.bookings, Booker::Stock, PARK_FILE_BYTES).is_ok();
            let made = if room { filled_file(PARK_FILE_BYTES).ok() } else { None };
            self.bookings.release(Booker::Stock);
            state = self.lock();
            if let Some((_, is_huge)) = &made {
                state.is_scattered = !is_huge;
            }
            match made.filter(|(_, is_huge)| *is_huge) {
                Some((memory, _)) if state.ready() + PARK_FILE_BYTES <= state.limit => state.ready.push(memory),
                // A holder booked it meanwhile.
                Some(_) => {}
                // No room now: that is no fault, parks are only slower.
                None => {
                    let pause = if state.is_scattered { SCATTERED_RETRY } else { FILL_RETRY };
                    state = self.wake.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

/// A file with its pages present and charged to the daemon's cgroup, whichever process writes to them later.
pub(crate) fn charged_file(bytes: u64) -> io::Result<ParkFile> {
    let (memory, _) = filled_file(bytes)?;
    if !memory.filled {
        fallocate(&memory.file, FallocateFlags::empty(), 0, bytes)?;
    }
    Ok(memory)
}

/// An empty file of `bytes`, sealed so that its length cannot change.
fn new_file(bytes: u64, kind: MemfdFlags) -> io::Result<OwnedFd> {
    let file = memfd_create("sublet-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A file with its pages present, huge ones where the host has them: those set aside for any program, or else those
/// that shared memory may have. The bool is true if they are huge: where memory is fragmented the kernel gives small
/// ones, which take ten times as long to register with the driver, and the program's work waits meanwhile.
fn filled_file(bytes: u64) -> io::Result<(ParkFile, bool)> {
    let free_huge_page_bytes = free_huge_page_bytes().is_some_and(|free| free >= bytes);
    if free_huge_page_bytes && let Ok(memory) = filled_file_of_kind(bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
        return Ok(memory);
    }
    filled_file_of_kind(bytes, MemfdFlags::empty())
}

/// Bytes of 2 MiB huge pages that are set aside and free.
fn free_huge_page_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(HUGE_PAGE_BYTES)
}

fn filled_file_of_kind(bytes: u64, kind: MemfdFlags) -> io::Result<(ParkFile, bool)> {
    let file = new_file(bytes, kind)?;
    // SAFETY: a new mapping of a file of exactly this length, which is sealed.
    let at = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        mmap(std::ptr::null_mut(), bytes as usize, access, MapFlags::SHARED, &file, 0)?
    };
    let from = at as usize;
    // SAFETY: advice about the mapping made just now. Without huge pages it is slower.
    let _ = unsafe { madvise(at, bytes as usize, Advice::LinuxHugepage) };
    let share = (bytes / FILL_THREADS).next_multiple_of(HUGE_PAGE_BYTES);
    let done = thread::scope(|scope| {
        let threads: Vec<_> = (0..bytes)
            .step_by(share as usize)
            .map(|first| {
                let length = share.min(bytes - first) as usize;
                scope.spawn(move || {
                    let at = (from + first as usize) as *mut std::ffi::c_void;
                    // SAFETY: a part of the mapping made just now, which no other code knows.
                    unsafe { madvise(at, length, Advice::LinuxPopulateWrite) }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(rustix::io::Errno::IO)))
            .collect::<Result<Vec<_>, _>>()
    });
    let is_huge = kind.contains(MemfdFlags::HUGETLB) || huge_bytes(from).is_some_and(|huge| huge >= bytes / 10 * 9);
    // SAFETY: mapped above with this length, and nothing refers to it any more.
    let _ = unsafe { munmap(at, bytes as usize) };
    // Kernels before 5.14 fill pages only by touching them: the holder does that.
    let filled = done.is_ok();
    // A file of huge pages that are not available is useless.
    if !filled && kind.contains(MemfdFlags::HUGETLB) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok((ParkFile { file, bytes, filled }, is_huge))
}

/// How many bytes of the mapping that begins there are in huge pages of shared memory, as the kernel reports.
fn huge_bytes(from: usize) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let first = format!("{from:x}-");
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&first));
    let kib = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Host memory that programs could still allocate, as the kernel estimates it; `None` if it cannot be read.
pub fn available_bytes() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// All host memory; `None` if it cannot be read.
pub fn total_bytes() -> Option<u64> {
    meminfo("MemTotal:")
}

fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// True if files can have huge pages.
fn has_huge_pages() -> bool {
    free_huge_page_bytes().is_some_and(|free| free >= PARK_FILE_BYTES) || has_huge_shared_pages()
}

/// True if shared memory may have huge pages.
fn has_huge_shared_pages() -> bool {
    let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|mode| modes.contains(mode))
}

/// The kind of pages that parked bytes go to, for people; and what would be better.
pub fn page_kind() -> (&'static str, Option<&'static str>) {
    match () {
        () if free_huge_page_bytes().is_some_and(|free| free >= PARK_FILE_BYTES) => {
            ("huge pages that are set aside", None)
        }
        () if has_huge_shared_pages() => ("huge pages of shared memory", None),
        () => (
            "each program's own memory; none is kept ready, so that a first park is slower",
            Some("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_park_file_has_its_pages_and_cannot_be_shortened() {
        assert!(available_bytes() <= total_bytes());
        let (memory, is_huge) = filled_file(4 * HUGE_PAGE_BYTES).expect("memory");
        assert!(!is_huge || has_huge_pages(), "the kind of pages is known");
        assert!(ftruncate(&memory.file, HUGE_PAGE_BYTES).is_err());
        let blocks = rustix::fs::fstat(&memory.file).expect("a file").st_blocks as u64 * 512;
        assert!(!memory.filled || blocks >= 4 * HUGE_PAGE_BYTES, "{blocks} of its bytes are there");
    }

    #[test]
    fn the_stock_shrinks_to_its_limit_and_taken_files_do_not_count() {
        // Empty files: whether their pages are present does not matter here, and no thread fills the stock.
        let piece = || ParkFile {
            file: new_file(PARK_FILE_BYTES, MemfdFlags::empty()).expect("a file"),
            bytes: PARK_FILE_BYTES,
            filled: true,
        };
        let state = StockState {
            ready: (0..4).map(|_| piece()).collect(),
            limit: 4 * PARK_FILE_BYTES,
            ..StockState::default()
        };
        let shared = StockShared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            target_bytes: 4 * PARK_FILE_BYTES,
            leave: 0,
            bookings: Bookings::default(),
        };
        let stock = ParkFileStock { shared: Arc::new(shared) };
        let taken = stock.take_files(PARK_FILE_BYTES).expect("files");
        assert_eq!((taken.len(), stock.ready()), (1, 3 * PARK_FILE_BYTES));
        stock.limit(3 * PARK_FILE_BYTES);
        assert_eq!(stock.ready(), 3 * PARK_FILE_BYTES, "what was taken counts with who took it");
        stock.limit(2 * PARK_FILE_BYTES - 1);
        assert_eq!(stock.ready(), PARK_FILE_BYTES);
        stock.limit(0);
        assert_eq!(stock.ready(), 0);
    }

    #[test]
    fn taken_files_are_replaced_in_the_stock() {
        if !has_huge_pages() {
            let stock = ParkFileStock::start(PARK_FILE_BYTES, 0, Bookings::default()).expect("a stock");
            assert!(stock.take_files(PARK_FILE_BYTES).expect("no files").is_empty() && stock.ready() == 0);
            stock.stop();
            return;
        }
        let stock = ParkFileStock::start(PARK_FILE_BYTES, 0, Bookings::default()).expect("a stock");
        let until = Instant::now() + Duration::from_secs(60);
        let wait = |bytes| {
            while stock.ready() != bytes && Instant::now() < until {
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(stock.ready(), bytes);
        };
        wait(PARK_FILE_BYTES);
        let taken = stock.take_files(PARK_FILE_BYTES + 1).expect("files");
        assert_eq!(
            taken.iter().map(|memory| (memory.bytes, memory.filled)).collect::<Vec<_>>(),
            [(PARK_FILE_BYTES, true), (HUGE_PAGE_BYTES, false)]
        );
        wait(PARK_FILE_BYTES);
        let small = stock.take_files(HUGE_PAGE_BYTES).expect("files");
        assert!(small.iter().all(|memory| !memory.filled), "a small holder leaves the stock alone");
        assert_eq!(stock.ready(), PARK_FILE_BYTES);
        stock.limit(PARK_FILE_BYTES - 1);
        assert_eq!(stock.ready(), 0, "it gives way to who books");
        stock.limit(2 * PARK_FILE_BYTES);
        wait(PARK_FILE_BYTES);
        stock.stop();
    }
}
