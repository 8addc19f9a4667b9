//! Where things are: the root, the target directory, the built binary.

use crate::shell::cargo;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// What cargo knows of the workspace's own packages.
pub fn own_packages() -> Result<Value> {
    metadata(&["--no-deps"])
}

/// What cargo knows of every package that is built on Linux.
pub fn all_packages() -> Result<Value> {
    metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"])
}

fn metadata(arguments: &[&str]) -> Result<Value> {
    let text = cargo(["metadata", "--format-version", "1"]).args(arguments).output()?;
    serde_json::from_str(&text).context("`cargo metadata` printed something that is not JSON")
}

/// Where cargo builds.
pub fn target_dir() -> Result<PathBuf> {
    let metadata = own_packages()?;
    let dir = metadata["target_directory"].as_str().context("`cargo metadata` names no target_directory")?;
    Ok(PathBuf::from(dir))
}

/// How `sublet` is built.
#[derive(Clone, Copy)]
pub enum Profile {
    /// Quickly, for tests.
    Debug,
    /// As it is used.
    Release,
}

/// The soft GPUs' libraries: cargo's names for them, and the names that programs load.
const SOFT: [(&str, &str, &str); 2] = [
    ("sublet-softgpu-cuda", "libcuda.so", "libcuda.so.1"),
    ("sublet-softgpu-nvml", "libnvidia_ml.so", "libnvidia-ml.so.1"),
];

/// What lies beside `sublet`: the library for programs that it starts, and programs to try it with.
const BESIDE: [&str; 3] = ["sublet-shim", "sublet-examples", "sublet-example-train"];

/// Builds `sublet` and what lies beside it, with the soft GPUs' libraries in `soft/`; returns its path.
pub fn build_sublet(profile: Profile) -> Result<PathBuf> {
    let packages = SOFT.iter().map(|(package, ..)| *package).chain(BESIDE).flat_map(|package| ["--package", package]);
    let build = cargo(["build", "--package", "sublet-cli"]).args(packages);
    let dir = match profile {
        Profile::Debug => {
            build.run()?;
            "debug"
        }
        Profile::Release => {
            build.args(["--release"]).run()?;
            "release"
        }
    };
    let dir = target_dir()?.join(dir);
    copy_soft_libraries(&dir)?;
    Ok(dir.join("sublet"))
}

fn copy_soft_libraries(dir: &Path) -> Result<()> {
    let soft = dir.join("soft");
    fs::create_dir_all(&soft).with_context(|| format!("{} could not be made", soft.display()))?;
    for (_, built, wanted) in SOFT {
        // A program may have the old one mapped: it keeps that, and the next one finds the new.
        let new = soft.join(format!("{wanted}.{}", std::process::id()));
        fs::copy(dir.join(built), &new)
            .and_then(|_| fs::rename(&new, soft.join(wanted)))
            .with_context(|| format!("{built} could not be put into {}", soft.display()))?;
    }
    Ok(())
}
