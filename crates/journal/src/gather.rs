//! Appends what a commit writes to the write-ahead log in one call.
//!
//! SQLite writes a frame in two pieces, its header and its page: some thirty calls for a busy batch, each as dear as
//! writing all of them together. So the writer's connection is opened through a file system of SQLite's (a *VFS*) that
//! is the system's own, but for the write-ahead log: pieces that follow each other are gathered, and go out with
//! the sync that every commit ends with, or before anything else is done to that file.
//!
//! ```text
//!   write, write, … ──following──► pending ──sync, read, size, truncate, close──► one write
//!         └──elsewhere, or too many──────────► what was pending first
//! ```
//! Nobody else may look for a frame before it is there: SQLite tells others of a commit's frames after their sync, and
//! there is one where `synchronous` is `FULL`, as it is for whoever writes here. (It writes once more after that sync
//! where a disk's sectors may be torn by a write beside them; on such a disk nothing is gathered.) A write that fails is
//! told to whoever writes or syncs; to whoever reads, too, but then it stays pending: SQLite believes it was written, and
//! may go on. What is pending of a transaction that was rolled back must be [forgotten](forget), and nobody else may
//! write: then it would be written over somebody's commit.
//!
//! Absent on purpose: other files, locks, shared memory, and any opinion on what is written.

use rusqlite::{Connection, ffi};
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::OnceLock;

/// SQLite's own way to a file writes less than 128 KiB in one call.
const MOST: usize = 124 << 10;

const NAME: &CStr = c"sublet-gather";

/// A write-ahead log. The system's own file follows it in memory.
#[repr(C)]
struct Log {
    // SQLite finds the methods here.
    file: ffi::sqlite3_file,
    /// Where in the file `pending` begins.
    at: i64,
    pending: Vec<u8>,
    /// So much is gathered.
    most: usize,
}

// The system's file begins where SQLite would have put it: at a multiple of 8.
const _: () = assert!(size_of::<Log>().is_multiple_of(8) && align_of::<Log>() <= 8);

/// Calls a method of the system's own file.
macro_rules! system {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: it is open, since `open` and until `close`; the arguments are SQLite's, or a live buffer of ours.
        unsafe {
            match (*(*$file).pMethods).$method {
                Some(call) => call($file $(, $argument)*),
                None => ffi::SQLITE_ERROR,
            }
        }
    }};
}

/// The name to open a connection by; made known to SQLite with the first call. `None`: SQLite does not take it.
pub fn vfs() -> Option<&'static CStr> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    KNOWN.get_or_init(register).then_some(NAME)
}

fn register() -> bool {
    let Some(system) = system() else { return false };
    // SAFETY: SQLite's default file system is a static of SQLite's that does not change.
    let mut vfs = unsafe { *system };
    let Ok(more) = c_int::try_from(size_of::<Log>()) else { return false };
    vfs.szOsFile += more;
    vfs.zName = NAME.as_ptr();
    vfs.pNext = ptr::null_mut();
    vfs.xOpen = Some(open);
    // SAFETY: it is never freed, and all of its other functions are the system's own: they use of it what was copied.
    unsafe { ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0) == ffi::SQLITE_OK }
}

/// Forgets what a transaction that was rolled back left pending.
pub fn forget(conn: &Connection) {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    let (what, place) = (ffi::SQLITE_FCNTL_JOURNAL_POINTER, (&raw mut file).cast());
    // SAFETY: the connection lives, and this call writes a pointer to its log, or null, to the place.
    let asked = unsafe { ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), what, place) };
    // SAFETY: a file of SQLite's that is open, or was never opened and has no methods; only ours have these.
    let is_ours = asked == ffi::SQLITE_OK && !file.is_null() && unsafe { (*file).pMethods } == &raw const METHODS;
    if is_ours {
        // SAFETY: `open` made it, and the connection is not in use while it is borrowed here.
        unsafe { parts(file) }.0.pending.clear();
    }
}

