//! Whether a register's file may lie in a directory.
//!
//! A file system counts as local only if it is known to be: one that this table does not know is
//! treated like a network's.
//!
//! Absent on purpose: any look at mount tables. What `statfs` says of the very directory decides.

use std::io;
use std::path::Path;

/// What a directory lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// One kernel writes it: locks and shared memory hold.
    Local,
    /// Several machines may write it, or it is not known. The text is for people.
    Other(String),
}

/// File systems of one kernel, by the number that `statfs` gives.
const LOCAL: [u64; 11] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683E, // btrfs
    0x2FC1_2FC1, // zfs
    0xF2F5_2010, // f2fs
    0xCA45_1A4E, // bcachefs
    0x3153_464A, // jfs
    0x0102_1994, // tmpfs
    0x8584_58F6, // ramfs
    0x794C_7630, // overlayfs, the root of containers
    0x4D44,      // vfat
];

/// File systems that more than one machine may write, with their names for messages.
const SHARED: [(u64, &str); 17] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "SMB"),
    (0xFE53_4D42, "SMB"),
    (0x517B, "SMB"),
    (0x0BD0_0BD0, "Lustre"),
    (0x6573_5546, "a FUSE file system (sshfs, s3fs and others)"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0x00C3_6400, "CephFS"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x0102_1997, "9p"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x7375_7245, "Coda"),
    (0xAAD7_AAEA, "PanFS"),
    (0x786F_4256, "a folder of VirtualBox's host"),
];

/// What this directory lies on.
pub fn file_system_of(directory: &Path) -> io::Result<FileSystem> {
    let found = rustix::fs::statfs(directory)?;
    Ok(file_system_with(found.f_type as u64 & 0xFFFF_FFFF))
}

fn file_system_with(number: u64) -> FileSystem {
    if LOCAL.contains(&number) {
        return FileSystem::Local;
    }
    let named = SHARED.iter().find(|(shared, _)| *shared == number);
    FileSystem::Other(
        named.map_or_else(|| format!("an unknown file system (0x{number:x})"), |(_, name)| (*name).to_owned()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_unknown_file_systems_are_not_local() {
        assert_eq!(file_system_with(0xEF53), FileSystem::Local);
        assert_eq!(file_system_with(0x6969), FileSystem::Other("NFS".to_owned()));
        assert_eq!(file_system_with(0x1234), FileSystem::Other("an unknown file system (0x1234)".to_owned()));
    }

    #[test]
    fn a_temporary_directory_is_local() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(file_system_of(directory.path()).expect("an answer"), FileSystem::Local);
    }
}
