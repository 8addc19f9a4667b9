//! The GPU thread: asks the worker for readings of the GPUs, and survives a worker that does not answer.
//!
//! ```text
//!            asked, answered
//!            ┌────────────┐
//!            ▼            │
//!  start ─► alive ────────┘
//!    ▲       │ late, ended, invalid answer: every GPU is unreadable at once
//!    │       ▼
//!    └── waiting (100 ms, doubling to 10 s; a good reading resets it)
//! ```
//! Nothing is attributed here: each reading goes to the process thread, which knows the holders.

use crate::clock::Clock;
use crate::gpu::GpuSpec;
use crate::gpu_protocol::{GpuAnswer, GpuRequest, WorkerReading};
use crate::process_thread::{ProcessMessage, ProcessThreadInbox};
use crate::soft::SoftPlace;
use crate::wake::{WakeEvent, wait_readable};
use crate::worker::MeasuredContext;
use crate::worker_link::{WorkerError, WorkerLink, is_unreaped};
use crate::{GpuListError, GpuListErrorKind, HostReport, HostSettings};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sublet_core::reading::{GpuFacts, GpuReading, Reading, Unreadable};
use sublet_core::units::{Bytes, Time};

/// Minimum time between two requested readings: a reading takes about a hundredth of it.
const READING_GAP: Duration = Duration::from_millis(5);
/// GPUs come and go rarely (hot plug, a reset); display and compute mode change by hand.
const LIST_EVERY: Duration = Duration::from_secs(60);
/// A missing driver may be installed or loaded at any moment, and an unreadable GPU may answer again.
const LIST_EVERY_UNLISTED: Duration = Duration::from_secs(10);
/// Starting NVML wakes sleeping GPUs, a second or two for each.
const LIST_DEADLINE_FACTOR: u32 = 10;
pub(crate) const RESTART_PAUSE_MIN: Duration = Duration::from_millis(100);
pub(crate) const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// `cuInit` takes seconds on a big host, and longer while other programs start.
pub(crate) const CONTEXT_TIMEOUT: Duration = Duration::from_secs(30);
/// Killed workers that still exist, stuck in the driver. At this number no further worker is started: it would get
/// stuck as well.
pub(crate) const UNREAPED_MAX: usize = 3;
/// How long a stopping thread waits for its worker to end.
const REAP_WAIT_MAX: Duration = Duration::from_millis(500);

/// What other threads may tell the GPU thread.
pub(crate) struct GpuThreadHandle {
    wake: WakeEvent,
    stop: WakeEvent,
    is_requested: AtomicBool,
    measured: Mutex<Vec<(String, Bytes)>>,
}

impl GpuThreadHandle {
    pub(crate) fn new() -> io::Result<GpuThreadHandle> {
        let (wake, stop) = (WakeEvent::new()?, WakeEvent::new()?);
        Ok(GpuThreadHandle { wake, stop, is_requested: AtomicBool::new(false), measured: Mutex::default() })
    }

    pub(crate) fn request_reading(&self) {
        if !self.is_requested.swap(true, Ordering::AcqRel) {
            self.wake.notify();
        }
    }

    /// Is set when the thread must stop.
    pub(crate) fn stopping(&self) -> &WakeEvent {
        &self.stop
    }

    pub(crate) fn stop(&self) {
        self.stop.notify();
    }

