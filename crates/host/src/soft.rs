//! Soft GPUs: made here, and from then on read like real ones.
//!
//! The environment tells the worker to load the soft NVML and libcuda instead of NVIDIA's; nothing else differs. The
//! daemon maps the file only while it makes it: a user that may use the GPUs may also truncate the file, and that
//! must crash a worker, not the daemon.

use std::path::{Path, PathBuf};
pub use sublet_softgpu::NOTICE;
use sublet_softgpu::library_dir::{self, CUDA, NVML, NoLibraries};
use sublet_softgpu::{SoftGpuState, Spec, StateError, state};
use thiserror::Error;

/// Where soft GPUs are, and the libraries to read them with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftPlace {
    /// The file with their state.
    pub state: PathBuf,
    /// The directory of the libraries.
    pub libraries: PathBuf,
}

/// Why there are no soft GPUs.
#[derive(Debug, Error)]
pub enum SoftError {
    /// The libraries to read them are missing.
    #[error(transparent)]
    Libraries(#[from] NoLibraries),
    /// They cannot be made.
    #[error(transparent)]
    State(#[from] StateError),
}

impl SoftError {
    /// The next step for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            SoftError::Libraries(error) => Some(error.hint()),
            SoftError::State(StateError::InUse { .. }) => {
                Some("end it first, or serve the GPUs there are (`sublet soft status` shows them)".to_owned())
            }
            SoftError::State(StateError::File { .. } | StateError::NotSoftGpus { .. } | StateError::Foreign { .. }) => {
                Some("remove the file if it is not used, or choose another `--socket`: it lies beside that".to_owned())
            }
            SoftError::State(StateError::NoFreeRow) => None,
        }
    }
}

/// The file of the soft GPUs that are served on a socket.
pub fn state_file_for(socket: &Path) -> PathBuf {
    let mut path = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned()).into_os_string();
    path.push(".soft");
    path.into()
}

/// Makes the GPUs, unless exactly those exist. They outlive the daemon that serves them, as real ones do.
pub fn create_gpus(spec: &Spec, path: PathBuf) -> Result<SoftPlace, SoftError> {
    let libraries = library_dir::library_dir()?;
    SoftGpuState::create(&path, spec)?;
    Ok(SoftPlace { state: path, libraries })
}

impl SoftPlace {
    /// The environment that makes a worker read these GPUs.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            (state::ENV, self.state.clone()),
            (crate::worker::NVML_VARIABLE, self.libraries.join(NVML)),
            (crate::worker::CUDA_VARIABLE, self.libraries.join(CUDA)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_file_is_an_absolute_path_beside_the_socket() {
        assert_eq!(state_file_for(Path::new("/run/sublet/sublet.sock")), Path::new("/run/sublet/sublet.sock.soft"));
        assert!(state_file_for(Path::new("s")).is_absolute());
    }
}
