//! Usage, the audit trail, health.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `GET /v1/usage` adds up by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// One row for each tenant.
    #[default]
    Tenant,
    /// One row for each lease, newest first.
    Lease,
}

/// `GET /v1/usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// What the rows add up by.
    pub by: UsageBy,
    /// The rows that the caller may see; by lease, the live ones and the last 1,000 that ended.
    pub rows: Vec<UsageRow>,
    /// More leases have ended than are listed.
    #[serde(default)]
    pub more: bool,
}

/// What a tenant, or a lease, was charged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageRow {
    /// The tenant.
    pub tenant: String,
    /// The tenant's name for people.
    pub user: String,
    /// The lease, when adding up by lease.
    pub lease: Option<String>,
    /// The lease's name, when adding up by lease.
    pub name: Option<String>,
    /// How many leases were granted.
    pub leases: u64,
    /// Seconds × GPUs that were leased.
    pub gpu_seconds: f64,
    /// VRAM leased × time, in GiB × seconds.
    pub gib_seconds: f64,
    /// Parking space booked × time, in GiB × seconds; null when adding up by lease.
    #[serde(default)]
    pub parked_gib_seconds: Option<f64>,
    /// The most VRAM that was read on one GPU; null if none was, or when adding up by tenant.
    pub peak_bytes: Option<u64>,
    /// Requests for leases that were refused since the daemon started, by the problem's `code`; none when adding up by
    /// lease.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, u64>,
}

/// `GET /v1/audit`: a page of the trail, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditPage {
    /// The lines.
    pub lines: Vec<AuditLine>,
    /// Pass it as `after` for the next page; null at the end.
    pub next: Option<u64>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditLine {
    /// Its number, which only grows; the id of the same event in `/v1/events`.
    pub seq: u64,
    /// When, in Unix seconds by the host's wall clock.
    pub at_unix_s: f64,
    /// The caller that caused it: a tenant (`uid:1000`), with its token if it used one (`user:ana K3`); or `sublet`
    /// itself.
    pub actor: String,
    /// The lease it concerns.
    pub lease: Option<String>,
    /// The kind of line (`grant`, `end`, …).
    pub kind: String,
    /// One sentence.
    pub sentence: String,
    /// The whole action.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub action: serde_json::Value,
    /// The value of the hash chain at this line, in hexadecimal.
    pub hash: String,
}

/// `POST /v1/journal/accept-loss`: what was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JournalLoss {
    /// Which lines are missing, in one sentence.
    pub sentence: String,
}

/// `GET /healthz`, `GET /readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok`, or what is wrong.
    pub status: String,
    /// The service's version.
    pub version: String,
}
