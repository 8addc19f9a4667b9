//! Facts of leases: from the request to the last reading after the end.
//!
//! What they do to the rows is in `apply` and `parking`.

mod apply;
mod event;
mod parking;

pub use event::LeaseEvent;

use super::{LeaseChange, Touched, TouchedRow};
use crate::model::ids::{Fence, GpuId, LeaseId, ProcKey, TenantId, TokenId};
use crate::model::lateness::ExpectedWait;
use crate::model::method::Method;
use crate::model::request::LeaseRequest;
use crate::model::rows::{EndReason, Rows};
use crate::model::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// What is decided about a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseAction {
    /// A request joins the queue.
    Queue {
        /// The next free number.
        lease: LeaseId,
        /// The tenant.
        tenant: TenantId,
        /// The request.
        #[serde(rename = "ask")]
        request: LeaseRequest,
        /// When this was decided.
        at: Time,
        /// When it leaves the queue if it was not granted.
        give_up: Time,
        /// A process whose exit ends the lease, also while it waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<ProcKey>,
        /// The token that the request came through.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<TokenId>,
    },
    /// A waiter gets its GPUs.
    Grant {
        /// The lease.
        lease: LeaseId,
        /// Its GPUs.
        #[serde(rename = "cards")]
        gpus: Vec<GpuId>,
        /// The bytes of each GPU.
        vram: Bytes,
        /// The fence.
        #[serde(rename = "epoch")]
        fence: Fence,
        /// When this was decided.
        at: Time,
        /// When its term is over unless it is renewed.
        until: Time,
        /// The tenant's debt clock from now on: the first term is charged in advance.
        #[serde(rename = "mark", default, skip_serializing_if = "Option::is_none")]
        debt_clock: Option<Time>,
        /// It passed a waiter that needs the GPUs then: it is not renewed beyond.
        #[serde(rename = "before", default, skip_serializing_if = "Option::is_none")]
        not_beyond: Option<Time>,
        /// It was its tenant's first waiter: the next one is the first from then on.
        #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
        first_since: Option<Time>,
        /// The start that was expected when it was requested, of some waiters: lateness is learned by it.
        #[serde(rename = "told", default, skip_serializing_if = "Option::is_none")]
        expected: Option<ExpectedWait>,
    },
    /// The term of a lease is extended.
    Renew {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// When its term is over unless it is renewed.
        until: Time,
        /// The lease was not used; it is extended because no request waits.
        idle: bool,
        /// The tenant's debt clock from now on: the added time is charged in advance.
        #[serde(rename = "mark", default, skip_serializing_if = "Option::is_none")]
        debt_clock: Option<Time>,
        /// It still is not renewed beyond this.
        #[serde(rename = "before", default, skip_serializing_if = "Option::is_none")]
        not_beyond: Option<Time>,
    },
    /// A process and its descendants belong to a lease.
    Bind {
        /// The lease.
        lease: LeaseId,
        /// The process.
        process: ProcKey,
    },
    /// A holder's bytes shall leave its GPUs; host memory is booked for them from now on.
    Park {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// Host memory that is booked for it.
        booked: Bytes,
        /// The method.
        #[serde(rename = "rung", default)]
        method: Method,
        /// The bytes that it had on its GPUs.
        #[serde(rename = "had", default)]
        had_bytes: Bytes,
        /// What it runs, as far as was seen: what the move takes is learned by that.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        program: String,
        /// The waiter that needs the room.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        room_for: Option<LeaseId>,
        /// The GPU that steps aside, if it is parked for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aside: Option<GpuId>,
        /// It was idle, and its next use cannot be noticed: once parked it is a passive waiter ([`Lease::is_passive`]).
        ///
        /// [`Lease::is_passive`]: crate::model::rows::Lease::is_passive
        #[serde(rename = "quiet", default, skip_serializing_if = "std::ops::Not::not")]
        is_passive: bool,
        /// Once it is parked the driver takes its contexts too, at once: the waiter needs their room.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_context: bool,
        /// The processes that the driver moves.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        processes: Vec<ProcKey>,
        /// It was busy: once parked, it requests its GPUs again as of then.
        #[serde(rename = "again", default, skip_serializing_if = "Option::is_none")]
        requests_again_at: Option<Time>,
    },
    /// A park is given up: the bytes that have left come back.
    Unpark {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// Why.
        why: UnparkReason,
    },
    /// A park is complete: two readings in a row showed each GPU without the holder's bytes.
    #[serde(rename = "parked")]
    FinishPark {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// The tenant's debt clock from now on: unused time is given back.
        #[serde(rename = "mark", default, skip_serializing_if = "Option::is_none")]
        debt_clock: Option<Time>,
    },
    /// A parked lease joins the queue for its GPUs.
    #[serde(rename = "want")]
    QueueParked {
        /// The lease.
        lease: LeaseId,
        /// Since when it waits.
        at: Time,
        /// The bytes of each GPU that it needs beside what it still has there.
        vram: Bytes,
        /// The least that would do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<Bytes>,
        /// What woke it; `None` if it was preempted while it was busy and has waited since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wake: Option<Wake>,
    },
    /// A parked lease has its GPUs again, and its bytes shall come back.
    Resume {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// The bytes of each GPU.
        vram: Bytes,
        /// When its term is over unless it is renewed.
        until: Time,
        /// The tenant's debt clock from now on: the term is charged in advance.
        #[serde(rename = "mark", default, skip_serializing_if = "Option::is_none")]
        debt_clock: Option<Time>,
        /// It passed a waiter that needs the GPUs then: it is not renewed beyond.
        #[serde(rename = "before", default, skip_serializing_if = "Option::is_none")]
        not_beyond: Option<Time>,
        /// It was its tenant's first waiter: the next one is the first from then on.
        #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
        first_since: Option<Time>,
    },
    /// A resume found no room: what came back leaves again.
    #[serde(rename = "retreat")]
    ParkAgain {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
    },
    /// The driver shall take the CUDA contexts of a parked lease, too.
    #[serde(rename = "deepen")]
    RemoveContexts {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// The processes whose contexts the driver takes.
        processes: Vec<ProcKey>,
        /// Host memory that is booked for it from now on, if what is left on its GPUs needs more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booked: Option<Bytes>,
    },
    /// The driver could not take the CUDA contexts: they stay on the GPUs.
    #[serde(rename = "shallow")]
    KeepContexts {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// The reason.
        why: String,
    },
    /// An ended lease turns out to have ended because its program died while it was being parked.
    #[serde(rename = "died")]
    RecordDeath {
        /// The lease.
        lease: LeaseId,
        /// When that became known.
        at: Time,
        /// What is known of the cause.
        why: String,
    },
    /// A resume is complete: the bytes are back, and the booked host memory is free.
    #[serde(rename = "resumed")]
    FinishResume {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
    },
    /// A holder exceeds its lease on a GPU, and is told.
    #[serde(rename = "over")]
    FlagOveruse {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// The bytes that it was seen to have on one GPU.
        #[serde(rename = "seen")]
        seen_bytes: Bytes,
    },
    /// A holder no longer exceeds its lease.
    #[serde(rename = "within")]
    ClearOveruse {
        /// The lease.
        lease: LeaseId,
    },
    /// A lease that its holder exceeded becomes larger.
    #[serde(rename = "grow")]
    Enlarge {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// The bytes of each GPU from now on.
        vram: Bytes,
        /// The tenant's debt clock from now on: the difference is charged for the rest of the term.
        #[serde(rename = "mark", default, skip_serializing_if = "Option::is_none")]
        debt_clock: Option<Time>,
    },
    /// A holder is told that its lease ends soon: for a waiter, or because its fixed term is over.
    #[serde(rename = "notice")]
    GiveNotice {
        /// The lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
        /// When it ends.
        until: Time,
        /// The waiter it ends for; the lease itself if its own term is over then.
        room_for: LeaseId,
    },
    /// A lease need not end for a waiter after all.
    #[serde(rename = "spare")]
    CancelNotice {
        /// The lease.
        lease: LeaseId,
    },
    /// The processes of a lease that was ended for a waiter get this signal.
    Signal {
        /// The lease.
        lease: LeaseId,
        /// The number of the signal.
        signal: u8,
        /// When this was decided.
        at: Time,
        /// The processes that get it.
        processes: Vec<ProcKey>,
        /// Processes that got none because they run as another user than the lease's.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<ProcKey>,
    },
    /// A lease ends for its holder. A granted one counts until its GPUs were read again.
    End {
        /// The lease.
        lease: LeaseId,
        /// Why.
        reason: EndReason,
        /// When this was decided.
        at: Time,
        /// The most that its processes were seen to have on one GPU.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peak: Option<Bytes>,
        /// The tenant's debt clock from now on: unused time is given back.
        #[serde(rename = "mark", default, skip_serializing_if = "Option::is_none")]
        debt_clock: Option<Time>,
        /// It was its tenant's first waiter: the next one is the first from then on.
        #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
        first_since: Option<Time>,
        /// What the driver reported if it lost the bytes; what is known of the cause if the program died while it was
        /// parked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// If it was granted: its program, empty if that is unknown. Durations are learned by it.
        #[serde(rename = "ran", default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        /// If it waited: the start that was expected when it was requested, of some waiters.
        #[serde(rename = "told", default, skip_serializing_if = "Option::is_none")]
        expected: Option<ExpectedWait>,
    },
    /// Each GPU of an ended lease was read again: its bytes count no more, and it becomes history.
    Retire {
        /// The lease.
        lease: LeaseId,
        /// If it was ended for a waiter: its program, and when its bytes were gone. Costs are learned by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<(String, Time)>,
    },
}

