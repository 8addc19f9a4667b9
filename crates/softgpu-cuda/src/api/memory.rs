//! Memory of the cards and for copies, copies, and fills.

use super::{exports, put};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::Kind;
use std::ffi::c_void;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn alloc<T>(kind: Kind, place: *mut T, bytes: usize, as_place: impl FnOnce(u64) -> T) -> Outcome {
    let (runtime, handle, context) = current()?;
    let _inside = runtime.seat.pass();
    put(place, as_place(runtime.space.alloc(&runtime.seat, kind, context.card, handle, bytes as u64)?))
}

fn free(kind: Kind, at: u64) -> Outcome {
    let (runtime, _, _) = current()?;
    let _inside = runtime.seat.pass();
    if at == 0 { Ok(()) } else { runtime.space.free(&runtime.seat, kind, at) }
}

/// Which ends of a copy are addresses of the card.
#[derive(Clone, Copy)]
struct Ends {
    to_card: bool,
    from_card: bool,
}

fn copy(to: u64, from: u64, bytes: usize, ends: Ends) -> Outcome {
    let (runtime, _, context) = current()?;
    let _inside = runtime.seat.pass();
    if bytes == 0 {
        return Ok(());
    }
    let begun = Instant::now();
    let held = runtime.space.hold();
    let end = |address: u64, of_card: bool| match of_card {
        true => held.bytes(address, bytes as u64),
        false if address == 0 => Err(CuResult::INVALID_VALUE),
        false => Ok(address as *mut u8),
    };
    let (to, from) = (end(to, ends.to_card)?, end(from, ends.from_card)?);
    // SAFETY: ends on the card are mapped and long enough, as was just checked; the caller of the C
    // function promises the same of the others. They may overlap.
    unsafe { std::ptr::copy(from, to, bytes) };
    take_as_long(runtime, context.card, bytes, begun);
    Ok(())
}

/// A copy takes as long as the ordered rate makes it.
fn take_as_long(runtime: &Runtime, card: usize, bytes: usize, begun: Instant) {
    let rate = runtime.seat.state().cards()[card].copy_bytes_per_s.load(SeqCst);
    if rate > 0 {
        let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}

/// Any address: on the card if the card has it, else the host's.
fn any(to: u64, from: u64, bytes: usize) -> Outcome {
    let (runtime, _, _) = current()?;
    let is_ours = |address: u64| runtime.space.hold().find(address).is_some();
    copy(to, from, bytes, Ends { to_card: is_ours(to), from_card: is_ours(from) })
}

fn fill<T: Copy>(at: u64, value: T, count: usize) -> Outcome {
    let (runtime, _, _) = current()?;
    let _inside = runtime.seat.pass();
    let bytes = count.checked_mul(size_of::<T>()).ok_or(CuResult::INVALID_VALUE)?;
    if !at.is_multiple_of(align_of::<T>() as u64) {
        return Err(CuResult::INVALID_VALUE);
    }
    if count == 0 {
        return Ok(());
    }
    let held = runtime.space.hold();
    let place = held.bytes(at, bytes as u64)?.cast::<T>();
    // SAFETY: mapped, aligned, and as long, as was just checked.
    (0..count).for_each(|number| unsafe { place.add(number).write(value) });
    Ok(())
}

const INTO: Ends = Ends { to_card: true, from_card: false };
const OUT: Ends = Ends { to_card: false, from_card: true };
const WITHIN: Ends = Ends { to_card: true, from_card: true };

exports! {
    fn cuMemAlloc_v2(place: *mut u64, bytes: usize) {
        alloc(Kind::Device, place, bytes, |at| at)
    }
    fn cuMemFree_v2(at: u64) {
        free(Kind::Device, at)
    }
    fn cuMemAllocHost_v2(place: *mut *mut c_void, bytes: usize) {
        alloc(Kind::Host, place, bytes, |at| at as *mut c_void)
    }
    fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, _flags: u32) {
        alloc(Kind::Host, place, bytes, |at| at as *mut c_void)
    }
    fn cuMemFreeHost(at: *mut c_void) {
        free(Kind::Host, at as u64)
    }
    fn cuMemHostGetDevicePointer_v2(place: *mut u64, at: *mut c_void, _flags: u32) {
        let (runtime, _, _) = current()?;
        runtime.space.hold().find(at as u64).ok_or(CuResult::INVALID_VALUE)?;
        put(place, at as u64)
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (runtime, _, context) = current()?;
        let all = runtime.seat.state().cards()[context.card].total.load(SeqCst);
        put(free, all.saturating_sub(runtime.seat.state().used(context.card)) as usize)?;
        put(total, all as usize)
    }
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, at: u64) {
        let (runtime, _, _) = current()?;
        let (first, block) = runtime.space.hold().find(at).ok_or(CuResult::NOT_FOUND)?;
        if !base.is_null() {
            put(base, first)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, block.bytes as usize) }
    }
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        any(to, from, bytes)
    }
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, _stream: usize) {
        any(to, from, bytes)
    }
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        copy(to, from as u64, bytes, INTO)
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _stream: usize) {
        copy(to, from as u64, bytes, INTO)
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        copy(to as u64, from, bytes, OUT)
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _stream: usize) {
        copy(to as u64, from, bytes, OUT)
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(to, from, bytes, WITHIN)
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: usize) {
        copy(to, from, bytes, WITHIN)
    }
    fn cuMemsetD8_v2(at: u64, value: u8, count: usize) {
        fill(at, value, count)
    }
    fn cuMemsetD16_v2(at: u64, value: u16, count: usize) {
        fill(at, value, count)
    }
    fn cuMemsetD32_v2(at: u64, value: u32, count: usize) {
        fill(at, value, count)
    }
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, _stream: usize) {
        fill(at, value, count)
    }
    fn cuMemsetD16Async(at: u64, value: u16, count: usize, _stream: usize) {
        fill(at, value, count)
    }
    fn cuMemsetD32Async(at: u64, value: u32, count: usize, _stream: usize) {
        fill(at, value, count)
    }
}
