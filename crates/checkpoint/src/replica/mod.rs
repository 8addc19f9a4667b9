//! One replica: the directory that holds a copy of every version.
//!
//! ```text
//! prepare ──► .prepared-… ──(committed in the register)──► publish ──► 000042 ──► remove
//!                  │                                                     ▲
//!                  └─ lost the race: discard        repair, from another replica
//! ```
//!
//! A version is complete and synced before the register is asked to commit it. What a crash leaves
//! behind is finished or removed by [`sweep`](ReplicaDirectory::sweep), by what the register says.
//! In an object store a version is published where it was written: [`in_place`].
//!
//! Absent on purpose: quorums, and any decision on what is committed.

mod in_place;
pub mod layout;
pub mod read;
mod write;

use crate::chain::checkpoint::VersionChain;
use crate::content::{MANIFEST, SUCCESS};
use crate::files::{Files, read_small, write_new};
use crate::manifest::{MANIFEST_BYTES_MAX, SealedManifest};
use crate::names::{CheckpointName, LogicalResourceName, ReplicaId, Version, escape, unescape};
use crate::nonce::Nonce;
use layout::{HomeEntry, LATEST, Staging, StagingKind};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The files at a replica's root that name the generations it was used for.
const GENERATION: &str = ".generation-";

/// A replica's directory, and how its bytes are written.
#[derive(Clone)]
pub struct ReplicaDirectory {
    /// The replica.
    pub id: ReplicaId,
    root: PathBuf,
    files: Arc<dyn Files>,
    progress: Arc<AtomicU64>,
    left_behind: Arc<Mutex<Vec<Weak<()>>>>,
}

/// The directory of one checkpoint, below the directory of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointHome {
    resource: String,
    name: String,
}

impl CheckpointHome {
    /// The directory of this checkpoint.
    pub fn of(resource: &LogicalResourceName, name: &CheckpointName) -> Result<CheckpointHome, crate::ReplicatedError> {
        Ok(CheckpointHome { resource: escape(resource.as_str())?, name: escape(name.as_str())? })
    }
}

impl ReplicaDirectory {
    /// The replica with its copies in this directory.
    pub fn new(id: ReplicaId, root: PathBuf, files: Arc<dyn Files>) -> ReplicaDirectory {
        ReplicaDirectory { id, root, files, progress: Arc::default(), left_behind: Arc::default() }
    }

