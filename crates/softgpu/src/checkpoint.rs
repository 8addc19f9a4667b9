//! Takes a process off its GPUs and puts it back, as NVIDIA's driver does it.
//!
//! ```text
//!              lock            checkpoint             restore, no room
//!   running ─────────► locked ───────────► checkpointed ──────────────► failed (for good)
//!      ▲  ◄─timeout──    │  ▲                    │
//!      └─────unlock──────┘  └──────restore───────┘
//! ```
//! The target takes part through its row alone: each of its calls passes a [gate](Seat::pass), which is closed unless
//! the process is running. A call that is inside, or a kernel, holds up the lock. The hazards are those measured on a
//! real GPU: a restore without enough free memory loses the process, memory that cannot be taken makes the checkpoint
//! fail and leaves the process locked, a stopped target hangs the caller, and another user gets an error.

use crate::fault::CheckpointFault;
use crate::layout::Row;
use crate::state::{Checkpoint, Process, Seat, State, own_uid};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// Why a step was refused, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such process on the GPUs, it is another user's, or it is lost (304).
    OperatingSystem,
    /// This step is not possible from the process's state (401).
    IllegalState,
    /// Work of the process did not end in time (600).
    NotReady,
    /// The process has memory that cannot be taken (801).
    NotSupported,
    /// There is not enough free memory for it (2).
    OutOfMemory,
    /// The process is alive, and on no GPU (3).
    NotInitialised,
}

/// How often a state that should change soon is polled.
const LOOK: Duration = Duration::from_micros(50);

/// A call in progress; the gate cannot close until it is dropped.
#[derive(Debug)]
pub struct Inside<'a> {
    row: &'a Row,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.row.inside.fetch_sub(1, SeqCst);
    }
}

impl Seat {
    /// Passes the gate, waiting while it is closed.
    pub fn pass(&self) -> Inside<'_> {
        let row = self.row();
        loop {
            row.inside.fetch_add(1, SeqCst);
            let state = row.checkpoint.load(SeqCst);
            if state == Checkpoint::Running as u32 {
                return Inside { row };
            }
            row.inside.fetch_sub(1, SeqCst);
            // The process that was about to lock it has died: the gate opens again.
            if state == Checkpoint::Locking as u32 && self.has_no_locker() {
                let _ = row.checkpoint.compare_exchange(state, Checkpoint::Running as u32, SeqCst, SeqCst);
                continue;
            }
            futex_wait(&row.checkpoint, state);
        }
    }

    /// Another pass, for work that a call inside leaves running.
    pub fn stay(&self) -> Inside<'_> {
        let row = self.row();
        row.inside.fetch_add(1, SeqCst);
        Inside { row }
    }
}

