//! The writer of the journal.
//!
//! ```text
//!           commit: Full, Broken
//!   ready ───────────────────────► stale ──reload──► ready
//!     │                              │
//!     └──────── commit: Sync ────────┴─────────────► lost (for good: the process must exit)
//! ```

use crate::answers;
use crate::batch::{Batch, LogEntry};
use crate::chain::{EntryHeader, Hash, Hasher};
use crate::checkpoint::{Checkpointer, CopyDue};
use crate::codec::{self, signed};
use crate::connect;
use crate::error::{CommitError, OpenError, SystemCause};
use crate::head::{self, Alarm, HeadKeeper};
use crate::read::{self, JournalReader, LoadedState, LogPositions};
use crate::state_dir::{self, Ballast, DirectoryLock};
use rusqlite::{Connection, Error, Result, Statement};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use sublet_core::action::{Action, FORMAT};
use sublet_core::facts::DaemonAction;
use sublet_core::ids::TenantId;
use sublet_core::rows::Rows;
use sublet_core::units::Time;

/// The only writer of a journal. Dropping it releases the lock of the state directory.
#[derive(Debug)]
pub struct Journal {
    // Dropped in this order: the threads, the connection, then the lock.
    keeper: HeadKeeper,
    checkpointer: Checkpointer,
    pub(crate) conn: Connection,
    path: PathBuf,
    ballast: Ballast,
    _lock: DirectoryLock,
    hasher: Hasher,
    tip: LogTip,
    /// How many ended leases each tenant has; `None` until they are counted.
    pub(crate) past: Option<BTreeMap<TenantId, u64>>,
    /// How many stored answers each tenant has; `None` until they are counted.
    pub(crate) answers: Option<answers::AnswerCounts>,
    /// The base without its leases; `None` until it is read.
    pub(crate) base: Option<Rows>,
    health: JournalHealth,
}

/// Where the log ends, as it is on the disk.
#[derive(Clone, Copy, Debug)]
struct LogTip {
    clock: Time,
    seq: u64,
    hash: Hash,
}

impl From<&LogPositions> for LogTip {
    fn from(positions: &LogPositions) -> LogTip {
        LogTip { clock: positions.clock, seq: positions.head_seq, hash: positions.head_hash }
    }
}

#[derive(Clone, Debug)]
enum JournalHealth {
    Ready,
    /// A commit failed and was rolled back: the caller's state is ahead of the disk.
    Stale,
    /// The disk did not confirm a write.
    Lost(SystemCause),
}

impl Journal {
    /// Opens the journal in a state directory, makes what is missing, and reads the state.
    pub fn open(dir: &Path) -> Result<(Journal, LoadedState), OpenError> {
        state_dir::prepare_directory(dir)?;
        let lock = DirectoryLock::acquire(dir)?;
        state_dir::check_not_lost(dir)?;
        let path = dir.join(state_dir::DATABASE);
        let mut ballast = Ballast::of(dir);
        state_dir::make_private_file(&path)?;
        let opened = match Journal::connect(&path) {
            // This is what the ballast is for.
            Err(OpenError::Full { .. }) if ballast.give_up().is_ok() => Journal::connect(&path),
            opened => opened,
        };
        let (conn, mut loaded, positions, mut checkpointer) = opened?;
        let noted = head::read(&path).map_err(|error| OpenError::file(&path.with_extension("head"), error))?;
        let keeper = HeadKeeper::start(&path, &conn, &positions, &noted)?;
        loaded.loss = keeper.loss();
        // Too little room for the ballast does not prevent a start: the daemon calls `ballast_bytes` afterwards.
        let _ = ballast.restore();
        checkpointer.fit_to_ballast(ballast.bytes());
        state_dir::sync_dir(dir).map_err(|error| OpenError::file(dir, error))?;
        let (hasher, tip, health) = (Hasher::default(), LogTip::from(&positions), JournalHealth::Ready);
        let journal = Journal {
            keeper,
            checkpointer,
            conn,
            path,
            ballast,
            _lock: lock,
            hasher,
            tip,
            past: None,
            answers: None,
            base: None,
            health,
        };
        Ok((journal, loaded))
    }

