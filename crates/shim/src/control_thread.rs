//! The thread that receives the daemon's orders and carries them out.
//!
//! It starts when the program first calls the driver, takes no signals, and always passes the gate. When the daemon
//! goes away the thread looks for it again, because a parked program waits for the daemon. A program that gets a lease
//! after its start names it ([`use_lease`]): the thread then greets the daemon anew.

use crate::arena::FilePages;
use crate::daemon_link;
use crate::driver;
use crate::gate::{self, GateState};
use crate::lease_page;
use crate::lease_setting;
use crate::log;
use crate::message::{PACKET_MAX, ShimOrder, ShimReport};
use crate::outside_access;
use crate::packet_socket::{self, ClosedOnFork, PacketSocket, SocketUse};
use crate::park::{ParkLimit, ParkRequest, Parker};
use crate::threads;
use crate::unmovable_memory;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// The version of the messages: since 2 the shim can stop calling the driver altogether.
const VERSION: u32 = 2;
/// How often to check whether other processes or devices use this program's memory.
const OUTSIDE_PERIOD: Duration = Duration::from_secs(15);
/// How often counters are summed up, and the daemon is looked for.
const TICK: Duration = Duration::from_millis(100);
/// How long a program waits for the daemon when it begins to use the driver, to learn its cap.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval while a thread may wait at the gate.
const SHORT_TICK: Duration = Duration::from_millis(5);

static STARTED: Once = Once::new();
/// True once the thread runs, or cannot be started.
static HAS_THREAD: AtomicBool = AtomicBool::new(false);
/// True if the daemon has answered, or is not there.
static IS_ANSWERED: Mutex<bool> = Mutex::new(false);
static ANSWERED: Condvar = Condvar::new();

fn note_first_answer() {
    *IS_ANSWERED.lock().unwrap_or_else(PoisonError::into_inner) = true;
    ANSWERED.notify_all();
}

/// On the first call, starts the thread if there is a daemon, and waits for its first answer.
pub fn start() {
    STARTED.call_once(|| {
        // SAFETY: the handler only stores numbers.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        // SAFETY: the handler only sums up numbers.
        unsafe { libc::atexit(at_exit) };
        outside_access::read_mps_setting();
        lease_page::is_verbose();
        if lease_setting::socket().is_some() {
            start_thread();
            await_first_answer();
        }
    });
}

fn start_thread() {
    if !HAS_THREAD.swap(true, SeqCst) && !threads::spawn_without_signals("sublet-shim", run_thread) {
        log::once("the host gives no thread: this program cannot be parked");
        note_first_answer();
    }
}

/// Waits for the daemon's answer, but not beyond `FIRST_ANSWER_TIMEOUT`.
fn await_first_answer() {
    let answered = IS_ANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    drop(ANSWERED.wait_timeout_while(answered, FIRST_ANSWER_TIMEOUT, |is_answered| !*is_answered));
}

/// The program has this lease of the daemon at `socket` from now on, whatever its environment says. If it uses the
/// driver already, waits until the daemon knows.
pub fn use_lease(socket: &Path, lease: &str) {
    if !lease_setting::set(socket, lease) || !STARTED.is_completed() {
        return;
    }
    *IS_ANSWERED.lock().unwrap_or_else(PoisonError::into_inner) = false;
    start_thread();
    await_first_answer();
}

/// Ensures that the lease's page can be read, without a thread if the driver is not used.
pub fn map_page_once() {
    static MAPPED: Once = Once::new();
    let Some(socket) = lease_setting::socket() else { return };
    if lease_page::is_shared() || STARTED.is_completed() {
        return;
    }
    MAPPED.call_once(|| {
        let Ok(connection) = DaemonConnection::connect(&socket) else { return };
        let asked = connection.send(&hello(Greeting::ReadPage));
        let answer = asked.and_then(|()| connection.receive(FIRST_ANSWER_TIMEOUT));
        if let Ok(Some((ShimOrder::Welcome { pid, .. }, Some(file)))) = answer
            && let Err(why) = lease_page::map_without_slot(&file, pid)
        {
            log::once(&why);
        }
    });
}

extern "C" fn after_fork_in_child() {
    gate::disarm();
    // A connection that a child also had would outlive the process that listens to it.
    packet_socket::close_in_child();
}

