//! Calls that the shim answers itself, or changes: every call that allocates, maps or frees memory.
//!
//! A plain allocation gets memory that can be taken off the GPU: an address range, and memory mapped there. Programs
//! that map memory themselves get handles of the shim. Each function here has the arguments of the driver's function
//! and is called after the gate was passed.

use crate::contexts;
use crate::control_thread;
use crate::driver::{self, AllocationProperties, LocationAccess, ON_GPU, READ_WRITE, as_result, current_context};
use crate::function_class;
use crate::gate;
use crate::ipc::{self, IpcHandle};
use crate::lease_page::{self, ParkObstacle};
use crate::memory_table::{self, MappingOwner, MemoryMapping, ParkableMemory, ProgramBlock};
use crate::peer_access;
use crate::pool;
use crate::small_allocations::{CHUNK, LARGE};
use crate::unmovable_memory;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

/// GPU memory is counted in multiples of this.
pub const GRANULE: u64 = 2 << 20;
/// Rows of a pitched allocation begin at multiples of this.
const PITCH: usize = 512;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
const RDMA: c_int = 110;

/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
const SHAREABLE: c_int = 103;
/// No allocation is ever at this address.
const UNUSED_ADDRESS: u64 = 4096;

/// A function of the shim: the driver's function that it replaces, the suffix its symbol must have, the first CUDA
/// version that has it, and its address.
struct Replacement(&'static str, &'static str, c_int, *const ());

// SAFETY: an address of code, which any thread may use.
unsafe impl Sync for Replacement {}

