//! What was decided: complete facts, in the imperative, in the order they happened.
//!
//! An action is applied to the state the moment it is emitted, written to the log in the same transaction as the rows it
//! changes, and read back by `journal verify`. Its JSON form is kept on disk for ever: add fields with defaults, and
//! raise [`FORMAT`] for anything else. The facts themselves are in [`crate::facts`].

use crate::facts::{DaemonAction, GpuAction, LeaseAction, TenantAction, TokenAction, UnleasedAction};

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
