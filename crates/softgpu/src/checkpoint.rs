//! Taking a process off its cards and putting it back, as NVIDIA's driver does it.
//!
//! ```text
//!              lock            checkpoint             restore, no room
//!   running ─────────► locked ───────────► checkpointed ──────────────► failed (for good)
//!      ▲  ◄─timeout──    │  ▲                    │
//!      └─────unlock──────┘  └──────restore───────┘
//! ```
//! The target takes part through its row alone: each of its calls passes a [gate](Seat::pass), which
//! is shut while it is anything but running. A call that is inside, or a kernel, holds up the lock.
//! The hazards are those that were measured on a real card: a restore without room loses the
//! process, memory that cannot be taken refuses and leaves it locked, a stopped target hangs whoever
//! asks, another user gets an error.

use crate::fault::CheckpointFault;
use crate::layout::Row;
use crate::state::{Checkpoint, Process, Seat, State, own_uid};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// Why a step was not taken, as the driver tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such process on the cards, it is another user's, or it is lost (304).
    OperatingSystem,
    /// That is not the next step from where it is (401).
    IllegalState,
    /// What it has under way did not end in time (600).
    NotReady,
    /// It has memory that cannot be taken (801).
    NotSupported,
    /// There is no room for it (2).
    OutOfMemory,
    /// It lives, and is on no card (3).
    NotInitialised,
}

/// How often a state that should change soon is looked at.
const LOOK: Duration = Duration::from_micros(50);

/// A call under way; the gate cannot shut until it is dropped.
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
    /// Passes the gate, waiting while it is shut.
    pub fn pass(&self) -> Inside<'_> {
        let row = self.row();
        loop {
            row.inside.fetch_add(1, SeqCst);
            let state = row.checkpoint.load(SeqCst);
            if state == Checkpoint::Running as u32 {
                return Inside { row };
            }
            row.inside.fetch_sub(1, SeqCst);
            // Who died while it waited leaves the gate open.
            if state == Checkpoint::Locking as u32 && self.has_no_locker() {
                let _ = row.checkpoint.compare_exchange(state, Checkpoint::Running as u32, SeqCst, SeqCst);
                continue;
            }
            futex_wait(&row.checkpoint, state);
        }
    }

    /// Another pass for what a call that is inside leaves under way.
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

    /// A stopped process answers nobody, and the driver waits for its answer.
    fn answering(&self, pid: u32) -> Result<Process<'_>, Refused> {
        while is_stopped(pid) {
            thread::sleep(Duration::from_millis(5));
        }
        self.target(pid)
    }

    /// How far a process is.
    pub fn checkpoint_state(&self, pid: u32) -> Result<Checkpoint, Refused> {
        let process = self.answering(pid)?;
        match Checkpoint::from_number(process.row.checkpoint.load(SeqCst)) {
            Checkpoint::Locking => Ok(Checkpoint::Running),
            // The real driver does not tell that it is lost, either.
            Checkpoint::Failed => Ok(Checkpoint::Checkpointed),
            state => Ok(state),
        }
    }

    /// The thread of a process that a restore would run in: its first one.
    pub fn checkpoint_thread(&self, pid: u32) -> Result<u32, Refused> {
        self.answering(pid).map(|process| process.pid())
    }

    /// Shuts the gate, and waits until nothing is inside; without a time, for ever.
    pub fn checkpoint_lock(&self, pid: u32, timeout: Option<Duration>) -> Result<(), Refused> {
        let process = self.answering(pid)?;
        let row = process.row;
        let swap =
            |from: Checkpoint, to: Checkpoint| row.checkpoint.compare_exchange(from as u32, to as u32, SeqCst, SeqCst);
        let own = self.begin_lock(process).map_err(|_| Refused::OperatingSystem)?;
        let _own = own.ok_or(Refused::IllegalState)?;
        // Nobody else is about to lock it: who was has died.
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

    /// Takes the memory of a locked process off the cards.
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

    /// Puts the memory of a process back; if there is no room it is lost.
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
    // SAFETY: it takes numbers only. The target is on the soft cards, and the fault was ordered.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// Sleeps until the number changes, or a little while: a wake-up that is missed costs no more.
fn futex_wait(word: &AtomicU32, value: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    // SAFETY: the word and the time live until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
