//! Python environments for tests, made by the first test that needs one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment of that name under `target`, with the wanted packages in it.
pub fn venv(target: &Path, name: &str, wanted: &Path) -> PathBuf {
    let venv = target.join(name);
    let requirements = fs::read_to_string(wanted).unwrap();
    // Tests run at the same time, in several processes: one makes the environment, the others wait.
    let lock = File::create(target.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    // The stamp is written last: an incomplete environment is made anew.
    let stamp = venv.join("sublet-requirements.txt");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
        let pip = ["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--requirement"];
        run(Command::new(venv.join("bin/pip")).args(pip).arg(wanted));
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
