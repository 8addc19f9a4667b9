//! Sublet's library, preloaded into a program so that it can be capped and parked.
//!
//! The library lies beside the command, or in `../lib/sublet`. Without it, or if the daemon has no socket for it,
//! programs still run, but cannot be parked by it.

use super::environment::Variables;
use crate::client::Client;
use std::env;
use std::path::{Path, PathBuf};
use sublet_shim_wire::{SOCKET_ENV, shim_socket_path};

/// The library's file name in a release, and in a build of the source.
const LIBRARY: [&str; 2] = ["libsublet-shim.so", "libsublet_shim.so"];
const PRELOAD: &str = "LD_PRELOAD";

/// The path of the library, if it exists.
pub fn library() -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    let dir = exe.parent()?;
    let places = [dir.to_owned(), dir.join("../lib/sublet")];
    places.iter().flat_map(|place| LIBRARY.map(|name| place.join(name))).find(|path| path.is_file())
}

/// Whether a path in `LD_PRELOAD` is the library, of any release.
pub fn is_library(path: &str) -> bool {
    Path::new(path).file_name().is_some_and(|file| LIBRARY.iter().any(|name| file == *name))
}

/// The variables that make a holder's programs load the library.
pub fn variables(client: &Client) -> Variables {
    let socket = client.socket().map(|socket| shim_socket_path(&env::current_dir().unwrap_or_default().join(socket)));
    match (library(), socket.filter(|socket| socket.exists())) {
        (Some(library), Some(socket)) => loaded(&library, &socket, env::var(PRELOAD).ok().as_deref()),
        _ => Vec::new(),
    }
}

fn loaded(library: &Path, socket: &Path, before: Option<&str>) -> Variables {
    let (Some(library), Some(socket)) = (library.to_str(), socket.to_str()) else { return Vec::new() };
    // `LD_PRELOAD` is split at both characters and has no quoting.
    if library.contains([':', ' ']) {
        return Vec::new();
    }
    let preload = match before.filter(|before| !before.is_empty()) {
        Some(before) if before.split([':', ' ']).any(|path| path == library) => before.to_owned(),
        Some(before) => format!("{before}:{library}"),
        None => library.to_owned(),
    };
    vec![(PRELOAD, preload), (SOCKET_ENV, socket.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preload(library: &str, before: Option<&str>) -> Option<String> {
        loaded(Path::new(library), Path::new("/run/s.shim"), before).into_iter().next().map(|(_, value)| value)
    }

    #[test]
    fn it_is_added_to_what_is_loaded_already_and_not_twice() {
        assert_eq!(preload("/a/x.so", None).as_deref(), Some("/a/x.so"));
        assert_eq!(preload("/a/x.so", Some("")).as_deref(), Some("/a/x.so"));
        assert_eq!(preload("/a/x.so", Some("/b.so")).as_deref(), Some("/b.so:/a/x.so"));
        assert_eq!(preload("/a/x.so", Some("/b.so:/a/x.so")).as_deref(), Some("/b.so:/a/x.so"));
        assert_eq!(preload("/a b/x.so", None), None, "it would load something else");
    }
}
