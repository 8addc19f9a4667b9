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
use crate::eyes::{ProcessMessage, ProcessThreadInbox};
use crate::gpu::GpuSpec;
use crate::link::{WorkerError, WorkerLink, is_left};
use crate::protocol::{GpuAnswer, GpuReading, GpuRequest};
use crate::soft::SoftPlace;
use crate::wake::{WakeEvent, wait_readable};
use crate::worker::MeasuredContext;
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
use sublet_core::reading::{CardFacts, Observation, Reading, Unreadable};
use sublet_core::units::{Bytes, Time};

/// Minimum time between two requested readings: a reading takes about a hundredth of it.
const LOOK_GAP: Duration = Duration::from_millis(5);
/// GPUs come and go rarely (hot plug, a reset); display and compute mode change by hand.
const LIST_EVERY: Duration = Duration::from_secs(60);
/// A missing driver may be installed or loaded at any moment, and an unreadable GPU may answer again.
const LIST_EVERY_UNLISTED: Duration = Duration::from_secs(10);
/// Starting NVML wakes sleeping GPUs, a second or two for each.
const LIST_PATIENCE: u32 = 10;
pub(crate) const WAIT_MIN: Duration = Duration::from_millis(100);
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);
/// `cuInit` takes seconds on a big host, and longer while other programs start.
pub(crate) const CONTEXT_PATIENCE: Duration = Duration::from_secs(30);
/// Killed workers that still exist, stuck in the driver. At this number no further worker is started: it would get
/// stuck as well.
pub(crate) const UNREAPED_MAX: usize = 3;
/// How long a stopping thread waits for its worker to end.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// What other threads may tell the GPU thread.
pub(crate) struct GpuThreadHandle {
    wake: WakeEvent,
    stop: WakeEvent,
    wished: AtomicBool,
    measured: Mutex<Vec<(String, Bytes)>>,
}

impl GpuThreadHandle {
    pub(crate) fn new() -> io::Result<GpuThreadHandle> {
        let (wake, stop) = (WakeEvent::new()?, WakeEvent::new()?);
        Ok(GpuThreadHandle { wake, stop, wished: AtomicBool::new(false), measured: Mutex::default() })
    }

    pub(crate) fn wish(&self) {
        if !self.wished.swap(true, Ordering::AcqRel) {
            self.wake.ring();
        }
    }

    /// Rings when the thread must stop.
    pub(crate) fn stopping(&self) -> &WakeEvent {
        &self.stop
    }

    pub(crate) fn stop(&self) {
        self.stop.ring();
    }

