//! The head of the chain, noted beside the journal: it shows lines that are missing at the journal's end.
//!
//! SQLite drops a write-ahead log from the first damaged frame on, does not notice when the whole file is gone, and
//! treats the rest as a complete database. So a thread writes the number and the hash of the last committed line to
//! `journal.head`, every 500 ms if they changed. A journal that ends before that line, or has another line there, has
//! lost lines. The loss of younger lines, written in the last second before a crash, is not noticed.
//!
//! ```text
//!   commit ──► last line (in memory) ──500 ms──► journal.head   two slots alternately, each with a checksum
//!                                        │
//!                                        └─► are the journal's files still where they were opened?
//! ```
//! The slots are written in place: on a full disk there is room for them, and a power cut spoils one of them at most.
//! Commits do not wait for the thread, and a note that cannot be written fails no commit. A loss that was found stays
//! in the note until an operator accepts it.

use crate::chain::Hash;
use crate::codec::signed;
use crate::error::{OpenError, SystemCause};
use crate::read::LogPositions;
use crate::state_dir;
use rusqlite::{Connection, OptionalExtension, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use sublet_core::loss::Loss;

/// The greatest age of the note, and the time after which a moved journal is noticed: half of what is promised.
const NOTE_EVERY: Duration = Duration::from_millis(500);
/// Where the two slots are: in sectors of their own.
const SLOTS: [u64; 2] = [0, 4096];
/// A slot is one sector, which disks write as a whole.
const SLOT_BYTES: usize = 512;
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// The last line of the log, and what is missing before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeadNote {
    /// The number of the last line.
    seq: u64,
    /// Its hash, in hexadecimal digits.
    hash: String,
    /// When it was written, in µs since 1970.
    wall_us: u64,
    /// Lines that are missing, until an operator accepts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<Loss>,
}

impl HeadNote {
    fn new(seq: u64, hash: &Hash, wall_us: u64, loss: Option<Loss>) -> HeadNote {
        HeadNote { seq, hash: hex(hash), wall_us, loss }
    }
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A slot: a note and its generation; the slot with the greater generation is the newer one.
#[derive(Serialize, Deserialize)]
struct HeadSlot {
    generation: u64,
    #[serde(flatten)]
    note: HeadNote,
}

/// What was found beside a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredHeadNote {
    /// No note: an earlier release wrote the journal, or it is a backup.
    Nothing,
    /// A note that cannot be read.
    Damaged,
    /// A note, its generation and its slot.
    Noted { note: HeadNote, generation: u64, slot: usize },
}

/// How a journal compares with what was noted beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadComparison {
    /// There is no note: only the journal itself can be checked.
    #[default]
    NoNote,
    /// The journal has the line that was noted.
    Fits,
    /// Lines are missing.
    Lost(Loss),
}

/// Reads the note beside a database.
pub(crate) fn read(database: &Path) -> io::Result<StoredHeadNote> {
    let file = match OpenOptions::new().read(true).custom_flags(NOFOLLOW).open(path_of(database)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredHeadNote::Nothing),
        opened => opened?,
    };
    let read = |slot: usize| Some((slot, read_slot(&file, SLOTS[slot])?));
    let newest = (0..SLOTS.len()).filter_map(read).max_by_key(|(_, found)| found.generation);
    Ok(match newest {
        Some((slot, HeadSlot { generation, note })) => StoredHeadNote::Noted { note, generation, slot },
        None => StoredHeadNote::Damaged,
    })
}

fn path_of(database: &Path) -> PathBuf {
    database.with_extension("head")
}

fn read_slot(file: &File, at: u64) -> Option<HeadSlot> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, at).ok()?;
    let (json, rest) = str::from_utf8(&bytes).ok()?.split_once('\n')?;
    let is_whole = rest.trim_end() == blake3::hash(json.as_bytes()).to_hex().as_str();
    if is_whole { serde_json::from_str(json).ok() } else { None }
}

