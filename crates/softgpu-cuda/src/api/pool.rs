//! Stream-ordered memory, and its pools.

use super::pointers::{CallerIn, CallerOut};
use super::vmm::{CuMemAccessDesc, CuMemLocation};
use super::{checked_place, exports, read_in, streamed, write_out};
use crate::log;
use crate::pool::GpuPool;
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::MemoryKind;
use crate::stream::{resolve, submit_or_capture};
use crate::vmm::ON_GPU;
use crate::work::JobWork;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError};

/// `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuMemPoolProps {
    kind: c_int,
    handle_types: c_int,
    location: CuMemLocation,
    windows: usize,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}

fn pool(runtime: &Runtime, handle: usize) -> Outcome<Arc<GpuPool>> {
    runtime.pools.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

/// Attributes up to number 3 have four bytes, the others eight.
fn is_short(attribute: c_int) -> bool {
    attribute <= 3
}

fn alloc(bytes: usize, from: Option<usize>, stream: usize, own: bool) -> Outcome<u64> {
    let (runtime, stream) = resolve(stream, own)?;
    let _pass = runtime.client.pass_gate();
    let from = match from {
        Some(handle) => pool(runtime, handle)?,
        None => runtime.current_pool(stream.context.gpu),
    };
    if runtime.frontier(&stream)?.is_some() {
        let place = runtime.reserve_for_graph(bytes as u64)?;
        runtime.capture(&stream, || JobWork::Allocate(Arc::clone(&place), bytes as u64))?;
        return Ok(place.at);
    }
    let found = from.alloc(runtime, stream.context.handle, bytes as u64);
    // Memory that is being freed may be enough.
    if found == Err(CuResult::OUT_OF_MEMORY) {
        runtime.engine.wait(&runtime.engine.last_jobs_of(&stream));
        return from.alloc(runtime, stream.context.handle, bytes as u64);
    }
    found
}

fn at_location(runtime: &Runtime, location: CallerIn<CuMemLocation>) -> Outcome<usize> {
    let location = read_in(location)?;
    if location.kind != ON_GPU {
        return Err(CuResult::NOT_SUPPORTED);
    }
    runtime.gpu(location.id)
}

fn choose(runtime: &Runtime, gpu: usize, handle: usize) -> Outcome {
    let chosen = pool(runtime, handle)?;
    if chosen.gpu != gpu {
        return Err(CuResult::INVALID_VALUE);
    }
    *runtime.current_pools[gpu].lock().unwrap_or_else(PoisonError::into_inner) = Some(chosen);
    Ok(())
}

exports! {
    "cuDeviceGetDefaultMemPool" 11020 fn cuDeviceGetDefaultMemPool(place: CallerOut<usize>, device: c_int) {
        let runtime = Runtime::get()?;
        write_out(place, runtime.default_pool(runtime.gpu(device)?).handle)
    }
    "cuDeviceGetMemPool" 11020 fn cuDeviceGetMemPool(place: CallerOut<usize>, device: c_int) {
        let runtime = Runtime::get()?;
        write_out(place, runtime.current_pool(runtime.gpu(device)?).handle)
    }
    "cuDeviceSetMemPool" 11020 fn cuDeviceSetMemPool(device: c_int, handle: usize) {
        let runtime = Runtime::get()?;
        choose(runtime, runtime.gpu(device)?, handle)
    }
    "cuMemGetDefaultMemPool" 13000 fn cuMemGetDefaultMemPool(place: CallerOut<usize>, location: CallerIn<CuMemLocation>, _kind: c_int) {
        let runtime = Runtime::get()?;
        write_out(place, runtime.default_pool(at_location(runtime, location)?).handle)
    }
    "cuMemGetMemPool" 13000 fn cuMemGetMemPool(place: CallerOut<usize>, location: CallerIn<CuMemLocation>, _kind: c_int) {
        let runtime = Runtime::get()?;
        write_out(place, runtime.current_pool(at_location(runtime, location)?).handle)
    }
    "cuMemSetMemPool" 13000 fn cuMemSetMemPool(location: CallerIn<CuMemLocation>, _kind: c_int, handle: usize) {
        let runtime = Runtime::get()?;
        choose(runtime, at_location(runtime, location)?, handle)
    }
    "cuMemPoolCreate" 11020 fn cuMemPoolCreate(place: CallerOut<usize>, properties: CallerIn<CuMemPoolProps>) {
        let runtime = Runtime::get()?;
        let properties = read_in(properties)?;
        if properties.kind != 1 || properties.location.kind != ON_GPU || properties.handle_types != 0 {
            log::once("pools are of GPUs, and are not handed on");
            return Err(CuResult::NOT_SUPPORTED);
        }
        let gpu = runtime.gpu(properties.location.id)?;
        write_out(checked_place(place)?, GpuPool::create(runtime, gpu, properties.max_size as u64, false).handle)
    }
    "cuMemPoolDestroy" 11020 fn cuMemPoolDestroy(handle: usize) {
        let runtime = Runtime::get()?;
        let own = pool(runtime, handle)?;
        if own.is_default {
            return Err(CuResult::INVALID_VALUE);
        }
        own.trim(0);
        let mut current = runtime.current_pools[own.gpu].lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|chosen| chosen.handle == handle);
        runtime.pools.remove(handle).map(drop)
    }
    "cuMemPoolTrimTo" 11020 fn cuMemPoolTrimTo(handle: usize, keep: usize) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        pool(runtime, handle)?.trim(keep as u64);
        Ok(())
    }
    "cuMemPoolGetAttribute" 11020 fn cuMemPoolGetAttribute(handle: usize, attribute: c_int, place: CallerOut<c_void>) {
        let value = pool(Runtime::get()?, handle)?.get(attribute)?;
        // SAFETY: the caller of the C function promises room for this attribute.
        unsafe {
            match is_short(attribute) {
                true => write_out(place.cast(), value as u32),
                false => write_out(place.cast(), value),
            }
        }
    }
    "cuMemPoolSetAttribute" 11020 fn cuMemPoolSetAttribute(handle: usize, attribute: c_int, place: CallerOut<c_void>) {
        let own = pool(Runtime::get()?, handle)?;
        // SAFETY: the caller of the C function promises a value of this attribute.
        let value = unsafe {
            match is_short(attribute) {
                true => place.cast::<u32>().read()?.into(),
                false => place.cast::<u64>().read()?,
            }
        };
        own.set(attribute, value)
    }
    "cuMemPoolSetAccess" 11020 fn cuMemPoolSetAccess(handle: usize, allowed: CallerIn<CuMemAccessDesc>, count: usize) {
        let runtime = Runtime::get()?;
        let own = pool(runtime, handle)?;
        // SAFETY: the caller of the C function promises a list of that length.
        for one in unsafe { allowed.read_list(count)? } {
            if one.location.kind != ON_GPU {
                continue;
            }
            let gpu = runtime.gpu(one.location.id)?;
            // A GPU always has access to its own pool.
            if gpu == own.gpu && one.flags != 3 {
                return Err(CuResult::INVALID_DEVICE);
            }
            own.set_reach(gpu, one.flags != 0);
        }
        Ok(())
    }
    "cuMemPoolGetAccess" 11020 fn cuMemPoolGetAccess(flags: CallerOut<c_int>, handle: usize, location: CallerIn<CuMemLocation>) {
        let runtime = Runtime::get()?;
        let own = pool(runtime, handle)?;
        let location = read_in(location)?;
        let gpu = if location.kind == ON_GPU { runtime.gpu(location.id)? } else { own.gpu };
        write_out(flags, if gpu == own.gpu || own.is_reached_by(gpu) { 3 } else { 0 })
    }
}

streamed! { own;
    "cuMemAllocAsync" 11020 fn cuMemAllocAsync, cuMemAllocAsync_ptsz(place: CallerOut<u64>, bytes: usize, stream: usize) {
        write_out(checked_place(place)?, alloc(bytes, None, stream, own)?)
    }
    "cuMemAllocFromPoolAsync" 11020 fn cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(
        place: CallerOut<u64>, bytes: usize, pool: usize, stream: usize,
    ) {
        write_out(checked_place(place)?, alloc(bytes, Some(pool), stream, own)?)
    }
    "cuMemFreeAsync" 11020 fn cuMemFreeAsync, cuMemFreeAsync_ptsz(at: u64, stream: usize) {
        current()?;
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        let kind = runtime.space.snapshot().find(at).filter(|(first, _)| *first == at).map(|(_, block)| block.kind);
        // Memory of a graph may be allocated only when the graph runs.
        let is_freeable = runtime.is_graph_memory(at)
            || kind.is_some_and(|kind| matches!(kind, MemoryKind::Pool(_) | MemoryKind::Device));
        if is_freeable { submit_or_capture(runtime, &stream, JobWork::Free(at)) } else { Err(CuResult::INVALID_VALUE) }
    }
}
