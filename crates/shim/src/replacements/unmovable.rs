//! Memory that is not moved, and memory of the program's own that other functions get by its handle.

use super::{put, real_handle, told};
use crate::driver;
use crate::fixed::{self, ArrayShape};
use crate::gate;
use crate::page::{self, Reason};
use std::ffi::{c_char, c_int, c_void};

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: c_int = 8;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const ALLOCATES: c_int = 10;

/// Memory at one address for several GPUs: the program has a handle of the shim for its part.
pub extern "C" fn multicast_bind(into: u64, offset: usize, handle: u64, from: usize, bytes: usize, flags: u64) -> u32 {
    let handle = real_handle(handle);
    real!(into: u64, offset: usize, handle: u64, from: usize, bytes: usize, flags: u64)
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

pub extern "C" fn map_arrays(given: *const ArrayMap, count: u32, stream: usize) -> u32 {
    if given.is_null() {
        return real!(given: *const ArrayMap, count: u32, stream: usize);
    }
    // SAFETY: the program promises that there are that many.
    let read = (0..count as usize).map(|number| unsafe { given.add(number).read_unaligned() });
    let own: Vec<ArrayMap> = read.map(|map| ArrayMap { handle: real_handle(map.handle), ..map }).collect();
    let given = own.as_ptr();
    real!(given: *const ArrayMap, count: u32, stream: usize)
}

/// Makes an array of a given shape.
fn make_array(place: *mut u64, shape: &ArrayShape, levels: u32, real: impl Fn() -> u32) -> u32 {
    told(fixed::make(Reason::Arrays, shape.bytes(levels), gate::current().name(), || {
        driver::done(real())?;
        // SAFETY: the driver has just written there.
        Ok(unsafe { place.read_unaligned() })
    }))
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

pub extern "C" fn array_create(place: *mut u64, about: *const FlatShape) -> u32 {
    let real = || real!(place: *mut u64, about: *const FlatShape);
    if place.is_null() || about.is_null() {
        return real();
    }
    // SAFETY: the program promises that a pointer that is not null can be read.
    let FlatShape { width, height, format, channels } = unsafe { about.read_unaligned() };
    make_array(place, &ArrayShape { width, height, format, channels, ..ArrayShape::default() }, 1, real)
}

pub extern "C" fn array_3d_create(place: *mut u64, about: *const ArrayShape) -> u32 {
    let real = || real!(place: *mut u64, about: *const ArrayShape);
    if place.is_null() || about.is_null() {
        return real();
    }
    // SAFETY: as above.
    make_array(place, &unsafe { about.read_unaligned() }, 1, real)
}

pub extern "C" fn mipmap_create(place: *mut u64, about: *const ArrayShape, levels: u32) -> u32 {
    let real = || real!(place: *mut u64, about: *const ArrayShape, levels: u32);
    if place.is_null() || about.is_null() {
        return real();
    }
    // SAFETY: as above.
    make_array(place, &unsafe { about.read_unaligned() }, levels, real)
}

pub extern "C" fn array_destroy(handle: u64) -> u32 {
    let result = real!(handle: u64);
    if result == driver::SUCCESS {
        fixed::forget(Reason::Arrays, handle);
    }
    result
}

/// Managed memory may be anywhere, so all of it may be on the GPU.
pub extern "C" fn alloc_managed(place: *mut u64, bytes: usize, flags: u32) -> u32 {
    let real = || real!(place: *mut u64, bytes: usize, flags: u32);
    if place.is_null() || bytes == 0 {
        return real();
    }
    told(fixed::make(Reason::Managed, bytes as u64, "cuMemAllocManaged", || {
        driver::done(real())?;
        // SAFETY: the driver has just written there.
        Ok(unsafe { place.read_unaligned() })
    }))
}

/// A variable of a module may be managed, too: that is checked when the program asks for its address.
pub extern "C" fn module_global(place: *mut u64, bytes: *mut usize, module: usize, name: *const c_char) -> u32 {
    let mut at = 0;
    let own: *mut u64 = &raw mut at;
    let result = real!(own: *mut u64, bytes: *mut usize, module: usize, name: *const c_char);
    if result != driver::SUCCESS {
        return result;
    }
    look_whether_managed(at, gate::current().name());
    if place.is_null() { result } else { told(put(place, at)) }
}

/// Marks the program as not parkable if an address is of managed memory, which the driver moves itself.
pub fn look_whether_managed(at: u64, call: &str) {
    let mut is_managed = 0_u32;
    let asked = driver::cuPointerGetAttribute((&raw mut is_managed).cast(), IS_MANAGED, at);
    if asked == driver::SUCCESS && is_managed != 0 {
        page::mark_not_parkable(Reason::Managed, call);
    }
}

/// Notes a graph node that allocates: `CUgraphNodeParams` begins with the node's type.
fn noted(result: u32, about: *const c_int) -> u32 {
    // SAFETY: the driver has just read it.
    if result == driver::SUCCESS && !about.is_null() && unsafe { about.read_unaligned() } == ALLOCATES {
        fixed::graph_allocates("cuGraphAddNode");
    }
    result
}

pub extern "C" fn graph_add_node(
    place: *mut c_void,
    graph: usize,
    after: *const c_void,
    count: usize,
    about: *const c_int,
) -> u32 {
    let result = real!(place: *mut c_void, graph: usize, after: *const c_void, count: usize, about: *const c_int);
    noted(result, about)
}

pub extern "C" fn graph_add_node_of_edges(
    place: *mut c_void,
    graph: usize,
    after: *const c_void,
    edges: *const c_void,
    count: usize,
    about: *const c_int,
) -> u32 {
    let result = real!(
        place: *mut c_void, graph: usize, after: *const c_void, edges: *const c_void, count: usize, about: *const c_int
    );
    noted(result, about)
}
