//! The process thread: knows the holders, and is the only sender of reports of this crate.
//!
//! It sleeps until a member ends, a message comes or a refresh is due; with no holder to watch, only messages wake
//! it. The GPU thread reads the GPUs.

use crate::HostReport;
use crate::audit::AncestorHistory;
use crate::exits::ExitWatcher;
use crate::mailbox::{Mailbox, MailboxSender};
use crate::process;
use crate::proof::Grant;
use crate::roster::Roster;
use crate::shims::{self, ShimHub};
use crate::unleased_monitor::UnleasedMonitorInbox;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::reading::{GpuReading, Reading, Resident};
use sublet_core::units::Bytes;

/// Readings that may wait for a slow sink. More would only be stale and cost memory.
const READINGS_WAITING_MAX: usize = 256;

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
    GpuRead {
        uuid: String,
        observation: GpuReading,
        busy: Vec<ProcKey>,
    },
    /// The holder's programs report when they use a GPU: their other activity is not considered.
    JudgedByShim {
        lease: LeaseId,
        is: bool,
    },
    /// Memory that the driver attributes to this ended process is held by that one, as far as can be known.
    Inheritor {
        dead: u32,
        inheritor: Option<ProcKey>,
    },
    /// Processes came or went: descendants of members are searched while their parents live.
    ProcessesChanged,
    /// All leases that existed at the start are watched.
    AllLeasesWatched,
    /// To be passed on unchanged, in order.
    Report(HostReport),
    Stop,
}

/// The queue of the process thread. Never blocks.
#[derive(Clone)]
pub(crate) struct ProcessThreadInbox {
    mailbox: MailboxSender<ProcessMessage>,
    watching: Arc<AtomicBool>,
}

impl ProcessThreadInbox {
    /// True if any holder is watched.
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    pub(crate) fn send(&self, message: ProcessMessage) {
        // The next reading shows what a dropped one would have shown.
        match message {
            ProcessMessage::GpuRead { .. } => self.mailbox.send_droppable(message, READINGS_WAITING_MAX),
            message => self.mailbox.send(message),
        }
    }
}

pub(crate) struct ProcessThread {
    roster: Roster,
    mailbox: Mailbox<ProcessMessage>,
    watching: Arc<AtomicBool>,
    period: Duration,
    refresh_at: Instant,
    /// Number of refreshes so far.
    refreshes: u32,
    /// The last reading of each GPU before all leases of an earlier daemon were watched; `None` from then on. A
    /// reading that was passed on before would show their programs as unleased.
    early_readings: Option<BTreeMap<String, (GpuReading, Vec<ProcKey>)>>,
    /// Processes on a GPU that were found to be in no lease, until the next refresh.
    unleased: BTreeSet<ProcKey>,
    /// For each ended process that the driver names, the process that holds its memory.
    inheritors: BTreeMap<u32, ProcKey>,
    /// Leases with a watch that has just begun, until one sweep searches for all of them.
    new_watches: BTreeSet<LeaseId>,
    hub: Option<ShimHub>,
    unleased_monitor: Option<UnleasedMonitorInbox>,
    sink: Box<dyn Fn(HostReport) + Send + Sync>,
}

impl ProcessThread {
    pub(crate) fn new(
        period: Duration,
        sink: Box<dyn Fn(HostReport) + Send + Sync>,
    ) -> io::Result<(ProcessThread, ProcessThreadInbox)> {
        let (sender, mailbox) = Mailbox::new()?;
        let watching = Arc::new(AtomicBool::new(false));
        let inbox = ProcessThreadInbox { mailbox: sender, watching: Arc::clone(&watching) };
        let process_thread = ProcessThread {
            roster: Roster::new(ExitWatcher::new(mailbox.wake())?),
            mailbox,
            watching,
            period,
            refresh_at: Instant::now(),
            refreshes: 0,
            early_readings: Some(BTreeMap::new()),
            unleased: BTreeSet::new(),
            inheritors: BTreeMap::new(),
            new_watches: BTreeSet::new(),
            hub: None,
            unleased_monitor: None,
            sink,
        };
        Ok((process_thread, inbox))
    }

    /// Readings are also passed to the hub.
    pub(crate) fn set_hub(&mut self, hub: ShimHub) {
        self.hub = Some(hub);
    }

    pub(crate) fn set_ancestors(&mut self, ancestors: AncestorHistory) {
        self.roster.set_ancestors(ancestors);
    }

