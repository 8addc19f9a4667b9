//! `cargo xtask release-soft` and `release-shim`: the soft GPUs' libraries and the library that is preloaded
//! into programs, built for other machines; `cargo xtask dist` builds the `sublet` binary in the same way.
//!
//! All of them run on machines older than the one that builds them. So they are linked against the symbols of
//! an old glibc: zig, which has the lists of all of them, stands in for the linker (cargo-zigbuild). Each
//! result is read again ([`crate::portable`]) and loaded or started once.

use crate::portable::ElfKind;
use crate::shell::{cargo, program};
use crate::workspace::target_dir;
use crate::{portable, setup};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The oldest glibc that the files load on: of 2012, as on CentOS 7.
const TARGET: &str = "x86_64-unknown-linux-gnu.2.17";

/// A file to build: its package, cargo's name for the file, and its name when installed.
struct Artifact(&'static str, &'static str, &'static str);

const SOFT: &[Artifact] = &[
    Artifact("sublet-softgpu-cuda", "libcuda.so", "libcuda.so.1"),
    Artifact("sublet-softgpu-nvml", "libnvidia_ml.so", "libnvidia-ml.so.1"),
];
const SHIM: &[Artifact] = &[Artifact("sublet-shim", "libsublet_shim.so", "libsublet-shim.so")];
const PROGRAM: &[Artifact] = &[Artifact("sublet-cli", "sublet", "sublet")];

/// Builds the soft GPUs' libraries into `target/release-soft`, checks them, and returns that folder.
pub fn soft() -> Result<PathBuf> {
    build("release-soft", &["--lib"], SOFT)
}

/// Builds the shim into `target/release-shim`, checks it, and returns that folder.
pub fn shim() -> Result<PathBuf> {
    build("release-shim", &["--lib"], SHIM)
}

/// Builds `sublet` into `target/release-program`, checks it, and returns that folder.
pub fn program_file() -> Result<PathBuf> {
    build("release-program", &["--bin", "sublet"], PROGRAM)
}

fn build(name: &str, kind: &[&str], artifacts: &[Artifact]) -> Result<PathBuf> {
    let tools = setup::release_tools()?;
    let folder = target_dir()?.join(name);
    // Their own folder: these builds share dependencies with each other and with no other build.
    let build = target_dir()?.join("portable");
    let mut run = cargo(["zigbuild", "--release", "--target", TARGET])
        .args(kind)
        .env("PATH", path_with(&tools)?)
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    for Artifact(package, ..) in artifacts {
        run = run.args(["--package", package]);
    }
    run.run()?;
    fs::create_dir_all(&folder).with_context(|| format!("{} could not be made", folder.display()))?;
    let mut broken = Vec::new();
    for Artifact(_, built, wanted) in artifacts {
        let from = build.join("x86_64-unknown-linux-gnu/release").join(built);
        let mut bytes = fs::read(&from).with_context(|| format!("{} was not built", from.display()))?;
        let kind = if wanted.contains(".so") { ElfKind::Library(wanted) } else { ElfKind::Program };
        if matches!(kind, ElfKind::Library(_)) {
            portable::remove_loader(&mut bytes)?;
        }
        broken.extend(portable::violations(&bytes, kind)?.into_iter().map(|what| format!("{wanted}: {what}")));
        let to = folder.join(wanted);
        replace(&to, &bytes, kind.mode()).with_context(|| format!("{} could not be written", to.display()))?;
        eprintln!("{}: {} KiB", to.display(), bytes.len() / 1024);
    }
    ensure!(broken.is_empty(), "these files would not load everywhere:\n{}", broken.join("\n"));
    load_and_start(&tools, &folder, artifacts)?;
    Ok(folder)
}

/// Puts a file in the place of another. A process that has the old file loaded keeps it as it was.
fn replace(to: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let beside = to.with_extension("new");
    fs::write(&beside, bytes)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(mode))?;
    fs::rename(&beside, to)
}

/// `PATH` with the tools first.
fn path_with(tools: &Path) -> Result<OsString> {
    let others = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(std::iter::once(tools.to_owned()).chain(std::env::split_paths(&others)))?)
}

/// Loads each library with every symbol looked up at once, and starts each program.
fn load_and_start(tools: &Path, folder: &Path, artifacts: &[Artifact]) -> Result<()> {
    for Artifact(.., wanted) in artifacts {
        let load = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)";
        let path = folder.join(wanted);
        let tried = match wanted.contains(".so") {
            true => program(tools.join("python")).args(["-c", load]).args([&path]).run(),
            false => program(&path).args(["--version"]).run(),
        };
        if tried.is_err() {
            bail!("{} does not load on this machine", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::replace;
    use std::fs;
    use std::io::Read;

    #[test]
    fn a_process_with_the_old_file_open_keeps_its_content() {
        let folder = std::env::temp_dir().join(format!("sublet-replace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libsublet-shim.so");
        replace(&library, b"old", 0o644).unwrap();
        let mut open = fs::File::open(&library).unwrap();
        replace(&library, b"newer", 0o644).unwrap();
        let mut kept = String::new();
        open.read_to_string(&mut kept).unwrap();
        assert_eq!((kept.as_str(), fs::read(&library).unwrap().as_slice()), ("old", &b"newer"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(folder).unwrap();
    }
}
