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
use crate::vmm::MemoryFile;
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
pub enum MemoryKind {
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

impl MemoryKind {
    /// True if it is host memory from which a copy may be done later.
    pub fn is_host(self) -> bool {
        matches!(self, MemoryKind::Host(_) | MemoryKind::Registered(_))
    }
}

/// The kind of access that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedAccess {
    /// None yet.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// One allocation.
#[derive(Clone)]
pub struct MemoryBlock {
    /// The size as requested.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The GPU that it is on, or belongs to.
    pub gpu: usize,
    /// Its context, by handle.
    pub context: usize,
    /// The allowed access.
    pub access: AllowedAccess,
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
    Own(CountedMapping),
    /// A slot of a slab; its address.
    Slot(Arc<Slab>, u64),
    /// Memory that was created separately and mapped.
    Physical(Arc<MemoryFile>),
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
pub struct CountedMapping {
    at: u64,
    bytes: u64,
    gpu: Option<usize>,
    /// True if its bytes were given back to the GPU.
    is_free: AtomicBool,
}

impl CountedMapping {
    fn new(runtime: &Runtime, gpu: Option<usize>, bytes: u64) -> Outcome<CountedMapping> {
        if let Some(gpu) = gpu {
            runtime.client.reserve(gpu, bytes).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        }
        let give_back = || {
            if let Some(gpu) = gpu {
                runtime.client.give_back(gpu, bytes);
            }
            CuResult::OUT_OF_MEMORY
        };
        let at = map(bytes).ok_or_else(give_back)?;
        if gpu.is_some() {
            // SAFETY: the mapping was just made. If the advice is refused, children have a copy.
            unsafe { libc::madvise(at as *mut libc::c_void, bytes as usize, libc::MADV_DONTFORK) };
        }
        Ok(CountedMapping { at, bytes, gpu, is_free: AtomicBool::new(false) })
    }

    /// Gives the bytes back to the GPU, once. A snapshot may keep the mapping for longer.
    fn give_back(&self) {
        if let (Some(gpu), Ok(runtime)) = (self.gpu, Runtime::get())
            && !self.is_free.swap(true, Relaxed)
        {
            runtime.client.give_back(gpu, self.bytes);
        }
    }
}

impl Drop for CountedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and every user of it held a reference to this.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.bytes as usize) };
        self.give_back();
    }
}

/// A granule that small allocations of one size share.
pub struct Slab {
    mapping: CountedMapping,
    slot: u64,
    /// Free slots, and whether each was used before.
    free: Mutex<Vec<(u64, bool)>>,
}

