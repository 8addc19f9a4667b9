//! Memory that programs and kernels name by address: of the GPUs, of the host, mapped and registered.
//!
//! A device address is the host's own address of the same bytes. Fresh memory comes from the kernel and so is all
//! zeros; no other process can read it, and forked children do not inherit it. Small allocations share chunks of 2 MiB,
//! the unit in which a GPU is counted, as on a real one.
//!
//! A thread that touches memory holds a snapshot of all blocks; memory that is freed meanwhile is unmapped when the
//! last snapshot of it is dropped.

use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use crate::vmm::Physical;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sublet_ptx::{DeviceMemory, Region};

/// GPU memory is counted in multiples of this.
pub const GRANULE: u64 = 2 << 20;
/// Smaller allocations share granules.
const SMALL: u64 = 1 << 20;
/// The smallest allocation; every address is a multiple of it.
const SMALLEST: u64 = 512;

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a GPU.
    Device,
    /// Of a GPU, stream-ordered; of the pool with this handle.
    Pool(usize),
    /// Of a GPU, mapped by the program itself.
    Mapped,
    /// Of a GPU, at an address that is reserved for a graph.
    Graph,
    /// Of a GPU and of the host, shared.
    Managed,
    /// Of the host, allocated for copies, with these flags.
    Host(u32),
    /// The program's own, registered with these flags.
    Registered(u32),
}

impl Kind {
    /// True if it is host memory from which a copy may be done later.
    pub fn is_host(self) -> bool {
        matches!(self, Kind::Host(_) | Kind::Registered(_))
    }
}

/// The kind of access that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None yet.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// One allocation.
#[derive(Clone)]
pub struct Block {
    /// The size as requested.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: Kind,
    /// The GPU that it is on, or belongs to.
    pub card: usize,
    /// Its context, by handle.
    pub context: usize,
    /// The allowed access.
    pub access: Access,
    /// Other GPUs with access to it, if it is mapped: bits.
    pub reach: u64,
    /// A number that no other allocation has.
    pub id: u64,
    /// Keeps the bytes mapped.
    pub backing: Arc<Backing>,
}

/// What keeps bytes mapped.
pub enum Backing {
    /// A mapping of its own.
    Own(Mapping),
    /// A slot of a slab; its address.
    Slot(Arc<Slab>, u64),
    /// Memory that was created separately and mapped.
    Physical(Arc<Physical>),
    /// Memory that is not to be unmapped here.
    Foreign,
}

impl Backing {
    /// How many bytes of its GPU it takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Backing::Own(mapping) => mapping.bytes,
            Backing::Slot(slab, _) => slab.slot,
            Backing::Physical(physical) => physical.bytes,
            Backing::Foreign => 0,
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Backing::Slot(slab, at) = self {
            slab.free.lock().unwrap_or_else(PoisonError::into_inner).push((*at, true));
        }
    }
}

/// A mapping, which takes bytes of a GPU unless it is host memory.
pub struct Mapping {
    at: u64,
    bytes: u64,
    card: Option<usize>,
    /// True if its bytes were given back to the GPU.
    is_free: AtomicBool,
}

impl Mapping {
    fn new(runtime: &Runtime, card: Option<usize>, bytes: u64) -> Outcome<Mapping> {
        if let Some(card) = card {
            runtime.seat.reserve(card, bytes).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        }
        let give_back = || {
            if let Some(card) = card {
                runtime.seat.give_back(card, bytes);
            }
            CuResult::OUT_OF_MEMORY
        };
        let at = map(bytes).ok_or_else(give_back)?;
        if card.is_some() {
            // SAFETY: the mapping was just made. If the advice is refused, children have a copy.
            unsafe { libc::madvise(at as *mut libc::c_void, bytes as usize, libc::MADV_DONTFORK) };
        }
        Ok(Mapping { at, bytes, card, is_free: AtomicBool::new(false) })
    }

    /// Gives the bytes back to the GPU, once. A snapshot may keep the mapping for longer.
    fn give_back(&self) {
        if let (Some(card), Ok(runtime)) = (self.card, Runtime::get())
            && !self.is_free.swap(true, Relaxed)
        {
            runtime.seat.give_back(card, self.bytes);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and every user of it held a reference to this.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.bytes as usize) };
        self.give_back();
    }
}

