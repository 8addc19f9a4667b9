//! The wall clock, which only this module reads.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; 0 before it.
pub(crate) fn unix_now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
