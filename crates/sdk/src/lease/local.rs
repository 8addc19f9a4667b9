//! What this process knows of a lease, readable without a call to the daemon.
//!
//! ```text
//!   watcher thread ── long poll ──► daemon           status, deadline: atomics
//!         └── store ──► LocalLease ◄── check ── GpuSession, before every call (a load and the clock, no system call)
//!                           ▲
//!                           └── refresh: one call to the daemon, only after the deadline
//! ```
//! The daemon extends a lease at the end of its term, so the deadline that is known here may be an old one. Past it a
//! check asks the daemon before it fails. It fails closed: without an answer there is no work.
//!
//! A lease that the driver parked is not woken by its use: the call blocks in the driver, and the shim does not see it. So calls are
//! counted while they are under way. A call that begins on such a lease asks for its memory back, and so does the watcher
//! if it learns of the park while a call is under way.
//!
//! Absent on purpose: renewal. The daemon renews leases of processes by what they do; `renewal` renews the others.

use super::LeaseStatus;
use crate::client::{CallError, DaemonClient, RESTART};
use crate::error::FabricError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sublet_wire::{Code, EndReason, Lease, LeaseEnd, LeaseState, ParkMethod};

/// How long a check after the deadline waits for the daemon.
const REFRESH_WITHIN: Duration = Duration::from_secs(2);
/// After a refresh without an answer, checks fail for this long without another try.
const REFRESH_PAUSE: Duration = Duration::from_millis(500);
/// The deadline of a lease that has none, such as a parked one.
const NO_DEADLINE: u64 = u64::MAX;

/// What this process did on a lease.
#[derive(Debug, Default)]
pub(crate) struct WorkCounters {
    /// Kernels launched.
    pub launches: AtomicU64,
    /// Calls of the driver that failed.
    pub errors: AtomicU64,
    /// Bytes copied to GPUs.
    pub bytes_written: AtomicU64,
    /// Bytes copied from GPUs.
    pub bytes_read: AtomicU64,
    /// Anything that counts as use of the GPU.
    pub activity: AtomicU64,
    /// Calls of the driver that have not returned.
    under_way: AtomicU64,
}

/// A call of the driver that is under way.
pub(crate) struct CallUnderWay<'a>(&'a LocalLease);

impl Drop for CallUnderWay<'_> {
    fn drop(&mut self) {
        self.0.work.under_way.fetch_sub(1, SeqCst);
    }
}

/// What this process knows of a lease.
#[derive(Debug)]
pub(crate) struct LocalLease {
    client: DaemonClient,
    id: String,
    fence: u64,
    /// The daemon renews it by what this process does.
    is_bound: bool,
    /// The zero of `deadline_ns`.
    start: Instant,
    status: AtomicU8,
    deadline_ns: AtomicU64,
    is_watched: AtomicBool,
    stop: Mutex<bool>,
    stopped: Condvar,
    refreshed: Mutex<Option<Instant>>,
    latest: Mutex<Lease>,
    /// Notified when the status changes.
    changed: Condvar,
    end: Mutex<Option<LeaseEnd>>,
    /// What this process did on it.
    pub work: WorkCounters,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalLease {
    /// A lease as the daemon just described it.
    pub fn new(client: DaemonClient, lease: Lease, is_bound: bool) -> LocalLease {
        let local = LocalLease {
            client,
            id: lease.id.clone(),
            fence: lease.fence.unwrap_or_default(),
            is_bound,
            start: Instant::now(),
            status: AtomicU8::new(LeaseStatus::Waiting as u8),
            deadline_ns: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            refreshed: Mutex::new(None),
            latest: Mutex::new(lease.clone()),
            changed: Condvar::new(),
            end: Mutex::new(None),
            work: WorkCounters::default(),
        };
        local.store(lease);
        local
    }

    /// `L7`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fence of the grant.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Whether the daemon renews it by what this process does.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// The daemon.
    pub fn client(&self) -> &DaemonClient {
        &self.client
    }

    /// What the daemon said last.
    pub fn latest(&self) -> Lease {
        locked(&self.latest).clone()
    }

    /// Takes over what the daemon just said.
    pub fn store(&self, lease: Lease) {
        // Two answers may arrive at once; the end of a lease is never undone.
        let mut latest = locked(&self.latest);
        if self.known().is_over() {
            return;
        }
        let status = match lease.fence {
            // The daemon went back to an older state, and granted the same number again.
            Some(fence) if fence != self.fence => LeaseStatus::Fenced,
            _ => LeaseStatus::of(&lease),
        };
        let remaining = lease.remaining_s.filter(|_| status == LeaseStatus::Active);
        let deadline = remaining.map_or(NO_DEADLINE, |left| {
            let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(Duration::MAX);
            self.now_ns().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(NO_DEADLINE))
        });
        if let Some(end) = &lease.ended {
            *locked(&self.end) = Some(end.clone());
        }
        // A check that reads the new status must not meet the old deadline.
        self.deadline_ns.store(deadline, Release);
        self.status.store(status as u8, SeqCst);
        *latest = lease;
        self.changed.notify_all();
    }

    /// The lease is over, and the daemon did not describe how.
    pub fn lose(&self, status: LeaseStatus, sentence: String) {
        let _latest = locked(&self.latest);
        if !self.known().is_over() {
            let reason = if status == LeaseStatus::Expired { EndReason::Expired } else { EndReason::Revoked };
            locked(&self.end).get_or_insert(LeaseEnd { reason, sentence, at_unix_s: 0.0 });
            self.status.store(status as u8, Release);
            self.changed.notify_all();
        }
    }