/// A granule that small allocations of one size share.
pub struct Slab {
    mapping: Mapping,
    slot: u64,
    /// Free slots, and whether each was used before.
    free: Mutex<Vec<(u64, bool)>>,
}

impl Slab {
    fn new(mapping: Mapping, slot: u64) -> Arc<Slab> {
        let first = mapping.at;
        let slots = (0..mapping.bytes / slot).rev().map(|number| (first + number * slot, false));
        Arc::new(Slab { free: Mutex::new(slots.collect()), mapping, slot })
    }

    fn take(&self) -> Option<u64> {
        let (at, was_used) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        if was_used {
            // SAFETY: a free slot of this mapping.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0, self.slot as usize) };
        }
        Some(at)
    }

    fn is_empty(&self) -> bool {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        free == self.mapping.bytes / self.slot
    }
}

type Blocks = BTreeMap<u64, Block>;
/// The slabs of a context for one size; host memory has its own.
type Shelves = HashMap<(usize, u64, bool), Vec<Arc<Slab>>>;

/// A process's memory.
#[derive(Default)]
pub struct Space {
    blocks: Mutex<Arc<Blocks>>,
    shelves: Mutex<Shelves>,
    next_id: AtomicU64,
}

/// A snapshot of the memory, held while it is touched.
pub struct Held {
    blocks: Arc<Blocks>,
    viewer: Option<Viewer>,
}

/// A GPU with kernels that touch memory, and the memory of others that it can reach.
pub struct Viewer {
    /// The GPU.
    pub card: usize,
    /// Contexts with plain memory that it can reach.
    pub contexts: Vec<usize>,
    /// Pools with memory that it can reach.
    pub pools: Vec<usize>,
}

impl Viewer {
    fn reaches(&self, block: &Block) -> bool {
        match block.kind {
            _ if block.card == self.card => true,
            Kind::Device => self.contexts.contains(&block.context),
            Kind::Pool(pool) => self.pools.contains(&pool),
            Kind::Mapped => block.reach >> self.card & 1 == 1,
            _ => true,
        }
    }
}

impl Space {
    /// A snapshot of the memory, which stays mapped until this is dropped.
    pub fn hold(&self) -> Held {
        Held { blocks: Arc::clone(&self.books()), viewer: None }
    }

    /// A snapshot of the memory as the kernels of a GPU see it.
    pub fn hold_for(&self, viewer: Viewer) -> Held {
        Held { viewer: Some(viewer), ..self.hold() }
    }

    fn books(&self) -> MutexGuard<'_, Arc<Blocks>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates bytes of a GPU, or of the host. Returns their address.
    pub fn alloc(&self, runtime: &Runtime, kind: Kind, card: usize, context: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let of_card = (!kind.is_host()).then_some(card);
        let (at, backing) = if bytes < SMALL {
            self.slot(runtime, of_card, context, bytes)?
        } else {
            let whole = bytes.checked_next_multiple_of(GRANULE).ok_or(CuResult::OUT_OF_MEMORY)?;
            let mapping = Mapping::new(runtime, of_card, whole)?;
            (mapping.at, Backing::Own(mapping))
        };
        self.put(
            at,
            Block {
                bytes,
                kind,
                card,
                context,
                access: Access::Write,
                reach: 0,
                id: self.fresh_id(),
                backing: Arc::new(backing),
            },
        );
        Ok(at)
    }

    fn slot(&self, runtime: &Runtime, card: Option<usize>, context: usize, bytes: u64) -> Outcome<(u64, Backing)> {
        let slot = bytes.next_power_of_two().max(SMALLEST);
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = shelves.entry((context, slot, card.is_some())).or_default();
        let found = shelf.iter().find_map(|slab| Some((slab.take()?, Arc::clone(slab))));
        if let Some((at, slab)) = found {
            return Ok((at, Backing::Slot(slab, at)));
        }
        let slab = Slab::new(Mapping::new(runtime, card, GRANULE)?, slot);
        shelf.push(Arc::clone(&slab));
        let at = slab.take().ok_or(CuResult::UNKNOWN)?;
        Ok((at, Backing::Slot(slab, at)))
    }