/// What turned a parked lease that did not wait into an ordinary waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// One of its programs submitted GPU work.
    Use,
    /// A user, or a request at its proxy, asked for it to be resumed.
    Resume,
    /// Something seen from outside suggests that it is used.
    Hint(Hint),
}

/// A sign, seen from outside, that a parked program is used. It may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// A user typed at its terminal while it was in the foreground there.
    Terminal,
    /// One of its threads called CUDA and waits for the call to return.
    BlockedCall,
}

/// Why a holder's bytes stayed on its GPUs, or came back to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnparkReason {
    /// The shim in one of its programs refused.
    Refused(String),
    /// One of its programs did not answer in time.
    Silent,
    /// All of them reported that the bytes are gone, and readings show them still.
    NotSeen,
    /// The same on a GPU without bytes per process: another program may have grown meanwhile.
    Unclear,
}

impl LeaseAction {
    /// A park by the shim, for no waiter, of a program of which nothing is known.
    pub(crate) fn bare_park(lease: LeaseId, at: Time, booked: Bytes) -> LeaseAction {
        LeaseAction::Park {
            lease,
            at,
            booked,
            requests_again_at: None,
            method: Method::Shim,
            had_bytes: Bytes::ZERO,
            program: String::new(),
            room_for: None,
            aside: None,
            is_passive: false,
            with_context: false,
            processes: Vec::new(),
        }
    }