/// Compares a journal with the note beside it, which must have been read before the journal was.
pub(crate) fn compare(conn: &Connection, positions: &LogPositions, found: &StoredHeadNote) -> Result<HeadComparison> {
    let note = match found {
        StoredHeadNote::Nothing => return Ok(HeadComparison::NoNote),
        StoredHeadNote::Damaged => return Ok(HeadComparison::Lost(Loss::Unknown)),
        StoredHeadNote::Noted { note, .. } => note,
    };
    let (line, wall_us) = (note.seq, note.wall_us);
    let newly = if positions.head_seq < line {
        let (lines, after) = (line - positions.head_seq, positions.head_seq);
        let since_wall_us = wall_us_of(conn, after)?;
        Some(Loss::Missing { lines, after, since_wall_us, until_wall_us: wall_us })
    } else {
        // A line that was trimmed away is not lost: the journal had it.
        let hash = hash_of(conn, positions, line)?.filter(|hash| hex(hash) != note.hash);
        hash.map(|_| Loss::Other { line, wall_us })
    };
    let loss = newly.map(|loss| loss.after(note.loss)).or(note.loss);
    Ok(loss.map_or(HeadComparison::Fits, HeadComparison::Lost))
}

/// The hash of a line, unless it was trimmed away.
fn hash_of(conn: &Connection, positions: &LogPositions, seq: u64) -> Result<Option<Hash>> {
    if seq == positions.head_seq {
        return Ok(Some(positions.head_hash));
    }
    if seq == positions.base_seq {
        return Ok(Some(positions.base_hash));
    }
    let mut find = conn.prepare_cached("SELECT hash FROM log WHERE seq = ?1")?;
    find.query_row([signed(seq)], |row| crate::codec::hash(row, 0)).optional()
}

/// When a line was written, in µs since 1970, unless it was trimmed away.
fn wall_us_of(conn: &Connection, seq: u64) -> Result<Option<u64>> {
    let mut find = conn.prepare_cached("SELECT wall_us FROM log WHERE seq = ?1")?;
    find.query_row([signed(seq)], |row| row.get::<_, i64>(0)).optional().map(|us| us.map(i64::cast_unsigned))
}

/// A problem that the thread reports.
#[derive(Debug)]
pub enum Alarm {
    /// A file of the journal is not at its path any more: commits may go into a deleted file.
    Moved {
        /// Where the file was.
        path: PathBuf,
    },
    /// The head cannot be written; it is tried again every 500 ms.
    NotNoted(io::Error),
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alarm::Moved { path } => {
                write!(f, "`{}` was removed, replaced or moved while the journal was open", path.display())
            }
            Alarm::NotNoted(error) => write!(f, "the head of the journal cannot be noted beside it: {error}"),
        }
    }
}

/// The thread that notes the head, and the state that it shares with commits.
#[derive(Debug)]
pub(crate) struct HeadKeeper {
    shared: Arc<KeeperShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct KeeperShared {
    latest: Mutex<LatestHead>,
    wake: Condvar,
    alarm: Mutex<Option<AlarmCallback>>,
}

#[derive(Debug)]
struct LatestHead {
    seq: u64,
    hash: Hash,
    wall_us: u64,
    loss: Option<Loss>,
    /// The thread shall write the note at once.
    write_now: bool,
    stop: bool,
    /// The journal was moved: nothing may be committed any more.
    moved: Option<SystemCause>,
}

struct AlarmCallback(Box<dyn Fn(&Alarm) + Send>);

impl fmt::Debug for AlarmCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AlarmBell")
    }
}

impl KeeperShared {
    fn latest(&self) -> MutexGuard<'_, LatestHead> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call_alarm(&self, alarm: &Alarm) {
        if let Some(callback) = &*self.alarm.lock().unwrap_or_else(PoisonError::into_inner) {
            (callback.0)(alarm);
        }
    }
}

