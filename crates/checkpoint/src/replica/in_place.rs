//! Publishing where no directory can be renamed: in an object store.
//!
//! ```text
//! prepare ──► 000042-f2-NONCE ──(committed in the register)──► _SUCCESS in it ──► remove: sublet.json, _SUCCESS, rest
//!                  │
//!                  └─ lost the race: removed
//! ```
//!
//! The manifest is written last and removed first, so a directory with a manifest has all its files. `_SUCCESS` is one
//! object, so publishing happens at once. A process that publishes looks for the manifest again afterwards, and takes
//! `_SUCCESS` back if another process began to remove the version.
//!
//! A repaired copy gets a directory of its own and is published before the damaged one is removed. For that time, and
//! after a crash in it, a version has two directories; the repaired one is read.

use super::layout::{self, HomeEntry, Staging};
use super::{CheckpointHome, ReplicaDirectory};
use crate::content::{MANIFEST, SUCCESS};
use crate::files::{read_small, write_new};
use crate::manifest::{MANIFEST_BYTES_MAX, SealedManifest};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

impl ReplicaDirectory {
    /// The names in the directory of a checkpoint, and what each stands for. A version is one that has `_SUCCESS`.
    ///
    /// All files are listed: a store may list directories that are empty by now.
    pub(super) fn entries_in_place(&self, home: &CheckpointHome) -> io::Result<Vec<(String, HomeEntry)>> {
        let mut is_marked: BTreeMap<String, bool> = BTreeMap::new();
        for name in self.files.list_below(&self.path(home))? {
            let (first, rest) = name.split_once('/').unwrap_or((&name, ""));
            *is_marked.entry(first.to_owned()).or_default() |= rest == SUCCESS;
        }
        let entry = |(name, is_marked): (String, bool)| {
            let entry = match layout::parse_copy(&name) {
                Some(copy) if is_marked => HomeEntry::Version(copy.version),
                Some(copy) => HomeEntry::Staging(copy),
                None => HomeEntry::Other,
            };
            (name, entry)
        };
        Ok(is_marked.into_iter().map(entry).collect())
    }

    /// Makes a directory a version. The register has committed it.
    pub(super) fn publish_in_place(&self, home: &CheckpointHome, copy: Staging) -> io::Result<()> {
        let path = self.staging_path(home, copy);
        let published = self.copies(home)?;
        let mut same_version = published.iter().filter(|(version, _)| *version == copy.version);
        let is_published = same_version.clone().any(|(_, name)| *name == copy.copy_name());
        if !is_published && same_version.next().is_some() {
            // A repaired copy took its place while this one was written.
            return self.remove_in_place(&path);
        }
        if !is_published {
            self.mark_in_place(&path)?;
        }
        self.point_latest(home)?;
        self.advance();
        Ok(())
    }

    /// Writes `_SUCCESS` into a directory that has all its files.
    pub(super) fn mark_in_place(&self, path: &Path) -> io::Result<()> {
        self.check_files(path)?;
        let mark = path.join(SUCCESS);
        write_new(&*self.files, &mark, b"")?;
        self.advance();
        if self.has_file(&path.join(MANIFEST))? {
            return Ok(());
        }
        self.files.remove_file(&mark)?;
        Err(io::Error::new(io::ErrorKind::NotFound, "the version was removed while it was published"))
    }

    /// An error if a file that the manifest names is not there.
    fn check_files(&self, path: &Path) -> io::Result<()> {
        let manifest = read_small(&*self.files, &path.join(MANIFEST), MANIFEST_BYTES_MAX)?;
        let manifest = SealedManifest::parse(manifest).map_err(io::Error::other)?.manifest;
        let names: BTreeSet<String> = self.files.list_below(path)?.into_iter().collect();
        match manifest.parts.iter().find(|part| !names.contains(&part.name)) {
            None => Ok(()),
            Some(part) => Err(io::Error::new(io::ErrorKind::NotFound, format!("part `{}` is missing", part.name))),
        }
    }

    /// Deletes a directory so that no half of it is ever a version: what is left is not published again.
    pub(super) fn remove_in_place(&self, path: &Path) -> io::Result<()> {
        self.files.remove_file(&path.join(MANIFEST))?;
        self.files.remove_file(&path.join(SUCCESS))?;
        self.advance();
        self.files.remove_dir_all(path)
    }

    /// True if the directory holds the manifest with this hash.
    pub(super) fn has_manifest(&self, path: &Path, hash: &str) -> io::Result<bool> {
        match read_small(&*self.files, &path.join(MANIFEST), MANIFEST_BYTES_MAX) {
            Ok(bytes) => Ok(blake3::hash(&bytes).to_hex().as_str() == hash),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn has_file(&self, path: &Path) -> io::Result<bool> {
        match self.files.open(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(all(test, feature = "object-store"))]
#[path = "in_place_tests.rs"]
mod tests;
