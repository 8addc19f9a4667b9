//! `[registers]`: how much each user may keep in registers of checkpoints.

use super::ConfigError;
use super::values::{read_size, set};
use crate::registers::RegisterLimits;
use serde::Deserialize;
use sublet_core::units::Bytes;

/// Less would not hold the chains of a few trainings.
const SIZE_MIN: Bytes = Bytes::mib(4);

/// Limits of registers of checkpoints; read by a start only.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RegistersConfig {
    /// Bytes of one register (`"256M"`).
    size: Option<String>,
    /// Registers of one user; 0: no register is made.
    per_user: Option<u32>,
}

impl RegistersConfig {
    pub(super) fn settle(&self) -> Result<RegisterLimits, ConfigError> {
        // A training that goes on for long has about 1 MiB in its chains: an entry has some 500 bytes, and the oldest
        // ones are dropped every 1,000 entries.
        let mut size = Bytes::mib(256);
        set(&mut size, "registers.size", &self.size, |text| match read_size(text)? {
            size if size < SIZE_MIN => Err(format!("it must be at least {SIZE_MIN}")),
            size => Ok(size),
        })?;
        Ok(RegisterLimits { bytes: size.0, each: self.per_user.unwrap_or(16) })
    }
}
