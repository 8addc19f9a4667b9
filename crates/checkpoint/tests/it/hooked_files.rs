//! Files with a hook before each change: it may end the process, tear a write, or do what another process does.
//!
//! The unit tests of publishing in place use this file too.

use super::{Files, ReadFile, WriteFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What happens at changes.
pub trait FileHook: Send + Sync {
    /// Is called before something at this path changes.
    fn before(&self, path: &Path);

    /// Is called before bytes are written to this path. True if only the first half is to be written, before
    /// [`torn`](FileHook::torn) is called.
    fn is_torn(&self, path: &Path) -> bool {
        self.before(path);
        false
    }

    /// Is called when half of the bytes were written.
    fn torn(&self) {}
}

/// Files, and what happens at their changes.
#[derive(Clone)]
pub struct HookedFiles {
    pub files: Arc<dyn Files>,
    pub hook: Arc<dyn FileHook>,
}

struct HookedFile {
    file: Box<dyn WriteFile>,
    path: PathBuf,
    hook: Arc<dyn FileHook>,
}

impl Files for HookedFiles {
    fn has_directories(&self) -> bool {
        self.files.has_directories()
    }

    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        self.hook.before(directory);
        self.files.create_dir(directory)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        self.hook.before(path);
        let (file, hook) = (self.files.create(path)?, Arc::clone(&self.hook));
        Ok(Box::new(HookedFile { file, path: path.to_owned(), hook }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.files.open(path)
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        self.hook.before(new);
        self.files.hard_link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.hook.before(to);
        self.files.rename(from, to)
    }

    fn symlink(&self, target: &str, link: &Path) -> io::Result<()> {
        self.hook.before(link);
        self.files.symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<Option<String>> {
        self.files.read_link(link)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.files.list(directory)
    }

    fn list_below(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.files.list_below(directory)
    }

    fn check_dir(&self, directory: &Path) -> io::Result<()> {
        self.files.check_dir(directory)
    }

    fn remove_dir_all(&self, directory: &Path) -> io::Result<()> {
        self.hook.before(directory);
        self.files.remove_dir_all(directory)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.hook.before(path);
        self.files.remove_file(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        self.hook.before(directory);
        self.files.sync_dir(directory)
    }
}

impl WriteFile for HookedFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.hook.is_torn(&self.path) {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            self.hook.torn();
        }
        self.file.write_all(bytes)
    }

    fn end(&mut self) -> io::Result<()> {
        self.hook.before(&self.path);
        self.file.end()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.hook.before(&self.path);
        self.file.finish()
    }
}
