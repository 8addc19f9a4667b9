//! Notices to users concerned: a line on the terminal of a program that is warned, parked, back or ended, and the same
//! as JSON to a command and a webhook that the configuration names.
//!
//! ```text
//!   Loop ──action──► held until synced ──► bounded queue ──► thread ──► terminals
//!    ▲                                                        │  └────► hooks.rs: bounded queue ──► command, webhook
//!    └───────── is it still parked, and until when? ◄─────────┘ 2 s later
//! ```
//! Nothing here waits for a terminal, and nothing waits for this: a full queue loses a notice, with a line in the log.
//! Notices follow from actions (`looper/notices.rs`); nothing is decided here.
//!
//! A park is told when it has lasted for 2 s, with the estimate of then; shorter ones are not worth a line. A program
//! with a wrapper (`sublet run`) is told by the wrapper, not on its terminal.
//!
//! Absent: notices that are kept over a restart. A program that was told that it is parked is not told that it is back
//! by another daemon.

mod hooks;
mod limit;
mod notice;
pub mod text;

pub use hooks::Hooks;
pub use notice::{NoticeKind, UserNotice};

use crate::inbox::{Clients, InboxSender, Release};
use crate::looper::LoopInput;
use crate::view::View;
use hooks::HookQueue;
use limit::NoticeLimit;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::unleased::UnleasedId;
use sublet_host::process;
use sublet_host::terminal::ProcessTerminal;

/// A park that is over sooner is not told.
const MOMENT: Duration = Duration::from_secs(2);
/// A lease that is still parking is read again after this: it has an estimate only once it is parked.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A park that takes longer than this is told without an estimate.
const LEAVES_LONG: Duration = Duration::from_secs(10);
/// Messages that may wait for the thread; beyond this they are lost.
const QUEUE_MAX: usize = 256;
/// Terminals that one notice is written to.
const TERMINALS_MAX: usize = 4;
/// Unleased processes of which the terminal is remembered.
const REMEMBERED_MAX: usize = 1024;

/// What `[notices]` in the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// True if no line is written to a terminal.
    pub no_terminals: bool,
    /// The command and the webhook.
    pub hooks: Hooks,
}

/// Why a lease was parked.
#[derive(Clone, Debug)]
pub struct ParkReason {
    /// For its user: `bob's L7 (interactive) needs GPU 0`.
    pub why: String,
    /// The process that got the lease only to be parked by it: it had none.
    pub unleased_pid: Option<u32>,
    /// What is known of the program: its lease may be history when there is more to tell.
    pub about: UserNotice,
}

/// The programs that a notice is for.
#[derive(Clone, Debug)]
pub enum Audience {
    /// A process without a lease.
    Unleased(UnleasedId, ProcKey),
    /// The processes of a lease, and its wrapper, which tells by itself while it runs.
    Lease {
        /// The processes of its program.
        processes: Vec<ProcKey>,
        /// `sublet run`.
        wrapper: Option<ProcKey>,
    },
}

/// A lease that has left its GPUs, as it was when its park had lasted for a while.
#[derive(Debug)]
pub struct ParkedLease {
    /// True while its bytes are still on their way off the GPUs.
    pub leaves: bool,
    /// The notice, as of then.
    pub notice: UserNotice,
    /// Its programs.
    pub to: Audience,
}

/// Something for the thread.
#[derive(Debug)]
pub enum NoticeMessage {
    /// A notice about an unleased process.
    Tell(Box<UserNotice>, Audience),
    /// An unleased process is about to be signalled, and its terminal can be found for the last time.
    Locate(UnleasedId, ProcKey),
    /// An unleased process is none any more.
    Forget(UnleasedId),
    /// A lease begins to leave its GPUs.
    Leaves(LeaseId),
    /// How such a lease is now; `None` if it is back or has ended.
    Seen(LeaseId, Option<Box<ParkedLease>>),
    /// A lease that left is back, or has ended: told to programs that were told that it left.
    Over(LeaseId, Box<UserNotice>),
    /// A lease that left has ended, and its program knows.
    Gone(LeaseId),
}

/// The way to the thread.
#[derive(Clone)]
pub struct Notices(SyncSender<NoticeMessage>);

