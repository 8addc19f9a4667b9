//! Reserving and completing steps beside raw SQLite that writes the same rows.
//!
//! Each call commits one entry, so raw SQLite writes one row in a transaction, into a table of the same form with the
//! same durability. Its rows are entries that our side has just written, read back before the clock starts. Our side
//! also reads the scope before each reservation, and appends a snapshot every 1,000 entries: once in 20 turns.
//!
//! ```text
//! ours 50 commits │ raw 50 │ raw 50 │ ours 50 │ ours 50 │ raw 50 │ …    one ratio for each pair of turns
//! ```
//! Turns are short, because flushes of a disk take 1 ms for a while and then 3 ms: both sides meet the same moods.
//! The median over the pairs is the figure; the ratio of the sums, in which the snapshots count, is in the note.

use super::ScratchFolder;
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::median;
use anyhow::{Result, ensure};
use rusqlite::{Connection, OpenFlags, params};
use std::path::Path;
use std::time::Instant;
use sublet_checkpoint::{
    CheckpointStore, EffectFingerprint, EffectKey, FenceEpoch, IdempotencyOutcome, LogicalResourceName,
    ReplicatedIdempotencyStore, SchemaId,
};

/// Steps of one turn: two transactions each.
const STEPS: u64 = 25;
/// Pairs of turns of a round.
const PAIRS: u32 = 20;
/// The scope of the steps.
const SCOPE: &str = "job:7";
/// The chain of raw SQLite's rows.
const RAW_CHAIN: &str = "e/bench-steps/job:7";
/// Larger entries are snapshots.
const ENTRY_BYTES_MAX: usize = 2048;

/// Both sides in turns.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = ScratchFolder::new(rig, "ck-effects")?;
    let mut ours = StepLedger::open(&folder.path().join("store"))?;
    ours.commit(20)?;
    let entries = written_entries(&folder.path().join("store/register.db"))?;
    ensure!(entries.len() >= 40, "only {} entries were found", entries.len());
    let mut raw = RawEntries::create(&folder.path().join("raw.db"))?;
    let mut rounds: Vec<(f64, f64)> = Vec::new();
    for number in 0..PAIRS * rig.rounds {
        let (ours_s, raw_s);
        if number % 2 == 0 {
            ours_s = ours.commit(STEPS)?;
            raw_s = raw.commit(&entries)?;
        } else {
            raw_s = raw.commit(&entries)?;
            ours_s = ours.commit(STEPS)?;
        }
        rounds.push((ours_s, raw_s));
    }
    let per_pair = |side: fn(&(f64, f64)) -> f64| 1e6 * median(rounds.iter().map(side)) / STEPS as f64;
    let sum = |side: fn(&(f64, f64)) -> f64| rounds.iter().map(side).sum::<f64>();
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "reserve + complete, compared with raw SQLite writing the same rows, one a transaction",
            target: FigureTarget::AtLeast(0.8),
            measured: median(rounds.iter().map(|(ours, raw)| raw / ours)),
            unit: "×",
            note: format!(
                "{} compared with {} µs for the two transactions of a step; {} × over all {} turns together",
                digits(per_pair(|round| round.0)),
                digits(per_pair(|round| round.1)),
                digits(sum(|round| round.1) / sum(|round| round.0)),
                rounds.len()
            ),
        }],
        raw: serde_json::json!({ "steps": STEPS, "seconds_ours_raw": rounds }),
    })
}

/// Our side.
struct StepLedger {
    effects: ReplicatedIdempotencyStore,
    fence: FenceEpoch,
    next: u64,
}

impl StepLedger {
    fn open(folder: &Path) -> Result<StepLedger> {
        let store = CheckpointStore::open(folder)?;
        let effects = store.effects(LogicalResourceName::new("bench-steps"), SchemaId::new("none"))?;
        let fence = effects.open(SCOPE)?;
        Ok(StepLedger { effects, fence, next: 1 })
    }

    /// Reserves and completes the next steps; returns the seconds.
    fn commit(&mut self, steps: u64) -> Result<f64> {
        let begun = Instant::now();
        for step in self.next..self.next + steps {
            let (key, input) = (EffectKey::step(SCOPE, step), EffectFingerprint::of(&step.to_le_bytes()));
            let reserved = self.effects.reserve(key.clone(), input, None, self.fence)?;
            let outcome = IdempotencyOutcome::Completed { effect: None };
            self.effects.complete(key, reserved.version, outcome, self.fence)?;
        }
        self.next += steps;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// The entries of the register so far, without snapshots.
fn written_entries(register: &Path) -> Result<Vec<Vec<u8>>> {
    let connection = Connection::open_with_flags(register, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let mut statement = connection.prepare("SELECT bytes FROM entries WHERE length(bytes) <= ?1 ORDER BY number")?;
    let entries = statement.query_map([ENTRY_BYTES_MAX as i64], |row| row.get(0))?;
    Ok(entries.collect::<rusqlite::Result<_>>()?)
}

/// Raw SQLite with a table like the register's.
struct RawEntries {
    connection: Connection,
    number: i64,
}

impl RawEntries {
    fn create(path: &Path) -> Result<RawEntries> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE entries (
                 chain TEXT NOT NULL, number INTEGER NOT NULL, bytes BLOB NOT NULL,
                 PRIMARY KEY (chain, number)
             ) STRICT, WITHOUT ROWID;",
        )?;
        Ok(RawEntries { connection, number: 0 })
    }

    /// Writes as many rows as our side's entries; returns the seconds.
    fn commit(&mut self, entries: &[Vec<u8>]) -> Result<f64> {
        let mut insert = self.connection.prepare("INSERT INTO entries VALUES (?1, ?2, ?3)")?;
        let begun = Instant::now();
        for bytes in entries.iter().cycle().take(2 * STEPS as usize) {
            self.number += 1;
            insert.execute(params![RAW_CHAIN, self.number, bytes])?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}