static REPLACEMENTS: &[Replacement] = &[
    Replacement("cuInit", "", 2000, init as *const ()),
    Replacement("cuMemAlloc", "_v2", 3020, mem_alloc as *const ()),
    Replacement("cuMemAllocPitch", "_v2", 3020, mem_alloc_pitch as *const ()),
    Replacement("cuMemFree", "_v2", 3020, mem_free as *const ()),
    Replacement("cuMemGetAddressRange", "_v2", 3020, address_range as *const ()),
    Replacement("cuMemGetInfo", "_v2", 3020, mem_info as *const ()),
    Replacement("cuMemCreate", "", 10_020, mem_create as *const ()),
    Replacement("cuMemMap", "", 10_020, mem_map as *const ()),
    Replacement("cuMemUnmap", "", 10_020, mem_unmap as *const ()),
    Replacement("cuMemAddressFree", "", 10_020, address_free as *const ()),
    Replacement("cuMemSetAccess", "", 10_020, mem_set_access as *const ()),
    Replacement("cuMemRelease", "", 10_020, mem_release as *const ()),
    Replacement("cuMemRetainAllocationHandle", "", 11_000, mem_retain as *const ()),
    Replacement("cuMemGetAllocationPropertiesFromHandle", "", 10_020, mem_properties as *const ()),
    Replacement("cuMemExportToShareableHandle", "", 10_020, mem_export as *const ()),
    Replacement("cuMemAllocAsync", "", 11_020, pools::alloc_async as *const ()),
    Replacement("cuMemAllocFromPoolAsync", "", 11_020, pools::alloc_from_pool_async as *const ()),
    Replacement("cuMemFreeAsync", "", 11_020, pools::free_async as *const ()),
    Replacement("cuMemPoolCreate", "", 11_020, pools::create as *const ()),
    Replacement("cuMemPoolDestroy", "", 11_020, pools::destroy as *const ()),
    Replacement("cuMemPoolTrimTo", "", 11_020, pools::trim as *const ()),
    Replacement("cuMemPoolGetAttribute", "", 11_020, pools::attribute as *const ()),
    Replacement("cuMemPoolSetAttribute", "", 11_020, pools::set_attribute as *const ()),
    Replacement("cuMemPoolSetAccess", "", 11_020, pools::set_access as *const ()),
    Replacement("cuStreamDestroy", "_v2", 4000, pools::stream_destroy as *const ()),
    Replacement("cuCtxEnablePeerAccess", "", 4000, enable_peer as *const ()),
    Replacement("cuCtxDisablePeerAccess", "", 4000, disable_peer as *const ()),
    Replacement("cuCtxCreate", "_v2", 3020, context_create as *const ()),
    Replacement("cuCtxCreate", "_v3", 11_040, context_create as *const ()),
    Replacement("cuCtxCreate", "_v4", 12_050, context_create as *const ()),
    Replacement("cuDevicePrimaryCtxRetain", "", 7000, primary_retain as *const ()),
    Replacement("cuCtxDestroy", "_v2", 4000, context_destroy as *const ()),
    Replacement("cuDevicePrimaryCtxRelease", "_v2", 11_000, primary_release as *const ()),
    Replacement("cuDevicePrimaryCtxReset", "_v2", 11_000, primary_release as *const ()),
    Replacement("cuIpcGetMemHandle", "", 4010, ipc_get as *const ()),
    Replacement("cuIpcOpenMemHandle", "_v2", 11_000, ipc_open as *const ()),
    Replacement("cuIpcOpenMemHandle", "", 4010, ipc_open as *const ()),
    Replacement("cuIpcCloseMemHandle", "", 4010, ipc_close as *const ()),
    Replacement("cuPointerGetAttribute", "", 4000, pointer_attribute as *const ()),
    Replacement("cuPointerGetAttributes", "", 7000, pointer_attributes as *const ()),
    Replacement("cuMulticastBindMem", "", 12_010, unmovable::multicast_bind as *const ()),
    Replacement("cuMemMapArrayAsync", "", 11_010, unmovable::map_arrays as *const ()),
    Replacement("cuArrayCreate", "_v2", 3020, unmovable::array_create as *const ()),
    Replacement("cuArray3DCreate", "_v2", 3020, unmovable::array_3d_create as *const ()),
    Replacement("cuArrayDestroy", "", 2000, unmovable::array_destroy as *const ()),
    Replacement("cuMipmappedArrayCreate", "", 5000, unmovable::mipmap_create as *const ()),
    Replacement("cuMipmappedArrayDestroy", "", 5000, unmovable::array_destroy as *const ()),
    Replacement("cuMemAllocManaged", "", 6000, unmovable::alloc_managed as *const ()),
    Replacement("cuModuleGetGlobal", "_v2", 3020, unmovable::module_global as *const ()),
    Replacement("cuLibraryGetGlobal", "", 12_000, unmovable::module_global as *const ()),
    // The later form comes first: a version that is recent enough for both gets it.
    Replacement("cuGraphAddNode", "_v2", 12_030, unmovable::graph_add_node_of_edges as *const ()),
    Replacement("cuGraphAddNode", "", 12_020, unmovable::graph_add_node as *const ()),
];

/// The shim's function for one of the driver's; `None` if the driver's is called.
pub fn find_replacement(name: &str, base: &str, version: c_int, is_symbol: bool) -> Option<usize> {
    let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let is_it = |own: &&Replacement| match own.0 == base {
        true if is_symbol => plain.strip_prefix(base) == Some(own.1),
        true => version >= own.2,
        false => false,
    };
    debug_assert!(function_class::base_name(name) == base);
    REPLACEMENTS.iter().find(is_it).map(|own| own.3 as usize)
}

/// The result code of a function.
fn result_code(outcome: Result<(), u32>) -> u32 {
    outcome.err().unwrap_or(driver::SUCCESS)
}

/// Calls the driver's function that this one replaces.
macro_rules! call_driver {
    ($($argument:ident: $type:ty),*) => {{
        let at = gate::current_slot().real();
        // SAFETY: the slot of this call belongs to a driver's function with these arguments.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(at)($($argument),*) }
    }};
}

pub mod context_away;
mod pools;
mod unmovable;

