//! The daemon's side of the shim, for a test: it listens, gives orders, and reads the answers.

use crate::soft::Soft;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_shim::message::{LeasePage, MAGIC, MoveDurations, PACKET_MAX, SOCKET_ENV, ShimOrder, ShimReport, VERSION};
use sublet_softgpu::state::CONTEXT_BYTES;

/// Listens for the shims of the programs it starts.
pub struct Daemon {
    socket: OwnedFd,
    path: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Its folder may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A line to the shim of one process.
pub struct Line {
    socket: OwnedFd,
    /// Which process.
    pub pid: u32,
    next: u64,
    /// It only looks at the page.
    pub looks: bool,
    /// Its memory was away when it came.
    pub was_parked: bool,
    /// Calls that waited at the gate, as they were told.
    pub wanted: Vec<String>,
}

fn checked(result: libc::c_int) -> libc::c_int {
    assert!(result >= 0, "{}", io::Error::last_os_error());
    result
}

impl Daemon {
    /// Listens in the folder of the GPUs.
    pub fn new(soft: &Soft) -> Daemon {
        let path = soft.path("shims");
        // SAFETY: an address is plain bytes; it and the descriptor are good for the calls.
        let socket = unsafe {
            let socket = checked(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0));
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            for (place, byte) in address.sun_path.iter_mut().zip(path.to_str().expect("a path").bytes()) {
                *place = byte as libc::c_char;
            }
            let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            checked(libc::bind(socket, (&raw const address).cast(), length));
            checked(libc::listen(socket, 16));
            OwnedFd::from_raw_fd(socket)
        };
        Daemon { socket, path }
    }

    /// Makes a program one that has the shim, and the shim one that finds this daemon.
    pub fn with_shim<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("LD_PRELOAD", shim()).env(SOCKET_ENV, &self.path)
    }

    /// True if a program has connected and was not accepted yet.
    pub fn has_connection(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure lives until the call returns.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// The first word of the next one that comes; it gets no answer.
    pub fn receive_hello(&self) -> ShimReport {
        self.accept_connection().receive()
    }

    /// The next shim that comes; it gets a page if there is one.
    pub fn accept(&self, page: Option<RawFd>) -> Line {
        self.accept_as(page, None)
    }

    /// The same, and it is told which process it is.
    pub fn accept_as(&self, page: Option<RawFd>, told: Option<u32>) -> Line {
        let mut line = self.accept_connection();
        let ShimReport::Hello { pid, looks, parked, .. } = line.receive() else {
            panic!("the first word is a greeting")
        };
        (line.pid, line.looks, line.was_parked) = (pid, looks, parked);
        line.send(&ShimOrder::Welcome { page: page.is_some(), pid: told, over: false }, page);
        line
    }

    fn accept_connection(&self) -> Line {
        wait_for(self.socket.as_raw_fd());
        // SAFETY: the descriptor is good; what comes back is ours.
        let socket = unsafe {
            let socket =
                libc::accept4(self.socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC);
            OwnedFd::from_raw_fd(checked(socket))
        };
        Line { socket, pid: 0, next: 0, looks: false, was_parked: false, wanted: Vec::new() }
    }
}

/// The library that is preloaded.
pub fn shim() -> PathBuf {
    let shim = std::env::current_exe().expect("a test has a path").with_file_name("libsublet_shim.so");
    assert!(shim.exists(), "no library at {}", shim.display());
    shim
}

/// A page for a lease of the first GPU.
pub fn page(soft: &Soft, cap: u64) -> File {
    // SAFETY: the name ends with a zero, and the descriptor is ours.
    let file = unsafe {
        let descriptor = libc::memfd_create(c"page".as_ptr(), libc::MFD_CLOEXEC);
        assert!(descriptor >= 0);
        File::from_raw_fd(descriptor)
    };
    file.set_len(size_of::<LeasePage>() as u64).expect("memory");
    let page = mapped(&file);
    page.version.store(VERSION, SeqCst);
    for (place, byte) in page.gpus[0].uuid.iter().zip(&soft.state.gpus()[0].uuid) {
        place.store(byte.load(SeqCst), SeqCst);
    }
    page.gpus[0].context.store(CONTEXT_BYTES, SeqCst);
    page.gpus[0].cap.store(cap, SeqCst);
    page.magic.store(MAGIC, SeqCst);
    file
}

