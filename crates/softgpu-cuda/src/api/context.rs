//! Contexts: primary and created ones, and which one is current in a thread.

use super::pointers::CallerOut;
use super::{checked_place, exports, write_out};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Primary, Runtime, context_named, current, current_handle, with_stack};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

fn primary(runtime: &Runtime, device: c_int) -> Outcome<(usize, MutexGuard<'_, Primary>)> {
    let gpu = runtime.gpu(device)?;
    Ok((gpu, runtime.primary[gpu].lock().unwrap_or_else(PoisonError::into_inner)))
}

fn create(place: CallerOut<usize>, flags: u32, device: c_int) -> Outcome {
    let runtime = Runtime::get()?;
    let gpu = runtime.gpu(device)?;
    let place = checked_place(place)?;
    let _pass = runtime.client.pass_gate();
    let handle = runtime.make_context(gpu, flags)?.handle;
    with_stack(|stack| stack.push(handle));
    write_out(place, handle)
}

/// The default value of a limit, by `CUlimit`.
fn usual_limit(limit: c_int) -> Outcome<usize> {
    Ok(match limit {
        0 => 1 << 10,
        1 => 1 << 20,
        2 => 8 << 20,
        5 => 64,
        6 => 0,
        3 | 4 | 7..=9 => return Err(CuResult::UNSUPPORTED_LIMIT),
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

/// Waits for all work of a context.
fn synchronise(context: usize) -> Outcome {
    let (runtime, context) = context_named(context)?;
    runtime.refuse_any_capture(context.handle)?;
    runtime.engine.wait(&runtime.engine.last_jobs_of_all(Some(context.handle)));
    drop(runtime.client.pass_gate());
    context.check()
}

exports! {
    "cuDevicePrimaryCtxRetain" 7000 fn cuDevicePrimaryCtxRetain(place: CallerOut<usize>, device: c_int) {
        let runtime = Runtime::get()?;
        let place = checked_place(place)?;
        let _pass = runtime.client.pass_gate();
        let (gpu, mut primary) = primary(runtime, device)?;
        if primary.context.is_none() {
            primary.context = Some(runtime.make_context(gpu, primary.flags)?);
        }
        primary.count += 1;
        write_out(place, primary.context.as_ref().map_or(0, |context| context.handle))
    }
    "cuDevicePrimaryCtxRelease" 11000 fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        let (_, mut primary) = primary(runtime, device)?;
        primary.count = primary.count.checked_sub(1).ok_or(CuResult::INVALID_CONTEXT)?;
        if primary.count > 0 {
            return Ok(());
        }
        primary.context.take().map_or(Ok(()), |context| runtime.end_context(context.handle))
    }
    "cuDevicePrimaryCtxReset" 11000 fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        let (_, mut primary) = primary(runtime, device)?;
        primary.count = 0;
        primary.context.take().map_or(Ok(()), |context| runtime.end_context(context.handle))
    }
    "cuDevicePrimaryCtxGetState" 7000 fn cuDevicePrimaryCtxGetState(device: c_int, flags: CallerOut<u32>, active: CallerOut<c_int>) {
        let (_, primary) = primary(Runtime::get()?, device)?;
        write_out(flags, primary.flags)?;
        write_out(active, c_int::from(primary.context.is_some()))
    }
    "cuDevicePrimaryCtxSetFlags" 11000 fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        let (_, mut primary) = primary(Runtime::get()?, device)?;
        primary.flags = flags;
        Ok(())
    }
    "cuCtxCreate" 3020 fn cuCtxCreate_v2(place: CallerOut<usize>, flags: u32, device: c_int) {
        create(place, flags, device)
    }
    "cuCtxCreate" 12050 fn cuCtxCreate_v4(place: CallerOut<usize>, _params: *mut c_void, flags: u32, device: c_int) {
        create(place, flags, device)
    }
    "cuCtxDestroy" 4000 fn cuCtxDestroy_v2(context: usize) {
        let runtime = Runtime::get()?;
        let _pass = runtime.client.pass_gate();
        let is_primary = |primary: &Mutex<Primary>| {
            let primary = primary.lock().unwrap_or_else(PoisonError::into_inner);
            primary.context.as_ref().is_some_and(|own| own.handle == context)
        };
        // A primary context ends when its last reference is released.
        if runtime.primary.iter().any(is_primary) {
            return Err(CuResult::INVALID_CONTEXT);
        }
        runtime.end_context(context)?;
        with_stack(|stack| stack.pop_if(|top| *top == context));
        Ok(())
    }
    "cuCtxPushCurrent" 4000 fn cuCtxPushCurrent_v2(context: usize) {
        Runtime::get()?.contexts.get(context).map_err(|_| CuResult::INVALID_CONTEXT)?;
        with_stack(|stack| stack.push(context));
        Ok(())
    }
    "cuCtxPopCurrent" 4000 fn cuCtxPopCurrent_v2(place: CallerOut<usize>) {
        Runtime::get()?;
        let top = with_stack(Vec::pop).ok_or(CuResult::INVALID_CONTEXT)?;
        if place.is_null() { Ok(()) } else { write_out(place, top) }
    }
    "cuCtxSetCurrent" 4000 fn cuCtxSetCurrent(context: usize) {
        if context != 0 {
            Runtime::get()?.contexts.get(context).map_err(|_| CuResult::INVALID_CONTEXT)?;
        }
        with_stack(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    }
    "cuCtxGetCurrent" 4000 fn cuCtxGetCurrent(place: CallerOut<usize>) {
        Runtime::get()?;
        write_out(place, current_handle().unwrap_or(0))
    }
    "cuCtxGetDevice" 2000 fn cuCtxGetDevice(device: CallerOut<c_int>) {
        let (runtime, context) = current()?;
        write_out(device, runtime.device(context.gpu))
    }
    "cuCtxGetDevice" 13000 fn cuCtxGetDevice_v2(device: CallerOut<c_int>, context: usize) {
        let (runtime, context) = context_named(context)?;
        write_out(device, runtime.device(context.gpu))
    }
    "cuCtxGetFlags" 7000 fn cuCtxGetFlags(flags: CallerOut<u32>) {
        write_out(flags, current()?.1.flags.load(SeqCst))
    }
    "cuCtxSetFlags" 12010 fn cuCtxSetFlags(flags: u32) {
        current()?.1.flags.store(flags, SeqCst);
        Ok(())
    }
    "cuCtxGetId" 12000 fn cuCtxGetId(context: usize, id: CallerOut<u64>) {
        write_out(id, context_named(context)?.1.handle as u64)
    }
    "cuCtxCreate" 11040 fn cuCtxCreate_v3(
        place: CallerOut<usize>,
        _affinity: *mut c_void,
        count: c_int,
        flags: u32,
        device: c_int,
    ) {
        if count == 0 { create(place, flags, device) } else { Err(CuResult::UNSUPPORTED_EXEC_AFFINITY) }
    }
    "cuCtxGetLimit" 3010 fn cuCtxGetLimit(value: CallerOut<usize>, limit: c_int) {
        let (_, context) = current()?;
        let set = context.limits.lock().unwrap_or_else(PoisonError::into_inner).get(&limit).copied();
        write_out(value, set.map_or_else(|| usual_limit(limit), Ok)?)
    }
    "cuCtxSetLimit" 3010 fn cuCtxSetLimit(limit: c_int, value: usize) {
        let (_, context) = current()?;
        usual_limit(limit)?;
        context.limits.lock().unwrap_or_else(PoisonError::into_inner).insert(limit, value);
        Ok(())
    }
    "cuCtxGetCacheConfig" 3020 fn cuCtxGetCacheConfig(config: CallerOut<c_int>) {
        write_out(config, current()?.1.cache.load(SeqCst))
    }
    "cuCtxSetCacheConfig" 3020 fn cuCtxSetCacheConfig(config: c_int) {
        let (_, context) = current()?;
        if !(0..=3).contains(&config) {
            return Err(CuResult::INVALID_VALUE);
        }
        context.cache.store(config, SeqCst);
        Ok(())
    }
    "cuCtxGetSharedMemConfig" 4020 fn cuCtxGetSharedMemConfig(config: CallerOut<c_int>) {
        current()?;
        write_out(config, 1)
    }
    "cuCtxSetSharedMemConfig" 4020 fn cuCtxSetSharedMemConfig(_config: c_int) {
        current().map(drop)
    }
    "cuCtxResetPersistingL2Cache" 11000 fn cuCtxResetPersistingL2Cache() {
        current().map(drop)
    }
    "cuCtxEnablePeerAccess" 4000 fn cuCtxEnablePeerAccess(context: usize, flags: u32) {
        let (runtime, own) = current()?;
        let (_, other) = context_named(context)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if own.gpu == other.gpu {
            return Err(CuResult::INVALID_DEVICE);
        }
        let mut peers = runtime.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.insert((own.handle, other.handle)) { Ok(()) } else { Err(CuResult::PEER_ACCESS_ALREADY_ENABLED) }
    }
    "cuCtxDisablePeerAccess" 4000 fn cuCtxDisablePeerAccess(context: usize) {
        let (runtime, own) = current()?;
        let (_, other) = context_named(context)?;
        // Running work may still reach there.
        runtime.engine.wait(&runtime.engine.last_jobs_of_all(Some(own.handle)));
        let mut peers = runtime.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.remove(&(own.handle, other.handle)) { Ok(()) } else { Err(CuResult::PEER_ACCESS_NOT_ENABLED) }
    }
    "cuProfilerStart" 4000 fn cuProfilerStart() {
        current().map(drop)
    }
    "cuProfilerStop" 4000 fn cuProfilerStop() {
        current().map(drop)
    }
    "cuCtxGetApiVersion" 3020 fn cuCtxGetApiVersion(context: usize, version: CallerOut<u32>) {
        context_named(context)?;
        write_out(version, super::device::DRIVER_VERSION as u32)
    }
    "cuCtxSynchronize" 2000 fn cuCtxSynchronize() {
        synchronise(0)
    }
    "cuCtxSynchronize" 13000 fn cuCtxSynchronize_v2(context: usize) {
        synchronise(context)
    }
    "cuCtxGetStreamPriorityRange" 5050 fn cuCtxGetStreamPriorityRange(least: CallerOut<c_int>, greatest: CallerOut<c_int>) {
        current()?;
        write_out(least, 0)?;
        write_out(greatest, -5)
    }
}
