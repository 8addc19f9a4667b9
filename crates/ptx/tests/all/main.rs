//! Tests of whole modules and launches, in one program.

mod behaviour;
mod common;
mod conformance;
mod hardened;
mod random;
mod samples;
