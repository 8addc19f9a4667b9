//! The hub's thread: takes targets, and moves one holder at a time towards its target.
//!
//! The thread blocks while the worker is asked; targets that arrive meanwhile are read before the next call. Stopping
//! interrupts it at once: the worker then unlocks whatever is locked.

use super::driven_holder::{DrivenHolder, DrivenProcess, DrivenState, DriverStep, ParkAttempt};
use super::preflight;
use super::protocol::{DriverAnswer, DriverFailure, DriverProcessState, DriverRequest, RoomNeed};
use super::worker_client::{DriverWorkerClient, WorkerFault};
use super::{DriverHubMessage, DriverPlacement, DriverSettings, DriverTarget};
use crate::gpu_thread;
use crate::headroom::{Booker, Bookings, MemoryCgroup, NoRoom};
use crate::mailbox::Mailbox;
use crate::process;
use crate::process_thread::{ProcessMessage, ProcessThreadInbox};
use crate::report::HostReport;
use crate::wake::{WakeEvent, wait_readable};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::movers::MoverReport;
use sublet_core::units::Bytes;

/// How often holders are checked without a message, and failed steps tried again.
const TICK: Duration = Duration::from_secs(1);
/// The same while there is no holder.
const IDLE: Duration = Duration::from_secs(3600);
/// How long an examination of a process from outside stays valid.
const INSPECTION_VALID_FOR: Duration = Duration::from_secs(3);
/// A holder that cannot be restored at once is reported as refused after this.
const RESTORE_WITHIN: Duration = Duration::from_secs(30);
/// A process of which the driver reports no state is asked about again after this.
const QUERY_AGAIN: Duration = Duration::from_secs(5);
/// Exponent of the longest pause after lost workers: a process with which the worker hangs is left alone for about a
/// minute (2^6 s) at most.
const LOST_EXPONENT_MAX: u32 = 6;
/// Steps for one holder before the next one.
const STEPS_AT_ONCE: usize = 256;

/// The result of examining a lease's processes from outside.
pub(super) struct DriverInspection {
    uid: u32,
    processes: Vec<ProcKey>,
    bytes: u64,
    /// When, and what; `None` until the driver's version is known.
    found: Option<(Instant, Vec<(ProcKey, MoverReport)>)>,
}

pub(super) struct DriverHubThread {
    pub(super) settings: DriverSettings,
    pub(super) worker: DriverWorkerClient,
    pub(super) mailbox: Mailbox<DriverHubMessage>,
    pub(super) stop: Arc<WakeEvent>,
    pub(super) process_thread: ProcessThreadInbox,
    pub(super) gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
    /// What parks in progress may still take of memory cgroups.
    pub(super) bookings: Bookings,
    pub(super) holders: BTreeMap<LeaseId, DrivenHolder>,
    pub(super) inspections: BTreeMap<LeaseId, DriverInspection>,
    /// When the threads of parked holders were last read.
    pub(super) calls_read_at: Instant,
}

impl DriverHubThread {
    pub(super) fn run(mut self) {
        while self.wait() {
            self.mailbox.wake().clear();
            self.handle_messages();
            self.run_all_steps();
            self.report_blocked_calls();
        }
        self.worker.finish();
    }

    /// Waits for a message or the next check; returns false when the thread must stop.
    fn wait(&self) -> bool {
        let waits = self.inspections.values().any(|inspection| inspection.found.is_none());
        let pause = if self.holders.is_empty() && !waits { IDLE } else { TICK };
        let ready = wait_readable([self.stop.as_fd(), self.mailbox.wake().as_fd()], Instant::now() + pause);
        matches!(ready, Ok([false, _]))
    }

    /// Reports holders with a thread that called CUDA after the driver parked them.
    fn report_blocked_calls(&mut self) {
        if self.calls_read_at.elapsed() < TICK {
            return;
        }
        self.calls_read_at = Instant::now();
        let waiting = self.holders.iter_mut().filter_map(|(lease, holder)| holder.waits_for_gpu().then_some(*lease));
        for lease in waiting.collect::<Vec<_>>() {
            self.process_thread.send(ProcessMessage::Report(HostReport::BlockedCall { lease }));
        }
    }

