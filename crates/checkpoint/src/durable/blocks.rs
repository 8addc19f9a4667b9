//! Space of a fixed size that bytes are written to in place.
//!
//! Absent on purpose: growing. The size is chosen once, so that a checkpoint cannot fail for want of
//! room that another program took.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Space of a fixed size. What was written survives a power cut after [`sync`](Blocks::sync) returned.
pub trait Blocks: Send {
    /// The size in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Fills the buffer from this offset on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes these bytes from this offset on.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything that was written survive a power cut.
    fn sync(&self) -> io::Result<()>;
}

/// Blocks in a file. One process has them open at a time.
#[derive(Debug)]
pub struct FileBlocks {
    file: File,
}

impl FileBlocks {
    /// Opens the file, and makes it of this size if it does not exist. Its room is taken at once where that is possible.
    ///
    /// A file that another process has open is refused with `WouldBlock`.
    pub fn create(path: &Path, bytes: u64) -> io::Result<FileBlocks> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let blocks = FileBlocks::lock(file)?;
        if blocks.bytes()? < bytes {
            match rustix::fs::fallocate(&blocks.file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
                // Some file systems cannot reserve room; there the file only has the length.
                Err(rustix::io::Errno::OPNOTSUPP) => blocks.file.set_len(bytes)?,
                other => other?,
            }
            blocks.file.sync_all()?;
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(blocks)
    }

    /// Opens a file that exists.
    pub fn open(path: &Path) -> io::Result<FileBlocks> {
        FileBlocks::lock(OpenOptions::new().read(true).write(true).open(path)?)
    }

    fn lock(file: File) -> io::Result<FileBlocks> {
        file.try_lock()?;
        Ok(FileBlocks { file })
    }
}

impl Blocks for FileBlocks {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
