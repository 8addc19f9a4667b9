//! Programs with the shim before the driver, on soft GPUs.

mod captures;
mod cc;
mod daemon;
mod ipc;
mod left_alone;
mod parked;
mod peers;
mod pools;
#[path = "../soft/mod.rs"]
mod soft;
mod sudden_deaths;
mod unmovable;