/// Counts what was done since the last tick.
extern "C" fn at_exit() {
    if !gate::is_disarmed() {
        publish_counters();
    }
}

fn run_thread() {
    gate::exempt_this_thread();
    let mut parker = Parker::default();
    loop {
        let version = lease_setting::version();
        let socket = lease_setting::socket().unwrap_or_default();
        if let Ok(connection) = DaemonConnection::connect(&socket) {
            // The conversation ends when the daemon closes the connection, or the program names another lease; then
            // the daemon is looked for again.
            let _ = serve_daemon(&connection, &mut parker, version);
            daemon_link::note_disconnected();
        }
        if lease_setting::version() != version {
            continue;
        }
        note_first_answer();
        if !publish_counters() {
            parker.release_excess();
        }
        std::thread::sleep(TICK);
        if gate::is_disarmed() {
            return;
        }
    }
}

/// Tells the daemon that this process is not gated, and why; the connection is closed afterwards.
pub fn report_tool(tool: &str) {
    let Some(socket) = lease_setting::socket() else { return };
    if let Ok(connection) = DaemonConnection::connect(&socket) {
        // Without a daemon there is nothing to tell.
        let _ = connection.send(&hello(Greeting::StepAside(tool)));
    }
}

fn log_lease_over() {
    let lease = lease_setting::lease().unwrap_or_default();
    log::once(&format!(
        "{lease}, the lease that this program was started on, is over: it uses the GPU without one; `sublet run` asks for one"
    ));
}

/// What this process wants of the daemon.
enum Greeting<'a> {
    /// To carry out its orders.
    Serve,
    /// To read the lease's page; the process does not use the driver.
    ReadPage,
    /// To say that this tool takes the shim's place.
    StepAside(&'a str),
}

fn hello(greeting: Greeting<'_>) -> ShimReport {
    let lease = lease_setting::lease();
    let parked = gate::state() == GateState::Parked;
    let bytes = lease_page::own_slot().parked.load(SeqCst);
    ShimReport::Hello {
        version: VERSION,
        pid: std::process::id(),
        lease,
        parked,
        bytes,
        deep: gate::is_context_away(),
        aside: match greeting {
            Greeting::StepAside(tool) => Some(tool.to_owned()),
            Greeting::Serve | Greeting::ReadPage => None,
        },
        looks: matches!(greeting, Greeting::ReadPage),
    }
}

/// Talks with the daemon about the lease of this version of the setting.
fn serve_daemon(connection: &DaemonConnection, parker: &mut Parker, version: u64) -> io::Result<()> {
    connection.send(&hello(Greeting::Serve))?;
    // A new daemon was not told yet which call waits.
    let mut told = false;
    let (mut ticked, mut looked) = (Instant::now(), None::<Instant>);
    let _kept = ClosedOnFork::new(&connection.0, SocketUse::Daemon);
    daemon_link::note_connected();
    while lease_setting::version() == version {
        let usual = if gate::state() == GateState::Parked { SHORT_TICK } else { TICK };
        let prepare_pause = parker.prepare_pause();
        if let Some((order, file)) = connection.receive(prepare_pause.unwrap_or(usual))? {
            carry_out(order, file, connection, parker)?;
        } else if prepare_pause.is_some() {
            relax_capture_mode();
            if let Some(bytes) = parker.prepare() {
                connection.send(&ShimReport::Prepared { bytes })?;
            }
        }
        // A program that did nothing for less than a tick may still be busy.
        if prepare_pause.is_none() || ticked.elapsed() >= TICK {
            ticked = Instant::now();
            if !publish_counters() {
                parker.release_excess();
            }
            if gate::state() == GateState::Open {
                unmovable_memory::count_graph_memory();
            }
            if looked.is_none_or(|looked| looked.elapsed() >= OUTSIDE_PERIOD) {
                looked = Some(Instant::now());
                outside_access::update_obstacles();
            }
        }
        if gate::state() != GateState::Parked {
            daemon_link::forget_waiting_call();
            told = false;
        }
        if let Some(call) = daemon_link::waiting_call().filter(|_| !told) {
            told = true;
            connection.send(&ShimReport::Wants { call })?;
        }
    }
    Ok(())
}

/// Keeps the calls of this thread from disturbing captures of the program.
fn relax_capture_mode() {
    let mut relaxed = 2;
    driver::cuThreadExchangeStreamCaptureMode(&mut relaxed);
}

