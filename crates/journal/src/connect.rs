//! Connections: how each is opened and set up.

use crate::error::OpenError;
use crate::schema::{self, DatabaseKind};
use crate::state_dir;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Result, ffi};
use rustix::fs::{Access, access};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings of every connection that writes. A commit is on the disk when it returns
/// (`synchronous`), and never copies the write-ahead log (`wal_autocheckpoint`).
pub fn configure(conn: &Connection) -> Result<()> {
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "cache_size", -8_000)?;
    // Every statement of a batch stays prepared.
    conn.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Opens the database for writing, and migrates it to the current schema.
pub fn writer(path: &Path) -> Result<Connection, OpenError> {
    let failed = |error| OpenError::sqlite(path, &error);
    let mut conn = Connection::open(path).map_err(failed)?;
    // Until the file is known to be ours, closing it must leave its write-ahead log alone.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    check_kind(&conn, path)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(failed)?;
    if conn.is_readonly("main").map_err(failed)? {
        return Err(OpenError::file(path, "it may be read but not written"));
    }
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        return Err(OpenError::file(path, format!("its file system allows no write-ahead log (mode {mode})")));
    }
    configure(&conn).map_err(failed)?;
    schema::migrate(&mut conn).map_err(failed)?;
    Ok(conn)
}

/// Opens a database read-only.
pub fn reader(path: &Path) -> Result<Connection, OpenError> {
    let failed = |error| OpenError::sqlite(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    conn.busy_timeout(Duration::from_secs(5)).map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

/// Refuses a file of a later release or of another program, before anything is changed.
fn check_kind(conn: &Connection, path: &Path) -> Result<i64, OpenError> {
    match schema::kind(conn).map_err(|error| OpenError::sqlite(path, &error))? {
        DatabaseKind::Journal(found) if found > schema::VERSION => {
            Err(OpenError::NewerSchema { path: path.to_owned(), found, known: schema::VERSION })
        }
        DatabaseKind::Journal(found) => Ok(found),
        DatabaseKind::Foreign => Err(OpenError::Foreign { path: path.to_owned() }),
    }
}

/// Opens a state directory or a backup read-only. Works while a daemon runs.
pub fn open_read_only(at: &Path) -> Result<(Connection, PathBuf), OpenError> {
    let found = |path: &Path| fs::metadata(path).map_err(|error| missing_or_denied(path, error));
    let path = match found(at)? {
        dir if dir.is_dir() => at.join(state_dir::DATABASE),
        _ => at.to_owned(),
    };
    found(&path)?;
    // The file is not opened for this check: closing a descriptor of it would drop SQLite's locks in this process.
    access(&path, Access::READ_OK).map_err(|errno| missing_or_denied(&path, errno.into()))?;
    let conn = reader(&path)?;
    match check_kind(&conn, &path)? {
        schema::VERSION => Ok((conn, path)),
        0 => Err(OpenError::Missing { path }),
        found => Err(OpenError::OlderSchema { path, found, known: schema::VERSION }),
    }
}

/// Tells a missing file from one that this user may not read.
fn missing_or_denied(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path },
        io::ErrorKind::PermissionDenied => OpenError::Denied { path },
        _ => OpenError::file(&path, error),
    }
}

/// The `errno` of the last system call that failed on a connection.
pub fn errno(conn: &Connection) -> i32 {
    // SAFETY: the handle is a live connection, and the call only reads a number from it.
    unsafe { ffi::sqlite3_system_errno(conn.handle()) }
}
