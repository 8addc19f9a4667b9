//! Access to the host: GPUs, processes, the clock. This crate reports and executes, and never decides.
//!
//! ```text
//!   GPU thread ──JSON lines──► worker process ──► NVML (real or soft), or a script file
//!      │ each reading
//!      ▼
//!   process thread (owns which process is in which lease) ──► HostReport ──► the caller's sink
//!      ▲ pidfds, /proc
//!      └── watch, forget
//!
//!   driver thread ──JSON lines──► worker process ──► libcuda (real or soft): moves holders' processes
//! ```
//! Calls that can hang or crash run in the [`worker`] process, with a deadline. All reports leave through the process
//! thread, so a holder's members are always reported before the reading that shows them. The threads are plain ones;
//! the sink may block, and then the process thread waits.
//!
//! Absent on purpose: leases (here only a name for a set of processes), names of users, anything durable, and any
//! choice of which process gets a signal ([`process_signals`] only delivers them).

mod activity;
pub mod audit;
pub mod clock;
pub mod driver;
mod exits;
#[doc(hidden)]
pub mod fuzz;
pub mod gpu;
mod gpu_protocol;
mod gpu_thread;
mod headroom;
mod hint_thread;
mod mailbox;
pub mod process;
pub mod process_signals;
mod process_thread;
pub mod proof;
mod report;
mod roster;
pub mod shims;
pub mod soft;
pub mod terminal;
mod timed_read;
mod unleased_monitor;
mod wake;
pub mod worker;
mod worker_link;

pub use report::{ActivityCounts, GpuListError, GpuListErrorKind, HostReport};

use clock::Clock;
use driver::{DriverSettings, DriverTarget};
use gpu::{GpuKind, GpuSpec};
use process_thread::ProcessMessage;
use proof::Grant;
use shims::{ShimHub, ShimSettings, ShimTarget};
use soft::SoftPlace;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::units::{Bytes, Time};
use sublet_core::unleased::{PendingSignal, RuleSubject, UnleasedId};
use thiserror::Error;
use unleased_monitor::{PidTest, UnleasedMonitor};

/// Settings for reading the host.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Which GPUs to read.
    pub gpu: GpuSpec,
    /// The executable that becomes a worker when its first argument is `worker`.
    pub worker_exe: PathBuf,
    /// How often GPUs and holders are read without a request.
    pub period: Duration,
    /// How long a reading may take before the worker counts as hung.
    pub deadline: Duration,
    /// The file that describes scripted GPUs; not used for others.
    pub script: PathBuf,
    /// Where soft GPUs are; `None` for others.
    pub soft: Option<SoftPlace>,
    /// True to measure once what a CUDA context takes on each GPU.
    pub measure_context: bool,
    /// Settings for the library in holders' programs; `None` disables it.
    pub shims: Option<ShimSettings>,
    /// Settings for moving processes by the driver's own calls; `None` disables that.
    pub driver: Option<DriverSettings>,
}

impl HostSettings {
    /// The defaults: this executable as worker, a reading each second, a deadline of two seconds, no measuring.
    pub fn new(gpu: GpuSpec) -> HostSettings {
        HostSettings {
            gpu,
            // Not its path: that may name another version by the time a worker is restarted.
            worker_exe: PathBuf::from("/proc/self/exe"),
            period: Duration::from_secs(1),
            deadline: Duration::from_secs(2),
            script: PathBuf::new(),
            soft: None,
            measure_context: false,
            shims: None,
            driver: None,
        }
    }
}

