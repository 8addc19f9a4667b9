//! Runs lowered code: warps in lockstep, blocks on the workers of a launch.

pub(crate) mod atomic;
mod block;
mod constant_registers;
pub(crate) mod control;
pub(crate) mod external_functions;
mod launch;
pub(crate) mod load_store;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod warpwide;

pub use launch::{Launch, Stats, run};
pub use memory::{DeviceMemory, LOCAL_WINDOW, PARAM_WINDOW, Region, SHARED_WINDOW};
