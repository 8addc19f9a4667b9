//! Reading a version from a replica, and checking every byte of it.

use super::layout::{HomeEntry, Staging, StagingKind};
use super::write::unknown_version;
use super::{CheckpointHome, ReplicaDirectory};
use crate::chain::checkpoint::VersionChain;
use crate::content::MANIFEST;
use crate::files::{ReadFile, read_small};
use crate::manifest::{ChunkHash, MANIFEST_BYTES_MAX, Manifest, ManifestPart, SealedManifest};
use crate::names::Version;
use bytes::Bytes;
use std::io;
use std::path::Path;

/// One part of a checkpoint that was read and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPart {
    /// Its path inside the version's directory.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// What becomes of bytes that were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedBytes {
    /// They are returned.
    Kept,
    /// They are dropped; only the check counts.
    Dropped,
}

/// A copy that is whole.
pub struct WholeCopy {
    /// Its manifest; its hash is the register's.
    pub manifest: SealedManifest,
    /// Its parts; `None` if they were not to be kept.
    pub parts: Option<Vec<LoadedPart>>,
    /// A version that the replica holds and the register did not know when it was read.
    pub above: Option<Version>,
}

/// A version that is whole by its own manifest. No register says that it was committed.
pub struct UnprovenVersion {
    /// What it says of itself.
    pub manifest: SealedManifest,
    /// How far it came.
    pub stage: CommitStage,
}

/// How far a version came, by the name of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommitStage {
    /// It was written. A register may have committed it.
    Prepared,
    /// A register had committed it: it was published.
    Committed,
}

impl ReplicaDirectory {
    /// Reads a committed version; the error says why the copy is not whole.
    pub fn read(
        &self,
        home: &CheckpointHome,
        state: &VersionChain,
        version: Version,
        keep: CheckedBytes,
    ) -> Result<WholeCopy, String> {
        let above = self.version_above(home, state.newest()).map_err(|error| error.to_string())?;
        let read = self.read_committed(home, state, version, keep);
        match (read, above) {
            (Ok(copy), above) => Ok(WholeCopy { above, ..copy }),
            (Err(reason), None) => Err(reason),
            (Err(reason), Some(above)) => Err(format!("{reason}; {}", unknown_version(above))),
        }
    }

    fn read_committed(
        &self,
        home: &CheckpointHome,
        state: &VersionChain,
        version: Version,
        keep: CheckedBytes,
    ) -> Result<WholeCopy, String> {
        let saved = state.version(version).map_err(|error| error.to_string())?;
        let published = self.publish_if_prepared(home, state, version);
        match (self.read_published(home, version, &saved.manifest, keep), published) {
            // A disk that is full or read-only cannot publish. What it holds is the same under the other name.
            (Err(_), Err(error)) => {
                let prepared = Staging { kind: StagingKind::Prepared, version, fence: saved.fence, nonce: saved.nonce };
                let at = self.staging_path(home, prepared);
                self.read_copy(&at, &saved.manifest, keep).map_err(|_| error.to_string())
            }
            (read, _) => read,
        }
    }

    fn read_published(
        &self,
        home: &CheckpointHome,
        version: Version,
        hash: &str,
        keep: CheckedBytes,
    ) -> Result<WholeCopy, String> {
        let path = self.version_path(home, version).map_err(|error| error.to_string())?;
        self.read_copy(&path.ok_or_else(no_copy)?, hash, keep)
    }

    /// Reads a version in this directory, if it is the one with this hash.
    fn read_copy(&self, at: &Path, hash: &str, keep: CheckedBytes) -> Result<WholeCopy, String> {
        let manifest = self.read_manifest_in(at, hash)?;
        let parts = self.read_parts(at, &manifest.manifest, keep)?;
        Ok(WholeCopy { manifest, parts: (keep == CheckedBytes::Kept).then_some(parts), above: None })
    }

    /// Reads the parts of a version that lies here, and checks them against its manifest.
    fn read_parts(&self, at: &Path, manifest: &Manifest, keep: CheckedBytes) -> Result<Vec<LoadedPart>, String> {
        let mut parts = Vec::new();
        for part in &manifest.parts {
            let bytes = self.read_part(&at.join(&part.name), part, manifest.chunk_bytes, keep);
            let bytes = bytes.map_err(|error| format!("part `{}`: {error}", part.name))?;
            parts.push(LoadedPart { name: part.name.clone(), bytes });
        }
        Ok(parts)
    }

