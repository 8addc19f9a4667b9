//! A page that the holder's processes and the daemon share: the cap, and what each process does.
//!
//! Each lease has one page of numbers, made and sealed by the daemon and mapped by every process of its holder. Any
//! process of the holder may write any number at any time, and no value does harm: the page says only what the holder
//! claims. Without a daemon a process has a page of its own, on which nothing is capped.

use crate::log;
use crate::message::{
    GPUS_MAX, GpuPage, LeasePage, MAGIC, OLD_PAGE_BYTES, PROCESSES_MAX, ParkObstacle, ProcessGpuPage, ProcessPage,
    VERSION,
};
use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Held while bytes are counted, and while counters move to another page.
static COUNTING: Mutex<()> = Mutex::new(());
static SHARED: AtomicPtr<LeasePage> = AtomicPtr::new(std::ptr::null_mut());
/// Why this process cannot be parked.
static OBSTACLES: Mutex<Obstacles> = Mutex::new(Obstacles { set: 0, counted: [0; 32] });

/// Bits of the reasons that [`set_obstacle`] was ever called for.
static EVER_SET: AtomicU32 = AtomicU32::new(0);

/// Reasons that are set or clear, and reasons that are counted.
struct Obstacles {
    /// A bit for each reason.
    set: u32,
    /// By the number of the reason's bit.
    counted: [u32; 32],
}

impl Obstacles {
    fn bits(&self) -> u32 {
        (0..32).filter(|bit| self.counted[*bit] > 0).fold(self.set, |bits, bit| bits | 1 << bit)
    }
}

/// True if the user asked for the reasons to be logged. The value is read once, because the shim's own thread must not
/// read the environment.
pub fn is_verbose() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| std::env::var_os("SUBLET_SHIM_DEBUG").is_some())
}

/// Changes the reasons, and publishes them on the page.
fn change(obstacle: ParkObstacle, call: &str, body: impl FnOnce(&mut Obstacles)) {
    let mut obstacles = OBSTACLES.lock().unwrap_or_else(PoisonError::into_inner);
    let before = obstacles.bits();
    body(&mut obstacles);
    let bits = obstacles.bits();
    own_slot().obstacles.store(bits, SeqCst);
    if bits & !before != 0 && is_verbose() {
        log::say(&format!("this program cannot be parked: {} ({call})", obstacle.text()));
    }
}

fn page() -> &'static LeasePage {
    let shared = SHARED.load(Acquire);
    if !shared.is_null() {
        // SAFETY: the page is never unmapped, and consists of numbers that may have any value.
        return unsafe { &*shared };
    }
    static OWN: OnceLock<Box<LeasePage>> = OnceLock::new();
    OWN.get_or_init(Box::default)
}

/// True if the page is the lease's.
pub fn is_shared() -> bool {
    !SHARED.load(Acquire).is_null()
}

/// Maps the page that the daemon made, only to read it: the process takes no slot on it.
pub fn map_without_slot(file: &File, pid: Option<u32>) -> Result<(), String> {
    let seen = map(file)?;
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_shared() {
        PID.store(pid.unwrap_or(0), SeqCst);
    }
    clear_earlier_program(seen);
    // Another thread that was faster has mapped the same page.
    let _ = SHARED.compare_exchange(std::ptr::null_mut(), std::ptr::from_ref(seen).cast_mut(), SeqCst, SeqCst);
    Ok(())
}

