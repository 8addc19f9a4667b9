//! Other programs, started so that a failure says which one it was.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// One program with its arguments.
pub struct ProgramRun {
    command: Command,
}

/// A program by name or path.
pub fn program(name: impl AsRef<OsStr>) -> ProgramRun {
    ProgramRun { command: Command::new(name) }
}

/// The cargo that runs this chore, in the workspace's root.
pub fn cargo<const N: usize>(arguments: [&str; N]) -> ProgramRun {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut run = program(cargo).args(arguments).dir(&crate::workspace::root());
    // Cargo's variables about this chore are removed: some build scripts would take them for a change,
    // and rebuild for a minute.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            run.command.env_remove(name);
        }
    }
    run
}

impl ProgramRun {
    /// Further arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> ProgramRun {
        self.command.args(arguments);
        self
    }
    /// Where it runs.
    pub fn dir(mut self, dir: &Path) -> ProgramRun {
        self.command.current_dir(dir);
        self
    }
    /// One more variable in its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> ProgramRun {
        self.command.env(name, value);
        self
    }
    /// Runs it on this terminal; failing is an error.
    pub fn run(mut self) -> Result<()> {
        let shown = self.as_typed();
        eprintln!("$ {shown}");
        let status = self.command.status().with_context(|| format!("`{shown}` could not be started"))?;
        if !status.success() {
            bail!("`{shown}` failed ({status})");
        }
        Ok(())
    }
    /// The same; what it says on stderr goes on to the terminal, and each line of it to `on_line` as well.
    pub fn run_reading_stderr(mut self, mut on_line: impl FnMut(&str)) -> Result<()> {
        let shown = self.as_typed();
        eprintln!("$ {shown}");
        let started = self.command.stderr(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("`{shown}` could not be started"))?;
        for line in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')) {
            let line = line.with_context(|| format!("`{shown}` cannot be heard"))?;
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            on_line(&line);
        }
        let status = child.wait().with_context(|| format!("`{shown}` cannot be waited for"))?;
        if !status.success() {
            bail!("`{shown}` failed ({status})");
        }
        Ok(())
    }
    /// Runs it and takes what it prints; failing is an error.
    pub fn output(mut self) -> Result<String> {
        let shown = self.as_typed();
        let output = self
            .command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("`{shown}` could not be started"))?;
        if !output.status.success() {
            bail!("`{shown}` failed ({})", output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed something that is not UTF-8"))
    }
    /// What it prints, if it runs and succeeds; says nothing if it does not.
    pub fn quiet_output(mut self) -> Option<String> {
        let output = self.command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
    /// True if it runs and succeeds; prints nothing.
    pub fn succeeds(mut self) -> bool {
        let quiet = self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }
    /// The command as a user would type it, without the path of cargo.
    fn as_typed(&self) -> String {
        let program = Path::new(self.command.get_program());
        let program = if program.ends_with("cargo") { OsStr::new("cargo") } else { program.as_os_str() };
        let words = std::iter::once(program).chain(self.command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}
