//! Stream-ordered memory and its pools: the shim's own, where possible.

use super::{result_code, uuid, write_out};
use crate::driver::{self, LocationAccess, MemLocation, ON_GPU, current_context};
use crate::gate;
use crate::lease_page::{self, ParkObstacle};
use crate::memory_table::{self, DriverPoolBlock};
use crate::pool::{self, PoolStream};
use crate::unmovable_memory;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

/// How much memory of the driver's own pools may stay on the GPU when the rest is parked.
const DRIVER_POOL_MAX: u64 = 256 << 20;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;

/// `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PoolProps {
    kind: c_int,
    handle_types: c_int,
    location: MemLocation,
    windows: usize,
    max_bytes: usize,
    usage: u16,
    reserved: [u8; 54],
}

/// True if the current call is the form of a function in which stream zero is the thread's own.
fn is_own_form(known: &OnceLock<usize>, name: &CStr) -> bool {
    gate::current_slot().real() == *known.get_or_init(|| driver::find_function(name))
}

/// True if a stream is being captured: its allocations then belong to the graph.
fn is_captured(stream: usize, is_own: bool) -> bool {
    let stream = if stream == 0 && is_own { pool::PER_THREAD } else { stream };
    let mut status = 0;
    gate::is_capturing() && driver::cuStreamIsCapturing(stream, &raw mut status) == driver::SUCCESS && status != 0
}

/// Records an allocation from a pool of the driver, which stays on the GPU.
fn add_driver_pool_block(at: u64, block: DriverPoolBlock) {
    let mut table = memory_table::lock();
    table.driver_pool_blocks.insert(at, block);
    let all: u64 = table.driver_pool_blocks.values().map(|block| block.bytes).sum();
    drop(table);
    if all > DRIVER_POOL_MAX {
        lease_page::set_obstacle(ParkObstacle::StreamOrdered, "cuMemAllocFromPoolAsync");
    }
}

/// Allocates with the driver's own function, which writes the address to `place`.
fn allocate_with_driver(place: *mut u64, bytes: usize, call_driver: impl FnOnce() -> u32) -> u32 {
    let device = match current_context() {
        Ok((_, device)) => device,
        Err(error) => return error,
    };
    let uuid = uuid(device);
    if !lease_page::reserve(&uuid, device, bytes as u64) {
        return driver::OUT_OF_MEMORY;
    }
    let result = call_driver();
    if result == driver::SUCCESS {
        // SAFETY: the driver has just written there.
        let at = unsafe { place.read_unaligned() };
        add_driver_pool_block(at, DriverPoolBlock { bytes: bytes as u64, uuid, device });
        super::unmovable::mark_if_managed(at, "cuMemAllocFromPoolAsync");
    } else {
        lease_page::give_back(&uuid, device, bytes as u64);
    }
    result
}

pub extern "C" fn alloc_async(place: *mut u64, bytes: usize, stream: usize) -> u32 {
    static OWN_FORM: OnceLock<usize> = OnceLock::new();
    if place.is_null() || bytes == 0 {
        return call_driver!(place: *mut u64, bytes: usize, stream: usize);
    }
    let is_own = is_own_form(&OWN_FORM, c"cuMemAllocAsync_ptsz");
    if is_captured(stream, is_own) {
        unmovable_memory::note_allocating_graph("cuMemAllocAsync");
        return call_driver!(place: *mut u64, bytes: usize, stream: usize);
    }
    let named = PoolStream::named(stream, is_own);
    match named.and_then(|stream| pool::alloc(None, bytes as u64, &stream)) {
        Ok(Some(at)) => result_code(write_out(place, at)),
        Ok(None) => allocate_with_driver(place, bytes, || call_driver!(place: *mut u64, bytes: usize, stream: usize)),
        Err(error) => error,
    }
}

pub extern "C" fn alloc_from_pool_async(place: *mut u64, bytes: usize, from: usize, stream: usize) -> u32 {
    static OWN_FORM: OnceLock<usize> = OnceLock::new();
    if place.is_null() || bytes == 0 {
        return call_driver!(place: *mut u64, bytes: usize, from: usize, stream: usize);
    }
    let is_own = is_own_form(&OWN_FORM, c"cuMemAllocFromPoolAsync_ptsz");
    if is_captured(stream, is_own) {
        unmovable_memory::note_allocating_graph("cuMemAllocFromPoolAsync");
        return call_driver!(place: *mut u64, bytes: usize, from: usize, stream: usize);
    }
    let named = PoolStream::named(stream, is_own);
    match named.and_then(|stream| pool::alloc(Some(from), bytes as u64, &stream)) {
        Ok(Some(at)) => result_code(write_out(place, at)),
        Ok(None) => allocate_with_driver(
            place,
            bytes,
            || call_driver!(place: *mut u64, bytes: usize, from: usize, stream: usize),
        ),
        Err(error) => error,
    }
}

