//! Registers of checkpoints that the daemon keeps for programs without a local disk that lasts.
//!
//! ```text
//!   state directory/registers/uid:1000/default.db        one file for each register
//!                             uid:1000/resnet.db
//!                             user_3aana/default.db       names of tenants are escaped
//! ```
//! A register is linearizable by itself and synced before it answers (`sublet_checkpoint::register`), so the loop has
//! no part in it: a call runs on a thread that may block, limited by [`FairLimiter`](crate::fair_limiter). Each
//! register has a file of its own. So an error of the disk, or damage, breaks off one register and neither another one
//! nor the journal, and the file's limit is SQLite's.
//!
//! A tenant is part of the path and comes from the caller's credentials: no caller can name another's register.
//!
//! Absent on purpose: what entries mean, and deleting registers. A number that is free again would let a stale program
//! commit.

use crate::fair_limiter::{CallPermit, FairLimiter};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use sublet_checkpoint::ChainName;
use sublet_checkpoint::register::{ChainRegister, Creation, ENTRY_BYTES_MAX, EntryPage, RegisterError, SqliteRegister};
use sublet_wire::CheckpointRegister;

/// The directory in the state directory.
const DIRECTORY: &str = "registers";
/// The registers that are kept open. Each takes three files.
const OPEN_MAX: usize = 64;
/// Calls that read or write at a time; the threads that may block are few, and others need them too.
const CALLS: usize = 4;
/// Of one tenant.
const CALLS_EACH: usize = 2;
/// Entries on their way in or out at a time. Each takes a few MiB of memory at most.
const TRANSFERS: usize = 64;
/// Of one tenant.
const TRANSFERS_EACH: usize = 4;
/// Room that entries leave on the disk for the journal, beside its ballast.
const ROOM_LEFT: u64 = 32 << 20;
/// The longest name of a tenant's directory.
const TENANT_BYTES_MAX: usize = 200;

/// How much a tenant may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterLimits {
    /// Bytes of one register.
    pub bytes: u64,
    /// Registers of one tenant; 0: none are made.
    pub each: u32,
}

/// Why a call to a register failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterFailure {
    /// The tenant has as many registers as it may have.
    #[error("you have the {0} registers that each user may have")]
    TooMany(u32),
    /// The daemon keeps none.
    #[error("this daemon keeps no registers of checkpoints")]
    Off,
    /// The register refused.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The daemon stops, and the call was not begun.
    #[error("the daemon is stopping")]
    Stopping,
}

/// All registers.
#[derive(Clone, Debug)]
pub struct RegisterKeeper(Arc<KeeperParts>);

#[derive(Debug)]
struct KeeperParts {
    directory: PathBuf,
    limits: RegisterLimits,
    open: Mutex<OpenRegisters>,
    calls: FairLimiter,
    transfers: FairLimiter,
}

#[derive(Debug, Default)]
struct OpenRegisters {
    by_path: HashMap<PathBuf, (Arc<SqliteRegister>, u64)>,
    /// Counts uses: a smaller number is longer ago.
    uses: u64,
}

/// What to do if a register does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Make,
    Leave,
}

impl RegisterKeeper {
    /// The registers in this state directory.
    pub fn new(state_dir: &Path, limits: RegisterLimits) -> RegisterKeeper {
        RegisterKeeper(Arc::new(KeeperParts {
            directory: state_dir.join(DIRECTORY),
            limits,
            open: Mutex::default(),
            calls: FairLimiter::new(CALLS, CALLS_EACH),
            transfers: FairLimiter::new(TRANSFERS, TRANSFERS_EACH),
        }))
    }

    /// How much a tenant may keep.
    pub fn limits(&self) -> RegisterLimits {
        self.0.limits
    }

    /// Waits until this tenant may send or get entries. The permit is kept until they have arrived.
    pub async fn transfer(&self, tenant: &str) -> Result<CallPermit, RegisterFailure> {
        self.0.transfers.take(tenant).await.ok_or(RegisterFailure::Stopping)
    }

    /// The registers of a tenant, by name.
    pub async fn list(&self, tenant: &str) -> Result<Vec<CheckpointRegister>, RegisterFailure> {
        let directory = self.0.directory_of(tenant);
        self.run(tenant, move |_| list(&directory).map_err(|error| unavailable(&directory, &error).into())).await
    }

    /// At most `limit` chains of a register after this name, and whether more follow.
    pub async fn chains(
        &self,
        tenant: &str,
        register: &str,
        after: String,
        limit: usize,
    ) -> Result<(Vec<(ChainName, u64)>, bool), RegisterFailure> {
        let found = self.look(tenant, register, move |kept| kept.chains_after(&after, limit + 1)).await?;
        let mut chains = found.unwrap_or_default();
        let more = chains.len() > limit;
        chains.truncate(limit);
        Ok((chains, more))
    }