    fn add_measured(&self, uuid: String, context: Bytes) {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).push((uuid, context));
        self.wake.notify();
    }

    fn take_measured(&self) -> Vec<(String, Bytes)> {
        std::mem::take(&mut self.measured.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct GpuThread {
    settings: HostSettings,
    clock: Clock,
    handle: Arc<GpuThreadHandle>,
    process_thread: ProcessThreadInbox,
    worker_link: Option<WorkerLink>,
    unreaped: Vec<Child>,
    /// How long to wait before the next start, and the end of the present wait.
    restart_pause: Duration,
    start_at: Instant,
    facts: Vec<GpuFacts>,
    reported: Option<Result<Vec<GpuFacts>, GpuListError>>,
    list_at: Instant,
    read_at: Instant,
    last_read: Option<Instant>,
    contexts: BTreeMap<String, Bytes>,
    /// GPUs on which the context was measured or tried: once is enough.
    context_tried: BTreeSet<String>,
    measuring: Option<JoinHandle<()>>,
}

impl GpuThread {
    pub(crate) fn new(
        settings: HostSettings,
        clock: Clock,
        handle: Arc<GpuThreadHandle>,
        process_thread: ProcessThreadInbox,
    ) -> GpuThread {
        let now = Instant::now();
        GpuThread {
            settings,
            clock,
            handle,
            process_thread,
            worker_link: None,
            unreaped: Vec::new(),
            restart_pause: RESTART_PAUSE_MIN,
            start_at: now,
            facts: Vec::new(),
            reported: None,
            list_at: now,
            read_at: now,
            last_read: None,
            contexts: BTreeMap::new(),
            context_tried: BTreeSet::new(),
            measuring: None,
        }
    }

    pub(crate) fn run(mut self) {
        while self.wait_until_due() {
            self.update_contexts();
            self.unreaped.retain_mut(is_unreaped);
            if let Err(error) = self.run_once() {
                self.lose_worker(&error);
            }
        }
        self.end_worker();
    }

    /// Sleeps until there is something to do; returns false when the thread must stop.
    fn wait_until_due(&self) -> bool {
        loop {
            let due = self.due();
            let ends = match wait_readable([self.handle.stop.as_fd(), self.handle.wake.as_fd()], due) {
                Ok([stopped, woken]) => {
                    if woken {
                        self.handle.wake.clear();
                    }
                    stopped
                }
                Err(_) => true, // our own descriptors are broken: nothing can be done from here
            };
            if ends {
                return false;
            }
            if self.due() <= Instant::now() {
                return true;
            }
        }
    }

    fn due(&self) -> Instant {
        let mut due = self.read_at;
        if self.handle.is_requested.load(Ordering::Acquire) {
            due = due.min(self.last_read.map_or_else(Instant::now, |last_read| last_read + READING_GAP));
        }
        if self.worker_link.is_none() && !self.is_stuck() {
            due = due.min(self.start_at);
        }
        if !self.handle.measured.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            due = due.min(Instant::now());
        }
        due
    }

    /// One iteration: start the worker if necessary, list if it is time, read.
    fn run_once(&mut self) -> Result<(), WorkerError> {
        let now = Instant::now();
        self.read_at = now + self.settings.period;
        self.last_read = Some(now);
        // Before the request: every event from here on deserves another reading.
        self.handle.is_requested.store(false, Ordering::Release);
        if self.worker_link.is_none() {
            if now < self.start_at || self.is_stuck() {
                self.report_all_unreadable(self.clock.now(), &Unreadable::NoAnswer);
                return Ok(());
            }
            self.start_worker(now)?;
        }
        if self.list_at <= now {
            self.list_gpus(now)?;
        }
        if self.facts.is_empty() { Ok(()) } else { self.read_gpus() }
    }

    fn is_stuck(&self) -> bool {
        self.unreaped.len() >= UNREAPED_MAX
    }

    fn start_worker(&mut self, now: Instant) -> Result<(), WorkerError> {
        let mut args = vec!["cards".to_owned()];
        match &self.settings.gpu {
            // Soft GPUs are read like real ones; the environment selects the library to load.
            GpuSpec::Real | GpuSpec::Soft(_) => args.push(GpuSpec::Real.to_string()),
            scripted @ GpuSpec::Scripted { .. } => {
                args.extend([scripted.to_string(), self.settings.script.to_string_lossy().into_owned()]);
            }
        }
        self.worker_link = Some(WorkerLink::start(&self.settings.worker_exe, &args, self.settings.soft.as_ref())?);
        self.list_at = now;
        Ok(())
    }

    fn list_gpus(&mut self, now: Instant) -> Result<(), WorkerError> {
        let answer = self.ask(GpuRequest::List, self.settings.deadline * LIST_DEADLINE_FACTOR)?;
        self.handle_list(now, answer)
    }

    /// Processes the worker's answer to [`GpuRequest::List`].
    pub(crate) fn handle_list(&mut self, now: Instant, answer: GpuAnswer) -> Result<(), WorkerError> {
        match answer {
            GpuAnswer::Cards { cards, unread } => {
                self.facts = cards;
                self.list_at = now + if unread { LIST_EVERY_UNLISTED } else { LIST_EVERY };
                self.report_gpus();
                self.measure_contexts();
            }
            GpuAnswer::Unlisted(why) => self.postpone_list(why),
            GpuAnswer::Looks(_) => return Err(WorkerError::Invalid),
        }
        Ok(())
    }

    fn read_gpus(&mut self) -> Result<(), WorkerError> {
        let begun = self.clock.now();
        let answer = self.ask(GpuRequest::Look { busy: self.process_thread.is_watching() }, self.settings.deadline)?;
        self.handle_readings(begun, answer)
    }

    /// Processes the worker's answer to [`GpuRequest::Look`].
    pub(crate) fn handle_readings(&mut self, begun: Time, answer: GpuAnswer) -> Result<(), WorkerError> {
        match answer {
            GpuAnswer::Looks(readings) => {
                self.restart_pause = RESTART_PAUSE_MIN;
                self.report_readings(begun, readings);
            }
            GpuAnswer::Unlisted(why) => {
                self.report_all_unreadable(begun, &Unreadable::Failed(why.to_string()));
                self.postpone_list(why);
            }
            GpuAnswer::Cards { .. } => return Err(WorkerError::Invalid),
        }
        Ok(())
    }

    fn ask(&mut self, request: GpuRequest, timeout: Duration) -> Result<GpuAnswer, WorkerError> {
        let worker_link = self.worker_link.as_mut().ok_or(WorkerError::Ended)?;
        let line = serde_json::to_string(&request).map_err(|_| WorkerError::Invalid)?;
        parse_answer(&worker_link.ask(&line, timeout, &self.handle.stop)?)
    }

    /// The worker hangs, is dead or answers nonsense: all GPUs become unreadable, and a new worker is started later.
    fn lose_worker(&mut self, error: &WorkerError) {
        if matches!(error, WorkerError::Stopped) {
            return;
        }
        self.report_all_unreadable(self.clock.now(), &Unreadable::NoAnswer);
        if self.facts.is_empty() {
            self.report_list_error(GpuListError {
                kind: GpuListErrorKind::NoAnswer,
                what: format!("the worker that reads the GPUs gives no answer: {}", with_cause(error)),
                remedy: "it is started again by itself; look at the kernel's log (`dmesg`) if this stays".to_owned(),
            });
        }
        self.unreaped.extend(self.worker_link.take().and_then(WorkerLink::kill));
        self.start_at = Instant::now() + self.restart_pause;
        self.restart_pause = (self.restart_pause * 2).min(RESTART_PAUSE_MAX);
    }

    fn postpone_list(&mut self, why: GpuListError) {
        self.list_at = Instant::now() + LIST_EVERY_UNLISTED;
        self.report_list_error(why);
    }

    fn report_list_error(&mut self, why: GpuListError) {
        let why = Err(why);
        if self.reported.as_ref() != Some(&why) {
            self.reported = Some(why.clone());
            self.process_thread.send(ProcessMessage::Report(why.map_or_else(HostReport::ListFailed, HostReport::Gpus)));
        }
    }

    fn report_gpus(&mut self) {
        for gpu in &mut self.facts {
            gpu.context = gpu.context.or_else(|| self.contexts.get(&gpu.uuid).copied());
        }
        if self.reported.as_ref().and_then(|reported| reported.as_ref().ok()) != Some(&self.facts) {
            self.reported = Some(Ok(self.facts.clone()));
            self.process_thread.send(ProcessMessage::Report(HostReport::Gpus(self.facts.clone())));
        }
    }

    fn report_readings(&self, begun: Time, readings: Vec<WorkerReading>) {
        for WorkerReading { uuid, seen } in readings {
            let busy = seen.busy();
            let observation = GpuReading { begun, reading: seen.into_reading() };
            self.process_thread.send(ProcessMessage::GpuRead { uuid, observation, busy });
        }
    }

    fn report_all_unreadable(&self, begun: Time, why: &Unreadable) {
        for gpu in &self.facts {
            let observation = GpuReading { begun, reading: Reading::Unreadable(why.clone()) };
            self.process_thread.send(ProcessMessage::GpuRead { uuid: gpu.uuid.clone(), observation, busy: Vec::new() });
        }
    }

    fn update_contexts(&mut self) {
        let measured = self.handle.take_measured();
        if !measured.is_empty() {
            self.contexts.extend(measured);
            if matches!(self.reported, Some(Ok(_))) {
                self.report_gpus();
            }
        }
    }

    /// Measures, on a thread of its own, each GPU that was not tried before.
    fn measure_contexts(&mut self) {
        if !self.settings.measure_context || self.measuring.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let wanted = |gpu: &&GpuFacts| gpu.context.is_none() && gpu.unusable.is_none();
        let uuids: Vec<String> = self.facts.iter().filter(wanted).map(|gpu| gpu.uuid.clone()).collect();
        let new: Vec<String> = uuids.into_iter().filter(|uuid| self.context_tried.insert(uuid.clone())).collect();
        if new.is_empty() {
            return;
        }
        let (exe, soft) = (self.settings.worker_exe.clone(), self.settings.soft.clone());
        let handle = Arc::clone(&self.handle);
        let thread = std::thread::Builder::new().name("sublet-context".to_owned());
        // Without a thread the contexts stay unknown, which is permitted.
        self.measuring = thread.spawn(move || measure_gpus(&exe, soft.as_ref(), new, &handle)).ok();
    }

    /// Ends the worker, and waits a moment so that none outlives this process unless it is stuck.
    fn end_worker(mut self) {
        self.unreaped.extend(self.worker_link.take().and_then(WorkerLink::kill));
        if let Some(thread) = self.measuring.take() {
            let _ = thread.join(); // it has said on stderr why it panicked, if it did
        }
        reap(self.unreaped);
    }
}

/// Parses one line of the worker.
pub(crate) fn parse_answer(line: &[u8]) -> Result<GpuAnswer, WorkerError> {
    serde_json::from_slice(line).map_err(|_| WorkerError::Invalid)
}

/// Measures one GPU after the other. A failed measurement stays unknown; the worker writes the reason to stderr.
fn measure_gpus(exe: &Path, soft: Option<&SoftPlace>, uuids: Vec<String>, handle: &GpuThreadHandle) {
    for uuid in uuids {
        if handle.stop.is_set() {
            return;
        }
        let Ok(mut worker_link) = WorkerLink::start(exe, &["context".to_owned(), uuid.clone()], soft) else { return };
        let line = worker_link.read_line(CONTEXT_TIMEOUT, &handle.stop);
        reap(worker_link.kill().into_iter().collect());
        if let Some(measured) = line.ok().and_then(|line| serde_json::from_slice::<MeasuredContext>(&line).ok()) {
            handle.add_measured(uuid, measured.context);
        }
    }
}

/// Waits a moment for killed children to end.
pub(crate) fn reap(mut children: Vec<Child>) {
    let until = Instant::now() + REAP_WAIT_MAX;
    loop {
        children.retain_mut(is_unreaped);
        if children.is_empty() || Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
