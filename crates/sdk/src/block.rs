//! Space of a fixed size for checkpoints that are saved in place.
//!
//! There are no leases of blocks yet. Until there are, blocks are a private file of this user: [`BlockLease::path`] says
//! where a named one is. The time of the lease is taken and has no effect; no other program can take the file away.

use crate::client::sockets;
use crate::error::FabricError;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use sublet_checkpoint::{Blocks, FileBlocks};

/// The size of one block.
pub const BLOCK_BYTES: u64 = 4096;
/// Names the directory of the files.
const BLOCKS_VARIABLE: &str = "SUBLET_BLOCKS";
/// Longer names could exceed what file systems take.
const NAME_MAX: usize = 128;

/// A request for blocks.
#[derive(Clone, Debug, Default)]
pub struct BlockBuilder {
    blocks: u64,
    name: Option<String>,
    directory: Option<PathBuf>,
}

/// Blocks of this program, to be given to a `Durable`.
#[derive(Debug)]
pub struct BlockLease {
    file: FileBlocks,
    path: Option<PathBuf>,
}

impl BlockBuilder {
    /// One block without a name.
    pub fn new() -> BlockBuilder {
        BlockBuilder::default()
    }

    /// How many blocks of 4 KiB. A `Durable` keeps two copies of its value in them.
    pub fn min_blocks(mut self, blocks: u64) -> BlockBuilder {
        self.blocks = blocks;
        self
    }

    /// How long they are needed. It has no effect yet.
    pub fn lease_secs(self, _seconds: u64) -> BlockBuilder {
        self
    }

    /// The name under which a later program finds the same blocks. Blocks without a name end with the program.
    pub fn name(mut self, name: impl Into<String>) -> BlockBuilder {
        self.name = Some(name.into());
        self
    }

    /// The directory of the file, instead of `SUBLET_BLOCKS` or `sublet/blocks` in the user's state directory.
    pub fn in_directory(mut self, directory: impl Into<PathBuf>) -> BlockBuilder {
        self.directory = Some(directory.into());
        self
    }

    /// The blocks; those that exist under this name keep their content.
    pub fn acquire(self) -> Result<BlockLease, FabricError> {
        let directory = match self.directory {
            Some(directory) => directory,
            None => default_directory()?,
        };
        let failed = |source| FabricError::Blocks { path: directory.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let bytes = self.blocks.max(1).saturating_mul(BLOCK_BYTES);
        match self.name {
            Some(name) => {
                let path = directory.join(format!("{}.blocks", checked(&name)?));
                let file = FileBlocks::create(&path, bytes);
                let file = file.map_err(|source| FabricError::Blocks { path: path.clone(), source })?;
                Ok(BlockLease { file, path: Some(path) })
            }
            None => Ok(BlockLease { file: nameless(&directory, bytes).map_err(failed)?, path: None }),
        }
    }
}

impl BlockLease {
    /// The file; `None` if the blocks have no name and end with the program.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Blocks for BlockLease {
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// A file that is removed as soon as it is open.
fn nameless(directory: &Path, bytes: u64) -> io::Result<FileBlocks> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let path = directory.join(format!(".{:016x}.blocks", u64::from_ne_bytes(random)));
    let file = FileBlocks::create(&path, bytes);
    fs::remove_file(&path)?;
    file
}

fn default_directory() -> Result<PathBuf, FabricError> {
    let state = || {
        let home = sockets::variable("HOME").map(|home| home.join(".local/state"));
        Some(sockets::variable("XDG_STATE_HOME").or(home)?.join("sublet/blocks"))
    };
    sockets::variable(BLOCKS_VARIABLE).or_else(state).ok_or_else(|| {
        FabricError::InvalidArgument(format!("neither {BLOCKS_VARIABLE} nor XDG_STATE_HOME nor HOME is set"))
    })
}

/// The name, if it can be the name of a file.
fn checked(name: &str) -> Result<&str, FabricError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(FabricError::InvalidArgument(format!(
            "`{}` cannot be the name of blocks: take 1 to {NAME_MAX} letters, digits, `-`, `_`, `:` and inner dots",
            name.escape_debug()
        )));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_checkpoint::Durable;

    #[test]
    fn named_blocks_are_found_again_with_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let blocks =
            || BlockBuilder::new().min_blocks(16).lease_secs(60).name("a:1").in_directory(dir.path()).acquire();
        let value = Durable::new(vec![7_u8; 100], blocks().unwrap());
        value.checkpoint().unwrap();
        drop(value);
        assert_eq!(*Durable::<Vec<u8>>::restore(blocks().unwrap()).unwrap(), vec![7; 100]);
        assert!(blocks().unwrap().path().unwrap().starts_with(dir.path()));
    }

    #[test]
    fn blocks_without_a_name_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let blocks = BlockBuilder::new().min_blocks(512).in_directory(dir.path()).acquire().unwrap();
        assert_eq!((blocks.bytes().unwrap(), blocks.path()), (512 * BLOCK_BYTES, None));
        Durable::new(1_u64, blocks).checkpoint().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in ["", "../x", "a/b", ".x", "a\0b", &"n".repeat(200)] {
            let error = BlockBuilder::new().name(name).in_directory("/nowhere").acquire().unwrap_err();
            assert!(["invalid_argument", "blocks"].contains(&error.code()), "{name}: {error:?}");
            assert!(checked(name).is_err(), "{name}");
        }
    }
}
