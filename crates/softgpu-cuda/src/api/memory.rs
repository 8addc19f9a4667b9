//! Memory of the GPUs, of the host for copies, and registered: allocating and freeing.

use super::{exports, place_for, put, put_if};
use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::{Access, Backing, Block, Kind};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Rows of a pitched allocation begin at multiples of this.
const PITCH: usize = 512;
/// Set if managed memory is supported. Without it programs see what they would see on a GPU that is shared: none.
const MANAGED: &str = "SUBLET_SOFT_MANAGED";

/// True if managed memory is supported.
pub fn has_managed() -> bool {
    std::env::var_os(MANAGED).is_some_and(|value| value == "1")
}

/// Allocates memory; refused while a capture forbids it.
fn alloc(kind: Kind, bytes: usize) -> Outcome<u64> {
    let (runtime, context) = current()?;
    let _inside = runtime.seat.pass();
    runtime.refuse_unsafe()?;
    runtime.space.alloc(runtime, kind, context.card, context.handle, bytes as u64)
}

/// Allocates host memory; zero bytes give a null pointer.
fn host(bytes: usize, flags: u32) -> Outcome<*mut c_void> {
    let at = if bytes == 0 { current().map(|_| 0)? } else { alloc(Kind::Host(flags), bytes)? };
    Ok(at as *mut c_void)
}

