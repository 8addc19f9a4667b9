//! Streams: creating them, waiting for them, memory operations, and capture.

use super::pointers::{CallerIn, CallerOut};
use super::{checked_place, exports, streamed, write_out, write_out_if_wanted};
use crate::capture::{CaptureMode, exchange_mode};
use crate::result::{CuResult, Outcome};
use crate::runtime::current;
use crate::stream::{WorkStream, finish, resolve, submit_or_capture, wait_event};
use crate::work::{Callback, HostCall, JobWork, MemoryWord, WaitCompare};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};

thread_local! {
    /// The last answer about a capture: callers read it until the next question.
    static DEPENDENCIES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// Edges have no data: as many zeros as the last answer had nodes.
    static EDGES: RefCell<Vec<[u8; 8]>> = const { RefCell::new(Vec::new()) };
}

/// `CU_STREAM_CAPTURE_STATUS_…`.
const NOT_CAPTURED: c_int = 0;
const CAPTURED: c_int = 1;
const INVALIDATED: c_int = 2;

fn begin(stream: usize, own: bool, mode: c_int) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let _pass = runtime.client.pass_gate();
    runtime.begin_capture(&stream, CaptureMode::from_number(mode)?, None, Vec::new())
}

/// Where the answers about a capture go; null where they are not wanted.
struct CaptureInfoPlaces {
    status: CallerOut<c_int>,
    id: CallerOut<u64>,
    graph: CallerOut<usize>,
    dependencies: CallerOut<*const usize>,
    edges: CallerOut<*const [u8; 8]>,
    count: CallerOut<usize>,
}

const NO_PLACES: CaptureInfoPlaces = CaptureInfoPlaces {
    status: CallerOut::NULL,
    id: CallerOut::NULL,
    graph: CallerOut::NULL,
    dependencies: CallerOut::NULL,
    edges: CallerOut::NULL,
    count: CallerOut::NULL,
};

fn capture_info(stream: usize, own: bool, wanted: &CaptureInfoPlaces) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let mut jobs = runtime.engine.jobs();
    let Some(frontier) = jobs.lane(&stream).frontier.clone() else {
        return write_out(wanted.status, NOT_CAPTURED);
    };
    let capture = jobs.captures.get(frontier.capture).filter(|capture| !capture.is_invalid);
    write_out(wanted.status, if capture.is_some() { CAPTURED } else { INVALIDATED })?;
    write_out_if_wanted(wanted.id, frontier.capture)?;
    write_out_if_wanted(wanted.graph, capture.map_or(0, |capture| capture.graph.handle))?;
    write_out_if_wanted(wanted.count, frontier.nodes.len())?;
    EDGES.with_borrow_mut(|edges| {
        *edges = vec![[0; 8]; frontier.nodes.len()];
        write_out_if_wanted(wanted.edges, edges.as_ptr())
    })?;
    DEPENDENCIES.with_borrow_mut(|kept| {
        *kept = frontier.nodes;
        write_out_if_wanted(wanted.dependencies, kept.as_ptr())
    })
}

fn update_dependencies(stream: usize, own: bool, nodes: CallerIn<usize>, count: usize, flags: u32) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    // SAFETY: the caller of the C function promises a list of that length.
    let nodes = unsafe { nodes.read_list(count)? };
    if nodes.iter().any(|node| runtime.nodes.get(*node).is_err()) || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    runtime.set_frontier(&stream, nodes, flags == 0)
}

