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

#[expect(dead_code, reason = "checkpoints and effects are built on it next")]
mod chain;
#[expect(dead_code, reason = "checkpoints and effects are built on it next")]
mod content;
mod error;
pub mod files;
#[expect(dead_code, reason = "checkpoints and effects are built on it next")]
mod manifest;
mod names;
mod nonce;
pub mod register;
#[expect(dead_code, reason = "checkpoints and effects are built on it next")]
mod replica;
#[expect(dead_code, reason = "checkpoints and effects are built on it next")]
mod save_job;

pub use error::{ReplicaFailure, ReplicatedError};
pub use names::{
    ChainName, CheckpointName, EffectFingerprint, EffectKey, EffectName, FenceEpoch, LogicalResourceName, PolicyHash,
    ReplicaId, ResourceGeneration, SchemaId, Version,
};

/// Seconds since 1970 by this machine's clock, for people; 0 if it stands before. Nothing is decided by it.
fn unix_s() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
