//! Streams and events, and how work is submitted to a stream: to be run, or captured.

use crate::engine::JobId;
use crate::handles;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime, current};
use crate::work::JobWork;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
/// The handles of the default streams that every program knows: legacy, and a thread's own.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
/// The highest priority; zero is the default.
pub const PRIORITY_BEST: i32 = -5;

/// A stream.
pub struct WorkStream {
    /// Its handle; the default streams have one that no program sees.
    pub handle: usize,
    /// Its context.
    pub context: Arc<DriverContext>,
    /// Its flags as created.
    pub flags: u32,
    /// Its priority; lower numbers run sooner.
    pub priority: i32,
    /// True for a context's legacy default stream.
    pub is_legacy: bool,
    /// True if it and the legacy stream wait for each other.
    pub is_blocking: bool,
}

/// An event.
#[derive(Default)]
pub struct StreamEvent {
    /// Its flags as created.
    pub flags: u32,
    /// When it last completed, in nanoseconds; zero: never.
    pub at: AtomicU64,
    /// What it stands for.
    pub mark: Mutex<EventMark>,
}

/// What an event stands for.
#[derive(Clone, Default)]
pub enum EventMark {
    /// Nothing yet.
    #[default]
    Unset,
    /// The end of a job.
    Job(JobId),
    /// A position in a graph that is being captured.
    Captured(crate::capture::Frontier),
}

impl StreamEvent {
    /// What it stands for now.
    pub fn mark(&self) -> EventMark {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what it stands for.
    pub fn set(&self, mark: EventMark) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }
}

impl WorkStream {
    /// A context's legacy stream.
    pub fn legacy(context: Arc<DriverContext>) -> WorkStream {
        WorkStream { handle: context.legacy, context, flags: 0, priority: 0, is_legacy: true, is_blocking: false }
    }

    fn new_stream(context: Arc<DriverContext>, flags: u32, priority: i32) -> WorkStream {
        let is_blocking = flags & NON_BLOCKING == 0;
        let priority = priority.clamp(PRIORITY_BEST, 0);
        WorkStream { handle: handles::fresh(), context, flags, priority, is_legacy: false, is_blocking }
    }

    /// A stream that no program knows.
    pub fn hidden(context: Arc<DriverContext>) -> WorkStream {
        WorkStream::new_stream(context, NON_BLOCKING, 0)
    }

    /// Creates a stream.
    pub fn create(runtime: &Runtime, context: Arc<DriverContext>, flags: u32, priority: i32) -> Outcome<usize> {
        if flags & !NON_BLOCKING != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let stream = WorkStream::new_stream(context, flags, priority);
        let handle = stream.handle;
        runtime.streams.insert_as(handle, Arc::new(stream));
        Ok(handle)
    }
}

thread_local! {
    /// This thread's own default streams, by context.
    static OWN: RefCell<ThreadStreams> = RefCell::default();
}

/// A thread's own default streams, which end with it.
#[derive(Default)]
struct ThreadStreams(HashMap<usize, Arc<WorkStream>>);

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        if let Ok(runtime) = Runtime::get() {
            self.0.values().for_each(|stream| runtime.engine.forget(stream));
        }
    }
}

/// The stream that a program names; with `own`, zero names the thread's own default stream.
pub fn resolve(stream: usize, own: bool) -> Outcome<(&'static Runtime, Arc<WorkStream>)> {
    let (runtime, context) = current()?;
    let found = match stream {
        0 if own => own_stream(context),
        PER_THREAD => own_stream(context),
        0 | LEGACY => Arc::new(WorkStream::legacy(context)),
        handle => runtime.streams.get(handle)?,
    };
    Ok((runtime, found))
}

fn own_stream(context: Arc<DriverContext>) -> Arc<WorkStream> {
    OWN.with_borrow_mut(|own| {
        let made = || Arc::new(WorkStream::new_stream(Arc::clone(&context), 0, 0));
        Arc::clone(own.0.entry(context.handle).or_insert_with(made))
    })
}

/// Submits work to a stream, or adds a node to its capture. The caller is past the gate.
pub fn submit_or_capture(runtime: &'static Runtime, stream: &WorkStream, work: JobWork) -> Outcome {
    if !runtime.capture(stream, || work.clone())? {
        runtime.engine.submit(runtime, stream, work, &[]);
    }
    Ok(())
}

/// Submits work to a stream and waits for it; refused while the stream is captured.
pub fn finish(runtime: &'static Runtime, stream: &WorkStream, work: JobWork) -> Outcome {
    runtime.refuse_capture(stream)?;
    runtime.engine.finish(runtime, stream, work)
}

/// Records an event in a stream.
pub fn record(runtime: &'static Runtime, stream: &WorkStream, event: &Arc<StreamEvent>) -> Outcome {
    if let Some(frontier) = runtime.frontier(stream)? {
        event.set(EventMark::Captured(frontier));
        return Ok(());
    }
    let job = runtime.engine.submit(runtime, stream, JobWork::RecordEvent(Arc::clone(event)), &[]);
    event.set(EventMark::Job(job));
    Ok(())
}

/// Makes a stream wait for an event.
pub fn wait_event(runtime: &'static Runtime, stream: &WorkStream, event: &StreamEvent) -> Outcome {
    match event.mark() {
        EventMark::Captured(frontier) => runtime.join(stream, &frontier),
        // A capture cannot wait for work outside it.
        EventMark::Job(_) if runtime.frontier(stream)?.is_some() => Err(CuResult::STREAM_CAPTURE_ISOLATION),
        EventMark::Unset => Ok(()),
        EventMark::Job(job) => {
            runtime.engine.submit(runtime, stream, JobWork::Nothing, &[job]);
            Ok(())
        }
    }
}
