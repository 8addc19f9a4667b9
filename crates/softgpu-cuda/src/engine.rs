//! Submitted work: jobs, what each waits for, and the threads that run them.
//!
//! ```text
//!   a call ── submit(work, stream) ──► pending ── all before it done ──► ready ──► a worker
//!                                         ▲                                          │
//!                                         └────────────── done ◄─────────────────────┘
//! ```
//! A stream is a lane: each of its jobs waits for the one before. A job of a context's legacy stream waits for all
//! blocking lanes of the context, and theirs wait for it. Events and graphs are jobs that wait for others. So there is
//! one rule: a job begins when the jobs it names are done. Jobs of different lanes run in parallel, each on its own
//! thread, so that a kernel that waits for a later copy gets it.
//!
//! One lock guards the state of all jobs; no job runs under it.

use crate::capture::{Captures, Frontier};
use crate::object::Kept;
use crate::result::Outcome;
use crate::runtime::{Context, Runtime};
use crate::stream::{Mark, Stream};
use crate::work::Work;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sublet_softgpu::checkpoint::Inside;

/// The largest number of threads: only faulty programs have more kernels that wait for each other.
const WORKERS_MAX: usize = 256;
/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_secs(2);

/// A job's number; later ones are larger.
pub type JobId = u64;

/// What a job does, in which context, and its pass through the gate, which it keeps until it is done.
pub struct Task {
    work: Work,
    context: Arc<Context>,
    priority: i32,
    _inside: Inside<'static>,
    /// Objects of a graph that are kept until its end.
    _kept: Option<Arc<Kept>>,
}

struct Pending {
    missing: usize,
    then: Vec<JobId>,
    task: Option<Task>,
}

/// A stream's place in the order of work.
pub struct Lane {
    context: usize,
    is_legacy: bool,
    is_blocking: bool,
    is_gone: bool,
    last: Option<JobId>,
    /// The position in a graph, while the stream is captured.
    pub frontier: Option<Frontier>,
}

/// The state of all jobs.
#[derive(Default)]
pub struct Books {
    next: JobId,
    pending: HashMap<JobId, Pending>,
    ready: BTreeMap<(i32, JobId), Task>,
    lanes: HashMap<usize, Lane>,
    workers: usize,
    idle: usize,
    /// Open captures.
    pub captures: Captures,
}

/// Jobs and workers of a process.
#[derive(Default)]
pub struct Engine {
    books: Mutex<Books>,
    more: Condvar,
    done: Condvar,
}

impl Books {
    fn is_pending(&self, job: JobId) -> bool {
        self.pending.contains_key(&job)
    }

    /// The lane of a stream.
    pub fn lane(&mut self, stream: &Stream) -> &mut Lane {
        self.lanes.entry(stream.handle).or_insert_with(|| Lane {
            context: stream.context.handle,
            is_legacy: stream.is_legacy,
            is_blocking: stream.is_blocking,
            is_gone: false,
            last: None,
            frontier: None,
        })
    }

    /// True if a lane of a context is captured that must wait for the legacy stream.
    pub fn is_blocking_lane_captured(&self, context: usize) -> bool {
        self.lanes.values().any(|lane| lane.context == context && lane.is_blocking && lane.frontier.is_some())
    }

    /// All lanes, by their streams.
    pub fn lanes(&mut self) -> impl Iterator<Item = (&usize, &mut Lane)> {
        self.lanes.iter_mut()
    }

    /// The jobs that the next job of a stream must wait for.
    fn before(&mut self, stream: &Stream) -> Vec<JobId> {
        let pending = &self.pending;
        self.lanes.retain(|_, lane| !lane.is_gone || lane.last.is_some_and(|last| pending.contains_key(&last)));
        let (context, is_legacy, is_blocking) = (stream.context.handle, stream.is_legacy, stream.is_blocking);
        let own = self.lane(stream).last;
        let others = self.lanes.values().filter(|lane| {
            lane.context == context && ((is_legacy && lane.is_blocking) || (is_blocking && lane.is_legacy))
        });
        own.into_iter().chain(others.filter_map(|lane| lane.last)).collect()
    }

