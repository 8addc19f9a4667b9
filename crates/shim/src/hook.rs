//! From a function of the driver to what the program gets instead of it.
//!
//! There is one slot for each address of the driver, however often and by whatever name a program asks for it. The
//! program gets the slot's stub.

use crate::activation;
use crate::copy_size::{self, CopySize};
use crate::driver;
use crate::entry_points;
use crate::function_class::{self, GateRule};
use crate::gate;
use crate::lease_page::{self, ParkObstacle};
use crate::nvml;
use crate::replacements;
use crate::trampoline::{STUBS, stub, thin_stub};
use crate::unmovable_memory;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What is behind a stub.
pub struct HookSlot {
    real: AtomicUsize,
    target: AtomicUsize,
    constants: OnceLock<SlotConstants>,
}

/// The constant part of a slot.
struct SlotConstants {
    name: String,
    gate_rule: GateRule,
    stack_words: usize,
    sets_obstacle: Option<ParkObstacle>,
    counts_obstacle: Option<(ParkObstacle, bool)>,
    capture: Option<bool>,
    copy_size: CopySize,
}

static SLOTS: [HookSlot; STUBS] =
    [const { HookSlot { real: AtomicUsize::new(0), target: AtomicUsize::new(0), constants: OnceLock::new() } }; STUBS];
/// The driver's own functions again, for stubs that pass without the gate.
pub static STRAIGHT: [AtomicUsize; STUBS] = [const { AtomicUsize::new(0) }; STUBS];
static SLOT_BY_ADDRESS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// The slot with this number.
pub fn slot(number: usize) -> &'static HookSlot {
    &SLOTS[number]
}

impl HookSlot {
    /// The driver's own function.
    pub fn real(&self) -> usize {
        self.real.load(Acquire)
    }

    /// The function that is called once the gate is passed.
    pub fn target(&self) -> usize {
        self.target.load(Acquire)
    }

    fn constants(&self) -> Option<&SlotConstants> {
        self.constants.get()
    }

    /// How calls pass the gate.
    pub fn gate_rule(&self) -> GateRule {
        self.constants().map_or(GateRule::Gated, |constants| constants.gate_rule)
    }

    /// How many words of the stack it may have as arguments.
    pub fn stack_words(&self) -> usize {
        self.constants().map_or(function_class::WORDS_MAX, |constants| constants.stack_words)
    }

    /// True if a call can be answered while the driver has the context, and done later.
    pub fn is_deferrable(&self) -> bool {
        function_class::is_deferrable(function_class::base_name(self.name()))
    }

    /// How many bytes a call of it copies.
    pub fn copy_size(&self) -> CopySize {
        self.constants().map_or(CopySize::Nothing, |constants| constants.copy_size)
    }

    /// The name that the program asked for.
    pub fn name(&self) -> &str {
        self.constants().map_or("", |constants| &constants.name)
    }

    /// True if a result means an error: "not ready" does not.
    pub fn is_error(&self, result: u32) -> bool {
        result != driver::NOT_READY
    }

    /// True if a call begins a capture.
    pub fn begins_capture(&self) -> bool {
        self.constants().is_some_and(|constants| constants.capture == Some(true))
    }

    /// Accounts for a call that is over.
    pub fn call_ended(&self, result: u32) {
        let Some(constants) = self.constants() else { return };
        match constants.capture {
            // The capture was counted before it began.
            Some(true) if result != driver::SUCCESS => gate::end_capture(),
            // These results leave the capture as it was.
            Some(false) if ![1, 3, 201, 400, 401, 903, 908].contains(&result) => gate::end_capture(),
            _ => {}
        }
        if let Some(reason) = constants.sets_obstacle
            && result == driver::SUCCESS
        {
            match reason {
                ParkObstacle::GraphMemory => unmovable_memory::note_allocating_graph(&constants.name),
                _ => lease_page::set_obstacle(reason, &constants.name),
            }
        }
        match constants.counts_obstacle {
            Some((reason, true)) if result == driver::SUCCESS => lease_page::count_obstacle(reason, &constants.name),
            Some((reason, false)) if result == driver::SUCCESS => lease_page::uncount_obstacle(reason),
            _ => {}
        }
    }
}

