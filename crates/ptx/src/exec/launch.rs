//! A launch: checks what the caller asks for and spreads the blocks over workers.
//!
//! Blocks are taken in order from one counter, so a block that waits for an
//! earlier one always finds it running or finished.

use super::machine::Machine;
use super::memory::DeviceMemory;
use crate::fault::{FaultKind, FaultSite, KernelFault};
use crate::limits;
use crate::module::{Kernel, Module};
use crate::program::LoweredProgram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What to run, on what, and how.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The module of the kernel.
    pub module: &'a Module,
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Shared bytes of a block on top of what the kernel declares.
    pub dynamic_shared: u32,
    /// The kernel's parameters, laid out as [`Kernel::params`] says.
    pub params: &'a [u8],
    /// The device address of each of [`Module::variables`].
    pub variables: &'a [u64],
    /// Device memory.
    pub memory: &'a dyn DeviceMemory,
    /// Set it from any thread to end the launch early.
    pub stop: &'a AtomicBool,
    /// How many host threads run blocks.
    pub threads: usize,
    /// Nanoseconds, for `%globaltimer`.
    pub clock: &'a (dyn Fn() -> u64 + Sync),
    /// Takes what kernels print; without it, printing does nothing.
    pub print: Option<&'a (dyn Fn(&str) + Sync)>,
}

impl std::fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch").field("grid", &self.grid).field("block", &self.block).finish_non_exhaustive()
    }
}

/// What a launch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Instructions, each counted once for every thread that was there for it.
    pub thread_instructions: u64,
    /// Instructions, each counted once for the warp.
    pub warp_instructions: u64,
    /// Blocks that ran.
    pub blocks: u64,
}

/// What all workers of a launch share.
pub(crate) struct LaunchEnv<'a> {
    pub program: &'a LoweredProgram,
    pub entry: u32,
    pub grid: [u32; 3],
    pub block_shape: [u32; 3],
    pub dynamic_shared: u32,
    pub shared_bytes: u32,
    pub shared_offsets: &'a [(u32, u32)],
    pub local_bytes: u32,
    /// A copy of the parameters that is aligned for every access.
    pub params: Vec<u128>,
    pub param_bytes: usize,
    pub variables: &'a [u64],
    pub memory: &'a dyn DeviceMemory,
    pub clock: &'a (dyn Fn() -> u64 + Sync),
    pub print: Option<&'a (dyn Fn(&str) + Sync)>,
    stop: &'a AtomicBool,
    /// A block faulted, so the others need not go on.
    abandoned: AtomicBool,
}

impl LaunchEnv<'_> {
    pub fn threads_per_block(&self) -> u32 {
        self.block_shape.iter().product()
    }

    pub fn warps_per_block(&self) -> u32 {
        self.threads_per_block().div_ceil(32)
    }

    /// True if the launch was stopped, or abandoned after a fault.
    pub fn is_over(&self) -> bool {
        self.stop.load(Relaxed) || self.abandoned.load(Relaxed)
    }
}

/// Runs every block of a launch; returns when all have ended or one has faulted.
pub fn run(launch: &Launch<'_>) -> Result<Stats, KernelFault> {
    let env = launch_env(launch).map_err(|kind| refused_launch(launch, kind))?;
    let blocks = launch.grid.iter().map(|&count| u64::from(count)).product::<u64>();
    let next = AtomicU64::new(0);
    let outcome = Mutex::new((Stats::default(), None::<(u64, KernelFault)>));
    let work = || {
        let mut worker =
            BlockWorker { launch, machine: Machine::new(&env), stats: Stats::default(), warps: Vec::new() };
        let fault = worker.run_blocks(&next, blocks);
        let mut outcome = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        outcome.0.add(worker.stats());
        if let Some(found) = fault {
            // Of several faults, that of the earliest block is reported; a stop only if there is no other.
            let sooner = outcome.1.as_ref().is_none_or(|told| fault_order(&found) < fault_order(told));
            if sooner {
                outcome.1 = Some(found);
            }
        }
    };
    let workers = launch.threads.clamp(1, 1024).min(usize::try_from(blocks).unwrap_or(usize::MAX));
    if workers <= 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 1..workers {
                // A host that refuses a thread only makes the launch slower.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }
    let (stats, fault) = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    fault.map_or(Ok(stats), |(_, fault)| Err(fault))
}

fn fault_order((block, fault): &(u64, KernelFault)) -> (bool, u64) {
    (fault.kind == FaultKind::Stopped, *block)
}

impl Stats {
    fn add(&mut self, other: Stats) {
        self.thread_instructions += other.thread_instructions;
        self.warp_instructions += other.warp_instructions;
        self.blocks += other.blocks;
    }
}

/// One host thread of a launch.
pub(crate) struct BlockWorker<'a, 'l> {
    pub launch: &'l Launch<'l>,
    pub machine: Machine<'a>,
    stats: Stats,
    pub warps: Vec<super::machine::Warp>,
}

impl BlockWorker<'_, '_> {
    fn stats(&self) -> Stats {
        Stats {
            thread_instructions: self.machine.thread_instructions,
            warp_instructions: self.machine.warp_instructions,
            ..self.stats
        }
    }

    fn run_blocks(&mut self, next: &AtomicU64, blocks: u64) -> Option<(u64, KernelFault)> {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= blocks {
                return None;
            }
            let [x, y, _] = self.launch.grid.map(u64::from);
            self.machine.block = [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32];
            let outcome = if self.machine.env.is_over() { Err((FaultKind::Stopped, None)) } else { self.run_block() };
            match outcome {
                Ok(()) => self.stats.blocks += 1,
                Err((kind, site)) => {
                    self.machine.env.abandoned.store(true, Relaxed);
                    let kernel = self.launch.kernel.name().to_owned();
                    return Some((index, KernelFault { kind, kernel, site }));
                }
            }
        }
    }

    /// Where thread `lane` of warp `warp` is.
    pub fn site(&self, pc: u32, warp: u32, lane: u32) -> Box<FaultSite> {
        let env = self.machine.env;
        let line = env.program.code.get(pc.saturating_sub(1) as usize).map_or(0, |op| op.line);
        let [x, y, _] = env.block_shape;
        let thread = warp * 32 + lane;
        Box::new(FaultSite {
            line,
            text: self.launch.module.line(line).to_owned(),
            block: self.machine.block,
            thread: [thread % x, thread / x % y, thread / (x * y)],
        })
    }
}

