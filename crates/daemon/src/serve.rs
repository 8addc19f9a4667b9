//! Starting and stopping.

use crate::access::Access;
use crate::config::{Config, ConfigError, LoadedConfig, Tcp, TcpConfig};
use crate::effects::Effects;
use crate::fair_limiter::FairLimiter;
use crate::gpu_lock;
use crate::gpu_selection::{self, GpuSelection};
use crate::history::History;
use crate::http::acceptor::Acceptor;
use crate::http::gate::Gate;
use crate::http::local_rate::LocalRate;
use crate::http::rate::CallRates;
use crate::http::seats::{self, AtLimit, ConnectionLimits, Limits};
use crate::http::tls::TlsError;
use crate::http::{self, App, AppState};
use crate::inbox::{Clients, InboxSender, LoopClient};
use crate::lease_proofs::LeaseProofs;
use crate::loop_thread::{self, Clocks, LoopThread};
use crate::looper::{self, Ballast, Loop, LoopInput, LoopStart};
use crate::loss;
use crate::notices::Notices;
use crate::peer::Operators;
use crate::refusals::RefusalCounts;
use crate::registers::RegisterKeeper;
use crate::reload::{Reload, RunningConfig};
use crate::user_directory::UserDirectory;
use crate::view::View;
use crate::watermarks::Watermarks;
use crate::writer::{self, JournalWriter};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread;
use std::time::Duration;
use sublet_core::settings::Parking;
use sublet_core::units::{Bytes, Span};
use sublet_host::clock::{self, Clock};
use sublet_host::driver::DriverSettings;
use sublet_host::gpu::{GpuKind, GpuSpec, NotAGpuSpec};
use sublet_host::shims::ShimSettings;
use sublet_host::soft::{self, SoftError, SoftPlace};
use sublet_host::{Host, HostError, HostSettings};
use sublet_journal::{Alarm, BALLAST_BYTES, Journal, LoadedState, OpenError};
use sublet_wire::exit;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where the journal is.
    pub state_dir: PathBuf,
    /// Where clients connect.
    pub socket: PathBuf,
    /// Which cards (`real`, `soft:2x24GiB`); `None`: what the file says, or see [`choice`].
    pub gpu: Option<String>,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// What the command line says about TCP; it goes before the file.
    pub tcp: TcpConfig,
}