    /// A number that no other allocation has.
    pub fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed) + 1
    }

    /// Adds a block.
    pub fn put(&self, at: u64, block: Block) {
        Arc::make_mut(&mut self.books()).insert(at, block);
    }

    /// Changes blocks that begin in a range.
    pub fn change(&self, from: u64, bytes: u64, change: impl Fn(&mut Block)) {
        let mut blocks = self.books();
        Arc::make_mut(&mut blocks).range_mut(from..from.saturating_add(bytes)).for_each(|(_, block)| change(block));
    }

    /// Removes the block that begins here, if it is of that kind.
    pub fn take(&self, at: u64, is: impl Fn(Kind) -> bool) -> Outcome<Block> {
        let mut blocks = self.books();
        if blocks.get(&at).is_none_or(|block| !is(block.kind)) {
            return Err(CuResult::INVALID_VALUE);
        }
        Arc::make_mut(&mut blocks).remove(&at).ok_or(CuResult::INVALID_VALUE)
    }

    /// Frees a block that was removed; chunks that are entirely free are given back.
    pub fn release(&self, block: Block) {
        let is_slot = matches!(*block.backing, Backing::Slot(..));
        if let Backing::Own(mapping) = &*block.backing {
            mapping.give_back();
        }
        drop(block);
        if is_slot {
            let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
            shelves.retain(|_, shelf| {
                shelf.retain(|slab| !slab.is_empty());
                !shelf.is_empty()
            });
        }
    }

    /// Frees an allocation, by its first address.
    pub fn free(&self, at: u64, is: impl Fn(Kind) -> bool) -> Outcome {
        self.release(self.take(at, is)?);
        Ok(())
    }

    /// Frees the memory of a context.
    pub fn free_all(&self, context: usize) {
        let mut blocks = self.books();
        let own: Vec<u64> = blocks.iter().filter(|(_, block)| block.context == context).map(|(at, _)| *at).collect();
        let gone: Vec<Block> = own.iter().filter_map(|at| Arc::make_mut(&mut blocks).remove(at)).collect();
        drop(blocks);
        gone.into_iter().for_each(|block| self.release(block));
    }
}

impl Held {
    /// The block that an address is in, and its first address.
    pub fn find(&self, address: u64) -> Option<(u64, &Block)> {
        let (at, block) = self.blocks.range(..=address).next_back()?;
        (address - at < block.bytes).then_some((*at, block))
    }

    /// Blocks that begin in a range.
    pub fn range(&self, from: u64, bytes: u64) -> impl Iterator<Item = (u64, &Block)> {
        self.blocks.range(from..from.saturating_add(bytes)).map(|(at, block)| (*at, block))
    }

    /// A pointer to bytes that are all known, in one allocation or in adjacent mappings.
    pub fn bytes(&self, address: u64, bytes: u64, is_written: bool) -> Outcome<*mut u8> {
        let end = address.checked_add(bytes).ok_or(CuResult::INVALID_VALUE)?;
        let mut next = address;
        loop {
            let (at, block) = self.find(next).ok_or(CuResult::INVALID_VALUE)?;
            let is_allowed = block.access == Access::Write || (block.access == Access::Read && !is_written);
            if !is_allowed {
                return Err(CuResult::INVALID_VALUE);
            }
            next = at + block.bytes;
            if next >= end {
                return Ok(address as *mut u8);
            }
            if block.kind != Kind::Mapped {
                return Err(CuResult::INVALID_VALUE);
            }
        }
    }
}

// SAFETY: a region is mapped as long as the snapshot lives, readable and writable as its access says, and the device
// address is the host address.
unsafe impl DeviceMemory for Held {
    fn region(&self, address: u64) -> Option<Region> {
        let (first, block) = self.find(address)?;
        if self.viewer.as_ref().is_some_and(|viewer| !viewer.reaches(block)) {
            return None;
        }
        let writable = block.access == Access::Write;
        (block.access != Access::None).then_some(Region { first, bytes: block.bytes, host: first as *mut u8, writable })
    }
}

/// True if all bytes of a range are mapped in the process.
pub fn is_mapped(at: u64, bytes: u64) -> bool {
    // SAFETY: it takes a number only.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let first = at - at % page;
    let Some(end) = at.checked_add(bytes).filter(|_| at != 0 && bytes > 0) else { return false };
    // SAFETY: it writes nothing, and reports addresses that are not mapped.
    unsafe { libc::msync(first as *mut libc::c_void, (end - first) as usize, libc::MS_ASYNC) == 0 }
}

fn map(bytes: u64) -> Option<u64> {
    let length = usize::try_from(bytes).ok()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping; the kernel chooses where.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as u64)
}
