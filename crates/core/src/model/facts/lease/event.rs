//! What happened to leases, and what is wanted of them.

use super::Hint;
use crate::model::caller::Caller;
use crate::model::ids::{Fence, LeaseId, ProcKey};
use crate::model::method::Method;
use crate::model::movers::MoverReport;
use crate::model::request::LeaseRequest;
use crate::model::restrictions::Restrictions;
use crate::model::units::{Bytes, Span};

/// What happened to a lease, and what is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A user requests a lease.
    Requested {
        /// The caller.
        by: Caller,
        /// The request.
        request: LeaseRequest,
        /// How long it would wait; zero: now or never.
        wait: Option<Span>,
        /// A process whose exit ends the lease, also while it waits.
        root: Option<ProcKey>,
    },
    /// A holder wants its term to be extended.
    RenewalRequested {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
        /// The fence that the caller has.
        fence: Fence,
    },
    /// A process shall belong to a lease.
    BindRequested {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
        /// The fence that the caller has.
        fence: Fence,
        /// A live process of the caller's.
        process: ProcKey,
    },
    /// A user gives a lease back, or an operator ends it.
    ReleaseRequested {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
        /// The fence that the caller has, if it wants to be sure.
        fence: Option<Fence>,
    },
    /// A waiter accepts a smaller lease and gives up its place, or a holder a larger one.
    OfferAccepted {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
        /// The bytes of each GPU.
        vram: Bytes,
        /// The number of GPUs.
        gpus: u16,
    },
    /// A lease shall be parked.
    ParkRequested {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
    },
    /// A parked lease shall be resumed.
    ResumeRequested {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
    },
    /// A mover reports on a program of a lease.
    MoverReported {
        /// The lease.
        lease: LeaseId,
        /// The mover: the shim or the driver.
        method: Method,
        /// The process.
        process: ProcKey,
        /// The report.
        report: MoverReport,
    },
    /// Something seen from outside suggests that a parked lease is used.
    Hinted {
        /// The lease.
        lease: LeaseId,
        /// What was seen.
        hint: Hint,
    },
    /// The wrapper of a holder reports how its hook went.
    HookReported {
        /// The caller.
        by: Caller,
        /// The lease.
        lease: LeaseId,
        /// The fence that the caller has.
        fence: Fence,
        /// The report.
        report: MoverReport,
    },
    /// The program of a lease was read.
    ProgramRead {
        /// The lease.
        lease: LeaseId,
        /// Its executable, without the path.
        program: String,
    },
    /// All live processes of a lease were read.
    MembersRead {
        /// The lease.
        lease: LeaseId,
        /// All of them.
        processes: Vec<ProcKey>,
        /// Those of them that are restricted.
        restricted: Restrictions,
    },
    /// A lease was used since the last such event.
    UseSeen {
        /// The lease.
        lease: LeaseId,
    },
    /// A lease was found idle.
    IdleSeen {
        /// The lease.
        lease: LeaseId,
        /// How long it has been idle.
        idle: Span,
    },
    /// The last process of a lease exited.
    HolderExited {
        /// The lease.
        lease: LeaseId,
    },
    /// A signal to the processes of a lease that was ended for a waiter was sent.
    SignalSent {
        /// The lease.
        lease: LeaseId,
        /// The number of the signal.
        signal: u8,
    },
}
