//! Leases that their holders exceed.

use super::Hold;
use crate::model::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// A holder has more on its cards than its lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overuse {
    /// Since when.
    pub since: Time,
    /// It was told that it was seen to have so much on one card.
    #[serde(rename = "seen")]
    pub seen_bytes: Bytes,
}

impl Hold {
    /// What it was told of having more than its lease, while it has.
    pub fn overuse(&self) -> Option<&Overuse> {
        self.history.as_ref()?.overuse.as_ref()
    }

    /// Whether it was told to leave its cards at least once.
    pub fn has_moved(&self) -> bool {
        self.history.as_ref().is_some_and(|turns| !turns.never_moved)
    }

    pub(crate) fn clear_overuse(&mut self) {
        if let Some(turns) = &mut self.history {
            turns.overuse = None;
        }
    }
}
