//! Access to the host: GPUs, processes, the clock. This crate reports and executes, and never decides.
//!
//! ```text
//!   GPU thread ──JSON lines──► worker process ──► NVML (real or soft), or a script file
//!      │ each reading
//!      ▼
//!   process thread (owns which process is in which lease) ──► Sight ──► the caller's sink
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
//! choice of which process gets a signal ([`hands`] only delivers them).

mod activity;
pub mod audit;
mod cards;
pub mod clock;
pub mod driver;
mod exits;
mod eyes;
#[doc(hidden)]
pub mod fuzz;
pub mod gpu;
pub mod hands;
mod headroom;
mod link;
pub mod mark;
mod patient;
pub mod process;
mod protocol;
mod roster;
pub mod shims;
mod sight;
pub mod soft;
mod stir;
pub mod terminal;
mod wake;
mod warden;
pub mod worker;

pub use sight::{ActivityCounts, GpuListError, GpuListErrorKind, HostReport};

use clock::Clock;
use driver::{DriverSettings, DriverTarget};
use eyes::ProcessMessage;
use gpu::{GpuKind, GpuSpec};
use mark::Grant;
use shims::{ShimHub, ShimSettings, ShimTarget};
use soft::SoftPlace;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::stranger::{Blow, StrangerId, Who};
use sublet_core::units::{Bytes, Time};
use thiserror::Error;
use warden::{PidTest, UnleasedMonitor};

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
    NoSoftCards,
    /// The kernel refused a thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The running threads. Dropping it stops them and ends the worker.
pub struct Host {
    cards: Arc<cards::GpuThreadHandle>,
    eyes: eyes::ProcessThreadInbox,
    hub: Option<ShimHub>,
    driver: Option<driver::DriverHub>,
    warden: warden::UnleasedMonitorInbox,
    threads: Vec<JoinHandle<()>>,
}