    fn handle_messages(&mut self) {
        while let Some(message) = self.mailbox.next() {
            match message {
                DriverHubMessage::SetTarget(DriverTarget { lease, uid, placement, processes }) => {
                    let now = Instant::now();
                    let holder = self.holders.entry(lease).or_insert_with(|| DrivenHolder::new(uid, now));
                    let is_withdrawn = holder.set_target(placement, &processes, now);
                    if is_withdrawn {
                        self.report_on_gpus(lease);
                    }
                }
                DriverHubMessage::Inspect { lease, uid, processes, bytes } => {
                    self.inspect((lease, uid), processes, bytes)
                }
                DriverHubMessage::Forget(lease) => {
                    self.inspections.remove(&lease);
                    if let Some(holder) = self.holders.get_mut(&lease) {
                        holder.target = None;
                    }
                }
            }
        }
    }

    fn inspect(&mut self, (lease, uid): (LeaseId, u32), processes: Vec<ProcKey>, bytes: u64) {
        let known = self.inspections.get(&lease).filter(|it| it.processes == processes && it.bytes == bytes);
        let fresh =
            known.and_then(|it| it.found.as_ref()).filter(|(found_at, _)| found_at.elapsed() < INSPECTION_VALID_FOR);
        match fresh.map(|(_, found)| found.clone()) {
            Some(found) => self.report_all(lease, found),
            None => drop(self.inspections.insert(lease, DriverInspection { uid, processes, bytes, found: None })),
        }
    }

    fn report_all(&self, lease: LeaseId, found: Vec<(ProcKey, MoverReport)>) {
        for (process, said) in found {
            self.report(lease, process, said);
        }
    }

    /// Quick steps come first, for all holders: no process waits locked while another is moved.
    fn run_all_steps(&mut self) {
        self.examine_inspected();
        for quick in [true, false] {
            for lease in self.holders.keys().copied().collect::<Vec<_>>() {
                for _ in 0..STEPS_AT_ONCE {
                    if self.stop.is_set() || !self.step(lease, quick) {
                        break;
                    }
                    self.handle_messages();
                    self.examine_inspected();
                }
            }
        }
        let is_under_way = |lease| {
            let attempt = self.holders.get(&lease).map(|holder| &holder.attempt);
            matches!(attempt, Some(ParkAttempt::Trying { .. }))
        };
        self.bookings.retain_driver_bookings(is_under_way);
    }

    fn examine_inspected(&mut self) {
        self.inspections
            .retain(|_, it| it.found.as_ref().is_none_or(|(found_at, _)| found_at.elapsed() < INSPECTION_VALID_FOR));
        if self.inspections.values().all(|inspection| inspection.found.is_some()) {
            return;
        }
        let facts = match self.worker.facts() {
            Ok(facts) => Ok(facts.clone()),
            Err(WorkerFault::Unusable(why)) => Err(why),
            // Asked again soon.
            Err(_) => return,
        };
        let mut news = Vec::new();
        for (lease, inspection) in self.inspections.iter_mut().filter(|(_, it)| it.found.is_none()) {
            let verdict = |process: &ProcKey| match &facts {
                _ if !process::is_running(*process) => MoverReport::Gone,
                Ok(facts) => {
                    let process = (*process, inspection.uid);
                    let found = preflight::examine(process, *lease, inspection.bytes, facts, &self.bookings);
                    MoverReport::Cannot(found.err())
                }
                Err(why) => MoverReport::Cannot(Some(why.clone())),
            };
            let found: Vec<_> = inspection.processes.iter().map(|process| (*process, verdict(process))).collect();
            inspection.found = Some((Instant::now(), found.clone()));
            news.push((*lease, found));
        }
        for (lease, found) in news {
            self.report_all(lease, found);
        }
    }