/// The page as both sides see it.
pub fn mapped(file: &File) -> &'static LeasePage {
    let (length, access) = (size_of::<LeasePage>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping of a file that is long enough, and stays.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert!(at != libc::MAP_FAILED);
        &*at.cast::<LeasePage>()
    }
}

fn wait_for(descriptor: RawFd) {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: the structure lives until the call returns.
    let found = unsafe { libc::poll(&raw mut poll, 1, 30_000) };
    assert!(found > 0, "nothing was said");
}

impl Line {
    /// Says something, with a descriptor.
    pub fn send(&self, order: &ShimOrder, descriptor: Option<RawFd>) {
        let mut text = serde_json::to_vec(order).expect("orders are plain");
        let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
        let mut control = [0_u64; 4];
        // SAFETY: the message's parts live until the call returns, and their lengths are theirs.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            if let Some(descriptor) = descriptor {
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(4) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
                libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor);
            }
            // If the program of the shim ended, that is no failure of the test here.
            libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
        }
    }

    fn receive(&mut self) -> ShimReport {
        self.try_receive().expect("the program ended")
    }

    /// The next word, or nothing: the program ended.
    fn try_receive(&mut self) -> Option<ShimReport> {
        wait_for(self.socket.as_raw_fd());
        let mut bytes = [0_u8; PACKET_MAX];
        // SAFETY: the bytes live until the call returns.
        let length = unsafe { libc::recv(self.socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        let length = usize::try_from(length).ok().filter(|length| *length > 0)?;
        Some(serde_json::from_slice(&bytes[..length]).expect("a word"))
    }

    fn answer(&mut self) -> Option<ShimReport> {
        loop {
            match self.try_receive()? {
                ShimReport::Wants { call } => self.wanted.push(call),
                word => return Some(word),
            }
        }
    }

    /// Parks. Returns how many bytes, or why not; nothing if the program ended.
    pub fn park(&mut self, within: Duration) -> Option<Result<u64, String>> {
        self.park_timed(within).map(|parked| parked.map(|(bytes, _)| bytes))
    }

    /// The same, and what it took.
    pub fn park_timed(&mut self, within: Duration) -> Option<Result<(u64, MoveDurations), String>> {
        self.next += 1;
        self.send(&ShimOrder::Park { id: self.next, deadline_ms: within.as_millis() as u64, most: None }, None);
        match self.answer()? {
            ShimReport::Parked { id, bytes, took } if id == self.next => Some(Ok((bytes, took))),
            ShimReport::Refused { id, why } if id == self.next => Some(Err(why)),
            other => panic!("{other:?} is no answer to a park"),
        }
    }

    /// Resumes. Returns how many bytes, or why not; nothing if the program ended.
    pub fn resume(&mut self) -> Option<Result<u64, String>> {
        self.next += 1;
        self.send(&ShimOrder::Resume { id: self.next }, None);
        match self.answer()? {
            ShimReport::Resumed { id, bytes, .. } if id == self.next => Some(Ok(bytes)),
            ShimReport::Refused { id, why } if id == self.next => Some(Err(why)),
            other => panic!("{other:?} is no answer to a resume"),
        }
    }

    /// Has it call the driver for nothing any more, or again.
    pub fn deepen(&mut self, is: bool) {
        self.next += 1;
        let id = self.next;
        self.send(&if is { ShimOrder::Deepen { id } } else { ShimOrder::Shallow { id } }, None);
        let expected = if is { ShimReport::Deep { id } } else { ShimReport::Shallow { id } };
        assert_eq!(self.answer(), Some(expected));
    }

    /// Has so many bytes made ready. Returns how many are.
    pub fn prepare(&mut self, bytes: u64) -> u64 {
        self.send(&ShimOrder::Prepare { bytes }, None);
        match self.answer() {
            Some(ShimReport::Prepared { bytes }) => bytes,
            other => panic!("{other:?} is no answer to a wish to prepare"),
        }
    }

    /// Wants the memory given back that parked bytes are in. Returns why that is not done.
    pub fn trim(&mut self) -> String {
        self.next += 1;
        self.send(&ShimOrder::Trim { id: self.next }, None);
        match self.answer() {
            Some(ShimReport::Refused { id, why }) if id == self.next => why,
            other => panic!("{other:?} is no refusal"),
        }
    }

    /// Waits until the program stands at the gate.
    pub fn wait_until_wanted(&mut self) {
        while self.wanted.is_empty() {
            match self.receive() {
                ShimReport::Wants { call } => self.wanted.push(call),
                other => panic!("{other:?} came instead of a wish"),
            }
        }
    }
}