    /// A number that grows while the replica works.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// True while a call that was given up still works on the replica, or hangs in it.
    pub fn is_stuck(&self) -> bool {
        let mut threads = self.left_behind.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.strong_count() > 0);
        !threads.is_empty()
    }

    /// Notes that a call was given up; the thread holds the other end while it runs.
    pub fn leave_behind(&self, thread: Weak<()>) {
        self.left_behind.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Where the checkpoint lies.
    pub fn path(&self, home: &CheckpointHome) -> PathBuf {
        self.root.join(&home.resource).join(&home.name)
    }

    /// Counts a step of work, so that slow is told from hung.
    fn advance(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// The checkpoints that lie here, by the names of their directories.
    pub fn homes(&self) -> io::Result<Vec<(LogicalResourceName, CheckpointName)>> {
        let mut homes = Vec::new();
        for (component, resource) in names_of(self.files.list(&self.root)?) {
            for (_, name) in names_of(self.files.list(&self.root.join(component))?) {
                homes.push((LogicalResourceName::new(&resource), CheckpointName::new(name)));
            }
        }
        Ok(homes)
    }

    /// An error if the replica cannot be read.
    fn check_root(&self) -> io::Result<()> {
        match self.files.check_dir(&self.root) {
            // A prefix without objects is as good as any other.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.files.has_directories() => Ok(()),
            other => other,
        }
    }

    /// True if a directory of the checkpoint lies here; an error if the replica cannot be read.
    pub fn has_home(&self, home: &CheckpointHome) -> io::Result<bool> {
        self.check_root()?;
        match self.files.check_dir(&self.path(home)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// The highest generation of a register that was rebuilt from this replica; 1 if none was.
    pub fn generation(&self) -> io::Result<u64> {
        let names = self.files.list(&self.root)?;
        let marked = names.iter().filter_map(|name| name.strip_prefix(GENERATION)?.parse().ok());
        Ok(marked.max().unwrap_or(1))
    }

    /// Notes, durably, that a register of this generation was rebuilt from this replica.
    pub fn mark_generation(&self, generation: u64) -> io::Result<()> {
        match write_new(&*self.files, &self.root.join(format!("{GENERATION}{generation}")), b"") {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        self.files.sync_dir(&self.root)
    }

    /// The numbers of the published versions, in order.
    pub fn published(&self, home: &CheckpointHome) -> io::Result<Vec<Version>> {
        let mut versions: Vec<Version> = self.copies(home)?.into_iter().map(|(version, _)| version).collect();
        versions.dedup();
        Ok(versions)
    }

    /// The published versions with the names of their directories, in order.
    fn copies(&self, home: &CheckpointHome) -> io::Result<Vec<(Version, String)>> {
        Ok(copies_among(&self.entries(home)?))
    }

    /// The names in the directory of the checkpoint, and what each stands for.
    fn entries(&self, home: &CheckpointHome) -> io::Result<Vec<(String, HomeEntry)>> {
        if !self.files.has_directories() {
            return self.entries_in_place(home);
        }
        let parsed = |name: String| {
            let entry = layout::parse(&name);
            (name, entry)
        };
        Ok(self.files.list(&self.path(home))?.into_iter().map(parsed).collect())
    }

    /// The directory of a published version; `None` if an object store has none. On a disk it may be missing.
    pub fn version_path(&self, home: &CheckpointHome, version: Version) -> io::Result<Option<PathBuf>> {
        let at = self.path(home);
        if self.files.has_directories() {
            return Ok(Some(at.join(version.directory())));
        }
        // Where there are two, one is a repaired copy, and it is the last one by its name.
        let copies = self.copies(home)?;
        Ok(copies.into_iter().rfind(|(found, _)| *found == version).map(|(_, name)| at.join(name)))
    }

    /// The directory of a version before it is published, or while it is deleted.
    fn staging_path(&self, home: &CheckpointHome, staging: Staging) -> PathBuf {
        let name = if self.files.has_directories() { staging.to_string() } else { staging.copy_name() };
        self.path(home).join(name)
    }

    /// Makes a prepared version one that people see. The register has committed it.
    ///
    /// Several processes may do this at once, and any of them may have died half-way before.
    pub fn publish(&self, home: &CheckpointHome, staging: Staging) -> io::Result<()> {
        if !self.files.has_directories() {
            return self.publish_in_place(home, staging);
        }
        let at = self.path(home);
        let (prepared, published) = (at.join(staging.to_string()), at.join(staging.version.directory()));
        // In this order: a version appears with its manifest, so what was there before it was read is none.
        let is_taken = self.has_version(home, staging.version)?;
        if self.nonce_in(&published)? == Some(staging.nonce) {
            return self.files.remove_dir_all(&prepared);
        }
        if is_taken && self.nonce_in(&prepared)? == Some(staging.nonce) {
            self.set_aside(&at, staging)?;
        }
        let renamed = self.mark_and_rename(&prepared, &published);
        if renamed.is_err() && self.nonce_in(&published)? != Some(staging.nonce) {
            return renamed;
        }
        self.point_latest(home)?;
        self.advance();
        Ok(())
    }

    /// True if Sublet made the directory of a version: on a disk, if it has a manifest, whole or damaged.
    fn is_own(&self, directory: &Path) -> io::Result<bool> {
        Ok(!self.files.has_directories() || self.has_file(&directory.join(MANIFEST))?)
    }

    /// The nonce of the version in a directory; `None` if there is no manifest, or a damaged one.
    fn nonce_in(&self, directory: &Path) -> io::Result<Option<Nonce>> {
        match read_small(&*self.files, &directory.join(MANIFEST), MANIFEST_BYTES_MAX) {
            Ok(bytes) => Ok(SealedManifest::parse(bytes).ok().map(|sealed| sealed.manifest.nonce)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes something that is not this version out of the version's place. It is kept under another name.
    fn set_aside(&self, at: &Path, staging: Staging) -> io::Result<()> {
        let published = at.join(staging.version.directory());
        let found = at.join(layout::found(staging.version, Nonce::draw()?));
        match self.files.rename(&published, &found) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        // Another process may have published the version just before.
        if self.nonce_in(&found)? == Some(staging.nonce) { self.files.rename(&found, &published) } else { Ok(()) }
    }

    /// Sets the published versions above this one aside, and returns them. In an object store they stay.
    pub fn set_aside_above(&self, home: &CheckpointHome, newest: Version) -> io::Result<Vec<Version>> {
        if !self.files.has_directories() {
            return Ok(Vec::new());
        }
        let at = self.path(home);
        let mut moved = Vec::new();
        for (version, name) in self.copies(home)?.into_iter().rev().take_while(|(version, _)| *version > newest) {
            if self.is_genuine(home, version, &name) {
                self.files.rename(&at.join(&name), &at.join(layout::found(version, Nonce::draw()?)))?;
                moved.push(version);
            }
        }
        if !moved.is_empty() {
            self.point_latest(home)?;
        }
        Ok(moved)
    }

    fn mark_and_rename(&self, prepared: &Path, published: &Path) -> io::Result<()> {
        match write_new(&*self.files, &prepared.join(SUCCESS), b"") {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        self.files.sync_dir(prepared)?;
        self.advance();
        self.files.rename(prepared, published)
    }

    /// Points `latest` to the newest version that is published here, durably.
    ///
    /// The link is for people and other programs; nothing in this crate reads it.
    fn point_latest(&self, home: &CheckpointHome) -> io::Result<()> {
        let at = self.path(home);
        let mut pointed_to = None;
        loop {
            let mut copies = self.copies(home)?.into_iter().rev();
            let newest = copies.find(|(version, name)| self.is_genuine(home, *version, name)).map(|(_, name)| name);
            let Some(newest) = newest.filter(|newest| pointed_to.as_ref() != Some(newest)) else {
                return self.files.sync_dir(&at);
            };
            if !self.replace_latest(&at, &newest)? {
                return self.files.sync_dir(&at);
            }
            // Another process may have published a newer version meanwhile.
            pointed_to = Some(newest);
        }
    }

    /// False if `latest` pointed there before.
    fn replace_latest(&self, at: &Path, target: &str) -> io::Result<bool> {
        let latest = at.join(LATEST);
        if self.files.read_link(&latest)?.as_deref() == Some(target) {
            return Ok(false);
        }
        if !self.files.has_directories() {
            return self.files.symlink(target, &latest).map(|()| true);
        }
        let unused = at.join(layout::unused_link(Nonce::draw()?));
        self.files.symlink(target, &unused)?;
        match self.files.rename(&unused, &latest) {
            // A sweep took it for a leftover, and pointed `latest` itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            other => other.map(|()| true),
        }
    }

    /// A published version above this one, which is the newest that the register knows.
    ///
    /// Only what a register committed is published. So either it was committed since the register was
    /// read, or the register is an older copy of itself.
    pub fn version_above(&self, home: &CheckpointHome, newest: Version) -> io::Result<Option<Version>> {
        Ok(self.genuine_above(home, &self.copies(home)?, newest))
    }

    fn genuine_above(&self, home: &CheckpointHome, copies: &[(Version, String)], newest: Version) -> Option<Version> {
        let above = copies.iter().rev().take_while(|(version, _)| *version > newest);
        let mut genuine = above.filter(|(version, name)| self.is_genuine(home, *version, name));
        genuine.next().map(|(version, _)| *version)
    }

    /// True if the version's manifest names this version: a directory that a user made does not count.
    fn is_genuine(&self, home: &CheckpointHome, version: Version, name: &str) -> bool {
        let path = self.path(home).join(name).join(MANIFEST);
        let bytes = read_small(&*self.files, &path, MANIFEST_BYTES_MAX).ok();
        let manifest = bytes.and_then(|bytes| SealedManifest::parse(bytes).ok());
        manifest.is_some_and(|manifest| manifest.manifest.version == version)
    }

    /// True if the version is published here.
    pub fn has_version(&self, home: &CheckpointHome, version: Version) -> io::Result<bool> {
        Ok(self.published(home)?.contains(&version))
    }

    /// Takes a version out of sight first, so that no half-deleted one is ever seen.
    fn remove_version(&self, home: &CheckpointHome, by: Staging) -> io::Result<()> {
        if !self.files.has_directories() {
            let mut copies = self.copies(home)?.into_iter().filter(|(version, _)| *version == by.version);
            return copies.try_for_each(|(_, name)| self.remove_in_place(&self.path(home).join(name)));
        }
        let at = self.path(home);
        let removed = at.join(Staging { kind: StagingKind::Removed, ..by }.to_string());
        match self.files.rename(&at.join(by.version.directory()), &removed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        self.advance();
        self.files.remove_dir_all(&removed)
    }

    /// Deletes what a save prepared that was not committed.
    pub fn discard(&self, home: &CheckpointHome, staging: Staging) -> io::Result<()> {
        let path = self.staging_path(home, staging);
        if self.files.has_directories() { self.files.remove_dir_all(&path) } else { self.remove_in_place(&path) }
    }

    /// Finishes or removes what earlier calls and processes left behind, by what the register says.
    ///
    /// Returns a version that the register does not know, if there is one.
    pub fn sweep(&self, home: &CheckpointHome, state: &VersionChain) -> io::Result<Option<Version>> {
        let at = self.path(home);
        let entries = self.entries(home)?;
        let copies = copies_among(&entries);
        for (name, entry) in entries {
            match entry {
                // What somebody else put there is not Sublet's to delete.
                HomeEntry::Version(version) if is_pruned(state, version) && self.is_own(&at.join(&name))? => {
                    let kind = StagingKind::Removed;
                    let fence = state.fences().newest;
                    self.remove_version(home, Staging { kind, version, fence, nonce: Nonce::draw()? })?;
                }
                HomeEntry::Staging(staging) if staging.kind == StagingKind::Prepared => {
                    self.settle_prepared(home, state, staging)?;
                }
                HomeEntry::Staging(staging) if is_left_over(state, staging) => self.discard(home, staging)?,
                HomeEntry::UnusedLink => self.files.remove_file(&at.join(name))?,
                HomeEntry::Version(_) | HomeEntry::Staging(_) | HomeEntry::Other => {}
            }
            self.advance();
        }
        match self.files.check_dir(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => self.point_latest(home)?,
        }
        Ok(self.genuine_above(home, &copies, state.newest()))
    }

    /// Publishes a prepared version if it was committed, and deletes it if it can never be.
    fn settle_prepared(&self, home: &CheckpointHome, state: &VersionChain, staging: Staging) -> io::Result<()> {
        match state.versions().get(&staging.version) {
            Some(saved) if saved.nonce == staging.nonce => {
                // The other replicas were enough, and its writer may still be writing here.
                let is_written = self.has_manifest(&self.staging_path(home, staging), &saved.manifest)?;
                if is_written || self.has_version(home, staging.version)? {
                    self.publish(home, staging)
                } else {
                    Ok(())
                }
            }
            _ if is_left_over(state, staging) => self.discard(home, staging),
            _ => Ok(()),
        }
    }
}

/// The versions among the entries of a checkpoint's directory, in order.
fn copies_among(entries: &[(String, HomeEntry)]) -> Vec<(Version, String)> {
    let version = |(name, entry): &(String, HomeEntry)| match entry {
        HomeEntry::Version(version) => Some((*version, name.clone())),
        _ => None,
    };
    let mut copies: Vec<(Version, String)> = entries.iter().filter_map(version).collect();
    copies.sort();
    copies
}

/// The names that were escaped to these components. Others are not Sublet's.
fn names_of(components: Vec<String>) -> Vec<(String, String)> {
    components.into_iter().filter_map(|component| unescape(&component).map(|name| (component, name))).collect()
}

/// True if no process can make use of it any more: its writer is stale, or its number is decided.
///
/// A copy that is being repaired, and a version that is being deleted, have a decided number from the
/// start; they count as left over only when their version is pruned or their writer is stale.
fn is_left_over(state: &VersionChain, staging: Staging) -> bool {
    let is_decided = match staging.kind {
        StagingKind::Prepared => staging.version <= state.newest(),
        StagingKind::Repaired | StagingKind::Removed => is_pruned(state, staging.version),
    };
    is_decided || staging.fence < state.fences().newest
}

/// True if the version was committed once, and is not any more.
fn is_pruned(state: &VersionChain, version: Version) -> bool {
    version <= state.newest() && !state.versions().contains_key(&version)
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
