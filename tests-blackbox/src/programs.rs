//! Programs under `sublet run`, and programs without a lease.

use crate::binary::example;
use crate::wait::throughout;
use crate::{LONG, MIB, TestClient, TestService, until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use sublet_wire::{Lease, LeaseState};

/// `sublet run` with a program; killed, with all it started, when this is dropped.
pub struct WrappedProgram {
    /// The wrapper.
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    /// Where its words go.
    pub stderr: PathBuf,
}

impl WrappedProgram {
    /// Starts it.
    pub fn start(service: &TestService, arguments: &[&str]) -> WrappedProgram {
        WrappedProgram::start_as(service, None, arguments)
    }

    /// The same as this user.
    pub fn start_as(service: &TestService, uid: Option<u32>, arguments: &[&str]) -> WrappedProgram {
        WrappedProgram::start_with(service, arguments, |command| {
            if let Some(uid) = uid {
                command.uid(uid).gid(uid);
            }
        })
    }

    /// The same, started otherwise.
    pub fn start_with(service: &TestService, arguments: &[&str], how: impl FnOnce(&mut Command)) -> WrappedProgram {
        let stderr = service.dir().join(format!("stderr-{:?}", std::time::Instant::now()));
        let mut command = service.command(&[&["run"], arguments].concat());
        command.stderr(File::create(&stderr).expect("a file")).stdout(Stdio::piped()).process_group(0);
        how(&mut command);
        let mut child = command.spawn().expect("a program can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        WrappedProgram { child, stdout, stderr }
    }

    /// A program that holds memory, once it has it.
    pub fn start_holding(service: &TestService, vram: &str, size: &str, more: &[&str]) -> WrappedProgram {
        let hold = example("hold");
        let mut job = WrappedProgram::start(service, &[&["--vram", vram, "--", &hold, size][..], more].concat());
        let line = job.line();
        assert!(line.starts_with("holds "), "{line:?}; {}", job.output_text());
        job
    }

    /// The next line of its output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// What it said so far, and its wrapper.
    pub fn output_text(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Waits until it, or its wrapper, said this.
    pub fn await_output(&self, words: &str) {
        until(&format!("it says `{words}`"), LONG, || {
            let said = self.output_text();
            if said.contains(words) { Ok(()) } else { Err(said) }
        });
    }

    /// Its end, and what it printed until then.
    pub fn end(mut self) -> (Option<i32>, String) {
        let group = Pid::from_child(&self.child);
        let (ended, hears) = mpsc::channel::<()>();
        let watch = thread::spawn(move || {
            let hangs = hears.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout);
            // What is read below ends with it.
            hangs && kill_process_group(group, Signal::KILL).is_ok()
        });
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("its output");
        let status = self.child.wait().expect("an own child");
        drop(ended);
        let hung = watch.join().expect("a thread that watches");
        assert!(!hung, "it did not end: {rest}; {}", self.output_text());
        (status.code(), rest)
    }

    /// Tells the program to look at its memory and go; it must be as it was written.
    pub fn finish(self, what: &str) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("an own child");
        let said = self.stderr.clone();
        let (code, rest) = self.end();
        let said = std::fs::read_to_string(said).unwrap_or_default();
        assert_eq!((code, rest.contains("bytes as written")), (Some(0), true), "{what}: {rest}; {said}");
    }
}

impl Drop for WrappedProgram {
    fn drop(&mut self) {
        // They may have ended, which is what is wanted.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A program that holds memory without a lease; killed when this is dropped.
pub struct UnleasedProgram {
    /// The program.
    pub child: Child,
    out: BufReader<ChildStdout>,
    /// What it takes.
    pub mib: u64,
}

impl UnleasedProgram {
    /// Starts it; it has its memory then.
    pub fn start_holding(service: &TestService, mib: u64) -> UnleasedProgram {
        UnleasedProgram::start_holding_as(service, None, mib)
    }

    /// The same as this user.
    pub fn start_holding_as(service: &TestService, uid: Option<u32>, mib: u64) -> UnleasedProgram {
        UnleasedProgram::start_holding_with(service, uid, mib, |_| {})
    }

    /// The same, started otherwise.
    pub fn start_holding_with(
        service: &TestService,
        uid: Option<u32>,
        mib: u64,
        how: impl FnOnce(&mut Command),
    ) -> UnleasedProgram {
        let size = format!("{mib}MiB");
        let mut command = service.command(&["soft", "env", "--", &example("hold"), &size, "--idle"]);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        how(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a program");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert!(line.starts_with("holds "), "{line:?}");
        UnleasedProgram { child, out, mib }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("an own child");
    }

    /// Asserts that it lives for this many seconds.
    pub fn assert_alive_for(&mut self, seconds: u64) {
        throughout(Duration::from_secs(seconds), || {
            assert_eq!(self.child.try_wait().expect("an own child"), None);
        });
    }

    /// By which signal it ended; one that ended by itself found its memory as it was written.
    pub fn end_signal(mut self) -> Option<i32> {
        let signal = until("it ends", LONG, || match self.child.try_wait().expect("an own child") {
            Some(status) => Ok(status.signal()),
            None => Err("it runs"),
        });
        let mut last = String::new();
        self.out.read_to_string(&mut last).expect("its output");
        assert!(signal.is_some() || last.contains("bytes as written"), "{last}");
        signal
    }
}

impl Drop for UnleasedProgram {
    fn drop(&mut self) {
        // It may have ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a command says that must succeed.
pub fn successful_output(service: &TestService, words: &[&str]) -> String {
    let output = service.cli(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output));
    text(&output)
}

/// All that a command said.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until a lease with this name is there.
pub fn await_lease(client: &TestClient, id: &str) {
    until("it asked", LONG, || {
        let ids = client.live_ids();
        if ids.iter().any(|live| live == id) { Ok(()) } else { Err(ids) }
    });
}

/// Waits until a lease exists and is in this state.
pub fn await_state(client: &TestClient, id: &str, state: LeaseState) -> Lease {
    await_lease(client, id);
    client.await_lease(&format!("it is {state:?}"), id, |lease| lease.state == state)
}

/// Waits until the programs of a lease have this many MiB on its GPUs, by a reading.
pub fn await_bytes(client: &TestClient, id: &str, mib: u64) {
    await_lease(client, id);
    client.await_lease("its bytes are seen", id, |lease| {
        lease.state == LeaseState::Active && lease.seen_bytes >= Some(mib * MIB)
    });
}

/// Sends an action for a lease, which the service must accept.
pub fn post_action(client: &TestClient, id: &str, verb: &str) {
    let answer = client.send("POST", &format!("/v1/leases/{id}/{verb}"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
}
