//! The caller of the API, as its credentials name it.

use crate::model::ids::TokenId;

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The tenant whose leases it may change.
    pub tenant: String,
    /// Groups it belongs to, as far as the configuration names them, sorted.
    pub groups: Vec<String>,
    /// It may change the leases of all tenants, and the GPUs.
    pub operator: bool,
    /// The token it came through; a local user needs none.
    pub token: Option<TokenId>,
}

impl Caller {
    /// A local user in no group of note.
    pub fn user(tenant: impl Into<String>) -> Caller {
        Caller { tenant: tenant.into(), groups: Vec::new(), operator: false, token: None }
    }
}
