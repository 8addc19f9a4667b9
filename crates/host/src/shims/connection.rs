//! A connection to the shim of one process: packets of JSON, and files sent with them.

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recvmsg, sendmsg, socket_with,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use sublet_shim_wire::{PACKET_MAX, ShimOrder, ShimReport};

/// The socket at which shims connect.
pub(crate) struct ShimListener(OwnedFd);

impl ShimListener {
    /// Listens at a path; a socket of an earlier daemon there is removed.
    pub(crate) fn open(path: &Path) -> io::Result<ShimListener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        // Programs of any user may have leases; the kernel reports the user of each connection.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        listen(&socket, 128)?;
        Ok(ShimListener(socket))
    }

    /// The next connection, with its pid and user; `None` if there is none.
    pub(crate) fn accept(&self) -> Option<(ShimConnection, u32, u32)> {
        let socket = accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        let peer = socket_peercred(&socket).ok()?;
        let pid = u32::try_from(peer.pid.as_raw_pid()).ok()?;
        Some((ShimConnection(socket), pid, peer.uid.as_raw()))
    }
}

impl AsFd for ShimListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to one shim.
pub(crate) struct ShimConnection(OwnedFd);

/// What was received on a connection.
pub(crate) enum ReceivedPacket {
    /// Nothing now.
    Nothing,
    /// A message.
    Message(ShimReport),
    /// Something that is not understood; newer shims may say more.
    NotUnderstood,
    /// The connection is closed.
    Closed,
}

impl ShimConnection {
    /// Sends an order, with a file if there is one. Returns false if it was not sent.
    pub(crate) fn send(&self, order: &ShimOrder, file: Option<BorrowedFd<'_>>) -> bool {
        let Ok(text) = serde_json::to_vec(order) else { return false };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return false;
        }
        sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next message. Files that a holder sends are closed unread.
    pub(crate) fn receive(&self) -> ReceivedPacket {
        let mut bytes = [0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let found = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
        control.drain().for_each(drop);
        match found {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => ReceivedPacket::Nothing,
            Err(_) => ReceivedPacket::Closed,
            Ok(found) if found.bytes == 0 => ReceivedPacket::Closed,
            Ok(found) if found.flags.contains(ReturnFlags::TRUNC) => ReceivedPacket::NotUnderstood,
            Ok(found) => serde_json::from_slice(&bytes[..found.bytes])
                .map_or(ReceivedPacket::NotUnderstood, ReceivedPacket::Message),
        }
    }
}

impl AsFd for ShimConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
