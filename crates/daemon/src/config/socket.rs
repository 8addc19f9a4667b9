//! `[socket]`: how often local users may call.

use super::ConfigError;
use super::values::positive;
use crate::http::rate::Rate;
use serde::Deserialize;

/// How often each local user that is no operator may call on the Unix socket.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SocketConfig {
    /// Calls a second in the long run.
    requests_per_s: Option<f64>,
    /// Calls at once, after a rest.
    burst: Option<f64>,
}

impl SocketConfig {
    pub(super) fn settle(&self) -> Result<Rate, ConfigError> {
        // A program that polls a hundred leases every second makes 100 calls; the loop answers some 20,000.
        let per_s = positive("socket.requests_per_s", self.requests_per_s, 1_000.0)?;
        let burst = positive("socket.burst", self.burst, 2_000.0)?;
        Ok(Rate { per_s, burst })
    }
}
