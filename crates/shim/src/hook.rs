//! From a function of the driver to what the program gets instead of it: the stub of the function's slot, which is
//! filled here.

use crate::activation;
use crate::copy_size::{self, CopySize};
use crate::deferred_calls;
use crate::driver;
use crate::function_class::{self, FunctionClass, GateRule};
use crate::gate;
use crate::lease_page;
use crate::message::ParkObstacle;
use crate::replacements::{self, NameForm, context_away};
use crate::slots::{self, NewSlot, SlotConstants, WithoutContext};
use crate::trampoline::{stub, thin_stub};
use std::ffi::{CStr, c_char, c_int};

/// What a program gets that asked for a function of the driver.
pub fn hook_function(name: &str, real: usize, form: NameForm) -> usize {
    if real == 0 || !driver::contains_address(real) {
        return real;
    }
    match (name, form) {
        ("cuGetProcAddress_v2", _) => return get_proc_address_v2 as *const () as usize,
        ("cuGetProcAddress", NameForm::Version(12_000..)) => return get_proc_address_v2 as *const () as usize,
        ("cuGetProcAddress", _) => return get_proc_address_v1 as *const () as usize,
        _ => {}
    }
    let base = function_class::base_name(name);
    let class = function_class::classify(base);
    let replacement = replacements::find_replacement(name, base, form);
    let is_straight = class.gate_rule == GateRule::Straight
        && replacement.is_none()
        && class.sets_obstacle.is_none()
        && class.counts_obstacle.is_none();
    if is_straight && function_class::is_always_answered(base) {
        return real;
    }
    match slots::number_of(real, || new_slot(name, form, &class, real, replacement)) {
        Some(number) if is_straight => thin_stub(number),
        Some(number) => stub(number),
        None => {
            if !is_straight {
                // The function is not gated then, and its effect is not known.
                lease_page::set_obstacle(ParkObstacle::UnknownCall, name);
            }
            real
        }
    }
}

/// What the slot of a function is filled with.
fn new_slot(name: &str, form: NameForm, class: &FunctionClass, real: usize, replacement: Option<usize>) -> NewSlot {
    let base = function_class::base_name(name);
    let constants = SlotConstants {
        name: name.to_owned(),
        // Without a function of the shim, a call cannot be answered while the memory is away.
        gate_rule: match class.gate_rule {
            GateRule::Anytime if replacement.is_none() && !function_class::only_destroys(base) => GateRule::Gated,
            gate_rule => gate_rule,
        },
        stack_words: function_class::stack_words(base),
        sets_obstacle: class.sets_obstacle,
        counts_obstacle: class.counts_obstacle,
        capture: class.capture,
        copy_size: match form {
            NameForm::Symbol if copy_size::is_first_form(name) => CopySize::Nothing,
            _ => CopySize::of(base),
        },
        without_context: without_context(base),
    };
    NewSlot { target: replacement.unwrap_or(real), constants }
}

/// What happens to a call while the driver has the context.
fn without_context(base: &str) -> WithoutContext {
    if function_class::is_deferrable(base) {
        return WithoutContext::Defers(deferred_calls::defer as *const () as usize);
    }
    if function_class::only_waits(base) {
        return WithoutContext::Succeeds;
    }
    context_away::find_answer(base).map_or(WithoutContext::Waits, WithoutContext::Answers)
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
    // SAFETY: it is the driver's function of that name, and the program promises the arguments.
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
    // SAFETY: it is the driver's function of that name, and the program promises the arguments.
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
        // SAFETY: the caller promises the name and the place.
        unsafe {
            if let Ok(name) = CStr::from_ptr(name).to_str() {
                *place = hook_function(name, *place, NameForm::Version(version));
            }
        }
    }
    result
}
