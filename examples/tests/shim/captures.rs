//! Programs that capture graphs all the time: the gate closes in the moment between two captures.

use crate::cc;
use crate::daemon::{Daemon, Line};
use crate::parked::SOON;
use crate::soft::{Child, Soft};
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

/// A program that captures, from when it does; its line, and what it says.
fn capturing(soft: &Soft, daemon: &Daemon, how: &str) -> (Child, Line, BufReader<ChildStdout>) {
    let program = cc::program(soft, "captures.c", &["-L", ".", "-l:libcuda.so.1", "-lpthread"]);
    let mut command = soft.program(&program, &[how]);
    daemon.with_shim(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program is there");
    let line = daemon.accept(None);
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    let mut said = String::new();
    out.read_line(&mut said).expect("it says something");
    assert_eq!(said, "captures\n");
    (Child(child), line, out)
}

/// It goes on when it is left alone, and all of its results were right.
fn end_with_sigterm(mut child: Child, mut out: BufReader<ChildStdout>) {
    drop(child.0.stdin.take());
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("it ends");
    assert_eq!(rest, "ok\n");
    assert!(child.0.wait().expect("an own child").success());
}

#[test]
fn four_threads_that_capture_all_the_time_are_parked_between_two_captures() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let (child, mut line, out) = capturing(&soft, &daemon, "own");
    let mut closing = Vec::new();
    for _ in 0..40 {
        // Each is in a capture nearly always: a moment with none comes by chance once in many seconds.
        let parked = line.park_timed(Duration::from_millis(700)).expect("it runs");
        let (bytes, took) = parked.expect("captures end, and others do not begin meanwhile");
        assert_eq!(bytes, 16 << 20);
        closing.push(took.gate_us);
        assert!(line.resume().expect("it runs").is_ok());
    }
    closing.sort_unstable();
    assert!(closing[closing.len() / 2] <= 1000, "calls wait for the gate to be closed: {closing:?} µs");
    end_with_sigterm(child, out);
}

#[test]
fn captures_that_wait_for_each_other_are_let_in_and_the_gate_opens_again() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let (child, mut line, out) = capturing(&soft, &daemon, "handed");
    for _ in 0..3 {
        let why = line.park(Duration::from_millis(100)).expect("it runs").expect_err("one of them is always open");
        assert!(why.contains("captured"), "{why}");
    }
    end_with_sigterm(child, out);
    assert!(line.park(SOON).is_none(), "it is over");
}
