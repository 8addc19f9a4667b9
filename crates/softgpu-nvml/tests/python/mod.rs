//! Programs in Python that look at cards, in an environment that the first test makes.

use crate::support::{Machine, library};
use std::fs::{self, File};
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
    let target = library().ancestors().nth(3).unwrap().to_owned();
    let venv = target.join("soft-venv");
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requirements.txt");
    let requirements = fs::read_to_string(&wanted).unwrap();
    // Tests run at once, in several processes: one makes it, the others wait.
    let lock = File::create(target.join("soft-venv.lock")).unwrap();
    lock.lock().unwrap();
    // The stamp is written last: a venv that was only half filled is made anew.
    let stamp = venv.join("sublet-requirements.txt");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
        let pip = ["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--requirement"];
        run(Command::new(venv.join("bin/pip")).args(pip).arg(&wanted));
        fs::write(&stamp, requirements).unwrap();
    }
    venv
}

fn run(command: &mut Command) {
    let status = command.status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "{command:?}: {status:?}\nhint: Debian's `python3-venv` and a package index are needed (`cargo xtask test` installs the former)"
    );
}
