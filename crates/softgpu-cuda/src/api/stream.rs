//! Streams: creating them, waiting for them, memory operations, and capture.

use super::{exports, list, place_for, put, put_if, streamed, take};
use crate::capture::{Mode, exchange_mode};
use crate::result::{CuResult, Outcome};
use crate::runtime::current;
use crate::stream::{Stream, finish, give, resolve, wait_event};
use crate::work::{Callback, Compare, HostCall, Word, Work};
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
    let _inside = runtime.seat.pass();
    runtime.begin_capture(&stream, Mode::from_number(mode)?, None, Vec::new())
}

/// Where the answers about a capture go; null where they are not wanted.
struct Wanted {
    status: *mut c_int,
    id: *mut u64,
    graph: *mut usize,
    dependencies: *mut *const usize,
    edges: *mut *const [u8; 8],
    count: *mut usize,
}

const NOTHING: Wanted = Wanted {
    status: std::ptr::null_mut(),
    id: std::ptr::null_mut(),
    graph: std::ptr::null_mut(),
    dependencies: std::ptr::null_mut(),
    edges: std::ptr::null_mut(),
    count: std::ptr::null_mut(),
};

fn capture_info(stream: usize, own: bool, wanted: &Wanted) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let mut books = runtime.engine.books();
    let Some(frontier) = books.lane(&stream).frontier.clone() else {
        return put(wanted.status, NOT_CAPTURED);
    };
    let capture = books.captures.get(frontier.capture).filter(|capture| !capture.is_invalid);
    put(wanted.status, if capture.is_some() { CAPTURED } else { INVALIDATED })?;
    put_if(wanted.id, frontier.capture)?;
    put_if(wanted.graph, capture.map_or(0, |capture| capture.graph.handle))?;
    put_if(wanted.count, frontier.nodes.len())?;
    EDGES.with_borrow_mut(|edges| {
        *edges = vec![[0; 8]; frontier.nodes.len()];
        put_if(wanted.edges, edges.as_ptr())
    })?;
    DEPENDENCIES.with_borrow_mut(|kept| {
        *kept = frontier.nodes;
        put_if(wanted.dependencies, kept.as_ptr())
    })
}

fn update_dependencies(stream: usize, own: bool, nodes: *const usize, count: usize, flags: u32) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let nodes = list(nodes, count)?;
    if nodes.iter().any(|node| runtime.nodes.get(*node).is_err()) || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    runtime.set_frontier(&stream, nodes, flags == 0)
}

