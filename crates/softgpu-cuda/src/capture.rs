//! Capture: work that goes into a graph instead of being done.
//!
//! A captured stream has a frontier: the nodes that its next node depends on. An event that is recorded there carries
//! the frontier; a stream that waits for the event joins the capture. At the end every stream that joined must have
//! been joined back into the stream where the capture began.

use crate::engine::JobTable;
use crate::graph::{WorkGraph, WorkNode};
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use crate::stream::WorkStream;
use crate::work::JobWork;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::ThreadId;

/// Where a stream is in a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontier {
    /// The number of the capture.
    pub capture: u64,
    /// The nodes that the next one depends on, by handle.
    pub nodes: Vec<usize>,
}

/// Which threads a capture keeps from calls that could spoil it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CaptureMode {
    /// All threads.
    Global = 0,
    /// The thread that began it.
    ThreadLocal = 1,
    /// No thread.
    Relaxed = 2,
}

impl CaptureMode {
    /// By the driver API's number.
    pub fn from_number(number: i32) -> Outcome<CaptureMode> {
        [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed]
            .into_iter()
            .find(|mode| *mode as i32 == number)
            .ok_or(CuResult::INVALID_VALUE)
    }
}

/// A graph that is being captured.
pub struct Capture {
    /// What was captured so far.
    pub graph: Arc<WorkGraph>,
    /// The stream where it began.
    origin: usize,
    /// Its context, by handle.
    context: usize,
    mode: CaptureMode,
    thread: ThreadId,
    /// True if the capture was spoilt.
    pub is_invalid: bool,
}

/// All open captures.
#[derive(Default)]
pub struct Captures {
    next: u64,
    open: HashMap<u64, Capture>,
}

impl Captures {
    /// The capture with this number.
    pub fn get(&self, id: u64) -> Option<&Capture> {
        self.open.get(&id)
    }
}

