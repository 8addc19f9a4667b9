//! Soft cards: GPUs that are a file.
//!
//! ```text
//!   a program ── libcuda.so.1 ──┐
//!   a program ── libcuda.so.1 ──┼── one mapped file: cards, who is on them, faults
//!   nvitop, sublet ── libnvidia-ml.so.1 ──┘
//! ```
//! Every process maps the same [file](state), in which it has a row of its own. What a row says
//! counts as long as its process lives, which the kernel tells by a lock that goes with it; so the
//! memory of whoever dies comes back by itself. The bytes of a soft card are the process's own
//! memory: nobody else can read them, and fresh ones are zero.
//!
//! Absent: the C interfaces (`crates/softgpu-cuda`, `crates/softgpu-nvml`), and kernels
//! (`crates/ptx`).

pub mod checkpoint;
pub mod fault;
pub mod layout;
pub mod lock;
pub mod place;
pub mod spec;
pub mod state;

pub use fault::{CardFault, CheckpointFault, NvmlFault};
pub use spec::Spec;
pub use state::{Process, Seat, State, StateError};

/// What everybody who meets soft cards is told.
pub const NOTICE: &str = "these are soft GPUs: programs of CUDA's driver API run on them, PyTorch and the like do not";
