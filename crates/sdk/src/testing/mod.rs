//! A private daemon with soft GPUs, for tests of programs that lease GPUs.
//!
//! ```no_run
//! use sublet::{GpuBuilder, LeaseStatus, testing::LocalHost};
//!
//! let host = LocalHost::start()?;
//! let lease = GpuBuilder::new().min_vram(2 << 30).acquire()?;
//! host.revoke(lease.lease_id())?;
//! assert_eq!(lease.status(), LeaseStatus::Revoked);
//! # Ok::<(), sublet::FabricError>(())
//! ```
//! It is the real daemon, started from the real binary in a directory of its own: a stand-in would answer as its author
//! thinks that the daemon answers (docs/decisions/0019). A process has one at most, which ends with the process: its
//! soft GPUs are loaded into the process with CUDA's driver library, and that is loaded once.
//!
//! Absent on purpose: faults of soft GPUs (`sublet soft fault`), other users, real GPUs.

mod binary;
mod daemon;

use crate::client::{CallError, PollUntil, RESTART, decode};
use crate::error::FabricError;
use crate::fabric::{self, Fabric};
use daemon::PrivateDaemon;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Code, Lease, LeaseState};

/// The soft GPUs.
const GPUS: &str = "soft:4x24GiB";
/// How long a lease may take to get to a state.
const SETTLE_WITHIN: Duration = Duration::from_secs(30);

/// How long a program that uses a GPU may take to be parkable.
const PARKABLE_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// How long [`until`] waits.
const UNTIL_WITHIN: Duration = Duration::from_secs(60);

static DAEMON: Mutex<Option<Arc<PrivateDaemon>>> = Mutex::new(None);

/// Looks again and again until something is found, and returns it.
///
/// # Panics
/// If nothing is found within 60 s; the message has `awaited`.
pub fn until<T>(awaited: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + UNTIL_WITHIN;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{awaited} within {} s", UNTIL_WITHIN.as_secs());
        thread::sleep(PAUSE);
    }
}

/// The private daemon of this process, with four soft GPUs of 24 GiB.
///
/// As soon as it is started, it is the daemon that `GpuBuilder::new()` uses.
#[derive(Clone, Debug)]
pub struct LocalHost {
    daemon: Arc<PrivateDaemon>,
    fabric: Fabric,
}

impl LocalHost {
    /// Starts the daemon, or returns the one that this process started before.
    pub fn start() -> Result<LocalHost, FabricError> {
        let mut started = DAEMON.lock().unwrap_or_else(PoisonError::into_inner);
        let daemon = match &*started {
            Some(daemon) => Arc::clone(daemon),
            None => Arc::new(PrivateDaemon::start(&binary::find()?, GPUS)?),
        };
        *started = Some(Arc::clone(&daemon));
        fabric::set_private(Some(daemon.socket().to_owned()));
        let fabric = Fabric::at(daemon.socket());
        Ok(LocalHost { daemon, fabric })
    }

    /// Its GPUs.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Its Unix socket.
    pub fn socket(&self) -> &Path {
        self.daemon.socket()
    }

    /// The command line against this daemon: `host.sublet().args(["run", "--vram", "1G", "--", "./program"])`.
    pub fn sublet(&self) -> Command {
        let mut command = Command::new(self.daemon.binary());
        command.env("SUBLET_SOCKET", self.socket()).env_remove("SUBLET_URL").env_remove("SUBLET_LEASE");
        command
    }

    /// Ends a lease while its program still uses it, as `sublet release` by its user does. Returns once the lease is
    /// over.
    pub fn revoke(&self, lease: &str) -> Result<(), FabricError> {
        let client = self.fabric.client();
        match client.release(lease, None, RESTART) {
            Ok(_) => Ok(()),
            Err(CallError::Refused(problem)) if problem.code == Code::LeaseEnded => Ok(()),
            Err(error) => Err(FabricError::of_call(client, Some(lease), error)),
        }
    }

    /// Moves the VRAM of a lease to host memory, and waits until it was there: a program that uses the GPU meanwhile gets
    /// it back at once. A program that has just begun cannot be parked yet; this is repeated for a while.
    pub fn park(&self, lease: &str) -> Result<(), FabricError> {
        let deadline = Instant::now() + PARKABLE_WITHIN;
        let before = self.look(lease)?.on_gpus_unix_s;
        loop {
            match self.command(lease, "park") {
                Ok(_) => break,
                Err(FabricError::Refused(problem))
                    if problem.code == Code::NotParkable && Instant::now() < deadline =>
                {
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        // Since the last resume, if it is back already.
        let was_parked = |lease: &Lease| lease.on_gpus_unix_s != before;
        self.await_state(lease, |lease| match lease.state {
            LeaseState::Parked | LeaseState::Resuming => true,
            LeaseState::Active => was_parked(lease),
            _ => false,
        })
    }

    /// Moves the VRAM of a parked lease back, and waits until it is there.
    pub fn resume(&self, lease: &str) -> Result<(), FabricError> {
        self.command(lease, "resume")?;
        self.await_state(lease, |lease| lease.state == LeaseState::Active)
    }

    /// Kills the daemon with SIGKILL and starts it again, as after a crash.
    pub fn crash_and_restart(&self) -> Result<(), FabricError> {
        self.daemon.kill();
        self.daemon.restart()
    }

    /// Kills the daemon with SIGKILL. `crash_and_restart` brings it back.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    fn command(&self, lease: &str, verb: &str) -> Result<Lease, FabricError> {
        let client = self.fabric.client();
        let answer = client.post(&format!("/v1/leases/{lease}/{verb}"), None::<&()>, RESTART).and_then(decode);
        answer.map_err(|error| FabricError::of_call(client, Some(lease), error))
    }

    fn look(&self, lease: &str) -> Result<Lease, FabricError> {
        let client = self.fabric.client();
        client.lease(lease, RESTART).map_err(|error| FabricError::of_call(client, Some(lease), error))
    }

    /// Waits until the lease is as wanted.
    fn await_state(&self, id: &str, is_wanted: impl Fn(&Lease) -> bool) -> Result<(), FabricError> {
        let (client, deadline) = (self.fabric.client(), Instant::now() + SETTLE_WITHIN);
        let mut lease = self.look(id)?;
        while !is_wanted(&lease) {
            if Instant::now() > deadline || matches!(lease.state, LeaseState::Ending | LeaseState::Ended) {
                let reason = lease.not_parkable.or(lease.ended.map(|end| end.sentence)).unwrap_or_default();
                return Err(FabricError::InvalidArgument(format!("lease {id} does not get there: {reason}")));
            }
            let until = PollUntil::Changed {
                known: lease.state,
                told: lease.ends_soon.is_some(),
                over: lease.overuse.is_some(),
            };
            let polled = client.poll(id, Duration::from_secs(1), until);
            lease = polled.map_err(|error| FabricError::of_call(client, Some(id), error))?;
        }
        Ok(())
    }
}
