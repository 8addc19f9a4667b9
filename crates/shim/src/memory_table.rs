//! What is mapped where: memory of the driver, and the allocations that the program sees. Arrays, managed memory and
//! memory of graphs are in `unmovable_memory`.
//!
//! Memory is known by a handle of the shim, which stays the same when the memory is taken off the GPU and other memory
//! replaces it. No call of the driver is made while the table is locked.

use crate::driver::{AllocationProperties, LocationAccess};
use crate::small_allocations::SmallAllocations;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shim's handles for programs are unlike any of the driver's.
const FIRST_HANDLE: u64 = 0x5b1e_0000_0000_0000;

/// Memory of a GPU.
pub struct ParkableMemory {
    /// The driver's handle; `None` while it is parked.
    pub real: Option<u64>,
    /// How much.
    pub bytes: u64,
    /// As requested.
    pub properties: AllocationProperties,
    /// As requested.
    pub flags: u64,
    /// The GPU that it is on.
    pub uuid: [u8; 16],
    /// The context in which it was made; zero: none.
    pub context: usize,
    /// How many references the program has to the handle; zero: only its mappings keep the memory alive.
    pub count: usize,
    /// Where it is mapped.
    pub mapped: BTreeSet<u64>,
    /// Where its bytes are in the arena, while it is parked.
    pub arena: Option<u64>,
}

/// A mapping of memory at an address.
#[derive(Clone)]
pub struct MemoryMapping {
    /// The memory, by the shim's handle.
    pub handle: u64,
    /// How long.
    pub bytes: u64,
    /// The offset in the memory.
    pub offset: u64,
    /// What each GPU may do with it.
    pub access: Vec<LocationAccess>,
    /// The owner of the mapping.
    pub owner: MappingOwner,
}

/// The owner of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingOwner {
    /// The program, which mapped it itself.
    Program,
    /// Plain allocations: the program sees only the blocks in it.
    Plain,
    /// A pool: the program sees only the blocks in it.
    Pool,
}

/// An allocation that the program made with a plain or a stream-ordered call.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramBlock {
    /// The size as requested.
    pub bytes: u64,
    /// The context in which it was made.
    pub context: usize,
    /// True if it is a part of a chunk for small allocations.
    pub is_small: bool,
    /// True if it is memory of another process.
    pub is_import: bool,
    /// The pool it is from, by the shim's number; zero: none.
    pub pool: u64,
    /// A number that no other allocation has.
    pub id: u64,
}

/// An allocation from one of the driver's own pools. It counts against the lease and cannot be moved; above 256 MiB of
/// these, the holder is not parked.
#[derive(Clone, Copy, Debug)]
pub struct DriverPoolBlock {
    /// The size as requested.
    pub bytes: u64,
    /// The GPU that it is on.
    pub uuid: [u8; 16],
    /// The number of that GPU.
    pub device: i32,
}

/// All memory that can be parked, and what the driver's own pools gave.
pub struct MemoryTable {
    next: u64,
    /// Memory, by the shim's handle.
    pub physical: BTreeMap<u64, ParkableMemory>,
    /// Mappings, by address.
    pub mappings: BTreeMap<u64, MemoryMapping>,
    /// Allocations, by address.
    pub blocks: BTreeMap<u64, ProgramBlock>,
    /// Allocations from the driver's own pools, by address.
    pub driver_pool_blocks: BTreeMap<u64, DriverPoolBlock>,
    /// Allocations that were freed while a capture was open, and wait for its end.
    pub deferred: Vec<(u64, ProgramBlock)>,
    /// Chunks for small allocations.
    pub small: SmallAllocations,
}

static TABLE: Mutex<MemoryTable> = Mutex::new(MemoryTable::new());

/// The table, locked.
pub fn lock() -> MutexGuard<'static, MemoryTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryTable {
    const fn new() -> MemoryTable {
        MemoryTable {
            next: 0,
            physical: BTreeMap::new(),
            mappings: BTreeMap::new(),
            blocks: BTreeMap::new(),
            driver_pool_blocks: BTreeMap::new(),
            deferred: Vec::new(),
            small: SmallAllocations::new(),
        }
    }

    /// Adds memory, and returns its handle.
    pub fn add_memory(&mut self, physical: ParkableMemory) -> u64 {
        self.next += 1;
        let handle = FIRST_HANDLE + self.next;
        self.physical.insert(handle, physical);
        handle
    }

    /// Adds an allocation.
    pub fn add_block(&mut self, at: u64, block: ProgramBlock) {
        self.next += 1;
        self.blocks.insert(at, ProgramBlock { id: FIRST_HANDLE + self.next, ..block });
    }

    /// The block that an address is in.
    pub fn block(&self, at: u64) -> Option<(u64, ProgramBlock)> {
        let (first, block) = self.blocks.range(..=at).next_back()?;
        (at - first < block.bytes).then_some((*first, *block))
    }

    /// True if an address is in a mapping that the program does not see, and in no block.
    pub fn is_hidden(&self, at: u64) -> bool {
        self.block(at).is_none() && self.mapping(at).is_some_and(|(_, mapping)| mapping.owner != MappingOwner::Program)
    }

    /// The mapping that an address is in.
    pub fn mapping(&self, at: u64) -> Option<(u64, &MemoryMapping)> {
        let (first, mapping) = self.mappings.range(..=at).next_back()?;
        (at - first < mapping.bytes).then_some((*first, mapping))
    }

    /// Records a mapping of memory at an address.
    pub fn map(&mut self, at: u64, mapping: MemoryMapping) {
        let physical = self.physical.get_mut(&mapping.handle);
        debug_assert!(physical.is_some(), "memory is added before it is mapped: {:#x}", mapping.handle);
        if let Some(physical) = physical {
            physical.mapped.insert(at);
        }
        self.mappings.insert(at, mapping);
    }

    /// Records which GPUs may do what with mappings that begin in a range.
    pub fn note_access(&mut self, at: u64, bytes: u64, given: &[LocationAccess]) {
        for (_, mapping) in self.mappings.range_mut(at..at.saturating_add(bytes)) {
            for new in given {
                mapping.access.retain(|old| old.location != new.location);
                mapping.access.push(*new);
            }
        }
    }

    /// Removes the mappings that begin in a range. Returns memory that has no mapping and no handle left.
    pub fn unmap(&mut self, at: u64, bytes: u64) -> Vec<ParkableMemory> {
        let gone: Vec<u64> = self.mappings.range(at..at.saturating_add(bytes)).map(|(at, _)| *at).collect();
        gone.into_iter()
            .filter_map(|at| {
                let mapping = self.mappings.remove(&at)?;
                let physical = self.physical.get_mut(&mapping.handle);
                debug_assert!(physical.is_some(), "memory is known as long as it is mapped: {:#x}", mapping.handle);
                physical?.mapped.remove(&at);
                self.forget_unused(mapping.handle)
            })
            .collect()
    }

    /// Removes memory that has no mapping and no handle of the program left; `None` if it still has one.
    pub fn forget_unused(&mut self, handle: u64) -> Option<ParkableMemory> {
        let physical = self.physical.get(&handle)?;
        if physical.count == 0 && physical.mapped.is_empty() { self.physical.remove(&handle) } else { None }
    }
}
