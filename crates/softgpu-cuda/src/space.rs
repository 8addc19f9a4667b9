//! Device memory: the process's own, mapped for each allocation and counted on its card.
//!
//! A mapping is fresh from the kernel and so all zeros, and no other process can read it. What is
//! freed is unmapped when no kernel or copy is under way.

use crate::result::{CuResult, Outcome};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use sublet_ptx::{Memory, Region};
use sublet_softgpu::Seat;

/// The driver counts by this.
const GRANULE: u64 = 2 << 20;

/// Whose bytes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A card's.
    Device,
    /// The host's, made for copies.
    Host,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// As it was asked for.
    pub bytes: u64,
    /// As it is mapped and counted.
    pub mapped: u64,
    /// Whose.
    pub kind: Kind,
    /// On which card, or next to which.
    pub card: usize,
    /// Of which context, by handle.
    pub context: usize,
}

type Blocks = BTreeMap<u64, Block>;

/// A process's device memory.
#[derive(Default)]
pub struct Space {
    blocks: Mutex<Arc<Blocks>>,
    /// Held for reading by whoever touches the bytes, for writing by whoever unmaps.
    use_: RwLock<()>,
}

/// The memory as it is while somebody touches it.
pub struct Held<'a> {
    blocks: Arc<Blocks>,
    _use: RwLockReadGuard<'a, ()>,
}

impl Space {
    /// The memory, which stays mapped until this is dropped.
    pub fn hold(&self) -> Held<'_> {
        let guard = self.use_.read().unwrap_or_else(PoisonError::into_inner);
        let blocks = Arc::clone(&self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        Held { blocks, _use: guard }
    }

    /// Takes bytes of a card, or of the host.
    pub fn alloc(&self, seat: &Seat, kind: Kind, card: usize, context: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let mapped = bytes.checked_next_multiple_of(GRANULE).ok_or(CuResult::OUT_OF_MEMORY)?;
        if kind == Kind::Device {
            seat.reserve(card, mapped).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        }
        let Some(at) = map(mapped) else {
            self.give_back(seat, kind, card, mapped);
            return Err(CuResult::OUT_OF_MEMORY);
        };
        let block = Block { bytes, mapped, kind, card, context };
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut blocks).insert(at, block);
        Ok(at)
    }

    fn give_back(&self, seat: &Seat, kind: Kind, card: usize, mapped: u64) {
        if kind == Kind::Device {
            seat.give_back(card, mapped);
        }
    }

    /// Frees an allocation, by its first address.
    pub fn free(&self, seat: &Seat, kind: Kind, at: u64) -> Outcome {
        let _alone = self.use_.write().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.get(&at).is_none_or(|block| block.kind != kind) {
            return Err(CuResult::INVALID_VALUE);
        }
        let Some(block) = Arc::make_mut(&mut blocks).remove(&at) else { return Err(CuResult::INVALID_VALUE) };
        unmap(at, block.mapped);
        self.give_back(seat, kind, block.card, block.mapped);
        Ok(())
    }

    /// Frees what a context has.
    pub fn free_all(&self, seat: &Seat, context: usize) {
        let own: Vec<(u64, Kind)> = self
            .hold()
            .blocks
            .iter()
            .filter(|(_, block)| block.context == context)
            .map(|(at, b)| (*at, b.kind))
            .collect();
        // What somebody else freed meanwhile is free.
        for (at, kind) in own {
            let _ = self.free(seat, kind, at);
        }
    }
}

impl Held<'_> {
    /// The allocation that an address is in, and where it begins.
    pub fn find(&self, address: u64) -> Option<(u64, Block)> {
        let (at, block) = self.blocks.range(..=address).next_back()?;
        (address - at < block.bytes).then_some((*at, *block))
    }

    /// A pointer to bytes of the card that are all in one allocation.
    pub fn bytes(&self, address: u64, bytes: u64) -> Outcome<*mut u8> {
        let (at, block) = self.find(address).ok_or(CuResult::INVALID_VALUE)?;
        let fits =
            address.checked_sub(at).and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= block.bytes);
        if fits { Ok(address as *mut u8) } else { Err(CuResult::INVALID_VALUE) }
    }
}

// SAFETY: a region is mapped readable and writable as long as the guard in `Held` lives, and the
// device address is the host address.
unsafe impl Memory for Held<'_> {
    fn region(&self, address: u64) -> Option<Region> {
        let (first, block) = self.find(address)?;
        Some(Region { first, bytes: block.bytes, host: first as *mut u8, writable: true })
    }
}

fn map(bytes: u64) -> Option<u64> {
    let length = usize::try_from(bytes).ok()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping; the kernel chooses where.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as u64)
}

fn unmap(at: u64, bytes: u64) {
    // SAFETY: mapped by `map` with this length, out of the books, and nobody touches it now.
    unsafe { libc::munmap(at as *mut libc::c_void, bytes as usize) };
}
