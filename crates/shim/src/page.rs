//! What the holder's processes and the daemon both see: the cap, and what each process does.
//!
//! One page of numbers for a lease, made and sealed by the daemon and mapped by every process of its
//! holder. Every number may be read and written at any time, and whatever is in it does no harm: it is
//! the holder's word. Without a daemon a process has a page of its own, on which nothing is capped.

use crate::log;
pub use crate::message::Reason;
use crate::message::{CARDS, CardPage, MAGIC, Page, ProcessPage, SHORT_PAGE, SLOTS, SharePage, VERSION};
use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Held while bytes are counted, and while what was counted moves to another page.
static COUNTING: Mutex<()> = Mutex::new(());
static SHARED: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());
/// Why this process cannot be parked.
static MARKED: Mutex<Marked> = Mutex::new(Marked { for_good: 0, held: [0; 32] });

/// Reasons that stay until they are unmarked, and those that count.
struct Marked {
    for_good: u32,
    held: [u32; 32],
}

impl Marked {
    fn bits(&self) -> u32 {
        (0..32).filter(|bit| self.held[*bit] > 0).fold(self.for_good, |bits, bit| bits | 1 << bit)
    }
}

/// Whether somebody wants to know why. The shim's own thread asks, too, and must not read the environment then.
pub fn is_verbose() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| std::env::var_os("SUBLET_SHIM_DEBUG").is_some())
}

/// Changes the reasons, and tells them.
fn change(reason: Reason, call: &str, body: impl FnOnce(&mut Marked)) {
    let mut marked = MARKED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = marked.bits();
    body(&mut marked);
    let bits = marked.bits();
    own().reasons.store(bits, SeqCst);
    if bits & !before != 0 && is_verbose() {
        log::say(&format!("this program cannot be parked: {} ({call})", reason.text()));
    }
}

fn page() -> &'static Page {
    let shared = SHARED.load(Acquire);
    if !shared.is_null() {
        // SAFETY: it was mapped for good, and is numbers that may be anything.
        return unsafe { &*shared };
    }
    static OWN: OnceLock<Box<Page>> = OnceLock::new();
    OWN.get_or_init(Box::default)
}

/// Whether the page is the lease's.
pub fn is_shared() -> bool {
    !SHARED.load(Acquire).is_null()
}

/// Maps the page that the daemon made, to look at: the process takes no place on it.
pub fn look_at(file: &File, pid: Option<u32>) -> Result<(), String> {
    let seen = map(file)?;
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_shared() {
        PID.store(pid.unwrap_or(0), SeqCst);
    }
    wipe_first(seen);
    // Whoever was faster has the same.
    let _ = SHARED.compare_exchange(std::ptr::null_mut(), std::ptr::from_ref(seen).cast_mut(), SeqCst, SeqCst);
    Ok(())
}

