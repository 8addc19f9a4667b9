//! Python programs that read GPUs, in an environment that the first test makes.

mod venv;

use crate::support::{Machine, library};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use sublet_softgpu::state::ENV;

impl Machine {
    /// A program of the Python environment, which sees these GPUs and little else.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(clients().join("bin").join(program));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("LANG", "C.UTF-8");
        command.env("LD_LIBRARY_PATH", self.gpus_file().parent().unwrap()).env(ENV, self.gpus_file());
        command.env("TERM", "xterm").env("COLUMNS", "120").env("LINES", "60");
        command
    }

    /// The output of a program, which must succeed.
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        printed(&self.command(program).args(arguments).output().unwrap())
    }

    /// The output of a Python script, with all of pynvml imported before it.
    pub fn python(&self, script: &str) -> String {
        self.output("python", &["-c", &with_pynvml(script)])
    }
}

/// The script after the common imports.
pub fn with_pynvml(script: &str) -> String {
    format!("from pynvml import *\nimport os, time\n{script}")
}

/// The output of a program, which must have succeeded.
pub fn printed(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The Python environment with `requirements.txt` installed, made by the first test that needs it.
fn clients() -> PathBuf {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requirements.txt");
    venv::venv(library().ancestors().nth(3).unwrap(), "soft-venv", &wanted)
}
