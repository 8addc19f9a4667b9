//! Opens stores, also those whose register a daemon keeps.
//!
//! ```toml
//! register = "daemon"                            # the daemon that the program leases its GPUs from
//! register = "daemon:resnet"                     # a register of this name there: one for each store
//! register = "daemon:resnet@https://gpu1:7474"   # always that daemon, from whichever machine
//! ```
//! This crate knows no daemon. The library `sublet` passes a function that reaches one; a program that uses this crate
//! alone gets an error that says so.
//!
//! Absent on purpose: choosing a daemon by itself, such as for a home directory on NFS. Which register decides must not
//! depend on what is found at a start.

use crate::error::ReplicatedError;
use crate::register::{ChainRegister, RegisterError};
use crate::store::{CheckpointStore, REGISTER_FILE, REPLICAS, RegisterUse, absolute, is_config};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The register of configurations that name none at their daemon.
const DEFAULT_NAME: &str = "default";

/// Where a register lies that a daemon keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPlace {
    /// Its name among the registers of the user.
    pub name: String,
    /// The daemon's address or socket; `None` for the one that the program uses anyway.
    pub daemon: Option<String>,
}

impl DaemonPlace {
    /// Reads `daemon`, `daemon:NAME`, `daemon@ADDRESS` and `daemon:NAME@ADDRESS`; `None` if it is the path of a file.
    ///
    /// A name that differs from `daemon` in case or by spaces alone is refused: it would become a file.
    pub(crate) fn parse(register: &str) -> Result<Option<DaemonPlace>, String> {
        let head = register.split([':', '@']).next().unwrap_or_default();
        if head != "daemon" && head.trim().eq_ignore_ascii_case("daemon") {
            return Err(format!(
                "`{register}` is neither a daemon nor clearly a file; write `daemon` in lower case without spaces, or \
                 `./{register}` for the file"
            ));
        }
        let Some(rest) = register.strip_prefix("daemon") else { return Ok(None) };
        let (name, daemon) = match rest.split_once('@') {
            Some((name, daemon)) => (name, Some(daemon.to_owned())),
            None => (rest, None),
        };
        let name = match name.strip_prefix(':') {
            Some(name) => name,
            None if name.is_empty() => DEFAULT_NAME,
            // Such as `daemon.db`, a file.
            None => return Ok(None),
        };
        let is_address = daemon.as_deref().is_none_or(|daemon| daemon.starts_with('/') || daemon.contains("://"));
        if !is_register_name(name) || !is_address {
            return Err(format!(
                "`{register}` names no register of a daemon; write daemon:NAME or daemon:NAME@ADDRESS"
            ));
        }
        Ok(Some(DaemonPlace { name: name.to_owned(), daemon }))
    }
}

/// True for 1 to 64 letters, digits, `.`, `_` and `-`, of which the first is a letter or a digit.
pub fn is_register_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins_well = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    begins_well && name.len() <= 64 && name.bytes().all(is_plain)
}

/// Reaches a register that a daemon keeps.
pub type ConnectDaemon<'a> = &'a dyn Fn(&DaemonPlace) -> Result<Arc<dyn ChainRegister>, RegisterError>;

/// Opens stores.
#[derive(Clone, Copy, Default)]
pub struct StoreOpener<'a> {
    connect: Option<ConnectDaemon<'a>>,
}

impl<'a> StoreOpener<'a> {
    /// Opens stores whose register is a file.
    pub fn new() -> StoreOpener<'a> {
        StoreOpener::default()
    }

    /// Also opens stores whose register a daemon keeps, which this function reaches.
    pub fn with_daemon(connect: ConnectDaemon<'a>) -> StoreOpener<'a> {
        StoreOpener { connect: Some(connect) }
    }

    /// The store of programs that name none: the one at [`CheckpointStore::default_path`].
    pub fn open_default(&self) -> Result<CheckpointStore, ReplicatedError> {
        self.at(CheckpointStore::default_path()?)
    }

    /// The store at a path: a directory, or a configuration file (`*.toml`).
    pub fn at(&self, path: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        match is_config(path.as_ref()) {
            true => self.open_config(path.as_ref(), RegisterUse::Writes),
            false => CheckpointStore::open(path),
        }
    }

    /// The store that a configuration file describes.
    pub(crate) fn open_config(
        &self,
        file: &Path,
        register_use: RegisterUse,
    ) -> Result<CheckpointStore, ReplicatedError> {
        let store = CheckpointStore::configured(&absolute(file)?, self, register_use)?;
        store.check_register()?;
        Ok(store)
    }

    /// The store at a path, which must exist: nothing is made.
    pub fn open_existing(&self, path: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        let path = absolute(path.as_ref())?;
        let is_config = is_config(&path);
        let exists = match is_config {
            true => is_there(&path)?,
            false => is_there(&path.join(REGISTER_FILE))? || is_there(&path.join(REPLICAS))?,
        };
        if !exists {
            return Err(ReplicatedError::NoStore { path });
        }
        match is_config {
            true => self.open_config(&path, RegisterUse::Looks),
            false => {
                let store = CheckpointStore::below(&path, RegisterUse::Looks)?;
                store.check_register()?;
                Ok(store)
            }
        }
    }

    /// The store at a path, to be [rebuilt](CheckpointStore::rebuild): its register may be lost.
    pub fn open_to_rebuild(&self, path: impl AsRef<Path>) -> Result<CheckpointStore, ReplicatedError> {
        let path = absolute(path.as_ref())?;
        match is_there(&path)? {
            true if is_config(&path) => CheckpointStore::configured(&path, self, RegisterUse::Writes),
            true => CheckpointStore::below(&path, RegisterUse::Writes),
            false => Err(ReplicatedError::NoStore { path }),
        }
    }

    pub(crate) fn daemon_register(&self, place: &DaemonPlace) -> Result<Arc<dyn ChainRegister>, ReplicatedError> {
        let connect = self.connect.ok_or_else(|| ReplicatedError::Configuration {
            reason: "a daemon keeps the register, and this program does not know how to reach one: \
                     open the store with the library `sublet`"
                .to_owned(),
        })?;
        Ok(connect(place)?)
    }
}

