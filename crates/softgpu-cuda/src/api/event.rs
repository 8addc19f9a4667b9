//! Events.

use super::pointers::CallerOut;
use super::{checked_place, exports, streamed, write_out};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, context_named, current};
use crate::stream::{EventMark, StreamEvent, WorkStream, record, resolve};
use crate::work::JobWork;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// `CU_EVENT_DISABLE_TIMING`, and all flags there are.
const TIMELESS: u32 = 2;
const FLAGS: u32 = 7;
/// `CU_EVENT_RECORD_EXTERNAL`.
const EXTERNAL: u32 = 1;

fn elapsed(milliseconds: CallerOut<f32>, begin: usize, end: usize) -> Outcome {
    let (runtime, _) = current()?;
    let (begin, end) = (runtime.events.get(begin)?, runtime.events.get(end)?);
    if (begin.flags | end.flags) & TIMELESS != 0 {
        return Err(CuResult::INVALID_HANDLE);
    }
    for event in [&begin, &end] {
        match event.mark() {
            EventMark::Job(job) if !runtime.engine.is_done(job) => return Err(CuResult::NOT_READY),
            EventMark::Job(_) => {}
            _ => return Err(CuResult::INVALID_HANDLE),
        }
    }
    let (from, to) = (begin.at.load(SeqCst), end.at.load(SeqCst));
    write_out(milliseconds, ((to as f64 - from as f64) / 1e6) as f32)
}

exports! {
    "cuEventCreate" 2000 fn cuEventCreate(place: CallerOut<usize>, flags: u32) {
        let (runtime, _) = current()?;
        // Events for other processes are not supported.
        if flags & !FLAGS != 0 || flags & 4 != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let event = StreamEvent { flags, ..StreamEvent::default() };
        write_out(checked_place(place)?, runtime.events.insert(Arc::new(event)))
    }
    "cuEventDestroy" 4000 fn cuEventDestroy_v2(event: usize) {
        Runtime::get()?.events.remove(event).map(drop)
    }
    "cuEventQuery" 2000 fn cuEventQuery(event: usize) {
        let (runtime, _) = current()?;
        let mark = runtime.events.get(event)?.mark();
        if !matches!(mark, EventMark::Captured(_)) {
            runtime.refuse_unsafe()?;
        }
        match mark {
            EventMark::Captured(frontier) => {
                runtime.spoil(&frontier);
                Err(CuResult::CAPTURED_EVENT)
            }
            EventMark::Job(job) if !runtime.engine.is_done(job) => Err(CuResult::NOT_READY),
            _ => Ok(()),
        }
    }
    "cuEventSynchronize" 2000 fn cuEventSynchronize(event: usize) {
        let (runtime, context) = current()?;
        match runtime.events.get(event)?.mark() {
            EventMark::Captured(frontier) => {
                runtime.spoil(&frontier);
                return Err(CuResult::CAPTURED_EVENT);
            }
            EventMark::Job(job) => runtime.engine.wait(&[job]),
            EventMark::Unset => {}
        }
        drop(runtime.client.pass_gate());
        context.check()
    }
    "cuCtxRecordEvent" 12050 fn cuCtxRecordEvent(context: usize, event: usize) {
        let (runtime, context) = context_named(context)?;
        let _pass = runtime.client.pass_gate();
        let (event, all) = (runtime.events.get(event)?, runtime.engine.last_jobs_of_all(Some(context.handle)));
        // In a separate stream: it waits for all others, and none waits for it.
        let stream = WorkStream::hidden(context);
        let job = runtime.engine.submit(runtime, &stream, JobWork::RecordEvent(Arc::clone(&event)), &all);
        runtime.engine.forget(&stream);
        event.set(EventMark::Job(job));
        Ok(())
    }
    "cuEventElapsedTime" 2000 fn cuEventElapsedTime(milliseconds: CallerOut<f32>, begin: usize, end: usize) {
        elapsed(milliseconds, begin, end)
    }
    "cuEventElapsedTime" 12080 fn cuEventElapsedTime_v2(milliseconds: CallerOut<f32>, begin: usize, end: usize) {
        elapsed(milliseconds, begin, end)
    }
}

streamed! { own;
    "cuEventRecord" 2000 fn cuEventRecord, cuEventRecord_ptsz(event: usize, stream: usize) {
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        record(runtime, &stream, &runtime.events.get(event)?)
    }
    "cuEventRecordWithFlags" 11010 fn cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz(
        event: usize,
        stream: usize,
        flags: u32,
    ) {
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        let event = runtime.events.get(event)?;
        match flags {
            0 => record(runtime, &stream, &event),
            // In a capture: a node that records each time the graph runs.
            EXTERNAL => {
                if !runtime.capture(&stream, || JobWork::RecordEvent(Arc::clone(&event)))? {
                    return Err(CuResult::ILLEGAL_STATE);
                }
                Ok(())
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}
