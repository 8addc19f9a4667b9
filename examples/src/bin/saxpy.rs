//! y = a·x + y over many numbers: loads PTX, runs it, and checks every bit on the host.

use anyhow::{Result, bail};
use clap::Parser;
use std::process::ExitCode;
use sublet_examples::cuda::memory::Buffer;
use sublet_examples::cuda::modules::{Arguments, CudaModule, LaunchShape};
use sublet_examples::cuda::streams::CudaEvent;
use sublet_examples::cuda::{CudaContext, Device};
use sublet_examples::random::SeededRandom;

/// Compiled by nvcc from basic.cu beside it.
const PTX: &str = include_str!("../../../crates/softgpu/kernels/basic.ptx");
/// Threads of a block.
const BLOCK: u32 = 256;
/// Bytes that go over the GPU's memory for each number: two are read and one is written.
const BYTES: usize = 12;

/// Computes y = a·x + y on a GPU and on the host, and compares.
#[derive(Parser)]
struct SaxpyOptions {
    /// How many numbers.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    elements: u32,
    /// Made from this seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// On this GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
}

fn run(options: &SaxpyOptions) -> Result<()> {
    let device = Device::get(options.device)?;
    let context = CudaContext::primary(device)?;
    context.make_current()?;
    let module = CudaModule::load(PTX)?;
    let saxpy = module.function("saxpy")?;

    let mut random = SeededRandom::new(options.seed);
    let a = random.unit() * 3.0;
    let x: Vec<f32> = (0..options.elements).map(|_| random.unit()).collect();
    let y: Vec<f32> = (0..options.elements).map(|_| random.unit()).collect();
    let (gpu_x, gpu_y) = (Buffer::holding(&x)?, Buffer::holding(&y)?);
    let launch = || {
        let arguments = Arguments::new().u32(options.elements).f32(a).span(gpu_x.all()).span(gpu_y.all());
        // SAFETY: the kernel takes a count, a factor and two pieces of so many numbers.
        unsafe { saxpy.launch(LaunchShape::line(options.elements as usize, BLOCK), None, arguments) }
    };
    // The first launch is checked; the second, when everything is warm, is measured.
    launch()?;
    let got: Vec<f32> = gpu_y.numbers()?;
    for (place, ((x, y), got)) in x.iter().zip(&y).zip(&got).enumerate() {
        let expected = a.mul_add(*x, *y);
        if expected.to_bits() != got.to_bits() {
            bail!("number {place} is {got:?} ({:#010x}), and {expected:?} on the host", got.to_bits());
        }
    }
    let (begin, end) = (CudaEvent::new()?, CudaEvent::new()?);
    begin.record(None)?;
    launch()?;
    end.record(None)?;
    end.synchronise()?;
    let seconds = f64::from(end.ms_since(&begin)?) / 1e3;
    let rate = options.elements as usize as f64 * BYTES as f64 / seconds.max(1e-9) / 1e9;
    println!("{} numbers on {}: {rate:.2} GB/s, ok", options.elements, device.name()?);
    Ok(())
}

fn main() -> ExitCode {
    match run(&SaxpyOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("saxpy: {error:#}");
            ExitCode::FAILURE
        }
    }
}