    fn report(&self, lease: LeaseId, process: ProcKey, said: MoverReport) {
        let looks = matches!(said, MoverReport::Parked(_) | MoverReport::Resumed | MoverReport::Gone);
        let program = process::executable_name_if_present(process, &said);
        self.process_thread.send(ProcessMessage::Report(HostReport::DriverReported { lease, process, said, program }));
        if looks {
            self.gpu_thread.request_reading();
        }
    }

    /// One step towards the target; false when there is nothing to do now.
    fn step(&mut self, lease: LeaseId, only_quick: bool) -> bool {
        self.remove_ended(lease);
        let Some(holder) = self.holders.get(&lease) else { return false };
        let next = holder.next_step(Instant::now(), |process| preflight::check_responds(process).is_ok());
        if only_quick && !next.is_quick() {
            return false;
        }
        match next {
            DriverStep::Nothing => return false,
            DriverStep::QueryState(process) => self.query_state(lease, process),
            DriverStep::Examine => self.examine(lease),
            DriverStep::Lock(process) => self.lock(lease, process),
            DriverStep::Checkpoint(process) => self.checkpoint(lease, process),
            DriverStep::Restore(processes) => self.prove_and_restore(lease, &processes),
            DriverStep::Unlock(process) => self.unlock(lease, process),
            DriverStep::ReportParked => self.report_parked(lease),
            DriverStep::Refuse(why) => self.report_refusal(lease, why),
            DriverStep::Remove => drop(self.holders.remove(&lease)),
        }
        true
    }

    /// Removes processes that ended, and reports each as left. A running process that the target no longer names is
    /// dropped without a report.
    fn remove_ended(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let mut left = Vec::new();
        holder.members.retain(|process, member| {
            let alive = member.is_alive(*process);
            if !alive {
                left.push(*process);
            }
            alive && (member.is_in_target || member.state != DrivenState::Running)
        });
        for process in left {
            self.report(lease, process, MoverReport::Gone);
        }
    }

    /// Asks the worker about a process. `None` if there was no answer about it; all consequences of that are handled
    /// here.
    fn ask_about(
        &mut self,
        lease: LeaseId,
        process: ProcKey,
        request: &DriverRequest,
        patience: Duration,
    ) -> Option<DriverAnswer> {
        match self.worker.ask(request, patience) {
            Ok(DriverAnswer::Gone) => {
                if let Some(holder) = self.holders.get_mut(&lease) {
                    holder.members.remove(&process);
                }
                self.report(lease, process, MoverReport::Gone);
                None
            }
            Ok(DriverAnswer::Stopped) => {
                self.fail_attempt(lease, format!("process {} is stopped", process.pid));
                None
            }
            Ok(answer) => {
                if let Some(member) = self.member(lease, process) {
                    member.lost_workers = 0;
                }
                Some(answer)
            }
            // Nothing more is done, and the worker unlocks what is locked.
            Err(WorkerFault::Stopping) => None,
            Err(WorkerFault::Restarting) if self.can_wait(lease) => {
                self.pause(lease, process, TICK);
                None
            }
            Err(fault) => {
                self.set_state(lease, process, DrivenState::Unknown);
                self.pause(lease, process, TICK);
                if matches!(fault, WorkerFault::Lost(_)) {
                    self.forget_states(lease, process);
                }
                self.fail_attempt(lease, fault.text());
                None
            }
        }
    }

    /// True if nothing was begun yet: then a new worker is worth waiting for.
    fn can_wait(&mut self, lease: LeaseId) -> bool {
        let holder = self.holders.get_mut(&lease);
        let holder = holder.filter(|it| it.attempt == ParkAttempt::Ready && it.ready_since.elapsed() < RESTORE_WITHIN);
        holder.map(|it| it.retry_at = Instant::now() + TICK).is_some()
    }

