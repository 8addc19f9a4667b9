//! Soft GPUs: GPUs that are a file.
//!
//! ```text
//!   a program ── libcuda.so.1 ──┐
//!   a program ── libcuda.so.1 ──┼── one mapped file: GPUs, processes on them, faults
//!   nvitop, sublet ── libnvidia-ml.so.1 ──┘
//! ```
//! Every process maps the same [file](state), in which it has a row of its own. A row counts only while its process
//! lives, which the kernel shows by a lock that ends with the process; so the memory of a dead process is free again
//! without further action. The bytes of a soft GPU are the process's own memory: no other process can read them, and
//! fresh ones are zero.
//!
//! Absent: the C interfaces (`crates/softgpu-cuda`, `crates/softgpu-nvml`), and kernels
//! (`crates/ptx`).

pub mod checkpoint;
pub mod fault;
pub mod layout;
pub mod library_dir;
pub mod lock;
pub mod spec;
pub mod state;

pub use fault::{CheckpointFault, NvmlFault, SoftGpuFault};
pub use spec::Spec;
pub use state::{SoftGpuClient, SoftGpuProcess, SoftGpuState, StateError};

/// The notice that users of soft GPUs get.
pub const NOTICE: &str = "these are soft GPUs: programs of CUDA's driver API run on them, PyTorch and the like do not";
