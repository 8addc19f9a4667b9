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
//!            first waits for `CAPTURE_DELAY`
//! ```
//! The wait before a new capture is short, because the thread with an open capture may be waiting for that very thread.

use crate::control_thread;
use crate::deferred_calls;
use crate::function_class::{GateRule, WORDS_MAX};
use crate::hook::{self, HookSlot};
use crate::lease_page;
use crate::log;
use crate::replacements;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A waiting thread reads the gate again this often, in case it missed a wake-up.
const RECHECK_PERIOD: Duration = Duration::from_millis(200);

/// The gate is open; the other states say why it is not.
pub const OPEN: u32 = 0;
/// The memory is being moved: calls wait, and they do not ask for a resume.
pub const MOVING: u32 = 1;
/// The memory is not on the GPU; a call that needs it asks for a resume.
pub const PARKED: u32 = 2;
/// The memory was parked when its lease ended and no longer exists: a call that needs it fails.
pub const LOST: u32 = 3;
/// The gate closes when the open captures have ended. Until then all calls pass, but a thread that would begin another
/// capture waits for [`CAPTURE_DELAY`] first.
const AWAITING_CAPTURES: u32 = 4;

/// How long the start of a capture is delayed so that others can end first. Those rarely take longer than a few
/// milliseconds. If a thread with an open capture waits for the delayed thread, it loses no more than this.
const CAPTURE_DELAY: Duration = Duration::from_millis(10);

static GATE: AtomicU32 = AtomicU32::new(OPEN);
/// Not zero while the memory is away and the driver has also taken the context: a call to the driver would then hang.
pub static CONTEXT_AWAY: OwnCacheLine = OwnCacheLine(AtomicU32::new(0));

/// A number that every call reads and that is rarely written: nothing else shares its cache line.
#[repr(align(128))]
pub struct OwnCacheLine(AtomicU32);
static SEATS: Mutex<Vec<&'static ThreadSeat>> = Mutex::new(Vec::new());
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Threads that wait for the GPU to finish all work it was given.
static WAITING_FOR_GPU: AtomicU32 = AtomicU32::new(0);
/// How many times SIGINT or SIGTERM came while a thread waited.
static SIGNALS_CAME: AtomicU32 = AtomicU32::new(0);
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
pub struct ThreadSeat {
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
struct ThreadState {
    seat: Cell<Option<&'static ThreadSeat>>,
    depth: Cell<u32>,
    /// True for a thread of the shim.
    is_exempt: Cell<bool>,
    /// The slot of the current call.
    slot: Cell<usize>,
    /// The memory was away when the call came in.
    is_away: Cell<bool>,
    /// The thread is ending: from now on each call gives its seat back when it is over.
    is_ending: Cell<bool>,
    /// Captures that it began, less those that it ended.
    captures: Cell<u32>,
}

impl ThreadState {
    /// Frees the seat for the next thread.
    fn free_seat(&self) {
        if let Some(seat) = self.seat.take() {
            seat.inside.store(OUTSIDE, Release);
            seat.is_taken.store(false, Release);
        }
    }
}

/// Notices that a thread ends. Calls that the program makes after that, to clean up, are still gated.
struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        OWN.with(|own| {
            own.is_ending.set(true);
            if own.depth.get() == 0 {
                own.free_seat();
            }
        });
    }
}

thread_local! {
    static OWN: ThreadState = const {
        ThreadState {
            seat: Cell::new(None),
            depth: Cell::new(0),
            is_exempt: Cell::new(false),
            slot: Cell::new(0),
            is_away: Cell::new(false),
            is_ending: Cell::new(false),
            captures: Cell::new(0),
        }
    };
    static ENDING: ThreadEnd = const { ThreadEnd };
}

fn take_seat(own: &ThreadState) -> &'static ThreadSeat {
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
            let seat: &'static ThreadSeat = Box::leak(Box::default());
            seat.is_taken.store(true, Release);
            seats.push(seat);
            seat
        }
    };
    own.seat.set(Some(seat));
    seat
}