pub extern "C" fn free_async(at: u64, stream: usize) -> u32 {
    static OWN_FORM: OnceLock<usize> = OnceLock::new();
    let is_own = is_own_form(&OWN_FORM, c"cuMemFreeAsync_ptsz");
    if is_captured(stream, is_own) {
        return call_driver!(at: u64, stream: usize);
    }
    let named = || PoolStream::named(stream, is_own);
    if let Some(freed) = pool::free(at, named) {
        return result_code(freed);
    }
    let block = memory_table::lock().blocks.get(&at).copied();
    if let Some(block) = block {
        if block.is_import {
            return driver::INVALID_VALUE;
        }
        // While the memory is away nothing runs that would have to be waited for.
        if gate::is_away() {
            return super::mem_free(at);
        }
        let stream = match named() {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        // Another thread may have freed it meanwhile.
        if memory_table::lock().blocks.remove(&at).is_none() {
            return driver::INVALID_VALUE;
        }
        let later = pool::free_later(at, block, &stream);
        if later.is_err() {
            memory_table::lock().blocks.insert(at, block);
        }
        return result_code(later);
    }
    let result = call_driver!(at: u64, stream: usize);
    if result == driver::SUCCESS {
        forget_driver_pool_block(at);
    }
    result
}

/// Forgets a freed allocation from a pool of the driver.
pub fn forget_driver_pool_block(at: u64) {
    let mut table = memory_table::lock();
    let gone = table.driver_pool_blocks.remove(&at);
    let all: u64 = table.driver_pool_blocks.values().map(|block| block.bytes).sum();
    drop(table);
    if let Some(block) = gone {
        lease_page::give_back(&block.uuid, block.device, block.bytes);
        if all <= DRIVER_POOL_MAX {
            lease_page::clear_obstacle(ParkObstacle::StreamOrdered);
        }
    }
}

pub extern "C" fn create(place: *mut usize, properties: *const PoolProps) -> u32 {
    let result = call_driver!(place: *mut usize, properties: *const PoolProps);
    if result == driver::SUCCESS {
        // SAFETY: the driver has just read the one and written the other.
        let (handle, about) = unsafe { (place.read_unaligned(), properties.read_unaligned()) };
        if about.handle_types != 0 {
            lease_page::set_obstacle(ParkObstacle::Shared, "cuMemPoolCreate");
        } else if about.kind == PINNED && about.location.kind == ON_GPU {
            pool::add_pool(handle, about.location.id, about.max_bytes as u64);
        }
    }
    result
}

pub extern "C" fn destroy(handle: usize) -> u32 {
    // Before it is gone, because a new pool can get its handle.
    let number = pool::forget_handle(handle);
    let result = call_driver!(handle: usize);
    if let Some(number) = number {
        pool::finish_destroy(handle, number, result == driver::SUCCESS);
    }
    result
}

pub extern "C" fn trim(handle: usize, keep: usize) -> u32 {
    let result = call_driver!(handle: usize, keep: usize);
    if result == driver::SUCCESS {
        pool::trim(handle, keep as u64);
    }
    result
}

pub extern "C" fn attribute(handle: usize, attribute: c_int, place: *mut c_void) -> u32 {
    let result = call_driver!(handle: usize, attribute: c_int, place: *mut c_void);
    if result == driver::SUCCESS
        && let Some(value) = pool::attribute(handle, attribute)
    {
        // Attributes up to number 3 have four bytes.
        return result_code(if attribute <= 3 {
            write_out(place.cast(), value as u32)
        } else {
            write_out(place.cast(), value)
        });
    }
    result
}

pub extern "C" fn set_attribute(handle: usize, attribute: c_int, place: *mut c_void) -> u32 {
    let result = call_driver!(handle: usize, attribute: c_int, place: *mut c_void);
    if result == driver::SUCCESS && !place.is_null() {
        // SAFETY: the driver has just read the same bytes.
        let value = unsafe {
            match attribute {
                ..=3 => u64::from(place.cast::<u32>().read_unaligned()),
                _ => place.cast::<u64>().read_unaligned(),
            }
        };
        pool::set_attribute(handle, attribute, value);
    }
    result
}

pub extern "C" fn set_access(handle: usize, given: *const LocationAccess, count: usize) -> u32 {
    let result = call_driver!(handle: usize, given: *const LocationAccess, count: usize);
    if result != driver::SUCCESS || given.is_null() {
        return result;
    }
    // SAFETY: the driver has just read `count` entries.
    let given: Vec<LocationAccess> = (0..count).map(|number| unsafe { given.add(number).read_unaligned() }).collect();
    match pool::set_access(handle, &given) {
        Ok(is_shared) => {
            if is_shared {
                lease_page::set_obstacle(ParkObstacle::Peers, "cuMemPoolSetAccess");
            }
            result
        }
        Err(error) => error,
    }
}

pub extern "C" fn stream_destroy(stream: usize) -> u32 {
    // Before it is gone, because a new stream can get its handle.
    pool::forget_stream(stream);
    call_driver!(stream: usize)
}
