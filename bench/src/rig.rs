//! What every bench shares: where things are and how long to measure.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The options of a run.
pub struct BenchRig {
    /// The binary to measure, if the caller named one.
    pub sublet: Option<PathBuf>,
    /// Rounds, each with both sides.
    pub rounds: u32,
    /// How long a round of load lasts.
    pub load: Duration,
    /// Connections of the load.
    pub connections: usize,
    /// Leases that `restart` prepares.
    pub leases: usize,
    /// How long `idle` watches.
    pub idle: Duration,
    /// Calls of each kind that `cli` times.
    pub calls: usize,
    /// The only part of `checkpoint` to run, if the caller named one.
    pub part: Option<String>,
}

impl BenchRig {
    /// The binary to measure; it is built if the caller named none and it is not there.
    pub fn sublet(&self) -> Result<PathBuf> {
        if let Some(path) = &self.sublet {
            return path.canonicalize().with_context(|| format!("no binary `{}`", path.display()));
        }
        let path = target()?.join("release/sublet");
        if !path.exists() {
            let built = Command::new("cargo")
                .args(["build", "--release", "-p", "sublet-cli"])
                .current_dir(workspace())
                .status()
                .context("cannot start cargo")?;
            ensure!(built.success(), "cargo could not build sublet");
        }
        Ok(path)
    }

    /// The folder that state folders are made in: on the disk the build is on, never a tmpfs by accident.
    pub fn state_root(&self) -> Result<PathBuf> {
        let root = target()?.join("bench-state");
        std::fs::create_dir_all(&root)?;
        Ok(root)
    }

    /// An empty state folder. Names are short: a socket's path has 107 bytes.
    pub fn fresh_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.state_root()?.join(name);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot empty `{}`", folder.display()));
            }
            _ => std::fs::create_dir(&folder)?,
        }
        // Otherwise, unwritten pages of earlier rounds would be written in the middle of the next.
        rustix::fs::sync();
        Ok(folder)
    }
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Where cargo builds.
pub fn target() -> Result<PathBuf> {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    Ok(folder.canonicalize()?)
}
