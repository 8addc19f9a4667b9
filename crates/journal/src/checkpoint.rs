//! Moves what was committed from the write-ahead log into the database, beside the commits.
//!
//! A commit only appends to the write-ahead log. When the log is long, this thread copies it into the
//! database, over its own connection and at the lowest priority, so that commits go on. They append little
//! meanwhile. The next commit copies that rest itself, finds the whole log copied, and starts it again from
//! the beginning. Nothing is locked, and one commit in some hundreds waits. (An earlier version copied every
//! 4 MiB and restarted the log under a lock every 8 MiB: that caused the slowest 1 % of a busy service's requests.)
//!
//! ```text
//! every 48 MiB              copied by this thread, the rest by a commit: the file keeps its size and is reused
//! and each 8 MiB beyond     the same again: a reader was in the way
//! beyond 64 MiB             this thread does not keep up: the commits themselves copy, once its pass is over
//! beyond 128 MiB            copied, then truncated (a reader must have been in the way for long)
//! ```
//! The log therefore stays within 64 MiB unless a reader holds it, and the ballast is larger than that: a full
//! disk always has room to copy the log and restart it. Where the ballast is smaller, all of these sizes are
//! smaller in proportion.

use crate::error::{CommitError, OpenError, SystemCause};
use crate::state_dir::BALLAST_BYTES;
use rusqlite::{Connection, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Frames (a page and its header) in 8 MiB.
const STEP_FRAMES: u32 = 2036;
/// Frames in a tenth of the least ballast.
const STEP_FRAMES_MIN: u32 = STEP_FRAMES / 20;
/// When the thread copies, when commits do, and when the file is cut short: in steps.
const COPY_FROM: u32 = 6;
const BY_COMMITS_FROM: u32 = 8;
const TRUNCATE_FROM: u32 = 16;

/// Frames that a commit may copy: copying them takes about as long as syncing them.
const REST_FRAMES: u32 = 128;
/// Passes of the thread at most: each copies what commits appended during the one before, which is less each time.
const PASSES: usize = 4;
/// The thread's nice value, and the time slice for which it may run while other threads wait.
const NICE: i32 = 19;
const SLICE_NS: u64 = 100_000;

/// The pause between two tries to take a lock that another connection holds: shorter than an fsync.
const LOCK_RETRY: Duration = Duration::from_micros(200);
/// A blocking pass holds up commits while it waits for readers: 20 ms at most.
const LOCK_TRIES_OF_CHECKPOINT: i32 = 100;
/// A commit waits this long for a blocking pass: 5 s, beyond which something is wrong.
const LOCK_TRIES_OF_COMMIT: i32 = 25_000;

/// A commit that has to copy the log waits this long for a pass that runs. On a machine without a free core the thread gets
/// its time by that.
const PASS_WAIT: Duration = Duration::from_secs(5);

/// The thread, and what it leaves for the next commit.
#[derive(Debug)]
pub struct Checkpointer {
    wake: Option<SyncSender<Pass>>,
    thread: Option<JoinHandle<()>>,
    /// A write that the disk did not confirm.
    fault: Arc<Mutex<Option<SystemCause>>>,
    /// The length of the log after the last commit.
    frames: Arc<AtomicU32>,
    /// Frames of it that the thread has copied; 0 after a commit copied the rest.
    copied: Arc<AtomicU32>,
    /// Whether the thread copies now: a commit cannot copy beside it.
    passing: Arc<Passing>,
    /// The length at which the thread was last woken.
    woken_at: u32,
    /// The length at which a commit last copied the log itself.
    copied_at: u32,
    /// Frames in a tenth of the ballast.
    step: u32,
}

/// Whether the thread runs a pass.
#[derive(Debug, Default)]
struct Passing {
    is_running: Mutex<bool>,
    ended: Condvar,
}

impl Passing {
    fn set(&self, is_running: bool) {
        *self.is_running.lock().unwrap_or_else(PoisonError::into_inner) = is_running;
        self.ended.notify_all();
    }

    /// Waits until no pass runs, for `PASS_WAIT` at most.
    fn wait(&self) {
        let is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.ended.wait_timeout_while(is_running, PASS_WAIT, |is_running| *is_running));
    }
}

/// What of the log a commit must copy itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDue {
    /// Nothing.
    Nothing,
    /// What commits appended while the thread copied the rest.
    Rest,
    /// All of it: the thread does not keep up.
    All,
}

/// What the thread is woken for.
#[derive(Clone, Copy, Debug)]
enum Pass {
    /// The log is copied.
    Copy,
    /// The log is copied, and its file truncated.
    Truncate,
}

impl Checkpointer {
    /// Starts the thread, and installs a hook on `writer` that counts the frames of the log.
    pub fn start(writer: &mut Connection, path: &Path) -> Result<Checkpointer, OpenError> {
        let frames = Arc::new(AtomicU32::new(0));
        let conn = connect(writer, path, Arc::clone(&frames)).map_err(|error| OpenError::sqlite(path, &error))?;
        let fault = Arc::new(Mutex::new(None));
        let copied = Arc::new(AtomicU32::new(0));
        let passing = Arc::<Passing>::default();
        let (wake, woken) = sync_channel(1);
        let (report, done, running) = (Arc::clone(&fault), Arc::clone(&copied), Arc::clone(&passing));
        let run = move || run(&conn, &woken, &done, (&running, &report));
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(run);
        let thread = thread.map_err(|error| OpenError::file(path, error))?;
        let (wake, thread, step) = (Some(wake), Some(thread), STEP_FRAMES);
        Ok(Checkpointer { wake, thread, fault, frames, copied, passing, woken_at: 0, copied_at: 0, step })
    }

