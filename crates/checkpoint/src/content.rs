//! What is saved: named parts, each of which becomes an ordinary file, and their hashes.
//!
//! A part is hashed in chunks of 4 MiB. The hashes of the newest version tell which parts are
//! unchanged; those get a second name on the disk and are not written again.
//!
//! Absent on purpose: a format for tensors. A part is bytes; one file per tensor or per state keeps
//! unchanged ones from being written.

use crate::error::ReplicatedError;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The bytes that are hashed together.
pub const CHUNK_BYTES: usize = 4 << 20;

/// The name of the part that holds the bytes of a save without names.
pub const UNNAMED_PART: &str = "state";

/// The manifest's file name inside a version's directory.
pub const MANIFEST: &str = "sublet.json";

/// The file that says that a version is committed.
pub const SUCCESS: &str = "_SUCCESS";

/// One file of a checkpoint, to be saved.
#[derive(Clone, Debug)]
pub struct CheckpointPart {
    /// Its path inside the version's directory, with `/` between directories.
    pub name: String,
    /// Its bytes.
    pub source: PartSource,
}

/// Where the bytes of a part are.
#[derive(Clone, Debug)]
pub enum PartSource {
    /// In memory; nothing is copied.
    Memory(Bytes),
    /// In a file of the real file system, which must not change while it is saved.
    File {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
}

impl CheckpointPart {
    /// A part in memory.
    pub fn new(name: impl Into<String>, bytes: impl Into<Bytes>) -> CheckpointPart {
        CheckpointPart { name: name.into(), source: PartSource::Memory(bytes.into()) }
    }

    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.source {
            PartSource::Memory(bytes) => bytes.len() as u64,
            PartSource::File { bytes, .. } => *bytes,
        }
    }
}

/// The parts of a directory that another program wrote: every regular file in it and below it.
pub fn parts_of_directory(directory: &Path) -> Result<Vec<CheckpointPart>, ReplicatedError> {
    let mut parts = Vec::new();
    let mut pending = vec![(directory.to_owned(), String::new())];
    while let Some((at, prefix)) = pending.pop() {
        let failed = |source| ReplicatedError::File { path: at.clone(), source };
        for entry in std::fs::read_dir(&at).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let file_name = entry.file_name();
            let refused = |reason| ReplicatedError::InvalidPart { part: entry.path().display().to_string(), reason };
            let name = file_name.to_str().ok_or_else(|| refused("its name is not UTF-8"))?;
            let name = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                pending.push((entry.path(), format!("{name}/")));
            } else if kind.is_file() {
                let bytes = entry.metadata().map_err(failed)?.len();
                parts.push(CheckpointPart { name, source: PartSource::File { path: entry.path(), bytes } });
            } else {
                return Err(refused("it is neither a file nor a directory"));
            }
        }
    }
    parts.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(parts)
}

/// Refuses parts that would leave the version's directory, hide each other, or hide Sublet's own files.
pub fn check_parts(parts: &[CheckpointPart]) -> Result<(), ReplicatedError> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for part in parts {
        let refused = |reason| Err(ReplicatedError::InvalidPart { part: part.name.clone(), reason });
        if let Some(reason) = refusal_of_name(&part.name) {
            return refused(reason);
        }
        if !names.insert(&part.name) {
            return refused("two parts have this name");
        }
    }
    for name in &names {
        let parents = name.match_indices('/').map(|(at, _)| &name[..at]);
        if let Some(parent) = parents.into_iter().find(|parent| names.contains(parent)) {
            let reason = "another part is a file where this one needs a directory";
            return Err(ReplicatedError::InvalidPart { part: format!("{name}` below `{parent}"), reason });
        }
    }
    Ok(())
}

/// Why a part may not have this name.
pub fn refusal_of_name(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > 1_000 {
        return Some("its name must have 1 to 1,000 characters");
    }
    if name.contains('\0') {
        return Some("its name holds a NUL byte");
    }
    if name.split('/').any(|component| matches!(component, "" | "." | "..")) {
        return Some("its name is not a plain relative path");
    }
    if name.split('/').any(|component| component.len() > 255) {
        return Some("a component of its name is longer than 255 characters");
    }
    let first = name.split('/').next().unwrap_or_default();
    (first == MANIFEST || first == SUCCESS).then_some("Sublet keeps a file of its own under that name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside_their_directory() {
        for name in ["model.pt", "optimizer/state.bin", ".hidden", "a b"] {
            assert_eq!(refusal_of_name(name), None, "{name}");
        }
        for name in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".", "a\0", "_SUCCESS", "sublet.json/x"] {
            assert!(refusal_of_name(name).is_some(), "{name}");
        }
    }

    #[test]
    fn parts_that_hide_each_other_are_refused() {
        let part = |name: &str| CheckpointPart::new(name, Vec::new());
        assert!(check_parts(&[part("a"), part("b/c")]).is_ok());
        assert!(check_parts(&[part("a"), part("a")]).is_err());
        assert!(check_parts(&[part("a"), part("a/b")]).is_err());
    }

    #[test]
    fn a_directory_becomes_parts_with_relative_names() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("sub")).expect("a directory");
        std::fs::write(directory.path().join("sub/b"), "12").expect("a file");
        std::fs::write(directory.path().join("a"), "1").expect("a file");
        let parts = parts_of_directory(directory.path()).expect("parts");
        let names: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.bytes())).collect();
        assert_eq!(names, [("a", 1), ("sub/b", 2)]);
    }
}
