//! The process thread: knows the holders, and is the only sender of reports of this crate.
//!
//! It sleeps until a member ends, a message comes or a refresh is due; with no holder to watch, only messages wake
//! it. The GPU thread reads the GPUs.

use crate::HostReport;
use crate::audit::AncestorHistory;
use crate::exits::Exits;
use crate::mark::Grant;
use crate::process;
use crate::roster::Roster;
use crate::shims::{self, ShimHub};
use crate::wake::WakeEvent;
use crate::warden::UnleasedMonitorInbox;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::reading::{Observation, Reading, Resident};
use sublet_core::units::Bytes;

/// Readings that may wait for a slow sink. More would only be stale and cost memory.
const LOOKS_WAITING_MAX: usize = 256;

/// Messages to the process thread.
pub(crate) enum ProcessMessage {
    Watch {
        lease: LeaseId,
        uid: u32,
        roots: Vec<ProcKey>,
        grant: Option<Grant>,
    },
    /// A watched lease was granted.
    Granted {
        lease: LeaseId,
        grant: Grant,
    },
    Forget {
        lease: LeaseId,
    },
    /// One reading of one GPU, with the processes that used its engines.
    Looked {
        uuid: String,
        observation: Observation,
        busy: Vec<ProcKey>,
    },
    /// The holder's programs report when they use a GPU: their other activity is not considered.
    JudgedByShim {
        lease: LeaseId,
        is: bool,
    },
    /// Memory that the driver attributes to this ended process is held by that one, as far as can be known.
    Heir {
        dead: u32,
        heir: Option<ProcKey>,
    },
    /// Processes came or went: descendants of members are searched while their parents live.
    Stirred,
    /// All leases that existed at the start are watched.
    RosterComplete,
    /// To be passed on unchanged, in order.
    Tell(HostReport),
    Stop,
}

/// The queue of the process thread. Never blocks.
#[derive(Clone)]
pub(crate) struct ProcessThreadInbox {
    queue: mpsc::Sender<ProcessMessage>,
    bell: Arc<WakeEvent>,
    looks_waiting: Arc<AtomicUsize>,
    watching: Arc<AtomicBool>,
}

impl ProcessThreadInbox {
    /// True if any holder is watched.
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    pub(crate) fn send(&self, message: ProcessMessage) {
        if matches!(message, ProcessMessage::Looked { .. })
            && self.looks_waiting.fetch_add(1, Ordering::AcqRel) >= LOOKS_WAITING_MAX
        {
            self.looks_waiting.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        // Fails only when the thread has ended, and then the message does not matter.
        let _ = self.queue.send(message);
        self.bell.ring();
    }
}

pub(crate) struct ProcessThread {
    roster: Roster,
    queue: mpsc::Receiver<ProcessMessage>,
    bell: Arc<WakeEvent>,
    looks_waiting: Arc<AtomicUsize>,
    watching: Arc<AtomicBool>,
    period: Duration,
    refresh_at: Instant,
    /// Number of refreshes so far.
    refreshes: u32,
    /// The last reading of each GPU before all leases of an earlier daemon were watched; `None` from then on. A
    /// reading that was passed on before would show their programs as unleased.
    early: Option<BTreeMap<String, (Observation, Vec<ProcKey>)>>,
    /// Processes on a GPU that were found to be in no lease, until the next refresh.
    strangers: BTreeSet<ProcKey>,
    /// For each ended process that the driver names, the process that holds its memory.
    heirs: BTreeMap<u32, ProcKey>,
    /// Leases with a watch that has just begun, until one sweep searches for all of them.
    begun: BTreeSet<LeaseId>,
    hub: Option<ShimHub>,
    warden: Option<UnleasedMonitorInbox>,
    sink: Box<dyn Fn(HostReport) + Send + Sync>,
}

impl ProcessThread {
    pub(crate) fn new(
        period: Duration,
        sink: Box<dyn Fn(HostReport) + Send + Sync>,
    ) -> io::Result<(ProcessThread, ProcessThreadInbox)> {
        let (sender, queue) = mpsc::channel();
        let bell = Arc::new(WakeEvent::new()?);
        let looks_waiting = Arc::new(AtomicUsize::new(0));
        let watching = Arc::new(AtomicBool::new(false));
        let inbox = ProcessThreadInbox {
            queue: sender,
            bell: Arc::clone(&bell),
            looks_waiting: Arc::clone(&looks_waiting),
            watching: Arc::clone(&watching),
        };
        let eyes = ProcessThread {
            roster: Roster::new(Exits::new(&bell)?),
            queue,
            bell,
            looks_waiting,
            watching,
            period,
            refresh_at: Instant::now(),
            refreshes: 0,
            early: Some(BTreeMap::new()),
            strangers: BTreeSet::new(),
            heirs: BTreeMap::new(),
            begun: BTreeSet::new(),
            hub: None,
            warden: None,
            sink,
        };
        Ok((eyes, inbox))
    }

