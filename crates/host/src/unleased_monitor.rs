//! The thread that audits processes on GPUs which belong to no holder, and keeps their pidfds.
//!
//! The process thread reports such processes with each reading, and the daemon's loop reports holders' processes on a
//! GPU that their lease is not for. A new one is audited and kept: its pidfd is opened then, and a later signal goes
//! through that descriptor or is not sent. Those that stay are audited again every [`REAUDIT_AFTER`], so that a process
//! that runs another program by then is not taken for what it was.
//!
//! Absent: which of them gets a signal, and when.

use crate::HostReport;
use crate::audit::{self, AncestorHistory, GpuDeviceFiles, PidfdRegistry, SignalRefusal};
use crate::exits::{ExitWatch, ExitWatcher};
use crate::gpu_thread::{self, reap, with_cause};
use crate::mailbox::{Mailbox, MailboxSender};
use crate::process::{self, Uids};
use crate::process_thread::{ProcessMessage, ProcessThreadInbox};
use crate::soft::SoftPlace;
use crate::worker::MeasuredContext;
use crate::worker_link::WorkerLink;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use sublet_core::audit::Through;
use sublet_core::ids::ProcKey;
use sublet_core::units::Time;
use sublet_core::unleased::{PendingSignal, RuleSubject, SignalOutcome, UnleasedId};

/// A process that stays is audited again after this.
const REAUDIT_AFTER: Duration = Duration::from_secs(15);
/// A process that was on no GPU for this long is dropped.
const DROP_AFTER: Duration = Duration::from_secs(60);
/// Processes kept at a time; more are counted on their GPUs, and not audited.
const MONITORED_MAX: usize = 1_024;
/// Unread messages of the kinds that are repeated anyway.
const UNREAD_MAX: usize = 256;
/// Processes audited before messages are read again, so that many of them delay no message.
const AUDITS_AT_ONCE: usize = 64;
/// How long the test of a GPU may take.
const PID_TEST_TIMEOUT: Duration = Duration::from_secs(7);
/// How long an ended process must be listed before its memory counts as orphaned: the driver lists a process for a
/// moment after its end.
const ORPHANED_AFTER: Duration = Duration::from_secs(1);
/// Ended processes with orphaned memory tracked at a time.
const ORPHANED_MAX: usize = 64;
/// The kernel's inode number of the first pid namespace, the same on every host.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Messages to the thread.
enum MonitorMessage {
    /// These are on a GPU, and belong to no holder there.
    Present(Vec<ProcKey>),
    Audit(ProcKey),
    /// The driver names these, which have ended; and those are on the same GPU.
    Orphaned {
        dead: BTreeSet<u32>,
        on_gpus: BTreeSet<u32>,
    },
    SendSignals {
        stranger: UnleasedId,
        signal: u8,
        of: Time,
        processes: Vec<ProcKey>,
        spared: Vec<RuleSubject>,
    },
    TestPids {
        uuid: String,
    },
    Stop,
}

/// The queue of the thread. Never blocks.
#[derive(Clone)]
pub(crate) struct UnleasedMonitorInbox {
    mailbox: MailboxSender<MonitorMessage>,
    pending: PendingSignals,
}

/// Signals that were not sent yet. The deciding thread takes one back here: a message in the queue would come too
/// late.
#[derive(Clone, Default)]
struct PendingSignals(Arc<Mutex<BTreeSet<PendingSignal>>>);