    /// The number of a chain's newest entry; 0 if there is none.
    pub async fn last(&self, tenant: &str, register: &str, chain: ChainName) -> Result<u64, RegisterFailure> {
        Ok(self.look(tenant, register, move |kept| kept.last(&chain)).await?.unwrap_or(0))
    }

    /// Entries of a chain from this number on.
    pub async fn read(
        &self,
        tenant: &str,
        register: &str,
        chain: ChainName,
        from: u64,
        limit: usize,
    ) -> Result<EntryPage, RegisterFailure> {
        // A page is one entry at least, and two of the largest at most.
        let found =
            self.look(tenant, register, move |kept| kept.read_page(&chain, from, limit, ENTRY_BYTES_MAX)).await?;
        Ok(found.unwrap_or(EntryPage { entries: Vec::new(), more: false }))
    }

    /// Creates an entry, durably.
    pub async fn create(
        &self,
        tenant: &str,
        register: &str,
        chain: ChainName,
        number: u64,
        entry: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Creation, RegisterFailure> {
        let path = self.0.path_of(tenant, register);
        let work = move |inside: &KeeperParts| {
            let room = inside.check_room(entry.as_ref().len() as u64);
            // A register begins with the first entry of a chain, and a refusal makes none.
            let if_missing = if number == 1 && room.is_ok() { IfMissing::Make } else { IfMissing::Leave };
            let Some(kept) = inside.find(&path, if_missing)? else {
                room?;
                return Err(RegisterError::OutOfOrder { chain, number, last: 0 }.into());
            };
            if let Err(no_room) = room {
                // An entry that is there already is there, whatever the disk has: this may be its second attempt.
                let is_taken = number <= kept.last(&chain)?;
                return if is_taken { Ok(Creation::Taken) } else { Err(no_room) };
            }
            Ok(kept.create(&chain, number, entry.as_ref())?)
        };
        self.run(tenant, work).await
    }

    /// Drops the entries before this number, and returns the number of the newest.
    pub async fn forget_before(
        &self,
        tenant: &str,
        register: &str,
        chain: ChainName,
        number: u64,
    ) -> Result<u64, RegisterFailure> {
        let forget = move |kept: &SqliteRegister| {
            kept.forget_before(&chain, number)?;
            kept.last(&chain)
        };
        Ok(self.look(tenant, register, forget).await?.unwrap_or(0))
    }

    /// Calls with a register; `None` if it does not exist.
    async fn look<T: Send + 'static>(
        &self,
        tenant: &str,
        register: &str,
        call: impl FnOnce(&SqliteRegister) -> Result<T, RegisterError> + Send + 'static,
    ) -> Result<Option<T>, RegisterFailure> {
        let path = self.0.path_of(tenant, register);
        let work = move |inside: &KeeperParts| match inside.find(&path, IfMissing::Leave)? {
            Some(kept) => Ok(Some(call(&kept)?)),
            None => Ok(None),
        };
        self.run(tenant, work).await
    }

    /// Works on a thread that may block, when this tenant has a permit.
    async fn run<T: Send + 'static>(
        &self,
        tenant: &str,
        work: impl FnOnce(&KeeperParts) -> Result<T, RegisterFailure> + Send + 'static,
    ) -> Result<T, RegisterFailure> {
        let turn = self.0.calls.take(tenant).await.ok_or(RegisterFailure::Stopping)?;
        let inside = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&inside);
            drop(turn);
            done
        });
        // From here on an entry may be there, whatever becomes of the thread.
        done.await.unwrap_or_else(|error| Err(RegisterError::Unavailable { reason: error.to_string() }.into()))
    }
}

impl KeeperParts {
    fn directory_of(&self, tenant: &str) -> PathBuf {
        self.directory.join(tenant_directory(tenant))
    }

    fn path_of(&self, tenant: &str, register: &str) -> PathBuf {
        self.directory_of(tenant).join(format!("{register}.db"))
    }

    /// Refuses an entry that would take the journal's room.
    fn check_room(&self, bytes: u64) -> Result<(), RegisterFailure> {
        let state_dir = self.directory.parent().unwrap_or(&self.directory);
        let disk = rustix::fs::statvfs(state_dir).map_err(|error| unavailable(state_dir, &error.into()))?;
        match disk.f_bavail.saturating_mul(disk.f_frsize) {
            free if free >= bytes.saturating_add(ROOM_LEFT) => Ok(()),
            _ => Err(RegisterError::Full { reason: "the daemon's disk is full".to_owned() }.into()),
        }
    }

