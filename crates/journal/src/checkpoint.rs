//! Moves what was committed from the write-ahead log into the database, beside the commits.
//!
//! A commit only appends to the write-ahead log. This thread copies it into the database
//! over its own connection, so that no commit waits for the copying. Passive copying never
//! blocks a commit, but under steady load it never finds the log all copied either; then the
//! log grows until a short blocking pass lets the next commit begin it anew.
//!
//! ```text
//! every 4 MiB of growth     passive
//! beyond 8 MiB              passive, then restart: the file keeps its size and is reused
//! beyond 16 MiB             this thread does not keep up: the commits themselves copy
//! beyond 64 MiB             passive, then truncate (a reader must have been in the way)
//! ```
//! So the log stays within 16 MiB unless a reader holds it, and the ballast is larger: a full
//! disk always has room to copy the log, and so to begin it anew.

use crate::error::{Cause, CommitError, OpenError};
use rusqlite::{Connection, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Frames (a page and its header) in 4 MiB.
const STEP: u32 = 1018;
const RESTART_FROM: u32 = 2 * STEP;
const BY_COMMITS_FROM: u32 = 4 * STEP;
const TRUNCATE_FROM: u32 = 16 * STEP;

/// One look at a lock that somebody else has: shorter than an fsync.
const LOOK: Duration = Duration::from_micros(200);
/// A blocking pass holds up commits while it waits for readers: 20 ms at most.
const LOOKS_OF_CHECKPOINT: i32 = 100;
/// A commit waits this long for a blocking pass: 5 s, beyond which something is wrong.
const LOOKS_OF_COMMIT: i32 = 25_000;

/// The thread, and what it leaves for the next commit.
#[derive(Debug)]
pub struct Checkpointer {
    wake: Option<SyncSender<u32>>,
    thread: Option<JoinHandle<()>>,
    /// A write that the disk did not confirm.
    fault: Arc<Mutex<Option<Cause>>>,
    /// The length of the log after the last commit.
    frames: Arc<AtomicU32>,
    /// The length at which the thread was last woken.
    woken_at: u32,
    /// The length at which a commit last copied the log itself.
    copied_at: u32,
}

impl Checkpointer {
    /// Starts the thread, and watches the writer's commits.
    pub fn start(writer: &mut Connection, path: &Path) -> Result<Checkpointer, OpenError> {
        let frames = Arc::new(AtomicU32::new(0));
        let conn = connect(writer, path, Arc::clone(&frames)).map_err(|error| OpenError::sqlite(path, &error))?;
        let fault = Arc::new(Mutex::new(None));
        let (wake, woken) = sync_channel(1);
        let report = Arc::clone(&fault);
        let run = move || run(&conn, &woken, &report);
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(run);
        let thread = thread.map_err(|error| OpenError::file(path, error))?;
        Ok(Checkpointer { wake: Some(wake), thread: Some(thread), fault, frames, woken_at: 0, copied_at: 0 })
    }

    /// A write of this thread that the disk did not confirm, if there was one.
    pub fn fault(&self) -> Option<Cause> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the log is so long that the next commit must copy it first.
    pub fn overdue(&mut self) -> bool {
        let frames = self.frames.load(Ordering::Relaxed);
        if frames < self.copied_at {
            self.copied_at = 0; // The log began anew.
        }
        let overdue = frames >= BY_COMMITS_FROM.max(self.copied_at + STEP);
        if overdue {
            self.copied_at = frames;
        }
        overdue
    }

    /// Wakes the thread if the log grew enough since it was last woken.
    pub fn committed(&mut self) {
        let frames = self.frames.load(Ordering::Relaxed);
        if frames < self.woken_at {
            self.woken_at = 0; // The log began anew.
        }
        if frames >= self.woken_at + STEP {
            // While the thread is still at work, it is woken by a later commit.
            if self.wake.as_ref().is_some_and(|wake| wake.try_send(frames).is_ok()) {
                self.woken_at = frames;
            }
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; the log it left is read at the next start.
            let _ = thread.join();
        }
    }
}

/// The thread's connection; the writer's learns to wait for it and to tell the log's length.
fn connect(writer: &mut Connection, path: &Path, frames: Arc<AtomicU32>) -> Result<Connection> {
    let mut conn = Connection::open(path)?;
    crate::connect::configure(&conn)?;
    conn.busy_handler(Some(|looks| wait(looks, LOOKS_OF_CHECKPOINT)))?;
    writer.busy_handler(Some(|looks| wait(looks, LOOKS_OF_COMMIT)))?;
    writer.wal_hook(Some(move |_: &mut _, pages: i32| {
        frames.store(pages.cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(conn)
}

fn wait(looks: i32, most: i32) -> bool {
    thread::sleep(LOOK);
    looks < most
}

fn run(conn: &Connection, woken: &Receiver<u32>, fault: &Mutex<Option<Cause>>) {
    for frames in woken {
        if let Err(error) = pass(conn, frames)
            && let CommitError::Sync(cause) = CommitError::sqlite(&error, crate::connect::errno(conn))
        {
            *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
        }
        // Whatever else went wrong (no room, a reader in the way) is tried again later:
        // the log has it all.
    }
}

fn pass(conn: &Connection, frames: u32) -> Result<()> {
    checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)")?;
    match frames {
        ..RESTART_FROM => Ok(()),
        RESTART_FROM..TRUNCATE_FROM => checkpoint(conn, "PRAGMA wal_checkpoint(RESTART)"),
        TRUNCATE_FROM.. => checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)"),
    }
}

fn checkpoint(conn: &Connection, sql: &str) -> Result<()> {
    conn.prepare_cached(sql)?.query_row([], |_| Ok(()))
}
