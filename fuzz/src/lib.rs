//! What the fuzz targets share: a directory in memory for the files that a parser reads.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A directory of this process alone, on a file system in memory, made at the first call. `cargo xtask fuzz-parsers`
/// names its parent and removes it; a target that is started by hand leaves it behind.
pub fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let parent = std::env::var_os("SUBLET_FUZZ_SCRATCH").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
        let dir = parent.join(format!("sublet-fuzz-{}", std::process::id()));
        // A pid namespace numbers its processes from 1, so an earlier run may have had the same number.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for the files of this run");
        dir
    })
}