fn system() -> Option<*mut ffi::sqlite3_vfs> {
    // SAFETY: it looks for a name, or with none for the default. Ours is registered behind that, never as it.
    let found = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
    (!found.is_null()).then_some(found)
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    granted: *mut c_int,
) -> c_int {
    let Some(system) = system() else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: the system's own file system, as it stands in SQLite.
    let Some(open) = (unsafe { (*system).xOpen }) else { return ffi::SQLITE_CANTOPEN };
    if flags & ffi::SQLITE_OPEN_WAL == 0 {
        // SAFETY: SQLite's own arguments; there is more room for the file than it needs.
        return unsafe { open(system, name, file, flags, granted) };
    }
    let log = file.cast::<Log>();
    // SAFETY: SQLite gives room for `szOsFile` bytes, at a multiple of 8: ours, and behind it the system's.
    let opened = unsafe { open(system, name, below(log), flags, granted) };
    let is_open = opened == ffi::SQLITE_OK;
    let methods = if is_open { &raw const METHODS } else { ptr::null() };
    // SAFETY: as above.
    let below = unsafe { below(log) };
    let is_whole = is_open && system!(below, xDeviceCharacteristics) & ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE != 0;
    let (file, most) = (ffi::sqlite3_file { pMethods: methods }, if is_whole { MOST } else { 0 });
    // SAFETY: as above. Where opening failed SQLite does not close, and an empty vector owns nothing.
    unsafe { log.write(Log { file, at: 0, pending: Vec::new(), most }) };
    opened
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(is_reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector),
    xDeviceCharacteristics: Some(characteristics),
    // Of later versions; SQLite asks them of databases only.
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// The two files in the room that SQLite gave: what is pending, and the system's own.
///
/// # Safety
/// `open` made `file`, it is not closed, and nobody else has its parts: SQLite uses a file from one thread at a time.
unsafe fn parts<'a>(file: *mut ffi::sqlite3_file) -> (&'a mut Log, *mut ffi::sqlite3_file) {
    let log = file.cast::<Log>();
    // SAFETY: by the contract.
    unsafe { (&mut *log, below(log)) }
}

/// The system's own file.
///
/// # Safety
/// `log` stands where SQLite gave room for both.
unsafe fn below(log: *mut Log) -> *mut ffi::sqlite3_file {
    // SAFETY: by the contract.
    unsafe { log.add(1).cast() }
}

/// Writes what is pending, then calls a method of the system's own file.
macro_rules! settled {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: SQLite calls it with a file that `open` made.
        let (log, system) = unsafe { parts($file) };
        match log.settle(system) {
            ffi::SQLITE_OK => system!(system, $method $(, $argument)*),
            failed => failed,
        }
    }};
}

/// Calls a method of the system's own file that has nothing to do with what is in it.
macro_rules! passed {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: SQLite calls it with a file that `open` made.
        let (_, system) = unsafe { parts($file) };
        system!(system, $method $(, $argument)*)
    }};
}

impl Log {
    /// Writes what is pending to `system`; where that fails it stays so.
    fn settle(&mut self, system: *mut ffi::sqlite3_file) -> c_int {
        if self.pending.is_empty() {
            return ffi::SQLITE_OK;
        }
        #[cfg(test)]
        if tests::FULL.get() {
            return ffi::SQLITE_FULL;
        }
        // It is never longer than `MOST`.
        let length = self.pending.len() as c_int;
        let written = system!(system, xWrite, self.pending.as_ptr().cast(), length, self.at);
        if written == ffi::SQLITE_OK {
            self.pending.clear();
        }
        written
    }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, bytes: *const c_void, count: c_int, at: i64) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made.
    let (log, system) = unsafe { parts(file) };
    let length = usize::try_from(count).unwrap_or(0);
    let follows = at == log.at + log.pending.len() as i64;
    if !follows || log.pending.len() + length > log.most {
        let settled = log.settle(system);
        log.pending.clear();
        if settled != ffi::SQLITE_OK {
            return settled;
        }
        log.at = at;
    }
    if length > log.most {
        return system!(system, xWrite, bytes, count, at);
    }
    // SAFETY: SQLite's own bytes, which it leaves alone during the call.
    log.pending.extend_from_slice(unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) });
    ffi::SQLITE_OK
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    let synced = settled!(file, xSync, flags);
    // SAFETY: SQLite calls it with a file that `open` made.
    let (log, _) = unsafe { parts(file) };
    log.pending.clear();
    synced
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, into: *mut c_void, count: c_int, at: i64) -> c_int {
    settled!(file, xRead, into, count, at)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    settled!(file, xTruncate, size)
}

unsafe extern "C" fn size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    settled!(file, xFileSize, size)
}

unsafe extern "C" fn control(file: *mut ffi::sqlite3_file, what: c_int, argument: *mut c_void) -> c_int {
    settled!(file, xFileControl, what, argument)
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made.
    let (log, system) = unsafe { parts(file) };
    // What no sync came for is no commit's, but it is not for this room to say so.
    let settled = log.settle(system);
    drop(std::mem::take(&mut log.pending));
    let closed = system!(system, xClose);
    if settled == ffi::SQLITE_OK { closed } else { settled }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    passed!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    passed!(file, xUnlock, level)
}

