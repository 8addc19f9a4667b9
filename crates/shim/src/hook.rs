//! From a function of the driver to what the program gets instead of it.
//!
//! There is one slot for each address of the driver, however often and by whatever name a program asks for it. The
//! program gets the slot's stub.

use crate::aside;
use crate::class::{self, Kind};
use crate::driver;
use crate::entry;
use crate::fixed;
use crate::gate;
use crate::moves::{self, Moves};
use crate::nvml;
use crate::page::{self, Reason};
use crate::trampoline::{STUBS, stub, thin_stub};
use crate::wrap;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What is behind a stub.
pub struct Slot {
    real: AtomicUsize,
    target: AtomicUsize,
    about: OnceLock<About>,
}

/// The constant part of a slot.
struct About {
    name: String,
    kind: Kind,
    words: usize,
    mark: Option<Reason>,
    held: Option<(Reason, bool)>,
    capture: Option<bool>,
    moves: Moves,
}

static SLOTS: [Slot; STUBS] =
    [const { Slot { real: AtomicUsize::new(0), target: AtomicUsize::new(0), about: OnceLock::new() } }; STUBS];
/// The driver's own functions again, for stubs that pass without the gate.
pub static STRAIGHT: [AtomicUsize; STUBS] = [const { AtomicUsize::new(0) }; STUBS];
static KNOWN: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// The slot with this number.
pub fn slot(number: usize) -> &'static Slot {
    &SLOTS[number]
}

impl Slot {
    /// The driver's own function.
    pub fn real(&self) -> usize {
        self.real.load(Acquire)
    }

    /// The function that is called once the gate is passed.
    pub fn target(&self) -> usize {
        self.target.load(Acquire)
    }

    fn about(&self) -> Option<&About> {
        self.about.get()
    }

    /// How calls pass the gate.
    pub fn kind(&self) -> Kind {
        self.about().map_or(Kind::Gated, |about| about.kind)
    }

    /// How many words of the stack it may have as arguments.
    pub fn words(&self) -> usize {
        self.about().map_or(class::WORDS_MAX, |about| about.words)
    }

    /// True if a call can be answered while the driver has the context, and done later.
    pub fn is_put_off(&self) -> bool {
        class::is_put_off(class::base(self.name()))
    }

    /// How many bytes a call of it copies.
    pub fn moves(&self) -> Moves {
        self.about().map_or(Moves::Nothing, |about| about.moves)
    }

    /// The name that the program asked for.
    pub fn name(&self) -> &str {
        self.about().map_or("", |about| &about.name)
    }

    /// True if a result means an error: "not ready" does not.
    pub fn counts_errors(&self, result: u32) -> bool {
        result != driver::NOT_READY
    }

    /// True if a call begins a capture.
    pub fn begins_capture(&self) -> bool {
        self.about().is_some_and(|about| about.capture == Some(true))
    }

    /// Accounts for a call that is over.
    pub fn done(&self, result: u32) {
        let Some(about) = self.about() else { return };
        match about.capture {
            // The capture was counted before it began.
            Some(true) if result != driver::SUCCESS => gate::end_capture(),
            // These results leave the capture as it was.
            Some(false) if ![1, 3, 201, 400, 401, 903, 908].contains(&result) => gate::end_capture(),
            _ => {}
        }
        if let Some(reason) = about.mark
            && result == driver::SUCCESS
        {
            match reason {
                Reason::GraphMemory => fixed::graph_allocates(&about.name),
                _ => page::mark_not_parkable(reason, &about.name),
            }
        }
        match about.held {
            Some((reason, true)) if result == driver::SUCCESS => page::hold(reason, &about.name),
            Some((reason, false)) if result == driver::SUCCESS => page::let_go(reason),
            _ => {}
        }
    }
}

/// What a program gets that looked a name up and would have got `real`.
pub fn resolved(name: &CStr, real: *mut c_void) -> *mut c_void {
    let Ok(text) = name.to_str() else { return real };
    if real.is_null() {
        return real;
    }
    if text.starts_with("nvml") {
        return nvml::resolved(name, real);
    }
    let mut at = real as usize;
    if entry::is_ours(at) {
        // The program found the shim's own function. It gets the driver's only if the driver is loaded.
        if !driver::is_loaded() {
            return std::ptr::null_mut();
        }
        at = driver::find(name);
    }
    if gate::is_disarmed() {
        // A forked child takes no locks: the thread that held one does not exist there.
        return at as *mut c_void;
    }
    if !aside::is_on() {
        if driver::holds(at) {
            aside::tell();
        }
        return at as *mut c_void;
    }
    hooked(text, at, c_int::MAX, true) as *mut c_void
}