    /// Readings are also passed to the hub.
    pub(crate) fn set_hub(&mut self, hub: ShimHub) {
        self.hub = Some(hub);
    }

    /// Processes of no holder are passed to that thread for an audit.
    pub(crate) fn set_forebears(&mut self, forebears: AncestorHistory) {
        self.roster.set_forebears(forebears);
    }

    pub(crate) fn set_warden(&mut self, warden: UnleasedMonitorInbox) {
        self.warden = Some(warden);
    }

    pub(crate) fn run(mut self) {
        loop {
            let idle = self.roster.is_empty();
            self.watching.store(!idle, Ordering::Release);
            let timeout = match self.roster.is_walking() {
                true => Duration::ZERO,
                false => self.refresh_at.saturating_duration_since(Instant::now()),
            };
            let Ok(ended) = self.roster.exits().wait((!idle).then_some(timeout)) else { return };
            self.bell.hush();
            // First, so that no end is reported of a lease that was forgotten before it.
            if !self.take_messages() {
                return;
            }
            self.note_ends(ended);
            if !self.roster.is_empty() && self.refresh_at <= Instant::now() {
                self.refresh();
            }
            self.walk_on();
        }
    }

    /// The next slice of the walks in progress. Exits and messages are handled between slices.
    fn walk_on(&mut self) {
        let progress = self.roster.advance();
        for (lease, activity) in progress.refreshed {
            if activity.worked {
                (self.sink)(HostReport::Worked { lease });
            }
            if activity.got_input {
                (self.sink)(HostReport::Input { lease });
            }
            self.tell_members(lease);
        }
        self.settle(progress.touched);
    }

    fn note_ends(&mut self, ended: Vec<ProcKey>) {
        let touched: BTreeSet<LeaseId> = ended.into_iter().flat_map(|process| self.roster.leave(process)).collect();
        self.settle(touched);
    }

    /// Returns false when the thread must stop.
    pub(crate) fn take_messages(&mut self) -> bool {
        while let Ok(message) = self.queue.try_recv() {
            match message {
                ProcessMessage::Watch { lease, uid, roots, grant } => self.begin(lease, uid, roots, grant),
                ProcessMessage::Granted { lease, grant } => {
                    self.begun.extend(self.roster.set_grant(lease, grant));
                    self.strangers.clear();
                }
                ProcessMessage::Forget { lease } => {
                    self.begun.extend(self.roster.end(lease));
                    self.begun.remove(&lease);
                }
                ProcessMessage::Looked { uuid, observation, busy } => {
                    self.looks_waiting.fetch_sub(1, Ordering::AcqRel);
                    match &mut self.early {
                        Some(early) => drop(early.insert(uuid, (observation, busy))),
                        None => {
                            self.find_begun();
                            self.pass_on_look(uuid, observation, &busy);
                        }
                    }
                }
                ProcessMessage::RosterComplete => {
                    self.find_begun();
                    for (uuid, (observation, busy)) in self.early.take().into_iter().flatten() {
                        self.pass_on_look(uuid, observation, &busy);
                    }
                }
                ProcessMessage::Heir { dead, heir } => {
                    self.heirs.remove(&dead);
                    self.heirs.extend(heir.map(|heir| (dead, heir)));
                    // Entries are by pid; most of these processes have ended by now.
                    self.heirs.retain(|_, heir| process::is_running(*heir));
                }
                ProcessMessage::JudgedByShim { lease, is } => self.roster.judge_by_shim(lease, is),
                ProcessMessage::Stirred => {
                    for lease in self.roster.leases() {
                        if !self.roster.is_crowd(lease) {
                            self.roster.grow(lease);
                            self.tell_members(lease);
                        }
                    }
                }
                ProcessMessage::Tell(sight) => (self.sink)(sight),
                ProcessMessage::Stop => return false,
            }
        }
        self.find_begun();
        true
    }

    fn begin(&mut self, lease: LeaseId, uid: u32, roots: Vec<ProcKey>, grant: Option<Grant>) {
        if self.roster.is_empty() {
            self.refresh_at = Instant::now() + self.period;
        }
        let losers = self.roster.begin(lease, uid, roots, grant);
        self.begun.insert(lease);
        self.begun.extend(losers);
        self.strangers.clear();
    }

    /// One sweep for all watches that have just begun.
    fn find_begun(&mut self) {
        if !self.begun.is_empty() {
            let begun = std::mem::take(&mut self.begun);
            self.sweep_and_settle(begun);
        }
    }

