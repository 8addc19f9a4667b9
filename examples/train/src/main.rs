//! Trains the network of `sublet-example-mlp` on a GPU that may be taken away at any moment.
//!
//! ```text
//!   main ──► TrainingLoop ── acquire ──► a lease, and another one when it is lost
//!                        └── train ────► network: one step on the GPU
//!            state = weights + losses ──► checkpoint, every N steps ──► curve: losses as SVG
//! ```
//! Started again, it goes on from the newest version. Its result is the same, bit for bit, as without an interruption.
//!
//! Absent on purpose: signals. A process that is killed loses the steps since the last save, and nothing else.

mod curve;
mod network;

use clap::Parser;
use network::{Network, TrainingState};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use sublet::replicated::{CheckpointName, ReplicatedCheckpoint, ReplicatedError, Version};
use sublet::training::{
    SaveSchedule, TrainingLoop, TrainingProgress, replicated_training_state, training_checkpoint_name,
};
use sublet::{FabricError, GpuBuilder, GpuLease, GpuSession, GrafosError};

/// What the network, its buffers and a CUDA context (about 600 MiB on a real GPU) take, with room to spare.
const VRAM_MIB: u64 = 1024;

/// Trains a small network on a GPU that may be taken away, and prints a checksum of its weights
#[derive(Parser)]
struct TrainOptions {
    /// The job: its checkpoint and its lease have this name
    #[arg(long, default_value = "demo")]
    job: String,
    /// Train up to this step
    #[arg(long, default_value_t = 300)]
    steps: u64,
    /// Save, and print the loss, after so many steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Samples and first weights are made from this
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The next batch comes after so many milliseconds, as data that is read from somewhere does
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pace: u64,
    /// VRAM of the lease, in MiB
    #[arg(long, default_value_t = VRAM_MIB, value_name = "MIB")]
    vram: u64,
    /// Write the loss curve to this file
    #[arg(long, value_name = "FILE.svg")]
    curve: Option<PathBuf>,
}

/// What the messages need to know.
struct Journey<'a> {
    options: &'a TrainOptions,
    checkpoints: ReplicatedCheckpoint,
    name: CheckpointName,
    leases: u32,
    /// The id of the newest one.
    lease: String,
    /// Why the lease before was lost, in the words of the call that failed.
    loss: Option<String>,
    /// The newest version that was told of.
    told: Version,
    /// True when it was told that the job is opened.
    is_opened: bool,
}

impl Journey<'_> {
    /// Acquires the next lease, and says where the training goes on.
    fn acquire(&mut self) -> Result<GpuLease, FabricError> {
        let options = self.options;
        if self.leases > 0 {
            let reason = self.loss.take().unwrap_or_else(|| format!("lease {} is over", self.lease));
            println!("the GPU is lost: {reason}");
        }
        let lease = GpuBuilder::new().name(&options.job).min_vram(options.vram << 20).acquire()?;
        self.leases += 1;
        let newest = self.checkpoints.newest(&self.name).ok().flatten();
        self.told = newest.as_ref().map_or(self.told, |newest| newest.version);
        let from = newest.and_then(|newest| newest.step).unwrap_or_default();
        self.lease = lease.lease_id().to_owned();
        println!("lease {}: {} MiB, from step {from}", self.lease, options.vram);
        Ok(lease)
    }

    /// Says once that other trainers of the job are stale from now on.
    fn tell_opened(&mut self, job: &TrainingLoop) {
        if let Some(fence) = job.fence().filter(|_| !self.is_opened) {
            println!("job {}: opened with fence {fence}", self.options.job);
            self.is_opened = true;
        }
    }

    /// One step, with the news of the save that came before it.
    fn step(
        &mut self,
        network: &mut Option<(u32, Network)>,
        session: &GpuSession,
        step: u64,
        state: &[u8],
    ) -> Result<Vec<u8>, FabricError> {
        std::thread::sleep(Duration::from_millis(self.options.pace));
        let mut state = TrainingState::parse(state);
        if network.as_ref().is_none_or(|(lease, _)| *lease != self.leases) {
            // Memory of another lease is gone.
            *network = Some((self.leases, Network::new(session, self.options.seed)?));
        }
        if let Some((_, network)) = network {
            let loss = network.step(session, step - 1, &mut state.weights)?;
            state.losses.push(loss);
        }
        self.tell_saved(&state);
        Ok(state.to_bytes())
    }

    /// Tells of the newest version once. It is saved beside the training, and so a little later than its step.
    fn tell_saved(&mut self, state: &TrainingState) {
        let newest = self.checkpoints.newest(&self.name).ok().flatten();
        let Some(newest) = newest.filter(|newest| newest.version > self.told) else { return };
        self.told = newest.version;
        let step = newest.step.unwrap_or_default();
        let loss = state.losses.get(step.saturating_sub(1) as usize).copied().unwrap_or_default();
        println!("step {step}: loss {loss:.6}, saved as version {}", newest.version);
    }
}

