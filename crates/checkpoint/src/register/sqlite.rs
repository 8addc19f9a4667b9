//! A register in one SQLite file on a local disk; many processes may use it at once.
//!
//! One row per entry. An entry is created by a single statement that inserts it only if its number is
//! the next one, and the entry before is the one that the caller knows, so that SQLite's lock on the file is the only
//! lock there is. The write-ahead log is
//! synced at every commit.
//!
//! After an error of the disk the register answers nothing more until it is opened again: what the
//! page cache shows after a failed sync may not be on the disk. The same holds once its file or its write-ahead log was
//! moved away or replaced: an entry in a deleted file is in no register.
//!
//! Absent on purpose: file systems that several machines write. There, locks and shared memory of
//! SQLite do not hold, so such a place is refused.

use super::disk_state::{full_disk, refusal_of_disk};
use super::file_identity::{FileIdentity, FoundInstead, IdentityError};
use super::file_system::{FileSystem, file_system_of};
use super::reserve::{self, FreedReserve};
use super::{ChainRegister, Creation, ENTRY_BYTES_MAX, NumberedEntry, RegisterError};
use crate::names::ChainName;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Marks the file as a register of checkpoints: `SbCk`.
const APPLICATION_ID: i64 = 0x5362_436b;

/// How long a call waits for another process's commit. One takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long opening waits for another process that opens the same register. One takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two tries to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The pages of SQLite's usual size that the largest entry takes, with its place in the table.
const ENTRY_PAGES: u64 = (ENTRY_BYTES_MAX / 4096) as u64 + 8;

/// Chains in an SQLite file.
#[derive(Debug)]
pub struct SqliteRegister {
    path: PathBuf,
    state: Mutex<Connected>,
    /// The pages that the file may have; `None` if only the disk limits it.
    pages_max: Option<u64>,
    /// Made again after the connection is closed.
    _freed: Option<FreedReserve>,
}

/// Some of the entries of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPage {
    /// The entries, in order.
    pub entries: Vec<NumberedEntry>,
    /// True if more entries follow.
    pub more: bool,
}

/// A connection, or why there is none any more.
#[derive(Debug)]
enum Connected {
    Open(Connection, FileIdentity),
    Broken(String),
}

impl SqliteRegister {
    /// Opens the register, and makes it if the file does not exist. Its directory must exist.
    pub fn open(path: impl Into<PathBuf>) -> Result<SqliteRegister, RegisterError> {
        let path = path.into();
        let register = SqliteRegister::open_limited(&path, None)?;
        reserve::make(&path);
        Ok(register)
    }

    /// The same for a command of an operator: on a full disk it has the room that was kept for removing versions.
    pub fn open_for_operator(path: impl Into<PathBuf>) -> Result<SqliteRegister, RegisterError> {
        let path = path.into();
        let freed = FreedReserve::of(&path);
        Ok(SqliteRegister { _freed: Some(freed), ..SqliteRegister::open_limited(&path, None)? })
    }

    /// The same for a file that may have at most this many bytes, its write-ahead log not counted. Beyond them an entry
    /// is refused as [`RegisterError::Full`]; forgetting entries makes room again.
    pub fn open_within(path: impl Into<PathBuf>, bytes_max: u64) -> Result<SqliteRegister, RegisterError> {
        SqliteRegister::open_limited(&path.into(), Some(bytes_max))
    }

    fn open_limited(path: &Path, bytes_max: Option<u64>) -> Result<SqliteRegister, RegisterError> {
        let path = path.to_owned();
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match file_system_of(directory).map_err(|error| unavailable(directory, error))? {
            FileSystem::Local => {}
            FileSystem::Other(kind) => return Err(RegisterError::NotLocal { path, kind }),
        }
        // SQLite does not wait for another process that switches the same new file to the write-ahead log.
        let locked = lock_directory(directory, LOCK_TIMEOUT)?;
        let connection = connect(&path).map_err(|error| because_of_disk(&path, error))?;
        // The file's name must survive a power cut before the first entry does.
        locked.sync_all().map_err(|error| unavailable(directory, error))?;
        let pages_max = bytes_max.map(|bytes| limit_pages(&connection, bytes)).transpose();
        let pages_max = pages_max.map_err(|error| unavailable(&path, error))?;
        let identity = FileIdentity::of(&path).map_err(|error| unavailable(&path, error))?;
        Ok(SqliteRegister { path, state: Mutex::new(Connected::Open(connection, identity)), pages_max, _freed: None })
    }

