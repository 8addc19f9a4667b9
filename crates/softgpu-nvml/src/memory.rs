//! How many bytes a GPU has, and how many are used.

use crate::abi::{Code, Out, export};
use crate::library::{Handle, card};
use crate::structs::{Memory, Memory2, version};
use sublet_softgpu::state::IDLE_BYTES;

/// The window through which a real GPU's memory is mapped: the usual size, and unused.
const BAR1: u64 = 256 << 20;

export! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<Memory>) {
        let card = card(device)?;
        let (total, used) = (card.total()?, card.used()?);
        memory.put(Memory { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<Memory2>) {
        let card = card(device)?;
        let wanted = memory.get()?.version;
        if wanted != version::<Memory2>(2) {
            return Err(Code::VersionMismatch);
        }
        memory.put(apart(wanted, card.total()?, card.used()?))
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<Memory>) {
        card(device)?;
        memory.put(Memory { total: BAR1, free: BAR1, used: 0 })
    }
}

/// Memory with the driver's own bytes separate from those of processes.
fn apart(version: u32, total: u64, used: u64) -> Memory2 {
    let reserved = IDLE_BYTES.min(used);
    Memory2 { version, total, reserved, free: total.saturating_sub(used), used: used - reserved }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_the_whole() {
        for (total, used) in [(4 << 30, IDLE_BYTES), (4 << 30, 3 << 30), (1 << 20, 1 << 20)] {
            let memory = apart(7, total, used);
            assert_eq!(memory.reserved + memory.free + memory.used, total);
        }
        assert_eq!(apart(7, 4 << 30, IDLE_BYTES).used, 0);
    }
}
