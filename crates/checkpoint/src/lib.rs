//! Durable progress for programs that may lose their GPU: fenced, replicated checkpoints and
//! once-only effects.
//!
//! ```text
//! content ── written and fsynced to the replicas ──┐
//!                                                  ▼
//! register: opened ─ saved ─ saved ─ …   one conditional create commits a version
//! ```
//!
//! A [`register`] decides what happens once: which process may write, which version follows which,
//! which effect is completed. A [`CheckpointStore`] is a register and the directories of the copies.
//! [`ReplicatedCheckpoint`] saves and loads; [`ReplicatedIdempotencyStore`] commits a step once.
//!
//! [`Durable`] saves one value in place, without a register.
//!
//! Absent on purpose: the daemon, leases and GPUs. This crate works without them.

mod chain;
mod content;
mod durable;
mod effect_store;
mod error;
pub mod files;
mod manifest;
mod names;
mod nonce;
mod patience;
mod policy;
mod rebuild;
pub mod register;
mod replica;
mod replicated;
mod save_job;
mod store;
mod stored;

pub use chain::checkpoint::CommittedEffect;
pub use content::{CheckpointPart, PartSource};
pub use durable::{Blocks, Durable, DurableError, FileBlocks};
pub use effect_store::{EffectState, IdempotencyOutcome, ReplicatedIdempotencyStore, VersionedValue, open_together};
pub use error::{ReplicaFailure, ReplicatedError};
pub use names::{
    ChainName, CheckpointName, EffectFingerprint, EffectKey, EffectName, FenceEpoch, LogicalResourceName, PolicyHash,
    ReplicaId, ResourceGeneration, SchemaId, Version,
};
pub use policy::{
    FailureDomain, PlacementPolicy, ReplicaHealth, ReplicaLocator, ReplicaPolicy, ReplicaRole, ReplicaSetLocator,
};
pub use rebuild::{RebuildReport, RebuiltCheckpoint};
pub use replica::read::LoadedPart;
pub use replicated::{
    BackgroundSaver, CheckpointSummary, DamagedCopy, LoadedCheckpoint, ReplicatedCheckpoint, SaveReport, SaveRequest,
    ScrubReport,
};
pub use store::{CHECKPOINTS_VARIABLE, CheckpointStore, StallLimits};
pub use stored::{ExportReport, StoredCheckpoint, StoredCopy, StoredFile, StoredManifest};

/// Seconds since 1970 by this machine's clock, for people; 0 if it stands before. Nothing is decided by it.
fn unix_s() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