/// Maps the page that the daemon made, and moves the counters so far to it.
pub fn move_counters_to(file: &File, pid: Option<u32>) -> Result<(), String> {
    let new = map(file)?;
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    // A reason found at this moment is written to one of the two pages.
    let obstacles = OBSTACLES.lock().unwrap_or_else(PoisonError::into_inner);
    let old = own_slot();
    PID.store(pid.unwrap_or(0), SeqCst);
    clear_earlier_program(new);
    let slot = own_slot_on(new);
    if !std::ptr::eq(old, slot) {
        // GPUs may be in another order there.
        let gpus = page().gpus.iter().zip(&old.gpus).enumerate();
        for (number, (gpu, share)) in gpus {
            let there = gpu_index_on(new, &uuid_of(gpu)).unwrap_or_else(|| spare_index(new, number as i32));
            move_gpu_counters(share, &slot.gpus[there]);
        }
        let numbers = |page: &'static ProcessPage| [&page.launches, &page.copies, &page.active_ns, &page.parked];
        for (number, new) in numbers(old).into_iter().zip(numbers(slot)) {
            new.store(number.load(SeqCst), SeqCst);
        }
        for (error, new) in old.errors.iter().zip(&slot.errors) {
            new.code.store(error.code.load(SeqCst), SeqCst);
            new.count.store(error.count.load(SeqCst), SeqCst);
        }
    }
    slot.obstacles.store(obstacles.bits(), SeqCst);
    // The number of bytes is written with the next tick.
    new.copy_counter_of(slot).is_counted.store(1, SeqCst);
    SHARED.store(std::ptr::from_ref(new).cast_mut(), SeqCst);
    Ok(())
}

/// Clears what an earlier program of the same process left here: a process that calls `exec` keeps its pid, and so its
/// slot.
fn clear_earlier_program(page: &LeasePage) {
    static WIPED: Once = Once::new();
    let pid = own_pid();
    let own = page.processes.iter().filter(|slot| slot.pid.load(SeqCst) == pid);
    WIPED.call_once(|| own.for_each(|slot| page.clear_slot(slot)));
}

/// Moves the counters of one share to another.
fn move_gpu_counters(here: &ProcessGpuPage, there: &ProcessGpuPage) {
    if here.contexts.load(SeqCst) > 0 {
        there.bytes.fetch_add(here.bytes.swap(0, SeqCst), SeqCst);
        there.peak.fetch_max(here.peak.load(SeqCst), SeqCst);
        there.contexts.store(here.contexts.swap(0, SeqCst), SeqCst);
    }
}

fn map(file: &File) -> Result<&'static LeasePage, String> {
    let length = size_of::<LeasePage>();
    let there = file.metadata().map_or(0, |data| usize::try_from(data.len()).unwrap_or(length)).min(length);
    if there < OLD_PAGE_BYTES {
        return Err("the page of the lease is too short".to_owned());
    }
    // SAFETY: new mappings: first anonymous memory, then over it a file that is long enough and, being sealed, stays
    // so. Fields that the page of an older daemon does not have are written to the anonymous memory, where nothing
    // reads them.
    let at = unsafe {
        let (access, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        match libc::mmap(std::ptr::null_mut(), length, access, own, -1, 0) {
            libc::MAP_FAILED => libc::MAP_FAILED,
            at => libc::mmap(at, there, access, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0),
        }
    };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: the mapping is as long as a page, is never unmapped, and any numbers are valid.
    let new = unsafe { &*at.cast::<LeasePage>() };
    if new.magic.load(Acquire) != MAGIC || new.version.load(Acquire) != VERSION {
        return Err("the page of the lease is of another version".to_owned());
    }
    Ok(new)
}

/// This process's pid as the daemon sees it; zero: the daemon did not send it, and the process's own number is used.
static PID: AtomicU32 = AtomicU32::new(0);

fn own_pid() -> u32 {
    match PID.load(Relaxed) {
        0 => std::process::id(),
        pid => pid,
    }
}

/// This process's own slot on a page; takes one if it has none.
fn own_slot_on(page: &LeasePage) -> &ProcessPage {
    let pid = own_pid();
    let has = page.processes.iter().find(|slot| slot.pid.load(SeqCst) == pid);
    let free = || page.processes.iter().find(|slot| slot.pid.compare_exchange(0, pid, SeqCst, SeqCst).is_ok());
    // If every slot is taken, all other processes share the last one.
    has.or_else(free).unwrap_or(&page.processes[PROCESSES_MAX - 1])
}