    /// True after an error of the disk, and after a file of the register was moved away or replaced: the register answers
    /// nothing more. Opening it again is safe only for another process.
    pub fn is_broken(&self) -> bool {
        matches!(*self.state.lock().unwrap_or_else(PoisonError::into_inner), Connected::Broken(_))
    }

    /// Entries from this number on: at most `limit`, and no more after `bytes_max` bytes. At least one, if there is one.
    pub fn read_page(
        &self,
        chain: &ChainName,
        from: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<EntryPage, RegisterError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT number, bytes FROM entries WHERE chain = ?1 AND number >= ?2 ORDER BY number",
            )?;
            let mut rows = statement.query(params![chain.as_str(), column(from)])?;
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                if entries.len() == limit || bytes >= bytes_max {
                    return Ok(EntryPage { entries, more: true });
                }
                let entry = NumberedEntry { number: row.get::<_, i64>(0)?.unsigned_abs(), bytes: row.get(1)? };
                bytes += entry.bytes.len();
                entries.push(entry);
            }
            Ok(EntryPage { entries, more: false })
        })
    }

    /// At most `limit` chains after this one, by name, each with the number of its newest entry.
    pub fn chains_after(&self, after: &str, limit: usize) -> Result<Vec<(ChainName, u64)>, RegisterError> {
        let found: Vec<(String, i64)> = self.with(|connection| {
            // From name to name through the primary key: the entries in between are not read.
            let mut statement = connection.prepare_cached(
                "WITH RECURSIVE names (name) AS (
                     SELECT (SELECT min(chain) FROM entries WHERE chain > ?1)
                     UNION ALL
                     SELECT (SELECT min(chain) FROM entries WHERE chain > name) FROM names WHERE name IS NOT NULL
                 )
                 SELECT name, (SELECT max(number) FROM entries WHERE chain = name) FROM names
                 WHERE name IS NOT NULL LIMIT ?2",
            )?;
            let chains =
                statement.query_map(params![after, column(limit as u64)], |row| Ok((row.get(0)?, row.get(1)?)))?;
            chains.collect()
        })?;
        let parsed = found.into_iter().map(|(name, last)| {
            let damaged = || RegisterError::Damaged { reason: format!("`{name}` cannot be the name of a chain") };
            ChainName::parse(&name).map(|chain| (chain, last.unsigned_abs())).ok_or_else(damaged)
        });
        parsed.collect()
    }

    /// What is full: the file as far as it may grow, or the disk.
    fn full(&self, connection: &Connection) -> RegisterError {
        let pages = connection.pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0));
        let reason = match (self.pages_max, pages) {
            // The entry may need more pages than the few that are left.
            (Some(most), Ok(pages)) if pages.unsigned_abs() + ENTRY_PAGES > most => {
                "its file has reached its limit".into()
            }
            _ => return full_disk(&self.path),
        };
        RegisterError::Full { reason }
    }

    /// Runs a call over the connection. Breaks the register off after an error of the disk, and if a file of it is another
    /// one by now: then the call may have been made to a deleted file.
    fn with<T>(&self, call: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, RegisterError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, identity) = match &mut *state {
            Connected::Open(connection, identity) => (connection, identity),
            Connected::Broken(reason) => return Err(RegisterError::Unavailable { reason: reason.clone() }),
        };
        let called = call(connection);
        if let Err(error) = identity.check() {
            return Err(break_off(&mut state, error));
        }
        let error = match called {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        Err(match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => self.full(connection),
            Some(ErrorCode::DatabaseBusy) => locked_by_another(&self.path, BUSY_TIMEOUT),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                RegisterError::Damaged { reason: format!("`{}`: {error}", self.path.display()) }
            }
            // Nothing was written: the file was opened for reading, or the disk is mounted read-only.
            Some(ErrorCode::ReadOnly) => refusal_of_disk(&self.path).unwrap_or_else(|| unavailable(&self.path, error)),
            _ => {
                let cause = refusal_of_disk(&self.path).map_or_else(String::new, |refusal| format!("; {refusal}"));
                let reason = format!(
                    "`{}` failed, and is closed until the program starts again: {error}{cause}",
                    self.path.display()
                );
                *state = Connected::Broken(reason.clone());
                RegisterError::Unavailable { reason }
            }
        })
    }
}

