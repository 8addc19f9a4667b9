//! `[preemption]`: which leases are preempted, and when.

use super::ConfigError;
use super::values::{read_span, set};
use serde::Deserialize;
use sublet_core::settings::Policy;

/// Which leases are preempted, and when.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PreemptionConfig {
    /// `false`: a lease is parked only at the end of its term.
    enabled: Option<bool>,
    /// A resumed lease keeps its GPUs for at least this long (`"10s"`).
    time_slice: Option<String>,
    /// The largest share of the time that goes into parking and resuming (`"5%"`).
    switching_max: Option<String>,
    /// Batch jobs that are expected to be done within another time slice may finish.
    finish: Option<bool>,
    /// A waiter of a lower tier gets the GPUs of an idle lease after this time (`"30s"`).
    idle_after: Option<String>,
    /// How long to wait after a failed park or resume before the next attempt (`"1m"`).
    retry_after: Option<String>,
    /// `"off"`: the driver's own way of parking is not used; read by a start only.
    pub(super) driver: Option<String>,
    /// The time between SIGTERM and SIGKILL for programs that opted in to being ended (`"30s"`).
    end_grace: Option<String>,
}

impl PreemptionConfig {
    pub(super) fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        let parking = &mut policy.parking;
        parking.preempt = self.enabled.unwrap_or(parking.preempt);
        parking.stretches_slices = self.finish.unwrap_or(parking.stretches_slices);
        set(&mut parking.slice_min, "preemption.time_slice", &self.time_slice, read_span)?;
        set(&mut parking.slice_per_move, "preemption.switching_max", &self.switching_max, |text| {
            match text.strip_suffix('%').map(|number| number.trim().parse::<u32>()) {
                Some(Ok(percent @ 1..=50)) => Ok((100 - percent) / percent),
                _ => Err("write a share from \"1%\" to \"50%\"".to_owned()),
            }
        })?;
        set(&mut parking.idle_after, "preemption.idle_after", &self.idle_after, read_span)?;
        set(&mut parking.retry_after, "preemption.retry_after", &self.retry_after, read_span)?;
        set(&mut parking.grace, "preemption.end_grace", &self.end_grace, read_span)
    }
}
