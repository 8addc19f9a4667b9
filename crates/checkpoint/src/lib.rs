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
//! which effect is completed.
//!
//! Absent on purpose: the daemon, leases and GPUs. This crate works without them.

mod error;
mod names;
pub mod register;

pub use error::{ReplicaFailure, ReplicatedError};
pub use names::{
    ChainName, CheckpointName, EffectFingerprint, EffectKey, EffectName, FenceEpoch, LogicalResourceName, PolicyHash,
    ReplicaId, ResourceGeneration, SchemaId, Version,
};
