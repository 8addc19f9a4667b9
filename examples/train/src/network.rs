//! A two-layer perceptron on a GPU, and its state as bytes.
//!
//! The same kernels, samples and first weights as `sublet-example-mlp`. The weights go to the GPU before each step and
//! come back after it: the state that is saved is the state that is trained.

use sublet::{FabricError, GpuBuffer, GpuModule, GpuSession, KernelArgs};
use sublet_examples::random::SeededRandom;

/// Compiled by nvcc from mlp.cu beside it.
const PTX: &str = include_str!("../../../crates/softgpu/kernels/mlp.ptx");
/// Numbers of a sample, neurons of the hidden layer, and classes.
const INPUTS: usize = 16;
const HIDDEN: usize = 64;
const CLASSES: usize = 4;
/// Samples in all, and of a batch.
const SAMPLES: usize = 1024;
const BATCH: usize = 64;
/// How far a step goes down the slope.
const LEARNING_RATE: f32 = 0.2;
/// The lengths of both layers' weights and biases.
const SIZES: [usize; 4] = [INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES];

/// What is saved: the weights, and the loss of each step so far.
pub struct TrainingState {
    /// Weights and biases of both layers, one after the other.
    pub weights: Vec<f32>,
    /// The mean loss of each step's batch.
    pub losses: Vec<f32>,
}

impl TrainingState {
    /// The first weights of a seed.
    pub fn of_seed(seed: u64) -> TrainingState {
        let mut random = SeededRandom::new(seed);
        samples(&mut random);
        let mut weights = Vec::new();
        for (inputs, outputs) in [(INPUTS, HIDDEN), (HIDDEN, CLASSES)] {
            let scale = 1.0 / (inputs as f32).sqrt();
            weights.extend((0..inputs * outputs).map(|_| random.unit() * scale));
            weights.extend(vec![0.0; outputs]);
        }
        TrainingState { weights, losses: Vec::new() }
    }

    /// The state that [`to_bytes`](TrainingState::to_bytes) wrote.
    pub fn parse(bytes: &[u8]) -> TrainingState {
        let mut weights = numbers(bytes);
        let losses = weights.split_off(weights.len().min(SIZES.iter().sum()));
        TrainingState { weights, losses }
    }

