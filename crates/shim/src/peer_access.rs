//! Contexts that have access to the memory of other GPUs.
//!
//! The driver gives a context that asks for it access to all memory that another context got from `cuMemAlloc`. Here
//! such memory is mapped, and each mapping lists the GPUs that have access: so the list of every mapping is changed,
//! present and future. Pools are not affected, as with the driver.
//!
//! Absent on purpose: refusing a park while such access exists. `replacements` does that, by [`is_any`].

use crate::driver::{self, LocationAccess, MemLocation, ON_GPU, READ_WRITE, as_result, current_context, with_context};
use crate::gpu_memory::give_access;
use crate::memory_table::{self, MappingOwner};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Pairs of contexts (with access, owner of the memory), and their GPUs in the same order.
static PAIRS: Mutex<BTreeMap<(usize, usize), (c_int, c_int)>> = Mutex::new(BTreeMap::new());

fn with_pairs<T>(body: impl FnOnce(&mut BTreeMap<(usize, usize), (c_int, c_int)>) -> T) -> T {
    body(&mut PAIRS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn access(gpu: c_int, flags: c_int) -> LocationAccess {
    LocationAccess { location: MemLocation { kind: ON_GPU, id: gpu }, flags }
}

/// What other GPUs may do with plain memory of a GPU.
pub fn access_to(device: c_int) -> Vec<LocationAccess> {
    let mut gpus: Vec<c_int> =
        with_pairs(|pairs| pairs.values().filter(|(_, owner)| *owner == device).map(|(viewer, _)| *viewer).collect());
    gpus.sort_unstable();
    gpus.dedup();
    gpus.into_iter().map(|gpu| access(gpu, READ_WRITE)).collect()
}

/// True if a context has access to another's memory.
pub fn is_any() -> bool {
    with_pairs(|pairs| !pairs.is_empty())
}

/// Grants or revokes access to all plain memory of a GPU.
fn change_access(access: LocationAccess, owner: c_int) -> Result<(), u32> {
    let table = memory_table::lock();
    let is_its =
        |handle: &u64| table.physical.get(handle).is_some_and(|physical| physical.properties.location.id == owner);
    let plain =
        table.mappings.iter().filter(|(_, mapping)| mapping.owner == MappingOwner::Plain && is_its(&mapping.handle));
    let all: Vec<(u64, u64)> = plain.map(|(at, mapping)| (*at, mapping.bytes)).collect();
    drop(table);
    all.into_iter().try_for_each(|(at, bytes)| give_access(at, bytes, access))
}

/// Notes that the current context has access to another's memory from now on, after the driver has accepted it.
pub fn enabled(other: usize) -> Result<(), u32> {
    let (own, gpu) = current_context()?;
    let mut owner = 0;
    with_context(other, || as_result(driver::cuCtxGetDevice(&mut owner)))?;
    // Recorded first: memory that is mapped from now on reads this.
    with_pairs(|pairs| pairs.insert((own, other), (gpu, owner)));
    let told = change_access(access(gpu, READ_WRITE), owner);
    if told.is_err() {
        with_pairs(|pairs| pairs.remove(&(own, other)));
    }
    told
}

/// Notes that the current context no longer has access to another's memory.
pub fn disabled(other: usize) -> Result<(), u32> {
    let (own, _) = current_context()?;
    end_access(|pair| pair == (own, other))
}

/// Ends all access of and to a context that is gone.
pub fn forget(context: usize) {
    // The context is gone, so an error leaves at most access that no call uses.
    let _ = end_access(|(own, other)| own == context || other == context);
}

fn end_access(is_over: impl Fn((usize, usize)) -> bool) -> Result<(), u32> {
    let gone: Vec<(c_int, c_int)> = with_pairs(|pairs| {
        let gone = pairs.iter().filter(|(pair, _)| is_over(**pair)).map(|(_, gpus)| *gpus).collect();
        pairs.retain(|pair, _| !is_over(*pair));
        gone
    });
    for (gpu, owner) in gone {
        // Another context of the same GPU may still have access.
        if !access_to(owner).iter().any(|access| access.location.id == gpu) {
            change_access(access(gpu, 0), owner)?;
        }
    }
    Ok(())
}
