//! What reaches the loop: plain values.

use super::output::{Output, ReplyId};
use crate::view::Visibility;
use sublet_core::event::{Caller, Event};
use sublet_core::ids::{Fence, LeaseId, TenantId};
use sublet_core::settings::Policy;
use sublet_host::HostReport;
use sublet_journal::LoadedState;
use sublet_wire::{Lease, LeaseState, Problem};

/// Something for the loop to handle.
#[derive(Debug)]
pub enum LoopInput {
    /// A request that may change something; answered by [`Output::Reply`] or [`Output::LookUp`].
    Call(Box<LoopCall>),
    /// A client looks at the state; answered by [`Output::Read`] and, once what it saw is durable, [`Output::ReadDone`].
    Read {
        /// The reader.
        to: ReplyId,
    },
    /// A client waits for a lease to change; answered by [`Output::Lease`].
    Watch(LeaseWatch),
    /// A client does not wait for a lease any more.
    EndWatch {
        /// The lease.
        lease: LeaseId,
        /// The client.
        to: ReplyId,
    },
    /// The host reports something.
    Report(HostReport),
    /// The writer is done with a batch.
    Synced(CommitResult),
    /// The disk has room for the ballast again.
    DiskFreed,
    /// Whether something can be written on a full disk.
    RoomProbed {
        /// True if it is worth a try.
        has_room: bool,
    },
    /// The configuration was read.
    Configured {
        /// The rules.
        policy: Box<Policy>,
        /// What callers see of others.
        visibility: Visibility,
    },
    /// The daemon stops: finish what is open, then go.
    Stop,
}

/// A request that may change something.
#[derive(Debug)]
pub struct LoopCall {
    /// The caller.
    pub by: Caller,
    /// The request.
    pub event: Event,
    /// Its Idempotency-Key, if it has one.
    pub key: Option<IdempotencyKey>,
    /// [`KeyLookup::looked`] of the lookup after which the client calls again.
    pub looked: Option<u64>,
    /// The client.
    pub to: ReplyId,
}

/// A call whose key may have an answer on the disk. If there is none, the client calls again.
#[derive(Debug)]
pub struct KeyLookup {
    /// The caller.
    pub by: Caller,
    /// The request.
    pub event: Event,
    /// The key.
    pub key: IdempotencyKey,
    /// The tenant that used the key.
    pub tenant: TenantId,
    /// The number of the newest key at this moment: an answer that was stored later has a larger one.
    pub looked: u64,
}

/// An Idempotency-Key and what it was first used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key as the client sent it.
    pub key: String,
    /// A hash of method, path and body.
    pub fingerprint: [u8; 32],
}

/// A client waits for a lease to change.
#[derive(Debug)]
pub struct LeaseWatch {
    /// The caller.
    pub by: Caller,
    /// The lease.
    pub lease: LeaseId,
    /// The change.
    pub until: WatchGoal,
    /// The client.
    pub to: ReplyId,
}

/// The change of a lease that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchGoal {
    /// The lease is granted, or ends.
    Granted,
    /// The lease ends.
    Ended,
    /// The lease differs from what the client knows.
    Changed {
        /// Its state.
        known: LeaseState,
        /// True if the client knows that it ends soon.
        told: bool,
        /// True if the client knows that it is exceeded.
        over: bool,
    },
}

impl WatchGoal {
    /// True if this lease has the change of [`WatchGoal::Changed`].
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
    /// The caller's own lease in the body, with its fence: the lease's proof is added on the way out.
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

/// What became of a batch.
#[derive(Debug)]
pub enum CommitResult {
    /// It is durable.
    Done,
    /// It is not, and nothing has left.
    Failed {
        /// What happened, with its causes.
        why: String,
        /// What the disk has: the state must become this.
        loaded: Box<LoadedState>,
        /// What must not leave.
        outputs: Vec<Output>,
    },
}

/// A release that is tried once more.
#[derive(Debug)]
pub struct RetriedRelease {
    /// The caller.
    pub by: Caller,
    /// The lease.
    pub lease: LeaseId,
    /// Its fence as granted, if the caller wants to be sure.
    pub fence: Option<Fence>,
    /// The call's own key.
    pub key: Option<IdempotencyKey>,
}
