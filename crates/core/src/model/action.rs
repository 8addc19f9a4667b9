//! What was decided: complete facts, in the imperative, in the order they happened.
//!
//! An action is applied to the state the moment it is emitted, written to the log in the same transaction as the rows
//! that it changes, and read back by `journal verify`. Its JSON form is kept on disk for ever: add fields with defaults, and
//! raise [`FORMAT`] for anything else. The facts themselves are in [`crate::model::facts`].

mod stored;

use crate::model::facts::{
    BrokenInvariant, DaemonAction, GpuAction, LeaseAction, TenantAction, TokenAction, Touched, UnleasedAction,
};
use crate::model::ids::LeaseId;
use crate::model::rows::{EndedLease, Rows};
use crate::model::unleased::UnleasedId;

/// The log's format number, written with every entry. 2: tokens. 3: parking. 4: preemption. 5: unleased processes.
/// 6: unleased processes that are parked, what an end took, and why a restore failed. 7: holders that exceed their
/// leases. 8: parked leases of which the driver takes the contexts, too. 9: GPUs that step aside. 10: losses that were
/// accepted, and programs that died while they were parked.
pub const FORMAT: u32 = 10;

/// One decided fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// About the daemon.
    Daemon(DaemonAction),
    /// About a GPU.
    Gpu(GpuAction),
    /// About a tenant.
    Tenant(TenantAction),
    /// About a lease.
    Lease(LeaseAction),
    /// About a token.
    Token(TokenAction),
    /// About an unleased process, or a rule.
    Unleased(UnleasedAction),
}

/// An action of one kind is an action.
macro_rules! from_kind {
    ($($kind:ident($action:ty)),*) => {
        $(impl From<$action> for Action {
            fn from(action: $action) -> Action {
                Action::$kind(action)
            }
        })*
    };
}

from_kind!(
    Daemon(DaemonAction),
    Gpu(GpuAction),
    Tenant(TenantAction),
    Lease(LeaseAction),
    Token(TokenAction),
    Unleased(UnleasedAction)
);

impl Rows {
    /// Makes a fact part of the rows. Returns the lease that became history by it.
    ///
    /// # Errors
    ///
    /// If the action does not fit the rows. They stay as they were.
    pub fn apply(&mut self, action: &Action) -> Result<Option<EndedLease>, BrokenInvariant> {
        let applied = match action {
            Action::Daemon(action) => action.apply(self).map(|()| None),
            Action::Gpu(action) => action.apply(self).map(|()| None),
            Action::Tenant(action) => action.apply(self).map(|()| None),
            Action::Lease(action) => return self.apply_lease_action(action),
            Action::Token(action) => action.apply(self).map(|()| None),
            Action::Unleased(action) => action.apply(self).map(|()| None),
        };
        applied.map_err(|what| BrokenInvariant { kind: action.kind(), what })
    }

    /// The same for an action about a lease.
    pub(crate) fn apply_lease_action(&mut self, action: &LeaseAction) -> Result<Option<EndedLease>, BrokenInvariant> {
        action.apply(self).map_err(|what| BrokenInvariant { kind: stored::kind_of(action), what })
    }
}

impl Action {
    /// What it changes in the rows.
    pub fn touched(&self) -> Touched {
        match self {
            Action::Daemon(action) => action.touched(),
            Action::Gpu(action) => action.touched(),
            Action::Tenant(action) => action.touched(),
            Action::Lease(action) => action.touched(),
            Action::Token(action) => action.touched(),
            Action::Unleased(action) => action.touched(),
        }
    }

    /// True if a total of a tenant would overflow by it. Core lets totals stay at their ends; a log in which that
    /// happens was changed.
    pub fn overflows_totals(&self, rows: &Rows) -> bool {
        matches!(self, Action::Lease(action) if action.overflows_totals(rows))
    }

    /// The lease it concerns, if one.
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Action::Lease(action) => Some(action.lease()),
            _ => None,
        }
    }

    /// The unleased process it concerns, if one.
    pub fn unleased(&self) -> Option<UnleasedId> {
        match self {
            Action::Unleased(action) => action.id(),
            _ => None,
        }
    }

    /// The other lease that it makes room for, if one.
    pub fn room_for(&self) -> Option<LeaseId> {
        match self {
            Action::Lease(action) => action.room_for(),
            _ => None,
        }
    }

    /// The tenant whose line it is in the log, by the rows before it; `None` if it is the daemon's.
    pub fn line_owner(&self, rows: &Rows) -> Option<String> {
        match self {
            Action::Daemon(_) => None,
            Action::Gpu(action) => action.line_owner(),
            Action::Tenant(action) => action.line_owner(rows),
            Action::Lease(action) => action.line_owner(rows),
            Action::Token(action) => Some(action.line_owner()),
            Action::Unleased(action) => action.line_owner(rows),
        }
    }

    /// True for signals, warnings and operators' acts: their lines are cut after all others of their owner.
    pub fn is_cut_last(&self) -> bool {
        match self {
            Action::Daemon(_) | Action::Tenant(_) => false,
            Action::Gpu(action) => action.is_cut_last(),
            Action::Lease(action) => action.is_cut_last(),
            Action::Token(_) => true,
            Action::Unleased(action) => action.is_cut_last(),
        }
    }
}
