//! Links the unwinder into the program instead of loading `libgcc_s.so.1` at every start.
//!
//! The standard library asks for `-lgcc_s`. A linker script of that name, found before the real one, names the
//! compiler's own archives instead. The code is the same, and there is one library less to find, map and initialise, in
//! a program that often runs for two milliseconds. Where the compiler has no such archive, nothing changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const SCRIPT: &str = "GROUP ( -lgcc_eh -lgcc )\n";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let is_native = env::var("HOST") == env::var("TARGET");
    let is_glibc = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    let Some(folder) = env::var_os("OUT_DIR").map(PathBuf::from) else { return Ok(()) };
    if is_native && is_glibc && has_archive() {
        fs::write(folder.join("libgcc_s.so"), SCRIPT)?;
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
    Ok(())
}

/// Whether the linking compiler has the unwinder as an archive. The compiler prints a path if it has one, and the bare
/// name if not.
fn has_archive() -> bool {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let asked = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    asked.is_ok_and(|answer| Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_absolute())
}
