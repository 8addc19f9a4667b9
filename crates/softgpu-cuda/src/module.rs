//! PTX that was loaded: its kernels, its variables on the card, and launches.

use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{Context, Runtime};
use crate::space::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use sublet_ptx::{Fault, FaultKind, Launch, Module, run};
use sublet_softgpu::state::now_ns;

/// A module in a context.
pub struct Loaded {
    /// What was read.
    pub module: Module,
    /// Where each of its variables is.
    pub variables: Vec<u64>,
}

impl Loaded {
    /// Reads PTX, and puts its variables on the card.
    pub fn load(runtime: &Runtime, handle: usize, card: usize, text: &str) -> Outcome<Loaded> {
        let module = Module::parse(text).map_err(|error| {
            log::once(&format!("a module cannot be loaded: {error}"));
            CuResult::INVALID_PTX
        })?;
        let mut variables = Vec::new();
        for variable in module.variables() {
            let bytes = variable.bytes.max(1);
            variables.push(runtime.space.alloc(&runtime.seat, Kind::Device, card, handle, bytes)?);
        }
        let loaded = Loaded { module, variables };
        loaded.fill(runtime)?;
        Ok(loaded)
    }

    /// Writes what the variables begin with.
    fn fill(&self, runtime: &Runtime) -> Outcome {
        let held = runtime.space.hold();
        for (variable, at) in self.module.variables().iter().zip(&self.variables) {
            let place = held.bytes(*at, variable.initial.len() as u64)?;
            // SAFETY: the allocation has as many bytes, and no kernel knows of it yet.
            unsafe { std::ptr::copy_nonoverlapping(variable.initial.as_ptr(), place, variable.initial.len()) };
            for relocation in &variable.relocations {
                let Some(target) = relocation.variable.and_then(|number| self.variables.get(number)) else {
                    return Err(CuResult::NOT_SUPPORTED);
                };
                let value = target.wrapping_add_signed(relocation.addend).to_le_bytes();
                let length = (relocation.bytes as usize).min(value.len());
                let place = held.bytes(at.wrapping_add(relocation.offset), length as u64)?;
                // SAFETY: checked just now to be in the allocation.
                unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), place, length) };
            }
        }
        Ok(())
    }

    /// Frees the variables.
    pub fn unload(&self, runtime: &Runtime) {
        // A context that ended took them with it.
        for at in &self.variables {
            let _ = runtime.space.free(&runtime.seat, Kind::Device, *at);
        }
    }
}

/// A launch as it was asked for.
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared bytes.
    pub shared: u32,
}

/// Runs a kernel, to its end.
pub fn launch(
    runtime: &Runtime,
    context: &Arc<Context>,
    loaded: &Loaded,
    name: &str,
    shape: &Shape,
    params: &[u8],
) -> Outcome {
    let kernel = loaded.module.kernel(name).ok_or(CuResult::NOT_FOUND)?;
    let begun = Instant::now();
    let running = runtime.seat.kernel(context.card);
    let memory = runtime.space.hold();
    let done = run(&Launch {
        module: &loaded.module,
        kernel,
        grid: shape.grid,
        block: shape.block,
        dynamic_shared: shape.shared,
        params,
        variables: &loaded.variables,
        memory: &memory,
        stop: &context.stop,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        clock: &now_ns,
        print: Some(&|text: &str| print!("{text}")),
    });
    drop(memory);
    let percent = runtime.seat.state().cards()[context.card].slow_percent.load(SeqCst);
    std::thread::sleep(slower(begun.elapsed(), percent));
    drop(running);
    done.map(drop).map_err(|fault| context.fail(refusal(&fault)))
}

fn slower(took: Duration, percent: u32) -> Duration {
    took.saturating_mul(percent) / 100
}

fn refusal(fault: &Fault) -> CuResult {
    log::once(&fault.to_string());
    match fault.kind {
        FaultKind::OutOfRange { .. } => CuResult::ILLEGAL_ADDRESS,
        FaultKind::Misaligned { .. } => CuResult::MISALIGNED_ADDRESS,
        FaultKind::Assert { .. } => CuResult::ASSERT,
        FaultKind::Trap => CuResult::ILLEGAL_INSTRUCTION,
        FaultKind::Stopped => CuResult::LAUNCH_TIMEOUT,
        _ => CuResult::LAUNCH_FAILED,
    }
}
