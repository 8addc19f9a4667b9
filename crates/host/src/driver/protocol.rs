//! What the hub and its worker process say to each other: one JSON line each way.
//!
//! Both ends are the same executable, so the form may change with any release. A process is always
//! named with its start, never by its pid alone.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use sublet_core::ids::ProcKey;

/// Asked of the worker, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// What driver is it, and has it the calls?
    Facts,
    /// How far is a process?
    State { process: ProcKey },
    /// Stops its use of cards; zero would wait for ever, and is refused.
    Lock { process: ProcKey, timeout_ms: u32 },
    /// Takes a locked one off its cards.
    Checkpoint { process: ProcKey },
    /// Puts it back, locked.
    Restore { process: ProcKey },
    /// Lets a locked one go on.
    Unlock { process: ProcKey },
    /// What has it on the cards?
    Weigh { process: ProcKey },
    /// Is there so much room, on all of these cards at the same time?
    Prove { needs: Vec<Need> },
}

/// So much room on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Need {
    pub(crate) uuid: String,
    pub(crate) bytes: u64,
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To [`Request::Facts`].
    Facts(Facts),
    /// To [`Request::State`].
    State(Place),
    /// It is done.
    Done,
    /// To [`Request::Weigh`]: bytes by card, as far as NVML tells.
    Weight(BTreeMap<String, u64>),
    /// To [`Request::Prove`]: the room was there a moment ago, or this card lacks it.
    Room { lacking: Option<String> },
    /// The driver said no.
    Failed(Failure),
    /// There is no such process any more.
    Gone,
    /// It is stopped, and was not touched.
    Stopped,
    /// Nothing can be asked of the driver here, and why.
    Unusable(String),
}

/// The driver, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The CUDA version it speaks: 13000 is 13.0.
    pub(crate) cuda: i32,
    /// Its own version (`580.159.04`), where it tells.
    pub(crate) driver: Option<String>,
    /// It has the calls.
    pub(crate) calls: bool,
}

/// How far a process is, as the driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    Running,
    Locked,
    Checkpointed,
    /// It could not be brought back.
    Failed,
}

/// What the driver answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) name: String,
}

impl Failure {
    /// It lives, and is on no card.
    pub(crate) const NOT_INITIALISED: i32 = 3;
    /// That is not the next step from where it is.
    pub(crate) const ILLEGAL_STATE: i32 = 401;
    /// What it had under way did not end in time.
    pub(crate) const NOT_READY: i32 = 600;
    /// It has something that cannot be taken off a card.
    pub(crate) const NOT_SUPPORTED: i32 = 801;
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}
