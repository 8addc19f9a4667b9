//! Address ranges and memory as separate objects: reserved ranges, memory, and mappings of memory in ranges.
//!
//! Memory is a file without a name, so that it can be mapped at several addresses and shared as a descriptor; a
//! reserved range is a mapping without access.

use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use crate::space::{AllowedAccess, Backing, GRANULE, MemoryBlock, MemoryKind, is_mapped};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const ON_GPU: i32 = 1;

/// Memory that was created without an address.
pub struct MemoryFile {
    file: OwnedFd,
    /// How much.
    pub bytes: u64,
    /// Its GPU; `None`: the host.
    pub gpu: Option<usize>,
    /// As requested: the kinds of handles with which it may be shared.
    pub handle_types: u32,
    /// As requested: compression, and whether other devices may have access.
    pub flags: u64,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if let (Some(gpu), Ok(runtime)) = (self.gpu, Runtime::get()) {
            runtime.client.give_back(gpu, self.bytes);
        }
    }
}

/// A handle of memory, and its reference count.
pub struct Allocation {
    /// The memory.
    pub physical: Arc<MemoryFile>,
    /// The number of references.
    pub count: AtomicUsize,
}

/// An address that is reserved for graphs' memory, as long as a graph exists that allocates there.
pub struct GraphAddress {
    /// The address.
    pub at: u64,
    whole: u64,
}

impl Drop for GraphAddress {
    fn drop(&mut self) {
        let Ok(runtime) = Runtime::get() else { return };
        let mut graph_addresses = runtime.graph_addresses.lock().unwrap_or_else(PoisonError::into_inner);
        // Memory that is still there keeps its address.
        if runtime.reserved.free(runtime, self.at, self.whole).is_ok() {
            graph_addresses.remove(&self.at);
        }
    }
}

/// Reserved ranges, and the length of each.
#[derive(Default)]
pub struct ReservedRanges(Mutex<BTreeMap<u64, u64>>);

impl MemoryFile {
    /// Allocates memory of a GPU, or of the host.
    pub fn create(
        runtime: &Runtime,
        bytes: u64,
        gpu: Option<usize>,
        handle_types: u32,
        flags: u64,
    ) -> Outcome<Arc<MemoryFile>> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the name is a text that ends with a zero.
        let descriptor = unsafe { libc::syscall(libc::SYS_memfd_create, c"soft-gpu".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        // SAFETY: a descriptor that was just made, and that nothing else has.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        // SAFETY: it takes numbers only.
        if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        MemoryFile::counted(runtime, file, bytes, gpu, (handle_types, flags))
    }

    /// Memory that another process shared. It counts for both: each could be the last to have it.
    pub fn import(runtime: &Runtime, file: OwnedFd, gpu: usize) -> Outcome<Arc<MemoryFile>> {
        let file = std::fs::File::from(file);
        let bytes = file.metadata().map_err(|_| CuResult::INVALID_VALUE)?.len();
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(CuResult::INVALID_VALUE);
        }
        MemoryFile::counted(runtime, file.into(), bytes, Some(gpu), (1, 0))
    }

    fn counted(
        runtime: &Runtime,
        file: OwnedFd,
        bytes: u64,
        gpu: Option<usize>,
        (handle_types, flags): (u32, u64),
    ) -> Outcome<Arc<MemoryFile>> {
        if let Some(gpu) = gpu {
            runtime.client.reserve(gpu, bytes).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        }
        Ok(Arc::new(MemoryFile { file, bytes, gpu, handle_types, flags }))
    }

    /// A descriptor for another process.
    pub fn export(&self) -> Outcome<i32> {
        // SAFETY: it takes numbers only.
        let copy = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 { Err(CuResult::OPERATING_SYSTEM) } else { Ok(copy) }
    }
}

