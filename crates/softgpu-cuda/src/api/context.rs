//! Contexts: primary and made, and which one a thread works in.

use super::{exports, put};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Primary, Runtime, current, current_handle, with_stack};
use std::ffi::{c_int, c_void};
use std::sync::{MutexGuard, PoisonError};

fn primary(runtime: &Runtime, device: c_int) -> Outcome<(usize, MutexGuard<'_, Primary>)> {
    let card = runtime.card(device)?;
    Ok((card, runtime.primary[card].lock().unwrap_or_else(PoisonError::into_inner)))
}

fn create(place: *mut usize, flags: u32, device: c_int) -> Outcome {
    let runtime = Runtime::get()?;
    let card = runtime.card(device)?;
    let _inside = runtime.seat.pass();
    let (handle, _) = runtime.make_context(card, flags)?;
    with_stack(|stack| stack.push(handle));
    put(place, handle)
}

exports! {
    fn cuDevicePrimaryCtxRetain(place: *mut usize, device: c_int) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        let (card, mut primary) = primary(runtime, device)?;
        if primary.context.is_none() {
            primary.context = Some(runtime.make_context(card, primary.flags)?);
        }
        primary.count += 1;
        put(place, primary.context.as_ref().map_or(0, |(handle, _)| *handle))
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        let (_, mut primary) = primary(runtime, device)?;
        primary.count = primary.count.checked_sub(1).ok_or(CuResult::INVALID_CONTEXT)?;
        if primary.count > 0 {
            return Ok(());
        }
        primary.context.take().map_or(Ok(()), |(handle, _)| runtime.end_context(handle))
    }
    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        let (_, mut primary) = primary(runtime, device)?;
        primary.count = 0;
        primary.context.take().map_or(Ok(()), |(handle, _)| runtime.end_context(handle))
    }
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut u32, active: *mut c_int) {
        let (_, primary) = primary(Runtime::get()?, device)?;
        put(flags, primary.flags)?;
        put(active, c_int::from(primary.context.is_some()))
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        let (_, mut primary) = primary(Runtime::get()?, device)?;
        primary.flags = flags;
        Ok(())
    }
    fn cuCtxCreate_v2(place: *mut usize, flags: u32, device: c_int) {
        create(place, flags, device)
    }
    fn cuCtxCreate_v4(place: *mut usize, _params: *mut c_void, flags: u32, device: c_int) {
        create(place, flags, device)
    }
    fn cuCtxDestroy_v2(context: usize) {
        let runtime = Runtime::get()?;
        let _inside = runtime.seat.pass();
        runtime.end_context(context)?;
        with_stack(|stack| stack.pop_if(|top| *top == context));
        Ok(())
    }
    fn cuCtxPushCurrent_v2(context: usize) {
        Runtime::get()?.contexts.get(context).map_err(|_| CuResult::INVALID_CONTEXT)?;
        with_stack(|stack| stack.push(context));
        Ok(())
    }
    fn cuCtxPopCurrent_v2(place: *mut usize) {
        Runtime::get()?;
        let top = with_stack(Vec::pop).ok_or(CuResult::INVALID_CONTEXT)?;
        if place.is_null() { Ok(()) } else { put(place, top) }
    }
    fn cuCtxSetCurrent(context: usize) {
        if context != 0 {
            Runtime::get()?.contexts.get(context).map_err(|_| CuResult::INVALID_CONTEXT)?;
        }
        with_stack(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    }
    fn cuCtxGetCurrent(place: *mut usize) {
        Runtime::get()?;
        put(place, current_handle().unwrap_or(0))
    }
    fn cuCtxGetDevice(device: *mut c_int) {
        put(device, current()?.2.card as c_int)
    }
    fn cuCtxGetFlags(flags: *mut u32) {
        put(flags, current()?.2.flags)
    }
    fn cuCtxGetApiVersion(context: usize, version: *mut u32) {
        let handle = if context == 0 { current()?.1 } else { context };
        Runtime::get()?.contexts.get(handle).map_err(|_| CuResult::INVALID_CONTEXT)?;
        put(version, super::device::DRIVER_VERSION as u32)
    }
    fn cuCtxSynchronize() {
        current().map(drop)
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        put(least, 0)?;
        put(greatest, -5)
    }
}
