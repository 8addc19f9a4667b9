//! Runs lowered code: warps in lockstep, blocks on the workers of a launch.

pub(crate) mod access;
pub(crate) mod atomic;
mod block;
pub(crate) mod control;
mod frame;
pub(crate) mod host;
mod launch;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod warpwide;

pub use launch::{Launch, Stats, run};
pub use memory::{LOCAL_WINDOW, Memory, PARAM_WINDOW, Region, SHARED_WINDOW};
