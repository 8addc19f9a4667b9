//! Bytes, instants and spans, each its own type so that they cannot be mixed.
//!
//! No clock is read here and nothing is parsed: `crates/wire` reads sizes and times as people write them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes at all. Never a stand-in for "unknown".
    pub const ZERO: Bytes = Bytes(0);
    /// The largest amount that a request may name: far above any GPU, far below overflow in sums.
    pub const MAX_ASK: Bytes = Bytes(1 << 50);

    /// `n` times 2³⁰.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }
    /// `n` times 2²⁰.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }
    /// What is left after taking `other` away, never below zero.
    pub const fn less(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    /// `16 GiB`, `7.8 GiB`, `650 MiB`, `12 B`: the largest unit that keeps it readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Some((unit, name)) = UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return write!(f, "{} B", self.0);
        };
        let tenths = (self.0 as f64 / unit as f64 * 10.0).round();
        let places = usize::from(tenths % 10.0 != 0.0);
        write!(f, "{:.places$} {name}", tenths / 10.0)
    }
}

/// An instant of the host's waking time, in microseconds.
///
/// It only grows: suspended time is not in it, a new boot goes on where the last
/// one was seen, and no change of the wall clock reaches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

/// A length of time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Time {
    /// The beginning.
    pub const ZERO: Time = Time(0);
    /// A moment that is never reached, or is unknown.
    pub const NEVER: Time = Time(u64::MAX);

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);

    /// `n` seconds.
    pub const fn secs(n: u64) -> Span {
        Span(n * 1_000_000)
    }
    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Span {
        Span(n * 1_000)
    }
    /// This many hundredths of it.
    pub const fn percent(self, n: u64) -> Span {
        Span((self.0 as u128 * n as u128 / 100) as u64)
    }
    /// In whole seconds, rounded up, as people and headers count them.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
    /// In seconds.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, span: Span) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

impl fmt::Display for Span {
    /// `90s`, `1.5s`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1_000_000) {
            write!(f, "{}s", self.0 / 1_000_000)
        } else {
            write!(f, "{}s", self.0 as f64 / 1e6)
        }
    }
}
