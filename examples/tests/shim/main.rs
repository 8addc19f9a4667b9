//! Programs with the shim before the driver, on soft GPUs.

mod beside;
mod captures;
mod cc;
mod daemon;
mod hard;
mod ipc;
mod kept;
mod parked;
mod peers;
mod pools;
#[path = "../soft/mod.rs"]
mod soft;
