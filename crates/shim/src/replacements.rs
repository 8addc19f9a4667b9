//! Calls that the shim answers itself, or changes: every call that allocates, maps or frees memory.
//!
//! A plain allocation gets memory that can be taken off the GPU: an address range, and memory mapped there. Programs
//! that map memory themselves get handles of the shim.
//!
//! Each `unsafe extern "C"` function here has the arguments of the driver's function that it replaces, with pointers as
//! [`OutPtr`] and [`InPtr`]. It is called by the stub of that function alone, after the gate was passed: the program
//! promises the pointers, and the current slot is that of the driver's function.

use crate::allocations;
use crate::contexts;
use crate::control_thread;
use crate::driver::{self, AllocationProperties, LocationAccess, ON_GPU, as_result, current_context, result_code};
use crate::driver_pools;
use crate::function_class;
use crate::gate;
use crate::gpu_memory::{ContextWork, release, uuid, wait_for_context_work};
use crate::ipc::{self, IpcHandle};
use crate::lease_page;
use crate::memory_table::{self, MappingOwner, MemoryMapping, ParkableMemory, ProgramBlock};
use crate::message::ParkObstacle;
use crate::out_pointer::{InPtr, OutPtr};
use crate::peer_access;
use crate::pool;
use crate::unmovable_memory;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};

/// Rows of a pitched allocation begin at multiples of this.
const PITCH: usize = 512;
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

/// How a program names the function of the driver that it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameForm {
    /// By its symbol, which includes its version suffix.
    Symbol,
    /// By its plain name, in the form that this version of CUDA has.
    Version(c_int),
}

/// The shim's function for one of the driver's; `None` if the driver's is called.
pub fn find_replacement(name: &str, base: &str, form: NameForm) -> Option<usize> {
    let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let is_it = |own: &&Replacement| {
        own.0 == base
            && match form {
                NameForm::Symbol => plain.strip_prefix(base) == Some(own.1),
                NameForm::Version(version) => version >= own.2,
            }
    };
    debug_assert!(function_class::base_name(name) == base);
    REPLACEMENTS.iter().find(is_it).map(|own| own.3 as usize)
}

/// Calls the driver's function that this one replaces.
macro_rules! call_driver {
    ($($argument:ident: $type:ty),*) => {{
        let at = gate::current_slot().real();
        // SAFETY: this function is called for the slot of the driver's function that it replaces, which has these
        // arguments; they are the program's, or checked here.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(at)($($argument),*) }
    }};
}

pub mod context_away;
mod pools;
mod unmovable;

/// The program begins to use the driver: from now on the daemon knows it.
unsafe extern "C" fn init(flags: u32) -> u32 {
    control_thread::start();
    call_driver!(flags: u32)
}

/// Every form of `cuCtxCreate` has its result pointer first, and the other arguments in registers.
unsafe extern "C" fn context_create(place: OutPtr<usize>, a: usize, b: usize, c: usize, d: usize) -> u32 {
    let result = call_driver!(place: OutPtr<usize>, a: usize, b: usize, c: usize, d: usize);
    // SAFETY: that was the driver's call.
    unsafe { note_context(result, place) }
}

unsafe extern "C" fn primary_retain(place: OutPtr<usize>, device: c_int) -> u32 {
    let result = call_driver!(place: OutPtr<usize>, device: c_int);
    // SAFETY: that was the driver's call.
    unsafe { note_context(result, place) }
}

/// # Safety
/// If the result is success, the driver has just written a context to `place`.
unsafe fn note_context(result: u32, place: OutPtr<usize>) -> u32 {
    if result == driver::SUCCESS {
        // SAFETY: the caller promises the value.
        unsafe { place.read() }.into_iter().for_each(contexts::add);
    }
    result
}

unsafe extern "C" fn context_destroy(context: usize) -> u32 {
    let _going = contexts::keep_all();
    let was_known = contexts::all().contains(&context);
    allocations::forget_context(context);
    let result = call_driver!(context: usize);
    if result == driver::SUCCESS {
        allocations::end_context(context);
    } else if was_known {
        contexts::add(context);
    }
    result
}

