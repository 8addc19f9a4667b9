//! Uses of a program's memory by others that the driver's calls do not show.
//!
//! A network card reads and writes memory by itself once the memory is registered with it (RDMA), through a device file
//! that the program has open; the kernel does not say whether memory was registered, or which. And under MPS the memory
//! is not the program's alone. In both cases the program cannot be parked. This is checked whenever a park is likely.

use crate::driver;
use crate::lease_page;
use crate::message::ParkObstacle;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Device files through which memory is registered with network cards.
const NETWORK_FILES: &str = "/dev/infiniband/uverbs";
/// Where the MPS service listens by default.
const MPS_DIRECTORY: &str = "/tmp/nvidia-mps";

/// Whether the GPU is shared through MPS. A program that used the GPU before the service started is not its client, and
/// does not become one later.
static MPS: OnceLock<bool> = OnceLock::new();

/// Notes what does not change, on the program's own thread: the shim's thread must not read an environment that the
/// program may be changing.
pub fn read_mps_setting() {
    MPS.get_or_init(|| mps_listens(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")));
}

/// Marks the program according to its present state.
pub fn update_obstacles() {
    match registers_memory() {
        true => lease_page::set_obstacle(ParkObstacle::Rdma, NETWORK_FILES),
        false => lease_page::clear_obstacle(ParkObstacle::Rdma),
    }
    if driver::is_loaded() && driver::find_function(c"cuCtxRecordEvent") == 0 {
        lease_page::set_obstacle(ParkObstacle::OldDriver, "the driver");
    }
    if MPS.get() == Some(&true) {
        lease_page::set_obstacle(ParkObstacle::Mps, "MPS");
    }
}

fn registers_memory() -> bool {
    let files = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| is_network_file(&file))
}

fn is_network_file(file: &Path) -> bool {
    file.to_str().is_some_and(|file| file.starts_with(NETWORK_FILES))
}

fn mps_listens(directory: Option<OsString>) -> bool {
    let directory = directory.map_or_else(|| PathBuf::from(MPS_DIRECTORY), PathBuf::from);
    directory.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_cards_are_recognised_by_their_device_files() {
        assert!(is_network_file(Path::new("/dev/infiniband/uverbs0")));
        assert!(!is_network_file(Path::new("/dev/infiniband/rdma_cm")) && !is_network_file(Path::new("/dev/nvidia0")));
        assert!(!registers_memory(), "this test has none open");
    }

    #[test]
    fn the_mps_service_is_recognised_by_its_control_pipe() {
        let directory = std::env::temp_dir().join(format!("sublet-mps-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert!(!mps_listens(Some(directory.clone().into())), "a directory without a pipe has no service");
        fs::write(directory.join("control"), "").unwrap();
        assert!(mps_listens(Some(directory.clone().into())));
        fs::remove_dir_all(directory).unwrap();
    }
}
