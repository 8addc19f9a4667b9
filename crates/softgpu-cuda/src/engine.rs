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
use crate::object::RetainedObjects;
use crate::result::Outcome;
use crate::runtime::{DriverContext, Runtime};
use crate::stream::{EventMark, WorkStream};
use crate::work::JobWork;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sublet_softgpu::checkpoint::GatePass;

/// The largest number of threads: only faulty programs have more kernels that wait for each other.
const WORKERS_MAX: usize = 256;
/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_secs(2);

/// A job's number; later ones are larger.
pub type JobId = u64;

/// What a job does, in which context, and its pass through the gate, which it keeps until it is done.
pub struct ReadyJob {
    work: JobWork,
    context: Arc<DriverContext>,
    priority: i32,
    _pass: GatePass<'static>,
    /// Objects of a graph that are kept until its end.
    _kept: Option<Arc<RetainedObjects>>,
}

struct PendingJob {
    missing: usize,
    then: Vec<JobId>,
    task: Option<ReadyJob>,
}

/// A stream's place in the order of work.
pub struct StreamLane {
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
pub struct JobTable {
    next: JobId,
    pending: HashMap<JobId, PendingJob>,
    ready: BTreeMap<(i32, JobId), ReadyJob>,
    lanes: HashMap<usize, StreamLane>,
    workers: usize,
    idle: usize,
    /// Open captures.
    pub captures: Captures,
}

/// Jobs and workers of a process.
#[derive(Default)]
pub struct JobEngine {
    jobs: Mutex<JobTable>,
    more: Condvar,
    done: Condvar,
}

impl JobTable {
    fn is_pending(&self, job: JobId) -> bool {
        self.pending.contains_key(&job)
    }

