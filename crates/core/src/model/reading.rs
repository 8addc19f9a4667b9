//! What the host reports: the GPUs that exist, and one reading of one GPU.
//!
//! A reading can be unreadable, and that is never zero. Nothing here is kept across a restart.

use crate::model::ids::ProcKey;
use crate::model::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// What a GPU is: facts that do not change while it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// NVIDIA's name for it (`GPU-…`), the same after every boot.
    pub uuid: String,
    /// The number `nvidia-smi` shows and `CUDA_VISIBLE_DEVICES` takes.
    pub index: u32,
    /// The product (`NVIDIA H200`).
    pub name: String,
    /// All of its memory.
    pub total: Bytes,
    /// It drives a display: more memory stays free.
    pub display: bool,
    /// Memory that a CUDA context alone takes, if it was measured.
    pub context: Option<Bytes>,
    /// Which board it is on, where it shares one with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<u32>,
    /// The memory node that it is nearest to, where the system says: GPUs of one node talk faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Why no lease may be granted there at all (MIG, MPS, prohibited compute mode), if so.
    pub unusable: Option<String>,
}

impl GpuFacts {
    /// A GPU of this size of which nothing else is known.
    pub fn plain(index: u32, total: Bytes) -> GpuFacts {
        GpuFacts {
            uuid: format!("GPU-{index}"),
            index,
            name: format!("GPU of {total}"),
            total,
            display: false,
            context: None,
            board: None,
            node: None,
            unusable: None,
        }
    }
}

/// One reading of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReading {
    /// Just before the reading began: what ended earlier is in it.
    pub begun: Time,
    /// What was seen.
    pub reading: Reading,
}

/// What one reading of a GPU gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The GPU answered.
    Used(GpuUsage),
    /// It did not, and this is why. Unknown is not zero.
    Unreadable(Unreadable),
}

/// Why a GPU could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It was not read since the daemon started.
    NotYet,
    /// The call did not come back in time, or the worker died in it.
    NoAnswer,
    /// The driver answered with an error.
    Failed(String),
    /// The driver says that the GPU is gone.
    Lost,
}

/// The memory of a GPU, and the processes on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuUsage {
    /// The lower of two values, one before and one after the list.
    pub free: Bytes,
    /// Every process the driver lists on the GPU, one entry each.
    pub processes: Vec<Resident>,
    /// The driver does not say how many bytes each process has (some containers, WSL2).
    pub coarse: bool,
}

/// One process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Which process.
    pub process: ProcKey,
    /// Its bytes on this GPU, where the driver tells.
    pub bytes: Option<Bytes>,
    /// It only draws, as far as the driver tells: a display server, a browser, or a program that computes by Vulkan.
    pub only_draws: bool,
}

impl Resident {
    /// A process that draws and has less is not audited: a desktop has many of those. A model has more.
    pub const DRAWS_LITTLE: Bytes = Bytes(256 << 20);

    /// Whether it is audited if no lease has it. Unknown is not little.
    pub fn is_of_interest(&self) -> bool {
        !self.only_draws || self.bytes.is_none_or(|bytes| bytes >= Resident::DRAWS_LITTLE)
    }
}
