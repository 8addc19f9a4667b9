//! Contexts that have access to the memory of other GPUs.
//!
//! The driver gives a context that asks for it access to all plain memory of another context. Here plain memory is
//! mapped, and each mapping lists the GPUs that have access: so the list of every mapping is changed, present and
//! future. Pools are not affected, as with the driver. While a context has access to another GPU's memory the holder is
//! not parked.

use crate::driver::{self, Access, Location, ON_CARD, READ_WRITE, current, done, within};
use crate::table::{self, Whose};
use crate::wrap;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Pairs of contexts (with access, owner of the memory), and their GPUs in the same order.
static PAIRS: Mutex<BTreeMap<(usize, usize), (c_int, c_int)>> = Mutex::new(BTreeMap::new());

fn with<T>(body: impl FnOnce(&mut BTreeMap<(usize, usize), (c_int, c_int)>) -> T) -> T {
    body(&mut PAIRS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn access(card: c_int, flags: c_int) -> Access {
    Access { location: Location { kind: ON_CARD, id: card }, flags }
}

/// What other GPUs may do with plain memory of a GPU.
pub fn of(device: c_int) -> Vec<Access> {
    let mut cards: Vec<c_int> =
        with(|pairs| pairs.values().filter(|(_, owner)| *owner == device).map(|(viewer, _)| *viewer).collect());
    cards.sort_unstable();
    cards.dedup();
    cards.into_iter().map(|card| access(card, READ_WRITE)).collect()
}

/// True if a context has access to another's memory.
pub fn is_any() -> bool {
    with(|pairs| !pairs.is_empty())
}

/// Grants or revokes access to all plain memory of a GPU.
fn tell(access: Access, owner: c_int) -> Result<(), u32> {
    let table = table::lock();
    let is_its =
        |handle: &u64| table.physical.get(handle).is_some_and(|physical| physical.properties.location.id == owner);
    let plain = table.mappings.iter().filter(|(_, mapping)| mapping.whose == Whose::Plain && is_its(&mapping.handle));
    let all: Vec<(u64, u64)> = plain.map(|(at, mapping)| (*at, mapping.bytes)).collect();
    drop(table);
    all.into_iter().try_for_each(|(at, bytes)| wrap::give_access(at, bytes, access))
}

/// Notes that the current context has access to another's memory from now on, after the driver has accepted it.
pub fn enabled(other: usize) -> Result<(), u32> {
    let (own, card) = current()?;
    let mut owner = 0;
    within(other, || done(driver::cuCtxGetDevice(&raw mut owner)))?;
    // Recorded first: memory that is mapped from now on reads this.
    with(|pairs| pairs.insert((own, other), (card, owner)));
    let told = tell(access(card, READ_WRITE), owner);
    if told.is_err() {
        with(|pairs| pairs.remove(&(own, other)));
    }
    told
}

/// Notes that the current context no longer has access to another's memory.
pub fn disabled(other: usize) -> Result<(), u32> {
    let (own, _) = current()?;
    end(|pair| pair == (own, other))
}

/// Ends all access of and to a context that is gone.
pub fn forget(context: usize) {
    // Access that cannot be revoked is not used by any context.
    let _ = end(|(own, other)| own == context || other == context);
}

fn end(is_over: impl Fn((usize, usize)) -> bool) -> Result<(), u32> {
    let gone: Vec<(c_int, c_int)> = with(|pairs| {
        let gone = pairs.iter().filter(|(pair, _)| is_over(**pair)).map(|(_, cards)| *cards).collect();
        pairs.retain(|pair, _| !is_over(*pair));
        gone
    });
    for (card, owner) in gone {
        // Another context of the same GPU may still have access.
        if !of(owner).iter().any(|access| access.location.id == card) {
            tell(access(card, 0), owner)?;
        }
    }
    Ok(())
}
