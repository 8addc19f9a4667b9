//! Where Sublet's libraries are: its shim, and the driver of soft GPUs.
//!
//! They lie beside the `sublet` binary, or in `../lib/sublet`. Which binary: the one that the daemon runs, else the one
//! that is installed.

use crate::client::{DaemonClient, peer, sockets};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the directory, for unusual installations.
const LIBRARIES_VARIABLE: &str = "SUBLET_LIBRARIES";
/// The shim's file name in a release, and in a build of the source.
const SHIM: [&str; 2] = ["libsublet-shim.so", "libsublet_shim.so"];
/// The soft GPUs' driver.
const SOFT_CUDA: &str = "soft/libcuda.so.1";
/// Where packages put the libraries.
const INSTALLED: &str = "/usr/lib/sublet";

/// The directories to search, the likeliest first. A directory that is named is the only one.
pub(super) fn folders(client: &DaemonClient) -> Vec<PathBuf> {
    if let Some(named) = sockets::variable(LIBRARIES_VARIABLE) {
        return vec![named];
    }
    let of_daemon = client.socket().and_then(peer).and_then(|(pid, _)| fs::read_link(format!("/proc/{pid}/exe")).ok());
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|dir| dir.join("sublet")).find_map(|file| file.canonicalize().ok());
    let binaries = [of_daemon, env::current_exe().ok(), in_path];
    let beside = binaries.iter().flatten().filter_map(|binary| binary.parent());
    let mut folders: Vec<PathBuf> = beside.flat_map(|dir| [dir.to_owned(), dir.join("../lib/sublet")]).collect();
    folders.push(PathBuf::from(INSTALLED));
    folders
}

/// The shim, if it is there.
pub(super) fn shim(folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().flat_map(|folder| SHIM.map(|name| folder.join(name))).find(|path| path.is_file())
}

/// The soft GPUs' driver, if it is there.
pub(super) fn soft_cuda(folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder: &PathBuf| folder.join(Path::new(SOFT_CUDA))).find(|path| path.is_file())
}
