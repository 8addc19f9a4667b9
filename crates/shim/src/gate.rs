//! The gate: calls that touch the GPU pass it, and wait while it is closed.
//!
//! Every thread has a seat in which it records whether it is inside. To close the gate, the control thread sets its
//! state and waits until no thread is inside. A thread writes only its own seat, so passing costs two stores and a load.
//! Threads of the shim itself always pass.
//!
//! A call sees the memory as away or present as it was when the call came in: that does not change while the call is
//! inside, even if the gate is already closing.
//!
//! An open capture cannot be interrupted: its thread goes on calling until it ends the capture. So the gate closes in
//! two steps, and the thread that ends the last capture takes the second step at that moment:
//!
//! ```text
//!            captures are open                none is
//!   Open ──► AwaitingCaptures ──────────────► Moving ──► no thread is inside: closed
//!            all pass, but a new capture      all wait
//!            first waits for `CAPTURE_DELAY`
//! ```
//! The wait before a new capture is short, because the thread with an open capture may be waiting for that very thread.
//! All states, and the changes between them, are in [`state`].

mod seats;
mod signals;
mod state;

pub use seats::thread_seats;
pub use state::GateState;

use crate::daemon_link;
use crate::driver;
use crate::function_class::{CaptureStep, GateRule, ObstacleCount, WORDS_MAX};
use crate::lease_page;
use crate::log;
use crate::message::ParkObstacle;
use crate::slots::{self, HookSlot, WithoutContext};
use seats::{SeatState, ThreadSeat, increment};
use signals::SignalWait;
use state::AtomicGateState;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::{Duration, Instant};

/// A waiting thread reads the gate again this often, in case it missed a wake-up.
const RECHECK_PERIOD: Duration = Duration::from_millis(200);

/// How long the start of a capture is delayed so that others can end first. Those rarely take longer than a few
/// milliseconds. If a thread with an open capture waits for the delayed thread, it loses no more than this.
const CAPTURE_DELAY: Duration = Duration::from_millis(10);

static GATE: AtomicGateState = AtomicGateState::new();
/// Not zero while the memory is away and the driver has also taken the context: a call to the driver would then hang.
pub static CONTEXT_AWAY: OwnCacheLine = OwnCacheLine(AtomicU32::new(0));