impl Notices {
    /// Starts the thread. `inbox` leads to the loop, which is asked how a lease is.
    pub fn start(
        settings: Arc<RwLock<Settings>>,
        (inbox, clients): (InboxSender, Clients),
        look: fn(&View<'_>, LeaseId) -> Option<ParkedLease>,
        runtime: &tokio::runtime::Handle,
    ) -> io::Result<Notices> {
        let (to, messages) = sync_channel(QUEUE_MAX);
        let notices = Notices(to);
        let hooks = HookQueue::start(runtime)?;
        let thread = Thread {
            settings,
            inbox,
            clients,
            look,
            hooks,
            notices: notices.clone(),
            limit: NoticeLimit::default(),
            away: BTreeMap::new(),
            remembered: BTreeMap::new(),
        };
        thread::Builder::new().name("sublet-notices".to_owned()).spawn(move || thread.run(&messages))?;
        Ok(notices)
    }

    /// Sends a message; never waits.
    pub fn send(&self, message: NoticeMessage) {
        if let Err(TrySendError::Full(_)) = self.0.try_send(message) {
            tracing::warn!("a notice was dropped: {QUEUE_MAX} others are waiting to be written");
        }
    }
}

struct Thread {
    settings: Arc<RwLock<Settings>>,
    inbox: InboxSender,
    clients: Clients,
    look: fn(&View<'_>, LeaseId) -> Option<ParkedLease>,
    hooks: HookQueue,
    notices: Notices,
    limit: NoticeLimit,
    away: BTreeMap<LeaseId, ParkedProgram>,
    remembered: BTreeMap<UnleasedId, ProcessTerminal>,
}

/// A lease that has left its GPUs.
struct ParkedProgram {
    since: Instant,
    /// When it is read; `None`: it was told, or the loop was asked.
    look_at: Option<Instant>,
    /// It was told, on these terminals.
    told: Option<Vec<ProcessTerminal>>,
}

impl Thread {
    fn run(mut self, inbox: &Receiver<NoticeMessage>) {
        loop {
            self.check_due();
            let due = self.away.values().filter_map(|away| away.look_at).min();
            let message = match due {
                Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, message: NoticeMessage) {
        match message {
            NoticeMessage::Tell(notice, to) => {
                let terminals = self.terminals(&to);
                self.write_lines(&notice, terminals, 1);
            }
            NoticeMessage::Locate(unleased, process) => drop(self.locate(unleased, process)),
            NoticeMessage::Forget(unleased) => drop(self.remembered.remove(&unleased)),
            NoticeMessage::Leaves(lease) => {
                let now = Instant::now();
                self.away.insert(lease, ParkedProgram { since: now, look_at: Some(now + MOMENT), told: None });
            }
            NoticeMessage::Seen(lease, seen) => self.seen(lease, seen),
            NoticeMessage::Over(lease, notice) => self.over(lease, *notice),
            NoticeMessage::Gone(lease) => drop(self.away.remove(&lease)),
        }
    }

    fn check_due(&mut self) {
        let now = Instant::now();
        for (lease, away) in &mut self.away {
            if away.look_at.is_none_or(|at| at > now) {
                continue;
            }
            away.look_at = None;
            let (look, notices, lease) = (self.look, self.notices.clone(), *lease);
            let read = move |view: &View<'_>| {
                let seen = look(view, lease).map(Box::new);
                Box::new(move || notices.send(NoticeMessage::Seen(lease, seen))) as Release
            };
            // Without a loop the daemon is on its way out.
            let to = self.clients.add_reader(Box::new(read));
            drop(self.inbox.send(LoopInput::Read { to }));
        }
    }

    fn seen(&mut self, lease: LeaseId, seen: Option<Box<ParkedLease>>) {
        let Some(away) = self.away.get_mut(&lease) else { return };
        let Some(seen) = seen else {
            self.away.remove(&lease);
            return;
        };
        if seen.leaves && away.since.elapsed() < LEAVES_LONG {
            away.look_at = Some(Instant::now() + LOOK_AGAIN);
            return;
        }
        let terminals = self.terminals(&seen.to);
        // The line that it is back is paid for with this one: a program that was told the one is told the other.
        let told = self.write_lines(&seen.notice, terminals, 2);
        if let Some(away) = self.away.get_mut(&lease) {
            away.told = Some(told);
        }
    }

    fn over(&mut self, lease: LeaseId, mut notice: UserNotice) {
        let Some(ParkedProgram { since, told: Some(terminals), .. }) = self.away.remove(&lease) else { return };
        if notice.kind == NoticeKind::Back {
            notice.text = text::after(&notice.text, since.elapsed());
        }
        self.write_lines(&notice, terminals, 0);
    }

    /// The terminals that a notice is written to; none if a wrapper tells its program.
    fn terminals(&mut self, to: &Audience) -> Vec<ProcessTerminal> {
        match to {
            Audience::Unleased(id, process) => self.locate(*id, *process).into_iter().collect(),
            Audience::Lease { wrapper: Some(wrapper), .. } if process::is_running(*wrapper) => Vec::new(),
            Audience::Lease { processes, .. } => {
                let mut found: Vec<ProcessTerminal> =
                    processes.iter().filter_map(|it| ProcessTerminal::of(*it).ok()).collect();
                found.sort();
                found.dedup();
                found.truncate(TERMINALS_MAX);
                found
            }
        }
    }

    /// The terminal of an unleased process; the one that was found before if the process has ended since.
    fn locate(&mut self, unleased: UnleasedId, process: ProcKey) -> Option<ProcessTerminal> {
        match ProcessTerminal::of(process) {
            Ok(terminal) if self.remembered.len() < REMEMBERED_MAX => {
                self.remembered.insert(unleased, terminal.clone());
                Some(terminal)
            }
            Ok(terminal) => Some(terminal),
            Err(why) => {
                tracing::debug!(%unleased, pid = process.pid, "no line on its terminal: {why}");
                self.remembered.get(&unleased).cloned()
            }
        }
    }

    /// Hands a notice to the hooks and writes its line to terminals. Returns those that got it.
    fn write_lines(&mut self, notice: &UserNotice, terminals: Vec<ProcessTerminal>, cost: u32) -> Vec<ProcessTerminal> {
        let settings = self.settings.read().map(|settings| settings.clone()).unwrap_or_default();
        self.hooks.run(&settings.hooks, notice);
        let line = format!("sublet: {}", notice.text);
        let mut told = terminals;
        told.retain(|terminal| {
            if settings.no_terminals || !self.limit.allows(terminal, cost, Instant::now()) {
                return false;
            }
            let written = terminal.write_line(&line);
            if let Err(why) = written {
                tracing::debug!(?terminal, "no line on a terminal: {why}");
            }
            written.is_ok()
        });
        told
    }
}
