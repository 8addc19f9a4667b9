//! Moves processes off their GPUs and back by the driver's own checkpoint calls.
//!
//! ```text
//!   targets (where each holder's bytes shall be) ─► hub thread ──JSON lines──► worker ──► libcuda
//!   HostReport::DriverReported ◄──────────────────────────────────┘   deadlines, pre-flight
//! ```
//! Nothing is decided here. A target says where a holder's bytes shall be, and each process that is elsewhere is
//! moved. After a crash of either side the same rule continues from the state that the driver reports. A holder is
//! moved whole or not at all: all its processes are locked, then each is taken off its GPUs; if anything fails all
//! are put back. Nothing is restored without its room proven, because a restore that lacks room destroys the process.
//! One holder is moved at a time, one call at a time.
//!
//! Absent on purpose: whether a holder may be moved this way, whether its bytes really left (readings of the GPUs
//! show that), signals.

mod blocked_calls;
mod driven_holder;
mod hazard;
mod hub_thread;
pub(crate) mod pinned_process;
mod preflight;
pub(crate) mod protocol;
mod worker_client;

use crate::gpu_thread;
use crate::headroom::Bookings;
use crate::mailbox::{Mailbox, MailboxSender};
use crate::process_thread::ProcessThreadInbox;
use crate::soft::SoftPlace;
use crate::wake::WakeEvent;
use hub_thread::DriverHubThread;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sublet_core::ids::{LeaseId, ProcKey};
use worker_client::DriverWorkerClient;

/// Settings for moving processes by the driver.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// How long a lock waits for GPU work in progress.
    pub lock: Duration,
    /// How long a driver call may take, plus two seconds for each GiB that it moves.
    pub patience: Duration,
}

impl Default for DriverSettings {
    fn default() -> DriverSettings {
        DriverSettings { lock: Duration::from_secs(5), patience: Duration::from_secs(15) }
    }
}

/// What the driver cannot do on this host, as far as is known without trying: one sentence each.
pub fn limits() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let mut limits: Vec<String> = match version_in(&text).and_then(hazard::branch) {
        Some(branch) => hazard::rules_for_branch(branch).map(|rule| rule.why.to_owned()).collect(),
        None => vec!["the driver's version is not known, so no process is moved by it".to_owned()],
    };
    if !preflight::may_move_others() {
        let why = "only processes of the service's own user are moved: it is not root and has no CAP_SYS_PTRACE";
        limits.push(why.to_owned());
    }
    limits
}

/// The version in the text of the kernel module.
fn version_in(text: &str) -> Option<&str> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version)
}

/// Where a holder's bytes shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverPlacement {
    /// On its GPUs.
    OnGpus {
        /// What all its processes together need there: the UUID of each GPU, and bytes.
        needs: Vec<(String, u64)>,
    },
    /// In host memory.
    InHostMemory {
        /// Its processes are locked within this time or not at all.
        within: Duration,
        /// Bytes of host memory booked for it.
        booked: u64,
    },
    /// A resume that may not restore yet: states are queried, locked processes are unlocked.
    WaitForRoom,
}

/// The target of a holder with processes that the driver moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverTarget {
    /// The lease of the holder.
    pub lease: LeaseId,
    /// Its user: processes of other users are not parked.
    pub uid: u32,
    /// Where its bytes shall be.
    pub placement: DriverPlacement,
    /// Its processes that had bytes on GPUs when the move began.
    pub processes: Vec<ProcKey>,
}

enum DriverHubMessage {
    SetTarget(DriverTarget),
    Inspect { lease: LeaseId, uid: u32, processes: Vec<ProcKey>, bytes: u64 },
    Forget(LeaseId),
}

/// A handle to the hub. Never blocks.
#[derive(Clone)]
pub(crate) struct DriverHub {
    mailbox: MailboxSender<DriverHubMessage>,
    stop: Arc<WakeEvent>,
}

impl DriverHub {
    /// Makes the hub and the thread's work, to be run by the caller. The worker is started when it is needed.
    pub(crate) fn open(
        settings: DriverSettings,
        exe: PathBuf,
        soft: Option<SoftPlace>,
        process_thread: ProcessThreadInbox,
        gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
        bookings: Bookings,
    ) -> io::Result<(DriverHub, impl FnOnce() + Send + 'static)> {
        let stop = Arc::new(WakeEvent::new()?);
        let (sender, mailbox) = Mailbox::new()?;
        let worker = DriverWorkerClient::new(settings.clone(), exe, soft, Arc::clone(&stop));
        let work = DriverHubThread {
            settings,
            worker,
            mailbox,
            stop: Arc::clone(&stop),
            process_thread,
            gpu_thread,
            bookings,
            holders: BTreeMap::new(),
            inspections: BTreeMap::new(),
            calls_read_at: Instant::now(),
        };
        Ok((DriverHub { mailbox: sender, stop }, move || work.run()))
    }

    fn send(&self, message: DriverHubMessage) {
        self.mailbox.send(message);
    }

    pub(crate) fn set_target(&self, target: DriverTarget) {
        self.send(DriverHubMessage::SetTarget(target));
    }

    pub(crate) fn inspect(&self, (lease, uid): (LeaseId, u32), processes: Vec<ProcKey>, bytes: u64) {
        self.send(DriverHubMessage::Inspect { lease, uid, processes, bytes });
    }

    pub(crate) fn forget(&self, lease: LeaseId) {
        self.send(DriverHubMessage::Forget(lease));
    }

    pub(crate) fn stop(&self) {
        self.stop.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_version_is_parsed_from_the_modules_text() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 13.2.0";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023";
        assert_eq!((version_in(open), version_in(closed)), (Some("580.159.04"), Some("535.54.03")));
        assert_eq!(version_in("nothing"), None);
    }
}