/// All seats, for counting.
pub fn thread_seats() -> Vec<&'static ThreadSeat> {
    SEATS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Makes this thread one of the shim's: it always passes.
pub fn exempt_this_thread() {
    OWN.with(|own| own.is_exempt.set(true));
}

/// The slot of this thread's current call.
pub fn current_slot() -> &'static HookSlot {
    OWN.with(|own| hook::slot(own.slot.get()))
}

/// The number of the slot of this thread's current call.
pub fn current_slot_number() -> usize {
    OWN.with(|own| own.slot.get())
}

/// Runs `body` as if this thread, one of the shim's, were in a call.
pub fn as_call(number: usize, body: impl FnOnce()) {
    OWN.with(|own| own.slot.set(number));
    body();
}

/// Adds one to a counter that other threads only read.
fn increment(number: &AtomicU64) {
    number.store(number.load(Relaxed) + 1, Relaxed);
}

/// Where a call goes: an address and how many words of the stack its arguments may take; or address zero, and the
/// result to return.
#[repr(C)]
pub struct CallTarget {
    target: usize,
    stack_words: usize,
}

/// A call comes in, with its arguments in the words below `frame`. `frame` is read only for functions that copy.
pub extern "C" fn enter(number: u32, frame: *const usize) -> CallTarget {
    let slot = hook::slot(number as usize);
    let stack_words = slot.stack_words().min(WORDS_MAX);
    OWN.with(|own| {
        if own.is_exempt.get() || own.depth.get() > 0 || DISARMED.load(Relaxed) {
            own.depth.set(own.depth.get() + 1);
            return CallTarget { target: slot.real(), stack_words };
        }
        let seat = take_seat(own);
        let mut inside = INSIDE;
        match slot.gate_rule() {
            GateRule::Launch => increment(&seat.launches),
            GateRule::Copy => {
                increment(&seat.copies);
                // SAFETY: this is a call of a function that copies, with the arguments of one.
                let bytes = unsafe { slot.copy_size().bytes(frame) };
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
            let is_answered = is_away && slot.gate_rule() == GateRule::Anytime;
            if state == OPEN || (is_answered && !is_context_away()) {
                own.is_away.set(is_away);
                break;
            }
            if state == AWAITING_CAPTURES {
                // A thread that has a capture open would only wait for itself.
                if has_waited || !slot.begins_capture() || own.captures.get() > 0 {
                    own.is_away.set(false);
                    break;
                }
                has_waited = true;
                seat.inside.store(OUTSIDE, SeqCst);
                wait_for_captures(Instant::now() + CAPTURE_DELAY);
                continue;
            }
            if is_answered && slot.is_deferrable() {
                // A program that ends does not wait for a GPU.
                own.depth.set(1);
                own.slot.set(number as usize);
                return CallTarget { target: deferred_calls::defer as *const () as usize, stack_words: 0 };
            }
            seat.inside.store(OUTSIDE, SeqCst);
            if is_answered && let Some(target) = replacements::context_away::find_answer(slot.name()) {
                own.is_away.set(true);
                own.slot.set(number as usize);
                return CallTarget { target, stack_words: 0 };
            }
            if let Err(answer) = wait_at_gate(slot) {
                return CallTarget { target: 0, stack_words: answer as usize };
            }
        }
        own.depth.set(1);
        own.slot.set(number as usize);
        if slot.begins_capture() {
            own.captures.set(own.captures.get() + 1);
            begin_capture();
        }
        if slot.gate_rule() == GateRule::Unknown {
            lease_page::set_obstacle(lease_page::ParkObstacle::UnknownCall, slot.name());
        }
        CallTarget { target: slot.target(), stack_words }
    })
}

/// A call is over.
pub extern "C" fn leave(number: u32, result: u32) {
    OWN.with(|own| {
        let depth = own.depth.get().saturating_sub(1);
        own.depth.set(depth);
        if depth > 0 || own.is_exempt.get() {
            return;
        }
        let slot = hook::slot(number as usize);
        slot.call_ended(result);
        if let Some(seat) = own.seat.get() {
            if result != 0 && slot.is_error(result) {
                increment(&seat.errors);
                lease_page::count_error(result);
                if result == crate::driver::OUT_OF_MEMORY {
                    lease_page::note_out_of_memory();
                }
            }
            seat.inside.store(OUTSIDE, Release);
        }
        if own.is_ending.get() {
            own.free_seat();
        }
    });
}

/// True if the driver has taken the context, too.
pub fn is_context_away() -> bool {
    CONTEXT_AWAY.0.load(SeqCst) != 0
}

/// Sets whether the driver has the context. No thread is inside meanwhile: the gate is closed, or the driver has given
/// the context back.
pub fn set_context_away(is: bool) {
    CONTEXT_AWAY.0.store(is.into(), SeqCst);
    futex_wake(&GATE);
}

/// Holds a call that passes without the gate until the context is back, if it must wait. Returns [`GO_ON`], or the
/// result to return to the program.
pub extern "C" fn wait_for_context(number: u32) -> u32 {
    let name = hook::slot(number as usize).name();
    // A program that polls, or waits for what is done already, needs nothing from the driver.
    if state() == PARKED && is_context_away() && replacements::context_away::only_waits(name) {
        return crate::driver::SUCCESS;
    }
    await_context(name).err().unwrap_or(GO_ON)
}

/// Not a result code of the driver.
pub const GO_ON: u32 = u32::MAX;

/// Waits until the context is back. Returns an error if it never will be, or if the program was told to stop meanwhile.
pub fn await_context(call: &str) -> Result<(), u32> {
    if OWN.with(|own| own.is_exempt.get()) || is_disarmed() {
        return Ok(());
    }
    wait_while(call, |_| is_context_away())
}

/// Waits until a call may come in. Returns an error if it never may, or if the program was told to stop meanwhile.
#[cold]
fn wait_at_gate(slot: &HookSlot) -> Result<(), u32> {
    let is_anytime = slot.gate_rule() == GateRule::Anytime;
    let may_pass = |state| match state {
        OPEN | AWAITING_CAPTURES => true,
        MOVING => false,
        _ => is_anytime && !is_context_away(),
    };
    wait_while(slot.name(), |state| !may_pass(state))
}

/// True if the memory was away when the current call came in; for a thread of the shim, if it is away now.
pub fn is_away() -> bool {
    OWN.with(|own| if own.is_exempt.get() { state() == PARKED } else { own.is_away.get() })
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
        let watch = watch.get_or_insert_with(SignalWait::begin);
        if state == PARKED {
            control_thread::note_waiting_call(call);
        }
        log_wait(state);
        futex_wait(&GATE, state, RECHECK_PERIOD);
        // A signal that came after the gate opened again is no reason to fail.
        if watch.was_interrupted() && is_closed(GATE.load(SeqCst)) {
            // The result of a call that the operating system stopped.
            return Err(crate::driver::OPERATING_SYSTEM);
        }
    }
}

