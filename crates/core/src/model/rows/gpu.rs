//! A GPU, as it is stored.

use crate::model::aside::Asides;
use crate::model::reading::GpuFacts;
use crate::model::unleased::Mode;
use serde::{Deserialize, Serialize};

/// A card that was seen once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// What it is.
    pub facts: GpuFacts,
    /// Whether it may be leased, by an operator's or our own word.
    pub service: GpuService,
    /// What is done there about strangers.
    #[serde(default)]
    pub mode: Mode,
    /// For whom it steps aside.
    #[serde(default, skip_serializing_if = "Asides::is_unused")]
    pub aside: Asides,
}

impl Gpu {
    /// A GPU that is seen for the first time.
    pub fn new(facts: GpuFacts) -> Gpu {
        Gpu { facts, service: GpuService::In, mode: Mode::Observe, aside: Asides::default() }
    }
}

/// Whether a card may be leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuService {
    /// Yes.
    In,
    /// An operator lets it run empty.
    Draining,
    /// Not until an operator clears it.
    Out {
        /// What happened.
        why: String,
    },
}
