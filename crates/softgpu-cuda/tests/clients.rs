//! NVIDIA's own clients of the driver API, as they come from the registry, on soft GPUs.

#[path = "../../softgpu-nvml/tests/python/venv.rs"]
mod venv;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use sublet_softgpu::SoftGpuState;
use sublet_softgpu::state::{ENV, IDLE_BYTES};

/// The output of a script that is run with the clients installed.
fn client(script: &str) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = std::env::current_exe().expect("a test has a path").with_file_name("libcuda.so");
    let target = library.ancestors().nth(3).expect("a test is in a target directory");
    let venv = venv::venv(target, "cuda-venv", &here.join("tests/requirements.txt"));
    let dir = tempfile::tempdir().expect("a directory can be made");
    symlink(&library, dir.path().join("libcuda.so.1")).expect("a link can be made");
    let gpus = dir.path().join("cards");
    let state = SoftGpuState::create(&gpus, &"1x2GiB".parse().expect("cards")).expect("GPUs can be made");
    let mut command = Command::new(venv.join("bin/python"));
    command.arg(here.join("tests/clients").join(script)).arg(here.join("../softgpu/kernels/basic.ptx"));
    let output = command.env("LD_LIBRARY_PATH", dir.path()).env(ENV, &gpus).output().expect("python is there");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert_eq!(state.used(0), IDLE_BYTES, "nothing is left behind");
    out.into_owned()
}

#[test]
fn cuda_core_allocates_copies_loads_launches_and_captures() {
    let said = "Sublet Soft 2GiB with 1024 threads a block\nparameters 4\nsaxpy True True\ngraph True\n";
    assert_eq!(client("core.py"), said);
}

#[test]
fn the_bindings_of_cuda_python_allocate_copy_load_and_launch() {
    assert_eq!(client("bindings.py"), "add True\n");
}
