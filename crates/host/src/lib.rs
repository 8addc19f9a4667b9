//! Eyes and hands: cards, processes, the clock. It reports and obeys, and never decides.
//!
//! ```text
//!   card thread ──JSON lines──► worker process ──► NVML (real or soft), or a script file
//!      │ each look
//!      ▼
//!   process thread (owns who belongs to which lease) ──► Sight ──► the caller's sink
//!      ▲ pidfds, /proc
//!      └── watch, forget
//!
//!   driver thread ──JSON lines──► worker process ──► libcuda (real or soft): moves holders' processes
//! ```
//! Calls that can hang or crash run in the [`worker`] process, with a deadline. All
//! sights leave through the process thread, so a holder's members are always told
//! before the look that shows them. Plain threads; the sink may block, and then the
//! eyes wait.
//!
//! Absent on purpose: leases (here only a name for a set of processes), names of users, anything
//! durable, and any choice of who gets a signal ([`hands`] only delivers them).

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

pub use sight::{Counts, Sight, Unlisted, UnlistedKind};

use clock::Clock;
use driver::{Driven, DriverSettings};
use eyes::Message;
use gpu::{GpuKind, GpuSpec};
use mark::Grant;
use shims::{Hub, ShimSettings, Wish};
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
use warden::{Trial, Warden};

/// How to look.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which cards.
    pub gpu: GpuSpec,
    /// The executable that becomes a worker when its first argument is `worker`.
    pub worker_exe: PathBuf,
    /// How often cards and holders are looked at by themselves.
    pub period: Duration,
    /// How long a look may take before the worker counts as hung.
    pub deadline: Duration,
    /// The file that describes scripted cards; not used for others.
    pub script: PathBuf,
    /// Where soft cards are; nowhere for others.
    pub soft: Option<SoftPlace>,
    /// Measure what a CUDA context takes on each card, once.
    pub measure_context: bool,
    /// How to speak with the library in holders' programs; not at all without.
    pub shims: Option<ShimSettings>,
    /// How to move processes by the driver's own calls; not at all without.
    pub driver: Option<DriverSettings>,
}

