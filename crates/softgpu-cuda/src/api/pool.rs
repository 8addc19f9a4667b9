//! Stream-ordered memory, and its pools.

use super::vmm::{Allowed, Location};
use super::{exports, list, place_for, put, streamed, take};
use crate::log;
use crate::pool::Pool;
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::Kind;
use crate::stream::{give, resolve};
use crate::vmm::ON_CARD;
use crate::work::Work;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError};

/// `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PoolProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    windows: usize,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}

fn pool(runtime: &Runtime, handle: usize) -> Outcome<Arc<Pool>> {
    runtime.pools.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

/// Attributes up to number 3 have four bytes, the others eight.
fn is_short(attribute: c_int) -> bool {
    attribute <= 3
}

fn alloc(bytes: usize, from: Option<usize>, stream: usize, own: bool) -> Outcome<u64> {
    let (runtime, stream) = resolve(stream, own)?;
    let _inside = runtime.seat.pass();
    let from = match from {
        Some(handle) => pool(runtime, handle)?,
        None => runtime.current_pool(stream.context.card),
    };
    if runtime.frontier(&stream)?.is_some() {
        let place = runtime.reserve_for_graph(bytes as u64)?;
        runtime.capture(&stream, || Work::Take(Arc::clone(&place), bytes as u64))?;
        return Ok(place.at);
    }
    let found = from.alloc(runtime, stream.context.handle, bytes as u64);
    // Memory that is being freed may be enough.
    if found == Err(CuResult::OUT_OF_MEMORY) {
        runtime.engine.wait(&runtime.engine.last_of(&stream));
        return from.alloc(runtime, stream.context.handle, bytes as u64);
    }
    found
}

fn at_location(runtime: &Runtime, location: *const Location) -> Outcome<usize> {
    let location = take(location)?;
    if location.kind != ON_CARD {
        return Err(CuResult::NOT_SUPPORTED);
    }
    runtime.card(location.id)
}

fn choose(runtime: &Runtime, card: usize, handle: usize) -> Outcome {
    let chosen = pool(runtime, handle)?;
    if chosen.card != card {
        return Err(CuResult::INVALID_VALUE);
    }
    *runtime.current_pools[card].lock().unwrap_or_else(PoisonError::into_inner) = Some(chosen);
    Ok(())
}

exports! {
    "cuDeviceGetDefaultMemPool" 11020 fn cuDeviceGetDefaultMemPool(place: *mut usize, device: c_int) {
        let runtime = Runtime::get()?;
        put(place, runtime.default_pool(runtime.card(device)?).handle)
    }
    "cuDeviceGetMemPool" 11020 fn cuDeviceGetMemPool(place: *mut usize, device: c_int) {
        let runtime = Runtime::get()?;
        put(place, runtime.current_pool(runtime.card(device)?).handle)
    }
    "cuDeviceSetMemPool" 11020 fn cuDeviceSetMemPool(device: c_int, handle: usize) {
        let runtime = Runtime::get()?;
        choose(runtime, runtime.card(device)?, handle)
    }
    "cuMemGetDefaultMemPool" 13000 fn cuMemGetDefaultMemPool(place: *mut usize, location: *const Location, _kind: c_int) {
        let runtime = Runtime::get()?;
        put(place, runtime.default_pool(at_location(runtime, location)?).handle)
    }
    "cuMemGetMemPool" 13000 fn cuMemGetMemPool(place: *mut usize, location: *const Location, _kind: c_int) {
        let runtime = Runtime::get()?;
        put(place, runtime.current_pool(at_location(runtime, location)?).handle)
    }
    "cuMemSetMemPool" 13000 fn cuMemSetMemPool(location: *const Location, _kind: c_int, handle: usize) {
        let runtime = Runtime::get()?;
        choose(runtime, at_location(runtime, location)?, handle)
    }
    "cuMemPoolCreate" 11020 fn cuMemPoolCreate(place: *mut usize, properties: *const PoolProperties) {
        let runtime = Runtime::get()?;
        let properties = take(properties)?;
        if properties.kind != 1 || properties.location.kind != ON_CARD || properties.handle_types != 0 {
            log::once("pools are of GPUs, and are not handed on");
            return Err(CuResult::NOT_SUPPORTED);
        }
        let card = runtime.card(properties.location.id)?;
        put(place_for(place)?, Pool::create(runtime, card, properties.max_size as u64, false).handle)
    }
    "cuMemPoolDestroy" 11020 fn cuMemPoolDestroy(handle: usize) {
        let runtime = Runtime::get()?;
        let own = pool(runtime, handle)?;
        if own.is_default {
            return Err(CuResult::INVALID_VALUE);
        }
        own.trim(0);
        let mut current = runtime.current_pools[own.card].lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|chosen| chosen.handle == handle);
        runtime.pools.take(handle).map(drop)
    }
    "cuMemPoolTrimTo" 11020 fn cuMemPoolTrimTo(handle: usize, keep: usize) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        pool(runtime, handle)?.trim(keep as u64);
        Ok(())
    }
    "cuMemPoolGetAttribute" 11020 fn cuMemPoolGetAttribute(handle: usize, attribute: c_int, place: *mut c_void) {
        let value = pool(Runtime::get()?, handle)?.get(attribute)?;
        if is_short(attribute) { put(place.cast(), value as u32) } else { put(place.cast(), value) }
    }
    "cuMemPoolSetAttribute" 11020 fn cuMemPoolSetAttribute(handle: usize, attribute: c_int, place: *mut c_void) {
        let own = pool(Runtime::get()?, handle)?;
        let value = if is_short(attribute) { take(place.cast::<u32>())?.into() } else { take(place.cast::<u64>())? };
        own.set(attribute, value)
    }
    "cuMemPoolSetAccess" 11020 fn cuMemPoolSetAccess(handle: usize, allowed: *const Allowed, count: usize) {
        let runtime = Runtime::get()?;
        let own = pool(runtime, handle)?;
        for one in list(allowed, count)? {
            if one.location.kind != ON_CARD {
                continue;
            }
            let card = runtime.card(one.location.id)?;
            // A GPU always has access to its own pool.
            if card == own.card && one.flags != 3 {
                return Err(CuResult::INVALID_DEVICE);
            }
            own.set_reach(card, one.flags != 0);
        }
        Ok(())
    }
    "cuMemPoolGetAccess" 11020 fn cuMemPoolGetAccess(flags: *mut c_int, handle: usize, location: *const Location) {
        let runtime = Runtime::get()?;
        let own = pool(runtime, handle)?;
        let location = take(location)?;
        let card = if location.kind == ON_CARD { runtime.card(location.id)? } else { own.card };
        put(flags, if card == own.card || own.is_reached_by(card) { 3 } else { 0 })
    }
}

streamed! { own;
    "cuMemAllocAsync" 11020 fn cuMemAllocAsync, cuMemAllocAsync_ptsz(place: *mut u64, bytes: usize, stream: usize) {
        put(place_for(place)?, alloc(bytes, None, stream, own)?)
    }
    "cuMemAllocFromPoolAsync" 11020 fn cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(
        place: *mut u64, bytes: usize, pool: usize, stream: usize,
    ) {
        put(place_for(place)?, alloc(bytes, Some(pool), stream, own)?)
    }
    "cuMemFreeAsync" 11020 fn cuMemFreeAsync, cuMemFreeAsync_ptsz(at: u64, stream: usize) {
        current()?;
        let (runtime, stream) = resolve(stream, own)?;
        let _inside = runtime.seat.pass();
        let kind = runtime.space.hold().find(at).filter(|(first, _)| *first == at).map(|(_, block)| block.kind);
        // Memory of a graph may be allocated only when the graph runs.
        let is_freeable = runtime.is_of_graph(at)
            || kind.is_some_and(|kind| matches!(kind, Kind::Pool(_) | Kind::Device));
        if is_freeable { give(runtime, &stream, Work::Free(at)) } else { Err(CuResult::INVALID_VALUE) }
    }
}
