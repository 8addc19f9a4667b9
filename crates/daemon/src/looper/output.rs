//! What leaves the loop: plain values. `crate::effects` carries them out.

use super::input::{KeyLookup, Reply, RetriedRelease};
use crate::notices::NoticeMessage;
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::ids::{LeaseId, ProcKey, TokenId};
use sublet_core::token::Token;
use sublet_core::units::Time;
use sublet_core::unleased::{PendingSignal, RuleSubject, UnleasedId};
use sublet_host::driver::DriverTarget;
use sublet_host::proof::Grant;
use sublet_host::shims::ShimTarget;
use sublet_journal::Batch;
use sublet_wire::Lease;

/// The client that an output is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// Something that the loop wants done.
#[derive(Debug)]
pub enum Output {
    /// The answer to a call.
    Reply {
        /// The caller.
        to: ReplyId,
        /// The answer.
        reply: Box<Reply>,
        /// The call, if it is tried once more should its batch find the disk full.
        retried: Option<Box<RetriedRelease>>,
    },
    /// The answer to a call may be on the disk: the caller looks there, and calls again.
    LookUp {
        /// The caller.
        to: ReplyId,
        /// What is looked for.
        lookup: Box<KeyLookup>,
    },
    /// A lease that a client waited for; `None` if there is none that the client may see.
    Lease {
        /// The client.
        to: ReplyId,
        /// The lease.
        lease: Option<Box<Lease>>,
    },
    /// A reader looks at the state as it is now. What it sees leaves with [`Output::ReadDone`].
    Read {
        /// The reader.
        to: ReplyId,
    },
    /// What a reader saw is durable.
    ReadDone {
        /// The reader.
        to: ReplyId,
    },
    /// The state was rebuilt from the disk: what a client waits for never comes.
    Lost {
        /// The client.
        to: ReplyId,
    },
    /// Something for `crates/host`.
    Host(HostCommand),
    /// A token is good, or is not any more.
    Token(TokenChange),
    /// Something to tell a user.
    Notice(NoticeMessage),
    /// Why the driver lists no GPUs; `None`: it does.
    GpuTrouble(Option<String>),
    /// Something for the journal's writer.
    Writer(WriterTask),
}

/// What the journal's writer does beside commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterTask {
    /// Make the ballast again if the disk has the room; answered by [`LoopInput::DiskFreed`] if it has.
    ///
    /// [`LoopInput::DiskFreed`]: super::input::LoopInput::DiskFreed
    RestoreBallast,
    /// Find out whether something can be written; answered by [`LoopInput::RoomProbed`].
    ///
    /// [`LoopInput::RoomProbed`]: super::input::LoopInput::RoomProbed
    ProbeRoom,
}

/// What callers with tokens may do from now on.
#[derive(Clone, Debug)]
pub enum TokenChange {
    /// This token is good.
    Issued(Token),
    /// This token is good for nothing.
    Revoked(TokenId),
    /// These tokens are good, and no others.
    All(BTreeMap<TokenId, Token>),
}

/// A closed batch, and what leaves once it is durable. There is one at a time.
#[derive(Debug)]
pub struct ClosedBatch {
    /// What to write.
    pub batch: Box<Batch>,
    /// What leaves then, in this order.
    pub outputs: Vec<Output>,
}

/// An order to `crates/host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostCommand {
    /// These are the processes of a lease.
    Watch {
        /// The lease.
        lease: LeaseId,
        /// Its user.
        uid: u32,
        /// The processes that were bound to it.
        roots: Vec<ProcKey>,
        /// What its programs prove it by, once it was granted.
        grant: Option<Grant>,
    },
    /// A lease whose processes are watched was granted.
    SetGrant {
        /// The lease.
        lease: LeaseId,
        /// What its programs prove it by.
        grant: Grant,
    },
    /// The processes of a lease are not watched any more.
    EndWatch {
        /// The lease.
        lease: LeaseId,
    },
    /// Where the bytes of a lease's programs shall be.
    SetShimTarget(ShimTarget),
    /// The programs of a lease are ordered nothing more.
    ForgetShimTarget {
        /// The lease.
        lease: LeaseId,
    },
    /// Where the bytes shall be that the driver moves.
    SetDriverTarget(DriverTarget),
    /// The driver has nothing more to do with the processes of a lease.
    ForgetDriverTarget {
        /// The lease.
        lease: LeaseId,
    },
    /// The GPUs are read soon.
    ReadGpus,
    /// The driver looks whether it could move these processes.
    Inspect {
        /// The lease.
        lease: LeaseId,
        /// Its user.
        uid: u32,
        /// Its processes on GPUs.
        processes: Vec<ProcKey>,
        /// What they have there.
        bytes: u64,
    },
    /// The processes of a lease that was ended for others get a signal.
    Signal {
        /// Only processes of this user get it.
        uid: u32,
        /// The processes.
        processes: Vec<ProcKey>,
        /// The signal's number.
        signal: u8,
    },
    /// The processes of a lease that catch this signal get it, because the lease ends soon; if none does, the top process
    /// gets SIGTERM.
    AnnounceEnd {
        /// The lease.
        lease: LeaseId,
        /// Only processes of this user get it.
        uid: u32,
        /// The processes.
        processes: Vec<ProcKey>,
        /// The signal's number.
        signal: u8,
    },
    /// An unleased process and its descendants get a signal.
    SignalUnleased {
        /// The process's number.
        unleased: UnleasedId,
        /// The signal's number.
        signal: u8,
        /// When it was decided.
        of: Time,
        /// Each is reported.
        processes: Vec<ProcKey>,
        /// Only these of them get it.
        wanted: BTreeSet<ProcKey>,
        /// Processes that a rule allows get none.
        spared: Vec<RuleSubject>,
    },
    /// These signals to unleased processes are not sent any more, if they were not yet.
    WithdrawSignals(BTreeSet<PendingSignal>),
    /// It is tested on a GPU whether the pids that the driver reports are those of this host.
    SelfTest {
        /// The GPU.
        uuid: String,
    },
    /// An unleased process is audited again.
    Audit {
        /// The process.
        process: ProcKey,
    },
    /// Processes of leases are on a GPU that their leases do not have: they are audited as unleased processes are.
    AuditOffLease {
        /// The processes.
        processes: Vec<ProcKey>,
    },
    /// The host was told of all leases that there are: programs may connect.
    StartReporting,
    /// So much host memory is booked for parked bytes.
    SetBooked {
        /// The bytes.
        bytes: u64,
    },
    /// The programs of a lease prepare to be parked.
    PrepareToPark {
        /// The lease.
        lease: LeaseId,
    },
}
