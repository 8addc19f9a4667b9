//! Soft GPUs in a directory of their own, with the library beside them.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use sublet_softgpu::state::CONTEXT_BYTES;
use sublet_softgpu::{Seat, State};

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
    pub state: State,
}

impl Machine {
    /// GPUs as in `2x4GiB`.
    pub fn with(spec: &str) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let state = State::create(&dir.path().join("cards"), &spec.parse().unwrap()).unwrap();
        symlink(library(), dir.path().join("libnvidia-ml.so.1")).unwrap();
        Machine { dir, state }
    }

    /// The path of the GPUs' file.
    pub fn cards(&self) -> PathBuf {
        self.dir.path().join("cards")
    }

    /// Puts this process on a GPU, with a context and bytes besides.
    pub fn sit(&self, card: usize, bytes: u64) -> Seat {
        let seat = Seat::take(State::open(&self.cards()).unwrap()).unwrap();
        seat.reserve(card, CONTEXT_BYTES + bytes).unwrap();
        seat.row().cards[card].contexts.store(1, SeqCst);
        seat
    }
}
