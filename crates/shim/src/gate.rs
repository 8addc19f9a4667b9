//! The gate: calls that touch the GPU pass it, and wait while it is closed.
//!
//! Every thread has a seat in which it records whether it is inside. To close the gate, a thread sets its state and
//! waits until no thread is inside. A thread writes only its own seat, so passing costs two stores and a load. Threads
//! of the shim itself always pass.
//!
//! A call sees the memory as away or present as it was when the call came in: that does not change while the call is
//! inside, even if the gate is already closing.
//!
//! An open capture cannot be interrupted: its thread goes on calling until it ends the capture. So the gate closes in
//! two steps, and the thread that ends the last capture takes the second step at that moment:
//!
//! ```text
//!            captures are open                none is
//!   OPEN ──► FINISHING ─────────────────────► MOVING ──► no thread is inside: closed
//!            all pass, but a new capture      all wait
//!            first waits for `MOMENT`
//! ```
//! The wait before a new capture is short, because the thread with an open capture may be waiting for that very thread.

use crate::class::{Kind, WORDS_MAX};
use crate::control;
use crate::hook::{self, Slot};
use crate::late;
use crate::log;
use crate::page;
use crate::wrap;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A waiting thread reads the gate again this often, in case it missed a wake-up.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The gate is open; the other states say why it is not.
pub const OPEN: u32 = 0;
/// The memory is being moved: calls wait, and they do not ask for a resume.
pub const MOVING: u32 = 1;
/// The memory is not on the GPU; a call that needs it asks for a resume.
pub const PARKED: u32 = 2;
/// The memory was parked when its lease ended and no longer exists: a call that needs it fails.
pub const LOST: u32 = 3;
/// The gate closes when the open captures have ended. Until then all calls pass, but a thread that would begin another
/// capture waits for [`MOMENT`] first.
const FINISHING: u32 = 4;

/// How long the start of a capture is delayed so that others can end first. Those rarely take longer than a few
/// milliseconds. If a thread with an open capture waits for the delayed thread, it loses no more than this.
const MOMENT: Duration = Duration::from_millis(10);

static GATE: AtomicU32 = AtomicU32::new(OPEN);
/// Not zero while the memory is away and the driver has also taken the context: a call to the driver would then hang.
pub static CONTEXT_AWAY: Apart = Apart(AtomicU32::new(0));

/// A number that every call reads and that is rarely written: nothing else shares its cache line.
#[repr(align(128))]
pub struct Apart(AtomicU32);
static SEATS: Mutex<Vec<&'static Seat>> = Mutex::new(Vec::new());
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Threads that wait for the GPU to finish all work it was given.
static WAITING_FOR_CARD: AtomicU32 = AtomicU32::new(0);
/// How many times SIGINT or SIGTERM came while a thread waited.
static CAME: AtomicU32 = AtomicU32::new(0);
/// True in a forked child, where the shim does nothing.
static DISARMED: AtomicBool = AtomicBool::new(false);

/// No call of the thread is past the gate.
const OUTSIDE: u32 = 0;
/// A call of the thread is past the gate.
const INSIDE: u32 = 1;
/// A call is past the gate that may wait for earlier work of the GPU: a copy to memory of the program.
const COPYING: u32 = 2;

/// A thread's own counters. They outlive the thread, and the next thread gets the seat.
#[derive(Default)]
#[repr(align(128))]
pub struct Seat {
    /// [`OUTSIDE`], [`INSIDE`] or [`COPYING`].
    inside: AtomicU32,
    is_taken: AtomicBool,
    /// Kernels and graphs launched.
    pub launches: AtomicU64,
    /// Copies and fills.
    pub copies: AtomicU64,
    /// Bytes that copies were to move.
    pub copied: AtomicU64,
    /// Calls that failed.
    pub errors: AtomicU64,
}

