//! Processes with the shim hand each other memory, as processes without it do.

use crate::cc;
use crate::daemon::{Daemon, Line};
use crate::parked::SOON;
use crate::pools::python;
use crate::soft::{Child, Soft};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};

/// A process, what it says, how to tell it to go on, and a line to its shim.
struct PeerProgram {
    child: Child,
    out: Box<dyn Iterator<Item = String>>,
    input: ChildStdin,
    line: Line,
}

impl PeerProgram {
    fn new(soft: &Soft, daemon: &Daemon, arguments: &[&str]) -> PeerProgram {
        let mut command = python(soft, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = daemon.with_shim(&mut command).spawn().expect("python3 is there");
        let line = daemon.accept(None);
        let out = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
        let input = child.stdin.take().expect("its input");
        PeerProgram { child: Child(child), out: Box::new(out), input, line }
    }

    /// What it says up to a line that begins so, and that line.
    fn read_until(&mut self, begin: &str) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        while said.last().is_none_or(|line| !line.starts_with(begin)) {
            said.push(self.out.next().unwrap_or_else(|| panic!("it ended after {said:?}")));
        }
        said
    }

    fn continue_script(&mut self) {
        self.input.write_all(b"go\n").expect("it listens");
    }
}

#[test]
fn a_buffer_goes_from_one_process_to_another_and_both_see_it() {
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let mut giver = PeerProgram::new(&soft, &daemon, &["ipc.py", "give"]);
    let said = giver.read_until("7375");
    assert_eq!(said[..4], ["the same again: True", "the same again: True", "capable: 1", "own: 201"]);
    let handles: Vec<&str> = said[4].split(' ').collect();
    assert_eq!(handles.len(), 2);
    assert_eq!(giver.line.park(SOON), Some(Err("it shares memory with other processes".to_owned())));

    let mut taker = PeerProgram::new(&soft, &daemon, &["ipc.py", "take", handles[0], handles[1]]);
    let said = taker.read_until("ready");
    let expected = [
        // The driver of soft GPUs has no handles of its own.
        "wrong: 1 801",
        "opened: 0 0",
        "read: [1, 2, 3] [4, 5, 6]",
        "range: True 4096",
        "again: 0 True",
        "kernel: 0 0 0",
        "not mine to free: 1 1",
        "closed: 0 [11] 0",
        "gone: True",
        "ready",
    ];
    assert_eq!(said, expected);
    assert_eq!(taker.line.park(SOON), Some(Err("it shares memory with other processes".to_owned())));
    giver.continue_script();
    let said = giver.read_until("freed");
    assert_eq!(said, ["written by the other: [11, 12, 13, 0] [24, 25, 26, 0] [7]", "free: 0 0 0", "freed"]);
    // It has nothing to share any more.
    assert_eq!(giver.line.park(SOON), Some(Ok(0)));
    assert_eq!(giver.line.resume(), Some(Ok(0)));
    taker.continue_script();
    assert_eq!(taker.read_until("too late"), ["kept: [24, 25, 26] 0", "too late: 1"]);
    giver.continue_script();
    assert!(giver.child.0.wait().expect("an own child").success());
    assert!(taker.child.0.wait().expect("an own child").success());
    assert!(soft.is_idle());
}

#[test]
fn another_user_gets_nothing() {
    // SAFETY: it takes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    let soft = Soft::new("1x1GiB");
    let daemon = Daemon::new(&soft);
    let stranger = cc::program(&soft, "stranger.c", &[]);
    let mut giver = PeerProgram::new(&soft, &daemon, &["ipc.py", "give"]);
    let said = giver.read_until("7375");
    let handle = said[4].split(' ').next().expect("a handle");
    // Numbers of a handle begin with their last byte.
    let number = |first: usize| -> String {
        (0..8).rev().map(|byte| &handle[2 * (first + byte)..2 * (first + byte) + 2]).collect()
    };
    let ask = |uid: u32| soft.run(&stranger, &[&uid.to_string(), &number(16), &number(24)]);
    assert_eq!(ask(own), "answered\n");
    if own == 0 {
        assert_eq!(ask(65_534), "refused\n");
    } else {
        println!("not run as root: nobody can be another user here");
    }
}
