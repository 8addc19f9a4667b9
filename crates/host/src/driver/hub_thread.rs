//! The hub's thread: takes targets, and moves one holder at a time towards its target.
//!
//! The thread blocks while the worker is asked; targets that arrive meanwhile are read before the next call. Stopping
//! interrupts it at once: the worker then unlocks whatever is locked.

use super::hands::{DriverWorkerClient, WorkerFault};
use super::holder::{DrivenHolder, DrivenProcess, DrivenState, DriverStep, ParkAttempt};
use super::preflight;
use super::protocol::{CheckpointState, DriverAnswer, DriverFailure, DriverRequest, RoomNeed};
use super::{DriverHubMessage, DriverPlacement, DriverSettings, DriverTarget};
use crate::cards;
use crate::eyes::{ProcessMessage, ProcessThreadInbox};
use crate::headroom::{Booker, Bookings, MemoryCgroup, NoRoom};
use crate::process;
use crate::sight::HostReport;
use crate::wake::{WakeEvent, wait_readable};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::parking::Said;
use sublet_core::units::Bytes;

/// How often holders are checked without a message, and failed steps tried again.
const TICK: Duration = Duration::from_secs(1);
/// The same while there is no holder.
const IDLE: Duration = Duration::from_secs(3600);
/// How long an examination of a process from outside stays valid.
const FRESH: Duration = Duration::from_secs(3);
/// A holder that cannot be restored at once is reported as refused after this.
const BACK_WITHIN: Duration = Duration::from_secs(30);
/// A process of which the driver reports no state is asked about again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// Exponent of the longest pause after lost workers: a process with which the worker hangs is left alone for about a
/// minute (2^6 s) at most.
const HUNG_MAX: u32 = 6;
/// Steps for one holder before the next one.
const STEPS: usize = 256;

/// The result of examining a lease's processes from outside.
pub(super) struct DriverInspection {
    uid: u32,
    processes: Vec<ProcKey>,
    bytes: u64,
    /// When, and what; `None` until the driver's version is known.
    found: Option<(Instant, Vec<(ProcKey, Said)>)>,
}

pub(super) struct DriverHubThread {
    pub(super) settings: DriverSettings,
    pub(super) hands: DriverWorkerClient,
    pub(super) inbox: mpsc::Receiver<DriverHubMessage>,
    pub(super) bell: Arc<WakeEvent>,
    pub(super) stop: Arc<WakeEvent>,
    pub(super) eyes: ProcessThreadInbox,
    pub(super) cards: Arc<cards::GpuThreadHandle>,
    /// What parks in progress may still take of memory cgroups.
    pub(super) bookings: Bookings,
    pub(super) holders: BTreeMap<LeaseId, DrivenHolder>,
    pub(super) inspections: BTreeMap<LeaseId, DriverInspection>,
}

impl DriverHubThread {
    pub(super) fn run(mut self) {
        while self.wait() {
            self.bell.hush();
            self.read_notes();
            self.turn();
        }
        self.hands.finish();
    }

    /// Waits for a note or the next check; returns false when the thread must stop.
    fn wait(&self) -> bool {
        let waits = self.inspections.values().any(|inspection| inspection.found.is_none());
        let pause = if self.holders.is_empty() && !waits { IDLE } else { TICK };
        let heard = wait_readable([self.stop.as_fd(), self.bell.as_fd()], Instant::now() + pause);
        matches!(heard, Ok([false, _]))
    }

    fn read_notes(&mut self) {
        while let Ok(note) = self.inbox.try_recv() {
            match note {
                DriverHubMessage::Drive(DriverTarget { lease, uid, place, processes }) => {
                    let now = Instant::now();
                    let holder = self.holders.entry(lease).or_insert_with(|| DrivenHolder::new(uid, now));
                    let turned = holder.take(place, &processes, now);
                    if turned {
                        self.tell_here(lease);
                    }
                }
                DriverHubMessage::Inspect { lease, uid, processes, bytes } => {
                    self.inspect((lease, uid), processes, bytes)
                }
                DriverHubMessage::Forget(lease) => {
                    self.inspections.remove(&lease);
                    if let Some(holder) = self.holders.get_mut(&lease) {
                        holder.place = None;
                    }
                }
            }
        }
    }

