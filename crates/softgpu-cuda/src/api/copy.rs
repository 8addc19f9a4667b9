//! Copies and fills of all shapes, synchronous or in a stream's order.

use super::pointers::CallerIn;
use super::{read_in, streamed};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, context_named};
use crate::stream::{WorkStream, finish, resolve, submit_or_capture};
use crate::work::{AddressKind, CopyEnd, CopyJob, FillJob, JobWork};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// When a call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallReturn {
    /// When the copy is done, in the default stream.
    Done,
    /// When the copy is in that stream.
    Submitted(usize),
}

/// A 2D copy: `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Memcpy2D {
    from_x: usize,
    from_y: usize,
    from_type: c_int,
    from_host: *const c_void,
    from_device: u64,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_int,
    to_host: *mut c_void,
    to_device: u64,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// A 3D copy: `CUDA_MEMCPY3D` and its form for two contexts.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Memcpy3D {
    from_x: usize,
    from_y: usize,
    from_z: usize,
    from_level: usize,
    from_type: c_int,
    from_host: *const c_void,
    from_device: u64,
    from_array: usize,
    from_context: usize,
    from_pitch: usize,
    from_height: usize,
    to_x: usize,
    to_y: usize,
    to_z: usize,
    to_level: usize,
    to_type: c_int,
    to_host: *mut c_void,
    to_device: u64,
    to_array: usize,
    to_context: usize,
    to_pitch: usize,
    to_height: usize,
    width: usize,
    height: usize,
    depth: usize,
}

/// One end as a program describes it: `CUmemorytype`, both addresses, and the offset in it.
struct DescribedEnd {
    kind: c_int,
    host: u64,
    device: u64,
    pitch: usize,
    height: usize,
    begin: [usize; 3],
}

impl DescribedEnd {
    fn end(&self, width: usize, height: usize) -> Outcome<CopyEnd> {
        let (at, address_kind) = match self.kind {
            1 => (self.host, AddressKind::Host),
            2 => (self.device, AddressKind::Gpu),
            4 => (self.device, AddressKind::Either),
            3 => {
                crate::log::once("arrays are not supported");
                return Err(CuResult::NOT_SUPPORTED);
            }
            _ => return Err(CuResult::INVALID_VALUE),
        };
        let [x, y, z] = self.begin.map(|begin| begin as u64);
        // A pitch of zero means the width of the copy.
        let pitch = if self.pitch == 0 { width } else { self.pitch } as u64;
        let lines = if self.height == 0 { height } else { self.height } as u64;
        let layer = pitch.checked_mul(lines).ok_or(CuResult::INVALID_VALUE)?;
        let offset = z.checked_mul(layer).zip(y.checked_mul(pitch)).and_then(|(z, y)| z.checked_add(y)?.checked_add(x));
        let at = offset.and_then(|offset| at.checked_add(offset)).ok_or(CuResult::INVALID_VALUE)?;
        Ok(CopyEnd { at, pitch, layer, address_kind })
    }
}

impl Memcpy2D {
    fn copy(&self) -> Outcome<CopyJob> {
        let from = DescribedEnd {
            kind: self.from_type,
            host: self.from_host as u64,
            device: self.from_device,
            pitch: self.from_pitch,
            height: 0,
            begin: [self.from_x, self.from_y, 0],
        };
        let to = DescribedEnd {
            kind: self.to_type,
            host: self.to_host as u64,
            device: self.to_device,
            pitch: self.to_pitch,
            height: 0,
            begin: [self.to_x, self.to_y, 0],
        };
        Ok(CopyJob {
            from: from.end(self.width, self.height)?,
            to: to.end(self.width, self.height)?,
            width: self.width as u64,
            height: self.height as u64,
            depth: 1,
        })
    }
}

impl Memcpy3D {
    /// What is to be copied.
    pub fn copy(&self) -> Outcome<CopyJob> {
        let from = DescribedEnd {
            kind: self.from_type,
            host: self.from_host as u64,
            device: self.from_device,
            pitch: self.from_pitch,
            height: self.from_height,
            begin: [self.from_x, self.from_y, self.from_z],
        };
        let to = DescribedEnd {
            kind: self.to_type,
            host: self.to_host as u64,
            device: self.to_device,
            pitch: self.to_pitch,
            height: self.to_height,
            begin: [self.to_x, self.to_y, self.to_z],
        };
        Ok(CopyJob {
            from: from.end(self.width, self.height)?,
            to: to.end(self.width, self.height)?,
            width: self.width as u64,
            height: self.height as u64,
            depth: self.depth as u64,
        })
    }
}

fn place(when: CallReturn, own: bool) -> Outcome<(&'static Runtime, Arc<WorkStream>)> {
    resolve(if let CallReturn::Submitted(stream) = when { stream } else { 0 }, own)
}