fn write_out<T>(place: *mut T, value: T) -> Result<(), u32> {
    if place.is_null() {
        return Err(driver::INVALID_VALUE);
    }
    // SAFETY: the program promises that a pointer that is not null can be written.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// The program begins to use the driver: from now on the daemon knows it.
extern "C" fn init(flags: u32) -> u32 {
    control_thread::start();
    call_driver!(flags: u32)
}

/// The UUID of a GPU, which does not change.
pub fn uuid(device: c_int) -> [u8; 16] {
    static KNOWN: [OnceLock<[u8; 16]>; 64] = [const { OnceLock::new() }; 64];
    let ask = || {
        let mut uuid = [0; 16];
        driver::cuDeviceGetUuid_v2(&raw mut uuid, device);
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
            driver::cuDeviceGetAttribute(&raw mut value, attribute, device);
            value != 0
        })
    };
    let [rdma, is_shareable] = KNOWN.get(device as usize).map_or([false; 2], |known| *known.get_or_init(ask));
    AllocationProperties {
        kind: 1,
        // Requested for every allocation: a program may share memory that it allocated long before.
        handle_types: if is_shareable { ipc::DESCRIPTOR } else { 0 },
        location: driver::MemLocation { kind: ON_GPU, id: device },
        rdma: u8::from(rdma),
        ..AllocationProperties::default()
    }
}

/// Allocates memory of a GPU and an address range, and maps one at the other. If memory is short, idle memory of pools
/// is given back first.
fn allocate(bytes: u64, context: usize, device: c_int) -> Result<u64, u32> {
    let once = || allocate_once(bytes, context, device, MappingOwner::Plain, &peer_access::access_to(device));
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

/// Like [`allocate`], from memory that is free now. `others`: what other GPUs may do with the memory.
pub fn allocate_once(
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
    as_result(driver::cuMemAddressReserve(&raw mut at, length, 0, 0, 0))?;
    let created = as_result(driver::cuMemCreate(&raw mut real, length, &raw const properties, 0));
    let shown = created.and_then(|()| {
        let mapped = as_result(driver::cuMemMap(at, length, 0, real, 0));
        let shown = mapped.and_then(|()| as_result(driver::cuMemSetAccess(at, length, access.as_ptr(), access.len())));
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
    as_result(driver::cuMemSetAccess(at, bytes as usize, &raw const access, 1))?;
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
            as_result(driver::cuEventCreate(&raw mut event, driver::NO_TIMING))?;
            EVENTS.lock().unwrap_or_else(PoisonError::into_inner).insert(context, event);
            event
        }
    };
    as_result(driver::cuEventQuery(event))
}

/// Waits for the GPU as freeing does: for all work in the context of the freed memory, whichever context is current.
/// Returns false without waiting if a capture is open, because the wait would spoil it.
pub fn wait_for_context_work(context: usize) -> Result<bool, u32> {
    let wait = || match current_context() {
        Ok((own, _)) if own == context => driver::cuCtxSynchronize(),
        _ => result_code(driver::with_context(context, || as_result(driver::cuCtxSynchronize()))),
    };
    match gate::unless_capturing(wait) {
        Some(result) => as_result(result).map(|()| true),
        None => Ok(false),
    }
}

/// Frees allocations that could not be freed while a capture was open.
fn free_deferred() {
    let waiting = std::mem::take(&mut memory_table::lock().deferred);
    if waiting.is_empty() {
        return;
    }
    let contexts: BTreeSet<usize> = waiting.iter().map(|(_, block)| block.context).collect();
    let settled: BTreeSet<usize> =
        contexts.into_iter().filter(|context| wait_for_context_work(*context) == Ok(true)).collect();
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
    if block.is_import {
        return ipc::unmap(at);
    }
    ipc::forget_export(&block);
    let whole = if block.is_small { memory_table::lock().small.give_back(at) } else { Some(at) };
    if let Some(first) = whole {
        drop_mapping(first);
    }
}

/// Frees what was allocated in a context that is gone.
fn end_context(context: usize) {
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

/// Forgets a context before it ends, because a new context can get its handle.
fn forget_context(context: usize) {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&context);
    contexts::forget(context);
}

/// Every form of `cuCtxCreate` has its result pointer first, and the other arguments in registers.
extern "C" fn context_create(place: *mut usize, a: usize, b: usize, c: usize, d: usize) -> u32 {
    let result = call_driver!(place: *mut usize, a: usize, b: usize, c: usize, d: usize);
    note_context(result, place)
}

extern "C" fn primary_retain(place: *mut usize, device: c_int) -> u32 {
    let result = call_driver!(place: *mut usize, device: c_int);
    note_context(result, place)
}

fn note_context(result: u32, place: *mut usize) -> u32 {
    if result == driver::SUCCESS && !place.is_null() {
        // SAFETY: the driver has just written there.
        contexts::add(unsafe { place.read_unaligned() });
    }
    result
}

extern "C" fn context_destroy(context: usize) -> u32 {
    let _going = contexts::keep_all();
    let was_known = contexts::all().contains(&context);
    forget_context(context);
    let result = call_driver!(context: usize);
    if result == driver::SUCCESS {
        end_context(context);
    } else if was_known {
        contexts::add(context);
    }
    result
}

extern "C" fn enable_peer(context: usize, flags: u32) -> u32 {
    let result = call_driver!(context: usize, flags: u32);
    match as_result(result).and_then(|()| peer_access::enabled(context)) {
        Err(error) if result == driver::SUCCESS => {
            // Access to all mappings, or to none.
            driver::cuCtxDisablePeerAccess(context);
            error
        }
        _ => result,
    }
}

extern "C" fn disable_peer(context: usize) -> u32 {
    let result = call_driver!(context: usize);
    let told = result_code(as_result(result).and_then(|()| peer_access::disabled(context)));
    if result == driver::SUCCESS && !peer_access::is_any() && !pool::is_reached() {
        lease_page::clear_obstacle(ParkObstacle::Peers);
    }
    told
}

/// The primary context of a GPU; `None` if it is not active.
fn primary(device: c_int) -> Option<usize> {
    let (mut flags, mut active) = (0, 0);
    driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active);
    if active == 0 {
        return None;
    }
    let mut context = 0;
    as_result(driver::cuDevicePrimaryCtxRetain(&raw mut context, device)).ok()?;
    driver::cuDevicePrimaryCtxRelease_v2(device);
    Some(context)
}