    /// Members that are on the GPU are reported before the reading that shows them.
    fn pass_on_look(&mut self, uuid: String, mut observation: Observation, busy: &[ProcKey]) {
        if let Reading::Used(used) = &mut observation.reading {
            self.put_heirs(&mut used.processes);
        }
        if let Reading::Used(used) = &observation.reading
            && !self.roster.is_empty()
        {
            let residents = used.processes.iter().map(|resident| resident.process);
            let untold = |process| self.place(process).or_else(|| self.roster.untold(process));
            let joined: BTreeSet<LeaseId> = residents.filter_map(untold).collect();
            joined.into_iter().for_each(|lease| self.tell_members(lease));
            busy.iter().for_each(|process| self.roster.note_card_use(*process));
            if let (Some(hub), Some(bytes)) = (&self.hub, shims::uuid_bytes(&uuid)) {
                let sizes = used.processes.iter().filter_map(|it| Some((it.process.pid, it.bytes?.0)));
                hub.looked(bytes, sizes.collect());
            }
        }
        let strangers = self.unowned(&observation.reading);
        (self.sink)(HostReport::Observed { uuid, observation });
        if let Some(warden) = self.warden.as_ref().filter(|_| !strangers.is_empty()) {
            warden.present(strangers);
        }
    }

    /// Replaces ended processes by those that hold their memory now, where that is known.
    fn put_heirs(&self, residents: &mut Vec<Resident>) {
        let dead: BTreeSet<u32> =
            residents.iter().map(|it| it.process).filter(|it| self.is_dead(*it)).map(|it| it.pid).collect();
        if dead.is_empty() {
            return;
        }
        let on_cards: BTreeSet<u32> = residents.iter().map(|it| it.process.pid).collect();
        let mut put: Vec<Resident> = Vec::new();
        for mut resident in residents.drain(..) {
            let heir = self.heirs.get(&resident.process.pid).filter(|_| dead.contains(&resident.process.pid));
            // A process that the driver names itself has its own entry; one entry is for one process.
            let heir = heir.filter(|heir| !on_cards.contains(&heir.pid) && process::is_running(**heir));
            if let Some(heir) = heir {
                resident.process = *heir;
            }
            match put.iter_mut().find(|it| it.process == resident.process) {
                Some(same) => {
                    same.bytes =
                        same.bytes.zip(resident.bytes).map(|(one, other)| Bytes(one.0.saturating_add(other.0)));
                    same.graphics &= resident.graphics;
                }
                None => put.push(resident),
            }
        }
        *residents = put;
        if let Some(warden) = &self.warden {
            warden.orphaned(dead, on_cards);
        }
    }

    /// True if it ended although the driver names it. A process that cannot be seen does not count as ended.
    fn is_dead(&self, process: ProcKey) -> bool {
        if process.start != 0 {
            return self.roster.owner(process).is_none() && !process::is_running(process);
        }
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }

    /// Processes of a reading that belong to no granted lease, and do more than draw a little. A lease that waits
    /// does not count yet.
    fn unowned(&self, reading: &Reading) -> Vec<ProcKey> {
        let Reading::Used(used) = reading else { return Vec::new() };
        let unowned = used.processes.iter().filter(|resident| resident.is_of_interest() && resident.process.start != 0);
        unowned.map(|resident| resident.process).filter(|process| self.roster.holder(*process).is_none()).collect()
    }

    /// Attributes an unknown process on a GPU; returns its lease, or `None` if it is in none.
    fn place(&mut self, process: ProcKey) -> Option<LeaseId> {
        // A start of 0 means that the worker could not see the process.
        if process.start == 0 || self.roster.owner(process).is_some() || self.strangers.contains(&process) {
            return None;
        }
        let lease = self.roster.attribute(process);
        if lease.is_none() {
            self.strangers.insert(process);
        }
        lease
    }

    fn refresh(&mut self) {
        self.refresh_at = Instant::now() + self.period;
        self.strangers.clear();
        self.refreshes = self.refreshes.wrapping_add(1);
        for lease in self.roster.leases() {
            if self.refreshes.is_multiple_of(self.roster.periods(lease)) {
                self.roster.refresh(lease);
            }
        }
    }

    /// Reports what changed. Before a holder is reported gone, every process is checked.
    fn settle(&mut self, touched: BTreeSet<LeaseId>) {
        if touched.iter().any(|lease| self.roster.is_deserted(*lease)) {
            self.sweep_and_settle(touched);
        } else {
            for lease in touched {
                if !self.roster.is_crowd(lease) {
                    self.tell_members(lease);
                }
            }
        }
    }

    fn sweep_and_settle(&mut self, mut touched: BTreeSet<LeaseId>) {
        let swept = self.roster.sweep(&touched);
        let sure = swept.is_ok();
        touched.extend(swept.unwrap_or_default());
        for lease in touched {
            if !self.roster.is_deserted(lease) {
                self.tell_members(lease);
            } else if sure {
                drop(self.roster.end(lease));
                (self.sink)(HostReport::Gone { lease });
            }
            // Not certain: unreadable is not gone. The next refresh checks again.
        }
    }

    fn tell_members(&mut self, lease: LeaseId) {
        if let Some((processes, restricted)) = self.roster.news(lease) {
            (self.sink)(HostReport::Members { lease, processes, restricted });
        }
    }
}
