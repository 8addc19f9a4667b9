//! Stream-ordered memory and its pools: the shim's own, where possible.

use crate::driver::{self, LocationAccess, MemLocation, ON_GPU, as_result, current_context, result_code};
use crate::driver_pools;
use crate::gate;
use crate::gpu_memory::uuid;
use crate::lease_page;
use crate::memory_table::{self, DriverPoolBlock};
use crate::message::ParkObstacle;
use crate::out_pointer::{InPtr, OutPtr};
use crate::pool::{self, DefaultStream, PoolStream};
use crate::unmovable_memory;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

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

/// Which stream zero is in the current call: the form of a function with this name has the thread's own.
fn default_stream(known: &OnceLock<usize>, name: &CStr) -> DefaultStream {
    match gate::current_slot().real() == *known.get_or_init(|| driver::find_function(name)) {
        true => DefaultStream::PerThread,
        false => DefaultStream::Legacy,
    }
}

/// True if a stream is being captured: its allocations then belong to the graph.
fn is_captured(stream: usize, default: DefaultStream) -> bool {
    let stream = match default {
        DefaultStream::PerThread => default.explicit(stream),
        DefaultStream::Legacy => stream,
    };
    let mut status = 0;
    gate::is_capturing() && driver::cuStreamIsCapturing(stream, &mut status) == driver::SUCCESS && status != 0
}

/// Allocates with the driver's own function.
///
/// # Safety
/// If it succeeds, it has written the address to `place`.
unsafe fn allocate_with_driver(place: OutPtr<u64>, bytes: usize, call_driver: impl FnOnce() -> u32) -> u32 {
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
        // SAFETY: the caller promises that the driver has just written there.
        if let Some(at) = unsafe { place.read() } {
            driver_pools::add_driver_pool_block(at, DriverPoolBlock { bytes: bytes as u64, uuid, device });
            super::unmovable::mark_if_managed(at, "cuMemAllocFromPoolAsync");
        }
    } else {
        lease_page::give_back(&uuid, device, bytes as u64);
    }
    result
}

pub unsafe extern "C" fn alloc_async(place: OutPtr<u64>, bytes: usize, stream: usize) -> u32 {
    static OWN_FORM: OnceLock<usize> = OnceLock::new();
    if place.is_null() || bytes == 0 {
        return call_driver!(place: OutPtr<u64>, bytes: usize, stream: usize);
    }
    let default = default_stream(&OWN_FORM, c"cuMemAllocAsync_ptsz");
    if is_captured(stream, default) {
        unmovable_memory::note_allocating_graph("cuMemAllocAsync");
        return call_driver!(place: OutPtr<u64>, bytes: usize, stream: usize);
    }
    let named = PoolStream::named(stream, default);
    match named.and_then(|stream| pool::alloc(None, bytes as u64, &stream)) {
        Ok(Some(at)) => result_code(place.write(at)),
        Ok(None) => {
            let call_driver = || call_driver!(place: OutPtr<u64>, bytes: usize, stream: usize);
            // SAFETY: the driver's function writes the address to `place`.
            unsafe { allocate_with_driver(place, bytes, call_driver) }
        }
        Err(error) => error,
    }
}

pub unsafe extern "C" fn alloc_from_pool_async(place: OutPtr<u64>, bytes: usize, from: usize, stream: usize) -> u32 {
    static OWN_FORM: OnceLock<usize> = OnceLock::new();
    if place.is_null() || bytes == 0 {
        return call_driver!(place: OutPtr<u64>, bytes: usize, from: usize, stream: usize);
    }
    let default = default_stream(&OWN_FORM, c"cuMemAllocFromPoolAsync_ptsz");
    if is_captured(stream, default) {
        unmovable_memory::note_allocating_graph("cuMemAllocFromPoolAsync");
        return call_driver!(place: OutPtr<u64>, bytes: usize, from: usize, stream: usize);
    }
    let named = PoolStream::named(stream, default);
    match named.and_then(|stream| pool::alloc(Some(from), bytes as u64, &stream)) {
        Ok(Some(at)) => result_code(place.write(at)),
        Ok(None) => {
            let call_driver = || call_driver!(place: OutPtr<u64>, bytes: usize, from: usize, stream: usize);
            // SAFETY: the driver's function writes the address to `place`.
            unsafe { allocate_with_driver(place, bytes, call_driver) }
        }
        Err(error) => error,
    }
}

