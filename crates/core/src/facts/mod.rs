//! The facts: what happens ([`Event`](crate::event::Event)) and what is decided ([`Action`](crate::action::Action)), by
//! kind.
//!
//! A kind has one module. It has all that must be said of each of its facts: the fields and their form in the journal,
//! what an action does to the rows (`apply`) and to what is derived from them (`unindex`, `index`), the rows that it
//! touches, the owner of its line in the log, and when such lines are cut. Everything else matches the six kinds, and
//! asks. ARCHITECTURE.md says how to add a fact.

mod daemon;
mod gpu;
mod lease;
mod stored;
mod tenant;
mod token;
mod unleased;

pub use daemon::{DaemonAction, DaemonEvent};
pub use gpu::{GpuAction, GpuEvent};
pub use lease::{Hint, LeaseAction, LeaseEvent, UnparkReason, Wake};
pub use tenant::TenantAction;
pub use token::{TokenAction, TokenEvent};
pub use unleased::{UnleasedAction, UnleasedEvent};

use crate::action::Action;
use crate::ids::{GpuId, LeaseId, TenantId, TokenId};
use crate::rows::{EndedLease, Rows};
use crate::unleased::{RuleId, UnleasedId};
use std::fmt;

/// An action that does not fit the rows: a mistake of core, or a log that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant {
    /// The action's kind.
    pub kind: &'static str,
    /// What does not fit, such as "names an unknown tenant".
    pub what: String,
}

impl fmt::Display for BrokenInvariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the action `{}` {}", self.kind, self.what)
    }
}

/// What does not fit, before the action that it is about is known.
type Misfit = String;

/// `Err` with this sentence unless it fits.
fn check(fits: bool, what: &str) -> Result<(), Misfit> {
    if fits { Ok(()) } else { Err(what.to_owned()) }
}

fn check_gpus(rows: &Rows, gpus: &[GpuId]) -> Result<(), Misfit> {
    check(gpus.iter().all(|gpu| usize::from(gpu.0) < rows.gpus.len()), "names an unknown card")
}

fn check_tenant(rows: &Rows, tenant: TenantId) -> Result<(), Misfit> {
    check((tenant.0 as usize) < rows.tenants.len(), "names an unknown tenant")
}

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

/// What an action changes in the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The counters and the clock changed.
    pub meta: bool,
    /// The row that changed.
    pub row: TouchedRow,
}

/// The row that an action changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TouchedRow {
    /// None.
    None,
    /// A tenant's.
    Tenant(TenantId),
    /// All tenants'.
    AllTenants,
    /// A GPU's.
    Gpu(GpuId),
    /// A lease's.
    Lease(LeaseId, LeaseChange),
    /// A token's.
    Token(TokenId),
    /// An unleased process's.
    Unleased(UnleasedId),
    /// A rule's.
    Rule(RuleId),
}

/// What changes in the row of a lease, and beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseChange {
    /// The row is new.
    pub is_new: bool,
    /// More changed than the phase.
    pub is_rewritten: bool,
    /// Its tenant's row changed, too.
    pub is_charged: bool,
}

impl Touched {
    /// This row, and nothing else.
    fn row(row: TouchedRow) -> Touched {
        Touched { meta: false, row }
    }

    /// This row, and the counters.
    fn row_and_meta(row: TouchedRow) -> Touched {
        Touched { meta: true, row }
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