    /// Bounds the length of the log so that it can be copied into `ballast` bytes.
    pub fn fit_to_ballast(&mut self, ballast: u64) {
        let step = u64::from(STEP_FRAMES) * ballast / BALLAST_BYTES;
        self.step = u32::try_from(step).unwrap_or(STEP_FRAMES).clamp(STEP_FRAMES_MIN, STEP_FRAMES);
    }

    /// A write of this thread that the disk did not confirm, if there was one.
    pub fn fault(&self) -> Option<SystemCause> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What of the log the next commit must copy itself.
    pub fn copy_due(&mut self) -> CopyDue {
        let frames = self.frames.load(Ordering::Relaxed);
        if frames < self.copied_at {
            self.copied_at = 0; // The log was restarted.
        }
        if frames >= (BY_COMMITS_FROM * self.step).max(self.copied_at + self.step) {
            self.copied_at = frames;
            return CopyDue::All;
        }
        let has_rest = self.copied.swap(0, Ordering::Relaxed) > 0;
        if has_rest { CopyDue::Rest } else { CopyDue::Nothing }
    }

    /// Waits until the thread's pass is over, for 5 s at most: a commit cannot copy beside it.
    pub fn wait_for_pass(&self) {
        self.passing.wait();
    }

    /// Wakes the thread if the log grew enough since it was last woken.
    pub fn committed(&mut self) {
        let frames = self.frames.load(Ordering::Relaxed);
        if frames < self.woken_at {
            self.woken_at = 0; // The log was restarted.
        }
        if frames >= (COPY_FROM * self.step).max(self.woken_at + self.step) {
            let pass = if frames >= TRUNCATE_FROM * self.step { Pass::Truncate } else { Pass::Copy };
            // If the thread is still busy, a later commit wakes it.
            if self.wake.as_ref().is_some_and(|wake| wake.try_send(pass).is_ok()) {
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

/// Opens the thread's connection. Sets up the writer's so that it waits for the thread and counts the log's frames.
fn connect(writer: &mut Connection, path: &Path, frames: Arc<AtomicU32>) -> Result<Connection> {
    let mut conn = Connection::open(path)?;
    crate::connect::configure(&conn)?;
    conn.busy_handler(Some(|tries| wait_for_lock(tries, LOCK_TRIES_OF_CHECKPOINT)))?;
    writer.busy_handler(Some(|tries| wait_for_lock(tries, LOCK_TRIES_OF_COMMIT)))?;
    writer.wal_hook(Some(move |_: &mut _, pages: i32| {
        frames.store(pages.cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(conn)
}

fn wait_for_lock(tries: i32, most: i32) -> bool {
    thread::sleep(LOCK_RETRY);
    tries < most
}

fn run(
    conn: &Connection,
    woken: &Receiver<Pass>,
    copied: &AtomicU32,
    (passing, fault): (&Passing, &Mutex<Option<SystemCause>>),
) {
    lower_priority();
    for wanted in woken {
        passing.set(true);
        let passed = run_pass(conn, wanted);
        passing.set(false);
        match passed {
            Ok(done) => copied.store(done, Ordering::Relaxed),
            Err(error) => {
                if let CommitError::Sync(cause) = CommitError::sqlite(&error, crate::connect::errno(conn)) {
                    *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
                }
            }
        }
        // After any other error (no room, a reader in the way) the pass is tried again later: the log still has
        // everything.
    }
}

/// Lowers the thread's priority for the CPU and for the disk: nothing waits for this thread, and on a busy machine it
/// would delay other threads. The nice value is not enough, because the kernel lets any running thread finish a time
/// slice of milliseconds; so the slice is shortened too. Where the kernel does not know or allow a setting, the thread
/// runs without it.
fn lower_priority() {
    // `struct sched_attr` in its first version, which every later kernel still accepts.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let size = size_of::<Attributes>() as u32;
    let policy = libc::SCHED_OTHER.cast_unsigned();
    let (flags, priority, deadline, period) = (0, 0, 0, 0);
    let attributes = Attributes { size, policy, flags, nice: NICE, priority, runtime: SLICE_NS, deadline, period };
    // SAFETY: the kernel reads `size` bytes of a structure that lives until the call returns.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    let (io_priority_of_process, idle_class) = (1, 3 << 13);
    // SAFETY: the arguments are three numbers; 0 as the second means the calling thread.
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, io_priority_of_process, 0, idle_class) };
}

/// Runs one pass; returns how many frames are copied, or 0 after a truncation.
fn run_pass(conn: &Connection, wanted: Pass) -> Result<u32> {
    if let Pass::Truncate = wanted {
        checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)")?;
        checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)")?;
        return Ok(0);
    }
    let mut before = 0;
    for _ in 0..PASSES {
        let copied = checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)")?;
        if copied.saturating_sub(before) <= REST_FRAMES {
            return Ok(copied);
        }
        before = copied;
    }
    Ok(before)
}

/// Runs a checkpoint; returns how many frames of the log are copied.
fn checkpoint(conn: &Connection, sql: &str) -> Result<u32> {
    let copied: i64 = conn.prepare_cached(sql)?.query_row([], |row| row.get(2))?;
    Ok(u32::try_from(copied).unwrap_or(0))
}