extern "C" fn primary_release(device: c_int) -> u32 {
    let _going = contexts::keep_all();
    let before = primary(device);
    before.into_iter().for_each(forget_context);
    let result = call_driver!(device: c_int);
    let (mut flags, mut active) = (0, 1);
    driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active);
    match (before, result, active) {
        (Some(context), driver::SUCCESS, 0) => end_context(context),
        // The primary context is still retained elsewhere in the program.
        (Some(context), ..) => contexts::add(context),
        _ => {}
    }
    result
}

fn alloc(bytes: u64) -> Result<u64, u32> {
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

extern "C" fn mem_alloc(place: *mut u64, bytes: usize) -> u32 {
    if place.is_null() || bytes == 0 {
        return call_driver!(place: *mut u64, bytes: usize);
    }
    result_code(alloc(bytes as u64).and_then(|at| write_out(place, at)))
}

extern "C" fn mem_alloc_pitch(place: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) -> u32 {
    let line = width.checked_next_multiple_of(PITCH);
    let bytes = line.and_then(|line| line.checked_mul(height)).filter(|bytes| *bytes > 0);
    let (Some(line), Some(bytes)) = (line, bytes) else {
        return call_driver!(place: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32);
    };
    if place.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return driver::INVALID_VALUE;
    }
    result_code(alloc(bytes as u64).and_then(|at| {
        write_out(pitch, line)?;
        write_out(place, at)
    }))
}

extern "C" fn mem_free(at: u64) -> u32 {
    let block = memory_table::lock().blocks.get(&at).copied();
    if block.is_some_and(|block| block.is_import) {
        return driver::INVALID_VALUE;
    }
    let is_parked = gate::is_away();
    let Some(block) = block else {
        // It is the driver's own allocation and on the GPU: the driver decides whether to free it.
        let result = call_driver!(at: u64);
        if result == driver::SUCCESS {
            pools::forget_driver_pool_block(at);
            unmovable_memory::forget(ParkObstacle::Managed, at);
        }
        return result;
    };
    // Freeing waits for the GPU, but not while the memory is away: then nothing runs.
    let is_settled = match if is_parked { Ok(true) } else { wait_for_context_work(block.context) } {
        Ok(is_settled) => is_settled,
        Err(error) => return error,
    };
    let mut table = memory_table::lock();
    // Another thread may have freed it meanwhile.
    if table.blocks.remove(&at).is_none() {
        return driver::INVALID_VALUE;
    }
    if !is_settled {
        table.deferred.push((at, block));
        return driver::SUCCESS;
    }
    drop(table);
    drop_block((at, block));
    if !is_parked {
        free_deferred();
    }
    driver::SUCCESS
}

