//! Soft GPUs in a directory of their own, with the library beside them.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use sublet_softgpu::state::CONTEXT_BYTES;
use sublet_softgpu::{SoftGpuClient, SoftGpuState};

/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// The library under test: cargo puts it beside the tests.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libnvidia_ml.so")
}

/// A file of soft GPUs, and the library under the name that programs look for.
pub struct Machine {
    dir: tempfile::TempDir,
    /// The GPUs.
    pub state: SoftGpuState,
}

impl Machine {
    /// GPUs as in `2x4GiB`.
    pub fn with(spec: &str) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let state = SoftGpuState::create(&dir.path().join("cards"), &spec.parse().unwrap()).unwrap();
        symlink(library(), dir.path().join("libnvidia-ml.so.1")).unwrap();
        Machine { dir, state }
    }

    /// The path of the GPUs' file.
    pub fn gpus_file(&self) -> PathBuf {
        self.dir.path().join("cards")
    }

    /// Puts this process on a GPU, with a context and bytes besides.
    pub fn register_client(&self, gpu: usize, bytes: u64) -> SoftGpuClient {
        let client = SoftGpuClient::register(SoftGpuState::open(&self.gpus_file()).unwrap()).unwrap();
        client.reserve(gpu, CONTEXT_BYTES + bytes).unwrap();
        client.row().gpus[gpu].contexts.store(1, SeqCst);
        client
    }
}
