//! Installs what a fresh Debian machine lacks: a C compiler, a Python venv
//! and the pinned packages in it. What is there already is left alone.

use crate::shell::{cargo, program};
use crate::workspace::{root, target_dir};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// SQLite is compiled from its C source.
pub fn c_compiler() -> Result<()> {
    if program("cc").args(["--version"]).succeeds() {
        return Ok(());
    }
    apt_install(&["gcc", "libc6-dev"], "a C compiler (SQLite is built from source)")
}

/// What the API is tested with; says where its programs are.
pub fn python_tools() -> Result<PathBuf> {
    venv("venv", ".ci/requirements.txt")
}

/// What libraries for other machines are built with; says where its programs are.
pub fn release_tools() -> Result<PathBuf> {
    venv("release-venv", ".ci/release.txt")
}

/// What Debian packages are made with, in the version that is known to work; says where it is.
pub fn cargo_deb() -> Result<PathBuf> {
    const VERSION: &str = "3.8.0";
    let tools = target_dir()?.join("tools");
    let tool = tools.join("bin/cargo-deb");
    let is_there = program(&tool).args(["--version"]).quiet_output().is_some_and(|said| said.trim().ends_with(VERSION));
    if !is_there {
        cargo(["install", "--locked", "--force", "--version", VERSION, "--root"])
            .args([&tools])
            .args(["cargo-deb"])
            .run()
            .context("cargo-deb could not be installed\nhint: is a registry of crates reachable?")?;
    }
    Ok(tool)
}

/// A fresh Debian in a folder is made with it.
pub fn debootstrap() -> Result<()> {
    match program("debootstrap").args(["--version"]).succeeds() {
        true => Ok(()),
        false => apt_install(&["debootstrap"], "debootstrap (to test the package in a fresh Debian)"),
    }
}

/// A Debian in a folder is booted with it.
pub fn nspawn() -> Result<()> {
    match program("systemd-nspawn").args(["--version"]).succeeds() {
        true => Ok(()),
        false => apt_install(&["systemd-container"], "systemd-nspawn (to boot a fresh Debian)"),
    }
}

/// A venv of that name with the packages that a file of the tree lists.
fn venv(name: &str, list: &str) -> Result<PathBuf> {
    let wanted = root().join(list);
    let requirements = fs::read_to_string(&wanted).with_context(|| format!("{} is missing", wanted.display()))?;
    let venv = target_dir()?.join(name);
    // The stamp is written last: a venv that was only half filled is made again.
    let stamp = venv.join("sublet-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        return Ok(venv.join("bin"));
    }
    make_venv(&venv)?;
    program(venv.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .args([&wanted])
        .run()
        .context("the tools could not be installed\nhint: is a package index reachable? see `pip config list`")?;
    fs::write(&stamp, requirements).with_context(|| format!("{} could not be written", stamp.display()))?;
    Ok(venv.join("bin"))
}

fn make_venv(venv: &Path) -> Result<()> {
    let make = || program("python3").args(["-m", "venv", "--clear"]).args([venv]);
    // Debian ships the module without the part that makes it work.
    if !program("python3").args(["-c", "import venv, ensurepip"]).succeeds() {
        apt_install(&["python3", "python3-venv"], "Python with venv (for the API tests)")?;
    }
    make().run()
}

fn apt_install(packages: &[&str], purpose: &str) -> Result<()> {
    let list = packages.join(" ");
    if !program("apt-get").args(["--version"]).succeeds() {
        bail!(
            "this needs {purpose}, and there is no `apt-get` to install it with\nhint: install what Debian calls `{list}`"
        );
    }
    eprintln!("installing {list}: this needs {purpose}");
    let apt = || match rustix::process::geteuid().is_root() {
        true => program("apt-get"),
        false => program("sudo").args(["apt-get"]),
    };
    let install = || apt().env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y"]).args(packages).run();
    // On a fresh machine the package lists are missing; elsewhere they need no refresh.
    install()
        .or_else(|_| apt().args(["update"]).run().and_then(|()| install()))
        .with_context(|| format!("{purpose} could not be installed\nhint: run `apt-get install {list}` as root"))
}