/// `CU_STREAM_WAIT_VALUE_…`, less the flag to flush.
fn wait_compare(flags: u32) -> Outcome<WaitCompare> {
    Ok(match flags & !(1 << 30) {
        0 => WaitCompare::NotBehind,
        1 => WaitCompare::Same,
        2 => WaitCompare::Common,
        3 => WaitCompare::Neither,
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn word(stream: usize, own: bool, word: MemoryWord, work: impl FnOnce() -> Outcome<JobWork>) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let _pass = runtime.client.pass_gate();
    word.check(runtime)?;
    submit_or_capture(runtime, &stream, work()?)
}

fn write(stream: usize, own: bool, at: u64, is_wide: bool, value: u64) -> Outcome {
    let place = MemoryWord { at, is_wide };
    word(stream, own, place, || Ok(JobWork::Write(place, value)))
}

fn wait(stream: usize, own: bool, at: u64, is_wide: bool, value: u64, flags: u32) -> Outcome {
    let place = MemoryWord { at, is_wide };
    word(stream, own, place, || Ok(JobWork::WaitFor(place, value, wait_compare(flags)?)))
}

/// One of several memory operations: kind, address, value, flags; the rest is not used.
type MemoryOperation = [u64; 6];

fn batch(stream: usize, own: bool, count: u32, operations: CallerIn<MemoryOperation>) -> Outcome {
    // SAFETY: the caller of the C function promises a list of that length.
    for operation in unsafe { operations.read_list(count as usize)? } {
        let [which, at, value, flags, ..] = operation;
        match which as u32 {
            1 => wait(stream, own, at, false, u64::from(value as u32), flags as u32)?,
            2 => write(stream, own, at, false, u64::from(value as u32))?,
            4 => wait(stream, own, at, true, value, flags as u32)?,
            5 => write(stream, own, at, true, value)?,
            // Memory is always ordered here, so a barrier does nothing.
            3 | 6 => {}
            _ => return Err(CuResult::INVALID_VALUE),
        }
    }
    Ok(())
}

exports! {
    "cuStreamCreate" 2000 fn cuStreamCreate(place: CallerOut<usize>, flags: u32) {
        let (runtime, context) = current()?;
        write_out(checked_place(place)?, WorkStream::create(runtime, context, flags, 0)?)
    }
    "cuStreamCreateWithPriority" 5050 fn cuStreamCreateWithPriority(place: CallerOut<usize>, flags: u32, priority: c_int) {
        let (runtime, context) = current()?;
        write_out(checked_place(place)?, WorkStream::create(runtime, context, flags, priority)?)
    }
    "cuStreamDestroy" 4000 fn cuStreamDestroy_v2(stream: usize) {
        let (runtime, _) = current()?;
        let _pass = runtime.client.pass_gate();
        runtime.engine.forget(&*runtime.streams.remove(stream)?);
        runtime.drop_captures(|origin, _| origin == stream);
        Ok(())
    }
    "cuThreadExchangeStreamCaptureMode" 10010 fn cuThreadExchangeStreamCaptureMode(mode: CallerOut<c_int>) {
        let new = CaptureMode::from_number(mode.read()?)?;
        write_out(mode, exchange_mode(new) as c_int)
    }
}

streamed! { own;
    "cuStreamSynchronize" 2000 fn cuStreamSynchronize, cuStreamSynchronize_ptsz(stream: usize) {
        let (runtime, stream) = resolve(stream, own)?;
        runtime.refuse_capture(&stream)?;
        runtime.engine.wait(&runtime.engine.last_jobs_of(&stream));
        drop(runtime.client.pass_gate());
        stream.context.check()
    }
    "cuStreamQuery" 2000 fn cuStreamQuery, cuStreamQuery_ptsz(stream: usize) {
        let (runtime, stream) = resolve(stream, own)?;
        runtime.refuse_capture(&stream)?;
        runtime.refuse_unsafe()?;
        let is_done = runtime.engine.last_jobs_of(&stream).into_iter().all(|job| runtime.engine.is_done(job));
        if is_done { stream.context.check() } else { Err(CuResult::NOT_READY) }
    }
    "cuStreamGetPriority" 5050 fn cuStreamGetPriority, cuStreamGetPriority_ptsz(stream: usize, priority: CallerOut<c_int>) {
        write_out(priority, resolve(stream, own)?.1.priority)
    }
    "cuStreamGetFlags" 5050 fn cuStreamGetFlags, cuStreamGetFlags_ptsz(stream: usize, flags: CallerOut<u32>) {
        write_out(flags, resolve(stream, own)?.1.flags)
    }
    "cuStreamGetId" 12000 fn cuStreamGetId, cuStreamGetId_ptsz(stream: usize, id: CallerOut<u64>) {
        write_out(id, resolve(stream, own)?.1.handle as u64)
    }
    "cuStreamGetCtx" 9020 fn cuStreamGetCtx, cuStreamGetCtx_ptsz(stream: usize, place: CallerOut<usize>) {
        write_out(place, resolve(stream, own)?.1.context.handle)
    }
    "cuStreamGetCtx" 12050 fn cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz(
        stream: usize,
        place: CallerOut<usize>,
        green: CallerOut<usize>,
    ) {
        write_out_if_wanted(green, 0)?;
        write_out(place, resolve(stream, own)?.1.context.handle)
    }
    "cuStreamGetDevice" 12080 fn cuStreamGetDevice, cuStreamGetDevice_ptsz(stream: usize, device: CallerOut<c_int>) {
        let (runtime, stream) = resolve(stream, own)?;
        write_out(device, runtime.device(stream.context.gpu))
    }
    "cuStreamCopyAttributes" 11000 fn cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz(to: usize, from: usize) {
        resolve(to, own)?;
        resolve(from, own).map(drop)
    }
    "cuStreamWaitEvent" 3020 fn cuStreamWaitEvent, cuStreamWaitEvent_ptsz(stream: usize, event: usize, flags: u32) {
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        let event = runtime.events.get(event)?;
        match flags {
            0 => wait_event(runtime, &stream, &event),
            // In a capture: a node that waits each time the graph runs.
            1 => {
                match runtime.capture(&stream, || JobWork::WaitForEvent(event))? {
                    true => Ok(()),
                    false => Err(CuResult::ILLEGAL_STATE),
                }
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
    "cuLaunchHostFunc" 10000 fn cuLaunchHostFunc, cuLaunchHostFunc_ptsz(
        stream: usize,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: *mut c_void,
    ) {
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        let function = function.ok_or(CuResult::INVALID_VALUE)?;
        submit_or_capture(runtime, &stream, JobWork::Host(HostCall { function, data }))
    }
    "cuStreamAddCallback" 5000 fn cuStreamAddCallback, cuStreamAddCallback_ptsz(
        stream: usize,
        function: Option<unsafe extern "C" fn(usize, CuResult, *mut c_void)>,
        data: *mut c_void,
        flags: u32,
    ) {
        let name = stream;
        let (runtime, stream) = resolve(stream, own)?;
        runtime.refuse_capture(&stream)?;
        let _pass = runtime.client.pass_gate();
        let function = function.filter(|_| flags == 0).ok_or(CuResult::INVALID_VALUE)?;
        submit_or_capture(runtime, &stream, JobWork::Callback(Callback { function, stream: name, data }))
    }
    "cuStreamAttachMemAsync" 6000 fn cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz(
        stream: usize,
        at: u64,
        _length: usize,
        _flags: u32,
    ) {
        let (runtime, stream) = resolve(stream, own)?;
        if runtime.space.snapshot().find(at).is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        // Managed memory is open to all streams here: there is nothing to attach.
        finish(runtime, &stream, JobWork::Nothing)
    }
    "cuStreamWriteValue32" 8000 fn cuStreamWriteValue32, cuStreamWriteValue32_ptsz(
        stream: usize, at: u64, value: u32, _flags: u32,
    ) {
        write(stream, own, at, false, value.into())
    }
    "cuStreamWriteValue32" 11070 fn cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz(
        stream: usize, at: u64, value: u32, _flags: u32,
    ) {
        write(stream, own, at, false, value.into())
    }
    "cuStreamWriteValue64" 9000 fn cuStreamWriteValue64, cuStreamWriteValue64_ptsz(
        stream: usize, at: u64, value: u64, _flags: u32,
    ) {
        write(stream, own, at, true, value)
    }
    "cuStreamWriteValue64" 11070 fn cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz(
        stream: usize, at: u64, value: u64, _flags: u32,
    ) {
        write(stream, own, at, true, value)
    }
    "cuStreamWaitValue32" 8000 fn cuStreamWaitValue32, cuStreamWaitValue32_ptsz(
        stream: usize, at: u64, value: u32, flags: u32,
    ) {
        wait(stream, own, at, false, value.into(), flags)
    }
    "cuStreamWaitValue32" 11070 fn cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz(
        stream: usize, at: u64, value: u32, flags: u32,
    ) {
        wait(stream, own, at, false, value.into(), flags)
    }
    "cuStreamWaitValue64" 9000 fn cuStreamWaitValue64, cuStreamWaitValue64_ptsz(
        stream: usize, at: u64, value: u64, flags: u32,
    ) {
        wait(stream, own, at, true, value, flags)
    }
    "cuStreamWaitValue64" 11070 fn cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz(
        stream: usize, at: u64, value: u64, flags: u32,
    ) {
        wait(stream, own, at, true, value, flags)
    }
    "cuStreamBatchMemOp" 8000 fn cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz(
        stream: usize, count: u32, operations: CallerIn<MemoryOperation>, _flags: u32,
    ) {
        batch(stream, own, count, operations)
    }
    "cuStreamBatchMemOp" 11070 fn cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz(
        stream: usize, count: u32, operations: CallerIn<MemoryOperation>, _flags: u32,
    ) {
        batch(stream, own, count, operations)
    }
    "cuStreamBeginCapture" 10000 fn cuStreamBeginCapture, cuStreamBeginCapture_ptsz(stream: usize) {
        begin(stream, own, 0)
    }
    "cuStreamBeginCapture" 10010 fn cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz(stream: usize, mode: c_int) {
        begin(stream, own, mode)
    }
    "cuStreamBeginCaptureToGraph" 12030 fn cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz(
        stream: usize,
        graph: usize,
        nodes: CallerIn<usize>,
        _edges: *const c_void,
        count: usize,
        mode: c_int,
    ) {
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        let graph = runtime.graphs.get(graph)?;
        // SAFETY: the caller of the C function promises a list of that length.
        let nodes = unsafe { nodes.read_list(count)? };
        runtime.begin_capture(&stream, CaptureMode::from_number(mode)?, Some(graph), nodes)
    }
    "cuStreamEndCapture" 10000 fn cuStreamEndCapture, cuStreamEndCapture_ptsz(stream: usize, place: CallerOut<usize>) {
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        write_out(place, 0)?;
        write_out(place, runtime.end_capture(&stream)?.handle)
    }
    "cuStreamIsCapturing" 10000 fn cuStreamIsCapturing, cuStreamIsCapturing_ptsz(stream: usize, status: CallerOut<c_int>) {
        capture_info(stream, own, &CaptureInfoPlaces { status, ..NO_PLACES })
    }
    "cuStreamGetCaptureInfo" 10010 fn cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz(
        stream: usize,
        status: CallerOut<c_int>,
        id: CallerOut<u64>,
    ) {
        capture_info(stream, own, &CaptureInfoPlaces { status, id, ..NO_PLACES })
    }
    "cuStreamGetCaptureInfo" 11030 fn cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz(
        stream: usize,
        status: CallerOut<c_int>,
        id: CallerOut<u64>,
        graph: CallerOut<usize>,
        dependencies: CallerOut<*const usize>,
        count: CallerOut<usize>,
    ) {
        capture_info(stream, own, &CaptureInfoPlaces { status, id, graph, dependencies, count, ..NO_PLACES })
    }
    "cuStreamGetCaptureInfo" 12030 fn cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz(
        stream: usize,
        status: CallerOut<c_int>,
        id: CallerOut<u64>,
        graph: CallerOut<usize>,
        dependencies: CallerOut<*const usize>,
        edges: CallerOut<*const [u8; 8]>,
        count: CallerOut<usize>,
    ) {
        capture_info(stream, own, &CaptureInfoPlaces { status, id, graph, dependencies, edges, count })
    }
    "cuStreamUpdateCaptureDependencies" 11030 fn cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz(
        stream: usize, nodes: CallerIn<usize>, count: usize, flags: u32,
    ) {
        update_dependencies(stream, own, nodes, count, flags)
    }
    "cuStreamUpdateCaptureDependencies" 12030 fn cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz(
        stream: usize, nodes: CallerIn<usize>, _edges: *const c_void, count: usize, flags: u32,
    ) {
        update_dependencies(stream, own, nodes, count, flags)
    }
}
