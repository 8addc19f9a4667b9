//! Packet sockets that can pass descriptors: to the daemon, and between processes that share memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A socket that preserves packet boundaries.
pub struct PacketSocket(OwnedFd);

/// What a socket that a forked child must not keep is for. There is at most one of each.
#[derive(Clone, Copy, Debug)]
pub enum SocketUse {
    /// The connection to the daemon.
    Daemon,
    /// The socket at which other processes ask for shared memory.
    MemoryListener,
}

/// Descriptors that a forked child must not keep, by their [`SocketUse`]; -1: none.
static CLOSED_ON_FORK: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// A socket that stays open until the process ends, or for long: forked children close it.
pub struct ClosedOnFork<'a>(&'a PacketSocket, SocketUse);

impl<'a> ClosedOnFork<'a> {
    /// Registers the socket.
    pub fn new(socket: &'a PacketSocket, place: SocketUse) -> ClosedOnFork<'a> {
        CLOSED_ON_FORK[place as usize].store(socket.0.as_raw_fd(), SeqCst);
        ClosedOnFork(socket, place)
    }
}

impl std::ops::Deref for ClosedOnFork<'_> {
    type Target = PacketSocket;
    fn deref(&self) -> &PacketSocket {
        self.0
    }
}

impl Drop for ClosedOnFork<'_> {
    fn drop(&mut self) {
        CLOSED_ON_FORK[self.1 as usize].store(-1, SeqCst);
    }
}

/// Closes a child's copies of its parent's sockets.
pub fn close_in_child() {
    for kept in &CLOSED_ON_FORK {
        let descriptor = kept.swap(-1, SeqCst);
        if descriptor >= 0 {
            // SAFETY: the child's copy of a descriptor of this library, which nothing there uses.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// An address and its length. A name that begins with a zero is in no file system.
fn address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: an address is plain bytes; zeros do.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    // In an abstract name every byte counts.
    let extra = usize::from(name.first() != Some(&0));
    Ok((address, (size_of::<libc::sa_family_t>() + name.len() + extra) as libc::socklen_t))
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl PacketSocket {
    fn new() -> io::Result<PacketSocket> {
        // SAFETY: what comes back is ours, once it is checked.
        unsafe {
            let descriptor = checked(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0))?;
            Ok(PacketSocket(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    /// Connects to the socket that listens at a name.
    pub fn connect(name: &[u8]) -> io::Result<PacketSocket> {
        let (socket, (address, length)) = (PacketSocket::new()?, address(name)?);
        // SAFETY: the address lives until the call returns.
        checked(unsafe { libc::connect(socket.0.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(socket)
    }

    /// Listens at a name.
    pub fn listen(name: &[u8]) -> io::Result<PacketSocket> {
        let (socket, (address, length)) = (PacketSocket::new()?, address(name)?);
        // SAFETY: the address lives until the call returns.
        unsafe {
            checked(libc::bind(socket.0.as_raw_fd(), (&raw const address).cast(), length))?;
            checked(libc::listen(socket.0.as_raw_fd(), 16))?;
        }
        Ok(socket)
    }

    /// Accepts the next connection.
    pub fn accept(&self) -> io::Result<PacketSocket> {
        // SAFETY: what comes back is ours, once it is checked.
        unsafe {
            let (none, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC);
            let descriptor = checked(libc::accept4(self.0.as_raw_fd(), none, std::ptr::null_mut(), flags))?;
            Ok(PacketSocket(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    /// The user at the other end, as the kernel reports it.
    pub fn peer_uid(&self) -> io::Result<libc::uid_t> {
        // SAFETY: the structure is plain numbers, and as long as it says.
        unsafe {
            let mut peer: libc::ucred = std::mem::zeroed();
            let mut length = size_of::<libc::ucred>() as libc::socklen_t;
            let (level, what) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
            checked(libc::getsockopt(self.0.as_raw_fd(), level, what, (&raw mut peer).cast(), &raw mut length))?;
            Ok(peer.uid)
        }
    }

    /// Sends a packet, with a descriptor if there is one.
    pub fn send(&self, bytes: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0_u64; 4];
        // SAFETY: the message's parts live until the call returns, and their lengths are theirs.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            if let Some(descriptor) = descriptor {
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(size_of::<i32>() as u32) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
                libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
            }
            libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a packet within `pause`, with the descriptor that came along; `None` if nothing came.
    pub fn receive(&self, bytes: &mut [u8], pause: Duration) -> io::Result<Option<(usize, Option<File>)>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure lives until the call returns.
        match unsafe { libc::poll(&raw mut poll, 1, pause.as_millis() as libc::c_int) } {
            0 => return Ok(None),
            found if found < 0 => return Err(io::Error::last_os_error()),
            _ => {}
        }
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
            (length, if length < 0 { None } else { descriptor_of(&message) })
        };
        match usize::try_from(length) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(length) => Ok(Some((length, file))),
        }
    }
}

/// # Safety
/// The message was filled by `recvmsg`.
unsafe fn descriptor_of(message: &libc::msghdr) -> Option<File> {
    // SAFETY: `recvmsg` filled the message, so its headers are valid; a descriptor that came is this process's.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS || (*header).cmsg_level != libc::SOL_SOCKET {
            return None;
        }
        let descriptor = libc::CMSG_DATA(header).cast::<i32>().read_unaligned();
        (descriptor >= 0).then(|| File::from_raw_fd(descriptor))
    }
}
