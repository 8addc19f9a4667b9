//! Soft cards: made here, and from then on read like real ones.
//!
//! The worker is told by its environment to load the soft NVML and libcuda instead of NVIDIA's;
//! nothing else differs. The file is mapped only while it is made: whoever may use the cards may also
//! cut it short, and that must hit a worker, not the daemon.

use std::path::{Path, PathBuf};
pub use sublet_softgpu::NOTICE;
use sublet_softgpu::place::{self, CUDA, NVML, NoLibraries};
use sublet_softgpu::{Spec, State, StateError, state};
use thiserror::Error;

/// Where soft cards are, and the libraries to read them with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftPlace {
    /// The file.
    pub state: PathBuf,
    /// The directory of the libraries.
    pub libraries: PathBuf,
}

/// Why there are no soft cards.
#[derive(Debug, Error)]
pub enum SoftError {
    /// Nothing could read them.
    #[error(transparent)]
    Libraries(#[from] NoLibraries),
    /// They cannot be made.
    #[error(transparent)]
    State(#[from] StateError),
}

impl SoftError {
    /// The next step.
    pub fn hint(&self) -> Option<String> {
        match self {
            SoftError::Libraries(error) => Some(error.hint()),
            SoftError::State(StateError::InUse { .. }) => {
                Some("end it first, or serve the GPUs there are (`sublet soft status` shows them)".to_owned())
            }
            SoftError::State(StateError::File { .. } | StateError::NotCards { .. } | StateError::Foreign { .. }) => {
                Some("remove the file if it is not used, or choose another `--socket`: it lies beside that".to_owned())
            }
            SoftError::State(StateError::Crowded) => None,
        }
    }
}

/// The file of the soft cards that are served on a socket.
pub fn beside(socket: &Path) -> PathBuf {
    let mut path = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned()).into_os_string();
    path.push(".soft");
    path.into()
}

/// Makes the cards, unless just those are there. They outlive whoever serves them, as real ones do.
pub fn make(spec: &Spec, path: PathBuf) -> Result<SoftPlace, SoftError> {
    let libraries = place::libraries()?;
    State::create(&path, spec)?;
    Ok(SoftPlace { state: path, libraries })
}

impl SoftPlace {
    /// What makes a worker read these cards.
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
    fn the_file_is_named_after_the_socket_wherever_somebody_changes_to() {
        assert_eq!(beside(Path::new("/run/sublet/sublet.sock")), Path::new("/run/sublet/sublet.sock.soft"));
        assert!(beside(Path::new("s")).is_absolute());
    }
}
