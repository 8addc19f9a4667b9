//! Initialisation, versions, errors, and the properties of the GPUs.

use super::memory::has_managed;
use super::pointers::{CallerOut, CallerText};
use super::{exports, text, write_out};
use crate::function::{BLOCK_MAX, SHARED_MAX, SHARED_USUAL};
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering::SeqCst;

/// CUDA 13.0.
pub const DRIVER_VERSION: c_int = 13_000;

exports! {
    "cuInit" 2000 fn cuInit(flags: u32) {
        if flags == 0 { Runtime::init() } else { Err(CuResult::INVALID_VALUE) }
    }
    "cuDriverGetVersion" 2020 fn cuDriverGetVersion(version: CallerOut<c_int>) {
        write_out(version, DRIVER_VERSION)
    }
    "cuGetErrorName" 6000 fn cuGetErrorName(error: CuResult, name: CallerOut<*const c_char>) {
        let found = error.texts();
        write_out(name, found.map_or(std::ptr::null(), |(name, _)| name.as_ptr()))?;
        found.map(drop).ok_or(CuResult::INVALID_VALUE)
    }
    "cuGetErrorString" 6000 fn cuGetErrorString(error: CuResult, text: CallerOut<*const c_char>) {
        let found = error.texts();
        write_out(text, found.map_or(std::ptr::null(), |(_, text)| text.as_ptr()))?;
        found.map(drop).ok_or(CuResult::INVALID_VALUE)
    }
    "cuDeviceGetCount" 2000 fn cuDeviceGetCount(count: CallerOut<c_int>) {
        write_out(count, Runtime::get()?.visible.len() as c_int)
    }
    "cuDeviceGet" 2000 fn cuDeviceGet(device: CallerOut<c_int>, ordinal: c_int) {
        Runtime::get()?.gpu(ordinal)?;
        write_out(device, ordinal)
    }
    "cuDeviceGetName" 2000 fn cuDeviceGetName(name: CallerOut<c_char>, length: c_int, device: c_int) {
        let runtime = Runtime::get()?;
        let gpu = &runtime.client.state().gpus()[runtime.gpu(device)?];
        write_text_cut(name, length, gpu.name.iter().map(|byte| byte.load(SeqCst)).take_while(|byte| *byte != 0))
    }
    "cuDeviceGetUuid" 9020 fn cuDeviceGetUuid(uuid: CallerOut<[u8; 16]>, device: c_int) {
        write_out(uuid, uuid_of(device)?)
    }
    "cuDeviceGetUuid" 11040 fn cuDeviceGetUuid_v2(uuid: CallerOut<[u8; 16]>, device: c_int) {
        write_out(uuid, uuid_of(device)?)
    }
    "cuDeviceTotalMem" 3020 fn cuDeviceTotalMem_v2(bytes: CallerOut<usize>, device: c_int) {
        let runtime = Runtime::get()?;
        write_out(bytes, runtime.client.state().gpus()[runtime.gpu(device)?].total.load(SeqCst) as usize)
    }
    "cuDeviceComputeCapability" 2000 fn cuDeviceComputeCapability(major: CallerOut<c_int>, minor: CallerOut<c_int>, device: c_int) {
        Runtime::get()?.gpu(device)?;
        write_out(major, 7)?;
        write_out(minor, 5)
    }
    "cuDeviceGetLuid" 10000 fn cuDeviceGetLuid(_luid: *mut c_char, _mask: *mut u32, device: c_int) {
        // Only Windows has this.
        Runtime::get()?.gpu(device)?;
        Err(CuResult::NOT_SUPPORTED)
    }
    "cuDeviceGetPCIBusId" 4010 fn cuDeviceGetPCIBusId(name: CallerOut<c_char>, length: c_int, device: c_int) {
        let gpu = Runtime::get()?.gpu(device)?;
        write_text_cut(name, length, bus_id(gpu).bytes())
    }
    "cuDeviceGetByPCIBusId" 4010 fn cuDeviceGetByPCIBusId(device: CallerOut<c_int>, name: CallerText) {
        let (runtime, name) = (Runtime::get()?, text(&name)?);
        let is_it = |gpu: &usize| {
            let own = bus_id(*gpu);
            // With or without the domain and the function.
            own.eq_ignore_ascii_case(name) || own[5..].eq_ignore_ascii_case(name) || own[..10].eq_ignore_ascii_case(name)
        };
        let found = runtime.visible.iter().position(is_it).ok_or(CuResult::INVALID_DEVICE)?;
        write_out(device, found as c_int)
    }
    "cuDeviceGetProperties" 2000 fn cuDeviceGetProperties(place: CallerOut<[c_int; 14]>, device: c_int) {
        let gpu = Runtime::get()?.gpu(device)?;
        let mut all = [0; 14];
        for (own, attribute) in all.iter_mut().zip([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]) {
            *own = attribute_of(attribute, gpu)?;
        }
        write_out(place, all)
    }
    "cuDeviceCanAccessPeer" 4000 fn cuDeviceCanAccessPeer(answer: CallerOut<c_int>, device: c_int, other: c_int) {
        let runtime = Runtime::get()?;
        write_out(answer, c_int::from(runtime.gpu(device)? != runtime.gpu(other)?))
    }
    "cuDeviceGetP2PAttribute" 8000 fn cuDeviceGetP2PAttribute(
        value: CallerOut<c_int>,
        attribute: c_int,
        device: c_int,
        other: c_int,
    ) {
        let runtime = Runtime::get()?;
        if runtime.gpu(device)? == runtime.gpu(other)? {
            return Err(CuResult::INVALID_DEVICE);
        }
        write_out(value, match attribute {
            1 | 4 | 5 => 0,
            2 | 3 => 1,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }
    "cuDeviceGetExecAffinitySupport" 11040 fn cuDeviceGetExecAffinitySupport(
        answer: CallerOut<c_int>,
        _kind: c_int,
        device: c_int,
    ) {
        Runtime::get()?.gpu(device)?;
        write_out(answer, 0)
    }
    "cuDeviceGetAttribute" 2000 fn cuDeviceGetAttribute(value: CallerOut<c_int>, attribute: c_int, device: c_int) {
        let gpu = Runtime::get()?.gpu(device)?;
        write_out(value, attribute_of(attribute, gpu)?)
    }
}

/// Writes as much of a text as the buffer holds.
fn write_text_cut(place: CallerOut<c_char>, length: c_int, bytes: impl Iterator<Item = u8>) -> Outcome {
    let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1)).ok_or(CuResult::INVALID_VALUE)?;
    for (number, byte) in bytes.take(room).chain([0]).enumerate() {
        // SAFETY: the caller of the C function promises as much room as it states, and no more is written.
        write_out(unsafe { place.at(number) }, byte as c_char)?;
    }
    Ok(())
}