impl Host {
    /// Starts the threads; every report goes to `sink`, from one thread.
    ///
    /// If the GPUs cannot be listed, that is a [`HostReport::GpuListError`], not an error: listing is tried again.
    pub fn start(
        settings: HostSettings,
        clock: Clock,
        sink: impl Fn(HostReport) + Send + Sync + 'static,
    ) -> Result<Host, HostError> {
        if settings.gpu.kind() == GpuKind::Soft && settings.soft.is_none() {
            return Err(HostError::NoSoftCards);
        }
        let (mut eyes, inbox) =
            eyes::ProcessThread::new(settings.period, Box::new(sink)).map_err(HostError::Descriptors)?;
        let shared = Arc::new(cards::GpuThreadHandle::new().map_err(HostError::Descriptors)?);
        let bookings = headroom::Bookings::default();
        let hub = settings.shims.as_ref().map(|shims| {
            ShimHub::open(shims, inbox.clone(), Arc::clone(&shared), bookings.clone())
                .map_err(|source| HostError::Shims { socket: shims.socket.clone(), source })
        });
        let (hub, hub_work) = hub.transpose()?.unzip();
        if let Some(hub) = &hub {
            eyes.set_hub(hub.clone());
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
        let (mut warden, warden_inbox) =
            UnleasedMonitor::new(inbox.clone(), Arc::clone(&shared), trial).map_err(HostError::Descriptors)?;
        eyes.set_warden(warden_inbox.clone());
        // Hints only bring forward what comes by itself: without them everything works, a little later.
        let soft: Vec<PathBuf> = settings.soft.iter().map(|soft| soft.state.clone()).collect();
        let hints = (settings.gpu.kind() != GpuKind::Scripted).then(|| audit::HintListener::open(&soft).ok()).flatten();
        if let Some((hints, _)) = &hints {
            eyes.set_forebears(hints.forebears());
            warden.set_forebears(hints.forebears());
        }
        let hints = hints.map(|(hints, missing)| (hints, missing, inbox.clone()));
        let cards = cards::GpuThread::new(settings, clock, Arc::clone(&shared), inbox.clone());
        let mut host = Host { cards: shared, eyes: inbox, hub, driver, warden: warden_inbox, threads: Vec::new() };
        if let Some(work) = hub_work {
            host.spawn("sublet-shims", work)?;
        }
        if let Some(work) = driver_work {
            host.spawn("sublet-driver", work)?;
        }
        if let Some((hints, missing, eyes)) = hints {
            let cards = Arc::clone(&host.cards);
            host.spawn("sublet-stir", move || stir::run(hints, &missing, &cards, &eyes))?;
        }
        host.spawn("sublet-warden", move || warden.run())?;
        host.spawn("sublet-eyes", move || eyes.run())?;
        host.spawn("sublet-cards", move || cards.run())?;
        Ok(host)
    }

    /// Watches a holder: `roots`, their descendants, and every process that carries the lease's proof. The proof is
    /// the lease's own cgroup, or, once it was [granted](Host::granted), `SUBLET_LEASE` and `SUBLET_EPOCH` in the
    /// environment of a process of `uid`; in a container also `SUBLET_MARK`.
    ///
    /// Answered by [`HostReport::Members`] or [`HostReport::Gone`]. Watching a lease again replaces its roots; present members
    /// stay members until they end. A root that is in another lease's tree leaves it, with all its descendants.
    pub fn watch(&self, lease: LeaseId, uid: u32, roots: Vec<ProcKey>, grant: Option<Grant>) {
        self.eyes.send(ProcessMessage::Watch { lease, uid, roots, grant });
    }

    /// A watched lease was granted: its programs carry `SUBLET_LEASE` with this `SUBLET_EPOCH` and `SUBLET_MARK`.
    pub fn granted(&self, lease: LeaseId, grant: Grant) {
        self.eyes.send(ProcessMessage::Granted { lease, grant });
    }

    /// Stops watching a holder. Nothing more is reported about it; its processes are not affected.
    pub fn forget(&self, lease: LeaseId) {
        self.eyes.send(ProcessMessage::Forget { lease });
    }

    /// Requests a reading of the GPUs soon. Several requests at once cause one reading, but a request made during a
    /// reading causes another one after it.
    pub fn look(&self) {
        self.cards.wish();
    }

    /// Sets where a holder's bytes shall be, and what it may have of its GPUs. Each of its programs that is elsewhere
    /// is ordered to move, now and when it connects again; each answer is a [`HostReport::Said`].
    pub fn wish(&self, wish: ShimTarget) {
        if let Some(hub) = &self.hub {
            hub.wish(wish);
        }
    }

    /// A lease is over: its programs get no further orders.
    pub fn unwish(&self, lease: LeaseId) {
        if let Some(hub) = &self.hub {
            hub.forget(lease);
        }
    }

    /// Says that all leases that existed at the start were passed to [`Host::watch`] and [`Host::wish`]. From now on
    /// readings of the GPUs are reported, and programs with the library are accepted. Both wait until then, so that
    /// no program of a lease is taken for unleased, or for one of a lease that is over.
    pub fn listen(&self) {
        self.eyes.send(ProcessMessage::RosterComplete);
        if let Some(hub) = &self.hub {
            hub.listen();
        }
    }

    /// Sets how much host memory is booked for parked bytes: at most the rest is kept ready for them.
    pub fn booked(&self, bytes: u64) {
        if let Some(hub) = &self.hub {
            hub.booked(bytes);
        }
    }

    /// Bytes of host memory that are kept ready for parked bytes.
    pub fn stock(&self) -> u64 {
        self.hub.as_ref().map_or(0, ShimHub::stock)
    }

    /// A waiter needs a holder's GPUs: its programs prepare to park.
    pub fn ahead(&self, lease: LeaseId) {
        if let Some(hub) = &self.hub {
            hub.ahead(lease);
        }
    }

    /// Sets where the bytes of a holder shall be that the driver itself moves. Each of its processes that is
    /// elsewhere is moved; the outcome is a [`HostReport::DriverTarget`]. A refused target is tried again when this is called
    /// again.
    pub fn drive(&self, wish: DriverTarget) {
        if let Some(driver) = &self.driver {
            driver.drive(wish);
        }
    }

    /// Examines from outside whether the driver could move the processes of a lease of this user; `bytes` is what
    /// they have on GPUs. Answered for each by a [`HostReport::DriverTarget`]; the processes are not affected.
    pub fn inspect(&self, (lease, uid): (LeaseId, u32), processes: Vec<ProcKey>, bytes: u64) {
        if let Some(driver) = &self.driver {
            driver.inspect((lease, uid), processes, bytes);
            // A process that could be moved needs host memory to be moved to.
            match &self.hub {
                Some(hub) => hub.ram(),
                None => {
                    self.eyes.send(ProcessMessage::Tell(HostReport::Ram { available: shims::available().map(Bytes) }))
                }
            }
        }
    }

    /// A lease is over: the driver moves nothing of it any more. Locked processes are unlocked.
    pub fn undrive(&self, lease: LeaseId) {
        if let Some(driver) = &self.driver {
            driver.forget(lease);
        }
    }

    /// Audits a process on a GPU again; answered by [`HostReport::Audited`] or [`HostReport::Left`].
    pub fn audit(&self, process: ProcKey) {
        self.warden.audit(process);
    }

    /// Audits holders' processes on a GPU that they have no lease for, like unleased processes. To be called with
    /// each reading that shows them. Answered by [`HostReport::Audited`], repeated from time to time, and [`HostReport::Left`].
    pub fn abroad(&self, processes: Vec<ProcKey>) {
        self.warden.present(processes);
    }

    /// Sends a signal to the processes of an unleased process, that process first. Each gets it only if it is the one
    /// that was audited, the signal is still wanted, and no rule in `spared` matches the process by then. Answered by
    /// [`HostReport::Struck`], which repeats `of`.
    pub fn strike(
        &self,
        (stranger, signal, of): (StrangerId, u8, Time),
        processes: Vec<ProcKey>,
        spared: Vec<Who>,
        is_wanted: impl FnMut(&Blow) -> bool,
    ) {
        self.warden.strike((stranger, signal, of), processes, spared, is_wanted);
    }

    /// Takes back signals to unleased processes that are not wanted any more and were not sent yet. None of them is
    /// sent once this returns; each is reported as refused.
    pub fn recall(&self, is_wanted: impl FnMut(&Blow) -> bool) {
        self.warden.recall(is_wanted);
    }

    /// Tests on a GPU whether the pids that the driver reports are those of this host; answered by
    /// [`HostReport::SelfTested`].
    pub fn self_test(&self, uuid: String) {
        self.warden.try_card(uuid);
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), HostError> {
        let thread = Builder::new().name(name.to_owned()).spawn(work).map_err(HostError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.cards.stop();
        if let Some(hub) = &self.hub {
            hub.stop();
        }
        if let Some(driver) = &self.driver {
            driver.stop();
        }
        self.warden.stop();
        self.eyes.send(ProcessMessage::Stop);
        for thread in self.threads.drain(..) {
            // A thread that panicked has written so to stderr; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}
