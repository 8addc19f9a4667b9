//! Questions that are answered while the driver has the context: from the table and the page, if these have the answer.
//! Other questions wait until the context is back.
//!
//! Each function here has the arguments of the driver's function, and runs without being inside the gate.

use super::{address_for_driver, known_attribute, result_code, uuid, write_attribute, write_out};
use crate::function_class;
use crate::gate;
use crate::lease_page;
use crate::memory_table;
use crate::trampoline::stub;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};

/// The function that answers for a driver's function of this name; `None` if there is none.
pub fn find_answer(name: &str) -> Option<usize> {
    Some(match function_class::base_name(name) {
        "cuMemGetInfo" => mem_info as *const () as usize,
        "cuMemGetAddressRange" => address_range as *const () as usize,
        "cuPointerGetAttribute" => pointer_attribute as *const () as usize,
        "cuPointerGetAttributes" => pointer_attributes as *const () as usize,
        _ => return None,
    })
}

/// Calls the driver's function after the context is back.
macro_rules! after_return {
    ($number:ident, $($argument:ident: $type:ty),*) => {{
        if let Err(error) = gate::await_context(crate::hook::slot($number).name()) {
            return error;
        }
        // SAFETY: the stub belongs to a driver's function with these arguments.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(stub($number))($($argument),*) }
    }};
}

/// The allocation or mapping that an address is in. The driver does not know this memory now: it is away, and the table
/// knows all of it.
fn allocation_at(at: u64) -> Option<(u64, u64)> {
    let table = memory_table::lock();
    let block = table.block(at).map(|(first, block)| (first, block.bytes));
    block.or_else(|| table.mapping(at).map(|(first, mapping)| (first, mapping.bytes)))
}

extern "C" fn address_range(base: *mut u64, size: *mut usize, at: u64) -> u32 {
    let number = gate::current_slot_number();
    let Some((first, bytes)) = allocation_at(address_for_driver(at)) else {
        return after_return!(number, base: *mut u64, size: *mut usize, at: u64);
    };
    let base_written = if base.is_null() { Ok(()) } else { write_out(base, first) };
    result_code(base_written.and_then(|()| if size.is_null() { Ok(()) } else { write_out(size, bytes as usize) }))
}

extern "C" fn pointer_attribute(place: *mut c_void, attribute: c_int, at: u64) -> u32 {
    let number = gate::current_slot_number();
    match known_attribute(attribute, address_for_driver(at)) {
        Some(value) => result_code(write_attribute(place, attribute, value)),
        None => after_return!(number, place: *mut c_void, attribute: c_int, at: u64),
    }
}

extern "C" fn pointer_attributes(count: u32, attributes: *const c_int, places: *const *mut c_void, at: u64) -> u32 {
    let number = gate::current_slot_number();
    let asked = if attributes.is_null() || places.is_null() { 0 } else { count as usize };
    // SAFETY: the program promises that both arrays have that many entries.
    let pairs = (0..asked).map(|number| unsafe { (attributes.add(number).read(), places.add(number).read()) });
    let known =
        pairs.map(|(attribute, place)| Some((attribute, place, known_attribute(attribute, address_for_driver(at))?)));
    match known.collect::<Option<Vec<_>>>() {
        Some(all) if asked > 0 => result_code(
            all.into_iter().try_for_each(|(attribute, place, value)| write_attribute(place, attribute, value)),
        ),
        _ => after_return!(number, count: u32, attributes: *const c_int, places: *const *mut c_void, at: u64),
    }
}

/// Only the driver knows which GPU is meant; the answer comes from here if the program has memory of only one.
extern "C" fn mem_info(free: *mut usize, total: *mut usize) -> u32 {
    let number = gate::current_slot_number();
    let gpus: BTreeSet<c_int> = memory_table::lock().physical.values().map(|own| own.properties.location.id).collect();
    let gpu = gpus.first().copied().filter(|_| gpus.len() == 1);
    let Some((cap, used)) = gpu.and_then(|gpu| lease_page::lease_of(&uuid(gpu))) else {
        return after_return!(number, free: *mut usize, total: *mut usize);
    };
    let free_written = if free.is_null() { Ok(()) } else { write_out(free, cap.saturating_sub(used) as usize) };
    result_code(free_written.and_then(|()| if total.is_null() { Ok(()) } else { write_out(total, cap as usize) }))
}

/// True if a function of this name only asks or waits for the GPU to be done: while the memory is away it always is.
pub fn only_waits(name: &str) -> bool {
    const DONE: &[&str] =
        &["cuStreamQuery", "cuStreamSynchronize", "cuEventQuery", "cuEventSynchronize", "cuCtxSynchronize"];
    DONE.contains(&function_class::base_name(name))
}

/// True if this memory, freed now, can be freed later: the shim owns it, or counts it.
pub fn can_free_later(at: u64) -> bool {
    let table = memory_table::lock();
    let is_own = table.blocks.get(&at).is_some_and(|block| !block.is_import);
    is_own || table.driver_pool_blocks.contains_key(&at)
}