impl State {
    fn target(&self, pid: u32) -> Result<Process<'_>, Refused> {
        let uid = own_uid();
        let is_ours = |owner: u32| uid == 0 || uid == owner;
        let Some(process) = self.process(pid) else {
            let lives = std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|data| is_ours(data.uid()));
            return Err(if lives { Refused::NotInitialised } else { Refused::OperatingSystem });
        };
        if is_ours(process.row.uid.load(SeqCst)) { Ok(process) } else { Err(Refused::OperatingSystem) }
    }

    /// The process, once it is not stopped: a stopped process does not answer, and the driver waits for its answer.
    fn answering(&self, pid: u32) -> Result<Process<'_>, Refused> {
        while is_stopped(pid) {
            thread::sleep(Duration::from_millis(5));
        }
        self.target(pid)
    }

    /// The checkpoint state of a process, as the driver reports it.
    pub fn checkpoint_state(&self, pid: u32) -> Result<Checkpoint, Refused> {
        let process = self.answering(pid)?;
        match Checkpoint::from_number(process.row.checkpoint.load(SeqCst)) {
            Checkpoint::Locking => Ok(Checkpoint::Running),
            // The real driver does not report that it is lost, either.
            Checkpoint::Failed => Ok(Checkpoint::Checkpointed),
            state => Ok(state),
        }
    }

    /// The thread of a process that a restore would run in: its first one.
    pub fn checkpoint_thread(&self, pid: u32) -> Result<u32, Refused> {
        self.answering(pid).map(|process| process.pid())
    }

    /// Closes the gate, and waits until nothing is inside; without a timeout, for ever.
    pub fn checkpoint_lock(&self, pid: u32, timeout: Option<Duration>) -> Result<(), Refused> {
        let process = self.answering(pid)?;
        let row = process.row;
        let swap =
            |from: Checkpoint, to: Checkpoint| row.checkpoint.compare_exchange(from as u32, to as u32, SeqCst, SeqCst);
        let own = self.begin_lock(process).map_err(|_| Refused::OperatingSystem)?;
        let _own = own.ok_or(Refused::IllegalState)?;
        // This process holds the lock now: a process that left the state at `Locking` has died.
        let stale = swap(Checkpoint::Locking, Checkpoint::Locking);
        if let Err(other) = stale.or_else(|_| swap(Checkpoint::Running, Checkpoint::Locking)) {
            let lost = Checkpoint::from_number(other) == Checkpoint::Failed;
            return Err(if lost { Refused::OperatingSystem } else { Refused::IllegalState });
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let never = self.has_fault(process, CheckpointFault::TimesOut);
        while row.inside.load(SeqCst) > 0 || never {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                row.checkpoint.store(Checkpoint::Running as u32, SeqCst);
                futex_wake(&row.checkpoint);
                return Err(Refused::NotReady);
            }
            if self.process(pid).is_none() {
                return Err(Refused::OperatingSystem);
            }
            thread::sleep(LOOK);
        }
        row.checkpoint.store(Checkpoint::Locked as u32, SeqCst);
        Ok(())
    }

    /// Takes the memory of a locked process off the GPUs.
    pub fn checkpoint_save(&self, pid: u32) -> Result<(), Refused> {
        let process = self.answering(pid)?;
        let row = process.row;
        expect(row, Checkpoint::Locked)?;
        if row.managed.load(SeqCst) > 0 {
            return Err(Refused::NotSupported);
        }
        if self.has_fault(process, CheckpointFault::KillsTarget) {
            kill(pid);
            return Err(Refused::OperatingSystem);
        }
        if !self.has_fault(process, CheckpointFault::FreesNothing) {
            let _books = self.lock_books().map_err(|_| Refused::OperatingSystem)?;
            for share in &row.cards {
                share.parked.store(share.used.swap(0, SeqCst), SeqCst);
            }
        }
        row.checkpoint.store(Checkpoint::Checkpointed as u32, SeqCst);
        Ok(())
    }

    /// Puts the memory of a process back; if there is not enough free memory the process is lost.
    pub fn checkpoint_restore(&self, pid: u32) -> Result<(), Refused> {
        let process = self.answering(pid)?;
        let row = process.row;
        expect(row, Checkpoint::Checkpointed)?;
        let _books = self.lock_books().map_err(|_| Refused::OperatingSystem)?;
        let free = |card: usize| self.cards()[card].total.load(SeqCst).saturating_sub(self.used(card));
        let fits = (0..self.cards().len()).all(|card| row.cards[card].parked.load(SeqCst) <= free(card));
        if fits {
            for share in &row.cards {
                share.used.fetch_add(share.parked.swap(0, SeqCst), SeqCst);
            }
        }
        let next = if fits { Checkpoint::Locked } else { Checkpoint::Failed };
        row.checkpoint.store(next as u32, SeqCst);
        if fits { Ok(()) } else { Err(Refused::OutOfMemory) }
    }

    /// Opens the gate of a locked process.
    pub fn checkpoint_unlock(&self, pid: u32) -> Result<(), Refused> {
        let process = self.target(pid)?;
        let row = process.row;
        let (locked, running) = (Checkpoint::Locked as u32, Checkpoint::Running as u32);
        if row.checkpoint.compare_exchange(locked, running, SeqCst, SeqCst).is_err() {
            return Err(Refused::IllegalState);
        }
        futex_wake(&row.checkpoint);
        Ok(())
    }

    fn has_fault(&self, process: Process<'_>, fault: CheckpointFault) -> bool {
        let on = |card: &usize| process.row.cards[*card].contexts.load(SeqCst) > 0;
        let mut cards = (0..self.cards().len()).filter(on);
        cards.any(|card| CheckpointFault::from_number(self.cards()[card].checkpoint_fault.load(SeqCst)) == fault)
    }
}

fn expect(row: &Row, state: Checkpoint) -> Result<(), Refused> {
    match Checkpoint::from_number(row.checkpoint.load(SeqCst)) {
        now if now == state => Ok(()),
        Checkpoint::Failed => Err(Refused::OperatingSystem),
        _ => Err(Refused::IllegalState),
    }
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next()?.chars().next());
    matches!(state, Some('T' | 't'))
}

fn kill(pid: u32) {
    // SAFETY: it takes numbers only. The target is on the soft GPUs, and an operator ordered the fault.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// Sleeps until the number changes, or for a short time: a missed wake-up costs no more than that.
fn futex_wait(word: &AtomicU32, value: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    // SAFETY: the word and the time live until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
