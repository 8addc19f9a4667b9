//! Paths: the daemon's socket, its state directory, a user's wrappers.
//!
//! This module only computes paths; it creates nothing.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a system service listens.
pub const SYSTEM_SOCKET: &str = "/run/sublet/sublet.sock";
/// Where a system service has its configuration.
pub const SYSTEM_CONFIG: &str = "/etc/sublet/sublet.toml";
/// Where a system service keeps its state.
pub const SYSTEM_STATE: &str = "/var/lib/sublet";

/// Where a system service keeps its socket and other runtime files.
pub const SYSTEM_RUN: &str = "/run/sublet";

/// The directory of a system service's configuration.
pub fn system_config_dir() -> &'static Path {
    Path::new(SYSTEM_CONFIG).parent().unwrap_or(Path::new("/"))
}

/// Sockets where a daemon may listen, the likeliest first.
#[derive(Debug)]
pub struct Candidates(Vec<PathBuf>);

impl Candidates {
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

/// Where to look for a daemon: the given socket, then `SUBLET_SOCKET`, then the usual places.
pub fn sockets(given: Option<&Path>) -> Candidates {
    if let Some(path) = given.map(Path::to_owned).or_else(|| variable("SUBLET_SOCKET")) {
        return Candidates(vec![path]);
    }
    let mut paths = vec![PathBuf::from(SYSTEM_SOCKET)];
    paths.extend(runtime_dir().map(|dir| dir.join("sublet/sublet.sock")));
    // Any user can create this directory in /tmp first, so it counts only if this user owns it.
    let own = temporary_dir();
    if own.metadata().is_ok_and(|found| found.uid() == uid()) {
        paths.extend([own.join("sublet.sock"), own.join("sublet/sublet.sock")].into_iter().filter(|p| p.exists()));
    }
    Candidates(paths)
}

/// Where `serve` listens: the given socket, then `SUBLET_SOCKET`, then the default.
pub fn own_socket(given: Option<&Path>) -> PathBuf {
    match given.map(Path::to_owned).or_else(|| variable("SUBLET_SOCKET")) {
        Some(path) => path,
        None if uid() == 0 => SYSTEM_SOCKET.into(),
        None => runtime_dir().map_or_else(|| temporary_dir().join("sublet.sock"), |dir| dir.join("sublet/sublet.sock")),
    }
}

/// The state directory: the given one, or the default; `None` without a home.
pub fn state_dir(given: Option<&Path>) -> Option<PathBuf> {
    match given {
        Some(path) => Some(path.to_owned()),
        None if uid() == 0 => Some(SYSTEM_STATE.into()),
        None => user_state(),
    }
}

/// The configuration that is read by default: the user's own, else the system's; a daemon of root reads only the
/// system's. `None` if there is neither.
pub fn config() -> Option<PathBuf> {
    let own =
        (uid() != 0).then(|| variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config"))));
    let own = own.flatten().map(|dir| dir.join("sublet/sublet.toml"));
    // A file that cannot be accessed counts as present, so that it is not skipped silently.
    own.into_iter().chain([PathBuf::from(SYSTEM_CONFIG)]).find(|path| path.try_exists().unwrap_or(true))
}

/// The folder of the wrappers of `sublet wrap`: the given one, or the default; `None` without a home.
pub fn wrap_dir(given: Option<&Path>) -> Option<PathBuf> {
    match given {
        Some(path) => Some(path.to_owned()),
        None => variable("XDG_DATA_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
            .map(|dir| dir.join("sublet/wrap/bin")),
    }
}

/// The file that records which soft GPUs this user was told about; `None` without a home.
pub fn soft_notice() -> Option<PathBuf> {
    user_state().map(|dir| dir.join("soft-notice"))
}

fn user_state() -> Option<PathBuf> {
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|dir| dir.join("sublet"))
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

/// A path from an environment variable; `None` if it is unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_socket_is_the_only_candidate() {
        let candidates = sockets(Some(Path::new("/x/s")));
        assert_eq!(candidates.first(), Path::new("/x/s"));
        assert_eq!(candidates.others(), [] as [PathBuf; 0]);
        assert_eq!(own_socket(Some(Path::new("/x/s"))), Path::new("/x/s"));
    }

    #[test]
    fn a_given_state_directory_is_taken_as_it_is() {
        assert_eq!(state_dir(Some(Path::new("d"))), Some(PathBuf::from("d")));
    }
}
