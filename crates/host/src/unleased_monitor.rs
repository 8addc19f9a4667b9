//! The thread that audits processes on GPUs which belong to no holder, and keeps their pidfds.
//!
//! The process thread reports such processes with each reading, and the daemon's loop reports holders' processes on a
//! GPU that their lease is not for. A new one is audited and kept: its pidfd is opened then, and a later signal goes
//! through that descriptor or is not sent. Those that stay are audited again every [`AGAIN`], so that a process that
//! runs another program by then is not taken for what it was.
//!
//! Absent: which of them gets a signal, and when.

use crate::HostReport;
use crate::audit::{self, AncestorHistory, GpuDeviceFiles, PidfdRegistry, SignalRefusal};
use crate::cards::{self, reap, with_cause};
use crate::exits::{ExitWatch, Exits};
use crate::eyes::{ProcessMessage, ProcessThreadInbox};
use crate::link::WorkerLink;
use crate::process::{self, Uids};
use crate::soft::SoftPlace;
use crate::wake::WakeEvent;
use crate::worker::MeasuredContext;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use sublet_core::audit::Through;
use sublet_core::ids::ProcKey;
use sublet_core::stranger::{Blow, StrangerId, Struck, Who};
use sublet_core::units::Time;

/// A process that stays is audited again after this.
const AGAIN: Duration = Duration::from_secs(15);
/// A process that was on no GPU for this long is dropped.
const ABSENT: Duration = Duration::from_secs(60);
/// Processes kept at a time; more are counted on their GPUs, and not audited.
const KEPT_MAX: usize = 1_024;
/// Unread messages of the kinds that are repeated anyway.
const HEARD_MAX: usize = 256;
/// Processes audited before messages are read again, so that many of them delay no message.
const AT_ONCE: usize = 64;
/// How long the test of a GPU may take.
const TRIAL_PATIENCE: Duration = Duration::from_secs(7);
/// How long an ended process must be listed before its memory counts as orphaned: the driver lists a process for a
/// moment after its end.
const SETTLED: Duration = Duration::from_secs(1);
/// Ended processes with orphaned memory tracked at a time.
const ESTATES_MAX: usize = 64;
/// The kernel's inode number of the first pid namespace, the same on every host.
const FIRST_PIDS: &str = "pid:[4026531836]";

/// Messages to the thread.
enum MonitorMessage {
    /// These are on a GPU, and belong to no holder there.
    Present(Vec<ProcKey>),
    Audit(ProcKey),
    /// The driver names these, which have ended; and those are on the same GPU.
    Orphaned {
        dead: BTreeSet<u32>,
        on_cards: BTreeSet<u32>,
    },
    Strike {
        stranger: StrangerId,
        signal: u8,
        of: Time,
        processes: Vec<ProcKey>,
        spared: Vec<Who>,
    },
    Try {
        uuid: String,
    },
    Stop,
}

/// The queue of the thread. Never blocks.
#[derive(Clone)]
pub(crate) struct UnleasedMonitorInbox {
    queue: mpsc::Sender<MonitorMessage>,
    bell: Arc<WakeEvent>,
    /// Unread messages that are repeated with the next reading.
    heard: Arc<AtomicUsize>,
    blows: PendingSignals,
}

/// Signals that were not sent yet. The deciding thread takes one back here: a message in the queue would come too
/// late.
#[derive(Clone, Default)]
struct PendingSignals(Arc<Mutex<BTreeSet<Blow>>>);

