//! Virtual memory management: address ranges and memory as separate objects.

use super::pointers::{CallerIn, CallerOut};
use super::{checked_place, exports, read_in, write_out};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current_handle};
use crate::space::{AllowedAccess, Backing, GRANULE};
use crate::vmm::{Allocation, MemoryFile, ON_GPU};
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
pub struct CuMemLocation {
    /// GPU or host.
    pub kind: c_int,
    /// The number of the device.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuMemAllocationProp {
    kind: c_int,
    handle_types: u32,
    location: CuMemLocation,
    windows: usize,
    flags: u64,
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuMemAccessDesc {
    /// The GPU, or the host, that gets access.
    pub location: CuMemLocation,
    /// The kind of access.
    pub flags: c_int,
}

impl CuMemAllocationProp {
    /// The GPU that gets access; `None`: the host.
    fn gpu(&self, runtime: &Runtime) -> Outcome<Option<usize>> {
        if self.kind != PINNED || self.handle_types & !DESCRIPTOR != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        match self.location.kind {
            ON_GPU => runtime.gpu(self.location.id).map(Some),
            2..=4 => Ok(None),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

fn access(flags: c_int) -> Outcome<AllowedAccess> {
    match flags {
        0 => Ok(AllowedAccess::None),
        1 => Ok(AllowedAccess::Read),
        3 => Ok(AllowedAccess::Write),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn insert_handle(runtime: &Runtime, physical: Arc<MemoryFile>) -> u64 {
    runtime.allocations.insert(Arc::new(Allocation { physical, count: AtomicUsize::new(1) })) as u64
}

/// The GPU that a mapping's memory is on; `None`: the host, or there is no mapping.
fn owner(runtime: &Runtime, at: u64) -> Option<usize> {
    let held = runtime.space.snapshot();
    let (_, block) = held.find(at)?;
    match &*block.backing {
        Backing::Physical(physical) => physical.gpu,
        _ => None,
    }
}

exports! {
    "cuMemAddressReserve" 10020 fn cuMemAddressReserve(
        place: CallerOut<u64>,
        bytes: usize,
        alignment: usize,
        wish: u64,
        flags: u64,
    ) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        write_out(checked_place(place)?, runtime.reserved.reserve(bytes as u64, alignment as u64, wish)?)
    }
    "cuMemAddressFree" 10020 fn cuMemAddressFree(at: u64, bytes: usize) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        runtime.reserved.free(runtime, at, bytes as u64)
    }
    "cuMemCreate" 10020 fn cuMemCreate(
        place: CallerOut<u64>, bytes: usize, properties: CallerIn<CuMemAllocationProp>, flags: u64,
    ) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        let properties = read_in(properties)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let gpu = properties.gpu(runtime)?;
        let place = checked_place(place)?;
        let made = MemoryFile::create(runtime, bytes as u64, gpu, properties.handle_types, properties.flags)?;
        write_out(place, insert_handle(runtime, made))
    }
    "cuMemRelease" 10020 fn cuMemRelease(handle: u64) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        if allocation.count.fetch_sub(1, SeqCst) == 1 {
            runtime.allocations.remove(handle as usize)?;
        }
        Ok(())
    }
    "cuMemMap" 10020 fn cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
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
        runtime.engine.wait(&runtime.engine.last_jobs_of_all(None));
        let _pass = runtime.client.pass_gate();
        runtime.reserved.unmap(runtime, at, bytes as u64, AllowedAccess::None)
    }
    "cuMemSetAccess" 10020 fn cuMemSetAccess(at: u64, bytes: usize, allowed: CallerIn<CuMemAccessDesc>, count: usize) {
        let runtime = Runtime::get()?;
        // SAFETY: the caller of the C function promises a list of that length.
        let allowed = unsafe { allowed.read_list(count)? };
        // Running work may still write, or read, where that is no longer allowed.
        if allowed.iter().any(|own| own.flags != 3) {
            runtime.engine.wait(&runtime.engine.last_jobs_of_all(None));
        }
        let _pass = runtime.client.pass_gate();
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for own in allowed {
            if own.location.kind == ON_GPU {
                let gpu = runtime.gpu(own.location.id)?;
                if owner(runtime, at).is_some_and(|owner| owner != gpu) {
                    access(own.flags)?;
                    runtime.reserved.set_reach(runtime, at, bytes as u64, gpu, own.flags != 0)?;
                    continue;
                }
            }
            runtime.reserved.set_access(runtime, at, bytes as u64, access(own.flags)?)?;
        }
        Ok(())
    }
    "cuMemGetAccess" 10020 fn cuMemGetAccess(flags: CallerOut<u64>, location: CallerIn<CuMemLocation>, at: u64) {
        let runtime = Runtime::get()?;
        let location = read_in(location)?;
        let held = runtime.space.snapshot();
        let (_, block) = held.find(at).ok_or(CuResult::INVALID_VALUE)?;
        let gpu = if location.kind == ON_GPU { runtime.gpu(location.id)? } else { block.gpu };
        write_out(flags, match block.access {
            _ if gpu != block.gpu && block.reach >> gpu & 1 == 0 => 0,
            AllowedAccess::None => 0,
            AllowedAccess::Read => 1,
            AllowedAccess::Write => 3,
        })
    }
    "cuMemGetAllocationGranularity" 10020 fn cuMemGetAllocationGranularity(
        granularity: CallerOut<usize>,
        properties: CallerIn<CuMemAllocationProp>,
        option: c_int,
    ) {
        let runtime = Runtime::get()?;
        read_in(properties)?.gpu(runtime)?;
        if !matches!(option, 0 | 1) {
            return Err(CuResult::INVALID_VALUE);
        }
        write_out(granularity, GRANULE as usize)
    }
    "cuMemGetAllocationPropertiesFromHandle" 10020 fn cuMemGetAllocationPropertiesFromHandle(
        properties: CallerOut<CuMemAllocationProp>,
        handle: u64,
    ) {
        let runtime = Runtime::get()?;
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        let physical = &allocation.physical;
        let location = match physical.gpu {
            Some(gpu) => CuMemLocation { kind: ON_GPU, id: runtime.device(gpu) },
            None => CuMemLocation { kind: 2, id: 0 },
        };
        write_out(properties, CuMemAllocationProp {
            kind: PINNED,
            handle_types: physical.handle_types,
            location,
            windows: 0,
            flags: physical.flags,
        })
    }
    "cuMemRetainAllocationHandle" 11000 fn cuMemRetainAllocationHandle(place: CallerOut<u64>, at: *mut c_void) {
        let runtime = Runtime::get()?;
        let held = runtime.space.snapshot();
        let (_, block) = held.find(at as u64).ok_or(CuResult::INVALID_VALUE)?;
        let Backing::Physical(physical) = &*block.backing else { return Err(CuResult::INVALID_VALUE) };
        let known = runtime.allocations.find(|own| Arc::ptr_eq(&own.physical, physical));
        match known {
            Some((handle, allocation)) => {
                allocation.count.fetch_add(1, SeqCst);
                write_out(place, handle as u64)
            }
            // It was released while it was mapped: it gets a new handle.
            None => write_out(place, insert_handle(runtime, Arc::clone(physical))),
        }
    }
    "cuMemExportToShareableHandle" 10020 fn cuMemExportToShareableHandle(
        place: CallerOut<c_void>,
        handle: u64,
        kind: u32,
        flags: u64,
    ) {
        let runtime = Runtime::get()?;
        let allocation = runtime.allocations.get(handle as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        if flags != 0 || kind != DESCRIPTOR || allocation.physical.handle_types & DESCRIPTOR == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the caller of the C function promises room for a handle of this kind, a descriptor.
        write_out(unsafe { place.cast() }, allocation.physical.export()?)
    }
    "cuMemImportFromShareableHandle" 10020 fn cuMemImportFromShareableHandle(
        place: CallerOut<u64>,
        descriptor: *mut c_void,
        kind: u32,
    ) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        if kind != DESCRIPTOR {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the caller of the C function promises an open descriptor, which stays its own.
        let given = unsafe { BorrowedFd::borrow_raw(descriptor as usize as i32) };
        let own: OwnedFd = given.try_clone_to_owned().map_err(|_| CuResult::INVALID_VALUE)?;
        let context = current_handle().and_then(|handle| runtime.contexts.get(handle).ok());
        let gpu = context.map_or(runtime.gpu(0), |context| Ok(context.gpu))?;
        write_out(checked_place(place)?, insert_handle(runtime, MemoryFile::import(runtime, own, gpu)?))
    }
}
