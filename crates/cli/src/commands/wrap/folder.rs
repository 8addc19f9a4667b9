//! The folder of the wrappers, and its place on PATH.

use super::recipe::RecipeFile;
use crate::failure::Failure;
use crate::hold::child::is_executable;
use crate::place;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// Part of the name of a temporary file.
const NEW: &str = ".sublet-new-";

/// The folder of the wrappers.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// What PATH finds for a tool's name.
#[derive(Debug, PartialEq, Eq)]
pub enum First {
    /// The wrapper.
    Wrapper,
    /// Another file.
    Other(PathBuf),
    /// Nothing: the folder is not on PATH, nor is the tool.
    Nothing,
}

impl Folder {
    /// The given folder, or the default one.
    pub fn of(given: Option<&Path>) -> Result<Folder, Failure> {
        let path = place::wrap_dir(given).ok_or_else(|| {
            Failure::usage("neither HOME nor XDG_DATA_HOME says where your files are")
                .hint("name a folder for the wrappers with `--dir`")
        })?;
        let path = place::absolute(&path);
        match path.to_str() {
            Some(text) if !text.contains(':') => Ok(Folder { path }),
            _ => Err(Failure::usage(format!("a folder on PATH cannot be called {}", path.display()))
                .hint("name one with `--dir` that has no `:` and is written in UTF-8")),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the wrapper of this name is, or would be.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What exists under a name; `None` if nothing does. A link counts as foreign, because Sublet makes none.
    pub fn find(&self, name: &str) -> Result<Option<RecipeFile>, Failure> {
        let file = self.file(name);
        let looked = match fs::symlink_metadata(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
            Ok(found) if found.is_file() => RecipeFile::at(&file),
            Ok(_) => Ok(RecipeFile::Foreign),
        };
        looked.map(Some).map_err(|error| failed(&file, "read", &error))
    }

    /// Writes a wrapper atomically. It replaces an older wrapper, or nothing.
    pub fn put(&self, name: &str, script: &str) -> Result<(), Failure> {
        let replaces = self.may_change(name)?;
        let file = self.file(name);
        fs::create_dir_all(&self.path).map_err(|error| failed(&self.path, "made", &error))?;
        let new = self.path.join(format!(".{name}{NEW}{}", std::process::id()));
        let put = write(&new, script).and_then(|()| match replaces {
            true => fs::rename(&new, &file),
            // Unlike a rename, a hard link never replaces a file that appeared meanwhile.
            false => fs::hard_link(&new, &file),
        });
        // After a rename it does not exist any more.
        let _ = fs::remove_file(&new);
        put.map_err(|error| failed(&file, "written", &error))
    }

    /// Removes a wrapper.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        let file = self.file(name);
        fs::remove_file(&file).map_err(|error| failed(&file, "removed", &error))
    }

    /// Whether a wrapper of this name exists. A file that Sublet did not write is an error.
    pub fn may_change(&self, name: &str) -> Result<bool, Failure> {
        match self.find(name)? {
            None => Ok(false),
            Some(RecipeFile::Wrapper(_) | RecipeFile::Changed) => Ok(true),
            Some(RecipeFile::Foreign) => {
                let file = self.file(name);
                Err(Failure::new(exit::FAILURE, format!("{} was not written by sublet: it stays", file.display()))
                    .hint("move it away yourself if you do not need it, or name another folder with `--dir`"))
            }
        }
    }

    /// All wrappers, by name.
    pub fn all(&self) -> Result<Vec<(String, RecipeFile)>, Failure> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| failed(&self.path, "read", &error))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(&self.path, "read", &error))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            match self.find(&name)? {
                Some(found) if found != RecipeFile::Foreign && !name.contains(NEW) => all.push((name, found)),
                _ => {}
            }
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(all)
    }

    /// Whether the folder is on PATH.
    pub fn is_on_path(&self) -> bool {
        places().iter().any(|dir| same(dir, &self.path))
    }

    /// What a shell would start for a name.
    pub fn first(&self, name: &str) -> First {
        match places().iter().map(|dir| dir.join(name)).find(|file| runs(file)) {
            None => First::Nothing,
            Some(file) if same(&file, &self.file(name)) => First::Wrapper,
            Some(file) => First::Other(file),
        }
    }

    /// The tool itself: the first file of this name on PATH that is not a wrapper, of this folder or another.
    pub fn tool(&self, name: &str) -> Result<PathBuf, Failure> {
        // A relative entry of PATH depends on the current directory, so it is skipped.
        let dirs = places().into_iter().filter(|dir| dir.is_absolute() && !same(dir, &self.path));
        let mut files = dirs.map(|dir| dir.join(name)).filter(|file| runs(file));
        files.find(|file| !is_wrapper(file)).ok_or_else(|| {
            Failure::new(exit::NOT_FOUND, format!("there is no `{name}` on PATH"))
                .hint(format!("name the file itself, such as /opt/tools/bin/{name}"))
        })
    }
}

/// Whether a file is a wrapper. A file that cannot be read is none.
pub fn is_wrapper(file: &Path) -> bool {
    file.is_file() && RecipeFile::at(file).is_ok_and(|found| found != RecipeFile::Foreign)
}

/// The path of this program, as PATH names it if possible: a link on PATH stays valid after an upgrade, its target may
/// not.
pub fn sublet() -> Result<PathBuf, Failure> {
    let own = env::current_exe().and_then(fs::canonicalize);
    let own = own.map_err(|error| Failure::new(exit::FAILURE, format!("this program cannot find itself: {error}")))?;
    let named = places().into_iter().filter(|dir| dir.is_absolute()).map(|dir| dir.join("sublet"));
    Ok(named.into_iter().find(|file| same(file, &own)).unwrap_or(own))
}

/// Whether two paths lead to the same file.
pub fn same(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

fn runs(file: &Path) -> bool {
    file.is_file() && is_executable(file)
}

fn places() -> Vec<PathBuf> {
    env::split_paths(env::var_os("PATH").as_deref().unwrap_or(OsStr::new(""))).collect()
}

fn write(file: &Path, script: &str) -> io::Result<()> {
    let mut open = File::options().write(true).create_new(true).mode(0o755).open(file)?;
    open.write_all(script.as_bytes())?;
    open.sync_all()
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::PermissionDenied { exit::DENIED } else { exit::FAILURE };
    Failure::new(exit, format!("{} cannot be {what}: {error}", path.display()))
}
