//! The facts, by kind: what happens (an [`Event`]) and what is decided (an [`Action`]).
//!
//! A kind has one module. It has all that must be said of each of its facts: the fields and their form in the journal,
//! what an action does to the rows (`apply`), the rows that it touches, the owner of its line in the log, and when such
//! lines are cut. Everything else matches the six kinds, and asks. ARCHITECTURE.md says how to add a fact.
//!
//! Deliberately absent: what is derived from the rows, which is in `state/derived.rs`.
//!
//! [`Action`]: crate::model::action::Action
//! [`Event`]: crate::model::event::Event

mod daemon;
mod gpu;
mod lease;
mod tenant;
mod token;
mod unleased;

pub use daemon::{DaemonAction, DaemonEvent};
pub use gpu::{GpuAction, GpuEvent};
pub use lease::{Hint, LeaseAction, LeaseEvent, UnparkReason, Wake};
pub use tenant::TenantAction;
pub use token::{TokenAction, TokenEvent};
pub use unleased::{UnleasedAction, UnleasedEvent};

use crate::model::ids::{GpuId, LeaseId, TenantId, TokenId};
use crate::model::rows::Rows;
use crate::model::unleased::{RuleId, UnleasedId};
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
pub(crate) type Misfit = String;

/// `Err` with this sentence unless it fits.
fn check(fits: bool, what: &str) -> Result<(), Misfit> {
    if fits { Ok(()) } else { Err(what.to_owned()) }
}

fn check_gpus(rows: &Rows, gpus: &[GpuId]) -> Result<(), Misfit> {
    check(gpus.iter().all(|gpu| rows.gpus.find(*gpu).is_some()), "names an unknown card")
}

fn check_tenant(rows: &Rows, tenant: TenantId) -> Result<(), Misfit> {
    check(rows.tenants.find(tenant).is_some(), "names an unknown tenant")
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
