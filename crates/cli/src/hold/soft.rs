//! Makes a program use soft GPUs: the variables for their file, and for their libraries before all others.

use super::environment::Variables;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::say;
use std::env;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;
use sublet_softgpu::{NOTICE, library_dir, state};
use sublet_wire::{Gpus, Lease, exit};

/// The variables of a program on the soft GPUs of a file.
pub fn variables(file: &Path) -> Result<Variables, Failure> {
    let libraries = library_dir::library_dir()
        .map_err(|error| Failure::new(exit::FAILURE, error.to_string()).hint(error.hint()))?;
    let path = library_dir::path_with_front(&libraries, env::var_os(library_dir::LINKER_ENV).as_deref());
    Ok(vec![(state::ENV, file.display().to_string()), (library_dir::LINKER_ENV, path.to_string_lossy().into_owned())])
}

/// Whether a folder has the libraries of soft GPUs.
pub fn is_libraries(folder: &str) -> bool {
    library_dir::library_dir().is_ok_and(|libraries| Path::new(folder) == libraries)
}

/// The variables of a holder, if its lease is on soft GPUs of this host.
pub fn of_lease(client: &Client, lease: &Lease) -> Result<Option<Variables>, Failure> {
    let is_soft = lease.gpu_uuids.iter().any(|uuid| uuid.starts_with(state::SOFT_UUID));
    if !is_soft || client.socket().is_none() {
        return Ok(None);
    }
    let gpus: Gpus = client.get("/v1/gpus")?;
    let file = gpus.soft_state.ok_or_else(|| {
        Failure::new(exit::FAILURE, format!("{} did not say where its soft GPUs are", client.place()))
            .hint("is it a daemon of another version?")
    })?;
    let variables = variables(Path::new(&file))?;
    say_once(Path::new(&file));
    Ok(Some(variables))
}

/// Prints that these are soft GPUs, once per user for each start of the daemon. If that cannot be recorded, it is
/// printed every time.
fn say_once(file: &Path) {
    let born = |found: Metadata| found.created().ok()?.duration_since(UNIX_EPOCH).ok().map(|age| (found.ino(), age));
    let start = file.metadata().ok().and_then(born).map(|(inode, age)| format!("{inode} {}\n", age.as_nanos()));
    let (Some(start), Some(note)) = (start, crate::place::soft_notice()) else { return say!("{NOTICE}") };
    if fs::read_to_string(&note).is_ok_and(|known| known == start) {
        return;
    }
    say!("{NOTICE}");
    if let Some(dir) = note.parent() {
        let _ = fs::create_dir_all(dir);
    }
    let _ = fs::write(note, start);
}