impl PendingSignals {
    fn with_lock<T>(&self, change: impl FnOnce(&mut BTreeSet<PendingSignal>) -> T) -> T {
        // No change in there can be left half done by a panic.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl UnleasedMonitorInbox {
    /// Drops the message if too many wait: it is repeated anyway, and an audit can take as long as its process wants.
    fn send_if_room(&self, message: MonitorMessage) {
        self.mailbox.send_droppable(message, UNREAD_MAX);
    }

    fn send(&self, message: MonitorMessage) {
        self.mailbox.send(message);
    }

    /// These are on a GPU, and belong to no holder there.
    pub(crate) fn note_present(&self, processes: Vec<ProcKey>) {
        self.send_if_room(MonitorMessage::Present(processes));
    }

    /// The driver attributes memory to these, and they have ended. `on_gpus` are all processes that it names on that
    /// GPU.
    pub(crate) fn note_orphaned(&self, dead: BTreeSet<u32>, on_gpus: BTreeSet<u32>) {
        self.send_if_room(MonitorMessage::Orphaned { dead, on_gpus });
    }

    pub(crate) fn audit(&self, process: ProcKey) {
        self.send_if_room(MonitorMessage::Audit(process));
    }

    /// Queues signals. Each is sent only if it is still wanted then.
    pub(crate) fn send_signals(
        &self,
        (stranger, signal, of): (UnleasedId, u8, Time),
        processes: Vec<ProcKey>,
        spared: Vec<RuleSubject>,
        is_wanted: impl FnMut(&PendingSignal) -> bool,
    ) {
        let wanted = processes.iter().map(|&process| PendingSignal { stranger, process, signal, of }).filter(is_wanted);
        self.pending.with_lock(|pending| pending.extend(wanted));
        self.send(MonitorMessage::SendSignals { stranger, signal, of, processes, spared });
    }

    /// Takes back signals that are not wanted any more. None of them is sent once this returns.
    pub(crate) fn withdraw_signals(&self, is_wanted: impl FnMut(&PendingSignal) -> bool) {
        self.pending.with_lock(|pending| pending.retain(is_wanted));
    }

    pub(crate) fn test_pids(&self, uuid: String) {
        self.send(MonitorMessage::TestPids { uuid });
    }

    pub(crate) fn stop(&self) {
        self.send(MonitorMessage::Stop);
    }
}

/// How to test whether the pids that the driver reports are those of this host.
pub(crate) struct PidTest {
    /// The executable that becomes a worker.
    pub(crate) exe: PathBuf,
    /// Where soft GPUs are.
    pub(crate) soft: Option<SoftPlace>,
    /// The GPUs are scripted: there is no driver.
    pub(crate) scripted: bool,
}

struct MonitoredProcess {
    reaudit_at: Instant,
    last_seen: Instant,
    /// The process, and its descendants in the same control group.
    tree: Vec<ProcKey>,
}

/// Memory that the driver attributes to a process that has ended.
struct OrphanedMemory {
    since: Instant,
    last_seen: Instant,
    searched: Option<Instant>,
    on_gpus: BTreeSet<u32>,
    /// Processes that may hold it, the oldest first.
    inheritors: Vec<ProcKey>,
}

pub(crate) struct UnleasedMonitor {
    mailbox: Mailbox<MonitorMessage>,
    exits: ExitWatcher,
    registry: PidfdRegistry,
    devices: GpuDeviceFiles,
    monitored: BTreeMap<ProcKey, MonitoredProcess>,
    orphans: BTreeMap<u32, OrphanedMemory>,
    /// To be audited.
    waiting: Vec<ProcKey>,
    process_thread: ProcessThreadInbox,
    gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
    pid_test: PidTest,
    pending: PendingSignals,
    ancestors: AncestorHistory,
}

impl UnleasedMonitor {
    pub(crate) fn new(
        process_thread: ProcessThreadInbox,
        gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
        pid_test: PidTest,
    ) -> std::io::Result<(UnleasedMonitor, UnleasedMonitorInbox)> {
        let (sender, mailbox) = Mailbox::new()?;
        let pending = PendingSignals::default();
        let inbox = UnleasedMonitorInbox { mailbox: sender, pending: pending.clone() };
        let devices = GpuDeviceFiles::new(pid_test.soft.as_ref().map(|soft| soft.state.clone()));
        let unleased_monitor = UnleasedMonitor {
            exits: ExitWatcher::new(mailbox.wake())?,
            mailbox,
            registry: PidfdRegistry::new(devices.clone()),
            devices,
            monitored: BTreeMap::new(),
            orphans: BTreeMap::new(),
            waiting: Vec::new(),
            process_thread,
            gpu_thread,
            pid_test,
            pending,
            ancestors: AncestorHistory::default(),
        };
        Ok((unleased_monitor, inbox))
    }

