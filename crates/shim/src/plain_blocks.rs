//! Frees plain allocations that were taken out of the table: those of this process, and imported ones.

use crate::gpu_memory;
use crate::ipc;
use crate::memory_table::{self, ProgramBlock};

/// Frees a plain allocation that was taken out of the table, and that no work uses.
pub fn drop_plain_block((at, block): (u64, ProgramBlock)) {
    debug_assert_eq!(block.pool, 0, "allocations of a pool go back to the pool");
    if block.is_import {
        return ipc::unmap(at);
    }
    ipc::forget_export(&block);
    let whole = if block.is_small { memory_table::lock().small.give_back(at) } else { Some(at) };
    if let Some(first) = whole {
        gpu_memory::drop_mapping(first);
    }
}
