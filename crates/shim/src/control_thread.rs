//! The thread that receives the daemon's orders and carries them out.
//!
//! It starts when the program first calls the driver, takes no signals, and always passes the gate. When the daemon
//! goes away the thread looks for it again, because a parked program waits for the daemon.

use crate::driver;
use crate::fixed;
use crate::gate;
use crate::log;
use crate::message::{Order, PACKET_MAX, SOCKET, Word};
use crate::outside;
use crate::page;
use crate::park::Parker;
use crate::socket::{self, Kept, Socket};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Condvar, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The version of the messages: since 2 the shim can stop calling the driver altogether.
const VERSION: u32 = 2;
/// How often to check whether other processes or devices use this program's memory.
const LOOK_OUTSIDE: Duration = Duration::from_secs(15);
/// How often counters are summed up, and the daemon is looked for.
const TICK: Duration = Duration::from_millis(100);
/// How long a program waits for the daemon when it begins to use the driver, to learn its cap.
const WELCOME: Duration = Duration::from_secs(1);
/// The interval while a thread may wait at the gate.
const SHORT_TICK: Duration = Duration::from_millis(5);

static WANTED: Mutex<Option<String>> = Mutex::new(None);
static IS_PARKED: AtomicBool = AtomicBool::new(false);

/// Notes that a thread waits at the gate for the memory to come back.
pub fn wants(call: &str) {
    *WANTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(call.to_owned());
}

/// True if there is a connection to the daemon.
static IS_CONNECTED: AtomicBool = AtomicBool::new(false);

/// True if there is a connection to the daemon.
pub fn is_connected() -> bool {
    IS_CONNECTED.load(SeqCst)
}

static STARTED: Once = Once::new();
/// True if the daemon has answered, or is not there.
static IS_WELCOME: Mutex<bool> = Mutex::new(false);
static WELCOMED: Condvar = Condvar::new();

fn welcomed() {
    *IS_WELCOME.lock().unwrap_or_else(PoisonError::into_inner) = true;
    WELCOMED.notify_all();
}

/// On the first call, starts the thread if there is a daemon, and waits for its first answer.
pub fn prepare() {
    STARTED.call_once(|| {
        // SAFETY: the handler only stores numbers.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // SAFETY: the handler only sums up numbers.
        unsafe { libc::atexit(at_exit) };
        let Some(socket) = std::env::var_os(SOCKET) else { return };
        outside::note();
        lease();
        page::is_verbose();
        if !spawn("sublet-shim", move || serve(socket.as_bytes())) {
            log::once("the host gives no thread: this program cannot be parked");
            welcomed();
        }
        let answered = IS_WELCOME.lock().unwrap_or_else(PoisonError::into_inner);
        // The daemon is not waited for beyond `WELCOME`.
        drop(WELCOMED.wait_timeout_while(answered, WELCOME, |is_welcome| !*is_welcome));
    });
}

/// Starts a thread that takes no signals. Returns whether it could be started.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: sets of signals are plain numbers, filled by the calls before they are read.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        thread.is_ok()
    }
}

/// Ensures that the lease's page can be read, without a thread if the driver is not used.
pub fn see_page() {
    static LOOKED: Once = Once::new();
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    if page::is_shared() || STARTED.is_completed() {
        return;
    }
    LOOKED.call_once(|| {
        let Ok(line) = Line::connect(socket.as_bytes()) else { return };
        let asked = line.send(&hello(None, true));
        let answer = asked.and_then(|()| line.receive(WELCOME));
        if let Ok(Some((Order::Welcome { pid, .. }, Some(file)))) = answer
            && let Err(why) = page::look_at(&file, pid)
        {
            log::once(&why);
        }
    });
}

extern "C" fn in_child() {
    gate::disarm();
    // A connection that a child also had would outlive the process that listens to it.
    socket::close_in_child();
}

/// Counts what was done since the last tick.
extern "C" fn at_exit() {
    if !gate::is_disarmed() {
        tick();
    }
}

fn serve(socket: &[u8]) {
    gate::free_this_thread();
    let mut parker = Parker::default();
    loop {
        if let Ok(line) = Line::connect(socket) {
            // The conversation ends when the daemon closes the connection; then the daemon is looked for again.
            let _ = talk(&line, &mut parker);
            IS_CONNECTED.store(false, SeqCst);
        }
        welcomed();
        if !tick() {
            parker.tidy();
        }
        std::thread::sleep(TICK);
        if gate::is_disarmed() {
            return;
        }
    }
}

/// Tells the daemon that this process is not gated, and why; the connection is closed afterwards.
pub fn say_aside(tool: &str) {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    if let Ok(line) = Line::connect(socket.as_bytes()) {
        // Without a daemon there is nothing to tell.
        let _ = line.send(&hello(Some(tool.to_owned()), false));
    }
}

/// The lease that the program was started for, as read by the program's own thread: the shim's thread must not read an
/// environment that the program may be changing.
static LEASE: OnceLock<Option<String>> = OnceLock::new();

fn lease() -> Option<String> {
    LEASE.get_or_init(|| std::env::var("SUBLET_LEASE").ok()).clone()
}

fn say_over() {
    let lease = lease().unwrap_or_default();
    log::once(&format!(
        "{lease}, the lease that this program was started on, is over: it uses the GPU without one; `sublet run` asks for one"
    ));
}

