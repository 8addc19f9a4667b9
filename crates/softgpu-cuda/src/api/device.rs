//! Start, versions, errors, and what the cards are.

use super::{exports, put};
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering::SeqCst;

/// CUDA 13.0.
pub const DRIVER_VERSION: c_int = 13_000;

exports! {
    fn cuInit(flags: u32) {
        if flags == 0 { Runtime::init() } else { Err(CuResult::INVALID_VALUE) }
    }
    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, DRIVER_VERSION)
    }
    fn cuGetErrorName(error: CuResult, name: *mut *const c_char) {
        let found = error.texts();
        put(name, found.map_or(std::ptr::null(), |(name, _)| name.as_ptr()))?;
        found.map(drop).ok_or(CuResult::INVALID_VALUE)
    }
    fn cuGetErrorString(error: CuResult, text: *mut *const c_char) {
        let found = error.texts();
        put(text, found.map_or(std::ptr::null(), |(_, text)| text.as_ptr()))?;
        found.map(drop).ok_or(CuResult::INVALID_VALUE)
    }
    fn cuDeviceGetCount(count: *mut c_int) {
        put(count, Runtime::get()?.primary.len() as c_int)
    }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        let card = Runtime::get()?.card(ordinal)?;
        put(device, card as c_int)
    }
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) {
        let runtime = Runtime::get()?;
        let card = &runtime.seat.state().cards()[runtime.card(device)?];
        let length = usize::try_from(length).map_err(|_| CuResult::INVALID_VALUE)?;
        let bytes = card.name.iter().map(|byte| byte.load(SeqCst)).take_while(|byte| *byte != 0);
        if length == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for (place, byte) in bytes.take(length - 1).chain([0]).enumerate() {
            put(name.wrapping_add(place), byte as c_char)?;
        }
        Ok(())
    }
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        put(uuid, uuid_of(device)?)
    }
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        put(uuid, uuid_of(device)?)
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let runtime = Runtime::get()?;
        put(bytes, runtime.seat.state().cards()[runtime.card(device)?].total.load(SeqCst) as usize)
    }
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int) {
        Runtime::get()?.card(device)?;
        put(major, 7)?;
        put(minor, 5)
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let card = Runtime::get()?.card(device)?;
        put(value, attribute_of(attribute, card)?)
    }
}

fn uuid_of(device: c_int) -> Outcome<[u8; 16]> {
    let runtime = Runtime::get()?;
    let card = &runtime.seat.state().cards()[runtime.card(device)?];
    Ok(std::array::from_fn(|place| card.uuid[place].load(SeqCst)))
}

/// What the card is, by the numbers of `CUdevice_attribute`: limits of a launch, sizes, clocks, what it
/// can do. What is not named here is not there: zero.
fn attribute_of(attribute: c_int, card: usize) -> Result<c_int, CuResult> {
    let processors = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as c_int);
    let known = match attribute {
        // Threads of a block, in all and along x and y; of a processor.
        1..=3 | 39 => 1024,
        4 => 64,
        // Blocks along x; bytes of a pitch.
        5 | 11 => i32::MAX,
        6 | 7 => 65_535,
        // Shared bytes of a block, constant bytes, shared bytes of a processor and by choice.
        8 => 48 << 10,
        9 | 81 | 97 => 64 << 10,
        10 => 32,
        // Registers of a block and of a processor.
        12 | 82 => 65_536,
        // Clocks in kHz.
        13 | 36 => 1_000_000,
        14 => 512,
        16 => processors(),
        // Maps host memory, kernels beside each other, one address space, priorities, host pointers.
        19 | 31 | 41 | 78 | 89 | 92 => 1,
        33 => 0xa0 + card as c_int,
        37 => 64,
        // Compute capability.
        75 => 7,
        76 => 5,
        106 => 16,
        _ => 0,
    };
    if (1..=160).contains(&attribute) { Ok(known) } else { Err(CuResult::INVALID_VALUE) }
}