/// Maps the page that the daemon made. What was counted so far comes along.
pub fn share(file: &File, pid: Option<u32>) -> Result<(), String> {
    let new = map(file)?;
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    // Whoever finds a reason just now writes it here or there.
    let marked = MARKED.lock().unwrap_or_else(PoisonError::into_inner);
    let old = own();
    PID.store(pid.unwrap_or(0), SeqCst);
    wipe_first(new);
    let slot = own_of(new);
    if !std::ptr::eq(old, slot) {
        // Cards may be in another order there.
        let cards = page().cards.iter().zip(&old.cards).enumerate();
        for (number, (card, share)) in cards {
            let there = place_on(new, &uuid_of(card)).unwrap_or_else(|| beside(new, number as i32));
            move_share(share, &slot.cards[there]);
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
    slot.reasons.store(marked.bits(), SeqCst);
    // How many bytes is told with the next tick.
    new.copied_of(slot).is_counted.store(1, SeqCst);
    SHARED.store(std::ptr::from_ref(new).cast_mut(), SeqCst);
    Ok(())
}

/// What another program left here that was this process before: who becomes another keeps its number, and its place.
fn wipe_first(page: &Page) {
    static WIPED: Once = Once::new();
    let pid = own_pid();
    let own = page.processes.iter().filter(|slot| slot.pid.load(SeqCst) == pid);
    WIPED.call_once(|| own.for_each(|slot| page.wipe(slot)));
}

/// What was counted here counts there.
fn move_share(here: &SharePage, there: &SharePage) {
    if here.contexts.load(SeqCst) > 0 {
        there.bytes.fetch_add(here.bytes.swap(0, SeqCst), SeqCst);
        there.peak.fetch_max(here.peak.load(SeqCst), SeqCst);
        there.contexts.store(here.contexts.swap(0, SeqCst), SeqCst);
    }
}

fn map(file: &File) -> Result<&'static Page, String> {
    let length = size_of::<Page>();
    let there = file.metadata().map_or(0, |data| usize::try_from(data.len()).unwrap_or(length)).min(length);
    if there < SHORT_PAGE {
        return Err("the page of the lease is too short".to_owned());
    }
    // SAFETY: new mappings: of memory of its own, and over it of a file that is long enough and, being sealed, stays so.
    // What an older daemon's page does not have is written where nobody looks.
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
    // SAFETY: as above.
    let new = unsafe { &*at.cast::<Page>() };
    if new.magic.load(Acquire) != MAGIC || new.version.load(Acquire) != VERSION {
        return Err("the page of the lease is of another version".to_owned());
    }
    Ok(new)
}

/// As the daemon knows this process; zero: it did not say so, and it is the number that the process itself knows.
static PID: AtomicU32 = AtomicU32::new(0);

fn own_pid() -> u32 {
    match PID.load(Relaxed) {
        0 => std::process::id(),
        pid => pid,
    }
}

/// This process's own place on a page; takes one if it has none.
fn own_of(page: &Page) -> &ProcessPage {
    let pid = own_pid();
    let has = page.processes.iter().find(|slot| slot.pid.load(SeqCst) == pid);
    let free = || page.processes.iter().find(|slot| slot.pid.compare_exchange(0, pid, SeqCst, SeqCst).is_ok());
    // Where every place is taken, the last one is for all others.
    has.or_else(free).unwrap_or(&page.processes[SLOTS - 1])
}

/// This process's own numbers.
pub fn own() -> &'static ProcessPage {
    own_of(page())
}

/// So many bytes were copied by this process.
pub fn set_copied(bytes: u64) {
    let copied = page().copied_of(own());
    copied.bytes.store(bytes, Relaxed);
    copied.is_counted.store(1, Relaxed);
}

/// The page's number of a card; a card that is not on it is not capped.
fn card(uuid: &[u8; 16]) -> Option<usize> {
    place_on(page(), uuid)
}

fn place_on(page: &Page, uuid: &[u8; 16]) -> Option<usize> {
    page.cards.iter().position(|card| card.cap.load(Relaxed) > 0 && uuid_of(card) == *uuid)
}

fn uuid_of(card: &CardPage) -> [u8; 16] {
    std::array::from_fn(|place| card.uuid[place].load(Relaxed))
}

/// Where bytes of a card are counted: its number on the page, or, of cards that are not on it, by device.
fn place(uuid: &[u8; 16], device: i32) -> usize {
    card(uuid).unwrap_or_else(|| beside(page(), device))
}

/// Where a card is counted that is not on a page: in a place that no card of the lease has, if there is one.
fn beside(page: &Page, device: i32) -> usize {
    let free: Vec<usize> = (0..CARDS).filter(|place| page.cards[*place].cap.load(Relaxed) == 0).collect();
    free.get(device as usize % free.len().max(1)).copied().unwrap_or(CARDS - 1)
}

/// What the lease has of a card: bytes of its processes and their contexts.
fn used(place: usize) -> u64 {
    let page = page();
    let context = page.cards[place].context.load(Relaxed);
    let live = page.processes.iter().filter(|slot| slot.pid.load(Relaxed) != 0);
    live.fold(0, |sum, slot| {
        let bytes = slot.cards[place].bytes.load(SeqCst);
        let contexts = u64::from(slot.cards[place].contexts.load(SeqCst) > 0) * context;
        sum.saturating_add(bytes).saturating_add(contexts)
    })
}

