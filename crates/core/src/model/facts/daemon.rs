//! Facts of the daemon itself: starts, days, configuration, the disk, the journal.

use super::{Misfit, Touched, TouchedRow, check};
use crate::model::caller::Caller;
use crate::model::ids::Fence;
use crate::model::loss::Loss;
use crate::model::rows::Rows;
use crate::model::settings::Policy;
use crate::model::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// What is decided about the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonAction {
    /// The daemon starts in this boot.
    Start {
        /// The kernel's boot id.
        boot: String,
        /// See [`crate::model::rows::Meta::clock_offset_us`].
        clock_offset_us: i64,
        /// No lower fence is handed out from now on.
        #[serde(rename = "epoch_floor")]
        fence_floor: Fence,
        /// No lower lease number is handed out from now on.
        #[serde(default)]
        lease_floor: u64,
    },
    /// The daemon was away: nothing that was running expires before `until`.
    #[serde(rename = "grace")]
    GrantGrace {
        /// When it came back.
        from: Time,
        /// When the grace is over.
        until: Time,
    },
    /// A new day begins: the tenants' daily budgets are reset.
    #[serde(rename = "day")]
    BeginDay {
        /// Days since 1970, where the host is.
        number: u32,
    },
    /// An operator goes on without lines that are missing from the journal.
    AcceptLoss {
        /// What is known about them.
        loss: Loss,
    },
}

/// What happened to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonEvent {
    /// The daemon started.
    Started {
        /// The kernel's boot id.
        boot: String,
        /// See [`crate::model::rows::Meta::clock_offset_us`].
        clock_offset_us: i64,
        /// No lower fence may be handed out: a backup may have been restored.
        fence_floor: Fence,
        /// No lower lease number may be handed out, for the same reason.
        lease_floor: u64,
    },
    /// The host was suspended and runs again.
    Awoke,
    /// The calendar was read.
    DayRead {
        /// Days since 1970, where the host is.
        number: u32,
    },
    /// The configuration was read.
    Configured(Box<Policy>),
    /// The disk is full.
    DiskFilled,
    /// The disk has room again.
    DiskFreed,
    /// The journal was opened, and lines are missing.
    LossFound(Loss),
    /// An operator goes on without the missing lines.
    LossAccepted {
        /// The caller.
        by: Caller,
    },
    /// Time passed.
    Ticked,
    /// The host's available memory was read.
    HostMemoryRead {
        /// The available bytes without what parked bytes may take; `None` if that cannot be read.
        available: Option<Bytes>,
    },
}

impl DaemonAction {
    pub(crate) fn apply(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let meta = &mut rows.meta;
        match self {
            DaemonAction::Start { boot, clock_offset_us, fence_floor, lease_floor } => {
                check(*lease_floor < u64::MAX, "names an impossible lease")?;
                meta.boot.clone_from(boot);
                meta.clock_offset_us = *clock_offset_us;
                meta.next_fence = meta.next_fence.max(*fence_floor);
                meta.next_lease = meta.next_lease.max(*lease_floor);
            }
            DaemonAction::GrantGrace { from, until } => {
                meta.grace_from = *from;
                meta.grace_until = meta.grace_until.max(*until);
            }
            DaemonAction::BeginDay { number } => {
                meta.day = *number;
                rows.tenants.iter_mut().for_each(|tenant| tenant.today_us = 0);
            }
            DaemonAction::AcceptLoss { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn touched(&self) -> Touched {
        match self {
            DaemonAction::Start { .. } | DaemonAction::GrantGrace { .. } => Touched::row_and_meta(TouchedRow::None),
            DaemonAction::BeginDay { .. } => Touched::row_and_meta(TouchedRow::AllTenants),
            DaemonAction::AcceptLoss { .. } => Touched::row(TouchedRow::None),
        }
    }
}
