//! The file system as this crate uses it: few operations, each of which can be made to fail.
//!
//! [`LocalDisk`] is the real one, and `ObjectFiles` has files in an object store (with the feature `object-store`).
//! The tests have one that loses what was not synced, tears writes and runs out of room.
//!
//! Absent on purpose: truncating and overwriting. A file is written once, synced, and never changed.

mod disk;
#[cfg(feature = "object-store")]
mod object;

pub use disk::LocalDisk;
pub(crate) use disk::open_regular;
#[cfg(feature = "object-store")]
pub use object::ObjectFiles;

use std::io;
use std::path::Path;

/// Operations on files. A change survives a power cut once the file, and the directory that names it, were synced.
pub trait Files: Send + Sync {
    /// False in an object store. A directory is a prefix of names there: it need not be made, it is there while a file
    /// is in it, and it cannot be renamed. A new file or link replaces an existing one.
    fn has_directories(&self) -> bool {
        true
    }

    /// Makes a directory. It is no error if it exists, and one if the directory above it does not.
    fn create_dir(&self, directory: &Path) -> io::Result<()>;

    /// Makes a new file; an existing one is an error.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Gives a file a second name. It fails where the file system has no hard links.
    fn hard_link(&self, existing: &Path, new: &Path) -> io::Result<()>;

    /// Moves a file or a directory; an existing file is replaced at once.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a symbolic link.
    fn symlink(&self, target: &str, link: &Path) -> io::Result<()>;

    /// Where a symbolic link points to; `None` if there is no such link.
    fn read_link(&self, link: &Path) -> io::Result<Option<String>>;

    /// The names in a directory, in order; none if there is no such directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// The names of all files in a directory and below it, with `/` between directories. It is there for stores
    /// without directories.
    fn list_below(&self, _: &Path) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// An error if there is no such directory.
    fn check_dir(&self, directory: &Path) -> io::Result<()>;

    /// Removes a directory with everything in it; it is no error if there is none.
    fn remove_dir_all(&self, directory: &Path) -> io::Result<()>;

    /// Removes a file or a link; it is no error if there is none.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory survive a power cut.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
}

/// A new file.
pub trait WriteFile: Send {
    /// Appends bytes.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Says that nothing more is written: the content may be made durable while the caller does something else.
    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Makes the content survive a power cut, and the file read-only.
    fn finish(&mut self) -> io::Result<()>;
}

/// An open file.
pub trait ReadFile: Send {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills the buffer from this offset on; a shorter file is an error.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Reads a small file; one above `most` bytes is an error.
pub fn read_small(files: &dyn Files, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = files.open(path)?;
    let length = file.length()?;
    if length > most {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it has {length} bytes, and at most {most} are read"),
        ));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes a new file and syncs it.
pub fn write_new(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = files.create(path)?;
    file.write_all(bytes)?;
    file.finish()
}
