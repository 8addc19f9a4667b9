//! Memory that is not moved, and memory of the program's own that other functions get by its handle.

use super::real_handle;
use crate::driver::{self, result_code};
use crate::gate;
use crate::lease_page;
use crate::message::ParkObstacle;
use crate::out_pointer::{InPtr, OutPtr};
use crate::unmovable_memory::{self, ArrayShape};
use std::ffi::{c_char, c_int, c_void};

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: c_int = 8;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const ALLOCATES: c_int = 10;

/// Memory at one address for several GPUs: the program has a handle of the shim for its part.
pub unsafe extern "C" fn multicast_bind(
    into: u64,
    offset: usize,
    handle: u64,
    from: usize,
    bytes: usize,
    flags: u64,
) -> u32 {
    let handle = real_handle(handle);
    call_driver!(into: u64, offset: usize, handle: u64, from: usize, bytes: usize, flags: u64)
}

/// `CUarrayMapInfo`: which part of an array is at which offset of which memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ArrayMap {
    resource: [u64; 2],
    part: [u64; 5],
    operation: u64,
    handle: u64,
    rest: [u64; 3],
}

const _: () = assert!(size_of::<ArrayMap>() == 96 && std::mem::offset_of!(ArrayMap, handle) == 64);

pub unsafe extern "C" fn map_arrays(given: InPtr<ArrayMap>, count: u32, stream: usize) -> u32 {
    if given.is_null() {
        return call_driver!(given: InPtr<ArrayMap>, count: u32, stream: usize);
    }
    // SAFETY: the program promises that there are that many.
    let read = unsafe { given.read_list(count as usize) }.into_iter();
    let own: Vec<ArrayMap> = read.map(|map| ArrayMap { handle: real_handle(map.handle), ..map }).collect();
    let given = InPtr::to_list(&own);
    call_driver!(given: InPtr<ArrayMap>, count: u32, stream: usize)
}

/// Makes an array of a given shape.
///
/// # Safety
/// If `call_driver` succeeds, it has written the array's handle to `place`.
unsafe fn make_array(place: OutPtr<u64>, shape: &ArrayShape, levels: u32, call_driver: impl Fn() -> u32) -> u32 {
    result_code(unmovable_memory::allocate_unmovable(
        ParkObstacle::Arrays,
        shape.bytes(levels),
        gate::current_slot().name(),
        || {
            driver::as_result(call_driver())?;
            // SAFETY: the caller promises that the driver has just written there.
            unsafe { place.read() }.ok_or(driver::INVALID_VALUE)
        },
    ))
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FlatShape {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

pub unsafe extern "C" fn array_create(place: OutPtr<u64>, about: InPtr<FlatShape>) -> u32 {
    let call_driver = || call_driver!(place: OutPtr<u64>, about: InPtr<FlatShape>);
    let Some(about) = about.read().filter(|_| !place.is_null()) else { return call_driver() };
    let FlatShape { width, height, format, channels } = about;
    let shape = ArrayShape { width, height, format, channels, ..ArrayShape::default() };
    // SAFETY: the driver's function writes the handle to `place`.
    unsafe { make_array(place, &shape, 1, call_driver) }
}

pub unsafe extern "C" fn array_3d_create(place: OutPtr<u64>, about: InPtr<ArrayShape>) -> u32 {
    let call_driver = || call_driver!(place: OutPtr<u64>, about: InPtr<ArrayShape>);
    let Some(shape) = about.read().filter(|_| !place.is_null()) else { return call_driver() };
    // SAFETY: the driver's function writes the handle to `place`.
    unsafe { make_array(place, &shape, 1, call_driver) }
}

pub unsafe extern "C" fn mipmap_create(place: OutPtr<u64>, about: InPtr<ArrayShape>, levels: u32) -> u32 {
    let call_driver = || call_driver!(place: OutPtr<u64>, about: InPtr<ArrayShape>, levels: u32);
    let Some(shape) = about.read().filter(|_| !place.is_null()) else { return call_driver() };
    // SAFETY: the driver's function writes the handle to `place`.
    unsafe { make_array(place, &shape, levels, call_driver) }
}

pub unsafe extern "C" fn array_destroy(handle: u64) -> u32 {
    let result = call_driver!(handle: u64);
    if result == driver::SUCCESS {
        unmovable_memory::forget(ParkObstacle::Arrays, handle);
    }
    result
}

/// Managed memory may be anywhere, so all of it may be on the GPU.
pub unsafe extern "C" fn alloc_managed(place: OutPtr<u64>, bytes: usize, flags: u32) -> u32 {
    let call_driver = || call_driver!(place: OutPtr<u64>, bytes: usize, flags: u32);
    if place.is_null() || bytes == 0 {
        return call_driver();
    }
    result_code(unmovable_memory::allocate_unmovable(ParkObstacle::Managed, bytes as u64, "cuMemAllocManaged", || {
        driver::as_result(call_driver())?;
        // SAFETY: the driver has just written there.
        unsafe { place.read() }.ok_or(driver::INVALID_VALUE)
    }))
}

/// A variable of a module may be managed, too: that is checked when the program asks for its address.
pub unsafe extern "C" fn module_global(
    place: OutPtr<u64>,
    bytes: OutPtr<usize>,
    module: usize,
    name: *const c_char,
) -> u32 {
    let mut at = 0;
    // SAFETY: the variable lives until the call returns.
    let own = unsafe { OutPtr::new(&raw mut at) };
    let result = call_driver!(own: OutPtr<u64>, bytes: OutPtr<usize>, module: usize, name: *const c_char);
    if result != driver::SUCCESS {
        return result;
    }
    mark_if_managed(at, gate::current_slot().name());
    result_code(place.write_if_wanted(at))
}

/// Marks the program as not parkable if an address is of managed memory, which the driver moves itself.
pub fn mark_if_managed(at: u64, call: &str) {
    let mut is_managed = 0_u32;
    // SAFETY: this attribute has one byte.
    let asked = unsafe { driver::cuPointerGetAttribute((&raw mut is_managed).cast::<c_void>(), IS_MANAGED, at) };
    if asked == driver::SUCCESS && is_managed != 0 {
        lease_page::set_obstacle(ParkObstacle::Managed, call);
    }
}

/// Notes a graph node that allocates: `CUgraphNodeParams` begins with the node's type.
fn note_allocating_node(result: u32, about: InPtr<c_int>) -> u32 {
    if result == driver::SUCCESS && about.read() == Some(ALLOCATES) {
        unmovable_memory::note_allocating_graph("cuGraphAddNode");
    }
    result
}

pub unsafe extern "C" fn graph_add_node(
    place: *mut c_void,
    graph: usize,
    after: *const c_void,
    count: usize,
    about: InPtr<c_int>,
) -> u32 {
    let result =
        call_driver!(place: *mut c_void, graph: usize, after: *const c_void, count: usize, about: InPtr<c_int>);
    note_allocating_node(result, about)
}

pub unsafe extern "C" fn graph_add_node_of_edges(
    place: *mut c_void,
    graph: usize,
    after: *const c_void,
    edges: *const c_void,
    count: usize,
    about: InPtr<c_int>,
) -> u32 {
    let result = call_driver!(
        place: *mut c_void, graph: usize, after: *const c_void, edges: *const c_void, count: usize, about: InPtr<c_int>
    );
    note_allocating_node(result, about)
}
