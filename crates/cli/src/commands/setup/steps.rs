//! Single steps of a setup: each looks first, acts if it must, and leaves a line that says which.

use crate::failure::Failure;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// What became of one thing.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// `made`, `there`, `removed`, …; `would …` in a dry run.
    pub did: String,
    /// The thing, and what is worth knowing about it.
    pub what: String,
}

/// Steps in a file system, and what became of them.
#[derive(Debug)]
pub struct Steps {
    root: Option<PathBuf>,
    dry_run: bool,
    lines: Vec<Line>,
}

impl Steps {
    /// Steps in the file system that begins at `root`, or in the host's own.
    pub fn new(root: Option<PathBuf>, dry_run: bool) -> Steps {
        Steps { root, dry_run, lines: Vec::new() }
    }

    /// What was done so far.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Whether nothing is changed.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Where the file system begins, if it is not the host's own.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// A path of the system, in the file system that is meant.
    pub fn path(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// What only the running host knows; nothing where another file system is meant.
    pub fn host_only<T>(&self, look: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.root.is_some() { None } else { look() }
    }

    /// Says something that is already as it should be, or stays as it is.
    pub fn say(&mut self, did: &str, what: impl Into<String>) {
        self.lines.push(Line { did: did.to_owned(), what: what.into() });
    }

    /// Does something, unless this is a dry run, and says so. `did` is in the past tense.
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

    /// Makes a directory that is missing.
    pub fn directory(&mut self, path: &Path, mode: u32) -> Result<(), Failure> {
        let at = self.path(path);
        if at.is_dir() {
            self.say("there", at.display().to_string());
            return Ok(());
        }
        self.act("made", &at.display().to_string(), || {
            let parents = at.parent().map_or(Ok(()), fs::create_dir_all);
            let made = parents.and_then(|()| fs::DirBuilder::new().mode(mode).create(&at));
            // The mode as it was said, whatever umask the caller has.
            let made = made.and_then(|()| fs::set_permissions(&at, fs::Permissions::from_mode(mode)));
            made.map_err(|error| failed(&at, "made", &error))
        })
    }

    /// Writes a file that is missing; one that is there stays, whatever is in it.
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

    /// Removes a directory with all that is in it.
    pub fn remove_all(&mut self, path: &Path) -> Result<(), Failure> {
        let at = self.path(path);
        if at.symlink_metadata().is_err() {
            return Ok(());
        }
        self.act("removed", &at.display().to_string(), || {
            fs::remove_dir_all(&at).map_err(|error| failed(&at, "removed", &error))
        })
    }

    /// Says that a directory stays, if it is there.
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