    fn inspect(&mut self, (lease, uid): (LeaseId, u32), processes: Vec<ProcKey>, bytes: u64) {
        let known = self.inspections.get(&lease).filter(|it| it.processes == processes && it.bytes == bytes);
        let fresh = known.and_then(|it| it.found.as_ref()).filter(|(at, _)| at.elapsed() < FRESH);
        match fresh.map(|(_, found)| found.clone()) {
            Some(found) => self.tell_found(lease, found),
            None => drop(self.inspections.insert(lease, DriverInspection { uid, processes, bytes, found: None })),
        }
    }

    fn tell_found(&self, lease: LeaseId, found: Vec<(ProcKey, Said)>) {
        for (process, said) in found {
            self.say(lease, process, said);
        }
    }

    /// Quick steps come first, for all holders: no process waits locked while another is moved.
    fn turn(&mut self) {
        self.examine_inspected();
        for quick in [true, false] {
            for lease in self.holders.keys().copied().collect::<Vec<_>>() {
                for _ in 0..STEPS {
                    if self.stop.is_ringing() || !self.step(lease, quick) {
                        break;
                    }
                    self.read_notes();
                    self.examine_inspected();
                }
            }
        }
        let is_under_way = |lease| {
            let attempt = self.holders.get(&lease).map(|holder| &holder.attempt);
            matches!(attempt, Some(ParkAttempt::Trying { .. }))
        };
        self.bookings.keep_driver(is_under_way);
    }

    fn examine_inspected(&mut self) {
        self.inspections.retain(|_, it| it.found.as_ref().is_none_or(|(at, _)| at.elapsed() < FRESH));
        if self.inspections.values().all(|inspection| inspection.found.is_some()) {
            return;
        }
        let facts = match self.hands.facts() {
            Ok(facts) => Ok(facts.clone()),
            Err(WorkerFault::Unusable(why)) => Err(why),
            // Asked again soon.
            Err(_) => return,
        };
        let mut news = Vec::new();
        for (lease, inspection) in self.inspections.iter_mut().filter(|(_, it)| it.found.is_none()) {
            let verdict = |process: &ProcKey| match &facts {
                _ if !process::is_running(*process) => Said::Left,
                Ok(facts) => {
                    let process = (*process, inspection.uid);
                    let found = preflight::examine(process, *lease, inspection.bytes, facts, &self.bookings);
                    Said::Cannot(found.err())
                }
                Err(why) => Said::Cannot(Some(why.clone())),
            };
            let found: Vec<_> = inspection.processes.iter().map(|process| (*process, verdict(process))).collect();
            inspection.found = Some((Instant::now(), found.clone()));
            news.push((*lease, found));
        }
        for (lease, found) in news {
            self.tell_found(lease, found);
        }
    }

    fn say(&self, lease: LeaseId, process: ProcKey, said: Said) {
        let looks = matches!(said, Said::Parked(_) | Said::Resumed | Said::Left);
        self.eyes.send(ProcessMessage::Tell(HostReport::Driven { lease, process, said }));
        if looks {
            self.cards.wish();
        }
    }

    /// One step towards the target; false when there is nothing to do now.
    fn step(&mut self, lease: LeaseId, only_quick: bool) -> bool {
        self.bury(lease);
        let Some(holder) = self.holders.get(&lease) else { return false };
        let next = holder.next(Instant::now(), |process| preflight::present(process).is_ok());
        if only_quick && !next.is_quick() {
            return false;
        }
        match next {
            DriverStep::Nothing => return false,
            DriverStep::Ask(process) => self.ask_where(lease, process),
            DriverStep::Examine => self.examine(lease),
            DriverStep::Lock(process) => self.lock(lease, process),
            DriverStep::Checkpoint(process) => self.checkpoint(lease, process),
            DriverStep::Bring(processes) => self.bring(lease, &processes),
            DriverStep::Unlock(process) => self.unlock(lease, process),
            DriverStep::Settle => self.settle(lease),
            DriverStep::Refuse(why) => self.refuse(lease, why),
            DriverStep::Drop => drop(self.holders.remove(&lease)),
        }
        true
    }