    pub(crate) fn set_ancestors(&mut self, ancestors: AncestorHistory) {
        self.ancestors = ancestors;
    }

    pub(crate) fn run(mut self) {
        loop {
            let Ok(ended) = self.exits.wait(self.time_to_next()) else { return };
            self.mailbox.wake().clear();
            if !self.handle_messages() {
                return;
            }
            ended.into_iter().for_each(|process| self.drop_process(process, true));
            self.queue_due_audits();
            let now: Vec<ProcKey> = self.waiting.drain(..self.waiting.len().min(AUDITS_AT_ONCE)).collect();
            now.into_iter().for_each(|process| self.audit(process));
        }
    }

    fn time_to_next(&self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = self.monitored.values().map(|monitored| monitored.reaudit_at).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Returns false when the thread must stop.
    fn handle_messages(&mut self) -> bool {
        while let Some(message) = self.mailbox.next() {
            match message {
                MonitorMessage::Present(processes) => {
                    self.note_present(processes);
                }
                MonitorMessage::Audit(process) => {
                    self.queue_audit(process);
                }
                MonitorMessage::Orphaned { dead, on_gpus } => {
                    self.note_orphaned(dead, &on_gpus);
                }
                MonitorMessage::SendSignals { stranger, signal, of, processes, spared } => {
                    let pending = processes.into_iter().map(|process| PendingSignal { stranger, process, signal, of });
                    let outcome = self.send_signals(pending.collect(), &spared);
                    self.process_thread.send(ProcessMessage::Report(HostReport::SignalsSent {
                        stranger,
                        signal,
                        of,
                        outcome,
                    }));
                }
                MonitorMessage::TestPids { uuid } => {
                    let can = self.test_pids(&uuid);
                    self.process_thread.send(ProcessMessage::Report(HostReport::SelfTested { can }));
                }
                MonitorMessage::Stop => return false,
            }
        }
        true
    }

    fn note_present(&mut self, processes: Vec<ProcKey>) {
        let now = Instant::now();
        for process in processes {
            if let Some(monitored) = self.monitored.get_mut(&process) {
                monitored.last_seen = now;
            } else if self.monitored.len() + self.waiting.len() < MONITORED_MAX {
                self.queue_audit(process);
            }
        }
    }

    /// Searches the holders of an ended process's memory once the memory stays for [`ORPHANED_AFTER`]. Repeats that
    /// after [`REAUDIT_AFTER`], or after [`ORPHANED_AFTER`] if one of them has ended.
    fn note_orphaned(&mut self, dead: BTreeSet<u32>, on_gpus: &BTreeSet<u32>) {
        // Pids of another namespace are other processes here.
        if self.pid_test.scripted || self.foreign_pid_namespace().is_some() {
            return;
        }
        let now = Instant::now();
        self.orphans.retain(|_, orphan| now - orphan.last_seen < DROP_AFTER);
        for pid in dead {
            if !self.orphans.contains_key(&pid) && self.orphans.len() >= ORPHANED_MAX {
                continue;
            }
            let new = || OrphanedMemory {
                since: now,
                last_seen: now,
                searched: None,
                on_gpus: BTreeSet::new(),
                inheritors: Vec::new(),
            };
            let orphan = self.orphans.entry(pid).or_insert_with(new);
            (orphan.last_seen, orphan.on_gpus) = (now, on_gpus.clone());
            let has_all = orphan.inheritors.iter().all(|inheritor| process::is_running(*inheritor));
            let rests =
                orphan.searched.is_some_and(|at| now - at < if has_all { REAUDIT_AFTER } else { ORPHANED_AFTER });
            if now - orphan.since >= ORPHANED_AFTER && !rests {
                self.search_inheritors(pid);
            }
        }
    }

    fn search_inheritors(&mut self, dead: u32) {
        let Some(orphan) = self.orphans.get_mut(&dead) else { return };
        orphan.searched = Some(Instant::now());
        // Unreadable does not mean that there is none: the next reading tries again.
        let Ok(inheritors) = audit::find_inheritors(dead, &orphan.on_gpus, &self.devices, &self.ancestors) else {
            return;
        };
        orphan.inheritors = inheritors;
        let inheritor = orphan.inheritors.first().copied();
        self.process_thread.send(ProcessMessage::Inheritor { dead, inheritor });
    }

    /// The ended process that this one holds memory of, if the driver does not name this one itself. Searched again,
    /// because a signal may follow from it.
    fn inherited_from(&mut self, process: ProcKey) -> Option<Through> {
        let holds = |orphan: &OrphanedMemory| orphan.inheritors.contains(&process);
        let dead = self.orphans.iter().find(|(_, orphan)| holds(orphan)).map(|(dead, _)| *dead)?;
        self.search_inheritors(dead);
        let orphan = self.orphans.get(&dead).filter(|orphan| holds(orphan))?;
        Some(Through { pid: dead, alone: orphan.inheritors.len() == 1 })
    }

    fn queue_audit(&mut self, process: ProcKey) {
        if !self.waiting.contains(&process) {
            self.waiting.push(process);
        }
    }

    fn queue_due_audits(&mut self) {
        let now = Instant::now();
        let absent: Vec<ProcKey> = self
            .monitored
            .iter()
            .filter(|(_, monitored)| now - monitored.last_seen > DROP_AFTER)
            .map(|(process, _)| *process)
            .collect();
        absent.into_iter().for_each(|process| self.drop_process(process, false));
        let due = self.monitored.iter_mut().filter(|(_, monitored)| monitored.reaudit_at <= now);
        let due: Vec<ProcKey> =
            due.map(|(process, monitored)| (*process, monitored.reaudit_at = now + REAUDIT_AFTER).0).collect();
        due.into_iter().for_each(|process| self.queue_audit(process));
    }

    fn audit(&mut self, process: ProcKey) {
        // Processes that the daemon itself starts are on GPUs too, for a moment.
        if process::ancestry(process.pid).iter().any(|parent| parent.pid == std::process::id()) {
            return;
        }
        let audit = match audit::audit(process, &self.devices) {
            Ok(mut audit) => {
                self.ancestors.add_to_audit(&mut audit);
                audit.through = self.inherited_from(process);
                audit
            }
            Err(error) if error.is_gone() => return self.drop_process(process, true),
            // It lives and cannot be read; the next reading tries again.
            Err(_) => return,
        };
        if !self.monitored.contains_key(&process) && !self.exits.watch(process, ExitWatch::Reserved) {
            return;
        }
        // A process that is no longer what was audited is kept anew.
        if self.registry.audit_of(process).is_some_and(|monitored| monitored.is_same(&audit).is_err()) {
            self.registry.forget(process);
        }
        // If no descriptor can be kept for it, it was reported once and is not again: without one it gets no signal.
        if self.registry.register(process).is_err() && self.monitored.contains_key(&process) {
            return;
        }
        let mut tree = audit::descendants_in_cgroup(process, &audit.cgroup).unwrap_or_default();
        tree.retain(|member| *member == process || self.registry.register_relative(*member).is_ok());
        let now = Instant::now();
        let before = self.monitored.remove(&process);
        let last_seen = before.as_ref().map_or(now, |monitored| monitored.last_seen);
        let gone = before.into_iter().flat_map(|monitored| monitored.tree);
        // The process itself stays kept, though it may be in another control group by now than its audit says.
        let gone = gone.filter(|member| *member != process && !tree.contains(member));
        gone.for_each(|member| self.registry.forget(member));
        self.monitored
            .insert(process, MonitoredProcess { reaudit_at: now + REAUDIT_AFTER, last_seen, tree: tree.clone() });
        self.process_thread.send(ProcessMessage::Report(HostReport::Audited { audit: Box::new(audit), tree }));
    }

    /// It has ended, or is of no interest any more.
    fn drop_process(&mut self, process: ProcKey, is_over: bool) {
        self.exits.unwatch(process);
        let Some(monitored) = self.monitored.remove(&process) else { return };
        monitored.tree.into_iter().chain([process]).for_each(|member| self.registry.forget(member));
        if is_over {
            self.process_thread.send(ProcessMessage::Report(HostReport::ProcessEnded { process }));
        }
    }

    /// The first signal goes to the unleased process itself. If that must be audited again, its descendants get none
    /// now, or they would get it twice. If it has ended, there is no reason left to signal them.
    fn send_signals(&mut self, pending: Vec<PendingSignal>, spared: &[RuleSubject]) -> Vec<SignalOutcome> {
        let mut outcome: Vec<SignalOutcome> = Vec::new();
        let mut waits = false;
        // Only the unleased process itself was found on a GPU. A descendant of another user (`sudo`) did nothing
        // there.
        let unleased = pending.first().map(|first| first.process);
        let user = unleased.and_then(|process| Some(self.registry.audit_of(process)?.uid));
        for blow in pending {
            let mut uid = None;
            let user = user.filter(|_| Some(blow.process) != unleased);
            let sent = if waits { Err(SignalRefusal::Unwanted) } else { self.send(&blow, user, spared, &mut uid) };
            self.pending.with_lock(|pending| pending.remove(&blow));
            let refused = sent.err();
            let changed = refused.as_ref().is_some_and(SignalRefusal::needs_new_audit);
            if changed && !waits {
                // It is audited again before it gets another signal.
                self.registry.forget(blow.process);
            }
            waits |= outcome.is_empty() && (changed || refused.as_ref().is_some_and(SignalRefusal::is_gone));
            outcome.push(SignalOutcome {
                process: blow.process,
                refused: refused.map(|why| with_cause(&why)),
                changed,
                uid,
            });
        }
        outcome
    }

    /// Sets `uid` to the process's present user if that changed since the audit. With `user`, only a process of that
    /// user gets the signal.
    fn send(
        &self,
        blow: &PendingSignal,
        user: Option<u32>,
        spared: &[RuleSubject],
        uid: &mut Option<u32>,
    ) -> Result<(), SignalRefusal> {
        let before = self.registry.audit_of(blow.process).map(|audit| audit.uid);
        self.registry.signal_if(blow.process, blow.signal, |now, send| {
            *uid = Some(now.uid).filter(|uid| Some(*uid) != before);
            if spared.iter().any(|who| who.matches(now)) {
                return Err(SignalRefusal::Changed("a rule is about what it is by now"));
            }
            if let Some(user) = user
                && let Some(other) = Uids::read(blow.process.pid).map_err(SignalRefusal::Unreadable)?.other_than(user)
            {
                return Err(SignalRefusal::OtherUser(other));
            }
            // Locked while it is sent: a signal is taken back either before or after that.
            self.pending.with_lock(|pending| if pending.contains(blow) { send() } else { Err(SignalRefusal::Unwanted) })
        })
    }

    /// Why the pids that the driver reports are not those of this service, if so.
    fn foreign_pid_namespace(&self) -> Option<String> {
        // Soft GPUs use this namespace, whichever it is.
        if self.pid_test.soft.is_some() {
            return None;
        }
        match std::fs::read_link("/proc/self/ns/pid") {
            Ok(own) if own.as_os_str() == FIRST_PID_NAMESPACE => None,
            Ok(_) => Some(
                "the service runs in a pid namespace of its own, and the driver numbers the processes of the host"
                    .to_owned(),
            ),
            Err(error) => Some(format!("its pid namespace cannot be read: {error}")),
        }
    }

    /// Tests whether the driver names processes as this host does: a worker makes a context on the GPU and looks for
    /// itself in the driver's list.
    fn test_pids(&self, uuid: &str) -> Result<(), String> {
        if self.pid_test.scripted {
            return Err("there is nothing behind scripted GPUs".to_owned());
        }
        if let Some(why) = self.foreign_pid_namespace() {
            return Err(why);
        }
        let arguments = ["context".to_owned(), uuid.to_owned()];
        let mut worker_link = WorkerLink::start(&self.pid_test.exe, &arguments, self.pid_test.soft.as_ref())
            .map_err(|error| format!("a process to try it with cannot be started: {error}"))?;
        let line = worker_link.read_line(PID_TEST_TIMEOUT, self.gpu_thread.stopping());
        reap(worker_link.kill().into_iter().collect());
        match line.map(|line| serde_json::from_slice::<MeasuredContext>(&line)) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err("the trial's answer makes no sense".to_owned()),
            Err(error) => Err(format!("a process of ours did not find itself among those on the GPU: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_thread::ProcessThread;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    /// A process that is kept as if it had been audited, killed at the end.
    struct Sleeper(Child);

    impl Sleeper {
        fn monitored(unleased_monitor: &mut UnleasedMonitor) -> Sleeper {
            Sleeper::of_user(unleased_monitor, rustix::process::getuid().as_raw())
        }

        fn of_user(unleased_monitor: &mut UnleasedMonitor, uid: u32) -> Sleeper {
            let sleeper = Sleeper(Command::new("sleep").arg("600").uid(uid).spawn().expect("a program"));
            let ready =
                || std::fs::read_link(format!("/proc/{}/exe", sleeper.0.id())).is_ok_and(|exe| exe.ends_with("sleep"));
            while !ready() {
                std::thread::yield_now();
            }
            unleased_monitor.registry.register(sleeper.key()).expect("an own child");
            sleeper
        }

        fn key(&self) -> ProcKey {
            process::stat(self.0.id()).expect("an own child").key(self.0.id())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn unleased_monitor() -> (UnleasedMonitor, UnleasedMonitorInbox) {
        let (_, process_thread) = ProcessThread::new(Duration::from_secs(1), Box::new(drop)).expect("descriptors");
        let gpu_thread = Arc::new(gpu_thread::GpuThreadHandle::new().expect("descriptors"));
        let pid_test = PidTest { exe: PathBuf::new(), soft: None, scripted: true };
        UnleasedMonitor::new(process_thread, gpu_thread, pid_test).expect("descriptors")
    }

    fn send_signals(inbox: &UnleasedMonitorInbox, processes: Vec<ProcKey>) -> Vec<PendingSignal> {
        let blow = |process| PendingSignal { stranger: UnleasedId(1), process, signal: 15, of: Time(7) };
        let pending = processes.iter().copied().map(blow).collect();
        inbox.send_signals((UnleasedId(1), 15, Time(7)), processes, Vec::new(), |_| true);
        pending
    }

    /// Which of them get a queued signal after the unwanted ones were taken back.
    fn signal_outcomes(unleased_monitor: &mut UnleasedMonitor, pending: Vec<PendingSignal>) -> Vec<(bool, bool)> {
        let outcome = unleased_monitor.send_signals(pending, &[]);
        outcome.iter().map(|struck| (struck.refused.is_none(), struck.changed)).collect()
    }

    #[test]
    fn a_signal_withdrawn_while_queued_is_not_sent() {
        let (mut unleased_monitor, inbox) = unleased_monitor();
        let mut one = Sleeper::monitored(&mut unleased_monitor);
        let pending = send_signals(&inbox, vec![one.key()]);
        inbox.withdraw_signals(|_| true);
        assert_eq!(inbox.pending.with_lock(|pending| pending.len()), 1);
        inbox.withdraw_signals(|blow| blow.process != one.key());
        assert!(unleased_monitor.handle_messages(), "it is dealt with");
        assert_eq!(one.0.try_wait().expect("an own child"), None);
        // It was dropped, to be audited again.
        unleased_monitor.registry.register(one.key()).expect("an own child");
        assert_eq!(signal_outcomes(&mut unleased_monitor, pending), [(false, true)]);
        unleased_monitor.registry.register(one.key()).expect("an own child");
        let pending = send_signals(&inbox, vec![one.key()]);
        assert_eq!(signal_outcomes(&mut unleased_monitor, pending), [(true, false)]);
        assert!(!one.0.wait().expect("an own child").success());
        assert_eq!(inbox.pending.with_lock(|pending| pending.len()), 0, "nothing is left of it");
    }

    #[test]
    fn descendants_of_an_ended_unleased_process_get_no_signal() {
        let (mut unleased_monitor, inbox) = unleased_monitor();
        let mut all = [0; 2].map(|_| Sleeper::monitored(&mut unleased_monitor));
        let pending = send_signals(&inbox, all.each_ref().map(Sleeper::key).to_vec());
        all[0].0.kill().and_then(|()| all[0].0.wait()).expect("an own child");
        assert_eq!(signal_outcomes(&mut unleased_monitor, pending), [(false, false), (false, true)]);
        assert_eq!(all[1].0.try_wait().expect("an own child"), None);
        assert_eq!(inbox.pending.with_lock(|pending| pending.len()), 0, "nothing is left of it");
    }

    #[test]
    fn descendants_of_an_unleased_process_that_run_as_another_user_get_no_signal() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can start programs of other users");
        }
        let (mut unleased_monitor, inbox) = unleased_monitor();
        let mut all = [61_234, 0, 61_234].map(|uid| Sleeper::of_user(&mut unleased_monitor, uid));
        let pending = send_signals(&inbox, all.each_ref().map(Sleeper::key).to_vec());
        let outcome = unleased_monitor.send_signals(pending, &[]);
        assert_eq!(outcome.iter().map(|struck| struck.refused.is_none()).collect::<Vec<_>>(), [true, false, true]);
        assert!(outcome[1].refused.as_ref().is_some_and(|why| why.starts_with("it runs as uid 0, another user")));
        assert!(!outcome[1].changed);
        assert_eq!(all[1].0.try_wait().expect("an own child"), None);
        assert!(!all[0].0.wait().expect("an own child").success() && !all[2].0.wait().expect("an own child").success());
    }

    #[test]
    fn no_signal_before_a_fresh_audit_if_an_allow_rule_matches() {
        let (mut unleased_monitor, inbox) = unleased_monitor();
        let mut one = Sleeper::monitored(&mut unleased_monitor);
        let uid = unleased_monitor.registry.audit_of(one.key()).map(|audit| audit.uid).expect("it was audited");
        let pending = send_signals(&inbox, vec![one.key()]);
        let outcome = unleased_monitor.send_signals(pending, &[RuleSubject::Uid(uid + 1), RuleSubject::Uid(uid)]);
        assert!(outcome[0].changed && outcome[0].refused.as_ref().is_some_and(|why| why.contains("a rule is about")));
        assert_eq!(one.0.try_wait().expect("an own child"), None);
        unleased_monitor.registry.register(one.key()).expect("an own child");
        let pending = send_signals(&inbox, vec![one.key()]);
        let outcome = unleased_monitor.send_signals(pending, &[RuleSubject::Uid(uid + 1)]);
        assert_eq!((outcome[0].refused.as_deref(), outcome[0].uid), (None, None));
        assert!(!one.0.wait().expect("an own child").success());
    }

    #[test]
    fn descendants_get_no_signal_while_the_unleased_process_must_be_audited_again() {
        let (mut unleased_monitor, inbox) = unleased_monitor();
        let mut all = [0; 3].map(|_| Sleeper::monitored(&mut unleased_monitor));
        let keys = all.each_ref().map(Sleeper::key);
        let pending = send_signals(&inbox, keys.to_vec());
        inbox.withdraw_signals(|blow| blow.process != keys[0]);
        assert_eq!(signal_outcomes(&mut unleased_monitor, pending), [(false, true); 3]);
        unleased_monitor.registry.register(keys[0]).expect("an own child");
        let pending = send_signals(&inbox, keys.to_vec());
        inbox.withdraw_signals(|blow| blow.process != keys[1]);
        assert_eq!(signal_outcomes(&mut unleased_monitor, pending), [(true, false), (false, true), (true, false)]);
        assert_eq!(all[1].0.try_wait().expect("an own child"), None);
        assert!(!all[0].0.wait().expect("an own child").success() && !all[2].0.wait().expect("an own child").success());
    }
}
