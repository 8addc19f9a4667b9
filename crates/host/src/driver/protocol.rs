//! The messages between the hub and its worker process: one JSON line each way.
//!
//! Both ends are the same executable, so the form may change with any release. A process is always named with its
//! start time, never by its pid alone.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use sublet_core::ids::ProcKey;

/// A request to the worker, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DriverRequest {
    /// Asks for the driver's version, and whether it has the checkpoint calls.
    Facts,
    /// Asks for the checkpoint state of a process.
    State { process: ProcKey },
    /// Stops its GPU work; a timeout of zero would wait for ever, and is refused.
    Lock { process: ProcKey, timeout_ms: u32 },
    /// Takes a locked process off its GPUs.
    Checkpoint { process: ProcKey },
    /// Restores it; it stays locked.
    Restore { process: ProcKey },
    /// Lets a locked process go on.
    Unlock { process: ProcKey },
    /// Asks how many bytes a process has on each GPU.
    Weigh { process: ProcKey },
    /// Asks whether this much room is free, on all of these GPUs at the same time.
    Prove { needs: Vec<RoomNeed> },
}

/// Room needed on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoomNeed {
    pub(crate) uuid: String,
    pub(crate) bytes: u64,
}

/// An answer of the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DriverAnswer {
    /// To [`DriverRequest::Facts`].
    Facts(DriverFacts),
    /// To [`DriverRequest::State`].
    State(DriverProcessState),
    /// It is done.
    Done,
    /// To [`DriverRequest::Weigh`]: bytes by GPU, as far as NVML reports them.
    Weight(BTreeMap<String, u64>),
    /// To [`DriverRequest::Prove`]: `None` if the room was free a moment ago, else the GPU that lacks it.
    Room { lacking: Option<String> },
    /// The driver refused.
    Failed(DriverFailure),
    /// The process has ended.
    Gone,
    /// It is stopped, and was not touched.
    Stopped,
    /// The driver cannot be used here, and why.
    Unusable(String),
}

/// Facts about the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverFacts {
    /// The CUDA version it supports: 13000 is 13.0.
    pub(crate) cuda: i32,
    /// Its own version (`580.159.04`), if it is reported.
    pub(crate) driver: Option<String>,
    /// It has the checkpoint calls.
    pub(crate) calls: bool,
}

/// The checkpoint state of a process, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DriverProcessState {
    Running,
    Locked,
    Checkpointed,
    /// It could not be restored.
    Failed,
}

/// An error of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverFailure {
    pub(crate) code: i32,
    pub(crate) name: String,
}

impl DriverFailure {
    /// The process lives, and is on no GPU.
    pub(crate) const NOT_INITIALISED: i32 = 3;
    /// The call is not the next step from its present state.
    pub(crate) const ILLEGAL_STATE: i32 = 401;
    /// Its GPU work did not end in time.
    pub(crate) const NOT_READY: i32 = 600;
    /// It has something that cannot be taken off a GPU.
    pub(crate) const NOT_SUPPORTED: i32 = 801;
}

impl fmt::Display for DriverFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}
