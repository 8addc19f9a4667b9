//! Running a part of a test as another user.

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

/// Whether this process may become another user.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `what` as this user and returns its result. On Linux a user is a matter of
/// the thread, and so are the credentials that the other end of a socket sees.
pub fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    as_user_in(uid, uid, what)
}

/// The same for a member of one group.
pub fn as_user_in<T: Send>(uid: u32, gid: u32, what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
            set_thread_groups(&[]).expect("root can leave its groups");
            set_thread_res_gid(group, group, group).expect("root can change its group");
            set_thread_res_uid(user, user, user).expect("root can become any user");
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A connection that a process of this user made, in one group beside its own, and that outlives it.
pub fn connection_left_by(uid: u32, group: u32, socket: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let address = SocketAddrUnix::new(socket)?;
    let stream = UnixStream::from(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?);
    let shared = stream.as_fd().try_clone_to_owned()?;
    let mut command = Command::new("true");
    let become_and_connect = move || {
        let (user, own) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_groups(&[Gid::from_raw(group)])?;
        set_thread_res_gid(own, own, own)?;
        set_thread_res_uid(user, user, user)?;
        Ok(connect(&shared, &address)?)
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated or locked.
    unsafe { command.pre_exec(become_and_connect) };
    let status = command.status()?;
    assert!(status.success(), "`true` succeeds: {status}");
    Ok(stream)
}
