//! What others do with a program's memory that the driver's calls do not show.
//!
//! A network card reads and writes it by itself once it is registered there (RDMA), through a device file that the
//! program has open; whether it was, and which of it, the kernel does not say. And under MPS the memory is not the
//! program's alone. Neither can be parked: it is looked for whenever a park is near.

use crate::driver;
use crate::page::{self, Reason};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Device files through which memory is registered with network cards.
const NETWORK_FILES: &str = "/dev/infiniband/uverbs";
/// Where the service that shares a card listens, if nobody says otherwise.
const MPS_DIRECTORY: &str = "/tmp/nvidia-mps";

/// Whether the card is shared below the driver. Whoever came to it before the service did is not its client, and
/// nobody becomes one later.
static MPS: OnceLock<bool> = OnceLock::new();

/// Notes what does not change, on the program's own thread: another must not read an environment that it may change.
pub fn note() {
    MPS.get_or_init(|| listens(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")));
}

/// Marks the program as it is now.
pub fn look() {
    match registers_memory() {
        true => page::mark_not_parkable(Reason::Rdma, NETWORK_FILES),
        false => page::unmark(Reason::Rdma),
    }
    if driver::is_loaded() && driver::find(c"cuCtxRecordEvent") == 0 {
        page::mark_not_parkable(Reason::OldDriver, "the driver");
    }
    if MPS.get() == Some(&true) {
        page::mark_not_parkable(Reason::Mps, "MPS");
    }
}

fn registers_memory() -> bool {
    let files = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| is_network_file(&file))
}

fn is_network_file(file: &Path) -> bool {
    file.to_str().is_some_and(|file| file.starts_with(NETWORK_FILES))
}

fn listens(directory: Option<OsString>) -> bool {
    let directory = directory.map_or_else(|| PathBuf::from(MPS_DIRECTORY), PathBuf::from);
    directory.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_cards_are_told_by_their_device_files() {
        assert!(is_network_file(Path::new("/dev/infiniband/uverbs0")));
        assert!(!is_network_file(Path::new("/dev/infiniband/rdma_cm")) && !is_network_file(Path::new("/dev/nvidia0")));
        assert!(!registers_memory(), "this test has none open");
    }

    #[test]
    fn the_service_that_shares_a_card_is_told_by_its_control_pipe() {
        let directory = std::env::temp_dir().join(format!("sublet-mps-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert!(!listens(Some(directory.clone().into())), "who names an empty place has none");
        fs::write(directory.join("control"), "").unwrap();
        assert!(listens(Some(directory.clone().into())));
        fs::remove_dir_all(directory).unwrap();
    }
}
