//! What reaches the loop, and what leaves it.

use crate::idempotency::DurableMark;
use crate::signals;
use crate::view::View;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::time::Duration;
use sublet_core::event::{Caller, Event};
use sublet_core::ids::{Fence, LeaseId, ProcKey, TenantId};
use sublet_core::settings::Policy;
use sublet_core::units::Time;
use sublet_core::unleased::UnleasedId;
use sublet_host::driver::DriverTarget;
use sublet_host::process_signals::{self, SignalDelivery};
use sublet_host::proof::Grant;
use sublet_host::shims::ShimTarget;
use sublet_host::{Host, HostReport};
use sublet_journal::{CommitError, LoadedState};
use sublet_wire::{Lease, LeaseState, Problem};
use tokio::sync::oneshot;

/// Something for the loop to deal with.
pub enum LoopInput {
    /// A request that may change something.
    Call(Box<LoopCall>),
    /// Somebody wants to look; what it saw leaves when it is durable.
    Read(Box<dyn FnOnce(&View<'_>) -> Release + Send>),
    /// Somebody waits for a lease to change.
    Watch(LeaseWatch),
    /// The eyes saw something.
    Saw(HostReport),
    /// The writer is done with a batch.
    Synced(CommitResult),
    /// The disk may have room again.
    DiskFreed,
    /// A signal to the processes of a lease that was ended for others has left.
    Signalled {
        /// Which lease.
        lease: LeaseId,
        /// The signal's number.
        signal: u8,
    },
    /// A signal to a stranger that was decided is on the disk.
    Strike {
        /// Which stranger.
        stranger: UnleasedId,
        /// The signal's number.
        signal: u8,
        /// When it was decided.
        at: Time,
        /// Which processes.
        processes: Vec<ProcKey>,
    },
    /// The configuration was read anew.
    Configured(Box<Policy>),
    /// Something is due earlier than it was.
    Look,
    /// The daemon stops: finish what is open, then go.
    Stop,
}

/// The way to the loop's own thread.
#[derive(Clone)]
pub struct InboxSender {
    to: Sender<LoopInput>,
    unread: Arc<AtomicUsize>,
}

/// Where that thread finds its mail.
pub struct Inbox {
    from: Receiver<LoopInput>,
    unread: Arc<AtomicUsize>,
}

impl InboxSender {
    /// A way, and its end.
    pub fn new() -> (InboxSender, Inbox) {
        let ((to, from), unread) = (mpsc::channel(), Arc::<AtomicUsize>::default());
        (InboxSender { to, unread: Arc::clone(&unread) }, Inbox { from, unread })
    }

    /// Sends mail; an error when nobody will read it.
    pub fn send(&self, mail: LoopInput) -> Result<(), SendError<LoopInput>> {
        self.unread.fetch_add(1, SeqCst);
        self.to.send(mail)
    }

    /// Whether all that was sent is dealt with: who sends nothing overtakes nobody.
    pub fn are_read(&self) -> bool {
        self.unread.load(SeqCst) == 0
    }
}

impl Inbox {
    /// The next mail, within this time.
    pub fn wait(&self, patience: Duration) -> Result<LoopInput, RecvTimeoutError> {
        self.from.recv_timeout(patience)
    }

    /// The next mail, if there is any.
    pub fn next(&self) -> Option<LoopInput> {
        self.from.try_recv().ok()
    }

    /// A mail that came from here is dealt with.
    pub fn is_read(&self) {
        self.unread.fetch_sub(1, SeqCst);
    }
}

/// Runs when what it depends on is durable.
pub type Release = Box<dyn FnOnce() + Send>;

/// A request that may change something.
pub struct LoopCall {
    /// Who.
    pub by: Caller,
    /// What.
    pub event: Event,
    /// So that it can be sent again.
    pub key: Option<IdempotencyKey>,
    /// The number with which its caller was sent to look for the key's answer.
    pub looked: Option<u64>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<CallOutcome>,
}

/// What the loop says to a request.
pub type CallOutcome = Result<Reply, Box<KeyLookup>>;

/// The answer may be on the disk: the request goes back to where it came from.
pub struct KeyLookup {
    /// Who.
    pub by: Caller,
    /// What.
    pub event: Event,
    /// The key whose answer is looked for.
    pub key: IdempotencyKey,
    /// Of whose keys.
    pub tenant: TenantId,
    /// What is said when it is sent again.
    pub looked: u64,
}

/// An Idempotency-Key and what it was first used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The caller's word.
    pub key: String,
    /// Method, path and body.
    pub fingerprint: [u8; 32],
}

/// Somebody waits for a lease to change.
pub struct LeaseWatch {
    /// Who.
    pub by: Caller,
    /// Which.
    pub lease: LeaseId,
    /// Until when.
    pub until: WatchGoal,
    /// The lease afterwards; `None` if there is none that the caller may see.
    pub reply: oneshot::Sender<Option<Lease>>,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchGoal {
    /// It no longer waits.
    Granted,
    /// It ends.
    Ended,
    /// It is not as its wrapper knows it any more.
    Changed {
        /// The state it knows.
        known: LeaseState,
        /// It knows that the lease ends soon.
        told: bool,
        /// It knows that it has more than its lease.
        over: bool,
    },
}

impl WatchGoal {
    /// Whether somebody who sees this has waited for it.
    pub fn is_changed(self, shown: &Lease) -> bool {
        match self {
            WatchGoal::Changed { known, told, over } => {
                shown.state != known || shown.ends_soon.is_some() != told || shown.overuse.is_some() != over
            }
            WatchGoal::Granted | WatchGoal::Ended => false,
        }
    }
}

/// An answer, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body: JSON.
    pub body: String,
    /// Seconds for Retry-After.
    pub retry_after_s: Option<u64>,
    /// The caller's own lease that it tells of, and with which epoch: its mark is put in on the way out.
    pub granted: Option<(LeaseId, Fence)>,
}

/// Most answers are no longer than this.
const USUAL: usize = 1024;

impl Reply {
    /// An answer with a body.
    pub fn new(status: u16, body: &impl serde::Serialize) -> Reply {
        let mut text = Vec::with_capacity(USUAL);
        let written = serde_json::to_writer(&mut text, body).ok();
        let body = written.and_then(|()| String::from_utf8(text).ok()).unwrap_or_else(|| "null".to_owned());
        Reply { status, body, retry_after_s: None, granted: None }
    }

