//! Watches GPU device files for open and close, by inotify.
//!
//! A watch is on one file in one file system. A container with device nodes of its own opens those, and no event
//! arrives here. So this is a hint, and no guard. Directories are watched for nodes that are made later (a module is
//! loaded, soft GPUs are recreated), never for files opened in them: `/dev/null` is opened a thousand times a second.
//!
//! Absent: which process opened a file. inotify does not say, and fanotify, which does, needs CAP_SYS_ADMIN.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where device files are made.
const DEV: &str = "/dev";
/// How the names of NVIDIA's device files begin.
const PREFIX: &[u8] = b"nvidia";
/// Watches on device files; a host has a few for each GPU.
const WATCHES_MAX: usize = 256;
/// Bytes read at once: some hundred events.
const BUFFER: usize = 8192;
/// Events taken in one call; the rest is taken by the next.
const MESSAGES_AT_ONCE: usize = 1024;

/// What one call of `receive` received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceFileBatch {
    /// Events of any kind.
    pub(super) count: usize,
    /// A GPU's device file was opened, closed or made.
    pub(super) opened: bool,
    /// Events were lost.
    pub(super) lost: bool,
}

/// Watches on device files.
pub(super) struct DeviceFileWatches {
    inotify: OwnedFd,
    /// Files of soft GPUs.
    soft_files: Vec<PathBuf>,
    dirs: BTreeSet<i32>,
}

impl DeviceFileWatches {
    /// Watches NVIDIA's device files and these. Returns a sentence for each file that cannot be watched.
    pub(super) fn open(soft_files: &[PathBuf]) -> io::Result<(DeviceFileWatches, Vec<String>)> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut files = DeviceFileWatches { inotify, soft_files: soft_files.to_vec(), dirs: BTreeSet::new() };
        let mut missing = Vec::new();
        let parents: BTreeSet<&Path> =
            [Path::new(DEV)].into_iter().chain(soft_files.iter().filter_map(|path| path.parent())).collect();
        for dir in parents {
            let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
            match inotify::add_watch(&files.inotify, dir, wanted) {
                Ok(watch) => drop(files.dirs.insert(watch)),
                Err(error) => missing.push(format!("device files that are made in `{}`: {error}", dir.display())),
            }
        }
        files.watch_all(&mut missing);
        Ok((files, missing))
    }

    /// Takes the waiting events, up to a bound.
    pub(super) fn receive(&self) -> io::Result<DeviceFileBatch> {
        let mut batch = DeviceFileBatch::default();
        let mut is_made = false;
        let mut room = [const { MaybeUninit::<u8>::uninit() }; BUFFER];
        let mut events = Reader::new(&self.inotify, &mut room);
        // A buffer that was read is processed to its end, or its events would be lost.
        while batch.count < MESSAGES_AT_ONCE || !events.is_buffer_empty() {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            batch.count += 1;
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                batch.lost = true;
                is_made = true;
            } else if self.dirs.contains(&event.wd()) {
                is_made |= event.file_name().is_some_and(|name| self.is_gpu_file(OsStr::from_bytes(name.to_bytes())));
            } else {
                // The end of a watch is not an event of interest: its file was removed, and a new one will be made.
                batch.opened |= !event.events().contains(ReadFlags::IGNORED);
            }
        }
        if is_made {
            // The file may have been opened before it was watched.
            batch.opened = true;
            self.watch_all(&mut Vec::new());
        }
        Ok(batch)
    }

    /// True for a GPU's file name in a watched directory; the same name elsewhere costs one useless reading.
    fn is_gpu_file(&self, name: &OsStr) -> bool {
        name.as_bytes().starts_with(PREFIX) || self.soft_files.iter().any(|path| path.file_name() == Some(name))
    }

    /// Watches every file that exists. A watch that exists already is kept.
    fn watch_all(&self, missing: &mut Vec<String>) {
        let nodes = fs::read_dir(DEV).into_iter().flatten().flatten().filter(|node| {
            node.file_name().as_bytes().starts_with(PREFIX) && node.file_type().is_ok_and(|kind| !kind.is_dir())
        });
        let nodes = nodes.map(|node| node.path()).take(WATCHES_MAX);
        for path in nodes.chain(self.soft_files.iter().cloned()) {
            match inotify::add_watch(&self.inotify, &path, WatchFlags::OPEN | WatchFlags::CLOSE) {
                Ok(_) | Err(Errno::NOENT) => {} // its directory is watched
                Err(error) => missing.push(format!("processes that open `{}`: {error}", path.display())),
            }
        }
    }
}

impl AsFd for DeviceFileWatches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
