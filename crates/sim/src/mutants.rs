//! Bugs planted on purpose, and the proof that the checker notices each.

use crate::run::{RunFailure, RunOptions, run};
use sublet_core::mutant::Mutant;

/// A bug planted around the engine: in how answers and batches are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Rule 10: answers leave before their batch is synced.
    AckBeforeSync,
    /// Rule 11: answers leave though the sync failed.
    AckAfterFailedSync,
    /// Rule 15: a row changes without its entry in the log.
    LoseEntry,
    /// Rule 10: a batch cut by a crash is on the disk in part.
    TornBatch,
    /// Rule 15: strangers are signalled before that is on the record.
    StrikeBeforeSync,
}

/// A bug planted somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// In core.
    Core(Mutant),
    /// Around the engine.
    Around(Sabotage),
}

impl Planted {
    /// All of them.
    pub fn all() -> Vec<Planted> {
        let around = [
            Sabotage::AckBeforeSync,
            Sabotage::AckAfterFailedSync,
            Sabotage::LoseEntry,
            Sabotage::TornBatch,
            Sabotage::StrikeBeforeSync,
        ];
        Mutant::ALL.into_iter().map(Planted::Core).chain(around.into_iter().map(Planted::Around)).collect()
    }

    /// The one in core, if it is there.
    pub fn mutant(self) -> Option<Mutant> {
        match self {
            Planted::Core(mutant) => Some(mutant),
            Planted::Around(_) => None,
        }
    }

    /// The one around the engine, if it is there.
    pub fn sabotage(self) -> Option<Sabotage> {
        match self {
            Planted::Core(_) => None,
            Planted::Around(sabotage) => Some(sabotage),
        }
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Planted::Core(mutant) => format!("{mutant:?}"),
            Planted::Around(sabotage) => format!("{sabotage:?}"),
        }
    }
}

/// Tries seeds until one catches the bug. A seed that fails without it proves nothing.
pub fn hunt(planted: Planted, seeds: std::ops::Range<u64>, steps: u64) -> Option<RunFailure> {
    let honest = RunOptions { steps, ..RunOptions::default() };
    let options = RunOptions { planted: Some(planted), ..honest };
    seeds.into_iter().find_map(|seed| run(seed, options).err().filter(|_| run(seed, honest).is_ok()))
}
