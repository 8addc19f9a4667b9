//! Where checkpoints lie: a register, and a directory for each replica.
//!
//! [`CheckpointStore::open`] needs one directory and makes everything in it. A program with copies on
//! several disks names them in a file:
//!
//! ```toml
//! register = "/var/lib/sublet/register.db"   # on a local disk
//!
//! [replicas]                                 # directories that exist
//! disk-1 = "/mnt/disk-1/checkpoints"
//! disk-2 = "/mnt/disk-2/checkpoints"
//! ```
//!
//! A directory that is missing is not made: an empty mount point must not take copies that are meant
//! for the disk. So name a directory on the disk, not the mount point.
//!
//! `register = "daemon"` lets a daemon keep the register, for programs without a local disk. This crate knows no daemon:
//! a [`StoreOpener`] is told how to reach it. The register and replicas may also lie in an object store
//! (`s3://BUCKET/PREFIX`): [`config`] says how.

mod config;

use crate::effect_store::ReplicatedIdempotencyStore;
use crate::error::ReplicatedError;
use crate::files::{Files, LocalDisk};
use crate::names::{
    ChainName, CheckpointName, FenceEpoch, LogicalResourceName, PolicyHash, ReplicaId, ResourceGeneration, SchemaId,
    escape, unescape,
};
use crate::nonce::Nonce;
use crate::policy::{
    FailureDomain, PlacementPolicy, ReplicaHealth, ReplicaLocator, ReplicaPolicy, ReplicaRole, ReplicaSetLocator,
};
use crate::register::ChainRegister;
use crate::replica::{CheckpointHome, ReplicaDirectory};
use crate::replicated::ReplicatedCheckpoint;
use crate::store_opener::StoreOpener;
pub(crate) use config::RegisterUse;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The variable that names the directory, or the configuration file, of programs that name none.
pub const CHECKPOINTS_VARIABLE: &str = "SUBLET_CHECKPOINTS";

/// The register's file name in a store's directory.
pub(crate) const REGISTER_FILE: &str = "register.db";

/// The directory of replicas in a store's directory.
pub(crate) const REPLICAS: &str = "replicas";

/// A register and the places of replicas. Clones are the same store.
#[derive(Clone)]
pub struct CheckpointStore {
    register: Arc<dyn ChainRegister>,
    places: Arc<ReplicaPlaces>,
    generation: ResourceGeneration,
    writer: Nonce,
    limits: StallLimits,
}

/// Where replicas lie.
enum ReplicaPlaces {
    /// Each in a directory of its name below this one, made when it is needed.
    Below(PathBuf),
    /// In these directories, which exist.
    Named(BTreeMap<ReplicaId, ReplicaPlace>),
}

/// The directory of one replica, and how its files are written.
#[derive(Clone)]
struct ReplicaPlace {
    path: PathBuf,
    files: Arc<dyn Files>,
}

/// How long a replica that makes no progress is waited for. It decides how long a call takes, never what is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimits {
    /// A replica that the quorum needs. After this the call fails.
    pub needed: Duration,
    /// A replica beyond the quorum. After this it is left behind, and repaired later.
    pub surplus: Duration,
}

impl Default for StallLimits {
    fn default() -> StallLimits {
        // A disk may sync for minutes without a sign; a copy that is not needed is worth a few seconds.
        StallLimits { needed: Duration::from_secs(300), surplus: Duration::from_secs(10) }
    }
}

impl CheckpointStore {
    /// The store in a directory, which is made if it does not exist.
    ///
    /// The directory holds `register.db`, and a directory for each replica that a program names. A store
    /// whose register is lost is refused.
    pub fn open(directory: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        let store = CheckpointStore::below(&absolute(directory.as_ref())?, RegisterUse::Writes)?;
        store.check_register()?;
        Ok(store)
    }

    pub(crate) fn below(directory: &Path, register_use: RegisterUse) -> Result<CheckpointStore, ReplicatedError> {
        let directory = directory.to_owned();
        make_directory(&directory).map_err(|source| ReplicatedError::File { path: directory.clone(), source })?;
        let register = register_use.open_file(&directory.join(REGISTER_FILE))?;
        CheckpointStore::assemble(Arc::new(register), ReplicaPlaces::Below(directory))
    }

    /// The store at a path: a directory, or a configuration file (`*.toml`).
    pub fn at(path: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        StoreOpener::new().at(path)
    }