fn copy(copy: CopyJob, when: CallReturn, own: bool) -> Outcome {
    let (runtime, stream) = place(when, own)?;
    let _pass = runtime.client.pass_gate();
    let is_captured = when != CallReturn::Done && runtime.frontier(&stream)?.is_some();
    // Memory that a graph allocates when it runs may not be there yet.
    if ![copy.to.at, copy.from.at].iter().any(|at| runtime.is_graph_memory(*at)) {
        copy.check(runtime)?;
    }
    // Memory of the program that is not registered may be reused when the call returns.
    if when == CallReturn::Done || (!is_captured && copy.touches_pageable(runtime)) {
        finish(runtime, &stream, JobWork::Copy(copy))
    } else {
        submit_or_capture(runtime, &stream, JobWork::Copy(copy))
    }
}

fn fill(fill: FillJob, when: CallReturn, own: bool) -> Outcome {
    let (runtime, stream) = place(when, own)?;
    let _pass = runtime.client.pass_gate();
    if !runtime.is_graph_memory(fill.at) {
        fill.check(runtime)?;
    }
    match when {
        CallReturn::Done => finish(runtime, &stream, JobWork::Fill(fill)),
        CallReturn::Submitted(_) => submit_or_capture(runtime, &stream, JobWork::Fill(fill)),
    }
}

fn line(at: u64, value: u32, element: u32, count: usize) -> FillJob {
    FillJob { at, pitch: 0, value, element, width: count as u64, height: 1 }
}

fn lines(at: u64, pitch: usize, value: u32, element: u32, size: (usize, usize)) -> FillJob {
    FillJob { at, pitch: pitch as u64, value, element, width: size.0 as u64, height: size.1 as u64 }
}

fn host_to_device(to: u64, from: *const c_void, bytes: usize) -> CopyJob {
    CopyJob::plain((to, AddressKind::Gpu), (from as u64, AddressKind::Either), bytes as u64)
}

fn device_to_host(to: *mut c_void, from: u64, bytes: usize) -> CopyJob {
    CopyJob::plain((to as u64, AddressKind::Either), (from, AddressKind::Gpu), bytes as u64)
}

fn device_to_device(to: u64, from: u64, bytes: usize) -> CopyJob {
    CopyJob::plain((to, AddressKind::Gpu), (from, AddressKind::Gpu), bytes as u64)
}

fn between_any(to: u64, from: u64, bytes: usize) -> CopyJob {
    CopyJob::plain((to, AddressKind::Either), (from, AddressKind::Either), bytes as u64)
}

fn peer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) -> Outcome<CopyJob> {
    context_named(to_context)?;
    context_named(from_context)?;
    Ok(device_to_device(to, from, bytes))
}