    /// The register in this file, opened if it is not open. One that was broken off stays so until the daemon is
    /// started again: what is read back after a failed sync may not be on the disk.
    fn find(&self, path: &Path, if_missing: IfMissing) -> Result<Option<Arc<SqliteRegister>>, RegisterFailure> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.uses += 1;
        let now = open.uses;
        if let Some((kept, used)) = open.by_path.get_mut(path) {
            *used = now;
            return Ok(Some(Arc::clone(kept)));
        }
        if !self.has_file(path)? {
            if if_missing == IfMissing::Leave {
                return Ok(None);
            }
            self.make_place(path)?;
        }
        let kept = Arc::new(SqliteRegister::open_within(path, self.limits.bytes)?);
        open.close_oldest();
        open.by_path.insert(path.to_owned(), (Arc::clone(&kept), now));
        Ok(Some(kept))
    }

    /// True if a register has a file; an error if that cannot be known, so that an unreadable one is not taken as
    /// empty.
    fn has_file(&self, path: &Path) -> Result<bool, RegisterFailure> {
        let state_dir = self.directory.parent().unwrap_or(&self.directory);
        let found = path.try_exists().and_then(|exists| match exists {
            true => Ok(true),
            false => fs::metadata(state_dir).map(|_| false),
        });
        found.map_err(|error| {
            let shown = path.display();
            let reason = format!("`{shown}` cannot be looked at: {error}; check the directory and its permissions");
            RegisterError::Unavailable { reason }.into()
        })
    }

    /// Makes the directory of a new register, unless its tenant has enough of them.
    fn make_place(&self, path: &Path) -> Result<(), RegisterFailure> {
        let directory = path.parent().unwrap_or(&self.directory);
        let failed = |error: io::Error| RegisterFailure::from(unavailable(directory, &error));
        match self.limits.each {
            0 => return Err(RegisterFailure::Off),
            most if list(directory).map_err(failed)?.len() >= most as usize => {
                return Err(RegisterFailure::TooMany(most));
            }
            _ => {}
        }
        for made in [&self.directory, directory] {
            match DirBuilder::new().mode(0o700).create(made) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created.map_err(failed)?,
            }
            let above = made.parent().unwrap_or(Path::new("/"));
            File::open(above).and_then(|above| above.sync_all()).map_err(failed)?;
        }
        Ok(())
    }
}

impl OpenRegisters {
    /// Makes room for another one. Those that are in use or were broken off stay.
    fn close_oldest(&mut self) {
        if self.by_path.len() < OPEN_MAX {
            return;
        }
        let is_at_rest = |kept: &Arc<SqliteRegister>| Arc::strong_count(kept) == 1 && !kept.is_broken();
        let at_rest = self.by_path.iter().filter(|(_, (kept, _))| is_at_rest(kept));
        let oldest = at_rest.min_by_key(|(_, (_, used))| *used).map(|(path, _)| path.clone());
        oldest.map(|path| self.by_path.remove(&path));
    }
}

fn unavailable(path: &Path, error: &io::Error) -> RegisterError {
    RegisterError::Unavailable { reason: format!("`{}`: {error}", path.display()) }
}