    /// The lane of a stream.
    pub fn lane(&mut self, stream: &WorkStream) -> &mut StreamLane {
        self.lanes.entry(stream.handle).or_insert_with(|| StreamLane {
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
    pub fn lanes(&mut self) -> impl Iterator<Item = (&usize, &mut StreamLane)> {
        self.lanes.iter_mut()
    }

    /// The jobs that the next job of a stream must wait for.
    fn jobs_before(&mut self, stream: &WorkStream) -> Vec<JobId> {
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
    fn add_job(&mut self, task: ReadyJob, after: &[JobId]) -> (JobId, Option<ReadyJob>) {
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
        self.pending.insert(id, PendingJob { missing, then: Vec::new(), task: kept });
        (id, ready)
    }

    /// Removes a job that is done: jobs that waited only for it become ready.
    fn finish_job(&mut self, id: JobId) {
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
pub type Nodes<'a> = &'a [(JobWork, Arc<DriverContext>, Vec<usize>)];

impl JobEngine {
    /// The state of all jobs, locked.
    pub fn jobs(&self) -> MutexGuard<'_, JobTable> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn task(runtime: &'static Runtime, stream: &WorkStream, work: JobWork) -> ReadyJob {
        let context = Arc::clone(&stream.context);
        ReadyJob { work, context, priority: stream.priority, _pass: runtime.client.another_pass(), _kept: None }
    }

    /// Submits work to a stream. The caller is past the gate.
    pub fn submit(&self, runtime: &'static Runtime, stream: &WorkStream, work: JobWork, also: &[JobId]) -> JobId {
        let task = JobEngine::task(runtime, stream, work);
        let mut jobs = self.jobs();
        let mut after = jobs.jobs_before(stream);
        after.extend_from_slice(also);
        let (id, ready) = jobs.add_job(task, &after);
        jobs.lane(stream).last = Some(id);
        if let Some(task) = ready {
            jobs.ready.insert((task.priority, id), task);
            self.wake(runtime, jobs);
        }
        id
    }

    /// Submits work to a stream and waits until it is done; runs it on this thread if nothing is before it.
    pub fn finish(&self, runtime: &'static Runtime, stream: &WorkStream, work: JobWork) -> Outcome {
        let task = JobEngine::task(runtime, stream, work);
        let mut jobs = self.jobs();
        let after = jobs.jobs_before(stream);
        let (id, ready) = jobs.add_job(task, &after);
        jobs.lane(stream).last = Some(id);
        drop(jobs);
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
        stream: &WorkStream,
        nodes: Nodes<'_>,
        also: Option<JobId>,
        kept: &Arc<RetainedObjects>,
    ) -> JobId {
        let tasks: Vec<ReadyJob> = nodes
            .iter()
            .map(|(work, context, _)| ReadyJob {
                context: Arc::clone(context),
                ..JobEngine::task(runtime, stream, work.clone())
            })
            .collect();
        let end = ReadyJob { _kept: Some(Arc::clone(kept)), ..JobEngine::task(runtime, stream, JobWork::Nothing) };
        let mut jobs = self.jobs();
        let mut before = jobs.jobs_before(stream);
        before.extend(also);
        let mut ids: Vec<JobId> = Vec::with_capacity(nodes.len());
        for (task, (work, _, after)) in tasks.into_iter().zip(nodes) {
            let own: Vec<JobId> = after.iter().filter_map(|node| ids.get(*node).copied()).collect();
            let mut own = if own.is_empty() { before.clone() } else { own };
            // It waits for the event's present meaning: a later record of it may wait for the graph.
            if let JobWork::WaitForEvent(event) = work
                && let EventMark::Job(job) = event.mark()
            {
                own.push(job);
            }
            let (id, ready) = jobs.add_job(task, &own);
            if let JobWork::RecordEvent(event) = work {
                event.set(EventMark::Job(id));
            }
            if let Some(task) = ready {
                jobs.ready.insert((task.priority, id), task);
            }
            ids.push(id);
        }
        // The end waits for every node, and so for the earlier work.
        let (id, ready) = jobs.add_job(end, if ids.is_empty() { &before } else { &ids });
        if let Some(task) = ready {
            jobs.ready.insert((task.priority, id), task);
        }
        jobs.lane(stream).last = Some(id);
        self.wake(runtime, jobs);
        id
    }

    /// Ensures that ready jobs have a thread.
    fn wake(&self, runtime: &'static Runtime, mut jobs: MutexGuard<'_, JobTable>) {
        let wanted = jobs.ready.len().saturating_sub(jobs.idle).min(WORKERS_MAX.saturating_sub(jobs.workers));
        jobs.workers += wanted;
        drop(jobs);
        self.more.notify_all();
        for _ in 0..wanted {
            if !spawn(runtime) {
                self.jobs().workers -= 1;
                // The host gives no thread, and there is no worker: the caller's own thread runs the jobs.
                if self.jobs().workers == 0 {
                    self.run_ready_jobs(runtime);
                }
            }
        }
    }

    fn run_ready_jobs(&self, runtime: &'static Runtime) {
        loop {
            let next = self.jobs().ready.pop_first();
            let Some(((_, id), task)) = next else { return };
            self.run(runtime, id, task);
        }
    }

    /// The main loop of a worker.
    fn worker_loop(&self, runtime: &'static Runtime) {
        loop {
            let mut jobs = self.jobs();
            let next = loop {
                if let Some(((_, id), task)) = jobs.ready.pop_first() {
                    break Some((id, task));
                }
                jobs.idle += 1;
                let (woken, time) = self.more.wait_timeout(jobs, IDLE).unwrap_or_else(PoisonError::into_inner);
                jobs = woken;
                jobs.idle -= 1;
                if time.timed_out() && jobs.ready.is_empty() {
                    jobs.workers -= 1;
                    break None;
                }
            };
            drop(jobs);
            let Some((id, task)) = next else { return };
            self.run(runtime, id, task);
        }
    }

    fn run(&self, runtime: &'static Runtime, id: JobId, task: ReadyJob) {
        task.work.run(runtime, &task.context);
        // The pass is dropped first: a thread that sees the job done must find nothing inside the gate.
        drop(task);
        let mut jobs = self.jobs();
        jobs.finish_job(id);
        self.done.notify_all();
        if !jobs.ready.is_empty() {
            self.wake(runtime, jobs);
        }
    }

    /// Waits for jobs.
    pub fn wait(&self, awaited: &[JobId]) {
        let mut jobs = self.jobs();
        while awaited.iter().any(|job| jobs.is_pending(*job)) {
            jobs = self.done.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True if a job is done.
    pub fn is_done(&self, job: JobId) -> bool {
        !self.jobs().is_pending(job)
    }

    /// The last job of a stream; for the legacy stream, also those of the blocking streams.
    pub fn last_jobs_of(&self, stream: &WorkStream) -> Vec<JobId> {
        let mut jobs = self.jobs();
        if stream.is_legacy { jobs.jobs_before(stream) } else { jobs.lane(stream).last.into_iter().collect() }
    }

    /// The last jobs of all streams: of one context, or of all.
    pub fn last_jobs_of_all(&self, context: Option<usize>) -> Vec<JobId> {
        let jobs = self.jobs();
        let own = jobs.lanes.values().filter(|lane| context.is_none_or(|context| lane.context == context));
        own.filter_map(|lane| lane.last).collect()
    }

    /// Forgets the streams of a context that is gone.
    pub fn forget_all(&self, context: usize) {
        self.jobs().lanes.values_mut().filter(|lane| lane.context == context).for_each(|lane| lane.is_gone = true);
    }

    /// Forgets a stream, once its work is done.
    pub fn forget(&self, stream: &WorkStream) {
        self.jobs().lane(stream).is_gone = true;
    }
}

/// Starts a worker, which takes no signals: those are for the program's own threads.
fn spawn(runtime: &'static Runtime) -> bool {
    // SAFETY: sets of signals are plain numbers, filled by the calls before they are read.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let work = move || runtime.engine.worker_loop(runtime);
        let started = std::thread::Builder::new().name("cuda-soft-gpu".to_owned()).spawn(work).is_ok();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        started
    }
}