impl ChainRegister for SqliteRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        check_size(entry)?;
        let created = self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "INSERT INTO entries (chain, number, bytes) SELECT ?1, ?2, ?3
                 WHERE ?2 = 1 + coalesce((SELECT max(number) FROM entries WHERE chain = ?1), 0)",
            )?;
            statement.execute(params![chain.as_str(), column(number), entry])
        })?;
        if created == 1 {
            return Ok(Creation::New);
        }
        match self.last(chain)? {
            last if number <= last => Ok(Creation::Taken),
            last => Err(RegisterError::OutOfOrder { chain: chain.clone(), number, last }),
        }
    }

    fn create_after(&self, chain: &ChainName, before: &NumberedEntry, entry: &[u8]) -> Result<Creation, RegisterError> {
        check_size(entry)?;
        let created = self.with(|connection| {
            // The newest entry of a chain is never dropped, so an entry without a next one is the newest.
            let mut statement = connection.prepare_cached(
                "INSERT INTO entries (chain, number, bytes)
                 SELECT ?1, ?2 + 1, ?4 FROM entries WHERE chain = ?1 AND number = ?2 AND bytes = ?3
                 ON CONFLICT (chain, number) DO NOTHING",
            )?;
            statement.execute(params![chain.as_str(), column(before.number), before.bytes, entry])
        })?;
        match created {
            1 => Ok(Creation::New),
            _ if self.last(chain)? > before.number => Ok(Creation::Taken),
            _ => Err(RegisterError::Replaced { chain: chain.clone(), number: before.number }),
        }
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT number, bytes FROM entries WHERE chain = ?1 AND number >= ?2 ORDER BY number LIMIT ?3",
            )?;
            let entries = statement.query_map(params![chain.as_str(), column(from), column(limit as u64)], |row| {
                Ok(NumberedEntry { number: row.get::<_, i64>(0)?.unsigned_abs(), bytes: row.get(1)? })
            })?;
            entries.collect()
        })
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT max(number) FROM entries WHERE chain = ?1")?;
            let newest: Option<i64> = statement.query_row([chain.as_str()], |row| row.get(0))?;
            Ok(newest.unwrap_or(0).unsigned_abs())
        })
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "DELETE FROM entries WHERE chain = ?1 AND number < ?2
                 AND number < (SELECT max(number) FROM entries WHERE chain = ?1)",
            )?;
            statement.execute(params![chain.as_str(), column(number)]).map(|_| ())
        })
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        let chains = self.chains_after("", usize::MAX)?;
        Ok(chains.into_iter().map(|(chain, _)| chain).collect())
    }
}

/// Locks a directory, and waits at most this long for another process that has locked it.
fn lock_directory(directory: &Path, limit: Duration) -> Result<File, RegisterError> {
    let handle = File::open(directory).map_err(|error| unavailable(directory, error))?;
    let deadline = Instant::now() + limit;
    loop {
        match handle.try_lock() {
            Ok(()) => return Ok(handle),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => return Err(locked_by_another(directory, limit)),
            Err(TryLockError::Error(error)) => return Err(unavailable(directory, error)),
        }
    }
}

/// A lock of SQLite, or one of the directory. A user that may read a file may lock it.
fn locked_by_another(path: &Path, limit: Duration) -> RegisterError {
    let (shown, limit) = (path.display(), limit.as_secs());
    RegisterError::Unavailable {
        reason: format!(
            "another process has kept `{shown}` locked for {limit} s: `fuser -v {shown}` names it; if it belongs to \
             another user, `chmod go-rx` on the directory keeps it out"
        ),
    }
}

/// What a register that cannot be opened is told of: its disk, if that is why.
fn because_of_disk(path: &Path, error: RegisterError) -> RegisterError {
    match error {
        RegisterError::Unavailable { .. } => refusal_of_disk(path).unwrap_or(error),
        error => error,
    }
}

