//! Where things are: the root, the target directory, the built binary.

use crate::shell::cargo;
use anyhow::{Context, Result};
use serde_json::Value;
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

/// Builds `sublet` and says where it is.
pub fn build_sublet(profile: Profile) -> Result<PathBuf> {
    let build = cargo(["build", "--package", "sublet", "--bin", "sublet"]);
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
    Ok(target_dir()?.join(dir).join("sublet"))
}
