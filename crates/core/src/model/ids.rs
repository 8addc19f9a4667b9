//! Names of things: short, ordered, never reused.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A lease's name, `L7` on screens. It is also its arrival number: smaller came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// The text is not `L` and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotALease;

impl FromStr for LeaseId {
    type Err = NotALease;
    fn from_str(text: &str) -> Result<Self, NotALease> {
        let digits = text.strip_prefix(['L', 'l']).ok_or(NotALease)?;
        if digits.is_empty() || digits.starts_with(['0', '+']) {
            return Err(NotALease);
        }
        digits.parse().map(LeaseId).map_err(|_| NotALease)
    }
}

/// A number that only grows; a call with an older one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A GPU's place in the table: given when it is first seen, kept for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuId(pub u16);

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A tenant's place in the table: given with its first request, kept for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub u32);

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}", self.0)
    }
}

/// A token's name, `K3` on screens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u32);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "K{}", self.0)
    }
}

/// The text is not `K` and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAToken;

impl FromStr for TokenId {
    type Err = NotAToken;
    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let digits = text.strip_prefix(['K', 'k']).ok_or(NotAToken)?;
        if digits.is_empty() || digits.starts_with(['0', '+']) {
            return Err(NotAToken);
        }
        digits.parse().map(TokenId).map_err(|_| NotAToken)
    }
}

/// One process and no other: a pid alone is reused, a pid with its start time is not
/// (within one boot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcKey {
    /// The process id in the host's pid namespace.
    pub pid: u32,
    /// Clock ticks after boot at which it started (`/proc/PID/stat`, field 22).
    pub start: u64,
}

impl fmt::Display for ProcKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}
