//! Names of users for people. Looking one up can take seconds (LDAP), so it is
//! never done by the loop: whoever accepts a connection does it, and the loop
//! reads what is known.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// Names known so far.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<RwLock<HashMap<u32, String>>>);

impl Names {
    /// The name of a tenant: its user's, or the tenant itself.
    pub fn of(&self, tenant: &str) -> String {
        match uid_of(tenant).and_then(|uid| self.known(uid)) {
            Some(name) => name,
            None => tenant.to_owned(),
        }
    }

    /// The name of a user, if it was looked up before.
    pub fn known(&self, uid: u32) -> Option<String> {
        self.0.read().ok()?.get(&uid).cloned()
    }

    /// Looks a user up, once. May block.
    pub fn look_up(&self, uid: u32) {
        if self.known(uid).is_some() {
            return;
        }
        // A user without a name is not looked up again with every connection.
        let name = uzers::get_user_by_uid(uid)
            .map_or_else(|| tenant_of(uid), |user| user.name().to_string_lossy().into_owned());
        if let Ok(mut names) = self.0.write() {
            names.insert(uid, name);
        }
    }
}

/// The tenant of a Unix user.
pub fn tenant_of(uid: u32) -> String {
    format!("uid:{uid}")
}

/// The Unix user of a tenant, if it is one.
pub fn uid_of(tenant: &str) -> Option<u32> {
    tenant.strip_prefix("uid:")?.parse().ok()
}