    fn tell_measured(&self, uuid: String, context: Bytes) {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).push((uuid, context));
        self.wake.ring();
    }

    fn take_measured(&self) -> Vec<(String, Bytes)> {
        std::mem::take(&mut self.measured.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct GpuThread {
    settings: HostSettings,
    clock: Clock,
    shared: Arc<GpuThreadHandle>,
    eyes: ProcessThreadInbox,
    link: Option<WorkerLink>,
    unreaped: Vec<Child>,
    /// How long to wait before the next start, and the end of the present wait.
    wait: Duration,
    start_at: Instant,
    facts: Vec<CardFacts>,
    told: Option<Result<Vec<CardFacts>, GpuListError>>,
    list_at: Instant,
    look_at: Instant,
    looked: Option<Instant>,
    contexts: BTreeMap<String, Bytes>,
    /// GPUs on which the context was measured or tried: once is enough.
    tried: BTreeSet<String>,
    measuring: Option<JoinHandle<()>>,
}

impl GpuThread {
    pub(crate) fn new(
        settings: HostSettings,
        clock: Clock,
        shared: Arc<GpuThreadHandle>,
        eyes: ProcessThreadInbox,
    ) -> GpuThread {
        let now = Instant::now();
        GpuThread {
            settings,
            clock,
            shared,
            eyes,
            link: None,
            unreaped: Vec::new(),
            wait: WAIT_MIN,
            start_at: now,
            facts: Vec::new(),
            told: None,
            list_at: now,
            look_at: now,
            looked: None,
            contexts: BTreeMap::new(),
            tried: BTreeSet::new(),
            measuring: None,
        }
    }

    pub(crate) fn run(mut self) {
        while self.wait_until_due() {
            self.learn_contexts();
            self.unreaped.retain_mut(is_left);
            if let Err(silence) = self.turn() {
                self.lose_worker(&silence);
            }
        }
        self.finish();
    }

    /// Sleeps until there is something to do; returns false when the thread must stop.
    fn wait_until_due(&self) -> bool {
        loop {
            let due = self.due();
            let ends = match wait_readable([self.shared.stop.as_fd(), self.shared.wake.as_fd()], due) {
                Ok([stopped, woken]) => {
                    if woken {
                        self.shared.wake.hush();
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
        let mut due = self.look_at;
        if self.shared.wished.load(Ordering::Acquire) {
            due = due.min(self.looked.map_or_else(Instant::now, |looked| looked + LOOK_GAP));
        }
        if self.link.is_none() && !self.is_stuck() {
            due = due.min(self.start_at);
        }
        if !self.shared.measured.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            due = due.min(Instant::now());
        }
        due
    }

    /// One iteration: start the worker if necessary, list if it is time, read.
    fn turn(&mut self) -> Result<(), WorkerError> {
        let now = Instant::now();
        self.look_at = now + self.settings.period;
        self.looked = Some(now);
        // Before the request: every event from here on deserves another reading.
        self.shared.wished.store(false, Ordering::Release);
        if self.link.is_none() {
            if now < self.start_at || self.is_stuck() {
                self.tell_all(self.clock.now(), &Unreadable::NoAnswer);
                return Ok(());
            }
            self.start_worker(now)?;
        }
        if self.list_at <= now {
            self.list(now)?;
        }
        if self.facts.is_empty() { Ok(()) } else { self.look() }
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
        self.link = Some(WorkerLink::start(&self.settings.worker_exe, &args, self.settings.soft.as_ref())?);
        self.list_at = now;
        Ok(())
    }

    fn list(&mut self, now: Instant) -> Result<(), WorkerError> {
        let answer = self.ask(GpuRequest::List, self.settings.deadline * LIST_PATIENCE)?;
        self.take_list(now, answer)
    }

    /// Processes the worker's answer to [`GpuRequest::List`].
    pub(crate) fn take_list(&mut self, now: Instant, answer: GpuAnswer) -> Result<(), WorkerError> {
        match answer {
            GpuAnswer::Cards { cards, unread } => {
                self.facts = cards;
                self.list_at = now + if unread { LIST_EVERY_UNLISTED } else { LIST_EVERY };
                self.tell_cards();
                self.measure_contexts();
            }
            GpuAnswer::Unlisted(why) => self.unlist(why),
            GpuAnswer::Looks(_) => return Err(WorkerError::Senseless),
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), WorkerError> {
        let begun = self.clock.now();
        let answer = self.ask(GpuRequest::Look { busy: self.eyes.is_watching() }, self.settings.deadline)?;
        self.take_look(begun, answer)
    }

    /// Processes the worker's answer to [`GpuRequest::GpuReading`].
    pub(crate) fn take_look(&mut self, begun: Time, answer: GpuAnswer) -> Result<(), WorkerError> {
        match answer {
            GpuAnswer::Looks(looks) => {
                self.wait = WAIT_MIN;
                self.tell_looks(begun, looks);
            }
            GpuAnswer::Unlisted(why) => {
                self.tell_all(begun, &Unreadable::Failed(why.to_string()));
                self.unlist(why);
            }
            GpuAnswer::Cards { .. } => return Err(WorkerError::Senseless),
        }
        Ok(())
    }

    fn ask(&mut self, request: GpuRequest, patience: Duration) -> Result<GpuAnswer, WorkerError> {
        let link = self.link.as_mut().ok_or(WorkerError::Ended)?;
        let line = serde_json::to_string(&request).map_err(|_| WorkerError::Senseless)?;
        read_answer(&link.ask(&line, patience, &self.shared.stop)?)
    }

    /// The worker hangs, is dead or answers nonsense: all GPUs become unreadable, and a new worker is started later.
    fn lose_worker(&mut self, silence: &WorkerError) {
        if matches!(silence, WorkerError::Stopped) {
            return;
        }
        self.tell_all(self.clock.now(), &Unreadable::NoAnswer);
        if self.facts.is_empty() {
            self.tell_unlisted(GpuListError {
                kind: GpuListErrorKind::NoAnswer,
                what: format!("the worker that reads the GPUs gives no answer: {}", with_cause(silence)),
                remedy: "it is started again by itself; look at the kernel's log (`dmesg`) if this stays".to_owned(),
            });
        }
        self.unreaped.extend(self.link.take().and_then(WorkerLink::end));
        self.start_at = Instant::now() + self.wait;
        self.wait = (self.wait * 2).min(WAIT_MAX);
    }

    fn unlist(&mut self, why: GpuListError) {
        self.list_at = Instant::now() + LIST_EVERY_UNLISTED;
        self.tell_unlisted(why);
    }

    fn tell_unlisted(&mut self, why: GpuListError) {
        let why = Err(why);
        if self.told.as_ref() != Some(&why) {
            self.told = Some(why.clone());
            self.eyes.send(ProcessMessage::Tell(why.map_or_else(HostReport::Unlisted, HostReport::Cards)));
        }
    }

    fn tell_cards(&mut self) {
        for card in &mut self.facts {
            card.context = card.context.or_else(|| self.contexts.get(&card.uuid).copied());
        }
        if self.told.as_ref().and_then(|told| told.as_ref().ok()) != Some(&self.facts) {
            self.told = Some(Ok(self.facts.clone()));
            self.eyes.send(ProcessMessage::Tell(HostReport::Cards(self.facts.clone())));
        }
    }

    fn tell_looks(&self, begun: Time, looks: Vec<GpuReading>) {
        for GpuReading { uuid, seen } in looks {
            let busy = seen.busy();
            let observation = Observation { begun, reading: seen.into_reading() };
            self.eyes.send(ProcessMessage::Looked { uuid, observation, busy });
        }
    }

    fn tell_all(&self, begun: Time, why: &Unreadable) {
        for card in &self.facts {
            let observation = Observation { begun, reading: Reading::Unreadable(why.clone()) };
            self.eyes.send(ProcessMessage::Looked { uuid: card.uuid.clone(), observation, busy: Vec::new() });
        }
    }

    fn learn_contexts(&mut self) {
        let measured = self.shared.take_measured();
        if !measured.is_empty() {
            self.contexts.extend(measured);
            if matches!(self.told, Some(Ok(_))) {
                self.tell_cards();
            }
        }
    }

    /// Measures, on a thread of its own, each GPU that was not tried before.
    fn measure_contexts(&mut self) {
        if !self.settings.measure_context || self.measuring.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let wanted = |card: &&CardFacts| card.context.is_none() && card.unusable.is_none();
        let uuids: Vec<String> = self.facts.iter().filter(wanted).map(|card| card.uuid.clone()).collect();
        let new: Vec<String> = uuids.into_iter().filter(|uuid| self.tried.insert(uuid.clone())).collect();
        if new.is_empty() {
            return;
        }
        let (exe, soft) = (self.settings.worker_exe.clone(), self.settings.soft.clone());
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("sublet-context".to_owned());
        // Without a thread the contexts stay unknown, which is permitted.
        self.measuring = thread.spawn(move || measure(&exe, soft.as_ref(), new, &shared)).ok();
    }

    /// Ends the worker, and waits a moment so that none outlives this process unless it is stuck.
    fn finish(mut self) {
        self.unreaped.extend(self.link.take().and_then(WorkerLink::end));
        if let Some(thread) = self.measuring.take() {
            let _ = thread.join(); // it has said on stderr why it panicked, if it did
        }
        reap(self.unreaped);
    }
}

/// Parses one line of the worker.
pub(crate) fn read_answer(line: &[u8]) -> Result<GpuAnswer, WorkerError> {
    serde_json::from_slice(line).map_err(|_| WorkerError::Senseless)
}

/// Measures one GPU after the other. A failed measurement stays unknown; the worker writes the reason to stderr.
fn measure(exe: &Path, soft: Option<&SoftPlace>, uuids: Vec<String>, shared: &GpuThreadHandle) {
    for uuid in uuids {
        if shared.stop.is_ringing() {
            return;
        }
        let Ok(mut link) = WorkerLink::start(exe, &["context".to_owned(), uuid.clone()], soft) else { return };
        let heard = link.hear(CONTEXT_PATIENCE, &shared.stop);
        reap(link.end().into_iter().collect());
        if let Some(measured) = heard.ok().and_then(|line| serde_json::from_slice::<MeasuredContext>(&line).ok()) {
            shared.tell_measured(uuid, measured.context);
        }
    }
}

/// Waits a moment for killed children to end.
pub(crate) fn reap(mut children: Vec<Child>) {
    let until = Instant::now() + LAST_WAIT;
    loop {
        children.retain_mut(is_left);
        if children.is_empty() || Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