impl PendingSignals {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeSet<Blow>) -> T) -> T {
        // No change in there can be left half done by a panic.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl UnleasedMonitorInbox {
    /// Drops the message if too many wait: it is repeated anyway, and an audit can take as long as its process wants.
    fn send_again(&self, word: MonitorMessage) {
        if self.heard.fetch_add(1, Ordering::AcqRel) >= HEARD_MAX {
            self.heard.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        self.send(word);
    }

    fn send(&self, word: MonitorMessage) {
        // Fails only when the thread has ended, and then the message does not matter.
        let _ = self.queue.send(word);
        self.bell.ring();
    }

    /// These are on a GPU, and belong to no holder there.
    pub(crate) fn present(&self, processes: Vec<ProcKey>) {
        self.send_again(MonitorMessage::Present(processes));
    }

    /// The driver attributes memory to these, and they have ended. `on_cards` are all processes that it names on that
    /// GPU.
    pub(crate) fn orphaned(&self, dead: BTreeSet<u32>, on_cards: BTreeSet<u32>) {
        self.send_again(MonitorMessage::Orphaned { dead, on_cards });
    }

    pub(crate) fn audit(&self, process: ProcKey) {
        self.send_again(MonitorMessage::Audit(process));
    }

    /// Queues signals. Each is sent only if it is still wanted then.
    pub(crate) fn strike(
        &self,
        (stranger, signal, of): (StrangerId, u8, Time),
        processes: Vec<ProcKey>,
        spared: Vec<Who>,
        is_wanted: impl FnMut(&Blow) -> bool,
    ) {
        let wanted = processes.iter().map(|&process| Blow { stranger, process, signal, of }).filter(is_wanted);
        self.blows.with(|blows| blows.extend(wanted));
        self.send(MonitorMessage::Strike { stranger, signal, of, processes, spared });
    }

    /// Takes back signals that are not wanted any more. None of them is sent once this returns.
    pub(crate) fn recall(&self, is_wanted: impl FnMut(&Blow) -> bool) {
        self.blows.with(|blows| blows.retain(is_wanted));
    }

    pub(crate) fn try_card(&self, uuid: String) {
        self.send(MonitorMessage::Try { uuid });
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
    again: Instant,
    seen: Instant,
    /// The process, and its descendants in the same control group.
    tree: Vec<ProcKey>,
}

/// Memory that the driver attributes to a process that has ended.
struct OrphanedMemory {
    since: Instant,
    seen: Instant,
    searched: Option<Instant>,
    on_cards: BTreeSet<u32>,
    /// Processes that may hold it, the oldest first.
    heirs: Vec<ProcKey>,
}

pub(crate) struct UnleasedMonitor {
    queue: mpsc::Receiver<MonitorMessage>,
    bell: Arc<WakeEvent>,
    exits: Exits,
    custody: PidfdRegistry,
    devices: GpuDeviceFiles,
    kept: BTreeMap<ProcKey, MonitoredProcess>,
    estates: BTreeMap<u32, OrphanedMemory>,
    /// To be audited.
    waiting: Vec<ProcKey>,
    eyes: ProcessThreadInbox,
    cards: Arc<cards::GpuThreadHandle>,
    trial: PidTest,
    heard: Arc<AtomicUsize>,
    blows: PendingSignals,
    forebears: AncestorHistory,
}

impl UnleasedMonitor {
    pub(crate) fn new(
        eyes: ProcessThreadInbox,
        cards: Arc<cards::GpuThreadHandle>,
        trial: PidTest,
    ) -> std::io::Result<(UnleasedMonitor, UnleasedMonitorInbox)> {
        let (sender, queue) = mpsc::channel();
        let bell = Arc::new(WakeEvent::new()?);
        let heard = Arc::new(AtomicUsize::new(0));
        let blows = PendingSignals::default();
        let inbox = UnleasedMonitorInbox {
            queue: sender,
            bell: Arc::clone(&bell),
            heard: Arc::clone(&heard),
            blows: blows.clone(),
        };
        let devices = GpuDeviceFiles::new(trial.soft.as_ref().map(|soft| soft.state.clone()));
        let warden = UnleasedMonitor {
            queue,
            exits: Exits::new(&bell)?,
            bell,
            custody: PidfdRegistry::new(devices.clone()),
            devices,
            kept: BTreeMap::new(),
            estates: BTreeMap::new(),
            waiting: Vec::new(),
            eyes,
            cards,
            trial,
            heard,
            blows,
            forebears: AncestorHistory::default(),
        };
        Ok((warden, inbox))
    }

    pub(crate) fn set_forebears(&mut self, forebears: AncestorHistory) {
        self.forebears = forebears;
    }

    pub(crate) fn run(mut self) {
        loop {
            let Ok(ended) = self.exits.wait(self.patience()) else { return };
            self.bell.hush();
            if !self.take_words() {
                return;
            }
            ended.into_iter().for_each(|process| self.let_go(process, true));
            self.look_again();
            let now: Vec<ProcKey> = self.waiting.drain(..self.waiting.len().min(AT_ONCE)).collect();
            now.into_iter().for_each(|process| self.audit(process));
        }
    }

    fn patience(&self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = self.kept.values().map(|kept| kept.again).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Returns false when the thread must stop.
    fn take_words(&mut self) -> bool {
        while let Ok(word) = self.queue.try_recv() {
            match word {
                MonitorMessage::Present(processes) => {
                    self.heard.fetch_sub(1, Ordering::AcqRel);
                    self.present(processes);
                }
                MonitorMessage::Audit(process) => {
                    self.heard.fetch_sub(1, Ordering::AcqRel);
                    self.want(process);
                }
                MonitorMessage::Orphaned { dead, on_cards } => {
                    self.heard.fetch_sub(1, Ordering::AcqRel);
                    self.orphaned(dead, &on_cards);
                }
                MonitorMessage::Strike { stranger, signal, of, processes, spared } => {
                    let blows = processes.into_iter().map(|process| Blow { stranger, process, signal, of });
                    let outcome = self.strike(blows.collect(), &spared);
                    self.eyes.send(ProcessMessage::Tell(HostReport::Struck { stranger, signal, of, outcome }));
                }
                MonitorMessage::Try { uuid } => {
                    let can = self.try_card(&uuid);
                    self.eyes.send(ProcessMessage::Tell(HostReport::SelfTested { can }));
                }
                MonitorMessage::Stop => return false,
            }
        }
        true
    }

    fn present(&mut self, processes: Vec<ProcKey>) {
        let now = Instant::now();
        for process in processes {
            if let Some(kept) = self.kept.get_mut(&process) {
                kept.seen = now;
            } else if self.kept.len() + self.waiting.len() < KEPT_MAX {
                self.want(process);
            }
        }
    }

    /// Searches the holders of an ended process's memory once the memory stays for [`SETTLED`]. Repeats that after
    /// [`AGAIN`], or after [`SETTLED`] if one of them has ended.
    fn orphaned(&mut self, dead: BTreeSet<u32>, on_cards: &BTreeSet<u32>) {
        // Pids of another namespace are other processes here.
        if self.trial.scripted || self.is_elsewhere().is_some() {
            return;
        }
        let now = Instant::now();
        self.estates.retain(|_, estate| now - estate.seen < ABSENT);
        for pid in dead {
            if !self.estates.contains_key(&pid) && self.estates.len() >= ESTATES_MAX {
                continue;
            }
            let new = || OrphanedMemory {
                since: now,
                seen: now,
                searched: None,
                on_cards: BTreeSet::new(),
                heirs: Vec::new(),
            };
            let estate = self.estates.entry(pid).or_insert_with(new);
            (estate.seen, estate.on_cards) = (now, on_cards.clone());
            let has_all = estate.heirs.iter().all(|heir| process::is_running(*heir));
            let rests = estate.searched.is_some_and(|at| now - at < if has_all { AGAIN } else { SETTLED });
            if now - estate.since >= SETTLED && !rests {
                self.search(pid);
            }
        }
    }

    fn search(&mut self, dead: u32) {
        let Some(estate) = self.estates.get_mut(&dead) else { return };
        estate.searched = Some(Instant::now());
        // Unreadable does not mean that there is none: the next reading tries again.
        let Ok(heirs) = audit::heirs(dead, &estate.on_cards, &self.devices, &self.forebears) else { return };
        estate.heirs = heirs;
        let heir = estate.heirs.first().copied();
        self.eyes.send(ProcessMessage::Heir { dead, heir });
    }

    /// The ended process that this one holds memory of, if the driver does not name this one itself. Searched again,
    /// because a signal may follow from it.
    fn inherited(&mut self, process: ProcKey) -> Option<Through> {
        let of = |estate: &OrphanedMemory| estate.heirs.contains(&process);
        let dead = self.estates.iter().find(|(_, estate)| of(estate)).map(|(dead, _)| *dead)?;
        self.search(dead);
        let estate = self.estates.get(&dead).filter(|estate| of(estate))?;
        Some(Through { pid: dead, alone: estate.heirs.len() == 1 })
    }

    fn want(&mut self, process: ProcKey) {
        if !self.waiting.contains(&process) {
            self.waiting.push(process);
        }
    }

    fn look_again(&mut self) {
        let now = Instant::now();
        let absent: Vec<ProcKey> =
            self.kept.iter().filter(|(_, kept)| now - kept.seen > ABSENT).map(|(process, _)| *process).collect();
        absent.into_iter().for_each(|process| self.let_go(process, false));
        let due = self.kept.iter_mut().filter(|(_, kept)| kept.again <= now);
        let due: Vec<ProcKey> = due.map(|(process, kept)| (*process, kept.again = now + AGAIN).0).collect();
        due.into_iter().for_each(|process| self.want(process));
    }

    fn audit(&mut self, process: ProcKey) {
        // Processes that the daemon itself starts are on GPUs too, for a moment.
        if process::ancestry(process.pid).iter().any(|parent| parent.pid == std::process::id()) {
            return;
        }
        let audit = match audit::audit(process, &self.devices) {
            Ok(mut audit) => {
                self.forebears.complete(&mut audit);
                audit.through = self.inherited(process);
                audit
            }
            Err(error) if error.is_gone() => return self.let_go(process, true),
            // It lives and cannot be read; the next reading tries again.
            Err(_) => return,
        };
        if !self.kept.contains_key(&process) && !self.exits.listen(process, ExitWatch::Reserved) {
            return;
        }
        // A process that is no longer what was audited is kept anew.
        if self.custody.audit_of(process).is_some_and(|kept| kept.is_same(&audit).is_err()) {
            self.custody.forget(process);
        }
        // If no descriptor can be kept for it, it was reported once and is not again: without one it gets no signal.
        if self.custody.take(process).is_err() && self.kept.contains_key(&process) {
            return;
        }
        let mut tree = audit::descendants_in_cgroup(process, &audit.cgroup).unwrap_or_default();
        tree.retain(|member| *member == process || self.custody.take_beside(*member).is_ok());
        let now = Instant::now();
        let before = self.kept.remove(&process);
        let seen = before.as_ref().map_or(now, |kept| kept.seen);
        let gone = before.into_iter().flat_map(|kept| kept.tree);
        // The process itself stays kept, though it may be in another control group by now than its audit says.
        let gone = gone.filter(|member| *member != process && !tree.contains(member));
        gone.for_each(|member| self.custody.forget(member));
        self.kept.insert(process, MonitoredProcess { again: now + AGAIN, seen, tree: tree.clone() });
        self.eyes.send(ProcessMessage::Tell(HostReport::Audited { audit: Box::new(audit), tree }));
    }

    /// It has ended, or is of no interest any more.
    fn let_go(&mut self, process: ProcKey, is_over: bool) {
        self.exits.ignore(process);
        let Some(kept) = self.kept.remove(&process) else { return };
        kept.tree.into_iter().chain([process]).for_each(|member| self.custody.forget(member));
        if is_over {
            self.eyes.send(ProcessMessage::Tell(HostReport::Left { process }));
        }
    }

    /// The first signal goes to the unleased process itself. If that must be audited again, its descendants get none
    /// now, or they would get it twice. If it has ended, there is no reason left to signal them.
    fn strike(&mut self, blows: Vec<Blow>, spared: &[Who]) -> Vec<Struck> {
        let mut outcome: Vec<Struck> = Vec::new();
        let mut waits = false;
        // Only the unleased process itself was found on a GPU. A descendant of another user (`sudo`) did nothing
        // there.
        let stranger = blows.first().map(|first| first.process);
        let user = stranger.and_then(|process| Some(self.custody.audit_of(process)?.uid));
        for blow in blows {
            let mut uid = None;
            let user = user.filter(|_| Some(blow.process) != stranger);
            let sent = if waits { Err(SignalRefusal::Unwanted) } else { self.send(&blow, user, spared, &mut uid) };
            self.blows.with(|blows| blows.remove(&blow));
            let refused = sent.err();
            let changed = refused.as_ref().is_some_and(SignalRefusal::is_undecided);
            if changed && !waits {
                // It is audited again before it gets another signal.
                self.custody.forget(blow.process);
            }
            waits |= outcome.is_empty() && (changed || refused.as_ref().is_some_and(SignalRefusal::is_gone));
            outcome.push(Struck { process: blow.process, refused: refused.map(|why| with_cause(&why)), changed, uid });
        }
        outcome
    }

    /// Sets `uid` to the process's present user if that changed since the audit. With `user`, only a process of that
    /// user gets the signal.
    fn send(&self, blow: &Blow, user: Option<u32>, spared: &[Who], uid: &mut Option<u32>) -> Result<(), SignalRefusal> {
        let before = self.custody.audit_of(blow.process).map(|audit| audit.uid);
        self.custody.signal_if(blow.process, blow.signal, |now, send| {
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
            self.blows.with(|blows| if blows.contains(blow) { send() } else { Err(SignalRefusal::Unwanted) })
        })
    }

    /// Why the pids that the driver reports are not those of this service, if so.
    fn is_elsewhere(&self) -> Option<String> {
        // Soft GPUs use this namespace, whichever it is.
        if self.trial.soft.is_some() {
            return None;
        }
        match std::fs::read_link("/proc/self/ns/pid") {
            Ok(own) if own.as_os_str() == FIRST_PIDS => None,
            Ok(_) => Some(
                "the service runs in a pid namespace of its own, and the driver numbers the processes of the host"
                    .to_owned(),
            ),
            Err(error) => Some(format!("its pid namespace cannot be read: {error}")),
        }
    }

    /// Tests whether the driver names processes as this host does: a worker makes a context on the GPU and looks for
    /// itself in the driver's list.
    fn try_card(&self, uuid: &str) -> Result<(), String> {
        if self.trial.scripted {
            return Err("there is nothing behind scripted GPUs".to_owned());
        }
        if let Some(why) = self.is_elsewhere() {
            return Err(why);
        }
        let arguments = ["context".to_owned(), uuid.to_owned()];
        let mut link = WorkerLink::start(&self.trial.exe, &arguments, self.trial.soft.as_ref())
            .map_err(|error| format!("a process to try it with cannot be started: {error}"))?;
        let heard = link.hear(TRIAL_PATIENCE, self.cards.stopping());
        reap(link.end().into_iter().collect());
        match heard.map(|line| serde_json::from_slice::<MeasuredContext>(&line)) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err("the trial's answer makes no sense".to_owned()),
            Err(error) => Err(format!("a process of ours did not find itself among those on the GPU: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eyes::ProcessThread;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    /// A process that is kept as if it had been audited, killed at the end.
    struct Sleeper(Child);

    impl Sleeper {
        fn kept(warden: &mut UnleasedMonitor) -> Sleeper {
            Sleeper::of_user(warden, rustix::process::getuid().as_raw())
        }

        fn of_user(warden: &mut UnleasedMonitor, uid: u32) -> Sleeper {
            let sleeper = Sleeper(Command::new("sleep").arg("600").uid(uid).spawn().expect("a program"));
            let ready =
                || std::fs::read_link(format!("/proc/{}/exe", sleeper.0.id())).is_ok_and(|exe| exe.ends_with("sleep"));
            while !ready() {
                std::thread::yield_now();
            }
            warden.custody.take(sleeper.key()).expect("an own child");
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

    fn warden() -> (UnleasedMonitor, UnleasedMonitorInbox) {
        let (_, eyes) = ProcessThread::new(Duration::from_secs(1), Box::new(drop)).expect("descriptors");
        let cards = Arc::new(cards::GpuThreadHandle::new().expect("descriptors"));
        let trial = PidTest { exe: PathBuf::new(), soft: None, scripted: true };
        UnleasedMonitor::new(eyes, cards, trial).expect("descriptors")
    }

    fn strike(inbox: &UnleasedMonitorInbox, processes: Vec<ProcKey>) -> Vec<Blow> {
        let blow = |process| Blow { stranger: StrangerId(1), process, signal: 15, of: Time(7) };
        let blows = processes.iter().copied().map(blow).collect();
        inbox.strike((StrangerId(1), 15, Time(7)), processes, Vec::new(), |_| true);
        blows
    }

    /// Which of them get a queued signal after the unwanted ones were taken back.
    fn reached(warden: &mut UnleasedMonitor, blows: Vec<Blow>) -> Vec<(bool, bool)> {
        let outcome = warden.strike(blows, &[]);
        outcome.iter().map(|struck| (struck.refused.is_none(), struck.changed)).collect()
    }

    #[test]
    fn a_signal_that_is_taken_back_while_it_is_in_the_queue_is_not_sent() {
        let (mut warden, inbox) = warden();
        let mut one = Sleeper::kept(&mut warden);
        let blows = strike(&inbox, vec![one.key()]);
        inbox.recall(|_| true);
        assert_eq!(inbox.blows.with(|blows| blows.len()), 1);
        inbox.recall(|blow| blow.process != one.key());
        assert!(warden.take_words(), "it is dealt with");
        assert_eq!(one.0.try_wait().expect("an own child"), None);
        // It was dropped, to be audited again.
        warden.custody.take(one.key()).expect("an own child");
        assert_eq!(reached(&mut warden, blows), [(false, true)]);
        warden.custody.take(one.key()).expect("an own child");
        let blows = strike(&inbox, vec![one.key()]);
        assert_eq!(reached(&mut warden, blows), [(true, false)]);
        assert!(!one.0.wait().expect("an own child").success());
        assert_eq!(inbox.blows.with(|blows| blows.len()), 0, "nothing is left of it");
    }

    #[test]
    fn who_descends_from_a_stranger_that_is_gone_gets_nothing() {
        let (mut warden, inbox) = warden();
        let mut all = [0; 2].map(|_| Sleeper::kept(&mut warden));
        let blows = strike(&inbox, all.each_ref().map(Sleeper::key).to_vec());
        all[0].0.kill().and_then(|()| all[0].0.wait()).expect("an own child");
        assert_eq!(reached(&mut warden, blows), [(false, false), (false, true)]);
        assert_eq!(all[1].0.try_wait().expect("an own child"), None);
        assert_eq!(inbox.blows.with(|blows| blows.len()), 0, "nothing is left of it");
    }

    #[test]
    fn descendants_of_an_unleased_process_that_run_as_another_user_get_no_signal() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can start programs of other users");
        }
        let (mut warden, inbox) = warden();
        let mut all = [61_234, 0, 61_234].map(|uid| Sleeper::of_user(&mut warden, uid));
        let blows = strike(&inbox, all.each_ref().map(Sleeper::key).to_vec());
        let outcome = warden.strike(blows, &[]);
        assert_eq!(outcome.iter().map(|struck| struck.refused.is_none()).collect::<Vec<_>>(), [true, false, true]);
        assert!(outcome[1].refused.as_ref().is_some_and(|why| why.starts_with("it runs as uid 0, another user")));
        assert!(!outcome[1].changed);
        assert_eq!(all[1].0.try_wait().expect("an own child"), None);
        assert!(!all[0].0.wait().expect("an own child").success() && !all[2].0.wait().expect("an own child").success());
    }

    #[test]
    fn who_is_one_of_those_that_rules_leave_alone_by_then_gets_none_until_it_was_looked_into() {
        let (mut warden, inbox) = warden();
        let mut one = Sleeper::kept(&mut warden);
        let uid = warden.custody.audit_of(one.key()).map(|audit| audit.uid).expect("it was audited");
        let blows = strike(&inbox, vec![one.key()]);
        let outcome = warden.strike(blows, &[Who::Uid(uid + 1), Who::Uid(uid)]);
        assert!(outcome[0].changed && outcome[0].refused.as_ref().is_some_and(|why| why.contains("a rule is about")));
        assert_eq!(one.0.try_wait().expect("an own child"), None);
        warden.custody.take(one.key()).expect("an own child");
        let blows = strike(&inbox, vec![one.key()]);
        let outcome = warden.strike(blows, &[Who::Uid(uid + 1)]);
        assert_eq!((outcome[0].refused.as_deref(), outcome[0].uid), (None, None));
        assert!(!one.0.wait().expect("an own child").success());
    }

    #[test]
    fn who_descends_from_a_stranger_is_spared_alone_and_gets_nothing_where_that_must_be_looked_into() {
        let (mut warden, inbox) = warden();
        let mut all = [0; 3].map(|_| Sleeper::kept(&mut warden));
        let keys = all.each_ref().map(Sleeper::key);
        let blows = strike(&inbox, keys.to_vec());
        inbox.recall(|blow| blow.process != keys[0]);
        assert_eq!(reached(&mut warden, blows), [(false, true); 3]);
        warden.custody.take(keys[0]).expect("an own child");
        let blows = strike(&inbox, keys.to_vec());
        inbox.recall(|blow| blow.process != keys[1]);
        assert_eq!(reached(&mut warden, blows), [(true, false), (false, true), (true, false)]);
        assert_eq!(all[1].0.try_wait().expect("an own child"), None);
        assert!(!all[0].0.wait().expect("an own child").success() && !all[2].0.wait().expect("an own child").success());
    }
}
