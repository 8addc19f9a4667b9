//! What a daemon claims before it serves: the GPUs of this host, and its socket.
//!
//! Neither may depend on the goodwill of other users. Any user can take the name that marks the daemon that leases the
//! GPUs, so root holds a lock as well, where only root can make files; and a socket is made only where no other user
//! may change a directory above it.

use crate::serve::ServeError;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use sublet_journal::{Exposed, exposed_above};

/// The name of the kernel's lock for this host; it goes with the process.
const NAME: &str = "sublet/cards";
/// Root's own.
const LOCKS: &str = "/run/sublet";
const ROOT: u32 = 0;

/// Held as long as the GPUs are leased from here.
#[derive(Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "they are held, not used"))]
pub struct GpuLock {
    lock: Option<File>,
    name: Option<UnixListener>,
}

/// Claims this host's GPUs: two daemons would promise the same bytes.
pub fn lock_gpus() -> Result<GpuLock, ServeError> {
    claim(NAME, Path::new(LOCKS), uid())
}

fn claim(name: &str, locks: &Path, uid: u32) -> Result<GpuLock, ServeError> {
    let lock = match uid {
        ROOT => lock(locks)?,
        _ => None,
    };
    let address = SocketAddr::from_abstract_name(name).map_err(ServeError::System)?;
    let name = match UnixListener::bind_addr(&address) {
        Ok(listener) => Some(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let by = holder(&address);
            // Another user's process must not keep root from its GPUs; the lock tells that no daemon of root's is
            // there.
            let is_squatter = by.is_none_or(|(_, other)| other != ROOT);
            if lock.is_none() || !is_squatter {
                return Err(ServeError::CardsTaken { by });
            }
            let (process, user) = by.unzip();
            tracing::warn!(
                process,
                user,
                "another user's process has the name by which daemons know of each other; a daemon of that user would lease the same GPUs: look at it, and end it"
            );
            None
        }
        Err(error) => return Err(ServeError::System(error)),
    };
    Ok(GpuLock { lock, name })
}

/// Root's lock, if there can be one; an error if another daemon has it.
fn lock(dir: &Path) -> Result<Option<File>, ServeError> {
    // Without one the name is enough.
    let Some(mut file) = lock_file(dir) else { return Ok(None) };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut pid = String::new();
        let read = file.read_to_string(&mut pid).ok().and_then(|_| pid.trim().parse().ok());
        return Err(ServeError::CardsTaken { by: read.map(|pid| (pid, ROOT)) });
    }
    // For the next daemon; without it that one is only not told which process has the GPUs.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(Some(file))
}

fn lock_file(dir: &Path) -> Option<File> {
    // It exists, or it cannot be made, which the next step shows.
    let _ = DirBuilder::new().mode(0o755).create(dir);
    let found = std::fs::symlink_metadata(dir).ok()?;
    if !found.is_dir() || found.uid() != ROOT || found.mode() & 0o022 != 0 {
        return None;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // No other user can open it: a user that can open a file can lock it.
    rustix::fs::open(dir.join("cards.lock"), flags, Mode::from_raw_mode(0o600)).ok().map(File::from)
}

/// The process and the user that have a name.
fn holder(address: &SocketAddr) -> Option<(i32, u32)> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    // The process that has it need not accept connections: never wait for that.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(address.as_abstract_name()?).ok()?;
    connect(&stream, &address).ok()?;
    peer(&UnixStream::from(stream))
}

fn peer(stream: &UnixStream) -> Option<(i32, u32)> {
    let cred = rustix::net::sockopt::socket_peercred(stream).ok()?;
    Some((cred.pid.as_raw_pid(), cred.uid.as_raw()))
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// True if no process serves on this socket, and no other file is there.
pub fn check_free(socket: &Path) -> Result<(), ServeError> {
    if let Ok(stream) = UnixStream::connect(socket) {
        return Err(ServeError::Taken { socket: socket.to_owned(), pid: peer(&stream).map(|(pid, _)| pid) });
    }
    match std::fs::symlink_metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => Err(ServeError::NotASocket { socket: socket.to_owned() }),
        _ => Ok(()),
    }
}

/// Connections that may wait to be accepted. One more waits in its `connect`, or is told to try again if it does not
/// block.
const BACKLOG: i32 = 128;