pub unsafe extern "C" fn free_async(at: u64, stream: usize) -> u32 {
    static OWN_FORM: OnceLock<usize> = OnceLock::new();
    let default = default_stream(&OWN_FORM, c"cuMemFreeAsync_ptsz");
    if is_captured(stream, default) {
        return call_driver!(at: u64, stream: usize);
    }
    let named = || PoolStream::named(stream, default);
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
            return super::free_own(at, block);
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
        driver_pools::forget_driver_pool_block(at);
    }
    result
}

pub unsafe extern "C" fn create(place: OutPtr<usize>, properties: InPtr<PoolProps>) -> u32 {
    let result = call_driver!(place: OutPtr<usize>, properties: InPtr<PoolProps>);
    // SAFETY: if it succeeded, the driver has just written the handle.
    let handle = if result == driver::SUCCESS { unsafe { place.read() } } else { None };
    if let Some(handle) = handle
        && let Some(about) = properties.read()
    {
        if about.handle_types != 0 {
            lease_page::set_obstacle(ParkObstacle::Shared, "cuMemPoolCreate");
        } else if about.kind == PINNED && about.location.kind == ON_GPU {
            pool::add_pool(handle, about.location.id, about.max_bytes as u64);
        }
    }
    result
}

pub unsafe extern "C" fn destroy(handle: usize) -> u32 {
    // Before it is gone, because a new pool can get its handle.
    let number = pool::forget_handle(handle);
    let result = call_driver!(handle: usize);
    if let Some(number) = number {
        pool::finish_destroy(handle, number, as_result(result));
    }
    result
}

pub unsafe extern "C" fn trim(handle: usize, keep: usize) -> u32 {
    let result = call_driver!(handle: usize, keep: usize);
    if result == driver::SUCCESS {
        pool::trim(handle, keep as u64);
    }
    result
}

pub unsafe extern "C" fn attribute(handle: usize, attribute: c_int, place: OutPtr<c_void>) -> u32 {
    let result = call_driver!(handle: usize, attribute: c_int, place: OutPtr<c_void>);
    if result == driver::SUCCESS
        && let Some(value) = pool::attribute(handle, attribute)
    {
        // SAFETY: the driver has just written a value there. Attributes up to number 3 have four bytes, others eight.
        return result_code(unsafe {
            match attribute {
                ..=3 => place.cast::<u32>().write(value as u32),
                _ => place.cast::<u64>().write(value),
            }
        });
    }
    result
}

pub unsafe extern "C" fn set_attribute(handle: usize, attribute: c_int, place: OutPtr<c_void>) -> u32 {
    let result = call_driver!(handle: usize, attribute: c_int, place: OutPtr<c_void>);
    if result != driver::SUCCESS {
        return result;
    }
    // SAFETY: the driver has just read the same bytes.
    let value = unsafe {
        match attribute {
            ..=3 => place.cast::<u32>().read().map(u64::from),
            _ => place.cast::<u64>().read(),
        }
    };
    value.into_iter().for_each(|value| pool::set_attribute(handle, attribute, value));
    result
}

pub unsafe extern "C" fn set_access(handle: usize, given: InPtr<LocationAccess>, count: usize) -> u32 {
    let result = call_driver!(handle: usize, given: InPtr<LocationAccess>, count: usize);
    if result != driver::SUCCESS || given.is_null() {
        return result;
    }
    // SAFETY: the driver has just read as many.
    match pool::set_access(handle, &unsafe { given.read_list(count) }) {
        Ok(is_shared) => {
            if is_shared {
                lease_page::set_obstacle(ParkObstacle::Peers, "cuMemPoolSetAccess");
            }
            result
        }
        Err(error) => error,
    }
}

pub unsafe extern "C" fn stream_destroy(stream: usize) -> u32 {
    // Before it is gone, because a new stream can get its handle.
    pool::forget_stream(stream);
    call_driver!(stream: usize)
}