fn hello(aside: Option<String>, looks: bool) -> Word {
    let lease = lease();
    let parked = gate::state() == gate::PARKED;
    let bytes = page::own().parked.load(SeqCst);
    Word::Hello { version: VERSION, pid: std::process::id(), lease, parked, bytes, deep: gate::is_deep(), aside, looks }
}

fn talk(line: &Line, parker: &mut Parker) -> io::Result<()> {
    line.send(&hello(None, false))?;
    // A new daemon was not told yet which call waits.
    let mut told = false;
    let (mut ticked, mut looked) = (Instant::now(), None::<Instant>);
    let _kept = Kept::new(&line.0, 0);
    IS_CONNECTED.store(true, SeqCst);
    loop {
        let usual = if IS_PARKED.load(Relaxed) { SHORT_TICK } else { TICK };
        let rest = parker.rest();
        if let Some((order, file)) = line.receive(rest.unwrap_or(usual))? {
            obey(order, file, line, parker)?;
        } else if rest.is_some() {
            leave_captures_alone();
            if let Some(bytes) = parker.prepare() {
                line.send(&Word::Prepared { bytes })?;
            }
        }
        // A program that did nothing for less than a tick may still be busy.
        if rest.is_none() || ticked.elapsed() >= TICK {
            ticked = Instant::now();
            if !tick() {
                parker.tidy();
            }
            if gate::state() == gate::OPEN {
                fixed::look_at_graphs(false);
            }
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK_OUTSIDE) {
                looked = Some(Instant::now());
                outside::look();
            }
        }
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        if gate::state() != gate::PARKED {
            (*wanted, told) = (None, false);
        }
        let call = wanted.clone();
        drop(wanted);
        if let Some(call) = call.filter(|_| !told) {
            told = true;
            line.send(&Word::Wants { call })?;
        }
    }
}

/// Keeps the calls of this thread from disturbing captures of the program.
fn leave_captures_alone() {
    let mut relaxed = 2;
    driver::cuThreadExchangeStreamCaptureMode(&raw mut relaxed);
}

fn obey(order: Order, file: Option<File>, line: &Line, parker: &mut Parker) -> io::Result<()> {
    // The daemon gives one of these orders only if the driver answers.
    if !gate::is_deep() || matches!(order, Order::Resume { .. } | Order::Shallow { .. }) {
        leave_captures_alone();
    }
    parker.forget_gone();
    match order {
        Order::Welcome { page, pid, over } => {
            if over {
                say_over();
            }
            if let (true, Some(file)) = (page, &file)
                && let Err(why) = page::share(file, pid)
            {
                log::once(&why);
            }
            welcomed();
            Ok(())
        }
        Order::Park { id, deadline_ms, most } => {
            let done = parker.park(Duration::from_millis(deadline_ms), most);
            IS_PARKED.store(gate::state() == gate::PARKED, SeqCst);
            line.send(&match done {
                Ok((bytes, took)) => Word::Parked { id, bytes, took },
                Err(why) => Word::Refused { id, why },
            })
        }
        Order::Resume { id } => {
            let done = parker.resume();
            IS_PARKED.store(gate::state() == gate::PARKED, SeqCst);
            line.send(&match done {
                Ok((bytes, took)) => Word::Resumed { id, bytes, took },
                Err(why) => Word::Refused { id, why },
            })
        }
        Order::Deepen { id } => line.send(&match parker.deepen() {
            Ok(()) => Word::Deep { id },
            Err(why) => Word::Refused { id, why },
        }),
        Order::Shallow { id } => line.send(&match parker.shallow() {
            Ok(()) => Word::Shallow { id },
            Err(why) => Word::Refused { id, why },
        }),
        Order::Prepare { bytes } => {
            parker.wish(bytes);
            Ok(())
        }
        Order::Arena { bytes, filled } => {
            if let Some(file) = file
                && let Err(why) = parker.arena().use_file(&file, bytes, filled)
            {
                log::once(&why);
            }
            Ok(())
        }
        Order::Trim { id } => match parker.trim() {
            Ok(()) => Ok(()),
            Err(why) => line.send(&Word::Refused { id, why }),
        },
        Order::Over { why } => {
            parker.lose(&why);
            IS_PARKED.store(gate::state() == gate::PARKED, SeqCst);
            Ok(())
        }
    }
}

/// Sums up what the threads counted. Returns whether they did anything.
fn tick() -> bool {
    let (mut launches, mut copies, mut copied) = (0, 0, 0_u64);
    for seat in gate::seats() {
        launches += seat.launches.load(Relaxed);
        copies += seat.copies.load(Relaxed);
        copied = copied.saturating_add(seat.copied.load(Relaxed));
    }
    page::set_copied(copied);
    let own = page::own();
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
struct Line(Socket);

impl Line {
    fn connect(path: &[u8]) -> io::Result<Line> {
        Socket::connect(path).map(Line)
    }

    fn send(&self, word: &Word) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(word)?, None)
    }

    /// What the daemon says within `pause`, with the descriptor that came along; `None` if nothing came.
    fn receive(&self, pause: Duration) -> io::Result<Option<(Order, Option<File>)>> {
        let mut bytes = [0_u8; PACKET_MAX];
        let Some((length, file)) = self.0.receive(&mut bytes, pause)? else { return Ok(None) };
        // Orders of a newer daemon that this version does not know are ignored.
        Ok(serde_json::from_slice(&bytes[..length]).ok().map(|order| (order, file)))
    }
}
