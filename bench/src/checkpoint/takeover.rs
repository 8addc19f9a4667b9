//! From kill -9 of a trainer to the first step of the next one, which is started at once.
//!
//! The trainer is the loop of the library `sublet` with the kernel of cookbook/preemptible-training, on the only GPU (a
//! soft one) of a daemon of its own. Its state has 256 MiB, and it saves every second in the background, so a kill finds
//! it at any moment of a save. The next trainer reads and verifies the newest version, waits until the
//! lease of the killed one is over, loads the driver, and does the step after the newest saved one.

use super::ScratchFolder;
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use crate::service;
use anyhow::{Context, Result, ensure};
use cookbook_preemptible_training::{acquire_preemptible_training_lease, train_step};
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use sublet::training::{SaveSchedule, TrainingLoop, replicated_training_state_in, training_checkpoint_name};
use sublet_checkpoint::{CheckpointStore, ReplicatedCheckpoint};

/// The state; its first bytes go through the GPU.
const STATE_BYTES: usize = 256 << 20;
/// What a step computes on.
const MODEL_BYTES: usize = 16;
/// The GPU of the daemon.
const GPU: &str = "soft:1x2GiB";
/// The lease of the trainer.
const VRAM_BYTES: u64 = 1 << 30;
const LEASE_S: u64 = 120;
/// Between two saves.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// How long a trainer trains before it is killed: later in each round, so that kills find other moments.
const LIFE: Duration = Duration::from_millis(2_500);
const LIFE_STEP: Duration = Duration::from_millis(130);
const JOB: &str = "bench";

/// One kill, in seconds since it.
#[derive(Serialize)]
struct TakeoverRound {
    killed_s: f64,
    /// The next trainer has read the newest version.
    restored_s: f64,
    /// It has a lease.
    leased_s: f64,
    /// It has done its first step.
    stepped_s: f64,
    /// A plain read of the state.
    read_s: f64,
    /// Steps of the killed trainer that were not saved.
    repeated: u64,
}

/// Kills a trainer a few times.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = ScratchFolder::new(rig, "ck-kill")?;
    let daemon = service::sublet(rig, folder.path(), GPU)?.await_ready(folder.path())?;
    let store = folder.path().join("store");
    let mut trainer = BenchTrainer::start(&daemon.socket, &store)?;
    trainer.await_line("step")?;
    let (checkpoints, _) = replicated_training_state_in(&CheckpointStore::open(&store)?)?;
    let mut rounds = Vec::new();
    for number in 0..rig.rounds {
        std::thread::sleep(LIFE + LIFE_STEP * number);
        let (next, round) = kill_and_restart(trainer, &daemon.socket, &store, &checkpoints)?;
        trainer = next;
        rounds.push(round);
    }
    let middle = |of: fn(&TakeoverRound) -> f64| median(rounds.iter().map(of));
    let longest = rounds.iter().map(|round| round.stepped_s).fold(0.0, f64::max);
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "kill -9 of a trainer to the first step of the next one, less a plain read of its state of 256 MiB",
            target: FigureTarget::AtMost(2.0),
            measured: middle(|round| round.stepped_s - round.read_s),
            unit: "s",
            note: format!(
                "{} s in all (the longest {}), {} s of it for a plain read; after {} s the state is restored, after {} s \
                 there is a lease",
                digits(middle(|round| round.stepped_s)),
                digits(longest),
                digits(middle(|round| round.read_s)),
                digits(middle(|round| round.restored_s)),
                digits(middle(|round| round.leased_s))
            ),
        }],
        raw: serde_json::json!({ "state_bytes": STATE_BYTES, "rounds": rounds }),
    })
}

fn kill_and_restart(
    mut trainer: BenchTrainer,
    socket: &Path,
    store: &Path,
    checkpoints: &ReplicatedCheckpoint,
) -> Result<(BenchTrainer, TakeoverRound)> {
    let begun = Instant::now();
    let since = || begun.elapsed().as_secs_f64();
    trainer.child.kill()?;
    trainer.child.wait()?;
    let killed_s = since();
    let mut next = BenchTrainer::start(socket, store)?;
    next.await_line("restored")?;
    let restored_s = since();
    next.await_line("leased")?;
    let leased_s = since();
    let first = next.await_line("step")?;
    let stepped_s = since();
    let last = trainer.last_step()?;
    // Nothing was saved since: a trainer does not save before its second step.
    let name = training_checkpoint_name(JOB);
    let saved = checkpoints.newest(&name)?.context("nothing was saved before the kill")?;
    ensure!(saved.step.is_some_and(|step| step + 1 >= first), "step {first} came after step {:?}", saved.step);
    let begun = Instant::now();
    let places = checkpoints.directories(&name, saved.version)?;
    let (_, place) = places.first().context("no replica holds the newest version")?;
    let bytes = std::fs::read(place.join("state"))?;
    let read_s = begun.elapsed().as_secs_f64();
    ensure!(bytes.len() == STATE_BYTES, "the state has {} bytes", bytes.len());
    let repeated = (last + 1).saturating_sub(first);
    Ok((next, TakeoverRound { killed_s, restored_s, leased_s, stepped_s, read_s, repeated }))
}

/// A trainer in a process of its own; killed when dropped.
struct BenchTrainer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl BenchTrainer {
    fn start(socket: &Path, store: &Path) -> Result<BenchTrainer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("trainer").arg(store).env("SUBLET_SOCKET", socket);
        for name in ["SUBLET_URL", "SUBLET_LEASE", "SUBLET_SOFT_STATE"] {
            command.env_remove(name);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("a child without output")?);
        Ok(BenchTrainer { child, lines })
    }

    /// Reads on to a line that begins with this word, and returns the number after it.
    fn await_line(&mut self, word: &str) -> Result<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.lines.read_line(&mut line)? > 0, "the trainer ended without `{word}`");
            if let Some(number) = line.strip_prefix(word) {
                return number.trim().parse().with_context(|| format!("`{line}` has no number"));
            }
        }
    }

    /// The last step that it printed, after its end.
    fn last_step(&mut self) -> Result<u64> {
        let mut last = 0;
        for line in (&mut self.lines).lines() {
            last = line?.strip_prefix("step ").and_then(|number| number.parse().ok()).unwrap_or(last);
        }
        Ok(last)
    }
}

impl Drop for BenchTrainer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that is killed.
pub fn run_trainer(store: &Path) -> Result<()> {
    let (checkpoints, _) = replicated_training_state_in(&CheckpointStore::open(store)?)?;
    let job = TrainingLoop::open(&checkpoints, JOB)?.saving(SaveSchedule::Every(SAVE_EVERY));
    let acquire = || {
        println!("restored 0");
        let lease = acquire_preemptible_training_lease(VRAM_BYTES, LEASE_S)?;
        println!("leased 0");
        Ok(lease)
    };
    job.run(u64::MAX, vec![0; STATE_BYTES], acquire, |session, step, state| {
        let (model, rest) = state.split_at(MODEL_BYTES.min(state.len()));
        let mut next = train_step(session, step, model)?;
        next.extend_from_slice(rest);
        println!("step {step}");
        Ok(next)
    })?;
    Ok(())
}