/// Makes the socket that callers of this host connect to: all users, or only the members of this group.
pub fn bind_socket(socket: &Path, group: Option<u32>) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Socket { socket: socket.to_owned(), source };
    check_free(socket)?;
    let dir = match socket.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => parent,
        None => Path::new("."),
    };
    if let Some(Exposed { path, why }) = exposed_above(socket).map_err(failed)? {
        return Err(ServeError::Exposed { dir: path, why });
    }
    DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    if socket.symlink_metadata().is_ok() {
        std::fs::remove_file(socket).map_err(failed)?;
    }
    // Any user of this host may connect; the kernel says which it is. The mode comes with the socket, not afterwards by
    // its path. No other thread exists yet that could make a file meanwhile.
    let mask = if group.is_some() { 0o177 } else { 0o111 };
    let before = rustix::process::umask(Mode::from_raw_mode(mask));
    let bound = UnixListener::bind(socket);
    rustix::process::umask(before);
    let listener = bound.map_err(failed)?;
    if let Some(gid) = group {
        // Until the group has it, only the daemon's own user can connect.
        chown(socket, None, Some(gid)).map_err(failed)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    }
    // The last connection in a row waits for all before it to be accepted. The default is 4,096.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_root() -> bool {
        uid() == ROOT
    }

    #[test]
    fn no_socket_is_made_below_a_directory_that_another_user_may_change() {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().join("above");
        let path = above.join("own/run/s");
        std::fs::create_dir_all(above.join("own")).unwrap();
        std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = bind_socket(&path, None).unwrap_err();
        let expected = format!(
            "`{}` can be changed by everybody: another user could answer there in this daemon's place",
            above.display()
        );
        assert_eq!(refused.to_string(), expected);
        assert!(refused.hint().is_some_and(|hint| hint.contains("--socket")), "{refused}");
        assert!(!above.join("own/run").exists(), "a refusal leaves nothing behind");
        std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o1777)).unwrap();
        drop(bind_socket(&path, None).unwrap());
        if !is_root() {
            return eprintln!("the rest was skipped: only root can give a directory away");
        }
        chown(&above, Some(4711), None).unwrap();
        let refused = bind_socket(&path, None).unwrap_err();
        assert!(refused.to_string().contains("belongs to user 4711"), "{refused}");
    }

    #[test]
    fn any_user_may_connect_as_soon_as_the_socket_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/s");
        let _listener = bind_socket(&path, None).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        assert_eq!(std::fs::metadata(dir.path().join("deep")).unwrap().mode() & 0o022, 0);
    }

    #[test]
    fn a_socket_for_a_group_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let gid = rustix::process::getegid().as_raw();
        let _listener = bind_socket(&path, Some(gid)).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, gid));
    }

    #[test]
    fn a_second_daemon_is_told_which_process_has_the_gpus() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().to_str().unwrap();
        let own = Some((i32::try_from(std::process::id()).unwrap(), uid()));
        let _first = claim(name, dir.path(), uid()).unwrap();
        let Err(ServeError::CardsTaken { by }) = claim(name, dir.path(), uid()) else { panic!("it was let in") };
        assert_eq!(by, own);
        let Err(ServeError::CardsTaken { by }) = claim(name, dir.path(), 4711) else { panic!("it was let in") };
        assert_eq!(by, own, "another user's daemon does not go past it either");
    }

    #[test]
    fn root_gets_its_gpus_although_another_user_took_the_name() {
        if !is_root() {
            return eprintln!("skipped: only root can become another user");
        }
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().to_str().unwrap();
        let squatter = std::thread::scope(|scope| {
            let squat = || {
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(4711)).unwrap();
                UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
            };
            scope.spawn(squat).join().unwrap()
        });
        assert_eq!(holder(&squatter.local_addr().unwrap()).map(|(_, user)| user), Some(4711));
        let claimed = claim(name, dir.path(), ROOT).unwrap();
        assert!(claimed.name.is_none() && claimed.lock.is_some());
        let second = claim(name, dir.path(), ROOT);
        assert!(matches!(second, Err(ServeError::CardsTaken { by: Some((_, ROOT)) })), "{second:?}");
    }
}
