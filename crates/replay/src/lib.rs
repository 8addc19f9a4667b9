//! What the requests of a day would have got under another policy.
//!
//! The real core ([`sublet_core::decide`]) is driven over a list of jobs much faster
//! than they happened, once for each policy, and what each tenant got is added up.
//!
//! A [`trace::Trace`] comes from a file ([`csv`], [`json`]), from a seed
//! ([`synthetic`]) or from a public data set ([`alibaba`]). [`drive`] runs it over
//! [`host_gpus::HostGpus`], under one of the [`policies`]; [`usage`] keeps the integrals
//! while it runs; [`report`] is what comes out, and [`plots`] draws it.
//!
//! Absent on purpose: a clock (the caller measures the speed), files (texts go in
//! and out), and any decision of its own about which job gets a GPU.

pub mod alibaba;
pub mod calibration;
pub mod csv;
pub mod drive;
pub mod host_gpus;
pub mod json;
mod moves;
pub mod plots;
pub mod policies;
pub mod report;
mod rng;
pub mod stats;
mod svg;
pub mod synthetic;
pub mod trace;
pub mod usage;

#[cfg(test)]
mod tests;

/// A span of `seconds`, for callers that do not depend on the core.
pub fn span_of_secs(seconds: u64) -> sublet_core::units::Span {
    sublet_core::units::Span::secs(seconds)
}

pub use sublet_core::units::Bytes;
