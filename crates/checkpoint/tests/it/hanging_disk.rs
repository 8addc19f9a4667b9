//! The real disk, of which one directory can hang.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use sublet_checkpoint::files::{Files, LocalDisk, ReadFile, WriteFile};

/// A disk on which nothing below `c` can be made or read while it hangs.
#[derive(Clone, Default)]
pub struct HangingDisk(Arc<(Mutex<bool>, Condvar)>);

impl HangingDisk {
    /// Begins or ends to hang.
    pub fn hang(&self, hangs: bool) {
        *self.0.0.lock().expect("no panic") = hangs;
        self.0.1.notify_all();
    }

    /// Waits below `c` while the disk hangs.
    fn pass(&self, path: &Path) {
        if path.components().any(|component| component.as_os_str() == "c") {
            let hangs = self.0.0.lock().expect("no panic");
            drop(self.0.1.wait_while(hangs, |hangs| *hangs).expect("no panic"));
        }
    }
}

impl Files for HangingDisk {
    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        LocalDisk.create_dir(directory)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        self.pass(path);
        LocalDisk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.pass(path);
        LocalDisk.open(path)
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        LocalDisk.hard_link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        LocalDisk.rename(from, to)
    }

    fn symlink(&self, target: &str, link: &Path) -> io::Result<()> {
        LocalDisk.symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<Option<String>> {
        LocalDisk.read_link(link)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.pass(directory);
        LocalDisk.list(directory)
    }

    fn check_dir(&self, directory: &Path) -> io::Result<()> {
        LocalDisk.check_dir(directory)
    }

    fn remove_dir_all(&self, directory: &Path) -> io::Result<()> {
        LocalDisk.remove_dir_all(directory)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        LocalDisk.remove_file(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        LocalDisk.sync_dir(directory)
    }
}