/// A number that every call reads and that is rarely written: nothing else shares its cache line.
#[repr(align(128))]
pub struct OwnCacheLine(AtomicU32);
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Threads that wait for the GPU to finish all work it was given.
static WAITING_FOR_GPU: AtomicU32 = AtomicU32::new(0);
/// True in a forked child, where the shim does nothing.
static DISARMED: AtomicBool = AtomicBool::new(false);

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
    /// The thread's seat; takes one if it has none.
    fn seat(&self) -> &'static ThreadSeat {
        self.seat.get().unwrap_or_else(|| self.take_seat())
    }

    #[cold]
    fn take_seat(&self) -> &'static ThreadSeat {
        // From now on the end of the thread is noticed, unless it is ending already.
        let _ = ENDING.try_with(|_| ());
        let seat = ThreadSeat::take();
        self.seat.set(Some(seat));
        seat
    }

    /// Frees the seat for the next thread.
    fn free_seat(&self) {
        if let Some(seat) = self.seat.take() {
            seat.free();
        }
    }

    /// Notes that a call is past the gate.
    fn begin_call(&self, number: u32) {
        self.depth.set(1);
        self.slot.set(number as usize);
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

/// Makes this thread one of the shim's: it always passes.
pub fn exempt_this_thread() {
    OWN.with(|own| own.is_exempt.set(true));
}

/// The slot of this thread's current call.
pub fn current_slot() -> &'static HookSlot {
    OWN.with(|own| slots::slot(own.slot.get()))
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

/// Where a call goes: an address and how many words of the stack its arguments may take; or address zero, and the
/// result to return.
#[repr(C)]
pub struct CallTarget {
    target: usize,
    stack_words: usize,
}

/// A call comes in, with its arguments in the words below `frame`.
///
/// # Safety
/// `frame` is read only for functions that copy: if the slot is of one, the words are the arguments of such a call.
pub unsafe extern "C" fn enter(number: u32, frame: *const usize) -> CallTarget {
    let slot = slots::slot(number as usize);
    let stack_words = slot.stack_words().min(WORDS_MAX);
    OWN.with(|own| {
        if own.is_exempt.get() || own.depth.get() > 0 || DISARMED.load(Relaxed) {
            own.depth.set(own.depth.get() + 1);
            return CallTarget { target: slot.real(), stack_words };
        }
        let seat = own.seat();
        let mut seat_state = SeatState::Inside;
        match slot.gate_rule() {
            GateRule::Launch => increment(&seat.launches),
            GateRule::Copy => {
                increment(&seat.copies);
                // SAFETY: this is a call of a function that copies, and the caller promises its arguments.
                seat.add_copied(unsafe { slot.copy_size().bytes(frame) });
                seat_state = SeatState::Copying;
            }
            _ => {}
        }
        seat.state.go_in(seat_state);
        let state = GATE.load();
        if state == GateState::Open {
            own.is_away.set(false);
        } else if let Some(elsewhere) = pass_closed(own, seat, slot, number, seat_state, state) {
            return elsewhere;
        }
        own.begin_call(number);
        if slot.begins_capture() {
            own.captures.set(own.captures.get() + 1);
            begin_capture();
        }
        if slot.gate_rule() == GateRule::Unknown {
            lease_page::set_obstacle(ParkObstacle::UnknownCall, slot.name());
        }
        CallTarget { target: slot.target(), stack_words }
    })
}

/// The gate was not open when a call came in. Returns `None` when the call may go to its slot's target: its thread is
/// then inside. Otherwise returns where the call goes instead.
#[cold]
fn pass_closed(
    own: &ThreadState,
    seat: &ThreadSeat,
    slot: &HookSlot,
    number: u32,
    seat_state: SeatState,
    mut state: GateState,
) -> Option<CallTarget> {
    let mut has_waited = false;
    loop {
        // Some calls know what to do while the memory is away.
        let is_away = matches!(state, GateState::Parked | GateState::Lost);
        let is_answered = is_away && slot.gate_rule() == GateRule::Anytime;
        match state {
            GateState::Open => {
                own.is_away.set(false);
                return None;
            }
            GateState::AwaitingCaptures => {
                // A thread that has a capture open would only wait for itself.
                if has_waited || !slot.begins_capture() || own.captures.get() > 0 {
                    own.is_away.set(false);
                    return None;
                }
                has_waited = true;
                seat.state.step_back();
                wait_for_captures(Instant::now() + CAPTURE_DELAY);
            }
            GateState::Moving | GateState::Parked | GateState::Lost => {
                if is_answered && !is_context_away() {
                    own.is_away.set(true);
                    return None;
                }
                let without_context = if is_answered { slot.without_context() } else { WithoutContext::Waits };
                if let WithoutContext::Defers(target) = without_context {
                    // A program that ends does not wait for a GPU.
                    own.begin_call(number);
                    return Some(CallTarget { target, stack_words: 0 });
                }
                seat.state.step_back();
                if let WithoutContext::Answers(target) = without_context {
                    own.is_away.set(true);
                    own.slot.set(number as usize);
                    return Some(CallTarget { target, stack_words: 0 });
                }
                if let Err(answer) = wait_at_gate(slot) {
                    return Some(CallTarget { target: 0, stack_words: answer as usize });
                }
            }
        }
        seat.state.go_in(seat_state);
        state = GATE.load();
    }
}

/// A call is over.
pub extern "C" fn leave(number: u32, result: u32) {
    OWN.with(|own| {
        // Zero for a call that was answered without going inside.
        let depth = own.depth.get().saturating_sub(1);
        own.depth.set(depth);
        if depth > 0 || own.is_exempt.get() {
            return;
        }
        let slot = slots::slot(number as usize);
        account_for(slot, result);
        if let Some(seat) = own.seat.get() {
            if result != 0 && slot.is_error(result) {
                increment(&seat.errors);
                lease_page::count_error(result);
                if result == driver::OUT_OF_MEMORY {
                    lease_page::note_out_of_memory();
                }
            }
            seat.state.leave();
        }
        if own.is_ending.get() {
            own.free_seat();
        }
    });
}

/// Accounts for a call that is over: its capture, and what it means for parks.
fn account_for(slot: &HookSlot, result: u32) {
    let Some(constants) = slot.constants() else { return };
    match constants.capture {
        // The capture was counted before it began.
        Some(CaptureStep::Begins) if result != driver::SUCCESS => end_capture(),
        // These results leave the capture as it was.
        Some(CaptureStep::Ends) if ![1, 3, 201, 400, 401, 903, 908].contains(&result) => end_capture(),
        _ => {}
    }
    if result != driver::SUCCESS {
        return;
    }
    if let Some(reason) = constants.sets_obstacle {
        lease_page::set_obstacle(reason, &constants.name);
    }
    match constants.counts_obstacle {
        Some(ObstacleCount::Add(reason)) => lease_page::count_obstacle(reason, &constants.name),
        Some(ObstacleCount::Remove(reason)) => lease_page::uncount_obstacle(reason),
        None => {}
    }
}

/// True if the driver has taken the context, too.
pub fn is_context_away() -> bool {
    CONTEXT_AWAY.0.load(SeqCst) != 0
}

/// The driver takes the context from now on.
pub fn note_context_away(_closed: &ClosedGate) {
    CONTEXT_AWAY.0.store(1, SeqCst);
    GATE.wake();
}

/// The driver has given the context back.
pub fn note_context_back(_closed: &ClosedGate) {
    CONTEXT_AWAY.0.store(0, SeqCst);
    GATE.wake();
}

/// Holds a call that passes without the gate until the context is back, if it must wait. Returns [`GO_ON`], or the
/// result to return to the program.
pub extern "C" fn wait_for_context(number: u32) -> u32 {
    let slot = slots::slot(number as usize);
    // A program that polls, or waits for what is done already, needs nothing from the driver.
    let succeeds = slot.without_context() == WithoutContext::Succeeds;
    if succeeds && state() == GateState::Parked && is_context_away() {
        return driver::SUCCESS;
    }
    await_context(slot.name()).err().unwrap_or(GO_ON)
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
        GateState::Open | GateState::AwaitingCaptures => true,
        GateState::Moving => false,
        GateState::Parked | GateState::Lost => is_anytime && !is_context_away(),
    };
    wait_while(slot.name(), |state| !may_pass(state))
}