fn log_wait(state: u32) {
    // The wrapper, or the service on its terminal, reports that the program is parked.
    if state == PARKED && !control_thread::is_connected() {
        log::once(
            "this program is parked, and the service that parked it is not there: it goes on when the service is back",
        );
    }
}

/// While a thread waits, SIGINT and SIGTERM end the wait and then have the effect that the program set for them.
struct SignalWait {
    /// How many signals had come when the wait began.
    signals: u32,
}

/// How many threads wait, and the program's own signal actions meanwhile. Both are under one lock, so that the shim's
/// action is never taken for the program's.
struct SavedSignalActions {
    waiting: u32,
    old: [Option<libc::sigaction>; 2],
}

static SAVED_ACTIONS: Mutex<SavedSignalActions> = Mutex::new(SavedSignalActions { waiting: 0, old: [None; 2] });
const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// The program's handlers, for the shim's handler to call: addresses, or values that are no handler.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static HANDLER_FLAGS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

impl SignalWait {
    fn begin() -> SignalWait {
        let signals = SIGNALS_CAME.load(SeqCst);
        let mut saved = SAVED_ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        saved.waiting += 1;
        if saved.waiting == 1 {
            for (place, signal) in SIGNALS.iter().enumerate() {
                saved.old[place] = replace_handler(place, *signal);
            }
        }
        SignalWait { signals }
    }

