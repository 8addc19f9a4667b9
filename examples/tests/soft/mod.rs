//! Soft GPUs for a test: a file of GPUs, the library that programs find them with, and programs.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use sublet_softgpu::SoftGpuState;
use sublet_softgpu::state::{ENV, IDLE_BYTES};

/// GPUs in a folder that goes with it.
pub struct Soft {
    dir: tempfile::TempDir,
    /// The GPUs.
    pub state: SoftGpuState,
}

impl Soft {
    /// Makes GPUs.
    pub fn new(spec: &str) -> Soft {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let here = std::env::current_exe().expect("a test has a path");
        let library = here.with_file_name("libcuda.so");
        assert!(library.exists(), "no library at {}", library.display());
        symlink(&library, dir.path().join("libcuda.so.1")).expect("a link can be made");
        let nvml = here.with_file_name("libnvidia_ml.so");
        symlink(&nvml, dir.path().join("libnvidia-ml.so.1")).expect("a link can be made");
        let state =
            SoftGpuState::create(&dir.path().join("cards"), &spec.parse().expect("cards")).expect("cards can be made");
        Soft { dir, state }
    }

    /// A place in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that finds the GPUs.
    pub fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", self.dir.path()).env(ENV, self.path("cards"));
        command
    }

    /// What a program says that must succeed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.program(program, arguments).output().expect("the program is there");
        succeeded(&output)
    }

    /// True if no process uses the first GPU.
    pub fn is_idle(&self) -> bool {
        self.state.used(0) == IDLE_BYTES && self.state.processes().next().is_none()
    }
}

/// What a program said that must have succeeded.
pub fn succeeded(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A program that does not outlive its test.
pub struct Child(pub std::process::Child);

impl Child {
    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.0.kill().expect("an own child can be killed");
        self.0.wait().expect("an own child can be waited for");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
