//! `[parking]`: host memory for the bytes of parked leases.

use super::ConfigError;
use super::values::{read_size, read_span, set};
use serde::Deserialize;
use sublet_core::settings::Policy;
use sublet_core::units::{Bytes, Span};

/// Host memory for the bytes of parked leases.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ParkingConfig {
    /// A size (`"48G"`), a share of all memory (`"50%"`), `"auto"` or `"off"`.
    ram: Option<String>,
    /// Host memory that stays available to other programs whenever a lease is parked (`"8G"`).
    keep_free: Option<String>,
    /// How long a lease may be parked (`"12h"`).
    time_max: Option<String>,
    /// The part of `ram` that is kept ready, so that a first park is fast (`"4G"`), or `"off"`; read by a start only.
    ready: Option<String>,
    /// After this time of a park the CUDA context leaves the GPU too (`"10m"`), or `"off"`.
    context_after: Option<String>,
}

impl ParkingConfig {
    /// Without `ram` the parking space is the host's memory less a quarter, and less 8 GiB at least. Returns how much of it
    /// is kept ready.
    pub(super) fn settle(&self, policy: &mut Policy) -> Result<Bytes, ConfigError> {
        let all = Bytes(sublet_host::shims::total_bytes().unwrap_or(0));
        let parking = &mut policy.parking;
        let usual = all.less(Bytes(all.0 / 4).max(Bytes::gib(8)));
        parking.space = usual;
        set(&mut parking.space, "parking.ram", &self.ram, |text| match text {
            "auto" => Ok(usual),
            "off" => Ok(Bytes::ZERO),
            _ => match text.strip_suffix('%').map(|number| number.trim().parse::<u64>()) {
                Some(Ok(percent)) if percent <= 90 => Ok(Bytes((u128::from(all.0) * u128::from(percent) / 100) as u64)),
                Some(_) => Err("write a share up to \"90%\"".to_owned()),
                None => match read_size(text)? {
                    size if size > all && all > Bytes::ZERO => Err(format!("this host has {all} of memory in all")),
                    size => Ok(size),
                },
            },
        })?;
        set(&mut parking.keep_available, "parking.keep_free", &self.keep_free, read_size)?;
        set(&mut parking.term, "parking.time_max", &self.time_max, read_span)?;
        parking.context_after = Some(Span::secs(600));
        set(&mut parking.context_after, "parking.context_after", &self.context_after, |text| match text {
            "off" => Ok(None),
            text => read_span(text).map(Some),
        })?;
        // Enough for a small program at once.
        let mut stock = Bytes((parking.space.0 / 8).min(4 << 30));
        set(&mut stock, "parking.ready", &self.ready, |text| match text {
            "off" => Ok(Bytes::ZERO),
            _ => read_size(text),
        })?;
        Ok(stock.min(parking.space))
    }
}