/// Frees memory, after all work of its context is done.
fn free(at: u64, is: impl Fn(Kind) -> bool) -> Outcome {
    let (runtime, context) = current()?;
    if at == 0 {
        return Ok(());
    }
    runtime.refuse_unsafe()?;
    let owner = match runtime.space.hold().find(at) {
        Some((first, block)) if first == at && is(block.kind) => block.context,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    runtime.engine.wait(&runtime.engine.last_of_all(Some(owner)));
    let _inside = runtime.seat.pass();
    match runtime.space.hold().find(at).map(|(_, block)| block.kind) {
        Some(Kind::Pool(_) | Kind::Graph) => runtime.free_pooled(at)?,
        Some(Kind::Managed) => runtime.free_managed(at)?,
        _ => runtime.space.free(at, is)?,
    }
    context.check()
}

fn info(runtime: &Runtime, card: usize) -> (u64, u64) {
    let state = runtime.seat.state();
    let total = state.cards()[card].total.load(SeqCst);
    (total.saturating_sub(state.used(card)), total)
}

/// The flags of host memory; an error if the address is not known.
fn host_flags(runtime: &Runtime, at: u64) -> Outcome<u32> {
    match runtime.space.hold().find(at).map(|(_, block)| block.kind) {
        Some(Kind::Host(flags) | Kind::Registered(flags)) => Ok(flags),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn is_of_card(kind: Kind) -> bool {
    matches!(kind, Kind::Device | Kind::Managed | Kind::Pool(_) | Kind::Graph)
}

exports! {
    "cuMemGetInfo" 3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (runtime, context) = current()?;
        let (left, all) = info(runtime, context.card);
        put_if(free, left as usize)?;
        put_if(total, all as usize)
    }
    "cuMemAlloc" 3020 fn cuMemAlloc_v2(place: *mut u64, bytes: usize) {
        put(place_for(place)?, alloc(Kind::Device, bytes)?)
    }
    "cuMemAllocPitch" 3020 fn cuMemAllocPitch_v2(
        place: *mut u64,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: u32,
    ) {
        if !matches!(element, 4 | 8 | 16) {
            return Err(CuResult::INVALID_VALUE);
        }
        let line = width.checked_next_multiple_of(PITCH).ok_or(CuResult::INVALID_VALUE)?;
        let bytes = line.checked_mul(height).ok_or(CuResult::INVALID_VALUE)?;
        put(pitch, line)?;
        put(place_for(place)?, alloc(Kind::Device, bytes)?)
    }
    "cuMemFree" 3020 fn cuMemFree_v2(at: u64) {
        free(at, is_of_card)
    }
    "cuMemGetAddressRange" 3020 fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, at: u64) {
        let (runtime, _) = current()?;
        let held = runtime.space.hold();
        let (first, block) = held.find(at).ok_or(CuResult::NOT_FOUND)?;
        put_if(base, first)?;
        put_if(size, block.bytes as usize)
    }
    "cuMemAllocHost" 3020 fn cuMemAllocHost_v2(place: *mut *mut c_void, bytes: usize) {
        put(place_for(place)?, host(bytes, 0)?)
    }
    "cuMemHostAlloc" 2020 fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: u32) {
        if flags > 7 {
            return Err(CuResult::INVALID_VALUE);
        }
        put(place_for(place)?, host(bytes, flags)?)
    }
    "cuMemFreeHost" 2000 fn cuMemFreeHost(place: *mut c_void) {
        free(place as u64, |kind| matches!(kind, Kind::Host(_)))
    }
    "cuMemHostGetDevicePointer" 3020 fn cuMemHostGetDevicePointer_v2(
        place: *mut u64,
        host: *mut c_void,
        flags: u32,
    ) {
        let (runtime, _) = current()?;
        host_flags(runtime, host as u64)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        put(place, host as u64)
    }
    "cuMemHostGetFlags" 2030 fn cuMemHostGetFlags(flags: *mut u32, host: *mut c_void) {
        let (runtime, _) = current()?;
        // With one address space all host memory is mapped for the GPU, and usable in all contexts.
        let told = match runtime.space.hold().find(host as u64).map(|(_, block)| block.kind) {
            Some(Kind::Host(given)) => given & 4,
            Some(Kind::Registered(given)) => given & 1,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        put(flags, told | 2)
    }
    "cuMemHostRegister" 6050 fn cuMemHostRegister_v2(host: *mut c_void, bytes: usize, flags: u32) {
        let (runtime, context) = current()?;
        let _inside = runtime.seat.pass();
        runtime.refuse_unsafe()?;
        let at = host as u64;
        if flags > 15 || !runtime.is_of_program(at, bytes as u64) {
            return Err(CuResult::INVALID_VALUE);
        }
        let held = runtime.space.hold();
        if held.find(at).is_some() || held.range(at, bytes as u64).next().is_some() {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        runtime.space.put(at, Block {
            bytes: bytes as u64,
            kind: Kind::Registered(flags),
            card: context.card,
            context: context.handle,
            reach: 0,
            access: if flags & 8 != 0 { Access::Read } else { Access::Write },
            id: runtime.space.fresh_id(),
            backing: Arc::new(Backing::Foreign),
        });
        Ok(())
    }
    "cuMemHostUnregister" 4000 fn cuMemHostUnregister(host: *mut c_void) {
        let done = free(host as u64, |kind| matches!(kind, Kind::Registered(_)));
        done.map_err(|error| if error == CuResult::INVALID_VALUE { CuResult::HOST_MEMORY_NOT_REGISTERED } else { error })
    }
    "cuMemAllocManaged" 6000 fn cuMemAllocManaged(place: *mut u64, bytes: usize, flags: u32) {
        let (runtime, _) = current()?;
        if !has_managed() {
            log::once(&format!("managed memory is refused; `{MANAGED}=1` allows it"));
            return Err(CuResult::NOT_SUPPORTED);
        }
        if !matches!(flags, 1 | 2) {
            return Err(CuResult::INVALID_VALUE);
        }
        let place = place_for(place)?;
        let at = alloc(Kind::Managed, bytes)?;
        runtime.seat.row().managed.fetch_add(1, SeqCst);
        put(place, at)
    }
    "cuMemAdvise" 8000 fn cuMemAdvise(at: u64, _count: usize, _advice: c_int, _device: c_int) {
        advised(at)
    }
    "cuMemAdvise" 12020 fn cuMemAdvise_v2(at: u64, _count: usize, _advice: c_int, _location: u64) {
        advised(at)
    }
}

/// Advice is for memory that moves; it is accepted without effect, because nothing moves here.
fn advised(at: u64) -> Outcome {
    let (runtime, _) = current()?;
    match runtime.space.hold().find(at).map(|(_, block)| block.kind) {
        Some(Kind::Managed) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
