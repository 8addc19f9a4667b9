//! Memory that can be taken off the GPU: an address range, and memory of the driver that is mapped there.
//!
//! Every plain allocation and every span of a pool has such memory. It counts against the lease from here.

use crate::driver::{self, AllocationProperties, LocationAccess, ON_GPU, READ_WRITE, as_result, current_context};
use crate::gate;
use crate::lease_page;
use crate::memory_table::{self, MappingOwner, MemoryMapping, ParkableMemory};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::OnceLock;

/// GPU memory is counted in multiples of this.
pub const GRANULE: u64 = 2 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const DESCRIPTOR: i32 = 1;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
const RDMA: c_int = 110;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
const SHAREABLE: c_int = 103;

/// The UUID of a GPU, which does not change.
pub fn uuid(device: c_int) -> [u8; 16] {
    static KNOWN: [OnceLock<[u8; 16]>; 64] = [const { OnceLock::new() }; 64];
    let ask = || {
        let mut uuid = [0; 16];
        driver::cuDeviceGetUuid_v2(&mut uuid, device);
        uuid
    };
    KNOWN.get(device as usize).map_or_else(ask, |known| *known.get_or_init(ask))
}

/// The properties of a plain allocation's memory.
fn properties(device: c_int) -> AllocationProperties {
    static KNOWN: [OnceLock<[bool; 2]>; 64] = [const { OnceLock::new() }; 64];
    let ask = || {
        [RDMA, SHAREABLE].map(|attribute| {
            let mut value = 0;
            driver::cuDeviceGetAttribute(&mut value, attribute, device);
            value != 0
        })
    };
    let [rdma, is_shareable] = KNOWN.get(device as usize).map_or([false; 2], |known| *known.get_or_init(ask));
    AllocationProperties {
        kind: 1,
        // Requested for every allocation: a program may share memory that it allocated long before.
        handle_types: if is_shareable { DESCRIPTOR } else { 0 },
        location: driver::MemLocation { kind: ON_GPU, id: device },
        rdma: u8::from(rdma),
        ..AllocationProperties::default()
    }
}

/// Allocates memory of a GPU and an address range, and maps one at the other, from memory that is free now. `others`:
/// what other GPUs may do with the memory.
pub fn allocate(
    bytes: u64,
    context: usize,
    device: c_int,
    owner: MappingOwner,
    others: &[LocationAccess],
) -> Result<u64, u32> {
    let uuid = uuid(device);
    if !lease_page::reserve(&uuid, device, bytes) {
        return Err(driver::OUT_OF_MEMORY);
    }
    let made = map_new_memory(bytes, context, device, owner, others);
    if made.is_err() {
        lease_page::give_back(&uuid, device, bytes);
    }
    made
}

fn map_new_memory(
    bytes: u64,
    context: usize,
    device: c_int,
    owner: MappingOwner,
    others: &[LocationAccess],
) -> Result<u64, u32> {
    let (properties, length) = (properties(device), bytes as usize);
    let mut access = vec![LocationAccess { location: properties.location, flags: READ_WRITE }];
    access.extend(others);
    let (mut at, mut real) = (0, 0);
    as_result(driver::cuMemAddressReserve(&mut at, length, 0, 0, 0))?;
    let created = as_result(driver::cuMemCreate(&mut real, length, &properties, 0));
    let shown = created.and_then(|()| {
        let mapped = as_result(driver::cuMemMap(at, length, 0, real, 0));
        let shown = mapped.and_then(|()| driver::set_access(at, length, &access));
        if shown.is_err() {
            if mapped.is_ok() {
                driver::cuMemUnmap(at, length);
            }
            driver::cuMemRelease(real);
        }
        shown
    });
    if let Err(error) = shown {
        driver::cuMemAddressFree(at, length);
        return Err(error);
    }
    let mut table = memory_table::lock();
    let handle = table.add_memory(ParkableMemory {
        real: Some(real),
        bytes,
        properties,
        flags: 0,
        uuid: uuid(device),
        context,
        // The memory is kept alive by its mapping alone.
        count: 0,
        mapped: BTreeSet::new(),
        arena: None,
    });
    table.map(at, MemoryMapping { handle, bytes, offset: 0, access, owner });
    Ok(at)
}

/// Sets what a GPU may do with a mapping of the shim.
pub fn give_access(at: u64, bytes: u64, access: LocationAccess) -> Result<(), u32> {
    driver::set_access(at, bytes as usize, &[access])?;
    memory_table::lock().note_access(at, bytes, &[access]);
    Ok(())
}

/// Unmaps the memory at an address of the shim, and frees the address range.
pub fn drop_mapping(at: u64) {
    let mut table = memory_table::lock();
    let Some(bytes) = table.mappings.get(&at).map(|mapping| mapping.bytes) else { return };
    let gone = table.unmap(at, bytes);
    drop(table);
    for physical in gone {
        if let Some(real) = physical.real {
            driver::cuMemUnmap(at, bytes as usize);
            driver::cuMemRelease(real);
        }
        lease_page::give_back(&physical.uuid, physical.properties.location.id, physical.bytes);
    }
    driver::cuMemAddressFree(at, bytes as usize);
}

/// Frees memory that has no handle and no mapping left.
pub fn release(physical: ParkableMemory) {
    if let Some(real) = physical.real {
        driver::cuMemRelease(real);
    }
    lease_page::give_back(&physical.uuid, physical.properties.location.id, physical.bytes);
}

/// Whether the work that may use some memory is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextWork {
    /// All of it is done.
    Done,
    /// A capture is open, which a wait would spoil.
    Captured,
}

/// Waits for the GPU as freeing does: for all work in the context of the freed memory, whichever context is current.
/// Does not wait while a capture is open.
pub fn wait_for_context_work(context: usize) -> Result<ContextWork, u32> {
    let wait = || match current_context() {
        Ok((own, _)) if own == context => driver::cuCtxSynchronize(),
        _ => driver::result_code(driver::with_context(context, || as_result(driver::cuCtxSynchronize()))),
    };
    match gate::unless_capturing(wait) {
        Some(result) => as_result(result).map(|()| ContextWork::Done),
        None => Ok(ContextWork::Captured),
    }
}
