//! `[enforcement]`: the times between the steps against unleased processes.

use super::ConfigError;
use super::values::{read_span, set};
use serde::Deserialize;
use sublet_core::settings::Policy;

/// The times between the steps against unleased processes, on GPUs in mode `enforce`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EnforcementConfig {
    /// From the warning to the park or SIGTERM (`"5m"`).
    warning: Option<String>,
    /// `false`: SIGTERM follows the warning; the driver parks no unleased process.
    park: Option<bool>,
    /// From SIGTERM to SIGKILL (`"5m"`).
    grace: Option<String>,
    /// A lease that is exceeded for this long may be preempted if another request waits (`"1m"`).
    overuse: Option<String>,
}

impl EnforcementConfig {
    pub(super) fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        set(&mut policy.overuse_grace, "enforcement.overuse", &self.overuse, read_span)?;
        set(&mut policy.enforcement.after_warning, "enforcement.warning", &self.warning, read_span)?;
        policy.enforcement.parks_first = self.park.unwrap_or(policy.enforcement.parks_first);
        set(&mut policy.enforcement.after_sigterm, "enforcement.grace", &self.grace, read_span)
    }
}