fn train(options: &TrainOptions) -> Result<TrainingProgress, GrafosError> {
    let (checkpoints, _) = replicated_training_state()?;
    let job = TrainingLoop::open(&checkpoints, &options.job)?.saving(SaveSchedule::EverySteps(options.every));
    let name = training_checkpoint_name(&options.job);
    let journey = std::cell::RefCell::new(Journey {
        options,
        checkpoints,
        name,
        leases: 0,
        lease: String::new(),
        loss: None,
        told: Version(0),
        is_opened: false,
    });
    let mut network = None;
    let initial = TrainingState::of_seed(options.seed).to_bytes();
    let acquire = || journey.borrow_mut().acquire();
    let progress = job.run(options.steps, initial, acquire, |session, step, state| {
        journey.borrow_mut().tell_opened(&job);
        let trained = journey.borrow_mut().step(&mut network, session, step, state);
        // The loop goes on after a lost lease; only here its reason can be kept.
        trained.inspect_err(|error| journey.borrow_mut().loss = Some(error.to_string()))
    })?;
    Ok(progress)
}

fn run(options: &TrainOptions) -> Result<(), Box<dyn Error>> {
    let progress = train(options)?;
    let state = TrainingState::parse(&progress.state);
    if let Some(file) = &options.curve {
        fs::write(file, curve::svg(&state.losses)).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let loss = state.losses.last().copied().unwrap_or_default();
    println!("step {}: loss {loss:.6}, saved as version {}", progress.durable_step, progress.version);
    println!("weights {:016x}", state.checksum());
    Ok(())
}

/// The exit code of a trainer that another one has overtaken. A supervisor that started it again would take the job back.
const OVERTAKEN: u8 = 73;

/// Its exit code.
fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    let is_overtaken = error.downcast_ref::<GrafosError>().is_some_and(|error| error.code() == "fenced");
    if is_overtaken { ExitCode::from(OVERTAKEN) } else { ExitCode::FAILURE }
}

/// What to do next, if the error says it.
fn remedy(error: &(dyn Error + 'static)) -> Option<String> {
    let known = error.downcast_ref::<GrafosError>().map(|error| error.remedy().to_owned());
    known.or_else(|| error.downcast_ref::<ReplicatedError>().map(|error| error.remedy().to_owned()))
}

fn main() -> ExitCode {
    let Err(error) = run(&TrainOptions::parse()) else { return ExitCode::SUCCESS };
    let mut causes = String::new();
    let mut cause = error.source();
    while let Some(source) = cause {
        causes.push_str(&format!(": {source}"));
        cause = source.source();
    }
    eprintln!("error: {error}{causes}");
    if let Some(remedy) = remedy(&*error) {
        eprintln!("hint: {remedy}");
    }
    exit_code(&*error)
}