/// Whether something is at a path. What may not be looked at is an error: a store may be there.
fn is_there(path: &Path) -> Result<bool, ReplicatedError> {
    match path.try_exists() {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        answer => answer.map_err(|source| ReplicatedError::File { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::MemoryRegister;
    use std::fs;

    #[test]
    fn registers_of_daemons_are_told_from_files() {
        let place = |name: &str, daemon: Option<&str>| {
            Ok(Some(DaemonPlace { name: name.to_owned(), daemon: daemon.map(str::to_owned) }))
        };
        assert_eq!(DaemonPlace::parse("daemon"), place("default", None));
        assert_eq!(DaemonPlace::parse("daemon:resnet-2"), place("resnet-2", None));
        assert_eq!(DaemonPlace::parse("daemon@https://gpu1:7474"), place("default", Some("https://gpu1:7474")));
        assert_eq!(DaemonPlace::parse("daemon:a@/run/s.sock"), place("a", Some("/run/s.sock")));
        for file in ["register.db", "./daemon", "/var/lib/daemon", "daemon.db", "daemons", "daemon/register.db"] {
            assert_eq!(DaemonPlace::parse(file), Ok(None), "{file}");
        }
        for wrong in ["Daemon", "daemon ", " daemon", "DAEMON:a", "daemon :a", "Daemon@/run/s.sock"] {
            let refusal = DaemonPlace::parse(wrong).expect_err(wrong);
            assert!(refusal.contains("write `daemon`") && refusal.contains(&format!("`./{wrong}`")), "{refusal}");
        }
        for wrong in ["daemon:", "daemon:a/b", "daemon:..", "daemon:a@gpu1", "daemon@", "daemon:a@"] {
            assert!(DaemonPlace::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_store_that_cannot_be_looked_at_is_not_said_to_be_missing() {
        let directory = tempfile::tempdir().expect("a directory");
        // A loop of links cannot be followed, whichever user runs the test.
        let (file, cycle) = (directory.path().join("file"), directory.path().join("cycle"));
        fs::write(&file, "").expect("a file");
        std::os::unix::fs::symlink(&cycle, &cycle).expect("a link");
        for path in [cycle.clone(), cycle.join("checkpoints.toml")] {
            for opened in [StoreOpener::new().open_existing(&path), StoreOpener::new().open_to_rebuild(&path)] {
                let refusal = opened.map(|_| ()).expect_err("a refusal");
                assert_eq!(refusal.code(), "file", "{refusal}");
                assert!(refusal.remedy().contains("check that the directory exists"));
            }
        }
        for missing in [directory.path().join("missing"), file.clone(), file.join("store")] {
            let missing = StoreOpener::new().open_existing(missing).map(|_| ());
            assert_eq!(missing.expect_err("a refusal").code(), "no_store");
        }
    }

    #[test]
    fn a_program_that_knows_no_daemon_is_told_what_to_use() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("checkpoints.toml");
        fs::write(&file, "register = \"daemon:a\"\n[replicas]\nlocal = \"copies\"\n").expect("a file");
        let refusal = CheckpointStore::at(&file).map(|_| ()).expect_err("a refusal");
        assert_eq!(refusal.code(), "configuration");
        assert!(refusal.to_string().contains("open the store with the library `sublet`"), "{refusal}");

        let connect = |place: &DaemonPlace| -> Result<Arc<dyn ChainRegister>, RegisterError> {
            assert_eq!(place.name, "a");
            Ok(Arc::new(MemoryRegister::new()))
        };
        assert!(StoreOpener::with_daemon(&connect).open_existing(&file).is_ok());
    }
}