    /// Adds a job. Returns its task if it is ready; otherwise it becomes ready when the last job it waits for is done.
    fn enter(&mut self, task: Task, after: &[JobId]) -> (JobId, Option<Task>) {
        self.next += 1;
        let id = self.next;
        let mut missing = 0;
        for before in after {
            if let Some(job) = self.pending.get_mut(before) {
                missing += 1;
                job.then.push(id);
            }
        }
        let (kept, ready) = if missing == 0 { (None, Some(task)) } else { (Some(task), None) };
        self.pending.insert(id, Pending { missing, then: Vec::new(), task: kept });
        (id, ready)
    }

    /// Removes a job that is done: jobs that waited only for it become ready.
    fn leave(&mut self, id: JobId) {
        let Some(job) = self.pending.remove(&id) else { return };
        for next in job.then {
            let Some(waiting) = self.pending.get_mut(&next) else { continue };
            waiting.missing -= 1;
            if waiting.missing == 0
                && let Some(task) = waiting.task.take()
            {
                self.ready.insert((task.priority, next), task);
            }
        }
    }
}

/// The nodes of a graph: what each does, where, and after which of the earlier ones.
pub type Nodes<'a> = &'a [(Work, Arc<Context>, Vec<usize>)];

impl Engine {
    /// The state of all jobs, locked.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn task(runtime: &'static Runtime, stream: &Stream, work: Work) -> Task {
        let context = Arc::clone(&stream.context);
        Task { work, context, priority: stream.priority, _inside: runtime.seat.stay(), _kept: None }
    }

    /// Submits work to a stream. The caller is past the gate.
    pub fn submit(&self, runtime: &'static Runtime, stream: &Stream, work: Work, also: &[JobId]) -> JobId {
        let task = Engine::task(runtime, stream, work);
        let mut books = self.books();
        let mut after = books.before(stream);
        after.extend_from_slice(also);
        let (id, ready) = books.enter(task, &after);
        books.lane(stream).last = Some(id);
        if let Some(task) = ready {
            books.ready.insert((task.priority, id), task);
            self.wake(runtime, books);
        }
        id
    }

    /// Submits work to a stream and waits until it is done; runs it on this thread if nothing is before it.
    pub fn finish(&self, runtime: &'static Runtime, stream: &Stream, work: Work) -> Outcome {
        let task = Engine::task(runtime, stream, work);
        let mut books = self.books();
        let after = books.before(stream);
        let (id, ready) = books.enter(task, &after);
        books.lane(stream).last = Some(id);
        drop(books);
        match ready {
            Some(task) => self.run(runtime, id, task),
            None => self.wait(&[id]),
        }
        stream.context.check()
    }

    /// Submits a graph to a stream: its nodes in their order, all after the stream's earlier work and after the given
    /// job. The graph's objects are kept until its end.
    pub fn submit_graph(
        &self,
        runtime: &'static Runtime,
        stream: &Stream,
        nodes: Nodes<'_>,
        also: Option<JobId>,
        kept: &Arc<Kept>,
    ) -> JobId {
        let tasks: Vec<Task> = nodes
            .iter()
            .map(|(work, context, _)| Task {
                context: Arc::clone(context),
                ..Engine::task(runtime, stream, work.clone())
            })
            .collect();
        let end = Task { _kept: Some(Arc::clone(kept)), ..Engine::task(runtime, stream, Work::Nothing) };
        let mut books = self.books();
        let mut before = books.before(stream);
        before.extend(also);
        let mut ids: Vec<JobId> = Vec::with_capacity(nodes.len());
        for (task, (work, _, after)) in tasks.into_iter().zip(nodes) {
            let own: Vec<JobId> = after.iter().filter_map(|node| ids.get(*node).copied()).collect();
            let mut own = if own.is_empty() { before.clone() } else { own };
            // It waits for the event's present meaning: a later record of it may wait for the graph.
            if let Work::Await(event) = work
                && let Mark::Job(job) = event.mark()
            {
                own.push(job);
            }
            let (id, ready) = books.enter(task, &own);
            if let Work::Record(event) = work {
                event.set(Mark::Job(id));
            }
            if let Some(task) = ready {
                books.ready.insert((task.priority, id), task);
            }
            ids.push(id);
        }
        // The end waits for every node, and so for the earlier work.
        let (id, ready) = books.enter(end, if ids.is_empty() { &before } else { &ids });
        if let Some(task) = ready {
            books.ready.insert((task.priority, id), task);
        }
        books.lane(stream).last = Some(id);
        self.wake(runtime, books);
        id
    }

    /// Ensures that ready jobs have a thread.
    fn wake(&self, runtime: &'static Runtime, mut books: MutexGuard<'_, Books>) {
        let wanted = books.ready.len().saturating_sub(books.idle).min(WORKERS_MAX.saturating_sub(books.workers));
        books.workers += wanted;
        drop(books);
        self.more.notify_all();
        for _ in 0..wanted {
            if !spawn(runtime) {
                self.books().workers -= 1;
                // The host gives no thread, and there is no worker: the caller's own thread runs the jobs.
                if self.books().workers == 0 {
                    self.work_off(runtime);
                }
            }
        }
    }

    fn work_off(&self, runtime: &'static Runtime) {
        loop {
            let next = self.books().ready.pop_first();
            let Some(((_, id), task)) = next else { return };
            self.run(runtime, id, task);
        }
    }

    /// The main loop of a worker.
    fn serve(&self, runtime: &'static Runtime) {
        loop {
            let mut books = self.books();
            let next = loop {
                if let Some(((_, id), task)) = books.ready.pop_first() {
                    break Some((id, task));
                }
                books.idle += 1;
                let (woken, time) = self.more.wait_timeout(books, IDLE).unwrap_or_else(PoisonError::into_inner);
                books = woken;
                books.idle -= 1;
                if time.timed_out() && books.ready.is_empty() {
                    books.workers -= 1;
                    break None;
                }
            };
            drop(books);
            let Some((id, task)) = next else { return };
            self.run(runtime, id, task);
        }
    }

    fn run(&self, runtime: &'static Runtime, id: JobId, task: Task) {
        task.work.run(runtime, &task.context);
        // The pass is dropped first: a thread that sees the job done must find nothing inside the gate.
        drop(task);
        let mut books = self.books();
        books.leave(id);
        self.done.notify_all();
        if !books.ready.is_empty() {
            self.wake(runtime, books);
        }
    }

    /// Waits for jobs.
    pub fn wait(&self, jobs: &[JobId]) {
        let mut books = self.books();
        while jobs.iter().any(|job| books.is_pending(*job)) {
            books = self.done.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True if a job is done.
    pub fn is_done(&self, job: JobId) -> bool {
        !self.books().is_pending(job)
    }

    /// The last job of a stream; for the legacy stream, also those of the blocking streams.
    pub fn last_of(&self, stream: &Stream) -> Vec<JobId> {
        let mut books = self.books();
        if stream.is_legacy { books.before(stream) } else { books.lane(stream).last.into_iter().collect() }
    }

    /// The last jobs of all streams: of one context, or of all.
    pub fn last_of_all(&self, context: Option<usize>) -> Vec<JobId> {
        let books = self.books();
        let own = books.lanes.values().filter(|lane| context.is_none_or(|context| lane.context == context));
        own.filter_map(|lane| lane.last).collect()
    }

    /// Forgets the streams of a context that is gone.
    pub fn forget_all(&self, context: usize) {
        self.books().lanes.values_mut().filter(|lane| lane.context == context).for_each(|lane| lane.is_gone = true);
    }

    /// Forgets a stream, once its work is done.
    pub fn forget(&self, stream: &Stream) {
        self.books().lane(stream).is_gone = true;
    }
}

/// Starts a worker, which takes no signals: those are for the program's own threads.
fn spawn(runtime: &'static Runtime) -> bool {
    // SAFETY: sets of signals are plain numbers, filled by the calls before they are read.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let work = move || runtime.engine.serve(runtime);
        let started = std::thread::Builder::new().name("soft-gpu".to_owned()).spawn(work).is_ok();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        started
    }
}
