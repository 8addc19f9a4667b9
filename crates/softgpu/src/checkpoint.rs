//! Takes a process off its GPUs and puts it back, as NVIDIA's driver does it.
//!
//! ```text
//!              lock            checkpoint             restore, no room
//!   running ─────────► locked ───────────► checkpointed ──────────────► failed (for good)
//!      ▲  ◄─timeout──    │  ▲                    │
//!      └─────unlock──────┘  └──────restore───────┘
//! ```
//! The target takes part through its row alone: each of its calls passes a [gate](SoftGpuClient::pass_gate), which is
//! closed unless the process is running. A call that is inside, or a kernel, holds up the lock. The hazards are those
//! measured on a real GPU: a restore without enough free memory loses the process, memory that cannot be taken makes
//! the checkpoint fail and leaves the process locked, a stopped target hangs the caller, and another user gets an
//! error.

use crate::fault::CheckpointFault;
use crate::layout::ProcessRow;
use crate::state::{CheckpointState, SoftGpuClient, SoftGpuProcess, SoftGpuState, own_uid};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// Why a step was refused, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointError {
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
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A call in progress; the gate cannot close until it is dropped.
#[derive(Debug)]
pub struct GatePass<'a> {
    row: &'a ProcessRow,
}

impl Drop for GatePass<'_> {
    fn drop(&mut self) {
        self.row.inside.fetch_sub(1, SeqCst);
    }
}

impl SoftGpuClient {
    /// Passes the gate, waiting while it is closed.
    pub fn pass_gate(&self) -> GatePass<'_> {
        let row = self.row();
        loop {
            row.inside.fetch_add(1, SeqCst);
            let state = row.checkpoint.load(SeqCst);
            if state == CheckpointState::Running as u32 {
                return GatePass { row };
            }
            row.inside.fetch_sub(1, SeqCst);
            // The process that was about to lock it has died: the gate opens again.
            if state == CheckpointState::Locking as u32 && self.has_no_locker() {
                let _ = row.checkpoint.compare_exchange(state, CheckpointState::Running as u32, SeqCst, SeqCst);
                continue;
            }
            futex_wait(&row.checkpoint, state);
        }
    }

    /// Another pass, for work that a call inside leaves running.
    pub fn another_pass(&self) -> GatePass<'_> {
        let row = self.row();
        row.inside.fetch_add(1, SeqCst);
        GatePass { row }
    }
}

