//! The program's allocations from their begin to their end: plain ones, and what ends with a context.
//!
//! A plain allocation gets memory that can be taken off the GPU; small ones share chunks. What is freed while a capture
//! is open is freed when the capture has ended.

use crate::contexts;
use crate::driver::{self, as_result, current_context};
use crate::driver_pools;
use crate::gpu_memory::{self, ContextWork, GRANULE, give_access, wait_for_context_work};
use crate::memory_table::{self, MappingOwner, ProgramBlock};
use crate::peer_access;
use crate::plain_blocks::drop_plain_block;
use crate::pool;
use crate::small_allocations::{CHUNK, LARGE};
use crate::unmovable_memory;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Makes a plain allocation in the current context.
pub fn alloc(bytes: u64) -> Result<u64, u32> {
    let (context, device) = current_context()?;
    check_call_allowed(context)?;
    free_deferred();
    pool::free_completed();
    if bytes >= LARGE {
        let whole = bytes.checked_next_multiple_of(GRANULE).ok_or(driver::OUT_OF_MEMORY)?;
        let at = allocate(whole, context, device)?;
        memory_table::lock().add_block(at, ProgramBlock { bytes, context, ..ProgramBlock::default() });
        return Ok(at);
    }
    let found = memory_table::lock().small.take_slot(device, bytes);
    let at = match found {
        Some(at) => at,
        None => {
            let chunk = allocate(CHUNK, context, device)?;
            memory_table::lock().small.add_chunk(device, bytes, chunk)
        }
    };
    memory_table::lock().add_block(at, ProgramBlock { bytes, context, is_small: true, ..ProgramBlock::default() });
    Ok(at)
}

/// Allocates memory of a GPU. If memory is short, idle memory of pools is given back first.
fn allocate(bytes: u64, context: usize, device: c_int) -> Result<u64, u32> {
    let once = || gpu_memory::allocate(bytes, context, device, MappingOwner::Plain, &peer_access::access_to(device));
    let at = match once() {
        Err(driver::OUT_OF_MEMORY) if pool::release_idle_spans(device) => once(),
        other => other,
    }?;
    // Another context may have been given access just now.
    for access in peer_access::access_to(device) {
        let knows = memory_table::lock().mappings.get(&at).is_none_or(|mapping| mapping.access.contains(&access));
        if !knows {
            give_access(at, bytes, access)?;
        }
    }
    Ok(at)
}

/// An event in each context that was never recorded.
static EVENTS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Returns an error if a plain call would fail now: the context is broken, or a capture forbids the call. The driver
/// reports that when an event that was never recorded is queried.
fn check_call_allowed(context: usize) -> Result<(), u32> {
    let known = EVENTS.lock().unwrap_or_else(PoisonError::into_inner).get(&context).copied();
    let event = match known {
        Some(event) => event,
        None => {
            let mut event = 0;
            as_result(driver::cuEventCreate(&mut event, driver::NO_TIMING))?;
            EVENTS.lock().unwrap_or_else(PoisonError::into_inner).insert(context, event);
            event
        }
    };
    as_result(driver::cuEventQuery(event))
}

/// Frees allocations that could not be freed while a capture was open.
pub fn free_deferred() {
    let waiting = std::mem::take(&mut memory_table::lock().deferred);
    if waiting.is_empty() {
        return;
    }
    let contexts: BTreeSet<usize> = waiting.iter().map(|(_, block)| block.context).collect();
    let settled: BTreeSet<usize> =
        contexts.into_iter().filter(|context| wait_for_context_work(*context) == Ok(ContextWork::Done)).collect();
    let (free, still): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, block)| settled.contains(&block.context));
    memory_table::lock().deferred.extend(still);
    free.into_iter().for_each(drop_block);
}

/// Frees the same allocations when the GPU is idle and no capture is open.
pub fn drop_deferred() {
    let waiting = std::mem::take(&mut memory_table::lock().deferred);
    waiting.into_iter().for_each(drop_block);
}

/// Frees an allocation that was taken out of the table.
pub fn drop_block((at, block): (u64, ProgramBlock)) {
    if block.pool != 0 {
        return pool::give_back(at, &block);
    }
    drop_plain_block((at, block));
}

/// Frees an allocation that is away: nothing runs that could use it.
pub fn free_parked(at: u64) {
    let block = memory_table::lock().blocks.remove(&at);
    match block {
        Some(block) => drop_block((at, block)),
        None => {
            if driver::cuMemFree_v2(at) == driver::SUCCESS {
                driver_pools::forget_driver_pool_block(at);
            }
        }
    }
}

/// Forgets a context before it ends, because a new context can get its handle.
pub fn forget_context(context: usize) {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&context);
    contexts::forget(context);
}

/// Frees what was allocated in a context that is gone.
pub fn end_context(context: usize) {
    let mut table = memory_table::lock();
    let own: Vec<u64> = table.blocks.iter().filter(|(_, block)| block.context == context).map(|(at, _)| *at).collect();
    let mut gone: Vec<(u64, ProgramBlock)> =
        own.iter().filter_map(|at| Some((*at, table.blocks.remove(at)?))).collect();
    gone.extend(table.deferred.extract_if(.., |(_, block)| block.context == context));
    // The rest was mapped by the program itself, or shared: any other context can move it.
    table
        .physical
        .values_mut()
        .filter(|physical| physical.context == context)
        .for_each(|physical| physical.context = 0);
    drop(table);
    pool::forget_context(context);
    unmovable_memory::forget_context(context);
    peer_access::forget(context);
    gone.into_iter().for_each(drop_block);
    pool::release_excess();
}
