//! A thread that listens to the daemon and does what it says.
//!
//! It starts when the program first calls the driver, takes no signals, and passes the gate always.
//! When the daemon goes away it looks for it again: a program whose memory is parked waits for it.

use crate::driver;
use crate::gate;
use crate::log;
use crate::message::{Order, PACKET_MAX, SOCKET, Word};
use crate::page;
use crate::park::Parker;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

/// How often counters are summed up, and the daemon is looked for.
const TICK: Duration = Duration::from_millis(100);
/// So long a program waits for the daemon when it begins to use the driver: then it knows its cap.
const WELCOME: Duration = Duration::from_secs(1);
/// How often while somebody may wait at the gate.
const SHORT_TICK: Duration = Duration::from_millis(5);

static WANTED: Mutex<Option<String>> = Mutex::new(None);
static IS_PARKED: AtomicBool = AtomicBool::new(false);

/// Somebody waits at the gate for the memory to come back.
pub fn wants(call: &str) {
    *WANTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(call.to_owned());
}

static GONE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A context is gone: what was made in it is, too.
pub fn forget(context: usize) {
    GONE.lock().unwrap_or_else(PoisonError::into_inner).push(context);
}

static STARTED: Once = Once::new();
/// The daemon has answered, or is not there.
static IS_WELCOME: Mutex<bool> = Mutex::new(false);
static WELCOMED: Condvar = Condvar::new();

fn welcomed() {
    *IS_WELCOME.lock().unwrap_or_else(PoisonError::into_inner) = true;
    WELCOMED.notify_all();
}

/// Starts the thread, the first time, if there is a daemon to listen to, and waits for its first answer.
pub fn prepare() {
    STARTED.call_once(|| {
        // SAFETY: the handler only stores numbers.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        let Some(socket) = std::env::var_os(SOCKET) else { return };
        // SAFETY: sets of signals are plain numbers, filled by the calls before they are read.
        unsafe {
            let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            let work = move || serve(socket.as_bytes());
            if std::thread::Builder::new().name("sublet-shim".to_owned()).spawn(work).is_err() {
                log::once("the host gives no thread: this program cannot be parked");
                welcomed();
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        }
        let answered = IS_WELCOME.lock().unwrap_or_else(PoisonError::into_inner);
        // A daemon that is late is not waited for.
        drop(WELCOMED.wait_timeout_while(answered, WELCOME, |is_welcome| !*is_welcome));
    });
}

/// Sees to it that the lease's page can be looked at, without a thread where the driver is not used.
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
        if let Ok(Some((Order::Welcome { .. }, Some(file)))) = answer
            && let Err(why) = page::look_at(&file)
        {
            log::once(&why);
        }
    });
}

extern "C" fn in_child() {
    gate::disarm();
}

fn serve(socket: &[u8]) {
    gate::free_this_thread();
    let mut parker = Parker::default();
    loop {
        if let Ok(line) = Line::connect(socket) {
            // It ends when the daemon hangs up; then it is looked for again.
            let _ = talk(&line, &mut parker);
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

/// Tells the daemon that this process is not gated, and why; nobody listens to it afterwards.
pub fn say_aside(tool: &str) {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    if let Ok(line) = Line::connect(socket.as_bytes()) {
        // Without a daemon there is nobody to tell.
        let _ = line.send(&hello(Some(tool.to_owned()), false));
    }
}

fn hello(aside: Option<String>, looks: bool) -> Word {
    let lease = std::env::var("SUBLET_LEASE").ok();
    let parked = gate::state() == gate::PARKED;
    let bytes = page::own().parked.load(SeqCst);
    Word::Hello { version: 1, pid: std::process::id(), lease, parked, bytes, aside, looks }
}

fn talk(line: &Line, parker: &mut Parker) -> io::Result<()> {
    line.send(&hello(None, false))?;
    // A daemon that is new was not told yet who waits.
    let mut told = false;
    loop {
        let pause = if IS_PARKED.load(Relaxed) { SHORT_TICK } else { TICK };
        if let Some((order, file)) = line.receive(pause)? {
            obey(order, file, line, parker)?;
        }
        if !tick() {
            parker.tidy();
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

fn obey(order: Order, file: Option<File>, line: &Line, parker: &mut Parker) -> io::Result<()> {
    // Captures of the program are not disturbed by what this thread does.
    let mut relaxed = 2;
    driver::cuThreadExchangeStreamCaptureMode(&raw mut relaxed);
    for context in std::mem::take(&mut *GONE.lock().unwrap_or_else(PoisonError::into_inner)) {
        parker.forget(context);
    }
    match order {
        Order::Welcome { page } => {
            if let (true, Some(file)) = (page, &file)
                && let Err(why) = page::share(file)
            {
                log::once(&why);
            }
            welcomed();
            Ok(())
        }
        Order::Park { id, deadline_ms } => {
            let done = parker.park(Duration::from_millis(deadline_ms));
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
        Order::Prepare { bytes } => {
            let known = parker.prepare(bytes).unwrap_or(0);
            line.send(&Word::Prepared { bytes: known })
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
            Ok(())
        }
    }
}

/// Sums up what the threads counted. Returns whether they did anything.
fn tick() -> bool {
    let (mut launches, mut copies) = (0, 0);
    for seat in gate::seats() {
        launches += seat.launches.load(Relaxed);
        copies += seat.copies.load(Relaxed);
    }
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

/// A line to the daemon.
struct Line(OwnedFd);

impl Line {
    fn connect(path: &[u8]) -> io::Result<Line> {
        // SAFETY: an address is plain bytes; zeros do.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= address.sun_path.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (place, byte) in address.sun_path.iter_mut().zip(path) {
            *place = *byte as libc::c_char;
        }
        // SAFETY: the descriptor is checked before it is used, and the address lives until the call returns.
        unsafe {
            let descriptor = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            let line = Line(OwnedFd::from_raw_fd(descriptor));
            let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            match libc::connect(descriptor, (&raw const address).cast(), length) {
                0 => Ok(line),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    fn send(&self, word: &Word) -> io::Result<()> {
        let text = serde_json::to_vec(word)?;
        // SAFETY: the bytes live until the call returns.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// What the daemon says within some time, with the descriptor that came along.
    fn receive(&self, pause: Duration) -> io::Result<Option<(Order, Option<File>)>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure lives until the call returns.
        match unsafe { libc::poll(&raw mut poll, 1, pause.as_millis() as libc::c_int) } {
            0 => return Ok(None),
            found if found < 0 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        let mut bytes = [0_u8; PACKET_MAX];
        let mut control = [0_u64; 8];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the message's parts live until the call returns, and their lengths are theirs.
        let (length, file) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            let length = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
            (length, descriptor_of(&message))
        };
        match usize::try_from(length) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            // What a newer daemon says that this one does not know is passed over.
            Ok(length) => Ok(serde_json::from_slice(&bytes[..length]).ok().map(|order| (order, file))),
        }
    }
}

/// # Safety
/// The message was filled by `recvmsg`.
unsafe fn descriptor_of(message: &libc::msghdr) -> Option<File> {
    // SAFETY: as above; a descriptor that came is ours.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS || (*header).cmsg_level != libc::SOL_SOCKET {
            return None;
        }
        let descriptor = libc::CMSG_DATA(header).cast::<i32>().read_unaligned();
        (descriptor >= 0).then(|| File::from_raw_fd(descriptor))
    }
}