unsafe extern "C" fn is_reserved(file: *mut ffi::sqlite3_file, answer: *mut c_int) -> c_int {
    passed!(file, xCheckReservedLock, answer)
}

unsafe extern "C" fn sector(file: *mut ffi::sqlite3_file) -> c_int {
    passed!(file, xSectorSize)
}

unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    passed!(file, xDeviceCharacteristics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::OpenFlags;
    use std::cell::Cell;
    use std::path::Path;

    thread_local! {
        /// This thread's disk is full.
        pub(super) static FULL: Cell<bool> = const { Cell::new(false) };
    }

    fn gathering(path: &Path) -> Connection {
        let conn = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs().unwrap()).unwrap();
        let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        crate::connect::configure(&conn).unwrap();
        conn
    }

    fn sum(conn: &Connection) -> (i64, i64) {
        conn.query_row("SELECT count(*), total(length(text)) FROM t", [], |row| {
            Ok((row.get(0)?, row.get::<_, f64>(1)? as i64))
        })
        .unwrap()
    }

    /// Rows of many pages: more than are gathered, and more than a small cache holds.
    fn put(conn: &Connection, rows: i64) {
        let mut put = conn.prepare("INSERT INTO t (text) VALUES (printf('%.*c', 700 + ?1 % 900, 'x'))").unwrap();
        (0..rows).for_each(|row| assert_eq!(put.execute([row]), Ok(1)));
    }

    fn is_whole(conn: &Connection) -> bool {
        conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)) == Ok("ok".to_owned())
    }

    #[test]
    fn what_could_not_be_written_for_whoever_reads_is_not_lost_to_whoever_commits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let conn = gathering(&path);
        conn.pragma_update(None, "cache_size", 10).unwrap();
        conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT, n INTEGER UNIQUE)").unwrap();
        put(&conn, 100);
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        put(&conn, 1);
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        FULL.set(true);
        put(&conn, 90);
        // This looks for rows that left the cache, and finds no room to write them first.
        conn.execute("UPDATE t SET n = id + 1000 WHERE id > 103 AND id < 110", []).unwrap_err();
        FULL.set(false);
        let expected = if conn.is_autocommit() { 101 } else { 191 };
        if !conn.is_autocommit() {
            conn.execute_batch("COMMIT").unwrap();
        }
        let other = Connection::open(&path).unwrap();
        assert_eq!((sum(&conn).0, sum(&other).0), (expected, expected));
        assert!(is_whole(&conn) && is_whole(&other));
    }

    #[test]
    fn what_was_taken_back_is_not_written_over_what_another_has_committed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let conn = gathering(&path);
        conn.pragma_update(None, "cache_size", 10).unwrap();
        conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)").unwrap();
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        put(&conn, 90);
        conn.execute_batch("ROLLBACK").unwrap();
        forget(&conn);
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        put(&other, 80);
        other.execute_batch("COMMIT").unwrap();
        put(&conn, 1);
        let third = Connection::open(&path).unwrap();
        assert_eq!((sum(&conn).0, sum(&third).0), (81, 81));
        assert!(is_whole(&third));
    }

    #[test]
    fn what_was_committed_is_there_for_others_and_what_was_taken_back_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let conn = gathering(&path);
        let other = Connection::open(&path).unwrap();
        // So small that most of a transaction is written, and read back, before it ends.
        conn.pragma_update(None, "cache_size", 10).unwrap();
        conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)").unwrap();
        let mut expected = (0, 0);
        for (rows, keep) in [(1, true), (400, true), (400, false), (3, true), (1_000, false), (700, true)] {
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            put(&conn, rows);
            conn.execute("UPDATE t SET text = text || 'y' WHERE id % 7 = 0", []).unwrap();
            let inside = sum(&conn);
            assert_eq!(sum(&other), expected, "others see what was committed");
            conn.execute_batch(if keep { "COMMIT" } else { "ROLLBACK" }).unwrap();
            if keep {
                expected = inside;
            }
            assert_eq!((sum(&conn), sum(&other)), (expected, expected));
        }
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        put(&conn, 5);
        expected = sum(&conn);
        // As after a crash: the log alone has what was not copied.
        let copy = tempfile::tempdir().unwrap();
        for name in ["db", "db-wal"] {
            std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
        }
        assert_eq!(sum(&Connection::open(copy.path().join("db")).unwrap()), expected);
        drop((conn, other));
        let again = Connection::open(&path).unwrap();
        assert_eq!(sum(&again), expected);
        assert!(is_whole(&again));
    }
}