unsafe extern "C" fn enable_peer(context: usize, flags: u32) -> u32 {
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

unsafe extern "C" fn disable_peer(context: usize) -> u32 {
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
    driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active);
    if active == 0 {
        return None;
    }
    let mut context = 0;
    as_result(driver::cuDevicePrimaryCtxRetain(&mut context, device)).ok()?;
    driver::cuDevicePrimaryCtxRelease_v2(device);
    Some(context)
}

unsafe extern "C" fn primary_release(device: c_int) -> u32 {
    let _going = contexts::keep_all();
    let before = primary(device);
    before.into_iter().for_each(allocations::forget_context);
    let result = call_driver!(device: c_int);
    let (mut flags, mut active) = (0, 1);
    driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active);
    match (before, result, active) {
        (Some(context), driver::SUCCESS, 0) => allocations::end_context(context),
        // The primary context is still retained elsewhere in the program.
        (Some(context), ..) => contexts::add(context),
        _ => {}
    }
    result
}

unsafe extern "C" fn mem_alloc(place: OutPtr<u64>, bytes: usize) -> u32 {
    if place.is_null() || bytes == 0 {
        return call_driver!(place: OutPtr<u64>, bytes: usize);
    }
    result_code(allocations::alloc(bytes as u64).and_then(|at| place.write(at)))
}

unsafe extern "C" fn mem_alloc_pitch(
    place: OutPtr<u64>,
    pitch: OutPtr<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> u32 {
    let line = width.checked_next_multiple_of(PITCH);
    let bytes = line.and_then(|line| line.checked_mul(height)).filter(|bytes| *bytes > 0);
    let (Some(line), Some(bytes)) = (line, bytes) else {
        return call_driver!(place: OutPtr<u64>, pitch: OutPtr<usize>, width: usize, height: usize, element: u32);
    };
    if place.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return driver::INVALID_VALUE;
    }
    result_code(allocations::alloc(bytes as u64).and_then(|at| {
        pitch.write(line)?;
        place.write(at)
    }))
}

unsafe extern "C" fn mem_free(at: u64) -> u32 {
    let block = memory_table::lock().blocks.get(&at).copied();
    if block.is_some_and(|block| block.is_import) {
        return driver::INVALID_VALUE;
    }
    if let Some(block) = block {
        return free_own(at, block);
    }
    // It is the driver's own allocation and on the GPU: the driver decides whether to free it.
    let result = call_driver!(at: u64);
    if result == driver::SUCCESS {
        driver_pools::forget_driver_pool_block(at);
        unmovable_memory::forget(ParkObstacle::Managed, at);
    }
    result
}

/// Frees an allocation of the shim.
fn free_own(at: u64, block: ProgramBlock) -> u32 {
    let is_parked = gate::is_away();
    // Freeing waits for the GPU, but not while the memory is away: then nothing runs.
    let work = match if is_parked { Ok(ContextWork::Done) } else { wait_for_context_work(block.context) } {
        Ok(work) => work,
        Err(error) => return error,
    };
    let mut table = memory_table::lock();
    // Another thread may have freed it meanwhile.
    if table.blocks.remove(&at).is_none() {
        return driver::INVALID_VALUE;
    }
    if work == ContextWork::Captured {
        table.deferred.push((at, block));
        return driver::SUCCESS;
    }
    drop(table);
    allocations::drop_block((at, block));
    if !is_parked {
        allocations::free_deferred();
    }
    driver::SUCCESS
}

/// An address as the driver may be asked about it: an address of the shim's memory outside the program's allocations is
/// replaced by one where nothing is.
fn address_for_driver(at: u64) -> u64 {
    if memory_table::lock().is_hidden(at) { UNUSED_ADDRESS } else { at }
}

unsafe extern "C" fn address_range(base: OutPtr<u64>, size: OutPtr<usize>, at: u64) -> u32 {
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
        return call_driver!(base: OutPtr<u64>, size: OutPtr<usize>, at: u64);
    };
    result_code(base.write_if_wanted(first).and_then(|()| size.write_if_wanted(bytes as usize)))
}