/// True if the memory was away when the current call came in; for a thread of the shim, if it is away now.
pub fn is_away() -> bool {
    OWN.with(|own| if own.is_exempt.get() { state() == GateState::Parked } else { own.is_away.get() })
}

/// Waits while `is_closed` is true of the gate. Returns an error if the memory is lost, or if the program was told to
/// stop meanwhile.
fn wait_while(call: &str, is_closed: impl Fn(GateState) -> bool) -> Result<(), u32> {
    // Kept from the first check to the last, so that a signal between two checks still ends the wait.
    let mut watch = None;
    loop {
        let state = GATE.load();
        if !is_closed(state) {
            return Ok(());
        }
        if state == GateState::Lost {
            return Err(driver::DEVICE_UNAVAILABLE);
        }
        let watch = watch.get_or_insert_with(SignalWait::begin);
        if state == GateState::Parked {
            daemon_link::note_waiting_call(call);
        }
        log_wait(state);
        GATE.wait(state, RECHECK_PERIOD);
        // A signal that came after the gate opened again is no reason to fail.
        if watch.was_interrupted() && is_closed(GATE.load()) {
            // The result of a call that the operating system stopped.
            return Err(driver::OPERATING_SYSTEM);
        }
    }
}

fn log_wait(state: GateState) {
    // The wrapper, or the service on its terminal, reports that the program is parked.
    if state == GateState::Parked && !daemon_link::is_connected() {
        log::once(
            "this program is parked, and the service that parked it is not there: it goes on when the service is back",
        );
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
fn end_capture() {
    OWN.with(|own| own.captures.set(own.captures.get().saturating_sub(1)));
    if CAPTURES.fetch_update(SeqCst, SeqCst, |open| open.checked_sub(1)) == Ok(1) {
        GATE.close_after_captures();
    }
}

/// Waits until the gate is no longer waiting for captures (it is closing, or open again), or until the deadline.
fn wait_for_captures(deadline: Instant) {
    while GATE.load() == GateState::AwaitingCaptures {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        GATE.wait(GateState::AwaitingCaptures, left);
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
pub fn state() -> GateState {
    GATE.load()
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

/// The gate is closed: no call of the program is inside, and none comes in. Ends with one of its functions.
#[derive(Debug)]
#[must_use = "the gate stays closed until it is told how the move ended"]
pub struct ClosedGate {
    before: GateState,
    /// How long closing took.
    pub took: ClosingTimes,
    is_finished: bool,
}

impl ClosedGate {
    /// The memory is on the GPU: calls pass.
    pub fn open(self) {
        self.finish(GateState::Open);
    }

    /// The memory is away.
    pub fn park(self) {
        self.finish(GateState::Parked);
    }

    /// The memory was away, and no longer exists.
    pub fn lose(self) {
        self.finish(GateState::Lost);
    }

    /// Nothing was moved: the gate is as it was before it closed.
    pub fn restore(self) {
        let before = self.before;
        self.finish(before);
    }

    fn finish(mut self, to: GateState) {
        self.is_finished = true;
        GATE.finish_move(to);
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        // Where the memory is now is not known, so calls go on waiting.
        debug_assert!(self.is_finished || std::thread::panicking(), "a move was left without saying how it ended");
        if !self.is_finished {
            log::once("a move of memory was not finished: this program waits, and has to be restarted");
        }
    }
}

/// Closes the gate and waits until no thread is inside and no capture is open. Returns `None` at the deadline; the gate
/// is then as it was before.
pub fn close(deadline: Instant) -> Option<ClosedGate> {
    let before = state();
    let mut took = ClosingTimes::default();
    loop {
        let begun = Instant::now();
        match before {
            GateState::Open if !finish_captures(deadline) => return None,
            GateState::Open => {}
            // While the memory is away nothing is captured.
            _ if state() == before => GATE.begin_move(),
            _ => {}
        }
        took.captures += begun.elapsed();
        let closing = Instant::now();
        let are_out = await_seats(|seat| !seat.state.is(SeatState::Inside), deadline);
        took.calls += closing.elapsed();
        let copying = Instant::now();
        let is_quiet = are_out && await_seats(|seat| seat.state.is(SeatState::Outside), deadline);
        took.copies += copying.elapsed();
        // A thread that was inside may just have begun a capture.
        if is_quiet && !is_capturing() {
            return Some(ClosedGate { before, took, is_finished: false });
        }
        if Instant::now() >= deadline {
            GATE.finish_move(before);
            return None;
        }
    }
}

/// Waits until the open captures have ended; from that moment on no call comes in. Returns false at the deadline; the
/// gate is then open.
fn finish_captures(deadline: Instant) -> bool {
    GATE.await_captures();
    if !is_capturing() {
        GATE.close_after_captures();
    }
    wait_for_captures(deadline);
    // The last one may end at this very moment.
    !GATE.stop_awaiting()
}

/// Waits until `is` is true of every seat, or until the deadline. Returns whether it is.
fn await_seats(is: impl Fn(&ThreadSeat) -> bool, deadline: Instant) -> bool {
    for seat in thread_seats() {
        let mut looks = 0_u32;
        while !is(seat) {
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
    GATE.open_in_child();
}

/// True in a forked child.
pub fn is_disarmed() -> bool {
    DISARMED.load(Relaxed)
}

/// Held by each test that closes the gate, because there is only one gate.
#[cfg(test)]
pub fn lock_gate_for_test() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{GateState, close, enter, is_away, leave, state};
    use std::time::{Duration, Instant};

    #[test]
    fn a_call_inside_a_closing_gate_sees_the_memory_as_present() {
        let _alone = super::lock_gate_for_test();
        // SAFETY: a slot without a function waits when the gate is closed, and copies nothing.
        unsafe { enter(0, std::ptr::null()) };
        let closing = std::thread::spawn(|| close(Instant::now() + Duration::from_millis(200)));
        while state() != GateState::Moving {
            std::thread::yield_now();
        }
        assert!(!is_away(), "it is closing, but the memory cannot go before this call has left");
        assert!(closing.join().expect("a thread").is_none(), "it waits for the call, and gives up");
        leave(0, 0);
        close(Instant::now() + Duration::from_secs(10)).expect("no thread is inside").open();
        assert_eq!(state(), GateState::Open);
    }
}