impl SoftGpuState {
    fn permitted_process(&self, pid: u32) -> Result<SoftGpuProcess<'_>, CheckpointError> {
        let uid = own_uid();
        let is_ours = |owner: u32| uid == 0 || uid == owner;
        let Some(process) = self.process(pid) else {
            let lives = std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|data| is_ours(data.uid()));
            return Err(if lives { CheckpointError::NotInitialised } else { CheckpointError::OperatingSystem });
        };
        if is_ours(process.row.uid.load(SeqCst)) { Ok(process) } else { Err(CheckpointError::OperatingSystem) }
    }

    /// The process, once it is not stopped: a stopped process does not answer, and the driver waits for its answer.
    fn unstopped_process(&self, pid: u32) -> Result<SoftGpuProcess<'_>, CheckpointError> {
        while is_stopped(pid) {
            thread::sleep(Duration::from_millis(5));
        }
        self.permitted_process(pid)
    }

    /// The checkpoint state of a process, as the driver reports it.
    pub fn checkpoint_state(&self, pid: u32) -> Result<CheckpointState, CheckpointError> {
        let process = self.unstopped_process(pid)?;
        match CheckpointState::from_number(process.row.checkpoint.load(SeqCst)) {
            CheckpointState::Locking => Ok(CheckpointState::Running),
            // The real driver does not report that it is lost, either.
            CheckpointState::Failed => Ok(CheckpointState::Checkpointed),
            state => Ok(state),
        }
    }

    /// The thread of a process that a restore would run in: its first one.
    pub fn checkpoint_thread(&self, pid: u32) -> Result<u32, CheckpointError> {
        self.unstopped_process(pid).map(|process| process.pid())
    }

    /// Closes the gate, and waits until nothing is inside; without a timeout, for ever.
    pub fn checkpoint_lock(&self, pid: u32, timeout: Option<Duration>) -> Result<(), CheckpointError> {
        let process = self.unstopped_process(pid)?;
        let row = process.row;
        let swap = |from: CheckpointState, to: CheckpointState| {
            row.checkpoint.compare_exchange(from as u32, to as u32, SeqCst, SeqCst)
        };
        let own = self.register_locker(process).map_err(|_| CheckpointError::OperatingSystem)?;
        let _own = own.ok_or(CheckpointError::IllegalState)?;
        // This process holds the lock now: a process that left the state at `Locking` has died.
        let stale = swap(CheckpointState::Locking, CheckpointState::Locking);
        if let Err(other) = stale.or_else(|_| swap(CheckpointState::Running, CheckpointState::Locking)) {
            let lost = CheckpointState::from_number(other) == CheckpointState::Failed;
            return Err(if lost { CheckpointError::OperatingSystem } else { CheckpointError::IllegalState });
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let never = self.has_fault(process, CheckpointFault::TimesOut);
        while row.inside.load(SeqCst) > 0 || never {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                row.checkpoint.store(CheckpointState::Running as u32, SeqCst);
                futex_wake(&row.checkpoint);
                return Err(CheckpointError::NotReady);
            }
            if self.process(pid).is_none() {
                return Err(CheckpointError::OperatingSystem);
            }
            thread::sleep(POLL_INTERVAL);
        }
        row.checkpoint.store(CheckpointState::Locked as u32, SeqCst);
        Ok(())
    }

    /// Takes the memory of a locked process off the GPUs.
    pub fn checkpoint_save(&self, pid: u32) -> Result<(), CheckpointError> {
        let process = self.unstopped_process(pid)?;
        let row = process.row;
        require_state(row, CheckpointState::Locked)?;
        if row.managed.load(SeqCst) > 0 {
            return Err(CheckpointError::NotSupported);
        }
        if self.has_fault(process, CheckpointFault::KillsTarget) {
            kill(pid);
            return Err(CheckpointError::OperatingSystem);
        }
        if !self.has_fault(process, CheckpointFault::FreesNothing) {
            let _accounts = self.lock_accounts().map_err(|_| CheckpointError::OperatingSystem)?;
            for share in &row.gpus {
                share.parked.store(share.used.swap(0, SeqCst), SeqCst);
            }
        }
        row.checkpoint.store(CheckpointState::Checkpointed as u32, SeqCst);
        Ok(())
    }

    /// Puts the memory of a process back; if there is not enough free memory the process is lost.
    pub fn checkpoint_restore(&self, pid: u32) -> Result<(), CheckpointError> {
        let process = self.unstopped_process(pid)?;
        let row = process.row;
        require_state(row, CheckpointState::Checkpointed)?;
        let _accounts = self.lock_accounts().map_err(|_| CheckpointError::OperatingSystem)?;
        let free = |gpu: usize| self.gpus()[gpu].total.load(SeqCst).saturating_sub(self.used(gpu));
        let fits = (0..self.gpus().len()).all(|gpu| row.gpus[gpu].parked.load(SeqCst) <= free(gpu));
        if fits {
            for share in &row.gpus {
                share.used.fetch_add(share.parked.swap(0, SeqCst), SeqCst);
            }
        }
        let next = if fits { CheckpointState::Locked } else { CheckpointState::Failed };
        row.checkpoint.store(next as u32, SeqCst);
        if fits { Ok(()) } else { Err(CheckpointError::OutOfMemory) }
    }

    /// Opens the gate of a locked process.
    pub fn checkpoint_unlock(&self, pid: u32) -> Result<(), CheckpointError> {
        let process = self.permitted_process(pid)?;
        let row = process.row;
        let (locked, running) = (CheckpointState::Locked as u32, CheckpointState::Running as u32);
        if row.checkpoint.compare_exchange(locked, running, SeqCst, SeqCst).is_err() {
            return Err(CheckpointError::IllegalState);
        }
        futex_wake(&row.checkpoint);
        Ok(())
    }

    fn has_fault(&self, process: SoftGpuProcess<'_>, fault: CheckpointFault) -> bool {
        let on = |gpu: &usize| process.row.gpus[*gpu].contexts.load(SeqCst) > 0;
        let mut gpus = (0..self.gpus().len()).filter(on);
        gpus.any(|gpu| CheckpointFault::from_number(self.gpus()[gpu].checkpoint_fault.load(SeqCst)) == fault)
    }
}

fn require_state(row: &ProcessRow, state: CheckpointState) -> Result<(), CheckpointError> {
    match CheckpointState::from_number(row.checkpoint.load(SeqCst)) {
        now if now == state => Ok(()),
        CheckpointState::Failed => Err(CheckpointError::OperatingSystem),
        _ => Err(CheckpointError::IllegalState),
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