/// Takes bytes of a card, if the lease has them.
pub fn reserve(uuid: &[u8; 16], device: i32, bytes: u64) -> bool {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let place = place(uuid, device);
    let own = &own().cards[place];
    own.contexts.store(1, SeqCst);
    if !is_shared() {
        // On a page of its own, so that it can be found when the lease's comes.
        page().cards[place].uuid.iter().zip(uuid).for_each(|(own, byte)| own.store(*byte, Relaxed));
    }
    let now = own.bytes.fetch_add(bytes, SeqCst).saturating_add(bytes);
    let cap = page().cards[place].cap.load(SeqCst);
    if card(uuid).is_some() && used(place) > cap {
        own.bytes.fetch_sub(bytes, SeqCst);
        REFUSED.set(cap);
        return false;
    }
    own.peak.fetch_max(now, SeqCst);
    true
}

thread_local! {
    /// What the lease has of the card of which this thread was last refused some.
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// A call has failed for want of memory: if it was for want of lease, that is said.
pub fn note_out_of_memory() {
    // What is kept elsewhere may have been given back meanwhile, and the call have worked: then it is not.
    let cap = REFUSED.take();
    if cap > 0 {
        let cap = crate::message::size(cap);
        log::once(&format!("out of memory: the lease has {cap} of this GPU; ask for more with --vram"));
    }
}

/// What was seen to be one number of bytes is another by now, whether the lease has them or not.
pub fn recount(uuid: &[u8; 16], device: i32, before: u64, now: u64) {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let own = &own().cards[place(uuid, device)];
    let new = |held: u64| Some(held.saturating_sub(before).saturating_add(now));
    let _ = own.bytes.fetch_update(SeqCst, SeqCst, new);
    own.peak.fetch_max(own.bytes.load(SeqCst), SeqCst);
}

/// Gives bytes back.
pub fn give_back(uuid: &[u8; 16], device: i32, bytes: u64) {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let own = &own().cards[place(uuid, device)];
    let _ = own.bytes.fetch_update(SeqCst, SeqCst, |held| Some(held.saturating_sub(bytes)));
}

/// What a program is told of a card: free and total, of what the card says.
pub fn seen(uuid: &[u8; 16], free: u64, total: u64) -> (u64, u64) {
    let Some(place) = card(uuid) else { return (free, total) };
    let cap = page().cards[place].cap.load(SeqCst).min(total);
    (free.min(cap.saturating_sub(used(place))), cap)
}

/// What the lease has of a card, and what it uses of that; none: the card is not the lease's.
pub fn lease_of(uuid: &[u8; 16]) -> Option<(u64, u64)> {
    let place = card(uuid)?;
    Some((page().cards[place].cap.load(SeqCst), used(place)))
}

/// The holder cannot be parked any more, and why.
pub fn mark_not_parkable(reason: Reason, call: &str) {
    change(reason, call, |marked| marked.for_good |= reason as u32);
}

/// It can be parked again, as far as this goes.
pub fn unmark(reason: Reason) {
    change(reason, "", |marked| marked.for_good &= !(reason as u32));
}

/// The holder cannot be parked as long as this is held.
pub fn hold(reason: Reason, call: &str) {
    change(reason, call, |marked| marked.held[(reason as u32).trailing_zeros() as usize] += 1);
}

/// It is held less often.
pub fn let_go(reason: Reason) {
    change(reason, "", |marked| {
        let held = &mut marked.held[(reason as u32).trailing_zeros() as usize];
        *held = held.saturating_sub(1);
    });
}

/// Why it cannot be parked, if it cannot. What is on the page others can write, too.
pub fn not_parkable() -> Option<Reason> {
    Reason::first(MARKED.lock().unwrap_or_else(PoisonError::into_inner).bits())
}

/// Counts an error by its number; the rarest share a place.
pub fn count_error(code: u32) {
    let errors = &own().errors;
    for place in errors {
        let own = place.code.load(Relaxed);
        if own == code || (own == 0 && place.code.compare_exchange(0, code, SeqCst, Relaxed).is_ok()) {
            place.count.fetch_add(1, Relaxed);
            return;
        }
    }
    errors[errors.len() - 1].count.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{Reason, hold, let_go, not_parkable, own};
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn whoever_wipes_the_page_does_not_make_a_program_one_that_can_be_parked() {
        let _alone = crate::gate::alone();
        hold(Reason::Arrays, "cuArrayCreate");
        own().reasons.store(0, SeqCst);
        let found = not_parkable();
        let_go(Reason::Arrays);
        assert_eq!(found, Some(Reason::Arrays));
    }
}
