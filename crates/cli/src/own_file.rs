//! Files in the system's folders that this program wrote and may replace or remove.
//!
//! The first line has the hash of all others. It shows whether this program wrote the file, and whether the file was
//! changed since. A file that is not exactly as it was written is neither replaced nor removed.

use crate::failure::Failure;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// A text with a first line in front: the mark and the hash of the text.
pub fn marked(mark: &str, text: &str) -> String {
    format!("{mark}{}\n{text}", hash(text))
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// What exists at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExistingFile {
    Nothing,
    Ours,
    /// Written by this program, and changed since.
    Changed,
    Foreign,
}

/// A file that only this program writes and removes; it may not exist yet.
#[derive(Clone, Debug)]
pub struct OwnFile {
    path: PathBuf,
    mark: &'static str,
}

impl OwnFile {
    /// The file at a path. Its first line begins with `mark`.
    pub fn new(path: PathBuf, mark: &'static str) -> OwnFile {
        OwnFile { path, mark }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether anything exists at the path, even a file that this program did not write.
    pub fn is_there(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    fn find(&self) -> Result<ExistingFile, Failure> {
        let read = match self.path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ExistingFile::Nothing),
            Err(error) => Err(error),
            // This program never makes links.
            Ok(found) if !found.is_file() => return Ok(ExistingFile::Foreign),
            Ok(_) => fs::read(&self.path),
        };
        let bytes = read.map_err(|error| self.failed("read", &error))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(match text.split_once('\n').and_then(|(first, rest)| Some((first.strip_prefix(self.mark)?, rest))) {
            None => ExistingFile::Foreign,
            Some((mark, rest)) if mark == hash(rest) => ExistingFile::Ours,
            Some(_) => ExistingFile::Changed,
        })
    }

    /// Fails if a file exists there that is not exactly what this program wrote.
    pub fn must_be_ours(&self) -> Result<(), Failure> {
        let (what, hint) = match self.find()? {
            ExistingFile::Nothing | ExistingFile::Ours => return Ok(()),
            ExistingFile::Changed => {
                ("was changed since sublet wrote it", "look what was changed, and remove it yourself")
            }
            ExistingFile::Foreign => ("was not written by sublet", "move it away yourself if you do not need it"),
        };
        Err(Failure::new(exit::FAILURE, format!("{} {what}: it stays", self.path.display())).hint(hint))
    }

    /// Writes the file atomically. It replaces an older version of this program's own, or nothing.
    pub fn put(&self, text: &str) -> Result<(), Failure> {
        self.must_be_ours()?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).map_err(|error| self.failed("written", &error))?;
        // systemd ignores files with such a suffix.
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let new = dir.join(format!(".{name}.new-{}", std::process::id()));
        let put = write(&new, text).and_then(|()| fs::rename(&new, &self.path));
        put.map_err(|error| {
            // The temporary file may not exist.
            let _ = fs::remove_file(&new);
            self.failed("written", &error)
        })
    }

    /// Removes the file, if it is this program's own.
    pub fn remove(&self) -> Result<(), Failure> {
        self.must_be_ours()?;
        fs::remove_file(&self.path).map_err(|error| self.failed("removed", &error))
    }

    /// Removes the file, and its directory if that is empty then.
    pub fn remove_with_directory(&self) -> Result<(), Failure> {
        self.remove()?;
        if let Some(dir) = self.path.parent() {
            // The kernel refuses to remove a directory that is not empty.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        let message = format!("{} cannot be {what}: {error}", self.path.display());
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::new(exit::DENIED, message)
                .hint("the system's files are root's: use sudo, or `--user` for a unit of your own"),
            _ => Failure::new(exit::FAILURE, message),
        }
    }
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut open = File::options().write(true).create_new(true).mode(0o644).open(file)?;
    open.write_all(text.as_bytes())?;
    open.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_exactly_ours_is_replaced_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = OwnFile::new(dir.path().join("a.service.d/50-sublet.conf"), "# a mark ");
        let said = marked("# a mark ", "[Service]\nMemoryMax=8G\n");
        assert_eq!(file.find().unwrap(), ExistingFile::Nothing);
        file.put(&said).unwrap();
        file.put(&said).unwrap();
        assert_eq!(file.find().unwrap(), ExistingFile::Ours);
        for (other, found) in
            [(said.replace("8G", "9G"), ExistingFile::Changed), ("[Service]\n".into(), ExistingFile::Foreign)]
        {
            fs::write(file.path(), &other).unwrap();
            assert_eq!(file.find().unwrap(), found);
            assert!(file.put(&said).is_err() && file.remove().is_err());
            assert_eq!(fs::read_to_string(file.path()).unwrap(), other, "it stays as it is");
        }
        fs::write(file.path(), &said).unwrap();
        file.remove_with_directory().unwrap();
        assert!(!file.path().parent().unwrap().exists(), "nothing is left");
    }
}
