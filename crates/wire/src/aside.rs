//! GPUs that step aside, as clients see them.

use serde::{Deserialize, Serialize};

/// `POST /v1/gpus/{uuid}/aside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AsideRequest {
    /// For how many seconds from now on, 1 to 86400; 43200 (12 h) if null.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    pub for_s: Option<u64>,
    /// Tells several asides of one user apart; letters, digits, `-`, `.`, `:` and `_`, 64 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 64, pattern = "^[A-Za-z0-9.:_-]*$"))]
    pub key: Option<String>,
    /// Only prolong an aside with this key that is there already.
    #[serde(default, skip_serializing_if = "crate::request::is_false")]
    pub renew: bool,
}

/// That a GPU steps aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Aside {
    /// The user it steps aside for.
    pub user: String,
    /// Since when, in Unix seconds.
    pub since_unix_s: f64,
    /// Until when at the latest, in Unix seconds.
    pub until_unix_s: f64,
    /// Leases that are being parked for it.
    pub parking: u32,
    /// Leases that stay on the GPU.
    pub stays: Vec<AsideStay>,
}

/// A lease that stays on a GPU that steps aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsideStay {
    /// The lease, if it is the caller's own (or the caller is an operator); else null.
    pub lease: Option<String>,
    /// Its user.
    pub user: String,
    /// Why it stays, in words.
    pub why: String,
}
