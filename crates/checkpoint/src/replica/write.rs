//! Writing a version to a replica.

use super::layout::{Staging, StagingKind};
use super::read::LoadedPart;
use super::{CheckpointHome, ReplicaDirectory};
use crate::content::{MANIFEST, PartSource, SUCCESS};
use crate::files::{WriteFile, write_new};
use crate::manifest::{ChunkHash, SealedManifest};
use crate::names::Version;
use crate::save_job::{PartReader, SaveJob};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// New files that are open at once. They are synced together, which costs one commit of the file system's log.
const OPEN_FILES_MAX: usize = 128;

impl ReplicaDirectory {
    /// Writes and syncs a version that the register may then commit.
    pub fn prepare(&self, home: &CheckpointHome, job: &SaveJob) -> io::Result<()> {
        let at = self.make_home(home)?;
        let generation = self.generation()?;
        if generation > job.generation {
            return Err(io::Error::other(format!(
                "a register of generation {generation} was rebuilt from it, and this process has one of generation {}: start it again",
                job.generation
            )));
        }
        if let Some(version) = self.version_above(home, Version(job.staging.version.0 - 1))? {
            return Err(io::Error::other(unknown_version(version)));
        }
        let staging = self.staging_path(home, job.staging);
        let parent = self.parent_directory(home, job);
        let mut new = NewFiles::start(self, staging.clone())?;
        for (index, part) in job.parts.iter().enumerate() {
            let target = new.path_of(&part.name)?;
            let unchanged = parent.as_ref().filter(|_| part.bytes() > 0);
            if let Some(parent) = unchanged
                && job.is_unchanged(index).map_err(io::Error::other)?
                && self.link_whole(&parent.join(&part.name), part.bytes(), &target)
            {
                self.advance();
                continue;
            }
            let mut file = self.files.create(&target)?;
            self.write_part(job, index, &mut *file)?;
            new.push(file)?;
        }
        let manifest = job.manifest().map_err(io::Error::other)?;
        new.finish(&manifest)?;
        self.files.sync_dir(&at)
    }

    /// The directory of the version before, if this replica has it with the committed manifest.
    fn parent_directory(&self, home: &CheckpointHome, job: &SaveJob) -> Option<PathBuf> {
        let parent = job.parent.as_ref()?;
        let path = self.version_path(home, parent.manifest.version).ok()??;
        self.read_manifest_in(&path, &parent.hash).ok()?;
        Some(path)
    }

    /// Gives an unchanged file a second name. False if it is not there in its full length.
    fn link_whole(&self, existing: &Path, bytes: u64, target: &Path) -> bool {
        let length = self.files.open(existing).and_then(|file| file.length());
        length.is_ok_and(|length| length == bytes) && self.files.hard_link(existing, target).is_ok()
    }

    fn write_part(&self, job: &SaveJob, index: usize, file: &mut dyn WriteFile) -> io::Result<()> {
        let part = &job.parts[index];
        let mut reader = PartReader::open(part)?;
        let mut number = 0;
        while let Some(chunk) = reader.next()? {
            // Memory that is shared cannot change; a file of another program can.
            if matches!(part.source, PartSource::File { .. })
                && ChunkHash::of(&chunk) != job.hash_of(index, number).map_err(io::Error::other)?
            {
                return Err(io::Error::other(format!("`{}` changed while it was saved", part.name)));
            }
            file.write_all(&chunk)?;
            self.advance();
            number += 1;
        }
        Ok(())
    }

    /// Puts a copy from another replica in the place of a damaged or missing one.
    pub fn repair(
        &self,
        home: &CheckpointHome,
        by: Staging,
        manifest: &SealedManifest,
        parts: &[LoadedPart],
    ) -> io::Result<()> {
        let at = self.make_home(home)?;
        let staging = self.staging_path(home, Staging { kind: StagingKind::Repaired, ..by });
        let replaced = self.copies(home)?.into_iter().filter(|(version, _)| *version == by.version);
        let replaced: Vec<PathBuf> = replaced.map(|(_, name)| at.join(name)).collect();
        let mut new = NewFiles::start(self, staging.clone())?;
        for part in parts {
            let target = new.path_of(&part.name)?;
            let mut file = self.files.create(&target)?;
            file.write_all(&part.bytes)?;
            self.advance();
            new.push(file)?;
        }
        new.finish(manifest)?;
        if !self.files.has_directories() {
            self.mark_in_place(&staging)?;
            replaced.iter().try_for_each(|path| self.remove_in_place(path))?;
            return self.point_latest(home);
        }
        write_new(&*self.files, &staging.join(SUCCESS), b"")?;
        self.files.sync_dir(&staging)?;
        self.remove_version(home, by)?;
        self.files.rename(&staging, &at.join(by.version.directory()))?;
        self.point_latest(home)
    }

    /// Makes the checkpoint's directory, and its name durable.
    fn make_home(&self, home: &CheckpointHome) -> io::Result<PathBuf> {
        let at = self.path(home);
        // If the disk is not mounted, nothing must be written where it would be. It may vanish at any moment, so no call
        // makes a directory above the one that it needs.
        self.check_root()?;
        self.files.create_dir(&self.root.join(&home.resource))?;
        self.files.create_dir(&at)?;
        self.files.sync_dir(&self.root.join(&home.resource))?;
        self.files.sync_dir(&self.root)?;
        self.advance();
        Ok(at)
    }
}

/// What is said of a version that is published here and that the register never committed.
pub fn unknown_version(version: Version) -> String {
    format!("it holds version {version}, which the register does not know: the register may be an older copy")
}

/// The files of a version that is being written.
struct NewFiles<'a> {
    replica: &'a ReplicaDirectory,
    staging: PathBuf,
    open: Vec<Box<dyn WriteFile>>,
    directories: BTreeSet<PathBuf>,
}

impl<'a> NewFiles<'a> {
    fn start(replica: &'a ReplicaDirectory, staging: PathBuf) -> io::Result<NewFiles<'a>> {
        replica.files.create_dir(&staging)?;
        Ok(NewFiles { replica, staging, open: Vec::new(), directories: BTreeSet::new() })
    }

    /// Where a part goes; its directory exists then.
    fn path_of(&mut self, part: &str) -> io::Result<PathBuf> {
        let target = self.staging.join(part);
        let directories: Vec<&Path> = target.ancestors().skip(1).take_while(|above| **above != *self.staging).collect();
        for directory in directories.into_iter().rev() {
            if self.directories.insert(directory.to_owned()) {
                self.replica.files.create_dir(directory)?;
            }
        }
        Ok(target)
    }

    fn push(&mut self, mut file: Box<dyn WriteFile>) -> io::Result<()> {
        file.end()?;
        self.open.push(file);
        if self.open.len() >= OPEN_FILES_MAX { self.sync_open() } else { Ok(()) }
    }

    fn sync_open(&mut self) -> io::Result<()> {
        for mut file in self.open.drain(..) {
            file.finish()?;
            self.replica.advance();
        }
        Ok(())
    }

    /// Writes the manifest, and syncs all files and directories.
    fn finish(mut self, manifest: &SealedManifest) -> io::Result<()> {
        self.sync_open()?;
        let files = &*self.replica.files;
        write_new(files, &self.staging.join(MANIFEST), &manifest.bytes)?;
        for directory in self.directories.iter().rev() {
            files.sync_dir(directory)?;
        }
        self.replica.advance();
        files.sync_dir(&self.staging)
    }
}
