//! What a job does: copies, fills, kernels, calls of the program, and operations of the order itself.

use crate::function::KernelCall;
use crate::graph::WorkGraph;
use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime, call_in_stream};
use crate::space::{MemoryKind, MemorySnapshot};
use crate::stream::StreamEvent;
use crate::vmm::GraphAddress;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};
use sublet_softgpu::state::now_ns;

/// A function of the program, and its argument.
#[derive(Clone, Copy)]
pub struct HostCall {
    /// The function.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// Its argument.
    pub data: *mut c_void,
}

/// A function of the program that is told the state of its stream.
#[derive(Clone, Copy)]
pub struct Callback {
    /// The function.
    pub function: unsafe extern "C" fn(usize, CuResult, *mut c_void),
    /// The stream, as the program named it.
    pub stream: usize,
    /// Its argument.
    pub data: *mut c_void,
}

// SAFETY: the driver API calls these on threads of its own, with the arguments that the program gave.
unsafe impl Send for HostCall {}
// SAFETY: nothing is changed by way of a reference.
unsafe impl Sync for HostCall {}
// SAFETY: the driver API calls these on threads of its own, too.
unsafe impl Send for Callback {}
// SAFETY: nothing is changed by way of a reference.
unsafe impl Sync for Callback {}

/// What a program says about the address of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// Memory of the host.
    Host,
    /// Memory of a GPU, or host memory allocated for copies.
    Gpu,
    /// Either: it is looked up.
    Either,
}

/// One end of a copy: the address of its first byte, and the distances of lines and layers.
#[derive(Clone, Copy, Debug)]
pub struct CopyEnd {
    /// Of the first byte.
    pub at: u64,
    /// From one line to the next.
    pub pitch: u64,
    /// From one layer to the next.
    pub layer: u64,
    /// What the program says about it.
    pub address_kind: AddressKind,
}

/// A copy of lines and layers.
#[derive(Clone, Copy, Debug)]
pub struct CopyJob {
    /// Where to.
    pub to: CopyEnd,
    /// Where from.
    pub from: CopyEnd,
    /// Bytes of a line.
    pub width: u64,
    /// Lines of a layer.
    pub height: u64,
    /// Layers.
    pub depth: u64,
}

/// A fill of lines.
#[derive(Clone, Copy, Debug)]
pub struct FillJob {
    /// Where.
    pub at: u64,
    /// From one line to the next, in bytes.
    pub pitch: u64,
    /// What with.
    pub value: u32,
    /// Bytes of an element: one, two or four.
    pub element: u32,
    /// Elements of a line.
    pub width: u64,
    /// Lines.
    pub height: u64,
}

/// How a value in memory is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCompare {
    /// The value is not behind, in the order of counters that wrap.
    NotBehind,
    /// The values are equal.
    Same,
    /// The values have a bit in common.
    Common,
    /// Some bit is in neither value.
    Neither,
}

/// A number in memory: its address, and whether it has eight bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWord {
    /// Where.
    pub at: u64,
    /// Eight bytes, not four.
    pub is_wide: bool,
}

/// What a job does.
#[derive(Clone)]
pub enum JobWork {
    /// Nothing: it only has a place in the order.
    Nothing,
    /// Runs a kernel.
    Kernel(Arc<KernelCall>),
    /// Copies.
    Copy(CopyJob),
    /// Fills.
    Fill(FillJob),
    /// Calls a function of the program.
    Host(HostCall),
    /// Calls a function of the program with the state of the stream.
    Callback(Callback),
    /// Notes the time of an event.
    RecordEvent(Arc<StreamEvent>),
    /// Waits until an event is passed.
    WaitForEvent(Arc<StreamEvent>),
    /// Allocates memory at an address that was reserved for it, of this size.
    Allocate(Arc<GraphAddress>, u64),
    /// Frees memory to its pool.
    Free(u64),
    /// Writes a number.
    Write(MemoryWord, u64),
    /// Waits for a number.
    WaitFor(MemoryWord, u64, WaitCompare),
    /// A graph in a graph; it is expanded before it runs.
    Graph(Arc<WorkGraph>),
}

impl JobWork {
    /// The driver API's number for this kind of node.
    pub fn kind(&self) -> i32 {
        match self {
            JobWork::Kernel(_) => 0,
            JobWork::Copy(_) => 1,
            JobWork::Fill(_) => 2,
            JobWork::Host(_) | JobWork::Callback(_) => 3,
            JobWork::Graph(_) => 4,
            JobWork::Nothing => 5,
            JobWork::WaitForEvent(_) => 6,
            JobWork::RecordEvent(_) => 7,
            JobWork::Allocate(..) => 10,
            JobWork::Free(_) => 11,
            JobWork::Write(..) | JobWork::WaitFor(..) => 12,
        }
    }

