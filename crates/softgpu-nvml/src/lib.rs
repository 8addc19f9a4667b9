//! NVML over soft GPUs: a `libnvidia-ml.so.1` that needs no driver.
//!
//! ```text
//!   pynvml, nvitop, gpustat, sublet
//!        │ C
//!   system  identity  memory  processes  sensors  modes     what is answered
//!   unsupported                                             what is not, name by name
//!        │
//!   library    how often `nvmlInit` was called, which handle is which GPU, ordered faults
//!   meter      how busy a GPU was, between two readings of the processes' own counters
//!        │
//!   sublet-softgpu: one mapped file
//! ```
//! A call opens nothing, takes no lock that a process on a GPU could hold, and waits only where a fault orders it.
//! [`abi`] and [`structs`] are the only places that touch a caller's memory.
//!
//! Absent: everything that would change a GPU, events, vGPU, MIG, NVLink, units. Those answer "not supported", or "no
//! permission" where a real driver would.

mod abi;
mod identity;
mod library;
mod memory;
mod meter;
mod modes;
mod processes;
mod sensors;
mod structs;
mod system;
mod unsupported;
