//! To which tenant a line of the log belongs, and which lines are cut last.
//!
//! A line about a lease belongs to the tenant of the lease, whichever tenant's request caused it. A line about an
//! unleased process belongs to the user of the process. What remains (starts, GPUs, rules) belongs to [`DAEMON_OWNER`].

use sublet_core::action::Action;
use sublet_core::ids::TenantId;
use sublet_core::policy::enforcement::tenant_of;
use sublet_core::rows::{EndReason, Rows};
use sublet_core::unleased::UnleasedId;

/// The owner of the lines of operators and of the daemon itself. No tenant has this name.
pub const DAEMON_OWNER: &str = "sublet";

/// The owner of a line and its rank: lines of rank 1 are cut after all others of the same owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineOwner {
    /// The tenant's name, or [`DAEMON_OWNER`].
    pub name: String,
    /// 1 for signals, warnings and operators' acts, 0 for everything else.
    pub rank: u8,
}

impl LineOwner {
    /// The owner of an action, by the rows before it.
    pub fn of(rows: &Rows, action: &Action) -> LineOwner {
        let name = match action {
            Action::Queue { tenant, .. } | Action::Regroup { tenant, .. } => tenant_name(rows, *tenant),
            Action::Enrol { name, .. } => Some(name.clone()),
            Action::IssueToken { token } => Some(token.tenant.clone()),
            Action::RevokeToken { tenant, .. } => Some(tenant.clone()),
            Action::SetAside { aside, .. } => Some(aside.by.clone()),
            Action::EndAside { by, .. } => Some(by.clone()),
            Action::Find { stranger } => Some(tenant_of(&stranger.audit)),
            action => tenant_of_lease(rows, action).or_else(|| user_of(rows, action.stranger()?)),
        };
        LineOwner { name: name.unwrap_or_else(|| DAEMON_OWNER.to_owned()), rank: u8::from(is_cut_last(action)) }
    }
}

fn tenant_of_lease(rows: &Rows, action: &Action) -> Option<String> {
    tenant_name(rows, rows.leases.get(&action.lease()?)?.tenant)
}

fn tenant_name(rows: &Rows, tenant: TenantId) -> Option<String> {
    rows.tenants.get(tenant.0 as usize).map(|tenant| tenant.name.clone())
}

fn user_of(rows: &Rows, stranger: UnleasedId) -> Option<String> {
    rows.unleased.get(&stranger).map(|stranger| tenant_of(&stranger.audit))
}

/// True for signals, warnings and operators' acts.
fn is_cut_last(action: &Action) -> bool {
    match action {
        Action::Signal { .. } | Action::Notice { .. } | Action::Over { .. } => true,
        Action::End { reason, .. } => matches!(reason, EndReason::Revoked | EndReason::OverUse),
        Action::Warn { .. }
        | Action::Strike { .. }
        | Action::Struck { .. }
        | Action::Take { .. }
        | Action::Survived { .. } => true,
        Action::Serve { .. }
        | Action::SetMode { .. }
        | Action::SetAside { .. }
        | Action::EndAside { .. }
        | Action::SetRule { .. }
        | Action::DropRule { .. }
        | Action::IssueToken { .. }
        | Action::RevokeToken { .. } => true,
        _ => false,
    }
}
