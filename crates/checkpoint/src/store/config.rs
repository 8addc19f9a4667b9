//! The configuration file of a store.
//!
//! ```toml
//! register = "s3://bucket/training"          # or a file on a local disk, or `daemon`
//!
//! [replicas]
//! disk = "/mnt/disk-1/checkpoints"           # a directory that exists
//! bucket = "s3://bucket/training"            # a prefix, which need not exist
//!
//! [s3]                                       # if it is not Amazon's
//! endpoint = "https://s3.example.org"
//! region = "eu-1"
//! ```
//!
//! Credentials are taken from the environment (`AWS_ACCESS_KEY_ID` and the like), or from the instance's role.
//!
//! Absent on purpose: credentials in this file.

use super::ReplicaPlace;
use crate::error::ReplicatedError;
use crate::files::LocalDisk;
#[cfg(feature = "object-store")]
use crate::files::ObjectFiles;
use crate::names::ReplicaId;
#[cfg(feature = "object-store")]
use crate::object::{ObjectBucket, S3Purpose};
use crate::places::{S3Place, S3Settings};
#[cfg(feature = "object-store")]
use crate::register::ObjectRegister;
use crate::register::{ChainRegister, RegisterError, SqliteRegister};
use crate::store_opener::{DaemonPlace, StoreOpener};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigText {
    register: String,
    replicas: BTreeMap<String, String>,
    #[serde(default)]
    #[cfg_attr(not(feature = "object-store"), expect(dead_code, reason = "only the object store reads it"))]
    s3: S3Settings,
}

/// A configuration file that was read.
pub struct StoreConfig {
    file: PathBuf,
    text: ConfigText,
}

/// Where something lies.
enum Place {
    /// On a file system.
    Path(PathBuf),
    /// In an object store.
    Bucket(S3Place),
}

/// What a register is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterUse {
    /// A program saves: an object store is tested at once.
    Writes,
    /// An operator looks, or removes something: an object store is tested when something is to be changed, and a full disk
    /// has the room that was kept for that.
    Looks,
}

impl RegisterUse {
    /// Opens a register on a local disk.
    pub fn open_file(self, path: &Path) -> Result<SqliteRegister, RegisterError> {
        match self {
            RegisterUse::Writes => SqliteRegister::open(path),
            RegisterUse::Looks => SqliteRegister::open_for_operator(path),
        }
    }
}

/// Reads a configuration file.
pub fn read(file: &Path) -> Result<StoreConfig, ReplicatedError> {
    let text = fs::read_to_string(file).map_err(|source| ReplicatedError::File { path: file.to_owned(), source })?;
    let text = toml::from_str(&text).map_err(|error| unusable(file, error))?;
    Ok(StoreConfig { file: file.to_owned(), text })
}

impl StoreConfig {
    /// Opens the register; the opener reaches one that a daemon keeps.
    pub fn register(
        &self,
        opener: &StoreOpener<'_>,
        register_use: RegisterUse,
    ) -> Result<Arc<dyn ChainRegister>, ReplicatedError> {
        if let Some(place) = DaemonPlace::parse(&self.text.register).map_err(|reason| unusable(&self.file, reason))? {
            return opener.daemon_register(&place);
        }
        match self.place(&self.text.register)? {
            Place::Path(path) => Ok(Arc::new(register_use.open_file(&path)?)),
            Place::Bucket(place) => self.register_in(&place, register_use),
        }
    }

    /// The places of the replicas.
    pub fn replicas(&self) -> Result<BTreeMap<ReplicaId, ReplicaPlace>, ReplicatedError> {
        let place = |(id, text): (&String, &String)| {
            let place = match self.place(text)? {
                Place::Path(path) => ReplicaPlace { path, files: Arc::new(LocalDisk) },
                Place::Bucket(place) => self.replica_in(&place)?,
            };
            Ok((ReplicaId::new(id), place))
        };
        self.text.replicas.iter().map(place).collect()
    }

