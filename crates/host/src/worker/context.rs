//! Measures what a CUDA context alone takes on a GPU: makes one, and asks NVML for the bytes of this process.
//!
//! The process ends right after. Nothing is launched and nothing allocated.

use super::cuda::{Cuda, CudaError};
use super::{nvml, write_json_line};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use sublet_core::units::Bytes;
use thiserror::Error;

/// The answer of this worker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasuredContext {
    pub(crate) context: Bytes,
}

#[derive(Debug, Error)]
enum ContextError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("the driver does not say how many bytes this process has")]
    NotReported,
}

pub(super) fn run(uuid: &str) -> ExitCode {
    match measure(uuid) {
        Ok(context) if write_json_line(&mut std::io::stdout().lock(), &MeasuredContext { context }).is_ok() => {
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the context of GPU {uuid} was not measured: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(uuid: &str) -> Result<Bytes, ContextError> {
    let cuda = Cuda::open()?;
    // Kept until the process ends, on purpose.
    cuda.retain_context(cuda.device(uuid)?)?;
    nvml::bytes_of(uuid, std::process::id()).ok_or(ContextError::NotReported)
}