/// What a thread knows about itself. It has no destructor, so it is valid until the thread's last call.
struct Own {
    seat: Cell<Option<&'static Seat>>,
    depth: Cell<u32>,
    /// True for a thread of the shim.
    is_free: Cell<bool>,
    /// The slot of the current call.
    slot: Cell<usize>,
    /// The memory was away when the call came in.
    is_away: Cell<bool>,
    /// The thread is ending: from now on each call gives its seat back when it is over.
    is_ending: Cell<bool>,
    /// Captures that it began, less those that it ended.
    captures: Cell<u32>,
}

impl Own {
    /// Frees the seat for the next thread.
    fn stand_up(&self) {
        if let Some(seat) = self.seat.take() {
            seat.inside.store(OUTSIDE, Release);
            seat.is_taken.store(false, Release);
        }
    }
}

/// Notices that a thread ends. Calls that the program makes after that, to clean up, are still gated.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        OWN.with(|own| {
            own.is_ending.set(true);
            if own.depth.get() == 0 {
                own.stand_up();
            }
        });
    }
}

thread_local! {
    static OWN: Own = const {
        Own {
            seat: Cell::new(None),
            depth: Cell::new(0),
            is_free: Cell::new(false),
            slot: Cell::new(0),
            is_away: Cell::new(false),
            is_ending: Cell::new(false),
            captures: Cell::new(0),
        }
    };
    static ENDING: Ending = const { Ending };
}

fn take_seat(own: &Own) -> &'static Seat {
    if let Some(seat) = own.seat.get() {
        return seat;
    }
    // From now on the end of the thread is noticed, unless it is ending already.
    let _ = ENDING.try_with(|_| ());
    let mut seats = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
    let free = seats.iter().find(|seat| seat.is_taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok());
    let seat = match free.copied() {
        Some(seat) => seat,
        None => {
            let seat: &'static Seat = Box::leak(Box::default());
            seat.is_taken.store(true, Release);
            seats.push(seat);
            seat
        }
    };
    own.seat.set(Some(seat));
    seat
}

/// All seats, for counting.
pub fn seats() -> Vec<&'static Seat> {
    SEATS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Makes this thread one of the shim's: it always passes.
pub fn free_this_thread() {
    OWN.with(|own| own.is_free.set(true));
}

/// The slot of this thread's current call.
pub fn current() -> &'static Slot {
    OWN.with(|own| hook::slot(own.slot.get()))
}

/// The number of the slot of this thread's current call.
pub fn current_number() -> usize {
    OWN.with(|own| own.slot.get())
}

/// Runs `body` as if this thread, one of the shim's, were in a call.
pub fn as_call(number: usize, body: impl FnOnce()) {
    OWN.with(|own| own.slot.set(number));
    body();
}

/// Adds one to a counter that other threads only read.
fn count(number: &AtomicU64) {
    number.store(number.load(Relaxed) + 1, Relaxed);
}

/// Where a call goes: an address and how many words of the stack its arguments may take; or address zero, and the
/// result to return.
#[repr(C)]
pub struct Way {
    target: usize,
    words: usize,
}

