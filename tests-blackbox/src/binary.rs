//! Finds the binary under test, and the libraries of the soft GPUs: those built beside the test itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{env, fs};

/// The libraries of the soft GPUs: the names under which cargo builds them, and under which programs load them.
const SOFT: [(&str, &str, &str); 2] = [
    ("sublet-softgpu-cuda", "libcuda.so", "libcuda.so.1"),
    ("sublet-softgpu-nvml", "libnvidia_ml.so", "libnvidia-ml.so.1"),
];

/// What lies beside `sublet`: the library for programs that it starts, and programs to try it with.
const BESIDE: [&str; 3] = ["sublet-shim", "sublet-examples", "sublet-example-train"];

/// The `sublet` of the test's own profile, built if it is missing or older than its sources.
pub fn sublet() -> &'static Path {
    static SUBLET: OnceLock<PathBuf> = OnceLock::new();
    SUBLET.get_or_init(|| {
        let test = env::current_exe().expect("a test knows its own path");
        // .../target/PROFILE/deps/TEST
        let profile = test.parent().and_then(Path::parent).expect("a test is built into PROFILE/deps").to_path_buf();
        let binary = profile.join("sublet");
        // The libraries are put in their place after every build, so that their age is the build's.
        if !binary.exists() || !SOFT.iter().all(|(.., name)| fresh(&profile.join("soft").join(name))) {
            build(&profile);
        }
        assert!(binary.exists(), "{} is missing: run `cargo build -p sublet-cli`", binary.display());
        binary
    })
}

/// One of the example programs.
pub fn example(name: &str) -> String {
    let path = sublet().with_file_name(format!("sublet-example-{name}"));
    path.to_str().expect("test paths are plain").to_owned()
}

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace")
}

fn build(profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()).expect("a profile has a name") {
        "debug" => "dev",
        other => other,
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo says of this test to this test; some build scripts would take it for a change.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    let status = cargo
        .current_dir(root())
        .args(["build", "--quiet", "--package", "sublet-cli"])
        .args(SOFT.iter().map(|(package, ..)| *package).chain(BESIDE).flat_map(|package| ["--package", package]))
        .args(["--profile", name, "--target-dir"])
        .arg(profile.parent().expect("a profile lies in a target directory"))
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "`cargo build --package sublet-cli` failed");
    let soft = profile.join("soft");
    fs::create_dir_all(&soft).expect("a directory can be made");
    for (_, built, wanted) in SOFT {
        // Other tests may have the old one mapped.
        let new = soft.join(format!("{wanted}.{}", std::process::id()));
        fs::copy(profile.join(built), &new).expect("a library can be copied");
        fs::rename(&new, soft.join(wanted)).expect("a library can be put in its place");
    }
}

/// Whether no source is newer than the binary.
fn fresh(binary: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let Some(built) = modified(binary) else { return false };
    let mut newest = modified(&root().join("Cargo.lock")).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut dirs = vec![root().join("crates"), root().join("examples")];
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
