//! `[aside]`: which users may put GPUs aside.

use super::ConfigError;
use super::caps::tenant;
use super::values::set;
use serde::Deserialize;
use sublet_core::settings::{AsideAllow, Policy};

/// Which users may put GPUs aside; operators always may.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AsideConfig {
    /// `"seat"`: users whose session is active at a seat of this host; `"operators"`; or `"all"`: every local user.
    allow: Option<String>,
    /// These users in any case, by user id or name.
    users: Vec<String>,
}

impl AsideConfig {
    pub(super) fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        set(&mut policy.aside.allow, "aside.allow", &self.allow, |text| match text {
            "seat" => Ok(AsideAllow::Seat),
            "operators" => Ok(AsideAllow::Operators),
            "all" => Ok(AsideAllow::Everybody),
            _ => Err("write \"seat\", \"operators\" or \"all\"".to_owned()),
        })?;
        for user in &self.users {
            policy.aside.users.insert(tenant(user)?);
        }
        Ok(())
    }
}