/// The bus id of a GPU, the same as NVML reports.
fn bus_id(gpu: usize) -> String {
    format!("0000:{:02X}:00.0", 0xa0 + gpu)
}

fn uuid_of(device: c_int) -> Outcome<[u8; 16]> {
    let runtime = Runtime::get()?;
    let gpu = &runtime.client.state().gpus()[runtime.gpu(device)?];
    Ok(std::array::from_fn(|place| gpu.uuid[place].load(SeqCst)))
}

/// An attribute of a GPU, by the numbers of `CUdevice_attribute`: limits of a launch, sizes, clocks, abilities. An
/// attribute that is not listed here is zero.
fn attribute_of(attribute: c_int, gpu: usize) -> Result<c_int, CuResult> {
    let processors = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as c_int);
    let known = match attribute {
        // Threads of a block, in all and along x and y; of a processor.
        1..=3 | 39 => BLOCK_MAX as c_int,
        4 => 64,
        // Blocks along x; bytes of a pitch.
        5 | 11 => i32::MAX,
        6 | 7 => 65_535,
        // Shared bytes of a block, constant bytes, shared bytes of a processor and by choice.
        8 => SHARED_USUAL as c_int,
        9 | 81 | 97 => SHARED_MAX as c_int,
        10 => 32,
        // Registers of a block and of a processor.
        12 | 82 => 65_536,
        // Clocks in kHz.
        13 | 36 => 1_000_000,
        14 => 512,
        16 => processors(),
        // Copies beside kernels, host memory mapped, kernels beside each other, one address space,
        // priorities, waiting for values (both forms), atomics to the host, registering, mapping.
        15 | 19 | 31 | 40 | 41 | 78 | 92 | 93 | 94 | 99 | 102 | 103 | 115 | 122 => 1,
        // Other devices may have access to memory, also if it is mapped.
        110 | 116 => 1,
        // Managed memory, and beside kernels of others.
        83 => c_int::from(has_managed()),
        33 => 0xa0 + gpu as c_int,
        37 => 64,
        38 => 4 << 20,
        // Compute capability.
        75 => 7,
        76 => 5,
        // The host's pointers are the GPU's.
        91 => 1,
        106 => 16,
        // Handle types with which pools can be shared: none.
        119 => 0,
        _ => 0,
    };
    if (1..=160).contains(&attribute) { Ok(known) } else { Err(CuResult::INVALID_VALUE) }
}
