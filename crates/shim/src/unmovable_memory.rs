//! Memory that the shim cannot move: arrays, managed memory, and memory that CUDA graphs allocate. It counts against
//! the lease as any other memory, and while there is some its holder is not parked.

use crate::contexts;
use crate::driver::{self, as_result, current_context};
use crate::gate;
use crate::gpu_memory::uuid;
use crate::lease_page;
use crate::message::ParkObstacle;
use crate::pool;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// An array, or an allocation of managed memory.
struct UnmovableAllocation {
    bytes: u64,
    device: c_int,
    context: usize,
}

/// All arrays and managed memory, by reason and by handle or address.
static ALLOCATIONS: Mutex<BTreeMap<(u32, u64), UnmovableAllocation>> = Mutex::new(BTreeMap::new());

fn with_allocations<T>(body: impl FnOnce(&mut BTreeMap<(u32, u64), UnmovableAllocation>) -> T) -> T {
    body(&mut ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Allocates with the driver's function, which returns the new handle, if the lease has the bytes.
pub fn allocate_unmovable(
    reason: ParkObstacle,
    bytes: u64,
    call: &str,
    real: impl Fn() -> Result<u64, u32>,
) -> Result<(), u32> {
    let (context, device) = current_context()?;
    let uuid = uuid(device);
    let is_there = lease_page::reserve(&uuid, device, bytes)
        || (pool::release_idle_spans(device) && lease_page::reserve(&uuid, device, bytes));
    if !is_there {
        return Err(driver::OUT_OF_MEMORY);
    }
    let made = match real() {
        Err(driver::OUT_OF_MEMORY) if pool::release_idle_spans(device) => real(),
        other => other,
    };
    match made {
        Ok(handle) => {
            with_allocations(|all| all.insert((reason as u32, handle), UnmovableAllocation { bytes, device, context }));
            lease_page::count_obstacle(reason, call);
            Ok(())
        }
        Err(error) => {
            lease_page::give_back(&uuid, device, bytes);
            Err(error)
        }
    }
}

/// Forgets an allocation that was freed.
pub fn forget(reason: ParkObstacle, handle: u64) {
    if let Some(gone) = with_allocations(|all| all.remove(&(reason as u32, handle))) {
        lease_page::give_back(&uuid(gone.device), gone.device, gone.bytes);
        lease_page::uncount_obstacle(reason);
    }
}

/// Forgets what was made in a context that is gone.
pub fn forget_context(context: usize) {
    let gone: Vec<(u32, u64)> = with_allocations(|all| {
        let own = all.iter().filter(|(_, fixed)| fixed.context == context);
        own.map(|(key, _)| *key).collect()
    });
    for (bits, handle) in gone {
        if let Some(reason) = ParkObstacle::first(bits) {
            forget(reason, handle);
        }
    }
}

/// An array as programs request it: `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ArrayShape {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// `CUDA_ARRAY3D_LAYERED`: the depth is the number of layers, which does not shrink from level to level.
const LAYERED: u32 = 1;
/// `CUDA_ARRAY3D_SPARSE`, `CUDA_ARRAY3D_DEFERRED_MAPPING`: the program provides the memory.
const PROVIDED_BY_PROGRAM: u32 = 0x40 | 0x80;

impl ArrayShape {
    /// The bytes of the array with `levels` levels.
    pub fn bytes(&self, levels: u32) -> u64 {
        if self.flags & PROVIDED_BY_PROGRAM != 0 {
            return 0;
        }
        let level = |number: u32| {
            let at = |size: usize| (size as u64).checked_shr(number).unwrap_or(0).max(1);
            let depth = if self.flags & LAYERED != 0 { (self.depth as u64).max(1) } else { at(self.depth) };
            at(self.width).saturating_mul(at(self.height)).saturating_mul(depth).saturating_mul(self.element())
        };
        (0..levels.clamp(1, 64)).fold(0, |sum: u64, number| sum.saturating_add(level(number)))
    }

    /// The bytes of an element; an unknown format counts as the largest there is.
    fn element(&self) -> u64 {
        let of_channels = |bytes: u64| bytes * u64::from(self.channels).clamp(1, 4);
        match self.format {
            0x01 | 0x08 => of_channels(1),
            0x02 | 0x09 | 0x10 => of_channels(2),
            0x03 | 0x0a | 0x20 => of_channels(4),
            // Block-compressed formats (16 elements a block), and planar pictures.
            0x91..=0x9e => 1,
            0xb0 => 2,
            0xc0 | 0xc6 => 1,
            0xc1 | 0xc3 | 0xc7 | 0xc9 => 2,
            0xc2 | 0xc4 | 0xc8 | 0xca => 4,
            0xc5 | 0xcb => 8,
            _ => 16,
        }
    }
}

/// What graphs had when it was last counted, by device number.
static GRAPH_BYTES: Mutex<BTreeMap<c_int, u64>> = Mutex::new(BTreeMap::new());
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED_NOW: c_int = 2;

/// Notes that a graph was made that allocates memory.
pub fn note_allocating_graph(call: &str) {
    lease_page::set_obstacle(ParkObstacle::GraphMemory, call);
}

/// Counts the memory of graphs on all GPUs. While they have some the holder is not parked. While a graph is being
/// captured, nothing is counted.
pub fn count_graph_memory() {
    if !gate::is_capturing() {
        count_on_all_devices(|_| {});
    }
}

/// Frees the memory that graphs only keep for their next run, and counts the rest.
pub fn trim_graph_memory() {
    count_on_all_devices(|device| {
        driver::cuDeviceGraphMemTrim(device);
    });
}

/// Counts the memory of graphs on each device, after calling `prepare` for it.
fn count_on_all_devices(prepare: impl Fn(c_int)) {
    if !lease_page::was_ever_set(ParkObstacle::GraphMemory) {
        return;
    }
    let mut count = 0;
    driver::cuDeviceGetCount(&mut count);
    let mut all = 0;
    // A context that ends meanwhile would take its graphs along.
    let _stay = contexts::keep_all();
    for device in 0..count {
        prepare(device);
        let mut bytes = 0_u64;
        // SAFETY: this attribute has eight bytes, and there is room for them.
        let asked =
            unsafe { driver::cuDeviceGetGraphMemAttribute(device, RESERVED_NOW, (&raw mut bytes).cast::<c_void>()) };
        if as_result(asked).is_err() {
            // An answer that cannot be had does not mean zero.
            return;
        }
        all += bytes;
        let before = GRAPH_BYTES.lock().unwrap_or_else(PoisonError::into_inner).insert(device, bytes).unwrap_or(0);
        if bytes != before {
            lease_page::recount(&uuid(device), device, before, bytes);
        }
    }
    match all {
        0 => lease_page::clear_obstacle(ParkObstacle::GraphMemory),
        _ => lease_page::set_obstacle(ParkObstacle::GraphMemory, "a graph"),
    }
}

#[cfg(test)]
mod tests {
    use super::ArrayShape;

    #[test]
    fn arrays_have_as_many_bytes_as_their_elements() {
        let plain = ArrayShape { width: 1024, format: 0x20, channels: 4, ..ArrayShape::default() };
        assert_eq!(plain.bytes(1), 1024 * 16);
        let flat = ArrayShape { height: 512, ..plain };
        assert_eq!(flat.bytes(1), 1024 * 512 * 16);
        assert_eq!(flat.bytes(2), 1024 * 512 * 16 * 5 / 4, "each level has a quarter of the one before");
        let layers = ArrayShape { depth: 6, flags: 1, ..flat };
        assert_eq!(layers.bytes(2), 6 * flat.bytes(2), "there are as many layers in each level");
        assert_eq!(ArrayShape { flags: 0x40, ..flat }.bytes(1), 0, "the program brings the memory");
        let unknown = ArrayShape { format: 0x7777, ..plain };
        assert!(unknown.bytes(1) >= plain.bytes(1) && unknown.bytes(u32::MAX) > 0);
    }
}
