//! What a save of an unchanged state writes: 1 GiB in 64 parts, saved twice.
//!
//! The kernel counts the bytes that this process made it write (`write_bytes` of /proc/self/io). Its own journal of
//! the file system is not among them.

use super::{OpenCheckpoint, STATE_BYTES, ScratchFolder, random_bytes};
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Context, Result};
use bytes::Bytes;
use std::time::Duration;
use sublet_checkpoint::CheckpointPart;

/// Files of the version, as a state with a file for each tensor has.
const PARTS: usize = 64;

/// Saves once, then the same bytes again in each round.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = ScratchFolder::new(rig, "ck-same")?;
    let mut checkpoint = OpenCheckpoint::create(folder.path(), 1)?;
    let state = Bytes::from(random_bytes(2, STATE_BYTES));
    let (first_bytes, first) = save_counted(&mut checkpoint, &state)?;
    let mut again = Vec::new();
    for _ in 0..rig.rounds {
        let (bytes, took) = save_counted(&mut checkpoint, &state)?;
        again.push((bytes, took.as_secs_f64()));
    }
    let written = median(again.iter().map(|(bytes, _)| *bytes as f64));
    let took = median(again.iter().map(|(_, seconds)| *seconds));
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "save of an unchanged state of 1 GiB in 64 parts: bytes written, of its size",
            target: FigureTarget::AtMost(1.0),
            measured: 100.0 * written / STATE_BYTES as f64,
            unit: "%",
            note: format!(
                "{} KiB in {} s; the first save wrote {} MiB in {} s",
                digits(written / 1024.0),
                digits(took),
                digits(first_bytes as f64 / f64::from(1 << 20)),
                digits(first.as_secs_f64())
            ),
        }],
        raw: serde_json::json!({ "first": (first_bytes, first.as_secs_f64()), "again_bytes_seconds": again }),
    })
}

/// Saves; returns the bytes written and the time.
fn save_counted(checkpoint: &mut OpenCheckpoint, state: &Bytes) -> Result<(u64, Duration)> {
    let length = STATE_BYTES / PARTS;
    let part = |number: usize| {
        CheckpointPart::new(format!("tensor-{number:02}"), state.slice(number * length..(number + 1) * length))
    };
    let request = checkpoint.request().parts((0..PARTS).map(part));
    rustix::fs::sync();
    let before = written_bytes()?;
    let took = checkpoint.save(request)?;
    Ok((written_bytes()? - before, took))
}

/// What this process, with threads that ended, made the kernel write so far.
fn written_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let count = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(count.context("no write_bytes in /proc/self/io")?.trim().parse()?)
}