unsafe extern "C" fn mem_info(free: OutPtr<usize>, total: OutPtr<usize>) -> u32 {
    let (mut left, mut all) = (0, 0);
    let asked = as_result(driver::cuMemGetInfo_v2(&mut left, &mut all));
    result_code(asked.and_then(|()| {
        let (_, device) = current_context()?;
        let (left, all) = lease_page::leased_memory(&uuid(device), left as u64, all as u64);
        let excess = if !gate::is_away() { pool::excess_bytes(device) } else { 0 };
        let left = left.saturating_add(excess).min(all);
        free.write_if_wanted(left as usize)?;
        total.write_if_wanted(all as usize)
    }))
}

unsafe extern "C" fn mem_create(
    place: OutPtr<u64>,
    bytes: usize,
    wanted: InPtr<AllocationProperties>,
    flags: u64,
) -> u32 {
    let Some(properties) = wanted.read().filter(|_| !place.is_null()) else { return driver::INVALID_VALUE };
    if properties.location.kind != ON_GPU {
        return call_driver!(place: OutPtr<u64>, bytes: usize, wanted: InPtr<AllocationProperties>, flags: u64);
    }
    let (device, bytes) = (properties.location.id, bytes as u64);
    let uuid = uuid(device);
    let is_there = lease_page::reserve(&uuid, device, bytes)
        || (pool::release_idle_spans(device) && lease_page::reserve(&uuid, device, bytes));
    if !is_there {
        return driver::OUT_OF_MEMORY;
    }
    let mut real = 0;
    let mut made = driver::cuMemCreate(&mut real, bytes as usize, &properties, flags);
    if made == driver::OUT_OF_MEMORY && pool::release_idle_spans(device) {
        made = driver::cuMemCreate(&mut real, bytes as usize, &properties, flags);
    }
    if let Err(error) = as_result(made) {
        lease_page::give_back(&uuid, device, bytes);
        return error;
    }
    let context = current_context().map_or(0, |(context, _)| context);
    let (mapped, arena) = (BTreeSet::new(), None);
    let physical =
        ParkableMemory { real: Some(real), bytes, properties, flags, uuid, context, count: 1, mapped, arena };
    result_code(place.write(memory_table::lock().add_memory(physical)))
}

/// The driver's handle for one of the shim's; a handle that is not the shim's is returned unchanged.
fn real_handle(handle: u64) -> u64 {
    memory_table::lock().physical.get(&handle).map_or(handle, |physical| physical.real.unwrap_or(0))
}