thread_local! {
    /// This thread's mode for calls that could spoil a capture.
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Sets this thread's mode; returns the one before.
pub fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

fn spoil(jobs: &mut JobTable, is: impl Fn(&Capture) -> bool) {
    jobs.captures.open.values_mut().filter(|capture| is(capture)).for_each(|capture| capture.is_invalid = true);
}

impl Runtime {
    /// Refuses a call that must not happen while a capture is open.
    pub fn refuse_unsafe(&self) -> Outcome {
        let mut jobs = self.engine.jobs();
        if jobs.captures.open.is_empty() || MODE.get() == CaptureMode::Relaxed {
            return Ok(());
        }
        let (own, thread) = (MODE.get(), std::thread::current().id());
        let forbids = |capture: &Capture| match capture.mode {
            CaptureMode::Global => own == CaptureMode::Global || capture.thread == thread,
            CaptureMode::ThreadLocal => capture.thread == thread,
            CaptureMode::Relaxed => false,
        };
        if !jobs.captures.open.values().any(forbids) {
            return Ok(());
        }
        spoil(&mut jobs, forbids);
        Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call that waits for a whole context while anything in it is captured, in any mode.
    pub fn refuse_any_capture(&self, context: usize) -> Outcome {
        let mut jobs = self.engine.jobs();
        let is_of = |capture: &Capture| capture.context == context;
        if !jobs.captures.open.values().any(is_of) {
            return Ok(());
        }
        spoil(&mut jobs, is_of);
        Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Where a stream is in a capture; `None` if it is not captured.
    pub fn frontier(&self, stream: &WorkStream) -> Outcome<Option<Frontier>> {
        let mut jobs = self.engine.jobs();
        let found = jobs.lane(stream).frontier.clone();
        if let Some(frontier) = &found {
            let is_good = jobs.captures.get(frontier.capture).is_some_and(|capture| !capture.is_invalid);
            return if is_good { Ok(found) } else { Err(CuResult::STREAM_CAPTURE_INVALIDATED) };
        }
        if stream.is_legacy && jobs.is_blocking_lane_captured(stream.context.handle) {
            spoil(&mut jobs, |_| true);
            return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
        }
        Ok(None)
    }

    /// Refuses a call that waits for a stream while it is captured.
    pub fn refuse_capture(&self, stream: &WorkStream) -> Outcome {
        let Some(frontier) = self.frontier(stream)? else { return Ok(()) };
        self.spoil(&frontier);
        Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Spoils a capture that was waited for, or asked whether it is done: it can only end in an error.
    pub fn spoil(&self, frontier: &Frontier) {
        if let Some(capture) = self.engine.jobs().captures.open.get_mut(&frontier.capture) {
            capture.is_invalid = true;
        }
    }

    /// Adds work to the capture of a stream; false if it has none.
    pub fn capture(&self, stream: &WorkStream, work: impl FnOnce() -> JobWork) -> Outcome<bool> {
        let Some(frontier) = self.frontier(stream)? else { return Ok(false) };
        let mut jobs = self.engine.jobs();
        let capture = jobs.captures.open.get(&frontier.capture).ok_or(CuResult::STREAM_CAPTURE_INVALIDATED)?;
        let graph = Arc::clone(&capture.graph);
        let node = WorkNode::new(&graph, Arc::clone(&stream.context), work());
        graph.add(self, &node, &frontier.nodes)?;
        jobs.lane(stream).frontier = Some(Frontier { nodes: vec![node.handle], ..frontier });
        Ok(true)
    }

    /// Begins to capture a stream, into an existing graph or a new one.
    pub fn begin_capture(
        &self,
        stream: &WorkStream,
        mode: CaptureMode,
        into: Option<Arc<WorkGraph>>,
        after: Vec<usize>,
    ) -> Outcome {
        if stream.is_legacy {
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut jobs = self.engine.jobs();
        if jobs.lane(stream).frontier.is_some() {
            return Err(CuResult::ILLEGAL_STATE);
        }
        jobs.captures.next += 1;
        let id = jobs.captures.next;
        let graph = into.unwrap_or_else(|| WorkGraph::create(self));
        let thread = std::thread::current().id();
        let (origin, context) = (stream.handle, stream.context.handle);
        let capture = Capture { graph, origin, context, mode, thread, is_invalid: false };
        jobs.captures.open.insert(id, capture);
        jobs.lane(stream).frontier = Some(Frontier { capture: id, nodes: after });
        Ok(())
    }

    /// Ends the capture that began in a stream. Returns the graph.
    pub fn end_capture(&self, stream: &WorkStream) -> Outcome<Arc<WorkGraph>> {
        let mut jobs = self.engine.jobs();
        let Some(frontier) = jobs.lane(stream).frontier.clone() else { return Err(CuResult::ILLEGAL_STATE) };
        let capture = jobs.captures.open.get(&frontier.capture).ok_or(CuResult::ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            return Err(CuResult::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(CuResult::STREAM_CAPTURE_WRONG_THREAD);
        }
        let Some(capture) = jobs.captures.open.remove(&frontier.capture) else { return Err(CuResult::ILLEGAL_STATE) };
        let joined = capture.graph.all_before(&frontier.nodes);
        let mut is_unjoined = false;
        for (_, lane) in jobs.lanes() {
            if let Some(own) = lane.frontier.take_if(|own| own.capture == frontier.capture) {
                is_unjoined |= own.nodes.iter().any(|node| !joined.contains(node));
            }
        }
        drop(jobs);
        if capture.is_invalid || is_unjoined {
            capture.graph.destroy(self);
            let why = if capture.is_invalid {
                CuResult::STREAM_CAPTURE_INVALIDATED
            } else {
                CuResult::STREAM_CAPTURE_UNJOINED
            };
            return Err(why);
        }
        Ok(capture.graph)
    }

    /// Ends the captures that began in a stream, or in any stream of a context, that is gone.
    pub fn drop_captures(&self, is: impl Fn(usize, usize) -> bool) {
        let mut jobs = self.engine.jobs();
        let gone: Vec<(u64, Capture)> =
            jobs.captures.open.extract_if(|_, capture| is(capture.origin, capture.context)).collect();
        for (_, lane) in jobs.lanes() {
            lane.frontier.take_if(|own| gone.iter().any(|(id, _)| *id == own.capture));
        }
        drop(jobs);
        gone.into_iter().for_each(|(_, capture)| capture.graph.destroy(self));
    }

    /// Makes a stream depend on an event that was captured.
    pub fn join(&self, stream: &WorkStream, other: &Frontier) -> Outcome {
        if stream.is_legacy {
            return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
        }
        let mut jobs = self.engine.jobs();
        if jobs.captures.get(other.capture).is_none_or(|capture| capture.is_invalid) {
            return Err(CuResult::CAPTURED_EVENT);
        }
        let lane = jobs.lane(stream);
        let own = lane.frontier.get_or_insert_with(|| Frontier { capture: other.capture, nodes: Vec::new() });
        if own.capture != other.capture {
            return Err(CuResult::STREAM_CAPTURE_MERGE);
        }
        let all: BTreeSet<usize> = own.nodes.iter().chain(&other.nodes).copied().collect();
        own.nodes = all.into_iter().collect();
        Ok(())
    }

    /// Sets, or adds to, the nodes that the next node of a captured stream depends on.
    pub fn set_frontier(&self, stream: &WorkStream, nodes: Vec<usize>, is_added: bool) -> Outcome {
        let mut jobs = self.engine.jobs();
        let Some(own) = &mut jobs.lane(stream).frontier else { return Err(CuResult::ILLEGAL_STATE) };
        let old = if is_added { std::mem::take(&mut own.nodes) } else { Vec::new() };
        let all: BTreeSet<usize> = old.into_iter().chain(nodes).collect();
        own.nodes = all.into_iter().collect();
        Ok(())
    }
}