    /// The store at a path, which must exist: nothing is made.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        StoreOpener::new().open_existing(path)
    }

    /// The store at a path, to be [rebuilt](CheckpointStore::rebuild): its register may be lost.
    pub fn open_to_rebuild(path: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        StoreOpener::new().open_to_rebuild(path)
    }

    /// The store that a configuration file describes. Relative paths in it begin at the file's directory.
    pub fn from_config(file: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        StoreOpener::new().open_config(file.as_ref(), RegisterUse::Writes)
    }

    pub(crate) fn configured(
        file: &Path,
        opener: &StoreOpener<'_>,
        register_use: RegisterUse,
    ) -> Result<CheckpointStore, ReplicatedError> {
        let config = config::read(file)?;
        let register = config.register(opener, register_use)?;
        CheckpointStore::assemble(register, ReplicaPlaces::Named(config.replicas()?))
    }

    /// The store of programs that name none: the one at [`default_path`](CheckpointStore::default_path).
    pub fn from_environment() -> Result<CheckpointStore, ReplicatedError> {
        StoreOpener::new().open_default()
    }

    /// Where the store of programs that name none lies: `$SUBLET_CHECKPOINTS`, which is a directory or a
    /// configuration file (`*.toml`), or else `sublet/checkpoints` below `$XDG_STATE_HOME` or `~/.local/state`.
    pub fn default_path() -> Result<PathBuf, ReplicatedError> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = || variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
        let path = variable(CHECKPOINTS_VARIABLE).or_else(|| Some(state()?.join("sublet/checkpoints")));
        path.ok_or_else(|| ReplicatedError::Configuration {
            reason: format!("neither {CHECKPOINTS_VARIABLE} nor XDG_STATE_HOME nor HOME is set"),
        })
    }

    /// A store of these parts. The replicas' directories must exist.
    pub fn with_parts(
        register: Arc<dyn ChainRegister>,
        replicas: impl IntoIterator<Item = (ReplicaId, PathBuf)>,
        files: Arc<dyn Files>,
    ) -> Result<CheckpointStore, ReplicatedError> {
        let place = |(id, path)| (id, ReplicaPlace { path, files: Arc::clone(&files) });
        CheckpointStore::assemble(register, ReplicaPlaces::Named(replicas.into_iter().map(place).collect()))
    }

    fn assemble(register: Arc<dyn ChainRegister>, places: ReplicaPlaces) -> Result<CheckpointStore, ReplicatedError> {
        let generation = ResourceGeneration(register.last(&ChainName::of_generations())? + 1);
        let writer = draw_nonce()?;
        let limits = StallLimits::default();
        Ok(CheckpointStore { register, places: Arc::new(places), generation, writer, limits })
    }

    /// The same store with other limits on waiting.
    pub fn with_stall_limits(self, limits: StallLimits) -> CheckpointStore {
        CheckpointStore { limits, ..self }
    }

    /// The checkpoints of a resource, on all replicas of the store: a save needs more than half of them, a
    /// load needs one verified copy.
    ///
    /// A store that was opened from a directory has the replica `local` if no other one is there.
    pub fn checkpoints(
        &self,
        resource: LogicalResourceName,
        schema: SchemaId,
    ) -> Result<ReplicatedCheckpoint, ReplicatedError> {
        let (policy, locator) = self.whole_set()?;
        let (fence, hash) = (FenceEpoch(1), PolicyHash([0; 32]));
        ReplicatedCheckpoint::in_store(self, resource, schema, fence, policy, locator, hash)
    }

    /// The effects of a resource.
    pub fn effects(
        &self,
        resource: LogicalResourceName,
        schema: SchemaId,
    ) -> Result<ReplicatedIdempotencyStore, ReplicatedError> {
        let (policy, locator) = self.whole_set()?;
        ReplicatedIdempotencyStore::in_store(self, resource, schema, FenceEpoch(1), policy, locator)
    }

    /// The replicas of the store: those of the configuration, or those in its directory.
    pub fn replica_ids(&self) -> Result<Vec<ReplicaId>, ReplicatedError> {
        let mut ids: Vec<ReplicaId> = self.replicas()?.into_iter().map(|(id, _)| id).collect();
        if ids.is_empty() {
            ids.push(ReplicaId::new("local"));
        }
        Ok(ids)
    }

    /// All replicas as voters, and a majority of them as the write quorum.
    fn whole_set(&self) -> Result<(ReplicaPolicy, ReplicaSetLocator), ReplicatedError> {
        let ids = self.replica_ids()?;
        let domain = FailureDomain::cell("local", "store");
        let policy = ReplicaPolicy::new(PlacementPolicy::new().allow(domain.clone()));
        let policy = policy.min_replicas(ids.len()).write_quorum(ids.len() / 2 + 1);
        let voter = |replica_id| ReplicaLocator {
            replica_id,
            domain: domain.clone(),
            role: ReplicaRole::Voter,
            health: ReplicaHealth::Healthy,
            epoch: FenceEpoch(1),
            content_generation: self.generation.0,
        };
        Ok((policy, ReplicaSetLocator::new(self.generation, ids.into_iter().map(voter).collect())))
    }

    /// How often the register was rebuilt, plus one.
    pub fn generation(&self) -> ResourceGeneration {
        self.generation
    }

    /// Every checkpoint that was opened or saved, by resource and name.
    pub fn list(&self) -> Result<Vec<(LogicalResourceName, CheckpointName)>, ReplicatedError> {
        let chains = self.register.chains()?;
        Ok(chains.iter().filter_map(ChainName::checkpoint).collect())
    }

    /// Checkpoints of which replicas hold versions, and which the register does not know: it is older than they are.
    pub fn list_unknown(&self) -> Result<Vec<(LogicalResourceName, CheckpointName)>, ReplicatedError> {
        let known: BTreeSet<_> = self.list()?.into_iter().collect();
        let mut unknown = BTreeSet::new();
        for (replica, _) in self.replicas()? {
            let directory = self.replica(&replica)?;
            // A replica that cannot be read says nothing.
            for found in directory.homes().unwrap_or_default() {
                if !known.contains(&found) && self.has_published(&directory, &found)? {
                    unknown.insert(found);
                }
            }
        }
        Ok(unknown.into_iter().collect())
    }

    /// True if a version of this checkpoint is published at a replica. One that cannot be read has none.
    fn has_published(
        &self,
        directory: &ReplicaDirectory,
        (resource, name): &(LogicalResourceName, CheckpointName),
    ) -> Result<bool, ReplicatedError> {
        let published = directory.published(&CheckpointHome::of(resource, name)?);
        Ok(published.is_ok_and(|versions| !versions.is_empty()))
    }

    /// The replicas that the store knows, and their directories: the configured ones, or those that lie in the
    /// store's directory.
    pub fn replicas(&self) -> Result<Vec<(ReplicaId, PathBuf)>, ReplicatedError> {
        match &*self.places {
            ReplicaPlaces::Named(places) => {
                Ok(places.iter().map(|(id, place)| (id.clone(), place.path.clone())).collect())
            }
            ReplicaPlaces::Below(directory) => {
                let path = directory.join(REPLICAS);
                let names = LocalDisk.list(&path);
                let names = names.map_err(|source| ReplicatedError::File { path: path.clone(), source })?;
                let known = names.into_iter().filter_map(|name| Some((unescape(&name)?, path.join(name))));
                Ok(known.map(|(id, path)| (ReplicaId::new(id), path)).collect())
            }
        }
    }

    /// Refuses an empty register beside replicas that hold committed versions: a program that went on with it
    /// would begin anew.
    pub(crate) fn check_register(&self) -> Result<(), ReplicatedError> {
        if !self.register.chains()?.is_empty() {
            return Ok(());
        }
        for (replica, _) in self.replicas()? {
            let directory = self.replica(&replica)?;
            // A replica that cannot be read says nothing.
            for found in directory.homes().unwrap_or_default() {
                if self.has_published(&directory, &found)? {
                    return Err(ReplicatedError::RegisterLost { replica, name: found.1 });
                }
            }
        }
        Ok(())
    }

    /// The same store, after its register was rebuilt.
    pub(crate) fn at_generation(self, generation: ResourceGeneration) -> CheckpointStore {
        CheckpointStore { generation, ..self }
    }

    pub(crate) fn register(&self) -> &Arc<dyn ChainRegister> {
        &self.register
    }

    pub(crate) fn limits(&self) -> StallLimits {
        self.limits
    }

    /// A number that tells this store's reservations from those of other processes.
    pub(crate) fn writer(&self) -> Nonce {
        self.writer
    }

    /// Refuses a register that is older than the one that the locator was made for.
    pub(crate) fn check_generation(&self, locator: &ReplicaSetLocator) -> Result<(), ReplicatedError> {
        let (found, expected) = (self.generation.0, locator.generation.0);
        if found < expected { Err(ReplicatedError::OldGeneration { found, expected }) } else { Ok(()) }
    }

    /// The directory of a replica.
    pub(crate) fn replica(&self, id: &ReplicaId) -> Result<ReplicaDirectory, ReplicatedError> {
        let place = match &*self.places {
            ReplicaPlaces::Below(directory) => {
                let path = directory.join(REPLICAS).join(escape(id.as_str())?);
                make_directory(&path).map_err(|source| ReplicatedError::File { path: path.clone(), source })?;
                ReplicaPlace { path, files: Arc::new(LocalDisk) }
            }
            ReplicaPlaces::Named(places) => {
                places.get(id).cloned().ok_or_else(|| ReplicatedError::UnknownReplica { replica: id.clone() })?
            }
        };
        Ok(ReplicaDirectory::new(id.clone(), place.path, place.files))
    }
}

