//! Leases of GPUs for Rust programs.

pub mod client;
