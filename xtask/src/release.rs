//! `cargo xtask release-soft` and `release-shim`: the libraries of the soft cards, and the one that is
//! preloaded into holders, as they are handed out.
//!
//! They are loaded into other people's programs, on machines older than the one that
//! builds them. So they are linked against the symbols of an old glibc: zig, which has
//! the lists of all of them, stands in for the linker (cargo-zigbuild). What came out is
//! read again ([`crate::portable`]) and loaded once.

use crate::shell::{cargo, program};
use crate::workspace::target_dir;
use crate::{portable, setup};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// The oldest glibc that the libraries load on: of 2012, as on CentOS 7.
const TARGET: &str = "x86_64-unknown-linux-gnu.2.17";

/// A library: its package, what cargo calls it, and what programs look for.
struct Library(&'static str, &'static str, &'static str);

const SOFT: &[Library] = &[
    Library("sublet-softgpu-cuda", "libcuda.so", "libcuda.so.1"),
    Library("sublet-softgpu-nvml", "libnvidia_ml.so", "libnvidia-ml.so.1"),
];
const SHIM: &[Library] = &[Library("sublet-shim", "libsublet_shim.so", "libsublet-shim.so")];

/// Builds the soft cards' into `target/release-soft`, and checks them.
pub fn soft() -> Result<()> {
    build("release-soft", SOFT)
}

/// Builds the shim into `target/release-shim`, and checks it.
pub fn shim() -> Result<()> {
    build("release-shim", SHIM)
}

fn build(name: &str, libraries: &[Library]) -> Result<()> {
    let tools = setup::release_tools()?;
    let folder = target_dir()?.join(name);
    let build = folder.join("build");
    let mut run = cargo(["zigbuild", "--release", "--lib", "--target", TARGET])
        .env("PATH", path_with(&tools)?)
        // Their own folder: what is built here is of no use to other builds.
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    for Library(package, ..) in libraries {
        run = run.args(["--package", package]);
    }
    run.run()?;
    let mut broken = Vec::new();
    for Library(_, built, wanted) in libraries {
        let from = build.join("x86_64-unknown-linux-gnu/release").join(built);
        let mut bytes = fs::read(&from).with_context(|| format!("{} was not built", from.display()))?;
        portable::forget_loader(&mut bytes)?;
        broken.extend(portable::violations(&bytes, wanted)?.into_iter().map(|what| format!("{wanted}: {what}")));
        let to = folder.join(wanted);
        replace(&to, &bytes).with_context(|| format!("{} could not be written", to.display()))?;
        eprintln!("{}: {} KiB", to.display(), bytes.len() / 1024);
    }
    ensure!(broken.is_empty(), "these libraries would not load everywhere:\n{}", broken.join("\n"));
    load(&tools, &folder, libraries)
}

/// Puts a file in the place of another, which whoever has it loaded keeps: written into, it would change under them.
fn replace(to: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = to.with_extension("new");
    fs::write(&beside, bytes)?;
    fs::rename(&beside, to)
}

/// `PATH` with the tools first.
fn path_with(tools: &Path) -> Result<OsString> {
    let others = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(std::iter::once(tools.to_owned()).chain(std::env::split_paths(&others)))?)
}

/// Loads them with every symbol looked up at once.
fn load(tools: &Path, folder: &Path, libraries: &[Library]) -> Result<()> {
    for Library(.., library) in libraries {
        let load = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)";
        let path = folder.join(library);
        if program(tools.join("python")).args(["-c", load]).args([&path]).run().is_err() {
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
    fn who_has_the_old_file_open_keeps_it_as_it_was() {
        let folder = std::env::temp_dir().join(format!("sublet-replace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libsublet-shim.so");
        replace(&library, b"old").unwrap();
        let mut open = fs::File::open(&library).unwrap();
        replace(&library, b"newer").unwrap();
        let mut kept = String::new();
        open.read_to_string(&mut kept).unwrap();
        assert_eq!((kept.as_str(), fs::read(&library).unwrap().as_slice()), ("old", &b"newer"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(folder).unwrap();
    }
}
