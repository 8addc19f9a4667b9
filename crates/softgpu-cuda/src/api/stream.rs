//! Streams and events. What a stream was given is done when the call returns, so waiting for it is
//! never long, and an event's time is that of its recording.

use super::{exports, put};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Event, current};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use sublet_softgpu::state::now_ns;

/// The default streams: zero, legacy and per thread.
const DEFAULTS: std::ops::RangeInclusive<usize> = 0..=2;
/// `CU_EVENT_DISABLE_TIMING`.
const TIMELESS: u32 = 2;

fn known(stream: usize) -> Outcome {
    let (runtime, _, _) = current()?;
    if DEFAULTS.contains(&stream) { Ok(()) } else { runtime.streams.get(stream).map(drop) }
}

fn create(place: *mut usize, flags: u32, priority: c_int) -> Outcome {
    let (runtime, _, _) = current()?;
    put(place, runtime.streams.put(Arc::new((flags, priority.clamp(-5, 0)))))
}

exports! {
    fn cuStreamCreate(place: *mut usize, flags: u32) {
        create(place, flags, 0)
    }
    fn cuStreamCreateWithPriority(place: *mut usize, flags: u32, priority: c_int) {
        create(place, flags, priority)
    }
    fn cuStreamDestroy_v2(stream: usize) {
        let (runtime, _, _) = current()?;
        runtime.streams.take(stream).map(drop)
    }
    fn cuStreamSynchronize(stream: usize) {
        known(stream)
    }
    fn cuStreamQuery(stream: usize) {
        known(stream)
    }
    fn cuStreamGetPriority(stream: usize, priority: *mut c_int) {
        known(stream)?;
        put(priority, current()?.0.streams.get(stream).map_or(0, |stream| stream.1))
    }
    fn cuStreamGetFlags(stream: usize, flags: *mut u32) {
        known(stream)?;
        put(flags, current()?.0.streams.get(stream).map_or(0, |stream| stream.0))
    }
    fn cuStreamGetCtx(stream: usize, place: *mut usize) {
        known(stream)?;
        put(place, current()?.1)
    }
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        known(stream)?;
        current()?.0.events.get(event).map(drop)
    }
    fn cuStreamIsCapturing(stream: usize, status: *mut c_int) {
        known(stream)?;
        put(status, 0)
    }
    fn cuLaunchHostFunc(stream: usize, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) {
        known(stream)?;
        let function = function.ok_or(CuResult::INVALID_VALUE)?;
        // SAFETY: the caller of the C function promises a function that takes this.
        unsafe { function(data) };
        Ok(())
    }
    fn cuEventCreate(place: *mut usize, flags: u32) {
        let (runtime, _, _) = current()?;
        put(place, runtime.events.put(Arc::new(Event { is_timeless: flags & TIMELESS != 0, ..Event::default() })))
    }
    fn cuEventDestroy_v2(event: usize) {
        current()?.0.events.take(event).map(drop)
    }
    fn cuEventRecord(event: usize, stream: usize) {
        known(stream)?;
        current()?.0.events.get(event)?.at.store(now_ns(), SeqCst);
        Ok(())
    }
    fn cuEventQuery(event: usize) {
        current()?.0.events.get(event).map(drop)
    }
    fn cuEventSynchronize(event: usize) {
        current()?.0.events.get(event).map(drop)
    }
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, begin: usize, end: usize) {
        let (runtime, _, _) = current()?;
        let (begin, end) = (runtime.events.get(begin)?, runtime.events.get(end)?);
        let (from, to) = (begin.at.load(SeqCst), end.at.load(SeqCst));
        if begin.is_timeless || end.is_timeless || from == 0 || to == 0 {
            return Err(CuResult::INVALID_HANDLE);
        }
        put(milliseconds, (to as f64 - from as f64) as f32 / 1e6)
    }
    fn cuEventElapsedTime(milliseconds: *mut f32, begin: usize, end: usize) {
        // SAFETY: the same call by its newer name.
        match unsafe { cuEventElapsedTime_v2(milliseconds, begin, end) } {
            CuResult::SUCCESS => Ok(()),
            error => Err(error),
        }
    }
}