/// A call comes in, with its arguments in the words below `frame`. `frame` is read only for functions that copy.
pub extern "C" fn enter(number: u32, frame: *const usize) -> Way {
    let slot = hook::slot(number as usize);
    let words = slot.words().min(WORDS_MAX);
    OWN.with(|own| {
        if own.is_free.get() || own.depth.get() > 0 || DISARMED.load(Relaxed) {
            own.depth.set(own.depth.get() + 1);
            return Way { target: slot.real(), words };
        }
        let seat = take_seat(own);
        let mut inside = INSIDE;
        match slot.kind() {
            Kind::Launch => count(&seat.launches),
            Kind::Copy => {
                count(&seat.copies);
                // SAFETY: this is a call of a function that copies, with the arguments of one.
                let bytes = unsafe { slot.moves().bytes(frame) };
                seat.copied.store(seat.copied.load(Relaxed).wrapping_add(bytes), Relaxed);
                inside = COPYING;
            }
            _ => {}
        }
        let mut has_waited = false;
        loop {
            seat.inside.swap(inside, SeqCst);
            let state = GATE.load(SeqCst);
            // Some calls know what to do while the memory is away.
            let is_away = state == PARKED || state == LOST;
            let is_answered = is_away && slot.kind() == Kind::Anytime;
            if state == OPEN || (is_answered && !is_deep()) {
                own.is_away.set(is_away);
                break;
            }
            if state == FINISHING {
                // A thread that has a capture open would only wait for itself.
                if has_waited || !slot.begins_capture() || own.captures.get() > 0 {
                    own.is_away.set(false);
                    break;
                }
                has_waited = true;
                seat.inside.store(OUTSIDE, SeqCst);
                wait_for_captures(Instant::now() + MOMENT);
                continue;
            }
            if is_answered && slot.is_put_off() {
                // A program that ends does not wait for a GPU.
                own.depth.set(1);
                own.slot.set(number as usize);
                return Way { target: late::put_off as *const () as usize, words: 0 };
            }
            seat.inside.store(OUTSIDE, SeqCst);
            if is_answered && let Some(target) = wrap::away::find(slot.name()) {
                own.is_away.set(true);
                own.slot.set(number as usize);
                return Way { target, words: 0 };
            }
            if let Err(answer) = wait_at_gate(slot) {
                return Way { target: 0, words: answer as usize };
            }
        }
        own.depth.set(1);
        own.slot.set(number as usize);
        if slot.begins_capture() {
            own.captures.set(own.captures.get() + 1);
            begin_capture();
        }
        if slot.kind() == Kind::Unknown {
            page::mark_not_parkable(page::Reason::UnknownCall, slot.name());
        }
        Way { target: slot.target(), words }
    })
}

/// A call is over.
pub extern "C" fn leave(number: u32, result: u32) {
    OWN.with(|own| {
        let depth = own.depth.get().saturating_sub(1);
        own.depth.set(depth);
        if depth > 0 || own.is_free.get() {
            return;
        }
        let slot = hook::slot(number as usize);
        slot.done(result);
        if let Some(seat) = own.seat.get() {
            if result != 0 && slot.counts_errors(result) {
                count(&seat.errors);
                page::count_error(result);
                if result == crate::driver::OUT_OF_MEMORY {
                    page::note_out_of_memory();
                }
            }
            seat.inside.store(OUTSIDE, Release);
        }
        if own.is_ending.get() {
            own.stand_up();
        }
    });
}

/// True if the driver has taken the context, too.
pub fn is_deep() -> bool {
    CONTEXT_AWAY.0.load(SeqCst) != 0
}

/// Sets whether the driver has the context. No thread is inside meanwhile: the gate is closed, or the driver has given
/// the context back.
pub fn set_deep(is: bool) {
    CONTEXT_AWAY.0.store(is.into(), SeqCst);
    futex_wake(&GATE);
}

/// Holds a call that passes without the gate until the context is back, if it must wait. Returns [`GO_ON`], or the
/// result to return to the program.
pub extern "C" fn wait_for_context(number: u32) -> u32 {
    let name = hook::slot(number as usize).name();
    // A program that polls, or waits for what is done already, needs nothing from the driver.
    if state() == PARKED && is_deep() && wrap::away::is_done(name) {
        return crate::driver::SUCCESS;
    }
    await_context(name).err().unwrap_or(GO_ON)
}

/// Not a result code of the driver.
pub const GO_ON: u32 = u32::MAX;

/// Waits until the context is back. Returns an error if it never will be, or if the program was told to stop meanwhile.
pub fn await_context(call: &str) -> Result<(), u32> {
    if OWN.with(|own| own.is_free.get()) || is_disarmed() {
        return Ok(());
    }
    wait_while(call, |_| is_deep())
}

/// Waits until a call may come in. Returns an error if it never may, or if the program was told to stop meanwhile.
#[cold]
fn wait_at_gate(slot: &Slot) -> Result<(), u32> {
    let is_anytime = slot.kind() == Kind::Anytime;
    let may_pass = |state| match state {
        OPEN | FINISHING => true,
        MOVING => false,
        _ => is_anytime && !is_deep(),
    };
    wait_while(slot.name(), |state| !may_pass(state))
}

