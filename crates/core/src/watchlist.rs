//! What this daemon has seen of strangers, and gone with the process: never journaled.

use crate::ids::ProcKey;
use crate::stranger::StrangerId;
use crate::units::Time;
use std::collections::BTreeMap;

/// What was seen of strangers.
#[derive(Clone, Debug, Default)]
pub struct Watchlist {
    /// Strangers on the record, by process.
    pub(crate) by_process: BTreeMap<ProcKey, StrangerId>,
    /// What this daemon found out about each.
    pub(crate) seen: BTreeMap<StrangerId, Seen>,
    /// Why nobody can be ended here; `None`: that was not tried yet.
    pub(crate) can: Option<Result<(), String>>,
    /// How often it was tried.
    pub(crate) tests: u64,
}

/// What this daemon found out about a stranger.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// When it was last audited.
    pub at: Time,
    /// It, and what descends from it in the same control group.
    pub tree: Vec<ProcKey>,
    /// It was sent the last signal it was to get.
    pub struck: bool,
    /// Why a signal could not be sent to it.
    pub refused: Option<String>,
}