fn check_prefetch(at: u64, when: CallReturn, own: bool) -> Outcome {
    let (runtime, stream) = place(when, own)?;
    let _pass = runtime.client.pass_gate();
    match runtime.space.snapshot().find(at).map(|(_, block)| block.kind) {
        // Managed memory is already where it is wanted.
        Some(crate::space::MemoryKind::Managed) => submit_or_capture(runtime, &stream, JobWork::Nothing),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

streamed! { own;
    "cuMemcpy" 4000 fn cuMemcpy, cuMemcpy_ptds(to: u64, from: u64, bytes: usize) {
        copy(between_any(to, from, bytes), CallReturn::Done, own)
    }
    "cuMemcpyAsync" 4000 fn cuMemcpyAsync, cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(between_any(to, from, bytes), CallReturn::Submitted(stream), own)
    }
    "cuMemcpyHtoD" 3020 fn cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds(to: u64, from: *const c_void, bytes: usize) {
        copy(host_to_device(to, from, bytes), CallReturn::Done, own)
    }
    "cuMemcpyHtoDAsync" 3020 fn cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz(
        to: u64, from: *const c_void, bytes: usize, stream: usize,
    ) {
        copy(host_to_device(to, from, bytes), CallReturn::Submitted(stream), own)
    }
    "cuMemcpyDtoH" 3020 fn cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: u64, bytes: usize) {
        copy(device_to_host(to, from, bytes), CallReturn::Done, own)
    }
    "cuMemcpyDtoHAsync" 3020 fn cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz(
        to: *mut c_void, from: u64, bytes: usize, stream: usize,
    ) {
        copy(device_to_host(to, from, bytes), CallReturn::Submitted(stream), own)
    }
    "cuMemcpyDtoD" 3020 fn cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize) {
        copy(device_to_device(to, from, bytes), CallReturn::Done, own)
    }
    "cuMemcpyDtoDAsync" 3020 fn cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(
        to: u64, from: u64, bytes: usize, stream: usize,
    ) {
        copy(device_to_device(to, from, bytes), CallReturn::Submitted(stream), own)
    }
    "cuMemcpyPeer" 4000 fn cuMemcpyPeer, cuMemcpyPeer_ptds(
        to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize,
    ) {
        copy(peer(to, to_context, from, from_context, bytes)?, CallReturn::Done, own)
    }
    "cuMemcpyPeerAsync" 4000 fn cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz(
        to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize,
    ) {
        copy(peer(to, to_context, from, from_context, bytes)?, CallReturn::Submitted(stream), own)
    }
    "cuMemcpy2D" 3020 fn cuMemcpy2D_v2, cuMemcpy2D_v2_ptds(given: CallerIn<Memcpy2D>) {
        copy(read_in(given)?.copy()?, CallReturn::Done, own)
    }
    "cuMemcpy2DUnaligned" 3020 fn cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds(given: CallerIn<Memcpy2D>) {
        copy(read_in(given)?.copy()?, CallReturn::Done, own)
    }
    "cuMemcpy2DAsync" 3020 fn cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz(given: CallerIn<Memcpy2D>, stream: usize) {
        copy(read_in(given)?.copy()?, CallReturn::Submitted(stream), own)
    }
    "cuMemcpy3D" 3020 fn cuMemcpy3D_v2, cuMemcpy3D_v2_ptds(given: CallerIn<Memcpy3D>) {
        copy(read_in(given)?.copy()?, CallReturn::Done, own)
    }
    "cuMemcpy3DAsync" 3020 fn cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz(given: CallerIn<Memcpy3D>, stream: usize) {
        copy(read_in(given)?.copy()?, CallReturn::Submitted(stream), own)
    }
    "cuMemcpy3DPeer" 4000 fn cuMemcpy3DPeer, cuMemcpy3DPeer_ptds(given: CallerIn<Memcpy3D>) {
        copy(read_in(given)?.copy()?, CallReturn::Done, own)
    }
    "cuMemcpy3DPeerAsync" 4000 fn cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz(given: CallerIn<Memcpy3D>, stream: usize) {
        copy(read_in(given)?.copy()?, CallReturn::Submitted(stream), own)
    }
    "cuMemsetD8" 3020 fn cuMemsetD8_v2, cuMemsetD8_v2_ptds(at: u64, value: u8, count: usize) {
        fill(line(at, value.into(), 1, count), CallReturn::Done, own)
    }
    "cuMemsetD16" 3020 fn cuMemsetD16_v2, cuMemsetD16_v2_ptds(at: u64, value: u16, count: usize) {
        fill(line(at, value.into(), 2, count), CallReturn::Done, own)
    }
    "cuMemsetD32" 3020 fn cuMemsetD32_v2, cuMemsetD32_v2_ptds(at: u64, value: u32, count: usize) {
        fill(line(at, value, 4, count), CallReturn::Done, own)
    }
    "cuMemsetD8Async" 3020 fn cuMemsetD8Async, cuMemsetD8Async_ptsz(at: u64, value: u8, count: usize, stream: usize) {
        fill(line(at, value.into(), 1, count), CallReturn::Submitted(stream), own)
    }
    "cuMemsetD16Async" 3020 fn cuMemsetD16Async, cuMemsetD16Async_ptsz(
        at: u64, value: u16, count: usize, stream: usize,
    ) {
        fill(line(at, value.into(), 2, count), CallReturn::Submitted(stream), own)
    }
    "cuMemsetD32Async" 3020 fn cuMemsetD32Async, cuMemsetD32Async_ptsz(
        at: u64, value: u32, count: usize, stream: usize,
    ) {
        fill(line(at, value, 4, count), CallReturn::Submitted(stream), own)
    }
    "cuMemsetD2D8" 3020 fn cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds(
        at: u64, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        fill(lines(at, pitch, value.into(), 1, (width, height)), CallReturn::Done, own)
    }
    "cuMemsetD2D16" 3020 fn cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds(
        at: u64, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        fill(lines(at, pitch, value.into(), 2, (width, height)), CallReturn::Done, own)
    }
    "cuMemsetD2D32" 3020 fn cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds(
        at: u64, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        fill(lines(at, pitch, value, 4, (width, height)), CallReturn::Done, own)
    }
    "cuMemsetD2D8Async" 3020 fn cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz(
        at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize,
    ) {
        fill(lines(at, pitch, value.into(), 1, (width, height)), CallReturn::Submitted(stream), own)
    }
    "cuMemsetD2D16Async" 3020 fn cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz(
        at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize,
    ) {
        fill(lines(at, pitch, value.into(), 2, (width, height)), CallReturn::Submitted(stream), own)
    }
    "cuMemsetD2D32Async" 3020 fn cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz(
        at: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize,
    ) {
        fill(lines(at, pitch, value, 4, (width, height)), CallReturn::Submitted(stream), own)
    }
    "cuMemPrefetchAsync" 8000 fn cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz(
        at: u64, _count: usize, _device: c_int, stream: usize,
    ) {
        check_prefetch(at, CallReturn::Submitted(stream), own)
    }
    "cuMemPrefetchAsync" 12020 fn cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz(
        at: u64, _count: usize, _location: u64, _flags: u32, stream: usize,
    ) {
        check_prefetch(at, CallReturn::Submitted(stream), own)
    }
}
