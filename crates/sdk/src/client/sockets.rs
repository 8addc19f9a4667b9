//! The Unix sockets at which a daemon may listen.
//!
//! This module only computes paths; it creates nothing.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a system service listens.
pub const SYSTEM_SOCKET: &str = "/run/sublet/sublet.sock";
/// The environment variable that names the socket.
pub const SOCKET_VARIABLE: &str = "SUBLET_SOCKET";

/// Sockets where a daemon may listen, the likeliest first.
#[derive(Debug)]
pub struct SocketCandidates(Vec<PathBuf>);

impl SocketCandidates {
    /// Where to look for a daemon: the given socket, then `SUBLET_SOCKET`, then the usual places.
    pub fn find(given: Option<&Path>) -> SocketCandidates {
        if let Some(path) = given.map(Path::to_owned).or_else(|| variable(SOCKET_VARIABLE)) {
            return SocketCandidates(vec![path]);
        }
        let mut paths = vec![PathBuf::from(SYSTEM_SOCKET)];
        paths.extend(runtime_dir().map(|dir| dir.join("sublet/sublet.sock")));
        // Any user can create this directory in /tmp first, so it counts only if this user owns it.
        let own = temporary_dir();
        if own.metadata().is_ok_and(|found| found.uid() == uid()) {
            paths.extend([own.join("sublet.sock"), own.join("sublet/sublet.sock")].into_iter().filter(|p| p.exists()));
        }
        SocketCandidates(paths)
    }

    /// All of them.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// The likeliest socket.
    pub fn first(&self) -> &Path {
        &self.0[0]
    }

    /// All sockets but the likeliest.
    pub fn others(&self) -> &[PathBuf] {
        &self.0[1..]
    }
}

/// Where a daemon of this user listens if neither its command line nor `SUBLET_SOCKET` names a socket.
pub fn default_socket() -> PathBuf {
    match uid() {
        0 => SYSTEM_SOCKET.into(),
        _ => runtime_dir().map_or_else(|| temporary_dir().join("sublet.sock"), |dir| dir.join("sublet/sublet.sock")),
    }
}

/// A path from an environment variable; `None` if it is unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The path made absolute, so that it stays valid after a change of directory.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn runtime_dir() -> Option<PathBuf> {
    variable("XDG_RUNTIME_DIR")
}

fn temporary_dir() -> PathBuf {
    PathBuf::from(format!("/tmp/sublet-{}", uid()))
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_socket_is_the_only_candidate() {
        let candidates = SocketCandidates::find(Some(Path::new("/x/s")));
        assert_eq!(candidates.first(), Path::new("/x/s"));
        assert_eq!(candidates.others(), [] as [PathBuf; 0]);
    }
}
