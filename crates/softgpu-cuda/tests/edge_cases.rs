//! Programs that make mistakes, or use rare features: each of them gets a result, none crashes or waits for ever, and
//! no memory of the GPU is lost.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use sublet_softgpu::SoftGpuState;
use sublet_softgpu::state::{ENV, IDLE_BYTES};

/// The output of a script of `edge_cases/` on a GPU of 2 GiB.
fn output_of(script: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let here = std::env::current_exe().expect("a test has a path");
    symlink(here.with_file_name("libcuda.so"), dir.path().join("libcuda.so.1")).expect("a link can be made");
    let gpus = dir.path().join("cards");
    let state = SoftGpuState::create(&gpus, &"1x2GiB".parse().expect("cards")).expect("GPUs can be made");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let output = Command::new("timeout")
        .args(["60", "python3"])
        .arg(tests.join("edge_cases").join(script))
        .env("LD_LIBRARY_PATH", dir.path())
        .env("PYTHONPATH", tests.join("same_as_h200"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SUBLET_SOFT_MANAGED", "1")
        .env(ENV, &gpus)
        .output()
        .expect("python3 is there");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}\n{errors}", output.status);
    assert_eq!(state.used(0), IDLE_BYTES, "what the program had is free again");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_grandchild_keeps_its_file_descriptors() {
    assert_eq!(output_of("fork.py"), "child: 3\nended: 0\n");
}

#[test]
fn a_call_without_a_result_pointer_creates_nothing() {
    assert_eq!(output_of("nowhere.py"), "active: 0\nlaunch: 1\n");
}

#[test]
fn a_module_that_does_not_fit_leaves_nothing_behind() {
    assert_eq!(output_of("modules.py"), "gone: 0\n");
}

#[test]
fn a_capture_ends_with_its_stream_or_context() {
    assert_eq!(output_of("capture.py"), "alloc: 0\nalloc: 0\n");
}

#[test]
fn freed_memory_is_free_while_another_context_runs() {
    assert_eq!(output_of("free.py"), "again: 0\nsynchronised: 0\nused: 322\n");
}

#[test]
fn copies_at_unmapped_addresses_are_refused() {
    let one = "to: 1 1\nfrom: 1 1\nout: 1\nregister: 1\n";
    assert_eq!(output_of("pointers.py"), one.repeat(2));
}

#[test]
fn a_copy_with_an_overflowing_size_is_refused() {
    assert_eq!(output_of("layers.py"), "copy: 1\nafter: 0\n");
}

#[test]
fn events_recorded_by_graphs_are_visible_outside() {
    assert_eq!(output_of("events.py"), "recorded: 600\nquery: 0 0\nwaited: 0\n");
}

#[test]
fn user_objects_of_a_graph_live_until_it_has_run() {
    assert_eq!(output_of("objects.py"), "while it runs: 0\nafter: 1\nchild: 1 0\nruns: 0 0\n");
}

#[test]
fn a_host_function_may_not_wait_for_its_stream() {
    assert_eq!(output_of("callbacks.py"), "inside: 800 800 800 800 800\noutside: 0\n");
}

#[test]
fn a_reservation_at_another_address_reserves_no_more() {
    assert_eq!(output_of("reserve.py"), "more: 0\n");
}

#[test]
fn access_is_revoked_after_running_kernels_end() {
    assert_eq!(output_of("access.py"), "access: 0\nkernel: 0\n");
}

#[test]
fn graph_memory_may_be_freed_while_in_use() {
    assert_eq!(output_of("graphmem.py"), "free: 0 0\nlives:\n");
}

#[test]
fn ending_a_context_frees_all_memory_counted_for_it() {
    assert_eq!(output_of("contexts.py"), "destroy: 201\nalloc: 0\nused: 0\nlock: 0 0\n");
}

#[test]
fn ended_threads_leave_nothing_behind() {
    assert_eq!(output_of("ended.py"), "slower: False\n");
}

#[test]
fn graph_addresses_are_reserved_while_the_graph_exists() {
    assert_eq!(output_of("graphs.py"), "more: 0\n");
}