    /// This program gives the lease back. Returns whether it still had it.
    pub fn begin_release(&self) -> bool {
        let _latest = locked(&self.latest);
        let was_over = self.known().is_over();
        if !was_over {
            self.status.store(LeaseStatus::Released as u8, Release);
        }
        *locked(&self.stop) = true;
        self.stopped.notify_all();
        !was_over
    }

    /// The status as it is known here.
    pub fn known(&self) -> LeaseStatus {
        LeaseStatus::of_number(self.status.load(Acquire))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(NO_DEADLINE - 1)
    }

    fn is_past_deadline(&self) -> bool {
        self.now_ns() >= self.deadline_ns.load(Acquire)
    }

    /// The time left until the deadline that is known here; `None` if there is none.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.deadline_ns.load(Acquire);
        (deadline != NO_DEADLINE).then(|| Duration::from_nanos(deadline.saturating_sub(self.now_ns())))
    }

    /// Whether GPU work may be done now. Until the deadline this makes no system call.
    pub fn check(&self) -> Result<(), FabricError> {
        if self.known().is_held() && !self.is_past_deadline() {
            return Ok(());
        }
        match self.status() {
            status if status.is_held() => Ok(()),
            LeaseStatus::Disconnected => Err(self.silence()),
            status => Err(self.ended(status)),
        }
    }

    /// The status; past the deadline the daemon is asked.
    pub fn status(&self) -> LeaseStatus {
        let known = self.known();
        if known != LeaseStatus::Active || !self.is_past_deadline() {
            return known;
        }
        self.refresh();
        match self.known() {
            LeaseStatus::Active if self.is_past_deadline() => LeaseStatus::Disconnected,
            status => status,
        }
    }

    /// The error for a lease that is over.
    pub fn ended(&self, status: LeaseStatus) -> FabricError {
        FabricError::ended(&self.id, status, locked(&self.end).as_ref())
    }

    fn silence(&self) -> FabricError {
        FabricError::Disconnected {
            detail: format!(
                "the time of lease {} is over, and {} does not say whether it was extended",
                self.id,
                self.client.place()
            ),
            hint: None,
        }
    }

    /// Asks the daemon once. Other threads that arrive meanwhile wait for the answer; right after a try without an
    /// answer they do not wait.
    fn refresh(&self) {
        let mut refreshed = locked(&self.refreshed);
        if !self.is_past_deadline() || refreshed.is_some_and(|at| at.elapsed() < REFRESH_PAUSE) {
            return;
        }
        match self.client.lease(&self.id, REFRESH_WITHIN) {
            Ok(lease) => self.store(lease),
            Err(error) => self.note(error),
        }
        *refreshed = Some(Instant::now());
    }

    /// Takes over what a failed call means for the lease. A daemon that does not answer means nothing.
    pub fn note(&self, error: CallError) {
        if let CallError::Refused(problem) = error {
            match problem.code {
                Code::NoSuchLease | Code::LeaseEnded => self.lose(LeaseStatus::Revoked, problem.detail),
                Code::Fenced => self.lose(LeaseStatus::Fenced, problem.detail),
                _ => {}
            }
        }
    }

    /// Waits until the status differs from `known`, for at most `left`.
    pub fn await_change(&self, known: LeaseStatus, left: Duration) {
        let latest = locked(&self.latest);
        drop(self.changed.wait_timeout_while(latest, left, |_| self.known() == known));
    }

    /// Marks the lease as watched. Returns whether it was not before.
    pub fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, AcqRel)
    }

    /// Waits for `pause`, or until the lease is given back. Returns whether it was given back.
    pub fn rest(&self, pause: Duration) -> bool {
        let stop = locked(&self.stop);
        let waited = self.stopped.wait_timeout_while(stop, pause, |stop| !*stop);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A call of the driver begins, which ends when the returned value is dropped.
    pub fn begin_call(&self) -> Result<CallUnderWay<'_>, FabricError> {
        // Counted before the status is read; the watcher stores the status before it reads the count. So at least one
        // of them sees the other.
        self.work.under_way.fetch_add(1, SeqCst);
        let call = CallUnderWay(self);
        if self.status.load(SeqCst) == LeaseStatus::Parked as u8 && self.needs_asking() {
            self.ask_to_resume()?;
        }
        Ok(call)
    }

    /// Whether its memory has to be asked for: the driver has it, and it was not asked for yet.
    fn needs_asking(&self) -> bool {
        let latest = locked(&self.latest);
        latest.state == LeaseState::Parked && latest.method == Some(ParkMethod::Driver) && latest.waiting.is_none()
    }

    /// Asks for the memory back if a call waits for it in the driver.
    pub fn wake_calls(&self) -> Result<(), FabricError> {
        match self.work.under_way.load(SeqCst) > 0 && self.needs_asking() {
            true => self.ask_to_resume(),
            false => Ok(()),
        }
    }

    /// Makes a parked lease a waiter for its memory. The watcher learns what came of it.
    pub fn ask_to_resume(&self) -> Result<(), FabricError> {
        let target = format!("/v1/leases/{}/resume", self.id);
        let asked = self.client.post(&target, None::<&()>, RESTART);
        asked.map(drop).map_err(|error| FabricError::of_call(&self.client, Some(&self.id), error))
    }

    /// Counts a use of the GPU, which is what renewal looks at.
    pub fn count_activity(&self) {
        self.work.activity.fetch_add(1, Relaxed);
    }
}
