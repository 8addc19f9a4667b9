//! `[preemption]`: who leaves its cards for whom, and when.

use super::ConfigError;
use super::values::{read_span, set};
use serde::Deserialize;
use sublet_core::policy::Policy;

/// Who leaves its cards for whom, and when.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PreemptionConfig {
    /// Room is made for whoever waits; otherwise only leases that come to their end are parked.
    make_room: Option<bool>,
    /// Whoever came back to its cards has them for so long at least (`"10s"`).
    turn: Option<String>,
    /// No more of the time goes into moving (`"5%"`).
    switching: Option<String>,
    /// Batch jobs that are expected to be done within another time slice may finish.
    finish: Option<bool>,
    /// Whoever stands lower has the cards of somebody idle after this (`"30s"`).
    idle: Option<String>,
    /// Whoever could not be moved is left alone for so long, unless somebody asks for it by hand (`"1m"`).
    rest: Option<String>,
    /// `"off"`: the driver's own way of parking is not used; read by a start only.
    pub(super) driver: Option<String>,
    /// Those who chose to be ended for others have so long between SIGTERM and SIGKILL (`"30s"`).
    end_grace: Option<String>,
}

impl PreemptionConfig {
    pub(super) fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        let parking = &mut policy.parking;
        parking.preempt = self.make_room.unwrap_or(parking.preempt);
        parking.finish = self.finish.unwrap_or(parking.finish);
        set(&mut parking.turn, "preemption.turn", &self.turn, read_span)?;
        set(&mut parking.worth, "preemption.switching", &self.switching, |text| {
            match text.strip_suffix('%').map(|number| number.trim().parse::<u32>()) {
                Some(Ok(percent @ 1..=50)) => Ok((100 - percent) / percent),
                _ => Err("write a share from \"1%\" to \"50%\"".to_owned()),
            }
        })?;
        set(&mut parking.idle, "preemption.idle", &self.idle, read_span)?;
        set(&mut parking.rest, "preemption.rest", &self.rest, read_span)?;
        set(&mut parking.grace, "preemption.end_grace", &self.end_grace, read_span)
    }
}