/// The registers in a tenant's directory, by name.
fn list(directory: &Path) -> io::Result<Vec<CheckpointRegister>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".db")) {
            found.push(CheckpointRegister { name: name.to_owned(), bytes: entry.metadata()?.len() });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// The name of a tenant's directory: letters, digits, `-`, `:` and inner dots as they are, `_` and two digits for every
/// other byte. Different tenants have different ones; every tenant has a `:`, so none is like the hash of a long one.
fn tenant_directory(tenant: &str) -> String {
    let mut name = String::with_capacity(tenant.len());
    for (at, byte) in tenant.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b':' => name.push(byte.into()),
            b'.' if at > 0 => name.push('.'),
            _ => name.push_str(&format!("_{byte:02x}")),
        }
    }
    if name.len() > TENANT_BYTES_MAX { blake3::hash(tenant.as_bytes()).to_hex().to_string() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn registers(directory: &Path, each: u32) -> RegisterKeeper {
        RegisterKeeper::new(directory, RegisterLimits { bytes: MIB, each })
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn chain() -> ChainName {
        ChainName::parse("c/models/job:7").unwrap()
    }

    #[test]
    fn tenants_have_different_directories_that_stay_inside() {
        assert_eq!(tenant_directory("uid:1000"), "uid:1000");
        assert_eq!(tenant_directory("user:a/../b"), "user:a_2f.._2fb");
        let long = [58, 59].map(|length| tenant_directory(&format!("user:{}", "é".repeat(length))));
        assert!(long[0].len() == 64 && long[1].len() == 64 && long[0] != long[1], "{long:?}");
    }

    #[test]
    fn reading_makes_no_register() {
        let directory = tempfile::tempdir().unwrap();
        let registers = registers(directory.path(), 4);
        now(async {
            assert_eq!(registers.last("uid:1", "a", chain()).await.unwrap(), 0);
            assert_eq!(registers.forget_before("uid:1", "a", chain(), 7).await.unwrap(), 0);
            assert!(registers.list("uid:1").await.unwrap().is_empty());
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_tenant_has_at_most_as_many_registers_as_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let registers = registers(directory.path(), 2);
        now(async {
            for name in ["a", "b"] {
                assert_eq!(registers.create("uid:1", name, chain(), 1, b"x").await.unwrap(), Creation::New);
            }
            let refused = registers.create("uid:1", "c", chain(), 1, b"x").await.unwrap_err();
            assert!(matches!(refused, RegisterFailure::TooMany(2)), "{refused:?}");
            assert_eq!(registers.create("uid:2", "c", chain(), 1, b"x").await.unwrap(), Creation::New);
            let names: Vec<String> = registers.list("uid:1").await.unwrap().into_iter().map(|kept| kept.name).collect();
            assert_eq!(names, ["a", "b"]);
        });
    }

    #[test]
    fn more_registers_than_are_kept_open_are_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let registers = registers(directory.path(), 1_000);
        now(async {
            let name = |number: usize| format!("r{number}");
            for number in 0..OPEN_MAX + 4 {
                registers.create("uid:1", &name(number), chain(), 1, b"x").await.unwrap();
            }
            assert_eq!(registers.0.open.lock().unwrap().by_path.len(), OPEN_MAX);
            for number in 0..OPEN_MAX + 4 {
                assert_eq!(registers.last("uid:1", &name(number), chain()).await.unwrap(), 1);
            }
        });
    }

    #[test]
    fn a_register_acknowledges_nothing_after_its_file_or_log_was_moved() {
        for file in ["a.db", "a.db-wal"] {
            let directory = tempfile::tempdir().unwrap();
            let registers = registers(directory.path(), 4);
            now(async {
                registers.create("uid:1", "a", chain(), 1, b"x").await.unwrap();
                let at = directory.path().join("registers/uid:1").join(file);
                fs::rename(&at, at.with_extension("away")).unwrap();
                for _ in 0..2 {
                    let refused = registers.create("uid:1", "a", chain(), 2, b"x").await.unwrap_err();
                    assert!(refused.to_string().contains("was moved away"), "{refused}");
                }
            });
        }
    }

    #[test]
    fn an_unreadable_register_is_not_taken_as_empty() {
        let directory = tempfile::tempdir().unwrap();
        let registers = registers(directory.path(), 4);
        // A loop of links cannot be followed, whichever user runs the test.
        let at = directory.path().join("registers");
        std::os::unix::fs::symlink(&at, &at).unwrap();
        now(async {
            let unknown = [
                registers.last("uid:1", "a", chain()).await.map(drop).unwrap_err(),
                registers.read("uid:1", "a", chain(), 1, 9).await.map(drop).unwrap_err(),
                registers.chains("uid:1", "a", String::new(), 9).await.map(drop).unwrap_err(),
                registers.forget_before("uid:1", "a", chain(), 7).await.map(drop).unwrap_err(),
                registers.create("uid:1", "a", chain(), 1, b"x").await.map(drop).unwrap_err(),
            ];
            for refused in unknown {
                assert!(matches!(refused, RegisterFailure::Register(RegisterError::Unavailable { .. })), "{refused:?}");
                assert!(refused.to_string().contains("check the directory"), "{refused}");
            }
        });
    }

    #[test]
    fn a_register_is_not_said_to_be_empty_when_the_state_directory_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let registers = registers(&directory.path().join("gone"), 4);
        now(async {
            let refused = registers.last("uid:1", "a", chain()).await.unwrap_err();
            assert!(refused.to_string().contains("check the directory"), "{refused}");
        });
    }

    #[test]
    fn a_damaged_register_is_refused_and_others_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let registers = registers(directory.path(), 4);
        fs::create_dir_all(directory.path().join("registers/uid:1")).unwrap();
        fs::write(directory.path().join("registers/uid:1/a.db"), vec![0x5a; 8_192]).unwrap();
        now(async {
            let refused = registers.last("uid:1", "a", chain()).await.unwrap_err();
            assert!(matches!(refused, RegisterFailure::Register(RegisterError::Damaged { .. })), "{refused:?}");
            assert_eq!(registers.create("uid:1", "b", chain(), 1, b"x").await.unwrap(), Creation::New);
        });
    }
}