/// True if the memory was away when the current call came in; for a thread of the shim, if it is away now.
pub fn is_away() -> bool {
    OWN.with(|own| if own.is_free.get() { state() == PARKED } else { own.is_away.get() })
}

/// Waits while `is_closed` is true of the gate. Returns an error if the memory is lost, or if the program was told to
/// stop meanwhile.
fn wait_while(call: &str, is_closed: impl Fn(u32) -> bool) -> Result<(), u32> {
    // Kept from the first check to the last, so that a signal between two checks still ends the wait.
    let mut watch = None;
    loop {
        let state = GATE.load(SeqCst);
        if !is_closed(state) {
            return Ok(());
        }
        if state == LOST {
            return Err(crate::driver::DEVICE_UNAVAILABLE);
        }
        let watch = watch.get_or_insert_with(Watch::begin);
        if state == PARKED {
            control::wants(call);
        }
        log_wait(state);
        futex_wait(&GATE, state, LOOK_AGAIN);
        // A signal that came after the gate opened again is no reason to fail.
        if watch.was_interrupted() && is_closed(GATE.load(SeqCst)) {
            // The result of a call that the operating system stopped.
            return Err(crate::driver::OPERATING_SYSTEM);
        }
    }
}

fn log_wait(state: u32) {
    // The wrapper, or the service on its terminal, reports that the program is parked.
    if state == PARKED && !control::is_connected() {
        log::once(
            "this program is parked, and the service that parked it is not there: it goes on when the service is back",
        );
    }
}

/// While a thread waits, SIGINT and SIGTERM end the wait and then have the effect that the program set for them.
struct Watch {
    /// How many signals had come when the wait began.
    signals: u32,
}

/// How many threads wait, and the program's own signal actions meanwhile. Both are under one lock, so that the shim's
/// action is never taken for the program's.
struct Watched {
    waiting: u32,
    old: [Option<libc::sigaction>; 2],
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { waiting: 0, old: [None; 2] });
const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// The program's handlers, for the shim's handler to call: addresses, or values that are no handler.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static HANDLER_FLAGS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

impl Watch {
    fn begin() -> Watch {
        let signals = CAME.load(SeqCst);
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.waiting += 1;
        if watched.waiting == 1 {
            for (place, signal) in SIGNALS.iter().enumerate() {
                watched.old[place] = stand_in(place, *signal);
            }
        }
        Watch { signals }
    }

    fn was_interrupted(&self) -> bool {
        CAME.load(SeqCst) != self.signals
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.waiting -= 1;
        if watched.waiting > 0 {
            return;
        }
        for (place, signal) in SIGNALS.iter().enumerate() {
            let Some(action) = watched.old[place].take() else { continue };
            // SAFETY: actions are plain numbers, and the old one was the program's.
            unsafe {
                let mut now: libc::sigaction = std::mem::zeroed();
                libc::sigaction(*signal, std::ptr::null(), &raw mut now);
                // An action that the program has set meanwhile stays.
                if now.sa_sigaction == interrupted as *const () as usize {
                    libc::sigaction(*signal, &raw const action, std::ptr::null_mut());
                }
            }
        }
    }
}

/// Replaces the program's handler by the shim's; a signal without a handler keeps its effect.
fn stand_in(place: usize, signal: i32) -> Option<libc::sigaction> {
    // SAFETY: actions are plain numbers; our handler does only what a handler may.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old);
        // A program that saved the shim's handler during a wait may have restored it; that handler calls the program's
        // already.
        let is_ours = old.sa_sigaction == interrupted as *const () as usize;
        if is_ours || old.sa_sigaction == libc::SIG_DFL || old.sa_sigaction == libc::SIG_IGN {
            return None;
        }
        HANDLERS[place].store(old.sa_sigaction, SeqCst);
        HANDLER_FLAGS[place].store(old.sa_flags as u32, SeqCst);
        let mut own = old;
        own.sa_sigaction = interrupted as *const () as usize;
        own.sa_flags = (old.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
        (libc::sigaction(signal, &raw const own, std::ptr::null_mut()) == 0).then_some(old)
    }
}

