//! Exporting: copy a version to a directory, and verify each chunk on its way.
//!
//! The directory appears under its name when all files are whole and synced. A chunk that is damaged on one
//! replica is taken from another one.

use super::StoredCheckpoint;
use crate::error::{ReplicaFailure, ReplicatedError};
use crate::files::ReadFile;
use crate::manifest::{ChunkHash, ManifestPart};
use crate::names::Version;
use crate::store::draw_nonce;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportReport {
    /// The files that were made.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The copies that could not be used, or only in part.
    pub failures: Vec<ReplicaFailure>,
}

/// The copies of one file that can be read, best first.
struct FileCopies<'a> {
    part: &'a ManifestPart,
    open: Vec<(usize, Box<dyn ReadFile>)>,
}

impl StoredCheckpoint {
    /// Copies the files of a version to a directory, which must be empty or not exist.
    ///
    /// Every byte is verified before a file has its name. After an error no file is there, and a directory that existed is
    /// still the same one.
    pub fn export(&self, version: Version, target: &Path) -> Result<ExportReport, ReplicatedError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ReplicatedError::File { path, source }
        };
        let target = std::path::absolute(target).map_err(failed(target))?;
        let exists = fs::symlink_metadata(&target).is_ok();
        if exists && !is_empty_directory(&target) {
            return Err(ReplicatedError::NotEmptyDirectory { path: target });
        }
        let parent = target.parent().unwrap_or(Path::new("/")).to_owned();
        fs::create_dir_all(&parent).map_err(failed(&parent))?;
        // A directory that exists stays: it may be the working directory of a process, a mount point, or another user's.
        let beside = if exists { &target } else { &parent };
        let partial = beside.join(format!(".sublet-export-{}", draw_nonce()?));
        let copied = self.copy_files(version, &partial).and_then(|report| {
            let moved = if exists { move_files(&partial, &target) } else { fs::rename(&partial, &target) };
            moved.map_err(failed(&target))?;
            sync_directory(beside).map_err(failed(beside))?;
            Ok(report)
        });
        copied.or_else(|error| {
            // What is left of it has a name of its own, and is in no way.
            let _ = fs::remove_dir_all(&partial);
            // A version that was pruned meanwhile explains why its files were missing.
            self.state()?.version(version)?;
            Err(error)
        })
    }

    fn copy_files(&self, version: Version, to: &Path) -> Result<ExportReport, ReplicatedError> {
        let manifest = self.find_manifest(&self.state()?, version)?;
        let Some(manifest) = manifest else {
            let missing = self.copies(version)?.into_iter();
            let causes =
                missing.filter_map(|copy| Some(ReplicaFailure { replica: copy.replica, reason: copy.missing? }));
            let causes = causes.chain(self.unreadable.iter().cloned()).collect();
            return Err(ReplicatedError::TooFewCopies { version, verified: 0, needed: 1, causes });
        };
        fs::create_dir(to).map_err(|source| ReplicatedError::File { path: to.to_owned(), source })?;
        let mut report = ExportReport { files: 0, bytes: 0, failures: Vec::new() };
        let mut directories = vec![to.to_owned()];
        for part in &manifest.parts {
            let mut copies = self.open_copies(version, part, &mut report.failures);
            let path = to.join(&part.name);
            let mut file = create(&path, to, &mut directories)
                .map_err(|source| ReplicatedError::File { path: path.clone(), source })?;
            let mut offset = 0;
            for expected in &part.chunks {
                let size = (part.bytes - offset).min(manifest.chunk_bytes as u64) as usize;
                let chunk = self.read_chunk(&mut copies, offset, size, *expected, &mut report.failures);
                let chunk = chunk.ok_or_else(|| {
                    let causes = report.failures.clone();
                    ReplicatedError::TooFewCopies { version, verified: 0, needed: 1, causes }
                })?;
                file.write_all(&chunk).map_err(|source| ReplicatedError::File { path: path.clone(), source })?;
                offset += size as u64;
            }
            file.sync_all().map_err(|source| ReplicatedError::File { path, source })?;
            report.files += 1;
            report.bytes += part.bytes;
        }
        for directory in directories.iter().rev() {
            sync_directory(directory).map_err(|source| ReplicatedError::File { path: directory.clone(), source })?;
        }
        Ok(report)
    }

    fn open_copies<'a>(
        &self,
        version: Version,
        part: &'a ManifestPart,
        failures: &mut Vec<ReplicaFailure>,
    ) -> FileCopies<'a> {
        let mut open = Vec::new();
        for (index, replica) in self.replicas.iter().enumerate() {
            match replica.open_part(&self.home, version, part) {
                Ok(file) => open.push((index, file)),
                Err(error) => failures.push(self.failure(index, part, error)),
            }
        }
        FileCopies { part, open }
    }

    /// The chunk from the first copy that has it. A copy that was damaged is asked last for the next one.
    fn read_chunk(
        &self,
        copies: &mut FileCopies<'_>,
        offset: u64,
        size: usize,
        expected: ChunkHash,
        failures: &mut Vec<ReplicaFailure>,
    ) -> Option<Vec<u8>> {
        let mut chunk = vec![0; size];
        let mut damaged = Vec::new();
        let mut found = None;
        while let Some((index, file)) = copies.open.first() {
            let read = file.read_exact_at(&mut chunk, offset);
            let checked = read.and_then(|()| match ChunkHash::of(&chunk) == expected {
                true => Ok(()),
                false => Err(io::Error::other(format!("the bytes from {offset} on are damaged"))),
            });
            match checked {
                Ok(()) => {
                    found = Some(chunk);
                    break;
                }
                Err(error) => {
                    failures.push(self.failure(*index, copies.part, error));
                    damaged.push(copies.open.remove(0));
                }
            }
        }
        // Another chunk may be whole there, and damaged in the copy that had this one.
        copies.open.append(&mut damaged);
        found
    }

    fn failure(&self, index: usize, part: &ManifestPart, error: io::Error) -> ReplicaFailure {
        ReplicaFailure { replica: self.replicas[index].id.clone(), reason: format!("part `{}`: {error}", part.name) }
    }
}

fn is_empty_directory(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Moves what is in a directory to another one, which has none of these names, and removes the directory.
fn move_files(from: &Path, to: &Path) -> io::Result<()> {
    let names: Result<Vec<_>, _> = fs::read_dir(from)?.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let names = names?;
    let moved = names.iter().try_for_each(|name| fs::rename(from.join(name), to.join(name)));
    if moved.is_err() {
        // What was moved goes back, and is deleted with the rest.
        names.iter().for_each(|name| drop(fs::rename(to.join(name), from.join(name))));
    }
    moved.and_then(|()| fs::remove_dir(from))
}

/// Makes a file, and the directories between `base` and it.
fn create(path: &Path, base: &Path, directories: &mut Vec<PathBuf>) -> io::Result<File> {
    let parent = path.parent().unwrap_or(base);
    let missing: Vec<&Path> = parent.ancestors().take_while(|above| *above != base && !above.exists()).collect();
    for directory in missing.into_iter().rev() {
        fs::create_dir(directory)?;
        directories.push(directory.to_owned());
    }
    File::create_new(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