impl HeadKeeper {
    /// Notes where an open journal ends, and starts the thread that keeps the note current.
    pub(crate) fn start(
        database: &Path,
        conn: &Connection,
        positions: &LogPositions,
        found: &StoredHeadNote,
    ) -> Result<HeadKeeper, OpenError> {
        let failed = |error| OpenError::sqlite(database, &error);
        let beside = compare(conn, positions, found).map_err(failed)?;
        let loss = if let HeadComparison::Lost(loss) = beside { Some(loss) } else { None };
        let wall_us = wall_us_of(conn, positions.head_seq).map_err(failed)?.unwrap_or(0);
        let (seq, hash) = (positions.head_seq, positions.head_hash);
        let mut file = HeadFile::new(path_of(database), found);
        let note = HeadNote::new(seq, &hash, wall_us, loss);
        // If this write fails, the thread tries again.
        let noted = file.write(&note).ok().map(|()| note);
        let files = OpenedFiles::of(database);
        let latest = Mutex::new(LatestHead { seq, hash, wall_us, loss, write_now: false, stop: false, moved: None });
        let shared = Arc::new(KeeperShared { latest, wake: Condvar::new(), alarm: Mutex::new(None) });
        let seen = Arc::clone(&shared);
        let run = move || run(&seen, file, &files, noted);
        let thread = thread::Builder::new().name("head".to_owned()).spawn(run);
        let thread = thread.map_err(|error| OpenError::file(database, error))?;
        Ok(HeadKeeper { shared, thread: Some(thread) })
    }

    /// Lines that are missing, until an operator accepts that.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.shared.latest().loss
    }

    /// A batch was committed: the log ends here.
    pub(crate) fn note_commit(&self, seq: u64, hash: Hash, wall_us: Option<u64>) {
        let mut latest = self.shared.latest();
        (latest.seq, latest.hash) = (seq, hash);
        latest.wall_us = wall_us.unwrap_or(latest.wall_us);
    }

    /// The loss was accepted, and that is on the disk.
    pub(crate) fn note_accepted(&self) {
        let mut latest = self.shared.latest();
        (latest.loss, latest.write_now) = (None, true);
        self.shared.wake.notify_one();
    }

    /// Why nothing may be committed any more, if the journal was moved.
    pub(crate) fn moved(&self) -> Option<SystemCause> {
        self.shared.latest().moved.clone()
    }

    /// Has the thread call `callback` on each [`Alarm`].
    pub(crate) fn on_alarm(&self, callback: impl Fn(&Alarm) + Send + 'static) {
        *self.shared.alarm.lock().unwrap_or_else(PoisonError::into_inner) = Some(AlarmCallback(Box::new(callback)));
    }
}

impl Drop for HeadKeeper {
    fn drop(&mut self) {
        self.shared.latest().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; the note it left is of an earlier line.
            let _ = thread.join();
        }
    }
}

fn run(shared: &KeeperShared, mut file: HeadFile, files: &OpenedFiles, mut noted: Option<HeadNote>) {
    let mut is_behind = false;
    loop {
        let (note, stop) = {
            let rests = |latest: &mut LatestHead| !latest.stop && !latest.write_now;
            let waited = shared.wake.wait_timeout_while(shared.latest(), NOTE_EVERY, rests);
            let (mut latest, _) = waited.unwrap_or_else(PoisonError::into_inner);
            latest.write_now = false;
            (HeadNote::new(latest.seq, &latest.hash, latest.wall_us, latest.loss), latest.stop)
        };
        if let Some(path) = files.first_moved() {
            let alarm = Alarm::Moved { path };
            shared.call_alarm(&alarm);
            shared.latest().moved = Some(SystemCause::new(alarm));
            return;
        }
        if noted.as_ref() != Some(&note) {
            match file.write(&note) {
                Ok(()) => (noted, is_behind) = (Some(note), false),
                Err(error) if !is_behind => {
                    is_behind = true;
                    shared.call_alarm(&Alarm::NotNoted(error));
                }
                Err(_) => {}
            }
        }
        if stop {
            return;
        }
    }
}

/// The file with the note.
struct HeadFile {
    path: PathBuf,
    file: Option<File>,
    generation: u64,
    /// The slot that is written next: not that of the newest note.
    next: usize,
}

impl HeadFile {
    fn new(path: PathBuf, found: &StoredHeadNote) -> HeadFile {
        let (generation, next) = match found {
            StoredHeadNote::Noted { generation, slot, .. } => (*generation, 1 - slot),
            StoredHeadNote::Nothing | StoredHeadNote::Damaged => (0, 0),
        };
        HeadFile { path, file: None, generation, next }
    }