    /// Every whole version of a checkpoint that lies here, committed or not.
    pub fn whole_versions(&self, home: &CheckpointHome) -> io::Result<Vec<UnprovenVersion>> {
        let mut found = Vec::new();
        for (name, entry) in self.entries(home)? {
            let (version, stage) = match entry {
                HomeEntry::Version(version) => (version, CommitStage::Committed),
                HomeEntry::Staging(staging) if staging.kind == StagingKind::Prepared => {
                    (staging.version, CommitStage::Prepared)
                }
                _ => continue,
            };
            let at = self.path(home).join(&name);
            let bytes = read_small(&*self.files, &at.join(MANIFEST), MANIFEST_BYTES_MAX);
            let Some(manifest) = bytes.ok().and_then(|bytes| SealedManifest::parse(bytes).ok()) else { continue };
            let is_whole = || self.read_parts(&at, &manifest.manifest, CheckedBytes::Dropped).is_ok();
            if manifest.manifest.version == version && is_whole() {
                found.push(UnprovenVersion { manifest, stage });
            }
        }
        Ok(found)
    }

    /// The manifest of a committed version with this hash; the error says why it is not there.
    pub fn read_manifest(&self, home: &CheckpointHome, version: Version, hash: &str) -> Result<SealedManifest, String> {
        let path = self.version_path(home, version).map_err(|error| error.to_string())?;
        self.read_manifest_in(&path.ok_or_else(no_copy)?, hash)
    }

    pub(super) fn read_manifest_in(&self, at: &Path, hash: &str) -> Result<SealedManifest, String> {
        let bytes = read_small(&*self.files, &at.join(MANIFEST), MANIFEST_BYTES_MAX);
        let bytes = bytes.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => no_copy(),
            _ => format!("its manifest cannot be read: {error}"),
        })?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err("its manifest is not the one that was committed".to_owned());
        }
        SealedManifest::parse(bytes)
    }

    /// The writer may have died between the commit and the publication.
    pub fn publish_if_prepared(&self, home: &CheckpointHome, state: &VersionChain, version: Version) -> io::Result<()> {
        for (_, entry) in self.entries(home)? {
            match entry {
                HomeEntry::Version(found) if found == version => return Ok(()),
                HomeEntry::Staging(staging) if staging.version == version && staging.kind == StagingKind::Prepared => {
                    self.settle_prepared(home, state, staging)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens a part of a version; the error says why it cannot be whole.
    pub fn open_part(
        &self,
        home: &CheckpointHome,
        version: Version,
        part: &ManifestPart,
    ) -> io::Result<Box<dyn ReadFile>> {
        let path = self.version_path(home, version)?.ok_or(io::ErrorKind::NotFound)?;
        self.open_whole(&path.join(&part.name), part)
    }

    fn open_whole(&self, path: &Path, part: &ManifestPart) -> io::Result<Box<dyn ReadFile>> {
        let file = self.files.open(path)?;
        if file.length()? != part.bytes {
            return Err(io::Error::other(format!("it has {} bytes instead of {}", file.length()?, part.bytes)));
        }
        Ok(file)
    }

    fn read_part(&self, path: &Path, part: &ManifestPart, chunk_bytes: usize, keep: CheckedBytes) -> io::Result<Bytes> {
        let file = self.open_whole(path, part)?;
        let length = usize::try_from(part.bytes).map_err(io::Error::other)?;
        let held = if keep == CheckedBytes::Kept { length } else { length.min(chunk_bytes) };
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(held).map_err(io::Error::other)?;
        buffer.resize(held, 0);
        let mut offset = 0;
        for expected in &part.chunks {
            let size = (length - offset).min(chunk_bytes);
            let start = if keep == CheckedBytes::Kept { offset } else { 0 };
            let chunk = &mut buffer[start..start + size];
            file.read_exact_at(chunk, offset as u64)?;
            if ChunkHash::of(chunk) != *expected {
                return Err(io::Error::other(format!("the bytes from {offset} on are damaged")));
            }
            offset += size;
            self.advance();
        }
        Ok(buffer.into())
    }
}

fn no_copy() -> String {
    "it holds no copy".to_owned()
}