    /// Removes processes that ended, and reports each as left. A running process that the target no longer names is
    /// dropped without a report.
    fn bury(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let mut left = Vec::new();
        holder.members.retain(|process, member| {
            let alive = member.is_alive(*process);
            if !alive {
                left.push(*process);
            }
            alive && (member.listed || member.at != DrivenState::Running)
        });
        for process in left {
            self.say(lease, process, Said::Left);
        }
    }

    /// Asks the worker about a process. `None` if there was no answer about it; all consequences of that are handled
    /// here.
    fn ask(
        &mut self,
        lease: LeaseId,
        process: ProcKey,
        request: &DriverRequest,
        patience: Duration,
    ) -> Option<DriverAnswer> {
        match self.hands.ask(request, patience) {
            Ok(DriverAnswer::Gone) => {
                if let Some(holder) = self.holders.get_mut(&lease) {
                    holder.members.remove(&process);
                }
                self.say(lease, process, Said::Left);
                None
            }
            Ok(DriverAnswer::Stopped) => {
                self.fail(lease, format!("process {} is stopped", process.pid));
                None
            }
            Ok(answer) => {
                if let Some(member) = self.member(lease, process) {
                    member.hung = 0;
                }
                Some(answer)
            }
            // Nothing more is done, and the worker unlocks what is locked.
            Err(WorkerFault::Stopping) => None,
            Err(WorkerFault::Resting) if self.can_wait(lease) => {
                self.pause(lease, process, TICK);
                None
            }
            Err(fault) => {
                self.set(lease, process, DrivenState::Unknown);
                self.pause(lease, process, TICK);
                if matches!(fault, WorkerFault::Lost(_)) {
                    self.doubt(lease, process);
                }
                self.fail(lease, fault.text());
                None
            }
        }
    }

    /// True if nothing was begun yet: then a new worker is worth waiting for.
    fn can_wait(&mut self, lease: LeaseId) -> bool {
        let holder = self.holders.get_mut(&lease);
        let holder = holder.filter(|it| it.attempt == ParkAttempt::Armed && it.armed.elapsed() < BACK_WITHIN);
        holder.map(|it| it.again = Instant::now() + TICK).is_some()
    }

    fn member(&mut self, lease: LeaseId, process: ProcKey) -> Option<&mut DrivenProcess> {
        self.holders.get_mut(&lease)?.members.get_mut(&process)
    }

    /// The worker was lost in a call about a process. The next worker is asked for the state of all processes. One
    /// with which this happens repeatedly is asked about less and less often, so that it does not delay the others.
    fn doubt(&mut self, lease: LeaseId, process: ProcKey) {
        self.holders.values_mut().for_each(DrivenHolder::doubt);
        if let Some(member) = self.member(lease, process) {
            let pause = TICK * 2_u32.pow(member.hung.min(HUNG_MAX));
            (member.again, member.hung) = (Some(Instant::now() + pause), member.hung + 1);
        }
    }

    fn set(&mut self, lease: LeaseId, process: ProcKey, at: DrivenState) {
        if let Some(member) = self.member(lease, process).filter(|member| member.at != DrivenState::Lost) {
            member.at = at;
        }
    }

    fn pause(&mut self, lease: LeaseId, process: ProcKey, pause: Duration) {
        if let Some(member) = self.member(lease, process) {
            member.again = Some(Instant::now() + pause);
        }
    }