/// Maps over a range that this process reserved.
fn map_over(at: u64, bytes: u64, access: AllowedAccess, file: Option<&OwnedFd>) -> Outcome {
    let flags = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let descriptor = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the range lies in a reservation of this process, which nothing else of it uses.
    let done = unsafe {
        let place = at as *mut libc::c_void;
        libc::mmap(place, bytes as usize, protection(access), flags | libc::MAP_FIXED, descriptor, 0)
    };
    if done == libc::MAP_FAILED {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    // SAFETY: the range was mapped just now. If this cannot be done, children have the memory, too.
    unsafe { libc::madvise(done, bytes as usize, libc::MADV_DONTFORK) };
    Ok(())
}

fn protection(access: AllowedAccess) -> i32 {
    match access {
        AllowedAccess::None => libc::PROT_NONE,
        AllowedAccess::Read => libc::PROT_READ,
        AllowedAccess::Write => libc::PROT_READ | libc::PROT_WRITE,
    }
}

impl ReservedRanges {
    /// Reserves a range, at `wish` if possible.
    pub fn reserve(&self, bytes: u64, alignment: u64, wish: u64) -> Outcome<u64> {
        let alignment = alignment.max(GRANULE);
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || !alignment.is_power_of_two() {
            return Err(CuResult::INVALID_VALUE);
        }
        let at = match Some(wish).filter(|wish| wish.is_multiple_of(alignment)).and_then(|wish| reserve_at(wish, bytes))
        {
            Some(at) => at,
            None => reserve_aligned(bytes, alignment).ok_or(CuResult::OUT_OF_MEMORY)?,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at, bytes);
        Ok(at)
    }

    /// Frees a range.
    pub fn free(&self, runtime: &Runtime, at: u64, bytes: u64) -> Outcome {
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_used = runtime.space.snapshot().range(at, bytes).next().is_some();
        if reserved.get(&at) != Some(&bytes) || is_used {
            return Err(CuResult::INVALID_VALUE);
        }
        reserved.remove(&at);
        // SAFETY: reserved by this process, with nothing mapped in it.
        unsafe { libc::munmap(at as *mut libc::c_void, bytes as usize) };
        Ok(())
    }

    fn contains(&self, at: u64, bytes: u64) -> bool {
        let reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = reserved.range(..=at).next_back();
        found.is_some_and(|(first, length)| at.checked_add(bytes).is_some_and(|end| end <= first + length))
    }

    /// Maps memory into a range; it cannot be accessed before access is given.
    pub fn map(&self, runtime: &Runtime, at: u64, bytes: u64, physical: &Arc<MemoryFile>, context: usize) -> Outcome {
        let is_odd = !at.is_multiple_of(GRANULE) || bytes != physical.bytes || !self.contains(at, bytes);
        if is_odd || runtime.space.snapshot().range(at, bytes).next().is_some() {
            return Err(CuResult::INVALID_VALUE);
        }
        map_over(at, bytes, AllowedAccess::None, Some(&physical.file))?;
        let backing = Arc::new(Backing::Physical(Arc::clone(physical)));
        let (access, id, gpu) = (AllowedAccess::None, runtime.space.fresh_id(), physical.gpu.unwrap_or(0));
        // Host memory is open to every GPU.
        let reach = if physical.gpu.is_none() { u64::MAX } else { 0 };
        runtime
            .space
            .insert(at, MemoryBlock { bytes, kind: MemoryKind::Mapped, gpu, context, access, reach, id, backing });
        Ok(())
    }

    /// True if a range consists exactly of adjacent mappings.
    fn is_whole(runtime: &Runtime, at: u64, bytes: u64) -> bool {
        let held = runtime.space.snapshot();
        let mapped =
            held.range(at, bytes).filter(|(_, block)| matches!(block.kind, MemoryKind::Mapped | MemoryKind::Graph));
        let end = mapped.fold(at, |end, (first, block)| if first == end { first + block.bytes } else { u64::MAX });
        bytes > 0 && at.checked_add(bytes) == Some(end)
    }

    /// Sets the access to mappings.
    pub fn set_access(&self, runtime: &Runtime, at: u64, bytes: u64, access: AllowedAccess) -> Outcome {
        if !ReservedRanges::is_whole(runtime, at, bytes) {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the range is mappings of this process alone.
        if unsafe { libc::mprotect(at as *mut libc::c_void, bytes as usize, protection(access)) } != 0 {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        runtime.space.change_blocks(at, bytes, |block| block.access = access);
        Ok(())
    }

    /// Sets whether another GPU's kernels can reach mappings.
    pub fn set_reach(&self, runtime: &Runtime, at: u64, bytes: u64, gpu: usize, reaches: bool) -> Outcome {
        if !ReservedRanges::is_whole(runtime, at, bytes) {
            return Err(CuResult::INVALID_VALUE);
        }
        let bit = 1_u64 << gpu;
        runtime.space.change_blocks(at, bytes, |block| {
            block.reach = if reaches { block.reach | bit } else { block.reach & !bit };
        });
        Ok(())
    }

    /// Removes mappings; the range stays reserved. `left` is the access that remains for code that wrongly still uses
    /// it.
    pub fn unmap(&self, runtime: &Runtime, at: u64, bytes: u64, left: AllowedAccess) -> Outcome {
        if !ReservedRanges::is_whole(runtime, at, bytes) {
            return Err(CuResult::INVALID_VALUE);
        }
        let firsts: Vec<u64> = runtime.space.snapshot().range(at, bytes).map(|(first, _)| first).collect();
        map_over(at, bytes, left, None)?;
        for first in firsts {
            runtime.space.free(first, |kind| matches!(kind, MemoryKind::Mapped | MemoryKind::Graph))?;
        }
        Ok(())
    }
}

impl Runtime {
    /// True if memory of the program is at an address; false for a range that is only reserved.
    pub fn is_program_memory(&self, at: u64, bytes: u64) -> bool {
        is_mapped(at, bytes) && !self.reserved.contains(at, 1)
    }

    /// Reserves an address for memory that a graph will allocate when it runs.
    pub fn reserve_for_graph(&self, bytes: u64) -> Outcome<Arc<GraphAddress>> {
        let whole = bytes.checked_next_multiple_of(GRANULE).filter(|whole| *whole > 0);
        let whole = whole.ok_or(CuResult::INVALID_VALUE)?;
        let at = self.reserved.reserve(whole, 0, 0)?;
        self.graph_addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(at, whole);
        Ok(Arc::new(GraphAddress { at, whole }))
    }

    /// True if memory of a graph is at an address, or will be when the graph runs.
    pub fn is_graph_memory(&self, at: u64) -> bool {
        let graph_addresses = self.graph_addresses.lock().unwrap_or_else(PoisonError::into_inner);
        graph_addresses.range(..=at).next_back().is_some_and(|(first, bytes)| at - first < *bytes)
    }

    /// Allocates a graph's memory at its address; memory that the graph has not freed since its last run is still
    /// there.
    pub fn allocate_for_graph(&self, at: u64, bytes: u64, gpu: usize, context: usize) -> Outcome {
        if self.space.snapshot().find(at).is_some() {
            return Ok(());
        }
        let whole = bytes.next_multiple_of(GRANULE);
        let physical = MemoryFile::create(self, whole, Some(gpu), 0, 0)?;
        self.reserved.map(self, at, whole, &physical, context)?;
        self.reserved.set_access(self, at, whole, AllowedAccess::Write)?;
        self.space.change_blocks(at, 1, |block| block.kind = MemoryKind::Graph);
        Ok(())
    }

    /// Frees it; its address stays reserved for the graph.
    pub fn free_for_graph(&self, at: u64) -> Outcome {
        let bytes = self.space.snapshot().find(at).map(|(_, block)| block.bytes).ok_or(CuResult::INVALID_VALUE)?;
        // Other streams were not waited for: their accesses find memory that belongs to nothing, and do no harm.
        self.reserved.unmap(self, at, bytes, AllowedAccess::Write)
    }

    /// Bytes of a GPU that graphs have.
    pub fn used_by_graphs(&self, gpu: usize) -> u64 {
        let held = self.space.snapshot();
        let own = held.range(0, u64::MAX).filter(|(_, block)| block.kind == MemoryKind::Graph && block.gpu == gpu);
        own.map(|(_, block)| block.bytes).sum()
    }
}

/// A range at exactly this address; `None` if it is not free.
fn reserve_at(wish: u64, bytes: u64) -> Option<u64> {
    if wish == 0 {
        return None;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping that takes the place of none.
    let at = unsafe { libc::mmap(wish as *mut libc::c_void, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    if at as u64 != wish {
        // SAFETY: an old kernel took the flag for none and mapped elsewhere; that is ours.
        unsafe { libc::munmap(at, bytes as usize) };
        return None;
    }
    Some(wish)
}

/// A range that begins at a multiple of the alignment: a longer one, cut at its ends.
fn reserve_aligned(bytes: u64, alignment: u64) -> Option<u64> {
    let whole = bytes.checked_add(alignment)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping; the kernel chooses where.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), whole as usize, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let first = at as u64;
    let begin = first.next_multiple_of(alignment);
    for (from, to) in [(first, begin), (begin + bytes, first + whole)] {
        if to > from {
            // SAFETY: an end of the mapping that was just made.
            unsafe { libc::munmap(from as *mut libc::c_void, (to - from) as usize) };
        }
    }
    Some(begin)
}