unsafe extern "C" fn mem_map(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> u32 {
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
unsafe extern "C" fn address_free(at: u64, bytes: usize) -> u32 {
    let is_used = memory_table::lock().mappings.range(at..at.saturating_add(bytes as u64)).next().is_some();
    if is_used { driver::INVALID_VALUE } else { call_driver!(at: u64, bytes: usize) }
}

unsafe extern "C" fn mem_unmap(at: u64, bytes: usize) -> u32 {
    let result = driver::cuMemUnmap(at, bytes);
    if result == driver::SUCCESS {
        let gone = memory_table::lock().unmap(at, bytes as u64);
        gone.into_iter().for_each(release);
    }
    result
}

unsafe extern "C" fn mem_set_access(at: u64, bytes: usize, given: InPtr<LocationAccess>, count: usize) -> u32 {
    // SAFETY: the program promises a list of that length.
    let result = unsafe { driver::cuMemSetAccess(at, bytes, given.as_raw(), count) };
    if result == driver::SUCCESS {
        // SAFETY: the driver has just read as many.
        memory_table::lock().note_access(at, bytes as u64, &unsafe { given.read_list(count) });
    }
    result
}

unsafe extern "C" fn mem_release(handle: u64) -> u32 {
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

unsafe extern "C" fn mem_retain(place: OutPtr<u64>, at: *mut c_void) -> u32 {
    let mut table = memory_table::lock();
    // Plain allocations have no handle for the program.
    if table.block(at as u64).is_some() {
        return driver::INVALID_VALUE;
    }
    let handle = table.mapping(at as u64).map(|(_, mapping)| mapping.handle);
    let found = handle.and_then(|handle| Some((handle, table.physical.get_mut(&handle)?)));
    let Some((handle, physical)) = found else {
        drop(table);
        return call_driver!(place: OutPtr<u64>, at: *mut c_void);
    };
    physical.count += 1;
    drop(table);
    result_code(place.write(handle))
}

unsafe extern "C" fn mem_properties(place: OutPtr<AllocationProperties>, handle: u64) -> u32 {
    // SAFETY: the program promises the place, and the driver checks it for null.
    unsafe { driver::cuMemGetAllocationPropertiesFromHandle(place.as_raw(), real_handle(handle)) }
}

unsafe extern "C" fn mem_export(place: OutPtr<c_void>, handle: u64, kind: c_int, flags: u64) -> u32 {
    // SAFETY: the program promises a place for a handle of this kind.
    let result = unsafe { driver::cuMemExportToShareableHandle(place.as_raw(), real_handle(handle), kind, flags) };
    if result == driver::SUCCESS {
        lease_page::set_obstacle(ParkObstacle::Shared, "cuMemExportToShareableHandle");
    }
    result
}

unsafe extern "C" fn ipc_get(place: OutPtr<IpcHandle>, at: u64) -> u32 {
    match ipc::handle_for(at).filter(|_| !place.is_null()) {
        Some(handle) => result_code(place.write(handle)),
        None => {
            let result = call_driver!(place: OutPtr<IpcHandle>, at: u64);
            shared_by_driver(result)
        }
    }
}

unsafe extern "C" fn ipc_open(place: OutPtr<u64>, handle: IpcHandle, flags: u32) -> u32 {
    if place.is_null() {
        return driver::INVALID_VALUE;
    }
    match ipc::open_handle(&handle, flags) {
        Some(opened) => result_code(opened.and_then(|at| place.write(at))),
        None => {
            let result = call_driver!(place: OutPtr<u64>, handle: IpcHandle, flags: u32);
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

unsafe extern "C" fn ipc_close(at: u64) -> u32 {
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

/// # Safety
/// The place has room for the value of this attribute, or is null.
unsafe fn write_attribute(place: OutPtr<c_void>, attribute: c_int, value: u64) -> Result<(), u32> {
    // SAFETY: the caller promises room for as many bytes as the attribute has.
    unsafe {
        match width(attribute) {
            1 => place.cast::<u8>().write(value as u8),
            4 => place.cast::<u32>().write(value as u32),
            _ => place.cast::<u64>().write(value),
        }
    }
}

unsafe extern "C" fn pointer_attribute(place: OutPtr<c_void>, attribute: c_int, at: u64) -> u32 {
    let at = address_for_driver(at);
    match known_attribute(attribute, at) {
        // SAFETY: the program promises room for this attribute.
        Some(value) => result_code(unsafe { write_attribute(place, attribute, value) }),
        None => call_driver!(place: OutPtr<c_void>, attribute: c_int, at: u64),
    }
}

unsafe extern "C" fn pointer_attributes(
    count: u32,
    attributes: InPtr<c_int>,
    places: InPtr<OutPtr<c_void>>,
    at: u64,
) -> u32 {
    let at = address_for_driver(at);
    let result = call_driver!(count: u32, attributes: InPtr<c_int>, places: InPtr<OutPtr<c_void>>, at: u64);
    if result != driver::SUCCESS || attributes.is_null() || places.is_null() {
        return result;
    }
    // SAFETY: the driver has just read that many.
    let (attributes, places) = unsafe { (attributes.read_list(count as usize), places.read_list(count as usize)) };
    for (attribute, place) in attributes.into_iter().zip(places) {
        if let Some(value) = known_attribute(attribute, at) {
            // SAFETY: the driver has just written the value of this attribute there.
            let written = unsafe { write_attribute(place, attribute, value) };
            debug_assert!(written.is_ok(), "the driver accepted a null pointer for attribute {attribute}");
        }
    }
    result
}
