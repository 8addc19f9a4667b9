//! How fast kernels run here: the matrix products of one training step of a small
//! network, plain and tiled, in thread-instructions a second.
//!
//! `cargo run --release -p sublet-ptx --example speed [threads [plain]]`; `plain` is
//! without the host's vector instructions.

use std::sync::atomic::AtomicBool;
use std::time::Instant;
use sublet_ptx::{DeviceMemory, Launch, Module, Region, Stats, run};

/// `c[m][n] = relu(sum over k of a[m][k] * b[k][n])`, with strides, so that the
/// same kernel serves the forward pass and both gradients.
const KERNELS: &str = include_str!("speed.ptx");

/// Rows of the batch, and the widths of the layers.
const BATCH: u32 = 128;
const INPUTS: u32 = 256;
const HIDDEN: u32 = 256;
const OUTPUTS: u32 = 64;

struct HostMemory {
    memory: Vec<u128>,
}

const FIRST: u64 = 0x7000_0000_0000;

// SAFETY: the vector is neither moved nor resized while launches borrow it.
unsafe impl DeviceMemory for HostMemory {
    fn region(&self, address: u64) -> Option<Region> {
        let bytes = self.memory.len() as u64 * 16;
        let host = self.memory.as_ptr().cast_mut().cast();
        (address.wrapping_sub(FIRST) < bytes).then_some(Region { first: FIRST, bytes, host, writable: true })
    }
}

/// One product: where the matrices lie (in floats), their strides, the shape.
struct Product {
    a: u64,
    b: u64,
    c: u64,
    a_strides: (u32, u32),
    b_strides: (u32, u32),
    shape: (u32, u32, u32),
}

impl Product {
    fn params(&self) -> Vec<u8> {
        let (m, n, k) = self.shape;
        let pointers = [self.a, self.b, self.c].map(|at| FIRST + at * 4);
        let mut bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
        let numbers = [m, n, k, self.a_strides.0, self.a_strides.1, self.b_strides.0, self.b_strides.1];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }
}

/// Forward through two layers, then the gradients of both.
fn step() -> Vec<Product> {
    let (x, w1, h) = (0, 100_000, 200_000);
    let (w2, y, dh) = (300_000, 400_000, 500_000);
    let (dw2, dw1) = (600_000, 700_000);
    vec![
        Product { a: x, b: w1, c: h, a_strides: (INPUTS, 1), b_strides: (HIDDEN, 1), shape: (BATCH, HIDDEN, INPUTS) },
        Product { a: h, b: w2, c: y, a_strides: (HIDDEN, 1), b_strides: (OUTPUTS, 1), shape: (BATCH, OUTPUTS, HIDDEN) },
        Product {
            a: y,
            b: w2,
            c: dh,
            a_strides: (OUTPUTS, 1),
            b_strides: (1, OUTPUTS),
            shape: (BATCH, HIDDEN, OUTPUTS),
        },
        Product {
            a: h,
            b: y,
            c: dw2,
            a_strides: (1, HIDDEN),
            b_strides: (OUTPUTS, 1),
            shape: (HIDDEN, OUTPUTS, BATCH),
        },
        Product { a: x, b: dh, c: dw1, a_strides: (1, INPUTS), b_strides: (HIDDEN, 1), shape: (INPUTS, HIDDEN, BATCH) },
    ]
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1);
    let plain = std::env::args().nth(2).is_some_and(|word| word == "plain");
    let parsed = if plain { Module::parse_plain(KERNELS) } else { Module::parse(KERNELS) };
    let module = parsed.expect("the kernels are valid");
    let value = |index: u32| (((index * 2_654_435_761_u32) >> 9) as f32 / 8_388_608.0 - 0.5) * 0.1;
    let memory = (0..200_000_u32).map(|unit| {
        let lanes = [0, 1, 2, 3].map(|lane| u128::from(value(unit * 4 + lane).to_bits()) << (32 * lane));
        lanes.iter().fold(0, |all, lane| all | lane)
    });
    let device = HostMemory { memory: memory.collect() };
    for (kernel, block) in [("dense", [32, 8, 1]), ("tiled", [16, 16, 1])] {
        let mut best = 0.0_f64;
        let mut total = Stats::default();
        for _ in 0..5 {
            let began = Instant::now();
            total = Stats::default();
            for product in step() {
                let stats = launch(&module, kernel, &device, &product, block, threads);
                total.thread_instructions += stats.thread_instructions;
                total.warp_instructions += stats.warp_instructions;
            }
            best = best.max(total.thread_instructions as f64 / began.elapsed().as_secs_f64());
        }
        let per_core = best / threads as f64 / 1e6;
        let per_warp = 32e3 / per_core;
        println!(
            "{kernel}: {per_core:.0} million thread-instructions a second and core \
             ({per_warp:.0} ns a warp-instruction, {} million in a step, {threads} threads)",
            total.thread_instructions / 1_000_000,
        );
    }
}

fn launch(
    module: &Module,
    kernel: &str,
    device: &HostMemory,
    product: &Product,
    block: [u32; 3],
    threads: usize,
) -> Stats {
    let (m, n, _) = product.shape;
    run(&Launch {
        module,
        kernel: module.kernel(kernel).expect("the kernel is there"),
        grid: [n.div_ceil(block[0]), m.div_ceil(block[1]), 1],
        block,
        dynamic_shared: 0,
        params: &product.params(),
        variables: &[],
        memory: device,
        stop: &AtomicBool::new(false),
        threads,
        clock: &|| 0,
        print: None,
    })
    .unwrap_or_else(|fault| panic!("{fault}"))
}