    /// A refusal.
    pub fn problem(problem: &Problem) -> Reply {
        Reply { retry_after_s: problem.retry_after_s, ..Reply::new(problem.status, problem) }
    }

    /// Whether it is a refusal.
    pub fn is_problem(&self) -> bool {
        self.status >= 400
    }
}

/// What came of a batch.
pub enum CommitResult {
    /// It is durable up to this line of the log, and what it held has left.
    Done,
    /// It is not, and nothing has left. This is what the disk has.
    Failed {
        /// What happened.
        error: CommitError,
        /// What the state must become.
        loaded: Box<LoadedState>,
        /// What must not leave.
        held: Vec<PendingEffect>,
    },
}

/// Something that must not leave before its batch is synced.
pub enum PendingEffect {
    /// An answer.
    Reply {
        /// What.
        reply: Reply,
        /// To whom.
        to: oneshot::Sender<CallOutcome>,
        /// Set just before the answer leaves, if a repeat of the request gets the same answer.
        key_mark: Option<DurableMark>,
        /// The request, if it is to be tried once more after a full disk.
        again: Option<Box<RetriedRelease>>,
    },
    /// Something seen by a reader.
    Run(Release),
    /// A word to the hands.
    Errand(HostCommand),
}

/// A release that is tried once more.
pub struct RetriedRelease {
    /// Who.
    pub by: Caller,
    /// Which.
    pub lease: LeaseId,
    /// As granted, if the caller wants to be sure.
    pub epoch: Option<Fence>,
    /// The request's own key.
    pub key: Option<IdempotencyKey>,
}

/// A word to the hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostCommand {
    /// These processes are a lease's.
    Watch {
        /// Whose.
        lease: LeaseId,
        /// The tenant's user.
        uid: u32,
        /// Bound by name.
        roots: Vec<ProcKey>,
        /// What its programs carry, once it was granted.
        grant: Option<Grant>,
    },
    /// A lease whose processes are watched was granted.
    Granted {
        /// Which.
        lease: LeaseId,
        /// What its programs carry.
        grant: Grant,
    },
    /// A lease's processes matter no more.
    Forget {
        /// Whose.
        lease: LeaseId,
    },
    /// A lease's programs are told nothing more.
    Unwish {
        /// Whose.
        lease: LeaseId,
    },
    /// The driver has nothing more to do with a lease's processes.
    Undrive {
        /// Whose.
        lease: LeaseId,
    },
    /// Look at the cards soon.
    Look,
    /// Where a holder's bytes shall be.
    Wish(ShimTarget),
    /// Where the bytes of a holder shall be that the driver moves.
    Drive(DriverTarget),
    /// Whether the driver could move a holder is looked at.
    Inspect {
        /// Whose.
        lease: LeaseId,
        /// Its user.
        uid: u32,
        /// Its processes on cards.
        processes: Vec<ProcKey>,
        /// What they have there.
        bytes: u64,
    },
    /// These processes get a signal: each is the one that was meant, or none does.
    Signal {
        /// Only processes of this user.
        uid: u32,
        /// Which.
        processes: Vec<ProcKey>,
        /// The signal's number.
        signal: u8,
    },
    /// The processes of a lease that catch this signal get it, because the lease ends soon; without one, the top process
    /// gets SIGTERM.
    Announce {
        /// The lease.
        lease: LeaseId,
        /// Only processes of this user.
        uid: u32,
        /// Its processes.
        processes: Vec<ProcKey>,
        /// The signal's number.
        signal: u8,
    },
    /// It is tried whether strangers could be ended.
    SelfTest {
        /// On this card.
        uuid: String,
    },
    /// A stranger is looked into again.
    Audit {
        /// Which process.
        process: ProcKey,
    },
    /// Processes of holders are on a card that their leases do not have: they are looked into as strangers are.
    Abroad {
        /// Which.
        processes: Vec<ProcKey>,
    },
    /// All leases that there were at the start are told: programs may come.
    Listen,
    /// So much host memory is booked for parked bytes.
    Booked {
        /// How much.
        bytes: u64,
    },
    /// A holder's programs make ready to leave their cards.
    Ahead {
        /// Whose.
        lease: LeaseId,
    },
}

