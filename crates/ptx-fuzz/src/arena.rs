//! A little device memory: each region borders on a guard page without access rights, and
//! the rest of its pages is filled with bytes that must not change.

use crate::random::SplitMix64;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::ptr::null_mut;
use sublet_ptx::{DeviceMemory, Region};

/// A multiple of the pages of every host.
const PAGE: usize = 64 << 10;
/// Bytes of a slot between its guard pages.
pub const SLOT_BYTES: usize = 16 << 10;
/// How far apart slots are on the device.
const STRIDE: u64 = 1 << 20;
/// Where the first slot is on the device.
const FIRST: u64 = 0x7000_0000_0000;
/// Fills what no region has.
const CANARY: u8 = 0xC5;

/// One region and the pages around it.
#[derive(Clone, Copy)]
struct GuardedSlot {
    /// The first byte between the guard pages.
    body: *mut u8,
    /// The part of it that is a region.
    at: usize,
    bytes: usize,
    writable: bool,
}

/// Slots that are mapped once and used for every case.
pub struct GuardedArena {
    slots: Vec<GuardedSlot>,
    used: usize,
}

// SAFETY: slots are mapped for as long as the arena lives, and `first` and `host` are
// both multiples of a page plus the same offset.
unsafe impl DeviceMemory for GuardedArena {
    fn region(&self, address: u64) -> Option<Region> {
        let index = usize::try_from(address.checked_sub(FIRST)? / STRIDE).ok()?;
        let slot = self.slots[..self.used].get(index)?;
        let first = FIRST + index as u64 * STRIDE + slot.at as u64;
        let region =
            Region { first, bytes: slot.bytes as u64, host: slot.body.wrapping_add(slot.at), writable: slot.writable };
        (address.wrapping_sub(first) < region.bytes).then_some(region)
    }
}

// SAFETY: workers access the memory through atomics only, and no other thread accesses it while
// they run.
unsafe impl Sync for GuardedArena {}

impl GuardedArena {
    /// Maps `slots` slots.
    pub fn new(slots: usize) -> rustix::io::Result<GuardedArena> {
        let mut made = Vec::with_capacity(slots);
        for _ in 0..slots {
            // SAFETY: a new mapping anywhere; only its middle is opened.
            let body = unsafe {
                let whole = mmap_anonymous(null_mut(), SLOT_BYTES + 2 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE)?;
                let body = whole.cast::<u8>().add(PAGE);
                mprotect(body.cast(), SLOT_BYTES, MprotectFlags::READ | MprotectFlags::WRITE)?;
                body
            };
            made.push(GuardedSlot { body, at: 0, bytes: 0, writable: false });
        }
        Ok(GuardedArena { slots: made, used: 0 })
    }

    /// Gives all regions back.
    pub fn free_regions(&mut self) {
        self.used = 0;
    }

    /// Makes a region of `bytes` at one end of a slot, or nothing if there is no room.
    pub fn allocate(&mut self, bytes: usize, at_end: bool, writable: bool) -> Option<u64> {
        let index = self.used;
        let slot = self.slots.get_mut(index).filter(|_| bytes <= SLOT_BYTES)?;
        // Kernels expect that memory begins at a multiple of 16.
        let at = if at_end { (SLOT_BYTES - bytes) & !15 } else { 0 };
        (slot.at, slot.bytes, slot.writable) = (at, bytes, writable);
        self.used += 1;
        Some(FIRST + index as u64 * STRIDE + at as u64)
    }

    fn body(&self, index: usize) -> &[u8] {
        // SAFETY: mapped, initialised by the kernel, and no launch runs while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.slots[index].body, SLOT_BYTES) }
    }

    fn body_mut(&mut self, index: usize) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.slots[index].body, SLOT_BYTES) }
    }

    /// Fills every region with the bytes of a seed, and the rest with canaries.
    pub fn fill(&mut self, seed: u64) {
        for index in 0..self.used {
            let GuardedSlot { at, bytes, .. } = self.slots[index];
            let mut random = SplitMix64::new(seed.wrapping_add(index as u64));
            let body = self.body_mut(index);
            body.fill(CANARY);
            // Small numbers, so that some of them are good offsets and indices.
            for four in body[at..at + bytes].chunks_mut(4) {
                let value = random.bits();
                let value = if value & 3 == 0 { value >> 32 } else { value >> 56 } as u32;
                four.copy_from_slice(&value.to_le_bytes()[..four.len()]);
            }
        }
    }

    /// Writes into the region that begins at `address`.
    pub fn write(&mut self, address: u64, offset: usize, bytes: &[u8]) {
        let index = ((address - FIRST) / STRIDE) as usize;
        let GuardedSlot { at, bytes: room, .. } = self.slots[index];
        let Some(end) = offset.checked_add(bytes.len()).filter(|end| *end <= room) else { return };
        self.body_mut(index)[at + offset..at + end].copy_from_slice(bytes);
    }

    /// A hash of all regions; an error if a canary was changed.
    pub fn checked_hash(&self) -> Result<u64, String> {
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        for index in 0..self.used {
            let GuardedSlot { at, bytes, .. } = self.slots[index];
            let body = self.body(index);
            let outside = body[..at].iter().chain(&body[at + bytes..]);
            if let Some(byte) = outside.copied().find(|byte| *byte != CANARY) {
                return Err(format!("a byte outside of region {index} became 0x{byte:02x}"));
            }
            for eight in body[at..at + bytes].chunks(8) {
                let mut word = [0; 8];
                word[..eight.len()].copy_from_slice(eight);
                hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01B3).rotate_left(17);
            }
        }
        Ok(hash)
    }

    /// A hash of a region.
    pub fn region_hash(&self, address: u64) -> u64 {
        let index = ((address - FIRST) / STRIDE) as usize;
        let GuardedSlot { at, bytes, .. } = self.slots[index];
        let body = &self.body(index)[at..at + bytes];
        body.iter().fold(7, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
    }
}