fn refused_launch(launch: &Launch<'_>, kind: FaultKind) -> KernelFault {
    KernelFault { kind, kernel: launch.kernel.name().to_owned(), site: None }
}

/// Checks a launch and prepares what its workers share.
fn launch_env<'a>(launch: &'a Launch<'a>) -> Result<LaunchEnv<'a>, FaultKind> {
    let refuse = |what: String| Err(FaultKind::Refused(what));
    let kernel = launch.kernel;
    if !launch.module.kernels().any(|known| std::ptr::eq(known, kernel)) {
        return refuse(format!("kernel `{}` is not of this module", kernel.name()));
    }
    let [x, y, z] = launch.block;
    let threads = u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z));
    if threads == 0 || threads > u64::from(limits::BLOCK_THREADS_MAX) {
        return refuse(format!("a block of {x}x{y}x{z} threads is not within 1 to {}", limits::BLOCK_THREADS_MAX));
    }
    let [gx, gy, gz] = launch.grid;
    if gx == 0 || gy == 0 || gz == 0 || gx > i32::MAX as u32 || gy > 65535 || gz > 65535 {
        return refuse(format!("a grid of {gx}x{gy}x{gz} blocks is not valid"));
    }
    if kernel.required_block().is_some_and(|required| required != launch.block) {
        return refuse(format!("the kernel requires another block than {x}x{y}x{z}"));
    }
    if let Some([mx, my, mz]) = kernel.max_block()
        && threads > u64::from(mx).saturating_mul(u64::from(my)).saturating_mul(u64::from(mz))
    {
        return refuse(format!("the kernel allows fewer threads in a block than {threads}"));
    }
    let shared_bytes = u64::from(kernel.shared_bytes()) + u64::from(launch.dynamic_shared);
    if shared_bytes > u64::from(limits::SHARED_BYTES_MAX) {
        return refuse(format!("{shared_bytes} shared bytes are more than {}", limits::SHARED_BYTES_MAX));
    }
    if launch.params.len() < kernel.param_bytes() as usize {
        return refuse(format!("{} parameter bytes given, {} needed", launch.params.len(), kernel.param_bytes()));
    }
    if launch.variables.len() != launch.module.variables().len() {
        let needed = launch.module.variables().len();
        return refuse(format!("{} variable addresses given, {needed} needed", launch.variables.len()));
    }
    Ok(LaunchEnv {
        program: launch.module.program(),
        entry: kernel.function(),
        grid: launch.grid,
        block_shape: launch.block,
        dynamic_shared: launch.dynamic_shared,
        shared_bytes: shared_bytes as u32,
        shared_offsets: kernel.shared_offsets(),
        local_bytes: kernel.local_bytes_reserved(),
        params: aligned(&launch.params[..kernel.param_bytes() as usize]),
        param_bytes: kernel.param_bytes() as usize,
        variables: launch.variables,
        memory: launch.memory,
        clock: launch.clock,
        print: launch.print,
        stop: launch.stop,
        abandoned: AtomicBool::new(false),
    })
}

fn aligned(bytes: &[u8]) -> Vec<u128> {
    let units = bytes.chunks(16).map(|chunk| {
        let mut unit = [0; 16];
        unit[..chunk.len()].copy_from_slice(chunk);
        u128::from_ne_bytes(unit)
    });
    units.collect()
}
