//! Paths: the daemon's socket, its state directory, a user's wrappers.
//!
//! This module only computes paths; it creates nothing.

use std::path::{Path, PathBuf};
use sublet::client::sockets::{SOCKET_VARIABLE, default_socket};
pub use sublet::client::sockets::{SYSTEM_SOCKET, absolute, variable};

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

/// Where `serve` listens: the given socket, then `SUBLET_SOCKET`, then the default.
pub fn own_socket(given: Option<&Path>) -> PathBuf {
    given.map(Path::to_owned).or_else(|| variable(SOCKET_VARIABLE)).unwrap_or_else(default_socket)
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

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_socket_is_taken_as_it_is() {
        assert_eq!(own_socket(Some(Path::new("/x/s"))), Path::new("/x/s"));
    }

    #[test]
    fn a_given_state_directory_is_taken_as_it_is() {
        assert_eq!(state_dir(Some(Path::new("d"))), Some(PathBuf::from("d")));
    }
}