impl PendingEffect {
    /// Lets it leave.
    pub fn release(self, host: &Host) {
        match self {
            PendingEffect::Reply { reply, to, key_mark, .. } => {
                // Before the answer: its client may repeat the request as soon as it has it.
                key_mark.into_iter().for_each(|mark| mark.set());
                // Whoever hung up does not want it.
                drop(to.send(Ok(reply)));
            }
            PendingEffect::Run(run) => run(),
            PendingEffect::Errand(errand) => errand.run(host),
        }
    }
}

impl HostCommand {
    /// Runs it.
    pub fn run(self, host: &Host) {
        match self {
            HostCommand::Watch { lease, uid, roots, grant } => host.watch_holder(lease, uid, roots, grant),
            HostCommand::Granted { lease, grant } => host.set_grant(lease, grant),
            HostCommand::Forget { lease } => host.forget_holder(lease),
            HostCommand::Unwish { lease } => host.forget_shim_target(lease),
            HostCommand::Undrive { lease } => host.forget_driver_target(lease),
            HostCommand::Look => host.request_reading(),
            HostCommand::Wish(wish) => host.set_shim_target(wish),
            HostCommand::Drive(driven) => host.set_driver_target(driven),
            HostCommand::Inspect { lease, uid, processes, bytes } => {
                host.inspect_for_driver((lease, uid), processes, bytes)
            }
            HostCommand::Listen => host.start_reporting(),
            HostCommand::Booked { bytes } => host.set_booked_bytes(bytes),
            HostCommand::Ahead { lease } => host.prepare_to_park(lease),
            HostCommand::SelfTest { uuid } => host.self_test(uuid),
            HostCommand::Audit { process } => host.request_audit(process),
            HostCommand::Abroad { processes } => host.audit_off_lease(processes),
            HostCommand::Announce { lease, uid, processes, signal } => announce(lease, uid, &processes, signal),
            HostCommand::Signal { uid, processes, signal } => {
                for process in processes {
                    match process_signals::send_signal(process, uid, signal) {
                        Ok(()) => tracing::info!(pid = process.pid, signal = signals::name(signal), "signalled"),
                        Err(error) if error.is_gone() => {}
                        Err(error) => tracing::warn!(pid = process.pid, "left out: {error}"),
                    }
                }
            }
        }
    }
}

/// Sends the signal that announces the end of a lease, and logs which process got which.
fn announce(lease: LeaseId, uid: u32, processes: &[ProcKey], signal: u8) {
    let deliveries = process_signals::announce_end(processes, uid, signal);
    if deliveries.is_empty() {
        let signal = signals::name(signal);
        tracing::info!(%lease, signal, "no process was signalled: its processes ignore the signal, or are gone");
    }
    for SignalDelivery { process, signal: sent, outcome } in deliveries {
        let (pid, name) = (process.pid, signals::name(sent));
        match outcome {
            Ok(()) if sent == signal => tracing::info!(%lease, pid, signal = name, "signalled: the lease ends soon"),
            Ok(()) => {
                let asked = signals::name(signal);
                tracing::info!(%lease, pid, signal = name, "signalled: the lease ends soon, and no process catches {asked}");
            }
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(%lease, pid, signal = name, "left out: {error}"),
        }
    }
}