extern "C" fn interrupted(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CAME.fetch_add(1, SeqCst);
    futex_wake(&GATE);
    let place = usize::from(signal == SIGNALS[1]);
    let (handler, flags) = (HANDLERS[place].load(SeqCst), HANDLER_FLAGS[place].load(SeqCst));
    // SAFETY: it is the program's handler, called as it asked to be.
    unsafe {
        if flags & libc::SA_SIGINFO as u32 != 0 {
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(i32) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

/// Counts a capture that is about to begin. It does not begin while a thread waits for the GPU, which would spoil it.
fn begin_capture() {
    CAPTURES.fetch_add(1, SeqCst);
    while WAITING_FOR_CARD.load(SeqCst) > 0 {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Counts a capture that has ended or did not begin. If the gate waits for the last one, it closes now, before another
/// capture can begin.
pub fn end_capture() {
    OWN.with(|own| own.captures.set(own.captures.get().saturating_sub(1)));
    if CAPTURES.fetch_update(SeqCst, SeqCst, |open| open.checked_sub(1)) == Ok(1) {
        begin_to_move();
    }
}

/// Nothing is captured: if the gate waits for that, no call comes in from now on.
fn begin_to_move() {
    if GATE.compare_exchange(FINISHING, MOVING, SeqCst, SeqCst).is_ok() {
        futex_wake(&GATE);
    }
}

/// Waits until the gate is no longer waiting for captures (it is closing, or open again), or until the deadline.
fn wait_for_captures(deadline: Instant) {
    while GATE.load(SeqCst) == FINISHING {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        futex_wait(&GATE, FINISHING, left);
    }
}

/// True if a capture is open.
pub fn is_capturing() -> bool {
    CAPTURES.load(SeqCst) > 0
}

/// Runs `wait`, which waits for the GPU. Returns `None` without running it if a capture is open.
pub fn unless_capturing(wait: impl FnOnce() -> u32) -> Option<u32> {
    WAITING_FOR_CARD.fetch_add(1, SeqCst);
    let result = (CAPTURES.load(SeqCst) == 0).then(wait);
    WAITING_FOR_CARD.fetch_sub(1, SeqCst);
    result
}

/// The state of the gate.
pub fn state() -> u32 {
    GATE.load(Acquire)
}

/// Opens the gate, or marks the memory as away.
pub fn set(state: u32) {
    GATE.store(state, SeqCst);
    futex_wake(&GATE);
}

/// How long closing took until no thread was inside, in three parts: open captures, calls that were inside, and copies
/// that waited for the GPU. The program goes on while captures are waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Closing {
    /// Waiting for open captures.
    pub captures: Duration,
    /// Waiting for calls that were inside.
    pub calls: Duration,
    /// Waiting for copies that waited for the GPU.
    pub copies: Duration,
}

/// Closes the gate and waits until no thread is inside and no capture is open. Returns `None` at the deadline; the gate
/// is then as it was before.
pub fn close(deadline: Instant) -> Option<Closing> {
    let before = state();
    let mut took = Closing::default();
    loop {
        let begun = Instant::now();
        match before {
            OPEN if !finish_captures(deadline) => return None,
            OPEN => {}
            // While the memory is away nothing is captured.
            _ => GATE.store(MOVING, SeqCst),
        }
        took.captures += begun.elapsed();
        let closing = Instant::now();
        let are_out = await_seats(|inside| inside != INSIDE, deadline);
        took.calls += closing.elapsed();
        let copying = Instant::now();
        let is_quiet = are_out && await_seats(|inside| inside == OUTSIDE, deadline);
        took.copies += copying.elapsed();
        // A thread that was inside may just have begun a capture.
        if is_quiet && !is_capturing() {
            return Some(took);
        }
        if Instant::now() >= deadline {
            set(before);
            return None;
        }
    }
}

/// Waits until the open captures have ended; from that moment on no call comes in. Returns false at the deadline; the
/// gate is then open.
fn finish_captures(deadline: Instant) -> bool {
    set(FINISHING);
    if !is_capturing() {
        begin_to_move();
    }
    wait_for_captures(deadline);
    // The last one may end at this very moment.
    let has_given_up = GATE.compare_exchange(FINISHING, OPEN, SeqCst, SeqCst).is_ok();
    if has_given_up {
        futex_wake(&GATE);
    }
    !has_given_up
}

/// Waits until `is` is true of every seat, or until the deadline. Returns whether it is.
fn await_seats(is: impl Fn(u32) -> bool, deadline: Instant) -> bool {
    for seat in seats() {
        let mut looks = 0_u32;
        while !is(seat.inside.load(SeqCst)) {
            if Instant::now() >= deadline {
                return false;
            }
            looks += 1;
            // Calls are short: at first a sleep is not worth it.
            if looks > 200 {
                std::thread::sleep(Duration::from_micros(20));
            } else {
                std::hint::spin_loop();
            }
        }
    }
    true
}

/// Turns the shim off in a forked child.
pub fn disarm() {
    DISARMED.store(true, SeqCst);
    GATE.store(OPEN, SeqCst);
}

/// True in a forked child.
pub fn is_disarmed() -> bool {
    DISARMED.load(Relaxed)
}

fn futex_wait(word: &AtomicU32, value: u32, within: Duration) {
    let time = libc::timespec { tv_sec: within.as_secs() as libc::time_t, tv_nsec: within.subsec_nanos().into() };
    // SAFETY: the word and the time live until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            &raw const time,
        )
    };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

/// Held by each test that closes the gate, because there is only one gate.
#[cfg(test)]
pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{HANDLERS, MOVING, Watch, close, enter, is_away, leave, set, state};
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    #[test]
    fn a_call_that_came_in_before_the_gate_closed_knows_that_the_memory_is_there() {
        let _alone = super::alone();
        // A slot without a function waits when the gate is closed.
        enter(0, std::ptr::null());
        let closing = std::thread::spawn(|| close(Instant::now() + Duration::from_millis(200)));
        while state() != MOVING {
            std::thread::yield_now();
        }
        assert!(!is_away(), "it is closing, but the memory cannot go before this call has left");
        assert!(closing.join().expect("a thread").is_none(), "it waits for the call, and gives up");
        leave(0, 0);
        assert!(close(Instant::now() + Duration::from_secs(10)).is_some(), "nobody is inside");
        set(super::OPEN);
    }

    extern "C" fn of_program(_: i32) {
        HEARD.fetch_add(1, SeqCst);
    }

    static HEARD: AtomicU32 = AtomicU32::new(0);

    fn handler() -> usize {
        // SAFETY: the structure is plain numbers, filled by the call.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut now);
            now.sa_sigaction
        }
    }

    #[test]
    fn however_many_wait_the_programs_handler_is_called_once_and_is_its_own_again_afterwards() {
        let _alone = super::alone();
        let own = of_program as *const () as usize;
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGINT, own) };
        let waiting: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| (0..5_000).for_each(|_| drop(Watch::begin())))).collect();
        waiting.into_iter().for_each(|thread| thread.join().expect("a thread"));
        assert_eq!((handler(), HANDLERS[0].load(SeqCst)), (own, own));
        let (first, second) = (Watch::begin(), Watch::begin());
        assert_ne!(handler(), own, "ours stands in for it");
        // SAFETY: there is a handler for it.
        unsafe { libc::raise(libc::SIGINT) };
        assert!(first.was_interrupted() && second.was_interrupted());
        assert!(!Watch::begin().was_interrupted(), "who comes later was told nothing");
        drop((first, second));
        assert_eq!((handler(), HEARD.load(SeqCst)), (own, 1));
    }
}
