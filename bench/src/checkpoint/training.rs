//! How much a training loses to saves in the background: 1 GiB, one save per 10 s.
//!
//! The training is a stand-in: one thread multiplies matrices that fit into its cache, a fixed number of times a step.
//! Phases with and without saves do the same number of steps, in turns. At a save the loop copies the state, as a
//! program copies it off its GPU, and hands the copy over.
//!
//! ```text
//! wall clock = steps + copies + stall (the calls of BackgroundSaver::save) + what the saves take from the steps
//! ```
//! The last term is the CPU and the memory bandwidth of hashing and writing: it depends on the cores that are left.

use super::{OpenCheckpoint, STATE_BYTES, ScratchFolder, random_bytes};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Context, Result};
use bytes::Bytes;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};
use sublet_checkpoint::{BackgroundSaver, Version};

/// Between the beginnings of two saves.
const SAVE_PERIOD: Duration = Duration::from_secs(10);
/// The first save of a phase begins after half a period, so that each phase has its whole share of saves.
const FIRST_SAVE: Duration = Duration::from_secs(5);
/// How long a phase without saves is meant to take.
const PHASE: Duration = Duration::from_secs(20);
/// Phases of each kind.
const PHASES: usize = 3;
/// Rows and columns of the matrices.
const SIDE: usize = 64;
/// Products of one step: about 10 ms.
const PRODUCTS: usize = 100;

/// One phase with saves.
#[derive(Clone, Copy, Default, Serialize)]
struct SavingPhase {
    wall_s: f64,
    saves: u32,
    copied_s: f64,
    stalled_s: f64,
    /// How long the last save took in its thread.
    save_s: f64,
}

/// Phases without and with saves in turns.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = ScratchFolder::new(rig, "ck-train")?;
    let checkpoint = OpenCheckpoint::create(folder.path(), 1)?;
    let mut training = SavingTraining { checkpoint, state: random_bytes(3, STATE_BYTES), model: [[0.5; SIDE]; SIDE] };
    let steps = training.steps_of(PHASE);
    let (mut plain, mut saving) = (Vec::new(), Vec::new());
    for _ in 0..PHASES {
        plain.push(training.plain(steps));
        saving.push(training.saving(steps)?);
        rustix::fs::sync();
    }
    let total = |of: fn(&SavingPhase) -> f64| saving.iter().map(of).sum::<f64>();
    let wall = total(|phase| phase.wall_s);
    let share = |seconds: f64| 100.0 * seconds / wall;
    let lost = median(plain.iter().zip(&saving).map(|(plain, saving)| 100.0 * (1.0 - plain / saving.wall_s)));
    let (copied, stalled) = (share(total(|phase| phase.copied_s)), share(total(|phase| phase.stalled_s)));
    let save_s = median(saving.iter().map(|phase| phase.save_s));
    let saves: u32 = saving.iter().map(|phase| phase.saves).sum();
    let figure = |what, measured, note| Figure { what, target: FigureTarget::AtMost(2.0), measured, unit: "%", note };
    Ok(BenchOutcome {
        figures: vec![
            figure(
                "training stalled by background saves of 1 GiB, one per 10 s, as BackgroundSaver measures it",
                stalled,
                format!("{saves} saves in {} s, each {} s in its thread", digits(wall), digits(save_s)),
            ),
            figure(
                "the same by the wall clock, compared with the same steps without saves",
                lost,
                format!(
                    "of it the copy of the state {} %; the rest is CPU and memory bandwidth that the save takes",
                    digits(copied)
                ),
            ),
        ],
        raw: serde_json::json!({ "steps": steps, "plain_s": plain, "saving": saving }),
    })
}

/// A training on the CPU, and where its state is saved.
struct SavingTraining {
    checkpoint: OpenCheckpoint,
    state: Vec<u8>,
    model: [[f32; SIDE]; SIDE],
}

impl SavingTraining {
    /// How many steps take this long.
    fn steps_of(&mut self, time: Duration) -> u32 {
        let (begun, mut steps) = (Instant::now(), 0);
        while begun.elapsed() < time / 10 {
            train_step(&mut self.model);
            steps += 1;
        }
        10 * steps
    }

    /// The seconds of steps without saves.
    fn plain(&mut self, steps: u32) -> f64 {
        let begun = Instant::now();
        (0..steps).for_each(|_| train_step(&mut self.model));
        begun.elapsed().as_secs_f64()
    }

    /// The same steps with saves.
    fn saving(&mut self, steps: u32) -> Result<SavingPhase> {
        let mut phase = SavingPhase::default();
        let newest = self.checkpoint.version;
        let mut saver = BackgroundSaver::new(&self.checkpoint.checkpoints, newest, None);
        let (begun, mut next) = (Instant::now(), FIRST_SAVE);
        for _ in 0..steps {
            train_step(&mut self.model);
            saver.check()?;
            if begun.elapsed() >= next {
                next += SAVE_PERIOD;
                phase.copied_s += self.save(&mut saver)?.as_secs_f64();
                phase.saves += 1;
            }
        }
        phase.wall_s = begun.elapsed().as_secs_f64();
        phase.stalled_s = saver.stalled().as_secs_f64();
        saver.finish()?;
        self.checkpoint.version = saver.version();
        phase.save_s = saver.last_save_took().context("a phase without a save")?.as_secs_f64();
        Ok(phase)
    }

    /// Begins to save a copy of the state; returns how long the copy took.
    fn save(&mut self, saver: &mut BackgroundSaver) -> Result<Duration> {
        // The first chunk differs from the version before: the whole part is written.
        self.state[0] = self.state[0].wrapping_add(1);
        let begun = Instant::now();
        let copy = Bytes::from(self.state.clone());
        let copied = begun.elapsed();
        let expected: Version = saver.version();
        saver.save(
            sublet_checkpoint::SaveRequest::new(self.checkpoint.name.clone(), expected, self.checkpoint.fence)
                .bytes(copy),
        )?;
        Ok(copied)
    }
}

/// Multiplies a matrix with itself again and again, and keeps its numbers small.
fn train_step(model: &mut [[f32; SIDE]; SIDE]) {
    for _ in 0..PRODUCTS {
        let mut product = [[0.0; SIDE]; SIDE];
        for (row, result) in model.iter().zip(&mut product) {
            for (factor, other) in row.iter().zip(model.iter()) {
                result.iter_mut().zip(other).for_each(|(sum, value)| *sum += factor * value);
            }
        }
        product.iter_mut().flatten().for_each(|value| *value = value.fract() * 0.5);
        *model = black_box(product);
    }
}
