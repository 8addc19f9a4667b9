//! The connection to the worker that calls the driver: started when needed, killed at a deadline.
//!
//! One request at a time. The caller learns if the worker was lost during a request, because then the state of the
//! processes being moved is unknown.

use super::DriverSettings;
use super::protocol::{DriverAnswer, DriverFacts, DriverRequest};
use crate::gpu_thread::{CONTEXT_TIMEOUT, RESTART_PAUSE_MAX, RESTART_PAUSE_MIN, UNREAPED_MAX, reap, with_cause};
use crate::soft::SoftPlace;
use crate::wake::WakeEvent;
use crate::worker_link::{WorkerError, WorkerLink, is_unreaped};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A quarter of the slowest rate at which memory was seen to move.
const BYTES_PER_S: u64 = 512 << 20;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkerFault {
    /// This process is stopping.
    Stopping,
    /// There is no worker now; one is started later.
    Restarting,
    /// The worker was lost while it did this.
    Lost(String),
    /// The driver cannot be used here.
    Unusable(String),
}

impl WorkerFault {
    /// The reason, as text for people.
    pub(super) fn text(&self) -> String {
        match self {
            WorkerFault::Stopping => "Sublet is being stopped".to_owned(),
            WorkerFault::Restarting => "the worker that speaks with the driver is being started again".to_owned(),
            WorkerFault::Lost(why) => format!("the worker that speaks with the driver was lost: {why}"),
            WorkerFault::Unusable(why) => why.clone(),
        }
    }
}

pub(super) struct DriverWorkerClient {
    settings: DriverSettings,
    exe: PathBuf,
    soft: Option<SoftPlace>,
    stop: Arc<WakeEvent>,
    worker_link: Option<WorkerLink>,
    /// The facts reported by the present worker.
    facts: Option<DriverFacts>,
    /// Why the last worker could not use the driver.
    unusable: Option<String>,
    unreaped: Vec<Child>,
    restart_pause: Duration,
    start_at: Instant,
}

impl DriverWorkerClient {
    pub(super) fn new(
        settings: DriverSettings,
        exe: PathBuf,
        soft: Option<SoftPlace>,
        stop: Arc<WakeEvent>,
    ) -> DriverWorkerClient {
        DriverWorkerClient {
            settings,
            exe,
            soft,
            stop,
            worker_link: None,
            facts: None,
            unusable: None,
            unreaped: Vec::new(),
            restart_pause: RESTART_PAUSE_MIN,
            start_at: Instant::now(),
        }
    }

    /// How long a call that moves this many bytes may take.
    pub(super) fn patience(&self, bytes: u64) -> Duration {
        self.settings.patience + Duration::from_secs(bytes / BYTES_PER_S)
    }

    /// The driver's version and abilities; starts a worker if necessary.
    pub(super) fn facts(&mut self) -> Result<&DriverFacts, WorkerFault> {
        if self.facts.is_none() || self.worker_link.is_none() {
            let facts = self.start()?;
            self.facts = Some(facts);
        }
        self.facts.as_ref().ok_or(WorkerFault::Restarting)
    }

    /// Sends a request, and waits at most `patience` for the answer.
    pub(super) fn ask(&mut self, request: &DriverRequest, patience: Duration) -> Result<DriverAnswer, WorkerFault> {
        self.facts()?;
        self.ask_worker(request, patience)
    }

    fn start(&mut self) -> Result<DriverFacts, WorkerFault> {
        self.unreaped.retain_mut(is_unreaped);
        if self.worker_link.is_none() {
            if Instant::now() < self.start_at || self.unreaped.len() >= UNREAPED_MAX {
                return Err(self.unusable.clone().map_or(WorkerFault::Restarting, WorkerFault::Unusable));
            }
            let started = WorkerLink::start(&self.exe, &["driver".to_owned()], self.soft.as_ref());
            self.worker_link = Some(started.map_err(|error| self.worker_lost(&WorkerError::Pipe(error)))?);
        }
        match self.ask_worker(&DriverRequest::Facts, CONTEXT_TIMEOUT)? {
            DriverAnswer::Facts(facts) => {
                self.unusable = None;
                Ok(facts)
            }
            DriverAnswer::Failed(failure) => {
                Err(self.give_up(format!("the driver does not say what it is: {failure}")))
            }
            DriverAnswer::Unusable(why) => Err(self.give_up(why)),
            _ => Err(self.worker_lost(&WorkerError::Invalid)),
        }
    }

    fn ask_worker(&mut self, request: &DriverRequest, patience: Duration) -> Result<DriverAnswer, WorkerFault> {
        let line = serde_json::to_string(request).map_err(|_| self.worker_lost(&WorkerError::Invalid))?;
        let worker_link = self.worker_link.as_mut().ok_or(WorkerFault::Restarting)?;
        let line_read = worker_link.ask(&line, patience, &self.stop);
        let answer = line_read.and_then(|line| serde_json::from_slice(&line).map_err(|_| WorkerError::Invalid));
        match answer {
            Ok(answer) => {
                self.restart_pause = RESTART_PAUSE_MIN;
                Ok(answer)
            }
            Err(WorkerError::Stopped) => Err(WorkerFault::Stopping),
            Err(error) => Err(self.worker_lost(&error)),
        }
    }

    /// The driver may be installed or loaded later: only a new worker would see that.
    fn give_up(&mut self, why: String) -> WorkerFault {
        self.restart_pause = RESTART_PAUSE_MAX;
        self.end_worker();
        self.unusable = Some(why.clone());
        WorkerFault::Unusable(why)
    }

    fn worker_lost(&mut self, error: &WorkerError) -> WorkerFault {
        self.end_worker();
        WorkerFault::Lost(with_cause(error))
    }

    fn end_worker(&mut self) {
        self.unreaped.extend(self.worker_link.take().and_then(WorkerLink::kill));
        self.facts = None;
        self.start_at = Instant::now() + self.restart_pause;
        self.restart_pause = (self.restart_pause * 2).min(RESTART_PAUSE_MAX);
    }

    /// Closes the line to the worker, and waits a moment for its end. The worker unlocks what it has locked; a call
    /// in progress ends first, because killing the worker then would leave a process locked for ever.
    pub(super) fn finish(mut self) {
        self.unreaped.extend(self.worker_link.take().map(WorkerLink::close));
        reap(self.unreaped);
    }
}