/// Why the host cannot be started.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel refused a descriptor.
    #[error("cannot make the descriptors to watch with")]
    Descriptors(#[source] io::Error),
    /// The socket for holders' programs cannot be opened.
    #[error("cannot listen for holders' programs at {socket}")]
    Shims {
        /// The path of the socket.
        socket: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Soft GPUs were requested without a place: other GPUs would be read.
    #[error("the soft GPUs were not made")]
    NoSoftGpus,
    /// The kernel refused a thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The running threads. Dropping it stops them and ends the worker.
pub struct Host {
    gpu_thread: Arc<gpu_thread::GpuThreadHandle>,
    process_thread: process_thread::ProcessThreadInbox,
    hub: Option<ShimHub>,
    driver: Option<driver::DriverHub>,
    unleased_monitor: unleased_monitor::UnleasedMonitorInbox,
    threads: Vec<JoinHandle<()>>,
}

impl Host {
    /// Starts the threads; every report goes to `sink`, from one thread.
    ///
    /// If the GPUs cannot be listed, that is a [`HostReport::ListFailed`], not an error: listing is tried again.
    pub fn start(
        settings: HostSettings,
        clock: Clock,
        sink: impl Fn(HostReport) + Send + Sync + 'static,
    ) -> Result<Host, HostError> {
        if settings.gpu.kind() == GpuKind::Soft && settings.soft.is_none() {
            return Err(HostError::NoSoftGpus);
        }
        let (mut process_thread, inbox) =
            process_thread::ProcessThread::new(settings.period, Box::new(sink)).map_err(HostError::Descriptors)?;
        let shared = Arc::new(gpu_thread::GpuThreadHandle::new().map_err(HostError::Descriptors)?);
        let bookings = headroom::Bookings::default();
        let hub = settings.shims.as_ref().map(|shims| {
            ShimHub::open(shims, inbox.clone(), Arc::clone(&shared), bookings.clone())
                .map_err(|source| HostError::Shims { socket: shims.socket.clone(), source })
        });
        let (hub, hub_work) = hub.transpose()?.unzip();
        if let Some(hub) = &hub {
            process_thread.set_hub(hub.clone());
        }
        let (exe, soft) = (settings.worker_exe.clone(), settings.soft.clone());
        // Scripted GPUs have no driver.
        let driver = settings.driver.clone().filter(|_| !matches!(settings.gpu, GpuSpec::Scripted { .. }));
        let driver = driver
            .map(|settings| driver::DriverHub::open(settings, exe, soft, inbox.clone(), Arc::clone(&shared), bookings));
        let (driver, driver_work) = driver.transpose().map_err(HostError::Descriptors)?.unzip();
        let trial = PidTest {
            exe: settings.worker_exe.clone(),
            soft: settings.soft.clone(),
            scripted: settings.gpu.kind() == GpuKind::Scripted,
        };
        let (mut unleased_monitor, monitor_inbox) =
            UnleasedMonitor::new(inbox.clone(), Arc::clone(&shared), trial).map_err(HostError::Descriptors)?;
        process_thread.set_unleased_monitor(monitor_inbox.clone());
        // Hints only bring forward what comes by itself: without them everything works, a little later.
        let soft: Vec<PathBuf> = settings.soft.iter().map(|soft| soft.state.clone()).collect();
        let hints = (settings.gpu.kind() != GpuKind::Scripted).then(|| audit::HintListener::open(&soft).ok()).flatten();
        if let Some((hints, _)) = &hints {
            process_thread.set_ancestors(hints.ancestors());
            unleased_monitor.set_ancestors(hints.ancestors());
        }
        let hints = hints.map(|(hints, missing)| (hints, missing, inbox.clone()));
        let gpu_thread = gpu_thread::GpuThread::new(settings, clock, Arc::clone(&shared), inbox.clone());
        let mut host = Host {
            gpu_thread: shared,
            process_thread: inbox,
            hub,
            driver,
            unleased_monitor: monitor_inbox,
            threads: Vec::new(),
        };
        if let Some(work) = hub_work {
            host.spawn("sublet-shims", work)?;
        }
        if let Some(work) = driver_work {
            host.spawn("sublet-driver", work)?;
        }
        if let Some((hints, missing, process_thread)) = hints {
            let gpu_thread = Arc::clone(&host.gpu_thread);
            host.spawn("sublet-hints", move || hint_thread::run(hints, &missing, &gpu_thread, &process_thread))?;
        }
        host.spawn("sublet-unleased", move || unleased_monitor.run())?;
        host.spawn("sublet-process", move || process_thread.run())?;
        host.spawn("sublet-gpus", move || gpu_thread.run())?;
        Ok(host)
    }

    /// Watches a holder: `roots`, their descendants, and every process that carries the lease's proof. The proof is
    /// the lease's own cgroup, or, once it was [granted](Host::set_grant), `SUBLET_LEASE` and `SUBLET_FENCE` in the
    /// environment of a process of `uid`; in a container also `SUBLET_PROOF`.
    ///
    /// Answered by [`HostReport::Members`] or [`HostReport::HolderEnded`]. Watching a lease again replaces its roots;
    /// present members stay members until they end. A root that is in another lease's tree leaves it, with all its
    /// descendants.
    pub fn watch_holder(&self, lease: LeaseId, uid: u32, roots: Vec<ProcKey>, grant: Option<Grant>) {
        self.process_thread.send(ProcessMessage::Watch { lease, uid, roots, grant });
    }

    /// A watched lease was granted: its programs carry `SUBLET_LEASE` with this `SUBLET_FENCE` and `SUBLET_PROOF`.
    pub fn set_grant(&self, lease: LeaseId, grant: Grant) {
        self.process_thread.send(ProcessMessage::Granted { lease, grant });
    }

    /// Stops watching a holder. Nothing more is reported about it; its processes are not affected.
    pub fn forget_holder(&self, lease: LeaseId) {
        self.process_thread.send(ProcessMessage::Forget { lease });
    }

    /// Requests a reading of the GPUs soon. Several requests at once cause one reading, but a request made during a
    /// reading causes another one after it.
    pub fn request_reading(&self) {
        self.gpu_thread.request_reading();
    }

    /// Sets where a holder's bytes shall be, and what it may have of its GPUs. Each of its programs that is elsewhere
    /// is ordered to move, now and when it connects again; each answer is a [`HostReport::ShimReported`].
    pub fn set_shim_target(&self, wish: ShimTarget) {
        if let Some(hub) = &self.hub {
            hub.set_target(wish);
        }
    }

    /// A lease is over: its programs get no further orders.
    pub fn forget_shim_target(&self, lease: LeaseId) {
        if let Some(hub) = &self.hub {
            hub.forget(lease);
        }
    }

    /// Says that all leases that existed at the start were passed to [`Host::watch_holder`] and
    /// [`Host::set_shim_target`]. From now on readings of the GPUs are reported, and programs with the library are
    /// accepted. Both wait until then, so that no program of a lease is taken for unleased, or for one of a lease that
    /// is over.
    pub fn start_reporting(&self) {
        self.process_thread.send(ProcessMessage::AllLeasesWatched);
        if let Some(hub) = &self.hub {
            hub.accept_connections();
        }
    }

    /// Sets how much host memory is booked for parked bytes: at most the rest is kept ready for them.
    pub fn set_booked_bytes(&self, bytes: u64) {
        if let Some(hub) = &self.hub {
            hub.set_booked(bytes);
        }
    }

    /// Bytes of host memory that are kept ready for parked bytes.
    pub fn stock_bytes(&self) -> u64 {
        self.hub.as_ref().map_or(0, ShimHub::stock_bytes)
    }

    /// A waiter needs a holder's GPUs: its programs prepare to park.
    pub fn prepare_to_park(&self, lease: LeaseId) {
        if let Some(hub) = &self.hub {
            hub.prepare(lease);
        }
    }

    /// Sets where the bytes of a holder shall be that the driver itself moves. Each of its processes that is
    /// elsewhere is moved; the outcome is a [`HostReport::DriverReported`]. A refused target is tried again when this
    /// is called again.
    pub fn set_driver_target(&self, wish: DriverTarget) {
        if let Some(driver) = &self.driver {
            driver.set_target(wish);
        }
    }

    /// Examines from outside whether the driver could move the processes of a lease of this user; `bytes` is what
    /// they have on GPUs. Answered for each by a [`HostReport::DriverReported`]; the processes are not affected.
    pub fn inspect_for_driver(&self, (lease, uid): (LeaseId, u32), processes: Vec<ProcKey>, bytes: u64) {
        if let Some(driver) = &self.driver {
            driver.inspect((lease, uid), processes, bytes);
            // A process that could be moved needs host memory to be moved to.
            match &self.hub {
                Some(hub) => hub.request_memory_report(),
                None => self.process_thread.send(ProcessMessage::Report(HostReport::HostMemory {
                    available: shims::available_bytes().map(Bytes),
                })),
            }
        }
    }

    /// A lease is over: the driver moves nothing of it any more. Locked processes are unlocked.
    pub fn forget_driver_target(&self, lease: LeaseId) {
        if let Some(driver) = &self.driver {
            driver.forget(lease);
        }
    }

    /// Audits a process on a GPU again; answered by [`HostReport::Audited`] or [`HostReport::ProcessEnded`].
    pub fn request_audit(&self, process: ProcKey) {
        self.unleased_monitor.audit(process);
    }

    /// Audits holders' processes on a GPU that they have no lease for, like unleased processes. To be called with
    /// each reading that shows them. Answered by [`HostReport::Audited`], repeated from time to time, and
    /// [`HostReport::ProcessEnded`].
    pub fn audit_off_lease(&self, processes: Vec<ProcKey>) {
        self.unleased_monitor.note_present(processes);
    }

    /// Sends a signal to the processes of an unleased process, that process first. Each gets it only if it is the one
    /// that was audited, the signal is still wanted, and no rule in `spared` matches the process by then. Answered by
    /// [`HostReport::SignalsSent`], which repeats `of`.
    pub fn send_signals(
        &self,
        (stranger, signal, of): (UnleasedId, u8, Time),
        processes: Vec<ProcKey>,
        spared: Vec<RuleSubject>,
        is_wanted: impl FnMut(&PendingSignal) -> bool,
    ) {
        self.unleased_monitor.send_signals((stranger, signal, of), processes, spared, is_wanted);
    }

    /// Takes back signals to unleased processes that are not wanted any more and were not sent yet. None of them is
    /// sent once this returns; each is reported as refused.
    pub fn withdraw_signals(&self, is_wanted: impl FnMut(&PendingSignal) -> bool) {
        self.unleased_monitor.withdraw_signals(is_wanted);
    }

    /// Tests on a GPU whether the pids that the driver reports are those of this host; answered by
    /// [`HostReport::SelfTested`].
    pub fn self_test(&self, uuid: String) {
        self.unleased_monitor.test_pids(uuid);
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), HostError> {
        let thread = Builder::new().name(name.to_owned()).spawn(work).map_err(HostError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.gpu_thread.stop();
        if let Some(hub) = &self.hub {
            hub.stop();
        }
        if let Some(driver) = &self.driver {
            driver.stop();
        }
        self.unleased_monitor.stop();
        self.process_thread.send(ProcessMessage::Stop);
        for thread in self.threads.drain(..) {
            // A thread that panicked has written so to stderr; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}