    fn member(&mut self, lease: LeaseId, process: ProcKey) -> Option<&mut DrivenProcess> {
        self.holders.get_mut(&lease)?.members.get_mut(&process)
    }

    /// The worker was lost in a call about a process. The next worker is asked for the state of all processes. One
    /// with which this happens repeatedly is asked about less and less often, so that it does not delay the others.
    fn forget_states(&mut self, lease: LeaseId, process: ProcKey) {
        self.holders.values_mut().for_each(DrivenHolder::forget_states);
        if let Some(member) = self.member(lease, process) {
            let pause = TICK * 2_u32.pow(member.lost_workers.min(LOST_EXPONENT_MAX));
            (member.retry_at, member.lost_workers) = (Some(Instant::now() + pause), member.lost_workers + 1);
        }
    }

    fn set_state(&mut self, lease: LeaseId, process: ProcKey, state: DrivenState) {
        if let Some(member) = self.member(lease, process).filter(|member| member.state != DrivenState::Lost) {
            member.state = state;
        }
    }

    fn pause(&mut self, lease: LeaseId, process: ProcKey, pause: Duration) {
        if let Some(member) = self.member(lease, process) {
            member.retry_at = Some(Instant::now() + pause);
        }
    }

    /// The attempt to park failed: all processes are restored. No other kind of step is ever given up.
    fn fail_attempt(&mut self, lease: LeaseId, why: String) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        if !matches!(holder.target, Some(DriverPlacement::InHostMemory { .. })) {
            return;
        }
        let by = match holder.attempt {
            // Nothing was begun, so nothing has to be restored before the report.
            ParkAttempt::Ready => Instant::now(),
            ParkAttempt::Trying { .. } => Instant::now() + RESTORE_WITHIN,
            ParkAttempt::Restoring { .. } | ParkAttempt::Over => return,
        };
        holder.attempt = ParkAttempt::Restoring { why, by, is_restore_tried: false };
    }

    fn query_state(&mut self, lease: LeaseId, process: ProcKey) {
        let patience = self.worker.patience(0);
        let Some(answer) = self.ask_about(lease, process, &DriverRequest::State { process }, patience) else { return };
        let state = match answer {
            DriverAnswer::State(DriverProcessState::Running) => DrivenState::Running,
            DriverAnswer::State(DriverProcessState::Locked) => DrivenState::Locked,
            DriverAnswer::State(DriverProcessState::Checkpointed) => DrivenState::Checkpointed,
            // It has nothing that could be moved.
            DriverAnswer::Failed(DriverFailure { code: DriverFailure::NOT_INITIALISED, .. }) => DrivenState::Running,
            DriverAnswer::State(DriverProcessState::Failed) => {
                return self.mark_lost(lease, process, "the driver says that it failed");
            }
            DriverAnswer::Failed(failure) => {
                self.pause(lease, process, QUERY_AGAIN);
                return self.report_unknown_state(lease, process, &failure);
            }
            _ => return self.pause(lease, process, QUERY_AGAIN),
        };
        self.set_state(lease, process, state);
        self.report_state(lease, process, state == DrivenState::Checkpointed);
    }

    /// Reports the state of a process, if that changed.
    fn report_state(&mut self, lease: LeaseId, process: ProcKey, is_parked: bool) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let booked = match &holder.target {
            Some(DriverPlacement::InHostMemory { booked, .. }) => *booked,
            _ => u64::MAX,
        };
        let Some(member) = holder.members.get_mut(&process) else { return };
        if is_parked && member.parked == 0 {
            // It was parked before this daemon started: no more than it has now, and than was booked for it.
            let has = process::anonymous_bytes(process.pid).unwrap_or(booked);
            member.parked = if member.gpu_bytes.is_empty() { has.min(booked) } else { member.total_gpu_bytes() };
        }
        if member.reported_parked != Some(is_parked) {
            member.reported_parked = Some(is_parked);
            let parked = is_parked.then_some(Bytes(member.parked));
            self.report(lease, process, MoverReport::Present { parked });
        }
    }

    /// The driver does not report the state of a living process.
    fn report_unknown_state(&mut self, lease: LeaseId, process: ProcKey, failure: &DriverFailure) {
        let why = format!("the driver does not say where process {} is: {failure}", process.pid);
        let is_on_gpus =
            self.holders.get(&lease).is_some_and(|it| matches!(it.target, Some(DriverPlacement::OnGpus { .. })));
        if is_on_gpus {
            self.report(lease, process, MoverReport::Refused(why));
        } else {
            self.fail_attempt(lease, why);
        }
    }

    /// Examines all processes that shall be parked, from outside.
    fn examine(&mut self, lease: LeaseId) {
        let facts = match self.worker.facts().cloned() {
            Ok(facts) => facts,
            Err(WorkerFault::Stopping) => return,
            Err(WorkerFault::Restarting) if self.can_wait(lease) => return,
            Err(fault) => return self.fail_attempt(lease, fault.text()),
        };
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let Some(DriverPlacement::InHostMemory { within, booked }) = holder.target else { return };
        let uid = holder.uid;
        let here = holder
            .members
            .iter()
            .filter(|(_, member)| !matches!(member.state, DrivenState::Checkpointed | DrivenState::Lost));
        let judged = here.map(|(process, member)| {
            preflight::examine((*process, uid), lease, booked, &facts, &self.bookings)?;
            let known = member.state != DrivenState::Unknown;
            known.then_some(*process).ok_or_else(|| format!("the driver does not say where process {} is", process.pid))
        });
        let judged = judged.collect::<Result<Vec<ProcKey>, String>>();
        match judged.and_then(|processes| book(&self.bookings, lease, &processes, booked)) {
            Ok(()) => holder.attempt = ParkAttempt::Trying { lock_deadline: Instant::now() + within },
            Err(why) => self.fail_attempt(lease, why),
        }
    }

    fn lock(&mut self, lease: LeaseId, process: ProcKey) {
        let Some(holder) = self.holders.get(&lease) else { return };
        let ParkAttempt::Trying { lock_deadline } = holder.attempt else { return };
        let ready = preflight::check_responds(process).and_then(|found| preflight::check_user(&found, holder.uid));
        if let Err(why) = ready {
            return self.fail_attempt(lease, why);
        }
        if holder.members.get(&process).is_some_and(|member| member.gpu_bytes.is_empty()) {
            let gpu_bytes = self.read_gpu_bytes(lease, process);
            // The process has ended, or the worker was lost: then there is nothing to lock.
            let (Some(member), Some(gpu_bytes)) = (self.member(lease, process), gpu_bytes) else { return };
            member.gpu_bytes = gpu_bytes;
        }
        let left = lock_deadline.saturating_duration_since(Instant::now()).min(self.settings.lock);
        // Zero would wait for ever.
        let timeout_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        if timeout_ms == 0 {
            return self.fail_attempt(lease, "its processes could not all be locked in time".to_owned());
        }
        let patience = left + self.worker.patience(0);
        match self.ask_about(lease, process, &DriverRequest::Lock { process, timeout_ms }, patience) {
            Some(DriverAnswer::Done) => self.set_state(lease, process, DrivenState::Locked),
            Some(answer) => self.handle_refusal(lease, process, "lock", &answer),
            None => {}
        }
    }

    /// What a process has on each GPU; empty where NVML does not report it.
    fn read_gpu_bytes(&mut self, lease: LeaseId, process: ProcKey) -> Option<BTreeMap<String, u64>> {
        let patience = self.worker.patience(0);
        match self.ask_about(lease, process, &DriverRequest::Weigh { process }, patience)? {
            DriverAnswer::Weight(bytes) => Some(bytes),
            _ => Some(BTreeMap::new()),
        }
    }

    /// The driver refused a step of an attempt.
    fn handle_refusal(&mut self, lease: LeaseId, process: ProcKey, step: &str, answer: &DriverAnswer) {
        // Whatever its state is now, the driver is asked before anything else is done with it.
        self.set_state(lease, process, DrivenState::Unknown);
        let pid = process.pid;
        let why = match answer {
            DriverAnswer::Failed(failure) if failure.code == DriverFailure::NOT_READY => {
                format!("process {pid} had work under way that did not end in time")
            }
            DriverAnswer::Failed(failure) if failure.code == DriverFailure::NOT_SUPPORTED => {
                format!("process {pid} has memory that cannot leave a GPU this way (managed, or shared)")
            }
            DriverAnswer::Failed(failure) => format!("the driver does not {step} process {pid}: {failure}"),
            DriverAnswer::Unusable(why) => why.clone(),
            _ => format!("the worker gave no sensible answer about process {pid}"),
        };
        self.fail_attempt(lease, why);
    }

    fn checkpoint(&mut self, lease: LeaseId, process: ProcKey) {
        if let Err(why) = preflight::check_responds(process) {
            return self.fail_attempt(lease, why);
        }
        let Some(holder) = self.holders.get(&lease) else { return };
        let booked = if let Some(DriverPlacement::InHostMemory { booked, .. }) = holder.target { booked } else { 0 };
        let gpu_bytes = holder.members.get(&process).map_or(0, |member| member.total_gpu_bytes());
        let before = process::anonymous_bytes(process.pid).unwrap_or(0);
        let patience = self.worker.patience(booked.max(gpu_bytes));
        match self.ask_about(lease, process, &DriverRequest::Checkpoint { process }, patience) {
            Some(DriverAnswer::Done) => {
                let after = process::anonymous_bytes(process.pid).unwrap_or(0);
                self.set_state(lease, process, DrivenState::Checkpointed);
                if let Some(member) = self.member(lease, process) {
                    member.checkpointed_in_this_attempt = true;
                    member.parked = gpu_bytes.max(after.saturating_sub(before));
                }
            }
            Some(answer) => self.handle_refusal(lease, process, "take from its GPUs", &answer),
            None => {}
        }
    }

    /// All are checkpointed, as the driver reports.
    fn report_parked(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        holder.attempt = ParkAttempt::Over;
        let mut news = Vec::new();
        for (process, member) in
            holder.members.iter_mut().filter(|(_, member)| member.state == DrivenState::Checkpointed)
        {
            member.checkpointed_in_this_attempt = false;
            if member.reported_parked != Some(true) {
                member.reported_parked = Some(true);
                news.push((*process, MoverReport::Parked(Bytes(member.parked))));
            }
        }
        self.report_all(lease, news);
    }

    fn report_refusal(&mut self, lease: LeaseId, why: String) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        holder.attempt = ParkAttempt::Over;
        // A process that could not be restored is still parked, and is resumed only if that is known.
        let left: Vec<ProcKey> = holder.processes_in_state(DrivenState::Checkpointed, &|_| true);
        for process in left {
            self.report_state(lease, process, true);
        }
        self.withdraw_reports(lease);
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        if let Some(process) = holder.process_to_report() {
            self.report(lease, process, MoverReport::Refused(why));
        }
    }

    /// A target to park was withdrawn: reports the processes that are on their GPUs again, though that was reported
    /// before the attempt.
    fn report_on_gpus(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let mut here = Vec::new();
        for (process, member) in holder.members.iter_mut().filter(|(_, member)| member.reported_parked == Some(false)) {
            member.reported_parked = None;
            if matches!(member.state, DrivenState::Running | DrivenState::Locked) {
                here.push(*process);
            }
        }
        for process in here {
            self.report_state(lease, process, false);
        }
    }

    /// Withdraws the reports about processes with an unknown state: a worker that was lost in a call may have moved
    /// them. They are reported again when the driver answers.
    fn withdraw_reports(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let members = holder.members.iter_mut().filter(|(_, member)| member.state == DrivenState::Unknown);
        let news = members
            .filter_map(|(process, member)| member.reported_parked.take().map(|_| (*process, MoverReport::Unknown)));
        let news: Vec<_> = news.collect();
        self.report_all(lease, news);
    }

    /// Proves the room of these processes, and restores them at once. They stay locked until all are restored: a
    /// process that went on could take the room of the next.
    fn prove_and_restore(&mut self, lease: LeaseId, processes: &[ProcKey]) {
        let Some(needs) = self.room_needed(lease, processes) else { return };
        let total = needs.iter().map(|need| need.bytes).sum();
        let patience = self.worker.patience(total);
        let proven = match self.worker.ask(&DriverRequest::Prove { needs }, patience) {
            Ok(DriverAnswer::Room { lacking: None }) => Ok(()),
            Ok(DriverAnswer::Room { lacking: Some(gpu) }) => Err(format!("there is no room for it on GPU {gpu}")),
            Ok(DriverAnswer::Failed(failure)) => Err(format!("the driver does not prove its room: {failure}")),
            Ok(DriverAnswer::Unusable(why)) => Err(why),
            Ok(_) => Err("the worker gave no sensible answer about its room".to_owned()),
            Err(WorkerFault::Stopping) => return,
            Err(fault) => {
                if matches!(fault, WorkerFault::Lost(_)) {
                    self.holders.values_mut().for_each(DrivenHolder::forget_states);
                }
                Err(fault.text())
            }
        };
        match proven {
            Ok(()) => self.restore(lease, processes, patience),
            Err(why) => self.postpone_restore(lease, processes, why),
        }
    }

    /// Nothing is restored now.
    fn postpone_restore(&mut self, lease: LeaseId, processes: &[ProcKey], why: String) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        holder.retry_at = Instant::now() + TICK;
        match &mut holder.attempt {
            // The reason of the refusal is reported when the others are restored.
            ParkAttempt::Restoring { is_restore_tried, .. } => *is_restore_tried = true,
            _ => {
                if let Some(process) = processes.first() {
                    self.report(lease, *process, MoverReport::Refused(why));
                }
            }
        }
    }

    /// What must be free on each GPU to restore these: what the target says, less what the holder's other processes
    /// have there, and at least what these had. `None` if that is unknown.
    fn room_needed(&mut self, lease: LeaseId, processes: &[ProcKey]) -> Option<Vec<RoomNeed>> {
        let holder = self.holders.get(&lease)?;
        let mut by_gpu: BTreeMap<String, u64> = BTreeMap::new();
        if let Some(DriverPlacement::OnGpus { needs }) = &holder.target {
            by_gpu.extend(needs.iter().cloned());
            let there = holder
                .members
                .iter()
                .filter(|(_, member)| matches!(member.state, DrivenState::Running | DrivenState::Locked));
            for process in there.map(|(process, _)| *process).collect::<Vec<_>>() {
                for (gpu, bytes) in self.read_gpu_bytes(lease, process)? {
                    if let Some(need) = by_gpu.get_mut(&gpu) {
                        *need = need.saturating_sub(bytes);
                    }
                }
            }
        }
        let holder = self.holders.get(&lease)?;
        let is_away = matches!(holder.target, Some(DriverPlacement::InHostMemory { .. }));
        let members = || processes.iter().filter_map(|process| holder.members.get(process));
        let mut gpu_bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for (gpu, bytes) in members().flat_map(|member| &member.gpu_bytes) {
            *gpu_bytes.entry(gpu).or_default() += bytes;
        }
        for (gpu, bytes) in gpu_bytes {
            let need = by_gpu.entry(gpu.to_owned()).or_default();
            *need = bytes.max(*need);
        }
        let unknown = is_away && members().any(|member| member.gpu_bytes.is_empty());
        if unknown || by_gpu.values().all(|bytes| *bytes == 0) {
            self.postpone_restore(lease, processes, "how much room it needs is not known".to_owned());
            return None;
        }
        // A checkpoint that freed nothing left its bytes there: they need no further room.
        for process in processes {
            for (gpu, bytes) in self.read_gpu_bytes(lease, *process)? {
                if let Some(need) = by_gpu.get_mut(&gpu) {
                    *need = need.saturating_sub(bytes);
                }
            }
        }
        Some(by_gpu.into_iter().map(|(uuid, bytes)| RoomNeed { uuid, bytes }).collect())
    }

    fn restore(&mut self, lease: LeaseId, processes: &[ProcKey], patience: Duration) {
        for process in processes {
            // It was stopped meanwhile: it stays parked, and its room is proven again.
            if preflight::check_responds(*process).is_err() {
                continue;
            }
            match self.ask_about(lease, *process, &DriverRequest::Restore { process: *process }, patience) {
                Some(DriverAnswer::Done) => self.set_state(lease, *process, DrivenState::Locked),
                // Another program restored it, or it was never checkpointed.
                Some(DriverAnswer::Failed(DriverFailure { code: DriverFailure::ILLEGAL_STATE, .. })) => {
                    self.set_state(lease, *process, DrivenState::Unknown);
                }
                Some(DriverAnswer::Failed(failure)) => self.mark_lost(lease, *process, &failure.to_string()),
                Some(_) => self.set_state(lease, *process, DrivenState::Unknown),
                // Time has passed, and perhaps a worker was lost: the proof is not valid any more.
                None => break,
            }
        }
        if let Some(holder) = self.holders.get_mut(&lease) {
            holder.retry_at = Instant::now() + TICK;
            if let ParkAttempt::Restoring { is_restore_tried, .. } = &mut holder.attempt {
                *is_restore_tried = true;
            }
        }
    }

    /// It cannot be restored. Nothing is ever tried with it again.
    fn mark_lost(&mut self, lease: LeaseId, process: ProcKey, what: &str) {
        self.set_state(lease, process, DrivenState::Lost);
        let why = format!("process {} could not be brought back to its GPUs: {what}", process.pid);
        self.report(lease, process, MoverReport::Lost(why));
    }

    fn unlock(&mut self, lease: LeaseId, process: ProcKey) {
        let patience = self.worker.patience(0);
        match self.ask_about(lease, process, &DriverRequest::Unlock { process }, patience) {
            Some(DriverAnswer::Done) => {
                self.set_state(lease, process, DrivenState::Running);
                let Some(member) = self.member(lease, process) else { return };
                (member.parked, member.gpu_bytes, member.checkpointed_in_this_attempt) = (0, BTreeMap::new(), false);
                // Also if no report said that it was parked: after a withdrawn target the caller waits for this
                // report.
                if member.reported_parked.replace(false) != Some(false) {
                    self.report(lease, process, MoverReport::Resumed);
                }
            }
            Some(_) => {
                self.set_state(lease, process, DrivenState::Unknown);
                self.pause(lease, process, TICK);
            }
            None => {}
        }
    }
}

/// Books the host memory of a lease in the memory cgroups of its processes, so that another park does not count on
/// it.
fn book(bookings: &Bookings, lease: LeaseId, processes: &[ProcKey], bytes: u64) -> Result<(), String> {
    let mut cgroups: Vec<MemoryCgroup> = Vec::new();
    for process in processes {
        let cgroup = MemoryCgroup::of(process.pid);
        let cgroup =
            cgroup.map_err(|error| format!("the memory limit of process {} cannot be read: {error}", process.pid));
        cgroups.extend(cgroup?.filter(|it| !cgroups.contains(it)));
    }
    bookings.book(Booker::Driver(lease), &cgroups, bytes).map_err(|lack| match lack {
        NoRoom::Only(room) => {
            let (room, bytes) = (Bytes(room), Bytes(bytes));
            format!("its memory cgroup has {room} left, and its {bytes} would go there; raise its limit (`MemoryMax=`)")
        }
        NoRoom::Unknown(error) => format!("the limit of its memory cgroup cannot be read: {error}"),
    })
}