/// Why the daemon cannot run.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `--gpu` is wrong.
    #[error(transparent)]
    Gpu(#[from] NotAGpuSpec),
    /// There is no NVIDIA device on this machine, and nothing in its place.
    #[error("no NVIDIA device is visible on this machine, and soft GPUs cannot stand in")]
    NoDevice(#[source] SoftError),
    /// The soft cards that were asked for cannot be had.
    #[error(transparent)]
    Soft(#[from] SoftError),
    /// The journal knows cards of the other kind.
    #[error("the state directory has {0} GPUs in its journal")]
    OtherKind(&'static str),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// Somebody answers on the socket already.
    #[error("another daemon{} serves on `{}`", pid.map_or(String::new(), |pid| format!(" (process {pid})")), socket.display())]
    Taken {
        /// The socket.
        socket: PathBuf,
        /// Who answers there.
        pid: Option<i32>,
    },
    /// Another daemon leases the cards of this host.
    #[error("another daemon{} leases the GPUs of this host", by.map_or(String::new(), |(pid, uid)| format!(" (process {pid} of user {uid})")))]
    CardsTaken {
        /// Which process, and whose.
        by: Option<(i32, u32)>,
    },
    /// There is something else where the socket should be.
    #[error("`{}` is there, and is no socket", socket.display())]
    NotASocket {
        /// Where.
        socket: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen on `{}`", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could put a socket of theirs in its place.
    #[error("`{}` {why}: another user could answer there in this daemon's place", dir.display())]
    Exposed {
        /// Where the socket should be.
        dir: PathBuf,
        /// Who could.
        why: String,
    },
    /// The TCP address cannot be had.
    #[error("cannot listen on {listen}")]
    Tcp {
        /// Which.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The eyes cannot open.
    #[error(transparent)]
    Host(#[from] HostError),
    /// How far epochs went cannot be known or kept.
    #[error("how far epochs went is not known")]
    Epochs(#[source] io::Error),
    /// What leases are proven by cannot be kept.
    #[error("the key of leases' marks can neither be read nor made")]
    Marks(#[source] io::Error),
    /// The system refused something every daemon needs.
    #[error("cannot start")]
    System(#[source] io::Error),
}

impl ServeError {
    /// The next step.
    pub fn hint(&self) -> Option<String> {
        match self {
            ServeError::Journal(error) => error.hint(),
            ServeError::NoDevice(error) | ServeError::Soft(error) => error.hint(),
            ServeError::OtherKind(kind) => {
                let like = if *kind == "real" { "real".to_owned() } else { format!("{kind}:1x24GiB") };
                Some(format!("say which GPUs it has, such as `--gpu {like}`, or use another `--state-dir`"))
            }
            ServeError::CardsTaken { .. } => {
                Some("stop it first, or have that done: two would promise the same memory".to_owned())
            }
            ServeError::Epochs(_) => Some(
                "if this host's clock is right, remove the file `epochs` in the state directory and start again"
                    .to_owned(),
            ),
            ServeError::NotASocket { .. } => Some("choose another `--socket`; the file was left as it is".to_owned()),
            ServeError::Taken { .. } => Some("stop it first, or choose another `--socket`".to_owned()),
            ServeError::Socket { .. } => Some("choose a `--socket` in a directory you may write to".to_owned()),
            ServeError::Exposed { .. } => Some(
                "choose a `--socket` in a directory that only you can change, or set XDG_RUNTIME_DIR to one".to_owned(),
            ),
            ServeError::Config(error) => {
                Some(error.hint().unwrap_or("`sublet config check` names every wrong line of the file").to_owned())
            }
            ServeError::Tcp { .. } => Some("choose another address or port for `listen`".to_owned()),
            ServeError::Tls(_) => {
                Some("both files are PEM, and the daemon's user must be able to read them".to_owned())
            }
            _ => None,
        }
    }

    /// What the command line exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Config(_) | ServeError::Tls(_) => exit::CONFIG,
            ServeError::Gpu(_) => exit::USAGE,
            _ => exit::FAILURE,
        }
    }
}

/// Runs the daemon until it is told to stop.
pub fn serve(options: ServeOptions) -> Result<(), ServeError> {
    log_to_stderr();
    exit_on_panic();
    let settled = RunningConfig::of(Config::read(options.config.as_deref())?.over(&options.tcp))?;
    let asked = options.gpu.as_deref().map(str::parse::<GpuSpec>).transpose()?.or_else(|| settled.1.gpu.clone());
    match &options.config {
        Some(file) => tracing::info!(file = %file.display(), "configuration read"),
        None => tracing::info!("no configuration file: all keys are at their defaults"),
    }
    let limits = raise_descriptor_limit();
    // Whoever is refused shall leave nothing behind; whoever comes after this look is found when the socket is made.
    gpu_lock::check_free(&options.socket)?;
    let (journal, loaded) = Journal::open(&options.state_dir)?;
    let choice = gpu_selection::choose(asked, &loaded)?;
    let kind = choice.gpu.kind();
    let _cards = if kind == GpuKind::Real { Some(gpu_lock::lock_gpus()?) } else { None };
    if let Some(other) = gpu_selection::other_kind(&loaded, kind) {
        return Err(ServeError::OtherKind(other.name()));
    }
    let remote = settled.1.tcp.as_ref().map(listen_beyond).transpose()?;
    let listener = gpu_lock::bind_socket(&options.socket, settled.1.socket_gid)?;
    let eyes = look_at(&choice, &options)?;
    // The loop and the writer need cores too, and every thread more is a wake-up more for a request.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, 4))
        .thread_name(RUNTIME)
        // Looks at the journal and the cards, and whoever stands in for a worker that writes.
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .map_err(ServeError::System)?;
    let doors = Listeners { local: listener, remote, limits };
    let result = run(&options, settled, eyes, journal, loaded, doors, &runtime);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// How the cards are looked at; soft ones are made here.
fn look_at(choice: &GpuSelection, options: &ServeOptions) -> Result<HostSettings, ServeError> {
    let mut eyes = HostSettings::new(choice.gpu.clone());
    eyes.script = options.state_dir.join("scripted.json");
    if let GpuSpec::Soft(spec) = &choice.gpu {
        let place =
            soft::create_gpus(spec, soft::state_file_for(&options.socket)).map_err(|error| match choice.automatic {
                true => ServeError::NoDevice(error),
                false => ServeError::Soft(error),
            })?;
        announce(&place, choice.automatic);
        eyes.soft = Some(place);
    }
    Ok(eyes)
}

/// Nobody shall take soft cards for real ones.
fn announce(place: &SoftPlace, automatic: bool) {
    if automatic {
        tracing::warn!("no NVIDIA device is visible on this machine: soft GPUs are used");
    }
    tracing::warn!(file = %place.state.display(), "{}", soft::NOTICE);
}

/// Where callers come in.
struct Listeners {
    local: std::os::unix::net::UnixListener,
    remote: Option<TcpOptions>,
    limits: Limits,
}

/// The door for whoever has a token.
struct TcpOptions {
    listener: std::net::TcpListener,
    tls: http::tcp::Tls,
    settled: Tcp,
}

/// The certificate is read before anybody can connect.
fn listen_beyond(settled: &Tcp) -> Result<TcpOptions, ServeError> {
    let tls = settled.tls.as_ref().map(|(cert, key)| http::tls::read(cert, key)).transpose()?;
    let failed = |source| ServeError::Tcp { listen: settled.listen, source };
    let listener = std::net::TcpListener::bind(settled.listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(TcpOptions { listener, tls: Arc::new(RwLock::new(tls)), settled: settled.clone() })
}

fn run(
    options: &ServeOptions,
    (running, settled): (RunningConfig, LoadedConfig),
    mut eyes: HostSettings,
    journal: Journal,
    loaded: LoadedState,
    doors: Listeners,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), ServeError> {
    let boot = clock::boot_id().map_err(ServeError::System)?;
    let clock = clock_for(&loaded, &boot);
    let names = UserDirectory::start().map_err(ServeError::System)?;
    let tokens = crate::tokens::TokenTable::default();
    let trouble = Arc::new(RwLock::new(None));
    let config_trouble = Arc::new(RwLock::new(None));
    let kind = eyes.gpu.kind().name();
    let soft_state = eyes.soft.as_ref().map(|place| place.state.display().to_string());
    let (to_loop, inbox) = InboxSender::new();
    let clients = Clients::default();
    let (orders, order_inbox) = mpsc::channel();
    let (synced_tx, synced) = watch::channel(loaded.seq);
    let (stop_tx, stop) = watch::channel(false);
    let history = History::of(&journal)?;
    if let Some(lost) = &loaded.loss {
        tracing::error!("no new leases: {}; {}", loss::sentence(lost), loss::REMEDY);
    }
    journal.on_alarm(sound_alarm);
    let ballast = announce_ballast(journal.ballast_bytes(), &options.state_dir);

    eyes.measure_context = settled.measure_context;
    let parking = &settled.policy.parking;
    eyes.shims = settled.shim.then(|| ShimSettings {
        socket: sublet_host::shims::shim_socket_path(&options.socket),
        stock_bytes: settled.stock.0,
        parking_space: parking.space.0,
        leave_available: parking.keep_available.0,
    });
    let by_driver = settled.driver && parking.space > Bytes::ZERO;
    eyes.driver = by_driver.then(DriverSettings::default);
    announce_parking(settled.shim, parking, settled.stock);
    let reports = to_loop.clone();
    let host = Arc::new(Host::start(eyes, clock, move |report| drop(reports.send(LoopInput::Report(report))))?);

    let proofs = LeaseProofs::open(&options.state_dir).map_err(ServeError::Marks)?;
    let settings = Arc::new(RwLock::new(settled.http_settings()));
    let notices = Arc::new(RwLock::new(settled.notices.clone()));
    let (watermarks, floor) =
        Watermarks::open(&options.state_dir, loop_thread::wall_us()).map_err(ServeError::Epochs)?;
    let effects = Effects {
        clients: clients.clone(),
        host: Arc::clone(&host),
        tokens: tokens.clone(),
        notices: Notices::start(
            Arc::clone(&notices),
            (to_loop.clone(), clients.clone()),
            looper::look,
            runtime.handle(),
        )
        .map_err(ServeError::System)?,
        gpu_trouble: Arc::clone(&trouble),
    };
    let writer =
        JournalWriter::new(journal, watermarks, (effects.clone(), to_loop.clone()), synced_tx, settled.history);
    let mut clocks = Clocks::new(clock);
    let moment = clocks.moment();
    let start = LoopStart {
        loaded,
        policy: settled.policy.clone(),
        clock_offset_us: i64::try_from(clock.offset().0).unwrap_or(i64::MAX),
        names: names.clone(),
        ballast,
        boot,
        floor,
        proofs: proofs.clone(),
        unmanaged: settled.unmanaged.clone(),
        visibility: settled.http_settings().visibility,
    };
    let mut the_loop = Loop::new(start, moment);
    the_loop.start(moment);
    let journal = Arc::new(Mutex::new(writer));
    let own = Arc::clone(&journal);
    let writer = spawn("sublet-writer", move || writer::run(&own, &order_inbox))?;
    let loop_thread = LoopThread { the_loop, clocks, inbox, effects, writer: orders, journal };
    let loop_thread = spawn("sublet-loop", move || loop_thread.run())?;

    let loop_client = LoopClient::new(to_loop.clone(), clients, history.clone());
    name_known_tenants(&loop_client, &names, runtime);
    runtime.block_on(wait_for_first_list(&loop_client, &trouble));
    let operators = Operators {
        own_uid: rustix::process::getuid().as_raw(),
        gid: settled.operators_gid,
        groups: settled.groups.clone(),
    };
    let access = Access::new(operators, names.clone());
    let local_rate = Arc::new(LocalRate::new(settled.socket_rate));
    let app = App::new(AppState {
        loop_client,
        host: Arc::clone(&host),
        history,
        looks: FairLimiter::new(LOOKS, LOOKS),
        calls: FairLimiter::new(CALLS, CALLS_EACH),
        polls: ConnectionLimits::new(seats::POLLS, AtLimit::Refuse),
        streams: ConnectionLimits::new(seats::STREAMS, AtLimit::Refuse),
        stream_reads: CallRates::new(http::events::READS),
        names,
        tokens: tokens.clone(),
        synced,
        trouble,
        config_trouble: Arc::clone(&config_trouble),
        kind,
        by_driver,
        soft_state,
        shim: settled.shim,
        settings: Arc::clone(&settings),
        proofs,
        stopping: stop.clone(),
        local_rate: Arc::clone(&local_rate),
        refusals: RefusalCounts::default(),
        registers: RegisterKeeper::new(&options.state_dir, settled.registers),
    });
    tracing::info!(
        "ready on {} ({kind} GPUs); no process is signalled unless its job opted in, or an operator set its GPU to `enforce`",
        options.socket.display()
    );
    let remote = doors.remote.map(|remote| {
        let gate = Arc::new(Gate::new(tokens, remote.settled.rate));
        (remote, gate)
    });
    runtime.block_on(async {
        let acceptor = Acceptor::start(doors.local)?;
        let reload = Reload {
            path: options.config.clone(),
            flags: options.tcp.clone(),
            running,
            inbox: to_loop.clone(),
            access: access.clone(),
            settings: Arc::clone(&settings),
            notices: Arc::clone(&notices),
            trouble: config_trouble,
            local_rate,
            remote: remote
                .as_ref()
                .map(|(remote, gate)| (remote.settled.clone(), Arc::clone(&remote.tls), Arc::clone(gate))),
        };
        let beyond = remote
            .map(|(remote, gate)| {
                let door = http::tcp::TcpListenerTask { gate, access: access.clone() };
                open(remote, door, &app, doors.limits, &stop)
            })
            .transpose()?;
        let (tell, told) = mpsc::channel();
        spawn("sublet-reload", move || reload.run(&told))?;
        let signals = tokio::spawn(signals(stop_tx, tell));
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        // On a worker, where connections are: here, every new one would cost two wake-ups more.
        let served = tokio::spawn(http::serve(acceptor, app, access, doors.limits, stop)).await;
        served.map_err(|error| ServeError::System(io::Error::other(error)))?;
        if let Some(beyond) = beyond {
            // It stops by the same word; whatever became of it, the daemon goes down now.
            let _ = beyond.await;
        }
        signals.abort();
        Ok::<(), ServeError>(())
    })?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    // While the journal is still locked, so that no successor has made its own yet.
    let _ = std::fs::remove_file(&options.socket);
    // The loop writes what is open, then goes; its orders end, and so does the writer.
    drop(to_loop.send(LoopInput::Stop));
    let _ = loop_thread.join();
    let _ = writer.join();
    tracing::info!("stopped; leases continue");
    Ok(())
}

/// What a journal says that runs: one that was moved is not gone on with.
fn sound_alarm(alarm: &Alarm) {
    match alarm {
        Alarm::Moved { .. } => {
            tracing::error!(
                "{alarm}: exiting, because what is acknowledged from here on could be lost; put the state directory back as it was, then start the service again"
            );
            // Without a clean stop: nothing may be acknowledged any more.
            std::process::exit(i32::from(exit::JOURNAL_MOVED))
        }
        Alarm::NotNoted(_) => {
            tracing::warn!("{alarm}; a damaged journal may not be noticed at the next start; retrying");
        }
    }
}

/// What a full disk leaves for releases and expiries is said at the start, not when it is needed.
fn announce_ballast(bytes: u64, state_dir: &Path) -> Ballast {
    let (show, usual) = (sublet_wire::size::show, BALLAST_BYTES);
    let dir = state_dir.display();
    if bytes == 0 {
        tracing::error!(
            "the disk of `{dir}` has too little room for a ballast: no new leases until it has more ({} do for all)",
            show(2 * usual)
        );
    } else if bytes < usual {
        tracing::warn!(
            "the disk of `{dir}` is small: {} instead of {} are kept to be given up for releases and expiries when it is full",
            show(bytes),
            show(usual)
        );
    }
    if bytes == 0 { Ballast::Missing } else { Ballast::Kept }
}

fn announce_parking(shim: bool, parking: &Parking, stock: Bytes) {
    let (ram, stock) = (sublet_wire::size::show(parking.space.0), sublet_wire::size::show(stock.0));
    match (shim, parking.space.0) {
        (false, _) => {
            tracing::info!("programs are started without Sublet's library: they are not capped, and not parked by it")
        }
        (true, 0) => tracing::info!("parking is off"),
        (true, _) => {
            tracing::info!(size = %ram, ready = %stock, "parking space");
        }
    }
}

/// Lets callers in who have a token.
fn open(
    remote: TcpOptions,
    door: http::tcp::TcpListenerTask,
    app: &App,
    limits: Limits,
    stop: &watch::Receiver<bool>,
) -> Result<tokio::task::JoinHandle<()>, ServeError> {
    let listener = tokio::net::TcpListener::from_std(remote.listener).map_err(ServeError::System)?;
    let address = listener.local_addr().map_err(ServeError::System)?;
    let private = if remote.settled.tls.is_some() { "TLS" } else { "not encrypted, this host only" };
    tracing::info!(%address, private, "serving callers with a token");
    Ok(tokio::spawn(http::tcp::serve(listener, app.clone(), door, remote.tls, limits, stop.clone())))
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, ServeError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(ServeError::System)
}

/// The runtime's threads. What panics there is one connection, and the runtime ends that alone.
const RUNTIME: &str = "sublet-http";

/// How long a new daemon waits for the first list of GPUs. A driver takes 1 to 3 s to start.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// Exits when any other thread panics: a daemon without its loop, its writer or its hub for programs must not live on.
fn exit_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        if thread::current().name() != Some(RUNTIME) {
            exit_after_panic();
        }
    }));
}

/// What a thread that panicked left half done is not gone on with.
pub(crate) fn exit_after_panic() -> ! {
    tracing::error!("a thread of the daemon panicked: exiting; a restart reads the journal again");
    std::process::exit(exit::PANICKED.into())
}

/// The same boot goes on with its offset; a new one where the last was seen.
fn clock_for(loaded: &LoadedState, boot: &str) -> Clock {
    let meta = &loaded.rows.meta;
    match u64::try_from(meta.clock_offset_us) {
        Ok(offset) if meta.boot == boot => Clock::new(Span(offset)),
        _ => Clock::after_boot(loaded.clock),
    }
}

/// Waits until a new daemon knows the GPUs, or why it cannot: a request before that would be refused for good.
async fn wait_for_first_list(loop_client: &LoopClient, trouble: &RwLock<Option<String>>) {
    let knows_gpus = |view: &View<'_>| view.state.gpus().next().is_some();
    let is_over = async || {
        let has_trouble = trouble.read().is_ok_and(|trouble| trouble.is_some());
        has_trouble || loop_client.read(knows_gpus).await.unwrap_or(true)
    };
    let listed = async {
        while !is_over().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // A driver that hangs must not keep the daemon from answering.
    let _ = tokio::time::timeout(FIRST_LIST, listed).await;
}

fn name_known_tenants(loop_client: &LoopClient, names: &UserDirectory, runtime: &tokio::runtime::Runtime) {
    let (loop_client, names) = (loop_client.clone(), names.clone());
    runtime.spawn(async move {
        let tenants =
            loop_client.read(|view| view.state.rows().tenants.iter().map(|t| t.name.clone()).collect::<Vec<_>>());
        if let Ok(tenants) = tenants.await {
            // One after the other, so that whoever calls meanwhile need not wait for all of them.
            for uid in tenants.iter().filter_map(|tenant| crate::user_directory::uid_of(tenant)) {
                names.wait(uid, NAMING).await;
            }
        }
    });
}

/// How long the next tenant's name waits for one that takes long.
const NAMING: Duration = Duration::from_secs(10);
/// Callers at a time for whom it is looked whose processes are on the cards. With those who read
/// history they are fewer than the threads that may block.
const LOOKS: usize = 2;
/// Requests of all local users that are answered at a time, but for those that wait for a lease to change.
const CALLS: usize = 256;
/// Of one user. Another user's request comes after so many at most, and one journal write takes as many.
const CALLS_EACH: usize = 8;

async fn signals(stop: watch::Sender<bool>, reload: mpsc::Sender<()>) {
    let (Ok(mut term), Ok(mut int), Ok(mut hup)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()))
    else {
        tracing::error!("signals cannot be caught; stop the daemon with SIGKILL: nothing is lost");
        return;
    };
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = int.recv() => break,
            // Whoever reads the file lives as long as this does.
            _ = hup.recv() => drop(reload.send(())),
        }
    }
    stop.send_replace(true);
}

/// Raises the limit on open files as far as it goes; the limits on connections that it leaves room for.
fn raise_descriptor_limit() -> Limits {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    let files = if raised.is_ok() { before.maximum } else { before.current };
    let needed = seats::LIMITS.files();
    let Some(files) = files.filter(|files| *files < needed) else { return seats::LIMITS };
    let limits = seats::LIMITS.within(files);
    tracing::warn!(
        "this process may open {files} files, and {needed} are needed for all connections: {} of users instead of {}, {} of each user instead of {}, and fewer of the others in proportion; raise LimitNOFILE, or `ulimit -Hn`",
        limits.users.all,
        seats::LIMITS.users.all,
        limits.users.each,
        seats::LIMITS.users.each
    );
    limits
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SUBLET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Under systemd the journal has its own clock.
    let journald = std::env::var_os("JOURNAL_STREAM").is_some();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false);
    let builder = builder.with_ansi(rustix::termios::isatty(io::stderr()));
    let done = if journald { builder.without_time().try_init() } else { builder.try_init() };
    // Only a second serve in one process could have set it before.
    let _ = done;
}