    /// The state as it is saved.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.weights.iter().chain(&self.losses).flat_map(|number| number.to_le_bytes()).collect()
    }

    /// A checksum of the weights (FNV-1a of 64 bits).
    pub fn checksum(&self) -> u64 {
        let bytes = self.weights.iter().flat_map(|number| number.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

/// Samples and their classes.
fn samples(random: &mut SeededRandom) -> (Vec<f32>, Vec<u32>) {
    let centres: Vec<f32> = (0..CLASSES * INPUTS).map(|_| random.unit()).collect();
    let labels: Vec<u32> = (0..SAMPLES).map(|_| random.within(0, CLASSES - 1) as u32).collect();
    let mut places = Vec::with_capacity(SAMPLES * INPUTS);
    for label in &labels {
        for input in 0..INPUTS {
            places.push(centres[*label as usize * INPUTS + input] + random.unit() * 0.75);
        }
    }
    (places, labels)
}

/// The network's memory on the GPU of one lease.
pub struct Network {
    module: GpuModule,
    samples: Vec<f32>,
    labels: Vec<u32>,
    batch: GpuBuffer,
    batch_labels: GpuBuffer,
    weights: [GpuBuffer; 4],
    hidden: GpuBuffer,
    logits: GpuBuffer,
    logits_slope: GpuBuffer,
    hidden_slope: GpuBuffer,
    losses: GpuBuffer,
}

impl Network {
    /// Allocates the network, and loads its kernels.
    pub fn new(session: &GpuSession, seed: u64) -> Result<Network, FabricError> {
        let (samples, labels) = samples(&mut SeededRandom::new(seed));
        let floats = |count: usize| session.mem_alloc(count as u64 * 4);
        let [first, first_biases, second, second_biases] = SIZES;
        Ok(Network {
            module: session.module_load(PTX)?,
            samples,
            labels,
            batch: floats(BATCH * INPUTS)?,
            batch_labels: floats(BATCH)?,
            weights: [floats(first)?, floats(first_biases)?, floats(second)?, floats(second_biases)?],
            hidden: floats(BATCH * HIDDEN)?,
            logits: floats(BATCH * CLASSES)?,
            logits_slope: floats(BATCH * CLASSES)?,
            hidden_slope: floats(BATCH * HIDDEN)?,
            losses: floats(BATCH)?,
        })
    }

    /// Learns from one batch; returns its mean loss.
    pub fn step(&self, session: &GpuSession, number: u64, weights: &mut Vec<f32>) -> Result<f32, FabricError> {
        let batch = (number % (SAMPLES / BATCH) as u64) as usize;
        let samples = &self.samples[batch * BATCH * INPUTS..(batch + 1) * BATCH * INPUTS];
        let labels: Vec<u8> =
            self.labels[batch * BATCH..(batch + 1) * BATCH].iter().flat_map(|label| label.to_le_bytes()).collect();
        session.mem_write(&self.batch, 0, &bytes(samples))?;
        session.mem_write(&self.batch_labels, 0, &labels)?;
        let mut rest = &weights[..];
        for (buffer, size) in self.weights.iter().zip(SIZES) {
            let (own, others) = rest.split_at(size);
            session.mem_write(buffer, 0, &bytes(own))?;
            rest = others;
        }
        self.launch(session)?;
        let mut trained = Vec::with_capacity(weights.len());
        for buffer in &self.weights {
            trained.extend(numbers(&session.mem_read(buffer, 0, buffer.len())?));
        }
        *weights = trained;
        let losses = numbers(&session.mem_read(&self.losses, 0, self.losses.len())?);
        Ok(losses.iter().sum::<f32>() / BATCH as f32)
    }

    /// Forward, the loss, back, and down the slope.
    fn launch(&self, session: &GpuSession) -> Result<(), FabricError> {
        let [first, first_biases, second, second_biases] = &self.weights;
        let sizes = |inputs: usize, outputs: usize| {
            KernelArgs::new().push_u32(BATCH as u32).push_u32(inputs as u32).push_u32(outputs as u32)
        };
        let run = |kernel: &str, columns: usize, rows: usize, args: KernelArgs<'_>| {
            let (block, grid) = ([16, 16, 1], [columns.div_ceil(16) as u32, rows.div_ceil(16) as u32, 1]);
            session.launch_with_args(&self.module, kernel, grid, block, args)
        };
        let args = sizes(INPUTS, HIDDEN).push_u32(1).push_buffer(&self.batch).push_buffer(first);
        run("dense", HIDDEN, BATCH, args.push_buffer(first_biases).push_buffer(&self.hidden))?;
        let args = sizes(HIDDEN, CLASSES).push_u32(0).push_buffer(&self.hidden).push_buffer(second);
        run("dense", CLASSES, BATCH, args.push_buffer(second_biases).push_buffer(&self.logits))?;
        let args = KernelArgs::new().push_u32(BATCH as u32).push_u32(CLASSES as u32).push_buffer(&self.logits);
        let args = args.push_buffer(&self.batch_labels).push_buffer(&self.logits_slope).push_buffer(&self.losses);
        session.launch_with_args(&self.module, "loss", [1, 1, 1], [BATCH as u32, 1, 1], args)?;
        let args = sizes(HIDDEN, CLASSES).push_buffer(&self.logits_slope).push_buffer(second);
        run("back", HIDDEN, BATCH, args.push_buffer(&self.hidden).push_buffer(&self.hidden_slope))?;
        // One line more than there are inputs: that of the biases.
        let args = sizes(HIDDEN, CLASSES).push_f32(LEARNING_RATE).push_buffer(&self.hidden);
        let args = args.push_buffer(&self.logits_slope).push_buffer(second).push_buffer(second_biases);
        run("descend", CLASSES, HIDDEN + 1, args)?;
        let args = sizes(INPUTS, HIDDEN).push_f32(LEARNING_RATE).push_buffer(&self.batch);
        let args = args.push_buffer(&self.hidden_slope).push_buffer(first).push_buffer(first_biases);
        run("descend", HIDDEN, INPUTS + 1, args)?;
        session.sync()
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_back_as_it_was_written() {
        let mut state = TrainingState::of_seed(1);
        assert_eq!(state.weights.len(), SIZES.iter().sum::<usize>());
        state.losses = vec![1.5, 0.5];
        let read = TrainingState::parse(&state.to_bytes());
        assert_eq!((read.checksum(), read.losses), (state.checksum(), vec![1.5, 0.5]));
    }
}
