//! Programs under `sublet run`.

use crate::binary::example;
use crate::{Client, LONG, MIB, Service, until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Output, Stdio};
use sublet_wire::{Lease, LeaseState};

/// `sublet run` with a program; killed, with all it started, when this is dropped.
pub struct Job {
    /// The wrapper.
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    /// Where its words go.
    pub stderr: PathBuf,
}

impl Job {
    /// Starts it.
    pub fn start(service: &Service, arguments: &[&str]) -> Job {
        Job::start_as(service, None, arguments)
    }

    /// The same as this user.
    pub fn start_as(service: &Service, uid: Option<u32>, arguments: &[&str]) -> Job {
        let stderr = service.dir().join(format!("stderr-{:?}", std::time::Instant::now()));
        let mut command = service.command(&[&["run"], arguments].concat());
        command.stderr(File::create(&stderr).expect("a file")).stdout(Stdio::piped()).process_group(0);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("a program can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Job { child, stdout, stderr }
    }

    /// A program that holds memory, once it has it.
    pub fn holds(service: &Service, vram: &str, size: &str, more: &[&str]) -> Job {
        let hold = example("hold");
        let mut job = Job::start(service, &[&["--vram", vram, "--", &hold, size][..], more].concat());
        let line = job.line();
        assert!(line.starts_with("holds "), "{line:?}; {}", job.said());
        job
    }

    /// The next line of its output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// What it said so far, and its wrapper.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Waits until it, or its wrapper, said this.
    pub fn await_said(&self, words: &str) {
        until(&format!("it says `{words}`"), LONG, || {
            let said = self.said();
            if said.contains(words) { Ok(()) } else { Err(said) }
        });
    }

    /// Its end, and what it printed until then.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("its output");
        let status = self.child.wait().expect("an own child");
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

impl Drop for Job {
    fn drop(&mut self) {
        // They may have ended, which is what is wanted.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// All that a command said.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until a lease with this name is there.
pub fn await_asked(client: &Client, id: &str) {
    until("it asked", LONG, || {
        let ids = client.live_ids();
        if ids.iter().any(|live| live == id) { Ok(()) } else { Err(ids) }
    });
}

/// Waits until a lease is there and is so.
pub fn await_state(client: &Client, id: &str, state: LeaseState) -> Lease {
    await_asked(client, id);
    client.await_lease(&format!("it is {state:?}"), id, |lease| lease.state == state)
}

/// Waits until a lease's programs were seen to have so much on its cards, which are its own.
pub fn await_bytes(client: &Client, id: &str, mib: u64) {
    await_asked(client, id);
    client.await_lease("its bytes are seen", id, |lease| {
        lease.state == LeaseState::Active && lease.seen_bytes >= Some(mib * MIB)
    });
}

/// Tells a lease to do something, which must be taken.
pub fn tell(client: &Client, id: &str, verb: &str) {
    let answer = client.send("POST", &format!("/v1/leases/{id}/{verb}"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
}