/// Frees an allocation that is away: nothing runs that could use it.
pub fn free_parked(at: u64) {
    let block = memory_table::lock().blocks.remove(&at);
    match block {
        Some(block) => drop_block((at, block)),
        None => {
            if driver::cuMemFree_v2(at) == driver::SUCCESS {
                pools::forget_driver_pool_block(at);
            }
        }
    }
}

/// An address as the driver may be asked about it: an address of the shim's memory outside the program's allocations is
/// replaced by one where nothing is.
fn address_for_driver(at: u64) -> u64 {
    if memory_table::lock().is_hidden(at) { UNUSED_ADDRESS } else { at }
}

extern "C" fn address_range(base: *mut u64, size: *mut usize, at: u64) -> u32 {
    let at = address_for_driver(at);
    let table = memory_table::lock();
    let mapped = table.mapping(at).map(|(first, mapping)| (first, mapping.bytes));
    let found = match table.block(at) {
        Some((first, block)) => Some((first, block.bytes)),
        // While the memory is away the driver does not know it.
        None => mapped.filter(|_| gate::is_away()),
    };
    drop(table);
    let Some((first, bytes)) = found else {
        return call_driver!(base: *mut u64, size: *mut usize, at: u64);
    };
    let base_told = if base.is_null() { Ok(()) } else { write_out(base, first) };
    result_code(base_told.and_then(|()| if size.is_null() { Ok(()) } else { write_out(size, bytes as usize) }))
}

extern "C" fn mem_info(free: *mut usize, total: *mut usize) -> u32 {
    let (mut left, mut all) = (0, 0);
    let asked = as_result(driver::cuMemGetInfo_v2(&raw mut left, &raw mut all));
    result_code(asked.and_then(|()| {
        let (_, device) = current_context()?;
        let (left, all) = lease_page::leased_memory(&uuid(device), left as u64, all as u64);
        let excess = if !gate::is_away() { pool::excess_bytes(device) } else { 0 };
        let left = left.saturating_add(excess).min(all);
        if !free.is_null() {
            write_out(free, left as usize)?;
        }
        if total.is_null() { Ok(()) } else { write_out(total, all as usize) }
    }))
}

extern "C" fn mem_create(place: *mut u64, bytes: usize, wanted: *const AllocationProperties, flags: u64) -> u32 {
    if place.is_null() || wanted.is_null() {
        return driver::INVALID_VALUE;
    }
    // SAFETY: the program promises that a pointer that is not null can be read.
    let properties = unsafe { wanted.read_unaligned() };
    if properties.location.kind != ON_GPU {
        return call_driver!(place: *mut u64, bytes: usize, wanted: *const AllocationProperties, flags: u64);
    }
    let (device, bytes) = (properties.location.id, bytes as u64);
    let uuid = uuid(device);
    let is_there = lease_page::reserve(&uuid, device, bytes)
        || (pool::release_idle_spans(device) && lease_page::reserve(&uuid, device, bytes));
    if !is_there {
        return driver::OUT_OF_MEMORY;
    }
    let mut real = 0;
    let mut made = driver::cuMemCreate(&raw mut real, bytes as usize, wanted, flags);
    if made == driver::OUT_OF_MEMORY && pool::release_idle_spans(device) {
        made = driver::cuMemCreate(&raw mut real, bytes as usize, wanted, flags);
    }
    if let Err(error) = as_result(made) {
        lease_page::give_back(&uuid, device, bytes);
        return error;
    }
    let context = current_context().map_or(0, |(context, _)| context);
    let (mapped, arena) = (BTreeSet::new(), None);
    let physical =
        ParkableMemory { real: Some(real), bytes, properties, flags, uuid, context, count: 1, mapped, arena };
    result_code(write_out(place, memory_table::lock().add_memory(physical)))
}