impl Settings {
    /// The usual settings: this very executable as worker, a look a second, two seconds
    /// of patience, no measuring.
    pub fn new(gpu: GpuSpec) -> Settings {
        Settings {
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

/// Why the eyes cannot open.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel refused a descriptor.
    #[error("cannot make the descriptors to watch with")]
    Descriptors(#[source] io::Error),
    /// Holders' programs cannot be heard.
    #[error("cannot listen for holders' programs at {socket}")]
    Shims {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Soft cards without a place: what would be read are others.
    #[error("the soft GPUs were not made")]
    NoSoftCards,
    /// The kernel refused a thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The eyes, open. Dropping it stops the threads and ends the worker.
pub struct Host {
    cards: Arc<cards::Shared>,
    eyes: eyes::Inbox,
    hub: Option<Hub>,
    driver: Option<driver::Hub>,
    warden: warden::WardenInbox,
    threads: Vec<JoinHandle<()>>,
}

impl Host {
    /// Opens the eyes; every sight goes to `sink`, from one thread.
    ///
    /// Cards that cannot be listed are a [`Sight::Unlisted`], not an error: the eyes keep trying.
    pub fn start(
        settings: Settings,
        clock: Clock,
        sink: impl Fn(Sight) + Send + Sync + 'static,
    ) -> Result<Host, HostError> {
        if settings.gpu.kind() == GpuKind::Soft && settings.soft.is_none() {
            return Err(HostError::NoSoftCards);
        }
        let (mut eyes, inbox) = eyes::Eyes::new(settings.period, Box::new(sink)).map_err(HostError::Descriptors)?;
        let shared = Arc::new(cards::Shared::new().map_err(HostError::Descriptors)?);
        let bookings = headroom::Bookings::default();
        let hub = settings.shims.as_ref().map(|shims| {
            Hub::open(shims, inbox.clone(), Arc::clone(&shared), bookings.clone())
                .map_err(|source| HostError::Shims { socket: shims.socket.clone(), source })
        });
        let (hub, hub_work) = hub.transpose()?.unzip();
        if let Some(hub) = &hub {
            eyes.set_hub(hub.clone());
        }
        let (exe, soft) = (settings.worker_exe.clone(), settings.soft.clone());
        // Scripted cards have no driver.
        let driver = settings.driver.clone().filter(|_| !matches!(settings.gpu, GpuSpec::Scripted { .. }));
        let driver =
            driver.map(|settings| driver::Hub::open(settings, exe, soft, inbox.clone(), Arc::clone(&shared), bookings));
        let (driver, driver_work) = driver.transpose().map_err(HostError::Descriptors)?.unzip();
        let trial = Trial {
            exe: settings.worker_exe.clone(),
            soft: settings.soft.clone(),
            scripted: settings.gpu.kind() == GpuKind::Scripted,
        };
        let (mut warden, warden_inbox) =
            Warden::new(inbox.clone(), Arc::clone(&shared), trial).map_err(HostError::Descriptors)?;
        eyes.set_warden(warden_inbox.clone());
        // Hints only bring forward what comes by itself: without them everything works, a little later.
        let soft: Vec<PathBuf> = settings.soft.iter().map(|soft| soft.state.clone()).collect();
        let hints = (settings.gpu.kind() != GpuKind::Scripted).then(|| audit::Hints::open(&soft).ok()).flatten();
        if let Some((hints, _)) = &hints {
            eyes.set_forebears(hints.forebears());
            warden.set_forebears(hints.forebears());
        }
        let hints = hints.map(|(hints, missing)| (hints, missing, inbox.clone()));
        let cards = cards::CardThread::new(settings, clock, Arc::clone(&shared), inbox.clone());
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

    /// Watches a holder: `roots`, all that descends from them, and all that carries the
    /// lease's mark (its own cgroup, or, once it was [granted](Host::granted), `SUBLET_LEASE` and
    /// `SUBLET_EPOCH` in the environment of a process of `uid`; in a container also `SUBLET_MARK`).
    ///
    /// Answered by [`Sight::Members`] or [`Sight::Gone`]. Watching a lease again replaces its
    /// roots; processes that are members already stay so until they end. A root that is in
    /// another lease's tree leaves it, with all below it.
    pub fn watch(&self, lease: LeaseId, uid: u32, roots: Vec<ProcKey>, grant: Option<Grant>) {
        self.eyes.send(Message::Watch { lease, uid, roots, grant });
    }

    /// A watched lease was granted: its programs carry `SUBLET_LEASE` with this `SUBLET_EPOCH` and `SUBLET_MARK`.
    pub fn granted(&self, lease: LeaseId, grant: Grant) {
        self.eyes.send(Message::Granted { lease, grant });
    }

    /// Stops watching a holder. Of what happens from now on nothing is told; nothing happens to it.
    pub fn forget(&self, lease: LeaseId) {
        self.eyes.send(Message::Forget { lease });
    }

    /// Looks at the cards soon. Many wishes at once are one look, but a wish made while a
    /// look is under way is another look after it.
    pub fn look(&self) {
        self.cards.wish();
    }

    /// Says where a holder's bytes shall be, and what it may have of its cards. Whoever of its programs is
    /// elsewhere is told so, now and when it comes back; what they answer is a [`Sight::Said`].
    pub fn wish(&self, wish: Wish) {
        if let Some(hub) = &self.hub {
            hub.wish(wish);
        }
    }

    /// A lease is history: its programs are told nothing more.
    pub fn unwish(&self, lease: LeaseId) {
        if let Some(hub) = &self.hub {
            hub.forget(lease);
        }
    }

    /// All leases that there were at the start have been told by [`Host::watch`] and [`Host::wish`]. From now on looks at
    /// the GPUs are told, and programs with the library are let in, which waited until then: none of theirs is taken for
    /// unleased, or for one of a lease that is over.
    pub fn listen(&self) {
        self.eyes.send(Message::RosterComplete);
        if let Some(hub) = &self.hub {
            hub.listen();
        }
    }

    /// Says how much host memory is booked for parked bytes: what is kept ready for them is no more than the rest.
    pub fn booked(&self, bytes: u64) {
        if let Some(hub) = &self.hub {
            hub.booked(bytes);
        }
    }

    /// Host memory that is kept ready for parked bytes.
    pub fn stock(&self) -> u64 {
        self.hub.as_ref().map_or(0, Hub::stock)
    }

    /// Somebody waits for a holder's cards: its programs make ready to leave them.
    pub fn ahead(&self, lease: LeaseId) {
        if let Some(hub) = &self.hub {
            hub.ahead(lease);
        }
    }

    /// Says where the bytes of a holder shall be that the driver itself moves. Whoever of its processes is
    /// elsewhere is moved; what becomes of it is a [`Sight::Driven`]. A wish that was refused is tried
    /// again when it is said again.
    pub fn drive(&self, wish: Driven) {
        if let Some(driver) = &self.driver {
            driver.drive(wish);
        }
    }

    /// Looks from outside whether the driver could move the processes of a lease of this user, which have so many bytes
    /// on cards. Answered for each by a [`Sight::Driven`]; nothing happens to them.
    pub fn inspect(&self, (lease, uid): (LeaseId, u32), processes: Vec<ProcKey>, bytes: u64) {
        if let Some(driver) = &self.driver {
            driver.inspect((lease, uid), processes, bytes);
            // Whoever could be moved needs memory to be moved to.
            match &self.hub {
                Some(hub) => hub.ram(),
                None => self.eyes.send(Message::Tell(Sight::Ram { available: shims::available().map(Bytes) })),
            }
        }
    }

    /// A lease is history: the driver moves nothing of it any more. What it has locked goes on.
    pub fn undrive(&self, lease: LeaseId) {
        if let Some(driver) = &self.driver {
            driver.forget(lease);
        }
    }

    /// Looks into a process on a card again; answered by [`Sight::Audited`] or [`Sight::Left`].
    pub fn audit(&self, process: ProcKey) {
        self.warden.audit(process);
    }

    /// Looks into holders' processes on a card that they have no lease for, as it does into strangers: said with each
    /// look that shows them. Answered by [`Sight::Audited`], now and then again, and [`Sight::Left`].
    pub fn abroad(&self, processes: Vec<ProcKey>) {
        self.warden.present(processes);
    }

    /// Sends a signal to processes of a stranger, the stranger first: each is the one that was audited, and still
    /// wanted, or gets none; nor does who is one of those that are spared by then. Answered by [`Sight::Struck`], which says `of` again.
    pub fn strike(
        &self,
        (stranger, signal, of): (StrangerId, u8, Time),
        processes: Vec<ProcKey>,
        spared: Vec<Who>,
        is_wanted: impl FnMut(&Blow) -> bool,
    ) {
        self.warden.strike((stranger, signal, of), processes, spared, is_wanted);
    }

    /// Takes back signals to strangers that are not wanted any more, of those that were not sent yet. None of them is
    /// sent once this returns; each is told as one that was refused.
    pub fn recall(&self, is_wanted: impl FnMut(&Blow) -> bool) {
        self.warden.recall(is_wanted);
    }

    /// Tries on a card whether the driver's processes can be told apart here; answered by
    /// [`Sight::SelfTested`].
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
        self.eyes.send(Message::Stop);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so on stderr; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}
