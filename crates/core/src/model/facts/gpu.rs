//! Facts of GPUs.

use super::{Misfit, Touched, TouchedRow, check, check_gpus};
use crate::model::aside::{Aside, AsideOver, AsideRequest};
use crate::model::caller::Caller;
use crate::model::ids::GpuId;
use crate::model::reading::{GpuFacts, GpuReading};
use crate::model::rows::{Gpu, GpuService, Rows};
use crate::model::units::Time;
use crate::model::unleased::Mode;
use serde::{Deserialize, Serialize};

/// What is decided about a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuAction {
    /// A GPU is seen for the first time, or differs from what was known.
    #[serde(rename = "list")]
    SetFacts {
        /// Its number here.
        #[serde(rename = "card")]
        gpu: GpuId,
        /// What the driver says of it.
        facts: GpuFacts,
    },
    /// A GPU goes into service or out of it.
    #[serde(rename = "serve")]
    SetService {
        /// The GPU.
        #[serde(rename = "card")]
        gpu: GpuId,
        /// Its service from now on.
        service: GpuService,
    },
    /// A GPU steps aside, or goes on doing so until another time.
    SetAside {
        /// The GPU.
        #[serde(rename = "card")]
        gpu: GpuId,
        /// The aside, as it is from now on.
        aside: Aside,
    },
    /// An aside of a GPU is over.
    EndAside {
        /// The GPU.
        #[serde(rename = "card")]
        gpu: GpuId,
        /// The tenant whose aside it was.
        by: String,
        /// Its key.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key: String,
        /// When it ended.
        at: Time,
        /// Why.
        how: AsideOver,
    },
    /// Unleased processes on a GPU are handled by this mode from now on.
    SetMode {
        /// The GPU.
        #[serde(rename = "card")]
        gpu: GpuId,
        /// The mode.
        mode: Mode,
    },
}

/// What happened to GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuEvent {
    /// An operator wants no new leases on a GPU.
    DrainRequested {
        /// The caller.
        by: Caller,
        /// The UUID of the GPU.
        gpu: String,
    },
    /// An operator puts a GPU into service again.
    ClearRequested {
        /// The caller.
        by: Caller,
        /// The UUID of the GPU.
        gpu: String,
    },
    /// A GPU shall step aside for a while, or go on doing so.
    AsideRequested {
        /// The caller.
        by: Caller,
        /// The UUID of the GPU.
        gpu: String,
        /// How long, and on what ground.
        request: AsideRequest,
    },
    /// A GPU shall not step aside any longer.
    AsideEndRequested {
        /// The caller.
        by: Caller,
        /// The UUID of the GPU.
        gpu: String,
        /// The key of the caller's aside; `None`: all that the caller may end.
        key: Option<String>,
    },
    /// An operator chooses how unleased processes on a GPU are handled.
    ModeRequested {
        /// The caller.
        by: Caller,
        /// The UUID of the GPU.
        gpu: String,
        /// The mode.
        mode: Mode,
    },
    /// The driver lists these GPUs, and no others.
    Listed(Vec<GpuFacts>),
    /// A GPU was read.
    ReadingTaken {
        /// The UUID of the GPU.
        gpu: String,
        /// What was read.
        reading: GpuReading,
    },
}

impl GpuAction {
    fn gpu(&self) -> GpuId {
        match self {
            GpuAction::SetFacts { gpu, .. }
            | GpuAction::SetService { gpu, .. }
            | GpuAction::SetAside { gpu, .. }
            | GpuAction::EndAside { gpu, .. }
            | GpuAction::SetMode { gpu, .. } => *gpu,
        }
    }

    pub(crate) fn apply(&self, rows: &mut Rows) -> Result<(), Misfit> {
        let gpu = self.gpu();
        if let GpuAction::SetFacts { facts, .. } = self {
            check(gpu <= rows.gpus.next_id(), "lists a card out of order")?;
            match rows.gpus.find_mut(gpu) {
                Some(row) => row.facts = facts.clone(),
                None => {
                    rows.gpus.push(Gpu::new(facts.clone()));
                }
            }
            return Ok(());
        }
        check_gpus(rows, &[gpu])?;
        let row = &mut rows.gpus[gpu];
        match self {
            GpuAction::SetFacts { .. } => {}
            GpuAction::SetService { service, .. } => row.service = service.clone(),
            GpuAction::SetAside { aside, .. } => row.aside.set(aside),
            GpuAction::EndAside { by, key, at, .. } => row.aside.end(by, key, *at),
            GpuAction::SetMode { mode, .. } => row.mode = *mode,
        }
        Ok(())
    }

    pub(crate) fn touched(&self) -> Touched {
        Touched::row(TouchedRow::Gpu(self.gpu()))
    }

    pub(crate) fn line_owner(&self) -> Option<String> {
        match self {
            GpuAction::SetAside { aside, .. } => Some(aside.by.clone()),
            GpuAction::EndAside { by, .. } => Some(by.clone()),
            GpuAction::SetFacts { .. } | GpuAction::SetService { .. } | GpuAction::SetMode { .. } => None,
        }
    }

    pub(crate) fn is_cut_last(&self) -> bool {
        !matches!(self, GpuAction::SetFacts { .. })
    }
}