    fn connect(path: &Path) -> Result<(Connection, LoadedState, read::LogPositions, Checkpointer), OpenError> {
        let mut conn = connect::writer(path)?;
        let (loaded, positions) = read::load(&conn).map_err(|error| OpenError::sqlite(path, &error))?;
        // If this fails, the first commits are only slower.
        let _ = lengthen_wal(path);
        let checkpointer = Checkpointer::start(&mut conn, path)?;
        Ok((conn, loaded, positions, checkpointer))
    }

    /// Writes a batch. When this returns `Ok`, all of it is on the disk; the number is that of
    /// the log's last entry.
    pub fn commit(&mut self, batch: &Batch) -> Result<u64, CommitError> {
        if batch.is_empty() && batch.at <= self.tip.clock {
            return Ok(self.tip.seq);
        }
        let clock = batch.entries.iter().map(|entry| entry.at).fold(self.tip.clock.max(batch.at), Time::max);
        let tip = self.transact(|journal| {
            write_rows(&journal.conn, batch)?;
            let tip = journal.write_log(&batch.entries)?;
            codec::put_head(&journal.conn, clock, tip.seq, &tip.hash)?;
            Ok(LogTip { clock, ..tip })
        });
        match tip {
            Ok(tip) => {
                self.tip = tip;
                self.keeper.note_commit(tip.seq, tip.hash, batch.entries.last().map(|entry| entry.wall_us));
                if batch
                    .entries
                    .iter()
                    .any(|entry| matches!(entry.action, Action::Daemon(DaemonAction::AcceptLoss { .. })))
                {
                    self.keeper.note_accepted();
                }
                if let Some(past) = &mut self.past {
                    batch.past.iter().for_each(|ended| *past.entry(ended.tenant).or_default() += 1);
                }
                if let Some(answers) = &mut self.answers {
                    batch.answers.iter().for_each(|answer| *answers.entry(answer.tenant).or_default() += 1);
                }
                Ok(tip.seq)
            }
            Err(error) => {
                if matches!(self.health, JournalHealth::Ready) {
                    self.health = JournalHealth::Stale;
                }
                Err(error)
            }
        }
    }

    /// Reads the state again, after a commit failed.
    pub fn reload(&mut self) -> Result<LoadedState, OpenError> {
        let (mut loaded, positions) = read::load(&self.conn).map_err(|error| OpenError::sqlite(&self.path, &error))?;
        loaded.loss = self.keeper.loss();
        self.tip = LogTip::from(&positions);
        if matches!(self.health, JournalHealth::Stale) {
            self.health = JournalHealth::Ready;
        }
        Ok(loaded)
    }

    /// Opens a read-only connection, for another thread.
    pub fn reader(&self) -> Result<JournalReader, OpenError> {
        JournalReader::open(&self.path)
    }

    /// The number and the hash of the log's last entry, which the daemon writes to the system's log.
    pub fn head(&self) -> (u64, Hash) {
        (self.tip.seq, self.tip.hash)
    }

    /// Has a thread call `callback` when the journal's files were moved, or when the head cannot be written. After a
    /// move every commit fails.
    pub fn on_alarm(&self, callback: impl Fn(&Alarm) + Send + 'static) {
        self.keeper.on_alarm(callback);
    }

    /// Frees the ballast's bytes, for releases and expiries on a full disk.
    pub fn give_up_ballast(&mut self) -> io::Result<()> {
        self.ballast.give_up()
    }

    /// Reserves the ballast again; returns true if there is one.
    pub fn restore_ballast(&mut self) -> io::Result<bool> {
        let restored = self.ballast.restore();
        self.checkpointer.fit_to_ballast(self.ballast.bytes());
        restored
    }