    fn write(&mut self, note: &HeadNote) -> io::Result<()> {
        let generation = self.generation + 1;
        let bytes = slot_bytes(&HeadSlot { generation, note: note.clone() })?;
        let file = match self.file.take() {
            Some(file) => file,
            None => self.open(&bytes)?,
        };
        let written = file.write_all_at(&bytes, SLOTS[self.next]).and_then(|()| file.sync_data());
        self.file = Some(file);
        written?;
        (self.generation, self.next) = (generation, 1 - self.next);
        Ok(())
    }

    /// Opens the file. If it does not exist, it is made with both slots written, or not at all.
    fn open(&self, bytes: &[u8]) -> io::Result<File> {
        let open = || OpenOptions::new().write(true).custom_flags(NOFOLLOW).open(&self.path);
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let new = self.path.with_extension("head.new");
        // Removes one that an earlier, failed attempt left.
        let _ = fs::remove_file(&new);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        SLOTS.iter().try_for_each(|slot| file.write_all_at(bytes, *slot))?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        state_dir::sync_dir(self.path.parent().unwrap_or(Path::new(".")))?;
        open()
    }
}

fn slot_bytes(slot: &HeadSlot) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(slot)?;
    let mut bytes = format!("{json}\n{}\n", blake3::hash(json.as_bytes()).to_hex()).into_bytes();
    bytes.resize(SLOT_BYTES, b'\n');
    Ok(bytes)
}

/// The journal's files as they were opened.
struct OpenedFiles(Vec<(PathBuf, (u64, u64))>);

impl OpenedFiles {
    fn of(database: &Path) -> OpenedFiles {
        let beside = |suffix: &str| {
            let mut name = database.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let lock = database.with_file_name(state_dir::LOCK);
        let all = [database.to_owned(), beside("-wal"), beside("-shm"), lock];
        OpenedFiles(all.into_iter().filter_map(|path| device_and_inode(&path).map(|found| (path, found))).collect())
    }

    /// The first file that is not at its path any more.
    fn first_moved(&self) -> Option<PathBuf> {
        self.0.iter().find(|(path, opened)| device_and_inode(path) != Some(*opened)).map(|(path, _)| path.clone())
    }
}

/// Device and inode; `None` if the file cannot be read.
fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(seq: u64) -> HeadNote {
        HeadNote::new(seq, &[7; 32], 1_000_000, None)
    }

    fn found(path: &Path) -> StoredHeadNote {
        read(&path.with_extension("db")).unwrap()
    }

    fn seq(path: &Path) -> Option<u64> {
        match found(path) {
            StoredHeadNote::Noted { note, .. } => Some(note.seq),
            StoredHeadNote::Nothing | StoredHeadNote::Damaged => None,
        }
    }

    #[test]
    fn the_newest_note_counts_and_a_damaged_slot_leaves_the_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.head");
        assert_eq!(found(&path), StoredHeadNote::Nothing);
        let mut file = HeadFile::new(path.clone(), &StoredHeadNote::Nothing);
        // Also with a lower number, after a backup was put back.
        for number in [5, 6, 3] {
            file.write(&note(number)).unwrap();
            assert_eq!(seq(&path), Some(number));
            let mut again = HeadFile::new(path.clone(), &found(&path));
            again.write(&note(number)).unwrap();
            file = again;
        }
        let (newest, older) = (1 - file.next, file.next);
        let disk = OpenOptions::new().write(true).open(&path).unwrap();
        file.write(&note(9)).unwrap();
        let spoil = |slot: usize| disk.write_all_at(b"x", SLOTS[slot] + 20).unwrap();
        spoil(older);
        assert_eq!(seq(&path), Some(3), "the slot that was written last is spoiled");
        spoil(newest);
        assert_eq!(found(&path), StoredHeadNote::Damaged);
    }

    #[test]
    fn the_largest_note_fits_its_slot() {
        let loss =
            Loss::Missing { lines: u64::MAX, after: u64::MAX, since_wall_us: Some(u64::MAX), until_wall_us: u64::MAX };
        let note = HeadNote::new(u64::MAX, &[255; 32], u64::MAX, Some(loss));
        let bytes = slot_bytes(&HeadSlot { generation: u64::MAX, note }).unwrap();
        assert!(bytes.ends_with(b"\n\n"), "there is room left");
    }
}
