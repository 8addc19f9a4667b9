//! Checkpoints: saves beside plain writes, saves beside a training that goes on, once-only effects beside raw SQLite,
//! and a trainer that is killed.
//!
//! ```text
//! saves      1 GiB to one and to three replicas   beside the same writes and one fsync by hand
//! unchanged  the same 1 GiB again                 bytes written, as the kernel counts them
//! training   one save per 10 s in the background  beside the same steps without saves
//! effects    reserve and complete                 beside raw SQLite, one row a transaction
//! takeover   kill -9 to the next trainer's step   beside a plain read of the state
//! ```
//!
//! Everything lies in folders that are removed again; at most 8 GiB of the disk are used at once.
//!
//! Absent on purpose: several disks, object stores, and copying a state off a real GPU.

mod effects;
mod saves;
pub mod takeover;
mod training;
mod unchanged;

use crate::BenchRun;
use crate::figure::{BenchOutcome, Figure, digits};
use crate::rig::BenchRig;
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sublet_checkpoint::{
    CheckpointName, CheckpointStore, FenceEpoch, LogicalResourceName, ReplicatedCheckpoint, SaveRequest, SchemaId,
    Version,
};

/// The state that is saved.
const STATE_BYTES: usize = 1 << 30;

/// Every part of this bench, with the name of its raw numbers.
const PARTS: [(&str, BenchRun); 5] = [
    ("saves", saves::run),
    ("unchanged", unchanged::run),
    ("training", training::run),
    ("effects", effects::run),
    ("takeover", takeover::run),
];

/// All parts, one after the other, or the one that was named.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let (mut figures, mut raw) = (Vec::new(), serde_json::Map::new());
    let is_wanted = |name: &str| rig.part.as_deref().is_none_or(|wanted| wanted == name);
    ensure!(PARTS.iter().any(|(name, _)| is_wanted(name)), "parts are {:?}", PARTS.map(|(name, _)| name));
    for (name, part) in PARTS.into_iter().filter(|(name, _)| is_wanted(name)) {
        let outcome = part(rig)?;
        outcome.figures.iter().for_each(tell);
        figures.extend(outcome.figures);
        raw.insert(name.to_owned(), outcome.raw);
    }
    Ok(BenchOutcome { figures, raw: raw.into() })
}

/// The bench takes minutes: each figure is shown when it is known.
fn tell(figure: &Figure) {
    eprintln!("  {}: {} {} ({})", figure.what, digits(figure.measured), figure.unit, figure.note);
}

/// A folder that is removed when this is dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new(rig: &BenchRig, name: &str) -> Result<ScratchFolder> {
        Ok(ScratchFolder(rig.fresh_folder(name)?))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("warning: `{}` could not be removed: {error}", self.0.display());
        }
        // Otherwise the disk would free the blocks in the middle of the next measurement.
        rustix::fs::sync();
    }
}

/// Bytes that no disk can compress.
fn random_bytes(seed: u8, bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut random);
    random
}

/// A checkpoint that is open for saving, in a store of its own.
struct OpenCheckpoint {
    checkpoints: ReplicatedCheckpoint,
    name: CheckpointName,
    fence: FenceEpoch,
    version: Version,
    replicas: usize,
}

impl OpenCheckpoint {
    /// A new store in an empty folder, with so many replicas on its disk.
    fn create(folder: &Path, replicas: usize) -> Result<OpenCheckpoint> {
        for number in 0..replicas {
            std::fs::create_dir_all(folder.join(format!("replicas/copy-{number}")))?;
        }
        let store = CheckpointStore::open(folder)?;
        let checkpoints = store.checkpoints(LogicalResourceName::new("bench"), SchemaId::new("bytes"))?;
        let name = CheckpointName::new("state");
        let fence = checkpoints.open(&name)?;
        Ok(OpenCheckpoint { checkpoints, name, fence, version: Version(0), replicas })
    }

    /// A save of the next version, without parts.
    fn request(&self) -> SaveRequest {
        SaveRequest::new(self.name.clone(), self.version, self.fence)
    }

    /// Saves a state of one part; returns how long that took.
    fn save_part(&mut self, part: &str, state: &Bytes) -> Result<Duration> {
        self.save(self.request().part(part, state.clone()))
    }

    /// Saves; returns how long that took. Every replica must have published the version.
    fn save(&mut self, request: SaveRequest) -> Result<Duration> {
        let begun = Instant::now();
        let saved = self.checkpoints.save(request)?;
        let took = begun.elapsed();
        self.version = saved.version;
        let holders = self.checkpoints.directories(&self.name, saved.version)?.len();
        ensure!(holders == self.replicas, "{holders} of {} replicas hold the version", self.replicas);
        Ok(took)
    }
}
