//! Programs in Python that look at cards, in an environment that the first test makes.

mod venv;

use crate::support::{Machine, library};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use sublet_softgpu::state::ENV;

impl Machine {
    /// A program of the Python environment, which sees these cards and little else.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(clients().join("bin").join(program));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("LANG", "C.UTF-8");
        command.env("LD_LIBRARY_PATH", self.cards().parent().unwrap()).env(ENV, self.cards());
        command.env("TERM", "xterm").env("COLUMNS", "120").env("LINES", "60");
        command
    }

    /// What a program prints, which must end well.
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        printed(&self.command(program).args(arguments).output().unwrap())
    }

    /// What a Python script prints that begins with all of pynvml.
    pub fn python(&self, script: &str) -> String {
        self.output("python", &["-c", &with_pynvml(script)])
    }
}

/// The script after what every script needs.
pub fn with_pynvml(script: &str) -> String {
    format!("from pynvml import *\nimport os, time\n{script}")
}

/// What was printed by a program that ended well.
pub fn printed(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The Python environment with `requirements.txt` in it, made by the first who needs it.
fn clients() -> PathBuf {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requirements.txt");
    venv::venv(library().ancestors().nth(3).unwrap(), "soft-venv", &wanted)
}