    /// Processes of no holder are passed to that thread for an audit.
    pub(crate) fn set_unleased_monitor(&mut self, unleased_monitor: UnleasedMonitorInbox) {
        self.unleased_monitor = Some(unleased_monitor);
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
            self.mailbox.wake().clear();
            // First, so that no end is reported of a lease that was forgotten before it.
            if !self.handle_messages() {
                return;
            }
            self.remove_ended(ended);
            if !self.roster.is_empty() && self.refresh_at <= Instant::now() {
                self.refresh();
            }
            self.continue_walks();
        }
    }

    /// The next slice of the walks in progress. Exits and messages are handled between slices.
    fn continue_walks(&mut self) {
        let progress = self.roster.run_slice();
        for (lease, activity) in progress.refreshed {
            if activity.worked {
                (self.sink)(HostReport::Worked { lease });
            }
            if activity.got_input {
                (self.sink)(HostReport::TerminalInput { lease });
            }
            self.report_members(lease);
        }
        self.report_changes(progress.touched);
    }

    fn remove_ended(&mut self, ended: Vec<ProcKey>) {
        let touched: BTreeSet<LeaseId> =
            ended.into_iter().flat_map(|process| self.roster.remove_process(process)).collect();
        self.report_changes(touched);
    }

    /// Returns false when the thread must stop.
    pub(crate) fn handle_messages(&mut self) -> bool {
        while let Some(message) = self.mailbox.next() {
            match message {
                ProcessMessage::Watch { lease, uid, roots, grant } => self.begin_watch(lease, uid, roots, grant),
                ProcessMessage::Granted { lease, grant } => {
                    self.new_watches.extend(self.roster.set_grant(lease, grant));
                    self.unleased.clear();
                }
                ProcessMessage::Forget { lease } => {
                    self.new_watches.extend(self.roster.end_watch(lease));
                    self.new_watches.remove(&lease);
                }
                ProcessMessage::GpuRead { uuid, observation, busy } => match &mut self.early_readings {
                    Some(early_readings) => drop(early_readings.insert(uuid, (observation, busy))),
                    None => {
                        self.sweep_for_new_watches();
                        self.pass_on_reading(uuid, observation, &busy);
                    }
                },
                ProcessMessage::AllLeasesWatched => {
                    self.sweep_for_new_watches();
                    for (uuid, (observation, busy)) in self.early_readings.take().into_iter().flatten() {
                        self.pass_on_reading(uuid, observation, &busy);
                    }
                }
                ProcessMessage::Inheritor { dead, inheritor } => {
                    self.inheritors.remove(&dead);
                    self.inheritors.extend(inheritor.map(|inheritor| (dead, inheritor)));
                    // Entries are by pid; most of these processes have ended by now.
                    self.inheritors.retain(|_, inheritor| process::is_running(*inheritor));
                }
                ProcessMessage::JudgedByShim { lease, is } => self.roster.set_judged_by_shim(lease, is),
                ProcessMessage::ProcessesChanged => {
                    for lease in self.roster.leases() {
                        if !self.roster.has_many_members(lease) {
                            self.roster.grow(lease);
                            self.report_members(lease);
                        }
                    }
                }
                ProcessMessage::Report(report) => (self.sink)(report),
                ProcessMessage::Stop => return false,
            }
        }
        self.sweep_for_new_watches();
        true
    }

    fn begin_watch(&mut self, lease: LeaseId, uid: u32, roots: Vec<ProcKey>, grant: Option<Grant>) {
        if self.roster.is_empty() {
            self.refresh_at = Instant::now() + self.period;
        }
        let leases_that_lost = self.roster.begin_watch(lease, uid, roots, grant);
        self.new_watches.insert(lease);
        self.new_watches.extend(leases_that_lost);
        self.unleased.clear();
    }

    /// One sweep for all watches that have just begun.
    fn sweep_for_new_watches(&mut self) {
        if !self.new_watches.is_empty() {
            let new_watches = std::mem::take(&mut self.new_watches);
            self.sweep_and_report(new_watches);
        }
    }

    /// Members that are on the GPU are reported before the reading that shows them.
    fn pass_on_reading(&mut self, uuid: String, mut observation: GpuReading, busy: &[ProcKey]) {
        if let Reading::Used(used) = &mut observation.reading {
            self.replace_by_inheritors(&mut used.processes);
        }
        if let Reading::Used(used) = &observation.reading
            && !self.roster.is_empty()
        {
            let residents = used.processes.iter().map(|resident| resident.process);
            let unreported =
                |process| self.attribute_unknown(process).or_else(|| self.roster.unreported_lease(process));
            let joined: BTreeSet<LeaseId> = residents.filter_map(unreported).collect();
            joined.into_iter().for_each(|lease| self.report_members(lease));
            busy.iter().for_each(|process| self.roster.note_gpu_use(*process));
            if let (Some(hub), Some(bytes)) = (&self.hub, shims::uuid_bytes(&uuid)) {
                let sizes = used.processes.iter().filter_map(|it| Some((it.process.pid, it.bytes?.0)));
                hub.add_reading(bytes, sizes.collect());
            }
        }
        let unleased = self.unleased_processes(&observation.reading);
        (self.sink)(HostReport::Observed { uuid, observation });
        if let Some(unleased_monitor) = self.unleased_monitor.as_ref().filter(|_| !unleased.is_empty()) {
            unleased_monitor.note_present(unleased);
        }
    }

    /// Replaces ended processes by those that hold their memory now, where that is known.
    fn replace_by_inheritors(&self, residents: &mut Vec<Resident>) {
        let dead: BTreeSet<u32> =
            residents.iter().map(|it| it.process).filter(|it| self.is_dead(*it)).map(|it| it.pid).collect();
        if dead.is_empty() {
            return;
        }
        let on_gpus: BTreeSet<u32> = residents.iter().map(|it| it.process.pid).collect();
        let mut replaced: Vec<Resident> = Vec::new();
        for mut resident in residents.drain(..) {
            let inheritor = self.inheritors.get(&resident.process.pid).filter(|_| dead.contains(&resident.process.pid));
            // A process that the driver names itself has its own entry; one entry is for one process.
            let inheritor =
                inheritor.filter(|inheritor| !on_gpus.contains(&inheritor.pid) && process::is_running(**inheritor));
            if let Some(inheritor) = inheritor {
                resident.process = *inheritor;
            }
            match replaced.iter_mut().find(|it| it.process == resident.process) {
                Some(same) => {
                    same.bytes =
                        same.bytes.zip(resident.bytes).map(|(one, other)| Bytes(one.0.saturating_add(other.0)));
                    same.only_draws &= resident.only_draws;
                }
                None => replaced.push(resident),
            }
        }
        *residents = replaced;
        if let Some(unleased_monitor) = &self.unleased_monitor {
            unleased_monitor.note_orphaned(dead, on_gpus);
        }
    }

    /// True if it ended although the driver names it. A process that cannot be seen does not count as ended.
    fn is_dead(&self, process: ProcKey) -> bool {
        if process.start != 0 {
            return self.roster.lease_of(process).is_none() && !process::is_running(process);
        }
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }

    /// Processes of a reading that belong to no granted lease, and do more than draw a little. A lease that waits
    /// does not count yet.
    fn unleased_processes(&self, reading: &Reading) -> Vec<ProcKey> {
        let Reading::Used(used) = reading else { return Vec::new() };
        let computing =
            used.processes.iter().filter(|resident| resident.is_of_interest() && resident.process.start != 0);
        computing
            .map(|resident| resident.process)
            .filter(|process| self.roster.granted_lease_of(*process).is_none())
            .collect()
    }

    /// Attributes an unknown process on a GPU; returns its lease, or `None` if it is in none.
    fn attribute_unknown(&mut self, process: ProcKey) -> Option<LeaseId> {
        // A start of 0 means that the worker could not see the process.
        if process.start == 0 || self.roster.lease_of(process).is_some() || self.unleased.contains(&process) {
            return None;
        }
        let lease = self.roster.attribute(process);
        if lease.is_none() {
            self.unleased.insert(process);
        }
        lease
    }

    fn refresh(&mut self) {
        self.refresh_at = Instant::now() + self.period;
        self.unleased.clear();
        self.refreshes = self.refreshes.wrapping_add(1);
        for lease in self.roster.leases() {
            if self.refreshes.is_multiple_of(self.roster.refresh_periods(lease)) {
                self.roster.refresh(lease);
            }
        }
    }

    /// Reports what changed. Before a holder is reported gone, every process is checked.
    fn report_changes(&mut self, touched: BTreeSet<LeaseId>) {
        if touched.iter().any(|lease| self.roster.has_no_processes(*lease)) {
            self.sweep_and_report(touched);
        } else {
            for lease in touched {
                if !self.roster.has_many_members(lease) {
                    self.report_members(lease);
                }
            }
        }
    }

    fn sweep_and_report(&mut self, mut touched: BTreeSet<LeaseId>) {
        let swept = self.roster.search_all_processes(&touched);
        let sure = swept.is_ok();
        touched.extend(swept.unwrap_or_default());
        for lease in touched {
            if !self.roster.has_no_processes(lease) {
                self.report_members(lease);
            } else if sure {
                let roots = self.roster.roots(lease);
                drop(self.roster.end_watch(lease));
                (self.sink)(HostReport::HolderEnded { lease, roots });
            }
            // Not certain: unreadable is not gone. The next refresh checks again.
        }
    }

    fn report_members(&mut self, lease: LeaseId) {
        if let Some((processes, restricted)) = self.roster.changed_members(lease) {
            (self.sink)(HostReport::Members { lease, processes, restricted });
        }
    }
}
