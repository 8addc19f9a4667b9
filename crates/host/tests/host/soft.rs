//! Soft GPUs for a test, programs on them, and a worker that is asked by hand.

use crate::support::{exe, key};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use sublet_core::ids::ProcKey;
use sublet_host::process;
use sublet_host::soft::SoftPlace;
use sublet_softgpu::SoftGpuState;
use sublet_softgpu::state::{CheckpointState, ENV, IDLE_BYTES};

pub const MIB: u64 = 1 << 20;

/// Soft GPUs in a folder that is removed on drop.
pub struct SoftGpus {
    dir: tempfile::TempDir,
    pub state: SoftGpuState,
}

impl SoftGpus {
    pub fn new(spec: &str) -> SoftGpus {
        let dir = tempfile::tempdir().unwrap();
        for (built, name) in [("libcuda.so", "libcuda.so.1"), ("libnvidia_ml.so", "libnvidia-ml.so.1")] {
            let library = exe().with_file_name(built);
            assert!(library.exists(), "no library at {}", library.display());
            symlink(library, dir.path().join(name)).unwrap();
        }
        let state = SoftGpuState::create(&dir.path().join("cards"), &spec.parse().unwrap()).unwrap();
        SoftGpus { dir, state }
    }

    pub fn place(&self) -> SoftPlace {
        SoftPlace { state: self.path().join("cards"), libraries: self.path().to_owned() }
    }

    /// The worker by which a host of this test moves processes.
    pub fn driver_worker_pid(&self) -> Option<Pid> {
        let state_file = self.path().join("cards");
        let is_it = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let on_cards = process::Environment::read(*pid)
                .ok()
                .and_then(|all| all.get(ENV))
                .is_some_and(|it| Path::new(&it) == state_file);
            on_cards && line.ends_with(b"worker\0driver\0") && line.starts_with(b"sublet\0")
        };
        let children = process::children(std::process::id()).unwrap();
        children.into_iter().find(is_it).and_then(|pid| Pid::from_raw(pid as i32))
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn uuid(&self) -> String {
        self.state.gpus()[0].uuid_text()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(exe());
        command.args(args).env(ENV, self.path().join("cards"));
        command.env("SUBLET_CUDA_LIB", self.path().join("libcuda.so.1"));
        command.env("SUBLET_NVML_LIB", self.path().join("libnvidia-ml.so.1"));
        command.env("SUBLET_SOFT_MANAGED", "1");
        command
    }

    pub fn program(&self, mib: u64) -> Program {
        self.program_with(mib, &[])
    }

    pub fn program_with(&self, mib: u64, more: &[&str]) -> Program {
        let bytes = (mib * MIB).to_string();
        let line = LineProcess::start(self.command(&[&["program", &bytes], more].concat()));
        let mut program = Program { key: key(line.child.id()), line };
        assert_eq!(program.line.read_line(), "holds");
        program
    }

    pub fn worker(&self) -> LineProcess {
        LineProcess::start(self.command(&["worker", "driver"]))
    }

    /// The checkpoint state of a process, read without the driver.
    pub fn at(&self, process: ProcKey) -> CheckpointState {
        let found = self.state.process(process.pid).expect("it is on the GPUs");
        CheckpointState::from_number(found.row.checkpoint.load(std::sync::atomic::Ordering::SeqCst))
    }

    /// Bytes of the first GPU that are in use.
    pub fn used_bytes(&self) -> u64 {
        self.state.used(0) - IDLE_BYTES
    }
}

/// A child that communicates line by line. Killed with its test.
pub struct LineProcess {
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl LineProcess {
    pub fn start(mut command: Command) -> LineProcess {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        LineProcess { child, stdin, stdout }
    }

    pub fn write_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line it writes. A child that writes nothing fails its test, and does not block it for ever.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        if self.stdout.buffer().is_empty() {
            let mut fds = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
            let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
            assert!(poll(&mut fds, Some(&patience)).unwrap() > 0, "process {} says nothing", self.child.id());
        }
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.write_line(line);
        self.read_line()
    }

    /// Asks a worker.
    pub fn request(&mut self, request: &Value) -> Value {
        serde_json::from_str(&self.ask(&request.to_string())).unwrap()
    }

    /// Asks a worker for one step with a process.
    pub fn step(&mut self, step: &str, process: ProcKey) -> Value {
        self.request(&json!({ step: { "process": process } }))
    }

    pub fn lock(&mut self, process: ProcKey, timeout_ms: u32) -> Value {
        self.request(&lock(process, timeout_ms))
    }

    /// Waits until it has ended by itself, and returns whether it succeeded.
    pub fn succeeds(&mut self) -> bool {
        let began = Instant::now();
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status.success(),
                None => assert!(began.elapsed() < Duration::from_secs(30), "process {} goes on", self.child.id()),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes its stdin: no more requests.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }
}

pub fn lock(process: ProcKey, timeout_ms: u32) -> Value {
    json!({"lock": {"process": process, "timeout_ms": timeout_ms}})
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that holds memory of the first GPU.
pub struct Program {
    pub key: ProcKey,
    pub line: LineProcess,
}

impl Program {
    /// True if it goes on, and its memory is as it was.
    pub fn is_intact(&mut self) -> bool {
        self.line.ask("check") == "intact"
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.line.child), signal).unwrap();
    }

    /// Stops it, and waits until it is stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until("a stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.key.pid)).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        });
    }
}

/// Waits until `is` returns true.
pub fn wait_until(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
