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

use super::file_identity::{FileIdentity, FoundInstead, IdentityError};
use super::file_system::{FileSystem, file_system_of};
use super::{ChainRegister, Creation, ENTRY_BYTES_MAX, NumberedEntry, RegisterError};
use crate::names::ChainName;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Marks the file as a register of checkpoints: `SbCk`.
const APPLICATION_ID: i64 = 0x5362_436b;

/// How long a call waits for another process's commit. One takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// The pages of SQLite's usual size that the largest entry takes, with its place in the table.
const ENTRY_PAGES: u64 = (ENTRY_BYTES_MAX / 4096) as u64 + 8;

/// Chains in an SQLite file.
#[derive(Debug)]
pub struct SqliteRegister {
    path: PathBuf,
    state: Mutex<Connected>,
    /// The pages that the file may have; `None` if only the disk limits it.
    pages_max: Option<u64>,
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
        SqliteRegister::open_limited(path, None)
    }

    /// The same for a file that may have at most this many bytes, its write-ahead log not counted. Beyond them an entry
    /// is refused as [`RegisterError::Full`]; forgetting entries makes room again.
    pub fn open_within(path: impl Into<PathBuf>, bytes_max: u64) -> Result<SqliteRegister, RegisterError> {
        SqliteRegister::open_limited(path, Some(bytes_max))
    }

    fn open_limited(path: impl Into<PathBuf>, bytes_max: Option<u64>) -> Result<SqliteRegister, RegisterError> {
        let path = path.into();
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match file_system_of(directory).map_err(|error| unavailable(directory, error))? {
            FileSystem::Local => {}
            FileSystem::Other(kind) => return Err(RegisterError::NotLocal { path, kind }),
        }
        // SQLite does not wait for another process that switches the same new file to the write-ahead log.
        let locked = File::open(directory).and_then(|handle| handle.lock().map(|()| handle));
        let locked = locked.map_err(|error| unavailable(directory, error))?;
        let connection = connect(&path)?;
        // The file's name must survive a power cut before the first entry does.
        locked.sync_all().map_err(|error| unavailable(directory, error))?;
        let pages_max = bytes_max.map(|bytes| limit_pages(&connection, bytes)).transpose();
        let pages_max = pages_max.map_err(|error| unavailable(&path, error))?;
        let identity = FileIdentity::of(&path).map_err(|error| unavailable(&path, error))?;
        Ok(SqliteRegister { path, state: Mutex::new(Connected::Open(connection, identity)), pages_max })
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
            _ => format!("the disk of `{}` is full", self.path.display()),
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
            Some(ErrorCode::DatabaseBusy) => RegisterError::Unavailable {
                reason: format!("another process has kept `{}` locked for 30 s", self.path.display()),
            },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                RegisterError::Damaged { reason: format!("`{}`: {error}", self.path.display()) }
            }
            _ => {
                let reason =
                    format!("`{}` failed, and is closed until the program starts again: {error}", self.path.display());
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
    let failed = |error: rusqlite::Error| unavailable(path, error);
    let damaged = |reason: &str| RegisterError::Damaged { reason: format!("`{}` {reason}", path.display()) };
    let mut connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let number = |connection: &Connection, pragma: &str| -> rusqlite::Result<i64> {
        connection.pragma_query_value(None, pragma, |row| row.get(0))
    };
    let not_ours = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => damaged("is no SQLite file"),
        _ => unavailable(path, error),
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
mod tests {
    use super::*;
    use crate::register::contract;
    use std::cell::RefCell;

    #[test]
    fn a_register_in_sqlite_keeps_the_contract() {
        let directories = RefCell::new(Vec::new());
        contract::check(&|| {
            let directory = tempfile::tempdir().expect("a directory");
            let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
            directories.borrow_mut().push(directory);
            register
        });
    }

    #[test]
    fn two_registers_over_one_file_are_one_register() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("register.db");
        let (one, two) = (SqliteRegister::open(&path).expect("one"), SqliteRegister::open(&path).expect("two"));
        let chain = ChainName::parse("c/a/b").expect("a name");
        assert_eq!(one.create(&chain, 1, b"one").expect("an answer"), Creation::New);
        assert_eq!(two.create(&chain, 1, b"two").expect("an answer"), Creation::Taken);
        assert_eq!(two.create(&chain, 2, b"two").expect("an answer"), Creation::New);
        assert_eq!(one.last(&chain).expect("an answer"), 2);
    }

    #[test]
    fn a_register_whose_file_or_log_was_moved_or_replaced_acknowledges_nothing_more() {
        let chain = ChainName::parse("c/a/b").expect("a name");
        for (file, is_replaced) in
            [("register.db", false), ("register.db", true), ("register.db-wal", false), ("register.db-wal", true)]
        {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join(file);
            let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
            register.create(&chain, 1, b"one").expect("an answer");
            std::fs::rename(&path, directory.path().join("away")).expect("a rename");
            if is_replaced {
                std::fs::copy(directory.path().join("away"), &path).expect("a copy");
            }
            let refusal = register.create(&chain, 2, b"two").expect_err("a refusal");
            assert_eq!(refusal.code(), "register_unavailable");
            let what = if is_replaced { "was replaced" } else { "was moved away or removed" };
            assert!(refusal.to_string().contains(&format!("{file}` {what} while the program ran")), "{refusal}");
            assert!(refusal.to_string().contains("put the file back"), "{refusal}");
            assert!(register.is_broken());
            // The file has its place again, and what was written to it in between is not known.
            std::fs::rename(directory.path().join("away"), &path).expect("a rename");
            assert!(register.last(&chain).is_err() && register.forget_before(&chain, 1).is_err());
        }
    }

    #[test]
    fn a_register_behind_a_link_and_beside_others_keeps_its_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("real.db"), directory.path().join("link.db"));
        let chain = ChainName::parse("c/a/b").expect("a name");
        drop(SqliteRegister::open(&path).expect("a register"));
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let register = SqliteRegister::open(&link).expect("a register");
        for number in 1..=3 {
            // Another connection comes and goes, and checkpoints the log.
            SqliteRegister::open(&path).expect("another").create(&chain, number * 2 - 1, b"x").expect("an answer");
            register.create(&chain, number * 2, b"y").expect("an answer");
        }
        assert_eq!(register.last(&chain).expect("an answer"), 6);
    }

    #[test]
    fn many_processes_may_open_a_new_register_at_once() {
        for _ in 0..100 {
            let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
            let path = directory.path().join("register.db");
            let chain = ChainName::parse("c/a/b").expect("a name");
            let barrier = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        barrier.wait();
                        let register = SqliteRegister::open(&path).expect("a register");
                        register.create(&chain, 1, b"one").expect("an answer");
                    });
                }
            });
        }
    }

    #[test]
    fn a_file_that_may_not_grow_takes_entries_again_when_others_are_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let register = SqliteRegister::open_within(directory.path().join("register.db"), 1 << 20).expect("a register");
        let (chain, entry) = (ChainName::parse("c/a/b").expect("a name"), vec![7; 64 << 10]);
        let mut last = 0;
        let refusal = loop {
            match register.create(&chain, last + 1, &entry) {
                Ok(created) => assert_eq!(created, Creation::New),
                Err(error) => break error,
            }
            last += 1;
            assert!(last < 100, "the limit holds");
        };
        assert_eq!(refusal.to_string(), "the register of checkpoints has no room: its file has reached its limit");
        assert!(last > 8 && !register.is_broken());
        assert_eq!(register.last(&chain).expect("an answer"), last);
        register.forget_before(&chain, last).expect("an answer");
        assert_eq!(register.create(&chain, last + 1, &entry).expect("an answer"), Creation::New);
    }

    #[test]
    fn a_page_ends_at_the_limit_of_entries_or_of_bytes() {
        let directory = tempfile::tempdir().expect("a directory");
        let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
        let chain = ChainName::parse("c/a/b").expect("a name");
        for number in 1..=5 {
            register.create(&chain, number, &[0; 100]).expect("an answer");
        }
        let page = |from, limit, bytes| {
            let page = register.read_page(&chain, from, limit, bytes).expect("an answer");
            (page.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), page.more)
        };
        assert_eq!(page(1, 3, 1_000), (vec![1, 2, 3], true));
        assert_eq!(page(1, 10, 150), (vec![1, 2], true));
        assert_eq!(page(4, 10, 1), (vec![4], true));
        assert_eq!(page(4, 10, 1_000), (vec![4, 5], false));
        assert_eq!(page(6, 10, 1_000), (vec![], false));
    }

    #[test]
    fn chains_are_listed_in_pages_with_their_newest_entries() {
        let directory = tempfile::tempdir().expect("a directory");
        let register = SqliteRegister::open(directory.path().join("register.db")).expect("a register");
        let chains = ["c/a/1", "c/a/2", "c/b/1", "e/a/1"].map(|name| ChainName::parse(name).expect("a name"));
        for (chain, entries) in chains.iter().zip(1..) {
            for number in 1..=entries {
                register.create(chain, number, b"entry").expect("an answer");
            }
        }
        let page = |after: &str, limit| register.chains_after(after, limit).expect("an answer");
        assert_eq!(page("", 3), [(chains[0].clone(), 1), (chains[1].clone(), 2), (chains[2].clone(), 3)]);
        assert_eq!(page("c/b/1", 3), [(chains[3].clone(), 4)]);
        assert_eq!(page("e/a/1", 3), []);
    }

    #[test]
    fn a_directory_that_is_not_known_to_be_local_is_refused() {
        let error = SqliteRegister::open("/proc/register.db").expect_err("a refusal");
        assert_eq!(error.code(), "register_not_local");
        assert!(error.remedy().contains("put the register on a local disk"));
    }

    #[test]
    fn a_file_of_another_program_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("other.db");
        Connection::open(&path).expect("a file").execute_batch("CREATE TABLE theirs (x)").expect("a table");
        let before = std::fs::read(&path).expect("the file");
        let error = SqliteRegister::open(&path).expect_err("a refusal");
        assert_eq!(error.code(), "register_damaged");
        assert_eq!(std::fs::read(&path).expect("the file"), before);

        std::fs::write(&path, "not a database, and long enough to have a header of its own").expect("a file");
        assert_eq!(SqliteRegister::open(&path).expect_err("a refusal").code(), "register_damaged");
    }
}
