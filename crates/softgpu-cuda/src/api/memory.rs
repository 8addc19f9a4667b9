//! Memory of the GPUs, of the host for copies, and registered: allocating and freeing.

use super::pointers::CallerOut;
use super::{checked_place, exports, write_out, write_out_if_wanted};
use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::{AllowedAccess, Backing, MemoryBlock, MemoryKind};
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
fn alloc(kind: MemoryKind, bytes: usize) -> Outcome<u64> {
    let (runtime, context) = current()?;
    let _pass = runtime.client.pass_gate();
    runtime.refuse_unsafe()?;
    runtime.space.alloc(runtime, kind, context.gpu, context.handle, bytes as u64)
}

/// Allocates host memory; zero bytes give a null pointer.
fn host(bytes: usize, flags: u32) -> Outcome<*mut c_void> {
    let at = if bytes == 0 { current().map(|_| 0)? } else { alloc(MemoryKind::Host(flags), bytes)? };
    Ok(at as *mut c_void)
}

/// Frees memory, after all work of its context is done.
fn free(at: u64, is: impl Fn(MemoryKind) -> bool) -> Outcome {
    let (runtime, context) = current()?;
    if at == 0 {
        return Ok(());
    }
    runtime.refuse_unsafe()?;
    let owner = match runtime.space.snapshot().find(at) {
        Some((first, block)) if first == at && is(block.kind) => block.context,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    runtime.engine.wait(&runtime.engine.last_jobs_of_all(Some(owner)));
    let _pass = runtime.client.pass_gate();
    match runtime.space.snapshot().find(at).map(|(_, block)| block.kind) {
        Some(MemoryKind::Pool(_) | MemoryKind::Graph) => runtime.free_pooled(at)?,
        Some(MemoryKind::Managed) => runtime.free_managed(at)?,
        _ => runtime.space.free(at, is)?,
    }
    context.check()
}

fn info(runtime: &Runtime, gpu: usize) -> (u64, u64) {
    let state = runtime.client.state();
    let total = state.gpus()[gpu].total.load(SeqCst);
    (total.saturating_sub(state.used(gpu)), total)
}

/// The flags of host memory; an error if the address is not known.
fn host_flags(runtime: &Runtime, at: u64) -> Outcome<u32> {
    match runtime.space.snapshot().find(at).map(|(_, block)| block.kind) {
        Some(MemoryKind::Host(flags) | MemoryKind::Registered(flags)) => Ok(flags),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn is_gpu_memory(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Device | MemoryKind::Managed | MemoryKind::Pool(_) | MemoryKind::Graph)
}

exports! {
    "cuMemGetInfo" 3020 fn cuMemGetInfo_v2(free: CallerOut<usize>, total: CallerOut<usize>) {
        let (runtime, context) = current()?;
        let (left, all) = info(runtime, context.gpu);
        write_out_if_wanted(free, left as usize)?;
        write_out_if_wanted(total, all as usize)
    }
    "cuMemAlloc" 3020 fn cuMemAlloc_v2(place: CallerOut<u64>, bytes: usize) {
        write_out(checked_place(place)?, alloc(MemoryKind::Device, bytes)?)
    }
    "cuMemAllocPitch" 3020 fn cuMemAllocPitch_v2(
        place: CallerOut<u64>,
        pitch: CallerOut<usize>,
        width: usize,
        height: usize,
        element: u32,
    ) {
        if !matches!(element, 4 | 8 | 16) {
            return Err(CuResult::INVALID_VALUE);
        }
        let line = width.checked_next_multiple_of(PITCH).ok_or(CuResult::INVALID_VALUE)?;
        let bytes = line.checked_mul(height).ok_or(CuResult::INVALID_VALUE)?;
        write_out(pitch, line)?;
        write_out(checked_place(place)?, alloc(MemoryKind::Device, bytes)?)
    }
    "cuMemFree" 3020 fn cuMemFree_v2(at: u64) {
        free(at, is_gpu_memory)
    }
    "cuMemGetAddressRange" 3020 fn cuMemGetAddressRange_v2(base: CallerOut<u64>, size: CallerOut<usize>, at: u64) {
        let (runtime, _) = current()?;
        let held = runtime.space.snapshot();
        let (first, block) = held.find(at).ok_or(CuResult::NOT_FOUND)?;
        write_out_if_wanted(base, first)?;
        write_out_if_wanted(size, block.bytes as usize)
    }
    "cuMemAllocHost" 3020 fn cuMemAllocHost_v2(place: CallerOut<*mut c_void>, bytes: usize) {
        write_out(checked_place(place)?, host(bytes, 0)?)
    }
    "cuMemHostAlloc" 2020 fn cuMemHostAlloc(place: CallerOut<*mut c_void>, bytes: usize, flags: u32) {
        if flags > 7 {
            return Err(CuResult::INVALID_VALUE);
        }
        write_out(checked_place(place)?, host(bytes, flags)?)
    }
    "cuMemFreeHost" 2000 fn cuMemFreeHost(place: *mut c_void) {
        free(place as u64, |kind| matches!(kind, MemoryKind::Host(_)))
    }
    "cuMemHostGetDevicePointer" 3020 fn cuMemHostGetDevicePointer_v2(
        place: CallerOut<u64>,
        host: *mut c_void,
        flags: u32,
    ) {
        let (runtime, _) = current()?;
        host_flags(runtime, host as u64)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        write_out(place, host as u64)
    }
    "cuMemHostGetFlags" 2030 fn cuMemHostGetFlags(flags: CallerOut<u32>, host: *mut c_void) {
        let (runtime, _) = current()?;
        // With one address space all host memory is mapped for the GPU, and usable in all contexts.
        let told = match runtime.space.snapshot().find(host as u64).map(|(_, block)| block.kind) {
            Some(MemoryKind::Host(given)) => given & 4,
            Some(MemoryKind::Registered(given)) => given & 1,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        write_out(flags, told | 2)
    }
    "cuMemHostRegister" 6050 fn cuMemHostRegister_v2(host: *mut c_void, bytes: usize, flags: u32) {
        let (runtime, context) = current()?;
        let _pass = runtime.client.pass_gate();
        runtime.refuse_unsafe()?;
        let at = host as u64;
        if flags > 15 || !runtime.is_program_memory(at, bytes as u64) {
            return Err(CuResult::INVALID_VALUE);
        }
        let held = runtime.space.snapshot();
        if held.find(at).is_some() || held.range(at, bytes as u64).next().is_some() {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        runtime.space.insert(at, MemoryBlock {
            bytes: bytes as u64,
            kind: MemoryKind::Registered(flags),
            gpu: context.gpu,
            context: context.handle,
            reach: 0,
            access: if flags & 8 != 0 { AllowedAccess::Read } else { AllowedAccess::Write },
            id: runtime.space.fresh_id(),
            backing: Arc::new(Backing::Foreign),
        });
        Ok(())
    }
    "cuMemHostUnregister" 4000 fn cuMemHostUnregister(host: *mut c_void) {
        let done = free(host as u64, |kind| matches!(kind, MemoryKind::Registered(_)));
        done.map_err(|error| if error == CuResult::INVALID_VALUE { CuResult::HOST_MEMORY_NOT_REGISTERED } else { error })
    }
    "cuMemAllocManaged" 6000 fn cuMemAllocManaged(place: CallerOut<u64>, bytes: usize, flags: u32) {
        let (runtime, _) = current()?;
        if !has_managed() {
            log::once(&format!("managed memory is refused; `{MANAGED}=1` allows it"));
            return Err(CuResult::NOT_SUPPORTED);
        }
        if !matches!(flags, 1 | 2) {
            return Err(CuResult::INVALID_VALUE);
        }
        let place = checked_place(place)?;
        let at = alloc(MemoryKind::Managed, bytes)?;
        runtime.client.row().managed.fetch_add(1, SeqCst);
        write_out(place, at)
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
    match runtime.space.snapshot().find(at).map(|(_, block)| block.kind) {
        Some(MemoryKind::Managed) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
