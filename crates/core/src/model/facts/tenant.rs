//! Facts of tenants.

use super::{Misfit, Touched, TouchedRow, check, check_tenant};
use crate::model::ids::TenantId;
use crate::model::rows::{Rows, Tenant};
use serde::{Deserialize, Serialize};

/// What is decided about a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantAction {
    /// A tenant makes its first request.
    #[serde(rename = "enrol")]
    Add {
        /// The next free number.
        tenant: TenantId,
        /// The name, such as `uid:1000`.
        name: String,
    },
    /// A tenant's groups change, as far as the configuration names them.
    #[serde(rename = "regroup")]
    SetGroups {
        /// The tenant.
        tenant: TenantId,
        /// The groups, sorted.
        groups: Vec<String>,
    },
}

impl TenantAction {
    pub(crate) fn apply(&self, rows: &mut Rows) -> Result<(), Misfit> {
        match self {
            TenantAction::Add { tenant, name } => {
                check(*tenant == rows.tenants.next_id(), "enrols a tenant out of order")?;
                rows.tenants.push(Tenant { name: name.clone(), ..Tenant::default() });
            }
            TenantAction::SetGroups { tenant, groups } => {
                check_tenant(rows, *tenant)?;
                rows.tenants[*tenant].groups.clone_from(groups);
            }
        }
        Ok(())
    }

    pub(crate) fn touched(&self) -> Touched {
        match self {
            TenantAction::Add { tenant, .. } | TenantAction::SetGroups { tenant, .. } => {
                Touched::row(TouchedRow::Tenant(*tenant))
            }
        }
    }

    pub(crate) fn line_owner(&self, rows: &Rows) -> Option<String> {
        match self {
            TenantAction::Add { name, .. } => Some(name.clone()),
            TenantAction::SetGroups { tenant, .. } => rows.tenant_name(*tenant),
        }
    }
}