    fn was_interrupted(&self) -> bool {
        SIGNALS_CAME.load(SeqCst) != self.signals
    }
}

impl Drop for SignalWait {
    fn drop(&mut self) {
        let mut saved = SAVED_ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        saved.waiting -= 1;
        if saved.waiting > 0 {
            return;
        }
        for (place, signal) in SIGNALS.iter().enumerate() {
            let Some(action) = saved.old[place].take() else { continue };
            // SAFETY: actions are plain numbers, and the old one was the program's.
            unsafe {
                let mut now: libc::sigaction = std::mem::zeroed();
                libc::sigaction(*signal, std::ptr::null(), &raw mut now);
                // An action that the program has set meanwhile stays.
                if now.sa_sigaction == handle_signal as *const () as usize {
                    libc::sigaction(*signal, &raw const action, std::ptr::null_mut());
                }
            }
        }
    }
}

/// Replaces the program's handler by the shim's; a signal without a handler keeps its effect.
fn replace_handler(place: usize, signal: i32) -> Option<libc::sigaction> {
    // SAFETY: actions are plain numbers; our handler does only what a handler may.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old);
        // A program that saved the shim's handler during a wait may have restored it; that handler calls the program's
        // already.
        let is_ours = old.sa_sigaction == handle_signal as *const () as usize;
        if is_ours || old.sa_sigaction == libc::SIG_DFL || old.sa_sigaction == libc::SIG_IGN {
            return None;
        }
        HANDLERS[place].store(old.sa_sigaction, SeqCst);
        HANDLER_FLAGS[place].store(old.sa_flags as u32, SeqCst);
        let mut own = old;
        own.sa_sigaction = handle_signal as *const () as usize;
        own.sa_flags = (old.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
        (libc::sigaction(signal, &raw const own, std::ptr::null_mut()) == 0).then_some(old)
    }
}

extern "C" fn handle_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNALS_CAME.fetch_add(1, SeqCst);
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
    while WAITING_FOR_GPU.load(SeqCst) > 0 {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Counts a capture that has ended or did not begin. If the gate waits for the last one, it closes now, before another
/// capture can begin.
pub fn end_capture() {
    OWN.with(|own| own.captures.set(own.captures.get().saturating_sub(1)));
    if CAPTURES.fetch_update(SeqCst, SeqCst, |open| open.checked_sub(1)) == Ok(1) {
        close_after_captures();
    }
}

/// Nothing is captured: if the gate waits for that, no call comes in from now on.
fn close_after_captures() {
    if GATE.compare_exchange(AWAITING_CAPTURES, MOVING, SeqCst, SeqCst).is_ok() {
        futex_wake(&GATE);
    }
}

/// Waits until the gate is no longer waiting for captures (it is closing, or open again), or until the deadline.
fn wait_for_captures(deadline: Instant) {
    while GATE.load(SeqCst) == AWAITING_CAPTURES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        futex_wait(&GATE, AWAITING_CAPTURES, left);
    }
}

/// True if a capture is open.
pub fn is_capturing() -> bool {
    CAPTURES.load(SeqCst) > 0
}

/// Runs `wait`, which waits for the GPU. Returns `None` without running it if a capture is open.
pub fn unless_capturing(wait: impl FnOnce() -> u32) -> Option<u32> {
    WAITING_FOR_GPU.fetch_add(1, SeqCst);
    let result = (CAPTURES.load(SeqCst) == 0).then(wait);
    WAITING_FOR_GPU.fetch_sub(1, SeqCst);
    result
}

