//! What a save is asked to commit.

use crate::chain::checkpoint::CommittedEffect;
use crate::content::{CheckpointPart, PartSource, UNNAMED_PART};
use crate::error::ReplicatedError;
use crate::names::{CheckpointName, EffectFingerprint, EffectKey, FenceEpoch, Version};
use bytes::Bytes;
use std::path::Path;

/// The versions that a save keeps, itself included, if the request says nothing else.
const KEEP_DEFAULT: usize = 2;

/// A version to be saved.
#[derive(Clone, Debug)]
pub struct SaveRequest {
    pub(crate) name: CheckpointName,
    pub(crate) expected: Version,
    pub(crate) fence: FenceEpoch,
    pub(crate) parts: Vec<CheckpointPart>,
    pub(crate) step: Option<u64>,
    pub(crate) effect: Option<CommittedEffect>,
    pub(crate) keep: usize,
}

impl SaveRequest {
    /// The version after `expected`, which is the newest one; `Version(0)` if nothing was saved yet.
    pub fn new(name: CheckpointName, expected: Version, fence: FenceEpoch) -> SaveRequest {
        SaveRequest { name, expected, fence, parts: Vec::new(), step: None, effect: None, keep: KEEP_DEFAULT }
    }

    /// Adds the bytes of a checkpoint with a single part.
    pub fn bytes(self, bytes: impl Into<Bytes>) -> SaveRequest {
        self.part(UNNAMED_PART, bytes)
    }

    /// Adds a named part, which becomes a file. `Bytes` are not copied.
    pub fn part(mut self, name: impl Into<String>, bytes: impl Into<Bytes>) -> SaveRequest {
        self.parts.push(CheckpointPart::new(name, bytes));
        self
    }

    /// Adds a file as a part. It must not change until the save is done.
    pub fn file(mut self, name: impl Into<String>, path: &Path) -> Result<SaveRequest, ReplicatedError> {
        let failed = |source| ReplicatedError::File { path: path.to_owned(), source };
        let found = std::fs::metadata(path).map_err(failed)?;
        if !found.is_file() {
            let (part, reason) = (path.display().to_string(), "it is no regular file");
            return Err(ReplicatedError::InvalidPart { part, reason });
        }
        let source = PartSource::File { path: path.to_owned(), bytes: found.len() };
        self.parts.push(CheckpointPart { name: name.into(), source });
        Ok(self)
    }

    /// Adds parts.
    pub fn parts(mut self, parts: impl IntoIterator<Item = CheckpointPart>) -> SaveRequest {
        self.parts.extend(parts);
        self
    }

    /// The training step that the version contains. Steps only grow: a step that is saved is refused.
    pub fn step(mut self, step: u64) -> SaveRequest {
        self.step = Some(step);
        self
    }

    /// The effect that committing the version completes.
    pub fn completes(mut self, key: EffectKey, fingerprint: EffectFingerprint) -> SaveRequest {
        self.effect = Some(CommittedEffect { key, fingerprint });
        self
    }

    /// How many versions are kept, this one included; at least 1. Pinned versions are kept beyond that.
    pub fn keep(mut self, versions: usize) -> SaveRequest {
        self.keep = versions.max(1);
        self
    }
}
