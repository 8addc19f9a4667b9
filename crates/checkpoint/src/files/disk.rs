//! The real file system.
//!
//! Writes of large files are handed to the disk every 32 MiB while the next ones are made, so that the
//! sync at the end has little left to do. Named pipes, devices and sockets are refused: reading one could take for ever.

use super::{Files, ReadFile, WriteFile};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

/// Bytes after which the kernel is told to begin writing.
const HAND_OVER: u64 = 32 << 20;

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalDisk;

impl Files for LocalDisk {
    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        match fs::create_dir(directory) {
            Err(_) if directory.is_dir() => Ok(()),
            made => made,
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        Ok(Box::new(NewFile { file, written: 0, handed_over: 0 }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(OpenFile(open_regular(path)?)))
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        fs::hard_link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn symlink(&self, target: &str, link: &Path) -> io::Result<()> {
        symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<Option<String>> {
        match fs::read_link(link) {
            Ok(target) => Ok(target.into_os_string().into_string().ok()),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(directory) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // A name that is not UTF-8 is none of ours.
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn check_dir(&self, directory: &Path) -> io::Result<()> {
        if fs::metadata(directory)?.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    fn remove_dir_all(&self, directory: &Path) -> io::Result<()> {
        ignore_missing(fs::remove_dir_all(directory))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        ignore_missing(fs::remove_file(path))
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        open_with(directory, OFlags::DIRECTORY)?.sync_all()
    }
}

/// Opens a regular file for reading. Opening a named pipe would wait for a writer.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = match open_with(path, OFlags::NONBLOCK) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => return Err(not_regular(path)),
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular(path)) }
}

fn open_with(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn not_regular(path: &Path) -> io::Error {
    io::Error::other(format!("`{}` is no regular file: remove it, or name another one", path.display()))
}

fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

struct NewFile {
    file: File,
    written: u64,
    handed_over: u64,
}

impl WriteFile for NewFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written - self.handed_over >= HAND_OVER {
            start_writing(&self.file, self.handed_over, self.written - self.handed_over);
            self.handed_over = self.written;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(0o444))?;
        self.file.sync_all()
    }
}

/// Asks the kernel to begin writing a range. Only the sync at the end makes a promise, so a refusal is harmless.
fn start_writing(file: &File, offset: u64, length: u64) {
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), rustix::fs::Advice::DontNeed);
}

struct OpenFile(File);

impl ReadFile for OpenFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}