/// The state of the gate.
pub fn state() -> u32 {
    GATE.load(Acquire)
}

/// Opens the gate, or marks the memory as away.
pub fn set_state(state: u32) {
    GATE.store(state, SeqCst);
    futex_wake(&GATE);
}

/// How long closing took until no thread was inside, in three parts: open captures, calls that were inside, and copies
/// that waited for the GPU. The program goes on while captures are waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClosingTimes {
    /// Waiting for open captures.
    pub captures: Duration,
    /// Waiting for calls that were inside.
    pub calls: Duration,
    /// Waiting for copies that waited for the GPU.
    pub copies: Duration,
}

/// Closes the gate and waits until no thread is inside and no capture is open. Returns `None` at the deadline; the gate
/// is then as it was before.
pub fn close(deadline: Instant) -> Option<ClosingTimes> {
    let before = state();
    let mut took = ClosingTimes::default();
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
            set_state(before);
            return None;
        }
    }
}

/// Waits until the open captures have ended; from that moment on no call comes in. Returns false at the deadline; the
/// gate is then open.
fn finish_captures(deadline: Instant) -> bool {
    set_state(AWAITING_CAPTURES);
    if !is_capturing() {
        close_after_captures();
    }
    wait_for_captures(deadline);
    // The last one may end at this very moment.
    let has_given_up = GATE.compare_exchange(AWAITING_CAPTURES, OPEN, SeqCst, SeqCst).is_ok();
    if has_given_up {
        futex_wake(&GATE);
    }
    !has_given_up
}

/// Waits until `is` is true of every seat, or until the deadline. Returns whether it is.
fn await_seats(is: impl Fn(u32) -> bool, deadline: Instant) -> bool {
    for seat in thread_seats() {
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
pub fn lock_gate_for_test() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{HANDLERS, MOVING, SignalWait, close, enter, is_away, leave, set_state, state};
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    #[test]
    fn a_call_inside_a_closing_gate_sees_the_memory_as_present() {
        let _alone = super::lock_gate_for_test();
        // A slot without a function waits when the gate is closed.
        enter(0, std::ptr::null());
        let closing = std::thread::spawn(|| close(Instant::now() + Duration::from_millis(200)));
        while state() != MOVING {
            std::thread::yield_now();
        }
        assert!(!is_away(), "it is closing, but the memory cannot go before this call has left");
        assert!(closing.join().expect("a thread").is_none(), "it waits for the call, and gives up");
        leave(0, 0);
        assert!(close(Instant::now() + Duration::from_secs(10)).is_some(), "no thread is inside");
        set_state(super::OPEN);
    }

    extern "C" fn counting_handler(_: i32) {
        HANDLER_RUNS.fetch_add(1, SeqCst);
    }

    static HANDLER_RUNS: AtomicU32 = AtomicU32::new(0);

    fn current_handler() -> usize {
        // SAFETY: the structure is plain numbers, filled by the call.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut now);
            now.sa_sigaction
        }
    }

    #[test]
    fn a_signal_runs_the_programs_handler_once_however_many_threads_wait() {
        let _alone = super::lock_gate_for_test();
        let own = counting_handler as *const () as usize;
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGINT, own) };
        let waiting: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| (0..5_000).for_each(|_| drop(SignalWait::begin())))).collect();
        waiting.into_iter().for_each(|thread| thread.join().expect("a thread"));
        assert_eq!((current_handler(), HANDLERS[0].load(SeqCst)), (own, own));
        let (first, second) = (SignalWait::begin(), SignalWait::begin());
        assert_ne!(current_handler(), own, "ours stands in for it");
        // SAFETY: there is a handler for it.
        unsafe { libc::raise(libc::SIGINT) };
        assert!(first.was_interrupted() && second.was_interrupted());
        assert!(!SignalWait::begin().was_interrupted(), "a later wait does not see earlier signals");
        drop((first, second));
        assert_eq!((current_handler(), HANDLER_RUNS.load(SeqCst)), (own, 1));
    }
}