/// What a program gets that looked a name up and would have got `real`.
pub fn resolve(name: &CStr, real: *mut c_void) -> *mut c_void {
    let Ok(text) = name.to_str() else { return real };
    if real.is_null() {
        return real;
    }
    if text.starts_with("nvml") {
        return nvml::resolve(name, real);
    }
    let mut at = real as usize;
    if entry_points::is_ours(at) {
        // The program found the shim's own function. It gets the driver's only if the driver is loaded.
        if !driver::is_loaded() {
            return std::ptr::null_mut();
        }
        at = driver::find_function(name);
    }
    if gate::is_disarmed() {
        // A forked child takes no locks: the thread that held one does not exist there.
        return at as *mut c_void;
    }
    if !activation::is_active() {
        if driver::contains_address(at) {
            activation::report_tool();
        }
        return at as *mut c_void;
    }
    hook_function(text, at, c_int::MAX, true) as *mut c_void
}

/// What a program gets that asked for a function of the driver. `is_symbol`: the name includes its version suffix.
fn hook_function(name: &str, real: usize, version: c_int, is_symbol: bool) -> usize {
    if real == 0 || !driver::contains_address(real) {
        return real;
    }
    match name {
        "cuGetProcAddress" if is_symbol => return get_proc_address_v1 as *const () as usize,
        "cuGetProcAddress_v2" => return get_proc_address_v2 as *const () as usize,
        "cuGetProcAddress" if version >= 12_000 => return get_proc_address_v2 as *const () as usize,
        "cuGetProcAddress" => return get_proc_address_v1 as *const () as usize,
        _ => {}
    }
    let base = function_class::base_name(name);
    let class = function_class::classify(base);
    let wrapper = replacements::find_replacement(name, base, version, is_symbol);
    let is_straight = class.gate_rule == GateRule::Straight
        && wrapper.is_none()
        && class.sets_obstacle.is_none()
        && class.counts_obstacle.is_none();
    if is_straight && function_class::is_always_answered(base) {
        return real;
    }
    let stub = if is_straight { thin_stub } else { stub };
    let mut known = SLOT_BY_ADDRESS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(number) = known.get(&real) {
        return stub(*number);
    }
    let number = known.len();
    if number >= STUBS {
        if !is_straight {
            // The function is not gated then, and its effect is not known.
            lease_page::set_obstacle(ParkObstacle::UnknownCall, name);
        }
        return real;
    }
    let slot = &SLOTS[number];
    slot.real.store(real, Release);
    STRAIGHT[number].store(real, Release);
    slot.target.store(wrapper.unwrap_or(real), Release);
    let constants = SlotConstants {
        name: name.to_owned(),
        // Without a function of the shim, a call cannot be answered while the memory is away.
        gate_rule: match class.gate_rule {
            GateRule::Anytime if wrapper.is_none() && !function_class::only_destroys(base) => GateRule::Gated,
            gate_rule => gate_rule,
        },
        stack_words: function_class::stack_words(base),
        sets_obstacle: class.sets_obstacle,
        counts_obstacle: class.counts_obstacle,
        capture: class.capture,
        copy_size: if is_symbol && copy_size::is_first_form(name) { CopySize::Nothing } else { CopySize::of(base) },
    };
    // The slot is new, so this cannot fail.
    let _ = slot.constants.set(constants);
    known.insert(real, number);
    stub(number)
}

/// `cuGetProcAddress` before CUDA 12.
unsafe extern "C" fn get_proc_address_v1(name: *const c_char, place: *mut usize, version: c_int, flags: u64) -> u32 {
    let at = driver::find_function(c"cuGetProcAddress");
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
        replace_result(result, name, place, version)
    }
}

/// `cuGetProcAddress` since CUDA 12.
unsafe extern "C" fn get_proc_address_v2(
    name: *const c_char,
    place: *mut usize,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    let at = driver::find_function(c"cuGetProcAddress_v2");
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
        replace_result(result, name, place, version)
    }
}

/// # Safety
/// The name ends with a zero, and if the result is success the place can be written.
unsafe fn replace_result(result: u32, name: *const c_char, place: *mut usize, version: c_int) -> u32 {
    if result == driver::SUCCESS
        && !name.is_null()
        && !place.is_null()
        && activation::is_active()
        && !gate::is_disarmed()
    {
        // SAFETY: as above.
        unsafe {
            if let Ok(name) = CStr::from_ptr(name).to_str() {
                *place = hook_function(name, *place, version, false);
            }
        }
    }
    result
}