    /// The lease.
    pub fn lease(&self) -> LeaseId {
        match self {
            LeaseAction::Queue { lease, .. }
            | LeaseAction::Grant { lease, .. }
            | LeaseAction::Renew { lease, .. }
            | LeaseAction::Bind { lease, .. }
            | LeaseAction::Park { lease, .. }
            | LeaseAction::Unpark { lease, .. }
            | LeaseAction::FinishPark { lease, .. }
            | LeaseAction::QueueParked { lease, .. }
            | LeaseAction::Resume { lease, .. }
            | LeaseAction::ParkAgain { lease, .. }
            | LeaseAction::RemoveContexts { lease, .. }
            | LeaseAction::KeepContexts { lease, .. }
            | LeaseAction::RecordDeath { lease, .. }
            | LeaseAction::FinishResume { lease, .. }
            | LeaseAction::FlagOveruse { lease, .. }
            | LeaseAction::ClearOveruse { lease }
            | LeaseAction::Enlarge { lease, .. }
            | LeaseAction::GiveNotice { lease, .. }
            | LeaseAction::CancelNotice { lease }
            | LeaseAction::Signal { lease, .. }
            | LeaseAction::End { lease, .. }
            | LeaseAction::Retire { lease, .. } => *lease,
        }
    }

    /// The other lease that it makes room for, if one.
    pub fn room_for(&self) -> Option<LeaseId> {
        match self {
            LeaseAction::Park { room_for, .. } => *room_for,
            LeaseAction::GiveNotice { lease, room_for, .. } if room_for != lease => Some(*room_for),
            _ => None,
        }
    }