    /// The size of the ballast. It is less than [`BALLAST_BYTES`](crate::BALLAST_BYTES) on a small disk, and 0
    /// where there is no room for any: a full disk would then stop releases and expiries too.
    pub fn ballast_bytes(&self) -> u64 {
        self.ballast.bytes()
    }

    /// True if a commit may succeed after one that found the disk full: the disk has room again, or does not tell.
    pub fn may_have_room(&self) -> bool {
        /// Bytes that a release and the few lines after a rebuilt state need.
        const LEAST: u64 = 128 << 10;
        state_dir::free_bytes(&self.path).map_or(true, |free| free >= LEAST)
    }

    /// Bounds the database's size: a commit that needs more fails as on a full disk.
    /// A bound below the present size only stops growth.
    pub fn cap_bytes(&mut self, bytes: u64) -> Result<(), OpenError> {
        let failed = |error: Error| OpenError::sqlite(&self.path, &error);
        let page: i64 = self.conn.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(failed)?;
        let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1);
        let set = self.conn.query_row(&format!("PRAGMA max_page_count = {}", pages.max(1)), [], |_| Ok(()));
        set.map_err(failed)
    }

    /// Runs one transaction: all of `work` is on the disk, or none of it is there.
    pub(crate) fn transact<T>(&mut self, mut work: impl FnMut(&mut Journal) -> Result<T>) -> Result<T, CommitError> {
        self.check_health()?;
        let due = self.checkpointer.copy_due();
        if due == CopyDue::All {
            self.checkpointer.wait_for_pass();
        }
        if due != CopyDue::Nothing {
            self.copy_wal("PRAGMA wal_checkpoint(PASSIVE)")?;
        }
        let mut done = self.attempt(&mut work);
        if matches!(done, Err(CommitError::Full(_))) {
            // The write-ahead log has room of its own once it is restarted.
            self.copy_wal("PRAGMA wal_checkpoint(RESTART)")?;
            done = self.attempt(&mut work);
        }
        if done.is_ok() {
            self.checkpointer.committed();
        }
        done
    }

    fn attempt<T>(&mut self, work: &mut impl FnMut(&mut Journal) -> Result<T>) -> Result<T, CommitError> {
        let mut run = |journal: &mut Journal| {
            journal.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let done = work(journal)?;
            journal.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(done)
        };
        run(self).map_err(|error| self.classify_error(&error))
    }

    fn copy_wal(&mut self, sql: &str) -> Result<(), CommitError> {
        let copied = self.conn.query_row(sql, [], |_| Ok(()));
        match copied.map_err(|error| self.classify_error(&error)) {
            Err(lost @ CommitError::Sync(_)) => Err(lost),
            // The disk is full for that too, or a reader is in the way: the commit reports it.
            _ => Ok(()),
        }
    }

    fn check_health(&mut self) -> Result<(), CommitError> {
        if let Some(cause) = self.keeper.moved().or_else(|| self.checkpointer.fault()) {
            self.health = JournalHealth::Lost(cause);
        }
        match &self.health {
            JournalHealth::Ready => Ok(()),
            JournalHealth::Stale => {
                Err(CommitError::Broken(SystemCause::new("an earlier batch failed and the state was not reloaded")))
            }
            JournalHealth::Lost(cause) => Err(CommitError::Sync(cause.clone())),
        }
    }

    /// Converts the error, and rolls back an open transaction.
    fn classify_error(&mut self, error: &Error) -> CommitError {
        let mut sorted = CommitError::sqlite(error, connect::errno(&self.conn));
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            // After a failed rollback the disk's content is as unknown as after a failed sync.
            sorted = CommitError::Sync(SystemCause::new(format!("{error} (while rolling back)")));
        }
        if let CommitError::Sync(cause) = &sorted {
            self.health = JournalHealth::Lost(cause.clone());
        }
        sorted
    }

    fn write_log(&mut self, entries: &[LogEntry]) -> Result<LogTip> {
        let (mut tip, hasher) = (self.tip, &mut self.hasher);
        codec::ENTRY.insert_all(&self.conn, entries, |put, bound, entry| {
            tip = bind_entry(put, bound, hasher, tip, entry)?;
            Ok(())
        })?;
        Ok(tip)
    }
}

