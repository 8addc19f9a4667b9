//! `[registers]`: how much each user may keep in registers of checkpoints.

use super::ConfigError;
use super::values::{read_size, set};
use crate::registers::RegisterLimits;
use serde::Deserialize;
use sublet_core::units::Bytes;

/// Less would not hold the chains of a few trainings.
const SIZE_MIN: Bytes = Bytes::mib(4);

/// A training that goes on for long has about 1 MiB in its chains: an entry has some 500 bytes, and the oldest ones are dropped
/// every 1,000 entries. So this holds 60 of them, or 3,000 that saved 20 times.
const SIZE_DEFAULT: Bytes = Bytes::mib(64);

/// A register for each store, and some for stores that were rebuilt. A user can fill 512 MiB of the disk with them.
const PER_USER_DEFAULT: u32 = 8;

/// Limits of registers of checkpoints; read by a start only.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RegistersConfig {
    /// Bytes of one register (`"64M"`).
    size: Option<String>,
    /// Registers of one user; 0: no register is made.
    per_user: Option<u32>,
}

impl RegistersConfig {
    pub(super) fn settle(&self) -> Result<RegisterLimits, ConfigError> {
        let mut size = SIZE_DEFAULT;
        set(&mut size, "registers.size", &self.size, |text| match read_size(text)? {
            size if size < SIZE_MIN => Err(format!("it must be at least {SIZE_MIN}")),
            size => Ok(size),
        })?;
        Ok(RegisterLimits { bytes: size.0, each: self.per_user.unwrap_or(PER_USER_DEFAULT) })
    }
}
