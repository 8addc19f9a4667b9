//! How fast kernels run on one core: nvcc's own code for one training step of a two-layer
//! perceptron, in thread-instructions a second of the core's time.
//!
//! The CPU time counts, not wall time: other programs on the machine do not change what a core does
//! in a second.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Context, Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::AtomicBool;
use sublet_ptx::{DeviceMemory, Launch, Module, Region, run as launch};

const KERNELS: &str = include_str!("../../crates/softgpu/kernels/mlp.ptx");

/// Samples of a batch, and the widths of the layers.
const BATCH: u32 = 128;
const INPUTS: u32 = 256;
const HIDDEN: u32 = 256;
const CLASSES: u32 = 64;

/// Where the buffers lie, in numbers of four bytes.
const X: u64 = 0;
const LABELS: u64 = 100_000;
const W1: u64 = 200_000;
const B1: u64 = 300_000;
const W2: u64 = 400_000;
const B2: u64 = 500_000;
const H: u64 = 600_000;
const Z: u64 = 700_000;
const DZ: u64 = 800_000;
const DH: u64 = 900_000;
const LOSSES: u64 = 1_000_000;
const WORDS: u64 = 1_100_000;

/// The GPU's first address.
const FIRST: u64 = 0x7000_0000_0000;
/// Runs of a launch that are timed together.
const REPEATS: u32 = 5;

struct PtxMemory {
    memory: Vec<u128>,
}

// SAFETY: the vector is neither moved nor resized while launches borrow it.
unsafe impl DeviceMemory for PtxMemory {
    fn region(&self, address: u64) -> Option<Region> {
        let bytes = self.memory.len() as u64 * 16;
        let host = self.memory.as_ptr().cast_mut().cast();
        (address.wrapping_sub(FIRST) < bytes).then_some(Region { first: FIRST, bytes, host, writable: true })
    }
}

impl PtxMemory {
    /// Small numbers everywhere; as labels they are all class 0.
    fn new() -> PtxMemory {
        let value = |index: u64| {
            let number = if (LABELS..W1).contains(&index) { 0.0 } else { (index * 2_654_435_761 % 1000) as f32 };
            (number * 0.0002 - if number == 0.0 { 0.0 } else { 0.1 }).to_bits()
        };
        let unit = |at: u64| (0..4).fold(0_u128, |unit, lane| unit | u128::from(value(at * 4 + lane)) << (32 * lane));
        PtxMemory { memory: (0..WORDS / 4).map(unit).collect() }
    }
}

/// One launch of the step.
struct StepLaunch {
    what: &'static str,
    kernel: &'static str,
    grid: [u32; 2],
    block: [u32; 2],
    params: Vec<u8>,
}

/// Numbers, then pointers, as the kernels take them.
fn params(numbers: &[u32], buffers: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(buffers.iter().flat_map(|at| (FIRST + at * 4).to_le_bytes()));
    bytes
}

/// The forward pass, the loss, and gradient descent.
fn step() -> Vec<StepLaunch> {
    let tiles = |x: u32, y: u32| [x.div_ceil(32), y.div_ceil(8)];
    let square = |what, kernel, x, y, params| StepLaunch { what, kernel, grid: tiles(x, y), block: [32, 8], params };
    let rate = 0.01_f32.to_bits();
    vec![
        square(
            "PTX: `dense`, the hidden layer",
            "dense",
            HIDDEN,
            BATCH,
            params(&[BATCH, INPUTS, HIDDEN, 1], &[X, W1, B1, H]),
        ),
        square(
            "PTX: `dense`, the last layer",
            "dense",
            CLASSES,
            BATCH,
            params(&[BATCH, HIDDEN, CLASSES, 0], &[H, W2, B2, Z]),
        ),
        StepLaunch {
            what: "PTX: `loss`",
            kernel: "loss",
            grid: [BATCH.div_ceil(64), 1],
            block: [64, 1],
            params: params(&[BATCH, CLASSES], &[Z, LABELS, DZ, LOSSES]),
        },
        square("PTX: `back`", "back", HIDDEN, BATCH, params(&[BATCH, HIDDEN, CLASSES], &[DZ, W2, H, DH])),
        square(
            "PTX: `descend`, the last layer",
            "descend",
            CLASSES,
            HIDDEN + 1,
            params(&[BATCH, HIDDEN, CLASSES, rate], &[H, DZ, W2, B2]),
        ),
        square(
            "PTX: `descend`, the hidden layer",
            "descend",
            HIDDEN,
            INPUTS + 1,
            params(&[BATCH, INPUTS, HIDDEN, rate], &[X, DH, W1, B1]),
        ),
    ]
}

/// Seconds of this thread.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Millions of thread-instructions, and the seconds they took.
fn time_launch(module: &Module, memory: &PtxMemory, step_launch: &StepLaunch) -> Result<(f64, f64)> {
    let begun = thread_seconds();
    let mut instructions = 0;
    for _ in 0..REPEATS {
        let stats = launch(&Launch {
            module,
            kernel: module.kernel(step_launch.kernel).with_context(|| format!("no kernel `{}`", step_launch.kernel))?,
            grid: [step_launch.grid[0], step_launch.grid[1], 1],
            block: [step_launch.block[0], step_launch.block[1], 1],
            dynamic_shared: 0,
            params: &step_launch.params,
            variables: &[],
            memory,
            stop: &AtomicBool::new(false),
            threads: 1,
            clock: &|| 0,
            print: None,
        });
        instructions += stats.map_err(|fault| anyhow!("{fault}"))?.thread_instructions;
    }
    Ok((instructions as f64 / 1e6, thread_seconds() - begun))
}

/// The figure of launches: millions of instructions and seconds, for each round.
fn figure(what: &'static str, rounds: &[(f64, f64)]) -> Figure {
    let rates: Vec<f64> = rounds.iter().map(|(millions, took)| millions / took).collect();
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let millions = rounds.first().map_or(0.0, |(millions, _)| millions / f64::from(REPEATS));
    Figure {
        what,
        target: FigureTarget::AtLeast(500.0),
        measured: median(rates),
        unit: "M/s",
        note: format!("{} million a step; the slowest round {} M/s", digits(millions), digits(least)),
    }
}

/// Runs the step in rounds; a round's launches follow each other as in training.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let module = Module::parse(KERNELS)?;
    let (memory, parts) = (PtxMemory::new(), step());
    let mut rounds = Vec::new();
    for _ in 0..rig.rounds {
        rounds.push(
            parts.iter().map(|step_launch| time_launch(&module, &memory, step_launch)).collect::<Result<Vec<_>>>()?,
        );
    }
    let mut figures = Vec::new();
    for (index, step_launch) in parts.iter().enumerate() {
        figures.push(figure(step_launch.what, &rounds.iter().map(|round| round[index]).collect::<Vec<_>>()));
    }
    let sum = |round: &Vec<(f64, f64)>| {
        round.iter().fold((0.0, 0.0), |sum, step_launch| (sum.0 + step_launch.0, sum.1 + step_launch.1))
    };
    figures.push(figure("PTX: the whole step", &rounds.iter().map(sum).collect::<Vec<_>>()));
    Ok(BenchOutcome { figures, raw: serde_json::json!({ "rounds": rounds, "repeats": REPEATS }) })
}
