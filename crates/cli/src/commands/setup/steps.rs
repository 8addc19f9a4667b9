//! Single steps of a setup: each checks first, acts if needed, and adds a line that says what it did.

use crate::failure::Failure;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// The result of one step.
#[derive(Clone, Debug, Serialize)]
pub struct SetupStep {
    /// `made`, `there`, `removed`, …; `would …` in a dry run.
    pub did: String,
    /// The thing, with notes about it.
    pub what: String,
}

/// Steps in a file system, and their results.
#[derive(Debug)]
pub struct Steps {
    root: Option<PathBuf>,
    dry_run: bool,
    lines: Vec<SetupStep>,
}

impl Steps {
    /// Steps in the file system that begins at `root`, or in the host's own.
    pub fn new(root: Option<PathBuf>, dry_run: bool) -> Steps {
        Steps { root, dry_run, lines: Vec::new() }
    }

    /// The results so far.
    pub fn lines(&self) -> &[SetupStep] {
        &self.lines
    }

    /// Whether nothing is to be changed.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// The root of the file system, if it is not the host's own.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// A path of the system, in the chosen file system.
    pub fn path(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// A fact about the running host; `None` if another file system was chosen.
    pub fn host_only<T>(&self, look: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.root.is_some() { None } else { look() }
    }

    /// Adds a line about something that stays as it is.
    pub fn say(&mut self, did: &str, what: impl Into<String>) {
        self.lines.push(SetupStep { did: did.to_owned(), what: what.into() });
    }

    /// Does something, unless this is a dry run, and adds a line. `did` is in the past tense.
    pub fn act(&mut self, did: &str, what: &str, act: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if self.dry_run {
            let verb = match did {
                "made" => "make",
                "wrote" => "write",
                "removed" => "remove",
                _ => "run",
            };
            self.say(&format!("would {verb}"), what);
            return Ok(());
        }
        act()?;
        self.say(did, what);
        Ok(())
    }

    /// Makes a directory if it is missing.
    pub fn directory(&mut self, path: &Path, mode: u32) -> Result<(), Failure> {
        let at = self.path(path);
        if at.is_dir() {
            self.say("there", at.display().to_string());
            return Ok(());
        }
        self.act("made", &at.display().to_string(), || {
            let parents = at.parent().map_or(Ok(()), fs::create_dir_all);
            let made = parents.and_then(|()| fs::DirBuilder::new().mode(mode).create(&at));
            // Set explicitly, so that the caller's umask does not change it.
            let made = made.and_then(|()| fs::set_permissions(&at, fs::Permissions::from_mode(mode)));
            made.map_err(|error| failed(&at, "made", &error))
        })
    }

    /// Writes a file if it is missing; an existing one stays, whatever it contains.
    pub fn file(&mut self, path: &Path, text: &str, note: &str) -> Result<(), Failure> {
        let at = self.path(path);
        if at.symlink_metadata().is_ok() {
            self.say("there", at.display().to_string());
            return Ok(());
        }
        self.act("wrote", &format!("{} ({note})", at.display()), || {
            let open = File::options().write(true).create_new(true).mode(0o644).open(&at);
            let written = open.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
            written.map_err(|error| failed(&at, "written", &error))
        })
    }

    /// Removes a directory and its contents.
    pub fn remove_all(&mut self, path: &Path) -> Result<(), Failure> {
        let at = self.path(path);
        if at.symlink_metadata().is_err() {
            return Ok(());
        }
        self.act("removed", &at.display().to_string(), || {
            fs::remove_dir_all(&at).map_err(|error| failed(&at, "removed", &error))
        })
    }

    /// Adds a line that a directory stays, if it exists.
    pub fn keep(&mut self, path: &Path, note: &str) {
        let at = self.path(path);
        if at.exists() {
            self.say("kept", format!("{} ({note})", at.display()));
        }
    }
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::PermissionDenied { exit::DENIED } else { exit::FAILURE };
    Failure::new(exit, format!("{} cannot be {what}: {error}", path.display()))
}
