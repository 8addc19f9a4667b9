//! A two-layer perceptron, trained by stochastic gradient descent on a GPU.
//!
//! The samples are made from a seed: a point for each class, and samples around it. Each step takes
//! the next batch forward, through softmax and its loss, back, and moves the weights; the kernels are
//! those of `mlp.cu`. Sums are made in a fixed order and nothing is atomic, so the same seed gives the
//! same bits on the same kind of GPU, whatever happens to the process meanwhile.

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use sublet_examples::cuda::memory::{Buffer, bytes_of, numbers_of};
use sublet_examples::cuda::modules::{Arguments, CudaFunction, CudaModule, LaunchShape};
use sublet_examples::cuda::{CudaContext, Device};
use sublet_examples::random::SeededRandom;

/// Compiled by nvcc from mlp.cu beside it.
const PTX: &str = include_str!("../../../crates/softgpu/kernels/mlp.ptx");
/// Numbers of a sample, and classes.
const INPUTS: usize = 16;
const CLASSES: usize = 4;
/// Samples in all, and of a batch.
const SAMPLES: usize = 1024;
const BATCH: usize = 64;
/// How far a step goes down the slope.
const LEARNING_RATE: f32 = 0.2;
/// The first bytes of a file of weights.
const MAGIC: &[u8; 8] = b"mlp-ex-1";

/// Trains a small network on a GPU, and prints a checksum of its weights.
#[derive(Parser)]
struct MlpOptions {
    /// Batches to learn from.
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Samples and first weights are made from this.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A line is printed every so many steps.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Neurons of the hidden layer.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    hidden: u32,
    /// Goes on from the weights in this file if it is there, and writes them there with every line.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// The next batch comes after so many milliseconds, as data that is read from somewhere does.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pace: u64,
    /// On this GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
}

/// Samples and their classes, from a seed.
fn samples(random: &mut SeededRandom) -> (Vec<f32>, Vec<u32>) {
    let centres: Vec<f32> = (0..CLASSES * INPUTS).map(|_| random.unit()).collect();
    let labels: Vec<u32> = (0..SAMPLES).map(|_| random.within(0, CLASSES - 1) as u32).collect();
    let around = |(label, input): (&u32, usize), random: &mut SeededRandom| {
        centres[*label as usize * INPUTS + input] + random.unit() * 0.75
    };
    let places = labels.iter().flat_map(|label| (0..INPUTS).map(move |input| (label, input)));
    (places.map(|place| around(place, random)).collect(), labels)
}

/// A layer's weights and biases.
struct Layer {
    inputs: u32,
    outputs: u32,
    weights: Buffer,
    biases: Buffer,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, random: &mut SeededRandom) -> Result<Layer> {
        let scale = 1.0 / (inputs as f32).sqrt();
        let weights: Vec<f32> = (0..inputs * outputs).map(|_| random.unit() * scale).collect();
        let biases = vec![0.0_f32; outputs];
        let (weights, biases) = (Buffer::holding(&weights)?, Buffer::holding(&biases)?);
        Ok(Layer { inputs: inputs as u32, outputs: outputs as u32, weights, biases })
    }

    /// What a kernel is told about sizes.
    fn sizes(&self) -> Arguments {
        Arguments::new().u32(BATCH as u32).u32(self.inputs).u32(self.outputs)
    }
}

/// The network and what a step needs, on a GPU.
struct Network<'a> {
    dense: CudaFunction<'a>,
    loss: CudaFunction<'a>,
    backward: CudaFunction<'a>,
    gradient_step: CudaFunction<'a>,
    first: Layer,
    second: Layer,
    samples: Buffer,
    labels: Buffer,
    hidden: Buffer,
    logits: Buffer,
    logits_slope: Buffer,
    hidden_slope: Buffer,
    losses: Buffer,
}

