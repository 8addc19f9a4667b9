//! The file beside the parts of a version that says what they must be.
//!
//! The register holds the manifest's hash, and the manifest holds the hashes of the parts: bytes that
//! were changed, torn or mixed up are noticed when they are read.

use crate::chain::checkpoint::CommittedEffect;
use crate::content::refusal_of_name;
use crate::names::{CheckpointName, FenceEpoch, LogicalResourceName, SchemaId, Version};
use crate::nonce::Nonce;
use serde::{Deserialize, Serialize};

/// The only format of manifests so far.
const FORMAT: u32 = 1;

/// The largest manifest that is read. It describes 16 TiB.
pub const MANIFEST_BYTES_MAX: u64 = 320 << 20;

/// What a version consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of this file.
    pub format: u32,
    /// The resource.
    pub resource: LogicalResourceName,
    /// The checkpoint.
    pub name: CheckpointName,
    /// How the bytes are to be understood.
    pub schema: SchemaId,
    /// What must be equal for the version to be usable, in hexadecimal digits.
    pub policy: String,
    /// The version.
    pub version: Version,
    /// The hash of the manifest of the version before; none for the first.
    pub parent: Option<String>,
    /// Which attempt to save wrote it.
    pub nonce: Nonce,
    /// The fence of the writer.
    pub fence: FenceEpoch,
    /// The register's generation when it was written.
    pub generation: u64,
    /// The training step that it contains.
    pub step: Option<u64>,
    /// The effect that committing it completes.
    pub effect: Option<CommittedEffect>,
    /// The writer's clock, for people. Nothing is decided by it.
    pub unix_s: u64,
    /// The bytes that are hashed together.
    pub chunk_bytes: usize,
    /// The files.
    pub parts: Vec<ManifestPart>,
}

/// One file of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestPart {
    /// Its path inside the version's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The hashes of its chunks, in order.
    pub chunks: Vec<ChunkHash>,
}

/// The BLAKE3 hash of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHash(blake3::Hash);

impl ChunkHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> ChunkHash {
        ChunkHash(blake3::hash(bytes))
    }
}

impl Serialize for ChunkHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for ChunkHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ChunkHash, D::Error> {
        let text = String::deserialize(deserializer)?;
        blake3::Hash::from_hex(text.as_bytes()).map(ChunkHash).map_err(serde::de::Error::custom)
    }
}

/// A manifest as it is written, with its hash.
#[derive(Clone, Debug)]
pub struct SealedManifest {
    /// What it says.
    pub manifest: Manifest,
    /// The file's bytes.
    pub bytes: Vec<u8>,
    /// Their hash, in hexadecimal digits.
    pub hash: String,
}

impl Manifest {
    /// The format that is written.
    pub const FORMAT: u32 = FORMAT;

    /// The bytes of all parts.
    pub fn content_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// The part with this name.
    pub fn part(&self, name: &str) -> Option<&ManifestPart> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// The manifest as it is written.
    pub fn seal(self) -> Result<SealedManifest, String> {
        let bytes = serde_json::to_vec(&self).map_err(|error| error.to_string())?;
        let hash = blake3::hash(&bytes).to_hex().to_string();
        Ok(SealedManifest { manifest: self, bytes, hash })
    }
}

impl SealedManifest {
    /// Reads a manifest; the error says why it cannot be one.
    pub fn parse(bytes: Vec<u8>) -> Result<SealedManifest, String> {
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("it has format {}, which this release does not know", manifest.format));
        }
        if manifest.chunk_bytes == 0 {
            return Err("its chunks have no bytes".to_owned());
        }
        for part in &manifest.parts {
            if let Some(reason) = refusal_of_name(&part.name) {
                return Err(format!("it names a part `{}`: {reason}", part.name));
            }
            if part.bytes.div_ceil(manifest.chunk_bytes as u64) != part.chunks.len() as u64 {
                return Err(format!("the chunks of part `{}` do not cover it", part.name));
            }
        }
        let hash = blake3::hash(&bytes).to_hex().to_string();
        Ok(SealedManifest { manifest, bytes, hash })
    }
}
