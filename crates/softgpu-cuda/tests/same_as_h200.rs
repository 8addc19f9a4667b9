//! The same scripts print on a soft GPU what they printed on a real one, word for word.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use sublet_softgpu::SoftGpuState;
use sublet_softgpu::state::ENV;

/// Runs a script of `same_as_h200/` on soft GPUs and compares its output with the output on an H200.
fn assert_same_output(script: &str, output_on_h200: &str) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let library = std::env::current_exe().expect("a test has a path").with_file_name("libcuda.so");
    symlink(&library, dir.path().join("libcuda.so.1")).expect("a link can be made");
    let gpus = dir.path().join("cards");
    let _state = SoftGpuState::create(&gpus, &"1x2GiB".parse().expect("cards")).expect("GPUs can be made");
    // Every user that may enter the folder may use the GPUs: a script tries it as another user.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("an own folder");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/same_as_h200");
    let mut command = Command::new("python3");
    command.arg(script).current_dir(&folder).env("LD_LIBRARY_PATH", dir.path()).env(ENV, &gpus);
    let output = command.env("SUBLET_SOFT_MANAGED", "1").output().expect("python3 is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let there = std::fs::read_to_string(folder.join("h200").join(output_on_h200)).expect("what the GPU said");
    let (mut ours, mut theirs) = (said.lines(), there.lines());
    for line in 1.. {
        let (ours, theirs) = (ours.next(), theirs.next());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(ours, theirs, "line {line}; standard error:\n{stderr}");
        if ours.is_none() {
            break;
        }
    }
    assert!(output.status.success());
}

#[test]
fn every_family_of_calls_answers_as_on_a_real_gpu() {
    assert_same_output("api.py", "api.txt");
}

#[test]
fn checkpoints_and_their_hazards_are_those_of_a_real_gpu() {
    assert_same_output("checkpoint.py", "checkpoint.txt");
}