impl Network<'_> {
    fn new<'a>(module: &'a CudaModule, options: &MlpOptions) -> Result<Network<'a>> {
        let mut random = SeededRandom::new(options.seed);
        let (samples, labels) = samples(&mut random);
        let hidden = options.hidden as usize;
        let numbers = |count: usize| Buffer::alloc(count * size_of::<f32>());
        Ok(Network {
            dense: module.function("dense")?,
            loss: module.function("loss")?,
            backward: module.function("back")?,
            gradient_step: module.function("descend")?,
            first: Layer::new(INPUTS, hidden, &mut random)?,
            second: Layer::new(hidden, CLASSES, &mut random)?,
            samples: Buffer::holding(&samples)?,
            labels: Buffer::holding(&labels)?,
            hidden: numbers(BATCH * hidden)?,
            logits: numbers(BATCH * CLASSES)?,
            logits_slope: numbers(BATCH * CLASSES)?,
            hidden_slope: numbers(BATCH * hidden)?,
            losses: numbers(BATCH)?,
        })
    }

    /// Learns from one batch.
    fn step(&self, number: u64) -> Result<()> {
        let batch = (number % (SAMPLES / BATCH) as u64) as usize;
        let inputs = batch * BATCH * INPUTS * 4..(batch + 1) * BATCH * INPUTS * 4;
        let (samples, labels) =
            (self.samples.all().part(inputs), self.labels.all().part(batch * BATCH * 4..SAMPLES * 4));
        let (first, second) = (&self.first, &self.second);
        let (hidden, logits) = (self.hidden.all(), self.logits.all());
        let (hidden_slope, logits_slope) = (self.hidden_slope.all(), self.logits_slope.all());
        let width = first.outputs as usize;
        let of_first = || first.sizes().u32(1).span(samples).span(first.weights.all()).span(first.biases.all());
        let of_second = || second.sizes().u32(0).span(hidden).span(second.weights.all()).span(second.biases.all());
        let of_loss = Arguments::new().u32(BATCH as u32).u32(CLASSES as u32).span(logits).span(labels);
        let of_loss = of_loss.span(logits_slope).span(self.losses.all());
        let of_back = second.sizes().span(logits_slope).span(second.weights.all()).span(hidden).span(hidden_slope);
        let down_second = second.sizes().f32(LEARNING_RATE).span(hidden).span(logits_slope);
        let down_second = down_second.span(second.weights.all()).span(second.biases.all());
        let down_first = first.sizes().f32(LEARNING_RATE).span(samples).span(hidden_slope);
        let down_first = down_first.span(first.weights.all()).span(first.biases.all());
        // SAFETY: each kernel gets what `mlp.cu` says, and every piece of memory is as large as its sizes.
        unsafe {
            self.dense.launch(LaunchShape::plane(width, BATCH), None, of_first().span(hidden))?;
            self.dense.launch(LaunchShape::plane(CLASSES, BATCH), None, of_second().span(logits))?;
            self.loss.launch(LaunchShape::line(BATCH, 64), None, of_loss)?;
            self.backward.launch(LaunchShape::plane(width, BATCH), None, of_back)?;
            // One line more than there are inputs: that of the biases.
            self.gradient_step.launch(LaunchShape::plane(CLASSES, width + 1), None, down_second)?;
            self.gradient_step.launch(LaunchShape::plane(width, INPUTS + 1), None, down_first)?;
        }
        Ok(())
    }

    /// The mean loss of the last batch.
    fn mean_loss(&self) -> Result<f64> {
        let losses: Vec<f32> = self.losses.numbers()?;
        Ok(losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / BATCH as f64)
    }

    fn weights(&self) -> [&Buffer; 4] {
        [&self.first.weights, &self.first.biases, &self.second.weights, &self.second.biases]
    }

    fn weight_bytes(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for buffer in self.weights() {
            all.extend(buffer.all().to_vec()?);
        }
        Ok(all)
    }

    /// Writes the weights to a file: all of them or none.
    fn save(&self, path: &Path, step: u64, seed: u64) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(bytes_of(&[step, seed, u64::from(self.first.outputs)]));
        bytes.extend(self.weight_bytes()?);
        let beside = path.with_extension("part");
        let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
        written.with_context(|| format!("the weights cannot be written to {}", path.display()))
    }

    /// Takes the weights from a file, if it is there; gives the step at which they were written.
    fn restore(&self, path: &Path, seed: u64) -> Result<u64> {
        if !path.exists() {
            return Ok(0);
        }
        let bytes = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let wanted: usize = self.weights().iter().map(|buffer| buffer.all().bytes()).sum();
        let told = bytes.get(8..32).map(numbers_of::<u64>).unwrap_or_default();
        if !bytes.starts_with(MAGIC) || bytes.len() != 32 + wanted || told[1..] != [seed, self.first.outputs.into()] {
            bail!("{} has weights of another seed or another network", path.display());
        }
        let mut rest = &bytes[32..];
        for buffer in self.weights() {
            let (own, others) = rest.split_at(buffer.all().bytes());
            buffer.all().write(own)?;
            rest = others;
        }
        Ok(told[0])
    }
}

/// A checksum (FNV-1a of 64 bits).
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn run(options: &MlpOptions) -> Result<()> {
    let device = Device::get(options.device)?;
    let context = CudaContext::primary(device)?;
    context.make_current()?;
    let module = CudaModule::load(PTX)?;
    let network = Network::new(&module, options)?;
    let path = options.checkpoint.as_deref();
    let begin = path.map_or(Ok(0), |path| network.restore(path, options.seed))?;
    println!("trains on {} from step {begin} to {}", device.name()?, options.steps);
    for step in begin..options.steps {
        std::thread::sleep(Duration::from_millis(options.pace));
        network.step(step)?;
        let done = step + 1;
        if done % options.every == 0 || done == options.steps {
            println!("step {done}: loss {:.6}", network.mean_loss()?);
            std::io::stdout().flush()?;
            path.map_or(Ok(()), |path| network.save(path, done, options.seed))?;
        }
    }
    println!("weights {:016x}", checksum(&network.weight_bytes()?));
    Ok(())
}

fn main() -> ExitCode {
    match run(&MlpOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mlp: {error:#}");
            ExitCode::FAILURE
        }
    }
}
