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
//! ```no_run
//! use sublet_checkpoint::{
//!     CheckpointName, CheckpointStore, EffectFingerprint, EffectKey, IdempotencyOutcome, LogicalResourceName,
//!     SaveRequest, SchemaId, Version, open_together,
//! };
//!
//! # fn main() -> Result<(), sublet_checkpoint::ReplicatedError> {
//! let store = CheckpointStore::from_environment()?;
//! let checkpoints = store.checkpoints(LogicalResourceName::new("resnet"), SchemaId::new("resnet.v1"))?;
//! let effects = store.effects(LogicalResourceName::new("resnet-steps"), SchemaId::new("none"))?;
//! let name = CheckpointName::new("job:7");
//!
//! let fence = open_together(&checkpoints, &name, &effects, "job:7")?;
//! let newest = checkpoints.load(&name)?;
//! let version = newest.as_ref().map_or(Version(0), |loaded| loaded.version);
//! let step = newest.and_then(|loaded| loaded.step).unwrap_or(0) + 1;
//!
//! let (key, input) = (EffectKey::step("job:7", step), EffectFingerprint::of(b"the batch"));
//! let reserved = effects.reserve_for(&checkpoints, &name, key.clone(), input, None, fence)?;
//! if matches!(reserved.value.outcome, IdempotencyOutcome::Reserved { .. }) {
//!     let weights = vec![0_u8; 1024]; // the work on the GPU
//!     let request = SaveRequest::new(name, version, fence).part("weights", weights).step(step);
//!     checkpoints.save(request.completes(key.clone(), input))?;
//!     effects.complete(key, reserved.version, IdempotencyOutcome::Completed { effect: None }, fence)?;
//! }
//! # Ok(())
//! # }
//! ```
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
#[cfg(feature = "object-store")]
mod object;
mod patience;
mod places;
mod policy;
mod rebuild;
pub mod register;
mod replica;
mod replicated;
mod save_job;
mod store;
mod store_opener;
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
#[cfg(feature = "object-store")]
pub use object::{ObjectBucket, S3Purpose};
#[cfg(feature = "object-store")]
pub use places::S3Settings;
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
pub use store_opener::{ConnectDaemon, DaemonPlace, StoreOpener, is_register_name};
pub use stored::{ExportReport, StoredCheckpoint, StoredCopy, StoredFile, StoredManifest};

/// Seconds since 1970 by this machine's clock, for people; 0 if it stands before. Nothing is decided by it.
fn unix_s() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
