//! The messages between the GPU thread and its worker process: one JSON line each way.
//!
//! Both ends are the same executable, so the form may change with any release.

use serde::{Deserialize, Serialize};
use sublet_core::ids::ProcKey;
use sublet_core::reading::{GpuFacts, GpuUsage, Reading, Resident, Unreadable};
use sublet_core::units::Bytes;

use crate::GpuListError;

/// A request to the worker, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GpuRequest {
    /// Asks which GPUs exist.
    List,
    /// Asks for a reading of each GPU. With `busy`, also for the processes that used its engines, which is expensive.
    Look { busy: bool },
}

/// An answer of the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GpuAnswer {
    /// To [`GpuRequest::List`]; `unread` is true if there are more GPUs, which could not be read and were never known.
    Cards { cards: Vec<GpuFacts>, unread: bool },
    /// To [`GpuRequest::Look`]: each GPU of the last list.
    Looks(Vec<WorkerReading>),
    /// To either: the GPUs cannot be listed.
    Unlisted(GpuListError),
}

/// One reading of one GPU, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerReading {
    pub(crate) uuid: String,
    pub(crate) seen: ReadingResult,
}

/// The result of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReadingResult {
    /// The GPU answered.
    Used { free: Bytes, processes: Vec<ReportedProcess>, coarse: bool },
    /// The driver reports the GPU as lost.
    Lost,
    /// The driver answered with an error.
    Failed(String),
}

/// One process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReportedProcess {
    pub(crate) process: ProcKey,
    pub(crate) bytes: Option<Bytes>,
    pub(crate) graphics: bool,
    /// It used the GPU's engines since the last such request.
    pub(crate) busy: bool,
}

impl ReadingResult {
    /// The processes that used the GPU's engines.
    pub(crate) fn busy(&self) -> Vec<ProcKey> {
        match self {
            ReadingResult::Used { processes, .. } => processes.iter().filter(|p| p.busy).map(|p| p.process).collect(),
            ReadingResult::Lost | ReadingResult::Failed(_) => Vec::new(),
        }
    }

    /// The same as the type used outside of this protocol.
    pub(crate) fn into_reading(self) -> Reading {
        match self {
            ReadingResult::Used { free, processes, coarse } => {
                let resident =
                    |p: ReportedProcess| Resident { process: p.process, bytes: p.bytes, only_draws: p.graphics };
                Reading::Used(GpuUsage { free, processes: processes.into_iter().map(resident).collect(), coarse })
            }
            ReadingResult::Lost => Reading::Unreadable(Unreadable::Lost),
            ReadingResult::Failed(why) => Reading::Unreadable(Unreadable::Failed(why)),
        }
    }
}