/// This process's own numbers.
pub fn own_slot() -> &'static ProcessPage {
    own_slot_on(page())
}

/// Publishes how many bytes this process has copied.
pub fn set_copied(bytes: u64) {
    let copied = page().copy_counter_of(own_slot());
    copied.bytes.store(bytes, Relaxed);
    copied.is_counted.store(1, Relaxed);
}

/// The number of a GPU on the page; `None` if it is not on the page, and so not capped.
fn gpu_index(uuid: &[u8; 16]) -> Option<usize> {
    gpu_index_on(page(), uuid)
}

fn gpu_index_on(page: &LeasePage, uuid: &[u8; 16]) -> Option<usize> {
    page.gpus.iter().position(|gpu| gpu.cap.load(Relaxed) > 0 && uuid_of(gpu) == *uuid)
}

fn uuid_of(gpu: &GpuPage) -> [u8; 16] {
    std::array::from_fn(|index| gpu.uuid[index].load(Relaxed))
}

/// Where bytes of a GPU are counted: at its number on the page, or, for a GPU that is not on it, by its device number.
fn count_index(uuid: &[u8; 16], device: i32) -> usize {
    gpu_index(uuid).unwrap_or_else(|| spare_index(page(), device))
}

/// Where to count a GPU that is not on a page: at a number that no GPU of the lease has, if there is one.
fn spare_index(page: &LeasePage, device: i32) -> usize {
    let free: Vec<usize> = (0..GPUS_MAX).filter(|index| page.gpus[*index].cap.load(Relaxed) == 0).collect();
    free.get(device as usize % free.len().max(1)).copied().unwrap_or(GPUS_MAX - 1)
}

/// Bytes of a GPU that the lease's processes and their contexts use.
fn used(index: usize) -> u64 {
    let page = page();
    let context = page.gpus[index].context.load(Relaxed);
    let live = page.processes.iter().filter(|slot| slot.pid.load(Relaxed) != 0);
    live.fold(0, |sum, slot| {
        let bytes = slot.gpus[index].bytes.load(SeqCst);
        let contexts = u64::from(slot.gpus[index].contexts.load(SeqCst) > 0) * context;
        sum.saturating_add(bytes).saturating_add(contexts)
    })
}

/// Reserves bytes of a GPU; false if the lease does not have them.
pub fn reserve(uuid: &[u8; 16], device: i32, bytes: u64) -> bool {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let index = count_index(uuid, device);
    let own = &own_slot().gpus[index];
    own.contexts.store(1, SeqCst);
    if !is_shared() {
        // Stored on the process's own page, so that it can be found when the lease's page comes.
        page().gpus[index].uuid.iter().zip(uuid).for_each(|(own, byte)| own.store(*byte, Relaxed));
    }
    let now = own.bytes.fetch_add(bytes, SeqCst).saturating_add(bytes);
    let cap = page().gpus[index].cap.load(SeqCst);
    if gpu_index(uuid).is_some() && used(index) > cap {
        own.bytes.fetch_sub(bytes, SeqCst);
        REFUSED.set(cap);
        return false;
    }
    own.peak.fetch_max(now, SeqCst);
    true
}

