//! How many bytes a GPU has, and how many are used.

use crate::abi::{NvmlError, Out, export};
use crate::library::{DeviceHandle, gpu};
use crate::structs::{MemoryV1, MemoryV2, version};
use sublet_softgpu::state::IDLE_BYTES;

/// The window through which a real GPU's memory is mapped: the usual size, and unused.
const BAR1: u64 = 256 << 20;

export! {
    fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, memory: Out<MemoryV1>) {
        let gpu = gpu(device)?;
        let (total, used) = (gpu.total()?, gpu.used()?);
        memory.write(MemoryV1 { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, memory: Out<MemoryV2>) {
        let gpu = gpu(device)?;
        let wanted = memory.read()?.version;
        if wanted != version::<MemoryV2>(2) {
            return Err(NvmlError::VersionMismatch);
        }
        memory.write(memory_v2(wanted, gpu.total()?, gpu.used()?))
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: DeviceHandle, memory: Out<MemoryV1>) {
        gpu(device)?;
        memory.write(MemoryV1 { total: BAR1, free: BAR1, used: 0 })
    }
}

/// Memory with the driver's own bytes separate from those of processes.
fn memory_v2(version: u32, total: u64, used: u64) -> MemoryV2 {
    let reserved = IDLE_BYTES.min(used);
    MemoryV2 { version, total, reserved, free: total.saturating_sub(used), used: used - reserved }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_free_and_used_bytes_add_up_to_the_total() {
        for (total, used) in [(4 << 30, IDLE_BYTES), (4 << 30, 3 << 30), (1 << 20, 1 << 20)] {
            let memory = memory_v2(7, total, used);
            assert_eq!(memory.reserved + memory.free + memory.used, total);
        }
        assert_eq!(memory_v2(7, 4 << 30, IDLE_BYTES).used, 0);
    }
}