/// What a program gets that asked for a function of the driver. `is_symbol`: the name includes its version suffix.
fn hooked(name: &str, real: usize, version: c_int, is_symbol: bool) -> usize {
    if real == 0 || !driver::holds(real) {
        return real;
    }
    match name {
        "cuGetProcAddress" if is_symbol => return first_form as *const () as usize,
        "cuGetProcAddress_v2" => return second_form as *const () as usize,
        "cuGetProcAddress" if version >= 12_000 => return second_form as *const () as usize,
        "cuGetProcAddress" => return first_form as *const () as usize,
        _ => {}
    }
    let base = class::base(name);
    let class = class::of(base);
    let wrapper = wrap::find(name, base, version, is_symbol);
    let is_straight = class.kind == Kind::Straight && wrapper.is_none() && class.mark.is_none() && class.held.is_none();
    if is_straight && class::hangs_never(base) {
        return real;
    }
    let stub = if is_straight { thin_stub } else { stub };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(number) = known.get(&real) {
        return stub(*number);
    }
    let number = known.len();
    if number >= STUBS {
        if !is_straight {
            // The function is not gated then, and its effect is not known.
            page::mark_not_parkable(Reason::UnknownCall, name);
        }
        return real;
    }
    let slot = &SLOTS[number];
    slot.real.store(real, Release);
    STRAIGHT[number].store(real, Release);
    slot.target.store(wrapper.unwrap_or(real), Release);
    let about = About {
        name: name.to_owned(),
        // Without a function of the shim, a call cannot be answered while the memory is away.
        kind: match class.kind {
            Kind::Anytime if wrapper.is_none() && !class::is_tidying(base) => Kind::Gated,
            kind => kind,
        },
        words: class::words(base),
        mark: class.mark,
        held: class.held,
        capture: class.capture,
        moves: if is_symbol && moves::is_first(name) { Moves::Nothing } else { Moves::of(base) },
    };
    // The slot is new, so this cannot fail.
    let _ = slot.about.set(about);
    known.insert(real, number);
    stub(number)
}

/// `cuGetProcAddress` before CUDA 12.
unsafe extern "C" fn first_form(name: *const c_char, place: *mut usize, version: c_int, flags: u64) -> u32 {
    let at = driver::find(c"cuGetProcAddress");
    if at == 0 {
        return driver::NOT_SUPPORTED;
    }
    if let Err(answer) = gate::await_context("cuGetProcAddress") {
        return answer;
    }
    // SAFETY: it is the driver's function of that name, and the arguments are the program's.
    unsafe {
        let real: unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64) -> u32 = std::mem::transmute(at);
        let result = real(name, place, version, flags);
        replace(result, name, place, version)
    }
}

/// `cuGetProcAddress` since CUDA 12.
unsafe extern "C" fn second_form(
    name: *const c_char,
    place: *mut usize,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    let at = driver::find(c"cuGetProcAddress_v2");
    if at == 0 {
        return driver::NOT_SUPPORTED;
    }
    if let Err(answer) = gate::await_context("cuGetProcAddress") {
        return answer;
    }
    // SAFETY: as above.
    unsafe {
        let real: unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64, *mut c_int) -> u32 =
            std::mem::transmute(at);
        let result = real(name, place, version, flags, status);
        replace(result, name, place, version)
    }
}

/// # Safety
/// The name ends with a zero, and if the result is success the place can be written.
unsafe fn replace(result: u32, name: *const c_char, place: *mut usize, version: c_int) -> u32 {
    if result == driver::SUCCESS && !name.is_null() && !place.is_null() && aside::is_on() && !gate::is_disarmed() {
        // SAFETY: as above.
        unsafe {
            if let Ok(name) = CStr::from_ptr(name).to_str() {
                *place = hooked(name, *place, version, false);
            }
        }
    }
    result
}
