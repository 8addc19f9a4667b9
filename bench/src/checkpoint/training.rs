//! How much a training loses to saves in the background: 1 GiB, one save per 10 s.
//!
//! The training is a stand-in: one thread multiplies matrices that fit into its cache, a fixed number of times a step.
//! Phases with and without saves do the same number of steps, in turns. As in `TrainingLoop`, a step returns a new
//! state, and a save keeps it without a copy. A state of 1 GiB at each step would hide the rest, so in both kinds of
//! phases only the steps at which a save is due return one.
//!
//! ```text
//! without saves   step step … new state ……………………… step step …
//! with saves      step step … new state, save ─┐ … step step …     wall clock = steps + new states + stall + the rest
//!                                              └ hash, write
//! ```
//! The rest is the CPU and the memory bandwidth of hashing and writing: it depends on the cores that are left.

use super::{OpenCheckpoint, STATE_BYTES, ScratchFolder, random_bytes};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Context, Result};
use bytes::Bytes;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};
use sublet_checkpoint::BackgroundSaver;

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

/// One phase.
#[derive(Clone, Copy, Default, Serialize)]
struct SavingPhase {
    wall_s: f64,
    saves: u32,
    new_states_s: f64,
    stalled_s: f64,
    /// How long the last save took in its thread.
    save_s: f64,
}

/// Phases without and with saves in turns.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = ScratchFolder::new(rig, "ck-train")?;
    let checkpoint = OpenCheckpoint::create(folder.path(), 1)?;
    let state = random_bytes(3, STATE_BYTES).into();
    let mut training = SavingTraining { checkpoint, state, states: 0, model: [[0.5; SIDE]; SIDE] };
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
    let lost = median(plain.iter().zip(&saving).map(|(plain, saving)| 100.0 * (1.0 - plain.wall_s / saving.wall_s)));
    let stalled = share(total(|phase| phase.stalled_s));
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
                "CPU and memory bandwidth that the saves take; nothing is copied for them".to_owned(),
            ),
        ],
        raw: serde_json::json!({ "steps": steps, "plain_s": plain, "saving": saving }),
    })
}

/// A training on the CPU, and where its state is saved.
struct SavingTraining {
    checkpoint: OpenCheckpoint,
    state: Bytes,
    /// How many states there were: no two are equal.
    states: u64,
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

    /// Steps without saves.
    fn plain(&mut self, steps: u32) -> SavingPhase {
        let mut phase = SavingPhase::default();
        let (begun, mut next) = (Instant::now(), FIRST_SAVE);
        for _ in 0..steps {
            train_step(&mut self.model);
            if begun.elapsed() >= next {
                next += SAVE_PERIOD;
                self.replace_state(&mut phase);
            }
        }
        phase.wall_s = begun.elapsed().as_secs_f64();
        phase
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
                self.replace_state(&mut phase);
                // The saver sets the version that is expected.
                saver.save(self.checkpoint.request().bytes(self.state.clone()))?;
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

    /// The state that a step returns: all of it is new memory.
    fn replace_state(&mut self, phase: &mut SavingPhase) {
        let begun = Instant::now();
        let mut state = self.state.to_vec();
        self.states += 1;
        // The first chunk differs from the version before: the whole part is written.
        state[..8].copy_from_slice(&self.states.to_le_bytes());
        self.state = state.into();
        phase.new_states_s += begun.elapsed().as_secs_f64();
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