    /// The attempt to park failed: all processes are restored. No other kind of step is ever given up.
    fn fail(&mut self, lease: LeaseId, why: String) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        if !matches!(holder.place, Some(DriverPlacement::Away { .. })) {
            return;
        }
        let by = match holder.attempt {
            // Nothing was begun, so nothing has to be restored before the report.
            ParkAttempt::Armed => Instant::now(),
            ParkAttempt::Trying { .. } => Instant::now() + BACK_WITHIN,
            ParkAttempt::Back { .. } | ParkAttempt::Over => return,
        };
        holder.attempt = ParkAttempt::Back { why, by, brought: false };
    }

    fn ask_where(&mut self, lease: LeaseId, process: ProcKey) {
        let patience = self.hands.patience(0);
        let Some(answer) = self.ask(lease, process, &DriverRequest::State { process }, patience) else { return };
        let at = match answer {
            DriverAnswer::State(CheckpointState::Running) => DrivenState::Running,
            DriverAnswer::State(CheckpointState::Locked) => DrivenState::Locked,
            DriverAnswer::State(CheckpointState::Checkpointed) => DrivenState::Checkpointed,
            // It has nothing that could be moved.
            DriverAnswer::Failed(DriverFailure { code: DriverFailure::NOT_INITIALISED, .. }) => DrivenState::Running,
            DriverAnswer::State(CheckpointState::Failed) => {
                return self.lose(lease, process, "the driver says that it failed");
            }
            DriverAnswer::Failed(failure) => {
                self.pause(lease, process, AGAIN);
                return self.unknown(lease, process, &failure);
            }
            _ => return self.pause(lease, process, AGAIN),
        };
        self.set(lease, process, at);
        self.tell_where(lease, process, at == DrivenState::Checkpointed);
    }

    /// Reports the state of a process, if that changed.
    fn tell_where(&mut self, lease: LeaseId, process: ProcKey, is_parked: bool) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let booked = match &holder.place {
            Some(DriverPlacement::Away { booked, .. }) => *booked,
            _ => u64::MAX,
        };
        let Some(member) = holder.members.get_mut(&process) else { return };
        if is_parked && member.parked == 0 {
            // It was parked before this daemon started: no more than it has now, and than was booked for it.
            let has = process::anonymous_bytes(process.pid).unwrap_or(booked);
            member.parked = if member.had.is_empty() { has.min(booked) } else { member.had_bytes() };
        }
        if member.told != Some(is_parked) {
            member.told = Some(is_parked);
            let parked = is_parked.then_some(Bytes(member.parked));
            self.say(lease, process, Said::Here { parked });
        }
    }

    /// The driver does not report the state of a living process.
    fn unknown(&mut self, lease: LeaseId, process: ProcKey, failure: &DriverFailure) {
        let why = format!("the driver does not say where process {} is: {failure}", process.pid);
        let is_on_cards =
            self.holders.get(&lease).is_some_and(|it| matches!(it.place, Some(DriverPlacement::OnCards { .. })));
        if is_on_cards {
            self.say(lease, process, Said::Refused(why));
        } else {
            self.fail(lease, why);
        }
    }

    /// Examines all processes that shall be parked, from outside.
    fn examine(&mut self, lease: LeaseId) {
        let facts = match self.hands.facts().cloned() {
            Ok(facts) => facts,
            Err(WorkerFault::Stopping) => return,
            Err(WorkerFault::Resting) if self.can_wait(lease) => return,
            Err(fault) => return self.fail(lease, fault.text()),
        };
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let Some(DriverPlacement::Away { within, booked }) = holder.place else { return };
        let uid = holder.uid;
        let here = holder
            .members
            .iter()
            .filter(|(_, member)| !matches!(member.at, DrivenState::Checkpointed | DrivenState::Lost));
        let judged = here.map(|(process, member)| {
            preflight::examine((*process, uid), lease, booked, &facts, &self.bookings)?;
            let known = member.at != DrivenState::Unknown;
            known.then_some(*process).ok_or_else(|| format!("the driver does not say where process {} is", process.pid))
        });
        let judged = judged.collect::<Result<Vec<ProcKey>, String>>();
        match judged.and_then(|processes| book(&self.bookings, lease, &processes, booked)) {
            Ok(()) => holder.attempt = ParkAttempt::Trying { until: Instant::now() + within },
            Err(why) => self.fail(lease, why),
        }
    }

    fn lock(&mut self, lease: LeaseId, process: ProcKey) {
        let Some(holder) = self.holders.get(&lease) else { return };
        let ParkAttempt::Trying { until } = holder.attempt else { return };
        let ready = preflight::present(process).and_then(|found| preflight::of_user(&found, holder.uid));
        if let Err(why) = ready {
            return self.fail(lease, why);
        }
        if holder.members.get(&process).is_some_and(|member| member.had.is_empty()) {
            let had = self.weigh(lease, process);
            // The process has ended, or the worker was lost: then there is nothing to lock.
            let (Some(member), Some(had)) = (self.member(lease, process), had) else { return };
            member.had = had;
        }
        let left = until.saturating_duration_since(Instant::now()).min(self.settings.lock);
        // Zero would wait for ever.
        let timeout_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        if timeout_ms == 0 {
            return self.fail(lease, "its processes could not all be locked in time".to_owned());
        }
        let patience = left + self.hands.patience(0);
        match self.ask(lease, process, &DriverRequest::Lock { process, timeout_ms }, patience) {
            Some(DriverAnswer::Done) => self.set(lease, process, DrivenState::Locked),
            Some(answer) => self.refused(lease, process, "lock", &answer),
            None => {}
        }
    }

    /// What a process has on each GPU; empty where NVML does not report it.
    fn weigh(&mut self, lease: LeaseId, process: ProcKey) -> Option<BTreeMap<String, u64>> {
        let patience = self.hands.patience(0);
        match self.ask(lease, process, &DriverRequest::Weigh { process }, patience)? {
            DriverAnswer::Weight(bytes) => Some(bytes),
            _ => Some(BTreeMap::new()),
        }
    }

    /// The driver refused a step of an attempt.
    fn refused(&mut self, lease: LeaseId, process: ProcKey, step: &str, answer: &DriverAnswer) {
        // Whatever its state is now, the driver is asked before anything else is done with it.
        self.set(lease, process, DrivenState::Unknown);
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
        self.fail(lease, why);
    }

    fn checkpoint(&mut self, lease: LeaseId, process: ProcKey) {
        if let Err(why) = preflight::present(process) {
            return self.fail(lease, why);
        }
        let Some(holder) = self.holders.get(&lease) else { return };
        let booked = if let Some(DriverPlacement::Away { booked, .. }) = holder.place { booked } else { 0 };
        let had = holder.members.get(&process).map_or(0, |member| member.had_bytes());
        let before = process::anonymous_bytes(process.pid).unwrap_or(0);
        let patience = self.hands.patience(booked.max(had));
        match self.ask(lease, process, &DriverRequest::Checkpoint { process }, patience) {
            Some(DriverAnswer::Done) => {
                let after = process::anonymous_bytes(process.pid).unwrap_or(0);
                self.set(lease, process, DrivenState::Checkpointed);
                if let Some(member) = self.member(lease, process) {
                    member.just_left = true;
                    member.parked = had.max(after.saturating_sub(before));
                }
            }
            Some(answer) => self.refused(lease, process, "take from its GPUs", &answer),
            None => {}
        }
    }

    /// All are checkpointed, as the driver reports.
    fn settle(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        holder.attempt = ParkAttempt::Over;
        let mut news = Vec::new();
        for (process, member) in holder.members.iter_mut().filter(|(_, member)| member.at == DrivenState::Checkpointed)
        {
            member.just_left = false;
            if member.told != Some(true) {
                member.told = Some(true);
                news.push((*process, Said::Parked(Bytes(member.parked))));
            }
        }
        self.tell_found(lease, news);
    }

    fn refuse(&mut self, lease: LeaseId, why: String) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        holder.attempt = ParkAttempt::Over;
        // A process that could not be restored is still parked, and is resumed only if that is known.
        let left: Vec<ProcKey> = holder.those(DrivenState::Checkpointed, &|_| true);
        for process in left {
            self.tell_where(lease, process, true);
        }
        self.tell_unknown(lease);
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        if let Some(process) = holder.who_stays() {
            self.say(lease, process, Said::Refused(why));
        }
    }

    /// A target to park was withdrawn: reports the processes that are on their GPUs again, though that was reported
    /// before the attempt.
    fn tell_here(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let mut here = Vec::new();
        for (process, member) in holder.members.iter_mut().filter(|(_, member)| member.told == Some(false)) {
            member.told = None;
            if matches!(member.at, DrivenState::Running | DrivenState::Locked) {
                here.push(*process);
            }
        }
        for process in here {
            self.tell_where(lease, process, false);
        }
    }

    /// Withdraws the reports about processes with an unknown state: a worker that was lost in a call may have moved
    /// them. They are reported again when the driver answers.
    fn tell_unknown(&mut self, lease: LeaseId) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        let members = holder.members.iter_mut().filter(|(_, member)| member.at == DrivenState::Unknown);
        let news = members.filter_map(|(process, member)| member.told.take().map(|_| (*process, Said::Unknown)));
        let news: Vec<_> = news.collect();
        self.tell_found(lease, news);
    }

    /// Proves the room of these processes, and restores them at once. They stay locked until all are restored: a
    /// process that went on could take the room of the next.
    fn bring(&mut self, lease: LeaseId, processes: &[ProcKey]) {
        let Some(needs) = self.needs(lease, processes) else { return };
        let total = needs.iter().map(|need| need.bytes).sum();
        let patience = self.hands.patience(total);
        let proven = match self.hands.ask(&DriverRequest::Prove { needs }, patience) {
            Ok(DriverAnswer::Room { lacking: None }) => Ok(()),
            Ok(DriverAnswer::Room { lacking: Some(card) }) => Err(format!("there is no room for it on GPU {card}")),
            Ok(DriverAnswer::Failed(failure)) => Err(format!("the driver does not prove its room: {failure}")),
            Ok(DriverAnswer::Unusable(why)) => Err(why),
            Ok(_) => Err("the worker gave no sensible answer about its room".to_owned()),
            Err(WorkerFault::Stopping) => return,
            Err(fault) => {
                if matches!(fault, WorkerFault::Lost(_)) {
                    self.holders.values_mut().for_each(DrivenHolder::doubt);
                }
                Err(fault.text())
            }
        };
        match proven {
            Ok(()) => self.restore(lease, processes, patience),
            Err(why) => self.stay_away(lease, processes, why),
        }
    }

    /// Nothing is restored now.
    fn stay_away(&mut self, lease: LeaseId, processes: &[ProcKey], why: String) {
        let Some(holder) = self.holders.get_mut(&lease) else { return };
        holder.again = Instant::now() + TICK;
        match &mut holder.attempt {
            // The reason of the refusal is reported when the others are restored.
            ParkAttempt::Back { brought, .. } => *brought = true,
            _ => {
                if let Some(process) = processes.first() {
                    self.say(lease, *process, Said::Refused(why));
                }
            }
        }
    }

    /// What must be free on each GPU to restore these: what the target says, less what the holder's other processes
    /// have there, and at least what these had. `None` if that is unknown.
    fn needs(&mut self, lease: LeaseId, processes: &[ProcKey]) -> Option<Vec<RoomNeed>> {
        let holder = self.holders.get(&lease)?;
        let mut by_card: BTreeMap<String, u64> = BTreeMap::new();
        if let Some(DriverPlacement::OnCards { needs }) = &holder.place {
            by_card.extend(needs.iter().cloned());
            let there = holder
                .members
                .iter()
                .filter(|(_, member)| matches!(member.at, DrivenState::Running | DrivenState::Locked));
            for process in there.map(|(process, _)| *process).collect::<Vec<_>>() {
                for (card, bytes) in self.weigh(lease, process)? {
                    if let Some(need) = by_card.get_mut(&card) {
                        *need = need.saturating_sub(bytes);
                    }
                }
            }
        }
        let holder = self.holders.get(&lease)?;
        let is_away = matches!(holder.place, Some(DriverPlacement::Away { .. }));
        let members = || processes.iter().filter_map(|process| holder.members.get(process));
        let mut had: BTreeMap<&str, u64> = BTreeMap::new();
        for (card, bytes) in members().flat_map(|member| &member.had) {
            *had.entry(card).or_default() += bytes;
        }
        for (card, bytes) in had {
            let need = by_card.entry(card.to_owned()).or_default();
            *need = bytes.max(*need);
        }
        let unknown = is_away && members().any(|member| member.had.is_empty());
        if unknown || by_card.values().all(|bytes| *bytes == 0) {
            self.stay_away(lease, processes, "how much room it needs is not known".to_owned());
            return None;
        }
        // A checkpoint that freed nothing left its bytes there: they need no further room.
        for process in processes {
            for (card, bytes) in self.weigh(lease, *process)? {
                if let Some(need) = by_card.get_mut(&card) {
                    *need = need.saturating_sub(bytes);
                }
            }
        }
        Some(by_card.into_iter().map(|(uuid, bytes)| RoomNeed { uuid, bytes }).collect())
    }

    fn restore(&mut self, lease: LeaseId, processes: &[ProcKey], patience: Duration) {
        for process in processes {
            // It was stopped meanwhile: it stays parked, and its room is proven again.
            if preflight::present(*process).is_err() {
                continue;
            }
            match self.ask(lease, *process, &DriverRequest::Restore { process: *process }, patience) {
                Some(DriverAnswer::Done) => self.set(lease, *process, DrivenState::Locked),
                // Another program restored it, or it was never checkpointed.
                Some(DriverAnswer::Failed(DriverFailure { code: DriverFailure::ILLEGAL_STATE, .. })) => {
                    self.set(lease, *process, DrivenState::Unknown);
                }
                Some(DriverAnswer::Failed(failure)) => self.lose(lease, *process, &failure.to_string()),
                Some(_) => self.set(lease, *process, DrivenState::Unknown),
                // Time has passed, and perhaps a worker was lost: the proof is not valid any more.
                None => break,
            }
        }
        if let Some(holder) = self.holders.get_mut(&lease) {
            holder.again = Instant::now() + TICK;
            if let ParkAttempt::Back { brought, .. } = &mut holder.attempt {
                *brought = true;
            }
        }
    }

    /// It cannot be restored. Nothing is ever tried with it again.
    fn lose(&mut self, lease: LeaseId, process: ProcKey, what: &str) {
        self.set(lease, process, DrivenState::Lost);
        let why = format!("process {} could not be brought back to its GPUs: {what}", process.pid);
        self.say(lease, process, Said::Lost(why));
    }

    fn unlock(&mut self, lease: LeaseId, process: ProcKey) {
        let patience = self.hands.patience(0);
        match self.ask(lease, process, &DriverRequest::Unlock { process }, patience) {
            Some(DriverAnswer::Done) => {
                self.set(lease, process, DrivenState::Running);
                let Some(member) = self.member(lease, process) else { return };
                (member.parked, member.had, member.just_left) = (0, BTreeMap::new(), false);
                // Also if no report said that it was parked: after a withdrawn target the caller waits for this
                // report.
                if member.told.replace(false) != Some(false) {
                    self.say(lease, process, Said::Resumed);
                }
            }
            Some(_) => {
                self.set(lease, process, DrivenState::Unknown);
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