fn check_size(entry: &[u8]) -> Result<(), RegisterError> {
    match entry.len() {
        bytes if bytes > ENTRY_BYTES_MAX => Err(RegisterError::TooLarge { bytes, most: ENTRY_BYTES_MAX }),
        _ => Ok(()),
    }
}

/// What to tell when the files of a register could not be found to be its own. If they are others, it is closed.
fn break_off(state: &mut Connected, error: IdentityError) -> RegisterError {
    let (path, found) = match error {
        IdentityError::Unknown(path, error) => return unavailable(&path, error),
        IdentityError::Other { path, found } => (path, found),
    };
    if let (Connected::Open(connection, _), FoundInstead::Another) = (&*state, found) {
        // Closing would write the old log over what others wrote since. Where it fails, SQLite does as it always does.
        let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    }
    let what = if found == FoundInstead::Another { "replaced" } else { "moved away or removed" };
    let reason = format!(
        "`{}` was {what} while the program ran, and the register is closed until it starts again: stop all programs \
         that use this register, put the file back if it is there, and start them again",
        path.display()
    );
    *state = Connected::Broken(reason.clone());
    RegisterError::Unavailable { reason }
}

/// A number as SQLite stores it. No chain grows to 2^63 entries, so that the highest number is never created.
fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Keeps the file from growing beyond this many bytes; returns its most pages. A file that is larger keeps its size.
fn limit_pages(connection: &Connection, bytes_max: u64) -> rusqlite::Result<u64> {
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages =
        i64::try_from(bytes_max / page.unsigned_abs().max(1)).unwrap_or(i64::MAX).clamp(1, i64::from(u32::MAX - 1));
    let set: i64 = connection.pragma_update_and_check(None, "max_page_count", pages, |row| row.get(0))?;
    Ok(set.unsigned_abs())
}

/// Opens the file, checks that it is a register or new, and sets the connection up.
fn connect(path: &Path) -> Result<Connection, RegisterError> {
    let failed = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => locked_by_another(path, BUSY_TIMEOUT),
        _ => unavailable(path, error),
    };
    let damaged = |reason: &str| RegisterError::Damaged { reason: format!("`{}` {reason}", path.display()) };
    let mut connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let number = |connection: &Connection, pragma: &str| -> rusqlite::Result<i64> {
        connection.pragma_query_value(None, pragma, |row| row.get(0))
    };
    let not_ours = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => damaged("is no SQLite file"),
        _ => failed(error),
    };
    let tables = |connection: &Connection| -> rusqlite::Result<Option<i64>> {
        connection.query_row("SELECT 1 FROM sqlite_schema LIMIT 1", [], |row| row.get(0)).optional()
    };
    let has_tables = tables(&connection).map_err(not_ours)?.is_some();
    if has_tables && number(&connection, "application_id").map_err(failed)? != APPLICATION_ID {
        return Err(damaged("belongs to another program"));
    }
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        return Err(RegisterError::NotLocal {
            path: path.to_owned(),
            kind: "a file system without shared memory".to_owned(),
        });
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    migrate(&mut connection).map_err(failed)?;
    match number(&connection, "user_version").map_err(failed)? {
        1 => Ok(connection),
        found => Err(damaged(&format!("has schema {found}, which a later release wrote"))),
    }
}

/// Makes the table in a new file. Two processes that do this at once wait for each other.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version == 0 {
        transaction.execute_batch(
            "CREATE TABLE entries (
                 chain TEXT NOT NULL, number INTEGER NOT NULL, bytes BLOB NOT NULL,
                 PRIMARY KEY (chain, number)
             ) STRICT, WITHOUT ROWID;
             PRAGMA user_version = 1;",
        )?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    transaction.commit()
}

fn unavailable(path: &Path, error: impl Into<CannotOpen>) -> RegisterError {
    RegisterError::Unavailable { reason: format!("`{}`: {}", path.display(), error.into().0) }
}

/// What the system or SQLite said.
struct CannotOpen(String);

impl From<io::Error> for CannotOpen {
    fn from(error: io::Error) -> CannotOpen {
        CannotOpen(error.to_string())
    }
}

impl From<rusqlite::Error> for CannotOpen {
    fn from(error: rusqlite::Error) -> CannotOpen {
        CannotOpen(error.to_string())
    }
}

#[cfg(test)]
#[path = "sqlite_tests.rs"]
mod tests;