/// `CU_STREAM_WAIT_VALUE_…`, less the flag to flush.
fn compare(flags: u32) -> Outcome<Compare> {
    Ok(match flags & !(1 << 30) {
        0 => Compare::NotBehind,
        1 => Compare::Same,
        2 => Compare::Common,
        3 => Compare::Neither,
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn word(stream: usize, own: bool, word: Word, work: impl FnOnce() -> Outcome<Work>) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let _inside = runtime.seat.pass();
    word.check(runtime)?;
    give(runtime, &stream, work()?)
}

fn write(stream: usize, own: bool, at: u64, is_wide: bool, value: u64) -> Outcome {
    let place = Word { at, is_wide };
    word(stream, own, place, || Ok(Work::Write(place, value)))
}

fn wait(stream: usize, own: bool, at: u64, is_wide: bool, value: u64, flags: u32) -> Outcome {
    let place = Word { at, is_wide };
    word(stream, own, place, || Ok(Work::WaitFor(place, value, compare(flags)?)))
}

/// One of several memory operations: kind, address, value, flags; the rest is not used.
type MemoryOperation = [u64; 6];

fn batch(stream: usize, own: bool, count: u32, operations: *const MemoryOperation) -> Outcome {
    for operation in list(operations, count as usize)? {
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
    "cuStreamCreate" 2000 fn cuStreamCreate(place: *mut usize, flags: u32) {
        let (runtime, context) = current()?;
        put(place_for(place)?, Stream::create(runtime, context, flags, 0)?)
    }
    "cuStreamCreateWithPriority" 5050 fn cuStreamCreateWithPriority(place: *mut usize, flags: u32, priority: c_int) {
        let (runtime, context) = current()?;
        put(place_for(place)?, Stream::create(runtime, context, flags, priority)?)
    }
    "cuStreamDestroy" 4000 fn cuStreamDestroy_v2(stream: usize) {
        let (runtime, _) = current()?;
        let _inside = runtime.seat.pass();
        runtime.engine.forget(&*runtime.streams.take(stream)?);
        runtime.drop_captures(|origin, _| origin == stream);
        Ok(())
    }
    "cuThreadExchangeStreamCaptureMode" 10010 fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        let new = Mode::from_number(take(mode)?)?;
        put(mode, exchange_mode(new) as c_int)
    }
}

streamed! { own;
    "cuStreamSynchronize" 2000 fn cuStreamSynchronize, cuStreamSynchronize_ptsz(stream: usize) {
        let (runtime, stream) = resolve(stream, own)?;
        runtime.refuse_capture(&stream)?;
        runtime.engine.wait(&runtime.engine.last_of(&stream));
        drop(runtime.seat.pass());
        stream.context.check()
    }
    "cuStreamQuery" 2000 fn cuStreamQuery, cuStreamQuery_ptsz(stream: usize) {
        let (runtime, stream) = resolve(stream, own)?;
        runtime.refuse_capture(&stream)?;
        runtime.refuse_unsafe()?;
        let is_done = runtime.engine.last_of(&stream).into_iter().all(|job| runtime.engine.is_done(job));
        if is_done { stream.context.check() } else { Err(CuResult::NOT_READY) }
    }
    "cuStreamGetPriority" 5050 fn cuStreamGetPriority, cuStreamGetPriority_ptsz(stream: usize, priority: *mut c_int) {
        put(priority, resolve(stream, own)?.1.priority)
    }
    "cuStreamGetFlags" 5050 fn cuStreamGetFlags, cuStreamGetFlags_ptsz(stream: usize, flags: *mut u32) {
        put(flags, resolve(stream, own)?.1.flags)
    }
    "cuStreamGetId" 12000 fn cuStreamGetId, cuStreamGetId_ptsz(stream: usize, id: *mut u64) {
        put(id, resolve(stream, own)?.1.handle as u64)
    }
    "cuStreamGetCtx" 9020 fn cuStreamGetCtx, cuStreamGetCtx_ptsz(stream: usize, place: *mut usize) {
        put(place, resolve(stream, own)?.1.context.handle)
    }
    "cuStreamGetCtx" 12050 fn cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz(
        stream: usize,
        place: *mut usize,
        green: *mut usize,
    ) {
        put_if(green, 0)?;
        put(place, resolve(stream, own)?.1.context.handle)
    }
    "cuStreamGetDevice" 12080 fn cuStreamGetDevice, cuStreamGetDevice_ptsz(stream: usize, device: *mut c_int) {
        let (runtime, stream) = resolve(stream, own)?;
        put(device, runtime.device(stream.context.card))
    }
    "cuStreamCopyAttributes" 11000 fn cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz(to: usize, from: usize) {
        resolve(to, own)?;
        resolve(from, own).map(drop)
    }
    "cuStreamWaitEvent" 3020 fn cuStreamWaitEvent, cuStreamWaitEvent_ptsz(stream: usize, event: usize, flags: u32) {
        let (runtime, stream) = resolve(stream, own)?;
        let _inside = runtime.seat.pass();
        let event = runtime.events.get(event)?;
        match flags {
            0 => wait_event(runtime, &stream, &event),
            // In a capture: a node that waits each time the graph runs.
            1 => {
                if runtime.capture(&stream, || Work::Await(event))? { Ok(()) } else { Err(CuResult::ILLEGAL_STATE) }
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
        let _inside = runtime.seat.pass();
        let function = function.ok_or(CuResult::INVALID_VALUE)?;
        give(runtime, &stream, Work::Host(HostCall { function, data }))
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
        let _inside = runtime.seat.pass();
        let function = function.filter(|_| flags == 0).ok_or(CuResult::INVALID_VALUE)?;
        give(runtime, &stream, Work::Callback(Callback { function, stream: name, data }))
    }
    "cuStreamAttachMemAsync" 6000 fn cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz(
        stream: usize,
        at: u64,
        _length: usize,
        _flags: u32,
    ) {
        let (runtime, stream) = resolve(stream, own)?;
        if runtime.space.hold().find(at).is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        // Managed memory is open to all streams here: there is nothing to attach.
        finish(runtime, &stream, Work::Nothing)
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
        stream: usize, count: u32, operations: *const MemoryOperation, _flags: u32,
    ) {
        batch(stream, own, count, operations)
    }
    "cuStreamBatchMemOp" 11070 fn cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz(
        stream: usize, count: u32, operations: *const MemoryOperation, _flags: u32,
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
        nodes: *const usize,
        _edges: *const c_void,
        count: usize,
        mode: c_int,
    ) {
        let (runtime, stream) = resolve(stream, own)?;
        let _inside = runtime.seat.pass();
        let graph = runtime.graphs.get(graph)?;
        runtime.begin_capture(&stream, Mode::from_number(mode)?, Some(graph), list(nodes, count)?)
    }
    "cuStreamEndCapture" 10000 fn cuStreamEndCapture, cuStreamEndCapture_ptsz(stream: usize, place: *mut usize) {
        let (runtime, stream) = resolve(stream, own)?;
        let _inside = runtime.seat.pass();
        put(place, 0)?;
        put(place, runtime.end_capture(&stream)?.handle)
    }
    "cuStreamIsCapturing" 10000 fn cuStreamIsCapturing, cuStreamIsCapturing_ptsz(stream: usize, status: *mut c_int) {
        capture_info(stream, own, &Wanted { status, ..NOTHING })
    }
    "cuStreamGetCaptureInfo" 10010 fn cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz(
        stream: usize,
        status: *mut c_int,
        id: *mut u64,
    ) {
        capture_info(stream, own, &Wanted { status, id, ..NOTHING })
    }
    "cuStreamGetCaptureInfo" 11030 fn cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz(
        stream: usize,
        status: *mut c_int,
        id: *mut u64,
        graph: *mut usize,
        dependencies: *mut *const usize,
        count: *mut usize,
    ) {
        capture_info(stream, own, &Wanted { status, id, graph, dependencies, count, ..NOTHING })
    }
    "cuStreamGetCaptureInfo" 12030 fn cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz(
        stream: usize,
        status: *mut c_int,
        id: *mut u64,
        graph: *mut usize,
        dependencies: *mut *const usize,
        edges: *mut *const [u8; 8],
        count: *mut usize,
    ) {
        capture_info(stream, own, &Wanted { status, id, graph, dependencies, edges, count })
    }
    "cuStreamUpdateCaptureDependencies" 11030 fn cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz(
        stream: usize, nodes: *const usize, count: usize, flags: u32,
    ) {
        update_dependencies(stream, own, nodes, count, flags)
    }
    "cuStreamUpdateCaptureDependencies" 12030 fn cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz(
        stream: usize, nodes: *const usize, _edges: *const c_void, count: usize, flags: u32,
    ) {
        update_dependencies(stream, own, nodes, count, flags)
    }
}