impl Slab {
    fn new(mapping: CountedMapping, slot: u64) -> Arc<Slab> {
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

type Blocks = BTreeMap<u64, MemoryBlock>;
/// The slabs of a context for one size; host memory has its own.
type Shelves = HashMap<(usize, u64, bool), Vec<Arc<Slab>>>;

/// A process's memory.
#[derive(Default)]
pub struct ProgramMemory {
    blocks: Mutex<Arc<Blocks>>,
    shelves: Mutex<Shelves>,
    next_id: AtomicU64,
}

/// A snapshot of the memory, held while it is touched.
pub struct MemorySnapshot {
    blocks: Arc<Blocks>,
    kernel_reach: Option<KernelReach>,
}

/// A GPU with kernels that touch memory, and the memory of others that it can reach.
pub struct KernelReach {
    /// The GPU.
    pub gpu: usize,
    /// Contexts with plain memory that it can reach.
    pub contexts: Vec<usize>,
    /// Pools with memory that it can reach.
    pub pools: Vec<usize>,
}

impl KernelReach {
    fn reaches(&self, block: &MemoryBlock) -> bool {
        match block.kind {
            _ if block.gpu == self.gpu => true,
            MemoryKind::Device => self.contexts.contains(&block.context),
            MemoryKind::Pool(pool) => self.pools.contains(&pool),
            MemoryKind::Mapped => block.reach >> self.gpu & 1 == 1,
            _ => true,
        }
    }
}

impl ProgramMemory {
    /// A snapshot of the memory, which stays mapped until this is dropped.
    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot { blocks: Arc::clone(&self.blocks()), kernel_reach: None }
    }

    /// A snapshot of the memory as the kernels of a GPU see it.
    pub fn snapshot_for(&self, kernel_reach: KernelReach) -> MemorySnapshot {
        MemorySnapshot { kernel_reach: Some(kernel_reach), ..self.snapshot() }
    }

    fn blocks(&self) -> MutexGuard<'_, Arc<Blocks>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates bytes of a GPU, or of the host. Returns their address.
    pub fn alloc(&self, runtime: &Runtime, kind: MemoryKind, gpu: usize, context: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let counted_on = (!kind.is_host()).then_some(gpu);
        let (at, backing) = if bytes < SMALL {
            self.slot(runtime, counted_on, context, bytes)?
        } else {
            let whole = bytes.checked_next_multiple_of(GRANULE).ok_or(CuResult::OUT_OF_MEMORY)?;
            let mapping = CountedMapping::new(runtime, counted_on, whole)?;
            (mapping.at, Backing::Own(mapping))
        };
        self.insert(
            at,
            MemoryBlock {
                bytes,
                kind,
                gpu,
                context,
                access: AllowedAccess::Write,
                reach: 0,
                id: self.fresh_id(),
                backing: Arc::new(backing),
            },
        );
        Ok(at)
    }

    fn slot(&self, runtime: &Runtime, gpu: Option<usize>, context: usize, bytes: u64) -> Outcome<(u64, Backing)> {
        let slot = bytes.next_power_of_two().max(SMALLEST);
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = shelves.entry((context, slot, gpu.is_some())).or_default();
        let found = shelf.iter().find_map(|slab| Some((slab.take()?, Arc::clone(slab))));
        if let Some((at, slab)) = found {
            return Ok((at, Backing::Slot(slab, at)));
        }
        let slab = Slab::new(CountedMapping::new(runtime, gpu, GRANULE)?, slot);
        shelf.push(Arc::clone(&slab));
        let at = slab.take().ok_or(CuResult::UNKNOWN)?;
        Ok((at, Backing::Slot(slab, at)))
    }

    /// A number that no other allocation has.
    pub fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed) + 1
    }

    /// Adds a block.
    pub fn insert(&self, at: u64, block: MemoryBlock) {
        Arc::make_mut(&mut self.blocks()).insert(at, block);
    }

    /// Changes blocks that begin in a range.
    pub fn change_blocks(&self, from: u64, bytes: u64, change: impl Fn(&mut MemoryBlock)) {
        let mut blocks = self.blocks();
        Arc::make_mut(&mut blocks).range_mut(from..from.saturating_add(bytes)).for_each(|(_, block)| change(block));
    }

    /// Removes the block that begins here, if it is of that kind.
    pub fn remove(&self, at: u64, is: impl Fn(MemoryKind) -> bool) -> Outcome<MemoryBlock> {
        let mut blocks = self.blocks();
        if blocks.get(&at).is_none_or(|block| !is(block.kind)) {
            return Err(CuResult::INVALID_VALUE);
        }
        Arc::make_mut(&mut blocks).remove(&at).ok_or(CuResult::INVALID_VALUE)
    }

    /// Frees a block that was removed; chunks that are entirely free are given back.
    pub fn release(&self, block: MemoryBlock) {
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
    pub fn free(&self, at: u64, is: impl Fn(MemoryKind) -> bool) -> Outcome {
        self.release(self.remove(at, is)?);
        Ok(())
    }

    /// Frees the memory of a context.
    pub fn free_all(&self, context: usize) {
        let mut blocks = self.blocks();
        let own: Vec<u64> = blocks.iter().filter(|(_, block)| block.context == context).map(|(at, _)| *at).collect();
        let gone: Vec<MemoryBlock> = own.iter().filter_map(|at| Arc::make_mut(&mut blocks).remove(at)).collect();
        drop(blocks);
        gone.into_iter().for_each(|block| self.release(block));
    }
}

impl MemorySnapshot {
    /// The block that an address is in, and its first address.
    pub fn find(&self, address: u64) -> Option<(u64, &MemoryBlock)> {
        let (at, block) = self.blocks.range(..=address).next_back()?;
        (address - at < block.bytes).then_some((*at, block))
    }

    /// Blocks that begin in a range.
    pub fn range(&self, from: u64, bytes: u64) -> impl Iterator<Item = (u64, &MemoryBlock)> {
        self.blocks.range(from..from.saturating_add(bytes)).map(|(at, block)| (*at, block))
    }

    /// A pointer to bytes that are all known, in one allocation or in adjacent mappings.
    pub fn bytes(&self, address: u64, bytes: u64, is_written: bool) -> Outcome<*mut u8> {
        let end = address.checked_add(bytes).ok_or(CuResult::INVALID_VALUE)?;
        let mut next = address;
        loop {
            let (at, block) = self.find(next).ok_or(CuResult::INVALID_VALUE)?;
            let is_allowed =
                block.access == AllowedAccess::Write || (block.access == AllowedAccess::Read && !is_written);
            if !is_allowed {
                return Err(CuResult::INVALID_VALUE);
            }
            next = at + block.bytes;
            if next >= end {
                return Ok(address as *mut u8);
            }
            if block.kind != MemoryKind::Mapped {
                return Err(CuResult::INVALID_VALUE);
            }
        }
    }
}

// SAFETY: a region is mapped as long as the snapshot lives, readable and writable as its access says, and the device
// address is the host address.
unsafe impl DeviceMemory for MemorySnapshot {
    fn region(&self, address: u64) -> Option<Region> {
        let (first, block) = self.find(address)?;
        if self.kernel_reach.as_ref().is_some_and(|kernel_reach| !kernel_reach.reaches(block)) {
            return None;
        }
        let writable = block.access == AllowedAccess::Write;
        (block.access != AllowedAccess::None).then_some(Region {
            first,
            bytes: block.bytes,
            host: first as *mut u8,
            writable,
        })
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
