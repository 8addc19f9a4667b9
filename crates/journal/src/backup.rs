//! A copy of a journal beside a running daemon: one file, whole, that opens by itself.
//!
//! To restore the copy, put it into an empty directory as `journal.db`. Beside the old
//! `journal.db-wal`, SQLite would mix it with later commits.

use crate::connect;
use crate::error::OpenError;
use crate::state_dir;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Copies the journal in a state directory (or a backup) to a new file, and returns when the copy
/// is on the disk. Works beside a daemon.
pub fn backup(at: &Path, to: &Path) -> Result<(), OpenError> {
    if to.symlink_metadata().is_ok() {
        return Err(OpenError::Exists { path: to.to_owned() });
    }
    let (conn, _) = connect::open_read_only(at)?;
    let part = PartialBackup::beside(to)?;
    let target = part.path.to_str().ok_or_else(|| OpenError::file(to, "its name is not UTF-8"))?;
    conn.execute("VACUUM INTO ?1", [target]).map_err(|error| OpenError::sqlite(to, &error))?;
    finish(&part.path, to)
}

/// The unfinished copy. It is removed when dropped, unless it was renamed to its final name.
struct PartialBackup {
    path: PathBuf,
}

impl PartialBackup {
    fn beside(to: &Path) -> Result<PartialBackup, OpenError> {
        let mut name = to.file_name().ok_or_else(|| OpenError::file(to, "it names no file"))?.to_owned();
        name.push(format!(".part-{}", std::process::id()));
        let part = to.with_file_name(name);
        // SQLite writes into an empty file that only its owner can read. If that file cannot be made, the error names
        // the folder that the user gave: the user does not know the name of the partial file.
        state_dir::make_private_file(&part).map_err(|error| match error {
            OpenError::File { source, .. } => OpenError::file(folder(to), source),
            other => other,
        })?;
        Ok(PartialBackup { path: part })
    }
}

fn folder(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for PartialBackup {
    fn drop(&mut self) {
        // After a success there is nothing under this name; after an error, the error says more.
        let _ = fs::remove_file(&self.path);
    }
}

fn finish(part: &Path, to: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::file(to, error);
    File::open(part).and_then(|file| file.sync_all()).map_err(failed)?;
    match renameat_with(CWD, part, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(OpenError::Exists { path: to.to_owned() }),
        // Some file systems cannot rename without replacing; a hard link does not replace either.
        Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(part, to).map_err(failed)?,
        Err(errno) => return Err(failed(errno.into())),
    }
    state_dir::sync_dir(folder(to)).map_err(failed)
}
