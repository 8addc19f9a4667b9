//! What `recorder.c` wrote: every change to the state directory, in order.

use crate::binary::root;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskChange {
    /// Which file, below the directory; empty for the directory itself.
    pub path: String,
    /// What was done to it.
    pub op: ChangeKind,
    /// Where this record ends in the log.
    pub end: u64,
}

/// What can be done to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Bytes at an offset.
    Write(u64, Vec<u8>),
    /// A new length.
    Truncate(u64),
    /// Everything up to here is on the disk.
    Sync,
    /// Its name is gone.
    Unlink,
    /// It has another name.
    Rename(String),
    /// It is there, and empty.
    Create,
    /// It is a directory.
    Mkdir,
}

/// Compiles the recorder into `dir`.
pub fn build_recorder(dir: &Path) -> PathBuf {
    let library = dir.join("recorder.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(root().join("tests-blackbox/recorder.c"))
        .args(["-ldl", "-lpthread"])
        .status()
        .expect("a C compiler is installed (Debian: gcc libc6-dev)");
    assert!(status.success(), "recorder.c could not be compiled");
    library
}

/// The variables that make a program record its changes under `dir` into `log`.
pub fn recorder_env(recorder: &Path, dir: &Path, log: &Path) -> Vec<(String, String)> {
    let text = |path: &Path| path.to_str().expect("test paths are plain").to_owned();
    vec![("LD_PRELOAD".into(), text(recorder)), ("RECORDER_DIR".into(), text(dir)), ("RECORDER_LOG".into(), text(log))]
}

/// All whole records of a log.
pub fn read(log: &[u8]) -> Vec<DiskChange> {
    let mut records = Vec::new();
    let mut rest = LogCursor { log, at: 0 };
    while let Some(record) = rest.record() {
        // Shared memory is rebuilt after a cut, and a file without a name cannot be found again.
        if !record.path.ends_with("-shm") && !record.path.ends_with(" (deleted)") {
            records.push(record);
        }
    }
    records
}

struct LogCursor<'a> {
    log: &'a [u8],
    at: usize,
}

impl LogCursor<'_> {
    fn record(&mut self) -> Option<DiskChange> {
        let (op, path_length, offset, length) = (self.u32()?, self.u32()?, self.u64()?, self.u64()?);
        let path = self.text(path_length.into())?;
        let op = match op {
            1 => ChangeKind::Write(offset, self.bytes(length)?.to_vec()),
            2 => ChangeKind::Truncate(offset),
            3 => ChangeKind::Sync,
            4 => ChangeKind::Unlink,
            5 => ChangeKind::Rename(self.text(length)?),
            6 => ChangeKind::Create,
            7 => ChangeKind::Mkdir,
            other => panic!("recorder.c knows no operation {other}"),
        };
        Some(DiskChange { path, op, end: self.at as u64 })
    }
    fn bytes(&mut self, length: u64) -> Option<&[u8]> {
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        let bytes = self.log.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }
    fn text(&mut self, length: u64) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes(length)?).into_owned())
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
}
