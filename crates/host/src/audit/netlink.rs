//! Shared by the two netlink sources about processes: opening a socket, and reading numbers from messages.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::io;
use std::os::fd::OwnedFd;

/// A socket for one netlink protocol that receives these groups, with a receive buffer of `buffer` bytes.
pub(super) fn socket(protocol: Protocol, groups: u32, buffer: usize) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(protocol))?;
    // Beyond the usual limit where that is permitted, otherwise up to the limit.
    if sockopt::set_socket_recv_buffer_size_force(&socket, buffer).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, buffer)?;
    }
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A 16-bit number of a message.
pub(super) fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

/// A 32-bit number of a message.
pub(super) fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?))
}
