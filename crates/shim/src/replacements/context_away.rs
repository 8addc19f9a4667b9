//! Questions that are answered while the driver has the context: from the table and the page, if these have the answer.
//! Other questions wait until the context is back.
//!
//! Each function here has the arguments of the driver's function, and runs without being inside the gate.

use super::{address_for_driver, known_attribute, write_attribute};
use crate::driver::result_code;
use crate::gate;
use crate::gpu_memory::uuid;
use crate::lease_page;
use crate::memory_table;
use crate::out_pointer::{InPtr, OutPtr};
use crate::slots;
use crate::trampoline::stub;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};

/// The function that answers for a driver's function of this base name; `None` if there is none.
pub fn find_answer(base: &str) -> Option<usize> {
    Some(match base {
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
        if let Err(error) = gate::await_context(slots::slot($number).name()) {
            return error;
        }
        // SAFETY: the stub belongs to a driver's function with these arguments, which are the program's.
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

unsafe extern "C" fn address_range(base: OutPtr<u64>, size: OutPtr<usize>, at: u64) -> u32 {
    let number = gate::current_slot_number();
    let Some((first, bytes)) = allocation_at(address_for_driver(at)) else {
        return after_return!(number, base: OutPtr<u64>, size: OutPtr<usize>, at: u64);
    };
    result_code(base.write_if_wanted(first).and_then(|()| size.write_if_wanted(bytes as usize)))
}

unsafe extern "C" fn pointer_attribute(place: OutPtr<c_void>, attribute: c_int, at: u64) -> u32 {
    let number = gate::current_slot_number();
    match known_attribute(attribute, address_for_driver(at)) {
        // SAFETY: the program promises room for this attribute.
        Some(value) => result_code(unsafe { write_attribute(place, attribute, value) }),
        None => after_return!(number, place: OutPtr<c_void>, attribute: c_int, at: u64),
    }
}

unsafe extern "C" fn pointer_attributes(
    count: u32,
    attributes: InPtr<c_int>,
    places: InPtr<OutPtr<c_void>>,
    at: u64,
) -> u32 {
    let number = gate::current_slot_number();
    let asked = if attributes.is_null() || places.is_null() { 0 } else { count as usize };
    // SAFETY: the program promises that both lists have that many entries.
    let pairs = unsafe { attributes.read_list(asked).into_iter().zip(places.read_list(asked)) };
    let known =
        pairs.map(|(attribute, place)| Some((attribute, place, known_attribute(attribute, address_for_driver(at))?)));
    match known.collect::<Option<Vec<_>>>() {
        Some(all) if asked > 0 => result_code(all.into_iter().try_for_each(|(attribute, place, value)| {
            // SAFETY: the program promises room for this attribute.
            unsafe { write_attribute(place, attribute, value) }
        })),
        _ => after_return!(number, count: u32, attributes: InPtr<c_int>, places: InPtr<OutPtr<c_void>>, at: u64),
    }
}

/// Only the driver knows which GPU is meant; the answer comes from here if the program has memory of only one.
unsafe extern "C" fn mem_info(free: OutPtr<usize>, total: OutPtr<usize>) -> u32 {
    let number = gate::current_slot_number();
    let gpus: BTreeSet<c_int> = memory_table::lock().physical.values().map(|own| own.properties.location.id).collect();
    let gpu = gpus.first().copied().filter(|_| gpus.len() == 1);
    let Some((cap, used)) = gpu.and_then(|gpu| lease_page::lease_of(&uuid(gpu))) else {
        return after_return!(number, free: OutPtr<usize>, total: OutPtr<usize>);
    };
    let left = cap.saturating_sub(used) as usize;
    result_code(free.write_if_wanted(left).and_then(|()| total.write_if_wanted(cap as usize)))
}
