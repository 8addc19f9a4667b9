//! Small allocations, which share chunks: slots of one size, at multiples of 512 bytes.

use std::collections::BTreeMap;

/// Allocations of this size or more have memory of their own.
pub const LARGE: u64 = 1 << 20;
/// The size of a chunk.
pub const CHUNK: u64 = 2 << 20;
/// The smallest slot; every address is a multiple of it.
const SMALLEST: u64 = 512;

/// A chunk with slots of one size.
struct SmallChunk {
    slot: u64,
    device: i32,
    free: Vec<u64>,
}

/// Chunks, by address.
pub struct SmallAllocations {
    chunks: BTreeMap<u64, SmallChunk>,
}

/// The size of the slot for an allocation of `bytes`.
pub fn slot_bytes(bytes: u64) -> u64 {
    bytes.next_power_of_two().max(SMALLEST)
}

impl SmallAllocations {
    /// No chunks.
    pub const fn new() -> SmallAllocations {
        SmallAllocations { chunks: BTreeMap::new() }
    }

    /// Takes a free slot on a GPU; `None` if no chunk has one.
    pub fn take_slot(&mut self, device: i32, bytes: u64) -> Option<u64> {
        let slot = slot_bytes(bytes);
        let mut fitting = self.chunks.values_mut().filter(|chunk| chunk.device == device && chunk.slot == slot);
        fitting.find_map(|chunk| chunk.free.pop())
    }

    /// Adds a chunk. Returns its first slot.
    pub fn add_chunk(&mut self, device: i32, bytes: u64, at: u64) -> u64 {
        let slot = slot_bytes(bytes);
        let free = (1..CHUNK / slot).rev().map(|number| at + number * slot).collect();
        self.chunks.insert(at, SmallChunk { slot, device, free });
        at
    }

    /// Gives a slot back. Returns the chunk if all its slots are free; the chunk is then forgotten.
    pub fn give_back(&mut self, at: u64) -> Option<u64> {
        let (first, chunk) = self.chunks.range_mut(..=at).next_back()?;
        let first = *first;
        if at - first >= CHUNK || chunk.free.contains(&at) {
            return None;
        }
        chunk.free.push(at);
        if chunk.free.len() as u64 == CHUNK / chunk.slot {
            self.chunks.remove(&first);
            return Some(first);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, SmallAllocations, slot_bytes};

    #[test]
    fn slots_are_exclusive_and_empty_chunks_are_returned() {
        let mut small = SmallAllocations::new();
        assert_eq!(small.take_slot(0, 100), None);
        assert_eq!(small.add_chunk(0, 100, 1 << 30), 1 << 30);
        let more: Vec<u64> = std::iter::from_fn(|| small.take_slot(0, 512)).collect();
        assert_eq!(more.len() as u64, CHUNK / slot_bytes(100) - 1);
        assert!(more.iter().all(|at| at % 512 == 0 && *at != 1 << 30));
        assert_eq!(small.take_slot(1, 100), None, "another GPU");
        assert_eq!(small.take_slot(0, 513), None, "another size");
        assert!(more.iter().all(|at| small.give_back(*at).is_none()));
        assert_eq!(small.give_back(more[0]), None, "not twice");
        assert_eq!(small.give_back(1 << 30), Some(1 << 30));
        assert_eq!(small.give_back(1 << 30), None);
    }
}