    /// Runs it. An error is recorded in its context.
    pub fn run(&self, runtime: &'static Runtime, context: &DriverContext) {
        let is_over = context.check().is_err() || context.stop.load(SeqCst);
        // Work that only frees or reports is done even then.
        if is_over && !matches!(self, JobWork::Free(_) | JobWork::Callback(_) | JobWork::RecordEvent(_)) {
            return;
        }
        let done = match self {
            // The work that an event of a graph stands for was done before this began.
            JobWork::Nothing | JobWork::Graph(_) | JobWork::WaitForEvent(_) => Ok(()),
            JobWork::Kernel(call) => call.run(runtime, context),
            JobWork::Copy(copy) => copy.run(runtime, context),
            JobWork::Fill(fill) => fill.run(runtime),
            JobWork::Host(call) => {
                // SAFETY: the program promises a function that takes this.
                call_in_stream(|| unsafe { (call.function)(call.data) });
                Ok(())
            }
            JobWork::Callback(call) => {
                let state = context.check().err().unwrap_or(CuResult::SUCCESS);
                // SAFETY: the program promises a function that takes a stream, a result and this.
                call_in_stream(|| unsafe { (call.function)(call.stream, state, call.data) });
                Ok(())
            }
            JobWork::RecordEvent(event) => {
                event.at.store(now_ns().max(1), SeqCst);
                Ok(())
            }
            JobWork::Allocate(place, bytes) => {
                runtime.allocate_for_graph(place.at, *bytes, context.gpu, context.handle)
            }
            JobWork::Free(at) => runtime.free_pooled(*at),
            JobWork::Write(word, value) => word.write(runtime, *value),
            JobWork::WaitFor(word, value, compare) => word.wait(runtime, context, *value, *compare),
        };
        if let Err(error) = done {
            // An address that was valid when the work was submitted is not any more.
            context.fail(if error == CuResult::INVALID_VALUE { CuResult::ILLEGAL_ADDRESS } else { error });
        }
    }
}

