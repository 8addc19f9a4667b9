//! A save of 1 GiB beside the same writes by hand: one file, 4 MiB a write, one fsync, and one of its directory.
//!
//! The sides take turns, and each round begins with another one. All write bytes that no disk can compress, from the
//! same memory; `dd` writes zeros. A save also hashes, writes a manifest, and commits in its register. No save finds an
//! older version with the same part, so each writes everything.

use super::{OpenCheckpoint, STATE_BYTES, ScratchFolder, random_bytes};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// One write by hand: as large as the chunks of a save.
const WRITE_BYTES: usize = 4 << 20;

/// Seconds of each side in one round.
#[derive(Clone, Copy, Default, Serialize)]
struct SaveRound {
    by_hand: f64,
    dd: f64,
    one: f64,
    pruning: f64,
    three: f64,
}

/// What the sides of all rounds share.
struct SaveSides<'a> {
    rig: &'a BenchRig,
    state: Bytes,
    /// Has a version already, which its next save prunes.
    pruned: OpenCheckpoint,
}

/// One side: measures itself and notes the seconds.
type SaveSide = fn(&mut SaveSides<'_>, &mut SaveRound) -> Result<()>;

const SIDES: [SaveSide; 5] = [
    |sides, round| {
        round.by_hand = sides.by_hand()?;
        Ok(())
    },
    |sides, round| {
        round.one = sides.fresh(1)?;
        Ok(())
    },
    |sides, round| {
        round.pruning = sides.pruning()?;
        Ok(())
    },
    |sides, round| {
        round.three = sides.fresh(3)?;
        Ok(())
    },
    |sides, round| {
        round.dd = sides.dd()?;
        Ok(())
    },
];

/// All sides in turns.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = ScratchFolder::new(rig, "ck-pruned")?;
    let state = Bytes::from(random_bytes(1, STATE_BYTES));
    let mut sides = SaveSides { rig, state, pruned: OpenCheckpoint::create(folder.path(), 1)? };
    sides.pruning()?;
    let mut rounds = Vec::new();
    for number in 0..rig.rounds as usize {
        let mut round = SaveRound::default();
        for turn in 0..SIDES.len() {
            rustix::fs::sync();
            SIDES[(number + turn) % SIDES.len()](&mut sides, &mut round)?;
        }
        rounds.push(round);
    }
    Ok(BenchOutcome { figures: figures(&rounds), raw: serde_json::json!({ "rounds_s": rounds }) })
}

fn figures(rounds: &[SaveRound]) -> Vec<Figure> {
    let middle = |of: fn(&SaveRound) -> f64| median(rounds.iter().map(of));
    let rate = |copies: f64, of: fn(&SaveRound) -> f64| digits(copies * STATE_BYTES as f64 / 1e6 / middle(of));
    let figure = |what, bound, of: fn(&SaveRound) -> f64, note: String| {
        let ratios: Vec<f64> = rounds.iter().map(of).collect();
        let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = ratios.iter().copied().fold(0.0, f64::max);
        let note = format!("{note}; rounds {} to {}", digits(lowest), digits(highest));
        Figure { what, target: FigureTarget::AtLeast(bound), measured: median(ratios), unit: "×", note }
    };
    let by_hand = rate(1.0, |round| round.by_hand);
    vec![
        figure(
            "save of 1 GiB to one replica, compared with the same writes and fsync by hand",
            0.9,
            |round| round.by_hand / round.one,
            format!(
                "{} compared with {by_hand} MB/s; `dd conv=fsync` of zeros makes {} MB/s",
                rate(1.0, |round| round.one),
                rate(1.0, |round| round.dd)
            ),
        ),
        figure(
            "the same, and the version before is pruned in the save",
            0.9,
            |round| round.by_hand / round.pruning,
            format!("{} compared with {by_hand} MB/s", rate(1.0, |round| round.pruning)),
        ),
        figure(
            "save of 1 GiB to three replicas on one disk, compared with a third of the rate by hand",
            0.8,
            |round| 3.0 * round.by_hand / round.three,
            format!("{} MB/s for the three copies together, {by_hand} by hand", rate(3.0, |round| round.three)),
        ),
    ]
}

impl SaveSides<'_> {
    fn by_hand(&self) -> Result<f64> {
        let folder = ScratchFolder::new(self.rig, "ck-hand")?;
        let begun = Instant::now();
        write_synced(folder.path(), &self.state)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// The first version of a new store.
    fn fresh(&self, replicas: usize) -> Result<f64> {
        let folder = ScratchFolder::new(self.rig, "ck-save")?;
        let took = OpenCheckpoint::create(folder.path(), replicas)?.save_part("state", &self.state)?;
        Ok(took.as_secs_f64())
    }

    /// A version after another one, which is pruned. Its part has another name, so that it is written.
    fn pruning(&mut self) -> Result<f64> {
        let part = if self.pruned.version.0.is_multiple_of(2) { "even" } else { "odd" };
        let request = self.pruned.request().part(part, self.state.clone()).keep(1);
        Ok(self.pruned.save(request)?.as_secs_f64())
    }

    fn dd(&self) -> Result<f64> {
        let folder = ScratchFolder::new(self.rig, "ck-dd")?;
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=4M", "conv=fsync", "status=none"]);
        command.arg(format!("count={}", STATE_BYTES / WRITE_BYTES));
        command.arg(format!("of={}", folder.path().join("zeros").display()));
        let begun = Instant::now();
        let status = command.status().context("cannot start `dd`")?;
        let took = begun.elapsed();
        ensure!(status.success(), "`dd` failed ({status})");
        Ok(took.as_secs_f64())
    }
}

fn write_synced(folder: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(folder.join("state"))?;
    for piece in bytes.chunks(WRITE_BYTES) {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    Ok(File::open(folder)?.sync_all()?)
}