/// Lengthens the write-ahead log with zeros to some of the length that it will have anyway: the sync of a growing file
/// takes two or three times as long. SQLite reads a log up to the last whole frame, and restarts it without shortening
/// it. No other process may write meanwhile: the end of the log would be overwritten.
fn lengthen_wal(path: &Path) -> io::Result<()> {
    /// Enough for some thousand leases: days of a quiet service. A busy one lengthens it itself within a second.
    const BYTES: u64 = 9 << 20;
    // At most a quarter of what is free on a small disk.
    let bytes = BYTES.min(state_dir::free_bytes(path)? / 4);
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let wal = OpenOptions::new().write(true).open(name)?;
    let length = wal.metadata()?.len();
    if length < bytes {
        wal.write_all_at(&vec![0; (bytes - length) as usize], length)?;
        wal.sync_all()?;
    }
    Ok(())
}

/// Binds an entry after the first `bound` parameters; returns where the log ends with it.
fn bind_entry(
    put: &mut Statement<'_>,
    bound: usize,
    hasher: &mut Hasher,
    tip: LogTip,
    entry: &LogEntry,
) -> Result<LogTip> {
    let LogEntry { actor, action, at, wall_us } = entry;
    let seq = tip.seq + 1;
    let head = EntryHeader { before: &tip.hash, seq, at: *at, wall_us: *wall_us, actor, format: FORMAT };
    let hashed = hasher.entry(head, |buffer| serde_json::to_writer(buffer, action));
    let (hash, json) = hashed.map_err(|error| Error::ToSqlConversionFailure(error.into()))?;
    put.raw_bind_parameter(bound + 1, signed(seq))?;
    put.raw_bind_parameter(bound + 2, signed(at.0))?;
    put.raw_bind_parameter(bound + 3, signed(*wall_us))?;
    put.raw_bind_parameter(bound + 4, &**actor)?;
    put.raw_bind_parameter(bound + 5, action.lease().map(|id| signed(id.0)))?;
    put.raw_bind_parameter(bound + 6, FORMAT)?;
    put.raw_bind_parameter(bound + 7, json)?;
    put.raw_bind_parameter(bound + 8, &hash[..])?;
    Ok(LogTip { seq, hash, ..tip })
}

fn write_rows(conn: &Connection, batch: &Batch) -> Result<()> {
    if let Some(meta) = &batch.meta {
        codec::put_meta(conn, meta)?;
    }
    for (id, tenant) in &batch.tenants {
        codec::put_tenant(conn, *id, tenant)?;
    }
    for (id, card) in &batch.cards {
        codec::put_card(conn, *id, card)?;
    }
    if !batch.gone.is_empty() {
        codec::drop_leases(conn, &batch.gone)?;
    }
    batch.revoked.iter().try_for_each(|id| codec::drop_token(conn, *id))?;
    batch.tokens.iter().try_for_each(|token| codec::put_token(conn, token))?;
    batch.closed.iter().try_for_each(|id| codec::drop_stranger(conn, *id))?;
    batch.strangers.iter().try_for_each(|stranger| codec::put_stranger(conn, stranger))?;
    batch.dropped.iter().try_for_each(|id| codec::drop_rule(conn, *id))?;
    batch.rules.iter().try_for_each(|rule| codec::put_rule(conn, rule))?;
    codec::put_new_leases(conn, &batch.new)?;
    codec::put_leases(conn, &batch.leases)?;
    if !batch.ending.is_empty() {
        codec::end_leases(conn, &batch.ending)?;
    }
    codec::put_past(conn, &batch.past)?;
    batch.answers.iter().try_for_each(|answer| codec::put_answer(conn, answer))
}
