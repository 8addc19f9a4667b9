//! `[enforcement]`: how long processes without a lease have.

use super::ConfigError;
use super::values::{read_span, set};
use serde::Deserialize;
use sublet_core::policy::Policy;

/// How long processes without a lease have, on cards where they are ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EnforcementConfig {
    /// From the warning to what follows (`"5m"`).
    warned: Option<String>,
    /// `false`: nobody is parked by the driver, and SIGTERM follows at once.
    park: Option<bool>,
    /// From SIGTERM to SIGKILL (`"5m"`).
    grace: Option<String>,
    /// Who has more than its lease may be made to leave after so long, should somebody wait (`"1m"`).
    over: Option<String>,
}

impl EnforcementConfig {
    pub(super) fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        set(&mut policy.over, "enforcement.over", &self.over, read_span)?;
        set(&mut policy.patience.warned, "enforcement.warned", &self.warned, read_span)?;
        policy.patience.parks = self.park.unwrap_or(policy.patience.parks);
        set(&mut policy.patience.grace, "enforcement.grace", &self.grace, read_span)
    }
}