thread_local! {
    /// The lease's cap on the GPU for which this thread was last refused memory; zero if none was.
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// Logs a failure for lack of memory, if it was the lease that lacked it.
pub fn note_out_of_memory() {
    // Memory that was kept elsewhere may have been given back and the call have worked: then nothing is logged.
    let cap = REFUSED.take();
    if cap > 0 {
        let cap = crate::message::size_text(cap);
        log::once(&format!("out of memory: the lease has {cap} of this GPU; ask for more with --vram"));
    }
}

/// Replaces a number of bytes that was counted before by the present one, whether the lease has them or not.
pub fn recount(uuid: &[u8; 16], device: i32, before: u64, now: u64) {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let own = &own_slot().gpus[count_index(uuid, device)];
    let new = |present: u64| Some(present.saturating_sub(before).saturating_add(now));
    let _ = own.bytes.fetch_update(SeqCst, SeqCst, new);
    own.peak.fetch_max(own.bytes.load(SeqCst), SeqCst);
}

/// Gives bytes back.
pub fn give_back(uuid: &[u8; 16], device: i32, bytes: u64) {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let own = &own_slot().gpus[count_index(uuid, device)];
    let _ = own.bytes.fetch_update(SeqCst, SeqCst, |present| Some(present.saturating_sub(bytes)));
}

/// Free and total bytes of a GPU as the program is told, from what the GPU reports.
pub fn leased_memory(uuid: &[u8; 16], free: u64, total: u64) -> (u64, u64) {
    let Some(index) = gpu_index(uuid) else { return (free, total) };
    let cap = page().gpus[index].cap.load(SeqCst).min(total);
    (free.min(cap.saturating_sub(used(index))), cap)
}

/// The lease's cap on a GPU, and how much of it is used; `None` if the GPU is not of the lease.
pub fn lease_of(uuid: &[u8; 16]) -> Option<(u64, u64)> {
    let index = gpu_index(uuid)?;
    Some((page().gpus[index].cap.load(SeqCst), used(index)))
}

/// The holder cannot be parked for this reason until [`clear_obstacle`].
pub fn set_obstacle(obstacle: ParkObstacle, call: &str) {
    EVER_SET.fetch_or(obstacle as u32, SeqCst);
    change(obstacle, call, |obstacles| obstacles.set |= obstacle as u32);
}

/// Undoes all calls of [`set_obstacle`] for this reason.
pub fn clear_obstacle(obstacle: ParkObstacle) {
    change(obstacle, "", |obstacles| obstacles.set &= !(obstacle as u32));
}

/// True if [`set_obstacle`] was ever called for this reason, even if it was cleared since.
pub fn was_ever_set(obstacle: ParkObstacle) -> bool {
    EVER_SET.load(Relaxed) & obstacle as u32 != 0
}

/// The holder cannot be parked for this reason until each such call is undone by [`uncount_obstacle`].
pub fn count_obstacle(obstacle: ParkObstacle, call: &str) {
    change(obstacle, call, |obstacles| obstacles.counted[(obstacle as u32).trailing_zeros() as usize] += 1);
}

/// Undoes one [`count_obstacle`].
pub fn uncount_obstacle(obstacle: ParkObstacle) {
    change(obstacle, "", |obstacles| {
        let counted = &mut obstacles.counted[(obstacle as u32).trailing_zeros() as usize];
        *counted = counted.saturating_sub(1);
    });
}

/// Why the holder cannot be parked, or `None`. It does not rely on the page, which others can write, too.
pub fn first_obstacle() -> Option<ParkObstacle> {
    ParkObstacle::first(OBSTACLES.lock().unwrap_or_else(PoisonError::into_inner).bits())
}

/// Counts an error by its number; numbers that find no free entry share the last one.
pub fn count_error(code: u32) {
    let errors = &own_slot().errors;
    for entry in errors {
        let own = entry.code.load(Relaxed);
        if own == code || (own == 0 && entry.code.compare_exchange(0, code, SeqCst, Relaxed).is_ok()) {
            entry.count.fetch_add(1, Relaxed);
            return;
        }
    }
    errors[errors.len() - 1].count.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{ParkObstacle, count_obstacle, first_obstacle, own_slot, uncount_obstacle};
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn clearing_the_page_does_not_remove_an_obstacle() {
        let _alone = crate::gate::lock_gate_for_test();
        count_obstacle(ParkObstacle::Arrays, "cuArrayCreate");
        own_slot().obstacles.store(0, SeqCst);
        let found = first_obstacle();
        uncount_obstacle(ParkObstacle::Arrays);
        assert_eq!(found, Some(ParkObstacle::Arrays));
    }
}
