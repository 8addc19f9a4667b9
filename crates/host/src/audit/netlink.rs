//! What the kernel's two sources of news about processes have in common: a socket of netlink's, and numbers in messages.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::io;
use std::os::fd::OwnedFd;

/// A socket for one of netlink's protocols that hears these groups, with so many bytes for messages that wait.
pub(super) fn socket(protocol: Protocol, groups: u32, buffer: usize) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(protocol))?;
    // Beyond the usual limit where that is permitted, else as much as there is.
    if sockopt::set_socket_recv_buffer_size_force(&socket, buffer).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, buffer)?;
    }
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Two bytes of a message.
pub(super) fn half(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

/// Four of them.
pub(super) fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?))
}
