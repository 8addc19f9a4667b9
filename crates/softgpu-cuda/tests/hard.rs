//! Programs that make mistakes, or use rare features: each of them gets a result, none crashes or waits for ever, and
//! no memory of the GPU is lost.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use sublet_softgpu::State;
use sublet_softgpu::state::{ENV, IDLE_BYTES};

/// The output of a script of `hard/` on a GPU of 2 GiB.
fn said(script: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let here = std::env::current_exe().expect("a test has a path");
    symlink(here.with_file_name("libcuda.so"), dir.path().join("libcuda.so.1")).expect("a link can be made");
    let cards = dir.path().join("cards");
    let state = State::create(&cards, &"1x2GiB".parse().expect("cards")).expect("GPUs can be made");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let output = Command::new("timeout")
        .args(["60", "python3"])
        .arg(tests.join("hard").join(script))
        .env("LD_LIBRARY_PATH", dir.path())
        .env("PYTHONPATH", tests.join("same"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SUBLET_SOFT_MANAGED", "1")
        .env(ENV, &cards)
        .output()
        .expect("python3 is there");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}\n{errors}", output.status);
    assert_eq!(state.used(0), IDLE_BYTES, "what the program had is free again");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_child_of_a_child_keeps_its_files() {
    assert_eq!(said("fork.py"), "child: 3\nended: 0\n");
}

#[test]
fn a_call_that_cannot_tell_what_it_made_makes_nothing() {
    assert_eq!(said("nowhere.py"), "active: 0\nlaunch: 1\n");
}

#[test]
fn a_module_that_does_not_fit_leaves_nothing_behind() {
    assert_eq!(said("modules.py"), "gone: 0\n");
}

#[test]
fn a_capture_ends_with_its_stream_or_context() {
    assert_eq!(said("capture.py"), "alloc: 0\nalloc: 0\n");
}

#[test]
fn what_is_freed_is_free_whatever_another_context_runs() {
    assert_eq!(said("free.py"), "again: 0\nsynchronised: 0\nused: 322\n");
}

#[test]
fn copies_where_nothing_is_are_refused() {
    let one = "to: 1 1\nfrom: 1 1\nout: 1\nregister: 1\n";
    assert_eq!(said("pointers.py"), one.repeat(2));
}

#[test]
fn a_copy_whose_size_is_no_number_is_refused() {
    assert_eq!(said("layers.py"), "copy: 1\nafter: 0\n");
}

#[test]
fn events_of_graphs_are_seen_outside() {
    assert_eq!(said("events.py"), "recorded: 600\nquery: 0 0\nwaited: 0\n");
}

#[test]
fn what_a_graph_keeps_is_kept_until_it_has_run() {
    assert_eq!(said("objects.py"), "while it runs: 0\nafter: 1\nchild: 1 0\nruns: 0 0\n");
}

#[test]
fn a_function_in_a_stream_may_not_wait_for_it() {
    assert_eq!(said("callbacks.py"), "inside: 800 800 800 800 800\noutside: 0\n");
}

#[test]
fn an_address_that_is_not_as_wished_takes_no_more() {
    assert_eq!(said("reserve.py"), "more: 0\n");
}

#[test]
fn access_is_taken_away_when_kernels_are_done() {
    assert_eq!(said("access.py"), "access: 0\nkernel: 0\n");
}

#[test]
fn memory_of_a_graph_that_is_freed_in_use_does_no_harm() {
    assert_eq!(said("graphmem.py"), "free: 0 0\nlives:\n");
}

#[test]
fn a_context_that_ends_takes_what_is_counted_with_it() {
    assert_eq!(said("contexts.py"), "destroy: 201\nalloc: 0\nused: 0\nlock: 0 0\n");
}

#[test]
fn threads_that_ended_cost_nothing() {
    assert_eq!(said("ended.py"), "slower: False\n");
}

#[test]
fn graphs_have_addresses_for_as_long_as_they_are_there() {
    assert_eq!(said("graphs.py"), "more: 0\n");
}
