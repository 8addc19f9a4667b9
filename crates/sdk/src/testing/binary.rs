//! Finds the `sublet` binary that a private daemon runs.
//!
//! ```text
//!   SUBLET_BIN                                the file that it names
//!   a checkout of Sublet                      built by cargo into the target directory of the test
//!   PATH, /usr/bin, /opt/sublet/bin           an installed one
//! ```
//! In a checkout nothing else is used: a test must not pass or fail by an older installed release.

use crate::client::sockets;
use crate::error::FabricError;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs};

/// Names the binary.
const BINARY_VARIABLE: &str = "SUBLET_BIN";
/// What to do without a binary.
const HINT: &str = "install Sublet, or set SUBLET_BIN to a `sublet`; in a checkout `cargo xtask up` builds one";
/// What to do if the build fails.
const BUILD_HINT: &str = "`cargo build -p sublet-cli` in the checkout shows why";
/// Where packages put the binary.
const INSTALLED: [&str; 2] = ["/usr/bin/sublet", "/opt/sublet/bin/sublet"];
/// What is built beside the binary: the library for programs, and the libraries of soft GPUs. The same packages as
/// `cargo xtask up` builds, so that both find the other's build fresh.
const PACKAGES: [&str; 6] = [
    "sublet-cli",
    "sublet-softgpu-cuda",
    "sublet-softgpu-nvml",
    "sublet-shim",
    "sublet-examples",
    "sublet-example-train",
];
/// The libraries of soft GPUs: the names under which cargo builds them, and under which programs load them.
const SOFT_LIBRARIES: [(&str, &str); 2] = [("libcuda.so", "libcuda.so.1"), ("libnvidia_ml.so", "libnvidia-ml.so.1")];

fn failed(reason: impl Into<String>, hint: &'static str) -> FabricError {
    FabricError::NoLocalHost { reason: reason.into(), hint }
}

/// The path of the binary, built first if this is a checkout.
pub(super) fn find() -> Result<PathBuf, FabricError> {
    if let Some(binary) = sockets::variable(BINARY_VARIABLE) {
        return match binary.is_file() {
            true => Ok(sockets::absolute(&binary)),
            false => Err(failed(format!("{BINARY_VARIABLE} names {}, which is no file", binary.display()), HINT)),
        };
    }
    if let Some(root) = checkout() {
        return built(&root);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|dir| dir.join("sublet"));
    let mut installed = in_path.chain(INSTALLED.map(PathBuf::from));
    installed.find(|path| path.is_file()).ok_or_else(|| failed("no `sublet` binary was found", HINT))
}

/// The root of the checkout that this library was built in; `None` if it was not, or is gone.
fn checkout() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.parent()?;
    root.join("crates/cli/Cargo.toml").is_file().then(|| root.to_owned())
}

/// The directory of the profile that this program was built into, such as `target/debug`.
fn profile_dir(root: &Path) -> PathBuf {
    let own = env::current_exe().ok();
    let found = own.as_deref().into_iter().flat_map(Path::ancestors).find(|dir| dir.join("deps").is_dir());
    found.map_or_else(
        || sockets::variable("CARGO_TARGET_DIR").unwrap_or_else(|| root.join("target")).join("debug"),
        Path::to_owned,
    )
}

fn built(root: &Path) -> Result<PathBuf, FabricError> {
    let profile = profile_dir(root);
    let binary = profile.join("sublet");
    // The libraries are put in their place after every build, so that their age is the build's.
    let is_fresh = SOFT_LIBRARIES.iter().all(|(_, name)| is_fresh(root, &profile.join("soft").join(name)));
    if !binary.is_file() || !is_fresh {
        build(root, &profile)?;
        copy_soft_libraries(&profile).map_err(|error| failed(error.to_string(), BUILD_HINT))?;
    }
    match binary.is_file() {
        true => Ok(binary),
        false => Err(failed(format!("cargo built no {}", binary.display()), BUILD_HINT)),
    }
}

fn build(root: &Path, profile: &Path) -> Result<(), FabricError> {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo says of this test to this test; some build scripts would take it for a change.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(root).args(["build", "--quiet", "--profile", name]);
    cargo.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    cargo.arg("--target-dir").arg(profile.parent().unwrap_or(profile));
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("cargo could not build it ({status})"), BUILD_HINT)),
        Err(error) => Err(failed(format!("cargo could not be started: {error}"), HINT)),
    }
}

fn copy_soft_libraries(profile: &Path) -> std::io::Result<()> {
    let soft = profile.join("soft");
    fs::create_dir_all(&soft)?;
    for (built, wanted) in SOFT_LIBRARIES {
        // Other tests may have the old one mapped.
        let new = soft.join(format!("{wanted}.{}", std::process::id()));
        fs::copy(profile.join(built), &new)?;
        fs::rename(&new, soft.join(wanted))?;
    }
    Ok(())
}

/// Whether no source is newer than the file.
fn is_fresh(root: &Path, file: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let Some(built) = modified(file) else { return false };
    let mut newest = modified(&root.join("Cargo.lock")).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut dirs = vec![root.join("crates"), root.join("examples")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if let Some(time) = modified(&path) {
                newest = newest.max(time);
            }
        }
    }
    newest <= built
}
