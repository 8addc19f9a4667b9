//! What the entries of a chain mean.
//!
//! A chain is folded into a state; a call is decided on that state, and what it decided is appended as
//! the next entry. The entry can only be created if no other one came in between, so a decision on an
//! old state is never carried out.
//!
//! ```text
//! state ──decide──► change ──append──► entry n + 1 ──apply──► state
//!   ▲                        │ taken
//!   └─────── read on ◄───────┘
//! ```
//!
//! Absent on purpose: IO in the states. [`log`] is the only module that calls the register.

pub mod checkpoint;
pub mod effects;
pub mod log;

use crate::error::ReplicatedError;
use crate::names::FenceEpoch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A state that entries are folded into.
pub trait ChainState: Clone + Default + Serialize + DeserializeOwned {
    /// What one entry changes.
    type Change: Serialize + DeserializeOwned;

    /// Takes entry `number` into account; the error says what contradicts the entries before it.
    fn apply(&mut self, number: u64, change: &Self::Change) -> Result<(), String>;
}

/// Which process may write to a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fences {
    /// The newest fence. It is 1 before the chain is opened for the first time.
    pub newest: FenceEpoch,
}

impl Default for Fences {
    fn default() -> Fences {
        Fences { newest: FenceEpoch(1) }
    }
}

impl Fences {
    /// Refuses a fence that is not the newest one.
    pub fn check(&self, given: FenceEpoch) -> Result<(), ReplicatedError> {
        let current = self.newest;
        match given.cmp(&current) {
            std::cmp::Ordering::Less => Err(ReplicatedError::Fenced { given, current }),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(ReplicatedError::FenceNeverIssued { given, current }),
        }
    }

    /// The fence that opening the chain issues: the next one, or `at_least` if that is higher.
    pub fn next(&self, at_least: FenceEpoch) -> FenceEpoch {
        FenceEpoch(self.newest.0.saturating_add(1)).max(at_least)
    }

    /// Takes an entry with a new fence into account.
    pub fn raise(&mut self, fence: FenceEpoch) -> Result<(), String> {
        if fence <= self.newest {
            return Err(format!("it opens with fence {fence}, and the one before is {}", self.newest));
        }
        self.newest = fence;
        Ok(())
    }

    /// What a rebuilt chain starts with: above every fence of the generations before.
    pub fn after_rebuild(generation: u64) -> Fences {
        let before = generation.saturating_sub(1).min(u32::MAX.into());
        Fences { newest: FenceEpoch((before << 32) + 1) }
    }

    /// Refuses an entry that was written under another fence than the newest one.
    pub fn expect(&self, fence: FenceEpoch) -> Result<(), String> {
        self.check(fence).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod model_tests;
