//! Allocations from the driver's own pools, which the shim cannot move: it counts them.

use crate::lease_page;
use crate::memory_table::{self, DriverPoolBlock};
use crate::message::ParkObstacle;

/// How much memory of the driver's own pools may stay on the GPU when the rest is parked.
const DRIVER_POOL_MAX: u64 = 256 << 20;

/// Records an allocation from a pool of the driver, which stays on the GPU.
pub fn add_driver_pool_block(at: u64, block: DriverPoolBlock) {
    let mut table = memory_table::lock();
    table.driver_pool_blocks.insert(at, block);
    let all: u64 = table.driver_pool_blocks.values().map(|block| block.bytes).sum();
    drop(table);
    if all > DRIVER_POOL_MAX {
        lease_page::set_obstacle(ParkObstacle::StreamOrdered, "cuMemAllocFromPoolAsync");
    }
}

/// Forgets a freed allocation from a pool of the driver.
pub fn forget_driver_pool_block(at: u64) {
    let mut table = memory_table::lock();
    let gone = table.driver_pool_blocks.remove(&at);
    let all: u64 = table.driver_pool_blocks.values().map(|block| block.bytes).sum();
    drop(table);
    if let Some(block) = gone {
        lease_page::give_back(&block.uuid, block.device, block.bytes);
        if all <= DRIVER_POOL_MAX {
            lease_page::clear_obstacle(ParkObstacle::StreamOrdered);
        }
    }
}
