//! Virtual memory management: address ranges and memory as separate objects.

use super::{exports, list, place_for, put, take};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current_handle};
use crate::space::{Access, Backing, GRANULE};
use crate::vmm::{Allocation, ON_CARD, Physical};
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    /// GPU or host.
    pub kind: c_int,
    /// The number of the device.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Properties {
    kind: c_int,
    handle_types: u32,
    location: Location,
    windows: usize,
    flags: u64,
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Allowed {
    /// The GPU, or the host, that gets access.
    pub location: Location,
    /// The kind of access.
    pub flags: c_int,
}

impl Properties {
    /// The GPU that gets access; `None`: the host.
    fn card(&self, runtime: &Runtime) -> Outcome<Option<usize>> {
        if self.kind != PINNED || self.handle_types & !DESCRIPTOR != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        match self.location.kind {
            ON_CARD => runtime.card(self.location.id).map(Some),
            2..=4 => Ok(None),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

fn access(flags: c_int) -> Outcome<Access> {
    match flags {
        0 => Ok(Access::None),
        1 => Ok(Access::Read),
        3 => Ok(Access::Write),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn keep(runtime: &Runtime, physical: Arc<Physical>) -> u64 {
    runtime.allocations.put(Arc::new(Allocation { physical, count: AtomicUsize::new(1) })) as u64
}

/// The GPU that a mapping's memory is on; `None`: the host, or there is no mapping.
fn owner(runtime: &Runtime, at: u64) -> Option<usize> {
    let held = runtime.space.hold();
    let (_, block) = held.find(at)?;
    match &*block.backing {
        Backing::Physical(physical) => physical.card,
        _ => None,
    }
}

exports! {
    "cuMemAddressReserve" 10020 fn cuMemAddressReserve(
        place: *mut u64,
        bytes: usize,
        alignment: usize,
        wish: u64,
        flags: u64,
    ) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        put(place_for(place)?, runtime.reserved.reserve(bytes as u64, alignment as u64, wish)?)
    }
    "cuMemAddressFree" 10020 fn cuMemAddressFree(at: u64, bytes: usize) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        runtime.reserved.free(runtime, at, bytes as u64)
    }
    "cuMemCreate" 10020 fn cuMemCreate(place: *mut u64, bytes: usize, properties: *const Properties, flags: u64) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        let properties = take(properties)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let card = properties.card(runtime)?;
        let place = place_for(place)?;
        let made = Physical::create(runtime, bytes as u64, card, properties.handle_types, properties.flags)?;
        put(place, keep(runtime, made))
    }
    "cuMemRelease" 10020 fn cuMemRelease(handle: u64) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        if allocation.count.fetch_sub(1, SeqCst) == 1 {
            runtime.allocations.take(handle as usize)?;
        }
        Ok(())
    }
    "cuMemMap" 10020 fn cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        if offset != 0 || flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // It belongs to no context, and so stays when one ends.
        runtime.reserved.map(runtime, at, bytes as u64, &allocation.physical, 0)
    }
    "cuMemUnmap" 10020 fn cuMemUnmap(at: u64, bytes: usize) {
        let runtime = Runtime::get()?;
        // Running work may still touch it.
        runtime.engine.wait(&runtime.engine.last_of_all(None));
        let _inside = runtime.seat.pass();
        runtime.reserved.unmap(runtime, at, bytes as u64, Access::None)
    }
    "cuMemSetAccess" 10020 fn cuMemSetAccess(at: u64, bytes: usize, allowed: *const Allowed, count: usize) {
        let runtime = Runtime::get()?;
        // Running work may still write, or read, where that is no longer allowed.
        if list(allowed, count)?.iter().any(|own| own.flags != 3) {
            runtime.engine.wait(&runtime.engine.last_of_all(None));
        }
        let _inside = runtime.seat.pass();
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for own in list(allowed, count)? {
            if own.location.kind == ON_CARD {
                let card = runtime.card(own.location.id)?;
                if owner(runtime, at).is_some_and(|owner| owner != card) {
                    access(own.flags)?;
                    runtime.reserved.set_reach(runtime, at, bytes as u64, card, own.flags != 0)?;
                    continue;
                }
            }
            runtime.reserved.set_access(runtime, at, bytes as u64, access(own.flags)?)?;
        }
        Ok(())
    }
    "cuMemGetAccess" 10020 fn cuMemGetAccess(flags: *mut u64, location: *const Location, at: u64) {
        let runtime = Runtime::get()?;
        let location = take(location)?;
        let held = runtime.space.hold();
        let (_, block) = held.find(at).ok_or(CuResult::INVALID_VALUE)?;
        let card = if location.kind == ON_CARD { runtime.card(location.id)? } else { block.card };
        put(flags, match block.access {
            _ if card != block.card && block.reach >> card & 1 == 0 => 0,
            Access::None => 0,
            Access::Read => 1,
            Access::Write => 3,
        })
    }
    "cuMemGetAllocationGranularity" 10020 fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const Properties,
        option: c_int,
    ) {
        let runtime = Runtime::get()?;
        take(properties)?.card(runtime)?;
        if !matches!(option, 0 | 1) {
            return Err(CuResult::INVALID_VALUE);
        }
        put(granularity, GRANULE as usize)
    }
    "cuMemGetAllocationPropertiesFromHandle" 10020 fn cuMemGetAllocationPropertiesFromHandle(
        properties: *mut Properties,
        handle: u64,
    ) {
        let runtime = Runtime::get()?;
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        let physical = &allocation.physical;
        let location = match physical.card {
            Some(card) => Location { kind: ON_CARD, id: runtime.device(card) },
            None => Location { kind: 2, id: 0 },
        };
        put(properties, Properties {
            kind: PINNED,
            handle_types: physical.handle_types,
            location,
            windows: 0,
            flags: physical.flags,
        })
    }
    "cuMemRetainAllocationHandle" 11000 fn cuMemRetainAllocationHandle(place: *mut u64, at: *mut c_void) {
        let runtime = Runtime::get()?;
        let held = runtime.space.hold();
        let (_, block) = held.find(at as u64).ok_or(CuResult::INVALID_VALUE)?;
        let Backing::Physical(physical) = &*block.backing else { return Err(CuResult::INVALID_VALUE) };
        let known = runtime.allocations.find(|own| Arc::ptr_eq(&own.physical, physical));
        match known {
            Some((handle, allocation)) => {
                allocation.count.fetch_add(1, SeqCst);
                put(place, handle as u64)
            }
            // It was released while it was mapped: it gets a new handle.
            None => put(place, keep(runtime, Arc::clone(physical))),
        }
    }
    "cuMemExportToShareableHandle" 10020 fn cuMemExportToShareableHandle(
        place: *mut c_void,
        handle: u64,
        kind: u32,
        flags: u64,
    ) {
        let runtime = Runtime::get()?;
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        if flags != 0 || kind != DESCRIPTOR || allocation.physical.handle_types & DESCRIPTOR == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        put(place.cast(), allocation.physical.export()?)
    }
    "cuMemImportFromShareableHandle" 10020 fn cuMemImportFromShareableHandle(
        place: *mut u64,
        descriptor: *mut c_void,
        kind: u32,
    ) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        if kind != DESCRIPTOR {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the caller of the C function promises an open descriptor, which stays its own.
        let given = unsafe { BorrowedFd::borrow_raw(descriptor as usize as i32) };
        let own: OwnedFd = given.try_clone_to_owned().map_err(|_| CuResult::INVALID_VALUE)?;
        let context = current_handle().and_then(|handle| runtime.contexts.get(handle).ok());
        let card = context.map_or(runtime.card(0), |context| Ok(context.card))?;
        put(place_for(place)?, keep(runtime, Physical::import(runtime, own, card)?))
    }
}