impl CopyJob {
    /// A copy of contiguous bytes.
    pub fn plain(to: (u64, AddressKind), from: (u64, AddressKind), bytes: u64) -> CopyJob {
        let end = |(at, address_kind)| CopyEnd { at, pitch: bytes, layer: bytes, address_kind };
        CopyJob { to: end(to), from: end(from), width: bytes, height: 1, depth: 1 }
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// The distance from the first byte of an end to the byte after its last one.
    fn reach(&self, end: CopyEnd) -> Outcome<u64> {
        let lines = (self.height - 1).checked_mul(end.pitch);
        let layers = (self.depth - 1).checked_mul(end.layer);
        let all = lines.zip(layers).and_then(|(lines, layers)| lines.checked_add(layers)?.checked_add(self.width));
        all.ok_or(CuResult::INVALID_VALUE)
    }

    fn place(&self, runtime: &Runtime, held: &MemorySnapshot, end: CopyEnd, is_written: bool) -> Outcome<*mut u8> {
        let is_known = end.address_kind != AddressKind::Host && held.find(end.at).is_some();
        let reach = self.reach(end)?;
        match end.address_kind {
            _ if is_known => held.bytes(end.at, reach, is_written),
            AddressKind::Gpu => Err(CuResult::INVALID_VALUE),
            // The program's own; not memory that was freed, or reserved and never mapped.
            _ if runtime.is_program_memory(end.at, reach) => Ok(end.at as *mut u8),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Checks both ends, as far as they are known.
    pub fn check(&self, runtime: &Runtime) -> Outcome {
        if self.is_empty() {
            return Ok(());
        }
        let held = runtime.space.snapshot();
        let is_narrow = |end: CopyEnd| (self.height > 1 || self.depth > 1) && end.pitch < self.width;
        if is_narrow(self.to) || is_narrow(self.from) {
            return Err(CuResult::INVALID_VALUE);
        }
        self.place(runtime, &held, self.to, true)?;
        self.place(runtime, &held, self.from, false).map(drop)
    }

    /// True if an end is memory that the program may reuse as soon as the call returns.
    pub fn touches_pageable(&self, runtime: &Runtime) -> bool {
        let held = runtime.space.snapshot();
        let is_unknown = |end: &CopyEnd| held.find(end.at).is_none() && !runtime.is_graph_memory(end.at);
        [self.to, self.from].iter().any(|end| end.address_kind != AddressKind::Gpu && is_unknown(end))
    }

    fn run(&self, runtime: &Runtime, context: &DriverContext) -> Outcome {
        if self.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let held = runtime.space.snapshot();
        let (to, from) = (self.place(runtime, &held, self.to, true)?, self.place(runtime, &held, self.from, false)?);
        for layer in 0..self.depth {
            for line in 0..self.height {
                let offset = |end: CopyEnd| (layer * end.layer + line * end.pitch) as usize;
                // SAFETY: ends that are known are mapped and long enough, as was just checked; the
                // program promises the same of the others. They may overlap.
                unsafe {
                    std::ptr::copy(from.add(offset(self.from)), to.add(offset(self.to)), self.width as usize);
                }
            }
        }
        self.wait_for_copy_rate(runtime, context, begun);
        Ok(())
    }

    /// Waits until the copy has taken as long as the ordered rate makes it.
    fn wait_for_copy_rate(&self, runtime: &Runtime, context: &DriverContext, begun: Instant) {
        let rate = runtime.client.state().gpus()[context.gpu].copy_bytes_per_s.load(SeqCst);
        if rate > 0 {
            let bytes = self.width as f64 * self.height as f64 * self.depth as f64;
            let due = Duration::from_secs_f64(bytes / rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

impl FillJob {
    fn place(&self, held: &MemorySnapshot) -> Outcome<*mut u8> {
        let line = self.width.checked_mul(self.element.into()).ok_or(CuResult::INVALID_VALUE)?;
        let is_odd = !matches!(self.element, 1 | 2 | 4)
            || !self.at.is_multiple_of(self.element.into())
            || (self.height > 1 && (self.pitch < line || !self.pitch.is_multiple_of(self.element.into())));
        if is_odd {
            return Err(CuResult::INVALID_VALUE);
        }
        let lines = (self.height - 1).checked_mul(self.pitch).and_then(|lines| lines.checked_add(line));
        held.bytes(self.at, lines.ok_or(CuResult::INVALID_VALUE)?, true)
    }

    /// Checks that it can be done.
    pub fn check(&self, runtime: &Runtime) -> Outcome {
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        self.place(&runtime.space.snapshot()).map(drop)
    }

    fn run(&self, runtime: &Runtime) -> Outcome {
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        let held = runtime.space.snapshot();
        let first = self.place(&held)?;
        for line in 0..self.height {
            let at = first.wrapping_add((line * self.pitch) as usize);
            let count = self.width as usize;
            // SAFETY: mapped, aligned for the element, and long enough, as was just checked.
            unsafe {
                match self.element {
                    1 => std::ptr::write_bytes(at, self.value as u8, count),
                    2 => std::slice::from_raw_parts_mut(at.cast::<u16>(), count).fill(self.value as u16),
                    _ => std::slice::from_raw_parts_mut(at.cast::<u32>(), count).fill(self.value),
                }
            }
        }
        Ok(())
    }
}

impl MemoryWord {
    fn place(self, held: &MemorySnapshot, is_written: bool) -> Outcome<*mut u8> {
        let bytes = if self.is_wide { 8 } else { 4 };
        if !self.at.is_multiple_of(bytes) {
            return Err(CuResult::INVALID_VALUE);
        }
        held.bytes(self.at, bytes, is_written)
    }

    /// Checks that the address is valid.
    pub fn check(self, runtime: &Runtime) -> Outcome {
        self.place(&runtime.space.snapshot(), false).map(drop)
    }

    fn write(self, runtime: &Runtime, value: u64) -> Outcome {
        let held = runtime.space.snapshot();
        let at = self.place(&held, true)?;
        // SAFETY: mapped and aligned, as was just checked; kernels use atomics there, too.
        unsafe {
            match self.is_wide {
                true => AtomicU64::from_ptr(at.cast()).store(value, SeqCst),
                false => AtomicU32::from_ptr(at.cast()).store(value as u32, SeqCst),
            }
        }
        Ok(())
    }

    fn wait(self, runtime: &Runtime, context: &DriverContext, value: u64, compare: WaitCompare) -> Outcome {
        let held = runtime.space.snapshot();
        let at = self.place(&held, false)?;
        while context.check().is_ok() && !context.stop.load(SeqCst) {
            // SAFETY: mapped and aligned, as was just checked; the snapshot keeps it mapped.
            let found = unsafe {
                match self.is_wide {
                    true => AtomicU64::from_ptr(at.cast()).load(SeqCst),
                    false => AtomicU32::from_ptr(at.cast()).load(SeqCst).into(),
                }
            };
            let ahead = found.wrapping_sub(value);
            let is_there = match compare {
                WaitCompare::NotBehind if self.is_wide => ahead as i64 >= 0,
                WaitCompare::NotBehind => ahead as u32 as i32 >= 0,
                WaitCompare::Same => ahead == 0,
                WaitCompare::Common => found & value != 0,
                WaitCompare::Neither if self.is_wide => !(found | value) != 0,
                WaitCompare::Neither => !((found | value) as u32) != 0,
            };
            if is_there {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl Runtime {
    /// Frees memory to its pool.
    pub fn free_pooled(&self, at: u64) -> Outcome {
        let kind = self.space.snapshot().find(at).map(|(_, block)| block.kind);
        match kind {
            Some(MemoryKind::Pool(pool)) => match self.pools.get(pool) {
                Ok(pool) => pool.free(self, at),
                Err(_) => self.space.free(at, |kind| kind == MemoryKind::Pool(pool)),
            },
            Some(MemoryKind::Device) => self.space.free(at, |kind| kind == MemoryKind::Device),
            Some(MemoryKind::Graph) => self.free_for_graph(at),
            _ => {
                log::once("memory that was freed in a stream's order was not there any more");
                Ok(())
            }
        }
    }
}