fn carry_out(
    order: ShimOrder,
    file: Option<File>,
    connection: &DaemonConnection,
    parker: &mut Parker,
) -> io::Result<()> {
    // The daemon gives one of these orders only if the driver answers.
    if !gate::is_context_away() || matches!(order, ShimOrder::Resume { .. } | ShimOrder::Shallow { .. }) {
        relax_capture_mode();
    }
    parker.forget_gone();
    match order {
        ShimOrder::Welcome { page, pid, over } => {
            if over {
                log_lease_over();
            }
            if let (true, Some(file)) = (page, &file)
                && let Err(why) = lease_page::move_counters_to(file, pid)
            {
                log::once(&why);
            }
            note_first_answer();
            Ok(())
        }
        ShimOrder::Park { id, deadline_ms, most } => {
            let done = parker.park(ParkRequest { within: Duration::from_millis(deadline_ms), limit: limit_of(most) });
            connection.send(&match done {
                Ok((bytes, took)) => ShimReport::Parked { id, bytes, took },
                Err(why) => ShimReport::Refused { id, why },
            })
        }
        ShimOrder::Resume { id } => {
            let done = parker.resume();
            connection.send(&match done {
                Ok((bytes, took)) => ShimReport::Resumed { id, bytes, took },
                Err(why) => ShimReport::Refused { id, why },
            })
        }
        ShimOrder::Deepen { id } => connection.send(&match parker.deepen() {
            Ok(()) => ShimReport::Deep { id },
            Err(why) => ShimReport::Refused { id, why },
        }),
        ShimOrder::Shallow { id } => connection.send(&match parker.shallow() {
            Ok(()) => ShimReport::Shallow { id },
            Err(why) => ShimReport::Refused { id, why },
        }),
        ShimOrder::Prepare { bytes } => {
            parker.set_prepare_target(bytes);
            Ok(())
        }
        ShimOrder::Arena { bytes, filled } => {
            let pages = if filled { FilePages::Present } else { FilePages::Absent };
            if let Some(file) = file
                && let Err(why) = parker.arena().add_file(&file, bytes, pages)
            {
                log::once(&why);
            }
            Ok(())
        }
        ShimOrder::Trim { id } => match parker.trim() {
            Ok(()) => Ok(()),
            Err(why) => connection.send(&ShimReport::Refused { id, why }),
        },
        ShimOrder::Over { why } => {
            parker.lose_parked(&why);
            Ok(())
        }
    }
}

/// How much an order to park may move.
fn limit_of(most: Option<u64>) -> ParkLimit {
    match most {
        None => ParkLimit::Unlimited,
        Some(0) => ParkLimit::Nothing,
        Some(most) => ParkLimit::AtMost(most),
    }
}

/// Sums up what the threads counted. Returns whether they did anything.
fn publish_counters() -> bool {
    let (mut launches, mut copies, mut copied) = (0, 0, 0_u64);
    for seat in gate::thread_seats() {
        launches += seat.launches.load(Relaxed);
        copies += seat.copies.load(Relaxed);
        copied = copied.saturating_add(seat.copied.load(Relaxed));
    }
    lease_page::set_copied(copied);
    let own = lease_page::own_slot();
    let is_new = own.launches.swap(launches, Relaxed) != launches || own.copies.swap(copies, Relaxed) != copies;
    if is_new {
        own.active_ns.store(now_ns(), Relaxed);
    }
    is_new
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives until the call returns, which fills it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A connection to the daemon.
struct DaemonConnection(PacketSocket);

impl DaemonConnection {
    fn connect(path: &[u8]) -> io::Result<DaemonConnection> {
        PacketSocket::connect(path).map(DaemonConnection)
    }

    fn send(&self, report: &ShimReport) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(report)?, None)
    }

    /// What the daemon says within `pause`, with the descriptor that came along; `None` if nothing came.
    fn receive(&self, pause: Duration) -> io::Result<Option<(ShimOrder, Option<File>)>> {
        let mut bytes = [0_u8; PACKET_MAX];
        let Some((length, file)) = self.0.receive(&mut bytes, pause)? else { return Ok(None) };
        // Orders of a newer daemon that this version does not know are ignored.
        Ok(serde_json::from_slice(&bytes[..length]).ok().map(|order| (order, file)))
    }
}