/// The driver's handle for one of the shim's; a handle that is not the shim's is returned unchanged.
fn real_handle(handle: u64) -> u64 {
    memory_table::lock().physical.get(&handle).map_or(handle, |physical| physical.real.unwrap_or(0))
}

extern "C" fn mem_map(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> u32 {
    let real = real_handle(handle);
    let result = driver::cuMemMap(at, bytes, offset, real, flags);
    if result == driver::SUCCESS && real != handle {
        let mapping = MemoryMapping {
            handle,
            bytes: bytes as u64,
            offset: offset as u64,
            access: Vec::new(),
            owner: MappingOwner::Program,
        };
        memory_table::lock().map(at, mapping);
    }
    result
}

/// Frees an address range with the driver's function; refused while a mapping, also of parked memory, is in it.
extern "C" fn address_free(at: u64, bytes: usize) -> u32 {
    let is_used = memory_table::lock().mappings.range(at..at.saturating_add(bytes as u64)).next().is_some();
    if is_used { driver::INVALID_VALUE } else { call_driver!(at: u64, bytes: usize) }
}

extern "C" fn mem_unmap(at: u64, bytes: usize) -> u32 {
    let result = driver::cuMemUnmap(at, bytes);
    if result == driver::SUCCESS {
        let gone = memory_table::lock().unmap(at, bytes as u64);
        gone.into_iter().for_each(release);
    }
    result
}

/// Frees memory that has no handle and no mapping left.
fn release(physical: ParkableMemory) {
    if let Some(real) = physical.real {
        driver::cuMemRelease(real);
    }
    lease_page::give_back(&physical.uuid, physical.properties.location.id, physical.bytes);
}

extern "C" fn mem_set_access(at: u64, bytes: usize, given: *const LocationAccess, count: usize) -> u32 {
    let result = driver::cuMemSetAccess(at, bytes, given, count);
    if result == driver::SUCCESS && !given.is_null() {
        // SAFETY: the driver has just read `count` entries.
        let given: Vec<LocationAccess> =
            (0..count).map(|number| unsafe { given.add(number).read_unaligned() }).collect();
        memory_table::lock().note_access(at, bytes as u64, &given);
    }
    result
}

extern "C" fn mem_release(handle: u64) -> u32 {
    let mut table = memory_table::lock();
    let Some(physical) = table.physical.get_mut(&handle).filter(|physical| physical.count > 0) else {
        drop(table);
        return driver::cuMemRelease(handle);
    };
    physical.count -= 1;
    let gone = table.forget_unused(handle);
    drop(table);
    gone.into_iter().for_each(release);
    driver::SUCCESS
}

extern "C" fn mem_retain(place: *mut u64, at: *mut c_void) -> u32 {
    let mut table = memory_table::lock();
    let found = table.mapping(at as u64).map(|(_, mapping)| mapping.handle);
    // Plain allocations have no handle for the program.
    let is_plain = table.block(at as u64).is_some();
    let Some(physical) = found.filter(|_| !is_plain).and_then(|handle| table.physical.get_mut(&handle)) else {
        drop(table);
        return if is_plain { driver::INVALID_VALUE } else { call_driver!(place: *mut u64, at: *mut c_void) };
    };
    physical.count += 1;
    drop(table);
    result_code(write_out(place, found.unwrap_or(0)))
}

extern "C" fn mem_properties(place: *mut AllocationProperties, handle: u64) -> u32 {
    driver::cuMemGetAllocationPropertiesFromHandle(place, real_handle(handle))
}

extern "C" fn mem_export(place: *mut c_void, handle: u64, kind: c_int, flags: u64) -> u32 {
    let result = driver::cuMemExportToShareableHandle(place, real_handle(handle), kind, flags);
    if result == driver::SUCCESS {
        lease_page::set_obstacle(ParkObstacle::Shared, "cuMemExportToShareableHandle");
    }
    result
}

extern "C" fn ipc_get(place: *mut IpcHandle, at: u64) -> u32 {
    match ipc::handle_for(at).filter(|_| !place.is_null()) {
        Some(handle) => result_code(write_out(place, handle)),
        None => {
            let result = call_driver!(place: *mut IpcHandle, at: u64);
            shared_by_driver(result)
        }
    }
}

extern "C" fn ipc_open(place: *mut u64, handle: IpcHandle, flags: u32) -> u32 {
    if place.is_null() {
        return driver::INVALID_VALUE;
    }
    match ipc::open_handle(&handle, flags) {
        Some(opened) => result_code(opened.and_then(|at| write_out(place, at))),
        None => {
            let result = call_driver!(place: *mut u64, handle: IpcHandle, flags: u32);
            shared_by_driver(result)
        }
    }
}

/// Memory that the driver itself shares is not moved.
fn shared_by_driver(result: u32) -> u32 {
    if result == driver::SUCCESS {
        lease_page::set_obstacle(ParkObstacle::Shared, gate::current_slot().name());
    }
    result
}

extern "C" fn ipc_close(at: u64) -> u32 {
    match ipc::close_import(at) {
        Some(closed) => result_code(closed),
        None => call_driver!(at: u64),
    }
}

/// Answers about plain allocations as if the driver had made them: with a context and a range. Other answers come from
/// the driver, except while the memory is away: then they come from the table.
fn known_attribute(attribute: c_int, at: u64) -> Option<u64> {
    let block = memory_table::lock().block(at);
    if let Some((first, block)) = block {
        match attribute {
            1 => return Some(block.context as u64),
            7 => return Some(block.id),
            10 => return Some(u64::from(block.pool == 0 && !block.is_import)),
            14 => return Some(0),
            11 => return Some(first),
            12 => return Some(block.bytes),
            17 if block.pool != 0 => return Some(pool::handle_of(block.pool)),
            _ => {}
        }
    }
    if !gate::is_away() {
        return None;
    }
    let table = memory_table::lock();
    let (mapped_at, mapping) = table.mapping(at)?;
    let device = table.physical.get(&mapping.handle)?.properties.location.id;
    let (id, mapped_bytes) = (mapping.handle, mapping.bytes);
    drop(table);
    Some(match attribute {
        2 => 2,
        3 => at,
        9 => device as u64,
        // Memory that the program mapped itself belongs to no context.
        1 | 6 | 8 | 10 | 14 | 15 | 17 | 21 => 0,
        7 | 20 => id,
        11 | 19 => mapped_at,
        12 | 18 => mapped_bytes,
        13 => 1,
        16 => 3,
        _ => return None,
    })
}

/// How many bytes the answer to a pointer attribute has.
fn width(attribute: c_int) -> usize {
    match attribute {
        6 | 8 | 10 | 13 | 15 | 21 => 1,
        2 | 9 | 16 => 4,
        _ => 8,
    }
}

fn write_attribute(place: *mut c_void, attribute: c_int, value: u64) -> Result<(), u32> {
    match width(attribute) {
        1 => write_out(place.cast(), value as u8),
        4 => write_out(place.cast(), value as u32),
        _ => write_out(place.cast(), value),
    }
}

extern "C" fn pointer_attribute(place: *mut c_void, attribute: c_int, at: u64) -> u32 {
    let at = address_for_driver(at);
    match known_attribute(attribute, at) {
        Some(value) => result_code(write_attribute(place, attribute, value)),
        None => call_driver!(place: *mut c_void, attribute: c_int, at: u64),
    }
}

extern "C" fn pointer_attributes(count: u32, attributes: *const c_int, places: *const *mut c_void, at: u64) -> u32 {
    let at = address_for_driver(at);
    let result = call_driver!(count: u32, attributes: *const c_int, places: *const *mut c_void, at: u64);
    if result != driver::SUCCESS || attributes.is_null() || places.is_null() {
        return result;
    }
    for number in 0..count as usize {
        // SAFETY: the driver has just read that many, and written to the places.
        let (attribute, place) = unsafe { (attributes.add(number).read(), places.add(number).read()) };
        if let Some(value) = known_attribute(attribute, at) {
            // A place that the driver could write to can be written to.
            let _ = write_attribute(place, attribute, value);
        }
    }
    result
}