    pub(crate) fn overflows_totals(&self, rows: &Rows) -> bool {
        matches!(self, LeaseAction::End { lease, at, .. } if rows.overflows_when_ended(*lease, *at))
    }

    pub(crate) fn touched(&self) -> Touched {
        let (lease, change) = (self.lease(), LeaseChange::default());
        let rewritten = LeaseChange { is_rewritten: true, ..change };
        let charged = LeaseChange { is_charged: true, ..rewritten };
        match self {
            LeaseAction::Queue { .. } => {
                Touched::row_and_meta(TouchedRow::Lease(lease, LeaseChange { is_new: true, ..rewritten }))
            }
            LeaseAction::Grant { .. } => Touched::row_and_meta(TouchedRow::Lease(lease, charged)),
            LeaseAction::Renew { .. }
            | LeaseAction::Enlarge { .. }
            | LeaseAction::FinishPark { .. }
            | LeaseAction::Resume { .. }
            | LeaseAction::FinishResume { .. } => Touched::row(TouchedRow::Lease(lease, charged)),
            LeaseAction::Bind { .. }
            | LeaseAction::Park { .. }
            | LeaseAction::Unpark { .. }
            | LeaseAction::QueueParked { .. }
            | LeaseAction::ParkAgain { .. }
            | LeaseAction::RemoveContexts { .. }
            | LeaseAction::KeepContexts { .. }
            | LeaseAction::RecordDeath { .. }
            | LeaseAction::FlagOveruse { .. }
            | LeaseAction::ClearOveruse { .. }
            | LeaseAction::GiveNotice { .. }
            | LeaseAction::CancelNotice { .. }
            | LeaseAction::Signal { .. } => Touched::row(TouchedRow::Lease(lease, rewritten)),
            LeaseAction::End { expected, .. } => Touched {
                // The statistics of how late waiters start are in `meta`, over all tenants.
                meta: expected.is_some(),
                row: TouchedRow::Lease(lease, LeaseChange { is_charged: true, ..change }),
            },
            // The tenant's row records how long the program took to end.
            LeaseAction::Retire { ran, .. } => {
                Touched::row(TouchedRow::Lease(lease, LeaseChange { is_charged: ran.is_some(), ..change }))
            }
        }
    }

    pub(crate) fn line_owner(&self, rows: &Rows) -> Option<String> {
        match self {
            LeaseAction::Queue { tenant, .. } => rows.tenant_name(*tenant),
            other => rows.tenant_name(rows.leases.get(&other.lease())?.tenant),
        }
    }

    pub(crate) fn is_cut_last(&self) -> bool {
        match self {
            LeaseAction::Signal { .. } | LeaseAction::GiveNotice { .. } | LeaseAction::FlagOveruse { .. } => true,
            LeaseAction::End { reason, .. } => matches!(reason, EndReason::Revoked | EndReason::OverUse),
            _ => false,
        }
    }
}
