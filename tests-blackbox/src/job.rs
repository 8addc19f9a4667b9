//! Programs under `sublet run`.

use crate::Service;
use crate::binary::example;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

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