    fn place(&self, text: &str) -> Result<Place, ReplicatedError> {
        let place = S3Place::parse(text).map_err(|reason| unusable(&self.file, reason))?;
        let base = self.file.parent().unwrap_or(Path::new("/"));
        Ok(place.map_or_else(|| Place::Path(base.join(text)), Place::Bucket))
    }
}

#[cfg(feature = "object-store")]
impl StoreConfig {
    fn register_in(
        &self,
        place: &S3Place,
        register_use: RegisterUse,
    ) -> Result<Arc<dyn ChainRegister>, ReplicatedError> {
        let (bucket, prefix) = (self.bucket(place, S3Purpose::Register)?, place.prefix.join("/"));
        Ok(Arc::new(match register_use {
            RegisterUse::Writes => ObjectRegister::open(bucket, &prefix)?,
            RegisterUse::Looks => ObjectRegister::open_to_look(bucket, &prefix),
        }))
    }

    fn replica_in(&self, place: &S3Place) -> Result<ReplicaPlace, ReplicatedError> {
        let files = Arc::new(ObjectFiles::new(self.bucket(place, S3Purpose::Content)?));
        Ok(ReplicaPlace { path: PathBuf::from(place.to_string()), files })
    }

    fn bucket(&self, place: &S3Place, purpose: S3Purpose) -> Result<ObjectBucket, ReplicatedError> {
        let opened = ObjectBucket::s3(&place.bucket, &self.text.s3, purpose);
        opened.map_err(|reason| unusable(&self.file, format!("{place}: {reason}")))
    }
}

#[cfg(not(feature = "object-store"))]
impl StoreConfig {
    fn register_in(&self, place: &S3Place, _: RegisterUse) -> Result<Arc<dyn ChainRegister>, ReplicatedError> {
        Err(ReplicatedError::NoObjectStore { place: place.to_string() })
    }

    fn replica_in(&self, place: &S3Place) -> Result<ReplicaPlace, ReplicatedError> {
        Err(ReplicatedError::NoObjectStore { place: place.to_string() })
    }
}

fn unusable(file: &Path, reason: impl ToString) -> ReplicatedError {
    ReplicatedError::Configuration { reason: format!("`{}`: {}", file.display(), reason.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CheckpointStore;

    fn refusal(text: &str) -> ReplicatedError {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("checkpoints.toml");
        fs::write(&file, text).expect("a file");
        CheckpointStore::from_config(&file).map(|_| ()).expect_err("a refusal")
    }

    #[cfg(not(feature = "object-store"))]
    #[test]
    fn a_program_without_the_object_store_says_so() {
        let places = ["register = \"s3://b/p\"\n[replicas]\n", "register = \"r.db\"\n[replicas]\na = \"s3://b/p\"\n"];
        for text in places {
            let refusal = refusal(text);
            assert_eq!(refusal.code(), "no_object_store");
            assert!(refusal.to_string().contains("`s3://b/p` is in an object store"), "{refusal}");
            assert!(refusal.remedy().contains("`object-store`"));
        }
    }

    #[cfg(feature = "object-store")]
    #[test]
    fn an_address_without_encryption_must_be_permitted() {
        let refusal = refusal("register = \"s3://b/p\"\n[replicas]\n[s3]\nendpoint = \"http://127.0.0.1:1\"\n");
        assert_eq!(refusal.code(), "configuration");
        assert!(refusal.to_string().contains("allow_http = true"), "{refusal}");
    }

    #[test]
    fn a_place_without_a_bucket_and_a_credential_are_refused() {
        assert_eq!(refusal("register = \"s3:///p\"\n[replicas]\n").code(), "configuration");
        let refusal = refusal("register = \"r.db\"\n[replicas]\n[s3]\nsecret_access_key = \"x\"\n");
        assert_eq!(refusal.code(), "configuration");
    }
}