/// A random number, with the crate's error.
pub(crate) fn draw_nonce() -> Result<Nonce, ReplicatedError> {
    Nonce::draw().map_err(|source| ReplicatedError::File { path: PathBuf::from("/dev/urandom"), source })
}

/// True if the path names a configuration file, by its name.
pub(crate) fn is_config(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf, ReplicatedError> {
    std::path::absolute(path).map_err(|source| ReplicatedError::File { path: path.to_owned(), source })
}

/// Makes a directory and those above it, so that their names survive a power cut.
fn make_directory(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
    fs::create_dir_all(path)?;
    for made in missing {
        File::open(made.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_the_register_and_the_replicas() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("checkpoints.toml");
        fs::write(&file, "register = \"r.db\"\n[replicas]\na = \"copies\"\n").expect("a file");
        let store = CheckpointStore::from_config(&file).expect("a store");
        assert!(directory.path().join("r.db").exists());
        assert!(store.replica(&ReplicaId::new("a")).is_ok());
        let unknown = store.replica(&ReplicaId::new("b")).map(|_| ()).expect_err("a refusal");
        assert_eq!(unknown.code(), "unknown_replica");
    }

    #[test]
    fn a_store_that_names_nothing_has_one_local_replica() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = CheckpointStore::open(directory.path()).expect("a store");
        let schema = || SchemaId::new("v1");
        let checkpoints = store.checkpoints(LogicalResourceName::new("models"), schema()).expect("checkpoints");
        let name = CheckpointName::new("job");
        let fence = checkpoints.open(&name).expect("a fence");
        let saved = checkpoints.save_bytes(name.clone(), crate::Version(0), b"x", fence).expect("a version");
        let places = checkpoints.directories(&name, saved.version).expect("an answer");
        assert_eq!(places, [(ReplicaId::new("local"), directory.path().join("replicas/local/models/job/000001"))]);
        let other = store.checkpoints(LogicalResourceName::new("models"), SchemaId::new("v2")).expect("checkpoints");
        assert_eq!(other.load(&name).expect_err("a refusal").code(), "mismatch");
        assert!(store.effects(LogicalResourceName::new("steps"), schema()).is_ok());
        assert_eq!(store.list().expect("an answer"), [(LogicalResourceName::new("models"), name)]);
    }

    #[test]
    fn an_unknown_key_in_a_configuration_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("checkpoints.toml");
        fs::write(&file, "register = \"r.db\"\nreplica = {}\n[replicas]\n").expect("a file");
        assert_eq!(CheckpointStore::from_config(&file).map(|_| ()).expect_err("a refusal").code(), "configuration");
    }

    #[test]
    fn a_store_that_does_not_exist_is_not_made_by_looking() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in [directory.path().join("none"), directory.path().to_owned(), directory.path().join("none.toml")] {
            let refusal = CheckpointStore::open_existing(&path).map(|_| ()).expect_err("a refusal");
            assert_eq!(refusal.code(), "no_store");
        }
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
        CheckpointStore::open(directory.path()).expect("a store");
        assert!(CheckpointStore::open_existing(directory.path()).is_ok());
    }

    #[test]
    fn replicas_of_a_directory_stay_inside_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = CheckpointStore::open(directory.path().join("a/b")).expect("a store");
        store.replica(&ReplicaId::new("../../outside")).expect("a replica");
        let names: Vec<_> = fs::read_dir(directory.path()).expect("a directory").collect();
        assert_eq!(names.len(), 1);
        assert_eq!(store.replica_ids().expect("replicas"), [ReplicaId::new("../../outside")]);
    }
}
